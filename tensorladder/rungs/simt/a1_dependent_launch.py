"""Dependent launch: a second kernel starts while the first one ends, and waits only where it needs its results.

Adds:
    Programmatic dependent launch. Kernels of one stream follow each other strictly: the second one's CTAs are launched
    when the last CTA of the first is through and its writes are flushed, some microseconds in which the GPU does
    nothing. Here the second kernel is launched with an attribute that lifts this order, and two instructions put back
    what of it is needed:
    - griddepcontrol.launch_dependents, in the first: once every CTA has come here (or is through), CTAs of the second
      may take the places that become free. It is a matter of speed alone and makes nothing visible.
    - griddepcontrol.wait, in the second: goes on when all of the first grid is through and its memory operations are
      visible. What comes before it must not read what the first kernel writes, nor write what it reads; here that is
      finding one's place and loading the factor, in larger kernels barriers, tensor maps and the first weights.
    The work is C = (A B^T) * R as two kernels: a product, and a scaling of its columns in place. b6 shows how to fuse
    them; where that cannot be done (a sum over all of C, say), this is what is left to gain.

Warp roles:
    | warps            | role                                                    |
    |------------------|---------------------------------------------------------|
    | all 8, product   | 8 rows by 32 columns of C, an element a thread          |
    | all 8, scaling   | the same elements, each times the factor of its column  |

Budget:
    SMEM 0 B. Registers: 1 accumulator, 20 a thread in all. Traffic: 2 loads a multiply-add, then C once more each way.

Run:
    tensorladder run a1-dependent-launch --shape 256,256,256
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
class DependentLaunchGemmConfig:
    """block_m, block_n: the tile of C that a CTA computes, a thread an element. unroll: of the loop along K.

    overlap: launch the scaling as a dependent, or (False) strictly after the product.
    """

    block_m: int = 8
    block_n: int = 32
    unroll: int = 4
    overlap: bool = True


RUNG = Rung(
    name="a1-dependent-launch",
    parent="a1-naive-cuda-like",
    adds="two kernels joined by programmatic dependent launch: the second starts under the end of the first",
    aside="for kernels one behind the other, the start of each hidden under the end of the one before",
    archs=("sm_90a", "sm_100a", "sm_120a"),
    problem="gemm_colwise_scale",
    dtypes=("fp32",),
    config=DependentLaunchGemmConfig,
)


class DependentLaunchGemm:
    def __init__(self, config: DependentLaunchGemmConfig):
        self.block_m, self.block_n = config.block_m, config.block_n
        self.unroll = config.unroll
        self.overlap = config.overlap

    @cute.jit
    def __call__(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mR: cute.Tensor):
        grid = (cute.ceil_div(mC.shape[1], self.block_n), cute.ceil_div(mC.shape[0], self.block_m), 1)
        block = (self.block_n, self.block_m, 1)
        self.kernel(mA, mB, mC).launch(grid=grid, block=block)
        self.scale(mC, mR).launch(grid=grid, block=block, use_pdl=self.overlap)

    @cute.kernel
    def kernel(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor):
        m, n = self.place()
        if m < mC.shape[0] and n < mC.shape[1]:
            acc = cutlass.Float32(0)
            for k in cutlass.range(mA.shape[1], unroll=self.unroll):
                acc += mA[m, k].to(cutlass.Float32) * mB[n, k].to(cutlass.Float32)
            mC[m, n] = acc.to(mC.element_type)
        # This CTA is nearly through: CTAs of the scaling may be launched where there is room.
        cute.arch.griddepcontrol_launch_dependents()

    @cute.kernel
    def scale(self, mC: cute.Tensor, mR: cute.Tensor):
        m, n = self.place()
        if m < mC.shape[0] and n < mC.shape[1]:
            # Nobody writes R, so it may be read early; C is there, all of it, after the wait.
            factor = mR[n].to(cutlass.Float32)
            cute.arch.griddepcontrol_wait()
            mC[m, n] = (mC[m, n].to(cutlass.Float32) * factor).to(mC.element_type)

    @cute.jit
    def place(self):
        """(m, n) of the element of C that is this thread's."""
        tidx, tidy, _ = cute.arch.thread_idx()
        bidx, bidy, _ = cute.arch.block_idx()
        return bidy * self.block_m + tidy, bidx * self.block_n + tidx


def compile(arch: str, shape: tuple[int, ...], dtype: str, config: DependentLaunchGemmConfig | None = None) -> Program:
    """The rung for one architecture, shape (M, N, K) and element type. Any shape."""
    (m, n, k), dtype = RUNG.check(arch, shape, dtype)
    config = config or DependentLaunchGemmConfig()
    threads = config.block_m * config.block_n
    RUNG.require(0 < threads <= 1024, f"block_m * block_n = {threads} threads: a CTA has at most 1024")
    arrays = [row_major(dtype, extents) for extents in ((m, k), (n, k), (m, n), (n,))]
    return compile_program(DependentLaunchGemm(config), *arrays, arch=arch, name=RUNG.name)
