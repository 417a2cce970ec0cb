"""Barriers of a warp, a CTA and a cluster (PTX ISA, "bar", "barrier", "bar.warp.sync", "barrier.cluster").

A named barrier counts warps, 32 threads each: a warp has arrived when all its lanes that have not exited are at the
barrier, whether at one instruction or apart. The lanes that come first wait for the others of their warp
(WAIT_BAR_WARP), then the warp waits for the barrier's generation to end (WAIT_BAR; WAIT_BAR_RED with a reduction).
"""

from __future__ import annotations

from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.machine.hooks import (
    CHECK_APART,
    CHECK_BAR,
    CHECK_BAR_DONE,
    CHECK_CLUSTER_ARRIVE,
    CHECK_CLUSTER_WAIT,
    CHECK_FENCE,
    CHECK_WARP_SYNC,
    EVENT_ARRIVE,
    EVENT_FENCE,
    EVENT_WAIT,
    observe,
    observe_cta,
    record,
)
from tensorladder.vgpu.machine.lanes import arrive_at, block, fail, settle_warp_syncs, wake
from tensorladder.vgpu.machine.native import export, helper
from tensorladder.vgpu.machine.raw import ld32, ld64, popcount, st32, st64, trailing_zeros
from tensorladder.vgpu.machine.trace import arrived, bar_stamp, catch_up, is_timed
from tensorladder.vgpu.machine.vectors import lanes_equal32, put_lanes32

#: operations of tl_bar
BAR_SYNC, BAR_ARRIVE, BAR_POPC, BAR_AND, BAR_OR = range(5)
_BARRIERS = 16
_ARRIVED, _EXPECTED, _GENERATION, _VOTES = 0, 8, 16, 24
#: the cluster's barrier in the hooks' records, beside the named ones 0 to 15
CLUSTER_BARRIER = 16


@helper
def progress(w):
    """Something changed that other warps can see."""
    st64(w + L.W_PROGRESS, ld64(w + L.W_PROGRESS) + 1)


@export
def tl_uniform(w, values, lanes, iid):
    """The value (u32) that all these lanes hold; an error when they differ."""
    first = trailing_zeros(lanes)
    value = ld32(values + 4 * first)
    for lane in range(first, L.LANES):
        if (lanes >> lane) & 1 and ld32(values + 4 * lane) != value:
            fail(w, L.ERR_BARRIER_SPLIT, iid, lane, 0, value, ld32(values + 4 * lane))
    return value


# ---------------------------------------------------------------- named barriers
@helper
def wanted(c, bar):
    """Threads that complete the barrier's present generation."""
    expected = ld64(bar + _EXPECTED)
    return expected if expected != 0 else L.LANES * ld64(c + L.C_LIVE_WARPS)


@helper
def reduction(op, votes):
    """Result of bar.red from (true | false << 32)."""
    yes = votes & 0xFFFFFFFF
    if op == BAR_AND:
        return 1 if votes >> 32 == 0 else 0
    if op == BAR_OR:
        return 1 if yes != 0 else 0
    return yes


@helper
def complete(c, index):
    """End a barrier's generation: who waits for a reduction gets it, the scheduler finds the others."""
    bar = c + L.C_BAR + index * L.C_BAR_STRIDE
    votes = ld64(bar + _VOTES)
    generation = ld64(bar + _GENERATION)
    observe_cta(c, CHECK_BAR_DONE, index)
    if votes != 0:
        for n in range(ld64(c + L.C_NWARPS)):
            w = ld64(c + L.C_WARPS) + n * L.W_BYTES
            waiting = ld64(w + L.W_LIVE) & ~ld64(w + L.W_READY)
            for lane in range(L.LANES):
                if (waiting >> lane) & 1 and ld32(w + L.W_WAIT + 4 * lane) == L.WAIT_BAR_RED:
                    b = ld64(w + L.W_WAIT_B + 8 * lane)
                    if ld64(w + L.W_WAIT_A + 8 * lane) == index and b >> 3 == generation:
                        give_result(w, lane, reduction(b & 7, votes))
    st64(bar + _ARRIVED, 0)
    st64(bar + _EXPECTED, 0)
    st64(bar + _VOTES, 0)
    st64(bar + _GENERATION, generation + 1)


