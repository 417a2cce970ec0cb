"""Tensor memory: allocation, and a warp's loads and stores (PTX ISA 9.7.16, "Tensor Memory", tcgen05.alloc, .ld, .st).

128 lanes of 512 32-bit columns an SM (layout.T_*). An address has the lane in its upper half and the column in the
lower one. A CTA reaches what it has allocated, a warp the 32 lanes of its place in the warpgroup. The SM's permit to
allocate belongs to the CTA that allocated first until it gives it back or ends; that is how CUTLASS names and uses
tcgen05.relinquish_alloc_permit ("allocation lock"), the ISA itself only forbids an allocation afterwards.
"""

from __future__ import annotations

from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.machine.hooks import (
    CHECK_TMEM_ALLOC,
    CHECK_TMEM_DEALLOC,
    CHECK_TMEM_LD,
    EVENT_READ,
    EVENT_WRITE,
    observe,
    record,
)
from tensorladder.vgpu.machine.lanes import all_here, block, fail
from tensorladder.vgpu.machine.mbarrier import cta_of_rank
from tensorladder.vgpu.machine.memory import resolve
from tensorladder.vgpu.machine.native import export, helper
from tensorladder.vgpu.machine.queue import pending_op
from tensorladder.vgpu.machine.raw import (
    allocate,
    copy_bytes,
    fill_bytes,
    free_bytes,
    ld8,
    ld16,
    ld32,
    ld64,
    st8,
    st32,
    st64,
    trailing_zeros,
)
from tensorladder.vgpu.machine.vectors import lanes_equal32, lanes_equal64, load_four_words

GRANULES = L.TMEM_COLUMNS // L.TMEM_GRANULE
#: shapes of tcgen05.ld and .st
SHAPE_32X32B, SHAPE_16X64B, SHAPE_16X128B, SHAPE_16X256B, SHAPE_16X32BX2 = range(5)
#: scratch of tl_tmem_ld and _st: addresses (i32), host addresses of the lanes' first word (i64), then the registers
SCRATCH_ADDRESS, SCRATCH_HOST, SCRATCH_REGISTERS = 0, 1, 2


# ---------------------------------------------------------------- what an SM's tensor memory holds
@helper
def memory_of(w, iid):
    """The tensor memory of a warp's SM; 0 with the error recorded where the architecture has none."""
    t = ld64(ld64(w + L.W_CTA) + L.C_TMEM)
    if t == 0:
        fail(w, L.ERR_TMEM_NONE, iid, 0, 0, 0, 0)
    return t


@helper
def word_at(t, lane, column):
    """Host address of a lane's word in a column."""
    return t + L.T_DATA + lane * L.TMEM_ROW + 4 * column


