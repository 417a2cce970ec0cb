"""Exactly rounded reference arithmetic: rational numbers, rounded once. Slow, and with no tricks to get wrong.

    exact("fma", "bf16", "rn", a, b, c)      # arrays in, bits out (uint16 for 16-bit types), canonical NaNs

Arrays are in the types of memory (tests.vgpu.ptx_kernels.TYPES): numpy floats, or raw bits for bf16.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

# type -> (significand bits, smallest normal exponent, largest exponent, canonical NaN, integer type of its bits)
FORMATS = {
    "f16": (11, -14, 15, 0x7FFF, np.uint16),
    "bf16": (8, -126, 127, 0x7FFF, np.uint16),
    "f32": (24, -126, 127, 0x7FFFFFFF, np.uint32),
    "f64": (53, -1022, 1023, 0xFFF8000000000000, np.uint64),
}


def values(array: np.ndarray, ty: str) -> np.ndarray:
    """An array of `ty` as float64, exactly."""
    if ty == "bf16":
        with np.errstate(invalid="ignore"):  # signalling NaNs
            return (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    with np.errstate(invalid="ignore"):
        return array.view({"f16": np.float16, "f32": np.float32, "f64": np.float64}[ty]).astype(np.float64)


def bits(numbers: np.ndarray, ty: str) -> np.ndarray:
    """Numbers that `ty` holds exactly (float64) as its bits; NaN is canonical."""
    x = np.asarray(numbers, np.float64)
    quiet = np.where(np.isnan(x), 0.0, x)
    if ty == "bf16":
        code = (quiet.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    else:
        code = quiet.astype({"f16": np.float16, "f32": np.float32, "f64": np.float64}[ty]).view(FORMATS[ty][4])
    return np.where(np.isnan(x), FORMATS[ty][4](FORMATS[ty][3]), code)


def round_to(q: Fraction, ty: str, mode: str) -> float:
    """A rational number other than zero, rounded to `ty` by rn, rz, rm or rp."""
    digits, low, high, *_ = FORMATS[ty]
    n, d = abs(q.numerator), q.denominator
    exponent = n.bit_length() - d.bit_length()
    if n << max(-exponent, 0) < d << max(exponent, 0):
        exponent -= 1
    unit = max(exponent, low) - digits + 1  # exponent of the last place
    n, d = (n, d << unit) if unit >= 0 else (n << -unit, d)
    whole, rest = divmod(n, d)
    whole += {
        "rn": 2 * rest > d or (2 * rest == d and whole % 2 == 1),
        "rz": False,
        "rp": rest > 0 and q > 0,
        "rm": rest > 0 and q < 0,
    }[mode]
    if whole.bit_length() + unit - 1 > high:
        inward = mode == "rz" or (mode == "rm" and q > 0) or (mode == "rp" and q < 0)
        size = math.ldexp((1 << digits) - 1, high - digits + 1) if inward else math.inf
    else:
        size = math.ldexp(whole, unit)
    return size if q > 0 else -size


def _add(a: float, b: float, mode: str) -> Fraction | float:
    if not (math.isfinite(a) and math.isfinite(b)):
        return a + b
    q = Fraction(a) + Fraction(b)
    if q:
        return q
    if a == 0 and math.copysign(1, a) == math.copysign(1, b):
        return a
    return -0.0 if mode == "rm" else 0.0


def _mul(a: float, b: float, mode: str) -> Fraction | float:
    if not (math.isfinite(a) and math.isfinite(b)) or a == 0 or b == 0:
        return a * b
    return Fraction(a) * Fraction(b)


def _fma(a: float, b: float, c: float, mode: str) -> Fraction | float:
    product = _mul(a, b, mode)
    if not isinstance(product, Fraction) or not math.isfinite(c):
        if isinstance(product, Fraction):
            return c
        return _add(product, c, mode)
    q = product + Fraction(c)
    return q if q else (-0.0 if mode == "rm" else 0.0)


def _div(a: float, b: float, mode: str) -> Fraction | float:
    if math.isnan(a) or math.isnan(b) or (math.isinf(a) and math.isinf(b)) or (a == 0 and b == 0):
        return math.nan
    sign = math.copysign(1, a) * math.copysign(1, b)
    if b == 0 or math.isinf(a):
        return sign * math.inf
    if a == 0 or math.isinf(b):
        return sign * 0.0
    return Fraction(a) / Fraction(b)


def _sqrt(a: float, mode: str) -> Fraction | float:
    if a == 0 or math.isnan(a) or a == math.inf:
        return a
    if a < 0:
        return math.nan
    scaled = int(Fraction(a) * 4**1200)  # whole for every f64
    root = math.isqrt(scaled)
    return Fraction(2 * root + (root * root != scaled), 2 * 2**1200)  # the last bit stands for all that follow


_OPS = {
    "add": _add,
    "sub": lambda a, b, mode: _add(a, -b, mode),
    "mul": _mul,
    "fma": _fma,
    "div": _div,
    "rcp": lambda a, mode: _div(1.0, a, mode),
    "sqrt": _sqrt,
}


def tiny(q: Fraction, ty: str, mode: str) -> bool:
    """Whether q is below the normal numbers after rounding with an unbounded exponent: .ftz flushes just that."""
    return abs(round_to(q * 2**64, ty, mode)) < 2.0 ** (FORMATS[ty][1] + 64) if ty != "f16" else (
        abs(round_to(q * 2**12, ty, mode)) < 2.0**-2)  # fmt: skip


def flushed(x: np.ndarray, ty: str) -> np.ndarray:
    """float64 numbers with those below `ty`'s normal ones made zero of their sign."""
    return np.where(np.abs(x) < 2.0 ** FORMATS[ty][1], np.copysign(0.0, x), x)


