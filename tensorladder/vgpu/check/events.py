"""What the machine tells the checker, by kind of event: the one entry point of the library."""

from __future__ import annotations

from tensorladder.vgpu.check import layout as X
from tensorladder.vgpu.check.accesses import on_access
from tensorladder.vgpu.check.barriers import (
    barrier_at,
    on_arrive,
    on_bar,
    on_bar_done,
    on_cluster_arrive,
    on_cluster_wait,
    on_fence,
    on_flip,
    on_init,
    on_inval,
    on_wait,
    relaxed,
    use_barrier,
)
from tensorladder.vgpu.check.clocks import (
    clear,
    clock_of,
    known,
    number_of,
    raise_to,
    record_of,
    site_of,
    slot_of,
    slot_record,
    window_of,
)
from tensorladder.vgpu.check.copies import (
    on_cancel,
    on_commit,
    on_cp,
    on_cp_arrive,
    on_load,
    on_remote,
    on_store,
    on_wait_groups,
)
from tensorladder.vgpu.check.executed import forget, forget_executed, of_bar
from tensorladder.vgpu.check.exits import forget_sent, forget_visits, sent_over, visits_over
from tensorladder.vgpu.check.lanes import all_met, lanes_met, lanes_release, lanes_waited
from tensorladder.vgpu.check.maps import on_map
from tensorladder.vgpu.check.matrix import on_registers, on_settle, on_wgmma, on_wgmma_commit, on_wgmma_wait
from tensorladder.vgpu.check.order import LEVEL_GPU, take_pending
from tensorladder.vgpu.check.rounds import arrival_sign, lanes_in_one_phase
from tensorladder.vgpu.check.shadow import at_place, found, reset_arena
from tensorladder.vgpu.check.tensor import (
    on_alloc,
    on_copy,
    on_dealloc,
    on_product,
    on_shift,
    on_tc_commit,
    on_tensor_load,
    on_tensor_store,
)
from tensorladder.vgpu.check.values import matters, on_origin, on_shadow_load, on_shadow_store, on_shadow_tensor
from tensorladder.vgpu.codegen.sync import FENCE_MEMORY
from tensorladder.vgpu.machine import hooks as H
from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.machine.mbarrier import COUNT_MASK, tx_of
from tensorladder.vgpu.machine.native import export, helper
from tensorladder.vgpu.machine.raw import fill_bytes, ld32, ld64, st32, st64, trailing_zeros


# ---------------------------------------------------------------- CTAs start and end
@helper
def start_component(x, k, slot):
    """A CTA starts in a component's slot: where its clock stands is where the new CTA's events begin."""
    at = ld64(x + X.X_COMPONENTS) + k * X.K_BYTES
    if ld64(at + X.K_SLOT) != slot:
        return
    kind = ld64(at + X.K_KIND)
    z = record_of(x, slot * ld64(x + X.X_WARPS) + ld64(at + X.K_WARP))
    lane = ld64(at + X.K_LANE)
    now = 0
    if kind == X.K_IS_MBARRIER:
        b = ld64(x + X.X_B) + ld64(at + X.K_WARP) * X.B_BYTES
        now = ld64(b + X.B_PHASES)
        st64(b + X.B_INIT, 0)
    elif kind == X.K_IS_CP:
        now = ld64(z + X.Z_CP_SEQ)
    elif kind == X.K_IS_BULK_READ or kind == X.K_IS_BULK:
        now = ld32(z + X.Z_BULK_SEQ + 4 * lane)
    elif kind == X.K_IS_WGMMA:
        now = ld64(z + X.Z_WGMMA_SEQ)
        st64(z + X.Z_WGMMA_BASE, now)
    elif kind == X.K_IS_TC:
        now = ld32(z + X.Z_TC_SEQ + 4 * lane)
    elif kind == X.K_IS_ST:
        now = ld64(z + X.Z_ST_SEQ)
    else:
        return
    st32(ld64(x + X.X_STARTS) + 4 * k, now)


