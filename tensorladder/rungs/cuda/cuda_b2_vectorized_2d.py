"""mma.sync in CUDA C++: 4 x 8 MMAs a warp, fed by ldmatrix from a ring of stages that cp.async fills by 16 bytes.

Adds:
    The instruction under WMMA, whose layout is known. mma.sync multiplies 16 x 8 x 16, and a lane knows which four
    sums it holds: C's tile is rounded on the way into shared memory, and leaves it in rows of 16-byte vectors.
    ldmatrix gives a lane the pairs that the MMA wants from rows that lie swizzled, a vector's number XORed with the
    row's, so that no padding is needed. A warp works on a two-dimensional grid of MMAs: 4 fragments of A and 8 of B
    feed 32 of them, twice the reuse of the rung below. And fetching no longer stands between the multiplications:
    cp.async copies 16 bytes past the registers into a stage three K tiles ahead, and one barrier a K tile is left.

Warp roles:
    | warps | role                                                                              |
    |-------|-----------------------------------------------------------------------------------|
    | all 4 | copy a quarter of each stage; 64 x 64 of C: 4 x 8 MMAs of 16 x 8, 2 x 2 warps     |

Budget:
    SMEM: (128 + 128) rows x 32 x 2 B = 16 KB a stage, 4 stages: 64 KB. Registers: 128 sums, 32 of operands, about 210 a
    thread: 2 CTAs an SM on sm_80 and sm_90. Traffic: 16 KB a K tile for 512 Ki multiply-adds, 32 a byte.

Run:
    tensorladder run cuda-b2-vectorized-2d --shape 256,256,256
"""

from __future__ import annotations

from dataclasses import dataclass

from tensorladder.core import arch as archs
from tensorladder.core.program import Program
from tensorladder.rungs.cuda.gemm import Geometry, compile_gemm
from tensorladder.rungs.rung import Rung


@dataclass(frozen=True)
class Vectorized2dCudaConfig:
    """tile: (M, N, K) of a CTA. warps_m, warps_n: how its warps lie on the tile of C. stages: K tiles in shared memory.

    raster: rows of tiles that consecutive CTAs go down before the next column.
    """

    tile: tuple[int, int, int] = (128, 128, 32)
    warps_m: int = 2
    warps_n: int = 2
    stages: int = 4
    raster: int = 8


RUNG = Rung(
    name="cuda-b2-vectorized-2d",
    parent="cuda-b1-wmma-vectorized",
    adds="mma.sync on a grid of fragments a warp, ldmatrix.x4, 16-byte cp.async through a ring of stages",
    archs=("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"),
    problem="gemm",
    dtypes=("fp16", "bf16"),
    config=Vectorized2dCudaConfig,
)


def compile(arch: str, shape: tuple[int, ...], dtype: str, config: Vectorized2dCudaConfig | None = None) -> Program:
    """The rung for one architecture and element type, any M and N, K a multiple of 8 (16 bytes)."""
    (_, _, k), dtype = RUNG.check(arch, shape, dtype)
    config = config or Vectorized2dCudaConfig()
    check_config(config, arch)
    RUNG.require(k % 8 == 0, f"K={k}: rows are copied 16 bytes at a time, pad K to a multiple of 8")
    return compile_gemm(RUNG, __file__, arch, dtype, config, geometry(config))


def check_config(config: Vectorized2dCudaConfig, arch: str) -> None:
    """UsageError for knobs that the kernel cannot be made with."""
    bM, bN, bK = config.tile
    warps = config.warps_m * config.warps_n
    smem, limit = geometry(config).smem, archs.find(arch).smem_per_cta
    RUNG.require(0 < warps <= 32, f"warps_m * warps_n = {warps}: a CTA has 1 to 32 warps")
    RUNG.require(bM > 0 and bM % (16 * config.warps_m) == 0, f"tile={config.tile}: M does not fit the warps")
    RUNG.require(bN > 0 and bN % (16 * config.warps_n) == 0, f"tile={config.tile}: N does not fit the warps")
    RUNG.require(bK in (32, 64), f"tile={config.tile}: K must be 32 or 64, a swizzled row of 64 or 128 bytes")
    RUNG.require(bM * bN <= 4096 * warps, f"tile={config.tile}: more than 4096 sums a warp do not fit its registers")
    RUNG.require(config.stages >= 2, f"stages={config.stages}: at least 2, one to fill and one to multiply")
    RUNG.require(smem <= limit, f"stages={config.stages}: {smem} bytes of shared memory, {arch} has {limit}")
    RUNG.require(config.raster > 0, f"raster={config.raster}: at least 1 row of tiles")


def geometry(config: Vectorized2dCudaConfig) -> Geometry:
    """How the kernel is launched."""
    bM, bN, bK = config.tile
    smem = max(config.stages * 2 * (bM + bN) * bK, 2 * bM * (bN + 8))  # the ring, then C's tile in its place
    threads = 32 * config.warps_m * config.warps_n
    return Geometry(tile=(bM, bN), block=(threads, 1, 1), smem=smem, flat=True, k_multiple=8, align=16)
