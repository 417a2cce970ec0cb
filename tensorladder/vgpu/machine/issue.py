"""Issue of asynchronous copies: what generated code calls for cp.async, cp.async.bulk and cp.async.bulk.tensor.

Operands come as lane vectors of 64-bit values, 256 bytes apart from `base` on. Every active lane issues its own
operation (cp.async: one for all lanes with the same open group).
"""

from __future__ import annotations

from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.machine.copies import FLAG_MASK_SHIFT, FLAG_MULTICAST, FLAG_OWN, arrive_lanes, copy_lane
from tensorladder.vgpu.machine.effects import begin, submit
from tensorladder.vgpu.machine.hooks import (
    CHECK_COMMIT,
    CHECK_CP,
    CHECK_CP_ARRIVE,
    CHECK_ISSUE,
    CHECK_MAP,
    CHECK_WAIT_GROUPS,
    EVENT_ISSUE,
    observe,
    record,
)
from tensorladder.vgpu.machine.lanes import block, fail
from tensorladder.vgpu.machine.mbarrier import add_pending, mbarrier_at, shared_at
from tensorladder.vgpu.machine.memory import (
    SPACE_GENERIC,
    SPACE_GLOBAL,
    SPACE_OWN,
    SPACE_SHARED,
    global_ok,
    is_own,
    remote_window,
    resolve,
    resolve_all,
)  # fmt: skip
from tensorladder.vgpu.machine.native import export, helper
from tensorladder.vgpu.machine.queue import (
    LAT_BULK,
    LAT_CP_ASYNC,
    LAT_TMA_LOAD,
    LAT_TMA_STORE,
    NO_GROUP,
    enqueue,
    is_eager,
    pending_op,
)  # fmt: skip
from tensorladder.vgpu.machine.raw import ld32, ld64, move16, st32, st64, trailing_zeros
from tensorladder.vgpu.machine.scheduler import groups_done
from tensorladder.vgpu.machine.tma import RULE_ALIGN, box_bytes, broken_rule

_MAP_ALIGN = 63  # a map starts at a 64-byte boundary


# ---------------------------------------------------------------- cp.async
@helper
def whole_lanes(w, addresses, sizes, mask, size, iid):
    """Lanes that read all `size` bytes; -1 with the error recorded when a source size is out of range."""
    whole = 0
    for lane in range(L.LANES):
        if (mask >> lane) & 1:
            take = ld64(sizes + 8 * lane)
            if take < 0 or take > size:
                fail(w, L.ERR_CP_SIZE, iid, lane, ld64(addresses + 8 * lane), take, size)
                return -1
            whole |= (1 if take == size else 0) << lane
    return whole


@helper
def resolve_sources(w, addresses, sizes, mask, whole, size, iid):
    """Host addresses of cp.async sources; a lane that reads fewer bytes is checked for just those. False on error."""
    for lane in range(L.LANES):
        if (mask >> lane) & 1 and (whole >> lane) & 1 == 0:
            take = ld64(sizes + 8 * lane)
            address = ld64(addresses + 8 * lane)
            if take > 0 and not global_ok(w, address, address + take, 0, iid, lane):
                fail(w, L.ERR_OUT_OF_BOUNDS, iid, lane, address, take, SPACE_GLOBAL)
                return False
            if take == 0:  # not touched, whatever it is
                st64(addresses + 8 * lane, 0)
        elif (whole >> lane) & 1 and resolve(w, SPACE_GLOBAL, ld64(addresses + 8 * lane), size, 0, iid, lane) == 0:
            return False
    return True


@helper
def copy_now(dst, src, sizes, mask, size, sized):
    """The copies of a cp.async under the eager policy. Lanes that are off repeat the first one (see resolve_all)."""
    if sized == 0 and size == 16:
        for lane in range(L.LANES):
            move16(ld64(dst + 8 * lane), ld64(src + 8 * lane))
        return
    if sized == 0 and size == 4:
        for lane in range(L.LANES):
            st32(ld64(dst + 8 * lane), ld32(ld64(src + 8 * lane)))
        return
    if sized == 0:
        for lane in range(L.LANES):
            st64(ld64(dst + 8 * lane), ld64(ld64(src + 8 * lane)))
        return
    for lane in range(L.LANES):
        if (mask >> lane) & 1:
            copy_lane(ld64(dst + 8 * lane), ld64(src + 8 * lane), size | (ld64(sizes + 8 * lane) << 32))


