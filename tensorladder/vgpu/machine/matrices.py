"""ldmatrix and stmatrix: 8x8 matrices of 16-bit elements between shared memory and fragments."""

from __future__ import annotations

from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.machine.memory import SPACE_OWN, resolve_all
from tensorladder.vgpu.machine.native import export
from tensorladder.vgpu.machine.raw import ld16, ld64, st16, st64

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
    for i in range(count):
        for r in range(8):
            row = ld64(addresses + 8 * (8 * i + r))
            if trans == 0:
                st64(row, ld64(vectors + 256 * i + _ROW * r))
                st64(row + 8, ld64(vectors + 256 * i + _ROW * r + 8))
            else:
                for c in range(8):
                    st16(row + 2 * c, ld16(vectors + 256 * i + _ROW * c + 2 * r))
    st64(w + L.W_PROGRESS, ld64(w + L.W_PROGRESS) + 1)
    return 0
