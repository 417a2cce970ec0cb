"""tcgen05.* but for the matrix products (PTX ISA 9.7.16, "TensorCore 5th Generation Family Instructions").

Allocation, loads and stores of tensor memory, copies, shifts, waits, fences, commit. tcgen05.mma is in `tcgen05_mma`.
"""

from __future__ import annotations

from tensorladder.core.errors import Unsupported
from tensorladder.vgpu.codegen import tcgen05_mma
from tensorladder.vgpu.codegen.emit import Emitter
from tensorladder.vgpu.codegen.modifiers import PAIR, pair_of, pick
from tensorladder.vgpu.codegen.sync import FENCE_TCGEN05
from tensorladder.vgpu.codegen.table import instruction
from tensorladder.vgpu.machine import tcgen05 as C
from tensorladder.vgpu.machine import tmem as T
from tensorladder.vgpu.machine.layout import SPACE_GENERIC, SPACE_OWN, SPACE_SHARED
from tensorladder.vgpu.ptx.nodes import Imm, Instr, Mem, Vec

_SYNC = (("sync",), ("aligned",))
#: (shape's number, registers a lane of x1) by name
SHAPES = {
    "32x32b": (T.SHAPE_32X32B, 1), "16x64b": (T.SHAPE_16X64B, 1), "16x128b": (T.SHAPE_16X128B, 2),
    "16x256b": (T.SHAPE_16X256B, 4), "16x32bx2": (T.SHAPE_16X32BX2, 1),
}  # fmt: skip
_COUNTS = {f"x{1 << k}": 1 << k for k in range(8)}
_MOST_REGISTERS = 128


def _what(i: Instr) -> str:
    return i.mods[0] if i.mods else ""


def _kind(i: Instr) -> str:
    what = _what(i)
    if what in ("alloc", "wait::st"):
        return "block"
    return "meet" if what in ("dealloc", "relinquish_alloc_permit", "ld", "st", "wait::ld") else ""


@instruction("tcgen05", results=lambda i: int(_what(i) == "ld"), kind=_kind,
             forms="alloc, dealloc, relinquish_alloc_permit; ld and st in every shape and count, .pack::16b, "
                   ".unpack::16b; wait::ld, wait::st; cp in every shape, with and without decompression; shift.down; "
                   "commit with multicast; fence::before_thread_sync, fence::after_thread_sync; cta_group::1 and ::2; "
                   + tcgen05_mma.FORMS,
             refused=".exclusive, ld.red, ld.spcompress, commit.sync_restrict; " + tcgen05_mma.REFUSED)  # fmt: skip
def tcgen05(e: Emitter, i: Instr):
    """Dispatch on the operation."""
    what = _what(i)
    if what == "mma":
        return tcgen05_mma.mma(e, i)
    if what not in _OPERATIONS:
        raise Unsupported(i.text)
    return _OPERATIONS[what](e, i)


def spill_address(e: Emitter, operand: object, slot: int) -> str:
    """Spill a tensor memory address, `[taddr]` or a register, as i32 lanes."""
    if isinstance(operand, Mem):
        value = e.op(f"trunc <32 x i64> {e.address(operand)} to <32 x i32>")
    else:
        value = e.value(operand, "b32")
    return e.spill(value, "<32 x i32>", slot)


# ---------------------------------------------------------------- allocation
def _alloc(e: Emitter, i: Instr):
    _, group, _, _, space, ty = pick(i, ("alloc",), PAIR, *_SYNC, ("shared::cta",), ("b32",))
    pair = pair_of(e, i, group)
    if not ty:
        raise Unsupported(i.text)
    address = e.spill(e.address(i.operands[0]), "<32 x i64>", 0)
    count = e.spill(e.value(i.operands[1], "u32"), "<32 x i32>", 1)
    where = SPACE_OWN if space else SPACE_GENERIC
    go = e.call("tl_tmem_alloc", where, address, count, e.active(), pair, e.iid, fallible=True)
    return e.op(f"icmp ne i64 {go}, 0"), True


def _dealloc(e: Emitter, i: Instr) -> None:
    _, group, _, _, ty = pick(i, ("dealloc",), PAIR, *_SYNC, ("b32",))
    pair = pair_of(e, i, group)
    if not ty:
        raise Unsupported(i.text)
    address = spill_address(e, i.operands[0], 0)
    count = e.spill(e.value(i.operands[1], "u32"), "<32 x i32>", 1)
    e.call("tl_tmem_dealloc", address, count, e.active(), pair, e.iid, fallible=True)


def _relinquish(e: Emitter, i: Instr) -> None:
    _, group, _, _ = pick(i, ("relinquish_alloc_permit",), PAIR, *_SYNC)
    e.call("tl_tmem_relinquish", pair_of(e, i, group), e.iid, fallible=True)


# ---------------------------------------------------------------- loads and stores
def _form(i: Instr, what: str, packing: str) -> tuple[int, int, int]:
    """(shape, registers a lane, columns a register's element takes)."""
    _, _, _, shape, num, packed, ty = pick(i, (what,), *_SYNC, tuple(SHAPES), tuple(_COUNTS), (packing,), ("b32",))
    if not shape or not num or not ty:
        raise Unsupported(i.text)
    number, each = SHAPES[shape]
    count = each * _COUNTS[num]
    if count > _MOST_REGISTERS:
        raise Unsupported(f"{i.text} (.{num})")
    return number, count, 2 if packed else 1


def _split(i: Instr, shape: int, at: int) -> int:
    """immHalfSplitoff of 16x32bx2: columns from the half of lanes 0 to 15 to that of lanes 16 to 31."""
    if shape != T.SHAPE_16X32BX2:
        return 0
    half = i.operands[at]
    if not isinstance(half, Imm):
        raise Unsupported(f"{i.text} with split offset {getattr(half, 'value', half)}")
    return half.value