@export
def tl_cp_async(w, base, mask, size, sized, iid):
    """cp.async: destinations, sources and, where `sized`, source bytes stand at `base`; `size` bytes a lane."""
    if mask == 0:
        return 0
    dst = base
    src = base + 256
    sizes = base + 512
    if not resolve_all(w, SPACE_OWN, dst, mask, size, 1, iid):
        return 0
    whole = mask
    if sized != 0:
        whole = whole_lanes(w, src, sizes, mask, size, iid)
    if whole == mask:
        sized = 0
        if not resolve_all(w, SPACE_GLOBAL, src, mask, size, 0, iid):
            return 0
    elif whole < 0 or not resolve_sources(w, src, sizes, mask, whole, size, iid):
        return 0
    record(w, EVENT_ISSUE, ld64(dst + 8 * trailing_zeros(mask)), L.OP_CP_ASYNC, mask, iid)
    observe(w, CHECK_CP, dst, src, size | (sized << 32), mask, iid)
    if is_eager(w):
        copy_now(dst, src, sizes, mask, size, sized)
        st64(w + L.W_PROGRESS, ld64(w + L.W_PROGRESS) + 1)
        return 1
    left = mask
    while left != 0:
        group = ld32(w + L.W_CP_GROUP + 4 * trailing_zeros(left))
        lanes = 0
        for lane in range(L.LANES):
            if (left >> lane) & 1 and ld32(w + L.W_CP_GROUP + 4 * lane) == group:
                lanes |= 1 << lane
        left &= ~lanes
        op = begin(w, L.OP_CP_ASYNC, lanes, iid)
        if op == 0:
            return 0
        st64(op + L.A_GROUP, group)
        for lane in range(L.LANES):
            take = ld64(sizes + 8 * lane) if sized != 0 else size
            st64(op + L.A_LANE_DST + 8 * lane, ld64(dst + 8 * lane))
            st64(op + L.A_LANE_SRC + 8 * lane, ld64(src + 8 * lane))
            st64(op + L.A_LANE_SIZE + 8 * lane, size | (take << 32))
        enqueue(w, op, LAT_CP_ASYNC, size * L.LANES)
    return 1


@helper
def last_ready(w, lanes):
    """When the last pending cp.async of these lanes may be done, and whether there is one."""
    u = ld64(w + L.W_UNIT)
    found = False
    when = 0
    for position in range(ld64(u + L.U_COUNT)):
        op = pending_op(u, position)
        if ld64(op + L.A_WARP) == w and ld64(op + L.A_LANES) & lanes and ld64(op + L.A_KIND) == L.OP_CP_ASYNC:
            found = True
            when = max(when, ld64(op + L.A_READY))
    return found, when


@export
def tl_cp_arrive(w, addresses, mask, increment, iid):
    """cp.async.mbarrier.arrive: each lane arrives when its earlier cp.async copies are done.

    `increment`: the pending count goes up by one now, so that the arrival is not one that the phase waits for.
    """
    for lane in range(L.LANES):
        if (mask >> lane) & 1:
            address = ld64(addresses + 8 * lane)
            host = mbarrier_at(w, SPACE_SHARED, address, 1, iid, lane)
            if host == 0 or (increment != 0 and not add_pending(w, host, address, iid, lane)):
                return 0
    st64(w + L.W_PROGRESS, ld64(w + L.W_PROGRESS) + 1)
    record(w, EVENT_ISSUE, ld64(addresses + 8 * trailing_zeros(mask)), L.OP_MBAR_ARRIVE, mask, iid)
    noted = observe(w, CHECK_CP_ARRIVE, addresses, 0, 0, mask, iid)
    found, when = last_ready(w, mask)
    if not found:
        arrive_lanes(w, addresses, mask, noted, iid)
        return 1
    op = begin(w, L.OP_MBAR_ARRIVE, mask, iid)
    if op == 0:
        return 0
    st64(op + L.A_CHECK, noted)
    st64(op + L.A_GROUP, NO_GROUP)
    for lane in range(L.LANES):
        st64(op + L.A_LANE_DST + 8 * lane, ld64(addresses + 8 * lane))
    enqueue(w, op, LAT_CP_ASYNC, 0)
    st64(op + L.A_READY, when)  # not before its copies, which come first in the queue
    return 1


