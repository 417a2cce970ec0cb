"""Lane groups: which lanes of a warp run next, where they wait for each other, how they end.

A lane has a PC (a block number), and may be blocked (`W_WAIT`). A group is the ready lanes at one PC.
"""

from __future__ import annotations

from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.machine.native import export, helper
from tensorladder.vgpu.machine.raw import compare_swap, ld32, ld64, lds32, st32, st64, trailing_zeros

_NO_PC = 1 << 40


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
def meeting(w, pc, lanes):
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
    lanes = 0
    for lane in range(L.LANES):
        if ld32(w + L.W_WAIT + 4 * lane) == L.WAIT_MEET and lds32(w + L.W_PC + 4 * lane) == pc:
            lanes |= 1 << lane
    return lanes & ld64(w + L.W_LIVE)


@helper
def settle_meetings(w):
    """Lanes that wait at a collective for lanes that have exited meanwhile may go on."""
    live = ld64(w + L.W_LIVE)
    seen = ld64(w + L.W_READY)
    for lane in range(L.LANES):
        if (live >> lane) & 1 and (seen >> lane) & 1 == 0 and ld32(w + L.W_WAIT + 4 * lane) == L.WAIT_MEET:
            pc = lds32(w + L.W_PC + 4 * lane)
            here = waiting_at(w, pc)
            seen |= here
            wake(w, meeting(w, pc, here))


@helper
def settle_warp_syncs(w):
    """Lanes at a bar.warp.sync go on when all live lanes of their mask are at one with the same mask."""
    live = ld64(w + L.W_LIVE)
    seen = ld64(w + L.W_READY)
    for lane in range(L.LANES):
        if (live >> lane) & 1 and (seen >> lane) & 1 == 0 and ld32(w + L.W_WAIT + 4 * lane) == L.WAIT_WARP:
            mask = ld64(w + L.W_WAIT_A + 8 * lane)
            here = 0
            for other in range(L.LANES):
                if ld32(w + L.W_WAIT + 4 * other) == L.WAIT_WARP and ld64(w + L.W_WAIT_A + 8 * other) == mask:
                    here |= 1 << other
            here &= live
            seen |= here
            if mask & live & ~here == 0:
                wake(w, here)


@helper
def wake(w, lanes):
    """Make lanes ready."""
    for lane in range(L.LANES):
        if (lanes >> lane) & 1:
            st32(w + L.W_WAIT + 4 * lane, L.WAIT_NONE)
    st64(w + L.W_READY, (ld64(w + L.W_READY) | lanes) & ld64(w + L.W_LIVE))


@helper
def block(w, lanes, kind, a, b, iid):
    """Make lanes wait."""
    for lane in range(L.LANES):
        if (lanes >> lane) & 1:
            st32(w + L.W_WAIT + 4 * lane, kind)
            st64(w + L.W_WAIT_A + 8 * lane, a)
            st64(w + L.W_WAIT_B + 8 * lane, b)
    st64(w + L.W_READY, ld64(w + L.W_READY) & ~lanes)
    st64(w + L.W_IID, iid)


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
    best = _NO_PC
    after = _NO_PC
    for lane in range(L.LANES):
        pc = lds32(w + L.W_PC + 4 * lane) if (ready >> lane) & 1 else _NO_PC
        best = min(best, pc)
        if pc > last:
            after = min(after, pc)
    if turn != 0:  # the group that used up the last slice lets another one run
        st64(w + L.W_SPINS, 0)
        if after != _NO_PC:
            best = after
    mask = 0
    for lane in range(L.LANES):
        here = 1 if lds32(w + L.W_PC + 4 * lane) == best else 0
        mask |= here << lane
    mask &= ready
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
            block(w, 1 << lane, L.WAIT_MEET, ld32(masks + 4 * lane), 0, iid)
            st32(w + L.W_PC + 4 * lane, pc)
    complete = meeting(w, pc, waiting_at(w, pc))
    if complete == 0:
        return 0
    wake(w, complete)
    st64(w + L.W_MASK, complete)
    return 1


@export
def tl_exit(w, mask):
    """Lanes end. Whoever waits for them is looked at again by the scheduler."""
    live = ld64(w + L.W_LIVE) & ~mask
    st64(w + L.W_LIVE, live)
    st64(w + L.W_READY, ld64(w + L.W_READY) & live)
    st64(w + L.W_PROGRESS, ld64(w + L.W_PROGRESS) + 1)
    return 0
