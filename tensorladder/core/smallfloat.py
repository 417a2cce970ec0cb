"""Small floating-point formats, bit by bit: encode and decode as PTX's cvt does, in numpy.

This is the reference that tests of the virtual GPU compare with, so it follows the definition (scale, round the
integer significand, clamp) rather than the hardware's tricks. Formats: PTX ISA, "Alternate Floating-Point Data Formats"
and "Fundamental Types"; conversions: PTX ISA, cvt. tests/data/cvt_h200.npz holds results of an H200.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import numpy.typing as npt

from tensorladder.core.errors import MissingExtra, UsageError

Bits = npt.NDArray[np.uint32]

ROUNDINGS = ("rn", "rz", "rm", "rp", "rna")


@dataclass(frozen=True)
class Format:
    """A binary format of 32 bits or fewer.

    exponent, mantissa: widths in bits. specials: "ieee" (top exponent is infinity or NaN), "fn" (one NaN, all ones, no
    infinity), "none" (every code is a number). shift: unused low bits of the container (tf32 has 13).
    """

    name: str
    exponent: int
    mantissa: int
    bias: int
    specials: str = "ieee"
    signed: bool = True
    shift: int = 0

    @property
    def bits(self) -> int:
        """Width of a code, the unused low bits included."""
        return int(self.signed) + self.exponent + self.mantissa + self.shift

    @property
    def magnitude_bits(self) -> int:
        return self.exponent + self.mantissa

    @property
    def min_exponent(self) -> int:
        """Exponent of the smallest normal number, and of the subnormals."""
        return 1 - self.bias

    @cached_property
    def max_code(self) -> int:
        """Magnitude code (no sign, no shift) of the largest finite number."""
        top = (1 << self.magnitude_bits) - 1
        return {"ieee": top - (1 << self.mantissa), "fn": top - 1, "none": top}[self.specials]

    @property
    def infinity_code(self) -> int | None:
        return self.max_code + 1 if self.specials == "ieee" else None

    @property
    def nan_code(self) -> int | None:
        """PTX's canonical NaN: no sign, all other bits one."""
        return None if self.specials == "none" else (1 << self.magnitude_bits) - 1

    @cached_property
    def max(self) -> float:
        """The largest finite number."""
        return float(decode(np.array([self.max_code << self.shift], np.uint32), self)[0])


FORMATS: dict[str, Format] = {
    f.name: f
    for f in (
        Format("f32", 8, 23, 127),
        Format("tf32", 8, 10, 127, shift=13),
        Format("f16", 5, 10, 15),
        Format("bf16", 8, 7, 127),
        Format("e5m2", 5, 2, 15),
        Format("e4m3", 4, 3, 7, "fn"),
        Format("e3m2", 3, 2, 3, "none"),
        Format("e2m3", 2, 3, 1, "none"),
        Format("e2m1", 2, 1, 1, "none"),
        Format("ue4m3", 4, 3, 7, "fn", signed=False),
        # ue8m0 has no significand and no zero: code c is 2**(c - 127), 0xff is NaN (OCP MX, PTX ISA).
        Format("ue8m0", 8, 0, 127, "fn", signed=False),
    )
}


def format_of(name: str | Format) -> Format:
    """The format called `name`; UsageError lists the names."""
    if isinstance(name, Format):
        return name
    if name not in FORMATS:
        raise UsageError(f"no such floating-point format: {name!r}; one of {', '.join(FORMATS)}")
    return FORMATS[name]


def decode(codes: npt.ArrayLike, fmt: str | Format) -> npt.NDArray[np.float64]:
    """What `codes` (unsigned integers, any shape) stand for, exactly, as float64. Unused low bits are ignored."""
    f = format_of(fmt)
    code = np.asarray(codes).astype(np.int64) >> f.shift
    magnitude = code & ((1 << f.magnitude_bits) - 1)
    if f.name == "ue8m0":
        return np.where(magnitude == 0xFF, np.nan, np.ldexp(1.0, magnitude - f.bias))
    exponent = magnitude >> f.mantissa
    significand = magnitude & ((1 << f.mantissa) - 1)
    significand = np.where(exponent > 0, significand + (1 << f.mantissa), significand)
    scale = np.maximum(exponent, 1) - f.bias - f.mantissa
    value = np.ldexp(significand.astype(np.float64), scale)
    if f.infinity_code is not None:
        value = np.where(magnitude == f.infinity_code, np.inf, value)
    if f.specials != "none":
        value = np.where(magnitude > (f.infinity_code or f.max_code), np.nan, value)
    negative = (code >> f.magnitude_bits) & int(f.signed)
    return np.where(negative == 1, -value, value)


