"""Every rung computes what its problem says: small and ragged shapes, element types, tile configs, architectures.

One policy a case here, in turn; that all policies give the same bits is the policy matrix's matter. With `--on gpu` the
same cases run on the GPU that is present.
"""

from __future__ import annotations

import dataclasses

import pytest

from tensorladder.measure.run import run_rung
from tensorladder.rungs.rung import find, load

pytest.importorskip("cutlass")
pytest.importorskip("ml_dtypes")

POLICIES = ("eager", "lazy", "timed", "random:1", "random:2")

# (rung, architecture or "" for its first, element type or "", shape, knobs)
CASES = [
    ("a0-vector-add", "", "fp16", (5000,), {}),
    ("a0-vector-add", "sm_90a", "fp32", (4099,), {"threads": 64}),
    ("a0-vector-add", "sm_120a", "fp32", (1 << 14,), {"sm_count": 2, "ctas_per_sm": 1}),
    ("a0-vector-add", "sm_89", "bf16", (7,), {}),
    ("a1-naive-cuda-like", "", "fp32", (33, 17, 21), {}),
    ("a1-naive-cuda-like", "sm_100a", "fp16", (64, 64, 64), {"unroll": 1}),
    ("a1-naive-cuda-like", "", "bf16", (9, 40, 7), {"block_m": 4, "block_n": 16}),
    ("a1-naive-cute", "", "fp32", (64, 64, 32), {}),
    ("a1-naive-cute", "sm_86", "fp16", (35, 67, 13), {}),
    ("a1-naive-cute", "sm_120a", "bf16", (64, 64, 16), {"tile": (64, 32, 8)}),
    ("a1-naive-batched", "", "fp32", (3, 35, 20, 9), {}),
    ("a1-naive-batched", "sm_90a", "fp16", (2, 64, 32, 16), {}),
    ("a1-naive-persistent", "", "fp32", (96, 100, 24), {"sm_count": 2, "ctas_per_sm": 1}),
    ("a1-naive-persistent", "", "bf16", (64, 64, 16), {}),
    ("a1-naive-static-scheduler", "", "fp32", (96, 100, 24), {"sm_count": 3, "ctas_per_sm": 1}),
    ("a1-naive-static-scheduler", "sm_90a", "fp16", (64, 64, 16), {}),
    ("a1-naive-tvm-ffi", "", "fp32", (50, 64, 32), {}),
    ("a1-naive-tvm-ffi", "", "bf16", (32, 37, 11), {}),
    ("a2-smem-padded", "", "fp32", (64, 64, 48), {}),
    ("a2-smem-padded", "sm_90a", "fp16", (70, 37, 13), {}),
    ("a2-smem-padded", "", "bf16", (64, 32, 16), {"tile": (32, 32, 16), "pad_bytes": 0}),
    ("a2-smem-swizzled", "", "fp32", (64, 128, 96), {}),
    ("a2-smem-swizzled", "", "fp16", (70, 37, 72), {}),
    ("a2-smem-swizzled", "sm_120a", "bf16", (64, 64, 128), {}),
    ("a2-smem-pipeline", "", "fp32", (64, 128, 224), {}),
    ("a2-smem-pipeline", "", "fp16", (70, 37, 72), {"stages": 2}),
    ("a2-smem-pipeline", "sm_120a", "bf16", (64, 64, 128), {"stages": 1}),
    ("b2-warp-mma", "", "fp16", (128, 128, 256), {}),
    ("b2-warp-mma", "", "bf16", (130, 37, 40), {}),
    ("b2-warp-mma", "sm_90a", "fp16", (300, 200, 72), {"tile": (64, 64, 64), "stages": 3, "raster": 2}),
    ("b2-warp-mma", "sm_120a", "bf16", (128, 256, 64), {"tile": (128, 256, 64), "warps_n": 4, "stages": 2}),
    ("b2-warp-mma", "sm_86", "fp16", (1, 1, 8), {}),
    ("b5-tma", "", "fp16", (128, 128, 512), {}),
    ("b5-tma", "", "bf16", (130, 40, 72), {}),
    ("b5-tma", "sm_100a", "fp16", (200, 264, 136), {"tile": (64, 128, 64), "warps_m": 1, "warps_n": 4}),
    ("b5-tma", "sm_120a", "bf16", (256, 128, 192), {"stages": 2}),
    ("b5-tma", "", "fp16", (2, 8, 8), {}),
    ("b6-colwise-scaling", "", "fp16", (128, 128, 64), {}),
    ("b6-colwise-scaling", "sm_90a", "bf16", (130, 37, 40), {}),
    ("b6-colwise-scaling", "", "fp16", (70, 130, 64), {"tile": (64, 64, 32)}),
    ("b7-warp-specialized", "", "fp16", (128, 128, 512), {}),
    ("b7-warp-specialized", "", "bf16", (130, 40, 72), {}),
    ("b7-warp-specialized", "sm_120a", "fp16", (200, 264, 136), {"stages": 2}),
    ("b7-warp-specialized", "sm_100a", "bf16", (256, 256, 256),
     {"tile": (128, 256, 64), "warps_n": 4, "stages": 4, "ctas_per_sm": 1, "consumer_registers": 232}),
    ("b7-warp-specialized", "", "fp16", (2, 8, 8), {}),
    ("b8-register-double-buffering", "", "fp16", (128, 128, 512), {}),
    ("b8-register-double-buffering", "", "bf16", (130, 40, 72), {}),
    ("b8-register-double-buffering", "sm_120a", "fp16", (200, 264, 328), {"stages": 2}),
    ("b8-register-double-buffering", "", "fp16", (2, 8, 8), {}),
    ("z0-swizzle", "", "fp16", (64, 64), {}),
    ("z0-swizzle", "", "fp32", (13, 96), {"rows": 16}),
    ("z1-tv-to-mn", "", "int32", (2, 2), {}),
    ("z1-tv-to-mn", "sm_90a", "int32", (1, 4), {"bf16": True}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("number", "name", "arch", "dtype", "shape", "knobs"),
    [pytest.param(i, *case, id="-".join((case[0], case[1] or "first", case[2], "x".join(map(str, case[3])))))
     for i, case in enumerate(CASES)],
)  # fmt: skip
def test_right_result(number, name, arch, dtype, shape, knobs, on):
    info = find(name)
    config = dataclasses.replace(load(info).RUNG.config(), **knobs)
    policy = POLICIES[number % len(POLICIES)] if on == "vgpu" else "eager"
    arch = arch or info.archs[0] if on == "vgpu" else None
    result = run_rung(info, shape=shape, dtype=dtype, arch=arch, on=on, policy=policy, seed=number, config=config)
    assert result.ok, (policy, result.message)
