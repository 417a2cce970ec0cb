"""Triton's tutorials whose files are tests, copies of a checkout's, by `pytest --vgpu`. Needs `pip install triton`.

Gluon's, which say layouts, mbarriers, TMA, wgmma and tcgen05 themselves, and the one of flash attention.
"""

from __future__ import annotations

import pytest

from tests.peers.suites import run_suite

pytestmark = pytest.mark.peers

#: what Triton 3.8 and later call otherwise than this checkout, and a benchmark of GBs that an import runs
CHANGED = {
    "tma.async_copy_shared_to_global": "tma.async_store",
    "tma.async_copy_global_to_shared": "tma.async_load",
    "tmem_block.value": "tmem_block",
    "\nbenchmark_multicta_softmax_f32()\n": "\n",
}
PERSISTENT = [
    "test_persistent_matmul_pipelined[PersistentTileScheduler-4-3-64-64-64-208-416-304]",
    "test_persistent_matmul_pipelined[GroupedPersistentTileScheduler(1)-8-4-64-64-64-208-416-304]",
]
#: file, architecture, some of its tests: the small ones of each kind. Without Gluon's 09 and 13, whose gathers and
#: im2col are not modelled, and 12, which wants torch.mm's sum in fp16 within 1e-5
FILES = {
    ("gluon/01-intro.py", "sm_90a"): ["test_copy_scalar", "test_memcpy[500-64]"],
    ("gluon/02-layouts.py", "sm_90a"): [
        "test_memcpy_1d[4-200-128]", "test_memcpy_2d[4-True-100-2000-128-256]",
        "test_memcpy_2d_inout[True-False-300-400]",
    ],
    ("gluon/03-async-copy.py", "sm_90a"): [
        "test_memcpy_1d_cpasync[1000-256]", "test_elementwise_add_pipelined[3-32-64-4000-120]",
    ],
    ("gluon/04-tma.py", "sm_90a"): [
        "test_tma_message_passing[16]", "test_memcpy_1d_tma[500-64]",
        "test_elementwise_add_pipelined[1-32-64-4000-120]", "test_elementwise_add_pipelined[3-32-64-4000-120]",
    ],
    ("gluon/05-wgmma.py", "sm_90a"): [
        "test_small_mma[4-16-False-64-256-128]", "test_small_mma[8-64-True-64-32-32]",
        "test_blocked_matmul[8-True-128-128-128-208-416-304]", "test_blocked_matmul_pipelined[4-64-64-64-208-416-304]",
    ],
    ("gluon/06-tcgen05.py", "sm_100a"): [
        "test_tmem_example_kernel[4-64-128]", "test_small_mma[4-True-True-128-128-128]",
        "test_small_mma[8-False-False-64-256-256]", "test_blocked_matmul[4-True-128-128-128-208-416-304]",
        "test_blocked_matmul_pipelined[4-64-64-64-208-416-304]",
    ],
    ("gluon/07-persistence.py", "sm_90a"): PERSISTENT, ("gluon/07-persistence.py", "sm_100a"): PERSISTENT,
    ("gluon/08-warp-specialization.py", "sm_90a"): [
        "test_elementwise_add_warp_specialized[4-2-2-32-64-4000-120]",
    ],
    ("gluon/08-warp-specialization.py", "sm_100a"): [
        "test_matmul_warp_specialized[PersistentTileScheduler-4-4-2-128-256-64-208-416-304]",
    ],
    ("gluon/10-tcgen05-copy.py", "sm_100a"): [
        "test_tcgen05_copy_nvmma_shared[32-dtype0-128-64-8]", "test_tcgen05_copy_nvmma_shared[128-dtype0-256-128-64]",
    ],
    ("gluon/11-tcgen05-mma-scaled.py", "sm_100a"): [
        "test_mma_scaled_pipelined[pipelined-mxfp8-mxfp4-128-128-640]",
        "test_mma_scaled_pipelined[warp-specialized-nvfp4-nvfp4-128-128-640]",
    ],
    ("gluon/14-multicta.py", "sm_90a"): ["test_multicta_softmax_f32[64-64]"],
    ("gluon/14-multicta.py", "sm_100a"): ["test_two_cta_tcgen05", "test_tma_multicast_copy", "test_tma_tcgen05"],
    **{("06-fused-attention.py", arch): [
        "test_op[triton-fp16-bwd-False-True-64-128-2-1]", "test_op[triton-fp16-bwd-False-False-128-128-2-1]",
        "test_op[triton-fp8-fwd-False-True-64-128-2-1]",
    ] for arch in ("sm_90a", "sm_100a")},
}  # fmt: skip


@pytest.mark.parametrize(("file", "arch"), FILES)
def test_tutorial_file(checkout, tmp_path, monkeypatch, file, arch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    path = checkout("triton", f"python/tutorials/{file}")
    copies = tmp_path / "tutorials"  # they import their neighbours
    copies.mkdir()
    for neighbour in (*path.parent.glob("*.py"), *path.parent.glob("pytest.ini")):
        text = neighbour.read_text()
        for old, new in CHANGED.items():
            text = text.replace(old, new)
        (copies / neighbour.name).write_text(text)
    tests = [f"{path.name}::{test}" for test in FILES[file, arch]]
    run_suite(copies, tests, arch, tmp_path)
