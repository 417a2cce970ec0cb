"""Comparison and selection (PTX ISA, "Comparison and Selection Instructions", and the same of half precision)."""

from __future__ import annotations

from tensorladder.core.errors import Unsupported
from tensorladder.vgpu.codegen.emit import Emitter, vec
from tensorladder.vgpu.codegen.fp import flush_bits, modifiers
from tensorladder.vgpu.codegen.ints import I32, select
from tensorladder.vgpu.codegen.table import instruction
from tensorladder.vgpu.ptx.nodes import TYPE_BITS, Instr, Pair

_INTS = {"u16", "u32", "u64", "s16", "s32", "s64"}
_BITS = {"b16", "b32", "b64"}
_FLOATS = {"f16", "bf16", "f32", "f64"}
_PACKED = {"f16x2": "f16", "bf16x2": "bf16"}
_BOOL = {"and", "or", "xor"}

_SIGNED = {"eq": "eq", "ne": "ne", "lt": "slt", "le": "sle", "gt": "sgt", "ge": "sge"}
_UNSIGNED = {"eq": "eq", "ne": "ne", "lt": "ult", "le": "ule", "gt": "ugt", "ge": "uge",
             "lo": "ult", "ls": "ule", "hi": "ugt", "hs": "uge"}  # fmt: skip
_FLOAT = {"eq": "oeq", "ne": "one", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge", "equ": "ueq", "neu": "une",
          "ltu": "ult", "leu": "ule", "gtu": "ugt", "geu": "uge", "num": "ord", "nan": "uno"}  # fmt: skip


def _float(e: Emitter, bits: str, ty: str, ftz: bool) -> str:
    """A float operand from its bits, in the type that LLVM compares; bf16 as f32."""
    if ftz:
        bits = flush_bits(e, bits, ty)
    if ty == "bf16":
        wide = e.op(f"shl {I32} {e.op(f'zext <32 x i16> {bits} to {I32}')}, splat (i32 16)")
        return e.op(f"bitcast {I32} {wide} to <32 x float>")
    return e.op(f"bitcast <32 x i{TYPE_BITS[ty]}> {bits} to {vec(ty)}")


def _compare(e: Emitter, i: Instr, how: str, ty: str, a: str, b: str, ftz: bool) -> str:
    """<32 x i1> of one comparison; operands are integers (bits, for floats)."""
    if ty in _FLOATS:
        if how not in _FLOAT:
            raise Unsupported(f"{i.text} (.{how})")
        x, y = (_float(e, v, ty, ftz) for v in (a, b))
        return e.op(f"fcmp {_FLOAT[how]} {'<32 x float>' if ty == 'bf16' else vec(ty)} {x}, {y}")
    table = _SIGNED if ty[0] == "s" else _UNSIGNED
    if how not in table or (ty in _BITS and how not in ("eq", "ne")):
        raise Unsupported(f"{i.text} (.{how})")
    return e.op(f"icmp {table[how]} {vec(ty)} {a}, {b}")


def _halves(e: Emitter, i: Instr) -> list[tuple[str, str]]:
    """The two operands' halves, low first: [(a0, b0), (a1, b1)] as <32 x i16>."""
    words = [e.value(o, "b32") for o in i.operands[1:3]]
    low = [e.op(f"trunc {I32} {w} to <32 x i16>") for w in words]
    high = [e.op(f"trunc {I32} {e.op(f'lshr {I32} {w}, splat (i32 16)')} to <32 x i16>") for w in words]
    return [(low[0], low[1]), (high[0], high[1])]


def _results(e: Emitter, i: Instr, ty: str, mods: tuple[str, ...]) -> tuple[list[str], str | None]:
    """The comparisons of set and setp (one a half for packed types), and the operation that joins a predicate."""
    how, rest = mods[0], list(mods[1:])
    join = rest.pop(0) if rest and rest[0] in _BOOL else None
    ftz = rest == ["ftz"]
    if (rest and not ftz) or (ftz and ty not in ("f32", "f16", "f16x2")):
        raise Unsupported(f"{i.text} (.{rest[0]})")
    if ty in _PACKED:
        return [_compare(e, i, how, _PACKED[ty], a, b, ftz) for a, b in _halves(e, i)], join
    if ty not in _INTS | _BITS | _FLOATS:
        raise Unsupported(i.text)
    a, b = (_operand(e, o, ty) for o in i.operands[1:3])
    return [_compare(e, i, how, ty, a, b, ftz)], join


def _operand(e: Emitter, operand: object, ty: str) -> str:
    """A source operand as integers of the type's width."""
    if ty not in ("f16", "f32", "f64"):
        return e.value(operand, ty)
    return e.op(f"bitcast {vec(ty)} {e.value(operand, ty)} to <32 x i{TYPE_BITS[ty]}>")


