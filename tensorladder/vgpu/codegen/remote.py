"""st.async and red.async to shared memory of the cluster, with an mbarrier (PTX ISA, "st.async", "red.async")."""

from __future__ import annotations

from tensorladder.core.errors import Unsupported
from tensorladder.vgpu.codegen.emit import Emitter, vec
from tensorladder.vgpu.codegen.modifiers import pick
from tensorladder.vgpu.machine import atomics as A
from tensorladder.vgpu.ptx.nodes import TYPE_BITS, Instr, Mem, Vec

_TX = "mbarrier::complete_tx::bytes"
_VECTORS = {"": 1, "v2": 2, "v4": 4}
_STORED = ("b32", "b64", "u32", "u64", "s32", "s64", "f32", "f64")
_REDUCED = {
    "add": ("u32", "s32", "u64"), "min": ("u32", "s32"), "max": ("u32", "s32"), "inc": ("u32",), "dec": ("u32",),
    "and": ("b32",), "or": ("b32",), "xor": ("b32",),
}  # fmt: skip
_OPS = {"add": A.ADD, "min": A.MIN, "max": A.MAX, "inc": A.INC, "dec": A.DEC, "and": A.AND, "or": A.OR, "xor": A.XOR}


def store_async(e: Emitter, i: Instr) -> None:
    """st.async [a], b, [mbar]."""
    _, _, _, tx, vector, ty = pick(i, ("async",), ("weak",), ("shared::cluster",), (_TX,), ("v2", "v4"), _STORED)
    if not tx or not ty or _VECTORS[vector] * TYPE_BITS[ty] > 128:
        raise Unsupported(i.text)
    _issue(e, i, -1, ty, _VECTORS[vector])


def reduce_async(e: Emitter, i: Instr) -> None:
    """red.async [a], b, [mbar]."""
    _, _, _, _, tx, op, ty = pick(
        i,
        ("async",),
        ("relaxed",),
        ("cluster",),
        ("shared::cluster",),
        (_TX,),
        tuple(_OPS),
        ("u32", "s32", "u64", "b32"),
    )
    if not tx or ty not in _REDUCED.get(op, ()):
        raise Unsupported(i.text)
    kind = A.SIGNED if ty == "s32" else A.BITS
    _issue(e, i, _OPS[op] | kind << 8, ty, 1)


def _issue(e: Emitter, i: Instr, what: int, ty: str, count: int) -> None:
    place, value, barrier = i.operands
    elements = value.items if isinstance(value, Vec) else (value,)
    if len(elements) != count or not isinstance(barrier, Mem):
        raise Unsupported(f"{i.text} with these operands")
    e.spill(e.address(place), "<32 x i64>", 0)
    e.spill(e.address(barrier), "<32 x i64>", 1)
    for n, element in enumerate(elements):
        e.spill(e.value(element, ty), vec(ty), 2 + n)
    e.call("tl_remote", what, e.scratch_address(0), TYPE_BITS[ty] // 8, count, e.active(), i.index, fallible=True)
