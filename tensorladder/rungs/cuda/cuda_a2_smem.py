"""Shared memory in CUDA C++: tiles of A and B are fetched once a CTA, and read from there by all its threads.

Adds:
    Reuse. A CTA of 32 x 32 threads fetches a square of A and one of B, an element each a thread, and every element is
    then used 32 times: a load from global memory serves 16 multiply-adds in place of half a one. The two
    __syncthreads() are the whole protocol: the first says that the tiles are there, the second that nobody reads them
    any more. Rows are padded by a word, because the lanes of a warp read column i of 32 rows of B at once: rows of 32
    words would put all of them into one bank. Masks at the load make ragged edges zeros, so that the inner loop has
    no condition.

Warp roles:
    | warps  | role                                                              |
    |--------|-------------------------------------------------------------------|
    | all 32 | load a row of both tiles; a row of 32 elements of C, one a thread |

Budget:
    SMEM: 2 tiles x 32 rows x 33 x 4 B = 8.3 KB, operands widened to fp32. Registers: 1 accumulator, about 31 a thread;
    1024 threads, so that 1 or 2 CTAs fit on an SM. The inner loop reads two words for one multiply-add: shared memory
    is what limits it.

Run:
    tensorladder run cuda-a2-smem --shape 256,256,256
"""

from __future__ import annotations

from dataclasses import dataclass

from tensorladder.core.program import Program
from tensorladder.rungs.cuda.gemm import Geometry, compile_gemm
from tensorladder.rungs.rung import Rung


@dataclass(frozen=True)
class SmemCudaConfig:
    """tile: side of the squares of A, B and C that a CTA works on, an element of each a thread."""

    tile: int = 32


RUNG = Rung(
    name="cuda-a2-smem",
    parent="cuda-a1-naive",
    adds="squares of A and B in padded shared memory, between two __syncthreads()",
    archs=("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"),
    problem="gemm",
    dtypes=("fp32", "fp16", "bf16"),
    config=SmemCudaConfig,
)


def compile(arch: str, shape: tuple[int, ...], dtype: str, config: SmemCudaConfig | None = None) -> Program:
    """The rung for one architecture and element type, any shape (M, N, K)."""
    _, dtype = RUNG.check(arch, shape, dtype)
    config = config or SmemCudaConfig()
    check_config(config, arch)
    return compile_gemm(RUNG, __file__, arch, dtype, config, geometry(config))


def check_config(config: SmemCudaConfig, arch: str) -> None:
    """UsageError for knobs that the kernel cannot be made with."""
    RUNG.require(config.tile in (8, 16, 32), f"tile={config.tile}: 8, 16 or 32, a CTA has tile * tile threads")


def geometry(config: SmemCudaConfig) -> Geometry:
    """How the kernel is launched."""
    return Geometry(tile=(config.tile, config.tile), block=(config.tile, config.tile, 1))
