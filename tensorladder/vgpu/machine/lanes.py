"""Lane groups: which lanes of a warp run next, where they wait for each other, how they end.

A lane has a PC (a block number), and may be blocked (`W_WAIT`). A group is the ready lanes at one PC.
"""

from __future__ import annotations

from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.machine.hooks import CHECK_ABSENT, CHECK_MEMBERS, CHECK_WARP_SYNC, observe
from tensorladder.vgpu.machine.native import export, helper
from tensorladder.vgpu.machine.raw import compare_swap, ld32, ld64, lds32, st64, trailing_zeros
from tensorladder.vgpu.machine.vectors import (
    lanes_equal32,
    lanes_equal64,
    least_above,
    put_lanes32,
    put_lanes64,
)

_NO_PC = 0xFFFFFFFF


@helper
def fail(w, code, iid, lane, address, a, b):
    """Record the first error of the launch and stop this warp."""
    launch = ld64(w + L.W_LAUNCH)
    st64(w + L.W_ERROR, code)
    if compare_swap(launch + L.L_ERROR, 0, code) == 0:
        cta = ld64(w + L.W_CTA)
        st64(launch + L.L_ERROR_IID, iid)
        st64(launch + L.L_ERROR_LANE, lane)
        st64(launch + L.L_ERROR_WARP, ld64(w + L.W_WARPID))
        st64(launch + L.L_ERROR_ADDR, address)
        st64(launch + L.L_ERROR_A, a)
        st64(launch + L.L_ERROR_B, b)
        for i in range(3):
            st64(launch + L.L_ERROR_CTA + 8 * i, ld64(cta + L.C_CTAID + 8 * i))


@export
def tl_fail(w, code, iid, mask):
    """An error of the lanes in `mask` (none: nothing happens)."""
    if mask != 0:
        fail(w, code, iid, trailing_zeros(mask), 0, 0, 0)
    return 0


@helper
def meeting(w, lanes):
    """Of the lanes at a collective, those whose partners (W_WAIT_A of each) are all there or have exited."""
    live = ld64(w + L.W_LIVE)
    complete = 0
    for lane in range(L.LANES):
        if (lanes >> lane) & 1 and ld64(w + L.W_WAIT_A + 8 * lane) & live & ~lanes == 0:
            complete |= 1 << lane
    return complete


@helper
def waiting_at(w, pc):
    """Lanes that wait at a collective."""
    return lanes_equal32(w + L.W_WAIT, L.WAIT_MEET) & lanes_equal32(w + L.W_PC, pc) & ld64(w + L.W_LIVE)


@helper
def settle_meetings(w):
    """Lanes that wait at a collective for lanes that have exited meanwhile may go on."""
    left = lanes_equal32(w + L.W_WAIT, L.WAIT_MEET) & ld64(w + L.W_LIVE) & ~ld64(w + L.W_READY)
    while left != 0:
        pc = lds32(w + L.W_PC + 4 * trailing_zeros(left))
        here = waiting_at(w, pc)
        left &= ~here
        wake(w, meeting(w, here))


@helper
def settle_warp_syncs(w):
    """Lanes at a bar.warp.sync go on when all live lanes of their mask are at one with the same mask."""
    live = ld64(w + L.W_LIVE)
    waiting = lanes_equal32(w + L.W_WAIT, L.WAIT_WARP) & live & ~ld64(w + L.W_READY)
    left = waiting
    while left != 0:
        mask = ld64(w + L.W_WAIT_A + 8 * trailing_zeros(left))
        here = waiting & lanes_equal64(w + L.W_WAIT_A, mask)
        left &= ~here
        if mask & live & ~here == 0:
            observe(w, CHECK_WARP_SYNC, mask, 0, 0, here, ld64(w + L.W_IID))
            wake(w, here)


@helper
def wake(w, lanes):
    """Make lanes ready."""
    put_lanes32(w + L.W_WAIT, lanes, L.WAIT_NONE)
    st64(w + L.W_READY, (ld64(w + L.W_READY) | lanes) & ld64(w + L.W_LIVE))


@helper
def block(w, lanes, kind, a, b, iid):
    """Make lanes wait."""
    put_lanes32(w + L.W_WAIT, lanes, kind)
    put_lanes64(w + L.W_WAIT_A, lanes, a)
    put_lanes64(w + L.W_WAIT_B, lanes, b)
    st64(w + L.W_READY, ld64(w + L.W_READY) & ~lanes)
    st64(w + L.W_IID, iid)


@helper
def all_here(w, lanes, iid):
    """Whether the whole warp is at a collective that may block; else these lanes wait for the others."""
    arrive_at(w, lanes)
    if lanes == ld64(w + L.W_LIVE):
        return True
    block(w, lanes, L.WAIT_MEET, ld64(w + L.W_LIVE), 0, iid)
    return False


# ---------------------------------------------------------------- lanes that others wait for in vain (checked variant)
@helper
def arrive_at(w, lanes):
    """Lanes have come to a collective: whatever they ran past, they are on their way."""
    st64(w + L.W_PASSED, ld64(w + L.W_PASSED) & ~lanes)