def saturated(x: np.ndarray) -> np.ndarray:
    """.sat: [0, 1], NaN and -0 to +0."""
    return np.where(x > 0, np.minimum(x, 1.0), 0.0)


def exact(
    op: str, ty: str, mode: str, *arrays: np.ndarray, types: tuple[str, ...] = (), ftz: bool = False,
    sat: bool = False, relu: bool = False,
) -> np.ndarray:  # fmt: skip
    """Bits of `op` on arrays, rounded once to `ty`. types: of the operands, where they differ from `ty`."""
    operands = [values(a, t) for a, t in zip(arrays, types or (ty,) * len(arrays), strict=True)]
    if ftz:
        operands = [flushed(x, ty) for x in operands]
    function, out = _OPS[op], []
    for numbers in zip(*(x.tolist() for x in operands), strict=True):
        result = function(*numbers, mode)
        if isinstance(result, Fraction):
            result = (
                math.copysign(0.0, result.numerator) if ftz and tiny(result, ty, mode) else round_to(result, ty, mode)
            )
        out.append(result)
    x = np.array(out)
    if sat:
        x = saturated(x)
    if relu:
        x = np.where(x <= 0, 0.0, x)
    return (
        bits(x, ty) if ty != "f64" or sat else pass_nans(bits(x, ty), (arrays[1], arrays[0]) if op == "div" else arrays)
    )


def pass_nans(result: np.ndarray, arrays: tuple[np.ndarray, ...]) -> np.ndarray:
    """f64 results pass on a NaN made quiet: the second operand's, the third's, the first's (seen on an H200)."""
    for a in (arrays[0], *arrays[:0:-1]):
        word = np.ascontiguousarray(a).view(np.uint64)
        result = np.where(np.isnan(a), word | np.uint64(1 << 51), result)
    return result


def extreme(
    op: str, ty: str, *arrays: np.ndarray, nan: bool = False, absolute: bool = False, xorsign: bool = False,
    ftz: bool = False,
) -> np.ndarray:  # fmt: skip
    """Bits of min or max of two or three arrays, as PTX has it."""
    operands = [values(a, ty) for a in arrays]
    if ftz:
        operands = [flushed(x, ty) for x in operands]
    signs = np.signbit(operands[0]) ^ np.signbit(operands[1])
    if absolute:
        operands = [np.abs(x) for x in operands]
    result = operands[0]
    for x in operands[1:]:
        result = _extreme2(op, result, x, nan)
    if xorsign:
        result = np.where(signs & ~np.isnan(result), -result, result)
    if ty == "f64":
        return np.where(np.isnan(result), pass_nans(bits(result, ty), arrays), bits(result, ty))
    return bits(result, ty)


def _extreme2(op: str, a: np.ndarray, b: np.ndarray, nan: bool) -> np.ndarray:
    def key(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return x, ~np.signbit(x)  # -0 below +0

    less = (a < b) | ((a == b) & (key(a)[1] < key(b)[1]))
    result = np.where(less == (op == "min"), a, b)
    a_nan, b_nan = np.isnan(a), np.isnan(b)
    result = np.where(a_nan, b, np.where(b_nan, a, result))
    return np.where(a_nan | b_nan, np.nan, result) if nan else result
