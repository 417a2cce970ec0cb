"""Logic, shifts and bit fields (PTX ISA, "Logic and Shift Instructions"; popc to bmsk of "Integer Arithmetic")."""

from __future__ import annotations

from tensorladder.core.errors import Unsupported
from tensorladder.vgpu.codegen.emit import Emitter, vec
from tensorladder.vgpu.codegen.fp import modifiers
from tensorladder.vgpu.codegen.ints import I32, minimum, operands, select
from tensorladder.vgpu.codegen.table import instruction
from tensorladder.vgpu.ptx.nodes import TYPE_BITS, Imm, Instr, Pair

_BITS = {"b16", "b32", "b64"}


def _typed(i: Instr, types: set[str], allowed: str = "") -> tuple[str, frozenset[str]]:
    """(type, other modifiers); Unsupported for a type or modifier that is not among those given."""
    mods = modifiers(i, 1, allowed)
    if i.mods[-1] not in types:
        raise Unsupported(i.text)
    return i.mods[-1], mods


def const(e: Emitter, value: int, ty: str = I32) -> str:
    """The same integer in every lane."""
    return e.splat(ty, value)


# ---------------------------------------------------------------- logic
@instruction("and", "or", "xor", forms="pred, b16, b32, b64")
def bitwise(e: Emitter, i: Instr) -> None:
    """Bitwise logic."""
    ty, _ = _typed(i, _BITS | {"pred"})
    a, b = operands(e, i, ty)
    e.set(i.operands[0], e.op(f"{i.op} {vec(ty)} {a}, {b}"), ty)


@instruction("not", "cnot", forms="not: pred, b16, b32, b64; cnot: b16, b32, b64")
def negation(e: Emitter, i: Instr) -> None:
    """Bits inverted (not), or 1 for zero and 0 for all else (cnot)."""
    ty, _ = _typed(i, _BITS | ({"pred"} if i.op == "not" else set()))
    (a,) = operands(e, i, ty, 1)
    if i.op == "not":
        e.set(i.operands[0], e.op(f"xor {vec(ty)} {a}, {e.splat(vec(ty), 'true' if ty == 'pred' else -1)}"), ty)
        return
    zero = e.op(f"icmp eq {vec(ty)} {a}, zeroinitializer")
    e.set(i.operands[0], e.op(f"zext <32 x i1> {zero} to {vec(ty)}"), ty)


@instruction("lop3", forms="b32 with any table; .or and .and with a predicate")
def lop3(e: Emitter, i: Instr) -> None:
    """Any function of three inputs: bit 4a + 2b + c of the table is the result."""
    _, mods = _typed(i, {"b32"}, "and or")
    table = i.operands[4]
    if not isinstance(table, Imm):
        raise Unsupported(f"{i.text} with a table that is no constant")
    value = _table(e, operands(e, i, "b32", 3), table.value & 0xFF)
    if not mods:
        e.set(i.operands[0], value, "b32")
        return
    if not isinstance(i.operands[0], Pair):
        raise Unsupported(i.text)
    (how,) = mods
    nonzero = e.op(f"icmp ne {I32} {value}, zeroinitializer")
    p = e.op(f"{how} <32 x i1> {nonzero}, {e.value(i.operands[5], 'pred')}")
    e.set(i.operands[0].first, value, "b32")
    e.set(i.operands[0].second, p, "pred")