@export
def tl_passing(w, number, table, count, iid):
    """The group runs block `number`, which comes after the collectives of a table (i32 pairs: the PC of who waits
    there, instruction): those that others name there have gone past it. At a block before, they may yet come."""
    left = ld64(w + L.W_LIVE) & ~ld64(w + L.W_READY)
    group = ld64(w + L.W_MASK)
    while left != 0:
        lane = trailing_zeros(left)
        left &= left - 1
        kind = ld32(w + L.W_WAIT + 4 * lane)
        named = ld64(w + L.W_WAIT_A + 8 * lane)
        if kind == L.WAIT_BAR_WARP:
            named = ld64(w + L.W_LIVE)
        elif kind != L.WAIT_MEET and kind != L.WAIT_WARP:
            continue
        pc = ld32(w + L.W_PC + 4 * lane)
        if number < pc:
            arrive_at(w, group)
            continue
        for k in range(count):
            if named & group != 0 and ld32(table + 8 * k) == pc:
                st64(w + L.W_PASSED, ld64(w + L.W_PASSED) | (named & group))
                st64(w + L.W_PASSED_IID, ld32(table + 8 * k + 4))
                st64(w + L.W_PASSED_AT, iid)
    return 0


@helper
def report_absent(w, lanes):
    """Lanes end that ran past a collective at which others wait for them."""
    waiting = ld64(w + L.W_LIVE) & ~ld64(w + L.W_READY) & ~lanes
    kinds = w + L.W_WAIT
    waiting &= (
        lanes_equal32(kinds, L.WAIT_MEET) | lanes_equal32(kinds, L.WAIT_WARP) | lanes_equal32(kinds, L.WAIT_BAR_WARP)
    )
    if waiting != 0:
        observe(w, CHECK_ABSENT, lanes, ld64(w + L.W_PASSED_AT), 0, waiting, ld64(w + L.W_PASSED_IID))


@export
def tl_hook_members(w, masks, lanes, iid):
    """Lanes at one collective: those that a member mask (i32) names must have the same one."""
    left = lanes
    while left != 0:
        lane = trailing_zeros(left)
        mask = ld32(masks + 4 * lane)
        alike = lanes_equal32(masks, mask) & lanes
        left &= ~alike
        odd = mask & lanes & ~alike
        if odd != 0:
            observe(w, CHECK_MEMBERS, mask, ld32(masks + 4 * trailing_zeros(odd)), odd, alike, iid)
            return 0
    return 0


@export
def tl_pick(w):
    """Choose the group to run: 2 * PC + diverged, or -1 - RET_* when the warp cannot go on."""
    if ld64(w + L.W_ERROR) != 0:
        return -1 - L.RET_ERROR
    live = ld64(w + L.W_LIVE)
    if live == 0:
        return -1 - L.RET_EXIT
    ready = ld64(w + L.W_READY)
    if ready != live:
        settle_meetings(w)
        settle_warp_syncs(w)
        ready = ld64(w + L.W_READY)
        if ready == 0:
            return -1 - L.RET_BLOCKED
    last = ld64(w + L.W_LAST_PC)
    turn = ld64(w + L.W_SPINS)
    if ld64(w + L.W_CLOCK) >= ld64(w + L.W_LIMIT):
        st64(w + L.W_SPINS, 1)
        return -1 - L.RET_YIELD
    best = least_above(w + L.W_PC, ready, -1)
    if turn != 0:  # the group that used up the last slice lets another one run
        st64(w + L.W_SPINS, 0)
        after = least_above(w + L.W_PC, ready, last)
        if after != _NO_PC:
            best = after
    mask = lanes_equal32(w + L.W_PC, best) & ready
    st64(w + L.W_MASK, mask)
    st64(w + L.W_LAST_PC, best)
    return 2 * best + (1 if mask != live else 0)


@export
def tl_yield(w):
    """A group's slice is used up."""
    st64(w + L.W_SPINS, 1)
    return 0


@export
def tl_meet(w, pc, masks, iid):
    """The group stands at a collective; masks (i32): the lanes that each lane wants there.

    1 to go on with those whose partners are all there (W_MASK), the others wait; 0 when all have to wait.
    """
    mask = ld64(w + L.W_MASK)
    for lane in range(L.LANES):
        if (mask >> lane) & 1:
            st64(w + L.W_WAIT_A + 8 * lane, ld32(masks + 4 * lane))
    arrive_at(w, mask)
    put_lanes32(w + L.W_WAIT, mask, L.WAIT_MEET)
    put_lanes32(w + L.W_PC, mask, pc)
    st64(w + L.W_READY, ld64(w + L.W_READY) & ~mask)
    st64(w + L.W_IID, iid)
    complete = meeting(w, waiting_at(w, pc))
    if complete == 0:
        return 0
    wake(w, complete)
    st64(w + L.W_MASK, complete)
    return 1


@export
def tl_exit(w, mask):
    """Lanes end. Whoever waits for them is looked at again by the scheduler."""
    if ld64(w + L.W_PASSED) & mask != 0:
        report_absent(w, ld64(w + L.W_PASSED) & mask)
    live = ld64(w + L.W_LIVE) & ~mask
    st64(w + L.W_LIVE, live)
    st64(w + L.W_READY, ld64(w + L.W_READY) & live)
    st64(w + L.W_PROGRESS, ld64(w + L.W_PROGRESS) + 1)
    return 0
