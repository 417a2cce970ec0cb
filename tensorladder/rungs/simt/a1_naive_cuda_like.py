"""Naive GEMM, CUDA style: C = A B^T, one thread an element of C.

Adds:
    A second dimension and a reduction. The grid tiles C, a thread finds its row and column from block and thread
    numbers as in CUDA C++, and walks along K. CuTe only turns the coordinate (m, k) into an address. It is as slow as
    it is simple: two loads feed one fused multiply-add, and nothing is shared between threads but what the caches
    happen to keep. What it gets right is the shape of the block: the 32 threads of a warp run along M, so that they
    ask for the same element of B (one broadcast) and 32 rows of A, whose cache lines serve the next 32 or 64 steps.

Warp roles:
    | warps | role                                                  |
    |-------|-------------------------------------------------------|
    | all 8 | 8 rows by 32 columns of C, an element a thread        |

Budget:
    SMEM 0 B. Registers: 1 accumulator, 20 a thread in all. Traffic: 2 loads a multiply-add, 2 M N K in all.

Run:
    tensorladder run a1-naive-cuda-like --shape 256,256,256
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute

from tensorladder.core.program import Program
from tensorladder.frontends.cutedsl import compile_program
from tensorladder.rungs.parts.tensors import row_major
from tensorladder.rungs.rung import Rung


@dataclass(frozen=True)
class NaiveGemmConfig:
    """block_m, block_n: the tile of C that a CTA computes, a thread an element. unroll: of the loop along K."""

    block_m: int = 8
    block_n: int = 32
    unroll: int = 4


RUNG = Rung(
    name="a1-naive-cuda-like",
    parent="a0-vector-add",
    adds="GEMM: a two-dimensional grid, a thread an element of C, a loop along K",
    archs=("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"),
    problem="gemm",
    dtypes=("fp32", "fp16", "bf16"),
    config=NaiveGemmConfig,
)


class NaiveGemm:
    def __init__(self, config: NaiveGemmConfig):
        self.block_m, self.block_n = config.block_m, config.block_n
        self.unroll = config.unroll

    @cute.jit
    def __call__(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor):
        grid = (cute.ceil_div(mC.shape[1], self.block_n), cute.ceil_div(mC.shape[0], self.block_m), 1)
        self.kernel(mA, mB, mC).launch(grid=grid, block=(self.block_n, self.block_m, 1))

    @cute.kernel
    def kernel(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor):
        tidx, tidy, _ = cute.arch.thread_idx()
        bidx, bidy, _ = cute.arch.block_idx()

        m = bidy * self.block_m + tidy
        n = bidx * self.block_n + tidx
        if m < mC.shape[0] and n < mC.shape[1]:
            acc = cutlass.Float32(0)
            for k in cutlass.range(mA.shape[1], unroll=self.unroll):
                acc += mA[m, k].to(cutlass.Float32) * mB[n, k].to(cutlass.Float32)
            mC[m, n] = acc.to(mC.element_type)


def compile(arch: str, shape: tuple[int, ...], dtype: str, config: NaiveGemmConfig | None = None) -> Program:
    """The rung for one architecture, shape (M, N, K) and element type. Any shape."""
    (m, n, k), dtype = RUNG.check(arch, shape, dtype)
    config = config or NaiveGemmConfig()
    threads = config.block_m * config.block_n
    RUNG.require(0 < threads <= 1024, f"block_m * block_n = {threads} threads: a CTA has at most 1024")
    arrays = [row_major(dtype, extents) for extents in ((m, k), (n, k), (m, n))]
    return compile_program(NaiveGemm(config), *arrays, arch=arch, name=RUNG.name)
