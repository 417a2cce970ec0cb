"""Conversions (PTX ISA, "cvt", "cvt.pack"): integers, f16 to f64, and the packed formats of tensor cores.

Every conversion is rounded once, in the mode that the instruction names. core.smallfloat is the reference of the
packed formats; tests/data holds what an H200 made of them.
"""

from __future__ import annotations

from tensorladder.core.errors import Unsupported
from tensorladder.vgpu.codegen import fp, smallfp
from tensorladder.vgpu.codegen.emit import SIGNED, Emitter, ivec, vec
from tensorladder.vgpu.codegen.fp import F32, F64, I16, I32, I64
from tensorladder.vgpu.codegen.table import instruction
from tensorladder.vgpu.ptx.nodes import TYPE_BITS, Instr

_INTS = {f"{s}{n}" for s in "us" for n in (8, 16, 32, 64)}
_FLOATS = {"f16", "bf16", "f32", "f64"}
_WORDS = {"f16x2", "bf16x2"}
#: packed pairs: format -> bits that an element takes
_PAIRS = {"e4m3x2": 8, "e5m2x2": 8, "e2m3x2": 8, "e3m2x2": 8, "ue8m0x2": 8, "e2m1x2": 4}
_TO_INTEGRAL = {"rni": "roundeven", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}


@instruction(
    "cvt",
    forms="integers (.sat), integers and f16 bf16 f32 f64 (all roundings, .ftz .sat .relu .satfinite), tf32, "
    "f16x2, bf16x2, pairs of e4m3 e5m2 e2m3 e3m2 e2m1 ue8m0; cvt.pack",
    refused=".rs (stochastic), x4 formats, .scaled, .pzo, ue5m3x2, s2f6x2",
)
def cvt(e: Emitter, i: Instr) -> None:
    """Convert; dispatch by the two types."""
    if i.mods[0] == "pack":
        _pack(e, i)
        return
    to, ty = i.mods[-2:]
    if ty in _INTS and to in _INTS:
        _int_to_int(e, i, to, ty)
    elif ty in _FLOATS and to in _INTS:
        _float_to_int(e, i, to, ty)
    elif ty in _INTS and to in _FLOATS:
        _int_to_float(e, i, to, ty)
    elif ty in _FLOATS and to in _FLOATS:
        _float_to_float(e, i, to, ty)
    elif to == "tf32" and ty == "f32":
        _tf32(e, i)
    elif to in _WORDS or to in _PAIRS:
        _pairs(e, i, to, ty)
    else:
        raise Unsupported(i.text)


# ---------------------------------------------------------------- integers
def _int_to_int(e: Emitter, i: Instr, to: str, ty: str) -> None:
    mods = fp.modifiers(i, 2, "sat")
    value = e.value(i.operands[1], ty)
    bits, width = TYPE_BITS[to], TYPE_BITS[ty]
    if "sat" in mods:
        value = _clamp_int(e, value, width, ty in SIGNED, to)
    if bits != width:
        how = "trunc" if bits < width else ("sext" if ty in SIGNED else "zext")
        value = e.op(f"{how} {ivec(width)} {value} to {ivec(bits)}")
    e.set(i.operands[0], value, to)


def _clamp_int(e: Emitter, value: str, width: int, signed: bool, to: str, bits: int = 0) -> str:
    """Clamp integers of `width` bits to the range of type `to` (or of its kind with `bits` bits), width kept."""
    bits = bits or TYPE_BITS[to]
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if to[0] == "s" else (0, (1 << bits) - 1)
    least, most = (-(1 << (width - 1)), (1 << (width - 1)) - 1) if signed else (0, (1 << width) - 1)
    v, kind = ivec(width), "s" if signed else "u"
    for name, bound, needed in (("max", low, low > least), ("min", high, high < most)):
        if needed:
            value = e.intrinsic(f"llvm.{kind}{name}.v32i{width}", v, (v, value), (v, e.splat(v, bound)))
    return value


