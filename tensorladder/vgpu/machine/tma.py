"""Effects of the tensor copies: a box of a tiled tensor map between global and shared memory.

The map is the hardware's 128 bytes (core.tensormap), read when the copy takes effect. The box is dense in shared
memory, dimension 0 fastest; the swizzle then XORs bits of the absolute shared address (PTX ISA, "Swizzling Modes").
"""

from __future__ import annotations

from tensorladder.core.swizzle import TMA_SWIZZLES
from tensorladder.core.tensormap import ELEMENT_TYPES, FIELDS, GAP_CHUNK, TOLERATED_BITS
from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.machine.copies import (
    ADD,
    BF16,
    DEC,
    F16,
    F32,
    F64,
    FLAG_MASK_SHIFT,
    FLAG_MULTICAST,
    FLAG_PAIR,
    INC,
    MAX,
    MIN,
    S32,
    S64,
    U32,
    U64,
    drop_buffer,
    reduce_at,
    stage_source,
)  # fmt: skip
from tensorladder.vgpu.machine.hooks import EVENT_EFFECT, record
from tensorladder.vgpu.machine.lanes import fail
from tensorladder.vgpu.machine.mbarrier import complete_tx, shared_at
from tensorladder.vgpu.machine.memory import global_ok
from tensorladder.vgpu.machine.native import helper
from tensorladder.vgpu.machine.raw import copy_bytes, ld8, ld32, ld64, move16, st8, st32, st64, trailing_zeros

#: how a box moves
LOAD, STORE, REDUCE = 0, 1, 2
#: rules of ERR_TENSOR_MAP (worded in messages.TENSOR_MAP_RULES)
(RULE_ALIGN, RULE_RANK, RULE_DIMS, RULE_IM2COL, RULE_TYPE, RULE_INTERLEAVE, RULE_BITS, RULE_SWIZZLE, RULE_SPAN,
 RULE_INNER, RULE_ADDRESS, RULE_REDUCE, RULE_NAN, RULE_COORDINATE, RULE_NEGATIVE, RULE_GAPS,
 RULE_GAPS_STORE) = range(1, 18)  # fmt: skip


def _reader(name: str):
    """Reads a field of the map at an address."""
    f = FIELDS[name]
    at, low, mask = 8 * f.word, f.low, (1 << f.width) - 1

    @helper
    def read(m):
        return (ld64(m + at) >> low) & mask

    return read


def _byte(name: str) -> int:
    return FIELDS[name].word * 8 + FIELDS[name].low // 8


_im2col, _rank, _type, _tf32 = _reader("im2col"), _reader("rank"), _reader("type"), _reader("tf32")
_interleave, _swizzle, _atom, _nan = (
    _reader("interleave"), _reader("swizzle"), _reader("swizzle_atomicity"), _reader("oob_nan")
)  # fmt: skip
# arrays of fields: extents (32 bits), strides (32 low bits and 4 high bits), boxes (8 bits), element strides (3 bits)
_DIMS, _STRIDES, _HIGH, _BOX = _byte("dim0"), _byte("stride1"), _byte("stride1_high"), _byte("box0")
_STEPS, _STEPS_LOW = 8 * FIELDS["element_stride0"].word, FIELDS["element_stride0"].low
#: by type code: bytes of an element (0: packed, or no such code), bits in global (0: no such code) and shared memory
_SIZES = tuple(next((t.size for t in ELEMENT_TYPES if t.code == c), 0) for c in range(16))
_BITS = tuple(next((t.bits for t in ELEMENT_TYPES if t.code == c), 0) for c in range(16))
_ROOM = tuple(next((t.shared_bits for t in ELEMENT_TYPES if t.code == c), 0) for c in range(16))
_FLOATING = tuple(int(any(t.floating for t in ELEMENT_TYPES if t.code == c)) for c in range(16))
#: NaN that fills elements outside of the tensor, of any size (seen on an H200)
_FILL_NAN = 0x7FF77FF77FF77FF7
#: source mask and shift of a swizzle, by swizzle | atomicity << 2; shift 0: not modelled
_MODES = tuple(TMA_SWIZZLES.get((c & 3, c >> 2)) for c in range(16))
_SWIZZLE_MASK = tuple(m.source_mask if m else 0 for m in _MODES)
_SWIZZLE_SHIFT = tuple(m.shift if m else 0 for m in _MODES)


