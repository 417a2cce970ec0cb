"""What instructions read, write and move, as far as undefined values go (codegen.undefined)."""

from __future__ import annotations

from tensorladder.vgpu.codegen import table
from tensorladder.vgpu.codegen.carry import READ_CARRY
from tensorladder.vgpu.codegen.loads import is_pure
from tensorladder.vgpu.ptx.cfg import registers
from tensorladder.vgpu.ptx.nodes import TYPE_BITS, Instr, Reg, Vec

ACROSS = {"vote", "redux", "match"}
#: machine instructions whose results depend on what they are given as values do
VALUES = {"shfl", "movmatrix", "mma", *READ_CARRY, *ACROSS}


def written(i: Instr) -> list:
    """Operands that an instruction writes, in the frame too."""
    if i.op == "wgmma" and i.mods[:1] == ("mma_async",):
        return i.operands[:1]
    return i.operands[: table.results(i)]


def follows(i: Instr) -> bool:
    """Whether an instruction works on values alone: undefined ones may come and go."""
    return is_pure(i) or i.op in VALUES


def depends(i: Instr) -> bool:
    return follows(i) or (i.op == "wgmma" and i.mods[:1] == ("mma_async",)) or is_product(i)


def is_product(i: Instr) -> bool:
    """Whether it multiplies matrices in fragments of a warp's registers."""
    return i.op == "mma" or (i.op == "wmma" and i.mods[:1] == ("mma",))


def space_of(i: Instr) -> str:
    for m in i.mods:
        if m.startswith("shared"):
            return "shared"
        if m in ("global", "const"):
            return "global"
        if m == "local" or m == "param::func":
            return "local"
        if m.startswith("param"):
            return "global"
    return "generic"


def type_of(i: Instr) -> str:
    return next(m for m in reversed(i.mods) if m in TYPE_BITS)


def items_of(operand: object) -> tuple:
    return operand.items if isinstance(operand, Vec) else (operand,)


def access_of(i: Instr) -> tuple[int, int]:
    """(bytes of an element, elements a lane) of a load or store, b128 as two."""
    bits = max(TYPE_BITS[type_of(i)], 8)
    count = len(items_of(i.operands[0] if i.op in ("ld", "ldu") else i.operands[1]))
    return (8, 2 * count) if bits == 128 else (bits // 8, count)


def tensor_form(i: Instr) -> tuple[int, int, int]:
    """(shape, registers a lane, columns an element) of tcgen05.ld and .st."""
    from tensorladder.vgpu.codegen.tcgen05 import SHAPES

    shape = next(SHAPES[m][0] for m in i.mods if m in SHAPES)
    count = len(items_of(i.operands[0] if i.mods[0] == "ld" else i.operands[-1]))
    return shape, count, 2 if "pack::16b" in i.mods or "unpack::16b" in i.mods else 1


def fragments_of(i: Instr) -> list[Reg]:
    """Registers of an instruction that works on many, in the frame."""
    if is_product(i):
        return [r for o in i.operands[:4] for r in registers(o)]
    if i.op == "ldmatrix" or (i.op == "tcgen05" and i.mods[:1] == ("ld",)):
        return registers(i.operands[0])
    return []
