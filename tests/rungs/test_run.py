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
    ("a0-cluster-reduce", "", "fp32", (3, 5000), {}),
    ("a0-cluster-reduce", "sm_120a", "int32", (2, 4099), {"cluster": 8, "threads": 64}),
    ("a0-cluster-reduce", "sm_100a", "fp16", (5, 7), {"cluster": 1}),
    ("a0-cluster-reduce", "", "bf16", (1, 999), {"cluster": 3, "vector_bytes": 4}),
    ("a1-cluster-launch-control", "", "fp32", (70, 100, 24), {"tile": (16, 16, 8)}),
    ("a1-cluster-launch-control", "sm_120a", "fp16", (35, 67, 13), {}),
    # more CTAs than are resident at once, so that some are cancelled
    ("a1-cluster-launch-control", "", "bf16", (1300, 1000, 2), {}),
    ("a1-dependent-launch", "", "fp32", (33, 17, 21), {}),
    ("a1-dependent-launch", "sm_100a", "fp32", (64, 128, 16), {"block_m": 4, "block_n": 64}),
    ("a1-dependent-launch", "sm_120a", "fp32", (40, 70, 9), {"overlap": False}),
    ("a1-grouped", "", "fp32", (3, 70, 45, 33), {"sm_count": 2, "ctas_per_sm": 1}),
    ("a1-grouped", "sm_90a", "fp16", (7, 5, 100, 40), {}),
    ("a1-grouped", "", "bf16", (1, 40, 40, 9), {"tile": (16, 64, 16)}),
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
    ("c1-wgmma", "", "fp16", (300, 264, 520), {}),
    ("c1-wgmma", "", "bf16", (130, 40, 72), {"tile": (64, 64, 128), "warpgroups": 1, "stages": 2}),
    ("c1-wgmma", "", "fp16", (2, 8, 8), {"tile": (128, 256, 64), "ctas_per_sm": 1}),
    ("c2-warp-specialized", "", "fp16", (300, 264, 520), {}),
    ("c2-warp-specialized", "", "bf16", (260, 136, 200), {"tile": (256, 128, 64), "stages": 3}),
    ("c2-warp-specialized", "", "fp16", (2, 8, 8), {}),
    ("c2-warp-specialized", "", "fp16", (300, 264, 520), {"tile": (128, 128, 64), "warpgroups": 1, "stages": 3,
                                                          "sm_count": 1, "ctas_per_sm": 2, "consumer_registers": 216}),
    ("c3-persistent", "", "fp16", (300, 264, 200), {"sm_count": 2, "tile": (128, 64, 64), "c_stages": 1, "raster": 2}),
    ("c3-persistent", "", "bf16", (300, 520, 136), {"sm_count": 1}),
    ("c3-persistent", "", "fp16", (2, 8, 8), {}),
    ("c3-persistent", "", "e4m3", (300, 264, 208), {"sm_count": 2, "tile": (128, 192, 64), "c_stages": 3}),
    ("c4-multicast", "", "fp16", (300, 264, 200), {"sm_count": 2, "tile": (128, 64, 64), "c_stages": 1, "stages": 2}),
    ("c4-multicast", "", "bf16", (300, 520, 136), {"sm_count": 4, "cluster_n": 2, "raster": 1}),
    ("c4-multicast", "", "fp16", (50, 40, 72), {"cluster_m": 1, "cluster_n": 2}),
    ("c5-ping-pong", "", "fp16", (300, 264, 200), {"sm_count": 2, "tile": (64, 64, 64), "stages": 2, "c_stages": 1}),
    ("c5-ping-pong", "", "bf16", (300, 520, 328), {"sm_count": 2}),
    ("c5-ping-pong", "", "fp16", (2, 8, 8), {}),
    ("c6-epilogue", "", "fp16", (300, 264, 200), {"sm_count": 2, "tile": (128, 64, 64), "c_stages": 1, "raster": 2}),
    ("c6-epilogue", "", "bf16", (1, 520, 136), {"sm_count": 1}),
    ("c7-fused-ping-pong", "", "fp16", (300, 264, 200), {"sm_count": 2, "tile": (64, 128, 64), "c_stages": 1}),
    ("c7-fused-ping-pong", "", "bf16", (1, 520, 136), {"cluster_m": 1, "tile": (64, 64, 64)}),
    ("c7-fused-ping-pong", "", "bf16", (33, 520, 136), {"cluster_m": 1, "tile": (128, 64, 64), "swap": True}),
    ("c9-grouped", "", "fp16", (7, 300, 264, 200), {"sm_count": 2, "tile": (128, 64, 64), "c_stages": 1, "raster": 2}),
    ("c9-grouped", "", "bf16", (70, 33, 40, 8), {"sm_count": 3, "tile": (64, 64, 64), "cluster_n": 1}),
    ("c4-multicast", "", "e4m3", (300, 264, 208), {"sm_count": 2, "tile": (128, 64, 64), "c_stages": 1, "stages": 2}),
    ("c4-multicast", "", "e4m3", (130, 40, 16), {"cluster_n": 2}),
    ("c5-ping-pong", "", "e4m3", (300, 520, 656), {"sm_count": 2, "tile": (64, 128, 128), "stages": 3}),
    ("d1-tcgen05", "", "fp16", (128, 128, 1024), {"stages": 3}),
    ("d1-tcgen05", "", "bf16", (130, 33, 72), {}),
    ("d1-tcgen05", "", "fp16", (300, 257, 200), {"tile": (128, 64, 128), "stages": 2, "raster": 2}),
    ("d1-tcgen05", "", "fp16", (2, 2, 8), {}),
    ("d1-tcgen05-subtiles", "", "fp16", (128, 256, 576), {}),
    ("d1-tcgen05-subtiles", "", "bf16", (130, 193, 72), {"tile": (128, 96, 64)}),
    ("d1-tcgen05-subtiles", "", "fp16", (300, 260, 200), {"tile": (128, 160, 128), "subtile": 16, "stages": 2}),
    ("d2-warp-specialized", "", "fp16", (128, 256, 832), {}),
    ("d2-warp-specialized", "", "bf16", (130, 515, 72), {"subtile": 128}),
    ("d2-warp-specialized", "", "fp16", (300, 260, 520), {"tile": (128, 64, 64), "stages": 2, "raster": 3}),
    ("d2-warp-specialized", "", "fp16", (2, 2, 8), {}),
    ("d3-two-cta", "", "fp16", (256, 512, 832), {"stages": 3}),
    ("d3-two-cta", "", "bf16", (130, 41, 72), {"cluster": (2, 1)}),
    ("d3-two-cta", "", "fp16", (1000, 700, 136), {"tile": (256, 128, 64), "cluster": (4, 2), "raster": 1}),
    ("d3-two-cta", "", "fp16", (600, 260, 200), {"tile": (256, 64, 128), "cluster": (4, 1), "stages": 2}),
    ("d4-persistent", "", "fp16", (1000, 776, 520), {"sm_count": 6, "cluster": (2, 1)}),
    ("d4-persistent", "", "bf16", (130, 40, 72), {"cluster": (2, 2)}),
    ("d4-persistent", "", "e4m3", (300, 520, 400), {"sm_count": 2, "cluster": (2, 1), "tile": (256, 128, 64)}),
    ("d4-persistent", "", "fp16", (1030, 520, 200),
     {"tile": (256, 128, 64), "sm_count": 4, "stages": 2, "buffers": 1, "subtile": 32, "raster": 1, "cluster": (2, 2)}),
    ("d4-persistent", "", "fp16", (800, 1032, 136),
     {"tile": (256, 128, 128), "sm_count": 8, "stages": 3, "buffers": 2, "subtile": 128, "cluster": (4, 2)}),
    ("d4-block-scaled", "", "mxfp8", (300, 136, 1056), {"stages": 3, "sm_count": 4}),
    ("d4-block-scaled", "", "nvfp4", (300, 136, 1056), {"stages": 3, "sm_count": 4}),
    ("d4-block-scaled", "", "nvfp4", (520, 264, 672), {"k_bytes": 256, "stages": 2, "buffers": 1, "subtile": 128}),
    ("d4-block-scaled", "", "mxfp8", (2, 8, 160), {"subtile": 32, "raster": 1}),
    ("v1-one-tile", "", "bf16", (128, 64, 128), {"tile": (128, 64, 128)}),
    ("v1-one-tile", "", "fp16", (128, 32, 64), {"tile": (128, 32, 64)}),
    ("v2-k-loop", "", "bf16", (128, 128, 64), {}),
    ("v2-k-loop", "", "fp16", (128, 64, 640), {"tile": (128, 64, 128)}),
    ("v3-grid", "", "bf16", (384, 128, 192), {}),
    ("v3-grid", "", "fp16", (128, 96, 128), {"tile": (128, 32, 64)}),
    ("v4-tma", "", "bf16", (130, 40, 72), {}),
    ("v4-tma", "", "fp16", (200, 264, 136), {"tile": (128, 64, 128)}),
    ("v4-tma", "", "fp16", (2, 8, 8), {}),
    ("v5-pipeline", "", "bf16", (130, 40, 72), {}),
    ("v5-pipeline", "", "fp16", (128, 136, 520), {"stages": 3}),
    ("v6-persistent", "", "bf16", (130, 264, 72), {"sm_count": 1, "ctas_per_sm": 2}),
    ("v6-persistent", "", "fp16", (128, 256, 328), {"sm_count": 1, "stages": 3}),
    ("v7-warp-specialized", "", "bf16", (130, 264, 72), {"sm_count": 2, "raster": 1}),
    ("v7-warp-specialized", "", "fp16", (128, 256, 328), {"sm_count": 1, "stages": 2}),
    ("v7-warp-specialized", "", "fp16", (2, 8, 8), {}),
    ("v8-two-cta", "", "bf16", (300, 264, 72), {"sm_count": 2}),
    ("v8-two-cta", "", "fp16", (256, 384, 328), {"tile": (256, 128, 64), "stages": 3, "sm_count": 4}),
    ("v8-two-cta", "", "fp16", (2, 8, 8), {}),
    ("v9-two-consumers", "", "bf16", (600, 264, 72), {"sm_count": 2, "raster": 1}),
    ("v9-two-consumers", "", "fp16", (512, 384, 328), {"tile": (512, 64, 64), "stages": 3, "sm_count": 6}),
    ("v9-two-consumers", "", "fp16", (2, 8, 8), {}),
    ("z0-swizzle", "", "fp16", (64, 64), {}),
    ("z0-swizzle", "", "fp32", (13, 96), {"rows": 16}),
    ("z1-tv-to-mn", "", "int32", (2, 2), {}),
    ("z1-tv-to-mn", "sm_90a", "int32", (1, 4), {"bf16": True}),
    ("z2-tmem-lifecycle", "", "fp32", (500, 260), {"columns": 128, "repeat": 128}),
    ("z2-tmem-lifecycle", "", "fp32", (1, 4), {"columns": 32, "repeat": 1}),
    ("cuda-a1-naive", "", "fp32", (33, 17, 21), {}),
    ("cuda-a1-naive", "sm_100a", "fp16", (64, 64, 64), {"unroll": 1}),
    ("cuda-a1-naive", "sm_90a", "bf16", (9, 40, 7), {"block_m": 4, "block_n": 16}),
    ("cuda-a2-smem", "", "fp32", (70, 37, 45), {}),
    ("cuda-a2-smem", "sm_120a", "fp16", (64, 33, 1), {"tile": 16}),
    ("cuda-a2-smem", "sm_90a", "bf16", (1, 1, 100), {"tile": 8}),
    ("cuda-a3-register-tile", "", "fp32", (130, 261, 37), {}),
    ("cuda-a3-register-tile", "sm_90a", "fp16", (70, 37, 13), {"tile": (64, 32, 8)}),
    ("cuda-a3-register-tile", "sm_100a", "bf16", (1, 1, 1), {"tile": (32, 32, 5)}),
    ("cuda-b1-wmma", "", "fp16", (50, 37, 43), {}),
    ("cuda-b1-wmma", "sm_120a", "bf16", (64, 40, 72), {"warps_m": 1, "warps_n": 4}),
    ("cuda-b1-wmma-smem", "", "fp16", (70, 133, 45), {}),
    ("cuda-b1-wmma-smem", "sm_90a", "bf16", (1, 1, 1), {"tile": (32, 64, 16), "warps_n": 4}),
    ("cuda-b1-wmma-vectorized", "", "fp16", (130, 133, 40), {}),
    ("cuda-b1-wmma-vectorized", "sm_90a", "bf16", (70, 72, 8), {"tile": (64, 64, 64)}),
    ("cuda-b2-vectorized-2d", "", "fp16", (300, 133, 72), {"stages": 3, "raster": 2}),
    ("cuda-d1-tcgen05", "", "fp16", (300, 263, 520), {}),
    ("cuda-d1-tcgen05", "", "bf16", (130, 40, 200), {"tile": (128, 32, 64), "stages": 2, "raster": 1}),
    ("cuda-d1-tcgen05", "", "fp16", (1, 1, 8), {"tile": (128, 256, 64)}),
    ("cuda-c1-wgmma", "", "fp16", (300, 263, 520), {}),
    ("cuda-c1-wgmma", "", "bf16", (130, 40, 72), {"tile": (64, 128, 64), "warpgroups": 1, "stages": 2, "raster": 1}),
    ("cuda-c1-wgmma", "", "fp16", (1, 1, 8), {"tile": (128, 256, 64), "ctas_per_sm": 1}),
    ("cuda-b2-vectorized-2d", "sm_90a", "bf16", (70, 136, 264), {"tile": (64, 64, 64), "stages": 2}),
]  # fmt: skip


def runs_here(info):
    """Skips a rung of which the GPU that is present runs no architecture."""
    from tensorladder.silicon.target import archs_for

    if not archs_for(info.archs):
        pytest.skip(f"{info.name} is for {', '.join(info.archs)}")


@pytest.mark.parametrize(
    ("number", "name", "arch", "dtype", "shape", "knobs"),
    [pytest.param(i, *case, id="-".join((case[0], case[1] or "first", case[2], "x".join(map(str, case[3])))))
     for i, case in enumerate(CASES)],
)  # fmt: skip
def test_right_result(number, name, arch, dtype, shape, knobs, on):
    info = find(name)
    if on == "gpu":
        runs_here(info)
    config = dataclasses.replace(load(info).RUNG.config(), **knobs)
    policy = POLICIES[number % len(POLICIES)] if on == "vgpu" else "eager"
    arch = arch or info.archs[0] if on == "vgpu" else None
    result = run_rung(info, shape=shape, dtype=dtype, arch=arch, on=on, policy=policy, seed=number, config=config)
    assert result.ok, (policy, result.message)
