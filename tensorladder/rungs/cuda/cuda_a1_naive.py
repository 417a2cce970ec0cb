"""Naive GEMM in CUDA C++: C = A B^T, one thread an element of C, any shape from one compilation.

Adds:
    Another language over the same machine. The kernel is `a1-naive-cuda-like` word for word: block and thread numbers
    give a row and a column, a loop along K the sum. What the DSL traced from Python is here compiled from C++ by
    NVRTC, in a tenth of a second and with no toolkit installed; M, N and K are arguments of the kernel, so that one
    machine code serves every shape, and the host part is a few lines that fill a parameter block.

Warp roles:
    | warps | role                                                  |
    |-------|-------------------------------------------------------|
    | all 8 | 8 rows by 32 columns of C, an element a thread        |

Budget:
    SMEM 0 B. Registers: 1 accumulator, about 25 a thread in all. Traffic: 2 loads a multiply-add, 2 M N K in all.

Run:
    tensorladder run cuda-a1-naive --shape 256,256,256
"""

from __future__ import annotations

from dataclasses import dataclass

from tensorladder.core.program import Program
from tensorladder.rungs.cuda.gemm import Geometry, compile_gemm
from tensorladder.rungs.rung import Rung


@dataclass(frozen=True)
class NaiveCudaConfig:
    """block_m, block_n: the tile of C that a CTA computes, a thread an element. unroll: of the loop along K."""

    block_m: int = 8
    block_n: int = 32
    unroll: int = 4


RUNG = Rung(
    name="cuda-a1-naive",
    parent="a1-naive-cuda-like",
    adds="the naive GEMM in CUDA C++ through NVRTC: extents are kernel arguments, one compilation for all shapes",
    archs=("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"),
    problem="gemm",
    dtypes=("fp32", "fp16", "bf16"),
    config=NaiveCudaConfig,
)


def compile(arch: str, shape: tuple[int, ...], dtype: str, config: NaiveCudaConfig | None = None) -> Program:
    """The rung for one architecture and element type, any shape (M, N, K)."""
    _, dtype = RUNG.check(arch, shape, dtype)
    config = config or NaiveCudaConfig()
    check_config(config, arch)
    return compile_gemm(RUNG, __file__, arch, dtype, config, geometry(config))


def check_config(config: NaiveCudaConfig, arch: str) -> None:
    """UsageError for knobs that the kernel cannot be made with."""
    threads = config.block_m * config.block_n
    RUNG.require(0 < threads <= 1024, f"block_m * block_n = {threads} threads: a CTA has at most 1024")
    RUNG.require(config.unroll > 0, f"unroll={config.unroll}: at least 1")


def geometry(config: NaiveCudaConfig) -> Geometry:
    """How the kernel is launched."""
    return Geometry(tile=(config.block_m, config.block_n), block=(config.block_n, config.block_m, 1))
