"""The scheduler of a group of units: fills CTA slots, runs warps, lets asynchronous effects happen, sees hangs.

A unit is one launch (or one worker's part of it), a group the launches of a stream that overlap (griddepcontrol); most
groups are one unit. A round gives every warp that can run one slice. Between slices, blocked lanes whose condition
holds are woken. When a whole round of all units brings nothing new the group is quiescent: time moves on (timed,
random), or one lazy effect is fired; when nothing is left to fire, it is a deadlock. How CTAs start and end is in
`residency`.
"""

from __future__ import annotations

from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.machine.barriers import cluster_base, settle_barriers, settle_cluster, settle_gathering
from tensorladder.vgpu.machine.effects import abandon
from tensorladder.vgpu.machine.grids import all_ended
from tensorladder.vgpu.machine.lanes import wake
from tensorladder.vgpu.machine.native import export, helper
from tensorladder.vgpu.machine.queue import NEVER, pending_op, rng
from tensorladder.vgpu.machine.raw import default_float_environment, ld32, ld64, run_warp, st64, trailing_zeros
from tensorladder.vgpu.machine.registers import can_grow
from tensorladder.vgpu.machine.residency import end_unit, fill_slots, leave, may_follow
from tensorladder.vgpu.machine.stall import fire_all_due, give_up, quiescent, set_clock
from tensorladder.vgpu.machine.tmem import can_allocate, stores_done
from tensorladder.vgpu.machine.trace import TRACE_EXIT, TRACE_GO, TRACE_STOP, is_timed, traced_warp, woken_at
from tensorladder.vgpu.machine.vectors import lanes_equal32, lanes_equal64
from tensorladder.vgpu.machine.wgmma import groups_pending

SLICE = 16384
TIMED_SLICE = 256


@helper
def condition(w, kind, a, b):
    """Whether what a lane waits for has come."""
    if kind == L.WAIT_BAR:
        bar = ld64(w + L.W_CTA) + L.C_BAR + a * L.C_BAR_STRIDE
        return ld64(bar + 16) != b
    if kind == L.WAIT_MBAR or kind == L.WAIT_MBAR_STATE:
        return (ld64(a) & 1) != b
    if kind == L.WAIT_TIME:
        return ld64(ld64(w + L.W_UNIT) + L.U_CLOCK) >= a
    if kind == L.WAIT_CLUSTER:
        settle_cluster(w)
        return ld64(cluster_base(w) + L.C_CLUSTER_BAR) != a
    if kind == L.WAIT_GRID:
        return all_ended(a)
    if kind == L.WAIT_CP or kind == L.WAIT_BULK or kind == L.WAIT_BULK_READ:
        return groups_done(w, kind, a, b)
    if kind == L.WAIT_TMEM_ALLOC:
        return can_allocate(w, a, b)
    if kind == L.WAIT_REGISTERS:
        return can_grow(w, a)
    if kind == L.WAIT_TMEM_STORE:
        return stores_done(w)
    if kind == L.WAIT_WGMMA:
        return not groups_pending(w, a)
    return False


@helper
def groups_done(w, kind, group, lanes):
    """No pending operation of these lanes in a group up to `group`."""
    u = ld64(w + L.W_UNIT)
    for position in range(ld64(u + L.U_COUNT)):
        op = pending_op(u, position)
        if ld64(op + L.A_WARP) != w or ld64(op + L.A_LANES) & lanes == 0 or ld64(op + L.A_GROUP) > group:
            continue
        of = ld64(op + L.A_KIND)
        is_cp = of == L.OP_CP_ASYNC
        if kind == L.WAIT_CP:
            if is_cp:
                return False
        elif of == L.OP_TMA_STORE or of == L.OP_TMA_REDUCE or of == L.OP_BULK_S2G or of == L.OP_BULK_REDUCE:  # noqa: SIM102
            if kind == L.WAIT_BULK or ld64(op + L.A_STAGE) == 0:
                return False
    return True


@helper
def wake_ready(w):
    """Wake the lanes of a warp whose condition holds: true if any did, sleepers (whose time just came) apart."""
    settle_gathering(w)
    waiting = ld64(w + L.W_LIVE) & ~ld64(w + L.W_READY)
    lanes = 0
    news = False
    now = ld64(ld64(w + L.W_UNIT) + L.U_CLOCK)
    at = 0
    while waiting != 0:
        lane = trailing_zeros(waiting)
        kind = ld32(w + L.W_WAIT + 4 * lane)
        a = ld64(w + L.W_WAIT_A + 8 * lane)
        b = ld64(w + L.W_WAIT_B + 8 * lane)
        # all that wait for the same
        alike = waiting & lanes_equal32(w + L.W_WAIT, kind)
        if kind == L.WAIT_MEET or kind == L.WAIT_WARP or kind == L.WAIT_BAR_WARP or kind == L.WAIT_BAR_RED:
            waiting &= ~alike  # whoever comes wakes them
            continue
        alike &= lanes_equal64(w + L.W_WAIT_A, a) & lanes_equal64(w + L.W_WAIT_B, b)
        waiting &= ~alike
        if condition(w, kind, a, b):
            lanes |= alike
            news |= kind != L.WAIT_TIME
            at = max(at, woken_at(w, kind, a, b, now) if is_timed(w) else now)
    if lanes != 0:
        wake(w, lanes)
        if ld64(w + L.W_CLOCK) < at:
            st64(w + L.W_CLOCK, at)
    return news


