"""Issue of tcgen05's asynchronous operations (PTX ISA 9.7.16, "tcgen05 Memory Consistency Model").

An instruction makes an operation with `effects.begin`, fills it in, and hands it to `issue`:

    queue = queue_of(w, pair, lane, iid)       # 0: the error is recorded
    op = begin(w, L.OP_TC_MMA, 1 << lane, iid)
    ...                                        # the operation's own fields
    issue(w, op, queue, work)                  # work: f16 multiply-adds, for the timed policy

It takes effect (`effects.run_op`) when all of its queue before it have. tcgen05.st is of no such queue: nothing orders
it with the others but tcgen05.wait::st and what follows that.
"""

from __future__ import annotations

from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.machine.effects import begin, submit
from tensorladder.vgpu.machine.hooks import CHECK_ISSUE, CHECK_TMEM_ST, EVENT_ISSUE, observe, record
from tensorladder.vgpu.machine.lanes import fail
from tensorladder.vgpu.machine.mbarrier import mbarrier_at
from tensorladder.vgpu.machine.native import export, helper
from tensorladder.vgpu.machine.queue import LAT_TENSOR, LAT_TMEM, NO_GROUP, is_eager
from tensorladder.vgpu.machine.raw import ld16, ld32, ld64, st64, trailing_zeros
from tensorladder.vgpu.machine.tcgen05 import CP_4X256B, SHIFT_COLUMNS, cp_chunks, cp_rows
from tensorladder.vgpu.machine.tcmma_check import swizzle_of
from tensorladder.vgpu.machine.tmem import (
    SCRATCH_HOST,
    SCRATCH_REGISTERS,
    keep_store,
    lane_words,
    memory_of,
    owned,
    peer_of,
    store_words,
)


@helper
def queue_of(w, pair, iid):
    """The queue of a warp's tcgen05 operations: its CTA, for cta_group::2 (pair) the pair's even CTA; 0 on error."""
    if memory_of(w, iid) == 0:
        return 0
    cta = ld64(w + L.W_CTA)
    if pair == 0:
        return cta
    peer = peer_of(w, iid)
    return min(cta, peer) if peer != 0 else 0


@helper
def issue(w, op, queue, work):
    """Put an operation that is filled in behind the others of its queue; work: f16 multiply-adds."""
    st64(op + L.A_QUEUE, queue)
    record(w, EVENT_ISSUE, queue, ld64(op + L.A_KIND), ld64(op + L.A_LANES), ld64(op + L.A_IID))
    st64(op + L.A_CHECK, observe(w, CHECK_ISSUE, op, 0, 0, ld64(op + L.A_LANES), ld64(op + L.A_IID)))
    submit(w, op, LAT_TENSOR, work)
    st64(w + L.W_PROGRESS, ld64(w + L.W_PROGRESS) + 1)


@helper
def cluster_size(w):
    """CTAs in the warp's cluster."""
    launch = ld64(w + L.W_LAUNCH)
    return ld64(launch + L.L_CLUSTER) * ld64(launch + L.L_CLUSTER + 8) * ld64(launch + L.L_CLUSTER + 16)


@export
def tl_tc_commit(w, space, addresses, masks, lanes, pair, iid):
    """tcgen05.commit: an operation a lane, one arrival; masks (i16 a lane; 0: no multicast) name the CTAs to tell."""
    for lane in range(L.LANES):
        if (lanes >> lane) & 1 == 0:
            continue
        queue = queue_of(w, pair, iid)
        address = ld64(addresses + 8 * lane)
        mask = -1
        if masks != 0:
            mask = ld16(masks + 2 * lane)
            beyond = mask >> cluster_size(w)
            if beyond != 0:
                fail(w, L.ERR_MULTICAST, iid, lane, 0, mask, cluster_size(w) + trailing_zeros(beyond))
                return 0
        if queue == 0 or mbarrier_at(w, space, address, int(mask < 0), iid, lane) == 0:
            return 0
        op = begin(w, L.OP_TC_COMMIT, 1 << lane, iid)
        if op == 0:
            return 0
        st64(op + L.A_MBAR, address & 0xFFFFFFFF)
        st64(op + L.A_OP, mask)
        issue(w, op, queue, 0)
    return 1