@helper
def on_start(x, c):
    """CHECK_START: a CTA with nothing behind it. Clocks of the CTAs that were there before go on."""
    slot = slot_of(x, c)
    y = slot_record(x, slot)
    st64(y + X.Y_CTA, c)
    st64(y + X.Y_LINEAR, ld64(c + L.C_LINEAR))
    size = ld64(x + X.X_CLOCK_BYTES)
    window = ld64(x + X.X_WINDOW)
    fill_bytes(ld64(y + X.Y_CELLS), 0, X.CELL * ((window + 15) >> 4))
    reset_arena(y + X.Y_ARENA)
    if ld64(x + X.X_TAINTED) != 0:
        fill_bytes(ld64(y + X.Y_UNDEFINED), 0, window)
    st64(y + X.Y_GENERATION, -1)
    forget_visits(x, slot)
    forget_sent(x, slot)
    warps = ld64(x + X.X_WARPS)
    for index in range(16):
        st64(y + X.Y_WAITING + 8 * index, 0)
        bar = ld64(x + X.X_BARS) + 2 * (16 * slot + index) * size
        clear(x, bar)
        clear(x, bar + size)
        forget(x, of_bar(x, slot, index))
    for warp in range(warps):
        n = slot * warps + warp
        clock = clock_of(known(x, n), n)
        for k in range(ld64(x + X.X_ROWS)):
            clear(x, known(x, n) + k * size)
        forget_executed(x, n)
        clear(x, relaxed(x, n))
        clear(x, relaxed(x, n) + size)
        st32(ld64(x + X.X_STARTS) + 4 * n, clock)
        st32(known(x, n) + 4 * n, clock + 1)
        z = record_of(x, n)
        for field in range(X.Z_DIRTY, X.Z_WGMMA_SEQ, 8):
            st64(z + field, 0)
        st64(z + X.Z_INIT_FENCE, 0)
        st64(z + X.Z_ORIGIN, 0)
        all_met(x, n)
        st64(z + X.Z_CHANGED, 0)
        for field in range(X.Z_PENDING, X.Z_BYTES, 8):
            st64(z + field, 0)
        fill_bytes(z + X.Z_REGISTERS, 0, 8 * X.REGISTERS)
    for k in range(ld64(x + X.X_SLOTS) * warps, ld64(x + X.X_USED)):
        start_component(x, k, slot)
    first = slot * warps
    for warp in range(warps):  # all warps of a warpgroup count its operations alike
        z = record_of(x, first + warp)
        st64(z + X.Z_WGMMA_SEQ, ld64(record_of(x, first + (warp & ~3)) + X.Z_WGMMA_BASE))
    log = ld64(x + X.X_NSTARTED)
    if log < X.STARTED:
        at = ld64(x + X.X_STARTED) + 24 * log
        st64(at, slot)
        st64(at + 8, clock_of(known(x, first), first))
        st64(at + 16, ld64(c + L.C_LINEAR))
        st64(x + X.X_NSTARTED, log + 1)


@helper
def latest(x, slot, k):
    """The latest that a warp of a CTA knows of a component."""
    warps = ld64(x + X.X_WARPS)
    best = 0
    for warp in range(warps):
        best = max(best, clock_of(known(x, slot * warps + warp), k))
    return best


@helper
def stores_read(x, slot, n):
    """A CTA may not end while bulk copies of a warp read its shared memory."""
    z = record_of(x, n)
    for lane in range(L.LANES):
        k = ld32(z + X.Z_BULK + 4 * lane)
        if k == 0:
            continue
        seq = ld32(z + X.Z_BULK_SEQ + 4 * lane)
        if seq > ld32(ld64(x + X.X_STARTS) + 4 * k) and latest(x, slot, k) < seq:
            at_place(x, n, 1 << lane, X.SPACE_SHARED, slot, 0, 0)
            site = site_of(n, ld32(z + X.Z_BULK_LAST + 4 * lane))
            found(x, X.STORE_AT_EXIT, site, 0, 0, 0, 0, 0)


@helper
def products_waited(x, slot, n):
    """A CTA should not end while tcgen05 operations of a thread run."""
    z = record_of(x, n)
    for lane in range(L.LANES):
        k = ld32(z + X.Z_TC + 4 * lane)
        if k == 0:
            continue
        seq = ld32(z + X.Z_TC_SEQ + 4 * lane)
        if seq > ld32(ld64(x + X.X_STARTS) + 4 * k) and latest(x, slot, k) < seq:
            at_place(x, n, 1 << lane, X.SPACE_TMEM, slot, 0, 0)
            found(x, X.NOT_COMMITTED, site_of(n, ld32(z + X.Z_TC_LAST + 4 * lane)), 0, 0, 0, 0, 0)


