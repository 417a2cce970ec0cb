"""What is done to accumulators before C is stored: act(alpha acc + beta R + bias) in float32."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import OperandMajorMode

SQRT_HALF = 0.7071067811865476


@cute.jit
def relu(x: cutlass.Float32):
    """max(x, 0); 0 for NaN, as max.f32 has it."""
    return cute.arch.fmax(x, cutlass.Float32(0.0))


@cute.jit
def gelu(x: cutlass.Float32):
    """x times the normal distribution's probability of less than x: by erf, not by tanh."""
    return 0.5 * x * (1.0 + cute.math.erf(x * SQRT_HALF))


@cute.jit
def silu(x: cutlass.Float32):
    """x / (1 + e^-x)."""
    return x / (1.0 + cute.math.exp(-x))


MAJORS = {"k": OperandMajorMode.K, "mn": OperandMajorMode.MN}
ACTIVATIONS = {"none": None, "relu": relu, "gelu": gelu, "silu": silu}


@cute.jit
def finish(
    acc: cute.Tensor, thr_mma: cute.TiledMma, tiler: cutlass.Constexpr, coord: cute.Coord, limit: cute.Shape,
    mR: cute.Tensor | None, mV: cute.Tensor | None, alpha: cutlass.Float32, beta: cutlass.Float32,
    activation: cutlass.Constexpr,
):
    """act(alpha acc + beta R + V) of a chunk of C, in place.

    acc: ((2 columns, 2 rows, pairs), 1, 1) a thread, of a chunk of `tiler` at `coord`. limit: C's extents. mR, mV:
    matrices of C's shape, or None.
    """
    acc.store(acc.load() * alpha)
    coords = thr_mma.partition_C(cute.local_tile(cute.make_identity_tensor(limit), tiler=tiler, coord=coord))
    # beta = 0 leaves R unread, as BLAS does: it may hold NaN.
    if cutlass.const_expr(mR is not None):
        if beta != 0.0:
            add(acc, thr_mma.partition_C(cute.local_tile(mR, tiler=tiler, coord=coord)), coords, limit, beta)
    if cutlass.const_expr(mV is not None):
        one = cutlass.Float32(1.0)
        add(acc, thr_mma.partition_C(cute.local_tile(mV, tiler=tiler, coord=coord)), coords, limit, one)
    if cutlass.const_expr(activation is not None):
        for i in cutlass.range_constexpr(cute.size(acc)):
            acc[i] = activation(acc[i])


@cute.jit
def add(acc: cute.Tensor, src: cute.Tensor, coords: cute.Tensor, limit: cute.Shape, factor: cutlass.Float32):
    """acc += factor src, by pairs of columns; N is even, so that a pair lies inside of C or outside."""
    pair = cute.make_rmem_tensor(cute.make_layout(2), src.element_type)
    _, rows, pairs = acc.shape[0]
    for j in cutlass.range_constexpr(pairs):
        for r in cutlass.range_constexpr(rows):
            if cute.elem_less(coords[(0, r, j), 0, 0], limit):
                pair.store(src[(None, r, j), 0, 0].load())
                for i in cutlass.range_constexpr(2):
                    acc[(i, r, j), 0, 0] = acc[(i, r, j), 0, 0] + factor * pair[i].to(cutlass.Float32)
