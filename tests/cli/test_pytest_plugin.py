"""`pytest --vgpu ARCH` on a library's test files: outcomes, reasons and the summary."""

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

pytest.importorskip("cutlass")
pytest.importorskip("torch")
pytest_plugins = "pytester"

KERNELS = Path(__file__).parents[1] / "frontends"
# A conftest and a module that look for a GPU when they are imported, as those of kernel libraries do.
CONFTEST = f"""
import sys
sys.path.insert(0, {str(KERNELS)!r})
import torch
CAPABILITY = torch.cuda.get_device_capability()
"""
TESTS = """
import pytest
import torch
import cutedsl_kernels as kernels
from conftest import CAPABILITY

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")

@pytest.fixture
def inputs():
    return torch.randn(300, device="cuda"), torch.randn(300, device="cuda"), torch.empty(300, device="cuda")

@pytest.mark.parametrize("sign", [1, -1])
def test_right(inputs, sign):
    a, b, c = inputs
    kernels.add_plain(sign * a, b, c)
    torch.testing.assert_close(c, sign * a + b)

def test_wrong(inputs):
    a, b, c = inputs
    kernels.add_plain(a, b, c)
    torch.testing.assert_close(c, a - b)

def test_out_of_bounds(inputs):
    a, b, c = inputs
    kernels.add_plain(a, b, torch.empty(300))

def test_refused():
    torch.cuda.memory_summary()

def test_refused_and_caught():
    try:
        torch.cuda.memory_summary()
    except Exception:
        pass

@pytest.mark.xfail(raises=RuntimeError)
def test_expected_to_fail():
    raise RuntimeError

@pytest.mark.skipif(CAPABILITY[0] < 10, reason="needs Blackwell")
def test_for_blackwell():
    pass

def test_no_cpu_kernel():
    raise RuntimeError("\\"addmm\\" not implemented for 'Half'")
"""


@pytest.fixture
def run(pytester, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]), prepend=":")
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_kernels=TESTS)

    def call(*options):
        return pytester.runpytest_subprocess("-p", "tensorladder.pytest_plugin", "-p", "no:xdist", "-rs", *options)

    return call


def test_outcomes_and_summary(run):
    done = run("--vgpu", "sm_90a", "-v", "-p", "no:cacheprovider")
    assert done.ret == 1
    lines = [line.partition("::")[2].split()[:2] for line in done.outlines if line.startswith("test_kernels.py::")]
    assert dict(lines) == {
        "test_right[1]": "PASSED",
        "test_right[-1]": "PASSED",
        "test_wrong": "FAILED",
        "test_out_of_bounds": "FAILED",
        "test_refused": "INCOMPLETE",
        "test_refused_and_caught": "INCOMPLETE",
        "test_expected_to_fail": "XFAIL",
        "test_for_blackwell": "SKIPPED",
        "test_no_cpu_kernel": "INCOMPLETE",
    }
    done.stdout.fnmatch_lines(
        [
            "virtual GPU: sm_90a, eager*",
            "*out of bounds*",
            "*= virtual GPU: sm_90a, eager =*",
            "9 tests: 2 passed, 2 failed, 3 incomplete, 1 expected to fail, 1 skipped; 4 launched kernels",
            "incomplete:",
            "      2 torch.cuda.memory_summary is not modelled by the virtual GPU",
            "      1 an operator torch lacks on the CPU: *not implemented for 'Half'",
            "skipped by the tests:",
            "      1 needs Blackwell",
            "=* 2 failed, 2 passed, 1 skipped, 1 xfailed,* 3 incomplete in*",
        ]
    )


RACE = """
import numpy as np
from cuda.bindings import driver, nvrtc

SOURCE = b'''extern "C" __global__ void turn(int *out) {
    __shared__ int tile[64];
    tile[threadIdx.x] = threadIdx.x;
    BARRIER
    out[threadIdx.x] = tile[63 - threadIdx.x];
}'''

def launch(barrier):
    program = nvrtc.nvrtcCreateProgram(SOURCE.replace(b"BARRIER", barrier), b"turn.cu", 0, [], [])[1]
    nvrtc.nvrtcCompileProgram(program, 1, [b"-arch=sm_90"])
    ptx = b" " * nvrtc.nvrtcGetPTXSize(program)[1]
    nvrtc.nvrtcGetPTX(program, ptx)
    kernel = driver.cuModuleGetFunction(driver.cuModuleLoadData(ptx)[1], b"turn")[1]
    out = driver.cuMemAlloc(256)[1]
    driver.cuLaunchKernel(kernel, 1, 1, 1, 64, 1, 1, 0, 0, ((out,), (None,)), 0)

def test_with_a_race():
    launch(b"")

def test_with_a_barrier():
    launch(b"__syncthreads();")
"""


