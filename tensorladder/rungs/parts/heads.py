"""Attention by WGMMA with tokens as rows and 16 heads as columns: what a thread's accumulators are, by head.

A thread has 4 heads, two neighbours and the two that are 8 further, and of each two rows, 8 apart, in every 64 rows
(PTX ISA, "Register Fragments for wgmma.mma_async.m64nNk16", matrix D). A head's rows lie in 8 lanes of each warp.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute

LANES = 32
OF_BLOCK = 8
"""Accumulators of a thread in 64 rows of 16 columns."""


def by_head(accumulators: cute.Tensor) -> cute.Tensor:
    """A thread's accumulators as (head, values of it)."""
    blocks = cute.size(accumulators) // OF_BLOCK
    layout = cute.make_layout(((2, 2), (2, blocks)), stride=((1, 4), (2, OF_BLOCK)))
    return cute.make_tensor(accumulators.iterator, layout)


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
