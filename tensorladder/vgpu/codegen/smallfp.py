"""f32 lanes to and from the formats of 16 bits and fewer, by integer arithmetic (PTX ISA, cvt).

The formats are those of core.smallfloat, whose definition this follows: scale, round the integer significand, clamp.
"""

from __future__ import annotations

from tensorladder.core.smallfloat import FORMATS, Format
from tensorladder.vgpu.codegen import fp
from tensorladder.vgpu.codegen.emit import Emitter
from tensorladder.vgpu.codegen.fp import F32, I16, I32


def _i(e: Emitter, op: str, a: str, b: str | int) -> str:
    if isinstance(b, int):
        b = e.splat(I32, b)
    return e.op(f"{op} {I32} {a}, {b}")


def _where(e: Emitter, cond: str, a: str | int, b: str | int) -> str:
    a, b = (e.splat(I32, x) if isinstance(x, int) else x for x in (a, b))
    return fp.select(e, cond, I32, a, b)


def _maximum(e: Emitter, a: str, b: int) -> str:
    return e.intrinsic("llvm.smax.v32i32", I32, (I32, a), (I32, e.splat(I32, b)))


def _minimum(e: Emitter, a: str, b: int) -> str:
    return e.intrinsic("llvm.umin.v32i32", I32, (I32, a), (I32, e.splat(I32, b)))


def encode(e: Emitter, value: str, fmt: str, mode: str, *, satfinite: bool = False, relu: bool = False) -> str:
    """Codes of f32 lanes in `fmt` as <32 x i32>, as `core.smallfloat.encode`. Formats without infinity saturate."""
    name = f"encode_{fmt}_{mode}{'_satfinite' * satfinite}{'_relu' * relu}"
    return e.outline(name, I32, [(F32, value)], lambda f, x: _encode(f, x, fmt, mode, satfinite, relu))


def _encode(e: Emitter, value: str, fmt: str, mode: str, satfinite: bool, relu: bool) -> str:
    f = FORMATS[fmt]
    if fmt == "ue8m0":
        return _encode_ue8m0(e, value, mode, satfinite)
    if relu:
        value = fp.relu(e, value, "f32")
    nan = fp.is_nan(e, value, "f32")
    bits = fp.bits_of(e, value, "f32")
    negative = e.op(f"icmp slt {I32} {bits}, zeroinitializer")
    magnitude = _i(e, "and", bits, 0x7FFFFFFF)
    code = _round_magnitude(e, magnitude, negative, f, mode)
    code = _clamp(e, code, magnitude, negative, f, mode, satfinite)
    if f.signed:
        sign = _i(e, "shl", _i(e, "lshr", bits, 31), f.magnitude_bits)
        code = _i(e, "or", code, sign)
    code = _where(e, nan, f.max_code if f.nan_code is None else f.nan_code, code)
    return _i(e, "shl", code, f.shift) if f.shift else code


def _round_magnitude(e: Emitter, magnitude: str, negative: str, f: Format, mode: str) -> str:
    """Whole units of the last place, carrying into the exponent; overflow not looked at."""
    raw = _i(e, "lshr", magnitude, 23)
    implicit = _where(e, e.op(f"icmp eq {I32} {raw}, zeroinitializer"), 0, 1 << 23)
    significand = _i(e, "or", _i(e, "and", magnitude, (1 << 23) - 1), implicit)
    exponent = _maximum(e, raw, 1)  # of the f32 number, biased by 127
    lowest = 127 - f.bias + 1  # the same for the smallest normal number of the format
    below = _maximum(e, e.op(f"sub {I32} {e.splat(I32, lowest)}, {exponent}"), 0)
    cut = _minimum(e, _i(e, "add", below, 23 - f.mantissa), 26)  # 26: what is left is below half a unit
    whole = _i(e, "lshr", significand, cut)
    half = _i(e, "lshr", e.op(f"shl {I32} {e.splat(I32, 1)}, {cut}"), 1)
    if mode == "rn":
        odd = _i(e, "and", whole, 1)
        add = _i(e, "add", _i(e, "sub", half, 1), odd)
    elif mode == "rna":
        add = half
    else:
        full = _i(e, "sub", e.op(f"shl {I32} {e.splat(I32, 1)}, {cut}"), 1)
        add = {"rz": None, "rp": _where(e, negative, 0, full), "rm": _where(e, negative, full, 0)}[mode]
    if add is not None:
        whole = _i(e, "lshr", _i(e, "add", significand, add), cut)
    steps = _maximum(e, _i(e, "sub", exponent, lowest), 0)
    return _i(e, "add", _i(e, "shl", steps, f.mantissa), whole)


