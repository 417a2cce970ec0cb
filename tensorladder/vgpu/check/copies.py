"""Asynchronous copies: cp.async by warps, bulk and tensor copies by threads, judged where they are issued.

What a copy writes to shared memory belongs to the mbarrier that it reports to: it is there once the phase is complete.
What it reads from shared memory belongs to the issuing thread: it has been read after cp.async.bulk.wait_group.read.
"""

from __future__ import annotations

from tensorladder.vgpu.check import layout as X
from tensorladder.vgpu.check.barriers import async_arrival, barrier_at, phase_clocks
from tensorladder.vgpu.check.clocks import (
    before,
    component,
    epoch_of,
    fenced_proxy,
    known,
    raise_to,
    record_of,
    site_of,
    slot_record,
    visible,
    window_of,
)
from tensorladder.vgpu.check.exits import send
from tensorladder.vgpu.check.lanes import lane_copies_out, lanes_copy, lanes_have_copied
from tensorladder.vgpu.check.maps import use_map
from tensorladder.vgpu.check.shadow import at_place, found, shared_place, touch_global, touch_shared
from tensorladder.vgpu.check.values import any_undefined, box_undefined, carry_undefined, store_undefined
from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.machine.copies import FLAG_MASK_SHIFT, FLAG_MULTICAST, FLAG_PAIR
from tensorladder.vgpu.machine.native import helper
from tensorladder.vgpu.machine.raw import ld32, ld64, st32, st64, trailing_zeros
from tensorladder.vgpu.machine.tma import (
    _BITS,
    _ROOM,
    _SWIZZLE_MASK,
    _SWIZZLE_SHIFT,
    LOAD,
    REDUCE,
    STORE,
    _atom,
    _rank,
    _swizzle,
    _type,
    box_count,
    broken_rule,
    dim,
    inside,
    room,
    row_of_box,
    row_pitch,
)

_RESPONSE_BYTES = 16


