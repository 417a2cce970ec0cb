"""CTAs on the SMs: how clusters start in free slots and end, and when a dependent launch may start.

A unit has a slot for each CTA that can be resident. Slots of a launch whose CTAs see each other are on fixed SMs and
filled as they come free; the clusters of other launches run in batches, each what a few SMs hold at a time.
"""

from __future__ import annotations

from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.machine.effects import run_op
from tensorladder.vgpu.machine.grids import cluster_ctas, cta_of, grid_ctas, trigger
from tensorladder.vgpu.machine.hooks import CHECK_END, CHECK_START, observe_cta
from tensorladder.vgpu.machine.native import helper
from tensorladder.vgpu.machine.queue import pending_op, release_op, remove_at, rng
from tensorladder.vgpu.machine.raw import fetch_add, fill_bytes, ld64, st32, st64
from tensorladder.vgpu.machine.tmem import begin_cta, end_cta
from tensorladder.vgpu.machine.trace import TRACE_CTA, traced


@helper
def starvation(u):
    """How many rounds a fresh CTA is left out: under random orders every second one comes late, some very late."""
    if ld64(ld64(u + L.U_LAUNCH) + L.L_POLICY) != L.POLICY_RANDOM:
        return 0
    r = rng(u + L.U_RNG)
    return 0 if r & 1 else (r >> 1) & (0xFF if r & 0x1000 else 0xF)


