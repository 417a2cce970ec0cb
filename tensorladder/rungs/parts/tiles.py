"""In which order a persistent grid goes through the tiles of a product."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute


@cute.jit
def raster_tile(index: cutlass.Int32, tiles: cute.Shape, raster: cutlass.Constexpr):
    """(m, n, l) of a tile by its number, of `tiles` = (along M, along N, products).

    Down `raster` rows, then the next column, so that what runs at a time is nearly square; product by product.
    """
    product = index // (tiles[0] * tiles[1])
    index = index % (tiles[0] * tiles[1])
    band = index // (raster * tiles[1])
    within = index % (raster * tiles[1])
    rows = cutlass.min(tiles[0] - band * raster, raster)
    return band * raster + within % rows, within // rows, product


@cute.jit
def cluster_tile(
    index: cutlass.Int32, tiles: cute.Shape, raster: cutlass.Constexpr, cluster: cutlass.Constexpr, place: cute.Coord
):
    """(m, n, l) of a CTA's tile by its cluster's number, of `tiles` of clusters; place: the CTA's (m, n) in it."""
    m, n, product = raster_tile(index, tiles, raster)
    return m * cluster[0] + place[0], n * cluster[1] + place[1], product
