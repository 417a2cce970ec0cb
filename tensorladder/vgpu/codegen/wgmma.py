"""Asynchronous warpgroup level matrix instructions (PTX ISA, section of that name): wgmma.*.

The unit works on registers in the frame (machine.wgmma), at any time between issue and wait: registers that it uses
have a place there always, are stored before an operation is issued, and read anew after.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tensorladder.core.errors import Unsupported
from tensorladder.vgpu.codegen.emit import Emitter
from tensorladder.vgpu.codegen.in_flight import SETTLE
from tensorladder.vgpu.codegen.modifiers import pending_groups
from tensorladder.vgpu.codegen.sync import FENCE_WGMMA
from tensorladder.vgpu.codegen.table import instruction
from tensorladder.vgpu.machine import fragments as F
from tensorladder.vgpu.machine import operands as T
from tensorladder.vgpu.machine import wgmma as G
from tensorladder.vgpu.ptx.cfg import registers
from tensorladder.vgpu.ptx.nodes import Function, Imm, Instr, Reg, Vec

_SHAPE = re.compile(r"m64n(\d+)k(\d+)$")
#: element types of A and B: (code of the unpacked tile, K of the instruction)
_TYPES = {
    "f16": (T.F16, 16), "bf16": (T.BF16, 16), "tf32": (T.TF32, 8), "e4m3": (T.E4M3, 32), "e5m2": (T.E5M2, 32),
    "s8": (T.S8, 32), "u8": (T.U8, 32),
}  # fmt: skip
#: which B goes with an A, and which D with them
_PARTNERS = {"f16": ("f16",), "bf16": ("bf16",), "tf32": ("tf32",), "e4m3": ("e4m3", "e5m2"), "e5m2": ("e4m3", "e5m2"),
             "s8": ("s8", "u8"), "u8": ("s8", "u8")}  # fmt: skip
_RESULTS = {"f16": ("f16", "f32"), "bf16": ("f32",), "tf32": ("f32",), "e4m3": ("f16", "f32"), "e5m2": ("f16", "f32"),
            "s8": ("s32",), "u8": ("s32",)}  # fmt: skip
_PRODUCTS = {"f32": F.F32, "f16": F.F16, "s32": F.S32}
#: N of the integer forms: not every multiple of 8 (PTX ISA, "Matrix Shape")
_INTEGER_N = {8, 24, *range(16, 257, 16)}


@dataclass(frozen=True)
class Form:
    """One wgmma.mma_async as written: shape, types, A in registers, MN-major operands, sign of the products."""

    n: int
    k: int
    d: str
    a: str
    b: str
    satfinite: bool = False
    a_registers: bool = False
    mn_a: bool = False
    mn_b: bool = False
    negate: bool = False

    @property
    def d_count(self) -> int:
        """Registers of D a thread."""
        return self.n // 4 if self.d == "f16" else self.n // 2

    @property
    def packed(self) -> int:
        """The form as the runtime takes it (machine.wgmma.G_FORM)."""
        product = F.S32_SAT if self.satfinite else _PRODUCTS[self.d]
        fields = (
            (G.FORM_N, self.n), (G.FORM_PRODUCT, product), (G.FORM_A, _TYPES[self.a][0]),
            (G.FORM_B, _TYPES[self.b][0]), (G.FORM_K, self.k), (G.FORM_REGISTERS, self.a_registers),
            (G.FORM_MN_A, self.mn_a), (G.FORM_MN_B, self.mn_b), (G.FORM_NEGATE, self.negate),
        )  # fmt: skip
        return sum(int(value) << at for at, value in fields)


def form_of(i: Instr) -> Form:
    """The form of a wgmma.mma_async; Unsupported for what the ISA does not have, or what is not modelled."""
    mods = list(i.mods[1:])
    for m in ("sp", "b1", "and", "popc"):
        if m in mods:
            raise Unsupported(f"{i.text} (.{m})")
    if mods[:2] != ["sync", "aligned"]:
        raise Unsupported(i.text)
    satfinite = "satfinite" in mods
    rest = [m for m in mods[2:] if m != "satfinite"]
    shape = _SHAPE.match(rest[0]) if len(rest) == 4 else None
    if shape is None:
        raise Unsupported(i.text)
    n, k = int(shape[1]), int(shape[2])
    d, a, b = rest[1:]
    integer = a in ("s8", "u8")
    sizes = _INTEGER_N if integer else range(8, 257, 8)
    legal = a in _TYPES and b in _PARTNERS[a] and d in _RESULTS[a] and k == _TYPES[a][1] and n in sizes
    if not legal or (satfinite and not integer):
        raise Unsupported(i.text)
    in_registers = len(i.operands) > 1 and isinstance(i.operands[1], Vec)
    scales, majors = _immediates(i, integer, k == 16, in_registers)
    mn_a, mn_b = (0, *majors) if in_registers else majors
    return Form(n, k, d, a, b, satfinite, in_registers, bool(mn_a), bool(mn_b), scales[0] != scales[1])


def _immediates(i: Instr, integer: bool, majors: bool, in_registers: bool) -> tuple[list[int], list[int]]:
    """(imm-scale-a and -b, imm-trans-a and -b) after the four operands; what a form lacks is 1 and 0."""
    scales = 0 if integer else 2
    transposes = 0 if not majors else 1 if in_registers else 2
    values = [o.value if isinstance(o, Imm) else None for o in i.operands[4:]]
    if len(values) != scales + transposes:
        raise Unsupported(f"{i.text} with {len(i.operands)} operands")
    if any(v not in (1, -1) for v in values[:scales]) or any(v not in (0, 1) for v in values[scales:]):
        raise Unsupported(f"{i.text} with immediates {values}")
    return (values[:scales] or [1, 1]), (values[scales:] or ([0] if in_registers else [0, 0]))


# ---------------------------------------------------------------- registers that the unit uses
def registers_of(fn: Function) -> set[Reg]:
    """Registers that WGMMA reads or writes in the frame."""
    found: set[Reg] = set()
    for i in fn.body:
        if isinstance(i, Instr) and i.op == "wgmma" and i.mods[:1] == ("mma_async",) and len(i.operands) > 1:
            found.update(registers(i.operands[0]))
            if isinstance(i.operands[1], Vec):
                found.update(registers(i.operands[1]))
    return found


# ---------------------------------------------------------------- instructions
def _kind(i: Instr) -> str:
    return "block" if i.mods[:1] in (("wait_group",), (SETTLE,)) else "meet"


@instruction("wgmma", results=0, kind=_kind,
             forms="mma_async dense: f16, bf16, tf32, e4m3/e5m2, s8/u8 (.satfinite), every N, A in registers or shared "
                   "memory, both majors, scale and negate, every swizzle; fence, commit_group, wait_group",
             refused="sparse (wgmma.mma_async.sp), b1")  # fmt: skip
def wgmma(e: Emitter, i: Instr):
    """Dispatch on the first modifier."""
    what = i.mods[0] if i.mods else ""
    e.block_values.pop("wgmma registers changed", None)
    if what == "mma_async":
        return _mma(e, i)
    if what == SETTLE:
        return _settle(e, i)
    if i.mods[1:] != ("sync", "aligned"):
        raise Unsupported(i.text)
    if what == "fence":  # registers are read and written in order anyway
        return e.call("tl_hook_fence", FENCE_WGMMA, 0, e.active(), e.iid) if e.checked else None
    if what == "commit_group":
        return e.call("tl_wgmma_commit", e.iid)
    if what != "wait_group":
        raise Unsupported(i.text)
    go = e.call("tl_wgmma_wait", pending_groups(i), e.active(), e.iid)
    return e.op(f"icmp ne i64 {go}, 0"), False


def watch(e: Emitter, i: Instr) -> None:
    """In the checked variant: accesses of registers that an operation may be using, and what wants a wgmma.fence."""
    if i.index in e.changed:
        e.once("wgmma registers changed", lambda: e.call("tl_hook_fence", FENCE_WGMMA | 1 << 4, 0, e.active(), e.iid))
    for write, regs in enumerate(e.watched.get(i.index, ())):
        regs = [r for r in regs if r in e.slots]
        if regs:
            e.call("tl_hook_registers", _table(e, i, regs, "rw"[write]), len(regs), write, e.active(), e.iid)


def _mma(e: Emitter, i: Instr) -> None:
    form = form_of(i)
    d = _fragment(i, i.operands[0], form.d_count)
    a = _fragment(i, i.operands[1], 4) if form.a_registers else []
    if len(set(d)) != len(d):
        raise Unsupported(f"{i.text} with a register twice in D")
    e.to_frame([*d, *a])
    address = _table(e, i, [*d, *a], shadows=e.checked)
    descriptor_a = 0 if form.a_registers else e.spill(e.value(i.operands[1], "b64"), "<32 x i64>", 0)
    descriptor_b = e.spill(e.value(i.operands[2], "b64"), "<32 x i64>", 1)
    bits = e.op(f"bitcast <32 x i1> {e.value(i.operands[3], 'pred')} to i32")
    keeps = e.op(f"zext i32 {bits} to i64")
    e.call("tl_wgmma_mma", address, form.packed, descriptor_a, descriptor_b, keeps, e.active(), e.iid, fallible=True)
    e.forget_framed()


def _settle(e: Emitter, i: Instr) -> tuple[str, bool]:
    """Wait for what will write registers that are written or moved next (in_flight)."""
    regs = registers(i.operands[0])
    go = e.call("tl_wgmma_settle", _table(e, i, regs), len(regs), e.active(), e.iid)
    return e.op(f"icmp ne i64 {go}, 0"), False


def _table(e: Emitter, i: Instr, regs: list[Reg], what: str = "", shadows: bool = False) -> str:
    """Address of the registers' offsets in the frame, as i32; with those of their shadows (-1: none) behind them."""
    name = f"wgmma_registers_{i.index}{what}"
    places = [e.slots[r] for r in regs]
    if shadows:
        known = e.undefined.shadows if e.undefined is not None else {}
        places += [e.slots[known[r]] if r in known else -1 for r in regs]
    offsets = ", ".join(f"i32 {place}" for place in places)
    e.declare(f"@{name} = private constant [{len(places)} x i32] [{offsets}]")
    return e.op(f"ptrtoint ptr @{name} to i64")


def _fragment(i: Instr, operand: object, count: int) -> list[Reg]:
    """The registers of a fragment: `count` of 32 bits."""
    items = operand.items if isinstance(operand, Vec) else (operand,)
    if len(items) != count or not all(isinstance(r, Reg) and r.bits == 32 for r in items):
        raise Unsupported(f"{i.text} with a fragment that is not {count} 32-bit registers")
    return list(items)
