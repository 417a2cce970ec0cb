"""Effects of tcgen05.commit, .cp and .shift (PTX ISA 9.7.16; CUTLASS copy_traits_sm100.hpp for the lanes of copies).

tcgen05.mma, .cp, .shift and .commit of a CTA take effect in order of issue, those of cta_group::2 in the order of the
pair (`tcgen05_issue.queue_of`). So a commit needs no list of what it waits for: when its turn comes, all that was
issued before it is complete.
"""

from __future__ import annotations

from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.machine.hooks import CHECK_ASYNC_ARRIVE, EVENT_ARRIVE, EVENT_EFFECT, observe, record
from tensorladder.vgpu.machine.lanes import fail
from tensorladder.vgpu.machine.mbarrier import arrive, cta_of_rank, mbarrier_at
from tensorladder.vgpu.machine.memory import SPACE_SHARED
from tensorladder.vgpu.machine.native import helper
from tensorladder.vgpu.machine.operands import SW_NONE, span_bytes, swizzled
from tensorladder.vgpu.machine.raw import copy_bytes, ld8, ld16, ld64, move16, st8, trailing_zeros
from tensorladder.vgpu.machine.tcmma_check import swizzle_of
from tensorladder.vgpu.machine.tmem import word_at

#: shapes of tcgen05.cp: 64x128b and 32x128b with the warps that each get a copy
CP_128X256B, CP_128X128B, CP_4X256B, CP_64X128B_02_13, CP_64X128B_01_23, CP_32X128B = range(6)
#: what tcgen05.cp unpacks: nothing, 16 six-bit or 16 four-bit elements of each 16 bytes
CP_PLAIN, CP_B6, CP_B4 = range(3)
#: columns that tcgen05.shift moves
SHIFT_COLUMNS = 8


@helper
def arrive_one(w, address, noted, iid, lane):
    """One arrival on the mbarrier at a shared::cluster address (noted: A_CHECK): false with the error recorded."""
    host = mbarrier_at(w, SPACE_SHARED, address, 1, iid, lane)
    if host == 0:
        return False
    record(w, EVENT_ARRIVE, host, 1, 1 << lane, iid)
    observe(w, CHECK_ASYNC_ARRIVE, host, noted, 0, 1 << lane, iid)
    return arrive(w, host, address, 1, 0, 0, iid, lane) >= 0


@helper
def run_commit(op):
    """Arrive on the mbarrier at A_MBAR, or at the same place of every CTA in the mask A_OP where that is not -1."""
    w = ld64(op + L.A_WARP)
    iid = ld64(op + L.A_IID)
    lane = trailing_zeros(ld64(op + L.A_LANES))
    address = ld64(op + L.A_MBAR)
    mask = ld64(op + L.A_OP)
    if mask < 0:
        arrive_one(w, address, ld64(op + L.A_CHECK), iid, lane)
        return True
    while mask != 0:
        rank = trailing_zeros(mask)
        mask &= mask - 1
        if not arrive_one(w, (rank << L.RANK_SHIFT) | (address & 0xFFFFFF), ld64(op + L.A_CHECK), iid, lane):
            return True
    return True


# ---------------------------------------------------------------- tcgen05.cp
@helper
def chunk_at(descriptor, swizzle, row, chunk):
    """Place in the window of 16 bytes of a K-major tile: row, and which chunk of the row."""
    start = (descriptor & 0x3FFF) << 4
    leading = ((descriptor >> 16) & 0x3FFF) << 4
    stride = ((descriptor >> 32) & 0x3FFF) << 4
    if swizzle == SW_NONE:
        return start + (row >> 3) * stride + (row & 7) * 16 + chunk * leading
    at = start + (row >> 3) * stride + (row & 7) * span_bytes(swizzle) + chunk * 16
    return swizzled(at, swizzle, ((descriptor >> 49) & 7) << 7)


@helper
def cp_rows(shape):
    """Rows that tcgen05.cp reads."""
    if shape == CP_4X256B:
        return 4
    if shape == CP_32X128B:
        return 32
    return 64 if shape in (CP_64X128B_02_13, CP_64X128B_01_23) else 128


@helper
def cp_chunks(shape):
    """16-byte chunks of a row of tcgen05.cp, 4 columns each."""
    return 2 if shape in (CP_128X256B, CP_4X256B) else 1


