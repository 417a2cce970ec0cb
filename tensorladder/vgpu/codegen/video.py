"""Video instructions (PTX ISA, "Scalar Video Instructions", "SIMD Video Instructions").

Operands may be parts of registers, `%r1.b0` or `%r1.h32`: the parser gives `Part`. Intermediate results are kept in
64 bits (scalar) or 32 bits an element (SIMD), which is wider than what they can need.
"""

from __future__ import annotations

import re

from tensorladder.core.errors import Unsupported
from tensorladder.vgpu.codegen.emit import Emitter
from tensorladder.vgpu.codegen.fp import modifiers
from tensorladder.vgpu.codegen.ints import I32, I64, minimum
from tensorladder.vgpu.codegen.table import instruction
from tensorladder.vgpu.ptx.nodes import Instr, Part

_TYPES = ("u32", "s32")
_ORDER = {"eq": "eq", "ne": "ne", "lt": "slt", "le": "sle", "gt": "sgt", "ge": "sge"}
_SCALAR = ("vadd", "vsub", "vabsdiff", "vmin", "vmax")
_SIMD = ("vadd", "vsub", "vavrg", "vabsdiff", "vmin", "vmax")


def _types(i: Instr, count: int) -> tuple[str, ...]:
    types = i.mods[:count]
    if len(types) != count or any(ty not in _TYPES for ty in types):
        raise Unsupported(i.text)
    return types


def _rest(i: Instr, types: int, allowed: str) -> frozenset[str]:
    """The modifiers after the types."""
    return modifiers(Instr(i.op, i.mods[types:], [], i.line), 0, allowed)


def _field(e: Emitter, word: str, bits: int, place: int, ty: str, out: str = I32) -> str:
    """`bits` bits of a word at an element's place, extended by the sign of `ty` to LLVM type `out`."""
    shift = "ashr" if ty == "s32" else "lshr"
    if bits < 32:
        top = e.op(f"shl {I32} {word}, {e.splat(I32, 32 - bits * (place + 1))}")
        word = e.op(f"{shift} {I32} {top}, {e.splat(I32, 32 - bits)}")
    return word if out == I32 else e.op(f"{'sext' if ty == 's32' else 'zext'} {I32} {word} to {out}")


def _combine(e: Emitter, op: str, a: str, b: str, ty: str) -> str:
    """The primary operation on signed integers of LLVM type `ty`."""
    if op in ("vmin", "vmax"):
        return minimum(e, a, b, ty, "s" + op[1:])
    if op == "vabsdiff":
        return e.op(f"sub {ty} {minimum(e, a, b, ty, 'smax')}, {minimum(e, a, b, ty, 'smin')}")
    if op == "vsub":
        return e.op(f"sub {ty} {a}, {b}")
    total = e.op(f"add {ty} {a}, {b}")
    if op == "vadd":
        return total
    up = e.op(f"zext <32 x i1> {e.op(f'icmp sge {ty} {total}, zeroinitializer')} to {ty}")  # rounds away from zero
    return e.op(f"ashr {ty} {e.op(f'add {ty} {total}, {up}')}, {e.splat(ty, 1)}")


def _clamp(e: Emitter, value: str, bits: int, signed: bool, ty: str) -> str:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return minimum(e, minimum(e, value, e.splat(ty, low), ty, "smax"), e.splat(ty, high), ty, "smin")


def _comparison(i: Instr, mods: frozenset[str]) -> str:
    found = sorted(mods & set(_ORDER))
    if len(found) != 1:
        raise Unsupported(i.text)
    return found[0]


# ---------------------------------------------------------------- scalar
def _scalar_source(e: Emitter, i: Instr, operand: object, ty: str) -> str:
    """A source, or the byte or half of it that is selected, as i64."""
    if not isinstance(operand, Part):
        return _field(e, e.value(operand, ty), 32, 0, ty, I64)
    bits, place = _selector(i, operand.name)
    return _field(e, e.value(operand.reg, ty), bits, place, ty, I64)


def _selector(i: Instr, name: str) -> tuple[int, int]:
    """(bits, place) of b0 to b3, h0 or h1."""
    match = re.fullmatch(r"b([0-3])|h([01])", name)
    if match is None:
        raise Unsupported(f"{i.text} (.{name})")
    return (8, int(match[1])) if match[1] else (16, int(match[2]))


@instruction(*_SCALAR, forms="u32, s32; .sat; byte and half selectors; .add, .min, .max with a third operand; merging")
def scalar(e: Emitter, i: Instr) -> None:
    """One operation, saturated to the destination's part, then joined with c."""
    to, ta, tb = _types(i, 3)
    mods = _rest(i, 3, "sat add min max")
    a, b = _scalar_source(e, i, i.operands[1], ta), _scalar_source(e, i, i.operands[2], tb)
    _finish(e, i, _combine(e, i.op, a, b, I64), to, mods)


@instruction("vshl", "vshr", forms="u32, s32; .clamp, .wrap; .sat; selectors; .add, .min, .max; merging")
def shift(e: Emitter, i: Instr) -> None:
    """Shift left or right by an unsigned amount, at most 32 (.clamp) or modulo 32 (.wrap)."""
    to, ta, tb = _types(i, 3)
    mods = _rest(i, 3, "sat clamp wrap add min max")
    if tb != "u32" or len(mods & {"clamp", "wrap"}) != 1:
        raise Unsupported(i.text)
    a, b = _scalar_source(e, i, i.operands[1], ta), _scalar_source(e, i, i.operands[2], tb)
    b = minimum(e, b, e.splat(I64, 32), I64) if "clamp" in mods else e.op(f"and {I64} {b}, {e.splat(I64, 31)}")
    value = e.op(f"{'shl' if i.op == 'vshl' else 'ashr'} {I64} {a}, {b}")
    _finish(e, i, value, to, mods - {"clamp", "wrap"})


