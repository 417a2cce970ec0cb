"""A CTA's shared memory lasts until the CTA exits: what its peers in the cluster do there has to come before."""

from __future__ import annotations

from tensorladder.vgpu.check import layout as X
from tensorladder.vgpu.check.clocks import clock_of, known, site_of
from tensorladder.vgpu.check.shadow import at_place, found
from tensorladder.vgpu.machine.native import helper
from tensorladder.vgpu.machine.raw import fill_bytes, ld32, ld64, st32


@helper
def row_of(x, slot):
    """Of the cluster's warps, the (clock, instruction), i32, at which each was in a CTA's shared memory last."""
    return ld64(x + X.X_VISITS) + 8 * slot * ld64(x + X.X_WARPS) * ld64(x + X.X_SIZE)


@helper
def first_warp(x, slot):
    """The number of the cluster's first warp."""
    return (slot - slot % ld64(x + X.X_SIZE)) * ld64(x + X.X_WARPS)


@helper
def visit(x, n, slot, iid):
    """Warp n accesses shared memory of a CTA."""
    if n // ld64(x + X.X_WARPS) != slot:
        at = row_of(x, slot) + 8 * (n - first_warp(x, slot))
        st32(at, clock_of(known(x, n), n))
        st32(at + 4, iid)


@helper
def forget_visits(x, slot):
    """A CTA starts."""
    fill_bytes(row_of(x, slot), 0, 8 * ld64(x + X.X_WARPS) * ld64(x + X.X_SIZE))


@helper
def visits_over(x, slot):
    """A CTA ends: one of its warps has to know of its peers' last accesses."""
    warps = ld64(x + X.X_WARPS)
    for k in range(warps * ld64(x + X.X_SIZE)):
        clock = ld32(row_of(x, slot) + 8 * k)
        n = first_warp(x, slot) + k
        latest = 0
        for warp in range(warps):
            latest = max(latest, clock_of(known(x, slot * warps + warp), n))
        if clock > latest:
            at_place(x, n, 0xFFFFFFFF, X.SPACE_SHARED, slot, 0, 0)
            found(x, X.REMOTE_AFTER_EXIT, site_of(n, ld32(row_of(x, slot) + 8 * k + 4)), 0, 0, 0, 0, 0)
