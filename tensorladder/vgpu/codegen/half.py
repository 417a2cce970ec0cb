"""f16, bf16 and their packed pairs (PTX ISA, "Half Precision Floating Point Instructions").

Elements are computed in f32 where that rounds once for all practical purposes (f32 has more than twice the digits, so
rounding a sum of f16 or bf16 twice is harmless, and an f16 product is exact), else in f64 with rounding to odd.
"""

from __future__ import annotations

from tensorladder.core.errors import Unsupported
from tensorladder.vgpu.codegen import fp
from tensorladder.vgpu.codegen.emit import Emitter
from tensorladder.vgpu.ptx.nodes import Instr

#: mnemonic -> modifiers by element type
_MODS = {
    "add": {"f16": "rn ftz sat", "bf16": "rn"},
    "sub": {"f16": "rn ftz sat", "bf16": "rn"},
    "mul": {"f16": "rn ftz sat", "bf16": "rn"},
    "fma": {"f16": "rn ftz sat relu oob", "bf16": "rn relu oob"},
    "min": {"f16": "ftz NaN xorsign abs", "bf16": "NaN xorsign abs"},
    "max": {"f16": "ftz NaN xorsign abs", "bf16": "NaN xorsign abs"},
    "neg": {"f16": "ftz", "bf16": "ftz"},
    "abs": {"f16": "ftz", "bf16": "ftz"},
}


def elements(e: Emitter, operand: object, ty: str) -> list[str]:
    """An operand's elements as <32 x i16>: one, or the low and the high one."""
    if ty.endswith("x2"):
        return list(fp.unpack(e, e.value(operand, "b32"), 16))
    return [fp.bits_of(e, e.value(operand, ty), ty) if ty == "f16" else e.value(operand, ty)]


def store(e: Emitter, operand: object, parts: list[str], ty: str) -> None:
    """Write elements to a result."""
    if ty.endswith("x2"):
        e.set(operand, fp.pack(e, parts[0], parts[1], 16), "b32")
    else:
        e.set(operand, parts[0], "b16")


def arithmetic(e: Emitter, i: Instr) -> None:
    """add, sub, mul, fma, min, max, neg, abs. Raises Unsupported for others."""
    ty = i.mods[-1]
    kind = ty.removesuffix("x2")
    if i.op not in _MODS:
        raise Unsupported(i.text)
    mods = fp.modifiers(i, 1, _MODS[i.op][kind])
    operands = [elements(e, o, ty) for o in i.operands[1:]]
    parts = [_element(e, i.op, kind, mods, list(args)) for args in zip(*operands, strict=True)]
    store(e, i.operands[0], parts, ty)


def _element(e: Emitter, op: str, kind: str, mods: frozenset[str], args: list[str]) -> str:
    """One element from <32 x i16> operands."""
    if "ftz" in mods:
        args = [fp.flush_bits(e, a, kind) for a in args]
    if op in ("neg", "abs"):
        how, mask = ("xor", 0x8000) if op == "neg" else ("and", 0x7FFF)
        return _quiet(e, kind, args[0], e.op(f"{how} {fp.I16} {args[0]}, {e.splat(fp.I16, mask)}"))
    wide = [fp.widen(e, a, kind) for a in args]
    if op in ("min", "max"):
        return _extreme(e, op, kind, mods, wide, args)
    value = _compute(e, op, kind, wide)
    if "sat" in mods:
        value = fp.saturate(e, value, "f32")
    if "relu" in mods:
        value = fp.relu(e, value, "f32")
    bits = fp.narrow(e, value, kind)
    if "ftz" in mods:
        bits = _flush_tiny(e, value, bits)
    if "oob" in mods:
        bits = _out_of_bounds(e, bits, args[:2])
    return bits