def _pack(e: Emitter, i: Instr) -> None:
    """cvt.pack: saturate two s32 and put them below the third operand's low bits, the first above the second."""
    if len(i.mods) not in (4, 5) or i.mods[1] != "sat" or i.mods[3] != "s32" or i.mods[4:] not in ((), ("b32",)):
        raise Unsupported(i.text)
    to = i.mods[2]
    bits = {"u16": 16, "s16": 16, "u8": 8, "s8": 8, "u4": 4, "s4": 4, "u2": 2, "s2": 2}.get(to)
    if bits is None or (bits == 16) != (len(i.mods) == 4):
        raise Unsupported(i.text)
    high, low = (_clamp_int(e, e.value(o, "s32"), 32, True, to, bits) for o in i.operands[1:3])
    mask = e.splat(I32, (1 << bits) - 1)
    value = e.op(f"and {I32} {low}, {mask}")
    shifted = e.op(f"shl {I32} {e.op(f'and {I32} {high}, {mask}')}, {e.splat(I32, bits)}")
    value = e.op(f"or {I32} {value}, {shifted}")
    if bits < 16:
        rest = e.op(f"shl {I32} {e.value(i.operands[3], 'b32')}, {e.splat(I32, 2 * bits)}")
        value = e.op(f"or {I32} {value}, {rest}")
    e.set(i.operands[0], value, "b32")


# ---------------------------------------------------------------- scalars
def _source(e: Emitter, operand: object, ty: str, mods: frozenset[str]) -> tuple[str, str]:
    """(value, f32 or f64) of a float operand; 16-bit types widen exactly; .ftz flushes f32."""
    if ty == "f64":
        return e.value(operand, ty), ty
    if ty == "f32":
        value = e.value(operand, ty)
        return (fp.flush(e, value, ty) if "ftz" in mods else value), ty
    return fp.widen(e, e.value(operand, "b16"), ty), "f32"


def _integral(e: Emitter, value: str, ty: str, mode: str) -> str:
    name = f"llvm.{_TO_INTEGRAL[mode]}.v32{ty}"
    return e.intrinsic(name, vec(ty), (vec(ty), value))


def _float_to_int(e: Emitter, i: Instr, to: str, ty: str) -> None:
    """Round to an integer and clamp. NaN: 0, or the top bit alone if either side has 64 bits (ISA, cvt)."""
    mods = fp.modifiers(i, 2, "rni rzi rmi rpi ftz sat")
    mode = next((m for m in _TO_INTEGRAL if m in mods), None)
    if mode is None:
        raise Unsupported(f"{i.text} without a rounding modifier")
    value, work = _source(e, i.operands[1], ty, mods)
    top = ty == "f64" or TYPE_BITS[to] == 64
    name = f"{to}_from_{work}_{mode}{'_top' * top}"
    result = e.outline(
        name, ivec(TYPE_BITS[to]), [(vec(work), value)], lambda f, x: _clamped(f, x, work, to, mode, top)
    )
    e.set(i.operands[0], result, to)


def _clamped(e: Emitter, value: str, work: str, to: str, mode: str, top: bool) -> str:
    """Integers of type `to` from f32 or f64. top: NaN gives the top bit alone, not 0."""
    value = _integral(e, value, work, mode)
    bits, v = TYPE_BITS[to], vec(work)
    width = max(bits, 32)
    ints = ivec(width)
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if to in SIGNED else (0, (1 << bits) - 1)
    result = e.op(f"{'fptosi' if to in SIGNED else 'fptoui'} {v} {value} to {ints}")  # poison beyond the range
    for how, bound, limit in (("olt", float(low), low), ("oge", float(high + 1), high)):
        beyond = e.op(f"fcmp {how} {v} {value}, {fp.const(e, work, bound)}")
        result = fp.select(e, beyond, ints, e.splat(ints, limit), result)
    nan = e.splat(ints, 1 << (bits - 1)) if top else "zeroinitializer"
    result = fp.select(e, fp.is_nan(e, value, work), ints, nan, result)
    return e.op(f"trunc {ints} {result} to {ivec(bits)}") if bits < width else result


