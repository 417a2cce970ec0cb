"""Conversions (PTX ISA, "cvt", "cvt.pack")."""

from __future__ import annotations

from tensorladder.core.errors import Unsupported
from tensorladder.vgpu.codegen.emit import Emitter
from tensorladder.vgpu.codegen.table import instruction
from tensorladder.vgpu.ptx.nodes import TYPE_BITS, Instr


@instruction("cvt")
def cvt(e: Emitter, i: Instr) -> None:
    """Convert."""
    to, ty = i.mods[-2:]
    if len(i.mods) != 2 or "f" in to + ty:
        raise Unsupported(i.text)
    value = e.value(i.operands[1], ty)
    value = e._resize(value, TYPE_BITS[ty], TYPE_BITS[to], ty)
    e.set(i.operands[0], value, to)
