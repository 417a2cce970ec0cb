"""cp.async.bulk.tensor, its reductions and prefetch (PTX ISA, "Asynchronous copy: Tensor copy")."""

from __future__ import annotations

from tensorladder.core.errors import Unsupported
from tensorladder.vgpu.codegen.async_copy import CACHE_HINTS, REDUCTIONS, refuse_unknown
from tensorladder.vgpu.codegen.emit import Emitter
from tensorladder.vgpu.codegen.mbarrier import wide
from tensorladder.vgpu.machine import copies as K
from tensorladder.vgpu.ptx.nodes import Instr, Mem, Vec

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
        _load(e, i)


def _load(e: Emitter, i: Instr) -> None:
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