def _unknown(word: int) -> int:
    """Bits of word 1 that no field has, as a signed number."""
    known = TOLERATED_BITS.get(word, 0)
    for f in FIELDS.values():
        if f.word == word:
            known |= ((1 << f.width) - 1) << f.low
    bits = ~known & ((1 << 64) - 1)
    return bits - (1 << 64) if bits >> 63 else bits


_UNKNOWN1 = _unknown(1)


@helper
def dim(m, i):
    """Extent of dimension i in elements."""
    return ld32(m + _DIMS + 4 * i) + 1


@helper
def stride(m, i):
    """Byte stride of dimension i >= 1."""
    return 16 * (ld32(m + _STRIDES + 4 * (i - 1)) | (((ld32(m + _HIGH) >> (4 * (i - 1))) & 15) << 32))


@helper
def step(m, i):
    """Element stride of dimension i; dimension 0 has none without interleave."""
    return 1 if i == 0 else ((ld64(m + _STEPS) >> (_STEPS_LOW + 3 * i)) & 7) + 1


@helper
def box_count(m, i, rank):
    """Elements that the box takes along dimension i."""
    if i >= rank:
        return 1
    e = step(m, i)
    return (ld8(m + _BOX + i) + e) // e


@helper
def elements(m):
    """Elements of the whole box."""
    rank = _rank(m) + 1
    total = 1
    for i in range(5):
        total *= box_count(m, i, rank)
    return total


@helper
def box_bytes(m):
    """Bytes that the whole box counts at an mbarrier: without the gaps of packed types."""
    return (elements(m) * _BITS[_type(m)]) >> 3


@helper
def row_pitch(m, inner):
    """Bytes between rows of the box in shared memory; swizzled rows start at multiples of the span (H200)."""
    return 16 << _swizzle(m) if _swizzle(m) != 0 else inner


@helper
def room(m):
    """Bytes of shared memory that a box spans."""
    inner = (box_count(m, 0, 1) * _ROOM[_type(m)]) >> 3
    return elements(m) // box_count(m, 0, 1) * row_pitch(m, inner)


@helper
def broken_rule(m, dims, how, op):
    """The rule that keeps a map from being used by an instruction of `dims` dimensions; 0 for none."""
    rank = _rank(m) + 1
    code = _type(m)
    gaps = _BITS[code] != _ROOM[code]
    if rank > 5:
        return RULE_RANK
    if _im2col(m) != 0:
        return RULE_IM2COL
    if ld64(m + 8) & _UNKNOWN1:
        return RULE_BITS
    if _BITS[code] == 0:
        return RULE_TYPE
    if rank != dims:
        return RULE_DIMS
    if _interleave(m) != 0:
        return RULE_INTERLEAVE
    if _SWIZZLE_SHIFT[_swizzle(m) | (_atom(m) << 2)] == 0:
        return RULE_SWIZZLE
    inner = (box_count(m, 0, rank) * _ROOM[code]) >> 3
    if inner & 15:
        return RULE_INNER
    if _swizzle(m) != 0 and inner > 16 << _swizzle(m):
        return RULE_SPAN
    if ld64(m) & 15:
        return RULE_ADDRESS
    if gaps and (ld64(m) & 31 or dim(m, 0) % GAP_CHUNK or box_count(m, 0, rank) % GAP_CHUNK):
        return RULE_GAPS
    if gaps and how != LOAD:
        return RULE_GAPS_STORE
    if _nan(m) != 0 and _FLOATING[code] == 0:
        return RULE_NAN
    if how == REDUCE and not can_reduce(op, code):
        return RULE_REDUCE
    return 0