@helper
def owned(t, cta, column, count):
    """Whether columns [column, column + count) exist and all belong to a CTA."""
    if column < 0 or count < 1 or column + count > L.TMEM_COLUMNS:
        return False
    for g in range(column // L.TMEM_GRANULE, (column + count - 1) // L.TMEM_GRANULE + 1):
        if ld64(t + L.T_OWNER + 8 * g) != cta:
            return False
    return True


@helper
def free_run(t, first, count):
    """Whether `count` granules from `first` on are free."""
    taken = 0
    for g in range(first, first + count):
        taken |= ld64(t + L.T_OWNER + 8 * g)
    return taken == 0


@helper
def permitted(t, cta):
    """Whether a CTA may allocate now, as far as the SM's permit goes."""
    holder = ld64(t + L.T_LOCK)
    return holder == 0 or holder == cta


@helper
def room(cta, peer, columns):
    """The first column where a CTA (and its peer, unless that is 0) can have so many; -1: none now, or no permit."""
    t = ld64(cta + L.C_TMEM)
    if not permitted(t, cta):
        return -1
    other = 0
    if peer != 0:
        other = ld64(peer + L.C_TMEM)
        if not permitted(other, peer):
            return -1
    count = columns // L.TMEM_GRANULE
    for first in range(GRANULES - count + 1):
        if free_run(t, first, count) and (other == 0 or free_run(other, first, count)):
            return first * L.TMEM_GRANULE
    return -1


@helper
def take(cta, column, columns, iid):
    """Give columns to a CTA: poisoned, since what a new allocation holds is undefined."""
    t = ld64(cta + L.C_TMEM)
    first = column // L.TMEM_GRANULE
    for g in range(first, first + columns // L.TMEM_GRANULE):
        st64(t + L.T_OWNER + 8 * g, cta)
        st64(t + L.T_COLUMNS + 8 * g, 0)
        st8(cta + L.C_TMEM_FREED + g, 0)
    st64(t + L.T_COLUMNS + 8 * first, columns)
    st64(t + L.T_IID + 8 * first, iid)
    st64(t + L.T_LOCK, cta)
    st64(cta + L.C_TMEM_COLUMNS, columns)
    for lane in range(L.TMEM_LANES):
        fill_bytes(word_at(t, lane, column), 0xFF, 4 * columns)


@helper
def give(t, column):
    """Free the allocation that begins at a column."""
    first = column // L.TMEM_GRANULE
    count = ld64(t + L.T_COLUMNS + 8 * first) // L.TMEM_GRANULE
    for g in range(first, first + count):
        st64(t + L.T_OWNER + 8 * g, 0)
        st64(t + L.T_COLUMNS + 8 * g, 0)


@helper
def release_permit(cta):
    """A CTA gives the SM's permit to allocate back."""
    t = ld64(cta + L.C_TMEM)
    if t != 0 and ld64(t + L.T_LOCK) == cta:
        st64(t + L.T_LOCK, 0)


@helper
def begin_cta(cta):
    """A CTA starts: nothing allocated yet."""
    for field in range(L.C_TMEM_NO_PERMIT, L.C_TMEM_GRANT + 8, 8):
        st64(cta + field, 0)


@helper
def end_cta(cta):
    """A CTA has ended: an error where it leaves columns behind (all must be deallocated before a kernel exits)."""
    t = ld64(cta + L.C_TMEM)
    if t == 0:
        return
    release_permit(cta)
    for g in range(GRANULES):
        if ld64(t + L.T_OWNER + 8 * g) == cta and ld64(t + L.T_COLUMNS + 8 * g) != 0:
            w = ld64(cta + L.C_WARPS)
            columns = ld64(t + L.T_COLUMNS + 8 * g)
            fail(w, L.ERR_TMEM_LEAK, ld64(t + L.T_IID + 8 * g), 0, g * L.TMEM_GRANULE, columns, 0)
            st64(ld64(cta + L.C_LAUNCH) + L.L_STOP, 1)
            return


# ---------------------------------------------------------------- operands
@helper
def same32(w, values, lanes, iid):
    """The value that all lanes hold (u32); -1 with the error recorded when they differ."""
    value = ld32(values + 4 * trailing_zeros(lanes))
    odd = lanes & ~lanes_equal32(values, value)
    if odd != 0:
        lane = trailing_zeros(odd)
        fail(w, L.ERR_TMEM_UNIFORM, iid, lane, 0, value, ld32(values + 4 * lane))
        return -1
    return value


@helper
def column_count(w, values, lanes, iid):
    """The operand nCols: a power of two from 32 to 512, else -1 with the error recorded."""
    columns = same32(w, values, lanes, iid)
    if columns >= 0 and (columns < L.TMEM_GRANULE or columns > L.TMEM_COLUMNS or columns & (columns - 1)):
        fail(w, L.ERR_TMEM_COUNT, iid, 0, 0, columns, 0)
        return -1
    return columns


@helper
def peer_of(w, iid):
    """The other CTA of a warp's pair (the ranks that differ in bit 0); 0 with the error recorded without one."""
    launch = ld64(w + L.W_LAUNCH)
    size = ld64(launch + L.L_CLUSTER) * ld64(launch + L.L_CLUSTER + 8) * ld64(launch + L.L_CLUSTER + 16)
    rank = ld64(w + L.W_RANK)
    if rank ^ 1 >= size:
        fail(w, L.ERR_TMEM_PAIR, iid, 0, 0, rank, 0)
        return 0
    return cta_of_rank(w, rank ^ 1)


# ---------------------------------------------------------------- allocation
@helper
def pair_column(w, cta, peer, columns, iid):
    """A half of a pair asks: the column for both, once the other half asks too and there is room; -1 to wait."""
    grant = ld64(cta + L.C_TMEM_GRANT)
    if grant != 0:
        st64(cta + L.C_TMEM_GRANT, 0)
        st64(cta + L.C_TMEM_WANT, 0)
        return grant - 1
    st64(cta + L.C_TMEM_WANT, columns)
    want = ld64(peer + L.C_TMEM_WANT)
    if want == 0 or ld64(peer + L.C_TMEM_GRANT) != 0:
        return -1
    if want != columns:
        fail(w, L.ERR_TMEM_PAIR_COUNT, iid, 0, 0, columns, want)
        return -1
    column = room(cta, peer, columns)
    if column >= 0:
        take(cta, column, columns, iid)
        take(peer, column, columns, iid)
        st64(cta + L.C_TMEM_WANT, 0)
        st64(peer + L.C_TMEM_GRANT, column + 1)
    return column


@helper
def can_allocate(w, columns, pair):
    """Whether a waiting tcgen05.alloc could go on now (WAIT_TMEM_ALLOC)."""
    cta = ld64(w + L.W_CTA)
    if pair == 0:
        return room(cta, 0, columns) >= 0
    peer = cta_of_rank(w, ld64(w + L.W_RANK) ^ 1)
    if ld64(cta + L.C_TMEM_GRANT) != 0:
        return True
    return ld64(peer + L.C_TMEM_WANT) != 0 and ld64(peer + L.C_TMEM_GRANT) == 0 and room(cta, peer, columns) >= 0


@export
def tl_tmem_alloc(w, space, addresses, counts, lanes, pair, iid):
    """tcgen05.alloc: 1 when the address of the columns is in shared memory, 0 to wait (or with the error recorded)."""
    if not all_here(w, lanes, iid):
        return 0
    columns = column_count(w, counts, lanes, iid)
    if columns < 0 or memory_of(w, iid) == 0:
        return 0
    cta = ld64(w + L.W_CTA)
    last = ld64(cta + L.C_TMEM_COLUMNS)
    granted = ld64(cta + L.C_TMEM_GRANT) != 0
    if ld64(cta + L.C_TMEM_NO_PERMIT) != 0 and not granted:
        fail(w, L.ERR_TMEM_PERMIT, iid, 0, 0, 0, 0)
        return 0
    if last != 0 and columns > last:
        fail(w, L.ERR_TMEM_GROWS, iid, 0, 0, columns, last)
        return 0
    first = trailing_zeros(lanes)
    address = ld64(addresses + 8 * first)
    odd = lanes & ~lanes_equal64(addresses, address)
    if odd != 0:
        lane = trailing_zeros(odd)
        fail(w, L.ERR_TMEM_UNIFORM, iid, lane, 0, address, ld64(addresses + 8 * lane))
        return 0
    host = resolve(w, space, address, 4, 1, iid, first)
    if host == 0:
        return 0
    if pair == 0:
        column = room(cta, 0, columns)
        if column >= 0:
            take(cta, column, columns, iid)
    else:
        peer = peer_of(w, iid)
        if peer == 0:
            return 0
        column = pair_column(w, cta, peer, columns, iid)
    if ld64(w + L.W_ERROR) != 0:
        return 0
    if column < 0:
        block(w, lanes, L.WAIT_TMEM_ALLOC, columns, pair, iid)
        return 0
    st32(host, column)
    record(w, EVENT_WRITE, host, 4, 1 << first, iid)
    observe(w, CHECK_TMEM_ALLOC, host, column, columns, lanes, iid)
    st64(w + L.W_PROGRESS, ld64(w + L.W_PROGRESS) + 1)
    return 1


@export
def tl_tmem_dealloc(w, addresses, counts, lanes, pair, iid):
    """tcgen05.dealloc. Warps that deallocate what the CTA has deallocated before change nothing: published kernels do
    so, and chips let them."""
    columns = column_count(w, counts, lanes, iid)
    if columns < 0:
        return 0
    address = same32(w, addresses, lanes, iid)
    t = memory_of(w, iid)
    if address < 0 or t == 0 or (pair != 0 and peer_of(w, iid) == 0):
        return 0
    cta = ld64(w + L.W_CTA)
    g = address // L.TMEM_GRANULE
    have = 0
    if address % L.TMEM_GRANULE == 0 and g < GRANULES:
        if ld64(t + L.T_OWNER + 8 * g) == cta:
            have = ld64(t + L.T_COLUMNS + 8 * g)
        if have == columns or have == 0:
            observe(w, CHECK_TMEM_DEALLOC, address, columns, have, lanes, iid)
        if have == columns:
            give(t, address)
            st8(cta + L.C_TMEM_FREED + g, columns // L.TMEM_GRANULE)
            st64(w + L.W_PROGRESS, ld64(w + L.W_PROGRESS) + 1)
            return 1
        if have == 0 and ld8(cta + L.C_TMEM_FREED + g) * L.TMEM_GRANULE == columns:
            return 1
    fail(w, L.ERR_TMEM_DEALLOC, iid, 0, address, columns, have)
    return 0


@export
def tl_tmem_relinquish(w, pair, iid):
    """tcgen05.relinquish_alloc_permit: this CTA allocates no more; others of its SM may."""
    if memory_of(w, iid) == 0 or (pair != 0 and peer_of(w, iid) == 0):
        return 0
    cta = ld64(w + L.W_CTA)
    st64(cta + L.C_TMEM_NO_PERMIT, 1)
    release_permit(cta)
    st64(w + L.W_PROGRESS, ld64(w + L.W_PROGRESS) + 1)
    return 1


# ---------------------------------------------------------------- tcgen05.ld, tcgen05.st
@helper
def lane_words(w, shape, count, half, step, lanes, iid):
    """Host addresses of each lane's first word, to scratch SCRATCH_HOST: false with the error recorded.

    count: registers a lane; half: the column offset of lanes 16 to 31 in 16x32bx2; step: columns a register's element
    takes (2 where two 16-bit elements of adjacent columns share a register).
    """
    t = memory_of(w, iid)
    address = same32(w, w + L.W_SCRATCH + 256 * SCRATCH_ADDRESS, lanes, iid)
    if t == 0 or address < 0:
        return False
    column = address & 0xFFFF
    row = address >> 16
    own = L.LANES * (ld64(w + L.W_WARPID) & 3)
    # the upper bits of the lane choose nothing: a warp's quarter is fixed, and zero stands for it
    if row & ~31 != own and row & ~31 != 0:
        fail(w, L.ERR_TMEM_LANES, iid, 0, address, own, row)
        return False
    align = 32 if shape == SHAPE_32X32B else 16
    if row & (align - 1):
        fail(w, L.ERR_TMEM_ROW, iid, 0, address, align, 0)
        return False
    row = own + (row & 31)
    width = columns_of(shape, count) * step
    cta = ld64(w + L.W_CTA)
    if not owned(t, cta, column, width) or (half != 0 and not owned(t, cta, column + half, width)):
        fail(w, L.ERR_TMEM_COLUMNS, iid, 0, address, column + min(half, 0), column + max(half, 0) + width - 1)
        return False
    hosts = w + L.W_SCRATCH + 256 * SCRATCH_HOST
    for k in range(L.LANES):
        r = k
        c = 0
        if shape == SHAPE_16X64B:
            r = k // 4 + 8 * (k % 2)
            c = (k // 2) % 2
        elif shape == SHAPE_16X128B:
            r = k // 4
            c = k % 4
        elif shape == SHAPE_16X256B:
            r = k // 4
            c = 2 * (k % 4)
        elif shape == SHAPE_16X32BX2:
            r = k % 16
            column = (address & 0xFFFF) + (half if k >= 16 else 0)
        st64(hosts + 8 * k, word_at(t, row + r, column + c * step))
    return True


@helper
def columns_of(shape, count):
    """Columns (of elements) that `count` registers a lane cover."""
    return 2 * count if SHAPE_16X64B <= shape <= SHAPE_16X256B else count


@helper
def register_offset(shape, step, r):
    """Bytes from a lane's first word to that of its register r."""
    if shape == SHAPE_16X64B:
        return 8 * step * r
    if shape == SHAPE_16X128B:
        return (r % 2) * 8 * L.TMEM_ROW + 16 * step * (r // 2)
    if shape == SHAPE_16X256B:
        return ((r // 2) % 2) * 8 * L.TMEM_ROW + 4 * step * (r % 2) + 32 * step * (r // 4)
    return 4 * step * r


@export
def tl_tmem_ld(w, shape, count, half, step, lanes, iid):
    """tcgen05.ld of `count` registers a lane: the address in scratch 0, the registers from scratch 2 on.

    A load delivers at once: a value in flight could only show to code that lacks tcgen05.wait::ld, and compilers
    themselves move registers before it.
    """
    if not lane_words(w, shape, count, half, step, lanes, iid):
        return 0
    hosts = w + L.W_SCRATCH + 256 * SCRATCH_HOST
    out = w + L.W_SCRATCH + 256 * SCRATCH_REGISTERS
    record(w, EVENT_READ, ld64(hosts), 4 * count, lanes, iid)
    observe(w, CHECK_TMEM_LD, shape | (half << 8), count, step, lanes, iid)
    if step == 1 and shape == SHAPE_32X32B and count >= 4:
        for r in range(0, count, 4):
            load_four_words(hosts, 4 * r, out + 256 * r)
        return 1
    for r in range(count):
        offset = register_offset(shape, step, r)
        for lane in range(L.LANES):
            at = ld64(hosts + 8 * lane) + offset
            value = ld32(at) if step == 1 else ld16(at) | (ld16(at + 4) << 16)
            st32(out + 256 * r + 4 * lane, value)
    return 1


@helper
def store_words(hosts, values, pitch, shape, count, step, lanes):
    """Store registers (vectors `pitch` bytes apart) to the lanes' words."""
    for r in range(count):
        offset = register_offset(shape, step, r)
        for lane in range(L.LANES):
            if (lanes >> lane) & 1:
                at = ld64(hosts + 8 * lane) + offset
                value = ld32(values + pitch * r + 4 * lane)
                if step == 1:
                    st32(at, value)
                else:
                    st32(at, value & 0xFFFF)
                    st32(at + 4, value >> 16)


@helper
def run_store(op):
    """Effect of tcgen05.st."""
    buffer = ld64(op + L.A_BUFFER)
    shape = ld64(op + L.A_OP) & 0xFF
    lanes = ld64(op + L.A_LANES)
    store_words(op + L.A_LANE_DST, buffer, 128, shape, ld64(op + L.A_SIZE), ld64(op + L.A_OP) >> 8, lanes)
    free_bytes(buffer)
    st64(op + L.A_STAGE, 2)
    return True


@helper
def keep_store(op, w, shape, count, step):
    """Copy what tcgen05.st stores, and where to, into its operation."""
    buffer = allocate(128 * count)
    for r in range(count):
        copy_bytes(buffer + 128 * r, w + L.W_SCRATCH + 256 * (SCRATCH_REGISTERS + r), 128)
    copy_bytes(op + L.A_LANE_DST, w + L.W_SCRATCH + 256 * SCRATCH_HOST, 256)
    st64(op + L.A_BUFFER, buffer)
    st64(op + L.A_STAGE, 1)  # has a buffer: see copies.drop_buffer
    st64(op + L.A_SIZE, count)
    st64(op + L.A_OP, shape | (step << 8))


@helper
def stores_done(w):
    """Whether no tcgen05.st of a warp is pending (WAIT_TMEM_STORE)."""
    u = ld64(w + L.W_UNIT)
    for position in range(ld64(u + L.U_COUNT)):
        op = pending_op(u, position)
        if ld64(op + L.A_KIND) == L.OP_TC_ST and ld64(op + L.A_WARP) == w:
            return False
    return True


@export
def tl_tmem_wait_st(w, lanes, iid):
    """tcgen05.wait::st: 1 when the warp's stores are done, 0 to wait."""
    if not all_here(w, lanes, iid):
        return 0
    if stores_done(w):
        return 1
    block(w, lanes, L.WAIT_TMEM_STORE, 0, 0, iid)
    return 0
