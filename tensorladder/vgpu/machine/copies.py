"""Effects of cp.async and of the bulk copies without a tensor map, and the reductions that bulk copies do.

An effect runs when the policy says so, with the issuing warp for errors. Shared addresses in operations are 32-bit
shared::cluster addresses, global ones are host addresses.
"""

from __future__ import annotations

from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.machine.hooks import CHECK_ASYNC_ARRIVE, EVENT_EFFECT, observe, record
from tensorladder.vgpu.machine.mbarrier import arrive, complete_tx, mbarrier_at, shared_at
from tensorladder.vgpu.machine.memory import SPACE_SHARED
from tensorladder.vgpu.machine.native import helper
from tensorladder.vgpu.machine.queue import postpone
from tensorladder.vgpu.machine.raw import (
    allocate,
    bits_f32,
    bits_f64,
    copy_bytes,
    f16_to_f32,
    f32_bits,
    f32_to_f16,
    f64_bits,
    fill_bytes,
    free_bytes,
    ld8,
    ld16,
    ld32,
    ld64,
    lds32,
    st8,
    st16,
    st32,
    st64,
    trailing_zeros,
    unsigned_less,
)  # fmt: skip

#: reductions (A_OP is operation | type << 8); types are the element type codes of tensor maps
ADD, MIN, MAX, INC, DEC, AND, OR, XOR = range(8)
U32, S32, U64, S64, F16, F32, F64, BF16 = 2, 3, 4, 5, 6, 7, 9, 10
#: A_FLAGS of the bulk copies
FLAG_MULTICAST, FLAG_PAIR, FLAG_BYTE_MASK, FLAG_OWN = 1, 2, 4, 8  # FLAG_OWN: to shared::cta
FLAG_MASK_SHIFT = 8  # a 16-bit CTA mask, or the byte mask of .cp_mask


@helper
def copy_lane(dst, src, size):
    """A cp.async copy of one lane: `size` is copy bytes | source bytes << 32; the rest is zero."""
    whole = size & 0xFFFFFFFF
    take = size >> 32
    if take == whole:
        copy_bytes(dst, src, whole)
        return
    if take == 0:
        fill_bytes(dst, 0, whole)
        return
    for k in range(whole):
        st8(dst + k, ld8(src + k) if k < take else 0)


@helper
def run_cp_async(op):
    """The lanes' copies of one cp.async."""
    lanes = ld64(op + L.A_LANES)
    for lane in range(L.LANES):
        if (lanes >> lane) & 1:
            copy_lane(
                ld64(op + L.A_LANE_DST + 8 * lane),
                ld64(op + L.A_LANE_SRC + 8 * lane),
                ld64(op + L.A_LANE_SIZE + 8 * lane),
            )
    record(ld64(op + L.A_WARP), EVENT_EFFECT, ld64(op + L.A_LANE_DST), L.OP_CP_ASYNC, lanes, ld64(op + L.A_IID))
    return True


@helper
def arrive_lanes(w, addresses, lanes, noted, iid):
    """One arrival of each lane at its mbarrier (32-bit shared addresses, one of 8 bytes a lane); noted: A_CHECK."""
    for lane in range(L.LANES):
        if (lanes >> lane) & 1:
            address = ld64(addresses + 8 * lane) & 0xFFFFFFFF
            host = mbarrier_at(w, SPACE_SHARED, address, 1, iid, lane)
            if host == 0:
                return
            observe(w, CHECK_ASYNC_ARRIVE, host, noted, 0, 1 << lane, iid)
            if arrive(w, host, address, 1, 0, 0, iid, lane) < 0:
                return


@helper
def run_arrive(op):
    """cp.async.mbarrier.arrive when the copies before it are done."""
    w = ld64(op + L.A_WARP)
    arrive_lanes(w, op + L.A_LANE_DST, ld64(op + L.A_LANES), ld64(op + L.A_CHECK), ld64(op + L.A_IID))
    return True


# ---------------------------------------------------------------- reductions
@helper
def bf16_round(x):
    """float32 to nearest even bf16, as bits."""
    bits = f32_bits(x)
    if bits & 0x7FFFFFFF > 0x7F800000:
        return 0x7FFF
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) & 0xFFFF


@helper
def pick_float(op, a, b, x, y, nan):
    """Bits of the smaller or larger of two floats given as bits and values; a NaN loses, -0 is below +0."""
    if x != x:
        return nan if y != y else b
    if y != y:
        return a
    if x == y:
        return a | b if op == MIN else a & b
    return a if (x < y) == (op == MIN) else b


@helper
def reduce_half(op, ty, a, b):
    """f16 and bf16: subnormals are kept (.noftz); one rounding to nearest even."""
    if ty == F16:
        x = f16_to_f32(a)
        y = f16_to_f32(b)
        if op == ADD:
            r = f32_to_f16(x + y)
            return 0x7FFF if r & 0x7FFF > 0x7C00 else r
    else:
        x = bits_f32(a << 16)
        y = bits_f32(b << 16)
        if op == ADD:
            return bf16_round(x + y)
    return pick_float(op, a, b, x, y, 0x7FFF)


@helper
def flush(bits):
    """A subnormal float32 (bits) to zero of its sign."""
    return bits & 0x80000000 if bits & 0x7F800000 == 0 else bits


