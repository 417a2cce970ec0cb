"""QuACK's own tests, the files as they are in a checkout, by `pytest --vgpu`.

Needs what QuACK imports: `pip install triton einops`. Each file gives some thousand tests by its parameters; so many of
them run here, spread evenly over the file, at QuACK's own sizes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.peers.suites import run_suite, spread

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


@pytest.fixture
def quack(checkout) -> Path:
    for module in ("triton", "einops"):
        pytest.importorskip(module)
    return checkout("quack", "tests/conftest.py").parents[1]


@pytest.mark.parametrize(("file", "arch", "count"), FILES, ids=lambda value: str(value))
def test_quack_file(quack, tmp_path, file, arch, count) -> None:
    tests = spread(quack, f"tests/{file}", arch, count, [quack])
    run_suite(quack, tests, arch, tmp_path, path=[quack])
