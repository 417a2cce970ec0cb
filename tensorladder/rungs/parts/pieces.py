"""Shared memory as TMA and WGMMA keep it under the 128-byte swizzle, taken by threads: pieces of 16 bytes, in place.

A line is 128 bytes, 8 pieces; what the layout calls piece p of a line lies at p ^ (line % 8). So a piece can be
cleared, masked or stored with no layout algebra, and neighbouring threads take neighbouring pieces.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import OperandMajorMode
from cutlass.cute.typing import AddressSpace

BITS = 128  # of a piece
LINE = 8  # pieces


def view(pointer: Any, elements: int, stages: int):
    """Memory as (elements of a piece, piece, stage); elements: of a stage."""
    width = BITS // pointer.dtype.width
    return cute.make_tensor(pointer, cute.make_layout((width, elements // width, stages), stride=(1, width, elements)))


@cute.jit
def place(base: cute.Pointer, rows: cutlass.Constexpr, row: cutlass.Int32, piece: cutlass.Int32):
    """Where a piece of a row of an operand lies whose rows are contiguous along K: a pointer without a swizzle.

    rows: that the operand has; each has a line in every block of 128 bytes of K.
    """
    line = piece // LINE * rows + row
    elements = (line * LINE + (piece % LINE ^ row % LINE)) * (BITS // base.dtype.width)
    return cute.make_ptr(base.dtype, (base + elements).toint(), AddressSpace.smem, assumed_align=BITS // 8)


@cute.jit
def clear(
    pieces: cute.Tensor, major: cutlass.Constexpr, depth: cutlass.Constexpr, low: cutlass.Int32, high: cutlass.Int32,
    thread: cutlass.Int32, threads: cutlass.Constexpr,
):
    """Zero what a stage of an operand holds of k below `low` or from `high` on, by so many threads.

    pieces: (elements, piece) of the stage; depth: its extent along K. With M or N contiguous a line is of one k;
    with K contiguous a piece is of as many k as it has elements.
    """
    width, count = cute.size(pieces, mode=[0]), cute.size(pieces, mode=[1])
    kept = cute.make_rmem_tensor(cute.make_layout(width), pieces.element_type)
    for i in cutlass.range_constexpr(cute.ceil_div(count, threads)):
        piece = i * threads + thread
        line = piece // LINE
        if cutlass.const_expr(major == OperandMajorMode.K):
            lines = count // depth * width  # rows of the operand: each has a line in every block of 128 bytes of K
            k = (line // lines * LINE + (piece % LINE ^ line % LINE)) * width
            if piece < count and (k < low or k + width > high):
                kept.store(pieces[None, piece].load())
                for j in cutlass.range_constexpr(width):
                    if k + j < low or k + j >= high:
                        kept[j] = pieces.element_type(0.0)
                cute.autovec_copy(kept, pieces[None, piece])
        else:
            k = line % depth
            if piece < count and (k < low or k >= high):
                kept.fill(0.0)
                cute.autovec_copy(kept, pieces[None, piece])


@cute.jit
def store_rows(
    pieces: cute.Tensor, gmem: cute.Tensor, row: cutlass.Int32, col: cutlass.Int32, low: cutlass.Int32,
    high: cutlass.Int32, thread: cutlass.Int32, threads: cutlass.Constexpr,
):
    """Lines of shared memory to the rows [low, high) of a row-major matrix: the first line is `row`, from `col` on.

    16 bytes a thread and turn. The columns of the matrix, its pitch and base are multiples of a piece.
    """
    width, count = cute.size(pieces, mode=[0]), cute.size(pieces, mode=[1])
    rows, cols = gmem.shape[0], gmem.shape[1]
    layout = cute.make_layout((rows, width, cols // width), stride=(gmem.stride[0], 1, width))
    places = cute.make_tensor(gmem.iterator, layout)
    for i in cutlass.range_constexpr(cute.ceil_div(count, threads)):
        line, piece = (i * threads + thread) // LINE, thread % LINE
        if row + line >= low and row + line < high and col + piece * width < cols:
            source = pieces[None, line * LINE + (piece ^ line % LINE)]
            cute.autovec_copy(source, places[row + line, None, col // width + piece])