def _joined(e: Emitter, i: Instr, value: str, join: str | None) -> str:
    if join is None:
        return value
    return e.op(f"{join} <32 x i1> {value}, {e.value(i.operands[3], 'pred')}")


@instruction("setp", forms="all comparisons of 16 to 64-bit integers and bits, f16, bf16, f16x2, bf16x2, f32, f64; "
             ".and, .or, .xor with a predicate; .ftz; two results")  # fmt: skip
def setp(e: Emitter, i: Instr) -> None:
    """Compare to a predicate, or to one and its opposite; packed types: to one a half."""
    ty = i.mods[-1]
    found, join = _results(e, i, ty, i.mods[:-1])
    target = i.operands[0]
    if not isinstance(target, Pair):
        if len(found) != 1:
            raise Unsupported(f"{i.text} with one result")
        e.set(target, _joined(e, i, found[0], join), "pred")
        return
    if len(found) == 1:
        found.append(e.op(f"xor <32 x i1> {found[0]}, splat (i1 true)"))
    values = [_joined(e, i, value, join) for value in found]
    for operand, value in zip((target.first, target.second), values, strict=True):
        e.set(operand, value, "pred")


#: 1.0 in the float types that set writes
_ONE = {"f32": 0x3F800000, "f16": 0x3C00, "bf16": 0x3F80}


@instruction(
    "set", forms="comparisons as setp; to u32, s32, f32, f16, bf16; of halves to u16, s16, of pairs to pairs and words"
)
def set_(e: Emitter, i: Instr) -> None:
    """Compare to all ones or zero, or to 1.0 or 0.0."""
    to, ty = i.mods[-2:]
    found, join = _results(e, i, ty, i.mods[:-2])
    values = [_joined(e, i, value, join) for value in found]
    if len(values) == 2:
        _set_packed(e, i, to, ty, values)
        return
    wide = to in ("u32", "s32") or (to == "f32" and ty not in ("f16", "bf16"))
    if not wide and to not in (("u16", "s16", "f16", "bf16") if ty in ("f16", "bf16") else ("f16", "bf16")):
        raise Unsupported(i.text)
    bits = f"<32 x i{TYPE_BITS[to]}>"
    value = select(e, values[0], bits, e.splat(bits, _ONE.get(to, -1)), "zeroinitializer")
    e.set(i.operands[0], value, f"b{TYPE_BITS[to]}")


def _set_packed(e: Emitter, i: Instr, to: str, ty: str, values: list[str]) -> None:
    if to not in ("u32", "s32", ty):
        raise Unsupported(i.text)
    one = _ONE[_PACKED[ty]] if to == ty else 0xFFFF
    low, high = (
        select(e, v, I32, e.splat(I32, one << n), "zeroinitializer") for v, n in zip(values, (0, 16), strict=True)
    )
    e.set(i.operands[0], e.op(f"or {I32} {low}, {high}"), "b32")


@instruction("selp", forms="16 to 64 bits")
def selp(e: Emitter, i: Instr) -> None:
    """Select by predicate."""
    ty = _selected_type(i, 1, "")[0]
    a, b = (_operand(e, o, ty) for o in i.operands[1:3])
    value = select(e, e.value(i.operands[3], "pred"), f"<32 x i{TYPE_BITS[ty]}>", a, b)
    e.set(i.operands[0], value, f"b{TYPE_BITS[ty]}")


def _selected_type(i: Instr, types: int, allowed: str) -> tuple[str, frozenset[str]]:
    mods = modifiers(i, types, allowed)
    ty = i.mods[-types]
    if ty not in _INTS | _BITS | {"f32", "f64"}:
        raise Unsupported(i.text)
    return ty, mods


@instruction("slct", forms="16 to 64 bits by s32 or f32; .ftz")
def slct(e: Emitter, i: Instr) -> None:
    """a where c >= 0 (-0.0 too), else b (NaN too)."""
    ty, mods = _selected_type(i, 2, "ftz")
    by = i.mods[-1]
    if by not in ("s32", "f32") or (mods and by != "f32"):
        raise Unsupported(i.text)
    a, b = (_operand(e, o, ty) for o in i.operands[1:3])
    c = _operand(e, i.operands[3], by)
    if by == "s32":
        chosen = e.op(f"icmp sge {I32} {c}, zeroinitializer")
    else:
        chosen = e.op(f"fcmp oge <32 x float> {_float(e, c, 'f32', bool(mods))}, zeroinitializer")
    e.set(i.operands[0], select(e, chosen, f"<32 x i{TYPE_BITS[ty]}>", a, b), f"b{TYPE_BITS[ty]}")
