"""Integer arithmetic (PTX ISA, "Integer Arithmetic Instructions"). Mnemonics shared with floats dispatch by type.

Results that the ISA leaves open (division by zero) are what an H200 gives; see tests/vgpu/test_integer.py.
"""

from __future__ import annotations

from collections.abc import Callable

from tensorladder.core.errors import Unsupported
from tensorladder.vgpu.codegen import carry, floating
from tensorladder.vgpu.codegen.emit import SIGNED, Emitter, vec
from tensorladder.vgpu.codegen.fp import modifiers
from tensorladder.vgpu.codegen.ints import I32, I64, minimum, operands, product, select
from tensorladder.vgpu.codegen.table import instruction
from tensorladder.vgpu.ptx.nodes import TYPE_BITS, Imm, Instr

_INT = {"u16", "s16", "u32", "s32", "u64", "s64"}
_PACKED = {"u16x2", "s16x2"}
_WORDS = {"u32", "s32"}
PACKED = "<64 x i16>"


_F32 = "f32: .rn .rz .rm .rp .ftz .sat; f64: .rn .rz .rm .rp"
_F16 = "f16, f16x2: .ftz .sat; bf16, bf16x2"
_SUMS = f"16 to 64 bits, u and s; u16x2, s16x2; .sat, .cc; {_F32}; f32x2; {_F16}; f32 with f16 or bf16"
_EXTREMES = "16 to 64 bits, u and s; u16x2, s16x2; .relu; f32, f64, f16, bf16 and pairs: .ftz .NaN .abs .xorsign"
_SIGNS = "s16, s32, s64; f32, f64, f16, bf16 and pairs; .ftz"
#: mnemonic -> forms that run, for SUPPORTED.md
_FORMS = {
    "add": _SUMS,
    "sub": _SUMS,
    "mul": f".lo and .hi of 16 to 64 bits, .wide of 16 and 32, u and s; {_F32}; f32x2; {_F16}",
    "mad": f".lo and .hi of 16 to 64 bits, .wide of 16 and 32, u and s; .hi.sat.s32; .lo.cc, .hi.cc; {_F32}",
    "fma": f"{_F32}; f32x2; {_F16}; .relu of 16-bit types; f32 with f16 or bf16",
    "min": _EXTREMES,
    "max": _EXTREMES,
    "neg": _SIGNS,
    "abs": _SIGNS,
    "div": "16 to 64 bits, u and s; f32: .approx .full .rn .rz .rm .rp .ftz; f64: .rn .rz .rm .rp",
    "rem": "16 to 64 bits, u and s",
}
_REFUSED = dict.fromkeys(("add", "sub", "mul"), "the packed mixed forms of PTX 9.4")
_REFUSED["fma"] = ".oob; the packed mixed forms of PTX 9.4"


def arithmetic(e: Emitter, i: Instr) -> None:
    """Dispatch by type: integers here, the others to `floating`."""
    ty = i.mods[-1]
    if ty not in _INT and ty not in _PACKED:
        floating.arithmetic(e, i)
    elif "cc" in i.mods:
        carry.extended(e, i)
    else:
        emit = _BY_OP.get(i.op)
        if emit is None:
            raise Unsupported(i.text)
        emit(e, i, ty)


for _op, _text in _FORMS.items():
    instruction(_op, forms=_text, refused=_REFUSED.get(_op, ""))(arithmetic)


# ---------------------------------------------------------------- add, sub, min, max, neg, abs
def _packed(e: Emitter, value: str, back: bool = False) -> str:
    """Words to pairs of 16-bit integers, or back."""
    return e.op(f"bitcast {PACKED} {value} to {I32}" if back else f"bitcast {I32} {value} to {PACKED}")


def _add(e: Emitter, i: Instr, ty: str) -> None:
    mods = modifiers(i, 1, "sat")
    if mods and ty not in ("s32", "u32", *_PACKED):
        raise Unsupported(f"{i.text} (.sat)")
    a, b = operands(e, i, ty)
    llvm = vec(ty)
    if ty in _PACKED:
        a, b, llvm = _packed(e, a), _packed(e, b), PACKED
    if mods:
        value = minimum(e, a, b, llvm, ("s" if ty[0] == "s" else "u") + i.op + ".sat")
    else:
        value = e.op(f"{i.op} {llvm} {a}, {b}")
    e.set(i.operands[0], _packed(e, value, True) if ty in _PACKED else value, ty)


