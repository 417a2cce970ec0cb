"""Epilogues that hold C by rows: a thread has eight columns of one row at a time, in float32.

So a residual, a bias and C itself move 16 bytes at a time (32 where they are fp32), whatever the layout that the
accumulators came in. `whole`: the eight lie inside and are aligned; else they are read and written one by one.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass.cute.typing import AddressSpace

COLUMNS = 8  # of a row, what a thread finishes at a time
ALIGN = 16  # bytes of a vector access


@cute.jit
def finish(
    acc: cute.Tensor, up: cute.Tensor | None, added: cute.Tensor | None, n: cutlass.Int32, cols: cutlass.Int32,
    mV: cute.Tensor | None, mQ: cute.Tensor | None, factor: cutlass.Float32, beta: cutlass.Float32,
    activation: cutlass.Constexpr, whole: cutlass.Boolean,
):
    """act(factor q acc + beta R + V), with `up` act(factor q acc) * (factor q up) + beta R, in place.

    acc, up: (COLUMNS,) of a row from column n on, of `cols`. added: R's, read before; zeros where beta is 0. mV, mQ:
    (N,). factor: alpha, times the row's p.
    """
    acc.store(acc.load() * factor)
    if cutlass.const_expr(up is not None):
        up.store(up.load() * factor)
    if cutlass.const_expr(mQ is not None):
        # By elements: its stride may be 0.
        factors = cute.make_rmem_tensor(cute.make_layout(COLUMNS), cutlass.Float32)
        read(factors, mQ, n, cols, cutlass.Boolean(False))
        acc.store(acc.load() * factors.load())
        if cutlass.const_expr(up is not None):
            up.store(up.load() * factors.load())
    if cutlass.const_expr(up is not None):
        activate(acc, activation)
        acc.store(acc.load() * up.load())
    if cutlass.const_expr(added is not None):
        acc.store(acc.load() + beta * added.load().to(cutlass.Float32))
    if cutlass.const_expr(mV is not None):
        bias = cute.make_rmem_tensor(cute.make_layout(COLUMNS), mV.element_type)
        read(bias, mV, n, cols, whole)
        acc.store(acc.load() + bias.load().to(cutlass.Float32))
    if cutlass.const_expr(up is None):
        activate(acc, activation)


@cute.jit
def activate(acc: cute.Tensor, activation: cutlass.Constexpr):
    """Each element through `activation`, which is None or takes and gives a Float32."""
    if cutlass.const_expr(activation is not None):
        for i in cutlass.range_constexpr(cute.size(acc)):
            acc[i] = activation(acc[i])


@cute.jit
def read(values: cute.Tensor, row: cute.Tensor, n: cutlass.Int32, cols: cutlass.Int32, whole: cutlass.Boolean):
    """Columns n to n + COLUMNS of a row in global memory into registers, 0 past `cols`."""
    if whole:
        cute.autovec_copy(vector(row, n), values)
    else:
        for i in cutlass.range_constexpr(COLUMNS):
            values[i] = row.element_type(0)
            if n + i < cols:
                values[i] = row[n + i]


@cute.jit
def write(row: cute.Tensor, n: cutlass.Int32, cols: cutlass.Int32, acc: cute.Tensor, whole: cutlass.Boolean):
    """Columns n to n + COLUMNS of a row in global memory, rounded to its type; none past `cols`."""
    values = cute.make_rmem_tensor(cute.make_layout(COLUMNS), row.element_type)
    values.store(acc.load().to(row.element_type))
    if whole:
        cute.autovec_copy(values, vector(row, n))
    else:
        for i in cutlass.range_constexpr(COLUMNS):
            if n + i < cols:
                row[n + i] = values[i]


@cute.jit
def vector(row: cute.Tensor, n: cutlass.Int32):
    """Columns n to n + COLUMNS of a row, said to be aligned."""
    start = cute.domain_offset((n,), row).iterator
    pointer = cute.make_ptr(row.element_type, start.toint(), AddressSpace.gmem, assumed_align=ALIGN)
    return cute.make_tensor(pointer, cute.make_layout(COLUMNS))


@cute.jit
def aligned(matrix: cute.Tensor):
    """Whether vectors of a matrix (rows, columns) whose columns are contiguous are aligned, all that begin at multiples
    of COLUMNS."""
    pitch = cutlass.Int64(matrix.stride[0]) * (matrix.element_type.width // 8)
    return ((matrix.iterator.toint() | pitch) & (ALIGN - 1)) == 0
