"""Thread-value layout: which (m, n) of C each register of each thread holds.

Adds:
    The other half of a layout. The parent shows where a tile's elements lie in memory, this where they lie in
    registers: a TV layout maps (thread, value) to a position in the tile. Every thread cuts its part out of a tensor
    that holds coordinates instead of numbers, with the same `partition_C` that a GEMM cuts its accumulators with, and
    writes them down. For m16n8k16 a lane holds two neighbours of row lane / 4 and two of row lane / 4 + 8: why an
    epilogue stores pairs, and why column factors come by twos. The same function for a person:
    `tensorladder.core.layout.tv_to_mn` takes any TV layout, `tensorladder.core.atoms` has those of the tensor cores'
    instructions.

Warp roles:
    | warps | role                                                       |
    |-------|------------------------------------------------------------|
    | all   | warps_m x warps_n: write the 8 coordinates of each thread  |

Budget:
    SMEM 0 B. Registers: about 20 a thread. Output: 64 B a thread.

Run:
    tensorladder run z1-tv-to-mn --shape 2,2
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
class TvToMnConfig:
    """bf16: look at the bfloat16 instruction instead of the float16 one (the layout is the same)."""

    bf16: bool = False


RUNG = Rung(
    name="z1-tv-to-mn",
    parent="z0-swizzle",
    adds="the accumulator's thread-value layout, read off with a tensor of coordinates",
    archs=("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"),
    problem="tv_to_mn",
    dtypes=("int32",),
    config=TvToMnConfig,
)


class TvToMn:
    def __init__(self, config: TvToMnConfig, warps: tuple[int, int]):
        self.element_type = cutlass.BFloat16 if config.bf16 else cutlass.Float16
        self.warps = (*warps, 1)

    @cute.jit
    def __call__(self, mMN: cute.Tensor):
        # The tiled MMA of the GEMM rungs: two instructions side by side along N a warp.
        mma_op = cute.nvgpu.warp.MmaF16BF16Op(self.element_type, cutlass.Float32, (16, 8, 16))
        tile = (self.warps[0] * 16, self.warps[1] * 16)
        tiled_mma = cute.make_tiled_mma(mma_op, cute.make_layout(self.warps), permutation_mnk=(*tile, 16))
        self.kernel(mMN, tiled_mma, tile).launch(grid=(1, 1, 1), block=(cute.size(tiled_mma), 1, 1))

    @cute.kernel
    def kernel(self, mMN: cute.Tensor, tiled_mma: cute.TiledMma, tile: cutlass.Constexpr):
        tidx, _, _ = cute.arch.thread_idx()
        tCcC = tiled_mma.get_slice(tidx).partition_C(cute.make_identity_tensor(tile))
        for value in cutlass.range_constexpr(cute.size(tCcC)):
            m, n = tCcC[value]
            mMN[tidx, value, 0] = m
            mMN[tidx, value, 1] = n


def compile(arch: str, shape: tuple[int, ...], dtype: str, config: TvToMnConfig | None = None) -> Program:
    """The rung for one architecture and shape (warps_m, warps_n): at most 32 warps."""
    (warps_m, warps_n), dtype = RUNG.check(arch, shape, dtype)
    threads = 32 * warps_m * warps_n
    RUNG.require(threads <= 1024, f"shape={warps_m},{warps_n}: {threads} threads, a CTA has at most 1024")
    kernel = TvToMn(config or TvToMnConfig(), (warps_m, warps_n))
    return compile_program(kernel, row_major("int32", (threads, 8, 2)), arch=arch, name=RUNG.name)