def _int_to_float(e: Emitter, i: Instr, to: str, ty: str) -> None:
    mods = fp.modifiers(i, 2, "rn rz rm rp ftz sat")
    mode = fp.rounding(mods)
    value = e.value(i.operands[1], ty)
    if to == "f64":
        result = _int_to_f64(e, value, ty, mode)
    elif to == "f32" and mode == "rn":
        result = e.op(f"{_how(ty)} {vec(ty)} {value} to {F32}")
    else:
        result = fp.narrow_f64(e, _int_to_f64(e, value, ty, "odd"), mode if to == "f32" else "odd")
    _put(e, i.operands[0], result, "f64" if to == "f64" else "f32", to, mode, mods)


def _how(ty: str) -> str:
    return "sitofp" if ty in SIGNED else "uitofp"


def _int_to_f64(e: Emitter, value: str, ty: str, mode: str) -> str:
    """Integers to f64. Those of 64 bits need rounding: as a sum of two exact halves, or to odd."""
    if TYPE_BITS[ty] < 64 or mode == "rn":
        return e.op(f"{_how(ty)} {vec(ty)} {value} to {F64}")
    shift = "ashr" if ty in SIGNED else "lshr"
    top = e.op(f"{shift} {I64} {value}, {e.splat(I64, 32)}")
    low = e.op(f"uitofp {I64} {e.op(f'and {I64} {value}, {e.splat(I64, 0xFFFFFFFF)}')} to {F64}")
    high = e.op(f"fmul {F64} {e.op(f'{_how(ty)} {I64} {top} to {F64}')}, {fp.const(e, 'f64', 2.0**32)}")
    if mode == "odd":
        return fp.sum_to_odd(e, high, low)
    return fp.rounded(e, "fadd", "f64", mode, high, low)


def _float_to_float(e: Emitter, i: Instr, to: str, ty: str) -> None:
    mods = fp.modifiers(i, 2, "rn rz rm rp rni rzi rmi rpi ftz sat relu satfinite")
    if mods & {"relu", "satfinite"} and to not in ("f16", "bf16"):
        raise Unsupported(i.text)
    value, work = _source(e, i.operands[1], ty, mods)
    integral = next((m for m in _TO_INTEGRAL if m in mods), None)
    if integral:
        value = _integral(e, value, work, integral)
    mode = fp.rounding(mods)
    # NaN keeps its payload where an f64 or no arithmetic is concerned
    keep = "f64" in (ty, to) or (ty in ("f32", "bf16") and to == "f32" and not mods)
    if work == "f64" and to != "f64":
        wide, work = value, "f32"
        value = fp.narrow_f64(e, wide, mode if to == "f32" else "odd")
        if "ftz" in mods and to == "f32":
            scaled = e.op(f"fmul {F64} {wide}, {fp.const(e, 'f64', 2.0**24)}")
            value, mods = fp.flush_tiny(e, value, fp.narrow_f64(e, scaled, mode)), mods - {"ftz"}
    elif work == "f32" and to == "f64":
        if "ftz" in mods:
            value = fp.canonical(e, value, "f32")
        value, work = e.op(f"fpext {F32} {value} to {F64}"), "f64"
    _put(e, i.operands[0], value, work, to, mode, mods, keep)


