"""When nothing moves: time passes, late effects happen, suspended waits time out, or it is a deadlock."""

from __future__ import annotations

from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.machine.effects import run_op
from tensorladder.vgpu.machine.lanes import fail, wake
from tensorladder.vgpu.machine.native import helper
from tensorladder.vgpu.machine.queue import NEVER, movable, pending_op, release_op, remove_at
from tensorladder.vgpu.machine.raw import ld32, ld64, st32, st64, trailing_zeros
from tensorladder.vgpu.machine.vectors import lanes_equal32

#: cycles without anything happening after which a kernel that reads clocks is taken to hang
PATIENCE = 1 << 31


@helper
def fire_due(u, now):
    """Run the pending operations whose time has come, oldest first; the number of stages run."""
    fired = 0
    position = 0
    while position < ld64(u + L.U_COUNT):
        op = pending_op(u, position)
        if ld64(op + L.A_READY) <= now and movable(u, position):
            if run_op(u, op):
                remove_at(u, position)
                release_op(u, op)
                position -= 1
            fired += 1
        position += 1
    return fired


@helper
def fire_first(u):
    """Run one stage of the oldest operation that can move: true if there was one."""
    for position in range(ld64(u + L.U_COUNT)):
        if movable(u, position):
            op = pending_op(u, position)
            if run_op(u, op):
                remove_at(u, position)
                release_op(u, op)
            return True
    return False


@helper
def next_event(u):
    """The earliest clock at which something pending can happen."""
    when = NEVER
    for position in range(ld64(u + L.U_COUNT)):
        if movable(u, position):
            when = min(when, ld64(pending_op(u, position) + L.A_READY))
    for slot in range(ld64(u + L.U_NCTAS)):
        c = ld64(u + L.U_CTAS) + slot * L.C_BYTES
        if ld64(c + L.C_DONE) != 0:
            continue
        for n in range(ld64(c + L.C_NWARPS)):
            w = ld64(c + L.C_WARPS) + n * L.W_BYTES
            waiting = ld64(w + L.W_LIVE) & ~ld64(w + L.W_READY)
            for lane in range(L.LANES):
                if (waiting >> lane) & 1 and ld32(w + L.W_WAIT + 4 * lane) == L.WAIT_TIME:
                    when = min(when, ld64(w + L.W_WAIT_A + 8 * lane))
    return when


