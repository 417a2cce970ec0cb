"""WMMA from shared memory in CUDA C++: a CTA's tiles are fetched once, and warps hold several fragments.

Adds:
    The two levels of reuse of `cuda-a2-smem` and `cuda-a3-register-tile`, under tensor cores. The warps of a CTA fetch
    a 64 x 32 tile of A and of B together and load their fragments from there; each holds 2 x 2 of them, so that a
    fragment of A or B serves two multiplications. Ragged edges become zeros on the way into shared memory, and a warp's
    patch is left for its sums alone. Rows are padded by 16 bytes: the eight rows of a fragment that are read at a
    time then start in eight different groups of banks. What is slow now is the fetching: an element, 2 bytes, a thread
    at a time.

Warp roles:
    | warps | role                                                                       |
    |-------|----------------------------------------------------------------------------|
    | all 4 | load a quarter of both tiles; 32 x 32 of C: 2 x 2 fragments, 2 x 2 warps   |

Budget:
    SMEM: (64 + 64) rows x (32 + 8) x 2 B = 10 KB and 4 patches of 1 KB. Registers: 32 sums, 32 of operands, 72 in all.
    Traffic: 8 KB a K tile for 128 Ki multiply-adds, 16 a byte.

Run:
    tensorladder run cuda-b1-wmma-smem --shape 256,256,256
"""

from __future__ import annotations

from dataclasses import dataclass

from tensorladder.core.program import Program
from tensorladder.rungs.cuda.gemm import Geometry, compile_gemm
from tensorladder.rungs.rung import Rung


@dataclass(frozen=True)
class WmmaSmemCudaConfig:
    """tile: (M, N, K) of a CTA. warps_m, warps_n: how its warps lie on the tile of C."""

    tile: tuple[int, int, int] = (64, 64, 32)
    warps_m: int = 2
    warps_n: int = 2


RUNG = Rung(
    name="cuda-b1-wmma-smem",
    parent="cuda-b1-wmma",
    adds="fragments loaded from tiles in padded shared memory, several a warp",
    archs=("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"),
    problem="gemm",
    dtypes=("fp16", "bf16"),
    config=WmmaSmemCudaConfig,
)


def compile(arch: str, shape: tuple[int, ...], dtype: str, config: WmmaSmemCudaConfig | None = None) -> Program:
    """The rung for one architecture and element type, any shape (M, N, K)."""
    _, dtype = RUNG.check(arch, shape, dtype)
    config = config or WmmaSmemCudaConfig()
    check_config(config, arch)
    return compile_gemm(RUNG, __file__, arch, dtype, config, geometry(config))


def check_config(config: WmmaSmemCudaConfig, arch: str) -> None:
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


def geometry(config: WmmaSmemCudaConfig) -> Geometry:
    """How the kernel is launched."""
    bM, bN, _ = config.tile
    return Geometry(tile=(bM, bN), block=(32 * config.warps_m * config.warps_n, 1, 1))