def _extreme(e: Emitter, i: Instr, ty: str) -> None:
    """min and max; .relu clamps negatives to 0."""
    mods = modifiers(i, 1, "relu")
    if mods and ty not in ("s32", "s16x2"):
        raise Unsupported(f"{i.text} (.relu)")
    a, b = operands(e, i, ty)
    llvm = vec(ty)
    if ty in _PACKED:
        a, b, llvm = _packed(e, a), _packed(e, b), PACKED
    value = minimum(e, a, b, llvm, ty[0] + i.op)
    if mods:
        value = minimum(e, value, "zeroinitializer", llvm, "smax")
    e.set(i.operands[0], _packed(e, value, True) if ty in _PACKED else value, ty)


def _neg(e: Emitter, i: Instr, ty: str) -> None:
    modifiers(i, 1, "")
    if ty not in SIGNED:
        raise Unsupported(i.text)
    (a,) = operands(e, i, ty, 1)
    e.set(i.operands[0], e.op(f"sub {vec(ty)} zeroinitializer, {a}"), ty)


def _abs(e: Emitter, i: Instr, ty: str) -> None:
    modifiers(i, 1, "")
    if ty not in SIGNED:
        raise Unsupported(i.text)
    (a,) = operands(e, i, ty, 1)
    e.set(i.operands[0], e.intrinsic(f"llvm.abs.v32i{TYPE_BITS[ty]}", vec(ty), (vec(ty), a), ("i1", "false")), ty)


# ---------------------------------------------------------------- mul, mad
def _mode(i: Instr, extra: str = "") -> tuple[str, frozenset[str]]:
    """(hi, lo or wide, the other modifiers)."""
    mods = modifiers(i, 1, f"hi lo wide {extra}")
    modes = mods & {"hi", "lo", "wide"}
    if len(modes) != 1 or ("wide" in modes and TYPE_BITS[i.mods[-1]] == 64):
        raise Unsupported(i.text)
    return next(iter(modes)), mods - modes


def _mul(e: Emitter, i: Instr, ty: str) -> None:
    if ty in _PACKED:
        raise Unsupported(i.text)
    value, out = product(e, i, ty, _mode(i)[0])
    e.set(i.operands[0], value, out)


def _mad(e: Emitter, i: Instr, ty: str) -> None:
    if ty in _PACKED:
        raise Unsupported(i.text)
    mode, rest = _mode(i, "sat")
    if rest and (mode, ty) != ("hi", "s32"):
        raise Unsupported(f"{i.text} (.sat)")
    value, out = product(e, i, ty, mode)
    c = e.value(i.operands[3], out)
    if rest:
        e.set(i.operands[0], minimum(e, value, c, I32, "sadd.sat"), out)
    else:
        e.set(i.operands[0], e.op(f"add {vec(out)} {value}, {c}"), out)


@instruction("mul24", "mad24", forms="hi and lo of u32 and s32; mad24.hi.sat.s32")
def mul24(e: Emitter, i: Instr) -> None:
    """Product of the low 24 bits: bits 0 to 31 (.lo) or 16 to 47 (.hi) of it."""
    ty = i.mods[-1]
    mods = modifiers(i, 1, "hi lo" + (" sat" if i.op == "mad24" else ""))
    if ty not in _WORDS or len(mods & {"hi", "lo"}) != 1 or ("sat" in mods and not ("hi" in mods and ty == "s32")):
        raise Unsupported(i.text)
    shift = "ashr" if ty == "s32" else "lshr"
    parts = []
    for a in operands(e, i, ty):
        high = e.op(f"shl {I32} {a}, splat (i32 8)")
        low = e.op(f"{shift} {I32} {high}, splat (i32 8)")
        parts.append(e.op(f"{'sext' if ty == 's32' else 'zext'} {I32} {low} to {I64}"))
    full = e.op(f"mul {I64} {parts[0]}, {parts[1]}")
    if "hi" in mods:
        full = e.op(f"lshr {I64} {full}, splat (i64 16)")
    value = e.op(f"trunc {I64} {full} to {I32}")
    if i.op == "mad24":
        c = e.value(i.operands[3], ty)
        value = minimum(e, value, c, I32, "sadd.sat") if "sat" in mods else e.op(f"add {I32} {value}, {c}")
    e.set(i.operands[0], value, ty)


@instruction("sad", forms="16 to 64 bits, u and s")
def sad(e: Emitter, i: Instr) -> None:
    """c + |a - b|."""
    ty = i.mods[-1]
    modifiers(i, 1, "")
    if ty not in _INT:
        raise Unsupported(i.text)
    a, b, c = operands(e, i, ty, 3)
    high, low = (minimum(e, a, b, vec(ty), ty[0] + how) for how in ("max", "min"))
    e.set(i.operands[0], e.op(f"add {vec(ty)} {c}, {e.op(f'sub {vec(ty)} {high}, {low}')}"), ty)