def _table(e: Emitter, inputs: list[str], table: int) -> str:
    """Code for a truth table, by expansion about the first input; equal and opposite halves make it short."""
    size = 1 << len(inputs)
    if table in (0, (1 << size) - 1):
        return const(e, -1 if table else 0)
    half = size // 2
    ones = (1 << half) - 1
    high, low = table >> half, table & ones
    a, rest = inputs[0], inputs[1:]
    if high == low:
        return _table(e, rest, low)
    if high == low ^ ones:
        return e.op(f"xor {I32} {a}, {_table(e, rest, low)}")
    inverse = e.op(f"xor {I32} {a}, {const(e, -1)}")
    if high in (0, ones):
        return e.op(f"{'or' if high else 'and'} {I32} {a if high else inverse}, {_table(e, rest, low)}")
    if low in (0, ones):
        return e.op(f"{'or' if low else 'and'} {I32} {inverse if low else a}, {_table(e, rest, high)}")
    parts = [e.op(f"and {I32} {x}, {_table(e, rest, t)}") for x, t in ((a, high), (inverse, low))]
    return e.op(f"or {I32} {parts[0]}, {parts[1]}")


# ---------------------------------------------------------------- shifts
@instruction("shl", "shr", forms="b16 to b64, shr of u and s too; amounts over the width clamp")
def shift(e: Emitter, i: Instr) -> None:
    """Shift; amounts of the width or more give 0, or the sign for arithmetic right shifts."""
    numbers = {"u16", "u32", "u64", "s16", "s32", "s64"}
    ty, _ = _typed(i, _BITS | (numbers if i.op == "shr" else set()))
    (a,) = operands(e, i, ty, 1)
    how = "shl" if i.op == "shl" else ("ashr" if ty[0] == "s" else "lshr")
    e.set(i.operands[0], shifted(e, how, a, e.value(i.operands[2], "u32"), ty), ty)


def resized(e: Emitter, amount: str, bits: int) -> str:
    """A small <32 x i32> number as integers of another width."""
    if bits == 32:
        return amount
    return e.op(f"{'zext' if bits > 32 else 'trunc'} {I32} {amount} to <32 x i{bits}>")


def shifted(e: Emitter, how: str, a: str, amount: str, ty: str) -> str:
    """shl, lshr or ashr by any unsigned amount (<32 x i32>): what is shifted out is gone."""
    bits, llvm = TYPE_BITS[ty], vec(ty)
    n = resized(e, minimum(e, amount, const(e, bits - 1)), bits)
    value = e.op(f"{how} {llvm} {a}, {n}")
    if how == "ashr":
        return value
    over = e.op(f"icmp ugt {I32} {amount}, {const(e, bits - 1)}")
    return select(e, over, llvm, "zeroinitializer", value)


@instruction("shf", forms="l and r, wrap and clamp, b32")
def funnel(e: Emitter, i: Instr) -> None:
    """Shift of a 64-bit value whose halves are operands 1 (low) and 2 (high)."""
    _, mods = _typed(i, {"b32"}, "l r wrap clamp")
    if len(mods) != 2 or len(mods & {"l", "r"}) != 1:
        raise Unsupported(i.text)
    low, high, n = operands(e, i, "u32", 3)
    name = "llvm.fshl.v32i32" if "l" in mods else "llvm.fshr.v32i32"
    value = e.intrinsic(name, I32, (I32, high), (I32, low), (I32, n))  # the amount counts modulo 32
    if "clamp" in mods:
        over = e.op(f"icmp ugt {I32} {n}, {const(e, 31)}")
        value = select(e, over, I32, low if "l" in mods else high, value)
    e.set(i.operands[0], value, "b32")


# ---------------------------------------------------------------- counting and finding bits
def _unary(e: Emitter, name: str, a: str, ty: str, *flags: str) -> str:
    return e.intrinsic(f"llvm.{name}.v32i{TYPE_BITS[ty]}", vec(ty), (vec(ty), a), *(("i1", f) for f in flags))


def narrow(e: Emitter, value: str, ty: str) -> str:
    """A count to 32 bits."""
    return value if TYPE_BITS[ty] == 32 else e.op(f"trunc {vec(ty)} {value} to {I32}")


