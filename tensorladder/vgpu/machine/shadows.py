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
from tensorladder.vgpu.machine.native import export, helper
from tensorladder.vgpu.machine.raw import copy_bytes, fill_bytes, ld16, ld64, st16, trailing_zeros
from tensorladder.vgpu.machine.tmem import SCRATCH_HOST, SCRATCH_REGISTERS

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
def tl_shadow_ldmatrix(w, addresses, count, trans, vectors, iid):
    """Shadows of the fragments that `tl_ldmatrix` loaded."""
    rows = w + L.W_SCRATCH + 256 * _ROWS
    fill_bytes(rows, 0, 512)
    observe(w, CHECK_SHADOW_LD, addresses, rows, 8 | (2 << 8), (1 << (8 * count)) - 1, iid)
    for i in range(count):
        for r in range(8):
            for c in range(8):
                value = ld16(rows + 256 * (c >> 2) + 8 * (8 * i + r) + 2 * (c & 3))
                place = 16 * r + 2 * c if trans == 0 else 16 * c + 2 * r
                st16(vectors + 256 * i + place, value)
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
def tl_shadow_tmem_ld(w, shape, count, step, lanes, iid):
    """Shadows of what `tl_tmem_ld` loaded, in its place."""
    hosts = w + L.W_SCRATCH + 256 * SCRATCH_HOST
    registers = w + L.W_SCRATCH + 256 * SCRATCH_REGISTERS
    form = shape | (step << 4) | (count << 8)
    observe(w, CHECK_SHADOW_TMEM_LD, hosts, registers, form, lanes, iid)
    return 0


@export
def tl_shadow_tmem_st(w, shape, count, step, lanes, iid):
    """Keep the shadows of what `tl_tmem_st` stores."""
    hosts = w + L.W_SCRATCH + 256 * SCRATCH_HOST
    registers = w + L.W_SCRATCH + 256 * SCRATCH_REGISTERS
    form = shape | (step << 4) | (count << 8)
    observe(w, CHECK_SHADOW_TMEM_ST, hosts, registers, form, lanes, iid)
    return 0
