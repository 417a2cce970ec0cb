"""Tensor memory: what tcgen05.ld gives each thread of a warp, and where tcgen05.mma puts its accumulators."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from tensorladder.core import atoms
from tensorladder.core.errors import UsageError
from tensorladder.draw.fragments import COLOURS, LEGEND, LEGEND_TITLE, tv_panel
from tensorladder.draw.grid import Cell, Panel, Picture

LANES, GROUP = 128, 16  # lanes of tensor memory; lanes of a cell


@dataclass(frozen=True)
class Load:
    """load: shape and count of tcgen05.ld or .st, as PTX writes them. half: of 16x32bx2, its offset in columns."""

    load: str = "16x256b.x1"
    half: int | None = None


@dataclass(frozen=True)
class Accumulator:
    """shape: M x N of the instruction. cta_group: 1, or 2 for a CTA pair."""

    shape: tuple[int, int] = (256, 256)
    cta_group: int = 2


def build_load(knobs: Load) -> Picture:
    """Lanes down, columns across, with thread and register in each 32-bit cell."""
    found = re.fullmatch(r"(\w+)\.x(\d{1,3})", knobs.load)
    if found is None:
        raise UsageError(f"tmem: load={knobs.load} must be a shape and a count, as in 16x256b.x2")
    shape, count = found[1], int(found[2])
    if knobs.half is not None and shape != "16x32bx2":
        raise UsageError(f"tmem: half={knobs.half} is for 16x32bx2")
    if knobs.half is not None and knobs.half > 512:
        raise UsageError(f"tmem: half={knobs.half}: tensor memory has 512 columns")
    atom = atoms.tmem_atom(shape, count, knobs.half)
    panel = tv_panel("lanes down, columns across, from the address on", atom.tv, (atom.lanes, atom.columns), letter="R")
    where = "its 32 lanes" if atom.lanes == 32 else "lanes 0-15 or 16-31 of its 32"
    title = f"tcgen05.ld.{atom.name}: {atom.registers} registers a thread"
    words = f"A warp reads {where}, {atom.columns} columns: T is the thread, R the register that it finds the word in."
    notes = (f"a warp reaches {where} (warp w: from lane 32 (w mod 4) on); tcgen05.st is the same map",
             f"(thread, register) to lane + {atom.lanes} column: {atom.tv}")  # fmt: skip
    facts = {"lanes": atom.lanes, "columns": atom.columns, "registers": atom.registers}
    return Picture("tmem", title, words, (panel,), COLOURS, LEGEND, LEGEND_TITLE, notes, facts)


def build_accumulator(knobs: Accumulator) -> Picture:
    """A panel a CTA; a cell is 16 lanes by an eighth or so of the columns."""
    m, n = knobs.shape
    d = atoms.accumulator(m, n, knobs.cta_group)
    used = n // 2 if d.halves else n
    step = next(width for width in (32, 16, 8) if used % width == 0)
    panels = tuple(_cta(d, cta, used, step) for cta in range(d.ctas))
    blocks = range(m // GROUP)
    legend = tuple((i, f"{GROUP * i}-{GROUP * i + GROUP - 1}") for i in blocks)
    title = f"accumulator of tcgen05.mma {m} x {n}, cta_group::{d.ctas}: {used} columns of tensor memory a CTA"
    words = f"Lanes down in groups of {GROUP}, columns in groups of {step}: which rows and columns of D lie there."
    facts = {"rows": d.rows, "tmem_columns": used, "ctas": d.ctas}
    return Picture("accumulator", title, words, panels, len(blocks), legend, "rows of D", _notes(d, m, n), facts)


def _notes(d: atoms.Accumulator, m: int, n: int) -> tuple[str, ...]:
    if d.ctas == 1:
        return ("M = 64: 16 rows in the lower half of each warp's lanes",) if d.spread else ("a lane a row",)
    lines = [f"CTA c: rows {d.rows} c to {d.rows} c + {d.rows - 1} of A, and columns {n // 2} c to {n // 2} c + "
             f"{n // 2 - 1} of B, from its own shared memory"]  # fmt: skip
    if d.halves:
        lines.append("M = 128 of a pair: the second half of N lies in lanes 64-127")
    return tuple(lines)


def _cta(d: atoms.Accumulator, cta: int, used: int, step: int) -> Panel:
    cells: dict[tuple[int, int], Cell] = {}
    for first in range(0, d.columns, step):
        for top in range(0, d.rows, GROUP):
            lane, column, row = d.lane(top, first), d.column(first), cta * d.rows + top
            lines = (f"m{row}-{row + GROUP - 1}", f"n{first}-{first + step - 1}")
            at = (lane // GROUP, column // step)
            note = f"lanes {lane}-{lane + GROUP - 1}, columns {column}-{column + step - 1}: rows {lines[0]}, {lines[1]}"
            data = {"lane": lane, "tmem_column": column, "m": row, "n": first}
            cells[at] = Cell(at[0], at[1], lines, row // GROUP, note, data=data)
    shape = (LANES // GROUP, used // step)
    for row, column in np.ndindex(shape):
        data = {"lane": GROUP * row, "tmem_column": step * column}
        cells.setdefault((row, column), Cell(row, column, ("",), note="not used", data=data))
    row_heads = tuple(f"lanes {GROUP * i}-{GROUP * i + GROUP - 1}" for i in range(shape[0]))
    title = f"CTA {cta}" if d.ctas > 1 else "the CTA"
    ordered = tuple(cells[at] for at in sorted(cells))
    return Panel(title, *shape, ordered, row_heads, tuple(f"col {step * j}" for j in range(shape[1])), (0, cta))
