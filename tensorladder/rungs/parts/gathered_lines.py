"""Rows gathered into the 128-byte swizzle by cp.async: 128 threads have 16 rows at a time, 8 threads a line of one.

A line is 128 bytes, 64 elements. Of rows of several lines shared memory has the first lines of all rows, then their
second ones, as tcgen05 and WGMMA read operands of 16 bits.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute

from tensorladder.rungs.parts import sparse
from tensorladder.rungs.parts.cpasync import start_copy

LINE = 64  # elements
VECTOR = 8  # elements of a thread, 16 bytes
ROWS = 16


def offset(thread: cutlass.Int32) -> cutlass.Int32:
    """Of a thread's 16 bytes among the lines of 16 rows, in elements. The swizzle permutes those of 8 lines alike."""
    row, vector = thread // VECTOR, thread % VECTOR
    return row * LINE + (vector ^ (row % 8)) * VECTOR


def tokens(indices: cute.Tensor, begin: cutlass.Int32, count: int, thread: cutlass.Int32) -> list[cutlass.Int32]:
    """The tokens that a thread copies of `count` that begin at a place of a row: every 16th."""
    return [sparse.token(indices, begin + row + thread // VECTOR) for row in range(0, count, ROWS)]


@cute.jit
def copy_line(
    tensor: cute.Tensor, line: cutlass.Constexpr, rows: list, thread: cutlass.Int32, to: cute.Pointer
):
    """Start a thread's copies of a line of its rows of a matrix. Of row -1 come zeros, nothing is read.

    to: where the line of the first 16 rows begins, and the thread's `offset`.
    """
    vector = line * (LINE // VECTOR) + thread % VECTOR
    for turn in cutlass.range_constexpr(len(rows)):
        source = cute.local_tile(tensor[cutlass.max(rows[turn], 0), None], (VECTOR,), (vector,))
        start_copy(to + turn * ROWS * LINE, source.iterator, 16 if rows[turn] >= 0 else 0)


@cute.jit
def copy_key(
    tensors: tuple, rows: list, thread: cutlass.Int32, to: cute.Pointer, pitch: cutlass.Constexpr
):
    """The same of all lines of keys or queries, whose elements are the two matrices' side by side; pitch: elements
    between a line and the next."""
    latent = tensors[0].shape[1] // LINE
    for line in cutlass.range_constexpr(latent + tensors[1].shape[1] // LINE):
        tensor, of_tensor = (tensors[0], line) if line < latent else (tensors[1], line - latent)
        copy_line(tensor, of_tensor, rows, thread, to + line * pitch)
