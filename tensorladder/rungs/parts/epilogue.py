"""What is done to accumulators before C is stored: act(alpha acc + beta R + bias) in float32."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import OperandMajorMode

#: of log2(erfc(a / sqrt 2) / 2), a from 0 up, ascending: with them `gelu` is within 1e-7 of the exact one, and within
#: 2e-6 of its size where that is over 1e-3 (fitted on [0, 5]; from there on it falls, as it must)
LOG2_TAIL = (
    -0.9999989867210388, -1.151135802268982, -0.4590153694152832, -0.05297379568219185, 0.007648020517081022,
    -0.0005248828674666584, -4.432151763467118e-05, 1.2577016605064273e-05, -7.978113103490614e-07,
)  # fmt: skip
LOG2_E = 1.4426950408889634
LARGEST = 3.4e38  # of float32, nearly


@cute.jit
def relu(x: cutlass.Float32):
    """max(x, 0); 0 for NaN, as max.f32 has it."""
    return cute.arch.fmax(x, cutlass.Float32(0.0))


@cute.jit
def gelu(x: cutlass.Float32):
    """x times the normal distribution's probability of less than x: by erf, not by tanh.

    max(x, 0) - |x| tail(|x|), and the tail as a power of 2: a polynomial and one call of the special function unit,
    half of what erf takes.
    """
    a = cute.math.absf(x)
    power = cutlass.Float32(LOG2_TAIL[-1])
    for coefficient in LOG2_TAIL[-2::-1]:
        power = power * a + coefficient
    return cute.arch.fmax(x, cutlass.Float32(0.0)) - cute.arch.fmin(a, cutlass.Float32(LARGEST)) * exp2(power)


@cute.jit
def silu(x: cutlass.Float32):
    """x / (1 + e^-x)."""
    return x * cute.arch.rcp_approx(1.0 + exp2(x * -LOG2_E))


@cute.jit
def exp2(x: cutlass.Float32):
    """2^x to 2 ulp, 0 for what is subnormal."""
    return cute.math.exp2(x, fastmath=True)


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


@cute.jit
def complete(
    acc: cute.Tensor, up: cute.Tensor | None, coords: cute.Tensor, limit: cute.Shape, mR: cute.Tensor | None,
    mV: cute.Tensor | None, mP: cute.Tensor | None, mQ: cute.Tensor | None, alpha: cutlass.Float32,
    beta: cutlass.Float32, activation: cutlass.Constexpr, paired: cutlass.Constexpr,
):
    """`Form`'s epilogue of a chunk of C, in place: act(alpha p q acc + beta R + V), or with `up` (gated)
    act(alpha p q acc) (alpha p q up) + beta R.

    acc, up: ((2 columns, 2 rows, pairs), 1, 1) a thread, at `coords`. limit: C's (M, N). mR: (M, N). mV, mQ: (N,).
    mP: (M,). paired: R and V are read in pairs of columns: N is even, and a pair aligned to its size.

    Coordinates outside of C are moved to its edge, where reading is allowed: loads need no predicates, so that all are
    on their way at once, and what comes of them is not stored.
    """
    _, rows, pairs = acc.shape[0]
    last_m, last_n = limit[0] - 1, limit[1] - (2 if paired else 1)
    # All that is read, before the first use of it.
    tCrR = tCrV = tCrP = tCrQ = None
    if cutlass.const_expr(mR is not None):
        tCrR = cute.make_fragment_like(acc, mR.element_type)
        tCrR.fill(0)
        # beta = 0 leaves R unread, as BLAS does: it may hold NaN.
        if beta != 0.0:
            for j in cutlass.range_constexpr(pairs):
                for r in cutlass.range_constexpr(rows):
                    m = cutlass.min(coords[(0, r, j), 0, 0][0], last_m)
                    read(tCrR[(None, r, j), 0, 0], mR[m, None], coords[(0, r, j), 0, 0][1], last_n, paired)
    columns = cute.make_layout((2, pairs))
    if cutlass.const_expr(mV is not None):
        tCrV = cute.make_rmem_tensor(columns, mV.element_type)
        for j in cutlass.range_constexpr(pairs):
            read(tCrV[None, j], mV, coords[(0, 0, j), 0, 0][1], last_n, paired)
    if cutlass.const_expr(mQ is not None):
        tCrQ = cute.make_rmem_tensor(columns, mQ.element_type)
        for j in cutlass.range_constexpr(pairs):
            read(tCrQ[None, j], mQ, coords[(0, 0, j), 0, 0][1], limit[1] - 1, False)
    if cutlass.const_expr(mP is not None):
        tCrP = cute.make_rmem_tensor(cute.make_layout(rows), mP.element_type)
        for r in cutlass.range_constexpr(rows):
            tCrP[r] = mP[cutlass.min(coords[(0, r, 0), 0, 0][0], last_m)]

    for j in cutlass.range_constexpr(pairs):
        for r in cutlass.range_constexpr(rows):
            for i in cutlass.range_constexpr(2):
                at = (i, r, j), 0, 0
                factor = alpha
                if cutlass.const_expr(mP is not None):
                    factor = factor * tCrP[r]
                if cutlass.const_expr(mQ is not None):
                    factor = factor * tCrQ[i, j]
                value, residual = acc[at] * factor, cutlass.Float32(0.0)
                if cutlass.const_expr(mR is not None):
                    residual = beta * tCrR[at].to(cutlass.Float32)
                if cutlass.const_expr(up is not None):
                    value = value if activation is None else activation(value)
                    value = value * (up[at] * factor) + residual
                else:
                    if cutlass.const_expr(mR is not None):
                        value = value + residual
                    if cutlass.const_expr(mV is not None):
                        value = value + tCrV[i, j].to(cutlass.Float32)
                    value = value if activation is None else activation(value)
                acc[at] = value


@cute.jit
def read(
    dst: cute.Tensor, src: cute.Tensor, first: cutlass.Int32, last: cutlass.Int32, paired: cutlass.Constexpr
):
    """dst[0], dst[1] = src[first], src[first + 1]; none from past `last`, the place of the last pair (or element)."""
    if cutlass.const_expr(paired):
        pair = cute.local_tile(src, (2,), (cutlass.min(first, last) // 2,))
        dst.store(pair.load())
    else:
        for i in cutlass.range_constexpr(2):
            dst[i] = src[cutlass.min(first + i, last)]


@cute.jit
def store_plain(
    smem: cute.Tensor, mC: cute.Tensor, first: cute.Coord, thread: cutlass.Int32, threads: cutlass.Constexpr
):
    """A chunk of C in shared memory to its place at `first` of C (M, N), an element a thread at a time."""
    rows, cols = cute.size(smem, mode=[0]), cute.size(smem, mode=[1])
    for i in cutlass.range_constexpr(rows * cols // threads):
        row, col = (i * threads + thread) // cols, (i * threads + thread) % cols
        at = first[0] + row, first[1] + col
        if cute.elem_less(at, mC.shape):
            mC[at] = smem[row, col]
