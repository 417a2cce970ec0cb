"""Event records of the checked variant: accesses, arrivals and asynchronous effects, with their instruction."""

from __future__ import annotations

from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.machine.native import export, helper
from tensorladder.vgpu.machine.raw import fetch_add, ld64, st64

#: what an event is (first field of a record)
EVENT_READ, EVENT_WRITE, EVENT_ATOMIC, EVENT_ARRIVE, EVENT_ISSUE, EVENT_EFFECT, EVENT_WAIT, EVENT_FENCE = range(8)


@helper
def record(w, what, a, b, lanes, iid):
    """Append (what, CTA, warp, clock, instruction, lanes, a, b) in the checked variant; past the end, count only."""
    launch = ld64(w + L.W_LAUNCH)
    events = ld64(launch + L.L_HOOKS)
    if events == 0:
        return
    n = fetch_add(launch + L.L_HOOKS_USED, 1)
    if n >= ld64(launch + L.L_HOOKS_SIZE):
        return
    p = events + 64 * n
    st64(p, what)
    st64(p + 8, ld64(ld64(w + L.W_CTA) + L.C_LINEAR))
    st64(p + 16, ld64(w + L.W_WARPID))
    st64(p + 24, ld64(w + L.W_CLOCK))
    st64(p + 32, iid)
    st64(p + 40, lanes)
    st64(p + 48, a)
    st64(p + 56, b)


@export
def tl_hook_access(w, what, space, addresses, lanes, size, iid):
    """An access of a lane group: addresses are host addresses (already resolved); the event keeps the first one."""
    lane = 0
    while lane < L.LANES - 1 and (lanes >> lane) & 1 == 0:
        lane += 1
    record(w, what, ld64(addresses + 8 * lane), size | (space << 32), lanes, iid)
    return 0