def _put(
    e: Emitter, operand: object, value: str, work: str, to: str, mode: str, mods: frozenset[str], keep: bool = False
) -> None:
    """Store a result that is of type `to` already, or an f32 still to be rounded to 16 bits. keep: NaNs as they are."""
    if to == work:
        if "ftz" in mods and to == "f32":
            value = fp.flush(e, value, to)
        if "sat" in mods:
            value = fp.saturate(e, value, to)
        elif not keep:
            value = fp.canonical(e, value, to)
        e.set(operand, value, to)
        return
    if "sat" in mods:
        value = fp.saturate(e, value, "f32")
    bits = smallfp.halves(e, value, to, mode, satfinite="satfinite" in mods, relu="relu" in mods)
    if keep:
        bits = fp.select(e, fp.is_nan(e, value, "f32"), I16, smallfp.nan_halves(e, value, to), bits)
    e.set(operand, bits, "b16")


def _tf32(e: Emitter, i: Instr) -> None:
    """f32 to tf32 in a 32-bit register. As on an H200, .rna only cuts NaNs, and .satfinite then takes one step off."""
    mods = fp.modifiers(i, 2, "rna rn rz satfinite relu")
    mode = next((m for m in ("rna", "rn", "rz") if m in mods), None)
    if mode is None:
        raise Unsupported(f"{i.text} without a rounding modifier")
    value = e.value(i.operands[1], "f32")
    code = smallfp.encode(e, value, "tf32", mode, satfinite="satfinite" in mods, relu="relu" in mods)
    if mode == "rna":
        cut = e.op(f"and {I32} {fp.bits_of(e, value, 'f32')}, {e.splat(I32, 0xFFFFE000)}")
        if "satfinite" in mods:
            cut = e.op(f"sub {I32} {cut}, {e.splat(I32, 0x2000)}")
        code = fp.select(e, fp.is_nan(e, value, "f32"), I32, cut, code)
    e.set(i.operands[0], code, "b32")


# ---------------------------------------------------------------- pairs
def _pairs(e: Emitter, i: Instr, to: str, ty: str) -> None:
    """Packed results. From two f32, the first goes to the upper element; from a pair, element by element."""
    mods = fp.modifiers(i, 2, "rn rz rp satfinite relu")
    mode = fp.rounding(mods)
    flags = {"satfinite": "satfinite" in mods, "relu": "relu" in mods}
    low, high = _pair_source(e, i, ty)
    if to in _WORDS:
        parts = [smallfp.halves(e, x, to.removesuffix("x2"), mode, **flags) for x in (low, high)]
        e.set(i.operands[0], fp.pack(e, parts[0], parts[1], 16), "b32")
        return
    if to != "ue8m0x2" and mode != "rn":
        raise Unsupported(f"{i.text} (.{mode})")
    low, high = (smallfp.encode(e, x, to.removesuffix("x2"), mode, **flags) for x in (low, high))
    bits = _PAIRS[to]
    packed = e.op(f"or {I32} {low}, {e.op(f'shl {I32} {high}, {e.splat(I32, bits)}')}")
    width = 2 * bits
    e.set(i.operands[0], e.op(f"trunc {I32} {packed} to {ivec(width)}"), f"b{width}")


def _pair_source(e: Emitter, i: Instr, ty: str) -> list[str]:
    """(low, high) elements as f32."""
    if ty == "f32" and len(i.operands) == 3:
        return [e.value(i.operands[2], ty), e.value(i.operands[1], ty)]
    if ty in _WORDS:
        return [fp.widen(e, x, ty.removesuffix("x2")) for x in fp.unpack(e, e.value(i.operands[1], "b32"), 16)]
    if ty not in _PAIRS:
        raise Unsupported(i.text)
    bits = _PAIRS[ty]
    whole = e.value(i.operands[1], f"b{2 * bits}")
    wide = e.op(f"zext {ivec(2 * bits)} {whole} to {I32}")
    low = e.op(f"and {I32} {wide}, {e.splat(I32, (1 << bits) - 1)}")
    high = e.op(f"lshr {I32} {wide}, {e.splat(I32, bits)}")
    return [smallfp.decode(e, x, ty.removesuffix("x2")) for x in (low, high)]