@helper
def barriers_left(x, slot):
    """An mbarrier that still counts bytes when its CTA ends got more or fewer than it was told to expect."""
    y = slot_record(x, slot)
    count = ld64(x + X.X_WINDOW) >> 3
    table = ld64(y + X.Y_BARRIER_MAP)
    for i in range(count):
        number = ld32(table + 4 * i)
        if number == 0:
            continue
        b = ld64(x + X.X_B) + (number - 1) * X.B_BYTES
        if ld64(b + X.B_INIT) == 0:
            continue
        word = ld64(window_of(x, slot) + 8 * i)
        tx = tx_of(word)
        pending = (word >> 1) & COUNT_MASK
        expected = (word >> 21) & COUNT_MASK
        if tx == 0 and pending == expected:
            continue
        at_place(x, slot * ld64(x + X.X_WARPS), 0xFFFFFFFF, X.SPACE_SHARED, slot, 8 * i, 8 * i + 8)
        site = max(ld64(b + X.B_ARRIVED), 0)
        if tx != 0:
            found(x, X.TX_LEFT, site, 0, ld64(b + X.B_INIT_SITE), 0, tx, 0)
        else:
            found(x, X.ARRIVALS_LEFT, site, 0, ld64(b + X.B_INIT_SITE), 0, expected - pending, expected)


@helper
def warpgroups_agree(x, c, slot):
    """setmaxnreg is for all warps of a warpgroup: each has executed it as often as the first."""
    warps = ld64(x + X.X_WARPS)
    for warp in range(warps):
        w = ld64(c + L.C_WARPS) + warp * L.W_BYTES
        first = ld64(c + L.C_WARPS) + (warp & ~3) * L.W_BYTES
        mine = ld64(w + L.W_SETMAXNREG)
        its = ld64(first + L.W_SETMAXNREG)
        if mine >> 32 != its >> 32:
            n = slot * warps + (warp if mine >> 32 > its >> 32 else warp & ~3)
            other = slot * warps + (warp & ~3 if mine >> 32 > its >> 32 else warp)
            at_place(x, n, 0xFFFFFFFF, X.SPACE_REGISTERS, 0, 0, 0)
            iid = (max(mine, its) & 0xFFFFFFFF) - 1
            found(x, X.SETMAXNREG_PART, site_of(n, iid), 0, 0, 0, n % warps, other % warps)
            return


@helper
def on_end(x, c):
    """CHECK_END: what a CTA leaves behind."""
    slot = slot_of(x, c)
    warps = ld64(x + X.X_WARPS)
    for warp in range(warps):
        stores_read(x, slot, slot * warps + warp)
        products_waited(x, slot, slot * warps + warp)
    barriers_left(x, slot)
    visits_over(x, slot)
    sent_over(x, slot)
    warpgroups_agree(x, c, slot)


# ---------------------------------------------------------------- collectives
@helper
def on_collective(x, n, what, a, b, lanes, iid):
    """CHECK_ABSENT, CHECK_MEMBERS, CHECK_APART: lanes that do not take part as they should."""
    at_place(x, n, lanes, X.SPACE_REGISTERS, 0, 0, 0)
    if what == H.CHECK_ABSENT:
        found(x, X.LANES_ABSENT, site_of(n, iid), 0, site_of(n, b), 0, a, 0)
    elif what == H.CHECK_MEMBERS:
        found(x, X.MASKS_DIFFER, site_of(n, iid), 0, 0, 0, a, b)
    else:
        found(x, X.BARRIER_APART, site_of(n, iid), 0, site_of(n, a), 0, b, 0)


