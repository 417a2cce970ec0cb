"""Warp-level matrix instructions (PTX ISA, "Warp Level Matrix Instructions"): ldmatrix, stmatrix, movmatrix, mma."""

from __future__ import annotations

import re
from dataclasses import replace

from tensorladder.core.errors import Unsupported
from tensorladder.vgpu.codegen.emit import Emitter
from tensorladder.vgpu.codegen.memory import hook
from tensorladder.vgpu.codegen.table import instruction
from tensorladder.vgpu.machine.layout import SPACE_SHARED
from tensorladder.vgpu.machine.tensorcore import MMAS
from tensorladder.vgpu.ptx.nodes import Instr, Vec

_COUNTS = {"x1": 1, "x2": 2, "x4": 4}
_MATRIX_MODS = {"sync", "aligned", "m8n8", "x1", "x2", "x4", "trans", "shared", "shared::cta", "b16"}


def _matrix_form(i: Instr) -> tuple[int, int]:
    """(matrices, transposed) of ldmatrix and stmatrix; other shapes and types are refused by name."""
    for m in i.mods:
        if m not in _MATRIX_MODS:
            raise Unsupported(f"{i.text} (.{m})")
    count = next((_COUNTS[m] for m in i.mods if m in _COUNTS), 0)
    if "m8n8" not in i.mods or not count:
        raise Unsupported(i.text)
    return count, int("trans" in i.mods)


def _items(operand: object) -> tuple:
    return operand.items if isinstance(operand, Vec) else (operand,)


@instruction("ldmatrix", kind="meet", forms="m8n8 x1 x2 x4, trans, b16", refused="m8n16, m16n16 (b8, b6, b4)")
def ldmatrix(e: Emitter, i: Instr) -> None:
    """Load 8x8 matrices from shared memory to fragments."""
    count, trans = _matrix_form(i)
    items = _items(i.operands[0])
    address = e.spill(e.address(i.operands[1]), "<32 x i64>", 0)
    e.call("tl_ldmatrix", address, count, trans, e.scratch_address(1), e.iid, fallible=True)
    hook(e, "read", SPACE_SHARED, 16, (1 << 8 * count) - 1, aligned=True)
    for n, item in enumerate(items):
        e.set(item, e.reload("<32 x i32>", 1 + n), "b32")


_BYTES = {"m16n8": "m8n8", "b8": "b16"}
"""The modifiers of a form for bytes, and those of the form for 16-bit elements that is otherwise like it."""


@instruction("stmatrix", kind="meet", results=0, forms="m8n8 x1 x2 x4, trans, b16; m16n8 x1 x2 x4, trans, b8")
def stmatrix(e: Emitter, i: Instr) -> None:
    """Store fragments as matrices to shared memory: 8x8 of 16-bit elements, or 16x8 bytes transposed."""
    wide = replace(i, mods=tuple(_BYTES.get(m, m) for m in i.mods))
    count, trans = _matrix_form(wide)
    for n, item in enumerate(_items(i.operands[1])):
        e.spill(e.value(item, "b32"), "<32 x i32>", 1 + n)
    address = e.spill(e.address(i.operands[0]), "<32 x i64>", 0)
    if wide.mods == i.mods:
        e.call("tl_stmatrix", address, count, trans, e.scratch_address(1), e.iid, fallible=True)
    elif {"m16n8", "b8", "trans"} <= set(i.mods):
        e.call("tl_stmatrix8", address, count, e.scratch_address(1), e.iid, fallible=True)
    else:
        raise Unsupported(i.text)
    hook(e, "write", SPACE_SHARED, 16, (1 << 8 * count) - 1, aligned=True)


@instruction("movmatrix", kind="meet", forms="m8n8.trans.b16")
def movmatrix(e: Emitter, i: Instr) -> None:
    """Transpose an 8x8 fragment in registers."""
    if i.mods != ("sync", "aligned", "m8n8", "trans", "b16"):
        raise Unsupported(i.text)
    raw = e.op(f"bitcast <32 x i32> {e.value(i.operands[1], 'b32')} to <64 x i16>")
    order = ", ".join(f"i32 {8 * (n % 8) + n // 8}" for n in range(64))
    turned = e.op(f"shufflevector <64 x i16> {raw}, <64 x i16> poison, <64 x i32> <{order}>")
    e.set(i.operands[0], e.op(f"bitcast <64 x i16> {turned} to <32 x i32>"), "b32")


_SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)$")
_TYPES = ("f16", "f32", "f64", "bf16", "tf32", "e4m3", "e5m2", "s8", "u8", "s32")


def _mma_form(i: Instr):
    mods = [m for m in i.mods if m not in ("sync", "aligned", "kind::f8f6f4")]
    shape = _SHAPE.match(mods[0]) if mods else None
    types = [m for m in mods if m in _TYPES]
    rest = [m for m in mods[1:] if m not in types and m not in ("row", "col", "satfinite")]
    layouts = [m for m in mods if m in ("row", "col")]
    if shape is None or rest or layouts != ["row", "col"]:
        raise Unsupported(i.text)
    if len(types) == 3 and types[0] == types[1] == "f64":
        types.append("f64")
    key = (*map(int, shape.groups()), *types, "satfinite" in mods)
    if key not in MMAS:
        raise Unsupported(i.text)
    return MMAS[key]


@instruction("mma", kind="meet",
             forms="sync dense: f16, bf16, tf32, e4m3/e5m2, s8/u8, f64 in every shape but m8n8k4 f16",
             refused="sparse (mma.sp), b1, s4/u4, e2m3/e3m2/e2m1, block scale, f16 m8n8k4")  # fmt: skip
def mma(e: Emitter, i: Instr) -> None:
    """Multiply and accumulate fragments."""
    form = _mma_form(i)
    d, a, b, c = (_items(o) for o in i.operands[:4])
    wide = form.a == "f64"
    counts = form.registers
    if (len(a), len(b), len(c), len(d)) != counts:
        raise Unsupported(f"{i.text} with {len(d)}, {len(a)}, {len(b)}, {len(c)} registers")
    ty, llvm = ("b64", "<32 x i64>") if wide else ("b32", "<32 x i32>")
    for slot, item in enumerate((*a, *b, *c)):
        e.spill(e.value(item, ty), llvm, slot)
    e.call(form.name, e.scratch_address(0))
    first = counts[0] + counts[1]
    for n, item in enumerate(d):
        e.set(item, e.reload(llvm, first + n), ty)