def test_a_hazard_fails_a_test(pytester, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]), prepend=":")
    pytester.makepyfile(RACE)
    options = ("-p", "tensorladder.pytest_plugin", "-p", "no:xdist", "-v", "--vgpu", "sm_90a", "--vgpu-check")
    done = pytester.runpytest_subprocess(*options, "--junitxml", "j.xml", "--vgpu-sarif", "h.sarif")
    assert done.ret == 1
    done.stdout.fnmatch_lines(
        [
            "*::test_with_a_race FAILED*",
            "*::test_with_a_barrier PASSED*",
            "error: race:*",
            "2 tests: 1 passed, 1 failed; 2 launched kernels",
            "tests with hazards:",
            "      1 error: race",
        ]
    )
    cases = {case.get("name"): case for case in ET.parse(pytester.path / "j.xml").getroot().iter("testcase")}
    hazards = list(cases["test_with_a_race"].iter("property"))
    assert {hazard.get("name") for hazard in hazards} == {"hazard"}
    assert any(hazard.get("value").startswith("error: race: ") for hazard in hazards)
    assert not list(cases["test_with_a_barrier"].iter("property"))
    (run,) = json.loads((pytester.path / "h.sarif").read_text())["runs"]
    assert len(run["results"]) == len(hazards)
    assert all(result["properties"]["target"].endswith(".py::test_with_a_race") for result in run["results"])


def test_a_breakpoint_ends_the_run_and_shows_the_machine(pytester, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]), prepend=":")
    pytester.makepyfile(RACE + "\ndef test_without_a_kernel(): pass\n")
    options = ("-p", "tensorladder.pytest_plugin", "-p", "no:xdist", "-v", "--vgpu", "sm_90a")
    at = ("--vgpu-break", "turn.cu:5@warp=1", "--vgpu-dump", "smem:0x400:8")
    done = pytester.runpytest_subprocess(*options, *at)
    assert done.ret != 0
    done.stdout.fnmatch_lines(
        [
            "*::test_with_a_race FAILED*",
            "stopped at breakpoint turn.cu:5@warp=1",
            "1 tests: 1 failed; 1 launched kernels",
            "*::test_with_a_race",
            "breakpoint turn.cu:5@warp=1: kernel turn, CTA 0,0,0, warp 1, all lanes, time 1",
            "*smem:0x400:8: u32 from 0x400 on*",
        ]
    )
    done = pytester.runpytest_subprocess(*options, *at, "--vgpu-continue", "9", "--vgpu-break", "turn.cu:900")
    done.stdout.fnmatch_lines(
        [
            "3 tests: 3 passed; 2 launched kernels",
            "*::test_with_a_race",
            "breakpoint turn.cu:5@warp=1: *",
            "*::test_with_a_barrier",
            "breakpoint turn.cu:5@warp=1: *",
            "--vgpu-break turn.cu:900: no instruction of turn stands there;*",
        ]
    )
    assert done.ret == 4


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--vgpu-break", "ptx:3"), "give --vgpu ARCH"),
        (("--vgpu", "sm_90a", "--vgpu-break", "nowhere"), "--vgpu-break nowhere"),
    ],
)
def test_breakpoints_that_cannot_be(pytester, monkeypatch, options, said):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]), prepend=":")
    done = pytester.runpytest_subprocess("-p", "tensorladder.pytest_plugin", "-p", "no:xdist", *options)
    assert done.ret == 4 and said in "\n".join(done.errlines)


STREAMS = """
import pytest
import torch

X = torch.zeros(8, device="cuda")

@pytest.mark.parametrize("waits", [True, False])
def test_a_side_stream(waits):
    side = torch.cuda.Stream()
    if waits:
        side.wait_stream(torch.cuda.current_stream())
    X.add_(1)
    with side:
        (side.wait_stream(torch.cuda.default_stream()) if waits else None), X.add_(1)

def test_after_it():  # what the test before left running is not this one's
    X.add_(1)
"""