# ---------------------------------------------------------------- undefined values
@helper
def on_value(x, w, n, what, a, b, c, lanes, iid):
    """CHECK_UNDEFINED and what follows it."""
    if what == H.CHECK_UNDEFINED:
        matters(x, n, X.UNDEFINED_STORED + a, lanes, iid)
    elif what == H.CHECK_ORIGIN:
        on_origin(x, n, iid)
    elif what == H.CHECK_SHADOW_LD:
        on_shadow_load(x, n, a, b, c, lanes, iid)
    elif what == H.CHECK_SHADOW_ST:
        on_shadow_store(x, n, a, b, c, lanes, iid)
    else:
        on_shadow_tensor(x, w, n, a, b, c, lanes, iid, 1 if what == H.CHECK_SHADOW_TMEM_ST else 0)


# ---------------------------------------------------------------- dispatch
@helper
def on_issue(x, w, op, n, lanes, iid):
    """CHECK_ISSUE: an operation, by its kind."""
    kind = ld64(op + L.A_KIND)
    lane = trailing_zeros(lanes)
    if (
        kind == L.OP_TMA_LOAD
        or kind == L.OP_BULK_G2S
        or kind == L.OP_BULK_S2S
        or (kind == L.OP_BULK_REDUCE and ld64(op + L.A_MBAR) != 0)
    ):
        on_load(x, op, n, lane, iid)
    elif kind == L.OP_REMOTE:
        on_remote(x, op, n, lane, iid)
    elif kind == L.OP_CLC:
        on_cancel(x, op, n, lane, iid)
    elif kind == L.OP_TMA_STORE or kind == L.OP_TMA_REDUCE or kind == L.OP_BULK_S2G or kind == L.OP_BULK_REDUCE:
        on_store(x, w, op, n, lane, iid)
        st32(record_of(x, n) + X.Z_BULK_LAST + 4 * lane, iid)
    elif kind == L.OP_TC_MMA:
        on_product(x, op, n, lane, iid)
        st32(record_of(x, n) + X.Z_TC_LAST + 4 * lane, iid)
    elif kind == L.OP_TC_COMMIT:
        on_tc_commit(x, op, n, lane, iid)
    elif kind == L.OP_TC_CP:
        on_copy(x, op, n, lane, iid)
        st32(record_of(x, n) + X.Z_TC_LAST + 4 * lane, iid)
    elif kind == L.OP_TC_SHIFT:
        on_shift(x, op, n, lane, iid)
        st32(record_of(x, n) + X.Z_TC_LAST + 4 * lane, iid)


@helper
def on_barrier(x, w, n, what, a, b, c, lanes, iid):
    """Events of mbarriers and other barriers."""
    if what == H.CHECK_WAIT:
        on_wait(x, n, a, c, lanes, iid)
        lanes_waited(x, n, lanes, ld64(w + L.W_LIVE))
    elif what == H.CHECK_ARRIVE:
        group = b >> 32 & 0xFFFFFFFF
        if lanes == group & -group:
            lanes_release(x, w, n, group, iid)
        at = barrier_at(x, a)
        sign = arrival_sign(w, n, iid)
        if at != 0:
            lanes_in_one_phase(x, n, at, sign, lanes, iid)
        on_arrive(x, n, a, c, sign, lanes, iid)
    elif what == H.CHECK_ASYNC_ARRIVE:
        at = barrier_at(x, a)
        if at != 0 and b != 0:
            lanes_in_one_phase(x, n, at, b, lanes, iid)
    elif what == H.CHECK_FLIP:
        on_flip(x, n, a, lanes, iid)
    elif what == H.CHECK_BAR:
        lanes_release(x, w, n, lanes, iid)
        on_bar(x, n, a, b, lanes, iid)
    elif what == H.CHECK_CLUSTER_ARRIVE:
        lanes_release(x, w, n, lanes, iid)
        on_cluster_arrive(x, n, a, b)
    elif what == H.CHECK_CLUSTER_WAIT:
        on_cluster_wait(x, n, a)
        lanes_waited(x, n, lanes, ld64(w + L.W_LIVE))
    elif what == H.CHECK_INIT:
        on_init(x, n, a, b, lanes, iid)
    elif what == H.CHECK_INVAL:
        on_inval(x, a)
    elif what == H.CHECK_TX:
        at = barrier_at(x, a)
        if at != 0:
            use_barrier(x, n, at, lanes, False, iid)
            st64(at + X.B_ARRIVED, site_of(n, iid))


