"""FlashAttention-4's own tests (CuTe DSL), the files as they are in a checkout, by `pytest --vgpu`.

Needs what it imports: a checkout of QuACK beside it, and `pip install einops`.
"""

from __future__ import annotations

import pytest

from tests.peers.suites import run_suite

pytestmark = pytest.mark.peers

FILE = "test_flash_attn_fast.py"
#: architecture, some of the file's tests
TESTS = [
    ("sm_90a", ["test_flash_attn_output[128-128-128-True-1-gqa-dtype0]"]),  # forward and backward
    ("sm_90a", ["test_flash_attn_combine[5-32-64-dtype0]"]),
    ("sm_100a", ["test_flash_attn_output[128-128-128-True-1-gqa-dtype0]"]),
    ("sm_100a", ["test_flash_attn_output[113-203-64-False-3-mqa-dtype0]"]),  # split
]


@pytest.mark.parametrize(("arch", "tests"), TESTS, ids=lambda value: value if isinstance(value, str) else value[0])
def test_flash_attention(checkout, tmp_path, arch, tests) -> None:
    pytest.importorskip("einops")
    cute = checkout("flash-attention", "flash_attn/cute/interface.py").parent
    quack = checkout("quack", "quack/__init__.py").parents[1]
    # the package flash-attn-4 is this folder alone: flash_attn itself wants its compiled extension
    package = tmp_path / "flash_attn"
    package.mkdir()
    (package / "cute").symlink_to(cute, target_is_directory=True)
    folder = checkout("flash-attention", f"tests/cute/{FILE}").parent
    run_suite(folder, [f"{FILE}::{test}" for test in tests], arch, tmp_path, path=[tmp_path, quack])
