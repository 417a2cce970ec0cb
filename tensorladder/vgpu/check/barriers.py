"""What orders warps: mbarriers by phase, named and cluster barriers, fences of memory and of proxies."""

from __future__ import annotations

from tensorladder.vgpu.check import layout as X
from tensorladder.vgpu.check.clocks import (
    acquire_from,
    before,
    clear,
    clock_of,
    component,
    copy,
    epoch_of,
    fenced_proxy,
    fenced_tensor,
    join,
    known,
    raise_to,
    record_of,
    release_to,
    site_of,
    slot_record,
    tick,
    visible,
)
from tensorladder.vgpu.check.executed import (
    arrives,
    come_to,
    executed,
    executed_in_phase,
    forget,
    forget_phases,
    go_on,
    of_bar,
    of_cluster,
    phase_over,
    separate,
    waited,
)
from tensorladder.vgpu.check.exits import visit
from tensorladder.vgpu.check.fences import keep_fence
from tensorladder.vgpu.check.lanes import all_met
from tensorladder.vgpu.check.maps import fence_map
from tensorladder.vgpu.check.order import (
    LEVEL_CLUSTER,
    LEVEL_CTA,
    LEVEL_GPU,
    fence_level,
    fenced_at,
    memory_fence,
    take_pending,
    too_narrow,
)
from tensorladder.vgpu.check.rounds import in_its_round, in_its_turn
from tensorladder.vgpu.check.shadow import at_place, found, same, shared_place
from tensorladder.vgpu.check.widths import (
    arrive_at_bar,
    fenced_widely,
    hand_on,
    learn,
    learn_at_bar,
    learn_from,
    own_complete,
)
from tensorladder.vgpu.codegen.sync import (
    FENCE_ASYNC,
    FENCE_ASYNC_GENERIC,
    FENCE_MBARRIER_INIT,
    FENCE_MEMORY,
    FENCE_TCGEN05,
    FENCE_TENSOR_MAP,
    FENCE_WGMMA,
)
from tensorladder.vgpu.machine.barriers import BAR_ARRIVE
from tensorladder.vgpu.machine.mbarrier import RELAXED, SCOPE_CLUSTER, SCOPE_CTA, WAIT_BY_STATE
from tensorladder.vgpu.machine.native import helper
from tensorladder.vgpu.machine.raw import ld32, ld64, st32, st64, trailing_zeros

_GLOBAL_ONLY = 1
_CLUSTER_SCOPE = 2
_RELEASE = 4  # a fence's semantics (codegen.sync)


# ---------------------------------------------------------------- mbarriers
@helper
def barrier_at(x, host):
    """B_ record of the mbarrier at a host address, 0 for none."""
    place = shared_place(x, host)
    if place < 0:
        return 0
    y = slot_record(x, place >> 32)
    number = ld32(ld64(y + X.Y_BARRIER_MAP) + 4 * ((place & 0xFFFFFFFF) >> 3))
    return 0 if number == 0 else ld64(x + X.X_B) + (number - 1) * X.B_BYTES


@helper
def number_of_barrier(x, b):
    """An mbarrier's number, from its record."""
    return (b - ld64(x + X.X_B)) // X.B_BYTES


@helper
def phase_clocks(x, b):
    """Clocks (V, P) of an mbarrier's phase that runs; those of complete phases follow, then V of all but the last."""
    return ld64(x + X.X_B_CLOCKS) + X.B_CLOCKS * number_of_barrier(x, b) * ld64(x + X.X_CLOCK_BYTES)


@helper
def complete_clocks(x, b):
    """Clocks (V, P) of an mbarrier's complete phases."""
    return phase_clocks(x, b) + 2 * ld64(x + X.X_CLOCK_BYTES)


@helper
def seen_by(x, b, warp):
    """Where it is kept which phase of an mbarrier a warp of its CTA saw complete, and at which clock."""
    return ld64(x + X.X_B_SEEN) + 16 * (number_of_barrier(x, b) * ld64(x + X.X_WARPS) + warp)


@helper
def new_barrier(x, slot, offset):
    """A record for an mbarrier that is there for the first time; 0 when there are too many."""
    number = ld64(x + X.X_B_USED)
    if number >= ld64(x + X.X_B_MAX):
        st64(x + X.X_OVERFLOW, 1)
        return 0
    st64(x + X.X_B_USED, number + 1)
    b = ld64(x + X.X_B) + number * X.B_BYTES
    st64(b + X.B_COMPONENT, component(x, X.K_IS_MBARRIER, slot, number, 0))
    st64(b + X.B_SLOT, slot)
    st64(b + X.B_OFFSET, offset)
    st32(ld64(slot_record(x, slot) + X.Y_BARRIER_MAP) + 4 * (offset >> 3), number + 1)
    return b


