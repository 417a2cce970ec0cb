"""Attention by WGMMA with tokens as rows and 16 heads as columns: what a thread's accumulators are, by head.

A thread has 4 heads, two neighbours and the two that are 8 further, and of each two rows, 8 apart, in every 64 rows
(PTX ISA, "Register Fragments for wgmma.mma_async.m64nNk16", matrix D). A head's rows lie in 8 lanes of each warp.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute

from tensorladder.rungs.parts import pieces

LANES = 32
OF_BLOCK = 8
"""Accumulators of a thread in 64 rows of 16 columns."""


def by_head(accumulators: cute.Tensor) -> cute.Tensor:
    """A thread's accumulators as (head, values of it)."""
    blocks = cute.size(accumulators) // OF_BLOCK
    layout = cute.make_layout(((2, 2), (2, blocks)), stride=((1, 4), (2, OF_BLOCK)))
    return cute.make_tensor(accumulators.iterator, layout)


def half(accumulators: cute.Tensor, which: int) -> cute.Tensor:
    """A thread's accumulators of the upper (0) or lower (1) half of the rows, as vectors of 4."""
    size = cute.size(accumulators) // 2
    return cute.make_tensor(accumulators.iterator + which * size, (4, size // 4))


def halves(base: cute.Pointer, blocks: int, threads: int) -> cute.Tensor:
    """Room for a `half` of two warpgroups, of `blocks` blocks of 64 rows: (4, vectors, thread, warpgroup)."""
    size = blocks // 2 * OF_BLOCK
    strides = (1, 4 * threads, 4, size * threads)
    return cute.make_tensor(base, cute.make_layout((4, size // 4, threads, 2), stride=strides))


def number(which: int, thread: cutlass.Int32):
    """Which of all heads a thread's first, second, third or fourth is."""
    return which // 2 * 8 + thread % 4 * 2 + which % 2


@cute.jit
def over_rows(value: cutlass.Float32, combine: cutlass.Constexpr):
    """A value combined over the lanes of a warp that have the same heads, in all of them."""
    for step in cutlass.range_constexpr(2, 5):
        value = combine(value, cute.arch.shuffle_sync_bfly(value, offset=1 << step))
    return value


@cute.jit
def to_warps(values: cute.Tensor, of_warps: cute.Tensor, thread: cutlass.Int32):
    """A warp's value for each of a thread's heads to shared memory, (head, warp)."""
    if thread % LANES < 4:
        for i in cutlass.range_constexpr(4):
            of_warps[number(i, thread), thread // LANES] = values[i]


@cute.jit
def over_warps(of_warps: cute.Tensor, head: cutlass.Int32, first: cutlass.Float32, combine: cutlass.Constexpr):
    """`first` combined with what `to_warps` left for a head, warp after warp."""
    for warp in cutlass.range_constexpr(of_warps.shape[1]):
        first = combine(first, of_warps[head, warp])
    return first


@cute.jit
def store(accumulators: cute.Tensor, base: cute.Pointer, thread: cutlass.Int32):
    """64 rows of 16 heads to shared memory, transposed and converted, by stmatrix: a line of 64 rows a head.

    base: of the 16 lines, under the 128-byte swizzle, in a 16-bit type.
    """
    warp, lane = thread // LANES, thread % LANES
    values = cute.make_fragment_like(accumulators, base.dtype)
    values.store(accumulators.load().to(base.dtype))
    # A lane gives the place of a line of the four 8 x 8 matrices: rows, rows 8 further, then for 8 heads more.
    matrix, line = lane // 8, lane % 8
    target = pieces.place(base, 16, matrix // 2 * 8 + line, warp * 2 + matrix % 2)
    atom = cute.make_copy_atom(cute.nvgpu.warp.StMatrix8x8x16bOp(True, 4), base.dtype)
    cute.copy(atom, cute.make_tensor(values.iterator, OF_BLOCK), cute.make_tensor(target, cute.make_layout(8)))
