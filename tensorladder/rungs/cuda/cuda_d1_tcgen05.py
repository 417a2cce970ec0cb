"""tcgen05 in CUDA C++: inline PTX, one thread multiplies, tensor memory holds the sums.

Adds:
    Blackwell's tensor core by hand. A single thread asks TMA for tiles and issues the MMAs: an instruction names two
    tiles in shared memory by 64-bit descriptors, the place of the sums in tensor memory, and shape and types by one
    of 32 bits. No registers are involved until the end, when four warps fetch 32 rows each by tcgen05.ld. The order
    is that of `d1-tcgen05`: a commit makes a stage's empty barrier complete when the MMAs before it are done, and the
    stage of the tile before is refilled while the tensor core works on this one. tcgen05's accesses are ordered by
    neither barriers nor program order: the fences before and after each meeting of threads are part of the protocol.

Warp roles:
    | warps | role                                                                                |
    |-------|-------------------------------------------------------------------------------------|
    | 0     | allocates tensor memory; thread 0 issues the TMA loads and the MMAs; then as 1-3    |
    | 0-3   | fetch 32 rows of C each from tensor memory, round them into shared memory, store C  |

Budget:
    SMEM: (128 + 128) rows x 64 x 2 B = 32 KB a stage, 4 stages: 128 KB, 76 B of mbarriers and an address, up to 1 KB
    to align them, 1 CTA an SM; C (34 KB) reuses the stages. TMEM: 128 lanes x 128 columns = 64 KB of the SM's 256.
    Registers: 32 sums at a time, 43 a thread.

Run:
    tensorladder run cuda-d1-tcgen05 --shape 256,256,512
"""

from __future__ import annotations

from dataclasses import dataclass

from tensorladder.core import arch as archs
from tensorladder.core.program import Program
from tensorladder.rungs.cuda.gemm import Geometry, compile_gemm
from tensorladder.rungs.rung import Rung


@dataclass(frozen=True)
class Tcgen05CudaConfig:
    """tile: (M, N, K) of a CTA; M x N is one instruction. stages: K tiles in shared memory.

    raster: rows of tiles that consecutive CTAs go down before the next column.
    """

    tile: tuple[int, int, int] = (128, 128, 64)
    stages: int = 4
    raster: int = 8


RUNG = Rung(
    name="cuda-d1-tcgen05",
    parent="cuda-c1-wgmma",
    adds="tcgen05 as inline PTX: one thread issues 128 x 128 x 16, sums in tensor memory, commits to mbarriers",
    archs=("sm_100a",),
    problem="gemm",
    dtypes=("fp16", "bf16"),
    config=Tcgen05CudaConfig,
    shape=(256, 256, 512),
)


def compile(arch: str, shape: tuple[int, ...], dtype: str, config: Tcgen05CudaConfig | None = None) -> Program:
    """The rung for one architecture and element type, any M and N, K a multiple of 8 (16 bytes)."""
    (_, _, k), dtype = RUNG.check(arch, shape, dtype)
    config = config or Tcgen05CudaConfig()
    check_config(config, arch)
    RUNG.require(k % 8 == 0, f"K={k}: TMA wants row pitches of 16 bytes, pad K to a multiple of 8")
    return compile_gemm(RUNG, __file__, arch, dtype, config, geometry(config))


def check_config(config: Tcgen05CudaConfig, arch: str) -> None:
    """UsageError for knobs that the kernel cannot be made with."""
    bM, bN, bK = config.tile
    smem, limit = geometry(config).smem, archs.find(arch).smem_per_cta
    RUNG.require(bM == 128, f"tile={config.tile}: M must be 128, the lanes of tensor memory")
    RUNG.require(bN in (32, 64, 128, 256), f"tile={config.tile}: N must be 32, 64, 128 or 256 columns of tensor memory")
    RUNG.require(bK == 64, f"tile={config.tile}: K must be 64, a swizzled row of 128 bytes")
    RUNG.require(config.stages >= 2, f"stages={config.stages}: at least 2, one to fill and one to multiply")
    RUNG.require(smem <= limit, f"stages={config.stages}: {smem} bytes of shared memory, {arch} has {limit}")
    RUNG.require(config.raster > 0, f"raster={config.raster}: at least 1 row of tiles")


def geometry(config: Tcgen05CudaConfig) -> Geometry:
    """How the kernel is launched."""
    bM, bN, bK = config.tile
    ring = config.stages * 2 * (bM + bN) * bK
    # 1 KB to align it, and the ring, or in its place C's tile
    smem = 1024 + max(ring + 16 * config.stages + 16, 2 * bM * (bN + 8))
    return Geometry(tile=(bM, bN), block=(128, 1, 1), smem=smem, flat=True, box_k=bK, k_multiple=8, align=16)