@helper
def name_barrier(x, n, lanes, b):
    """Findings are about this mbarrier now."""
    at_place(x, n, lanes, X.SPACE_SHARED, ld64(b + X.B_SLOT), ld64(b + X.B_OFFSET), ld64(b + X.B_OFFSET) + 8)


@helper
def on_init(x, n, host, count, lanes, iid):
    """CHECK_INIT."""
    b = barrier_at(x, host)
    if b == 0:
        place = shared_place(x, host)
        b = new_barrier(x, place >> 32, place & 0xFFFFFFFF)
        if b == 0:
            return
    elif ld64(b + X.B_INIT) != 0:
        name_barrier(x, n, lanes, b)
        once = same(ld64(b + X.B_INIT), epoch_of(n, clock_of(known(x, n), n), 0, 0))
        alike = once and ld64(b + X.B_INIT_SITE) == site_of(n, iid) and ld64(b + X.B_COUNT) == count
        code = X.BARRIER_TOGETHER if alike else X.BARRIER_TWICE
        found(x, code, site_of(n, iid), 0, ld64(b + X.B_INIT_SITE), ld64(b + X.B_INIT), 0, 0)
    size = ld64(x + X.X_CLOCK_BYTES)
    clocks = phase_clocks(x, b)
    for k in range(X.B_CLOCKS):
        clear(x, clocks + k * size)
    forget_phases(x, number_of_barrier(x, b))
    for warp in range(ld64(x + X.X_WARPS)):
        st64(seen_by(x, b, warp), -1)
    st64(b + X.B_BASE, ld64(b + X.B_PHASES))
    st64(b + X.B_COUNT, count)
    st64(b + X.B_ARRIVED, -1)
    st64(b + X.B_SIGN, 0)
    st64(b + X.B_DOUBT, 0)
    st64(b + X.B_INIT, epoch_of(n, clock_of(known(x, n), n), trailing_zeros(lanes), 0))
    st64(b + X.B_INIT_SITE, site_of(n, iid))


@helper
def on_inval(x, host):
    """CHECK_INVAL."""
    b = barrier_at(x, host)
    if b != 0:
        st64(b + X.B_INIT, 0)


@helper
def use_barrier(x, n, b, lanes, by_async, iid):
    """Judge the use of an mbarrier by a warp, or by an asynchronous operation that it issues.

    Asynchronous operations access their mbarrier through the generic proxy (PTX ISA 9.3, cp.async.bulk, tcgen05.commit
    and others): those of its own CTA want no proxy fence.
    """
    init = ld64(b + X.B_INIT)
    if init == 0:
        return
    if not before(x, known(x, n), init, 1):
        name_barrier(x, n, lanes, b)
        found(x, X.BARRIER_NOT_VISIBLE, site_of(n, iid), 0, ld64(b + X.B_INIT_SITE), init, 0, 0)
    elif by_async and ld64(b + X.B_SLOT) != n // ld64(x + X.X_WARPS):
        owner = (init >> 48) - 1
        if ld64(record_of(x, owner) + X.Z_INIT_FENCE) <= (init >> 16) & 0xFFFFFFFF:
            name_barrier(x, n, lanes, b)
            found(x, X.BARRIER_NOT_FENCED, site_of(n, iid), 0, ld64(b + X.B_INIT_SITE), init, 0, 0)


@helper
def loads_waited(x, n, lanes, iid):
    """Before a warp hands on, its tcgen05.ld should have been waited for."""
    z = record_of(x, n)
    load = ld64(z + X.Z_LD_OPEN)
    if load != 0:
        st64(z + X.Z_LD_OPEN, 0)
        at_place(x, n, lanes, X.SPACE_TMEM, 0, 0, 0)
        found(x, X.WAIT_LD, site_of(n, load - 1), 0, site_of(n, iid), 0, 0, 0)


