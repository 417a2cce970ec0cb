"""Checks of tcgen05.mma's descriptors, and what their fields say (PTX ISA 9.7.16.2.1, 9.7.16.4, 9.7.16.10).

The instruction descriptor has two formats: kinds f16, tf32, f8f6f4 and i8 share one, the block-scaled kinds the other.
"""

from __future__ import annotations

from tensorladder.vgpu.machine import mma_rules as R
from tensorladder.vgpu.machine import operands as T
from tensorladder.vgpu.machine.native import helper

KINDS = ("f16", "tf32", "f8f6f4", "i8", "mxf8f6f4", "mxf4", "mxf4nvf4")
F16, TF32, F8F6F4, I8, MXF8F6F4, MXF4, MXF4NVF4 = range(7)
#: matrix D types, as the descriptor encodes them
D_F16, D_F32, D_S32 = 0, 1, 2
#: scale matrix types
UE4M3, UE8M0 = 0, 1


@helper
def shape_m(kind, idesc):
    """M of the instruction."""
    return ((idesc >> 27) & 3) * 128 if kind >= MXF8F6F4 else ((idesc >> 24) & 31) * 16


@helper
def shape_n(idesc):
    """N of the instruction."""
    return ((idesc >> 17) & 63) * 8


@helper
def shape_k(kind):
    """K of a dense instruction: 32 bytes of elements."""
    if kind == F16:
        return 16
    if kind == TF32:
        return 8
    return 64 if kind >= MXF4 else 32


@helper
def d_type(kind, idesc):
    """Type of matrix D: block-scaled kinds have f32 only."""
    return D_F32 if kind >= MXF8F6F4 else (idesc >> 4) & 3


@helper
def narrow_type(code):
    """The element type (operands.py) of a kind f8f6f4 or mxf8f6f4 code, -1 for none."""
    if code == 0:
        return T.E4M3
    if code == 1:
        return T.E5M2
    if code == 3:
        return T.E2M3
    if code == 4:
        return T.E3M2
    return T.E2M1 if code == 5 else -1


@helper
def element_type(kind, code):
    """The element type (operands.py) of a matrix type field, -1 for none."""
    if kind == F16:
        return T.F16 if code == 0 else T.BF16 if code == 1 else -1
    if kind == TF32:
        return T.TF32 if code == 2 else -1
    if kind == I8:
        return T.U8 if code == 0 else T.S8 if code == 1 else -1
    if kind >= MXF4:
        return T.MXF4 if code == 1 else -1
    return narrow_type(code)


@helper
def a_type(kind, idesc):
    """Element type of A."""
    return element_type(kind, (idesc >> 7) & 7)


@helper
def b_type(kind, idesc):
    """Element type of B (bit 12 is not a part of it in kinds mxf4 and mxf4nvf4)."""
    return element_type(kind, (idesc >> 10) & (3 if kind >= MXF4 else 7))


@helper
def transposable(ty):
    """Whether a matrix of this type may be MN-major: 8, 16 and 32-bit types."""
    return ty != T.MXF4 and ty != T.E2M1 and ty != T.E2M3 and ty != T.E3M2


@helper
def is_byte(ty):
    """Whether elements have 8 bits."""
    return ty == T.E4M3 or ty == T.E5M2 or ty == T.S8 or ty == T.U8


@helper
def reserved_bits(kind):
    """Bits of an instruction descriptor that must be 0.

    Bit 12 of kinds mxf4 and mxf4nvf4 is reserved in the ISA and the version of the sparsity in CuTe DSL, which sets it
    in dense products too.
    """
    if kind == MXF8F6F4:
        return 0x8700004B
    return 0x0700004B if kind >= MXF4 else 0x20800040


@helper
def good_m(kind, m, pair):
    """Whether M is a shape of the kind."""
    if pair != 0:
        return m == 128 or m == 256
    return m == 128 or (m == 64 and kind < MXF8F6F4)


@helper
def good_n(kind, n, pair, byte_transposed):
    """Whether N is a shape of the kind; transposed 8-bit matrices B have longer steps."""
    step = 8
    if pair != 0:
        step = 32 if kind == I8 or byte_transposed else 16
    elif byte_transposed or (kind == I8 and n > 32):
        step = 16
    return n >= step and n <= 256 and n % step == 0


