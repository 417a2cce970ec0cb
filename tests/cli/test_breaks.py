"""`--break` of run, check and exec: the dump, the exit code, the JSON."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("llvmlite")

from tests.cli.test_check import KERNEL, LAUNCH
from tests.cli.test_exec import RACE

HANGS = """.version 8.6
.target sm_90
.address_size 64
.visible .entry waits()
{
  .shared .align 8 .b64 bar; .reg .pred %p<2>;
  mbarrier.init.shared.b64 [bar], 1;
again:
  mbarrier.try_wait.parity.shared.b64 %p1, [bar], 0;
  @!%p1 bra again;
  ret;
}
"""


@pytest.fixture
def kernel(tmp_path):
    path = tmp_path / "kernel.ptx"
    path.write_text(KERNEL.format(barrier="bar.sync 0;"))
    return str(path)


def test_check_stops_there_and_says_so(ask, kernel):
    said = ask("check", kernel, *LAUNCH, "--break", "ptx:11@warp=1", "--dump", "smem:0x400:8")
    assert said.code == 0 and said.err == ""
    assert said.out.startswith("breakpoint ptx:11@warp=1: kernel kernel, CTA 0,0,0, warp 1, all lanes, time 1\n")
    assert "%r1 u32   128 + 4 * lane" in said.out and "smem:0x400:8: u32 from 0x400 on" in said.out
    assert said.out.endswith("kernel.ptx: stopped at a breakpoint; until then clean\n")
    said = ask("check", kernel, *LAUNCH, "--break", "ptx:11@warp=1", "--json")
    dump, report = (json.loads(line) for line in said.out.splitlines())
    assert (dump["break"], dump["warp"], dump["where"]["ptx_line"]) == ("ptx:11@warp=1", 1, 11)
    assert (report["verdict"], report["stopped"]) == ("clean", True)


def test_check_goes_on(ask, kernel):
    said = ask("check", kernel, *LAUNCH, "--break", "ptx:11", "--continue", "9", "--json", "--seeds", "2")
    *dumps, report = (json.loads(line) for line in said.out.splitlines())
    assert [(dump["warp"], dump["policy"], dump["seed"]) for dump in dumps] == [
        (1, "eager", 0), (0, "eager", 0), (0, "random", 1), (1, "random", 1),
    ]  # fmt: skip
    assert said.code == 0 and report["verdict"] == "clean" and "stopped" not in report


def test_a_hang_shows_where_all_stand(ask, tmp_path):
    path = tmp_path / "waits.ptx"
    path.write_text(HANGS)
    said = ask("check", str(path), "--break", "hang", "--json")
    dump, report = (json.loads(line) for line in said.out.splitlines())
    assert said.code == 1 and "deadlock" in {finding["kind"] for finding in report["findings"]}
    assert dump["reason"] == "hang" and dump["mbarriers"][0]["waiting"][0]["warp"] == 0
    said = ask("check", str(path), "--block", "1024", "--break", "hang@warp=31")
    assert said.out.count("\n    warp ") == 1 and "\n    warp 31: wait on" in said.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--break", "ptx:12"], "the nearest lines that have one: 11 and 13"),
        (["--break", "nowhere"], "write ptx:LINE"),
        (["--dump", "smem:0:4"], "--break says where"),
        (["--continue", "2"], "--break says where"),
        (["--break", "ptx:9", "--continue", "0"], "--continue 0"),
        (["--break", "ptx:9", "--zoo"], "--break"),
        (["--break", "ptx:9", "a1"], "one target"),
    ],
)
def test_what_is_refused(ask, tmp_path, arguments, said):
    path = tmp_path / "kernel.ptx"
    path.write_text(KERNEL.format(barrier="").replace("ld.param", "\nld.param"))
    got = ask("check", *([] if "--zoo" in arguments else [str(path)]), *LAUNCH, *arguments)
    assert got.code == 2 and got.out == "" and got.err.count("\n") == 1 and said in got.err


def test_run_stops_at_a_line_of_a_rungs_source(ask):
    pytest.importorskip("cutlass")
    rung, file = ["run", "a1-naive-cute", "--shape", "16,16,16"], "a1_naive_cute.py"
    said = ask(*rung, "--break", f"{file}:1", "--json")
    near = int(said.err.rstrip().rpartition(" ")[2])  # below the first line that has an instruction
    assert said.code == 2 and said.out == ""
    where = f"{file}:{near}@warp=1,lane=2"
    said = ask(*rung, "--async", "random:3", "--break", where, "--json")
    dump, record = (json.loads(line) for line in said.out.splitlines())
    assert said.code == 0 and (dump["where"]["line"], dump["warp"], dump["seed"]) == (near, 1, 3)
    assert (record["ok"], record["stopped"], record["digest"]) == (None, True, None)
    assert "gpu" in ask("run", "a1", "--on", "gpu", "--arch", "sm_80", "--break", "ptx:3").err.lower()


def test_exec_stops_the_script_and_leaves_its_output_alone(ask, tmp_path, monkeypatch):
    pytest.importorskip("cuda.bindings")
    monkeypatch.setattr("tensorladder.measure.scripts.hooks", list)
    script = tmp_path / "script.py"
    script.write_text(RACE.replace("BARRIER", "__syncthreads();") + "print('again')\n")
    said = ask("exec", "--break", "turn.cu:6@warp=1", str(script))
    assert said.code == 0 and said.out == ""
    assert said.err.startswith("breakpoint turn.cu:6@warp=1: kernel turn,") and "turn.cu:6" in said.err.splitlines()[1]
    said = ask("exec", "--check", "--json", "--break", "turn.cu:6", "--continue", "1", str(script))
    dump, report = (json.loads(line) for line in said.err.splitlines())
    assert said.code == 0 and said.out == "ran\nagain\n" and dump["warp"] == 1 and report["verdict"] == "clean"
    said = ask("exec", "--break", "turn.cu:60", str(script))
    assert said.code == 2 and "nearest" in said.err
    said = ask("exec", "--break", "turn.cu:6@launch=3", str(script))
    assert said.code == 0 and "never as its conditions say" in said.err
