"""What stores leave in global memory: whether CTAs that store to the same bytes store the same there.

Kernels let CTAs that hold a value store it, all of them. Workers run CTAs at the same time and compare what they know
at the end, so each cell keeps a sum of what its last write stored, which hangs on nothing but that store.
"""

from __future__ import annotations

from tensorladder.vgpu.check import layout as X
from tensorladder.vgpu.check.shadow import range_row
from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.machine.native import helper
from tensorladder.vgpu.machine.raw import ld8, ld32, ld64, st64, trailing_zeros

_ODD = 0x1E3779B97F4A7C15


@helper
def add_value(cell, at, value):
    """A value's part of a cell's sum; at: its place in the cell's 16 bytes.

    Value and place are mixed by odd factors and shifts: a sum of multiples alone is the same for (10, 1) and (1, 2).
    """
    mixed = ((at + 1) << 32 | value) * _ODD
    mixed = (mixed ^ (mixed >> 29 & 0x7FFFFFFFF)) * _ODD
    mixed = mixed ^ (mixed >> 32 & 0xFFFFFFFF)
    st64(cell + X.CELL_VALUE, ld64(cell + X.CELL_VALUE) + mixed)


@helper
def keep_value(row, address, value, size):
    """Keep what is stored to one byte, or to four that lie in one word."""
    at = address & 15
    cell = ld64(row + 16) + X.CELL * ((address - (ld64(row) & ~15)) >> 4)
    if ld64(cell) >= 0:
        add_value(cell, at, value)
        return
    block = ld64(cell + X.CELL_READ)
    if ld64(cell + X.CELL_READ + 8) == X.LEVEL_WORDS:
        add_value(block + X.CELL * (at & ~3), at, value)
        return
    for k in range(size):
        add_value(block + X.CELL * (at + k), at + k, (value >> (8 * k)) & 0xFF)


@helper
def keep_values(x, w, addresses, lanes, size):
    """A warp's plain store, whose cells its access has just been written to."""
    values = ld64(w + L.W_STORED)
    element = ld64(w + L.W_STORED_SIZE)
    step = 4 if element >= 4 else 1
    while lanes != 0:
        lane = trailing_zeros(lanes)
        lanes &= lanes - 1
        address = ld64(addresses + 8 * lane)
        row = range_row(x, address)
        if row == 0 or ld64(row + 16) == 0 or address + size > ld64(row + 8):
            continue
        for k in range(0, size, step):
            at = values + 256 * (k // element) + element * lane + k % element
            keep_value(row, address + k, ld32(at) if step == 4 else ld8(at), step)
