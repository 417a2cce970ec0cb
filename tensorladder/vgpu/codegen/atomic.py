"""atom and red (PTX ISA, "Parallel Synchronization and Communication Instructions: atom", "red")."""

from __future__ import annotations

from tensorladder.core.errors import Unsupported
from tensorladder.vgpu.codegen.emit import Emitter, vec
from tensorladder.vgpu.codegen.memory import combine128, hook, split128
from tensorladder.vgpu.codegen.modifiers import SCOPES, pick
from tensorladder.vgpu.codegen.remote import reduce_async
from tensorladder.vgpu.codegen.table import instruction
from tensorladder.vgpu.machine import atomics as A
from tensorladder.vgpu.machine.layout import SPACE_GENERIC, SPACE_GLOBAL, SPACE_OWN, SPACE_SHARED
from tensorladder.vgpu.ptx.nodes import TYPE_BITS, Instr, Mem, Sink, Vec

_SPACES = {"global": SPACE_GLOBAL, "shared": SPACE_OWN, "shared::cta": SPACE_OWN, "shared::cluster": SPACE_SHARED}
_OPS = {
    "add": A.ADD, "min": A.MIN, "max": A.MAX, "inc": A.INC, "dec": A.DEC, "and": A.AND, "or": A.OR, "xor": A.XOR,
    "exch": A.EXCH, "cas": A.CAS,
}  # fmt: skip
_KINDS = {"s32": A.SIGNED, "s64": A.SIGNED, "f16": A.F16, "bf16": A.BF16, "f16x2": A.F16X2, "bf16x2": A.BF16X2,
          "f32": A.F32, "f64": A.F64}  # fmt: skip
#: types of each operation, alone and as elements of a vector
_TYPES = {
    "add": ("u32", "s32", "u64", "s64", "f32", "f64", "f16", "bf16", "f16x2", "bf16x2"),
    "min": ("u32", "s32", "u64", "s64"),
    "max": ("u32", "s32", "u64", "s64"),
    "inc": ("u32",),
    "dec": ("u32",),
    "and": ("b32", "b64"),
    "or": ("b32", "b64"),
    "xor": ("b32", "b64"),
    "exch": ("b32", "b64", "b128", "u32", "s32", "f32", "u64", "s64", "f64"),
    "cas": ("b16", "b32", "b64", "b128", "u16", "s16", "u32", "s32", "u64", "s64"),
}
_HALVES = ("f16", "bf16", "f16x2", "bf16x2")
_VECTORS = {"v2": 2, "v4": 4, "v8": 8}
_ALL_TYPES = tuple(dict.fromkeys(t for types in _TYPES.values() for t in types))


def _decode(i: Instr) -> tuple[str, str, int, int]:
    """(operation, type, vector length, space); every modifier is known or refused by name."""
    _, _, space, op, _, _, vector, ty = pick(
        i, ("relaxed", "acquire", "release", "acq_rel"), SCOPES, tuple(_SPACES), tuple(_OPS), ("noftz",),
        ("L2::cache_hint",), tuple(_VECTORS), _ALL_TYPES,
    )  # fmt: skip
    count = _VECTORS.get(vector, 1)
    allowed = _TYPES.get(op, ())
    if vector and op in ("add", "min", "max"):
        allowed = (*_HALVES, "f32") if op == "add" else _HALVES
    if ty not in allowed or count * TYPE_BITS[ty] > 128:
        raise Unsupported(i.text)
    return op, ty, count, _SPACES.get(space, SPACE_GENERIC)


def _spill(e: Emitter, value: object, ty: str, slot: int) -> None:
    lanes = e.value(value, ty)
    if ty == "b128":
        for k, part in enumerate(split128(e, lanes)):
            e.spill(part, "<32 x i64>", slot + k)
    else:
        e.spill(lanes, vec(ty), slot)


def _atomic(e: Emitter, i: Instr, target: object, mem: Mem, values: list) -> None:
    op, ty, count, space = _decode(i)
    elements = values[0].items if isinstance(values[0], Vec) else (values[0],)
    if len(elements) != count:
        raise Unsupported(f"{i.text} with {len(elements)} elements")
    for n, element in enumerate(elements):
        _spill(e, element, ty, A.SLOT_B + n)
    if op == "cas":
        _spill(e, values[1], ty, A.SLOT_C)
    e.spill(e.address(mem), "<32 x i64>", 0)
    size = TYPE_BITS[ty] // 8
    kind = _KINDS.get(ty, A.BITS)
    e.call("tl_atom", _OPS[op], kind, space, e.scratch_address(0), e.active(), size, count, i.index, fallible=True)
    hook(e, "atomic", space, size * count)
    targets = target.items if isinstance(target, Vec) else (target,)
    for n, t in enumerate(targets):
        if isinstance(t, Sink) or t is None:
            continue
        if ty == "b128":
            low = e.reload("<32 x i64>", A.SLOT_RESULT)
            e.set(t, combine128(e, low, e.reload("<32 x i64>", A.SLOT_RESULT + 1)), ty)
        else:
            e.set(t, e.reload(vec(ty), A.SLOT_RESULT + n), ty)


_FORMS = "global, shared, shared::cluster, generic; all orderings and scopes; add, min, max, inc, dec, and, or, xor"


@instruction("atom", forms=_FORMS + ", exch, cas to b128; .v2, .v4, .v8 of f16, bf16, f32 and packed types")
def atom(e: Emitter, i: Instr) -> None:
    """Atomic operation that gives the old value."""
    _atomic(e, i, i.operands[0], i.operands[1], i.operands[2:])


@instruction("red", results=0, forms=_FORMS + "; vectors as atom; red.async to shared::cluster with an mbarrier",
             refused="red.async.release (to global memory)")  # fmt: skip
def red(e: Emitter, i: Instr) -> None:
    """Atomic operation without a result."""
    if "async" in i.mods:
        reduce_async(e, i)
        return
    _atomic(e, i, None, i.operands[0], i.operands[1:])