# ---------------------------------------------------------------- groups
@export
def tl_commit(w, field, mask, iid):
    """commit_group: the lanes' open group (at `field` of the warp) is closed, the next one is open."""
    if mask != 0:
        observe(w, CHECK_COMMIT, field, 0, 0, mask, iid)
    for lane in range(L.LANES):
        if (mask >> lane) & 1:
            st32(w + field + 4 * lane, ld32(w + field + 4 * lane) + 1)
    return 0


@export
def tl_wait_groups(w, field, kind, most, mask, iid):
    """wait_group: 1 when at most `most` of each lane's groups are pending (-1: the open one included), else 0."""
    if mask != 0:
        observe(w, CHECK_WAIT_GROUPS, field, kind, most, mask, iid)
    if ld64(ld64(w + L.W_UNIT) + L.U_COUNT) == 0:
        return 1
    go = 1
    left = mask
    while left != 0:
        current = ld32(w + field + 4 * trailing_zeros(left))
        lanes = 0
        for lane in range(L.LANES):
            if (left >> lane) & 1 and ld32(w + field + 4 * lane) == current:
                lanes |= 1 << lane
        left &= ~lanes
        if not groups_done(w, kind, current - most - 1, lanes):
            block(w, lanes, kind, current - most - 1, lanes, iid)
            go = 0
    return go


# ---------------------------------------------------------------- bulk and tensor copies
@helper
def good_mask(w, ranks, address, iid, lane):
    """Whether every CTA that a multicast mask names exists."""
    for rank in range(16):
        if (ranks >> rank) & 1 and remote_window(w, rank) == 0:
            fail(w, L.ERR_MULTICAST, iid, lane, address, ranks, rank)
            return False
    return ranks != 0


@helper
def aligned(w, address, to, iid, lane):
    """Whether a shared address of a bulk copy is aligned; else the error is recorded."""
    if address & (to - 1):
        fail(w, L.ERR_TMA_ALIGN, iid, lane, address & 0xFFFFFFFF, to, 0)
        return False
    return True


@helper
def map_at(w, address, iid, lane):
    """Host address of a tensor map at a generic address, 0 with the error recorded."""
    if address & _MAP_ALIGN:
        fail(w, L.ERR_TENSOR_MAP, iid, lane, address, RULE_ALIGN, 0)
        return 0
    for part in range(0, 128, 64):  # resolve wants 128-byte accesses to be aligned to 128
        if resolve(w, SPACE_GENERIC, address + part, 64, 0, iid, lane) == 0:
            return 0
    return resolve(w, SPACE_GENERIC, address, 64, 0, iid, lane)


@helper
def start_tensor(w, base, kind, dims, lane, iid):
    """A tensor operation of one lane with map (vector 0) and coordinates (vectors 3 to 7); 0 on error."""
    m = map_at(w, ld64(base + 8 * lane), iid, lane)
    if m == 0:
        return 0
    op = begin(w, kind, 1 << lane, iid)
    if op == 0:
        return 0
    st64(op + L.A_MAP, m)
    st64(op + L.A_SIZE, dims)
    st64(op + L.A_OP, 0)
    for i in range(dims):
        st64(op + L.A_COORD + 8 * i, ld64(base + 256 * (3 + i) + 8 * lane))
    return op


@export
def tl_tma_load(w, base, mask, dims, flags, iid):
    """cp.async.bulk.tensor to shared: map, destination, mbarrier, 5 coordinates, CTA mask at `base`."""
    for lane in range(L.LANES):
        if (mask >> lane) & 1 == 0:
            continue
        dst = ld64(base + 256 + 8 * lane)
        bar = ld64(base + 512 + 8 * lane)
        ranks = ld64(base + 256 * 8 + 8 * lane) & 0xFFFF if flags & FLAG_MULTICAST else 0
        if not aligned(w, dst, 128, iid, lane) or shared_at(w, dst, 16, iid, lane) == 0:
            return 0
        if flags & FLAG_OWN and not is_own(w, dst, iid, lane):
            return 0
        if mbarrier_at(w, SPACE_SHARED, bar, 0, iid, lane) == 0:
            return 0
        if flags & FLAG_MULTICAST and not good_mask(w, ranks, dst, iid, lane):
            return 0
        op = start_tensor(w, base, L.OP_TMA_LOAD, dims, lane, iid)
        if op == 0:
            return 0
        st64(op + L.A_DST, dst)
        st64(op + L.A_MBAR, bar)
        st64(op + L.A_GROUP, NO_GROUP)
        st64(op + L.A_FLAGS, flags | (ranks << FLAG_MASK_SHIFT))
        record(w, EVENT_ISSUE, dst, L.OP_TMA_LOAD, 1 << lane, iid)
        st64(op + L.A_CHECK, observe(w, CHECK_ISSUE, op, 0, 0, 1 << lane, iid))
        submit(w, op, LAT_TMA_LOAD, 0 if is_eager(w) else box_bytes(ld64(op + L.A_MAP)))
    st64(w + L.W_PROGRESS, ld64(w + L.W_PROGRESS) + 1)
    return 1


