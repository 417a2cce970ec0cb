"""The shadow of an allocation, read as runs of bytes by kind of access (footprints.py)."""

from __future__ import annotations

from tensorladder.vgpu.check import layout as X
from tensorladder.vgpu.machine.native import export, helper
from tensorladder.vgpu.machine.raw import ld32, ld64, st64

_ROW = 32


@helper
def epoch_at(cell, kind):
    """Epoch of a cell's access of a kind (0 weak write, 1 strong write, 2 weak read, 3 strong read), 0: none."""
    for k in range(1 if kind < 2 else 3):
        at = cell + (X.CELL_WRITE if kind < 2 else X.CELL_READ + 8 * k)
        epoch = ld64(at)
        strong = 1 if epoch & X.EPOCH_STRONG != 0 and epoch & (X.EPOCH_CTA | X.EPOCH_CLUSTER) == 0 else 0
        if epoch != 0 and strong == kind & 1:
            return ((ld32(cell + X.CELL_SITES + 4 * (k if kind < 2 else k + 1)) & 0xFFFFF) << 1) | 1
    return 0


@helper
def extend(out, count, most, start, end, site, any_site):
    """Add bytes to the last run where they go on with it, else as a new one; gives the number of runs."""
    last = out + _ROW * (count - 1)
    if count != 0 and count <= most and ld64(last + 8) == start and (any_site != 0 or ld64(last + 16) == site):
        st64(last + 8, end)
        return count
    if count < most:
        st64(last + _ROW, start)
        st64(last + _ROW + 8, end)
        st64(last + _ROW + 16, site)
        st64(last + _ROW + 24, 0)
    return count + 1


@export
def tl_runs(cells, base, lo, hi, kind, out, most, any_site):
    """Runs of a kind in the cells of bytes [lo, hi) from base on; gives how many there are, of which `most` fit."""
    count = 0
    for g in range(lo >> 4, ((hi - 1) >> 4) + 1):
        cell = cells + X.CELL * g
        at = base + 16 * g
        if ld64(cell) >= 0:
            site = epoch_at(cell, kind)
            if site != 0:
                count = extend(out, count, most, at, at + 16, site >> 1, any_site)
        else:
            block = ld64(cell + X.CELL_READ)
            step = 4 if ld64(cell + X.CELL_READ + 8) == X.LEVEL_WORDS else 1
            for k in range(0, 16, step):
                site = epoch_at(block + X.CELL * k, kind)
                if site != 0:
                    count = extend(out, count, most, at + k, at + k + step, site >> 1, any_site)
    return count
