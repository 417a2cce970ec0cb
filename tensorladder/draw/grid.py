"""Pictures made of grids of cells: what all kinds of them hand over, as SVG and as a record for `--json`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tensorladder.core.errors import UsageError
from tensorladder.draw import svg

#: cells of a picture: a 64 x 256 accumulator can be drawn
MOST_CELLS = 1 << 14
PAD, GAP, LEAST = 16, 28, 22


@dataclass(frozen=True)
class Cell:
    """One place of a grid. lines: its label; colour: a number in the picture's palette, None for an empty place.

    note: what a pointer over it says; marked: with a bold frame; data: the numbers behind the label, for programs.
    """

    row: int
    column: int
    lines: tuple[str, ...]
    colour: int | None = None
    note: str = ""
    marked: bool = False
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Panel:
    """A grid under a title, with a head a row and a column. place: its (row, column) among the picture's panels."""

    title: str
    rows: int
    columns: int
    cells: tuple[Cell, ...]
    row_heads: tuple[str, ...]
    column_heads: tuple[str, ...]
    place: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Picture:
    """kind: its name in the catalogue; title: one line; description: what it says in words, for who cannot see it.

    colours: how many the palette has; legend: (colour, words), a strip of swatches where all words are numbers;
    notes: lines under the picture; facts: its numbers, for programs.
    """

    kind: str
    title: str
    description: str
    panels: tuple[Panel, ...]
    colours: int
    legend: tuple[tuple[int, str], ...]
    legend_title: str
    notes: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


def heads(count: int, prefix: str = "") -> tuple[str, ...]:
    """Numbers from 0 as heads."""
    return tuple(f"{prefix}{i}" for i in range(count))


def check_size(what: str, cells: int) -> None:
    """UsageError for what would be too large to be looked at."""
    if cells > MOST_CELLS:
        raise UsageError(f"{what} has {cells} cells, a picture at most {MOST_CELLS}: draw a part of it")


def record(picture: Picture) -> dict[str, Any]:
    """The picture's structure, for `--json`."""
    return {
        "kind": picture.kind,
        "title": picture.title,
        "description": picture.description,
        "facts": dict(picture.facts),
        "notes": list(picture.notes),
        "legend": [{"colour": colour, "text": words} for colour, words in picture.legend],
        "panels": [_panel_record(panel) for panel in picture.panels],
    }


def _panel_record(panel: Panel) -> dict[str, Any]:
    cells = [
        {"row": cell.row, "column": cell.column, "text": " ".join(cell.lines), "colour": cell.colour,
         "marked": cell.marked, **cell.data}
        for cell in panel.cells
    ]  # fmt: skip
    size = {"title": panel.title, "rows": panel.rows, "columns": panel.columns}
    return {**size, "row_heads": list(panel.row_heads), "column_heads": list(panel.column_heads), "cells": cells}


def render(picture: Picture) -> str:
    """The picture as SVG text."""
    palette = svg.wheel(picture.colours)
    size = _cell_size(picture.panels)
    lefts, tops, right, bottom = _places(picture.panels, size, PAD + 2 * svg.LINE)
    parts = [svg.text(PAD, PAD + svg.LINE, picture.title, style="bold")]
    for panel in picture.panels:
        parts += _panel(panel, lefts[panel.place[1]], tops[panel.place[0]], size, palette)
    legend, across, y = _legend(picture, palette, bottom)
    parts += legend
    for line in picture.notes:
        y += svg.LINE + 3
        parts.append(svg.text(PAD, y, line, style="pale"))
    words = [picture.title, *picture.notes]
    width = max(right, across, PAD + svg.CHARACTER * max(map(len, words))) + PAD
    return svg.document(width, y + PAD, picture.title, picture.description, parts)


