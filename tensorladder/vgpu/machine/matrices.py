"""ldmatrix and stmatrix: 8x8 matrices of 16-bit elements between shared memory and fragments, stores of 16x8 bytes."""

from __future__ import annotations

from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.machine.memory import SPACE_OWN, resolve_all
from tensorladder.vgpu.machine.native import export
from tensorladder.vgpu.machine.raw import ld8, ld16, ld64, st8, st16, st64

_ROW = 16  # bytes of a row


@export
def tl_ldmatrix(w, addresses, count, trans, vectors, iid):
    """Load `count` matrices; row r of matrix i is at the address of lane 8 i + r. Fragment i goes to vector i."""
    mask = (1 << (8 * count)) - 1
    if not resolve_all(w, SPACE_OWN, addresses, mask, _ROW, 0, iid):
        return 0
    for i in range(count):
        for r in range(8):
            row = ld64(addresses + 8 * (8 * i + r))
            if trans == 0:
                st64(vectors + 256 * i + _ROW * r, ld64(row))
                st64(vectors + 256 * i + _ROW * r + 8, ld64(row + 8))
            else:
                for c in range(8):
                    st16(vectors + 256 * i + _ROW * c + 2 * r, ld16(row + 2 * c))
    return 0


@export
def tl_stmatrix(w, addresses, count, trans, vectors, iid):
    """Store `count` matrices, the inverse of tl_ldmatrix."""
    mask = (1 << (8 * count)) - 1
    if not resolve_all(w, SPACE_OWN, addresses, mask, _ROW, 1, iid):
        return 0
    same = 0
    for i in range(count):
        for r in range(8):
            row = ld64(addresses + 8 * (8 * i + r))
            low, high = ld64(row), ld64(row + 8)
            if trans == 0:
                st64(row, ld64(vectors + 256 * i + _ROW * r))
                st64(row + 8, ld64(vectors + 256 * i + _ROW * r + 8))
            else:
                for c in range(8):
                    st16(row + 2 * c, ld16(vectors + 256 * i + _ROW * c + 2 * r))
            same |= (1 if ld64(row) == low and ld64(row + 8) == high else 0) << (8 * i + r)
    st64(w + L.W_STORED_SAME, same)
    st64(w + L.W_PROGRESS, ld64(w + L.W_PROGRESS) + 1)
    return 0


@export
def tl_stmatrix8(w, addresses, count, vectors, iid):
    """Store `count` 16x8 matrices of bytes, transposed: row n in memory is column n of the matrix, 16 bytes.

    A lane's register holds rows g and g + 8 of columns 2 t and 2 t + 1 (g = lane / 4, t = lane % 4): for 8-bit elements
    what the accumulator of mma.m16n8 is for wider ones (CUTLASS, Copy_Traits<SM100_U8x4_STSM_T>).
    """
    mask = (1 << (8 * count)) - 1
    if not resolve_all(w, SPACE_OWN, addresses, mask, _ROW, 1, iid):
        return 0
    same = 0
    for i in range(count):
        for n in range(8):
            row = ld64(addresses + 8 * (8 * i + n))
            low, high = ld64(row), ld64(row + 8)
            for m in range(16):
                lane = 4 * (m % 8) + n // 2
                st8(row + m, ld8(vectors + 256 * i + 4 * lane + n % 2 + 2 * (m // 8)))
            same |= (1 if ld64(row) == low and ld64(row + 8) == high else 0) << (8 * i + n)
    st64(w + L.W_STORED_SAME, same)
    st64(w + L.W_PROGRESS, ld64(w + L.W_PROGRESS) + 1)
    return 0