@helper
def give_result(w, lane, value):
    """A lane that executes its bar.red again will find the result."""
    wake(w, 1 << lane)
    st32(w + L.W_WAIT + 4 * lane, L.WAIT_RESULT)
    st64(w + L.W_WAIT_A + 8 * lane, value)


@helper
def settle_barriers(c):
    """Barriers of the whole CTA complete when the warps that are missing have exited."""
    for index in range(_BARRIERS):
        bar = c + L.C_BAR + index * L.C_BAR_STRIDE
        arrived = ld64(bar + _ARRIVED)
        if arrived > 0 and ld64(bar + _EXPECTED) == 0 and arrived >= wanted(c, bar):
            complete(c, index)


@helper
def gathering(w, index):
    """Lanes of a warp that wait at a barrier for the others of their warp."""
    lanes = lanes_equal32(w + L.W_WAIT, L.WAIT_BAR_WARP) & ld64(w + L.W_LIVE)
    left = lanes
    while left != 0:
        lane = trailing_zeros(left)
        left &= left - 1
        if ld64(w + L.W_WAIT_A + 8 * lane) & 0xFF != index:
            lanes &= ~(1 << lane)
    return lanes


@helper
def count_allowed(w, index, count, op, iid, lane):
    """Whether barrier and thread count (0: the whole CTA) exist and go with those of the other warps."""
    if index >= _BARRIERS:
        fail(w, L.ERR_BARRIER_ID, iid, lane, 0, index, 0)
        return False
    c = ld64(w + L.W_CTA)
    bar = c + L.C_BAR + index * L.C_BAR_STRIDE
    threads = L.LANES * ld64(c + L.C_NWARPS)
    ok = count % L.LANES == 0 and count <= threads and (count > 0 or op != BAR_ARRIVE)
    expected = ld64(bar + _EXPECTED)
    if ld64(bar + _ARRIVED) > 0 and expected != count:
        ok = ok and (expected if expected != 0 else threads) == (count if count != 0 else threads)
    if not ok:
        fail(w, L.ERR_BARRIER_COUNT, iid, lane, expected, index, count)
    return ok


@helper
def count_warp(w, index, count):
    """Count an arrived warp, and end the generation with the last one; gives the number of the generation."""
    c = ld64(w + L.W_CTA)
    bar = c + L.C_BAR + index * L.C_BAR_STRIDE
    generation = ld64(bar + _GENERATION)
    if is_timed(w):
        arrived(w, bar_stamp(c, index, generation), bar)
    present = ld64(bar + _ARRIVED) + L.LANES
    if present == L.LANES:
        st64(bar + _EXPECTED, count)
    st64(bar + _ARRIVED, present)
    if present >= wanted(c, bar):
        complete(c, index)
    return generation


@helper
def warp_arrives(w, index, lanes, count):
    """All lanes of a warp wait at a barrier for each other: the warp arrives."""
    bar = ld64(w + L.W_CTA) + L.C_BAR + index * L.C_BAR_STRIDE
    generation = ld64(bar + _GENERATION)
    for lane in range(L.LANES):
        if (lanes >> lane) & 1 == 0:
            continue
        op = ld64(w + L.W_WAIT_A + 8 * lane) >> 8
        st64(w + L.W_WAIT_A + 8 * lane, index)
        if op == BAR_ARRIVE:
            wake(w, 1 << lane)
        elif op == BAR_SYNC:
            st32(w + L.W_WAIT + 4 * lane, L.WAIT_BAR)
            st64(w + L.W_WAIT_B + 8 * lane, generation)
        else:
            st32(w + L.W_WAIT + 4 * lane, L.WAIT_BAR_RED)
            st64(w + L.W_WAIT_B + 8 * lane, generation << 3 | op)
    count_warp(w, index, count)
    if ld64(bar + _GENERATION) != generation:
        wake(w, lanes & lanes_equal32(w + L.W_WAIT, L.WAIT_BAR))


