"""WGMMA in CUDA C++: inline PTX, tensor maps as kernel parameters, operands straight from shared memory.

Adds:
    What Hopper brought, without a library between. TMA loads whole tiles: one thread names a box of a matrix by its
    coordinates, an mbarrier counts the bytes, edges come as zeros. The map that TMA reads is 128 bytes, made by the
    host part and passed by value (`__grid_constant__`: its address is taken, no copy is made). WGMMA multiplies 64 x
    128 x 16 with four warps, asynchronously, its operands named by 64-bit descriptors: no load instruction feeds it
    and no register holds a fragment. The order is that of `c1-wgmma`: fence, multiply, commit, wait for the K tile
    before, a barrier, and only then the load over the stage that all have read.

Warp roles:
    | warps    | role                                                                                |
    |----------|-------------------------------------------------------------------------------------|
    | 0-3, 4-7 | a warpgroup each: multiply 64 x 128 of C; round it into shared memory, store it     |
    | 0        | besides: thread 0 issues the TMA loads                                              |

Budget:
    SMEM: (128 + 128) rows x 64 x 2 B = 32 KB a stage, 3 stages: 96 KB, 24 B of mbarriers and up to 1 KB to align
    them, 2 CTAs an SM on sm_90; C (34 KB) reuses the stages. Registers: 64 sums, no fragments, at most 128 a thread.

Run:
    tensorladder run cuda-c1-wgmma --shape 256,256,256
"""

from __future__ import annotations

from dataclasses import dataclass

from tensorladder.core import arch as archs
from tensorladder.core.program import Program
from tensorladder.rungs.cuda.gemm import Geometry, compile_gemm
from tensorladder.rungs.rung import Rung


@dataclass(frozen=True)
class WgmmaCudaConfig:
    """tile: (M, N, K) of a CTA. warpgroups: one below the other, 64 rows each. stages: K tiles in shared memory.

    raster: rows of tiles that consecutive CTAs go down before the next column. ctas_per_sm: what the registers have to
    allow.
    """

    tile: tuple[int, int, int] = (128, 128, 64)
    warpgroups: int = 2
    stages: int = 3
    raster: int = 8
    ctas_per_sm: int = 2


RUNG = Rung(
    name="cuda-c1-wgmma",
    parent="cuda-b2-vectorized-2d",
    adds="TMA and WGMMA as inline PTX: tensor maps by value, 64 x 128 x 16 a warpgroup, operands by descriptor",
    archs=("sm_90a",),
    problem="gemm",
    dtypes=("fp16", "bf16"),
    config=WgmmaCudaConfig,
)


def compile(arch: str, shape: tuple[int, ...], dtype: str, config: WgmmaCudaConfig | None = None) -> Program:
    """The rung for one architecture and element type, any M and N, K a multiple of 8 (16 bytes)."""
    (_, _, k), dtype = RUNG.check(arch, shape, dtype)
    config = config or WgmmaCudaConfig()
    check_config(config, arch)
    RUNG.require(k % 8 == 0, f"K={k}: TMA wants row pitches of 16 bytes, pad K to a multiple of 8")
    return compile_gemm(RUNG, __file__, arch, dtype, config, geometry(config))


def check_config(config: WgmmaCudaConfig, arch: str) -> None:
    """UsageError for knobs that the kernel cannot be made with."""
    bM, bN, bK = config.tile
    smem, limit = geometry(config).smem, archs.find(arch).smem_per_cta
    RUNG.require(1 <= config.warpgroups <= 4, f"warpgroups={config.warpgroups}: 1 to 4")
    RUNG.require(bM == 64 * config.warpgroups, f"tile={config.tile}: M must be 64 * warpgroups")
    RUNG.require(bN in (128, 256), f"tile={config.tile}: N must be 128 or 256")
    RUNG.require(bK == 64, f"tile={config.tile}: K must be 64, a swizzled row of 128 bytes")
    RUNG.require(config.stages >= 2, f"stages={config.stages}: at least 2, one to fill and one to multiply")
    RUNG.require(smem <= limit, f"stages={config.stages}: {smem} bytes of shared memory, {arch} has {limit}")
    RUNG.require(config.raster > 0, f"raster={config.raster}: at least 1 row of tiles")
    # a thread has its sums and about 40 registers more
    registers = (bN // 2 + 40) * 128 * config.warpgroups * config.ctas_per_sm
    RUNG.require(0 < registers <= 65536, f"ctas_per_sm={config.ctas_per_sm}: {registers} registers, an SM has 65536")


def geometry(config: WgmmaCudaConfig) -> Geometry:
    """How the kernel is launched."""
    bM, bN, bK = config.tile
    ring = config.stages * 2 * (bM + bN) * bK
    # 1 KB to align it, and the ring, or in its place C's tile
    smem = 1024 + max(ring + 8 * config.stages, 2 * bM * (bN + 8))
    threads = 128 * config.warpgroups
    return Geometry(tile=(bM, bN), block=(threads, 1, 1), smem=smem, flat=True, box_k=bK, k_multiple=8, align=16)
