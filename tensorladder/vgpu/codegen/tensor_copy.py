"""cp.async.bulk.tensor, its reductions and prefetch, tensormap.* (PTX ISA, "Tensor copy", "tensormap.replace")."""

from __future__ import annotations

from tensorladder.core.errors import Unsupported
from tensorladder.core.tensormap import FIELDS
from tensorladder.vgpu.codegen.async_copy import CACHE_HINTS, REDUCTIONS, refuse_unknown
from tensorladder.vgpu.codegen.emit import Emitter
from tensorladder.vgpu.codegen.mbarrier import wide
from tensorladder.vgpu.codegen.table import instruction
from tensorladder.vgpu.machine import copies as K
from tensorladder.vgpu.machine.layout import SPACE_GENERIC, SPACE_GLOBAL, SPACE_OWN
from tensorladder.vgpu.ptx.nodes import Imm, Instr, Mem, Vec

_DIMS = {f"{n}d": n for n in range(1, 6)}
#: scratch vectors of the operands (machine/issue.py)
_MAP, _SHARED, _BAR, _COORDS, _MASK = 0, 1, 2, 3, 8


def _dims(i: Instr) -> int:
    for m in i.mods:
        if m in _DIMS:
            return _DIMS[m]
    raise Unsupported(i.text)


def _map_and_coordinates(e: Emitter, mem: Mem, dims: int, i: Instr) -> str:
    """Spill the map's address and the signed coordinates of `[map, {c0, ..}]`; gives the first vector's address."""
    base = e.spill(e.address(Mem(mem.base, mem.offset)), "<32 x i64>", _MAP)
    coords = mem.extra[0].items if mem.extra and isinstance(mem.extra[0], Vec) else mem.extra
    if len(coords) != dims:
        raise Unsupported(f"{i.text} with {len(coords)} coordinates")
    for n, c in enumerate(coords):
        wide(e, c, "s32", _COORDS + n)
    return base


def copy(e: Emitter, i: Instr) -> None:
    """Load, store, reduction or prefetch."""
    if "prefetch" in i.mods:
        prefetch(e, i)
        return
    spaces = [m for m in i.mods if m in ("global", "shared::cta", "shared::cluster")]
    if spaces[:1] == ["global"]:
        _store(e, i)
    else:
        _load(e, i, spaces)


def _load(e: Emitter, i: Instr, spaces: list[str]) -> None:
    refuse_unknown(i, {"async", "bulk", "tensor", *_DIMS, "shared::cta", "shared::cluster", "global", "tile",
                       "cta_group::1", "cta_group::2", "mbarrier::complete_tx::bytes", "multicast::cluster",
                       *CACHE_HINTS})  # fmt: skip
    operands = list(i.operands)
    if "L2::cache_hint" in i.mods:
        operands.pop()
    dims = _dims(i)
    base = _map_and_coordinates(e, operands[1], dims, i)
    e.spill(e.address(operands[0]), "<32 x i64>", _SHARED)
    e.spill(e.address(operands[2]), "<32 x i64>", _BAR)
    flags = K.FLAG_PAIR if "cta_group::2" in i.mods else 0
    flags |= K.FLAG_OWN if spaces[0] == "shared::cta" else 0
    if "multicast::cluster" in i.mods:
        flags |= K.FLAG_MULTICAST
        wide(e, operands[3], "u16", _MASK)
    e.call("tl_tma_load", base, e.active(), dims, flags, e.iid, fallible=True)


def _store(e: Emitter, i: Instr) -> None:
    reduces = "reduce" in i.mods
    refuse_unknown(i, {"async", "bulk", "tensor", "reduce", *_DIMS, "shared::cta", "global", "tile", "bulk_group",
                       *(REDUCTIONS if reduces else ()), *CACHE_HINTS})  # fmt: skip
    dims = _dims(i)
    base = _map_and_coordinates(e, i.operands[0], dims, i)
    e.spill(e.address(i.operands[1]), "<32 x i64>", _SHARED)
    reduction = next(REDUCTIONS[m] for m in i.mods if m in REDUCTIONS) if reduces else -1
    e.call("tl_tma_store", base, e.active(), dims, reduction, e.iid, fallible=True)


def prefetch(e: Emitter, i: Instr) -> None:
    """cp.async.bulk.prefetch.tensor."""
    refuse_unknown(i, {"async", "bulk", "prefetch", "tensor", *_DIMS, "L2", "global", "tile", *CACHE_HINTS})
    dims = _dims(i)
    base = _map_and_coordinates(e, i.operands[0], dims, i)
    e.call("tl_tma_prefetch", base, e.active(), dims, e.iid, fallible=True)


