"""QuACK's own tests, the files as they are in a checkout, by `pytest --vgpu`.

Needs what QuACK imports: `pip install triton einops`. Each file gives some thousand tests by its parameters; so many of
them run here, spread evenly over the file, at QuACK's own sizes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.peers import checked

pytestmark = pytest.mark.peers

# file, architecture, how many of its tests
FILES = [
    ("test_softmax.py", "sm_90a", 3),
    ("test_rmsnorm.py", "sm_90a", 3),
    ("test_layernorm.py", "sm_90a", 3),
    ("test_cross_entropy.py", "sm_90a", 3),
    ("test_rotary.py", "sm_90a", 3),
    ("sync/test_barrier.py", "sm_90a", 5),
    ("transform/test_hadamard.py", "sm_90a", 5),
    ("test_torch_library_op.py", "sm_90a", 6),
    ("test_rounding.py", "sm_100a", 5),
    ("test_gemm_functional.py", "sm_100a", 4),
    ("test_gemm_sm100_blockscaled.py", "sm_100a", 3),
    ("test_gemm_quant_out.py", "sm_100a", 3),
    ("test_gemm_split_k.py", "sm_100a", 3),
]
SUMMARY = re.compile(r"^(\d+) tests: (.*); (\d+) launched kernels$", re.M)
HAZARD = re.compile(r"^ +(\d+) (error|review): ([\w-]+)$", re.M)


@pytest.fixture(scope="session")
def quack(checkout) -> Path:
    for module in ("triton", "einops"):
        pytest.importorskip(module)
    return checkout("quack", "tests/conftest.py").parents[1]


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """pytest in QuACK's checkout. Its cache of compiled kernels is off: code from there would go past the hooks."""
    command = [sys.executable, "-m", "pytest", "-p", "tensorladder.pytest_plugin", "-W", "ignore", "-q", *arguments]
    home = str(Path(__file__).parents[2])
    environment = os.environ | {"QUACK_CACHE_ENABLED": "0", "PYTHONPATH": os.pathsep.join([home, str(folder)])}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=1200, env=environment)


@pytest.mark.parametrize(("file", "arch", "count"), FILES, ids=lambda value: str(value))
def test_quack_file(quack, tmp_path, file, arch, count) -> None:
    listed = run(quack, "--vgpu", arch, "--collect-only", f"tests/{file}").stdout.splitlines()
    names = [line for line in listed if line.startswith(f"tests/{file}::")]
    assert names, "\n".join(listed[-15:])
    step = max(len(names) // count, 1)
    chosen = tmp_path / "chosen.txt"
    chosen.write_text("\n".join(names[step // 2 :: step][:count]))
    findings, kinds = os.environ.get(checked.FINDINGS), []
    hazards = ["--vgpu-check"] if findings else []
    done = run(quack, "--vgpu", arch, "--vgpu-timeout", "300", *hazards, f"@{chosen}")
    found = SUMMARY.search(done.stdout)
    assert found, done.stdout[-2000:] + done.stderr[-2000:]
    if findings:
        kinds = [(m[2], m[3]) for m in HAZARD.finditer(done.stdout, found.end()) for _ in range(int(m[1]))]
        checked.write(findings, [{"verdict": rank, "kind": kind} for rank, kind in kinds], arch)
    print(done.stdout[found.start() :])  # with the reasons of what is incomplete (pytest -s)
    failed = re.search(r"(\d+) failed", found[2])
    # a test that fails for its hazards alone: tests.peers.checked says whose fault it is
    assert (int(failed[1]) if failed else 0) <= sum(rank == "error" for rank, _ in kinds), done.stdout[-3000:]
    assert "passed" in found[2], done.stdout[-3000:]