@helper
def reduce_int(op, ty, a, b):
    """Integers as sign-extended (s32, s64), zero-extended (u32) or raw (u64) int64. inc and dec wrap as atom does."""
    if op == ADD:
        return a + b
    if op == AND:
        return a & b
    if op == OR:
        return a | b
    if op == XOR:
        return a ^ b
    less = unsigned_less(a, b) if ty == U64 else a < b
    if op == MIN:
        return a if less else b
    if op == MAX:
        return b if less else a
    if op == INC:
        return a + 1 if less else 0
    return b if a == 0 or (not less and a != b) else a - 1


@helper
def reduce_at(dst, src, op, ty):
    """dst = dst op src for one element."""
    if ty in (F16, BF16):
        st16(dst, reduce_half(op, ty, ld16(dst), ld16(src)))
    elif ty == F32:
        total = bits_f32(flush(ld32(dst))) + bits_f32(flush(ld32(src)))
        st32(dst, 0x7FFFFFFF if total != total else flush(f32_bits(total)))
    elif ty == F64:
        st64(dst, f64_bits(bits_f64(ld64(dst)) + bits_f64(ld64(src))))
    elif ty == S32:
        st32(dst, reduce_int(op, ty, lds32(dst), lds32(src)))
    elif ty == U32:
        st32(dst, reduce_int(op, ty, ld32(dst), ld32(src)))
    else:
        st64(dst, reduce_int(op, ty, ld64(dst), ld64(src)))


@helper
def size_of_type(ty):
    """Bytes of a reduction's element."""
    if ty in (F16, BF16):
        return 2
    return 4 if ty in (U32, S32, F32) else 8


@helper
def reduce_bytes(dst, src, size, op, ty):
    """dst[k] = dst[k] op src[k] over `size` bytes."""
    step = size_of_type(ty)
    for k in range(0, size, step):
        reduce_at(dst + k, src + k, op, ty)


# ---------------------------------------------------------------- bulk copies
@helper
def stage_source(u, op, src, size):
    """Read the source of a store into a buffer of its own: the first of its two stages."""
    buffer = allocate(size)
    copy_bytes(buffer, src, size)
    st64(op + L.A_BUFFER, buffer)
    st64(op + L.A_STAGE, 1)
    postpone(u, op)


@helper
def drop_buffer(op):
    """Free the buffer of a store."""
    if ld64(op + L.A_STAGE) == 1:
        free_bytes(ld64(op + L.A_BUFFER))
    st64(op + L.A_STAGE, 2)


@helper
def run_bulk_load(op):
    """cp.async.bulk to shared memory, from global or this CTA's memory, with an mbarrier; also to several CTAs."""
    w = ld64(op + L.A_WARP)
    iid = ld64(op + L.A_IID)
    lane = trailing_zeros(ld64(op + L.A_LANES))
    size = ld64(op + L.A_SIZE)
    dst = ld64(op + L.A_DST)
    bar = ld64(op + L.A_MBAR)
    src = ld64(op + L.A_SRC)
    flags = ld64(op + L.A_FLAGS)
    kind = ld64(op + L.A_KIND)
    if kind != L.OP_BULK_G2S:
        src = shared_at(w, src, size, iid, lane)
        if src == 0:
            return True
    own = (dst & 0xFFFFFFFF) >> L.RANK_SHIFT
    ranks = (flags >> FLAG_MASK_SHIFT) & 0xFFFF if flags & FLAG_MULTICAST else 1 << own
    for rank in range(16):
        if (ranks >> rank) & 1 == 0:
            continue
        base = rank << L.RANK_SHIFT
        host = shared_at(w, base | (dst & 0xFFFFFF), size, iid, lane)
        if host == 0:
            return True
        if kind == L.OP_BULK_REDUCE:
            packed = ld64(op + L.A_OP)
            reduce_bytes(host, src, size, packed & 0xFF, packed >> 8)
        else:
            copy_bytes(host, src, size)
        record(w, EVENT_EFFECT, host, size, 1 << lane, iid)
        target = base if flags & FLAG_MULTICAST else bar & 0xFF000000
        if not complete_tx(w, target | (bar & 0xFFFFFF), size, iid, lane):
            return True
    return True


@helper
def store_masked(dst, src, size, mask):
    """Copy the bytes of each 16-byte piece that a 16-bit mask names."""
    for k in range(size):
        if (mask >> (k & 15)) & 1:
            st8(dst + k, ld8(src + k))


@helper
def run_bulk_store(u, op, eager):
    """cp.async.bulk and cp.reduce.async.bulk from shared to global memory: the source is read, then written."""
    w = ld64(op + L.A_WARP)
    iid = ld64(op + L.A_IID)
    lane = trailing_zeros(ld64(op + L.A_LANES))
    size = ld64(op + L.A_SIZE)
    stage = ld64(op + L.A_STAGE)
    src = ld64(op + L.A_BUFFER)
    if stage == 0:
        src = shared_at(w, ld64(op + L.A_SRC), size, iid, lane)
        if src == 0:
            return True
        if not eager:
            stage_source(u, op, src, size)
            return False
    dst = ld64(op + L.A_DST)
    flags = ld64(op + L.A_FLAGS)
    if ld64(op + L.A_KIND) == L.OP_BULK_REDUCE:
        packed = ld64(op + L.A_OP)
        reduce_bytes(dst, src, size, packed & 0xFF, packed >> 8)
    elif flags & FLAG_BYTE_MASK:
        store_masked(dst, src, size, (flags >> FLAG_MASK_SHIFT) & 0xFFFF)
    else:
        copy_bytes(dst, src, size)
    record(w, EVENT_EFFECT, dst, size, 1 << lane, iid)
    drop_buffer(op)
    return True
