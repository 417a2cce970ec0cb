"""Conflicts in global memory that no one worker sees: what two shadows hold, compared.

Of CTAs that different workers ran, and of launches that overlap.

Clusters of a launch that run in parallel cannot synchronise, so any two that touch the same bytes, one of them writing,
collide, but for atomics.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from tensorladder.vgpu.check import layout as X
from tensorladder.vgpu.check.engine import Watch

if TYPE_CHECKING:
    from tensorladder.vgpu.machine.execution import Run

_WORDS = X.CELL // 8
_SITES = X.CELL_SITES // 4
_VALUE = X.CELL_VALUE // 8
#: split cells that are compared byte by byte in one allocation
_MOST_SPLIT = 4096


@dataclass(frozen=True)
class Conflict:
    """Two accesses of different workers: (watch, epoch, site) each, and the bytes from the allocation's first."""

    code: int
    now: tuple[Watch, int, int]
    other: tuple[Watch, int, int]
    start: int
    lo: int
    hi: int


def _cells(address: int, count: int) -> np.ndarray:
    """Cells at an address as 64-bit words."""
    return np.ctypeslib.as_array((ctypes.c_int64 * (_WORDS * count)).from_address(address)).reshape(count, _WORDS)


def conflicts(watches: Sequence[Watch]) -> Iterator[Conflict]:
    """Conflicts between the units of one launch."""
    for one, two in combinations(watches, 2):
        for a, b in zip(one.global_rows(), two.global_rows(), strict=True):
            start, end, first = (int(v) for v in a[:3])
            second = int(b[2])
            if first and second:
                count = (end - (start & ~15)) // 16 + 1
                yield from _compared(one, two, start, _cells(first, count), _cells(second, count))


def overlaps(watches: Sequence[Watch], runs: Sequence[Run]) -> Iterator[Conflict]:
    """Conflicts between launches of a stream that overlap: what each does before its griddepcontrol.wait, with all that
    the launches before it do; griddepcontrol.launch_dependents hands on no memory (PTX ISA, "griddepcontrol").
    """
    for k, later in enumerate(runs):
        for one in (w for w in watches if w.run is later):
            for two in (w for w in watches if w.run in runs[:k]):
                cells = {int(row[0]): int(row[2]) for row in two.global_rows()}
                for start, end, _, early, *_ in one.global_rows().tolist():
                    if early and cells.get(start):
                        count = (end - (start & ~15)) // 16 + 1
                        yield from _compared(one, two, start, _cells(early, count), _cells(cells[start], count))


def _compared(one: Watch, two: Watch, start: int, a: np.ndarray, b: np.ndarray) -> Iterator[Conflict]:
    written = [np.flatnonzero(cells[:, 0]) for cells in (a, b)]
    seen: set[tuple[int, int, int]] = set()
    for places, other in ((written[0], b), (written[1], a)):
        touched = places[(other[places, 0] != 0) | (other[places, 1] != 0)]
        for g in touched[:_MOST_SPLIT] if len(touched) else ():
            for conflict in _in_cell(one, two, start, int(g), a[g], b[g]):
                key = (conflict.code, conflict.now[2] & 0xFFFFF, conflict.other[2] & 0xFFFFF)
                if key not in seen:
                    seen.add(key)
                    yield conflict


def _in_cell(one: Watch, two: Watch, start: int, g: int, a: np.ndarray, b: np.ndarray) -> Iterator[Conflict]:
    """Conflicts in one cell, or in the parts of a split one."""
    base = 16 * g - (start & 15)
    if a[0] >= 0 and b[0] >= 0:
        yield from _pair(one, two, start, base, base + 16, a, b)
        return
    parts = [_parts(cell) for cell in (a, b)]
    for k in range(16):
        yield from _pair(one, two, start, base + k, base + k + 1, parts[0][k], parts[1][k])


def _parts(cell: np.ndarray) -> list[np.ndarray]:
    """A cell's bytes as cells."""
    if cell[0] >= 0:
        return [cell] * 16
    block = _cells(int(cell[1]), 16)
    words = int(cell[2]) == X.LEVEL_WORDS
    return [block[k & ~3 if words else k] for k in range(16)]


def _strong(a: int, b: int) -> bool:
    """Whether two accesses of different clusters are morally strong."""
    return bool(a & b & X.EPOCH_STRONG) and not (a | b) & (X.EPOCH_CTA | X.EPOCH_CLUSTER)


def _pair(one: Watch, two: Watch, start: int, lo: int, hi: int, a: np.ndarray, b: np.ndarray) -> Iterator[Conflict]:
    def access(watch: Watch, cell: np.ndarray, which: int) -> tuple[Watch, int, int]:
        site = int(cell.view(np.uint32)[_SITES + which])
        return watch, int(cell[which]), site

    wa, wb = int(a[0]), int(b[0])
    if wa and wb and not _strong(wa, wb):
        alike = a[_VALUE] == b[_VALUE] != 0
        yield Conflict(X.RACE_SAME if alike else X.RACE_WW, access(one, a, 0), access(two, b, 0), start, lo, hi)
    for k in (1, 2, 3):
        if wa and b[k] and not _strong(wa, int(b[k])):
            yield Conflict(X.RACE_WR, access(two, b, k), access(one, a, 0), start, lo, hi)
        if wb and a[k] and not _strong(wb, int(a[k])):
            yield Conflict(X.RACE_WR, access(one, a, k), access(two, b, 0), start, lo, hi)