@helper
def can_reduce(op, code):
    """Whether an element type has a reduction (PTX ISA, cp.reduce.async.bulk)."""
    if code in (F16, BF16):
        return op in (ADD, MIN, MAX)
    if code in (F32, F64):
        return op == ADD
    if code == S64:  # an H200 takes neither .add nor the logical ones
        return op in (MIN, MAX)
    if code == S32:
        return op in (ADD, MIN, MAX)
    return code == U32 or (code == U64 and op not in (INC, DEC))


@helper
def fill_of(m):
    """Eight bytes that fill what lies outside of the tensor."""
    return _FILL_NAN if _nan(m) != 0 else 0


@helper
def swizzled(address, mask, shift):
    """The swizzled address."""
    return address ^ ((address & mask) >> shift)


@helper
def load_row(a, p, lo, hi, inner, fill, mask, shift):
    """One row into shared memory: bytes [lo, hi) of it come from p, the rest is fill."""
    if lo == 0 and hi == inner:
        if mask == 0:
            copy_bytes(a, p, inner)
            return
        flip = (a & mask) >> shift  # one value for a row: rows start at multiples of the span
        for c in range(0, inner, 16):
            move16((a + c) ^ flip, p + c)
        return
    for c in range(0, inner, 16):
        d = swizzled(a + c, mask, shift)
        st64(d, fill)
        st64(d + 8, fill)
        for k in range(max(lo - c, 0), min(hi - c, 16)):
            st8(d + k, ld8(p + c + k))


@helper
def load_row_gaps(a, p, lo, hi, inner, bits, mask, shift):
    """One row of 4- or 6-bit elements with gaps: 16 of them, 8 or 12 bytes in global memory, take 16 in shared memory.

    Elements [lo, hi) of it come from p, the rest is zero; the gap stays what it was.
    """
    for c in range(0, inner, 16):
        d = swizzled(a + c, mask, shift)
        q = p + ((c * bits) >> 3)
        here = lo <= c < hi
        st64(d, ld64(q) if here else 0)
        if bits == 6:
            st32(d + 8, ld32(q + 8) if here else 0)


@helper
def store_row(p, a, lo, hi, inner, delta, mask, shift):
    """Bytes [lo, hi) of one row to global memory; `delta` leads from the shared address to where the data is."""
    if lo == 0 and hi == inner:
        if mask == 0:
            copy_bytes(p, a + delta, inner)
            return
        flip = (a & mask) >> shift
        for c in range(0, inner, 16):
            move16(p + c, ((a + c) ^ flip) + delta)
        return
    for k in range(lo, hi):
        st8(p + k, ld8(swizzled(a + k, mask, shift) + delta))


@helper
def reduce_row(p, a, lo, hi, size, delta, mask, shift, op, code):
    """Reduce bytes [lo, hi) of one row into global memory, element by element."""
    for k in range(lo, hi, size):
        reduce_at(p + k, swizzled(a + k, mask, shift) + delta, op, code)


@helper
def round_row(a, inner, mask, shift):
    """.tf32 maps: to nearest even with 10 bits of mantissa, subnormals too; a NaN becomes 0x7FFFE000.

    Seen on an H200, as that the .ftz types change nothing.
    """
    for k in range(0, inner, 4):
        s = swizzled(a + k, mask, shift)
        v = ld32(s)
        nan = v & 0x7FFFFFFF > 0x7F800000
        st32(s, 0x7FFFE000 if nan else (v + 0xFFF + ((v >> 13) & 1)) & ~0x1FFF)


