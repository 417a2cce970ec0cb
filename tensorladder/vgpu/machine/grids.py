"""A grid's CTAs and clusters by number, those that let dependent launches start, and those that are cancelled.

clusterlaunchcontrol.try_cancel takes the next cluster that has not started away from the launch (PTX ISA,
"clusterlaunchcontrol.try_cancel"). The response is opaque to programs: three words of the ctaid of the cluster's first
CTA, then a mark. A failed one holds all ones, where the ISA leaves the ctaid undefined.
"""

from __future__ import annotations

from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.machine.hooks import EVENT_EFFECT, record
from tensorladder.vgpu.machine.mbarrier import complete_tx, shared_at
from tensorladder.vgpu.machine.native import helper
from tensorladder.vgpu.machine.raw import fetch_add, ld64, st32, st64, trailing_zeros

RESPONSE_BYTES = 16
#: fourth word of a response: the cluster was cancelled; anything else: it was not
CANCELED, FAILED = 0x0C1C0001, 0


@helper
def cluster_ctas(launch):
    """CTAs of a cluster."""
    return ld64(launch + L.L_CLUSTER) * ld64(launch + L.L_CLUSTER + 8) * ld64(launch + L.L_CLUSTER + 16)


@helper
def grid_ctas(launch):
    """CTAs of the grid."""
    return ld64(launch + L.L_GRID) * ld64(launch + L.L_GRID + 8) * ld64(launch + L.L_GRID + 16)


@helper
def cta_of(launch, cluster, k):
    """Linear CTA index of the k-th CTA (by rank) of a cluster."""
    cx = ld64(launch + L.L_CLUSTER)
    cy = ld64(launch + L.L_CLUSTER + 8)
    gx = ld64(launch + L.L_GRID)
    gy = ld64(launch + L.L_GRID + 8)
    cz = ld64(launch + L.L_CLUSTER + 16)
    nx = gx // cx
    ny = gy // cy
    x = (cluster % nx) * cx + k % cx
    y = ((cluster // nx) % ny) * cy + (k // cx) % cy
    z = (cluster // (nx * ny)) * cz + k // (cx * cy)
    return x + gx * (y + gy * z)


@helper
def trigger(c):
    """A CTA lets dependent launches start, or has exited: counted once."""
    if ld64(c + L.C_TRIGGERED) == 0:
        st64(c + L.C_TRIGGERED, 1)
        fetch_add(ld64(c + L.C_LAUNCH) + L.L_TRIGGERED, 1)


@helper
def all_ended(launch):
    """Whether all launches that a launch depends on are complete, the one before it and those before that in turn."""
    before = ld64(launch + L.L_DEPENDS)
    while before != 0:
        if ld64(before + L.L_COMPLETE) == 0:
            return False
        before = ld64(before + L.L_DEPENDS)
    st64(launch + L.L_DEPENDS, 0)
    return True


@helper
def cancel_next(launch):
    """Take the next cluster away from a launch: linear number of its first CTA, -1 when all have started."""
    size = cluster_ctas(launch)
    if ld64(launch + L.L_NEXT_CTA) * size >= grid_ctas(launch):
        return -1
    cluster = fetch_add(launch + L.L_NEXT_CTA, 1)
    fetch_add(launch + L.L_TRIGGERED, size)
    return cta_of(launch, cluster, 0)


@helper
def run_cancel(op):
    """clusterlaunchcontrol.try_cancel: A_DST and A_MBAR are 32-bit addresses of the issuing CTA, A_SIZE its ranks."""
    w = ld64(op + L.A_WARP)
    launch = ld64(w + L.W_LAUNCH)
    iid = ld64(op + L.A_IID)
    lanes = ld64(op + L.A_LANES)
    lane = trailing_zeros(lanes)
    cta = cancel_next(launch)
    gx = ld64(launch + L.L_GRID)
    gy = ld64(launch + L.L_GRID + 8)
    ranks = ld64(op + L.A_SIZE)
    for rank in range(16):
        if (ranks >> rank) & 1 == 0:
            continue
        host = shared_at(w, (ld64(op + L.A_DST) & 0xFFFFFF) | (rank << L.RANK_SHIFT), RESPONSE_BYTES, iid, lane)
        if host == 0:
            return True
        st32(host, cta % gx if cta >= 0 else -1)
        st32(host + 4, cta // gx % gy if cta >= 0 else -1)
        st32(host + 8, cta // (gx * gy) if cta >= 0 else -1)
        st32(host + 12, CANCELED if cta >= 0 else FAILED)
        record(w, EVENT_EFFECT, host, L.OP_CLC, lanes, iid)
        if not complete_tx(w, (ld64(op + L.A_MBAR) & 0xFFFFFF) | (rank << L.RANK_SHIFT), RESPONSE_BYTES, iid, lane):
            return True
    return True