def _registers(i: Instr, operand: object, count: int) -> tuple:
    items = operand.items if isinstance(operand, Vec) else (operand,)
    if len(items) != count:
        raise Unsupported(f"{i.text} with {len(items)} registers")
    return items


def _ld(e: Emitter, i: Instr) -> None:
    shape, count, step = _form(i, "ld", "pack::16b")
    items = _registers(i, i.operands[0], count)
    spill_address(e, i.operands[1], T.SCRATCH_ADDRESS)
    half = _split(i, shape, 2)
    e.call("tl_tmem_ld", shape, count, half, step, e.active(), e.iid, fallible=True)
    for n, item in enumerate(items):
        e.set(item, e.reload("<32 x i32>", T.SCRATCH_REGISTERS + n), "b32")


def _st(e: Emitter, i: Instr) -> None:
    shape, count, step = _form(i, "st", "unpack::16b")
    items = _registers(i, i.operands[-1], count)
    for n, item in enumerate(items):
        e.spill(e.value(item, "b32"), "<32 x i32>", T.SCRATCH_REGISTERS + n)
    spill_address(e, i.operands[0], T.SCRATCH_ADDRESS)
    half = _split(i, shape, 1)
    e.call("tl_tmem_st", shape, count, half, step, e.active(), e.iid, fallible=True)


# ---------------------------------------------------------------- copies and shifts
#: (shape, multicast) -> machine.tcgen05.CP_*
_COPIES = {
    ("128x256b", ""): C.CP_128X256B, ("128x128b", ""): C.CP_128X128B, ("4x256b", ""): C.CP_4X256B,
    ("64x128b", "warpx2::02_13"): C.CP_64X128B_02_13, ("64x128b", "warpx2::01_23"): C.CP_64X128B_01_23,
    ("32x128b", "warpx4"): C.CP_32X128B,
}  # fmt: skip
_PACKINGS = {("", ""): C.CP_PLAIN, ("b8x16", "b6x16_p32"): C.CP_B6, ("b8x16", "b4x16_p64"): C.CP_B4}


def _cp(e: Emitter, i: Instr) -> None:
    shapes, multicasts = (tuple(dict.fromkeys(key[k] for key in _COPIES if key[k])) for k in (0, 1))
    _, group, shape, multicast, to, source = pick(
        i, ("cp",), PAIR, shapes, multicasts, ("b8x16",), ("b6x16_p32", "b4x16_p64")
    )
    pair = pair_of(e, i, group)
    if (shape, multicast) not in _COPIES or (to, source) not in _PACKINGS:
        raise Unsupported(i.text)
    address = spill_address(e, i.operands[0], 0)
    descriptor = e.spill(e.value(i.operands[1], "b64"), "<32 x i64>", 1)
    what = (_COPIES[shape, multicast], _PACKINGS[to, source])
    e.call("tl_tc_cp", address, descriptor, *what, e.active(), pair, e.iid, fallible=True)


def _shift(e: Emitter, i: Instr) -> None:
    _, group, way = pick(i, ("shift",), PAIR, ("down",))
    pair = pair_of(e, i, group)
    if not way:
        raise Unsupported(i.text)
    e.call("tl_tc_shift", spill_address(e, i.operands[0], 0), e.active(), pair, e.iid, fallible=True)


# ---------------------------------------------------------------- order
def _wait_ld(e: Emitter, i: Instr) -> None:
    """A load delivers at once: nothing to wait for."""
    pick(i, ("wait::ld",), *_SYNC)
    if e.checked:
        e.call("tl_hook_fence", FENCE_TCGEN05, 0, e.active(), e.iid)


def _wait_st(e: Emitter, i: Instr):
    pick(i, ("wait::st",), *_SYNC)
    go = e.call("tl_tmem_wait_st", e.active(), e.iid, fallible=True)
    if e.checked:
        e.call("tl_hook_fence", FENCE_TCGEN05 | 1 << 4, 0, e.active(), e.iid)
    return e.op(f"icmp ne i64 {go}, 0"), True


def _fence(e: Emitter, i: Instr) -> None:
    """Orders other threads' tcgen05 operations; the machine's threads see memory as it is."""
    (side,) = pick(i, ("fence::before_thread_sync", "fence::after_thread_sync"))
    if e.checked:
        e.call("tl_hook_fence", FENCE_TCGEN05 | (2 if "before" in side else 3) << 4, 0, e.active(), e.iid)


def _commit(e: Emitter, i: Instr) -> None:
    _, group, arrive, space, multicast, ty = pick(
        i, ("commit",), PAIR, ("mbarrier::arrive::one",), ("shared::cluster",), ("multicast::cluster",), ("b64",)
    )
    pair = pair_of(e, i, group)
    if not arrive or not ty:
        raise Unsupported(i.text)
    address = e.spill(e.address(i.operands[0]), "<32 x i64>", 0)
    masks = e.spill(e.value(i.operands[1], "u16"), "<32 x i16>", 1) if multicast else "0"
    where = SPACE_SHARED if space else SPACE_GENERIC
    e.call("tl_tc_commit", where, address, masks, e.active(), pair, e.iid, fallible=True)


_OPERATIONS = {
    "alloc": _alloc, "dealloc": _dealloc, "relinquish_alloc_permit": _relinquish, "ld": _ld, "st": _st,
    "wait::ld": _wait_ld, "wait::st": _wait_st, "commit": _commit, "cp": _cp, "shift": _shift,
    "fence::before_thread_sync": _fence, "fence::after_thread_sync": _fence,
}  # fmt: skip
