"""A CTA's shared memory lasts until the CTA exits: what its peers in the cluster do there has to come before, and what
copies to them read.
"""

from __future__ import annotations

from tensorladder.vgpu.check import layout as X
from tensorladder.vgpu.check.clocks import clock_of, known, site_of
from tensorladder.vgpu.check.executed import executed
from tensorladder.vgpu.check.shadow import at_place, found
from tensorladder.vgpu.machine.native import helper
from tensorladder.vgpu.machine.raw import fill_bytes, ld32, ld64, st32, st64


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


# ---------------------------------------------------------------- copies to peers
@helper
def sent_from(x, slot):
    """Copies from a slot's shared memory: how many mbarriers they report to, then SENT_*."""
    return ld64(x + X.X_SENT) + slot * X.SENT_BYTES


@helper
def send(x, slot, epoch, site):
    """A copy reads a slot's shared memory until a phase of its mbarrier is complete (epoch)."""
    sent = sent_from(x, slot)
    component = (epoch >> 48) - 1
    count = ld64(sent)
    k = 0
    while k < min(count, X.SENT_MOST) and ld64(sent + 8 + X.SENT * k + X.SENT_COMPONENT) != component:
        k += 1
    if k == count or k == X.SENT_MOST:
        k = count % X.SENT_MOST
        st64(sent, count + 1)
    at = sent + 8 + X.SENT * k
    st64(at + X.SENT_COMPONENT, component)
    st64(at + X.SENT_CLOCK, (epoch >> 16) & 0xFFFFFFFF)
    st64(at + X.SENT_SITE, site)


@helper
def sent_over(x, slot):
    """A CTA ends: one of its warps has to come after a wait for the phases that its copies complete."""
    warps = ld64(x + X.X_WARPS)
    sent = sent_from(x, slot)
    for k in range(min(ld64(sent), X.SENT_MOST)):
        at = sent + 8 + X.SENT * k
        latest = 0
        for warp in range(warps):
            latest = max(latest, clock_of(executed(x, slot * warps + warp), ld64(at + X.SENT_COMPONENT)))
        if ld64(at + X.SENT_CLOCK) > latest:
            site = ld64(at + X.SENT_SITE)
            at_place(x, (site >> 20) % (warps * ld64(x + X.X_SLOTS)), 0xFFFFFFFF, X.SPACE_SHARED, slot, 0, 0)
            found(x, X.SENT_AT_EXIT, site, 0, 0, 0, 0, 0)


@helper
def forget_sent(x, slot):
    """A CTA starts."""
    st64(sent_from(x, slot), 0)
