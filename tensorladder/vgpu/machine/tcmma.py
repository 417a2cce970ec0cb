"""tcgen05.mma when it takes effect: D = A B (+ D), with A and B unpacked once and D in tensor memory.

A pair's instruction (cta_group::2) is two by two blocks: each CTA has its half of the rows of A and D, and half of B's
columns (PTX ISA 9.7.16.10.5, "Data Path Layout Organization"; CUTLASS, mma_traits_sm100_frag.hpp). Products are exact
in f32, and sums go in order of K, one fused multiply-add each; with f64 numerics one rounding an instruction. A 16-bit
D is widened, summed in f32 and rounded once an instruction.
"""

from __future__ import annotations

import numpy as np

from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.machine import mma_rules as R
from tensorladder.vgpu.machine import operands as T
from tensorladder.vgpu.machine import tcmma_check as C
from tensorladder.vgpu.machine.hooks import EVENT_EFFECT, record
from tensorladder.vgpu.machine.lanes import fail
from tensorladder.vgpu.machine.matmul import GEMM_F32, GEMM_F64, GEMM_S32, gemm, transpose
from tensorladder.vgpu.machine.native import helper
from tensorladder.vgpu.machine.operands import load_tile, pitch_of, unpack_chunk
from tensorladder.vgpu.machine.raw import (
    allocate,
    bits_f32,
    copy_bytes,
    f16_to_f32,
    f32_to_f16,
    fill_bytes,
    free_bytes,
    ld8,
    ld16,
    ld32,
    ld64,
    ldf32,
    lds32,
    st32,
    stf32,
    trailing_zeros,
)  # fmt: skip
from tensorladder.vgpu.machine.tmem import owned, word_at

#: places of an operation's operands: D and A as they were given, then these
A_IDESC = L.A_SIZE
A_B = L.A_COORD
A_SFA = L.A_COORD + 8
A_SFB = L.A_COORD + 16
A_SCALE_D = L.A_COORD + 24
A_MASKS = L.A_LANE_DST  # disable-output-lane: a word a place, 8 bytes apart
#: A_FLAGS: the kind (tcmma_check) in the low byte, scale factors a row from FLAG_VECTOR on
FLAG_A_TMEM, FLAG_PAIR, FLAG_ACCUMULATE, FLAG_MASKED = 0x100, 0x200, 0x400, 0x800
FLAG_VECTOR = 16
#: scale factors from here on could take an operand out of f32's range: such a product is summed another way
_LARGE_SCALE = 2.0**111


@helper
def tmem_at(cta, lane, column):
    """Host address of a word of a CTA's tensor memory."""
    return word_at(ld64(cta + L.C_TMEM), lane, column)


@helper
def has_columns(cta, column, count):
    """Whether columns of its SM's tensor memory are allocated to a CTA."""
    return owned(ld64(cta + L.C_TMEM), cta, column, count)


@helper
def row_lane(row, spread):
    """Lane of a row of A or D, from the matrix's first lane: M = 64 (spread) has 16 rows in each partition."""
    return 32 * (row >> 4) + (row & 15) if spread else row


# ---------------------------------------------------------------- operands
@helper
def container_value(ty, code):
    """A 4- or 6-bit float in a byte of tensor memory, as float32.

    E2M1 stands in bits 2 to 5 (as mma.sync's .kind::f8f6f4 has it), E2M3 and E3M2 in bits 0 to 5.
    """
    mantissa = 1 if ty == T.E2M1 else 3 if ty == T.E2M3 else 2
    exponent = 3 if ty == T.E3M2 else 2
    if ty == T.E2M1:
        code >>= 2
    width = exponent + mantissa
    bias = (1 << (exponent - 1)) - 1
    e = (code >> mantissa) & ((1 << exponent) - 1)
    m = code & ((1 << mantissa) - 1)
    if e > 0:
        m |= 1 << mantissa
        e -= 1
    value = bits_f32((127 + e + 1 - bias - mantissa) << 23) * np.float32(m)
    return -value if (code >> width) & 1 else value


@helper
def unpack_tmem(ty, dst, src):
    """16 bytes of matrix A in tensor memory to 32-bit elements."""
    if ty == T.E2M1 or ty == T.E2M3 or ty == T.E3M2:
        for i in range(16):
            stf32(dst + 4 * i, container_value(ty, ld8(src + i)))
    else:
        unpack_chunk(ty, dst, src)