def encode(
    values: npt.ArrayLike,
    fmt: str | Format,
    rounding: str = "rn",
    *,
    satfinite: bool = False,
    relu: bool = False,
    sat: bool = False,
    ftz: bool = False,
) -> Bits:
    """The codes of `values` (real numbers, any shape; taken as float64) in `fmt`, as uint32.

    rounding: rn nearest even, rz towards zero, rm down, rp up, rna nearest with ties away. satfinite: infinities and
    overflow become the largest finite number. relu: negative numbers and -0 become +0. sat: clamp to [0, 1], NaN to 0.
    ftz: inputs below 2**-126 become zero of the same sign. NaN becomes the canonical NaN, or the largest number where
    the format has no NaN (an H200's rna.tf32 cuts a NaN's low 13 bits instead). Formats with no infinity, which PTX
    only converts to with .satfinite, saturate always.
    """
    f = format_of(fmt)
    if rounding not in ROUNDINGS:
        raise UsageError(f"no such rounding: {rounding!r}; one of {', '.join(ROUNDINGS)}")
    x = np.asarray(values, np.float64)
    nan = np.isnan(x)
    if sat:
        x, nan = np.where(nan, 0.0, np.clip(x, 0.0, 1.0)) + 0.0, np.zeros_like(nan)
    if ftz:
        x = np.where(np.abs(x) < 2.0**-126, np.copysign(0.0, x), x)
    if relu:
        x = np.where(np.signbit(x) & ~nan, 0.0, x)
    if f.name == "ue8m0":
        return _encode_ue8m0(x, rounding, satfinite)
    if not f.signed and np.any(np.signbit(x) & (x != 0) & ~nan):
        raise UsageError(f"{f.name} has no negative numbers")
    code = _round_magnitude(x, f, rounding)
    code = _clamp(code, x, f, rounding, satfinite)
    sign = (np.signbit(x) & ~nan).astype(np.int64) << f.magnitude_bits if f.signed else 0
    code = np.where(nan, f.max_code if f.nan_code is None else f.nan_code, code | sign)
    return (code << f.shift).astype(np.uint32)


def _round_magnitude(x: npt.NDArray[np.float64], f: Format, rounding: str) -> npt.NDArray[np.int64]:
    """Magnitude codes before overflow is looked at: whole units of the last place, carrying into the exponent."""
    size = np.where(np.isfinite(x), np.abs(x), 0.0)
    _, exponent = np.frexp(size)  # size = fraction * 2**exponent, fraction in [0.5, 1)
    exponent = np.where(size == 0, f.min_exponent, np.maximum(exponent - 1, f.min_exponent)).astype(np.int64)
    # Scaling by a power of two is exact: it only ever moves subnormal inputs up.
    scaled = np.ldexp(size, f.mantissa - exponent)
    whole = np.floor(scaled)
    rest = scaled - whole
    odd = whole % 2 == 1
    negative = np.signbit(x)
    up = {
        "rn": (rest > 0.5) | ((rest == 0.5) & odd),
        "rna": rest >= 0.5,
        "rz": np.zeros_like(odd),
        "rp": (rest > 0) & ~negative,
        "rm": (rest > 0) & negative,
    }[rounding]
    # A normal significand has its implicit bit set, which is worth one exponent step: the sum carries by itself.
    # Exponents beyond the range would overflow the shift for wide inputs; cap them well above the largest code.
    steps = np.minimum(exponent - f.min_exponent, 1 << 20)
    return (steps << f.mantissa) + whole.astype(np.int64) + up


def _clamp(
    code: npt.NDArray[np.int64], x: npt.NDArray[np.float64], f: Format, rounding: str, satfinite: bool
) -> npt.NDArray[np.int64]:
    if f.infinity_code is None or satfinite:
        return np.where(np.isinf(x), f.max_code, np.minimum(code, f.max_code))
    towards_zero = {"rz": np.ones(x.shape, bool), "rm": ~np.signbit(x), "rp": np.signbit(x)}.get(rounding)
    overflow = code > f.max_code
    code = np.where(overflow, f.infinity_code, code)
    if towards_zero is not None:
        code = np.where(overflow & towards_zero, f.max_code, code)
    return np.where(np.isinf(x), f.infinity_code, code)


def _encode_ue8m0(x: npt.NDArray[np.float64], rounding: str, satfinite: bool) -> Bits:
    """Powers of two from 2**-127; the sign is ignored. PTX takes rz and rp alone (cvt, .frnd3)."""
    if rounding not in ("rz", "rp"):
        raise UsageError(f"ue8m0 is rounded by rz or rp, not {rounding}")
    size = np.where(np.isfinite(x), np.abs(x), 1.0)
    fraction, exponent = np.frexp(size)
    power = exponent.astype(np.int64) - 1 + ((fraction > 0.5) & (rounding == "rp"))
    code = np.where(size == 0, 0, np.maximum(power + 127, 0))
    over = (code > 0xFE) | np.isinf(x)
    code = np.where(over, 0xFE if satfinite else 0xFF, code)
    return np.where(np.isnan(x), 0xFF, code).astype(np.uint32)