@instruction("popc", "clz", "brev", forms="b32, b64")
def count(e: Emitter, i: Instr) -> None:
    """Ones (popc), leading zeros (clz), bits reversed (brev)."""
    ty, _ = _typed(i, {"b32", "b64"})
    (a,) = operands(e, i, ty, 1)
    if i.op == "brev":
        e.set(i.operands[0], _unary(e, "bitreverse", a, ty), ty)
        return
    value = _unary(e, "ctpop", a, ty) if i.op == "popc" else _unary(e, "ctlz", a, ty, "false")
    e.set(i.operands[0], narrow(e, value, ty), "u32")


@instruction("bfind", forms="u32, s32, u64, s64; .shiftamt")
def bfind(e: Emitter, i: Instr) -> None:
    """Place of the highest bit unlike the sign, or (.shiftamt) the shift that brings it to the top; else all ones."""
    ty, mods = _typed(i, {"u32", "s32", "u64", "s64"}, "shiftamt")
    (a,) = operands(e, i, ty, 1)
    if ty[0] == "s":
        a = e.op(f"xor {vec(ty)} {a}, {e.op(f'ashr {vec(ty)} {a}, {e.splat(vec(ty), TYPE_BITS[ty] - 1)}')}")
    zeros = narrow(e, _unary(e, "ctlz", a, ty, "false"), ty)
    value = e.op(f"sub {I32} {const(e, TYPE_BITS[ty] - 1)}, {zeros}")
    if mods:
        none = e.op(f"icmp eq {I32} {value}, {const(e, -1)}")
        value = select(e, none, I32, value, zeros)
    e.set(i.operands[0], value, "u32")


@instruction("fns", forms="b32")
def fns(e: Emitter, i: Instr) -> None:
    """Place of the n-th set bit of a mask from a base on, downwards for negative n; all ones if there is none."""
    _typed(i, {"b32"})
    mask, base, offset = operands(e, i, "b32", 3)
    down = e.op(f"icmp slt {I32} {offset}, zeroinitializer")
    # downwards is upwards in the reversed mask
    mirror = _unary(e, "bitreverse", mask, "b32")
    mask = select(e, down, I32, mirror, mask)
    start = select(e, down, I32, e.op(f"sub {I32} {const(e, 31)}, {base}"), base)
    kept = e.op(f"and {I32} {mask}, {shifted(e, 'shl', const(e, -1), start, 'b32')}")
    n = e.intrinsic("llvm.abs.v32i32", I32, (I32, offset), ("i1", "false"))
    none = e.op(f"icmp eq {I32} {n}, zeroinitializer")
    only = shifted(e, "shl", const(e, 1), start, "b32")  # offset 0: the base's own bit
    kept = select(e, none, I32, e.op(f"and {I32} {kept}, {only}"), kept)
    n = minimum(e, n, const(e, 1), how="umax")
    found = e.op(f"icmp uge {I32} {_unary(e, 'ctpop', kept, 'b32')}, {n}")
    place = _select_bit(e, kept, e.op(f"sub {I32} {n}, {const(e, 1)}"))
    place = select(e, down, I32, e.op(f"sub {I32} {const(e, 31)}, {place}"), place)
    inside = e.op(f"icmp ult {I32} {base}, {const(e, 32)}")
    found = e.op(f"and <32 x i1> {found}, {inside}")
    e.set(i.operands[0], select(e, found, I32, place, const(e, -1)), "b32")


def _select_bit(e: Emitter, mask: str, n: str) -> str:
    """Place of set bit number n (from 0), by halves."""
    place = const(e, 0)
    for width in (16, 8, 4, 2, 1):
        part = e.op(f"lshr {I32} {mask}, {place}")
        part = e.op(f"and {I32} {part}, {const(e, (1 << width) - 1)}")
        ones = _unary(e, "ctpop", part, "b32")
        later = e.op(f"icmp uge {I32} {n}, {ones}")
        n = select(e, later, I32, e.op(f"sub {I32} {n}, {ones}"), n)
        place = select(e, later, I32, e.op(f"add {I32} {place}, {const(e, width)}"), place)
    return place