def test_a_race_of_streams_fails_its_test_alone(pytester, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]), prepend=":")
    pytester.makepyfile(STREAMS)
    options = ("-p", "tensorladder.pytest_plugin", "-p", "no:xdist", "-v", "--vgpu", "sm_90a", "--vgpu-check")
    done = pytester.runpytest_subprocess(*options)
    assert done.ret == 1
    done.stdout.fnmatch_lines(
        [
            "*::test_a_side_stream?True? PASSED*",
            "*::test_a_side_stream?False? FAILED*",
            "*::test_after_it PASSED*",
            "error: race: aten.add_ on stream 2 *",
            "3 tests: 2 passed, 1 failed; 0 launched kernels",
        ]
    )


UNCHECKED = """
import os

def test_a_device_of_its_own(monkeypatch):
    from tensorladder import vgpu
    from tensorladder.vgpu.machine import device

    run = device.run_all
    monkeypatch.setattr(device, "run_all", lambda *given: (os.write(2, b"generated code's last words\\n"), run(*given)))
    for _ in range(2):
        vgpu.launch(".version 8.0\\n.target sm_80\\n.address_size 64\\n.visible .entry k() { ret; }", "k", 1, 32, [])
"""


def test_known_hazards_do_not_count(pytester, monkeypatch):
    """Written by the process that pytest-xdist's workers report to; what is accepted is suppressed in SARIF. It also
    says what was not checked."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]), prepend=":")
    pytester.makepyfile(RACE + UNCHECKED)
    options = ("-p", "tensorladder.pytest_plugin", "--vgpu", "sm_90a", "--vgpu-check")
    done = pytester.runpytest_subprocess(*options, "-n", "1", "--vgpu-write-baseline", "known.json")
    assert done.ret == 0
    done.stdout.fnmatch_lines(
        ["3 tests: 3 passed; 2 launched kernels", "not checked: 2 launches by vgpu.launch,*", "hazards that the*: *"]
    )
    known = json.loads((pytester.path / "known.json").read_text())
    entry = next(one for one in known["findings"] if one["kind"] == "race")
    assert entry["target"].endswith(".py::test_with_a_race")
    known["findings"].append({**entry, "target": entry["target"].replace("a_race", "a_barrier")})
    (pytester.path / "known.json").write_text(json.dumps(known))
    done = pytester.runpytest_subprocess(
        *options, "-p", "no:xdist", "--vgpu-baseline", "known.json", "--vgpu-sarif", "h.sarif", "--junitxml", "j.xml"
    )
    assert done.ret == 0
    stale = ["no longer found, delete it from the baseline:", "  *::test_with_a_barrier: race: *"]
    done.stdout.fnmatch_lines(["not checked: 2 launches by*", *stale])
    # what ends the process at once, as no more memory does, is not lost in pytest's capture
    assert done.stderr.lines.count("generated code's last words") == 2
    results = json.loads((pytester.path / "h.sarif").read_text())["runs"][0]["results"]
    assert results and all(result["suppressions"] for result in results)
    hazards = list(ET.parse(pytester.path / "j.xml").getroot().iter("property"))
    assert len(hazards) == len(results) and {hazard.get("name") for hazard in hazards} == {"hazard accepted"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--vgpu", "sm_90a", "--vgpu-sarif", "h.sarif"), "--vgpu-sarif is of hazards: give --vgpu ARCH and --vgpu-ch"),
        (("--vgpu-baseline", "known.json"), "--vgpu-baseline is of hazards"),
        (("--vgpu", "sm_90a", "--vgpu-check", "--vgpu-baseline", "no.json"), "--vgpu: --vgpu-baseline *no.json: can"),
    ],
)
def test_files_that_cannot_be(pytester, options, said):
    done = pytester.runpytest_inprocess("-p", "tensorladder.pytest_plugin", *options)
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines([f"ERROR: {said}*"])


def test_without_the_option_nothing_is_changed(run):
    done = run("-q", "--co")
    assert done.ret != 0  # no GPU here: the conftest's own call fails
    # what torch says depends on its build
    assert re.search("Torch not compiled with CUDA|Found no NVIDIA driver", done.stderr.str())
    done.stdout.no_fnmatch_line("*virtual GPU*")


def test_an_unknown_architecture_is_one_line(run):
    done = run("--vgpu", "sm_33")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(["ERROR: --vgpu: *sm_33*"])