@helper
def scale_rule(kind, idesc, vector):
    """The broken rule of the scale fields for `vector` scale factors a row (1, 2, 4), and the value; 0 if none is."""
    scale = (idesc >> 23) & 1
    if scale == UE4M3 and not (kind == MXF4NVF4 and vector == 4):
        return R.IDESC_SCALE_TYPE, scale
    step = 1 if vector == 1 else 2 if vector == 2 else 4
    sfa = (idesc >> 29) & 3
    sfb = (idesc >> 4) & 3
    if sfa % step != 0:
        return R.IDESC_SFA, sfa
    if sfb % step != 0:
        return R.IDESC_SFB, sfb
    if kind >= MXF4 and (idesc >> 31) & 1:
        return R.IDESC_K96, 96
    return 0, 0


@helper
def type_rule(kind, idesc, a_in_tmem):
    """The broken rule of the type, negation and transposition fields, and the value; 0 if none is."""
    ta = a_type(kind, idesc)
    tb = b_type(kind, idesc)
    if ta < 0:
        return R.IDESC_ATYPE, (idesc >> 7) & 7
    if tb < 0:
        return R.IDESC_BTYPE, (idesc >> 10) & 7
    td = d_type(kind, idesc)
    good = td == D_S32 if kind == I8 else td == D_F32 or (td == D_F16 and kind != TF32)
    if not good:
        return R.IDESC_DTYPE, td
    if kind == F16 and td == D_F16 and (ta != T.F16 or tb != T.F16):
        return R.IDESC_BF16_SUM, td
    if kind == I8 and (idesc >> 13) & 3:
        return R.IDESC_NEGATE, 0
    if (idesc >> 15) & 1:
        if not transposable(ta):
            return R.IDESC_TRANSPOSE, 0
        if a_in_tmem != 0:
            return R.IDESC_TRANSPOSE_A, 0
    if (idesc >> 16) & 1 and not transposable(tb):
        return R.IDESC_TRANSPOSE, 0
    return 0, 0


@helper
def idesc_rule(kind, idesc, pair, a_in_tmem, vector):
    """The rule that an instruction descriptor breaks, and the offending value; (0, 0) if it is good."""
    if (idesc >> 2) & 1:
        return R.IDESC_SPARSE, 0
    if kind < MXF8F6F4:
        if (idesc >> 3) & 1 and kind != I8:
            return R.IDESC_SATURATE, 0
        if idesc >> 30:
            return R.IDESC_SHIFT, idesc >> 30
    if idesc & reserved_bits(kind):
        return R.IDESC_RESERVED, idesc & reserved_bits(kind)
    rule, value = type_rule(kind, idesc, a_in_tmem)
    if rule != 0:
        return rule, value
    m = shape_m(kind, idesc)
    if not good_m(kind, m, pair):
        return R.IDESC_M, m
    n = shape_n(idesc)
    if not good_n(kind, n, pair, (idesc >> 16) & 1 != 0 and is_byte(b_type(kind, idesc))):
        return R.IDESC_N, n
    if kind >= MXF8F6F4:
        return scale_rule(kind, idesc, vector)
    return 0, 0


# ---------------------------------------------------------------- shared-memory descriptors
@helper
def swizzle_of(desc):
    """The swizzle code (operands.SW_*) of a matrix descriptor, -1 for none."""
    mode = (desc >> 61) & 7
    if mode == 0:
        return T.SW_NONE
    if mode == 1:
        return T.SW_128_ATOM32
    if mode == 2:
        return T.SW_128
    if mode == 4:
        return T.SW_64
    return T.SW_32 if mode == 6 else -1


@helper
def desc_rule(desc, ty, transposed):
    """The rule that a matrix descriptor breaks, 0 if it is good."""
    if (desc >> 46) & 7 != 1:
        return R.DESC_VERSION
    if (desc >> 52) & 1:
        return R.DESC_MODE
    if (desc >> 53) & 0xFF:
        return R.DESC_ZERO
    swizzle = swizzle_of(desc)
    if swizzle < 0:
        return R.DESC_LAYOUT
    if swizzle == T.SW_NONE and (desc >> 49) & 7:
        return R.DESC_BASE
    if transposed != 0:
        if ty == T.TF32 and swizzle != T.SW_128_ATOM32:
            return R.DESC_TF32
        if ty != T.TF32 and swizzle == T.SW_128_ATOM32:
            return R.DESC_ATOM32
    return 0