@helper
def inside(c, n, e, d):
    """(first, last + 1) index k of 0..n-1 with 0 <= c + k * e < d; empty: (0, 0)."""
    lo = 0 if c >= 0 else (-c + e - 1) // e
    hi = min(n, (d - c + e - 1) // e) if d > c else 0
    if hi <= lo:
        return 0, 0
    return lo, hi


@helper
def row_of_box(op, m, rank, row):
    """(whether a row of a box lies inside the tensor, its offset there in bytes)."""
    rest = row
    offset = 0
    ok = True
    for i in range(1, rank):
        count = box_count(m, i, rank)
        c = ld64(op + L.A_COORD + 8 * i) + (rest % count) * step(m, i)
        rest //= count
        ok = ok and c >= 0 and c < dim(m, i)
        offset += c * stride(m, i)
    return ok, offset


@helper
def reachable(w, op, m, rank, how):
    """Whether the elements of the box inside the tensor lie in one allocation; else the error is recorded."""
    bits = _BITS[_type(m)]
    size = max(bits >> 3, 1)
    lo = ld64(m)
    hi = lo
    for i in range(rank):
        c = ld64(op + L.A_COORD + 8 * i)
        e = step(m, i)
        first, end = inside(c, box_count(m, i, rank), e, dim(m, i))
        if end == 0:
            return True
        if i == 0:
            lo += ((c + first) * bits) >> 3
            hi += ((c + end) * bits + 7) >> 3
        else:
            lo += (c + first * e) * stride(m, i)
            hi += (c + (end - 1) * e) * stride(m, i)
    iid = ld64(op + L.A_IID)
    lane = trailing_zeros(ld64(op + L.A_LANES))
    write = 0 if how == LOAD else 1
    if global_ok(w, lo, hi, write, iid, lane):
        return True
    if global_ok(w, lo, lo + size, write, iid, lane):
        lo = hi - size
    fail(w, L.ERR_OUT_OF_BOUNDS, iid, lane, lo, size, 0)
    return False


@helper
def move_box(op, m, shared, delta, how, limit):
    """Move the box between global memory and shared address `shared` (host), whose data lies `delta` further on.

    `limit`: nothing is written from this global address on (a store rounds rows up to 16 bytes; seen on an H200).
    """
    rank = _rank(m) + 1
    code = _type(m)
    size = _SIZES[code]
    bits = _BITS[code]
    gaps = bits != _ROOM[code]
    mode = _swizzle(m) | (_atom(m) << 2)
    mask = _SWIZZLE_MASK[mode]
    shift = _SWIZZLE_SHIFT[mode]
    fill = fill_of(m)
    tf32 = _tf32(m)
    n0 = box_count(m, 0, rank)
    c0 = ld64(op + L.A_COORD)
    lo, hi = inside(c0, n0, 1, dim(m, 0))
    inner = (n0 * _ROOM[code]) >> 3
    lo = (lo * _ROOM[code]) >> 3
    hi = (hi * _ROOM[code]) >> 3
    end = hi
    if how != LOAD and hi > 0:  # whole pieces of 16 bytes are written, as far as there is memory
        end = min(inner, (hi + 15) & ~15)
    origin = ld64(m) + ((c0 * bits) >> 3)
    packed = ld64(op + L.A_OP)
    converts = how == LOAD and tf32 != 0
    n1 = box_count(m, 1, rank)
    n2 = box_count(m, 2, rank)
    n3 = box_count(m, 3, rank)
    rows = n1 * n2 * n3 * box_count(m, 4, rank)
    pitch = row_pitch(m, inner)
    a = shared
    row = 0
    while row < rows:
        # the outer coordinates of this row; rows along dimension 1 then follow
        p = origin
        ok = True
        rest = row // n1
        for i in range(2, rank):
            n = box_count(m, i, rank)
            x = ld64(op + L.A_COORD + 8 * i) + (rest % n) * step(m, i)
            rest //= n
            ok = ok and x >= 0 and x < dim(m, i)
            p += x * stride(m, i)
        x = 0
        e = 1
        d = 1
        s = 0
        if rank > 1:
            x = ld64(op + L.A_COORD + 8)
            e = step(m, 1)
            d = dim(m, 1)
            s = stride(m, 1)
        for _ in range(n1):
            here = ok and x >= 0 and x < d
            if how == LOAD and gaps:
                load_row_gaps(a, p + x * s, lo if here else 0, hi if here else 0, inner, bits, mask, shift)
            elif how == LOAD:
                load_row(a, p + x * s, lo if here else 0, hi if here else 0, inner, fill, mask, shift)
                if converts:
                    round_row(a, inner, mask, shift)
            elif here and hi > 0:
                last = min(end, limit - (p + x * s))
                if how == STORE:
                    store_row(p + x * s, a, lo, last, inner, delta, mask, shift)
                else:
                    reduce_row(p + x * s, a, lo, last, size, delta, mask, shift, packed & 0xFF, code)
            a += pitch
            x += e
        row += n1


@helper
def usable(w, op, how):
    """The operation's map if it is valid for it, else 0 with the error recorded."""
    m = ld64(op + L.A_MAP)
    dims = ld64(op + L.A_SIZE)
    rule = broken_rule(m, dims, how, ld64(op + L.A_OP) & 0xFF)
    code = _type(m)
    apart = GAP_CHUNK if _BITS[code] != _ROOM[code] else 128 // max(_BITS[code], 1)
    if rule == 0 and ld64(op + L.A_COORD) % apart:
        rule = RULE_COORDINATE
    for i in range(dims):
        if rule == 0 and how != LOAD and ld64(op + L.A_COORD + 8 * i) < 0:
            rule = RULE_NEGATIVE
    if rule != 0:
        lane = trailing_zeros(ld64(op + L.A_LANES))
        fail(w, L.ERR_TENSOR_MAP, ld64(op + L.A_IID), lane, m, rule, dims)
        return 0
    return m


@helper
def run_tma_load(op):
    """cp.async.bulk.tensor to shared memory of one CTA or of those in a multicast mask, signalling mbarriers."""
    w = ld64(op + L.A_WARP)
    m = usable(w, op, LOAD)
    if m == 0 or not reachable(w, op, m, _rank(m) + 1, LOAD):
        return True
    iid = ld64(op + L.A_IID)
    lane = trailing_zeros(ld64(op + L.A_LANES))
    dst = ld64(op + L.A_DST)
    bar = ld64(op + L.A_MBAR)
    flags = ld64(op + L.A_FLAGS)
    total = box_bytes(m)
    own = (dst & 0xFFFFFFFF) >> L.RANK_SHIFT
    ranks = (flags >> FLAG_MASK_SHIFT) & 0xFFFF if flags & FLAG_MULTICAST else 1 << own
    for rank in range(16):
        if (ranks >> rank) & 1 == 0:
            continue
        host = shared_at(w, (rank << L.RANK_SHIFT) | (dst & 0xFFFFFF), room(m), iid, lane)
        if host == 0:
            return True
        move_box(op, m, host, 0, LOAD, 0)
        record(w, EVENT_EFFECT, host, total, 1 << lane, iid)
        to = rank
        if flags & FLAG_PAIR:  # the pair's barrier is in the CTA of the pair that the address names
            to = (rank & ~1) | ((bar >> L.RANK_SHIFT) & 1)
        if not complete_tx(w, (to << L.RANK_SHIFT) | (bar & 0xFFFFFF), total, iid, lane):
            return True
    return True


@helper
def run_tma_store(u, op, eager, how):
    """cp.async.bulk.tensor and cp.reduce.async.bulk.tensor to global memory: the source is read, then written."""
    w = ld64(op + L.A_WARP)
    m = usable(w, op, how)
    if m == 0:
        drop_buffer(op)
        return True
    iid = ld64(op + L.A_IID)
    lane = trailing_zeros(ld64(op + L.A_LANES))
    total = room(m)
    shared = shared_at(w, ld64(op + L.A_SRC), total, iid, lane)
    if shared == 0:
        drop_buffer(op)
        return True
    delta = 0
    if ld64(op + L.A_STAGE) == 1:
        delta = ld64(op + L.A_BUFFER) - shared
    elif not eager:
        stage_source(u, op, shared, (total + 127) & ~127)
        return False
    if reachable(w, op, m, _rank(m) + 1, how):
        move_box(op, m, shared, delta, how, ld64(w + L.W_HI))
        record(w, EVENT_EFFECT, shared, total, 1 << lane, iid)
    drop_buffer(op)
    return True
