"""Undefined values in memory, for the checked variant's code: a one stands for each undefined bit of a value.

Local memory has shadows behind it (the machine's own business), shared and tensor memory have them at the checker.
"""

from __future__ import annotations

from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.machine.hooks import (
    CHECK_ORIGIN,
    CHECK_SHADOW_LD,
    CHECK_SHADOW_ST,
    CHECK_SHADOW_TMEM_LD,
    CHECK_SHADOW_TMEM_ST,
    CHECK_UNDEFINED,
    observe,
)
from tensorladder.vgpu.machine.memory import shared_host
from tensorladder.vgpu.machine.native import export, helper
from tensorladder.vgpu.machine.raw import copy_bytes, fill_bytes, ld16, ld64, lds32, st16, st64, trailing_zeros
from tensorladder.vgpu.machine.tmem import SCRATCH_HOST, SCRATCH_REGISTERS
from tensorladder.vgpu.machine.vectors import lanes_equal32, lanes_equal64, put_lanes32, put_lanes64

#: scratch vectors for the rows of matrices, behind what instructions use
_ROWS = 40


@export
def tl_undefined(w, how, lanes, iid):
    """Lanes in which an undefined value matters (codegen.undefined says how)."""
    if lanes != 0:
        observe(w, CHECK_UNDEFINED, how, 0, 0, lanes, iid)
    return 0


@export
def tl_undefined_origin(w, lanes, iid):
    """Lanes that get an undefined value here, from no memory."""
    if lanes != 0:
        observe(w, CHECK_ORIGIN, 0, 0, 0, lanes, iid)
    return 0


@helper
def local_shadow(w, host):
    """Where the shadow of a byte of local memory is; 0 for other memory."""
    size = L.LANES * ld64(w + L.W_LOCAL_SIZE)
    start = ld64(w + L.W_LOCAL)
    return host + size if host >= start and host < start + size else 0


@helper
def in_local(w, addresses, lanes):
    """Lanes whose address (host) is in local memory."""
    found = 0
    while lanes != 0:
        lane = trailing_zeros(lanes)
        lanes &= lanes - 1
        if local_shadow(w, ld64(addresses + 8 * lane)) != 0:
            found |= 1 << lane
    return found


@export
def tl_shadow_ld(w, addresses, lanes, vectors, size, count, iid):
    """Shadows of what `tl_ld` loaded, in its place."""
    for j in range(count):
        fill_bytes(vectors + 256 * j, 0, L.LANES * size)
    local = in_local(w, addresses, lanes)
    if lanes & ~local != 0:
        observe(w, CHECK_SHADOW_LD, addresses, vectors, size | (count << 8), lanes & ~local, iid)
    while local != 0:
        lane = trailing_zeros(local)
        local &= local - 1
        shadow = local_shadow(w, ld64(addresses + 8 * lane))
        some = 0
        for j in range(count):
            copy_bytes(vectors + 256 * j + size * lane, shadow + size * j, size)
            some |= ld16(shadow + size * j) & (0xFF if size == 1 else 0xFFFF)
        if some != 0:
            observe(w, CHECK_ORIGIN, 0, 0, 0, 1 << lane, iid)
    return 0


@export
def tl_shadow_part(w, addresses, lanes, vector, size, iid):
    """Shadows of one element a lane that `tl_ld` loaded, from memory that is not local."""
    fill_bytes(vector, 0, L.LANES * size)
    if ld64(w + L.W_UNDEFINED) != 0:
        observe(w, CHECK_SHADOW_LD, addresses, vector, size | (1 << 8), lanes, iid)
    return 0


@export
def tl_shadow_st(w, addresses, lanes, vectors, size, count, iid):
    """Keep the shadows of what `tl_st` stored."""
    local = in_local(w, addresses, lanes)
    if lanes & ~local != 0:
        observe(w, CHECK_SHADOW_ST, addresses, vectors, size | (count << 8), lanes & ~local, iid)
    while local != 0:
        lane = trailing_zeros(local)
        local &= local - 1
        shadow = local_shadow(w, ld64(addresses + 8 * lane))
        for j in range(count):
            copy_bytes(shadow + size * j, vectors + 256 * j + size * lane, size)
    return 0


@export
def tl_shadow_remote(w, addresses, lanes, vectors, size, count, iid):
    """Keep the shadows of what `tl_remote` stores or adds; addresses: as it takes them, turned into the host's."""
    left = lanes
    while left != 0:
        lane = trailing_zeros(left)
        left &= left - 1
        host = shared_host(w, ld64(addresses + 8 * lane) & 0xFFFFFFFF, size * count, iid, lane)
        if host == 0:
            return 0
        st64(addresses + 8 * lane, host)
    observe(w, CHECK_SHADOW_ST, addresses, vectors, size | (count << 8), lanes, iid)
    return 0


@helper
def defined(w, table, count):
    """Clear the shadows of some registers; a table of their places in the frame (i32, -1: none)."""
    for k in range(count):
        at = lds32(table + 4 * k)
        if at >= 0:
            fill_bytes(ld64(w + L.W_FRAME) + at, 0, 4 * L.LANES)


@helper
def to_frame(w, table, count, vectors):
    """Set them."""
    for k in range(count):
        at = lds32(table + 4 * k)
        if at >= 0:
            copy_bytes(ld64(w + L.W_FRAME) + at, vectors + 256 * k, 4 * L.LANES)


