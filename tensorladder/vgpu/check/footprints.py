"""What launches accessed in global memory, as runs of bytes: read from the checker's shadow, compared and merged.

A run is a row (first byte, end, site, number of the operation); runs of one kind are sorted and do not overlap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tensorladder.vgpu.machine.native import checker

if TYPE_CHECKING:
    from tensorladder.vgpu.check.engine import Watch

Runs = np.ndarray
START, END, SITE, NUMBER = range(4)
_MOST = 1 << 16  # runs of one allocation, beyond which runs of different instructions are taken together

Extent = tuple[int, int]
Kind = tuple[bool, bool]
"""(writes, strong): strong accesses of the GPU's or a wider scope do not collide with each other."""
WRITE, STRONG_WRITE, READ, STRONG_READ = KINDS = ((True, False), (True, True), (False, False), (False, True))
#: kinds whose bytes an access of a kind stands for from now on: what collides with them, collides with it
COVERS = {
    WRITE: KINDS, STRONG_WRITE: (STRONG_WRITE, STRONG_READ), READ: (READ, STRONG_READ), STRONG_READ: (STRONG_READ,),
}  # fmt: skip
COLLIDES = {WRITE: KINDS, STRONG_WRITE: (WRITE, READ), READ: (WRITE, STRONG_WRITE), STRONG_READ: (WRITE,)}


def runs_of(starts: np.ndarray, ends: np.ndarray) -> Runs:
    """Runs of bytes of no particular instruction."""
    rows = np.zeros((len(starts), 4), np.int64)
    rows[:, START], rows[:, END] = starts, ends
    return rows


NOTHING = runs_of(np.empty(0), np.empty(0))


def footprint(watches: list[Watch]) -> dict[Kind, Runs]:
    """What a launch accessed, by kind; sites are its instructions' numbers."""
    found = dict.fromkeys(KINDS, NOTHING)
    for watch in watches:
        for number, kind in enumerate(KINDS):
            rows = [_scanned(row, number) for row in watch.global_rows().tolist() if row[2] and row[5]]
            for part in rows:
                found[kind] = laid_over(found[kind], part)
    return found


def _scanned(row: list[int], kind: int) -> Runs:
    start, _, cells, _, lo, hi = row
    most, any_site = 1 << 10, 0
    while True:
        out = np.empty((most, 4), np.int64)
        count = checker().call("tl_runs", cells, start & ~15, lo, hi, kind, out.ctypes.data, most, any_site)
        if count <= most:
            return out[:count].copy()
        any_site = int(count > _MOST)
        most = count


def common(a: Runs, b: Runs) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(row of a, row of b, first byte, end) of the bytes that are in both; those of b do not overlap."""
    first = np.searchsorted(b[:, END], a[:, START], "right")
    count = np.maximum(np.searchsorted(b[:, START], a[:, END], "left") - first, 0)
    i = np.repeat(np.arange(len(a)), count)
    j = np.arange(len(i)) - np.repeat(np.cumsum(count) - count, count) + np.repeat(first, count)
    return i, j, np.maximum(a[i, START], b[j, START]), np.minimum(a[i, END], b[j, END])


def without(runs: Runs, cover: Runs) -> Runs:
    """Runs less the bytes of others."""
    if not len(runs) or not len(cover) or cover[-1, END] <= runs[0, START] or cover[0, START] >= runs[-1, END]:
        return runs
    gaps = np.empty((len(cover) + 1, 2), np.int64)
    gaps[0, START], gaps[-1, END] = 0, np.iinfo(np.int64).max
    gaps[1:, START], gaps[:-1, END] = cover[:, END], cover[:, START]
    i, _, lo, hi = common(runs, gaps)
    kept = runs[i]
    kept[:, START], kept[:, END] = lo, hi
    return kept[hi > lo]


def laid_over(old: Runs, new: Runs) -> Runs:
    """Both, what both have as the new ones have it."""
    if not len(old) or not len(new):
        return new if len(new) else old
    rows = np.concatenate([without(old, new), new])
    return rows[np.argsort(rows[:, START], kind="stable")]


class Accessed:
    """What operations of one stream accessed, by kind: of each byte the last one. since: the first number kept."""

    def __init__(self) -> None:
        self.runs: dict[Kind, Runs] = dict.fromkeys(KINDS, NOTHING)

    def add(self, new: Mapping[Kind, Runs]) -> None:
        """A later operation's accesses."""
        for kind, runs in new.items():
            for covered in COVERS[kind]:
                if covered != kind:
                    self.runs[covered] = without(self.runs[covered], runs)
            self.runs[kind] = laid_over(self.runs[kind], runs)

    def forget(self, cover: Runs) -> None:
        """Bytes that are memory no more."""
        self.runs = {kind: without(runs, cover) for kind, runs in self.runs.items()}

    def collisions(self, new: Mapping[Kind, Runs], after: int) -> Iterator[tuple[Kind, Kind, np.ndarray, np.ndarray]]:
        """(kind of the new access, of an old one, rows (first byte, end, site, number) of the old, sites of the new) of
        what collides with operations whose number is larger than `after`."""
        for kind, runs in new.items():
            for other in COLLIDES[kind] if len(runs) else ():
                old = self.runs[other]
                if not len(old):
                    continue
                i, j, lo, hi = common(runs, old)
                late = old[j, NUMBER] > after
                if late.any():
                    rows = old[j[late]]
                    rows[:, START], rows[:, END] = lo[late], hi[late]
                    yield kind, other, rows, runs[i[late], SITE]


def footprint_of(reads: Sequence[Extent], writes: Sequence[Extent]) -> dict[Kind, Runs]:
    """The footprint of plain accesses of (address, size)."""
    found = {}
    for kind, extents in ((READ, reads), (WRITE, writes)):
        merged: list[list[int]] = []
        for start, size in sorted(extents):
            if merged and start <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], start + size)
            elif size:
                merged.append([start, start + size])
        if merged:
            found[kind] = runs_of(*np.array(merged, np.int64).T)
    return found
