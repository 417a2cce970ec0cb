"""ex2, lg2, sin, cos, tanh (PTX ISA, "Floating Point Instructions", "Half Precision ...") as vector polynomials.

All are computed in f64, where neither the range nor the subnormals of f32 need care, with a relative error below 1e-9,
then rounded once: far inside the errors that the ISA allows. sin and cos first multiply by 1/2pi in f32 towards
zero, as the chip does, so that large arguments lose the same digits as there.
"""

from __future__ import annotations

import math

from tensorladder.core.errors import Unsupported
from tensorladder.vgpu.codegen import fp, half
from tensorladder.vgpu.codegen.emit import Emitter
from tensorladder.vgpu.codegen.fp import F32, F64, I64
from tensorladder.vgpu.codegen.table import instruction
from tensorladder.vgpu.ptx.nodes import Instr

_LN2 = math.log(2)
_EXP2 = [_LN2**k / math.factorial(k) for k in range(10)]  # 2**f on [-1/2, 1/2], by powers of f
_LOG2 = [2 / _LN2 / (2 * k + 1) for k in range(8)]  # log2((1+s)/(1-s)) = s * sum of these by powers of s**2
_SIN = [(-1) ** k / math.factorial(2 * k + 1) for k in range(7)]  # by powers of u**2, u on [-pi/4, pi/4]
_COS = [(-1) ** k / math.factorial(2 * k) for k in range(7)]
#: 1.5 * 2**52: adding it leaves the nearest integer in the low bits
_MAGIC = 6755399441055744.0
_INV_2PI = 0.15915493667125702  # the f32 constant that the chip multiplies by


def _c(e: Emitter, value: float) -> str:
    return fp.const(e, "f64", value)


def _bin(e: Emitter, op: str, a: str, b: str) -> str:
    return e.op(f"{op} {F64} {a}, {b}")


def _mul(e: Emitter, a: str, factor: float) -> str:
    return _bin(e, "fmul", a, _c(e, factor))


def _fma(e: Emitter, a: str, b: str, c: str) -> str:
    return e.intrinsic("llvm.fma.v32f64", F64, (F64, a), (F64, b), (F64, c))


