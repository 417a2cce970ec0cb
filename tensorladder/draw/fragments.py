"""Thread-value maps: which thread holds which element of a tile, in which of its values.

For the tensor-core instructions whose fragments core.atoms has, for a tiled copy given by its threads and values, and
for any TV layout as CuTe prints it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from tensorladder.core import atoms
from tensorladder.core.errors import UsageError
from tensorladder.core.layout import Layout, make_layout, make_tv_layout, tv_to_mn
from tensorladder.draw.grid import Cell, Panel, Picture, check_size, heads
from tensorladder.draw.layouts import parse_plain

#: colours go by the thread's place in its warp
COLOURS = 32
LEGEND = tuple((i, str(i)) for i in range(COLOURS))
LEGEND_TITLE = "colour: thread modulo 32"
OPERANDS = {"a": ("m", "k"), "b": ("n", "k"), "c": ("m", "n")}


@dataclass(frozen=True)
class Mma:
    """atom: mma.sync's shape. bits: of an element of A and B (0: 16, or the shape's first). operand: a, b, c or all."""

    atom: str = "m16n8k16"
    bits: int = 0
    operand: str = "all"


@dataclass(frozen=True)
class Wgmma:
    """n: of wgmma.m64nNkK. operand: d (accumulators, any type) or a (A in registers). bits: of an element of A."""

    n: int = 32
    operand: str = "d"
    bits: int = 16


@dataclass(frozen=True)
class Ldmatrix:
    """count: x1, x2 or x4, matrices of 8 x 8 16-bit elements. trans: with .trans."""

    count: str = "x4"
    trans: bool = False


@dataclass(frozen=True)
class Tv:
    """layout: (thread, value) to m + M n, as CuTe prints TV layouts. tile: M x N."""

    layout: str = "((4,8),(2,2)):((32,1),(16,8))"
    tile: tuple[int, int] = (16, 8)


@dataclass(frozen=True)
class Copy:
    """threads: where each thread stands; values: the block that it copies, numbered in its order (make_layout_tv)."""

    threads: str = "(8,4):(4,1)"
    values: str = "(1,4):(4,1)"


def tv_panel(
    title: str, tv: Layout, tile: tuple[int, int], swapped: bool = False, place: tuple[int, int] = (0, 0),
    letter: str = "V", rows: tuple[str, ...] = (),
) -> Panel:  # fmt: skip
    """The tile, with its holders in each element. swapped: the second mode down instead of across.

    Several holders of an element are counted ("+1"), the first is named. rows: heads in place of numbers.
    """
    check_size(title, tile[0] * tile[1])
    where = tv_to_mn(tv, tile)
    held: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for t, v in np.ndindex(where.shape[:2]):
        held.setdefault((int(where[t, v, 0]), int(where[t, v, 1])), []).append((t, v))
    cells = []
    for i, j in np.ndindex(tile):
        row, column = (j, i) if swapped else (i, j)
        holders = held.get((i, j), [])
        if not holders:
            cells.append(Cell(row, column, ("",), note=f"({i},{j}): nobody", data={"thread": None, "value": None}))
            continue
        t, v = holders[0]
        more = f"+{len(holders) - 1}" if len(holders) > 1 else ""
        words = ", ".join(f"thread {t} {letter}{v}" for t, v in holders[:8])
        data = {"thread": t, "value": v, "holders": len(holders)}
        cells.append(Cell(row, column, (f"T{t}", f"{letter}{v}{more}"), t % COLOURS, f"({i},{j}): {words}", data=data))
    height, width = (tile[1], tile[0]) if swapped else tile
    return Panel(title, height, width, tuple(cells), rows or heads(height), heads(width), place)


def _picture(kind: str, title: str, words: str, panels: tuple[Panel, ...], notes: tuple[str, ...]) -> Picture:
    facts = {"threads": 1 + max((cell.data["thread"] for p in panels for cell in p.cells if cell.lines[0]), default=-1)}
    return Picture(kind, title, words, panels, COLOURS, LEGEND, LEGEND_TITLE, notes, facts)


def build_mma(knobs: Mma) -> Picture:
    """A on the left of C, B above it, as they are multiplied."""
    widths = [bits for name, bits in atoms.MMA_ATOMS if name == knobs.atom]
    if not widths:
        names = dict.fromkeys(name for name, _ in atoms.MMA_ATOMS)
        raise UsageError(f"no mma atom {knobs.atom!r}; one of {', '.join(names)}")
    bits = knobs.bits or (16 if 16 in widths else widths[0])
    atom = atoms.mma_atom(knobs.atom, bits)
    chosen = _choose(knobs.operand, tuple(OPERANDS), "mma")
    places = {"a": (1, 0), "b": (0, 1), "c": (1, 1)} if len(chosen) > 1 else dict.fromkeys(chosen, (0, 0))
    panels = []
    for name in chosen:
        tv, tile, (row, column) = getattr(atom, name), getattr(atom, f"{name}_tile"), OPERANDS[name]
        swapped = name == "b"
        axes = f"{column} down, {row} across" if swapped else f"{row} down, {column} across"
        title = f"{name.upper()} ({axes}) {tv}"
        panels.append(tv_panel(title, tv, tile, swapped, places[name]))
    which = ", ".join(name.upper() for name in chosen)
    title = f"mma.sync {atom.name}, {bits}-bit operands: {which}"
    words = "Which of a warp's 32 threads holds which element: T is the thread, V its value. "
    words += "; ".join(panel.title for panel in panels)
    return _picture("mma", title, words, tuple(panels), (f"source: {atom.source}",))


def _choose(asked: str, known: tuple[str, ...], kind: str) -> tuple[str, ...]:
    if asked == "all":
        return known
    chosen = tuple(asked)
    if not chosen or any(name not in known for name in chosen) or len(set(chosen)) < len(chosen):
        raise UsageError(f"{kind}: operand={asked} must be of {', '.join(known)}, or all")
    return chosen


def build_wgmma(knobs: Wgmma) -> Picture:
    """D's 64 x N, or A's 64 x 16 where it comes from registers."""
    if knobs.operand not in ("d", "a"):
        raise UsageError(f"wgmma: operand={knobs.operand} must be d (accumulators) or a (A in registers)")
    a, depth = atoms.wgmma_a(knobs.bits), 256 // knobs.bits
    tv, across, columns, what = {
        "d": (atoms.wgmma_d(knobs.n), "n", knobs.n, f"accumulators of m64n{knobs.n}"),
        "a": (a, "k", depth, f"A in registers of m64nNk{depth}, {knobs.bits}-bit"),
    }[knobs.operand]
    tile = (64, columns)
    panel = tv_panel(f"{knobs.operand.upper()} (m down, {across} across) {tv}", tv, tile)
    words = f"Which of a warpgroup's 128 threads holds which element of a {tile[0]} x {tile[1]} tile, 16 rows a warp."
    notes = ("warp w of the warpgroup holds rows 16 w to 16 w + 15",
             "source: PTX ISA, Register Fragments and Shared Memory Matrix Layouts of wgmma.mma_async")  # fmt: skip
    return _picture("wgmma", f"wgmma {what}", words, (panel,), notes)


def build_ldmatrix(knobs: Ldmatrix) -> Picture:
    """A panel a matrix; a row's head is the thread that gives its address, a cell who receives the element."""
    return _matrices("ldmatrix", "has", knobs)


