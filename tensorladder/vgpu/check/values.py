"""Values that nobody wrote: what of memory is undefined, and where such a value matters.

Memory that nothing has written is undefined (its cell has no write), and so is what was stored of an undefined value.
The latter is kept beside the cells, as a byte or a word of ones for undefined bits, and is gone with the next store.
Generated code follows values through registers (codegen.undefined); here is memory's part, and that of the matrix
units: an element of D depends on its row of A and its column of B.
"""

from __future__ import annotations

from tensorladder.vgpu.check import layout as X
from tensorladder.vgpu.check.clocks import record_of, site_of, slot_record
from tensorladder.vgpu.check.shadow import at_place, found, range_row, shared_place
from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.machine import wgmma as G
from tensorladder.vgpu.machine.native import helper
from tensorladder.vgpu.machine.raw import fill_bytes, ld8, ld32, ld64, st8, st32, st64, trailing_zeros
from tensorladder.vgpu.machine.tma import (
    _BITS,
    _SWIZZLE_MASK,
    _SWIZZLE_SHIFT,
    _atom,
    _rank,
    _swizzle,
    _type,
    box_count,
    dim,
    inside,
    row_of_box,
    row_pitch,
)  # fmt: skip
from tensorladder.vgpu.machine.tmem import register_offset

_NO_SHADOW = 0xFFFFFFFF


# ---------------------------------------------------------------- findings
@helper
def matters(x, n, code, lanes, iid):
    """An undefined value decides something, or leaves the CTA. The finding's other access: what read it."""
    at_place(x, n, lanes, X.SPACE_REGISTERS, 0, 0, 0)
    origin = ld64(record_of(x, n) + X.Z_ORIGIN)
    found(x, code, site_of(n, iid), 0, origin - 1 if origin != 0 else 0, 0, 0, 0)


@helper
def on_origin(x, n, iid):
    """CHECK_ORIGIN: an instruction of a warp gives an undefined value."""
    st64(record_of(x, n) + X.Z_ORIGIN, site_of(n, iid) + 1)


# ---------------------------------------------------------------- shared memory
@helper
def undefined_at(x, y, offset):
    """Whether a byte of a window is undefined; the machine stops what reads past it."""
    if offset >= ld64(x + X.X_WINDOW):
        return False
    cell = ld64(y + X.Y_CELLS) + X.CELL * (offset >> 4)
    if ld64(cell) < 0:
        words = ld64(cell + X.CELL_READ + 8) == X.LEVEL_WORDS
        cell = ld64(cell + X.CELL_READ) + X.CELL * (offset & (12 if words else 15))
    return ld64(cell) == 0 or (ld64(x + X.X_TAINTED) != 0 and ld8(ld64(y + X.Y_UNDEFINED) + offset) != 0)


@helper
def any_undefined(x, slot, lo, hi):
    """Whether one of some bytes of a window is undefined."""
    y = slot_record(x, slot)
    count = 0
    for offset in range(lo, hi):
        count += 1 if undefined_at(x, y, offset) else 0
    return count != 0


@helper
def carry_undefined(x, from_slot, src, to_slot, dst, size, adds):
    """What is undefined of the bytes at src will be so at dst, where they are copied to next; adds: to what is there.

    Their accesses are to be noted with X_CARRIES.
    """
    a = slot_record(x, from_slot)
    b = slot_record(x, to_slot)
    there = ld64(b + X.Y_UNDEFINED) + dst
    for k in range(min(size, ld64(x + X.X_WINDOW) - max(src, dst))):
        bad = undefined_at(x, a, src + k) or (adds != 0 and undefined_at(x, b, dst + k))
        if bad:
            st64(x + X.X_TAINTED, 1)
            st8(there + k, 0xFF)
        elif ld64(x + X.X_TAINTED) != 0:
            st8(there + k, 0)