@helper
def expand(dst, src, packing):
    """16 bytes of tensor memory from 16 of shared memory.

    Narrow elements lie one after the other in the first 12 or 8 bytes; each gets a byte: six bits at its low end, four
    bits in its middle (bits 2 to 5), zeros around them.
    """
    if packing == CP_PLAIN:
        move16(dst, src)
        return
    for k in range(16):
        if packing == CP_B6:
            st8(dst + k, (ld16(src + (6 * k >> 3)) >> (6 * k & 7)) & 0x3F)
        else:
            st8(dst + k, ((ld8(src + (k >> 1)) >> (4 * (k & 1))) & 0xF) << 2)


@helper
def first_lane(shape, lane, row):
    """Lane of a row's first copy."""
    if shape == CP_4X256B:
        return lane + 32 * row
    return row + (row & 32) if shape == CP_64X128B_01_23 else row


@helper
def copy_step(shape):
    """(copies of a row) * 256 + lanes from one to the next."""
    if shape == CP_64X128B_02_13:
        return (2 << 8) | 64
    if shape == CP_64X128B_01_23:
        return (2 << 8) | 32
    return (4 << 8) | 32 if shape == CP_32X128B else 1 << 8


@helper
def copy_to_cta(op, cta):
    """tcgen05.cp from a CTA's shared memory to its tensor memory: false with the error recorded."""
    w = ld64(op + L.A_WARP)
    iid = ld64(op + L.A_IID)
    address = ld64(op + L.A_DST)
    descriptor = ld64(op + L.A_SRC)
    shape = ld64(op + L.A_OP) & 0xFF
    packing = ld64(op + L.A_OP) >> 8
    swizzle = swizzle_of(descriptor)
    t = ld64(cta + L.C_TMEM)
    window = ld64(cta + L.C_SHARED)
    step = copy_step(shape)
    chunk = op + L.A_LANE_SRC
    for row in range(cp_rows(shape)):
        lane = first_lane(shape, address >> 16, row)
        for c in range(cp_chunks(shape)):
            at = chunk_at(descriptor, swizzle, row, c)
            if at < L.SHARED_RESERVED or at + 16 > ld64(cta + L.C_SHARED_SIZE):
                fail(w, L.ERR_TMEM_SOURCE, iid, trailing_zeros(ld64(op + L.A_LANES)), at, 16, 0)
                return False
            expand(chunk, window + at, packing)
            for k in range(step >> 8):
                move16(word_at(t, lane + k * (step & 0xFF), (address & 0xFFFF) + 4 * c), chunk)
    record(w, EVENT_EFFECT, word_at(t, 0, address & 0xFFFF), L.OP_TC_CP, ld64(op + L.A_LANES), iid)
    return True


@helper
def run_cp(op):
    """Effect of tcgen05.cp: A_DST the tensor memory address, A_SRC the descriptor, A_OP shape | packing << 8."""
    w = ld64(op + L.A_WARP)
    if copy_to_cta(op, ld64(op + L.A_CTA)) and ld64(op + L.A_FLAGS) != 0:
        copy_to_cta(op, cta_of_rank(w, ld64(w + L.W_RANK) ^ 1))
    return True


# ---------------------------------------------------------------- tcgen05.shift
@helper
def shift_cta(cta, address):
    """31 rows of 32 bytes: each lane of a warp's quarter but the last takes what the next lane holds."""
    t = ld64(cta + L.C_TMEM)
    for lane in range(address >> 16, (address >> 16) + 31):
        column = address & 0xFFFF
        copy_bytes(word_at(t, lane, column), word_at(t, lane + 1, column), 4 * SHIFT_COLUMNS)


@helper
def run_shift(op):
    """Effect of tcgen05.shift.down.

    The ISA's shape is 31x256b "downwards across all the rows, except the last, by one row"; that lanes take their upper
    neighbour's value, and not the lower one's, follows from what CUTLASS says of tcgen05.cp.4x256b, which refreshes the
    last lane of each quarter. Not seen on a chip.
    """
    w = ld64(op + L.A_WARP)
    shift_cta(ld64(op + L.A_CTA), ld64(op + L.A_DST))
    if ld64(op + L.A_FLAGS) != 0:
        shift_cta(cta_of_rank(w, ld64(w + L.W_RANK) ^ 1), ld64(op + L.A_DST))
    record(w, EVENT_EFFECT, ld64(op + L.A_DST), L.OP_TC_SHIFT, ld64(op + L.A_LANES), ld64(op + L.A_IID))
    return True
