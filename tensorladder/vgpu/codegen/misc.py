"""Bytes of words, and addresses in a cluster (PTX ISA, "prmt", "mapa", "getctarank")."""

from __future__ import annotations

from tensorladder.core.errors import Unsupported
from tensorladder.vgpu.codegen.emit import Emitter
from tensorladder.vgpu.codegen.ints import I32, I64
from tensorladder.vgpu.codegen.table import instruction
from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.ptx.nodes import Imm, Instr, Mem, Reg, Sym

#: selectors of the modes by the low two bits of the control operand
_MODES = {
    "f4e": (0x3210, 0x4321, 0x5432, 0x6543),
    "b4e": (0x5670, 0x6701, 0x7012, 0x0123),
    "rc8": (0x0000, 0x1111, 0x2222, 0x3333),
    "ecl": (0x3210, 0x3211, 0x3222, 0x3333),
    "ecr": (0x0000, 0x1110, 0x2210, 0x3210),
    "rc16": (0x1010, 0x3232, 0x1010, 0x3232),
}


@instruction("prmt", forms="b32; generic and all modes")
def prmt(e: Emitter, i: Instr) -> None:
    """Four bytes chosen from two words; bit 3 of a selector takes the byte's sign instead."""
    modes = [m for m in i.mods if m in _MODES]
    if "b32" not in i.mods or len(i.mods) != 1 + len(modes):
        raise Unsupported(i.text)
    a, b = (e.value(o, "b32") for o in i.operands[1:3])
    control = i.operands[3]
    if isinstance(control, Imm):
        selector = _MODES[modes[0]][control.value & 3] if modes else control.value
        value = _permuted(e, a, b, selector)
    else:
        c = e.value(control, "u32")
        value = _chosen(e, a, b, _selector(e, modes[0], c) if modes else c)
    e.set(i.operands[0], value, "b32")


def _selector(e: Emitter, mode: str, control: str) -> str:
    """The mode's selector for the low two bits of `control`."""
    low = e.op(f"and {I32} {control}, splat (i32 3)")
    found = e.splat(I32, _MODES[mode][0])
    for k in (1, 2, 3):
        hit = e.op(f"icmp eq {I32} {low}, {e.splat(I32, k)}")
        found = e.op(f"select <32 x i1> {hit}, {I32} {e.splat(I32, _MODES[mode][k])}, {I32} {found}")
    return found


def _permuted(e: Emitter, a: str, b: str, selector: int) -> str:
    """A constant selector: one shuffle of bytes."""
    nibbles = [selector >> 4 * n & 15 for n in range(4)]
    bytes_ = [e.op(f"bitcast {I32} {v} to <128 x i8>") for v in (a, b)]
    places = [4 * lane + (n & 3) + (128 if n & 4 else 0) for lane in range(32) for n in nibbles]
    mask = "<" + ", ".join(f"i32 {p}" for p in places) + ">"
    value = e.op(f"shufflevector <128 x i8> {bytes_[0]}, <128 x i8> {bytes_[1]}, <128 x i32> {mask}")
    if any(n & 8 for n in nibbles):
        sign = e.op(f"ashr <128 x i8> {value}, splat (i8 7)")
        flags = "<" + ", ".join("i1 true" if n & 8 else "i1 false" for _ in range(32) for n in nibbles) + ">"
        value = e.op(f"select <128 x i1> {flags}, <128 x i8> {sign}, <128 x i8> {value}")
    return e.op(f"bitcast <128 x i8> {value} to {I32}")


def _chosen(e: Emitter, a: str, b: str, selector: str) -> str:
    """A selector a lane: bytes by shifts of the 64 bits of both words."""
    low, high = (e.op(f"zext {I32} {v} to {I64}") for v in (a, b))
    both = e.op(f"or {I64} {low}, {e.op(f'shl {I64} {high}, splat (i64 32)')}")
    total = "zeroinitializer"
    for n in range(4):
        nibble = e.op(f"lshr {I32} {selector}, {e.splat(I32, 4 * n)}")
        place = e.op(f"shl {I32} {e.op(f'and {I32} {nibble}, splat (i32 7)')}, splat (i32 3)")
        byte = e.op(f"lshr {I64} {both}, {e.op(f'zext {I32} {place} to {I64}')}")
        byte = e.op(f"trunc {I64} {byte} to <32 x i8>")
        sign = e.op(f"icmp ne {I32} {e.op(f'and {I32} {nibble}, splat (i32 8)')}, zeroinitializer")
        filled = e.op(f"ashr <32 x i8> {byte}, splat (i8 7)")
        byte = e.op(f"select <32 x i1> {sign}, <32 x i8> {filled}, <32 x i8> {byte}")
        wide = e.op(f"zext <32 x i8> {byte} to {I32}")
        total = e.op(f"or {I32} {total}, {e.op(f'shl {I32} {wide}, {e.splat(I32, 8 * n)}')}")
    return total


# ---------------------------------------------------------------- addresses in a cluster
def _shared_address(e: Emitter, i: Instr, operand: object) -> tuple[str, str]:
    """(address as <32 x i64>, type) of the operand of mapa or getctarank; shared or generic, the rank lies alike."""
    ty = i.mods[-1]
    if ty not in ("u32", "u64") or i.mods[:-1] not in ((), ("shared::cluster",)):
        raise Unsupported(i.text)
    if isinstance(operand, Reg | Sym):
        return e.address(Mem(operand, 0)), ty
    return e.value(operand, "u64"), ty


@instruction("mapa", forms="generic and shared::cluster, u32 and u64")
def mapa(e: Emitter, i: Instr) -> None:
    """The address in another CTA's shared memory that an address in the own one corresponds to."""
    address, ty = _shared_address(e, i, i.operands[1])
    rank = e.op(f"zext {I32} {e.value(i.operands[2], 'u32')} to {I64}")
    rank = e.op(f"shl {I64} {rank}, {e.splat(I64, L.RANK_SHIFT)}")
    place = e.op(f"and {I64} {address}, {e.splat(I64, ~(0xFF << L.RANK_SHIFT))}")
    value = e.op(f"or {I64} {place}, {rank}")
    e.set(i.operands[0], value if ty == "u64" else e.op(f"trunc {I64} {value} to {I32}"), ty)


@instruction("getctarank", forms="generic and shared::cluster, u32 and u64")
def getctarank(e: Emitter, i: Instr) -> None:
    """The rank in its cluster of the CTA whose shared memory an address lies in."""
    address, _ = _shared_address(e, i, i.operands[1])
    rank = e.op(f"lshr {I64} {address}, {e.splat(I64, L.RANK_SHIFT)}")
    rank = e.op(f"and {I64} {rank}, splat (i64 255)")
    e.set(i.operands[0], e.op(f"trunc {I64} {rank} to {I32}"), "u32")
