"""`tensorladder check`: the contract's keys and exit codes."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("llvmlite")

from tensorladder.cli.app import main

KERNEL = """.version 8.6
.target sm_90a
.address_size 64
.visible .entry kernel(.param .u64 out)
{{
.reg .b32 %r<8>; .reg .b64 %rd<4>;
.shared .align 16 .b8 buf[256];
mov.u32 %r0, %tid.x; shl.b32 %r1, %r0, 2; mov.u32 %r2, buf; add.u32 %r3, %r2, %r1;
st.shared.u32 [%r3], %r0;
{barrier}
xor.b32 %r4, %r1, 128; add.u32 %r4, %r4, %r2; ld.shared.u32 %r5, [%r4];
ld.param.u64 %rd0, [out]; cvt.u64.u32 %rd1, %r1; add.u64 %rd1, %rd1, %rd0; st.global.u32 [%rd1], %r5;
ret;
}}
"""
LAUNCH = ["--block", "64", "--arg", "u32[64]"]


def test_exit_codes_json_and_text(tmp_path, capsys):
    broken, repaired = tmp_path / "broken.ptx", tmp_path / "repaired.ptx"
    broken.write_text(KERNEL.format(barrier=""))
    repaired.write_text(KERNEL.format(barrier="bar.sync 0;"))
    assert main(["check", str(repaired), *LAUNCH]) == 0
    assert capsys.readouterr().out == f"{repaired}: clean\n"
    assert main(["check", str(broken), str(repaired), *LAUNCH, "--json"]) == 1
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (first["target"], first["verdict"], second["verdict"]) == (str(broken), "error", "clean")
    finding = next(f for f in first["findings"] if f["kind"] == "race")
    assert set(finding) == {"kind", "message", "where", "other", "fix", "verdict"}
    assert finding["where"]["ptx_line"] in (9, 11) and finding["other"]["ptx_line"] in (9, 11)
    assert main(["check", str(broken), *LAUNCH, "--seeds", "2"]) == 1
    text = capsys.readouterr().out
    assert "error: race:" in text and "fix:" in text


def test_a_rung_is_clean(capsys):
    assert main(["check", "a2-smem-padded", "--shape", "64,64,64"]) == 0
    assert capsys.readouterr().out == "a2-smem-padded: clean\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["no-such-rung"],
        ["missing.ptx"],
        ["a1", "--seeds", "0"],
        ["a1", "--async", "never"],
        ["--zoo", "--junit", "f.xml"],
    ],
)
def test_bad_requests_are_one_line(arguments, capsys):
    assert main(["check", *arguments]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_what_is_not_modelled_is_incomplete(tmp_path, capsys):
    path = tmp_path / "odd.ptx"
    path.write_text(KERNEL.format(barrier="bar.sync 0; call malloc;"))
    assert main(["check", str(path), *LAUNCH]) == 3
    assert "incomplete: unsupported:" in capsys.readouterr().out


def test_a_known_finding_does_not_count(tmp_path, capsys):
    path, kept = tmp_path / "k.ptx", tmp_path / "b.json"
    path.write_text(KERNEL.format(barrier=""))
    assert main(["check", str(path), *LAUNCH, "--write-baseline", str(kept)]) == 0
    assert "accepted: race" in capsys.readouterr().out
    path.write_text("// edited\n\n" + KERNEL.format(barrier="// and here"))
    asked = ["check", str(path), *LAUNCH, "--baseline", str(kept)]
    assert main(["check", str(path), *LAUNCH]) == 1 and "accepted" not in capsys.readouterr().out
    assert main([*asked, "--junit", str(tmp_path / "f.xml"), "--sarif", str(tmp_path / "f.sarif")]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{path}: clean\n") and "accepted: race" in out
    assert json.loads((tmp_path / "f.sarif").read_text())["runs"][0]["results"][0]["suppressions"]
    assert 'failures="0"' in (tmp_path / "f.xml").read_text()
    path.write_text(KERNEL.format(barrier="bar.sync 0;"))
    assert main([*asked, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["verdict"] == "clean" and "race" in [entry["kind"] for entry in record["stale"]]
    kept.write_text("{")
    assert main(asked) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1 and str(kept) in captured.err
