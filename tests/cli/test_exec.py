"""`exec`: the script's arguments, exit code and failures are its own; ours stay one line."""

from __future__ import annotations

import importlib
import json
import xml.etree.ElementTree as ET

import pytest

from tensorladder.core.errors import KernelError
from tests.peers import checked


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Writes a script; it runs with no front end's hooks."""
    monkeypatch.setattr("tensorladder.measure.scripts.hooks", list)
    monkeypatch.setattr("tensorladder.vgpu.driver.script._device_streams", lambda *options: None)

    def write(text: str) -> str:
        path = tmp_path / "script.py"
        path.write_text(text)
        return str(path)

    return write


def test_options_after_the_script_are_the_scripts(ask, script):
    said = ask("exec", "--arch", "sm_100a", script("import sys; print(sys.argv[1:])"), "--arch", "x", "-n", "3")
    assert said.code == 0 and said.out == "['--arch', 'x', '-n', '3']\n"


@pytest.mark.parametrize(("text", "code"), [("", 0), ("import sys; sys.exit(5)", 5), ("raise SystemExit", 0)])
def test_the_exit_code_is_the_scripts(ask, script, text, code):
    assert ask("exec", script(text)).code == code


def test_the_scripts_failure_is_shown_from_its_own_first_line(ask, script):
    said = ask("exec", script("def f():\n    return 1 // 0\n\nf()\n"))
    assert said.code == 1
    lines = said.err.splitlines()
    assert lines[0].startswith("Traceback") and 'script.py", line 4' in lines[1]
    assert lines[-1].startswith("ZeroDivisionError") and "runpy" not in said.err


def test_a_script_that_cannot_be_parsed_is_shown_as_python_does(ask, script):
    said = ask("exec", script("x = 1\ndef f(:\n"))
    assert said.code == 1 and said.err.splitlines()[-1].startswith("SyntaxError")
    assert 'script.py", line 2' in said.err.splitlines()[0] and "Traceback" not in said.err


def test_a_module_that_an_extra_brings_is_one_line(ask, script):
    said = ask("exec", script("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')"))
    assert said.code == 2 and said.err.count("\n") == 1 and "tensorladder[torch]" in said.err
    said = ask("exec", script("import no_such_module_of_exec_test"))
    assert said.code == 1 and "During handling" not in said.err
    assert said.err.splitlines()[-1].startswith("ModuleNotFoundError")


def test_a_launch_that_fails_is_one_line(ask, script, monkeypatch):
    def fail(*_, **__):
        raise KernelError("lane 0 reads A[99]")

    monkeypatch.setattr("tensorladder.measure.scripts.run_script", fail)
    said = ask("exec", script(""))
    assert said.code == 1 and said.err == "tensorladder: lane 0 reads A[99]\n"


@pytest.mark.parametrize("options", [("--arch", "gfx90a"), ("--async", "never"), ("--seed", "x")])
def test_bad_options_are_refused_before_anything_runs(ask, script, options):
    said = ask("exec", *options, script("print('ran')"))
    assert said.code == 2 and said.out == "" and said.err.count("\n") == 1


RACE = '''
from cuda.bindings import driver, nvrtc
source = b"""extern "C" __global__ void turn(int *out) {
    __shared__ int tile[64];
    tile[threadIdx.x] = threadIdx.x;
    BARRIER
    out[threadIdx.x] = tile[63 - threadIdx.x];
}"""
program = nvrtc.nvrtcCreateProgram(source, b"turn.cu", 0, [], [])[1]
nvrtc.nvrtcCompileProgram(program, 1, [b"-arch=sm_90"])
ptx = b" " * nvrtc.nvrtcGetPTXSize(program)[1]
nvrtc.nvrtcGetPTX(program, ptx)
kernel = driver.cuModuleGetFunction(driver.cuModuleLoadData(ptx)[1], b"turn")[1]
out = driver.cuMemAlloc(256)[1]
driver.cuLaunchKernel(kernel, 1, 1, 1, 64, 1, 1, 0, 0, ((out,), (None,)), 0)
print("ran")
'''


@pytest.mark.parametrize(("barrier", "code", "verdict"), [("", 1, "error"), ("__syncthreads();", 0, "clean")])
def test_check_reports_hazards_beside_the_scripts_output(ask, tmp_path, monkeypatch, barrier, code, verdict):
    pytest.importorskip("cuda.bindings")
    pytest.importorskip("llvmlite")
    monkeypatch.setattr("tensorladder.measure.scripts.hooks", list)
    script = tmp_path / "script.py"
    script.write_text(RACE.replace("BARRIER", barrier))
    said = ask("exec", "--check", str(script))
    assert said.code == code and said.out == "ran\n"
    assert f"script.py: {verdict}" in said.err
    assert ("error: race" in said.err and "turn.cu:5" in said.err) == bool(code)