@helper
def on_arrive(x, n, host, flags, sign, lanes, iid):
    """CHECK_ARRIVE: a release into the phase that runs; sign: rounds.arrival_sign."""
    b = barrier_at(x, host)
    if b == 0:
        return
    use_barrier(x, n, b, lanes, False, iid)
    in_its_round(x, n, b, complete_clocks(x, b), lanes, iid)
    loads_waited(x, n, lanes, iid)
    access = ld64(record_of(x, n) + X.Z_BEFORE)
    if access != 0:
        st64(record_of(x, n) + X.Z_BEFORE, 0)
        at_place(x, n, lanes, X.SPACE_TMEM, 0, 0, 0)
        found(x, X.BEFORE_SYNC, site_of(n, iid), 0, site_of(n, access - 1), 0, 0, 0)
    st64(b + X.B_ARRIVED, site_of(n, iid))
    arrives(x, n, number_of_barrier(x, b))
    if flags & RELAXED == 0 and not out_of_scope(x, n, b, flags, iid):
        if ld64(record_of(x, n) + X.Z_ARRIVAL) == sign:  # by other lanes of one instruction: at the clock of the first
            st32(known(x, n) + 4 * n, clock_of(known(x, n), n) - 1)
        st64(record_of(x, n) + X.Z_ARRIVAL, sign)
        visit(x, n, ld64(b + X.B_SLOT), iid)
        hand_on(x, n, b, phase_clocks(x, b))
        tick(x, n)
    elif separate(x):
        tick(x, n)


@helper
def out_of_scope(x, n, b, flags, iid):
    """Whether an arrival of CTA scope is at another CTA's mbarrier: no thread that waits there is in its scope.

    Where no scope is named the ISA means the CTA's too, but CUTLASS and CuTe DSL arrive at remote mbarriers like that.
    """
    mine = n // ld64(x + X.X_WARPS)
    if flags & SCOPE_CTA == 0 or ld64(b + X.B_SLOT) == mine:
        return False
    too_narrow(x, mine, ld64(b + X.B_SLOT), iid, known(x, n))
    tick(x, n)
    return True


@helper
def async_arrival(x, n, b, lanes, by_async, iid):
    """An operation that a warp issues will arrive (by_async: through the async proxy): what the warp knows is older."""
    use_barrier(x, n, b, lanes, by_async, iid)
    st64(b + X.B_ARRIVED, site_of(n, iid))
    arrives(x, n, number_of_barrier(x, b))
    hand_on(x, n, b, phase_clocks(x, b))


@helper
def on_flip(x, n, host, lanes, iid):
    """CHECK_FLIP: the phase is complete, the next one runs."""
    b = barrier_at(x, host)
    if b == 0:
        return
    phases = ld64(b + X.B_PHASES) + 1
    st64(b + X.B_PHASES, phases)
    st64(b + X.B_FLIPPED, site_of(n, iid))
    size = ld64(x + X.X_CLOCK_BYTES)
    running = phase_clocks(x, b)
    raise_to(running, ld64(b + X.B_COMPONENT), phases)
    # a warp that saw the phase before complete, but after which nothing here waited, could have missed it
    first = ld64(b + X.B_SLOT) * ld64(x + X.X_WARPS)
    for warp in range(ld64(x + X.X_WARPS)):
        seen = seen_by(x, b, warp)
        if ld64(seen) != phases - 1:
            continue
        if executed_in_phase(x, number_of_barrier(x, b), running, first + warp) < ld64(seen + 8) & 0xFFFFFFFF:
            name_barrier(x, first + warp, 0xFFFFFFFF, b)
            site = site_of(first + warp, ld64(seen + 8) >> 32)
            found(x, X.PHASE_ALIAS, site, 0, site_of(n, iid), 0, phases - 1 - ld64(b + X.B_BASE), 0)
    copy(x, running + 4 * size, running + 2 * size)
    join(x, running + 2 * size, running)
    join(x, running + 3 * size, running + size)
    own_complete(x, b)
    phase_over(x, number_of_barrier(x, b), running)
    clear(x, running)
    clear(x, running + size)


@helper
def relaxed(x, n):
    """V of the phases that relaxed waits of warp n have seen complete; P follows."""
    return ld64(x + X.X_RELAXED) + 2 * n * ld64(x + X.X_CLOCK_BYTES)


@helper
def products_seen(x, n):
    """tcgen05.fence::after_thread_sync behind a relaxed wait orders tcgen05 operations, and nothing else (PTX ISA, the
    tcgen05 memory consistency model)."""
    for k in range(ld64(x + X.X_SLOTS) * ld64(x + X.X_WARPS), ld64(x + X.X_USED)):
        kind = ld64(ld64(x + X.X_COMPONENTS) + k * X.K_BYTES + X.K_KIND)
        if kind == X.K_IS_TC or kind == X.K_IS_ST:
            raise_to(known(x, n), k, clock_of(relaxed(x, n), k))


