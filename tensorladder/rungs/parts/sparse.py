"""Sparse attention: a paged cache taken by token, and the parts of a row that is split over CTAs, joined.

A part of a row's tokens leaves for each head m, the largest logit (times log2(e): exponents are of 2 throughout), l,
the sum of 2^(logit - m), and its output relative to m. A part without tokens has m = -inf, l = 0 and output 0.
"""

from __future__ import annotations

import math
import operator

import cutlass
import cutlass.cute as cute

from tensorladder.problems.sparse_attention import HEADS, LATENT, PAGE, ROTARY, max_splits
from tensorladder.rungs.parts.tensors import row_major
from tensorladder.rungs.rung import Rung

LANES = 32
THREADS = LATENT // 4
"""Of a CTA of `join`: 16 bytes of float32 each."""


def flat(cache: cute.Tensor) -> cute.Tensor:
    """A paged cache as (tokens, elements): the row of a token is its index."""
    pages, places, elements = cache.shape
    return cute.make_tensor(cache.iterator, cute.make_layout((pages * places, elements), stride=(elements, 1)))


@cute.jit
def token(indices: cute.Tensor, place: cutlass.Int32):
    """The index at a place of a row, -1 past its end."""
    index = cutlass.Int32(-1)
    if place < indices.shape[0]:
        index = indices[place]
    return index


def exp2(x: cutlass.Float32 | cute.TensorSSA):
    """2^x by the hardware's approximation; 0 for -inf."""
    return cute.math.exp2(x, fastmath=True)


@cute.jit
def finite(most: cutlass.Float32):
    """What exponents are relative to: 0 in place of -inf, as -inf - -inf is no number."""
    return most if most > -cutlass.Float32.inf else cutlass.Float32(0)


@cute.jit
def over_lanes(value: cutlass.Float32, combine: cutlass.Constexpr):
    """A value combined over the lanes of a warp, in all of them: a butterfly of five shuffles."""
    for step in cutlass.range_constexpr(5):
        value = combine(value, cute.arch.shuffle_sync_bfly(value, offset=1 << step))
    return value


@cute.kernel
def join(
    mParts: cute.Tensor, mSums: cute.Tensor, mO: cute.Tensor, mLse: cute.Tensor, splits: cutlass.Constexpr
):
    """A row's head a CTA: its parts, weighed by 2^(m - largest m), are added up. Launched as a dependent or not.

    mParts: (S, T, heads, elements), relative to m; mSums: (S, T, heads, 2), m and l; the first `splits` of S are used.
    """
    tidx, _, _ = cute.arch.thread_idx()
    head, row, _ = cute.arch.block_idx()
    cute.arch.griddepcontrol_launch_dependents()
    cute.arch.griddepcontrol_wait()

    # Each lane has the sums of every 32nd part, then all lanes what they come to.
    lane = tidx % LANES
    maxima = cute.make_rmem_tensor(cute.make_layout(cute.ceil_div(splits, LANES)), cutlass.Float32)
    sums = cute.make_fragment_like(maxima)
    most, total = -cutlass.Float32.inf, cutlass.Float32(0)
    for i in cutlass.range_constexpr(cute.size(maxima)):
        maxima[i], sums[i] = -cutlass.Float32.inf, cutlass.Float32(0)
        if i * LANES + lane < splits:
            maxima[i] = mSums[i * LANES + lane, row, head, 0]
            sums[i] = mSums[i * LANES + lane, row, head, 1]
        most = cute.arch.fmax(most, maxima[i])
    base = finite(over_lanes(most, cute.arch.fmax))
    for i in cutlass.range_constexpr(cute.size(maxima)):
        maxima[i] = exp2(maxima[i] - base)
        total += sums[i] * maxima[i]
    total = over_lanes(total, operator.add)

    out = cute.make_rmem_tensor(cute.make_layout(4), cutlass.Float32)
    out.fill(0.0)
    for i in cutlass.range_constexpr(cute.size(maxima)):
        for split in cutlass.range(min(splits - i * LANES, LANES), unroll=16):
            part = cute.local_tile(mParts[i * LANES + split, row, head, None], (4,), (tidx,)).load()
            out.store(out.load() + part * cute.arch.shuffle_sync(maxima[i], split))

    # A row of no tokens: all sums are 0, and the logarithm is -inf by itself.
    inverse = 1.0 / total if total > 0.0 else cutlass.Float32(0)
    cute.local_tile(mO[row, head, None], (4,), (tidx,)).store((out.load() * inverse).to(mO.element_type))
    if tidx == 0:
        mLse[row, head] = base + cute.math.log2(total, fastmath=True)


def splits_for(rows: int, tiles: int, most: int, sm_count: int, together: int = 1) -> int:
    """How many parts of a row's tiles give the shortest time with a CTA an SM, counted in tiles.

    together: tiles that a CTA works on side by side. A wave of CTAs takes its tiles and two more to begin and to end; a
    second kernel as much as two, and a sixteenth a part. It begins early only where it finds room, beside CTAs that
    take all shared memory of their SMs: with more than three quarters of the SMs taken it costs four more.
    (Measured on an H200 with `fused-dsa-wgmma`, tiles of 64 tokens. The forms for sm_100a, of 64 or 128, take the same
    ratios to a tile's time on trust: on paper a B200's SM reads 1.5 times as fast, which nobody has timed.)
    """

    def cost(splits: int) -> float:
        ctas, own = rows * splits, math.ceil(tiles / splits)
        first = math.ceil(ctas / sm_count) * (math.ceil(own / together) * together + 2)
        return first + (2 + splits / 16 + 4 * (ctas > 0.75 * sm_count)) * (splits > 1)

    return min(range(1, min(tiles, most) + 1), key=cost)


def parts(shape: tuple[int, ...], tokens: int, sm_count: int, least: int = 1) -> tuple[int, int]:
    """(parts of a row, tiles of a part) with tiles of so many tokens, at least `least` a part where a row has them."""
    rows, tiles = shape[0], math.ceil(shape[1] / tokens)
    of_part = math.ceil(tiles / splits_for(rows, tiles, min(max_splits(shape), max(1, tiles // least)), sm_count))
    return math.ceil(tiles / of_part), of_part


def arrays(rung: Rung, shape: tuple[int, ...], dtype: str) -> list[cute.Tensor]:
    """Stand-ins for the problem's arrays, in order; the number of pages is a symbol, a cache may have any.

    UsageError for more rows or pages than kernels can count.
    """
    rows, topk, pages = shape
    rung.require(rows < 65536, f"T={rows}: the grid's y has at most 65535 CTAs")
    rung.require(pages < 65536, f"pages={pages}: 2^31 elements of the cache, at most 65535 pages of {PAGE}")
    out, most = (rows, HEADS, LATENT), max_splits(shape)
    operands = [row_major(dtype, extents) for extents in (out, (rows, HEADS, ROTARY))]
    any_pages = cute.sym_int()
    caches = [row_major(dtype, (any_pages, PAGE, width)) for width in (LATENT, ROTARY)]
    results = [row_major("int32", (rows, topk)), row_major(dtype, out), row_major("fp32", (rows, HEADS))]
    scratch = [row_major("fp32", (most, *extents)) for extents in (out, (rows, HEADS, 2))]
    return [*operands, *caches, *results, *scratch]