# ---------------------------------------------------------------- div, rem
def _divide(e: Emitter, i: Instr, ty: str) -> None:
    """Quotient and remainder. The host's division traps on 0 and on MIN / -1: neither reaches it.

    16 and 32 bits go through double precision, whose 53 bits make the truncated quotient exact.
    """
    modifiers(i, 1, "")
    if ty in _PACKED:
        raise Unsupported(i.text)
    a, b = operands(e, i, ty)
    llvm, known = vec(ty), isinstance(i.operands[2], Imm)
    if known and i.operands[2].value not in (0, -1):  # LLVM makes multiplications and shifts of these
        e.set(i.operands[0], e.op(f"{ty[0]}{i.op} {llvm} {a}, {b}"), ty)
        return
    zero = e.op(f"icmp eq {llvm} {b}, zeroinitializer")
    safe = select(e, zero, llvm, e.splat(llvm, 1), b)
    if TYPE_BITS[ty] == 64:
        value = _divide64(e, i.op, ty[0], a, safe)
    else:
        value = _divide32(e, i.op, ty, a, safe)
    e.set(i.operands[0], select(e, zero, llvm, e.splat(llvm, -1), value), ty)


def _divide64(e: Emitter, op: str, sign: str, a: str, b: str) -> str:
    if sign == "s":  # MIN / -1 is MIN, as MIN / 1 is
        low = e.op(f"icmp eq {I64} {a}, {e.splat(I64, -(1 << 63))}")
        one = e.op(f"icmp eq {I64} {b}, {e.splat(I64, -1)}")
        b = select(e, e.op(f"and <32 x i1> {low}, {one}"), I64, e.splat(I64, 1), b)
    return e.op(f"{sign}{op} {I64} {a}, {b}")


def _divide32(e: Emitter, op: str, ty: str, a: str, b: str) -> str:
    llvm, sign = vec(ty), ty[0]
    x, y = (e.op(f"{sign}itofp {llvm} {v} to <32 x double>") for v in (a, b))
    q = e.op(f"fdiv <32 x double> {x}, {y}")
    # -MIN does not fit 32 bits: over 64 it does, and wraps as the hardware's does
    quotient = e.op(f"trunc {I64} {e.op(f'fpto{sign}i <32 x double> {q} to {I64}')} to {llvm}")
    if op == "div":
        return quotient
    return e.op(f"sub {llvm} {a}, {e.op(f'mul {llvm} {quotient}, {b}')}")


_BY_OP: dict[str, Callable[[Emitter, Instr, str], None]] = {
    "add": _add, "sub": _add, "mul": _mul, "mad": _mad, "min": _extreme, "max": _extreme, "neg": _neg, "abs": _abs,
    "div": _divide, "rem": _divide,
}  # fmt: skip


# ---------------------------------------------------------------- dot products
def _elements(e: Emitter, word: str, ty: str, bits: int, places: tuple[int, ...]) -> list[str]:
    """Bytes or halves of a word, extended to 32 bits by the signedness of `ty`."""
    shift = "ashr" if ty[0] == "s" else "lshr"
    found = []
    for place in places:
        top = e.op(f"shl {I32} {word}, {e.splat(I32, 32 - bits * (place + 1))}")
        found.append(e.op(f"{shift} {I32} {top}, {e.splat(I32, 32 - bits)}"))
    return found


@instruction("dp4a", "dp2a", forms="u32 and s32 for each factor; dp2a.lo and .hi")
def dot(e: Emitter, i: Instr) -> None:
    """Dot product of bytes (dp4a) or of halves and bytes (dp2a), added to c."""
    mods = modifiers(i, 2, "lo hi" if i.op == "dp2a" else "")
    types = i.mods[-2:]
    if not set(types) <= _WORDS or len(mods) != int(i.op == "dp2a"):
        raise Unsupported(i.text)
    a, b = (e.value(o, ty) for o, ty in zip(i.operands[1:3], types, strict=True))
    if i.op == "dp4a":
        left, right = (_elements(e, v, ty, 8, (0, 1, 2, 3)) for v, ty in ((a, types[0]), (b, types[1])))
    else:
        left = _elements(e, a, types[0], 16, (0, 1))
        right = _elements(e, b, types[1], 8, (2, 3) if "hi" in mods else (0, 1))
    total = e.value(i.operands[3], "u32")
    for x, y in zip(left, right, strict=True):
        total = e.op(f"add {I32} {total}, {e.op(f'mul {I32} {x}, {y}')}")
    e.set(i.operands[0], total, "s32" if "s32" in types else "u32")