def _flush_tiny(e: Emitter, value: str, bits: str) -> str:
    """.ftz of an f16 result: zero where `value`, with an unbounded exponent, rounds to less than 2**-14."""
    tiny = e.op(f"fcmp olt {fp.F32} {fp.absolute(e, value, 'f32')}, {fp.const(e, 'f32', 2.0**-14 - 2.0**-26)}")
    return fp.select(e, tiny, fp.I16, e.op(f"and {fp.I16} {bits}, {e.splat(fp.I16, 0x8000)}"), bits)


def _quiet(e: Emitter, kind: str, operand: str, bits: str) -> str:
    """`bits`, or the canonical NaN where the operand is a NaN."""
    size = e.op(f"and {fp.I16} {operand}, {e.splat(fp.I16, 0x7FFF)}")
    nan = e.op(f"icmp ugt {fp.I16} {size}, {e.splat(fp.I16, fp.BITS[kind][0])}")
    return fp.select(e, nan, fp.I16, e.splat(fp.I16, fp.BITS[kind][2]), bits)


def _compute(e: Emitter, op: str, kind: str, wide: list[str]) -> str:
    """The operation on f32 lanes, to be rounded to `kind`; the long ones as functions."""
    if op == "fma" or (op, kind) == ("mul", "bf16"):
        return e.outline(f"{op}_{kind}", fp.F32, [(fp.F32, a) for a in wide], lambda f, *x: _WIDE[op](f, kind, *x))
    return _WIDE[op](e, kind, *wide)


def _simple(op: str):
    def emit(e: Emitter, kind: str, a: str, b: str) -> str:
        return e.op(f"{op} {fp.F32} {a}, {b}")

    return emit


def _f64(e: Emitter, value: str) -> str:
    return e.op(f"fpext {fp.F32} {value} to {fp.F64}")


def _mul(e: Emitter, kind: str, a: str, b: str) -> str:
    if kind == "f16":
        return e.op(f"fmul {fp.F32} {a}, {b}")
    product = e.op(f"fmul {fp.F64} {_f64(e, a)}, {_f64(e, b)}")  # exact, below f32's range too
    return fp.narrow_f64(e, product, "odd")


def _fma(e: Emitter, kind: str, a: str, b: str, c: str) -> str:
    product = e.op(f"fmul {fp.F64} {_f64(e, a)}, {_f64(e, b)}")  # exact
    return fp.narrow_f64(e, fp.sum_to_odd(e, product, _f64(e, c)), "odd")


_WIDE = {"add": _simple("fadd"), "sub": _simple("fsub"), "mul": _mul, "fma": _fma}


def _extreme(e: Emitter, op: str, kind: str, mods: frozenset[str], wide: list[str], args: list[str]) -> str:
    if "abs" in mods:
        wide = [fp.absolute(e, a, "f32") for a in wide]
    value = fp.extreme(e, op, wide[0], wide[1], "f32", "NaN" in mods)
    bits = fp.narrow(e, value, kind)
    if "xorsign" in mods:
        sign = e.op(f"and {fp.I16} {e.op(f'xor {fp.I16} {args[0]}, {args[1]}')}, {e.splat(fp.I16, 0x8000)}")
        signed = e.op(f"or {fp.I16} {bits}, {sign}")
        bits = fp.select(e, fp.is_nan(e, value, "f32"), fp.I16, bits, signed)
    return bits


#: the NaN that tensor copies fill out-of-bounds elements with, of either sign, for f16 and bf16 (found on an H200)
OOB_NAN = 0x7FF7


def _out_of_bounds(e: Emitter, bits: str, factors: list[str]) -> str:
    """.oob: 0 where a factor is the out-of-bounds NaN; the addend may be one like any NaN."""
    for a in factors:
        size = e.op(f"and {fp.I16} {a}, {e.splat(fp.I16, 0x7FFF)}")
        hit = e.op(f"icmp eq {fp.I16} {size}, {e.splat(fp.I16, OOB_NAN)}")
        bits = fp.select(e, hit, fp.I16, "zeroinitializer", bits)
    return bits