@export
def tl_tma_store(w, base, mask, dims, reduction, iid):
    """cp.async.bulk.tensor and cp.reduce.async.bulk.tensor (reduction >= 0) to global: map, source, coordinates."""
    kind = L.OP_TMA_STORE if reduction < 0 else L.OP_TMA_REDUCE
    for lane in range(L.LANES):
        if (mask >> lane) & 1 == 0:
            continue
        src = ld64(base + 256 + 8 * lane)
        if not aligned(w, src, 128, iid, lane) or not is_own(w, src, iid, lane):
            return 0
        op = start_tensor(w, base, kind, dims, lane, iid)
        if op == 0:
            return 0
        st64(op + L.A_SRC, src)
        st64(op + L.A_OP, max(reduction, 0))
        st64(op + L.A_GROUP, ld32(w + L.W_BULK_GROUP + 4 * lane))
        record(w, EVENT_ISSUE, src, kind, 1 << lane, iid)
        st64(op + L.A_CHECK, observe(w, CHECK_ISSUE, op, 0, 0, 1 << lane, iid))
        # lanes that store the same box: machine code issues it once (UTMASTG is of the warp)
        again = lane > trailing_zeros(mask) and src == ld64(base + 256 + 8 * trailing_zeros(mask))
        submit(w, op, LAT_TMA_STORE, 0 if is_eager(w) or again else box_bytes(ld64(op + L.A_MAP)))
    st64(w + L.W_PROGRESS, ld64(w + L.W_PROGRESS) + 1)
    return 1


@export
def tl_tma_prefetch(w, base, mask, dims, iid):
    """cp.async.bulk.prefetch.tensor: nothing moves, but the map must be valid."""
    for lane in range(L.LANES):
        if (mask >> lane) & 1:
            m = map_at(w, ld64(base + 8 * lane), iid, lane)
            if m == 0:
                return 0
            rule = broken_rule(m, dims, 0, 0)
            if rule != 0:
                fail(w, L.ERR_TENSOR_MAP, iid, lane, m, rule, dims)
                return 0
    return 1


@helper
def sized_right(w, address, size, iid, lane):
    """Whether the size of a bulk copy is a multiple of 16."""
    if size & 15 or size < 0:
        fail(w, L.ERR_BULK_SIZE, iid, lane, address, size, 0)
        return False
    return True


@helper
def global_source(w, address, size, write, iid, lane):
    """Whether the global side of a bulk copy is aligned and lies in an allocation; else the error is recorded."""
    if address & 15:
        fail(w, L.ERR_MISALIGNED, iid, lane, address, 16, SPACE_GLOBAL)
        return False
    if not global_ok(w, address, address + size, write, iid, lane):
        fail(w, L.ERR_OUT_OF_BOUNDS, iid, lane, address, size, SPACE_GLOBAL)
        return False
    return True


@export
def tl_bulk_load(w, base, mask, kind, flags, reduction, iid):
    """cp.async.bulk and cp.reduce.async.bulk to shared: destination, source, size, mbarrier, CTA mask at `base`."""
    for lane in range(L.LANES):
        if (mask >> lane) & 1 == 0:
            continue
        dst = ld64(base + 8 * lane)
        src = ld64(base + 256 + 8 * lane)
        size = ld64(base + 512 + 8 * lane)
        bar = ld64(base + 768 + 8 * lane)
        ranks = ld64(base + 1024 + 8 * lane) & 0xFFFF if flags & FLAG_MULTICAST else 0
        if not sized_right(w, dst, size, iid, lane) or not aligned(w, dst, 16, iid, lane):
            return 0
        if mbarrier_at(w, SPACE_SHARED, bar, 0, iid, lane) == 0 or shared_at(w, dst, size, iid, lane) == 0:
            return 0
        if flags & FLAG_OWN and not is_own(w, dst, iid, lane):
            return 0
        if flags & FLAG_MULTICAST and not good_mask(w, ranks, dst, iid, lane):
            return 0
        if kind == L.OP_BULK_G2S:
            if not global_source(w, src, size, 0, iid, lane):
                return 0
        elif not aligned(w, src, 16, iid, lane) or not is_own(w, src, iid, lane):
            return 0
        op = begin(w, kind, 1 << lane, iid)
        if op == 0:
            return 0
        st64(op + L.A_DST, dst)
        st64(op + L.A_SRC, src)
        st64(op + L.A_SIZE, size)
        st64(op + L.A_MBAR, bar)
        st64(op + L.A_OP, reduction)
        st64(op + L.A_GROUP, NO_GROUP)
        st64(op + L.A_FLAGS, flags | (ranks << FLAG_MASK_SHIFT))
        record(w, EVENT_ISSUE, dst, kind, 1 << lane, iid)
        st64(op + L.A_CHECK, observe(w, CHECK_ISSUE, op, 0, 0, 1 << lane, iid))
        submit(w, op, LAT_BULK, size)
    st64(w + L.W_PROGRESS, ld64(w + L.W_PROGRESS) + 1)
    return 1