@instruction("vset", forms="u32, s32; all comparisons; selectors; .add, .min, .max; merging")
def compare(e: Emitter, i: Instr) -> None:
    """1 or 0 by a comparison, joined with c."""
    ta, tb = _types(i, 2)
    mods = _rest(i, 2, "eq ne lt le gt ge add min max")
    how = _comparison(i, mods)
    a, b = _scalar_source(e, i, i.operands[1], ta), _scalar_source(e, i, i.operands[2], tb)
    value = e.op(f"zext <32 x i1> {e.op(f'icmp {_ORDER[how]} {I64} {a}, {b}')} to {I64}")
    _finish(e, i, value, "u32", mods - {how})


def _finish(e: Emitter, i: Instr, value: str, to: str, mods: frozenset[str]) -> None:
    """Saturation, and the second operation or the merge with c."""
    target, part = i.operands[0], None
    if isinstance(target, Part):
        target, part = target.reg, _selector(i, target.name)
    second = mods - {"sat"}
    if len(second) > 1 or (second and part) or len(i.operands) != 3 + bool(second or part):
        raise Unsupported(i.text)
    if "sat" in mods:
        value = _clamp(e, value, part[0] if part else 32, to == "s32", I64)
    value = e.op(f"trunc {I64} {value} to {I32}")
    if second:
        (op,) = second
        c = e.value(i.operands[3], to)
        value = e.op(f"add {I32} {value}, {c}") if op == "add" else minimum(e, value, c, I32, to[0] + op)
    elif part:
        value = _merge(e, value, e.value(i.operands[3], to), *part)
    e.set(target, value, to)


def _merge(e: Emitter, value: str, c: str, bits: int, place: int) -> str:
    mask = ((1 << bits) - 1) << bits * place
    put = e.op(f"shl {I32} {value}, {e.splat(I32, bits * place)}")
    put = e.op(f"and {I32} {put}, {e.splat(I32, mask)}")
    return e.op(f"or {I32} {put}, {e.op(f'and {I32} {c}, {e.splat(I32, ~mask & 0xFFFFFFFF)}')}")


# ---------------------------------------------------------------- two halves or four bytes
@instruction(*(op + n for n in "24" for op in _SIMD), forms="u32, s32; .sat; .add; masks and element selectors")
def simd(e: Emitter, i: Instr) -> None:
    """An operation on each element, saturated; the chosen ones are merged into c or added to it."""
    to, ta, tb = _types(i, 3)
    mods = _rest(i, 3, "sat add")
    if len(mods) > 1:
        raise Unsupported(i.text)
    bits = 32 // int(i.op[-1])
    elements = [_combine(e, i.op[:-1], a, b, I32) for a, b in _elements(e, i, ta, tb)]
    if "sat" in mods:
        elements = [_clamp(e, value, bits, to == "s32", I32) for value in elements]
    _join(e, i, elements, to, "add" in mods)


@instruction("vset2", "vset4", forms="u32, s32; all comparisons; .add; masks and element selectors")
def compare_simd(e: Emitter, i: Instr) -> None:
    """1 or 0 by a comparison of each element."""
    ta, tb = _types(i, 2)
    mods = _rest(i, 2, "eq ne lt le gt ge add")
    how = _comparison(i, mods)
    found = [e.op(f"icmp {_ORDER[how]} {I32} {a}, {b}") for a, b in _elements(e, i, ta, tb)]
    _join(e, i, [e.op(f"zext <32 x i1> {f} to {I32}") for f in found], "u32", "add" in mods)


def _elements(e: Emitter, i: Instr, ta: str, tb: str) -> list[tuple[str, str]]:
    """Pairs of elements, the lowest first; each is taken from any place of both sources."""
    count = int(i.op[-1])
    sources = [o.reg if isinstance(o, Part) else o for o in i.operands[1:3]]
    words = [e.value(o, "b32") for o in sources]
    sides = []
    for k, ty in enumerate((ta, tb)):
        operand = i.operands[1 + k]
        places = _places(i, operand.name, count) if isinstance(operand, Part) else range(k * count, (k + 1) * count)
        sides.append([_field(e, words[p // count], 32 // count, p % count, ty) for p in places])
    return list(zip(*sides, strict=True))


def _places(i: Instr, name: str, count: int) -> list[int]:
    """Selected places, the lowest element's first: h10, b7654."""
    pattern = {2: r"h[0-3]{2}", 4: r"b[0-7]{4}"}[count]
    if re.fullmatch(pattern, name) is None:
        raise Unsupported(f"{i.text} (.{name})")
    return [int(digit) for digit in reversed(name[1:])]


def _join(e: Emitter, i: Instr, elements: list[str], to: str, add: bool) -> None:
    target, count = i.operands[0], len(elements)
    chosen = set(range(count))
    if isinstance(target, Part):
        if re.fullmatch(r"h[01]{1,2}|b[0-3]{1,4}", target.name) is None:
            raise Unsupported(f"{i.text} (.{target.name})")
        target, chosen = target.reg, {int(digit) for digit in target.name[1:]}
    value = e.value(i.operands[3], to)
    for k in sorted(chosen):
        if add:
            value = e.op(f"add {I32} {value}, {elements[k]}")
        else:
            value = _merge(e, elements[k], value, 32 // count, k)
    e.set(target, value, to)