@helper
def load_a_tmem(cta, address, lane0, rows, spread, ty, k, dst):
    """Matrix A of 32 bytes a row from tensor memory, [rows][k]."""
    base = tmem_at(cta, lane0, address & 0xFFFF)
    for r in range(rows):
        src = base + row_lane(r, spread) * L.TMEM_ROW
        unpack_tmem(ty, dst + 4 * r * k, src)
        unpack_tmem(ty, dst + 4 * r * k + 2 * k, src + 16)


@helper
def load_smem(cta, desc, transposed, rows, ty, k, dst):
    """The tile of a descriptor from a CTA's shared memory; False when it leaves it."""
    return load_tile(
        ld64(cta + L.C_SHARED), ld64(cta + L.C_SHARED_SIZE), (desc & 0x3FFF) << 4, ((desc >> 16) & 0x3FFF) << 4,
        ((desc >> 32) & 0x3FFF) << 4, C.swizzle_of(desc), transposed, rows, ty, k, dst, (desc >> 49) & 7,
    )  # fmt: skip


@helper
def flip_signs(at, count):
    """Negate `count` float32."""
    for i in range(count):
        st32(at + 4 * i, ld32(at + 4 * i) ^ 0x80000000)


# ---------------------------------------------------------------- scale factors
@helper
def scale_value(ue8m0, code):
    """A scale factor as float32."""
    if ue8m0 != 0:
        if code == 0xFF:
            return bits_f32(0x7FC00000)
        return bits_f32(code << 23) if code > 0 else bits_f32(0x00400000)
    code &= 0x7F
    if code == 0x7F:
        return bits_f32(0x7FC00000)
    e = code >> 3
    m = code & 7
    if e > 0:
        return bits_f32(((e + 120) << 23) | (m << 20))
    return bits_f32((127 - 9) << 23) * np.float32(m)


@helper
def load_scales(cta, address, first, rows, factor_id, vector, ue8m0, partition, copies, dst):
    """`vector` scale factors of each row, [vector][rows] float32 at dst.

    Row r (counted from `first`) has them in lane r mod 32 of column r / 32, from byte factor_id on, and so in each of
    `copies` lane partitions from `partition` on. Gives the row whose copies differ, -1 for none.
    """
    column = address & 0xFFFF
    keep = (1 << (8 * vector)) - 1
    for r in range(rows):
        at = tmem_at(cta, 32 * partition + ((first + r) & 31), column + ((first + r) >> 5))
        word = (ld32(at) >> (8 * factor_id)) & keep
        for q in range(1, copies):
            if (ld32(at + 32 * q * L.TMEM_ROW) >> (8 * factor_id)) & keep != word:
                return r
        for s in range(vector):
            stf32(dst + 4 * (s * rows + r), scale_value(ue8m0, (word >> (8 * s)) & 0xFF))
    return -1


@helper
def any_large(at, count):
    """Whether a scale factor is beyond what f32 products can take."""
    largest = np.float32(0)
    for i in range(count):
        largest = max(largest, ldf32(at + 4 * i))
    return largest >= _LARGE_SCALE


@helper
def scale_rows(a, row, column, rows, k, factors, vector):
    """A[r][p] *= factor of row r and of p's block, in place."""
    block = k // vector
    for s in range(vector):
        for r in range(rows):
            f = ldf32(factors + 4 * (s * rows + r))
            at = a + r * row + s * block * column
            for _p in range(block):
                stf32(at, ldf32(at) * f)
                at += column