# ---------------------------------------------------------------- tensormap.replace, tensormap.cp_fenceproxy
#: fields of tensormap.replace that take an ordinal: their name in the map, the number of the first, and what is stored:
#: the value less the third, shifted right by the fourth
_ARRAYS = {"box_dim": ("box", 0, 1, 0), "global_dim": ("dim", 0, 1, 0), "element_stride": ("element_stride", 0, 1, 0),
           "global_stride": ("stride", 1, 0, 4)}  # fmt: skip
_SCALARS = {"global_address": "address", "rank": "rank", "interleave_layout": "interleave", "swizzle_mode": "swizzle",
            "swizzle_atomicity": "swizzle_atomicity", "fill_mode": "oob_nan"}  # fmt: skip
#: element types by tensormap.replace's number: (type, tf32) fields of the map
_ELEMENT_TYPES = {**{n: (n, 0) for n in range(11)}, 11: (7, 1), 12: (8, 1), 13: (11, 0), 14: (12, 0), 15: (13, 0)}


@instruction("tensormap", results=0, kind=lambda i: "meet" if i.mods[:1] == ("cp_fenceproxy",) else "",
             forms="replace of every tiled field in global and shared memory, cp_fenceproxy",
             refused="query")  # fmt: skip
def tensormap(e: Emitter, i: Instr) -> None:
    """Editing and publishing tensor maps in memory."""
    if i.mods[:1] == ("cp_fenceproxy",):
        _publish(e, i)
    elif i.mods[:2] == ("replace", "tile"):
        _replace(e, i)
    else:
        raise Unsupported(i.text)


def _publish(e: Emitter, i: Instr) -> None:
    """cp_fenceproxy: the warp copies a map from shared to global memory, released to the tensor map proxy."""
    refuse_unknown(i, {"cp_fenceproxy", "global", "shared::cta", "tensormap::generic", "release", "cta", "cluster",
                       "gpu", "sys", "sync", "aligned"})  # fmt: skip
    size = i.operands[2]
    if not isinstance(size, Imm) or size.value != 128:
        raise Unsupported(f"{i.text} of other than 128 bytes")
    base = e.spill(e.address(i.operands[0]), "<32 x i64>", 0)
    e.spill(e.address(i.operands[1]), "<32 x i64>", 1)
    e.call("tl_map_publish", base, e.active(), e.iid, fallible=True)


def _replace(e: Emitter, i: Instr) -> None:
    name = i.mods[2]
    refuse_unknown(i, {"replace", "tile", name, "global", "shared::cta", "b1024", "b32", "b64"})
    space = SPACE_GLOBAL if "global" in i.mods else SPACE_OWN if "shared::cta" in i.mods else SPACE_GENERIC
    e.spill(e.address(i.operands[0]), "<32 x i64>", 0)
    if name == "elemtype":
        number = i.operands[1]
        if not isinstance(number, Imm) or number.value not in _ELEMENT_TYPES:
            raise Unsupported(f"{i.text} with element type {getattr(number, 'value', number)}")
        code, tf32 = _ELEMENT_TYPES[number.value]
        _put(e, space, "type", e.splat("<32 x i64>", code))
        _put(e, space, "tf32", e.splat("<32 x i64>", tf32))
    elif name in _SCALARS:
        value = e.value(i.operands[1], "b64" if name == "global_address" else "b32")
        if name != "global_address":
            value = e.op(f"zext <32 x i32> {value} to <32 x i64>")
        _put(e, space, _SCALARS[name], value)
    elif name in _ARRAYS:
        _replace_array(e, i, space, *_ARRAYS[name])
    else:
        raise Unsupported(f"{i.text} (.{name})")


def _replace_array(e: Emitter, i: Instr, space: int, field: str, first: int, less: int, shift: int) -> None:
    ordinal = i.operands[1]
    if not isinstance(ordinal, Imm) or f"{field}{ordinal.value + first}" not in FIELDS:
        raise Unsupported(f"{i.text} with ordinal {getattr(ordinal, 'value', ordinal)}")
    field = f"{field}{ordinal.value + first}"
    wide_value = "b64" in i.mods
    value = e.value(i.operands[2], "b64" if wide_value else "b32")
    if not wide_value:
        value = e.op(f"zext <32 x i32> {value} to <32 x i64>")
    if less:
        value = e.op(f"sub <32 x i64> {value}, splat (i64 {less})")
    if shift:
        value = e.op(f"lshr <32 x i64> {value}, splat (i64 {shift})")
        high = e.op(f"lshr <32 x i64> {value}, splat (i64 32)")
        _put(e, space, f"{field}_high", high)
    _put(e, space, field, value)


def _put(e: Emitter, space: int, field: str, value: str) -> None:
    """Set a field of each active lane's map (addresses in scratch 0) to a lane vector."""
    f = FIELDS[field]
    values = e.spill(value, "<32 x i64>", 1)
    place = (8 * f.word, f.low, f.width)
    e.call("tl_map_put", space, e.scratch_address(0), values, e.active(), *place, e.iid, fallible=True)