@export
def tl_check(subject, what, a, b, c, lanes, iid):
    """An event (machine.hooks.CHECK_*): of a warp, or of a CTA."""
    if what == H.CHECK_START or what == H.CHECK_END or what == H.CHECK_BAR_DONE:
        x = ld64(ld64(subject + L.C_UNIT) + L.U_CHECK)
        if what == H.CHECK_START:
            on_start(x, subject)
        elif what == H.CHECK_END:
            on_end(x, subject)
        else:
            on_bar_done(x, slot_of(x, subject), a)
        return 0
    w = subject
    x = ld64(ld64(w + L.W_UNIT) + L.U_CHECK)
    if ld64(w + L.W_ERROR) != 0:
        return 0
    n = number_of(x, w)
    if what == H.CHECK_ACCESS:
        st64(x + X.X_UNDEFINED, 0)
        st64(x + X.X_STORED_SAME, ld64(w + L.W_STORED_SAME))
        on_access(x, w, n, a, b, c, lanes, iid)
        st64(w + L.W_UNDEFINED, ld64(x + X.X_UNDEFINED) | ld64(x + X.X_TAINTED))
        st64(x + X.X_STORED_SAME, 0)
        st64(w + L.W_STORED_SAME, 0)
    elif what == H.CHECK_ISSUE:
        on_issue(x, w, a, n, lanes, iid)
    elif what == H.CHECK_WGMMA:
        on_wgmma(x, a, b, n, lanes, iid)
    elif what == H.CHECK_WGMMA_COMMIT:
        on_wgmma_commit(x, w, n)
    elif what == H.CHECK_WGMMA_WAIT:
        on_wgmma_wait(x, n, a)
    elif what == H.CHECK_FENCE:
        if a & 15 == FENCE_MEMORY:
            lanes_release(x, w, n, lanes, iid)
        on_fence(x, n, a, b, lanes, iid)
    elif what == H.CHECK_CP:
        on_cp(x, n, a, b, c, lanes, iid)
    elif what == H.CHECK_CP_ARRIVE:
        on_cp_arrive(x, w, n, a, lanes, iid)
        return arrival_sign(w, n, iid)
    elif what == H.CHECK_COMMIT:
        on_commit(x, w, n, a, lanes)
    elif what == H.CHECK_WAIT_GROUPS:
        on_wait_groups(x, w, n, a, b, c, lanes)
    elif what == H.CHECK_REGISTERS:
        on_registers(x, n, a, b, c, lanes, iid)
    elif what == H.CHECK_WGMMA_SETTLE:
        on_settle(x, n, a, b)
    elif what == H.CHECK_TMEM_LD:
        st64(x + X.X_UNDEFINED, 0)
        on_tensor_load(x, w, n, a, b, c, iid)
        st64(w + L.W_UNDEFINED, ld64(x + X.X_UNDEFINED) | ld64(x + X.X_TMEM_TAINTED))
    elif what == H.CHECK_TMEM_ST:
        on_tensor_store(x, w, n, a, b, c, iid)
    elif what == H.CHECK_TMEM_ALLOC:
        on_alloc(x, n, a, b, c, lanes, iid)
    elif what == H.CHECK_TMEM_DEALLOC:
        on_dealloc(x, n, a, b, c, lanes, iid)
    elif what == H.CHECK_WARP_SYNC:
        take_pending(x, n, LEVEL_GPU)
        lanes_met(x, n, a, ld64(w + L.W_LIVE))
    elif what == H.CHECK_GRID_WAIT:
        if ld64(x + X.X_GRID) != 0:
            raise_to(known(x, n), ld64(x + X.X_GRID), 1)
    elif what == H.CHECK_MAP:
        on_map(x, n, a, b, c, lanes, iid)
    elif what == H.CHECK_ABSENT or what == H.CHECK_MEMBERS or what == H.CHECK_APART:
        on_collective(x, n, what, a, b, lanes, iid)
    elif what >= H.CHECK_UNDEFINED:
        on_value(x, w, n, what, a, b, c, lanes, iid)
    else:
        on_barrier(x, w, n, what, a, b, c, lanes, iid)
    return 0