@helper
def frame_hash(w):
    """A hash of a warp's registers and PCs."""
    h = ld64(w + L.W_LIVE) * 31 + ld64(w + L.W_READY)
    frame = ld64(w + L.W_FRAME)
    for i in range(ld64(w + L.W_FRAME_BYTES) // 8):
        h = (h ^ ld64(frame + 8 * i)) * 1099511628211 + 12345
    for i in range(16):
        h = (h ^ ld64(w + L.W_PC + 8 * i)) * 1099511628211 + 12345
    return h


@helper
def sleeps_since(w, round_):
    """Whether a lane sleeps that went to sleep before a quiescent round."""
    asleep = ld64(w + L.W_LIVE) & ~ld64(w + L.W_READY) & lanes_equal32(w + L.W_WAIT, L.WAIT_TIME)
    while asleep != 0:
        if ld64(w + L.W_WAIT_B + 8 * trailing_zeros(asleep)) < round_:
            return True
        asleep &= asleep - 1
    return False


@helper
def going_round(g, quiet):
    """Whether every live warp repeats itself, in the `quiet`th quiescent round since something happened.

    Memory does not change meanwhile, so a warp that comes to a state again will do so for ever. States are compared
    with one taken in a round 1, 2, 4, 8, ... (Brent's search for a cycle). A kernel that reads a clock may end by
    itself: it gets a second of the chip's time.
    """
    units = ld64(g + L.G_UNITS)
    for k in range(ld64(g + L.G_COUNT)):
        u = ld64(units + 8 * k)
        if ld64(u + L.U_DONE) == 0 and ld64(ld64(u + L.U_LAUNCH) + L.L_CLOCKED) != 0:
            return ld64(u + L.U_CLOCK) - ld64(g + L.G_NEWS_CLOCK) > PATIENCE
    take = quiet & (quiet - 1) == 0
    every = quiet > 1
    for k in range(ld64(g + L.G_COUNT)):
        u = ld64(units + 8 * k)
        if ld64(u + L.U_DONE) == 0:
            every &= warps_repeat(u, take, ld64(g + L.G_SAVED))
            if take:
                st64(g + L.G_SAVED, ld64(u + L.U_ROUND))
    return every


@helper
def warps_repeat(u, take, saved):
    """Whether every live warp of a unit has been in its state before; `take`: keep the states of now."""
    every = True
    for slot in range(ld64(u + L.U_NCTAS)):
        c = ld64(u + L.U_CTAS) + slot * L.C_BYTES
        if ld64(c + L.C_DONE) != 0:
            continue
        for n in range(ld64(c + L.C_NWARPS)):
            w = ld64(c + L.C_WARPS) + n * L.W_BYTES
            if ld64(w + L.W_LIVE) == 0:
                continue
            h = frame_hash(w)
            if h == ld64(w + L.W_HASH) and not sleeps_since(w, saved):
                st64(w + L.W_REPEATS, 1)
            every = every and ld64(w + L.W_REPEATS) != 0
            if take:
                st64(w + L.W_HASH, h)
                st64(w + L.W_REPEATS, 0)
    return every


@helper
def time_out_waits(u):
    """Let every suspended try_wait return false; the number of warps touched."""
    count = 0
    for slot in range(ld64(u + L.U_NCTAS)):
        c = ld64(u + L.U_CTAS) + slot * L.C_BYTES
        if ld64(c + L.C_DONE) != 0:
            continue
        for n in range(ld64(c + L.C_NWARPS)):
            w = ld64(c + L.C_WARPS) + n * L.W_BYTES
            waiting = ld64(w + L.W_LIVE) & ~ld64(w + L.W_READY)
            lanes = 0
            for lane in range(L.LANES):
                kind = ld32(w + L.W_WAIT + 4 * lane)
                if (waiting >> lane) & 1 and (kind == L.WAIT_MBAR or kind == L.WAIT_MBAR_STATE):
                    lanes |= 1 << lane
            if lanes != 0:
                wake(w, lanes)
                for lane in range(L.LANES):
                    if (lanes >> lane) & 1:
                        st32(w + L.W_WAIT + 4 * lane, L.WAIT_TIMED_OUT)
                count += 1
    return count


@helper
def any_warp(u):
    """A live warp, to hang an error on."""
    for slot in range(ld64(u + L.U_NCTAS)):
        c = ld64(u + L.U_CTAS) + slot * L.C_BYTES
        if ld64(c + L.C_DONE) != 0:
            continue
        for n in range(ld64(c + L.C_NWARPS)):
            w = ld64(c + L.C_WARPS) + n * L.W_BYTES
            if ld64(w + L.W_LIVE) != 0:
                return w
    return 0


@helper
def fire_oldest(g):
    """Run one stage of the oldest operation that can move, of the oldest launch that has one: true if there was one."""
    units = ld64(g + L.G_UNITS)
    for k in range(ld64(g + L.G_COUNT)):
        u = ld64(units + 8 * k)
        if ld64(u + L.U_DONE) == 0 and fire_first(u):
            return True
    return False


@helper
def fire_all_due(g, now):
    """Run what is due in every unit; the number of stages run."""
    units = ld64(g + L.G_UNITS)
    fired = 0
    for k in range(ld64(g + L.G_COUNT)):
        u = ld64(units + 8 * k)
        if ld64(u + L.U_DONE) == 0 and ld64(u + L.U_COUNT) > 0:
            fired += fire_due(u, now)
    return fired


@helper
def set_clock(g, now):
    """Move the clock of all units on."""
    units = ld64(g + L.G_UNITS)
    for k in range(ld64(g + L.G_COUNT)):
        u = ld64(units + 8 * k)
        if now > ld64(u + L.U_CLOCK):
            st64(u + L.U_CLOCK, now)


@helper
def quiescent(g, policy, spinning):
    """Nothing moved in a round. Let time pass or an effect happen: false when nothing is left (deadlock)."""
    if policy == L.POLICY_LAZY and fire_oldest(g):
        return True
    units = ld64(g + L.G_UNITS)
    when = NEVER
    pending = False
    for k in range(ld64(g + L.G_COUNT)):
        u = ld64(units + 8 * k)
        if ld64(u + L.U_DONE) == 0:
            when = min(when, next_event(u))
            pending |= ld64(u + L.U_COUNT) > 0
            st64(u + L.U_ROUND, ld64(u + L.U_ROUND) + 1)
    if when < NEVER:
        set_clock(g, when)
    if pending and (fire_all_due(g, when) != 0 or fire_oldest(g)):
        return True
    quiet = ld64(g + L.G_STALLED) + 1
    st64(g + L.G_STALLED, quiet)
    # a round in which nobody sleeps tells more about who waits on what
    if going_round(g, quiet) and (when >= NEVER or quiet > 64):
        return False
    woken = 0
    for k in range(ld64(g + L.G_COUNT)):
        u = ld64(units + 8 * k)
        if ld64(u + L.U_DONE) == 0:
            woken += time_out_waits(u)
    return woken != 0 or spinning != 0 or when < NEVER


@helper
def give_up(g):
    """A deadlock: record it at a live warp of the oldest launch that has one, and stop."""
    units = ld64(g + L.G_UNITS)
    for k in range(ld64(g + L.G_COUNT)):
        u = ld64(units + 8 * k)
        w = any_warp(u)
        if ld64(u + L.U_DONE) == 0 and w != 0:
            fail(w, L.ERR_DEADLOCK, 0, 0, u, 0, 0)
            st64(ld64(u + L.U_LAUNCH) + L.L_STOP, 1)
            return
