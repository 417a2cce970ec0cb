"""Tensor maps in memory: changed by threads, read by TMA through a proxy of its own.

A change is seen after fence.proxy.tensormap::generic.release (tensormap.cp_fenceproxy is copy and release in one) and
an acquire of the map's address, before the copy that uses it (PTX ISA, "membar/fence", "tensormap.cp_fenceproxy").
"""

from __future__ import annotations

from tensorladder.vgpu.check import layout as X
from tensorladder.vgpu.check.clocks import before, clock_of, epoch_of, known, site_of, visible
from tensorladder.vgpu.check.fences import fence_between, keep_fence
from tensorladder.vgpu.check.shadow import at_place, found, range_row, shared_place, touch_global, touch_shared
from tensorladder.vgpu.machine.native import helper
from tensorladder.vgpu.machine.raw import ld32, ld64, st64, trailing_zeros

_BYTES = 128
_IGNORED = 64  # 16 bytes from here on mean nothing


@helper
def fence_map(x, n, releases, addresses, lanes):
    """fence.proxy.tensormap::generic: a release, or an acquire of the map at the lanes' address."""
    if releases or addresses == 0:
        keep_fence(x, X.FENCED_MAP_RELEASE, n, 0)
    if not releases:
        at = ld64(addresses + 8 * trailing_zeros(lanes)) if addresses != 0 else 0
        keep_fence(x, X.FENCED_MAP_ACQUIRE, n, at)


@helper
def judge_map(x, n, lane, address, cell, v, site):
    """A cell of a tensor map whose last write the tensor map proxy has to see."""
    w = ld64(cell)
    if w == 0 or w & X.EPOCH_ASYNC or not before(x, v, w, 0):  # not even ordered: that is another finding
        return
    if w & X.EPOCH_MAP == 0 and not fence_between(x, X.FENCED_MAP_RELEASE, v, w, 0):
        code = X.MAP_NOT_RELEASED
    elif not fence_between(x, X.FENCED_MAP_ACQUIRE, v, w, address):
        code = X.MAP_NOT_ACQUIRED
    else:
        return
    found(x, code, site, 0, ld32(cell + X.CELL_SITES), w, 0, 0)


@helper
def use_map(x, n, lane, m, v, p, site):
    """A tensor copy reads the map at a host address."""
    row = range_row(x, m)
    if row == 0 or ld64(row + 16) == 0:
        return
    touch_global(x, n, 1 << lane, m, _BYTES, 0, v, p, epoch_of(n, clock_of(v, n), lane, 0), site)
    at_place(x, n, 1 << lane, X.SPACE_GLOBAL, ld64(row), m - ld64(row), m - ld64(row) + _BYTES)
    first = ld64(row + 16) + X.CELL * ((m - (ld64(row) & ~15)) >> 4)
    for g in range(_BYTES // 16):
        cell = first + X.CELL * g
        if ld64(cell) >= 0:
            judge_map(x, n, lane, m, cell, v, site)
            continue
        block = ld64(cell + X.CELL_READ)
        step = 4 if ld64(cell + X.CELL_READ + 8) == X.LEVEL_WORDS else 1
        for k in range(0, 16, step):
            judge_map(x, n, lane, m, block + X.CELL * k, v, site)


@helper
def on_map(x, n, dst, src, part, lanes, iid):
    """CHECK_MAP: a tensor map in memory is changed, by one lane."""
    size = part & 0xFFFFFFFF
    at = part >> 32
    v = known(x, n)
    p = visible(x, n)
    lane = trailing_zeros(lanes)
    epoch = epoch_of(n, clock_of(v, n), lane, X.EPOCH_MAP if src != 0 else 0)
    place = shared_place(x, dst)
    lo = place & 0xFFFFFFFF
    if place >= 0:
        touch_shared(x, n, lanes, place >> 32, lo, lo + size, 1, v, p, epoch, site_of(n, iid))
    else:
        touch_global(x, n, lanes, dst, size, 1, v, p, epoch, site_of(n, iid))
    if src != 0:
        place = shared_place(x, src)
        lo = place & 0xFFFFFFFF
        if place >= 0:
            st64(x + X.X_CARRIES, 1 if at & -16 == _IGNORED else 0)  # encoders leave it out
            touch_shared(x, n, lanes, place >> 32, lo, lo + size, 0, v, p, epoch, site_of(n, iid))
            st64(x + X.X_CARRIES, 0)