@export
def tl_shadow_ldmatrix(w, addresses, count, trans, table, iid):
    """Shadows of the fragments that `tl_ldmatrix` loaded, in the frame."""
    if ld64(w + L.W_UNDEFINED) == 0:
        defined(w, table, count)
        return 0
    rows = w + L.W_SCRATCH + 256 * _ROWS
    vectors = rows + 512
    fill_bytes(rows, 0, 512)
    observe(w, CHECK_SHADOW_LD, addresses, rows, 8 | (2 << 8), (1 << (8 * count)) - 1, iid)
    for i in range(count):
        for r in range(8):
            for c in range(8):
                value = ld16(rows + 256 * (c >> 2) + 8 * (8 * i + r) + 2 * (c & 3))
                place = 16 * r + 2 * c if trans == 0 else 16 * c + 2 * r
                st16(vectors + 256 * i + place, value)
    to_frame(w, table, count, vectors)
    return 0


@export
def tl_shadow_stmatrix(w, addresses, count, trans, vectors, iid):
    """Keep the shadows of the fragments that `tl_stmatrix` stored."""
    rows = w + L.W_SCRATCH + 256 * _ROWS
    for i in range(count):
        for r in range(8):
            for c in range(8):
                place = 16 * r + 2 * c if trans == 0 else 16 * c + 2 * r
                value = ld16(vectors + 256 * i + place)
                st16(rows + 256 * (c >> 2) + 8 * (8 * i + r) + 2 * (c & 3), value)
    observe(w, CHECK_SHADOW_ST, addresses, rows, 8 | (2 << 8), (1 << (8 * count)) - 1, iid)
    return 0


@export
def tl_shadow_tmem_ld(w, shape, count, step, table, lanes, iid):
    """Shadows of what `tl_tmem_ld` loaded, in the frame."""
    if ld64(w + L.W_UNDEFINED) == 0:
        defined(w, table, count)
        return 0
    hosts = w + L.W_SCRATCH + 256 * SCRATCH_HOST
    vectors = w + L.W_SCRATCH + 256 * SCRATCH_REGISTERS
    observe(w, CHECK_SHADOW_TMEM_LD, hosts, vectors, shape | (step << 4) | (count << 8), lanes, iid)
    to_frame(w, table, count, vectors)
    return 0


@export
def tl_shadow_tmem_st(w, shape, count, step, lanes, iid):
    """Keep the shadows of what `tl_tmem_st` stores."""
    hosts = w + L.W_SCRATCH + 256 * SCRATCH_HOST
    registers = w + L.W_SCRATCH + 256 * SCRATCH_REGISTERS
    form = shape | (step << 4) | (count << 8)
    observe(w, CHECK_SHADOW_TMEM_ST, hosts, registers, form, lanes, iid)
    return 0


# ---------------------------------------------------------------- products of fragments
@helper
def some_lanes(w, table, first, last, by, wide):
    """Lanes in which one of some registers' shadows has a bit."""
    lanes = 0
    for k in range(first, last, by):
        at = lds32(table + 4 * k)
        if at >= 0:
            shadow = ld64(w + L.W_FRAME) + at
            lanes |= ~(lanes_equal64(shadow, 0) if wide != 0 else lanes_equal32(shadow, 0)) & 0xFFFFFFFF
    return lanes


@helper
def quads(lanes):
    """Bit 4 g for each quad of lanes (4 g to 4 g + 3) of which one is there."""
    lanes |= lanes >> 1
    return (lanes | (lanes >> 2)) & 0x11111111


@helper
def lanes_of_columns(columns, odd):
    """Lanes 4 g + t of D whose column 2 t (odd: 2 t + 1) is there; columns: bit 4 c for column c."""
    found = 0
    for t in range(4):
        found |= ((columns >> (4 * (2 * t + odd))) & 1) << t
    return found * 0x11111111


@helper
def set_product(w, d, c, lanes, wide):
    """The shadow of a register of D: all of it in these lanes, besides what C has undefined. d, c: places, -1: none."""
    if d < 0:
        return
    frame = ld64(w + L.W_FRAME)
    size = L.LANES * (8 if wide != 0 else 4)
    if c < 0:
        fill_bytes(frame + d, 0, size)
    elif c != d:
        copy_bytes(frame + d, frame + c, size)
    if lanes != 0 and wide != 0:
        put_lanes64(frame + d, lanes, -1)
    elif lanes != 0:
        put_lanes32(frame + d, lanes, -1)


@export
def tl_shadow_mma(w, table, form):
    """Shadows of an mma.sync, in the frame: an element of D depends on its row of A, its column of B, and its own C.

    table: places of D's, A's, B's and C's; form: how many D, A and B have (a byte each), bit 24: a register of D has
    two columns, bit 25: registers of 64 bits. The layouts are those of m16n8: A's registers have rows g and g + 8 in
    turn (lane 4 g + t), B's column g; D's two each of rows g and g + 8, columns 2 t and 2 t + 1 (PTX ISA, fragments of
    mma).
    """
    d, a, b = form & 0xFF, (form >> 8) & 0xFF, (form >> 16) & 0xFF
    both = (form >> 24) & 1
    wide = (form >> 25) & 1
    halves = 2 if a > 1 else 1
    upper = quads(some_lanes(w, table, d, d + a, halves, wide)) * 15
    lower = quads(some_lanes(w, table, d + 1, d + a, halves, wide)) * 15 if halves == 2 else 0
    columns = quads(some_lanes(w, table, d + a, d + a + b, 1, wide))
    even = lanes_of_columns(columns, 0)
    odd = lanes_of_columns(columns, 1)
    for n in range(d):
        half = 0 if halves == 1 else (n if both != 0 else n >> 1) & 1
        lanes = lower if half != 0 else upper
        lanes |= even | odd if both != 0 else (odd if n & 1 else even)
        set_product(w, lds32(table + 4 * n), lds32(table + 4 * (d + a + b + n)), lanes, wide)
    return 0