def _cell_size(panels: Iterable[Panel]) -> tuple[float, float]:
    """One size for all cells of a picture, so that grids side by side line up."""
    cells = [cell for panel in panels for cell in panel.cells]
    longest = max((len(line) for cell in cells for line in cell.lines), default=1)
    lines = max((len(cell.lines) for cell in cells), default=1)
    return max(LEAST, longest * svg.CHARACTER + 6), max(LEAST, lines * svg.LINE + 8)


def _head_width(panel: Panel) -> float:
    return max((len(head) for head in panel.row_heads), default=0) * svg.CHARACTER + 6


def _over(panel: Panel) -> float:
    """Height of the title and the heads above the cells."""
    return (2 if panel.title else 1) * svg.LINE + 8


def _places(
    panels: tuple[Panel, ...], size: tuple[float, float], top: float
) -> tuple[list[float], list[float], float, float]:
    """Left edges of the columns of panels, top edges of their rows, and where all ends on the right and below."""
    widths = [0.0] * (1 + max(panel.place[1] for panel in panels))
    heights = [0.0] * (1 + max(panel.place[0] for panel in panels))
    for panel in panels:
        row, column = panel.place
        wide = max(_head_width(panel) + panel.columns * size[0], len(panel.title) * svg.CHARACTER)
        widths[column] = max(widths[column], wide)
        heights[row] = max(heights[row], _over(panel) + panel.rows * size[1])
    lefts = [PAD + sum(widths[:i]) + GAP * i for i in range(len(widths))]
    tops = [top + sum(heights[:i]) + GAP * i for i in range(len(heights))]
    return lefts, tops, lefts[-1] + widths[-1], tops[-1] + heights[-1]


def _panel(panel: Panel, left: float, top: float, size: tuple[float, float], palette: tuple[str, ...]) -> list[str]:
    width, height = size
    x0, y0 = left + _head_width(panel), top + _over(panel)
    parts = ["<g class='tl-panel'>", *([svg.text(left, top + svg.LINE, panel.title)] if panel.title else [])]
    for j, head in enumerate(panel.column_heads):
        parts.append(svg.text(x0 + (j + 0.5) * width, y0 - 4, head, "middle", "pale"))
    for i, head in enumerate(panel.row_heads):
        parts.append(svg.text(x0 - 5, y0 + (i + 0.5) * height + 4, head, "end", "pale"))
    # Frames of marked cells go over those of their neighbours.
    for cell in sorted(panel.cells, key=lambda cell: cell.marked):
        parts += _cell(cell, x0 + cell.column * width, y0 + cell.row * height, size, palette)
    return [*parts, "</g>"]


def _cell(cell: Cell, x: float, y: float, size: tuple[float, float], palette: tuple[str, ...]) -> list[str]:
    fill = svg.BLANK if cell.colour is None else palette[cell.colour % len(palette)]
    parts = [svg.area(x, y, *size, fill, "mark" if cell.marked else "cell", cell.note)]
    first = y + size[1] / 2 + 4 - (len(cell.lines) - 1) * svg.LINE / 2
    style = "pale" if cell.colour is None else "on"
    for number, line in enumerate(cell.lines):
        if line:
            parts.append(svg.text(x + size[0] / 2, first + number * svg.LINE, line, "middle", style))
    return parts


def _legend(picture: Picture, palette: tuple[str, ...], bottom: float) -> tuple[list[str], float, float]:
    """Swatches with their words, in rows; how far they reach, and where they end."""
    y = bottom + GAP
    parts, x, most = [svg.text(PAD, y, picture.legend_title, style="pale")], float(PAD), 0.0
    y += 7
    for colour, words in picture.legend:
        width = max(LEAST, len(words) * svg.CHARACTER + 6)
        if x + width > PAD + 32 * LEAST:
            x, y = float(PAD), y + LEAST
        parts.append(svg.area(x, y, width, LEAST - 4, palette[colour % len(palette)]))
        parts.append(svg.text(x + width / 2, y + 13, words, "middle", "on"))
        x += width
        most = max(most, x)
    return parts, most, y + LEAST