# ---------------------------------------------------------------- cp.async
@helper
def copies_of(x, n):
    """Component of a warp's cp.async."""
    z = record_of(x, n)
    k = ld64(z + X.Z_CP)
    if k == 0:
        warps = ld64(x + X.X_WARPS)
        k = component(x, X.K_IS_CP, n // warps, n % warps, 0)
        st64(z + X.Z_CP, k)
        st64(x + X.X_COPIES, 1)
    return k


@helper
def on_cp(x, n, dst, src, sizes, lanes, iid):
    """CHECK_CP: generic-proxy writes that are there after a wait_group. sizes: bytes | (source bytes follow) << 32."""
    k = copies_of(x, n)
    z = record_of(x, n)
    seq = ld64(z + X.Z_CP_SEQ) + 1
    st64(z + X.Z_CP_SEQ, seq)
    v = known(x, n)
    p = visible(x, n)
    size = sizes & 0xFFFFFFFF
    site = site_of(n, iid)
    lanes_copy(x, n, dst, lanes, size, seq, iid)
    while lanes != 0:
        lane = trailing_zeros(lanes)
        lanes &= lanes - 1
        take = ld64(src + 256 + 8 * lane) if sizes >> 32 else size
        if take > 0:
            at = ld64(src + 8 * lane)
            touch_global(x, n, 1 << lane, at, take, 0, v, p, epoch_of(k, seq, lane, 0), site)
        place = shared_place(x, ld64(dst + 8 * lane))
        lo = place & 0xFFFFFFFF
        touch_shared(x, n, 1 << lane, place >> 32, lo, lo + size, 1, v, p, epoch_of(k, seq, lane, 0), site)


@helper
def on_cp_arrive(x, w, n, addresses, lanes, iid):
    """CHECK_CP_ARRIVE: the mbarriers' phases hold what the copies so far write."""
    z = record_of(x, n)
    k = ld64(z + X.Z_CP)
    last = -1
    while lanes != 0:
        lane = trailing_zeros(lanes)
        lanes &= lanes - 1
        address = ld64(addresses + 8 * lane) & 0xFFFFFFFF
        if address == last:
            continue
        last = address
        b = barrier_at(x, window_host(x, n, address))
        if b != 0:
            async_arrival(x, n, b, 1 << lane, False, iid)
            if k != 0:
                raise_to(phase_clocks(x, b), k, ld64(z + X.Z_CP_SEQ))


@helper
def window_host(x, n, address):
    """Host address of a 32-bit shared::cluster address, as warp n sees it."""
    size = ld64(x + X.X_SIZE)
    slot = n // ld64(x + X.X_WARPS) // size * size + ((address & 0xFFFFFFFF) >> L.RANK_SHIFT)
    return window_of(x, slot) + (address & 0xFFFFFF)


# ---------------------------------------------------------------- groups
@helper
def on_commit(x, w, n, field, lanes):
    """CHECK_COMMIT, before the group is closed: remember which operation is its last."""
    z = record_of(x, n)
    if field == L.W_CP_GROUP:
        group = ld32(w + field + 4 * trailing_zeros(lanes))
        st32(z + X.Z_CP_RING + 4 * (group % X.RING), ld64(z + X.Z_CP_SEQ))
        return
    while lanes != 0:
        lane = trailing_zeros(lanes)
        lanes &= lanes - 1
        group = ld32(w + field + 4 * lane)
        at = z + X.Z_BULK_RING + 4 * (X.BULK_RING * lane + group % X.BULK_RING)
        st32(at, ld32(z + X.Z_BULK_SEQ + 4 * lane))


@helper
def on_wait_groups(x, w, n, field, kind, most, lanes):
    """CHECK_WAIT_GROUPS: what is older than the groups that may be pending is done."""
    z = record_of(x, n)
    v = known(x, n)
    if field == L.W_CP_GROUP:
        k = ld64(z + X.Z_CP)
        if k == 0:
            return
        group = 1 << 40
        left = lanes
        while left != 0:
            lane = trailing_zeros(left)
            left &= left - 1
            group = min(group, ld32(w + field + 4 * lane) - most - 1)
        if most < 0:
            raise_to(v, k, lanes_have_copied(x, w, n, lanes, k, ld64(z + X.Z_CP_SEQ)))
        elif group >= 0:
            raise_to(v, k, lanes_have_copied(x, w, n, lanes, k, ld32(z + X.Z_CP_RING + 4 * (group % X.RING))))
        return
    while lanes != 0:
        lane = trailing_zeros(lanes)
        lanes &= lanes - 1
        k = ld32(z + X.Z_BULK + 4 * lane)
        group = ld32(w + field + 4 * lane) - most - 1
        if k == 0 or group < 0:
            continue
        seq = ld32(z + X.Z_BULK_RING + 4 * (X.BULK_RING * lane + group % X.BULK_RING))
        raise_to(v, k, seq)
        if kind == L.WAIT_BULK:
            raise_to(v, k + 1, seq)


@helper
def bulk_of(x, n, lane):
    """Component of a thread's bulk copies having read; the next one is of their being complete. Counts one more."""
    z = record_of(x, n)
    k = ld32(z + X.Z_BULK + 4 * lane)
    if k == 0:
        warps = ld64(x + X.X_WARPS)
        component(x, X.K_IS_BULK_READ, n // warps, n % warps, lane)
        k = component(x, X.K_IS_BULK, n // warps, n % warps, lane) - 1  # also where the clocks are full
        st32(z + X.Z_BULK + 4 * lane, k)
    st32(z + X.Z_BULK_SEQ + 4 * lane, ld32(z + X.Z_BULK_SEQ + 4 * lane) + 1)
    return k


# ---------------------------------------------------------------- boxes of tensor maps
@helper
def shared_box(x, n, lane, slot, lo, m, write, v, p, epoch, site):
    """The part of a window that a box takes, from offset lo on."""
    rank = _rank(m) + 1
    inner = (box_count(m, 0, rank) * _ROOM[_type(m)]) >> 3
    pitch = row_pitch(m, inner)
    total = room(m)
    if inner == pitch:
        touch_shared(x, n, 1 << lane, slot, lo, lo + total, write, v, p, epoch, site)
        return
    mode = _swizzle(m) | (_atom(m) << 2)
    for row in range(lo, lo + total, pitch):
        for a in range(row, row + inner, 16):
            at = a ^ ((a & _SWIZZLE_MASK[mode]) >> _SWIZZLE_SHIFT[mode])
            touch_shared(x, n, 1 << lane, slot, at, at + 16, write, v, p, epoch, site)


@helper
def global_box(x, op, m, n, lane, write, v, p, epoch, site):
    """The rows of a box that lie inside the tensor."""
    rank = _rank(m) + 1
    bits = _BITS[_type(m)]
    c0 = ld64(op + L.A_COORD)
    lo, hi = inside(c0, box_count(m, 0, rank), 1, dim(m, 0))
    if hi == 0:
        return
    first = ld64(m) + (((c0 + lo) * bits) >> 3)
    size = ((hi - lo) * bits + 7) >> 3
    rows = 1
    for i in range(1, rank):
        rows *= box_count(m, i, rank)
    for row in range(rows):
        ok, offset = row_of_box(op, m, rank, row)
        if ok:
            touch_global(x, n, 1 << lane, first + offset, size, write, v, p, epoch, site)


@helper
def usable_map(op, how):
    """An operation's tensor map, 0 where it will be refused."""
    m = ld64(op + L.A_MAP)
    if broken_rule(m, ld64(op + L.A_SIZE), how, ld64(op + L.A_OP) & 0xFF) != 0:
        return 0
    return m


# ---------------------------------------------------------------- copies with an mbarrier
@helper
def completes_on(x, n, address, lane, iid):
    """Epoch of what an operation writes that reports to the mbarrier at a shared::cluster address; 0: no such one."""
    b = barrier_at(x, window_host(x, n, address))
    if b == 0 or ld64(b + X.B_INIT) == 0:
        return 0
    async_arrival(x, n, b, 1 << lane, True, iid)
    return epoch_of(ld64(b + X.B_COMPONENT), ld64(b + X.B_PHASES) + 1, lane, X.EPOCH_ASYNC)


@helper
def ranks_of(op):
    """CTAs that a copy to shared memory goes to."""
    flags = ld64(op + L.A_FLAGS)
    if flags & FLAG_MULTICAST:
        return (flags >> FLAG_MASK_SHIFT) & 0xFFFF
    return 1 << ((ld64(op + L.A_DST) & 0xFFFFFFFF) >> L.RANK_SHIFT)


@helper
def signalled(op, rank):
    """Address of the mbarrier that a copy to the CTA of this rank reports to (machine.tma, machine.copies)."""
    bar = ld64(op + L.A_MBAR)
    flags = ld64(op + L.A_FLAGS)
    to = rank
    if ld64(op + L.A_KIND) == L.OP_TMA_LOAD:
        if flags & FLAG_PAIR:
            to = (rank & ~1) | ((bar >> L.RANK_SHIFT) & 1)
    elif flags & FLAG_MULTICAST == 0:
        to = (bar & 0xFFFFFFFF) >> L.RANK_SHIFT
    return (to << L.RANK_SHIFT) | (bar & 0xFFFFFF)


@helper
def first_slot(x, n):
    """Slot of the cluster's first CTA."""
    size = ld64(x + X.X_SIZE)
    return n // ld64(x + X.X_WARPS) // size * size


@helper
def on_load(x, op, n, lane, iid):
    """A tensor or bulk copy to shared memory."""
    v = known(x, n)
    p = visible(x, n)
    site = site_of(n, iid)
    tensor = ld64(op + L.A_KIND) == L.OP_TMA_LOAD
    m = usable_map(op, LOAD) if tensor else 0
    if tensor and m == 0:
        return
    place = ld64(op + L.A_DST) & 0xFFFFFF
    ranks = ranks_of(op)
    epoch = 0
    while ranks != 0:
        rank = trailing_zeros(ranks)
        ranks &= ranks - 1
        epoch = completes_on(x, n, signalled(op, rank), lane, iid)
        if epoch == 0:
            return
        slot = first_slot(x, n) + rank
        if tensor:
            shared_box(x, n, lane, slot, place, m, 1, v, p, epoch, site)
        elif ld64(op + L.A_KIND) == L.OP_BULK_G2S:
            touch_shared(x, n, 1 << lane, slot, place, place + ld64(op + L.A_SIZE), 1, v, p, epoch, site)
        else:
            copy_within_cluster(x, op, n, lane, slot, place, v, p, epoch, site)
    if tensor:
        use_map(x, n, lane, m, v, p, site)
        global_box(x, op, m, n, lane, 0, v, p, epoch, site)
    elif ld64(op + L.A_KIND) == L.OP_BULK_G2S:
        touch_global(x, n, 1 << lane, ld64(op + L.A_SRC), ld64(op + L.A_SIZE), 0, v, p, epoch, site)


@helper
def copy_within_cluster(x, op, n, lane, slot, place, v, p, epoch, site):
    """A bulk copy, or reduction, from shared memory to a place in a slot's; undefined bytes go along."""
    reduces = ld64(op + L.A_KIND) == L.OP_BULK_REDUCE
    size = ld64(op + L.A_SIZE)
    src = shared_place(x, window_host(x, n, ld64(op + L.A_SRC)))
    lo = src & 0xFFFFFFFF
    carry_undefined(x, src >> 32, lo, slot, place, size, 1 if reduces else 0)
    st64(x + X.X_CARRIES, 1)
    touch_shared(x, n, 1 << lane, slot, place, place + size, 1, v, p, epoch | (X.EPOCH_STRONG if reduces else 0), site)
    touch_shared(x, n, 1 << lane, src >> 32, lo, lo + size, 0, v, p, epoch, site)
    st64(x + X.X_CARRIES, 0)
    send(x, src >> 32, epoch, site)


@helper
def said_before(x, w, op, n, iid):
    """Whether a lane of the warp has just issued the very same store: compilers leave out the election."""
    z = record_of(x, n)
    sign = (iid * 1000003 + ld64(op + L.A_SRC)) * 1000003 + ld64(op + L.A_SIZE)
    if ld64(op + L.A_KIND) == L.OP_TMA_STORE or ld64(op + L.A_KIND) == L.OP_TMA_REDUCE:
        sign = sign * 1000003 + ld64(op + L.A_MAP)
        for i in range(ld64(op + L.A_SIZE)):
            sign = sign * 1000003 + ld64(op + L.A_COORD + 8 * i)
    else:
        sign = sign * 1000003 + ld64(op + L.A_DST)
    again = ld64(z + X.Z_STORE) == sign and ld64(z + X.Z_STORE_CLOCK) == ld64(w + L.W_CLOCK)
    st64(z + X.Z_STORE, sign)
    st64(z + X.Z_STORE_CLOCK, ld64(w + L.W_CLOCK))
    return again


@helper
def on_store(x, w, op, n, lane, iid):
    """A tensor or bulk copy, or reduction, from shared to global memory."""
    v = known(x, n)
    p = visible(x, n)
    site = site_of(n, iid)
    kind = ld64(op + L.A_KIND)
    k = bulk_of(x, n, lane)
    seq = ld32(record_of(x, n) + X.Z_BULK_SEQ + 4 * lane)
    reads = epoch_of(k, seq, lane, X.EPOCH_ASYNC)
    if said_before(x, w, op, n, iid):
        return
    reduces = kind == L.OP_TMA_REDUCE or kind == L.OP_BULK_REDUCE
    writes = epoch_of(k + 1, seq, lane, X.EPOCH_ASYNC | (X.EPOCH_STRONG if reduces else 0))
    src = shared_place(x, window_host(x, n, ld64(op + L.A_SRC)))
    lo = src & 0xFFFFFFFF
    if kind == L.OP_TMA_STORE or kind == L.OP_TMA_REDUCE:
        m = usable_map(op, REDUCE if reduces else STORE)
        if m != 0:
            use_map(x, n, lane, m, v, p, site)
            lane_copies_out(x, w, n, lane, window_host(x, n, ld64(op + L.A_SRC)), room(m), iid)
            st64(x + X.X_UNDEFINED, 0)
            shared_box(x, n, lane, src >> 32, lo, m, 0, v, p, reads, site)
            if ld64(x + X.X_UNDEFINED) | ld64(x + X.X_TAINTED) and box_undefined(x, op, m, src >> 32, lo):
                store_undefined(x, n, lane, iid)
            global_box(x, op, m, n, lane, 1, v, p, writes, site)
        return
    size = ld64(op + L.A_SIZE)
    lane_copies_out(x, w, n, lane, window_host(x, n, ld64(op + L.A_SRC)), size, iid)
    st64(x + X.X_UNDEFINED, 0)
    touch_shared(x, n, 1 << lane, src >> 32, lo, lo + size, 0, v, p, reads, site)
    if ld64(x + X.X_UNDEFINED) | ld64(x + X.X_TAINTED) and any_undefined(x, src >> 32, lo, lo + size):
        store_undefined(x, n, lane, iid)
    touch_global(x, n, 1 << lane, ld64(op + L.A_DST), size, 1, v, p, writes, site)


@helper
def on_remote(x, op, n, lane, iid):
    """st.async and red.async: a lane's value in shared memory of the cluster."""
    epoch = completes_on(x, n, ld64(op + L.A_MBAR), lane, iid)
    if epoch == 0:
        return
    epoch = (epoch & ~X.EPOCH_ASYNC) | X.EPOCH_STRONG  # relaxed, and of the generic proxy
    place = shared_place(x, window_host(x, n, ld64(op + L.A_DST)))
    lo = place & 0xFFFFFFFF
    size = ld64(op + L.A_SIZE)
    if ld64(op + L.A_OP) >= 0:  # a reduction: what is there stays undefined
        carry_undefined(x, place >> 32, lo, place >> 32, lo, size, 0)
        st64(x + X.X_CARRIES, 1)
    touch_shared(x, n, 1 << lane, place >> 32, lo, lo + size, 1, known(x, n), visible(x, n), epoch, site_of(n, iid))
    st64(x + X.X_CARRIES, 0)


@helper
def answer_read(x, n, lanes, slot, place, iid):
    """Reads of an answer, before try_cancel lets the async proxy write the next one there: their warps have fenced that
    (PTX ISA, clusterlaunchcontrol.try_cancel, its example), or the warp that issues it."""
    y = slot_record(x, slot)
    if place & 15 != 0 or place < 0 or place + _RESPONSE_BYTES > ld64(x + X.X_WINDOW):
        return
    cell = ld64(y + X.Y_CELLS) + X.CELL * (place >> 4)
    at_place(x, n, lanes, X.SPACE_SHARED, slot, place, place + _RESPONSE_BYTES)
    if ld64(cell) >= 0:
        reads_fenced(x, n, cell, iid)
        return
    step = 4 if ld64(cell + X.CELL_READ + 8) == X.LEVEL_WORDS else 1
    for k in range(0, 16, step):
        reads_fenced(x, n, ld64(cell + X.CELL_READ) + X.CELL * k, iid)


@helper
def reads_fenced(x, n, cell, iid):
    """Judge the reads of a cell that the async proxy is to write."""
    for k in range(3):
        r = ld64(cell + X.CELL_READ + 8 * k)
        if r == 0 or r & X.EPOCH_ASYNC != 0 or not before(x, known(x, n), r, 1):  # not even ordered: another finding
            continue
        if not before(x, visible(x, n), r, 1) and not before(x, fenced_proxy(x, n), r, 1):
            found(x, X.CANCEL_NOT_FENCED, site_of(n, iid), 0, ld32(cell + X.CELL_SITES + 4 + 4 * k), r, 0, 0)


@helper
def on_cancel(x, op, n, lane, iid):
    """clusterlaunchcontrol.try_cancel: the response in the CTAs that it goes to."""
    ranks = ld64(op + L.A_SIZE)
    place = ld64(op + L.A_DST) & 0xFFFFFF
    while ranks != 0:
        rank = trailing_zeros(ranks)
        ranks &= ranks - 1
        epoch = completes_on(x, n, (ld64(op + L.A_MBAR) & 0xFFFFFF) | (rank << L.RANK_SHIFT), lane, iid)
        if epoch != 0:
            slot = first_slot(x, n) + rank
            end = place + _RESPONSE_BYTES
            answer_read(x, n, 1 << lane, slot, place, iid)
            touch_shared(x, n, 1 << lane, slot, place, end, 1, known(x, n), visible(x, n), epoch, site_of(n, iid))
