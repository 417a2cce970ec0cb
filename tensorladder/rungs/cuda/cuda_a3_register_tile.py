"""Register tiles in CUDA C++: a thread computes 8 x 8 elements of C from 8 + 8 operands in registers.

Adds:
    Reuse one level further up. An outer product of 8 elements of A and 8 of B is 64 multiply-adds for 16 words read
    from shared memory, where the rung below reads 2 a multiply-add; the arithmetic units, no longer shared memory, set
    the pace. The tiles are stored turned (equal k together), so that a thread's operands are runs that it reads 16
    bytes at a time. Its rows and columns are two runs of four, half a tile apart: were they eight in a row, the lanes
    of a quarter warp would read at a distance of 32 bytes, and meet in the same banks two by two.

Warp roles:
    | warps | role                                                                |
    |-------|---------------------------------------------------------------------|
    | all 8 | load an eighth of both tiles; 128 x 128 of C: 8 x 8 elements a thread |

Budget:
    SMEM: 2 tiles x 16 x 132 x 4 B = 16.5 KB. Registers: 64 accumulators, 16 operands, about 120 a thread: 2 CTAs an SM
    of 65536. Global traffic: an element for 64 multiply-adds.

Run:
    tensorladder run cuda-a3-register-tile --shape 256,256,256
"""

from __future__ import annotations

from dataclasses import dataclass

from tensorladder.core.program import Program
from tensorladder.rungs.cuda.gemm import Geometry, compile_gemm
from tensorladder.rungs.rung import Rung


@dataclass(frozen=True)
class RegisterTileCudaConfig:
    """tile: (M, N, K) of a CTA; it has a thread for each 8 x 8 elements of its tile of C."""

    tile: tuple[int, int, int] = (128, 128, 16)


RUNG = Rung(
    name="cuda-a3-register-tile",
    parent="cuda-a2-smem",
    adds="8 x 8 accumulators a thread, operands read 16 bytes at a time from tiles stored turned",
    archs=("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"),
    problem="gemm",
    dtypes=("fp32", "fp16", "bf16"),
    config=RegisterTileCudaConfig,
)


def compile(arch: str, shape: tuple[int, ...], dtype: str, config: RegisterTileCudaConfig | None = None) -> Program:
    """The rung for one architecture and element type, any shape (M, N, K)."""
    _, dtype = RUNG.check(arch, shape, dtype)
    config = config or RegisterTileCudaConfig()
    check_config(config, arch)
    return compile_gemm(RUNG, __file__, arch, dtype, config, geometry(config))


def check_config(config: RegisterTileCudaConfig, arch: str) -> None:
    """UsageError for knobs that the kernel cannot be made with."""
    bM, bN, bK = config.tile
    threads = bM // 8 * (bN // 8)
    smem = 4 * bK * (bM + bN + 8)
    RUNG.require(bM > 0 and bM % 8 == 0, f"tile={config.tile}: M must be a multiple of 8, a thread's rows")
    RUNG.require(bN > 0 and bN % 8 == 0, f"tile={config.tile}: N must be a multiple of 8, a thread's columns")
    RUNG.require(threads <= 512, f"tile={config.tile}: {threads} threads of up to 128 registers, at most 512 fit")
    RUNG.require(0 < smem <= 48 << 10, f"tile={config.tile}: {smem} bytes of shared memory, 1 to 49152")


def geometry(config: RegisterTileCudaConfig) -> Geometry:
    """How the kernel is launched."""
    bM, bN, _ = config.tile
    return Geometry(tile=(bM, bN), block=(bM // 8 * (bN // 8), 1, 1))