def test_what_a_check_did_not_see_is_said(ask, script, monkeypatch):
    pytest.importorskip("llvmlite")
    monkeypatch.setattr("tensorladder.measure.scripts.hooks", list)
    ptx = ".version 8.0\\n.target sm_80\\n.address_size 64\\n.visible .entry k() { ret; }"
    text = f'from tensorladder import vgpu\nfor _ in range(2): vgpu.launch("{ptx}", "k", 1, 32, [])'
    said = ask("exec", "--check", script(text))
    assert said.code == 0 and "not checked: 2 launches" in said.err
    assert json.loads(ask("exec", "--check", "--json", script(text)).err.splitlines()[-1]) == {"unchecked_launches": 2}


def test_files_of_a_check(ask, tmp_path, monkeypatch):
    """A baseline accepts what is known; JUnit and SARIF name the script and the line."""
    pytest.importorskip("cuda.bindings")
    pytest.importorskip("llvmlite")
    monkeypatch.setattr("tensorladder.measure.scripts.hooks", list)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text(RACE.replace("BARRIER", ""))
    assert ask("exec", "--check", "--write-baseline", "known.json", "script.py").code == 0
    said = ask("exec", "--check", "--baseline", "known.json", "--junit", "c.xml", "--sarif", "c.sarif", "script.py")
    assert said.code == 0 and said.out == "ran\n" and "accepted: race" in said.err
    (run,) = json.loads((tmp_path / "c.sarif").read_text())["runs"]
    assert run["results"] and all(result["suppressions"] for result in run["results"])
    assert ask("exec", "--check", "--junit", "c.xml", "--sarif", "c.sarif", "script.py").code == 1
    case = ET.parse(tmp_path / "c.xml").getroot().find("testsuite/testcase")
    assert case.get("name") == "script.py" and "race" in case.find("failure").get("type")
    results = json.loads((tmp_path / "c.sarif").read_text())["runs"][0]["results"]
    assert "race" in {result["ruleId"] for result in results}
    assert {result["properties"]["target"] for result in results} == {"script.py"}
    said = ask("exec", "--junit", "c.xml", "script.py")
    assert said.code == 2 and said.out == "" and "--check" in said.err
    said = ask("exec", "--check", "--baseline", "missing.json", "script.py")
    assert said.code == 2 and said.out == "" and said.err.count("\n") == 1


def test_what_stops_a_launch_is_a_finding_too(ask, tmp_path, monkeypatch):
    pytest.importorskip("cuda.bindings")
    pytest.importorskip("llvmlite")
    monkeypatch.setattr("tensorladder.measure.scripts.hooks", list)
    script = tmp_path / "script.py"
    script.write_text(RACE.replace("BARRIER", "__syncthreads();").replace("63 -", "999999 +"))
    said = ask("exec", "--check", "--junit", str(tmp_path / "c.xml"), str(script))
    failure = ET.parse(tmp_path / "c.xml").getroot().find("testsuite/testcase/failure")
    assert said.code == 1 and failure.get("type") == "out-of-bounds"


def test_no_memory_for_a_check_is_one_line(ask, tmp_path, monkeypatch):
    """The launch is incomplete: not the script's failure with a traceback, and not clean."""
    pytest.importorskip("cuda.bindings")
    pytest.importorskip("llvmlite")

    def take(*_):
        raise MemoryError("Unable to allocate 9.00 TiB")

    monkeypatch.setattr("tensorladder.measure.scripts.hooks", list)
    monkeypatch.setattr(importlib.import_module("tensorladder.vgpu.check.engine").Watch, "_take", take)
    script = tmp_path / "script.py"
    script.write_text(RACE.replace("BARRIER", "__syncthreads();"))
    said = ask("exec", "--check", str(script))
    assert said.code == 3 and said.err.startswith(f"{script}: incomplete")
    (line,) = (line for line in said.err.splitlines() if line.startswith("tensorladder: "))
    assert line.startswith("tensorladder: kernel turn wants more memory") and "9.00 TiB" in line
    assert checked.main(str(tmp_path / "found.jsonl"), str(script), "sm_90a", "eager") == 3
    assert [found["verdict"] for found in checked.read(tmp_path / "found.jsonl")] == ["incomplete"]
    script.write_text("raise ValueError")
    with pytest.raises(ValueError):
        checked.main(str(tmp_path / "ended.jsonl"), str(script), "sm_90a", "eager")
    assert [found["verdict"] for found in checked.read(tmp_path / "ended.jsonl")] == ["incomplete"]