@helper
def run_slice(u, c, w, policy):
    """One slice of a warp: 0 nothing new, 1 it blocked, 2 something happened that others can see."""
    before = ld64(w + L.W_PROGRESS)
    length = SLICE
    if policy == L.POLICY_RANDOM:
        r = rng(u + L.U_RNG)
        # never 0: a warp that has not run stands where it stood, which would count as going in circles
        length = (r & 63 if r & 0x100 else (r >> 9) & 0xFFF) + 1
    elif policy == L.POLICY_TIMED:
        length = TIMED_SLICE
    start = ld64(w + L.W_CLOCK)
    st64(w + L.W_LIMIT, start + length)
    if ld64(w + L.W_STATE) == 1:
        st64(w + L.W_STATE, 0)
        traced_warp(w, TRACE_GO, start, 0, 0, 0, 0)
    code = run_warp(ld64(w + L.W_KERNEL), w)
    st64(u + L.U_INSTRS, ld64(u + L.U_INSTRS) + ld64(w + L.W_CLOCK) - start)
    launch = ld64(u + L.U_LAUNCH)
    if code == L.RET_EXIT:
        st64(w + L.W_STATE, 2)
        traced_warp(w, TRACE_EXIT, ld64(w + L.W_CLOCK), 0, 0, 0, 0)
        live = ld64(c + L.C_LIVE_WARPS) - 1
        st64(c + L.C_LIVE_WARPS, live)
        settle_barriers(c)
        if live == 0:
            leave(u, c)
        return 2
    if code == L.RET_BLOCKED and ld64(launch + L.L_TRACE) != 0:
        stopped(w)
    if code == L.RET_ERROR:
        st64(launch + L.L_STOP, 1)
        return 2
    if ld64(w + L.W_PROGRESS) != before:
        return 2
    return 1 if code == L.RET_BLOCKED else 0


@helper
def stopped(w):
    """Record that a warp waits, and for what its first lane does."""
    lane = trailing_zeros(ld64(w + L.W_LIVE))
    a, b = ld64(w + L.W_WAIT_A + 8 * lane), ld64(w + L.W_WAIT_B + 8 * lane)
    traced_warp(w, TRACE_STOP, ld64(w + L.W_CLOCK), ld32(w + L.W_WAIT + 4 * lane), a, b, ld64(w + L.W_IID))
    st64(w + L.W_STATE, 1)


@helper
def oversleep(u, w):
    """A warp whose wait is over may go on late: others that met it there are then far ahead."""
    r = rng(u + L.U_RNG)
    if r & 7 == 0:
        st64(w + L.W_STARVED, (r >> 3) & (0x7F if r & 0x1000 else 7))


@helper
def rests(u, rounds):
    """Whether a warp or CTA is left out of this round; `rounds`: address of how many it is yet. Now and then it falls
    far behind the others, as it may on the chip: what only relies on speed comes out."""
    left = ld64(rounds)
    if left > 0:
        st64(rounds, left - 1)
        return True
    r = rng(u + L.U_RNG)
    if r & 0x1FF == 0:
        st64(rounds, (r >> 9) & 0x7F)
    return False


#: what a round brought; LATE: a cluster has yet to start, though it could; RESTED: a CTA was left out
MOVED, NEWS, SKIPPED, FINISHED, STOPPED, LATE, RESTED = 1, 2, 4, 8, 16, 32, 64


