"""A layout as a table of the indices that its coordinates map to, in CuTe's notation, swizzled or not."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from tensorladder.core.errors import UsageError
from tensorladder.core.layout import ComposedLayout, IntTuple, Layout, index_to_coordinate, parse
from tensorladder.core.swizzle import Swizzle
from tensorladder.draw.grid import Cell, Panel, Picture, check_size, heads

COLOURS, LONGEST = 8, 300
_COMPOSED = re.compile(r"(S\w*<[^>]*>)(?:o(-?\d{1,9}))?o(.+)")
_SWIZZLE = re.compile(r"(?:S|Sw|Swizzle)<(\d+),(\d+),(-?\d+)>")


@dataclass(frozen=True)
class Knobs:
    """layout: shape:stride, or a swizzle of one, as CuTe prints them."""

    layout: str = "(4,(2,4)):(2,(1,8))"


def parse_swizzle(text: str) -> Swizzle:
    """ "S<3,4,3>" as a swizzle."""
    found = _SWIZZLE.fullmatch(text.replace(" ", ""))
    if found is None:
        raise UsageError(f"not a swizzle: {text!r}; write S<bits,base,shift>, as in S<3,4,3>")
    bits, base, shift = map(int, found.groups())
    if max(bits, base, abs(shift)) > 32:
        raise UsageError(f"{text}: bits, base and shift of a swizzle are at most 32")
    return Swizzle(bits, base, shift)


def parse_plain(text: str) -> Layout:
    """A layout, of numbers and of a length that a picture can have."""
    if re.search(r"\d{10}", text) or len(text) > LONGEST:
        raise UsageError(f"layout {text[:40]}...: at most {LONGEST} characters, numbers of at most 9 digits")
    return parse(text)


def parse_layout(text: str) -> Layout | ComposedLayout:
    """A layout, or "S<3,3,3> o 0 o (8,64):(64,1)"."""
    found = _COMPOSED.fullmatch(re.sub(r"\s", "", text))
    if found is None:
        return parse_plain(text)
    swizzle, offset, plain = found.groups()
    return ComposedLayout(parse_swizzle(swizzle), int(offset or 0), parse_plain(plain))


def build(knobs: Knobs) -> Picture:
    """Rows are the first mode, columns the second; further modes are a panel each."""
    layout = parse_layout(knobs.layout)
    plain = layout.layout if isinstance(layout, ComposedLayout) else layout
    check_size(f"the layout {layout}", plain.size)
    index = layout.indices()
    index = index[None, :] if index.ndim == 1 else index
    tables = index.reshape(*index.shape[:2], -1, order="F")
    several = tables.shape[2] > 1
    panels = tuple(
        _panel(tables[:, :, k], plain, f"further modes at {_spell(k, plain)}" if several else "", k)
        for k in range(tables.shape[2])
    )
    distinct = int(np.unique(index).size)
    onto = f"{index.size} coordinates, {distinct} indices from {index.min()} to {index.max()}"
    notes = (onto + ("" if distinct == index.size else ": some coordinates share an index"),)
    facts = {"size": plain.size, "cosize": plain.cosize, "distinct": distinct, "shape": list(tables.shape)}
    what = f"layout {layout}"
    words = f"A table of {tables.shape[0]} rows (first mode) and {tables.shape[1]} columns (second mode): {onto}."
    legend = tuple((i, str(i)) for i in range(COLOURS))
    return Picture("layout", what, words, panels, COLOURS, legend, f"index modulo {COLOURS}", notes, facts)


def _spell(number: int, layout: Layout) -> str:
    """The coordinate of a panel in the modes from the third on."""
    shape = layout.shape[2:] if isinstance(layout.shape, tuple) else ()
    return _text(index_to_coordinate(number, shape[0] if len(shape) == 1 else shape))


def _text(coordinate: IntTuple) -> str:
    return str(coordinate).replace(" ", "")


def _panel(table: np.ndarray, layout: Layout, title: str, number: int) -> Panel:
    rows, columns = table.shape
    shapes = [mode.shape for mode in layout]
    cells = []
    for i, j in np.ndindex(rows, columns):
        value = int(table[i, j])
        inner = (j,) if len(shapes) == 1 else (i, j)
        spelt = ",".join(_text(index_to_coordinate(at, shape)) for at, shape in zip(inner, shapes))
        note = f"({spelt}) maps to {value}"
        cells.append(Cell(i, j, (str(value),), value % COLOURS, note, data={"index": value}))
    return Panel(title, rows, columns, tuple(cells), heads(rows), heads(columns), (number, 0))
