"""Times under the timed policy, and the record of them that `vgpu.trace` makes timelines of.

Warps run in slices, so that one may be ahead of another when it arrives at a barrier that the other waits at. Each
barrier therefore keeps the latest clock of a phase's arrivals, and who waited for it goes on no earlier. An effect of
an asynchronous operation happens at that operation's own time (U_NOW), not at its warp's.

The record is a buffer of the launch (L_TRACE), TRACE_WORDS words an event, in the order in which things were done; one
cluster's events stand in it in order. Without a buffer nothing is recorded.
"""

from __future__ import annotations

from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.machine.native import helper
from tensorladder.vgpu.machine.raw import fetch_add, ld64, st64

#: an event: what, clock, CTA, warp, then
TRACE_CTA = 0  # SM, unit, addresses of the CTA and of its shared memory: it starts
TRACE_EXIT = 1  # a warp ends
TRACE_STOP = 2  # kind of wait, A and B of it, instruction: all lanes of a warp wait
TRACE_GO = 3  # a warp that stopped goes on
TRACE_ARRIVE = 4  # mbarrier (host) or named barrier (its address), number of the operation's event + 1, or 0
TRACE_OP = 5  # kind | stage << 8, clocks of issue and of the unit's start, its cycles, its work, instruction
TRACE_WORDS = 10


@helper
def traced(launch, what, clock, cta, warp, a, b, c, d, e, f):
    """Append an event; gives its number, past the end of the buffer too."""
    events = ld64(launch + L.L_TRACE)
    if events == 0:
        return 0
    n = fetch_add(launch + L.L_TRACE_USED, 1)
    if n < ld64(launch + L.L_TRACE_SIZE):
        p = events + 8 * TRACE_WORDS * n
        st64(p, what)
        st64(p + 8, clock)
        st64(p + 16, cta)
        st64(p + 24, warp)
        st64(p + 32, a)
        st64(p + 40, b)
        st64(p + 48, c)
        st64(p + 56, d)
        st64(p + 64, e)
        st64(p + 72, f)
    return n


@helper
def is_timed(w):
    """Whether a warp's launch runs under the timed policy."""
    return ld64(ld64(w + L.W_LAUNCH) + L.L_POLICY) == L.POLICY_TIMED


@helper
def traced_warp(w, what, clock, a, b, c, d):
    """Append an event of a warp."""
    cta = ld64(ld64(w + L.W_CTA) + L.C_LINEAR)
    traced(ld64(w + L.W_LAUNCH), what, clock, cta, ld64(w + L.W_WARPID), a, b, c, d, 0, 0)


@helper
def arrived(w, stamp, what):
    """Something arrives at a phase whose latest arrival stands at `stamp`; what: the barrier's address."""
    u = ld64(w + L.W_UNIT)
    now = ld64(u + L.U_NOW)
    if now == 0:
        now = ld64(w + L.W_CLOCK)
    if now > ld64(stamp):
        st64(stamp, now)
    key = (what * 31 + w) * 31 + now
    if ld64(u + L.U_AGENT) != 0 or ld64(u + L.U_LAST_ARRIVAL) != key:  # of a warp's lanes, the first
        traced_warp(w, TRACE_ARRIVE, now, what, ld64(u + L.U_AGENT), 0, 0)
    st64(u + L.U_LAST_ARRIVAL, key if ld64(u + L.U_AGENT) == 0 else 0)


@helper
def catch_up(w, clock, kind, a, b, iid):
    """A warp whose wait is over at once goes on no earlier than what it waited for."""
    before = ld64(w + L.W_CLOCK)
    if clock > before:
        traced_warp(w, TRACE_STOP, before, kind, a, b, iid)
        traced_warp(w, TRACE_GO, clock, 0, 0, 0, 0)
        st64(w + L.W_CLOCK, clock)


@helper
def mbar_stamp(c, host, phase):
    """Where the latest arrival of an mbarrier's phase (0 or 1) stands; c: the CTA that has it."""
    return ld64(c + L.C_MBAR_CLOCK) + 2 * (host - ld64(c + L.C_SHARED)) + 8 * phase


@helper
def bar_stamp(c, index, generation):
    """The same of a named barrier."""
    return c + L.C_BAR_CLOCK + 16 * index + 8 * (generation & 1)


@helper
def woken_at(w, kind, a, b, now):
    """Clock at which what a lane waited for happened; now: the unit's, for what leaves no trace of its own."""
    if kind == L.WAIT_MBAR or kind == L.WAIT_MBAR_STATE:
        return ld64(mbar_stamp(ld64(w + L.W_CTA), a, b))
    if kind == L.WAIT_BAR:
        return ld64(bar_stamp(ld64(w + L.W_CTA), a, b))
    if kind == L.WAIT_CP or kind == L.WAIT_BULK or kind == L.WAIT_BULK_READ or kind == L.WAIT_WGMMA:
        return ld64(w + L.W_DONE_CLOCK)
    return now


@helper
def begin_effect(u, op):
    """An operation takes effect: until `end_effect`, the time is its own, and arrivals are its."""
    ready = ld64(op + L.A_READY)
    w = ld64(op + L.A_WARP)
    kind = ld64(op + L.A_KIND)
    st64(u + L.U_NOW, ready)
    if kind == L.OP_WGMMA:
        for k in range(4):
            st64(ld64(op + L.A_QUEUE) + k * L.W_BYTES + L.W_DONE_CLOCK, ready)
    else:
        st64(w + L.W_DONE_CLOCK, ready)
    n = traced(
        ld64(u + L.U_LAUNCH), TRACE_OP, ready, ld64(ld64(op + L.A_CTA) + L.C_LINEAR), ld64(w + L.W_WARPID),
        kind | ld64(op + L.A_STAGE) << 8, ld64(op + L.A_ISSUED), ld64(op + L.A_START), ld64(op + L.A_BUSY),
        ld64(op + L.A_WORK), ld64(op + L.A_IID),
    )  # fmt: skip
    st64(u + L.U_AGENT, n + 1)


@helper
def end_effect(u):
    """Warps act again."""
    st64(u + L.U_NOW, 0)
    st64(u + L.U_AGENT, 0)
