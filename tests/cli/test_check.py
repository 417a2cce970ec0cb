"""`tensorladder check`: the contract's keys and exit codes."""

from __future__ import annotations

import json
import shlex

import pytest

pytest.importorskip("llvmlite")

from tensorladder.cli.app import main
from tensorladder.core.findings import Finding

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
        ["many.cu"],
        ["script.py"],
    ],
)
def test_bad_requests_are_one_line(arguments, capsys):
    assert main(["check", *arguments]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert ("files of PTX, NAME.ptx" in said) is (arguments[0] in ("many.cu", "script.py"))


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


# Both warps write the same word if warp 0 comes first: a race that some schedules have and others do not.
FIRST = """.version 8.6
.target sm_90a
.address_size 64
.visible .entry kernel(.param .u64 out)
{
.reg .pred %p<4>; .reg .b32 %r<8>;
.shared .align 16 .b8 buf[256];
.shared .align 4 .b8 turn[4];
mov.u32 %r0, %tid.x; shr.u32 %r1, %r0, 5; mov.u32 %r2, buf; mov.u32 %r5, turn;
setp.eq.u32 %p0, %r0, 0; @%p0 st.shared.u32 [%r5], 0;
bar.sync 0;
and.b32 %r3, %r0, 31; setp.ne.u32 %p1, %r3, 0; @%p1 bra DONE;
atom.shared.add.u32 %r4, [%r5], 1;
setp.eq.u32 %p2, %r4, %r1; @!%p2 bra DONE;
st.shared.u32 [%r2], %r0;
DONE:
ret;
}
"""


def test_a_finding_of_a_random_schedule_replays_bit_for_bit(tmp_path, capsys):
    path = tmp_path / "a kernel.ptx"
    path.write_text(FIRST)
    asked = ["check", str(path), *LAUNCH, "--grid", "8", "--json"]
    assert main(asked) == 0
    capsys.readouterr()
    assert main([*asked, "--seeds", "8"]) == 1
    (found,) = json.loads(capsys.readouterr().out)["findings"]
    policy, command = found.pop("policy"), found.pop("replay")
    program, *words = shlex.split(command)
    assert program == "tensorladder" and policy.startswith("random:") and policy in words
    again = []
    for _ in range(2):
        assert main([*words, "--json"]) == 1
        again.append(json.loads(capsys.readouterr().out)["findings"])
    assert again == [[found], [found]]
    assert main([*words, "--break", "ptx:15", "--continue", "99", "--json"]) == 1  # looked at on the way, the same
    *dumps, report = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert report["findings"] == [found] and found["where"]["cta"] in [dump["cta"] for dump in dumps]
    assert main([*asked[:-1], "--seeds", "8"]) == 1
    assert f"replay: {command}" in capsys.readouterr().out


def test_a_replay_of_a_rung_asks_for_the_same_run(capsys, monkeypatch):
    from tensorladder.measure import hazards

    def stop(program, asked, checker, breakpoints):
        if asked.policy == "random:2":
            checker.findings.append(Finding("trap", f"{asked.shape} {asked.dtype} {asked.seed} {asked.policy}"))

    monkeypatch.setattr(hazards, "_check_run", stop)
    monkeypatch.setattr(hazards, "build", lambda asked: None)
    asked = ["check", "a2", "--shape", "64,128,64", "--seed", "3", "--sm-count", "5", "--timeout", "9", "--json"]
    assert main([*asked, "--seeds", "4"]) == 1
    (found,) = json.loads(capsys.readouterr().out)["findings"]
    assert found.pop("policy") == "random:2"
    words = shlex.split(found.pop("replay"))[1:]
    assert words[1] == "a2-smem-padded" and main([*words, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["findings"] == [found]


def test_more_schedules_than_fit_in_memory():
    from tensorladder.measure.hazards import policies_of

    policies = policies_of("lazy", 10**15)
    assert [next(policies) for _ in range(3)] == ["lazy", "random:1", "random:2"]