def convert(codes: npt.ArrayLike, source: str, target: str, rounding: str = "rn", **modifiers: bool) -> Bits:
    """Codes of `source` to codes of `target`, as `cvt.rounding{modifiers}.target.source` does for one element."""
    return encode(decode(codes, source), target, rounding, **modifiers)


def round_to(values: npt.ArrayLike, fmt: str, rounding: str = "rn", **modifiers: bool) -> npt.NDArray[np.float64]:
    """`values` rounded to `fmt`, as float64."""
    return decode(encode(values, fmt, rounding, **modifiers), fmt)


def table(fmt: str) -> npt.NDArray[np.float64]:
    """All numbers of a format of 16 bits or fewer, by code."""
    f = format_of(fmt)
    if f.bits > 16:
        raise UsageError(f"{f.name} has {f.bits} bits: too many for a table")
    return decode(np.arange(1 << f.bits), f)


@dataclass(frozen=True)
class DType:
    """An element type of arrays and of PTX. numpy: numpy's or ml_dtypes' name; None where arrays hold it as bytes."""

    name: str
    bits: int
    numpy: str | None
    floating: bool = True


DTYPES: dict[str, DType] = {
    d.name: d
    for d in (
        DType("f64", 64, "float64"),
        DType("f32", 32, "float32"),
        DType("tf32", 32, "float32"),
        DType("f16", 16, "float16"),
        DType("bf16", 16, "bfloat16"),
        DType("e4m3", 8, "float8_e4m3fn"),
        DType("e5m2", 8, "float8_e5m2"),
        DType("ue8m0", 8, "float8_e8m0fnu"),
        DType("ue4m3", 8, None),
        DType("e2m3", 6, "float6_e2m3fn"),
        DType("e3m2", 6, "float6_e3m2fn"),
        DType("e2m1", 4, "float4_e2m1fn"),
        *(DType(f"s{n}", n, f"int{n}", False) for n in (8, 16, 32, 64)),
        *(DType(f"u{n}", n, f"uint{n}", False) for n in (8, 16, 32, 64)),
        DType("s4", 4, "int4", False),
        DType("u4", 4, "uint4", False),
        DType("pred", 1, "bool", False),
    )
}
# Other spellings that people and front ends use.
_ALIASES = {
    "fp16": "f16", "float16": "f16", "half": "f16", "fp32": "f32", "float32": "f32", "float": "f32", "fp64": "f64",
    "float64": "f64", "double": "f64", "bfloat16": "bf16", "float8_e4m3fn": "e4m3", "e4m3fn": "e4m3", "fp8": "e4m3",
    "float8_e5m2": "e5m2", "float8_e8m0fnu": "ue8m0", "float4_e2m1fn": "e2m1", "float6_e2m3fn": "e2m3",
    "float6_e3m2fn": "e3m2", "bool": "pred", "tfloat32": "tf32",
    **{f"int{n}": f"s{n}" for n in (4, 8, 16, 32, 64)}, **{f"uint{n}": f"u{n}" for n in (4, 8, 16, 32, 64)},
}  # fmt: skip
_FROM_NUMPY = {d.numpy: d.name for d in reversed(DTYPES.values()) if d.numpy and d.name != "tf32"}


def dtype_of(name: str) -> DType:
    """The element type called `name` ("f16"; "float16", "half" and the like mean the same)."""
    found = DTYPES.get(_ALIASES.get(str(name), str(name)))
    if found is None:
        raise UsageError(f"no such dtype: {name!r}; one of {', '.join(DTYPES)}")
    return found


@cache
def numpy_dtype(name: str) -> np.dtype:
    """The numpy dtype of arrays of `name`; ml_dtypes brings those that numpy lacks (MissingExtra where absent)."""
    d = dtype_of(name)
    if d.numpy is None:
        raise UsageError(f"no array dtype for {d.name}: pass its codes as uint8")
    if hasattr(np, d.numpy):
        return np.dtype(d.numpy)
    try:
        import ml_dtypes
    except ImportError:
        raise MissingExtra(f"ml_dtypes (arrays of {d.name})", "climb") from None
    return np.dtype(getattr(ml_dtypes, d.numpy))


def name_of(dtype: npt.DTypeLike) -> str:
    """The element type's name for a numpy or ml_dtypes dtype; "f32" for float32."""
    found = np.dtype(dtype).name
    if found not in _FROM_NUMPY:
        raise UsageError(f"arrays of {found} are not supported; one of {', '.join(_FROM_NUMPY)}")
    return _FROM_NUMPY[found]


def element_bits(name: str) -> int:
    """Bits an element takes when packed (e2m1: 4, tf32: 32)."""
    return dtype_of(name).bits


def element_bytes(name: str) -> int:
    """Bytes an element takes in an array of its own (sub-byte types: 1)."""
    return max(1, dtype_of(name).bits // 8)
