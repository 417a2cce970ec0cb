"""In which order a persistent grid goes through the tiles of a product, wave by wave, and what a wave reads.

The order is that of the persistent rungs (rungs/parts/tiles.py): down `raster` rows, then the next column.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tensorladder.core.errors import UsageError
from tensorladder.draw.grid import Cell, Panel, Picture, check_size, heads

COLOURS = 8


@dataclass(frozen=True)
class Knobs:
    """tiles: along M x along N. raster: rows of (clusters') tiles before the next column. ctas: that run at a time.

    cluster: CTAs along M x along N that take neighbouring tiles.
    """

    tiles: tuple[int, int] = (16, 16)
    raster: int = 8
    ctas: int = 132
    cluster: tuple[int, int] = (1, 1)


def order(tiles: tuple[int, int], raster: int) -> npt.NDArray[np.int64]:
    """The number of each tile: an array of `tiles`."""
    number = np.arange(tiles[0] * tiles[1])
    band, within = number // (raster * tiles[1]), number % (raster * tiles[1])
    rows = np.minimum(tiles[0] - band * raster, raster)
    out = np.empty(tiles, np.int64)
    out[band * raster + within % rows, within // rows] = number
    return out


def build(knobs: Knobs) -> Picture:
    """Tiles with the number of their cluster, coloured by wave; a line a wave with what it reads."""
    _check(knobs)
    (down, across), (cm, cn) = knobs.tiles, knobs.cluster
    numbers = order((down // cm, across // cn), knobs.raster)
    at_a_time = knobs.ctas // (cm * cn)
    every = np.kron(numbers, np.ones((cm, cn), np.int64))
    cells = []
    for m, n in np.ndindex(down, across):
        number = int(every[m, n])
        wave, first = number // at_a_time, number % at_a_time
        cta = first * cm * cn + m % cm + cm * (n % cn)
        note = f"tile ({m},{n}): number {number}, wave {wave}, CTA {cta}"
        data = {"number": number, "wave": wave, "cta": cta}
        cells.append(Cell(m, n, (str(number),), wave % COLOURS, note, data=data))
    waves = -(-numbers.size // at_a_time)
    reads = [_reads(every // at_a_time == wave) for wave in range(waves)]
    title = f"raster of {down} x {across} tiles, down {knobs.raster} rows then the next column, {knobs.ctas} CTAs"
    title += f" in clusters of {cm} x {cn}" if cm * cn > 1 else ""
    notes = tuple(
        f"wave {i}: {count} of C's tiles from {rows} of A's and {columns} of B's a step along K, "
        f"{count / (rows + columns):.1f} for each"
        for i, (count, rows, columns) in enumerate(reads[:COLOURS])
    )
    notes += (f"and {waves - COLOURS} more waves",) if waves > COLOURS else ()
    legend = tuple((i, f"wave {i}") for i in range(min(waves, COLOURS)))
    words = "Tiles of C, M down and N across, each with its number and coloured by the wave that runs it. "
    words += "; ".join(notes) + "."
    facts = {"waves": [{"tiles": c, "a": a, "b": b} for c, a, b in reads]}
    panel = Panel("tiles of C, M down, N across", down, across, tuple(cells), heads(down), heads(across))
    return Picture("raster", title, words, (panel,), COLOURS, legend, _legend_title(waves), notes, facts)


def _legend_title(waves: int) -> str:
    return "colour: the wave" + (f", modulo {COLOURS}" if waves > COLOURS else "")


def _reads(mine: npt.NDArray[np.bool_]) -> tuple[int, int, int]:
    """Tiles of a wave; tiles of A and of B that they need, of each step along K."""
    return int(mine.sum()), int(mine.any(1).sum()), int(mine.any(0).sum())


def _check(knobs: Knobs) -> None:
    (down, across), (cm, cn) = knobs.tiles, knobs.cluster
    if min(down, across, cm, cn, knobs.raster, knobs.ctas) < 1:
        raise UsageError("raster: tiles, raster, ctas and cluster are at least 1")
    check_size("the raster", down * across)
    if down % cm or across % cn:
        raise UsageError(f"raster: tiles={down}x{across} must be whole clusters of cluster={cm}x{cn}")
    if knobs.ctas % (cm * cn):
        raise UsageError(f"raster: ctas={knobs.ctas} must be a multiple of a cluster's {cm * cn} CTAs")
