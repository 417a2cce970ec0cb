"""Arrivals and waits at an mbarrier that may be of another round than they are meant for.

Whoever arrives for a phase knows that the one before is complete: it has waited for it, or was told by one who has. An
arrival that nothing orders after the arrivals of the phase before might as well have come before them, and have counted
for that phase. So with a count that is one too low, the last arrival of each round is taken for the first of the next.

A wait by parity names every other phase. Whoever waits for one has to know that the phase before it is complete:
while that one runs, the one before it, of the same parity, lets the wait through. Two groups that take the stages of a
ring in turn, with an mbarrier a stage and an odd number of stages, see every other phase of each.
"""

from __future__ import annotations

from tensorladder.vgpu.check import layout as X
from tensorladder.vgpu.check.clocks import clock_of, site_of
from tensorladder.vgpu.check.executed import executed
from tensorladder.vgpu.check.shadow import at_place, found
from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.machine.native import helper
from tensorladder.vgpu.machine.raw import ld32, ld64, st64


@helper
def warps_known(x, n, clock):
    """Whether all that a clock knows of warps was executed before a warp's next instruction."""
    v = executed(x, n)
    later = 0
    for k in range(ld64(x + X.X_SLOTS) * ld64(x + X.X_WARPS)):
        later += 1 if ld32(clock + 4 * k) > ld32(v + 4 * k) else 0
    return later == 0


@helper
def clock_known(x, n, clock, but):
    """Whether all that a clock knows, one component left out, was executed before a warp's next instruction."""
    v = executed(x, n)
    later = 0
    for k in range(ld64(x + X.X_USED)):
        later += 1 if k != but and ld32(clock + 4 * k) > ld32(v + 4 * k) else 0
    return later == 0


@helper
def report(x, n, b, code, lanes, iid):
    """A finding about an arrival that is out of its round."""
    at_place(x, n, lanes, X.SPACE_SHARED, ld64(b + X.B_SLOT), ld64(b + X.B_OFFSET), ld64(b + X.B_OFFSET) + 8)
    found(x, code, site_of(n, iid), 0, ld64(b + X.B_FLIPPED), 0, ld64(b + X.B_COUNT), 0)


@helper
def in_its_round(x, n, b, complete, lanes, iid):
    """Judge an arrival of a warp; complete: clock of the complete phases."""
    phases = ld64(b + X.B_PHASES)
    if phases == ld64(b + X.B_BASE) or clock_of(executed(x, n), ld64(b + X.B_COMPONENT)) >= phases:
        return
    if not warps_known(x, n, complete):
        report(x, n, b, X.LATE_ARRIVAL, lanes, iid)


@helper
def in_its_turn(x, n, b, earlier, lanes, iid):
    """Judge a wait by parity that is over; earlier: clock of the complete phases but the last."""
    phases = ld64(b + X.B_PHASES)
    own, component = phases - ld64(b + X.B_BASE), ld64(b + X.B_COMPONENT)
    if own < 2 or clock_of(executed(x, n), component) >= phases - 1 or clock_known(x, n, earlier, component):
        return
    at_place(x, n, lanes, X.SPACE_SHARED, ld64(b + X.B_SLOT), ld64(b + X.B_OFFSET), ld64(b + X.B_OFFSET) + 8)
    found(x, X.PHASE_SKIPPED, site_of(n, iid), 0, ld64(b + X.B_FLIPPED), 0, own - 1, own - 2)


@helper
def arrival_sign(w, n, iid):
    """Says which execution of an arrival by a warp this is; not 0."""
    return ((ld64(w + L.W_CLOCK) << 32) | site_of(n, iid)) + 1


@helper
def lanes_in_one_phase(x, n, b, sign, lanes, iid):
    """The lanes of one arrival (arrival_sign) count for one phase."""
    phases = ld64(b + X.B_PHASES)
    if ld64(b + X.B_SIGN) != sign:
        st64(b + X.B_SIGN, sign)
        st64(b + X.B_SIGN_PHASE, phases)
    elif ld64(b + X.B_SIGN_PHASE) != phases:
        report(x, n, b, X.SPLIT_ARRIVAL, lanes, iid)