@helper
def on_wait(x, n, host, flags, lanes, iid):
    """CHECK_WAIT: a wait is over, the warp learns what the complete phases hold."""
    b = barrier_at(x, host)
    if b == 0:
        return
    use_barrier(x, n, b, lanes, False, iid)
    if flags & WAIT_BY_STATE == 0:
        in_its_turn(x, n, b, complete_clocks(x, b) + 2 * ld64(x + X.X_CLOCK_BYTES), lanes, iid)
    if flags & RELAXED == 0:
        learn_from(x, n, b, complete_clocks(x, b), flags & SCOPE_CLUSTER != 0, iid)
        acquire_from(x, n, complete_clocks(x, b))
    else:
        join(x, relaxed(x, n), complete_clocks(x, b))
        join(x, relaxed(x, n) + ld64(x + X.X_CLOCK_BYTES), complete_clocks(x, b) + ld64(x + X.X_CLOCK_BYTES))
        st64(record_of(x, n) + X.Z_RELAXED, 1)
    waited(x, n, number_of_barrier(x, b))
    tick(x, n)
    warps = ld64(x + X.X_WARPS)
    seen = seen_by(x, b, n % warps)
    st64(seen, ld64(b + X.B_PHASES))
    st64(seen + 8, clock_of(known(x, n), n) | iid << 32)


# ---------------------------------------------------------------- barriers of a CTA and of a cluster
@helper
def bar_clocks(x, slot, index):
    """Clocks (V, P) of a named barrier."""
    return ld64(x + X.X_BARS) + 2 * (16 * slot + index) * ld64(x + X.X_CLOCK_BYTES)


