"""Tiles of groups whose sizes lie in memory: each warp finds its tile's group by itself, 32 groups at a time.

`offs` (G,) int32 holds where the groups end along the ragged extent; group g is [offs[g - 1], offs[g]), the first
begins at 0. What lies past the last one, up to the extent, counts as group G. Ends outside of the extent, or before
their group's begin, are cut: a wrong table costs right results, never memory of others.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute

LANES = 32


@cute.jit
def bounds(offs: cute.Tensor, group: cutlass.Int32, limit: cutlass.Int32):
    """[begin, end) of a group from 0 to G; empty for any other."""
    count = offs.shape[0]
    begin, end = cutlass.Int32(0), cutlass.Int32(limit)
    if group > 0:
        begin = cutlass.Int32(offs[cutlass.min(group, count) - 1])
    if group < count:
        end = cutlass.Int32(offs[group])
    begin = cutlass.min(cutlass.max(begin, 0), limit)
    end = cutlass.max(cutlass.min(end, limit), begin)
    if group > count:
        end = begin
    return begin, end


@cute.jit
def tiles_of(begin: cutlass.Int32, end: cutlass.Int32, rows: cutlass.Constexpr, align: cutlass.Constexpr):
    """Tiles along the ragged extent of the group [begin, end)."""
    tiles = cutlass.Int32(0)
    if end > begin:
        tiles = (end - begin // align * align + rows - 1) // rows
    return tiles


class Tiles:
    """The tiles of clusters of CTAs, of all groups, as one sequence. tile: (M, N, K) of a CTA; cluster: CTAs along M
    and N; raster_rows: clusters' tiles before the next column.

    align: what boxes begin at a multiple of, along the ragged extent. ragged_k: groups of K, a whole C each; else of
    rows. Device functions take A's and C's shapes, (M, K) and (M, N) but for the groups, and a window: what a lane
    knows of the group first + lane, as (first, begin, end, number of tiles up to its group's last).
    """

    def __init__(
        self, tile: tuple[int, int, int], cluster: tuple[int, int], raster_rows: int, align: int, ragged_k: bool
    ):
        self.own, self.cluster = tile, cluster
        self.tile = (tile[0] * cluster[0], tile[1] * cluster[1], tile[2])
        self.raster_rows, self.align, self.ragged_k = raster_rows, align, ragged_k

    @cute.jit
    def most(self, offs: cute.Tensor, shape_C: cute.Shape):
        """As many tiles as there can be. Each group of rows may end with a tile that is not full, as may the rest."""
        tiles_m = cute.ceil_div(shape_C[0], self.tile[0])
        tiles_m = tiles_m * offs.shape[0] if cutlass.const_expr(self.ragged_k) else tiles_m + offs.shape[0]
        return tiles_m * cute.ceil_div(shape_C[1], self.tile[1])

    @cute.jit
    def start(self, offs: cute.Tensor, tile: cutlass.Int32, shape_A: cute.Shape, shape_C: cute.Shape):
        """A window that holds the tile, and the number of tiles up to its end: the tile exists if it is less."""
        zero = cutlass.Int32(0)
        if cutlass.const_expr(self.ragged_k):
            tiles_m, tiles_n = cute.ceil_div(shape_C[0], self.tile[0]), cute.ceil_div(shape_C[1], self.tile[1])
            return (zero, zero, zero, zero), tiles_m * tiles_n * offs.shape[0]
        return self.find(offs, tile, self.read(offs, zero, zero, shape_A, shape_C), shape_A, shape_C)

    @cute.jit
    def read(
        self, offs: cute.Tensor, first: cutlass.Int32, before: cutlass.Int32, shape_A: cute.Shape, shape_C: cute.Shape
    ):
        """The window from the group `first` on, which `before` tiles are before."""
        lane = cute.arch.lane_idx()
        begin, end = bounds(offs, first + lane, shape_A[0])
        upto = tiles_of(begin, end, self.tile[0], self.align) * cute.ceil_div(shape_C[1], self.tile[1])
        for step in cutlass.range_constexpr(5):
            below = cute.arch.shuffle_sync_up(upto, 1 << step)
            if lane >= 1 << step:
                upto += below
        return first, begin, end, upto + before

    @cute.jit
    def find(self, offs: cute.Tensor, tile: cutlass.Int32, window: tuple, shape_A: cute.Shape, shape_C: cute.Shape):
        """As `start`, from an earlier tile's window. By all lanes of a warp."""
        first, begin, end, upto = window
        total = cute.arch.shuffle_sync(upto, LANES - 1)
        while tile >= total and first + LANES <= offs.shape[0]:
            first, begin, end, upto = self.read(offs, first + LANES, total, shape_A, shape_C)
            total = cute.arch.shuffle_sync(upto, LANES - 1)
        return (first, begin, end, upto), total

    @cute.jit
    def next(
        self, offs: cute.Tensor, tile: cutlass.Int32, window: tuple, total: cutlass.Int32, shape_A: cute.Shape,
        shape_C: cute.Shape,
    ):
        """As `start`, for a tile after the window's."""
        if cutlass.const_expr(self.ragged_k):
            return window, total
        return self.find(offs, tile, window, shape_A, shape_C)

    @cute.jit
    def place(
        self, offs: cute.Tensor, tile: cutlass.Int32, window: tuple, shape_A: cute.Shape, shape_C: cute.Shape,
        cta: cute.Coord = (0, 0),
    ):
        """Of a CTA's tile: its group, first row, column and k, number of K tiles, and the group's [low, high) of the
        ragged extent: what a box holds below `low` or from `high` on is of other groups. Rows of no group have no K.

        cta: in its cluster, whose tile it is.
        """
        bM, bN, bK = self.tile
        tiles_n, k, k_tiles = cute.ceil_div(shape_C[1], bN), cutlass.Int32(0), cutlass.Int32(0)
        if cutlass.const_expr(self.ragged_k):
            tiles_m, row = cute.ceil_div(shape_C[0], bM), cutlass.Int32(0)
            group, within = tile // (tiles_m * tiles_n), tile % (tiles_m * tiles_n)
            low, high = bounds(offs, group, shape_A[1])
            k, k_tiles = low // self.align * self.align, tiles_of(low, high, bK, self.align)
        else:
            # As many lanes as have groups that end at or before the tile: the next one has it.
            first, begin, end, upto = window
            lane = cute.arch.popc(cute.arch.vote_ballot_sync(upto <= tile))
            low, high, upto = (cute.arch.shuffle_sync(x, lane) for x in (begin, end, upto))
            group, tiles_m = first + lane, tiles_of(low, high, bM, self.align)
            row, within = low // self.align * self.align, tile - (upto - tiles_m * tiles_n)
            if group < offs.shape[0]:
                k_tiles = cute.ceil_div(shape_A[1], bK)
        m, n = raster(within, tiles_m, tiles_n, self.raster_rows)
        row, col = row + m * bM + cta[0] * self.own[0], n * bN + cta[1] * self.own[1]
        return group, row, col, k, k_tiles, low, high


@cute.jit
def boxes(mX: cute.Tensor, box: cutlass.Constexpr, group: cutlass.Int32, at: cute.Coord):
    """(box, boxes along K) of a group's operand, from the element `at` on. mX: (rows, K), or (rows, K, groups)."""
    plane = mX[None, None, group] if cutlass.const_expr(cute.rank(mX) == 3) else mX
    return cute.local_tile(cute.domain_offset(at, plane), box, (0, None))


@cute.jit
def raster(index: cutlass.Int32, tiles_m: cutlass.Int32, tiles_n: cutlass.Int32, rows: cutlass.Constexpr):
    """(m, n) of a tile by its number: down `rows` tiles, then the next column, so that a wave is nearly square."""
    block, within = index // (rows * tiles_n), index % (rows * tiles_n)
    tall = cutlass.min(tiles_m - block * rows, rows)
    return block * rows + within % tall, within // tall