@export
def tl_bar(w, op, index, count, lanes, yes, iid):
    """A lane group at a named barrier; `yes`: lanes whose predicate holds (reductions).

    Gives -1 when the lanes have to be looked at again (they wait, or others of the warp go on with them), else they go
    on, with this result of the reduction.
    """
    first = trailing_zeros(lanes)
    if op >= BAR_POPC and ld32(w + L.W_WAIT + 4 * first) == L.WAIT_RESULT:
        put_lanes32(w + L.W_WAIT, lanes, L.WAIT_NONE)
        return ld64(w + L.W_WAIT_A + 8 * first)
    if not count_allowed(w, index, count, op, iid, first):
        return -1
    bar = ld64(w + L.W_CTA) + L.C_BAR + index * L.C_BAR_STRIDE
    if op >= BAR_POPC:
        votes = popcount(yes & lanes) + (popcount(lanes & ~yes) << 32)
        st64(bar + _VOTES, ld64(bar + _VOTES) + votes)
    record(w, EVENT_ARRIVE, index | count << 8 | op << 32, ld64(bar + _GENERATION), lanes, iid)
    observe(w, CHECK_BAR, index, op, count, lanes, iid)
    progress(w)
    if lanes == ld64(w + L.W_LIVE) and op < BAR_POPC:  # the usual case, in short
        generation = count_warp(w, index, count)
        if op == BAR_SYNC and ld64(bar + _GENERATION) == generation:
            block(w, lanes, L.WAIT_BAR, index, generation, iid)
            return -1
        if op == BAR_SYNC and is_timed(w):
            catch_up(w, ld64(bar_stamp(ld64(w + L.W_CTA), index, generation)), L.WAIT_BAR, index, generation, iid)
        return 0
    others = gathering(w, index)
    arrive_at(w, lanes)
    block(w, lanes, L.WAIT_BAR_WARP, index | op << 8, count | iid << 32, iid)
    if ld64(w + L.W_LIVE) & ~(lanes | others) != 0:
        return -1
    warp_arrives(w, index, lanes | others, count)
    if others == 0 and ld64(w + L.W_READY) & lanes == lanes:
        if op < BAR_POPC:
            return 0
        put_lanes32(w + L.W_WAIT, lanes, L.WAIT_NONE)
        return ld64(w + L.W_WAIT_A + 8 * first)
    return -1


@helper
def settle_gathering(w):
    """Lanes that wait at a barrier for lanes of their warp that have exited meanwhile: the warp arrives."""
    live = ld64(w + L.W_LIVE)
    first = trailing_zeros(live)
    if live == 0 or ld32(w + L.W_WAIT + 4 * first) != L.WAIT_BAR_WARP:
        return
    index = ld64(w + L.W_WAIT_A + 8 * first) & 0xFF
    if gathering(w, index) == live:
        warp_arrives(w, index, live, ld64(w + L.W_WAIT_B + 8 * first) & 0xFFFFFFFF)


@export
def tl_hook_apart(w, index, lanes, iid):
    """Checked variant: an .aligned barrier is one instruction for the whole warp."""
    others = gathering(w, index)
    if others != 0:
        other = ld64(w + L.W_WAIT_B + 8 * trailing_zeros(others)) >> 32
        if other != iid:
            observe(w, CHECK_APART, other, others, 0, lanes, iid)
    return 0


# ---------------------------------------------------------------- bar.warp.sync
@export
def tl_warp_sync(w, masks, lanes, iid):
    """Lanes at a bar.warp.sync with their masks (i32): 1 when they go on as they are, 0 to look for a group again."""
    live = ld64(w + L.W_LIVE)
    together = True
    for lane in range(L.LANES):
        if (lanes >> lane) & 1:
            mask = ld32(masks + 4 * lane)
            if (mask >> lane) & 1 == 0:
                fail(w, L.ERR_COLLECTIVE_MASK, iid, lane, 0, mask, 0)
                return 0
            together = together and mask & live & ~lanes == 0
    record(w, EVENT_ARRIVE, 1 << 16, ld32(masks + 4 * trailing_zeros(lanes)), lanes, iid)
    arrive_at(w, lanes)
    if together:
        observe(w, CHECK_WARP_SYNC, ld32(masks + 4 * trailing_zeros(lanes)), 0, 0, lanes, iid)
        return 1
    for lane in range(L.LANES):
        if (lanes >> lane) & 1:
            block(w, 1 << lane, L.WAIT_WARP, ld32(masks + 4 * lane), 0, iid)
    settle_warp_syncs(w)
    return 0


# ---------------------------------------------------------------- the cluster's barrier
@helper
def cluster_base(w):
    """The CTA of rank 0 of a warp's cluster."""
    return ld64(w + L.W_CTA) - ld64(w + L.W_RANK) * L.C_BYTES


