"""Loads, stores and atomics of a warp: shared and global memory, and order that is found through memory itself."""

from __future__ import annotations

from tensorladder.vgpu.check import layout as X
from tensorladder.vgpu.check.advice import count_cost
from tensorladder.vgpu.check.clocks import acquire_from as acquire
from tensorladder.vgpu.check.clocks import (
    clear,
    clock_of,
    epoch_of,
    fenced,
    join,
    known,
    record_of,
    release_to,
    site_of,
    tick,
    visible,
)
from tensorladder.vgpu.check.exits import visit
from tensorladder.vgpu.check.shadow import shared_place, touch_global, touch_shared
from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.machine.hooks import ACCESS_ACQUIRE, ACCESS_RELEASE, ACCESS_STRONG, ACCESS_WRITE
from tensorladder.vgpu.machine.native import helper
from tensorladder.vgpu.machine.raw import ld64, popcount, st64, trailing_zeros

#: lanes of one strong access beyond which it is taken for arithmetic (a histogram), not for synchronisation
_MOST_SYNC = 4


@helper
def run_of_bytes(x, n, lanes, lo, size, write, v, p, epoch, site):
    """An access of consecutive bytes at a host address."""
    place = shared_place(x, lo)
    if place >= 0:
        start = place & 0xFFFFFFFF
        visit(x, n, place >> 32, site & 0xFFFFF)
        touch_shared(x, n, lanes, place >> 32, start, start + size, write, v, p, epoch, site)
    else:
        touch_global(x, n, lanes, lo, size, write, v, p, epoch, site)


@helper
def each_lane(x, n, addresses, lanes, size, write, flags, iid):
    """The lanes' accesses, neighbouring ones together."""
    v = known(x, n)
    p = visible(x, n)
    clock = clock_of(v, n)
    site = site_of(n, iid)
    first = trailing_zeros(lanes)
    lo = ld64(addresses + 8 * first)
    hi = lo + size
    lane = first
    members = 1 << first
    left = lanes & (lanes - 1)
    while left != 0:
        k = trailing_zeros(left)
        left &= left - 1
        at = ld64(addresses + 8 * k)
        if at == hi:
            hi += size
        elif at < lo or at + size > hi:
            run_of_bytes(x, n, members, lo, hi - lo, write, v, p, epoch_of(n, clock, lane, flags), site)
            lo = at
            hi = at + size
            lane = k
            members = 0
        members |= 1 << k
    run_of_bytes(x, n, members, lo, hi - lo, write, v, p, epoch_of(n, clock, lane, flags), site)


# ---------------------------------------------------------------- order through memory
@helper
def sync_at(x, address):
    """The clocks (V, P) of an address that synchronises; when there are too many, addresses share them."""
    table = ld64(x + X.X_SYNC)
    slot = (address * 0x9E3779B1 >> 4) & (X.SYNC_SLOTS - 1)
    while ld64(table + 16 * slot) != 0 and ld64(table + 16 * slot) != address:
        slot = (slot + 1) & (X.SYNC_SLOTS - 1)
    if ld64(table + 16 * slot) == 0:
        used = ld64(x + X.X_SYNC_USED)
        if used >= X.SYNC_MOST:
            return ld64(x + X.X_SYNC_CLOCKS)
        st64(x + X.X_SYNC_USED, used + 1)
        st64(table + 16 * slot, address)
        st64(table + 16 * slot + 8, used)
        clear(x, ld64(x + X.X_SYNC_CLOCKS) + used * 2 * ld64(x + X.X_CLOCK_BYTES))
    return ld64(x + X.X_SYNC_CLOCKS) + ld64(table + 16 * slot + 8) * 2 * ld64(x + X.X_CLOCK_BYTES)


@helper
def synchronise(x, n, addresses, lanes, what):
    """A strong access publishes what a release or a fence before it covers, and learns what others published there.

    Relaxed reads are taken for acquires: fences after them are often left to a barrier that follows.
    """
    last = 0
    released = False
    while lanes != 0:
        lane = trailing_zeros(lanes)
        lanes &= lanes - 1
        address = ld64(addresses + 8 * lane)
        if address == last:
            continue
        last = address
        at = sync_at(x, address)
        if what & 15 != ACCESS_WRITE:
            acquire(x, n, at)
        if what & 15 != 0:
            released = True
            if what & ACCESS_RELEASE:
                release_to(x, n, at)
            else:
                join(x, at, fenced(x, n))
                join(x, at + ld64(x + X.X_CLOCK_BYTES), fenced(x, n) + ld64(x + X.X_CLOCK_BYTES))
    if released:
        tick(x, n)


@helper
def on_access(x, n, addresses, size, what, lanes, iid):
    """CHECK_ACCESS."""
    if what >> 8 == L.SPACE_LOCAL:
        return
    if ld64(x + X.X_ADVICE) != 0:
        count_cost(x, addresses, lanes, size, iid)
    write = 1 if what & 15 != 0 else 0
    flags = X.EPOCH_STRONG if what & ACCESS_STRONG else 0
    if write != 0:
        z = record_of(x, n)
        st64(z + X.Z_DIRTY, ld64(z + X.Z_DIRTY) | lanes)
    sync = what & ACCESS_STRONG != 0 and popcount(lanes) <= _MOST_SYNC
    if sync and what & (15 | ACCESS_ACQUIRE) != ACCESS_WRITE:
        synchronise(x, n, addresses, lanes, (what & ~15) | 0)
    each_lane(x, n, addresses, lanes, size, write, flags, iid)
    if sync and write != 0:
        synchronise(x, n, addresses, lanes, (what & ~15) | ACCESS_WRITE)
