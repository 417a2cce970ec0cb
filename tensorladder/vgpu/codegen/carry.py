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
    value, out = _add(e, vec(ty), "sub" if op == "sub" else "add", a, b, _read(e) if i.op.endswith("c") else None)
    e.set(i.operands[0], value, ty)
    if "cc" in mods:
        _write(e, out)


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


def _read(e: Emitter) -> str:
    """CC.CF as <32 x i1>."""

    def load() -> str:
        raw = e.op(f"load i32, ptr {e.warp_ptr(L.W_CARRY)}")
        return e.op(f"bitcast i32 {raw} to <32 x i1>")

    return e.once("carry", load)


def _write(e: Emitter, value: str) -> None:
    if e.guard is not None or e.masked:
        value = select(e, e.active_vector(), "<32 x i1>", value, _read(e))
    e.block_values["carry"] = value
    raw = e.op(f"bitcast <32 x i1> {value} to i32")
    e.line(f"store i32 {raw}, ptr {e.warp_ptr(L.W_CARRY)}")
