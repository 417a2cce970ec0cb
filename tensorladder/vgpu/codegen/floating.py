"""Floating-point arithmetic (PTX ISA, "Floating Point Instructions", "Half Precision", "Mixed Precision")."""

from __future__ import annotations

from tensorladder.core.errors import Unsupported
from tensorladder.vgpu.codegen.emit import Emitter, vec
from tensorladder.vgpu.ptx.nodes import Instr


def arithmetic(e: Emitter, i: Instr) -> None:
    """add, sub, mul, fma, ... of floating types."""
    ty = i.mods[-1]
    if ty not in ("f32", "f64"):
        raise Unsupported(i.text)
    args = [e.value(o, ty) for o in i.operands[1:]]
    if i.op == "fma":
        value = e.intrinsic(f"llvm.fma.v32{ty}", vec(ty), *((vec(ty), a) for a in args))
    elif i.op in ("add", "sub", "mul"):
        value = e.op(f"f{i.op} {vec(ty)} {args[0]}, {args[1]}")
    else:
        raise Unsupported(i.text)
    e.set(i.operands[0], value, ty)