@helper
def start_cta(u, slot, linear):
    """Put CTA `linear` (x fastest) into a slot: poisoned memory and registers, all lanes at block 0."""
    launch = ld64(u + L.U_LAUNCH)
    c = ld64(u + L.U_CTAS) + slot * L.C_BYTES
    gx = ld64(launch + L.L_GRID)
    gy = ld64(launch + L.L_GRID + 8)
    x = linear % gx
    y = (linear // gx) % gy
    z = linear // (gx * gy)
    st64(c + L.C_STARVED, starvation(u))
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
    st64(c + L.C_DONE, 0)
    st64(c + L.C_TRIGGERED, 0)
    st64(c + L.C_CLC_FAILED, 0)
    st64(c + L.C_LIVE_WARPS, ld64(c + L.C_NWARPS))
    for i in range(16 * 4):
        st64(c + L.C_BAR + 8 * i, 0)
    st64(c + L.C_CLUSTER_BAR, 0)
    traced(launch, TRACE_CTA, ld64(u + L.U_CLOCK), linear, 0, ld64(c + L.C_SMID), u, c, ld64(c + L.C_SHARED), 0, 0)
    begin_cta(c)
    shared = ld64(c + L.C_SHARED)
    size = ld64(c + L.C_SHARED_SIZE)
    fill_bytes(shared, 0xFF, size)
    fill_bytes(ld64(c + L.C_MBAR_MAP), 0, (size + 63) // 64)
    threads = ld64(c + L.C_NTHREADS)
    for n in range(ld64(c + L.C_NWARPS)):
        start_warp(u, c, ld64(c + L.C_WARPS) + n * L.W_BYTES, n, threads, rank)
    observe_cta(c, CHECK_START, 0)


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
    st64(w + L.W_DONE_CLOCK, 0)
    st64(w + L.W_CLUSTER_ARRIVED, 0)
    st64(w + L.W_CLUSTER_DONE, 0)
    st64(w + L.W_STARVED, 0)
    st64(w + L.W_RETRY, 0)
    st64(w + L.W_WGMMA_GROUP, 0)
    st64(w + L.W_WGMMA_SEQ, 0)
    st64(w + L.W_MAXNREG, ld64(launch + L.L_REGISTERS))
    st64(w + L.W_SETMAXNREG, 0)
    st64(w + L.W_PASSED, 0)
    frame = ld64(w + L.W_FRAME)
    fill_bytes(frame, 0xFF, ld64(w + L.W_FRAME_BYTES))
    fill_bytes(ld64(w + L.W_LOCAL), 0xFF, (1 + ld64(launch + L.L_SHADOWED)) * L.LANES * ld64(w + L.W_LOCAL_SIZE))
    st64(w + L.W_UNDEFINED, 0)


@helper
def busy_ctas(u, first, size):
    """CTAs that run in `size` slots from `first` on."""
    busy = 0
    for k in range(size):
        if ld64(ld64(u + L.U_CTAS) + (first + k) * L.C_BYTES + L.C_DONE) == 0:
            busy += 1
    return busy


@helper
def start_cluster(u, first, cluster, size):
    """Start the CTAs of a cluster in neighbouring slots."""
    launch = ld64(u + L.U_LAUNCH)
    for k in range(size):
        start_cta(u, first + k, cta_of(launch, cluster, k))


@helper
def fill_batch(u, size):
    """Start the next U_BATCH clusters when those before them are done; the number of CTAs that run.

    What they do depends on nothing but their numbers, whichever worker runs them: randomness is their own.
    """
    launch = ld64(u + L.U_LAUNCH)
    busy = busy_ctas(u, 0, ld64(u + L.U_NCTAS))
    if busy != 0:
        return busy
    batch = ld64(u + L.U_BATCH)
    clusters = grid_ctas(launch) // size
    first = fetch_add(launch + L.L_NEXT_CTA, batch)
    st64(u + L.U_RNG, ld64(launch + L.L_SEED) * 1000003 + first * 7919 + 17)
    for n in range(min(batch, clusters - first)):
        for k in range(size):
            sm = (first // batch * size + k) % ld64(launch + L.L_NSMID)
            st64(ld64(u + L.U_CTAS) + (n * size + k) * L.C_BYTES + L.C_SMID, sm)
        start_cluster(u, n * size, first + n, size)
        busy += size
    return busy


@helper
def start_delay(launch):
    """Random policy: of 256 clusters that could start, how many start in a later round. By the seed: none to most."""
    x = ld64(launch + L.L_SEED) * 2654435761 + 40503
    kind = (x >> 16) & 3
    return 0 if kind == 0 else 64 if kind == 1 else 224 if kind == 2 else 254


@helper
def fill_slots(u):
    """Start CTAs in the empty slots, whole clusters at a time; the number of CTAs that run, or may yet start.

    Under the random policy a cluster may start late: a clusterlaunchcontrol.try_cancel can be faster.
    """
    launch = ld64(u + L.U_LAUNCH)
    size = cluster_ctas(launch)
    if ld64(u + L.U_BATCH) != 0:
        return fill_batch(u, size)
    clusters = grid_ctas(launch) // size
    slots = ld64(u + L.U_NCTAS)
    left = clusters - ld64(launch + L.L_NEXT_CTA)
    if left <= 0:
        st64(u + L.U_LATE, 0)
        return busy_ctas(u, 0, slots)
    group = ld64(u + L.U_GROUP)
    cost = size * ld64(u + L.U_COST)
    random = ld64(launch + L.L_POLICY) == L.POLICY_RANDOM
    delay = start_delay(launch) if random else 0
    running = 0
    late = 0
    for first in range(0, slots, size):
        busy = busy_ctas(u, first, size)
        if busy == 0 and left > 0 and ld64(group + L.G_ROOM) >= cost:
            if not random or rng(u + L.U_RNG) & 255 >= delay:
                st64(group + L.G_ROOM, ld64(group + L.G_ROOM) - cost)
                start_cluster(u, first, fetch_add(launch + L.L_NEXT_CTA, 1), size)
                left -= 1
                busy = size
            else:
                late = 1
        running += busy
    st64(u + L.U_LATE, late)
    return max(running, 1)


@helper
def leave(u, c):
    """The last warp of a CTA has exited: it leaves its SM."""
    observe_cta(c, CHECK_END, 0)
    take_shared(u, c)
    drain(u, c)
    end_cta(c)
    st64(c + L.C_DONE, 1)
    trigger(c)
    group = ld64(u + L.U_GROUP)
    st64(group + L.G_ROOM, ld64(group + L.G_ROOM) + ld64(u + L.U_COST))


@helper
def end_unit(u):
    """All CTAs of a launch have run: launches that wait for it may go on. (Workers that share one: see U_BATCH.)"""
    st64(u + L.U_DONE, 1)
    st64(ld64(u + L.U_LAUNCH) + L.L_COMPLETE, 1)


@helper
def may_follow(g):
    """Whether the next launch of the stream may start beside the last one that has."""
    count = ld64(g + L.G_COUNT)
    if ld64(g + L.G_MORE) == 0:
        return False
    units = ld64(g + L.G_UNITS)
    running = 0
    for k in range(count):
        running += 1 - ld64(ld64(units + 8 * k) + L.U_DONE)
    if running == 0:
        return True
    u = ld64(units + 8 * (count - 1))
    launch = ld64(u + L.U_LAUNCH)
    policy = ld64(launch + L.L_POLICY)
    if policy == L.POLICY_EAGER or running >= L.MOST_UNITS:
        return False
    if ld64(launch + L.L_TRIGGERED) < grid_ctas(launch):
        return False
    return policy != L.POLICY_RANDOM or rng(u + L.U_RNG) & 255 >= start_delay(launch)


@helper
def take_shared(u, c):
    """A CTA's shared memory goes back at its exit: copies that have not read it yet find something else there.

    Eager ones have; under `timed` they most likely had.
    """
    policy = ld64(ld64(u + L.U_LAUNCH) + L.L_POLICY)
    if policy != L.POLICY_LAZY and policy != L.POLICY_RANDOM:
        return
    for position in range(ld64(u + L.U_COUNT)):
        op = pending_op(u, position)
        kind = ld64(op + L.A_KIND)
        store = kind == L.OP_TMA_STORE or kind == L.OP_TMA_REDUCE or kind == L.OP_BULK_S2G or kind == L.OP_BULK_REDUCE
        if store and ld64(op + L.A_CTA) == c and ld64(op + L.A_STAGE) == 0:
            fill_bytes(ld64(c + L.C_SHARED), 0xFF, ld64(c + L.C_SHARED_SIZE))
            return


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