def build_stmatrix(knobs: Ldmatrix) -> Picture:
    """The same map the other way: a cell names who gives the element."""
    return _matrices("stmatrix", "gives", knobs)


def _matrices(kind: str, verb: str, knobs: Ldmatrix) -> Picture:
    if not re.fullmatch(r"x?[124]", knobs.count):
        raise UsageError(f"{kind}: count={knobs.count} must be x1, x2 or x4")
    count = int(knobs.count.removeprefix("x"))
    one = atoms.LDMATRIX_TRANS if knobs.trans else atoms.LDMATRIX
    panels = []
    for i in range(count):
        owners = tuple(f"T{8 * i + row}" for row in range(8))
        panels.append(tv_panel(f"matrix {i}: register {i}", one, (8, 8), place=(0, i), letter="E", rows=owners))
    title = f"{kind}.x{count}{'.trans' if knobs.trans else ''}: 8 x 8 matrices of 16-bit elements"
    notes = (
        f"head of a row of 16 bytes: who gives its address; cell: who {verb} the element, in which half of a register",
    )
    return _picture(kind, title, f"{notes[0]}, E0 the lower.", tuple(panels), notes)


def build_tv(knobs: Tv) -> Picture:
    """Any TV layout over its tile."""
    tv = parse_plain(knobs.layout)
    if min(knobs.tile) < 1:
        raise UsageError(f"tv: tile={knobs.tile[0]}x{knobs.tile[1]} is empty")
    check_size("the tile", knobs.tile[0] * knobs.tile[1])
    check_size("the TV layout", tv.size)
    panel = tv_panel("first mode of the tile down, second across", tv, knobs.tile)
    words = f"Which thread holds which element of a {knobs.tile[0]} x {knobs.tile[1]} tile, by the layout {tv}."
    return _picture("tv", f"TV layout {tv} of a {knobs.tile[0]} x {knobs.tile[1]} tile", words, (panel,), ())


def _matrix(layout: Layout) -> Layout:
    """A layout of one mode as a column."""
    return layout if layout.rank > 1 else make_layout(layout, Layout(1, 0))


def build_copy(knobs: Copy) -> Picture:
    """A tiled copy's tile, each thread with its block."""
    threads, values = _matrix(parse_plain(knobs.threads)), _matrix(parse_plain(knobs.values))
    for name, layout in (("threads", threads), ("values", values)):
        if layout.rank > 2:
            raise UsageError(f"copy: {name}={layout} must have one or two modes")
        check_size("the copy", layout.size)
        if sorted(layout.indices().ravel().tolist()) != list(range(layout.size)):
            raise UsageError(f"copy: {name}={layout} must give each number once, from 0 to {layout.size - 1}")
    check_size("the copy", threads.size * values.size)
    tile, tv = make_tv_layout(threads, values)
    panel = tv_panel(f"tile {tile[0]} x {tile[1]}: {tv}", tv, tile)
    words = f"The {tile[0]} x {tile[1]} tile that threads {threads} copy, {values} each."
    return _picture("copy", f"tiled copy: threads {threads}, values {values}", words, (panel,), ())
