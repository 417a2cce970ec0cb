"""The scheduler of a unit: fills its CTA slots, runs warps, lets asynchronous effects happen, sees hangs.

A round gives every warp that can run one slice. Between slices, blocked lanes whose condition holds are woken. When a
whole round brings nothing new the unit is quiescent: time moves on (timed, random), or one lazy effect is fired; when
nothing is left to fire, it is a deadlock.
"""

from __future__ import annotations

from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.machine.barriers import cluster_base, settle_barriers, settle_cluster, settle_gathering
from tensorladder.vgpu.machine.effects import abandon, run_op
from tensorladder.vgpu.machine.lanes import fail, wake
from tensorladder.vgpu.machine.native import export, helper
from tensorladder.vgpu.machine.queue import NEVER, movable, pending_op, release_op, remove_at, rng
from tensorladder.vgpu.machine.raw import (
    default_float_environment,
    fetch_add,
    fill_bytes,
    ld32,
    ld64,
    run_warp,
    st32,
    st64,
    trailing_zeros,
)
from tensorladder.vgpu.machine.tmem import begin_cta, can_allocate, end_cta, stores_done
from tensorladder.vgpu.machine.vectors import lanes_equal32, lanes_equal64
from tensorladder.vgpu.machine.wgmma import groups_pending

SLICE = 16384
TIMED_SLICE = 256
#: cycles without anything happening after which a kernel that reads clocks is taken to hang
PATIENCE = 1 << 31


