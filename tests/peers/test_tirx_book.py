"""The nine GEMMs of the book "Modern GPU Programming for MLSys" in TIRx, unmodified, with no GPU.

They are written for TVM 0.26, whose spelling of PTX 0.27 has left behind: `TENSORLADDER_TIRX_PYTHON` names a Python
that has apache-tvm 0.26 and numpy. What it lowers is compiled, launched and judged here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tensorladder.frontends.tirx import compiled_source
from tensorladder.frontends.tirx_host import HostPart
from tensorladder.vgpu import Checker, Device

pytestmark = pytest.mark.peers
PYTHON = os.environ.get("TENSORLADDER_TIRX_PYTHON", sys.executable)
ARCH = "sm_100a"
PAGES = ("chapter_gemm_basics", "chapter_gemm_async", "chapter_gemm_advanced")
# (M, N, K): the smallest that show what a step adds
SHAPES = {
    1: (128, 128, 64), 2: (128, 128, 256), 3: (256, 256, 256), 4: (256, 256, 512), 5: (256, 256, 512),
    6: (512, 384, 256), 7: (512, 384, 512), 8: (512, 512, 512), 9: (1024, 512, 512),
}  # fmt: skip


@pytest.fixture(scope="module")
def lowered(checkout):
    """lowered(step): the host part and the module of a step's kernel, made once."""
    found: dict[int, HostPart] = {}

    def lower(step: int) -> HostPart:
        if step not in found:
            found[step] = _lower(checkout, step)
        return found[step]

    return lower


def _lower(checkout, step: int) -> HostPart:
    pages = [str(checkout("modern-gpu-programming-for-mlsys", f"{page}/index.md")) for page in PAGES]
    job = {"pages": pages, "function": f"hgemm_v{step}", "args": SHAPES[step]}
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    program = Path(__file__).with_name("tirx_lower.py")
    done = subprocess.run(
        [PYTHON, str(program)], input=json.dumps(job), capture_output=True, text=True, env=environment
    )
    if done.returncode and ("No module named 'tvm" in done.stderr or "DiagnosticError" in done.stderr):
        pytest.skip(f"{PYTHON} has no TVM 0.26: TENSORLADDER_TIRX_PYTHON names a Python that has")
    assert done.returncode == 0, done.stderr[-2000:]
    made = json.loads(done.stdout)
    module = compiled_source(made["source"], ARCH, f"book-v{step}")
    return HostPart(made["plan"], module, module.name)


def run(host: HostPart, step: int, device: Device) -> tuple[np.ndarray, np.ndarray]:
    """The kernel's result on fresh inputs, and what it should be."""
    m, n, k = SHAPES[step]
    a, b, c = (device.memory.empty(name, shape, np.float16) for name, shape in zip("ABC", ((m, k), (n, k), (m, n))))
    rng = np.random.default_rng(step)
    a[...], b[...], c[...] = rng.standard_normal(a.shape), rng.standard_normal(b.shape), np.nan
    stream = device.stream()
    host(stream, a, b, c)
    stream.synchronize()
    return c, a.astype(np.float64) @ b.astype(np.float64).T


@pytest.mark.parametrize("policy", ["eager", "lazy", "timed", "random:1", "random:2"])
@pytest.mark.parametrize("step", SHAPES)
def test_gemm(lowered, step, policy) -> None:
    got, want = run(lowered(step), step, Device(arch=ARCH, policy=policy, timeout=120))
    assert np.linalg.norm(got - want) < 5e-4 * np.linalg.norm(want)


# Right results all the same: what they leave to chance is found by the checker. No fence between threads' stores and
# the MMAs that read them; no tcgen05.fence::after_thread_sync, or ::before_thread_sync; warps that only look on and may
# miss two phases; barriers that the peer CTA signals with no cluster barrier after their initialisation; tensor memory
# freed by several warps.
COPIED, POLLED, PAIR = (
    {"missing-proxy-fence", "tcgen05-order"},
    {"barrier-phase", "tcgen05-order"},
    {"barrier-init", "lint", "tcgen05-order"},
)
HAZARDS = {
    **dict.fromkeys((1, 2, 3), COPIED), **dict.fromkeys((4, 5, 6), POLLED), 7: {"lint", "tcgen05-order"},
    **dict.fromkeys((8, 9), PAIR),
}  # fmt: skip


@pytest.mark.parametrize("step", SHAPES)
def test_its_hazards_are_found(lowered, step) -> None:
    checker = Checker()
    run(lowered(step), step, Device(arch=ARCH, checker=checker, timeout=120))
    assert {finding.kind for finding in checker.report(f"step {step}").findings} == HAZARDS[step]
