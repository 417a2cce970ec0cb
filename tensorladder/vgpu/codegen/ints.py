"""Building blocks of integer code on lane vectors."""

from __future__ import annotations

from tensorladder.vgpu.codegen.emit import SIGNED, Emitter, ivec, vec
from tensorladder.vgpu.ptx.nodes import TYPE_BITS, Instr

I32, I64 = "<32 x i32>", "<32 x i64>"


def operands(e: Emitter, i: Instr, ty: str, count: int = 2) -> list[str]:
    """The first `count` source operands as lane vectors of one type."""
    return [e.value(o, ty) for o in i.operands[1 : 1 + count]]


def select(e: Emitter, cond: str, ty: str, a: str, b: str) -> str:
    """cond ? a : b on <32 x ..> vectors."""
    return e.op(f"select <32 x i1> {cond}, {ty} {a}, {ty} {b}")


def minimum(e: Emitter, a: str, b: str, ty: str = I32, how: str = "umin") -> str:
    """umin, umax, smin or smax of two vectors."""
    n, element = ty[1:-1].split(" x ")
    return e.intrinsic(f"llvm.{how}.v{n}{element}", ty, (ty, a), (ty, b))


def product(e: Emitter, i: Instr, ty: str, mode: str) -> tuple[str, str]:
    """Product of operands 1 and 2 by .lo, .hi or .wide, with its type."""
    a, b = operands(e, i, ty)
    bits = TYPE_BITS[ty]
    if mode == "lo":
        return e.op(f"mul {vec(ty)} {a}, {b}"), ty
    wide = ivec(2 * bits)
    ext = "sext" if ty in SIGNED else "zext"
    full = e.op(f"mul {wide} {e.op(f'{ext} {vec(ty)} {a} to {wide}')}, {e.op(f'{ext} {vec(ty)} {b} to {wide}')}")
    if mode == "wide":
        return full, f"{ty[0]}{2 * bits}"
    high = e.op(f"lshr {wide} {full}, {e.splat(wide, bits)}")
    return e.op(f"trunc {wide} {high} to {vec(ty)}"), ty
