"""Integer arithmetic (PTX ISA, "Integer Arithmetic Instructions"). Mnemonics shared with floats dispatch by type."""

from __future__ import annotations

from tensorladder.core.errors import Unsupported
from tensorladder.vgpu.codegen import floating
from tensorladder.vgpu.codegen.emit import SIGNED, Emitter, vec
from tensorladder.vgpu.codegen.table import instruction
from tensorladder.vgpu.ptx.nodes import TYPE_BITS, Instr

_INT = {"u16", "s16", "u32", "s32", "u64", "s64", "b16", "b32", "b64"}


@instruction("add", "sub", "mul", "mad", "fma", "min", "max", "neg", "abs", "div", "rem")
def arithmetic(e: Emitter, i: Instr) -> None:
    """Dispatch by type."""
    ty = i.mods[-1]
    if ty not in _INT:
        floating.arithmetic(e, i)
        return
    _BY_OP[i.op](e, i, ty)


def _add(e: Emitter, i: Instr, ty: str) -> None:
    a, b = (e.value(o, ty) for o in i.operands[1:3])
    e.set(i.operands[0], e.op(f"{i.op} {vec(ty)} {a}, {b}"), ty)


def _product(e: Emitter, i: Instr, ty: str) -> tuple[str, str]:
    """Product of operands 1 and 2 by .lo, .hi or .wide, with its type."""
    a, b = (e.value(o, ty) for o in i.operands[1:3])
    bits = TYPE_BITS[ty]
    mode = i.mods[0]
    if mode == "lo":
        return e.op(f"mul {vec(ty)} {a}, {b}"), ty
    wide = f"<32 x i{2 * bits}>"
    ext = "sext" if ty in SIGNED else "zext"
    product = e.op(f"mul {wide} {e.op(f'{ext} {vec(ty)} {a} to {wide}')}, {e.op(f'{ext} {vec(ty)} {b} to {wide}')}")
    if mode == "wide":
        return product, f"{ty[0]}{2 * bits}"
    if mode == "hi":
        high = e.op(f"lshr {wide} {product}, {e.splat(wide, bits)}")
        return e.op(f"trunc {wide} {high} to {vec(ty)}"), ty
    raise Unsupported(i.text)


def _mul(e: Emitter, i: Instr, ty: str) -> None:
    value, out = _product(e, i, ty)
    e.set(i.operands[0], value, out)


def _mad(e: Emitter, i: Instr, ty: str) -> None:
    value, out = _product(e, i, ty)
    c = e.value(i.operands[3], out)
    e.set(i.operands[0], e.op(f"add {vec(out)} {value}, {c}"), out)


_BY_OP = {"add": _add, "sub": _add, "mul": _mul, "mad": _mad}
