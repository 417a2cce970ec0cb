"""Vectorised WMMA in CUDA C++: tiles are fetched and C is stored 16 bytes a thread, the tile grows to 128 x 128.

Adds:
    Fewer, wider accesses. A thread moves 8 elements where it moved one: an eighth of the load and store instructions,
    of the address arithmetic and of the masks, and every warp asks for whole sectors of 32 bytes. With fetching cheap
    a CTA can be given more to fetch for: 128 x 128 of C with 8 warps, 64 x 32 a warp, a fragment of A serves two
    multiplications and one of B four. The price is a condition on the shape: rows must start at multiples of 16
    bytes, K a multiple of 8. (C is stored element by element where N is none.)

Warp roles:
    | warps | role                                                                      |
    |-------|---------------------------------------------------------------------------|
    | all 8 | load an eighth of both tiles; 64 x 32 of C: 4 x 2 fragments, 2 x 4 warps  |

Budget:
    SMEM: (128 + 128) rows x (32 + 8) x 2 B = 20 KB and 8 patches of 1 KB. Registers: 64 sums, 48 of operands, up to 16
    on their way to shared memory, 128 a thread. Traffic: 16 KB a K tile for 512 Ki multiply-adds, 32 a byte.

Run:
    tensorladder run cuda-b1-wmma-vectorized --shape 256,256,256
"""

from __future__ import annotations

from dataclasses import dataclass

from tensorladder.core.program import Program
from tensorladder.rungs.cuda.gemm import Geometry, compile_gemm
from tensorladder.rungs.rung import Rung


@dataclass(frozen=True)
class WmmaVectorizedCudaConfig:
    """tile: (M, N, K) of a CTA. warps_m, warps_n: how its warps lie on the tile of C."""

    tile: tuple[int, int, int] = (128, 128, 32)
    warps_m: int = 2
    warps_n: int = 4


RUNG = Rung(
    name="cuda-b1-wmma-vectorized",
    parent="cuda-b1-wmma-smem",
    adds="tiles and results moved 16 bytes a thread, 128 x 128 of C a CTA",
    archs=("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"),
    problem="gemm",
    dtypes=("fp16", "bf16"),
    config=WmmaVectorizedCudaConfig,
)


def compile(arch: str, shape: tuple[int, ...], dtype: str, config: WmmaVectorizedCudaConfig | None = None) -> Program:
    """The rung for one architecture and element type, any M and N, K a multiple of 8 (16 bytes)."""
    (_, _, k), dtype = RUNG.check(arch, shape, dtype)
    config = config or WmmaVectorizedCudaConfig()
    check_config(config, arch)
    RUNG.require(k % 8 == 0, f"K={k}: rows are fetched 16 bytes at a time, pad K to a multiple of 8")
    return compile_gemm(RUNG, __file__, arch, dtype, config, geometry(config))


def check_config(config: WmmaVectorizedCudaConfig, arch: str) -> None:
    """UsageError for knobs that the kernel cannot be made with."""
    bM, bN, bK = config.tile
    warps = config.warps_m * config.warps_n
    smem = 2 * (bM + bN) * (bK + 8) + 1024 * warps
    RUNG.require(0 < warps <= 32, f"warps_m * warps_n = {warps}: a CTA has 1 to 32 warps")
    RUNG.require(bM > 0 and bM % (16 * config.warps_m) == 0, f"tile={config.tile}: M does not fit the warps")
    RUNG.require(bN > 0 and bN % (16 * config.warps_n) == 0, f"tile={config.tile}: N does not fit the warps")
    RUNG.require(bK > 0 and bK % 16 == 0, f"tile={config.tile}: K must be a multiple of 16, a fragment's depth")
    RUNG.require(bM * bN <= 4096 * warps, f"tile={config.tile}: more than 4096 sums a warp do not fit its registers")
    RUNG.require(smem <= 48 << 10, f"tile={config.tile}: {smem} bytes of shared memory, at most 49152")


def geometry(config: WmmaVectorizedCudaConfig) -> Geometry:
    """How the kernel is launched."""
    bM, bN, _ = config.tile
    return Geometry(tile=(bM, bN), block=(32 * config.warps_m * config.warps_n, 1, 1), k_multiple=8, align=16)
