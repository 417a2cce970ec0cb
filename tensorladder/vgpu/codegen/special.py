"""Special registers (PTX ISA, "Special Registers")."""

from __future__ import annotations

from tensorladder.core.errors import Unsupported
from tensorladder.vgpu.codegen.emit import Emitter
from tensorladder.vgpu.machine import layout as L

LANE = "<" + ", ".join(f"i32 {i}" for i in range(L.LANES)) + ">"
_MASKS = {
    "eq": [1 << i for i in range(32)],
    "lt": [(1 << i) - 1 for i in range(32)],
    "le": [(2 << i) - 1 for i in range(32)],
    "ge": [0xFFFFFFFF & ~((1 << i) - 1) for i in range(32)],
    "gt": [0xFFFFFFFF & ~((2 << i) - 1) for i in range(32)],
}
_AXES = {"x": 0, "y": 1, "z": 2}

#: 32-bit values that are the same in the whole warp: (pointer field of the warp or None, offset)
_SCALARS = {
    "%warpid": (None, L.W_WARPID),
    "%nwarpid": (L.W_CTA, L.C_NWARPS),
    "%smid": (L.W_CTA, L.C_SMID),
    "%nsmid": (L.W_LAUNCH, L.L_NSMID),
    "%cluster_ctarank": (None, L.W_RANK),
    "%dynamic_smem_size": (L.W_LAUNCH, L.L_DYNAMIC_SMEM),
    "%total_smem_size": (L.W_LAUNCH, L.L_TOTAL_SMEM),
    "%aggr_smem_size": (L.W_LAUNCH, L.L_TOTAL_SMEM),
    "%clock": (None, L.W_CLOCK),
    **{f"%ctaid.{a}": (L.W_CTA, L.C_CTAID + 8 * i) for a, i in _AXES.items()},
    **{f"%nctaid.{a}": (L.W_LAUNCH, L.L_GRID + 8 * i) for a, i in _AXES.items()},
    **{f"%ntid.{a}": (L.W_LAUNCH, L.L_BLOCK + 8 * i) for a, i in _AXES.items()},
    **{f"%cluster_nctaid.{a}": (L.W_LAUNCH, L.L_CLUSTER + 8 * i) for a, i in _AXES.items()},
    **{f"%clusterid.{a}": (L.W_CTA, L.C_CLUSTERID + 8 * i) for a, i in _AXES.items()},
}
_WIDE = {"%clock64": (None, L.W_CLOCK), "%gridid": (L.W_LAUNCH, L.L_GRIDID)}
#: the offsets of the system's part of shared memory are those of an H200
_CONSTANT = {"WARP_SZ": 32, "%tid.w": 0, "%ntid.w": 0, "%ctaid.w": 0, "%nctaid.w": 0,
             "%reserved_smem_offset_begin": 0, "%reserved_smem_offset_end": 288, "%reserved_smem_offset_0": 0,
             "%reserved_smem_offset_1": 0, "%reserved_smem_offset_cap": L.SHARED_RESERVED}  # fmt: skip

SUPPORTED = sorted(
    [*_SCALARS, *_WIDE, *_CONSTANT, "%laneid", "%tid.x", "%tid.y", "%tid.z", "%clock_hi", "%globaltimer",
     "%globaltimer_lo", "%globaltimer_hi", "%is_explicit_cluster", "%cluster_nctarank", "%cluster_ctaid.x",
     "%cluster_ctaid.y", "%cluster_ctaid.z", "%nclusterid.x", "%nclusterid.y", "%nclusterid.z"]
    + [f"%lanemask_{m}" for m in _MASKS]
)  # fmt: skip


def special(e: Emitter, name: str) -> tuple[str, int]:
    """(lane vector, bits) of a special register. Raises Unsupported by name."""
    if name in _SCALARS:
        return _scalar(e, *_SCALARS[name], 32), 32
    if name in _WIDE:
        return _scalar(e, *_WIDE[name], 64), 64
    if name in _CONSTANT:
        return e.splat("<32 x i32>", _CONSTANT[name]), 32
    if name == "%laneid":
        return LANE, 32
    if name.startswith("%lanemask_") and name[10:] in _MASKS:
        return "<" + ", ".join(f"i32 {v}" for v in _MASKS[name[10:]]) + ">", 32
    if name.startswith("%tid."):
        offset = {"x": L.W_TID_X, "y": L.W_TID_Y, "z": L.W_TID_Z}[name[5:]]
        return e.op(f"load <32 x i32>, ptr {e.warp_ptr(offset)}, align 64"), 32
    if name == "%clock_hi":
        return _high(e, _scalar(e, None, L.W_CLOCK, 64)), 32
    if name.startswith("%globaltimer"):
        return _global_timer(e, name)
    if name.startswith(("%cluster_ctaid.", "%nclusterid.", "%is_explicit_cluster", "%cluster_nctarank")):
        return _cluster(e, name), 32 if name != "%is_explicit_cluster" else 1
    raise Unsupported(f"special register {name}")


def _raw(e: Emitter, through: int | None, offset: int) -> str:
    return e.warp_field(offset) if through is None else e.field_of(through, offset)


def _scalar(e: Emitter, through: int | None, offset: int, bits: int) -> str:
    raw = _raw(e, through, offset)
    if bits == 32:
        raw = e.op(f"trunc i64 {raw} to i32")
    return e.broadcast(f"i{bits}", raw)


def _high(e: Emitter, wide: str) -> str:
    shifted = e.op(f"lshr <32 x i64> {wide}, splat (i64 32)")
    return e.op(f"trunc <32 x i64> {shifted} to <32 x i32>")


def _global_timer(e: Emitter, name: str) -> tuple[str, int]:
    """Nanoseconds: the clock over the architecture's frequency, from the launch's start."""
    cycles = e.op(f"mul i64 {e.warp_field(L.W_CLOCK)}, 1000000")
    ns = e.op(f"udiv i64 {cycles}, {e.field_of(L.W_LAUNCH, L.L_CLOCK_KHZ)}")
    ns = e.op(f"add i64 {ns}, {e.field_of(L.W_LAUNCH, L.L_TIME0)}")
    wide = e.broadcast("i64", ns)
    if name == "%globaltimer":
        return wide, 64
    if name.endswith("_hi"):
        return _high(e, wide), 32
    return e.op(f"trunc <32 x i64> {wide} to <32 x i32>"), 32


def _cluster(e: Emitter, name: str) -> str:
    sizes = [e.field_of(L.W_LAUNCH, L.L_CLUSTER + 8 * i) for i in range(3)]
    if name == "%is_explicit_cluster" or name == "%cluster_nctarank":
        count = e.op(f"mul i64 {e.op(f'mul i64 {sizes[0]}, {sizes[1]}')}, {sizes[2]}")
        if name == "%cluster_nctarank":
            return e.broadcast("i32", e.op(f"trunc i64 {count} to i32"))
        many = e.op(f"icmp ugt i64 {count}, 1")
        return e.broadcast("i1", many)
    axis = _AXES[name[-1]]
    if name.startswith("%nclusterid"):
        grid = e.field_of(L.W_LAUNCH, L.L_GRID + 8 * axis)
        value = e.op(f"udiv i64 {grid}, {sizes[axis]}")
    else:
        place = e.field_of(L.W_CTA, L.C_CTAID + 8 * axis)
        value = e.op(f"urem i64 {place}, {sizes[axis]}")
    return e.broadcast("i32", e.op(f"trunc i64 {value} to i32"))