#: a copied byte's share of the tensor cores' time, in f16 multiply-adds: 128 bytes a cycle (timed; a guess)
_WORK_A_BYTE = 32


@helper
def columns_ok(w, pair, address, align, count, iid, lane):
    """Whether `count` columns from an address on belong to the CTA (and its peer) and its lane is a multiple of align.

    align 0: any lane below 32. False with the error recorded.
    """
    row = address >> 16
    if (align == 0 and row >= 32) or (align != 0 and (row >= L.TMEM_LANES or row % align != 0)):
        fail(w, L.ERR_TMEM_ROW, iid, lane, address, max(align, 1), 0)
        return False
    cta = ld64(w + L.W_CTA)
    column = address & 0xFFFF
    fine = owned(ld64(cta + L.C_TMEM), cta, column, count)
    if fine and pair != 0:
        peer = peer_of(w, iid)
        fine = owned(ld64(peer + L.C_TMEM), peer, column, count)
    if not fine:
        fail(w, L.ERR_TMEM_COLUMNS, iid, lane, address, column, column + count - 1)
    return fine


@export
def tl_tc_cp(w, addresses, descriptors, shape, packing, lanes, pair, iid):
    """tcgen05.cp: tensor memory addresses (i32 a lane) and matrix descriptors of the source (i64 a lane)."""
    for lane in range(L.LANES):
        if (lanes >> lane) & 1 == 0:
            continue
        queue = queue_of(w, pair, iid)
        address = ld32(addresses + 4 * lane)
        descriptor = ld64(descriptors + 8 * lane)
        chunks = cp_chunks(shape)
        align = 0 if shape == CP_4X256B else L.TMEM_LANES
        if queue == 0 or not columns_ok(w, pair, address, align, 4 * chunks, iid, lane):
            return 0
        if swizzle_of(descriptor) < 0:
            fail(w, L.ERR_TMEM_DESCRIPTOR, iid, lane, 0, (descriptor >> 61) & 7, 0)
            return 0
        op = begin(w, L.OP_TC_CP, 1 << lane, iid)
        if op == 0:
            return 0
        st64(op + L.A_DST, address)
        st64(op + L.A_SRC, descriptor)
        st64(op + L.A_OP, shape | (packing << 8))
        st64(op + L.A_FLAGS, pair)
        issue(w, op, queue, cp_rows(shape) * chunks * 16 * _WORK_A_BYTE)
    return 1


@export
def tl_tc_shift(w, addresses, lanes, pair, iid):
    """tcgen05.shift.down: tensor memory addresses (i32 a lane)."""
    for lane in range(L.LANES):
        if (lanes >> lane) & 1 == 0:
            continue
        queue = queue_of(w, pair, iid)
        address = ld32(addresses + 4 * lane)
        if queue == 0 or not columns_ok(w, pair, address, L.LANES, SHIFT_COLUMNS, iid, lane):
            return 0
        op = begin(w, L.OP_TC_SHIFT, 1 << lane, iid)
        if op == 0:
            return 0
        st64(op + L.A_DST, address)
        st64(op + L.A_FLAGS, pair)
        issue(w, op, queue, 31 * 32 * _WORK_A_BYTE)
    return 1


@export
def tl_tmem_st(w, shape, count, half, step, lanes, iid):
    """tcgen05.st of `count` registers a lane: the address in scratch 0, the registers from scratch 2 on."""
    if not lane_words(w, shape, count, half, step, lanes, iid):
        return 0
    hosts = w + L.W_SCRATCH + 256 * SCRATCH_HOST
    record(w, EVENT_ISSUE, ld64(hosts), L.OP_TC_ST, lanes, iid)
    observe(w, CHECK_TMEM_ST, shape | (half << 8), count, step, lanes, iid)
    st64(w + L.W_PROGRESS, ld64(w + L.W_PROGRESS) + 1)
    if is_eager(w):
        store_words(hosts, w + L.W_SCRATCH + 256 * SCRATCH_REGISTERS, 256, shape, count, step, lanes)
        return 1
    op = begin(w, L.OP_TC_ST, lanes, iid)
    if op == 0:
        return 0
    keep_store(op, w, shape, count, step)
    st64(op + L.A_GROUP, NO_GROUP)
    st64(op + L.A_QUEUE, w)  # a warp's stores reach the memory in order
    submit(w, op, LAT_TMEM, 0)
    return 1
