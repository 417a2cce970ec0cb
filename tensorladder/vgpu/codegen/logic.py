"""Logic and shifts (PTX ISA, "Logic and Shift Instructions")."""

from __future__ import annotations

from tensorladder.vgpu.codegen.emit import Emitter, vec
from tensorladder.vgpu.codegen.table import instruction
from tensorladder.vgpu.ptx.nodes import TYPE_BITS, Instr


@instruction("and", "or", "xor", forms="pred, b16, b32, b64")
def bitwise(e: Emitter, i: Instr) -> None:
    """Bitwise logic."""
    ty = i.mods[-1]
    a, b = (e.value(o, ty) for o in i.operands[1:3])
    e.set(i.operands[0], e.op(f"{i.op} {vec(ty)} {a}, {b}"), ty)


@instruction("shl", "shr", forms="b16 to b64, u and s; amounts over the width clamp")
def shift(e: Emitter, i: Instr) -> None:
    """Shift; amounts of the width or more give 0, or the sign for arithmetic right shifts."""
    ty = i.mods[-1]
    bits = TYPE_BITS[ty]
    a = e.value(i.operands[1], ty)
    n = e.value(i.operands[2], "u32")
    arithmetic = i.op == "shr" and ty[0] == "s"
    last = e.splat("<32 x i32>", bits - 1)
    over = e.op(f"icmp ugt <32 x i32> {n}, {last}")
    n = e.op(f"select <32 x i1> {over}, <32 x i32> {last}, <32 x i32> {n}")
    if bits == 64:
        n = e.op(f"zext <32 x i32> {n} to <32 x i64>")
    elif bits == 16:
        n = e.op(f"trunc <32 x i32> {n} to <32 x i16>")
    how = "shl" if i.op == "shl" else ("ashr" if arithmetic else "lshr")
    value = e.op(f"{how} {vec(ty)} {a}, {n}")
    if not arithmetic:
        value = e.op(f"select <32 x i1> {over}, {vec(ty)} zeroinitializer, {vec(ty)} {value}")
    e.set(i.operands[0], value, ty)