@helper
def run_round(u, policy, awake):
    """A slice for every warp of a unit that can run; gives what it brought, U_LOWEST and U_SPINNING besides.

    NEWS is something other than that warps blocked (again). awake: no CTA is left out.
    """
    launch = ld64(u + L.U_LAUNCH)
    slots = ld64(u + L.U_NCTAS)
    offset = rng(u + L.U_RNG) if policy == L.POLICY_RANDOM else 0
    brought = 0
    spinning = 0
    lowest = NEVER
    for s in range(slots):
        c = ld64(u + L.U_CTAS) + ((s + offset) % slots) * L.C_BYTES
        if ld64(c + L.C_DONE) != 0:
            continue
        if policy == L.POLICY_RANDOM and not awake and rests(u, c + L.C_STARVED):
            brought |= RESTED
            continue
        count = ld64(c + L.C_NWARPS)
        for k in range(count):
            w = ld64(c + L.C_WARPS) + ((k + offset) % count) * L.W_BYTES
            live = ld64(w + L.W_LIVE)
            if live == 0:
                continue
            if ld64(w + L.W_READY) != live and wake_ready(w):
                brought |= NEWS
                if policy == L.POLICY_RANDOM:
                    oversleep(u, w)
            if ld64(w + L.W_READY) == 0:
                continue
            late = policy == L.POLICY_TIMED and ld64(w + L.W_CLOCK) > ld64(u + L.U_CLOCK) + TIMED_SLICE
            if late or (policy == L.POLICY_RANDOM and (rng(u + L.U_RNG) & 3 == 0 or rests(u, w + L.W_STARVED))):
                lowest = min(lowest, ld64(w + L.W_CLOCK))
                brought |= SKIPPED
                continue
            code = run_slice(u, c, w, policy)
            if code == 0:
                spinning += 1
            else:
                brought |= MOVED if code == 1 else MOVED | NEWS
            if ld64(w + L.W_READY) != 0:
                lowest = min(lowest, ld64(w + L.W_CLOCK))
            if ld64(launch + L.L_STOP) != 0:
                return brought | STOPPED
        if ld64(c + L.C_DONE) != 0:
            brought |= FINISHED
    st64(u + L.U_LOWEST, lowest)
    st64(u + L.U_SPINNING, spinning)
    return brought


@helper
def run_units(g, policy, awake):
    """A round of every unit of a group that is not done; gives what they brought together."""
    units = ld64(g + L.G_UNITS)
    count = ld64(g + L.G_COUNT)
    brought = 0
    for k in range(count):
        # lazy: what came late runs first, so that it sees the least of what came before
        u = ld64(units + 8 * (count - 1 - k if policy == L.POLICY_LAZY else k))
        if ld64(u + L.U_DONE) != 0:
            continue
        if ld64(ld64(u + L.U_LAUNCH) + L.L_STOP) != 0:
            return STOPPED
        if fill_slots(u) == 0:
            end_unit(u)
            brought |= FINISHED
            continue
        if ld64(u + L.U_LATE) != 0:
            brought |= LATE
        brought |= run_round(u, policy, awake)
        if brought & STOPPED:
            return brought
    return brought


@helper
def units_running(g):
    """Units of a group that are not done."""
    units = ld64(g + L.G_UNITS)
    running = 0
    for k in range(ld64(g + L.G_COUNT)):
        running += 1 - ld64(ld64(units + 8 * k) + L.U_DONE)
    return running


@helper
def run_group(g):
    """Run CTAs until none is left, an error stops a launch, or the host asks to stop: 0.

    1 when the next launch may start: the host brings its unit and calls again.
    """
    units = ld64(g + L.G_UNITS)
    policy = ld64(ld64(ld64(units) + L.U_LAUNCH) + L.L_POLICY)
    awake = False
    while True:
        brought = run_units(g, policy, awake)
        awake = False
        if brought & STOPPED:
            return 0
        if may_follow(g):
            st64(g + L.G_MORE, ld64(g + L.G_MORE) - 1)
            return 1
        if brought & FINISHED:
            st64(g + L.G_STALLED, 0)
            if units_running(g) == 0:
                return 0
            continue
        spinning = 0
        lowest = NEVER
        now = 0
        for k in range(ld64(g + L.G_COUNT)):
            u = ld64(units + 8 * k)
            if ld64(u + L.U_DONE) == 0:
                spinning += ld64(u + L.U_SPINNING)
                lowest = min(lowest, ld64(u + L.U_LOWEST))
                now = max(now, ld64(u + L.U_CLOCK))
        if lowest < NEVER:
            now = max(now, lowest)
            set_clock(g, now)
            if policy != L.POLICY_EAGER and policy != L.POLICY_LAZY and fire_all_due(g, now) > 0:
                brought |= NEWS
        if brought & NEWS:
            st64(g + L.G_STALLED, 0)
            st64(g + L.G_NEWS_CLOCK, now)
        if brought & (NEWS | MOVED | SKIPPED):
            continue
        if brought & RESTED:
            # Of many CTAs some always rest: whether anything can go on, a round of them all has to show.
            awake = True
            continue
        if not quiescent(g, policy, spinning) and brought & LATE == 0:
            give_up(g)
            return 0


@export
def tl_worker(g):
    """A worker: runs the group at address `g`. 1 when the host is to bring the next launch, else 0."""
    default_float_environment()
    more = run_group(g)
    if more == 0:
        units = ld64(g + L.G_UNITS)
        for k in range(ld64(g + L.G_COUNT)):
            abandon(ld64(units + 8 * k))
    return more
