"""Loads, stores and atomics of a warp, in shared and global memory."""

from __future__ import annotations

from tensorladder.vgpu.check import layout as X
from tensorladder.vgpu.check.advice import count_cost
from tensorladder.vgpu.check.alike import keep_values
from tensorladder.vgpu.check.clocks import clock_of, epoch_of, known, record_of, site_of, visible
from tensorladder.vgpu.check.exits import visit
from tensorladder.vgpu.check.lanes import among_lanes, lanes_release, lanes_waited
from tensorladder.vgpu.check.order import synchronise
from tensorladder.vgpu.check.shadow import shared_place, touch_global, touch_shared
from tensorladder.vgpu.check.values import keep_undefined
from tensorladder.vgpu.check.widths import reads
from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.machine.hooks import (
    ACCESS_ACQUIRE,
    ACCESS_ATOMIC,
    ACCESS_EXCHANGE,
    ACCESS_RELEASE,
    ACCESS_SCOPE,
    ACCESS_SPACE,
    ACCESS_STRONG,
    ACCESS_WRITE,
    SCOPE_CLUSTER,
    SCOPE_CTA,
)
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


@helper
def flags_of(what):
    """EPOCH_* of an access."""
    if what & ACCESS_STRONG == 0:
        return 0
    scope = what >> ACCESS_SCOPE & 3
    if scope == SCOPE_CTA:
        return X.EPOCH_STRONG | X.EPOCH_CTA
    return X.EPOCH_STRONG | (X.EPOCH_CLUSTER if scope == SCOPE_CLUSTER else 0)


@helper
def on_access(x, w, n, addresses, size, what, lanes, iid):
    """CHECK_ACCESS."""
    if what >> ACCESS_SPACE & 3 == L.SPACE_LOCAL:
        return
    if ld64(x + X.X_ADVICE) != 0:
        count_cost(x, addresses, lanes, size, iid)
    write = 1 if what & 15 != 0 else 0
    if write != 0:
        z = record_of(x, n)
        st64(z + X.Z_DIRTY, ld64(z + X.Z_DIRTY) | lanes)
    sync = what & ACCESS_STRONG != 0 and popcount(lanes) <= _MOST_SYNC
    if sync and what & (15 | ACCESS_ACQUIRE) != ACCESS_WRITE:
        synchronise(x, n, addresses, lanes, what & ~15, iid)
    if sync and what & 15 != ACCESS_WRITE:
        lanes_waited(x, n, lanes, ld64(w + L.W_LIVE))
    among_lanes(x, w, n, addresses, lanes, size, what, write, iid)
    if ld64(x + X.X_CROSS) != 0:
        reads(x, n)
    if what & (15 | ACCESS_EXCHANGE) == ACCESS_ATOMIC:  # works on what is there
        keep_undefined(x, addresses, lanes, size)
        st64(x + X.X_CARRIES, 1)
    each_lane(x, n, addresses, lanes, size, write, flags_of(what), iid)
    if what & (15 | ACCESS_STRONG) == ACCESS_WRITE:
        keep_values(x, w, addresses, lanes, size)
    st64(x + X.X_CARRIES, 0)
    st64(x + X.X_DOUBT, 0)
    if sync and write != 0:
        if what & ACCESS_RELEASE:
            lanes_release(x, w, n, lanes, iid)
        synchronise(x, n, addresses, lanes, (what & ~15) | ACCESS_WRITE, iid)
