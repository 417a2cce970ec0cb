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
LINE = 128  # bytes, of L2
STORES_AHEAD = 4  # words a thread has in registers on their way to C


@cute.jit
def relu(x: cutlass.Float32):
    """max(x, 0); NaN for NaN, as torch has it."""
    return cute.arch.fmax(x, cutlass.Float32(0.0), nan=True)


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
def fetch(
    src: cute.Tensor | None, extents: cutlass.Constexpr, thr_mma: cute.TiledMma, tiler: cutlass.Constexpr,
    coord: cute.Coord, limit: cute.Shape, wanted: cutlass.Boolean, paired: cutlass.Constexpr,
):
    """What a thread needs of a matrix of C's shape for a chunk of `tiler` at `coord`: (2 columns, 2 rows, pairs).

    extents: how many of these differ, 1 where an operand is the same along that mode. limit: C's (M, N). wanted: else
    zeros, and `src` is not read. paired: read in pairs of columns; N is even then, and a pair aligned to its size.
    None of None.

    In a chunk that reaches past C's edge coordinates are moved to the edge: loads need no predicates, so that all are
    on their way at once, and what comes of those outside is not stored.
    """
    if cutlass.const_expr(src is None):
        return None
    columns, rows, pairs = extents
    strides = [0 if extent == 1 else step for extent, step in zip(extents, (1, columns, columns * rows))]
    dst = cute.make_rmem_tensor(cute.make_layout((2, 2, tiler[1] // 8), stride=tuple(strides)), src.element_type)
    dst.fill(0)
    if wanted:
        if (coord[0] + 1) * tiler[0] <= limit[0] and (coord[1] + 1) * tiler[1] <= limit[1]:
            part = thr_mma.partition_C(cute.local_tile(src, tiler, coord))
            for j in cutlass.range_constexpr(pairs):
                for r in cutlass.range_constexpr(rows):
                    if cutlass.const_expr(paired):
                        dst[None, r, j].store(part[(None, r, j), 0, 0].load())
                    else:
                        for i in cutlass.range_constexpr(columns):
                            dst[i, r, j] = part[(i, r, j), 0, 0]
        else:
            places = thr_mma.partition_C(cute.local_tile(cute.make_identity_tensor(limit), tiler, coord))
            for j in cutlass.range_constexpr(pairs):
                for r in cutlass.range_constexpr(rows):
                    m, n = places[(0, r, j), 0, 0]
                    m = cutlass.min(m, limit[0] - 1)
                    if cutlass.const_expr(paired):
                        pair = cute.local_tile(src, (1, 2), (m, cutlass.min(n, limit[1] - 2) // 2))
                        dst[None, r, j].store(pair[0, None].load())
                    else:
                        for i in cutlass.range_constexpr(columns):
                            dst[i, r, j] = src[m, cutlass.min(n + i, limit[1] - 1)]
    return dst


@cute.jit
def complete(
    acc: cute.Tensor, up: cute.Tensor | None, tCrR: cute.Tensor | None, tCrV: cute.Tensor | None,
    tCrP: cute.Tensor | None, tCrQ: cute.Tensor | None, alpha: cutlass.Float32, beta: cutlass.Float32,
    activation: cutlass.Constexpr,
):
    """`Form`'s epilogue of a chunk of C, in place: act(alpha p q acc + beta R + V), or with `up` (gated)
    act(alpha p q acc) (alpha p q up) + beta R.

    acc, up: ((2 columns, 2 rows, pairs), 1, 1) a thread; the others as `fetch` gives them.
    """
    columns, rows, pairs = acc.shape[0]
    for j in cutlass.range_constexpr(pairs):
        for r in cutlass.range_constexpr(rows):
            for i in cutlass.range_constexpr(columns):
                at, factor = ((i, r, j), 0, 0), alpha
                if cutlass.const_expr(tCrP is not None):
                    factor = factor * tCrP[i, r, j]
                if cutlass.const_expr(tCrQ is not None):
                    factor = factor * tCrQ[i, r, j]
                value, residual = acc[at] * factor, cutlass.Float32(0.0)
                if cutlass.const_expr(tCrR is not None):
                    residual = beta * tCrR[i, r, j].to(cutlass.Float32)
                if cutlass.const_expr(up is not None):
                    value = value if activation is None else activation(value)
                    value = value * (up[at] * factor) + residual
                else:
                    if cutlass.const_expr(tCrR is not None):
                        value = value + residual
                    if cutlass.const_expr(tCrV is not None):
                        value = value + tCrV[i, r, j].to(cutlass.Float32)
                    value = value if activation is None else activation(value)
                acc[at] = value


@cute.jit
def prefetch(
    src: cute.Tensor, tiler: cutlass.Constexpr, coord: cute.Coord, thread: cutlass.Int32, threads: cutlass.Constexpr
):
    """Ask for a tile of a row-major matrix to be brought into L2, line by line, all threads together."""
    step = LINE // (src.element_type.width // 8)
    lines = -(-tiler[1] // step)  # of a row
    for i in cutlass.range_constexpr(cute.ceil_div(tiler[0] * lines, threads)):
        line = i * threads + thread
        at = coord[0] * tiler[0] + line // lines, coord[1] * tiler[1] + line % lines * step
        if cute.elem_less(at, src.shape):
            cute.arch.prefetch((src.iterator + cute.crd2idx(at, src.layout)).to_llvm_ptr(), cache_level="L2")


@cute.jit
def store_plain(
    words: cute.Tensor, mC: cute.Tensor, first: cute.Coord, thread: cutlass.Int32, threads: cutlass.Constexpr
):
    """A chunk of C in shared memory, seen as words of 32 bits, to its place at `first` of C (M, N), a word a thread.

    Rows may begin at any element: where that is amid a word, a thread puts one together of its own and the next one's.
    All warps take part as a whole.
    """
    width = mC.element_type.width
    rows, across, size = cute.size(words, mode=[0]), cute.size(words, mode=[1]), width // 8
    step = threads // across  # rows at a time
    row, word = thread // across, thread % across
    below = mC.shape[0] - first[0] - row
    # Columns from the thread's word on, none of a chunk that lies outside.
    right = cutlass.min(mC.shape[1] - first[1], across * 32 // width) - word * 32 // width
    place = (mC.iterator + cute.crd2idx((first[0] + row, first[1]), mC.layout)).toint() + word * 4
    pitch = mC.layout.stride[0] * (step * size)
    # A few rows at a time on their way, in a loop: all of them are more machine code than caches hold.
    some = min(rows // step, STORES_AHEAD)
    held = cute.make_rmem_tensor(some, cutlass.Uint32)
    for ahead in cutlass.range(0, rows // step, some):
        for i in cutlass.range_constexpr(some):
            held[i] = words[row + (ahead + i) * step, word]
        for i in cutlass.range_constexpr(some):
            own, to, inside = held[i], place, (ahead + i) * step < below
            place += pitch
            if cutlass.const_expr(width == 32):
                if inside and right > 0:
                    put(to, own)
            else:
                pair = own >> 16 | cute.arch.shuffle_sync_down(own, 1) << 16
                if to & 2 == 0:
                    if inside and right > 1:
                        put(to, own)
                    if inside and right == 1:
                        put(to, cutlass.Uint16(own & 0xFFFF))
                else:
                    if inside and right > 2:
                        put(to + 2, pair)
                    if inside and right == 2:
                        put(to + 2, cutlass.Uint16(pair & 0xFFFF))
                    if inside and word == 0 and right > 0:
                        put(to, cutlass.Uint16(own & 0xFFFF))


@cute.jit
def put(address: cutlass.Int64, value: cutlass.Numeric):
    """Store to global memory."""
    size = value.width // 8
    cute.make_tensor(cute.make_ptr(type(value), address, cute.AddressSpace.gmem, assumed_align=size), 1)[0] = value
