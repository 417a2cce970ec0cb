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

_ODD = (0x1E3779B1, 0x05EBCA77, 0x2C1B3C6D, 0x297A2D39)
_LOW = 0x7FFFFFFF


@helper
def mixed(at, value):
    """A byte's part of a cell's sum; at: its place in the cell's 16 bytes.

    Value and place are mixed by odd factors and shifts: a sum of multiples alone is the same for (10, 1) and (1, 2).
    No product or sum leaves 63 bits: numba tells LLVM that integers never overflow, which then takes them for anything.
    """
    made = (at + 1) * _ODD[0] ^ (value + 1) * _ODD[1]
    made = ((made ^ made >> 15) & _LOW) * _ODD[2]
    return ((made ^ made >> 27) & _LOW) * _ODD[3] >> 3


@helper
def add_to(cell, part):
    """More of a cell's sum."""
    st64(cell + X.CELL_VALUE, (ld64(cell + X.CELL_VALUE) + part) & 0xFFFFFFFFFFFFFFF)


@helper
def keep_value(row, address, value, size):
    """Keep what is stored to one byte, or to four that lie in one word: by bytes, so that equal ones are equal whatever
    the width of the store."""
    at = address & 15
    cell = ld64(row + 16) + X.CELL * ((address - (ld64(row) & ~15)) >> 4)
    block = 0
    if ld64(cell) < 0:
        block = ld64(cell + X.CELL_READ)
        if ld64(cell + X.CELL_READ + 8) == X.LEVEL_WORDS:
            cell, block = block + X.CELL * (at & ~3), 0
    total = 0
    for k in range(size):
        part = mixed(at + k, (value >> (8 * k)) & 0xFF)
        total += part
        if block != 0:
            add_to(block + X.CELL * (at + k), part)
    if block == 0:
        add_to(cell, total)


@helper
def stored_before(addresses, lanes, lane):
    """Whether a lane of these before this one has the same address."""
    before = lanes & ((1 << lane) - 1)
    while before != 0:
        other = trailing_zeros(before)
        before &= before - 1
        if ld64(addresses + 8 * other) == ld64(addresses + 8 * lane):
            return True
    return False


@helper
def keep_values(x, w, addresses, lanes, size):
    """A warp's plain store, whose cells its access has just been written to. Of lanes with one address one counts."""
    values = ld64(w + L.W_STORED)
    element = ld64(w + L.W_STORED_SIZE)
    step = 4 if element >= 4 else 1
    highest, rest = 0, lanes
    while rest != 0:
        lane = trailing_zeros(rest)
        rest &= rest - 1
        address = ld64(addresses + 8 * lane)
        if address <= highest and stored_before(addresses, lanes, lane):
            continue
        highest = max(highest, address)
        row = range_row(x, address)
        if row == 0 or ld64(row + 16) == 0 or address + size > ld64(row + 8):
            continue
        for k in range(0, size, step):
            at = values + 256 * (k // element) + element * lane + k % element
            keep_value(row, address + k, ld32(at) if step == 4 else ld8(at), step)