@helper
def cluster_size(w):
    """CTAs in the cluster."""
    launch = ld64(w + L.W_LAUNCH)
    return ld64(launch + L.L_CLUSTER) * ld64(launch + L.L_CLUSTER + 8) * ld64(launch + L.L_CLUSTER + 16)


@helper
def settle_cluster(w):
    """End the generation of the cluster's barrier when every lane that has not exited has arrived."""
    base = cluster_base(w)
    size = cluster_size(w)
    for k in range(size):
        c = base + k * L.C_BYTES
        for n in range(ld64(c + L.C_NWARPS)):
            other = ld64(c + L.C_WARPS) + n * L.W_BYTES
            if ld64(other + L.W_LIVE) & ~ld64(other + L.W_CLUSTER_ARRIVED) != 0:
                return
    for k in range(size):
        c = base + k * L.C_BYTES
        for n in range(ld64(c + L.C_NWARPS)):
            other = ld64(c + L.C_WARPS) + n * L.W_BYTES
            st64(other + L.W_CLUSTER_DONE, ld64(other + L.W_CLUSTER_DONE) | ld64(other + L.W_CLUSTER_ARRIVED))
            st64(other + L.W_CLUSTER_ARRIVED, 0)
    st64(base + L.C_CLUSTER_BAR, ld64(base + L.C_CLUSTER_BAR) + 1)


@export
def tl_cluster_arrive(w, lanes, relaxed, iid):
    """barrier.cluster.arrive."""
    if lanes == 0:
        return 0
    arrived = ld64(w + L.W_CLUSTER_ARRIVED)
    twice = lanes & (arrived | ld64(w + L.W_CLUSTER_DONE))
    if twice != 0:
        fail(w, L.ERR_CLUSTER_ARRIVE, iid, trailing_zeros(twice), 0, 0, 0)
        return 0
    record(w, EVENT_ARRIVE, CLUSTER_BARRIER | relaxed << 8, ld64(cluster_base(w) + L.C_CLUSTER_BAR), lanes, iid)
    observe(w, CHECK_CLUSTER_ARRIVE, ld64(cluster_base(w) + L.C_CLUSTER_BAR), relaxed, 0, lanes, iid)
    st64(w + L.W_CLUSTER_ARRIVED, arrived | lanes)
    settle_cluster(w)
    progress(w)
    return 0


@export
def tl_cluster_wait(w, lanes, iid):
    """barrier.cluster.wait: 1 to go on, 0 when the lanes wait (they execute it again)."""
    done = ld64(w + L.W_CLUSTER_DONE)
    never = lanes & ~(done | ld64(w + L.W_CLUSTER_ARRIVED))
    if never != 0:
        fail(w, L.ERR_CLUSTER_WAIT, iid, trailing_zeros(never), 0, 0, 0)
        return 0
    generation = ld64(cluster_base(w) + L.C_CLUSTER_BAR)
    if lanes & ~done != 0:
        block(w, lanes & ~done, L.WAIT_CLUSTER, generation, 0, iid)
        return 0
    st64(w + L.W_CLUSTER_DONE, done & ~lanes)
    record(w, EVENT_WAIT, CLUSTER_BARRIER, generation - 1, lanes, iid)
    observe(w, CHECK_CLUSTER_WAIT, generation - 1, 0, 0, lanes, iid)
    return 1


# ---------------------------------------------------------------- time, and what only the checked variant sees
@export
def tl_sleep(w, durations, lanes, iid):
    """nanosleep: durations (i32, nanoseconds; at most a millisecond) of the lanes."""
    khz = ld64(ld64(w + L.W_LAUNCH) + L.L_CLOCK_KHZ)
    now = max(ld64(w + L.W_CLOCK), ld64(ld64(w + L.W_UNIT) + L.U_CLOCK))
    for lane in range(L.LANES):
        if (lanes >> lane) & 1:
            ns = min(ld32(durations + 4 * lane), 1000000)
            block(w, 1 << lane, L.WAIT_TIME, now + ns * khz // 1000000, ld64(ld64(w + L.W_UNIT) + L.U_ROUND), iid)
    return 0


@export
def tl_hook_fence(w, what, addresses, lanes, iid):
    """A fence, as codegen.sync numbers it; addresses: of the tensor map that it names, by lane, or 0."""
    record(w, EVENT_FENCE, what, 0, lanes, iid)
    if lanes != 0:
        observe(w, CHECK_FENCE, what, addresses, 0, lanes, iid)
    return 0
