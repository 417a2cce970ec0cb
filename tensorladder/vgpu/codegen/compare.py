"""Comparison and selection (PTX ISA, "Comparison and Selection Instructions")."""

from __future__ import annotations

from tensorladder.core.errors import Unsupported
from tensorladder.vgpu.codegen.emit import Emitter, vec
from tensorladder.vgpu.codegen.table import instruction
from tensorladder.vgpu.ptx.nodes import Instr

_ORDER = {"eq": "eq", "ne": "ne", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge"}


@instruction("setp")
def setp(e: Emitter, i: Instr) -> None:
    """Compare to a predicate."""
    ty = i.mods[-1]
    a, b = (e.value(o, ty) for o in i.operands[1:3])
    how = i.mods[0]
    if how not in _ORDER or ty[0] == "f" or len(i.mods) > 2:
        raise Unsupported(i.text)
    sign = "" if how in ("eq", "ne") else ("s" if ty[0] == "s" else "u")
    e.set(i.operands[0], e.op(f"icmp {sign}{how} {vec(ty)} {a}, {b}"), "pred")


@instruction("selp", forms="b16 to b64 and their types")
def selp(e: Emitter, i: Instr) -> None:
    """Select by predicate."""
    ty = i.mods[-1]
    a, b = (e.value(o, ty) for o in i.operands[1:3])
    p = e.value(i.operands[3], "pred")
    e.set(i.operands[0], e.op(f"select <32 x i1> {p}, {vec(ty)} {a}, {vec(ty)} {b}"), ty)