@helper
def keep_undefined(x, addresses, lanes, size):
    """What is undefined of the bytes that lanes add to, in shared memory, stays so."""
    while lanes != 0:
        lane = trailing_zeros(lanes)
        lanes &= lanes - 1
        place = shared_place(x, ld64(addresses + 8 * lane))
        if place >= 0:
            carry_undefined(x, place >> 32, place & 0xFFFFFFFF, place >> 32, place & 0xFFFFFFFF, size, 0)


@helper
def on_shadow_load(x, n, addresses, vectors, form, lanes, iid):
    """CHECK_SHADOW_LD: ones for the undefined bytes of what lanes loaded; the vectors are zero so far."""
    size = form & 0xFF
    count = form >> 8
    some = False
    while lanes != 0:
        lane = trailing_zeros(lanes)
        lanes &= lanes - 1
        place = shared_place(x, ld64(addresses + 8 * lane))
        if place < 0:
            continue
        y = slot_record(x, place >> 32)
        for k in range(size * count):
            if undefined_at(x, y, (place & 0xFFFFFFFF) + k):
                st8(vectors + 256 * (k // size) + size * lane + k % size, 0xFF)
                some = True
    if some:
        on_origin(x, n, iid)


@helper
def on_shadow_store(x, n, addresses, vectors, form, lanes, iid):
    """CHECK_SHADOW_ST: what lanes stored with these shadows; to global memory it is an error."""
    size = form & 0xFF
    count = form >> 8
    out = 0
    while lanes != 0:
        lane = trailing_zeros(lanes)
        lanes &= lanes - 1
        host = ld64(addresses + 8 * lane)
        place = shared_place(x, host)
        for k in range(size * count):
            if ld8(vectors + 256 * (k // size) + size * lane + k % size) == 0:
                continue
            if place < 0:
                out |= 1 << lane
            else:
                st8(ld64(slot_record(x, place >> 32) + X.Y_UNDEFINED) + (place & 0xFFFFFFFF) + k, 0xFF)
                st64(x + X.X_TAINTED, 1)
    if out == 0:
        return
    host = ld64(addresses + 8 * trailing_zeros(out))
    row = range_row(x, host)
    if row != 0:
        origin = ld64(record_of(x, n) + X.Z_ORIGIN)
        lo = host - ld64(row)
        at_place(x, n, out, X.SPACE_GLOBAL, ld64(row), lo, lo + size * count)
        found(x, X.UNDEFINED_STORED, site_of(n, iid), 0, origin - 1 if origin != 0 else 0, 0, 0, 0)


@helper
def store_undefined(x, n, lane, iid):
    """An asynchronous store takes undefined bytes to global memory."""
    at_place(x, n, 1 << lane, X.SPACE_SHARED, ld64(x + X.X_PLACE), ld64(x + X.X_LO), ld64(x + X.X_HI))
    found(x, X.UNDEFINED_COPIED, site_of(n, iid), 0, 0, 0, 0, 0)


@helper
def box_undefined(x, op, m, slot, lo):
    """Whether the part of a box that lies inside the tensor is undefined somewhere in shared memory, from lo on."""
    rank = _rank(m) + 1
    bits = _BITS[_type(m)]
    first, last = inside(ld64(op + L.A_COORD), box_count(m, 0, rank), 1, dim(m, 0))
    if last == 0:
        return False
    pitch = row_pitch(m, (box_count(m, 0, rank) * bits) >> 3)
    mode = _swizzle(m) | (_atom(m) << 2)
    rows = 1
    for i in range(1, rank):
        rows *= box_count(m, i, rank)
    y = slot_record(x, slot)
    for row in range(rows):
        if not row_of_box(op, m, rank, row)[0]:
            continue
        start = lo + row * pitch
        for at in range(start + ((first * bits) >> 3), start + ((last * bits + 7) >> 3)):
            if undefined_at(x, y, at ^ ((at & _SWIZZLE_MASK[mode]) >> _SWIZZLE_SHIFT[mode])):
                return True
    return False


# ---------------------------------------------------------------- tiles of matrix units
@helper
def clear_marks(marks):
    """No row of a tile is undefined: whether any is, then a bit a row, 256 of them."""
    for k in range(5):
        st64(marks + 8 * k, 0)


@helper
def mark(marks, row):
    """A row of a tile is undefined."""
    st64(marks, 1)
    word = marks + 8 + 8 * (row >> 6)
    st64(word, ld64(word) | (1 << (row & 63)))


@helper
def marked(marks, row):
    """Whether a row of a tile is undefined."""
    return (ld64(marks + 8 + 8 * (row >> 6)) >> (row & 63)) & 1 != 0


@helper
def mark_chunk(x, y, marks, at, row, per):
    """The 16 bytes at an offset are one row's (per 0), or elements of `per` rows from `row` on."""
    for k in range(16):
        if undefined_at(x, y, at + k):
            mark(marks, row if per == 0 else row + k * per // 16)


@helper
def registers_undefined(table, frame, count):
    """Lanes in which one of some registers has an undefined bit; a table of their shadows' offsets in the frame."""
    lanes = 0
    for r in range(count):
        at = ld32(table + 4 * r)
        if at == _NO_SHADOW:
            continue
        for lane in range(L.LANES):
            if ld32(frame + at + 4 * lane) != 0:
                lanes |= 1 << lane
    return lanes


@helper
def product_of_registers(x, op, form, count, rows, columns):
    """Shadows of a wgmma's D, in the warps' frames: behind the table of its `count` registers is the shadows'."""
    table = ld64(op + G.G_TABLE) + 4 * count
    halves = 1 if G.accumulator_registers(form) == ((form >> G.FORM_N) & 0x1FF) // 4 else 0
    keep = ld64(op + G.G_KEEP)
    any_ = ld64(rows) | ld64(columns)
    if keep != 0 and any_ == 0:
        return
    for warp in range(4):
        frame = ld64(op + G.G_FRAMES + 8 * warp)
        for r in range(G.accumulator_registers(form)):
            at = ld32(table + 4 * r)
            if at == _NO_SHADOW:
                continue
            if keep == 0:
                fill_bytes(frame + at, 0, 4 * L.LANES)
            if any_ != 0:
                undefined_register(frame + at, rows, columns, 16 * warp, r, halves)


@helper
def undefined_register(shadow, rows, columns, row0, r, halves):
    """One register of D (fragments: register 4 j + 2 h + e, or 2 j + h with both e in f16)."""
    block = r >> 1 if halves else r >> 2
    h = r & 1 if halves else (r >> 1) & 1
    for lane in range(L.LANES):
        bits = 0
        row = marked(rows, row0 + 8 * h + (lane >> 2))
        column = 8 * block + 2 * (lane & 3)
        if halves:
            bits = 0xFFFF if row or marked(columns, column) else 0
            bits |= 0xFFFF0000 if row or marked(columns, column + 1) else 0
        elif row or marked(columns, column + (r & 1)):
            bits = 0xFFFFFFFF
        if bits != 0:
            st32(shadow + 4 * lane, bits)


# ---------------------------------------------------------------- tensor memory
@helper
def tensor_shadow(x, slot, row, column):
    """Where the shadow of a word of tensor memory is kept."""
    return ld64(slot_record(x, slot) + X.Y_TMEM_UNDEFINED) + row * L.TMEM_ROW + 4 * column


@helper
def set_tensor(x, slot, blocks, column, count, byte):
    """Columns of some blocks of 16 lanes are defined (0), or not (0xFF)."""
    if byte != 0:
        st64(x + X.X_TMEM_TAINTED, 1)
    elif ld64(x + X.X_TMEM_TAINTED) == 0:
        return
    for row in range(L.TMEM_LANES):
        if (blocks >> (row >> 4)) & 1:
            fill_bytes(tensor_shadow(x, slot, row, column), byte, 4 * count)


@helper
def word_undefined(x, slot, t, place):
    """Shadow of the word at a place behind T_DATA."""
    row = place // L.TMEM_ROW
    column = place % L.TMEM_ROW // 4
    if ld64(t + X.CELL * ((row >> 4) * L.TMEM_COLUMNS + column)) == 0:
        return 0xFFFFFFFF
    return ld32(tensor_shadow(x, slot, row, column)) if ld64(x + X.X_TMEM_TAINTED) != 0 else 0


@helper
def on_shadow_tensor(x, w, n, hosts, registers, form, lanes, iid, store):
    """CHECK_SHADOW_TMEM_LD and _ST: shadows of a warp's registers, of tensor memory's words or to them."""
    slot = n // ld64(x + X.X_WARPS)
    t = ld64(slot_record(x, slot) + X.Y_TMEM)
    if t == 0:
        return
    data = ld64(ld64(w + L.W_CTA) + L.C_TMEM) + L.T_DATA
    columns = (form >> 4) & 3
    some = 0
    if store != 0:
        st64(x + X.X_TMEM_TAINTED, 1)
    for r in range(form >> 8):
        offset = register_offset(form & 15, columns, r)
        for lane in range(L.LANES):
            place = ld64(hosts + 8 * lane) + offset - data
            at = registers + 256 * r + 4 * lane
            if store == 0:
                value = word_undefined(x, slot, t, place)
                if columns == 2:
                    value = (value & 0xFFFF) | (word_undefined(x, slot, t, place + 4) << 16 & 0xFFFF0000)
                some |= value
                st32(at, value)
            elif (lanes >> lane) & 1:
                shadow = tensor_shadow(x, slot, place // L.TMEM_ROW, place % L.TMEM_ROW // 4)
                value = ld32(at)
                st32(shadow, value if columns == 1 else value & 0xFFFF)
                if columns == 2:
                    st32(shadow + 4, value >> 16)
    if some != 0:
        on_origin(x, n, iid)


@helper
def product_of_tensors(x, slot, d, m, width, each, spread, two, rows, columns):
    """Shadows of a tcgen05.mma's D where a row of A or a column of B is undefined; columns: marks of those that one CTA
    brings (`each` of them), then the other's. spread: 16 rows a partition (M = 64); two: a pair with 64 rows each,
    whose second half of columns lies in lanes 64 to 127."""
    if ld64(rows) | ld64(columns) | ld64(columns + X.MARKS) == 0:
        return
    st64(x + X.X_TMEM_TAINTED, 1)
    first = (d >> 16) & 0x7F
    for r in range(m):
        whole = marked(rows, r)
        for c in range(width):
            if not whole and not marked(columns + X.MARKS * (c // each), c % each):
                continue
            lane = (32 * (r >> 4) + (r & 15) if spread else r) + first
            column = c
            if two and c >= width // 2:
                lane += 64
                column -= width // 2
            if lane < L.TMEM_LANES and (d & 0xFFFF) + column < L.TMEM_COLUMNS:
                st32(tensor_shadow(x, slot, lane, (d & 0xFFFF) + column), -1)


@helper
def mark_tensor_rows(x, slot, column, count, first, spread, m, marks):
    """Rows of an A in tensor memory that are undefined."""
    t = ld64(slot_record(x, slot) + X.Y_TMEM)
    for r in range(m):
        lane = (32 * (r >> 4) + (r & 15) if spread else r) + first
        for c in range(column, min(column + count, L.TMEM_COLUMNS)):
            if lane < L.TMEM_LANES and word_undefined(x, slot, t, lane * L.TMEM_ROW + 4 * c) != 0:
                mark(marks, r)


@helper
def mark_scales(x, slot, column, first, rows, factor_id, vector, partition, marks):
    """Rows whose scale factors in tensor memory are undefined (machine.tcmma.load_scales)."""
    t = ld64(slot_record(x, slot) + X.Y_TMEM)
    keep = ((1 << (8 * vector)) - 1) << (8 * factor_id)
    for r in range(first, first + rows):
        at = column + (r >> 5)
        row = 32 * partition + (r & 31)
        if at < L.TMEM_COLUMNS and word_undefined(x, slot, t, row * L.TMEM_ROW + 4 * at) & keep:
            mark(marks, r - first)