def _clamp(e: Emitter, code: str, magnitude: str, negative: str, f: Format, mode: str, satfinite: bool) -> str:
    infinite = e.op(f"icmp uge {I32} {magnitude}, {e.splat(I32, 0x7F800000)}")
    over = e.op(f"icmp ugt {I32} {code}, {e.splat(I32, f.max_code)}")
    if f.infinity_code is None or satfinite:
        return _where(e, e.op(f"or <32 x i1> {infinite}, {over}"), f.max_code, code)
    top = {
        "rz": e.splat(I32, f.max_code),
        "rm": _where(e, negative, f.infinity_code, f.max_code),
        "rp": _where(e, negative, f.max_code, f.infinity_code),
    }.get(mode, e.splat(I32, f.infinity_code))
    return _where(e, infinite, f.infinity_code, _where(e, over, top, code))


def _encode_ue8m0(e: Emitter, value: str, mode: str, satfinite: bool) -> str:
    """Powers of two from 2**-127; the sign is ignored; 0xff is NaN."""
    bits = _i(e, "and", fp.bits_of(e, value, "f32"), 0x7FFFFFFF)
    nan = e.op(f"icmp ugt {I32} {bits}, {e.splat(I32, 0x7F800000)}")
    code = _i(e, "lshr", bits, 23)
    if mode == "rp":
        # subnormals: 2**-127 is the code 0, what is above it rounds up to 1; normals with a fraction go one up
        low = e.op(f"icmp ule {I32} {bits}, {e.splat(I32, 0x00400000)}")
        up = _i(e, "lshr", _i(e, "add", bits, 0x007FFFFF), 23)
        code = _where(e, low, 0, up)
    top = 0xFE if satfinite else 0xFF
    code = _where(e, e.op(f"icmp ugt {I32} {code}, {e.splat(I32, 0xFE)}"), top, code)
    return _where(e, nan, 0xFF, code)


def decode(e: Emitter, codes: str, fmt: str) -> str:
    """Codes (<32 x i32>, no bits above the format's) to f32, exactly; NaN is canonical."""
    return e.outline(f"decode_{fmt}", F32, [(I32, codes)], lambda f, x: _decode(f, x, fmt))


def _decode(e: Emitter, codes: str, fmt: str) -> str:
    f = FORMATS[fmt]
    if fmt == "ue8m0":
        return _decode_ue8m0(e, codes)
    magnitude = _i(e, "and", codes, (1 << f.magnitude_bits) - 1)
    # as an f32 of the same fields: its exponent is too small by the difference of the biases, subnormals included
    small = fp.from_bits(e, _i(e, "shl", magnitude, 23 - f.mantissa), "f32")
    number = e.op(f"fmul {F32} {small}, {fp.const(e, 'f32', 2.0 ** (127 - f.bias))}")
    bits = fp.bits_of(e, number, "f32")
    if f.infinity_code is not None:
        at = e.op(f"icmp eq {I32} {magnitude}, {e.splat(I32, f.infinity_code)}")
        bits = _where(e, at, 0x7F800000, bits)
    sign = _i(e, "shl", _i(e, "lshr", codes, f.magnitude_bits), 31)
    bits = _i(e, "or", bits, sign)
    if f.specials != "none":
        top = f.max_code if f.infinity_code is None else f.infinity_code
        nan = e.op(f"icmp ugt {I32} {magnitude}, {e.splat(I32, top)}")
        bits = _where(e, nan, 0x7FFFFFFF, bits)
    return fp.from_bits(e, bits, "f32")


def _decode_ue8m0(e: Emitter, codes: str) -> str:
    bits = _i(e, "shl", codes, 23)
    bits = _where(e, e.op(f"icmp eq {I32} {codes}, zeroinitializer"), 0x00400000, bits)
    return fp.from_bits(e, _where(e, e.op(f"icmp eq {I32} {codes}, {e.splat(I32, 0xFF)}"), 0x7FFFFFFF, bits), "f32")


def halves(e: Emitter, value: str, fmt: str, mode: str, *, satfinite: bool = False, relu: bool = False) -> str:
    """f32 lanes to f16 or bf16 as <32 x i16>: the host's conversion where it does the same."""
    if mode == "rn" and not satfinite:
        return fp.narrow(e, fp.relu(e, value, "f32") if relu else value, fmt)
    return e.op(f"trunc {I32} {encode(e, value, fmt, mode, satfinite=satfinite, relu=relu)} to {I16}")


def nan_halves(e: Emitter, value: str, fmt: str) -> str:
    """NaNs of f32 lanes as f16 or bf16 with sign and the payload's upper bits."""
    bits = fp.bits_of(e, value, "f32")
    if fmt == "bf16":
        return e.op(f"trunc {I32} {_i(e, 'lshr', bits, 16)} to {I16}")
    sign = _i(e, "and", _i(e, "lshr", bits, 16), 0x8000)
    payload = _i(e, "and", _i(e, "lshr", bits, 13), 0x3FF)
    return e.op(f"trunc {I32} {_i(e, 'or', _i(e, 'or', sign, payload), 0x7C00)} to {I16}")