@helper
def scale_columns(dst, src, pitch, n, k, factors, vector):
    """dst[p][j] = src[p][j] times the factor of column j and of p's block."""
    block = k // vector
    for p in range(k):
        f = factors + 4 * (p // block) * n
        for j in range(n):
            stf32(dst + p * pitch + 4 * j, ldf32(src + p * pitch + 4 * j) * ldf32(f + 4 * j))


@helper
def scaled_sum(d, d_stride, a, row, column, b, pitch, fa, fb, vector, m, n, k):
    """D += (A fa) (B fb) where a factor is huge: products in f64, where they are exact, and sums rounded to f32."""
    block = k // vector
    for i in range(m):
        for j in range(n):
            total = ldf32(d + i * d_stride + 4 * j)
            for p in range(k):
                s = p // block
                x = np.float64(ldf32(a + i * row + p * column)) * np.float64(ldf32(fa + 4 * (s * m + i)))
                y = np.float64(ldf32(b + p * pitch + 4 * j)) * np.float64(ldf32(fb + 4 * (s * n + j)))
                total = np.float32(np.float64(total) + x * y)
            stf32(d + i * d_stride + 4 * j, total)


# ---------------------------------------------------------------- D
@helper
def load_d(stage, d, spread, m, n, dtype):
    """A block of D (m x n words of tensor memory) as f32 or s32 at `stage`."""
    for r in range(m):
        src = d + row_lane(r, spread) * L.TMEM_ROW
        if dtype == C.D_F16:
            for j in range(n):
                stf32(stage + 4 * (r * n + j), f16_to_f32(ld16(src + 4 * j)))
        else:
            copy_bytes(stage + 4 * r * n, src, 4 * n)


@helper
def store_d(stage, d, lane0, spread, masks, m, n, dtype):
    """The block back to tensor memory, but for the lanes that are masked. An f16 stands in the low half of its word."""
    for r in range(m):
        lane = row_lane(r, spread)
        at = lane0 + lane
        if (ld64(masks + 8 * (at >> 5)) >> (at & 31)) & 1:
            continue
        dst = d + lane * L.TMEM_ROW
        if dtype == C.D_F16:
            for j in range(n):
                st32(dst + 4 * j, f32_to_f16(ldf32(stage + 4 * (r * n + j))))
        else:
            copy_bytes(dst, stage + 4 * r * n, 4 * n)


@helper
def start_d(d, pitch, spread, m, n, accumulate, scale):
    """What the sum starts with: zero, or D times 2 ** -scale. `pitch` bytes a row."""
    if accumulate != 0 and scale == 0:
        return
    f = bits_f32((127 - scale) << 23)
    for r in range(m):
        row = d + row_lane(r, spread) * pitch
        if accumulate == 0:
            fill_bytes(row, 0, 4 * n)
        else:
            for j in range(n):
                stf32(row + 4 * j, ldf32(row + 4 * j) * f)


@helper
def saturated_add(d, add, count):
    """d += add, clamped to 32 bits."""
    for i in range(count):
        x = lds32(d + 4 * i) + lds32(add + 4 * i)
        st32(d + 4 * i, min(max(x, -0x80000000), 0x7FFFFFFF))


@helper
def multiply(gemm_kind, d, pitch, spread, a, a_row, a_column, b, b_pitch, m, n, k):
    """D += A B, with D's rows in tensor memory (spread: 16 in each partition) or in a plain matrix."""
    if spread:
        for q in range(4):
            gemm(gemm_kind, d + 32 * q * pitch, pitch, a + 16 * q * a_row, a_row, a_column, b, b_pitch, 16, n, k)
    else:
        gemm(gemm_kind, d, pitch, a, a_row, a_column, b, b_pitch, m, n, k)


# ---------------------------------------------------------------- the instruction
@helper
def check_tmem(op, w, iid, lane, cta, n, m):
    """Whether D, A and the scale factors lie in columns that the CTA has; else the error is recorded."""
    flags = ld64(op + L.A_FLAGS)
    d = ld64(op + L.A_DST)
    if not has_columns(cta, d & 0xFFFF, n):
        fail(w, L.ERR_MMA_COLUMNS, iid, lane, d, n, R.OPERAND_D)
        return False
    if flags & FLAG_A_TMEM and not has_columns(cta, ld64(op + L.A_SRC) & 0xFFFF, 8):
        fail(w, L.ERR_MMA_COLUMNS, iid, lane, ld64(op + L.A_SRC), 8, R.OPERAND_A)
        return False
    if flags & 0xFF >= C.MXF8F6F4:
        a = ld64(op + A_SFA)
        b = ld64(op + A_SFB)
        if not has_columns(cta, a & 0xFFFF, (m + 31) >> 5):
            fail(w, L.ERR_MMA_COLUMNS, iid, lane, a, (m + 31) >> 5, R.OPERAND_SFA)
            return False
        if not has_columns(cta, b & 0xFFFF, (n + 31) >> 5):
            fail(w, L.ERR_MMA_COLUMNS, iid, lane, b, (n + 31) >> 5, R.OPERAND_SFB)
            return False
    return True


@helper
def load_a(op, cta, half, m, spread, k, dst):
    """Matrix A's rows of a CTA as 32-bit elements: [m][k], or [k][..] when transposed. False: outside shared memory."""
    flags = ld64(op + L.A_FLAGS)
    idesc = ld64(op + A_IDESC)
    ty = C.a_type(flags & 0xFF, idesc)
    a = ld64(op + L.A_SRC)
    if flags & FLAG_A_TMEM:
        lane0 = (a >> 16) & 0x7F
        load_a_tmem(cta, a, 64 * half + lane0, m, spread, ty, k, dst)
        return True
    return load_smem(cta, a, (idesc >> 15) & 1, m, ty, k, dst)


@helper
def load_b(op, cta, n, k, dst, spare):
    """Matrix B's columns of a CTA as [k][n] 32-bit elements with pitch_b bytes a row. False: outside shared memory."""
    idesc = ld64(op + A_IDESC)
    ty = C.b_type(ld64(op + L.A_FLAGS) & 0xFF, idesc)
    if (idesc >> 16) & 1:
        return load_smem(cta, ld64(op + A_B), 1, n, ty, k, dst)
    if not load_smem(cta, ld64(op + A_B), 0, n, ty, k, spare):
        return False
    transpose(dst, 4 * n, spare, 4 * k, n, k)
    return True


@helper
def block(op, numerics, cta, rank, two, half, a, b, b_pitch, fa, fb, stage, m, n, k):
    """One CTA's rows times one half of the columns (all of them when there is one half), into D."""
    flags = ld64(op + L.A_FLAGS)
    kind = flags & 0xFF
    idesc = ld64(op + A_IDESC)
    vector = flags >> FLAG_VECTOR
    dtype = C.d_type(kind, idesc)
    spread = C.shape_m(kind, idesc) == 64
    d_address = ld64(op + L.A_DST)
    lane0 = ((d_address >> 16) & 0x7F) + (64 * half if two else 0)
    d = tmem_at(cta, lane0, (d_address & 0xFFFF) + (0 if two else half * n))
    a_row = 4 * k
    a_column = 4
    if flags & FLAG_A_TMEM == 0 and (idesc >> 15) & 1:
        a_row = 4
        a_column = 4 * pitch_of(m, k, 1)
    gemm_kind = GEMM_S32 if kind == C.I8 else GEMM_F64 if numerics != 0 else GEMM_F32
    accumulate = flags & FLAG_ACCUMULATE
    scale = ld64(op + A_SCALE_D)
    saturate = kind == C.I8 and (idesc >> 3) & 1 != 0
    staged = dtype == C.D_F16 or saturate or flags & FLAG_MASKED != 0
    out = d
    pitch = L.TMEM_ROW
    if staged:
        load_d(stage, d, spread, m, n, dtype)
        out = stage
        pitch = 4 * n
    plain = spread and not staged
    start_d(out, pitch, plain, m, n, accumulate, scale)
    if saturate:
        other = stage + 4 * m * n
        fill_bytes(other, 0, 4 * m * n)
        multiply(gemm_kind, other, pitch, False, a, a_row, a_column, b, b_pitch, m, n, k)
        saturated_add(stage, other, m * n)
    elif fa != 0 and (any_large(fa, m * vector) or any_large(fb, n * vector)):
        scaled_sum(out, pitch, a, a_row, a_column, b, b_pitch, fa, fb, vector, m, n, k)
    elif fa != 0:
        scale_rows(a, a_row, a_column, m, k, fa, vector)
        scaled = stage + 4 * m * n
        scale_columns(scaled, b, b_pitch, n, k, fb, vector)
        multiply(gemm_kind, out, pitch, plain, a, a_row, a_column, scaled, b_pitch, m, n, k)
    else:
        multiply(gemm_kind, out, pitch, plain, a, a_row, a_column, b, b_pitch, m, n, k)
    if staged:
        store_d(stage, d, lane0, spread, op + A_MASKS + 32 * rank, m, n, dtype)


@helper
def load_block_scales(op, w, iid, lane, cta, two, half, fa, fb, m, n):
    """Scale factors of a block: False with the error recorded when their copies differ."""
    flags = ld64(op + L.A_FLAGS)
    idesc = ld64(op + A_IDESC)
    vector = flags >> FLAG_VECTOR
    ue8m0 = (idesc >> 23) & 1
    a = ld64(op + A_SFA)
    b = ld64(op + A_SFB)
    row = load_scales(cta, a, 0, m, (idesc >> 29) & 3, vector, ue8m0, 0, 4, fa)
    if row >= 0:
        fail(w, L.ERR_MMA_SCALES, iid, lane, a, row, R.OPERAND_SFA)
        return False
    first = 0 if two else half * n
    row = load_scales(cta, b, first, n, (idesc >> 4) & 3, vector, ue8m0, 2 * half if two else 0, 2 if two else 4, fb)
    if row >= 0:
        fail(w, L.ERR_MMA_SCALES, iid, lane, b, first + row, R.OPERAND_SFB)
        return False
    return True


@helper
def run_mma(op):
    """The whole instruction."""
    w = ld64(op + L.A_WARP)
    iid = ld64(op + L.A_IID)
    lane = trailing_zeros(ld64(op + L.A_LANES))
    flags = ld64(op + L.A_FLAGS)
    kind = flags & 0xFF
    idesc = ld64(op + A_IDESC)
    group = 2 if flags & FLAG_PAIR else 1
    m = C.shape_m(kind, idesc) // group
    n = C.shape_n(idesc)
    k = C.shape_k(kind)
    first = ld64(op + L.A_QUEUE)  # the CTA, of a pair the even one
    two = group == 2 and m == 64  # the halves of N lie in the halves of the lanes
    columns = n // 2 if two else n
    for c in range(group):
        if not check_tmem(op, w, iid, lane, first + c * L.C_BYTES, columns, m):
            return True
    width = n // group
    a_bytes = 4 * max(m * k, k * pitch_of(m, k, 1))
    b_bytes = 4 * k * max(width, pitch_of(width, k, 1))
    factors = 4 * 4 * (m + width)
    buffer = allocate(2 * a_bytes + 3 * b_bytes + 8 * m * width + factors)
    b = buffer + 2 * a_bytes
    spare = b + b_bytes
    stage = spare + b_bytes
    fa = 0
    fb = 0
    if kind >= C.MXF8F6F4:
        fa = stage + 8 * m * width + b_bytes
        fb = fa + 16 * m
    b_pitch = 4 * pitch_of(width, k, 1) if (idesc >> 16) & 1 else 4 * width
    numerics = ld64(ld64(w + L.W_LAUNCH) + L.L_NUMERICS)
    spread = m == 64 and group == 1
    operand = R.OPERAND_A
    good = True
    for half in range(group):
        if good and not load_b(op, first + half * L.C_BYTES, width, k, b, spare):
            good = False
            operand = R.OPERAND_B
        for c in range(group):
            cta = first + c * L.C_BYTES
            a = buffer + c * a_bytes
            # rows stay for the second half of the columns, unless they were scaled or have a copy of their own there
            if good and (half == 0 or fa != 0 or (two and flags & FLAG_A_TMEM)):
                good = load_a(op, cta, half if two else 0, m, spread, k, a)
                if good and ((idesc >> 13) ^ (idesc >> 14)) & 1:
                    flip_signs(a, a_bytes // 4)
            if good and fa != 0 and not load_block_scales(op, w, iid, lane, cta, two, half, fa, fb, m, width):
                free_bytes(buffer)
                return True
            if good:
                block(op, numerics, cta, c, two, half, a, b, b_pitch, fa, fb, stage, m, width, k)
    free_bytes(buffer)
    if not good:
        desc = ld64(op + A_B) if operand == R.OPERAND_B else ld64(op + L.A_SRC)
        fail(w, L.ERR_MMA_TILE, iid, lane, desc, 0, operand)
        return True
    record(w, EVENT_EFFECT, tmem_at(first, 0, ld64(op + L.A_DST) & 0xFFFF), L.OP_TC_MMA, 1 << lane, iid)
    return True