@helper
def start_cta(u, slot, linear):
    """Put CTA `linear` (x fastest) into a slot: poisoned shared memory and registers, all lanes at block 0."""
    launch = ld64(u + L.U_LAUNCH)
    c = ld64(u + L.U_CTAS) + slot * L.C_BYTES
    gx = ld64(launch + L.L_GRID)
    gy = ld64(launch + L.L_GRID + 8)
    x = linear % gx
    y = (linear // gx) % gy
    z = linear // (gx * gy)
    st64(c + L.C_CTAID, x)
    st64(c + L.C_CTAID + 8, y)
    st64(c + L.C_CTAID + 16, z)
    cx = ld64(launch + L.L_CLUSTER)
    cy = ld64(launch + L.L_CLUSTER + 8)
    cz = ld64(launch + L.L_CLUSTER + 16)
    rank = x % cx + cx * (y % cy + cy * (z % cz))
    st64(c + L.C_RANK, rank)
    st64(c + L.C_CLUSTERID, x // cx)
    st64(c + L.C_CLUSTERID + 8, y // cy)
    st64(c + L.C_CLUSTERID + 16, z // cz)
    st64(c + L.C_LINEAR, linear)
    st64(c + L.C_SMID, linear % ld64(launch + L.L_NSMID))
    st64(c + L.C_DONE, 0)
    st64(c + L.C_LIVE_WARPS, ld64(c + L.C_NWARPS))
    for i in range(16 * 4):
        st64(c + L.C_BAR + 8 * i, 0)
    st64(c + L.C_CLUSTER_BAR, 0)
    begin_cta(c)
    shared = ld64(c + L.C_SHARED)
    size = ld64(c + L.C_SHARED_SIZE)
    fill_bytes(shared, 0xFF, size)
    fill_bytes(ld64(c + L.C_MBAR_MAP), 0, (size + 63) // 64)
    threads = ld64(c + L.C_NTHREADS)
    for n in range(ld64(c + L.C_NWARPS)):
        start_warp(u, c, ld64(c + L.C_WARPS) + n * L.W_BYTES, n, threads, rank)


@helper
def start_warp(u, c, w, n, threads, rank):
    """A warp at block 0. Fixed fields (frame, local memory) were set by the host."""
    launch = ld64(u + L.U_LAUNCH)
    bx = ld64(launch + L.L_BLOCK)
    by = ld64(launch + L.L_BLOCK + 8)
    live = 0
    for lane in range(L.LANES):
        t = n * L.LANES + lane
        if t < threads:
            live |= 1 << lane
        st32(w + L.W_TID_X + 4 * lane, t % bx)
        st32(w + L.W_TID_Y + 4 * lane, (t // bx) % by)
        st32(w + L.W_TID_Z + 4 * lane, t // (bx * by))
        st32(w + L.W_PC + 4 * lane, 0)
        st32(w + L.W_WAIT + 4 * lane, 0)
        st32(w + L.W_CP_GROUP + 4 * lane, 0)
        st32(w + L.W_BULK_GROUP + 4 * lane, 0)
    st64(w + L.W_LIVE, live)
    st64(w + L.W_READY, live)
    st64(w + L.W_MASK, live)
    st64(w + L.W_CLOCK, ld64(u + L.U_CLOCK))
    st64(w + L.W_ERROR, 0)
    st64(w + L.W_CTA, c)
    st64(w + L.W_LAUNCH, launch)
    st64(w + L.W_UNIT, u)
    st64(w + L.W_WARPID, n)
    st64(w + L.W_LO, 0)
    st64(w + L.W_HI, 0)
    st64(w + L.W_SHARED, ld64(c + L.C_SHARED))
    st64(w + L.W_SHARED_SIZE, ld64(c + L.C_SHARED_SIZE))
    st64(w + L.W_RANK, rank)
    st64(w + L.W_SMEM_BASE, rank << L.RANK_SHIFT)
    st64(w + L.W_PARAMS, ld64(launch + L.L_PARAMS))
    st64(w + L.W_LAST_PC, -1)
    st64(w + L.W_SPINS, 0)
    st64(w + L.W_PROGRESS, 0)
    st64(w + L.W_HASH, 0)
    st64(w + L.W_REPEATS, 0)
    st64(w + L.W_STATE, 0)
    st64(w + L.W_CLUSTER_ARRIVED, 0)
    st64(w + L.W_CLUSTER_DONE, 0)
    st64(w + L.W_WGMMA_GROUP, 0)
    st64(w + L.W_WGMMA_SEQ, 0)
    frame = ld64(w + L.W_FRAME)
    fill_bytes(frame, 0xFF, ld64(w + L.W_FRAME_BYTES))
    fill_bytes(ld64(w + L.W_LOCAL), 0xFF, L.LANES * ld64(w + L.W_LOCAL_SIZE))


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
    if kind == L.WAIT_CP or kind == L.WAIT_BULK or kind == L.WAIT_BULK_READ:
        return groups_done(w, kind, a, b)
    if kind == L.WAIT_TMEM_ALLOC:
        return can_allocate(w, a, b)
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
    if lanes != 0:
        wake(w, lanes)
        now = ld64(ld64(w + L.W_UNIT) + L.U_CLOCK)
        if ld64(w + L.W_CLOCK) < now:
            st64(w + L.W_CLOCK, now)
    return news


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
def going_round(u, quiet):
    """Whether every live warp repeats itself, in the `quiet`th quiescent round since something happened.

    Memory does not change meanwhile, so a warp that comes to a state again will do so for ever. States are compared
    with one taken in a round 1, 2, 4, 8, ... (Brent's search for a cycle). A kernel that reads a clock may end by
    itself: it gets a second of the chip's time.
    """
    if ld64(ld64(u + L.U_LAUNCH) + L.L_CLOCKED) != 0:
        return ld64(u + L.U_CLOCK) - ld64(u + L.U_NEWS_CLOCK) > PATIENCE
    take = quiet & (quiet - 1) == 0
    every = quiet > 1
    for slot in range(ld64(u + L.U_NCTAS)):
        c = ld64(u + L.U_CTAS) + slot * L.C_BYTES
        if ld64(c + L.C_DONE) != 0:
            continue
        for n in range(ld64(c + L.C_NWARPS)):
            w = ld64(c + L.C_WARPS) + n * L.W_BYTES
            if ld64(w + L.W_LIVE) == 0:
                continue
            h = frame_hash(w)
            if h == ld64(w + L.W_HASH) and not sleeps_since(w, ld64(u + L.U_SAVED)):
                st64(w + L.W_REPEATS, 1)
            every = every and ld64(w + L.W_REPEATS) != 0
            if take:
                st64(w + L.W_HASH, h)
                st64(w + L.W_REPEATS, 0)
    if take:
        st64(u + L.U_SAVED, ld64(u + L.U_ROUND))
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
def fill_slots(u):
    """Start CTAs in the empty slots, whole clusters at a time; the number of CTAs that run."""
    launch = ld64(u + L.U_LAUNCH)
    grid = ld64(launch + L.L_GRID) * ld64(launch + L.L_GRID + 8) * ld64(launch + L.L_GRID + 16)
    size = ld64(launch + L.L_CLUSTER) * ld64(launch + L.L_CLUSTER + 8) * ld64(launch + L.L_CLUSTER + 16)
    running = 0
    slots = ld64(u + L.U_NCTAS)
    for first in range(0, slots, size):
        busy = 0
        for k in range(size):
            if ld64(ld64(u + L.U_CTAS) + (first + k) * L.C_BYTES + L.C_DONE) == 0:
                busy += 1
        if busy == 0:
            cluster = fetch_add(launch + L.L_NEXT_CTA, 1)
            if cluster * size < grid:
                if slots == size:  # one cluster at a time: its randomness is its own
                    st64(u + L.U_RNG, ld64(launch + L.L_SEED) * 1000003 + cluster * 7919 + 17)
                for k in range(size):
                    start_cta(u, first + k, cta_of(launch, cluster, k))
                busy = size
        running += busy
    return running


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
def run_slice(u, c, w, policy):
    """One slice of a warp: 0 nothing new, 1 it blocked, 2 something happened that others can see."""
    before = ld64(w + L.W_PROGRESS)
    length = SLICE
    if policy == L.POLICY_RANDOM:
        r = rng(u + L.U_RNG)
        length = (r & 63) + 1 if r & 0x100 else (r >> 9) & 0xFFF
    elif policy == L.POLICY_TIMED:
        length = TIMED_SLICE
    start = ld64(w + L.W_CLOCK)
    st64(w + L.W_LIMIT, start + length)
    code = run_warp(ld64(w + L.W_KERNEL), w)
    st64(u + L.U_INSTRS, ld64(u + L.U_INSTRS) + ld64(w + L.W_CLOCK) - start)
    launch = ld64(u + L.U_LAUNCH)
    if code == L.RET_EXIT:
        st64(w + L.W_STATE, 2)
        live = ld64(c + L.C_LIVE_WARPS) - 1
        st64(c + L.C_LIVE_WARPS, live)
        settle_barriers(c)
        if live == 0:
            drain(u, c)
            end_cta(c)
            st64(c + L.C_DONE, 1)
        return 2
    if code == L.RET_ERROR:
        st64(launch + L.L_STOP, 1)
        return 2
    if ld64(w + L.W_PROGRESS) != before:
        return 2
    return 1 if code == L.RET_BLOCKED else 0


@helper
def drain(u, c):
    """A CTA is done: what its threads issued and did not wait for still happens, in order."""
    position = 0
    while position < ld64(u + L.U_COUNT):
        op = pending_op(u, position)
        if ld64(op + L.A_CTA) == c:
            while not run_op(u, op):
                pass
            remove_at(u, position)
            release_op(u, op)
        else:
            position += 1


@helper
def quiescent(u, policy, spinning):
    """Nothing moved in a round. Let time pass or an effect happen: false when nothing is left (deadlock)."""
    if policy == L.POLICY_LAZY and fire_first(u):
        return True
    when = next_event(u)
    pending = ld64(u + L.U_COUNT) > 0
    if when < NEVER and when > ld64(u + L.U_CLOCK):
        st64(u + L.U_CLOCK, when)
    if pending and (fire_due(u, when) != 0 or fire_first(u)):
        return True
    quiet = ld64(u + L.U_STALLED) + 1
    st64(u + L.U_STALLED, quiet)
    st64(u + L.U_ROUND, ld64(u + L.U_ROUND) + 1)
    # a round in which nobody sleeps tells more about who waits on what
    if going_round(u, quiet) and (when >= NEVER or quiet > 64):
        return False
    return time_out_waits(u) != 0 or spinning != 0 or when < NEVER


@helper
def run_unit(u):
    """Run CTAs until none is left, an error stops the launch, or the host asks to stop."""
    launch = ld64(u + L.U_LAUNCH)
    policy = ld64(launch + L.L_POLICY)
    while fill_slots(u) > 0:
        if ld64(launch + L.L_STOP) != 0:
            return
        moved = False
        news = False  # something other than that warps blocked (again)
        skipped = False
        spinning = 0
        finished = False
        slots = ld64(u + L.U_NCTAS)
        offset = rng(u + L.U_RNG) if policy == L.POLICY_RANDOM else 0
        lowest = NEVER
        for s in range(slots):
            c = ld64(u + L.U_CTAS) + ((s + offset) % slots) * L.C_BYTES
            if ld64(c + L.C_DONE) != 0:
                continue
            count = ld64(c + L.C_NWARPS)
            for k in range(count):
                w = ld64(c + L.C_WARPS) + ((k + offset) % count) * L.W_BYTES
                live = ld64(w + L.W_LIVE)
                if live == 0:
                    continue
                if ld64(w + L.W_READY) != live:
                    news |= wake_ready(w)
                if ld64(w + L.W_READY) == 0:
                    continue
                if policy == L.POLICY_RANDOM and rng(u + L.U_RNG) & 3 == 0:
                    lowest = min(lowest, ld64(w + L.W_CLOCK))
                    skipped = True
                    continue
                if policy == L.POLICY_TIMED and ld64(w + L.W_CLOCK) > ld64(u + L.U_CLOCK) + TIMED_SLICE:
                    lowest = min(lowest, ld64(w + L.W_CLOCK))
                    skipped = True
                    continue
                code = run_slice(u, c, w, policy)
                if code == 0:
                    spinning += 1
                moved |= code != 0
                news |= code == 2
                if ld64(w + L.W_READY) != 0:
                    lowest = min(lowest, ld64(w + L.W_CLOCK))
                if ld64(launch + L.L_STOP) != 0:
                    return
            if ld64(c + L.C_DONE) != 0:
                finished = True
        if finished:
            continue
        if lowest < NEVER:
            if lowest > ld64(u + L.U_CLOCK):
                st64(u + L.U_CLOCK, lowest)
            if policy != L.POLICY_EAGER and policy != L.POLICY_LAZY:
                news |= fire_due(u, ld64(u + L.U_CLOCK)) > 0
        if news:
            st64(u + L.U_STALLED, 0)
            st64(u + L.U_NEWS_CLOCK, ld64(u + L.U_CLOCK))
        if news or moved:
            continue
        if skipped:
            continue
        if not quiescent(u, policy, spinning):
            w = any_warp(u)
            if w != 0:
                fail(w, L.ERR_DEADLOCK, 0, 0, u, 0, 0)
            st64(launch + L.L_STOP, 1)
            return


@export
def tl_worker(u):
    """A worker: runs the unit at address `u`."""
    default_float_environment()
    run_unit(u)
    abandon(u)
    return 0
