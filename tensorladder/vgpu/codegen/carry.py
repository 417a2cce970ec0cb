"""Extended-precision integers (PTX ISA, "Extended-Precision Integer Arithmetic Instructions").

The condition code register CC.CF is a bit a lane in the warp's own memory, because chains may cross blocks: read at a
block's first use, written by every `.cc`. Subtractions write the borrow.
"""

from __future__ import annotations

from tensorladder.core.errors import Unsupported
from tensorladder.vgpu.codegen.emit import Emitter, vec
from tensorladder.vgpu.codegen.fp import modifiers
from tensorladder.vgpu.codegen.ints import operands, product, select
from tensorladder.vgpu.codegen.table import instruction
from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.ptx.nodes import Instr

_TYPES = {"u32", "s32", "u64", "s64"}
#: what takes a carry in; what has .cc gives one
READ_CARRY = ("addc", "subc", "madc")


@instruction("addc", "subc", "madc", forms="32 and 64 bits, u and s; .cc; madc.lo and .hi")
def extended(e: Emitter, i: Instr) -> None:
    """add.cc, addc, sub.cc, subc, mad.cc and madc: arithmetic with carry in, carry out, or both."""
    ty = i.mods[-1]
    op = i.op.removesuffix("c")
    mods = modifiers(i, 1, "cc" + (" hi lo" if op == "mad" else ""))
    if ty not in _TYPES or len(mods - {"cc"}) != int(op == "mad"):
        raise Unsupported(i.text)
    if op == "mad":
        a, _ = product(e, i, ty, "hi" if "hi" in mods else "lo")
        b = e.value(i.operands[3], ty)
    else:
        a, b = operands(e, i, ty)
    carry = read(e) if i.op in READ_CARRY else None
    value, out = _add(e, vec(ty), "sub" if op == "sub" else "add", a, b, carry)
    e.set(i.operands[0], value, ty)
    if "cc" in mods:
        write(e, out)


def _add(e: Emitter, llvm: str, op: str, a: str, b: str, carry: str | None) -> tuple[str, str]:
    """a + b or a - b, with carry or borrow in; gives the value and what goes out."""
    value = e.op(f"{op} {llvm} {a}, {b}")
    out = e.op(f"icmp ult {llvm} {value if op == 'add' else a}, {a if op == 'add' else b}")
    if carry is None:
        return value, out
    first = value
    value = e.op(f"{op} {llvm} {first}, {e.op(f'zext <32 x i1> {carry} to {llvm}')}")
    wrapped = e.op(f"icmp {'ult' if op == 'add' else 'ugt'} {llvm} {value}, {first}")
    return value, e.op(f"or <32 x i1> {out}, {wrapped}")


def read(e: Emitter, field: int = L.W_CARRY) -> str:
    """CC.CF as <32 x i1>; or its shadow (L.W_CARRY_UNDEFINED)."""

    def load() -> str:
        raw = e.op(f"load i32, ptr {e.warp_ptr(field)}")
        return e.op(f"bitcast i32 {raw} to <32 x i1>")

    return e.once(f"carry {field}", load)


def write(e: Emitter, value: str, field: int = L.W_CARRY) -> None:
    """Set it in the active lanes."""
    if e.guard is not None or e.masked:
        value = select(e, e.active_vector(), "<32 x i1>", value, read(e, field))
    e.block_values[f"carry {field}"] = value
    raw = e.op(f"bitcast <32 x i1> {value} to i32")
    e.line(f"store i32 {raw}, ptr {e.warp_ptr(field)}")
