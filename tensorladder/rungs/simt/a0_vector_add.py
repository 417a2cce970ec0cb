"""Vector addition: C = A + B, the first kernel that a GPU runs.

Adds:
    The execution model: a grid of CTAs, threads in each, one index a thread. Two things make it as fast as memory
    allows. A thread moves 16 bytes at once (ld.global.v4.b32), so that a warp's load is 512 contiguous bytes: four
    full 128-byte lines an instruction. And the grid is as many CTAs as stay resident at a time; each strides over the
    vector, so that a launch costs the same for any N. The ragged end is done element by element by the one thread
    whose vector crosses it.

Warp roles:
    | warps | role                                           |
    |-------|------------------------------------------------|
    | all 8 | load two vectors, add in float32, store        |

Budget:
    SMEM 0 B. Registers: 12 for the three vectors of 16 bytes plus indices, 28 a thread in all, so the 2048 threads of
    an SM are resident as 8 CTAs of 256. Traffic: 3 N elements, the minimum; 1 flop an element.

Run:
    tensorladder run a0-vector-add --shape 65536
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
class VectorAddConfig:
    """threads: a CTA. vector_bytes: a thread's access. sm_count, ctas_per_sm: how many CTAs stride over the vector."""

    threads: int = 256
    vector_bytes: int = 16
    sm_count: int = 132
    ctas_per_sm: int = 8


RUNG = Rung(
    name="a0-vector-add",
    parent=None,
    adds="grid, CTA and thread; 16-byte accesses; a grid-stride loop with a ragged end",
    archs=("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"),
    problem="vector_add",
    dtypes=("fp16", "bf16", "fp32"),
    config=VectorAddConfig,
)


class VectorAdd:
    def __init__(self, config: VectorAddConfig):
        self.threads = config.threads
        self.vector_bytes = config.vector_bytes
        self.max_ctas = config.sm_count * config.ctas_per_sm

    @cute.jit
    def __call__(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor):
        vector = self.vector_bytes * 8 // mA.element_type.width
        num_tiles = cute.ceil_div(cute.size(mC), self.threads * vector)
        grid = (min(num_tiles, self.max_ctas), 1, 1)
        self.kernel(mA, mB, mC, vector, num_tiles).launch(grid=grid, block=(self.threads, 1, 1))

    @cute.kernel
    def kernel(
        self,
        mA: cute.Tensor,
        mB: cute.Tensor,
        mC: cute.Tensor,
        vector: cutlass.Constexpr,
        num_tiles: cutlass.Constexpr,
    ):
        tidx, _, _ = cute.arch.thread_idx()
        bidx, _, _ = cute.arch.block_idx()
        gdim, _, _ = cute.arch.grid_dim()
        n = cute.size(mC)

        for tile in range(bidx, num_tiles, gdim):
            index = tile * self.threads + tidx  # number of this thread's vector
            start = index * vector
            if start + vector <= n:
                rA = cute.local_tile(mA, (vector,), (index,)).load().to(cutlass.Float32)
                rB = cute.local_tile(mB, (vector,), (index,)).load().to(cutlass.Float32)
                cute.local_tile(mC, (vector,), (index,)).store((rA + rB).to(mC.element_type))
            else:
                for i in range(start, n):
                    mC[i] = (mA[i].to(cutlass.Float32) + mB[i].to(cutlass.Float32)).to(mC.element_type)


def compile(arch: str, shape: tuple[int, ...], dtype: str, config: VectorAddConfig | None = None) -> Program:
    """The rung for one architecture, shape (N,) and element type. Any N; arrays are 16-byte aligned."""
    shape, dtype = RUNG.check(arch, shape, dtype)
    config = config or VectorAddConfig()
    RUNG.require(0 < config.threads <= 1024, f"threads={config.threads}: a CTA has 1 to 1024")
    RUNG.require(config.sm_count > 0 and config.ctas_per_sm > 0, "sm_count and ctas_per_sm must be positive")
    RUNG.require(config.vector_bytes in (4, 8, 16), f"vector_bytes={config.vector_bytes}: use 4, 8 or 16")
    arrays = [row_major(dtype, shape) for _ in range(3)]
    return compile_program(VectorAdd(config), *arrays, arch=arch, name=RUNG.name)
