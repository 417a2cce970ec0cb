"""Warp-level instructions: elect, vote, shfl, match, redux, activemask (PTX ISA, "Parallel Synchronization", "shfl.sync")."""

from __future__ import annotations

from tensorladder.vgpu.codegen.emit import Emitter
from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.ptx.nodes import Imm, Instr, Reg

#: where the operand that names the participating lanes stands (from the end); `.aligned` forms want all live lanes
_MEMBER_OPERAND = {"shfl": -1, "vote": -1, "match": -1, "redux": -1, "elect": -1, "bar": 0}


def member_mask(e: Emitter, i: Instr) -> str:
    """i64 mask of the lanes that must be at a collective."""
    if i.op in _MEMBER_OPERAND and i.op != "bar":
        operand = i.operands[_MEMBER_OPERAND[i.op]]
        if isinstance(operand, Imm):
            return str(operand.value & 0xFFFFFFFF)
        if isinstance(operand, Reg):
            return union_of_lanes(e, e.value(operand, "u32"))
    return e.warp_field(L.W_LIVE)


def union_of_lanes(e: Emitter, masks: str) -> str:
    """OR of a lane vector over the group's lanes, as i64."""
    kept = e.op(f"select <32 x i1> {e.lanes_vector()}, <32 x i32> {masks}, <32 x i32> zeroinitializer")
    total = e.intrinsic("llvm.vector.reduce.or.v32i32", "i32", ("<32 x i32>", kept))
    return e.op(f"zext i32 {total} to i64")