# ---------------------------------------------------------------- bit fields
def _place(e: Emitter, operand: object, bits: int) -> str:
    """A field's place or length, at most 255. The ISA leaves more open: 32-bit forms on silicon take the low 8 bits,
    64-bit ones the whole word."""
    value = e.value(operand, "u32")
    return e.op(f"and {I32} {value}, {const(e, 255)}") if bits == 32 else minimum(e, value, const(e, 255))


@instruction("bfe", forms="u32, s32, u64, s64")
def bfe(e: Emitter, i: Instr) -> None:
    """Bits from a place on, `length` of them; signed: the field's top bit, or the word's where it ends first, fills."""
    ty, _ = _typed(i, {"u32", "s32", "u64", "s64"})
    bits, llvm = TYPE_BITS[ty], vec(ty)
    (a,) = operands(e, i, ty, 1)
    place, length = (_place(e, o, bits) for o in i.operands[2:4])
    end = minimum(e, e.op(f"add {I32} {place}, {length}"), const(e, bits))
    up = e.op(f"sub {I32} {const(e, bits)}, {end}")
    top = shifted(e, "shl", a, up, ty)
    value = shifted(e, "ashr" if ty[0] == "s" else "lshr", top, e.op(f"add {I32} {up}, {place}"), ty)
    empty = e.op(f"icmp eq {I32} {length}, zeroinitializer")
    e.set(i.operands[0], select(e, empty, llvm, "zeroinitializer", value), ty)


@instruction("bfi", forms="b32, b64")
def bfi(e: Emitter, i: Instr) -> None:
    """Operand 2 with `length` bits of operand 1 put in at a place."""
    ty, _ = _typed(i, {"b32", "b64"})
    llvm = vec(ty)
    a, b = operands(e, i, ty)
    place, length = (_place(e, o, TYPE_BITS[ty]) for o in i.operands[3:5])
    ones = e.splat(llvm, -1)
    field = e.op(f"xor {llvm} {shifted(e, 'shl', ones, length, ty)}, {ones}")
    mask = shifted(e, "shl", field, place, ty)
    kept = e.op(f"and {llvm} {b}, {e.op(f'xor {llvm} {mask}, {ones}')}")
    put = e.op(f"and {llvm} {shifted(e, 'shl', a, place, ty)}, {mask}")
    e.set(i.operands[0], e.op(f"or {llvm} {kept}, {put}"), ty)


@instruction("szext", forms="clamp and wrap, u32 and s32")
def szext(e: Emitter, i: Instr) -> None:
    """The low n bits, extended with zeros or their sign; n from 32 up is 32 (.clamp) or counts modulo 32 (.wrap)."""
    ty, mods = _typed(i, {"u32", "s32"}, "clamp wrap")
    if len(mods) != 1:
        raise Unsupported(i.text)
    a, n = e.value(i.operands[1], ty), e.value(i.operands[2], "u32")
    n = minimum(e, n, const(e, 32)) if "clamp" in mods else e.op(f"and {I32} {n}, {const(e, 31)}")
    up = e.op(f"sub {I32} {const(e, 32)}, {n}")
    top = shifted(e, "shl", a, up, ty)
    e.set(i.operands[0], shifted(e, "ashr" if ty == "s32" else "lshr", top, up, ty), ty)


@instruction("bmsk", forms="clamp and wrap, b32")
def bmsk(e: Emitter, i: Instr) -> None:
    """Ones from place a on, b of them; .wrap takes both modulo 32."""
    _, mods = _typed(i, {"b32"}, "clamp wrap")
    if len(mods) != 1:
        raise Unsupported(i.text)
    a, b = operands(e, i, "b32")
    if "wrap" in mods:
        a, b = (e.op(f"and {I32} {v}, {const(e, 31)}") for v in (a, b))
    ones = e.op(f"xor {I32} {shifted(e, 'shl', const(e, -1), b, 'b32')}, {const(e, -1)}")
    e.set(i.operands[0], shifted(e, "shl", ones, a, "b32"), "b32")