@export
def tl_bulk_store(w, base, mask, kind, flags, reduction, iid):
    """cp.async.bulk and cp.reduce.async.bulk to global: destination, source, size, byte mask at `base`."""
    for lane in range(L.LANES):
        if (mask >> lane) & 1 == 0:
            continue
        dst = ld64(base + 8 * lane)
        src = ld64(base + 256 + 8 * lane)
        size = ld64(base + 512 + 8 * lane)
        if not sized_right(w, dst, size, iid, lane) or not aligned(w, src, 16, iid, lane):
            return 0
        if not is_own(w, src, iid, lane) or not global_source(w, dst, size, 1, iid, lane):
            return 0
        op = begin(w, kind, 1 << lane, iid)
        if op == 0:
            return 0
        st64(op + L.A_DST, dst)
        st64(op + L.A_SRC, src)
        st64(op + L.A_SIZE, size)
        st64(op + L.A_OP, reduction)
        st64(op + L.A_GROUP, ld32(w + L.W_BULK_GROUP + 4 * lane))
        st64(op + L.A_FLAGS, flags | ((ld64(base + 1024 + 8 * lane) & 0xFFFF) << FLAG_MASK_SHIFT))
        record(w, EVENT_ISSUE, src, kind, 1 << lane, iid)
        st64(op + L.A_CHECK, observe(w, CHECK_ISSUE, op, 0, 0, 1 << lane, iid))
        submit(w, op, LAT_BULK, size)
    st64(w + L.W_PROGRESS, ld64(w + L.W_PROGRESS) + 1)
    return 1


# ---------------------------------------------------------------- tensor maps in memory
@export
def tl_map_put(w, space, addresses, values, mask, word, low, width, iid):
    """tensormap.replace: set bits [low, low + width) of the 64-bit word at byte `word` of each active lane's map."""
    bits = -1 if width >= 64 else (1 << width) - 1
    for lane in range(L.LANES):
        if (mask >> lane) & 1 == 0:
            continue
        address = ld64(addresses + 8 * lane)
        if address & _MAP_ALIGN:
            fail(w, L.ERR_TENSOR_MAP, iid, lane, address, RULE_ALIGN, 0)
            return 0
        host = resolve(w, space, address + word, 8, 1, iid, lane)
        if host == 0:
            return 0
        observe(w, CHECK_MAP, host, 0, 8, 1 << lane, iid)
        value = ld64(values + 8 * lane) & bits
        st64(host, (ld64(host) & ~(bits << low)) | (value << low))
    st64(w + L.W_PROGRESS, ld64(w + L.W_PROGRESS) + 1)
    return 1


@export
def tl_map_publish(w, base, mask, iid):
    """tensormap.cp_fenceproxy: copy 128 bytes from shared to global memory, once for the warp."""
    if mask == 0:
        return 0
    lane = trailing_zeros(mask)
    for k in range(0, 128, 8):
        src = resolve(w, SPACE_OWN, ld64(base + 256 + 8 * lane) + k, 8, 0, iid, lane)
        dst = resolve(w, SPACE_GLOBAL, ld64(base + 8 * lane) + k, 8, 1, iid, lane)
        if src == 0 or dst == 0:
            return 0
        observe(w, CHECK_MAP, dst, src, 8 | k << 32, 1 << lane, iid)
        st64(dst, ld64(src))
    st64(w + L.W_PROGRESS, ld64(w + L.W_PROGRESS) + 1)
    return 1