def _polynomial(e: Emitter, x: str, coefficients: list[float]) -> str:
    """Horner's scheme, lowest power first in `coefficients`."""
    value = _c(e, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        value = _fma(e, value, x, _c(e, c))
    return value


def _nearest(e: Emitter, x: str) -> tuple[str, str]:
    """(nearest integer as f64, an i64 whose low bits are that integer) for |x| < 2**51."""
    shifted = _bin(e, "fadd", x, _c(e, _MAGIC))
    return _bin(e, "fsub", shifted, _c(e, _MAGIC)), fp.bits_of(e, shifted, "f64")


def _clamp(e: Emitter, x: str, limit: float) -> str:
    """To [-limit, limit]; NaN stays."""
    for how, bound in (("ogt", limit), ("olt", -limit)):
        x = fp.select(e, e.op(f"fcmp {how} {F64} {x}, {_c(e, bound)}"), F64, _c(e, bound), x)
    return x


def _scale(e: Emitter, x: str, integer_bits: str) -> str:
    """x * 2**n, for normal x and result; n in the low bits of `integer_bits`."""
    shift = e.op(f"shl {I64} {integer_bits}, {e.splat(I64, 52)}")
    return fp.from_bits(e, e.op(f"add {I64} {fp.bits_of(e, x, 'f64')}, {shift}"), "f64")


def exp2(e: Emitter, x: str) -> str:
    """2**x of f64 lanes, NaN not kept; results beyond f32's range end at 2**-300 and 2**300."""
    x = _clamp(e, x, 300.0)
    whole, bits = _nearest(e, x)
    return _scale(e, _polynomial(e, _bin(e, "fsub", x, whole), _EXP2), bits)


def log2(e: Emitter, x: str) -> str:
    """log2 of positive finite normal f64 lanes."""
    bits = fp.bits_of(e, x, "f64")
    # the exponent that leaves the significand in [sqrt(1/2), sqrt(2))
    offset = e.op(f"sub {I64} {bits}, {e.splat(I64, 0x3FE6A09E667F3BCD)}")
    power = e.op(f"ashr {I64} {offset}, {e.splat(I64, 52)}")
    down = e.op(f"shl {I64} {power}, {e.splat(I64, 52)}")
    m = fp.from_bits(e, e.op(f"sub {I64} {bits}, {down}"), "f64")
    s = _bin(e, "fdiv", _bin(e, "fsub", m, _c(e, 1.0)), _bin(e, "fadd", m, _c(e, 1.0)))
    series = _polynomial(e, _bin(e, "fmul", s, s), _LOG2)
    # the integer power as f64 through the magic number's low bits
    biased = e.op(f"add {I64} {power}, {e.splat(I64, 0x4338000000000000)}")
    return _fma(e, s, series, _bin(e, "fsub", fp.from_bits(e, biased, "f64"), _c(e, _MAGIC)))


def tanh(e: Emitter, x: str) -> str:
    """tanh of f64 lanes, NaN not kept: (exp(2x) - 1) / (exp(2x) + 1) with no cancellation near zero."""
    y = _clamp(e, _mul(e, x, 2 / _LN2), 60.0)
    whole, bits = _nearest(e, y)
    f = _bin(e, "fsub", y, whole)
    power = _scale(e, _c(e, 1.0), bits)
    fraction = _bin(e, "fmul", f, _polynomial(e, f, _EXP2[1:]))
    minus_one = _fma(e, power, fraction, _bin(e, "fsub", power, _c(e, 1.0)))
    return _bin(e, "fdiv", minus_one, _bin(e, "fadd", minus_one, _c(e, 2.0)))


def sine(e: Emitter, x: str, quarter: int) -> str:
    """sin(x + quarter * pi/2) of f64 lanes that hold f32 numbers; NaN for infinities and NaN."""
    turns = _mul(e, x, _INV_2PI)  # exact: 24 + 24 bits
    cut = e.op(f"and {I64} {fp.bits_of(e, turns, 'f64')}, {e.splat(I64, -(1 << 29))}")
    turns = fp.from_bits(e, cut, "f64")  # 24 bits are left
    whole = e.intrinsic("llvm.roundeven.v32f64", F64, (F64, turns))
    rest = _bin(e, "fsub", turns, whole)
    quarters, bits = _nearest(e, _mul(e, rest, 4.0))
    u = _mul(e, _fma(e, quarters, _c(e, -0.25), rest), 2 * math.pi)
    square = _bin(e, "fmul", u, u)
    # _polynomial of u**2 alone loses the sign of zero: the product with u keeps it
    s, c = _bin(e, "fmul", u, _polynomial(e, square, _SIN)), _polynomial(e, square, _COS)
    if quarter:
        bits = e.op(f"add {I64} {bits}, {e.splat(I64, quarter)}")
    odd = e.op(f"trunc {I64} {bits} to <32 x i1>")
    value = fp.select(e, odd, F64, c, s)
    sign = e.op(f"shl {I64} {e.op(f'and {I64} {bits}, {e.splat(I64, 2)}')}, {e.splat(I64, 62)}")
    value = fp.from_bits(e, e.op(f"xor {I64} {fp.bits_of(e, value, 'f64')}, {sign}"), "f64")
    return value if quarter else fp.select(e, e.op(f"fcmp oeq {F64} {x}, zeroinitializer"), F64, x, value)


# ---------------------------------------------------------------- instructions
def _log2_f32(e: Emitter, a: str) -> str:
    """With the special cases: zero, negatives, infinity."""
    value = log2(e, a)
    infinite = e.op(f"fcmp oeq {F64} {a}, {_c(e, math.inf)}")
    value = fp.select(e, infinite, F64, a, value)
    zero = e.op(f"fcmp oeq {F64} {a}, zeroinitializer")
    value = fp.select(e, zero, F64, _c(e, -math.inf), value)
    negative = e.op(f"fcmp olt {F64} {a}, zeroinitializer")
    return fp.select(e, negative, F64, _c(e, math.nan), value)


_FUNCTIONS = {
    "ex2": exp2,
    "lg2": _log2_f32,
    "tanh": tanh,
    "sin": lambda e, a: sine(e, a, 0),
    "cos": lambda e, a: sine(e, a, 1),
}
_MODS = {
    "ex2": {"f32": "approx ftz", "f16": "approx", "bf16": "approx ftz"},
    "lg2": {"f32": "approx ftz"},
    "sin": {"f32": "approx ftz"},
    "cos": {"f32": "approx ftz"},
    "tanh": {"f32": "approx", "f16": "approx", "bf16": "approx"},
}


@instruction(
    "ex2", "lg2", "sin", "cos", "tanh",
    forms="f32 .approx with .ftz; ex2 and tanh also f16, bf16 and their pairs", refused=".2pi",
)  # fmt: skip
def function(e: Emitter, i: Instr) -> None:
    """A transcendental function of one operand."""
    ty = i.mods[-1]
    kind = ty.removesuffix("x2")
    allowed = _MODS[i.op].get(kind)
    if allowed is None:
        raise Unsupported(i.text)
    mods = fp.modifiers(i, 1, allowed)
    if kind == "f32":
        e.set(i.operands[0], _single(e, i.op, e.value(i.operands[1], "f32"), mods), "f32")
        return
    parts = []
    for bits in half.elements(e, i.operands[1], ty):
        if "ftz" in mods:
            bits = fp.flush_bits(e, bits, kind)
        bits = fp.narrow(e, _single(e, i.op, fp.widen(e, bits, kind), frozenset()), kind)
        parts.append(fp.flush_bits(e, bits, kind) if "ftz" in mods else bits)
    half.store(e, i.operands[0], parts, ty)


def _single(e: Emitter, op: str, a: str, mods: frozenset[str]) -> str:
    """The function of f32 lanes, as f32, rounded to nearest."""
    if "ftz" in mods:
        a = fp.flush(e, a, "f32")
    value = e.outline(f"approx_{op}", F32, [(F32, a)], lambda f, x: _rounded(f, op, x))
    return fp.finish(e, value, "f32", mods)


def _rounded(e: Emitter, op: str, a: str) -> str:
    wide = e.op(f"fpext {F32} {a} to {F64}")
    value = fp.narrow_f64(e, _FUNCTIONS[op](e, wide), "rn")
    # the clamps and integer tricks above do not keep NaN: put the operand's back
    return fp.select(e, fp.is_nan(e, a, "f32"), F32, a, value)