@helper
def on_bar(x, n, index, op, lanes, iid):
    """CHECK_BAR: a warp (or some of its lanes) arrives."""
    if index >= 16:
        return
    loads_waited(x, n, lanes, iid)
    take_pending(x, n, LEVEL_GPU)
    warps = ld64(x + X.X_WARPS)
    if ld64(x + X.X_CROSS) != 0:
        arrive_at_bar(x, n, index, bar_clocks(x, n // warps, index))
    release_to(x, n, bar_clocks(x, n // warps, index))
    come_to(x, n, of_bar(x, n // warps, index))
    tick(x, n)
    if op != BAR_ARRIVE:
        waiting = slot_record(x, n // warps) + X.Y_WAITING + 8 * index
        st64(waiting, ld64(waiting) | (1 << (n % warps)))


@helper
def on_bar_done(x, slot, index):
    """CHECK_BAR_DONE: who waits learns what all that arrived did."""
    clocks = bar_clocks(x, slot, index)
    place = slot_record(x, slot) + X.Y_WAITING + 8 * index
    waiting = ld64(place)
    st64(place, 0)
    while waiting != 0:
        n = slot * ld64(x + X.X_WARPS) + trailing_zeros(waiting)
        learn_at_bar(x, n, slot, index, clocks)
        acquire_from(x, n, clocks)
        go_on(x, n, of_bar(x, slot, index))
        all_met(x, n)
        waiting &= waiting - 1
    st64(slot_record(x, slot) + X.Y_BAR_DOUBT + 8 * index, 0)
    clear(x, clocks)
    clear(x, clocks + ld64(x + X.X_CLOCK_BYTES))
    forget(x, of_bar(x, slot, index))


@helper
def cluster_of(x, n):
    """Number of the cluster of warp n."""
    return n // ld64(x + X.X_WARPS) // ld64(x + X.X_SIZE)


@helper
def cluster_clocks(x, n, generation):
    """Clocks (V, P) of a generation of the cluster's barrier of warp n."""
    return ld64(x + X.X_CLUSTERS) + (4 * cluster_of(x, n) + 2 * (generation & 1)) * ld64(x + X.X_CLOCK_BYTES)


@helper
def on_cluster_arrive(x, n, generation, relaxed):
    """CHECK_CLUSTER_ARRIVE. Clocks of the generation before the last are of no use any more."""
    clocks = cluster_clocks(x, n, generation)
    size = ld64(x + X.X_CLOCK_BYTES)
    newest = slot_record(x, cluster_of(x, n) * ld64(x + X.X_SIZE)) + X.Y_GENERATION
    if ld64(newest) != generation:
        st64(newest, generation)
        clear(x, clocks)
        clear(x, clocks + size)
        forget(x, of_cluster(x, cluster_of(x, n), generation))
    come_to(x, n, of_cluster(x, cluster_of(x, n), generation))
    take_pending(x, n, LEVEL_GPU)
    if relaxed == 0:
        release_to(x, n, clocks)
    else:
        join(x, clocks, fenced_at(x, n, LEVEL_CLUSTER))
        join(x, clocks + size, fenced_at(x, n, LEVEL_CLUSTER) + size)
    tick(x, n)


@helper
def on_cluster_wait(x, n, generation):
    """CHECK_CLUSTER_WAIT."""
    learn(x, n, cluster_clocks(x, n, generation))
    acquire_from(x, n, cluster_clocks(x, n, generation))
    go_on(x, n, of_cluster(x, cluster_of(x, n), generation))


# ---------------------------------------------------------------- fences
@helper
def proxy_fence(x, n, lanes):
    """What a warp wrote itself is seen by the async proxy, once every lane that wrote has executed the fence."""
    z = record_of(x, n)
    dirty = ld64(z + X.Z_DIRTY) & ~lanes
    st64(z + X.Z_DIRTY, dirty)
    if dirty != 0:
        return
    v = known(x, n)
    p = visible(x, n)
    raise_to(p, n, clock_of(v, n))


@helper
def copies_fenced(x, n):
    """What cp.async wrote, any warp can fence once it knows that the copies are done: their issuer may not wait itself
    (cp.async.mbarrier.arrive)."""
    if ld64(x + X.X_COPIES) == 0:
        return
    v = known(x, n)
    p = visible(x, n)
    kinds = ld64(x + X.X_COMPONENTS) + X.K_KIND
    for k in range(ld64(x + X.X_SLOTS) * ld64(x + X.X_WARPS), ld64(x + X.X_USED)):
        if ld64(kinds + k * X.K_BYTES) == X.K_IS_CP:
            raise_to(p, k, clock_of(v, k))


@helper
def stores_fenced(x, z, clock):
    """tcgen05.fence::before_thread_sync: of the warp's tcgen05.st so far, for who knows of the warp at this clock."""
    fenced = z + X.Z_ST_FENCED
    if ld64(z + X.Z_ST_SEQ) > ld64(fenced):
        st64(fenced + 16, ld64(fenced))
        st64(fenced + 24, ld64(fenced + 8))
        st64(fenced, ld64(z + X.Z_ST_SEQ))
        st64(fenced + 8, clock)


@helper
def on_fence(x, n, what, addresses, lanes, iid):
    """CHECK_FENCE."""
    kind = what & 15
    z = record_of(x, n)
    clock = clock_of(known(x, n), n)
    if kind == FENCE_TCGEN05:
        if what >> 4 == 0:
            st64(z + X.Z_LD_OPEN, 0)
        elif what >> 4 == 1:
            if ld64(z + X.Z_ST) != 0:
                raise_to(known(x, n), ld64(z + X.Z_ST), ld64(z + X.Z_ST_SEQ))
        elif what >> 4 == 2:
            st64(z + X.Z_BEFORE, 0)
            stores_fenced(x, z, clock)
        elif what >> 4 == 3:
            products_seen(x, n)
            copy(x, fenced_tensor(x, n), executed(x, n))
        return
    if kind == FENCE_WGMMA:
        st64(z + X.Z_WGMMA_FENCE, 1 if what >> 4 == 0 else 0)
        if what >> 4 != 0:
            st64(z + X.Z_CHANGED, iid + 1)
        return
    if kind == FENCE_TENSOR_MAP:
        fence_map(x, n, (what >> 4) & 15 == _RELEASE, addresses, lanes)
    if kind == FENCE_ASYNC and what >> 12 <= _GLOBAL_ONLY:
        keep_fence(x, X.FENCED_ASYNC, n, 0)
    # the release is for shared memory; the acquire is for what the async proxy wrote, whose completion is fenced anyway
    releases = kind == FENCE_ASYNC_GENERIC and (what >> 4) & 15 == _RELEASE
    if releases or (kind == FENCE_ASYNC and what >> 12 != _GLOBAL_ONLY):
        proxy_fence(x, n, lanes)
        copies_fenced(x, n)
        copy(x, fenced_proxy(x, n), known(x, n))
        st64(z + X.Z_INIT_FENCE, clock + 1)
    elif kind == FENCE_MBARRIER_INIT or (kind == FENCE_MEMORY and (what >> 8) & 15 >= _CLUSTER_SCOPE):
        st64(z + X.Z_INIT_FENCE, clock + 1)
    if kind in (FENCE_MBARRIER_INIT, FENCE_MEMORY):
        if kind == FENCE_MEMORY and (fence_level(what) != LEVEL_CTA or ld64(x + X.X_SIZE) == 1):
            fenced_widely(x, n)
            if ld64(record_of(x, n) + X.Z_RELAXED) != 0:
                acquire_from(x, n, relaxed(x, n))
        memory_fence(x, n, what, iid)
    tick(x, n)
