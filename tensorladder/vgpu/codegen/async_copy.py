"""cp.async, cp.async.bulk and their groups (PTX ISA, "Data Movement and Conversion Instructions: Asynchronous copy").

The tensor copies are in tensor_copy.py; `cp` is one mnemonic, so one entry of the table leads to both.
"""

from __future__ import annotations

from tensorladder.core.errors import Unsupported
from tensorladder.vgpu.codegen.emit import Emitter
from tensorladder.vgpu.codegen.mbarrier import wide
from tensorladder.vgpu.codegen.modifiers import pending_groups
from tensorladder.vgpu.codegen.table import instruction
from tensorladder.vgpu.machine import copies as K
from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.ptx.nodes import Imm, Instr, Reg

#: where data comes from in the cache hierarchy, or for how long it stays there: without effect on values
CACHE_HINTS = {
    "L2::cache_hint", "L2::64B", "L2::128B", "L2::256B", "L2::evict_first", "L2::evict_last", "L2::evict_normal",
}  # fmt: skip
REDUCTIONS = {
    "add": K.ADD, "min": K.MIN, "max": K.MAX, "inc": K.INC, "dec": K.DEC, "and": K.AND, "or": K.OR, "xor": K.XOR,
}  # fmt: skip
_TYPES = {
    "u32": K.U32, "b32": K.U32, "s32": K.S32, "u64": K.U64, "b64": K.U64, "s64": K.S64, "f16": K.F16, "bf16": K.BF16,
    "f32": K.F32, "f64": K.F64,
}  # fmt: skip
#: reductions by type of bulk copies (PTX ISA, table of cp.reduce.async.bulk)
_ALLOWED = {
    "f16": ("add", "min", "max"), "bf16": ("add", "min", "max"), "f32": ("add",), "f64": ("add",),
    "b32": ("and", "or", "xor"), "b64": ("and", "or", "xor"), "u32": ("add", "inc", "dec", "min", "max"),
    "s32": ("add", "min", "max"), "u64": ("add", "min", "max"), "s64": ("add", "min", "max"),
}  # fmt: skip
_WEAK = {"weak", "relaxed", "cta", "cluster", "gpu", "sys"}


def refuse_unknown(i: Instr, known: set[str]) -> None:
    """Every modifier is known, or the instruction is refused with the first one that is not."""
    for m in i.mods:
        if m not in known:
            raise Unsupported(f"{i.text} (.{m})")


def _kind(i: Instr) -> str:
    return "block" if "wait_group" in i.mods or "wait_all" in i.mods else ""


@instruction("cp", results=0, kind=_kind,
             forms="cp.async (.ca, .cg, source size, ignore-src), commit_group, wait_group, wait_all, mbarrier.arrive; "
                   "cp.async.bulk and cp.reduce.async.bulk between global, shared::cta and shared::cluster, prefetch, "
                   "multicast, .cp_mask; the same .tensor.1d to .5d .tile with tensor maps, "
                   "prefetch, multicast, .cta_group; bulk commit_group and wait_group (.read)",
             refused=".im2col, .tile::gather4, .tile::scatter4, .ignore_oob, interleaved tensor maps")  # fmt: skip
def cp(e: Emitter, i: Instr):
    """Dispatch on the leading modifiers."""
    from tensorladder.vgpu.codegen import tensor_copy

    mods = i.mods
    if mods[:1] == ("async",) and mods[1:2] != ("bulk",):
        return _SMALL[mods[1]](e, i) if mods[1] in _SMALL else _cp_async(e, i)
    if "tensor" in mods:
        return tensor_copy.copy(e, i)
    if mods[:2] == ("async", "bulk") and len(mods) > 2 and mods[2] in _BULK:
        return _BULK[mods[2]](e, i)
    if mods[:2] == ("async", "bulk") or mods[:3] == ("reduce", "async", "bulk"):
        return _bulk(e, i)
    raise Unsupported(i.text)


# ---------------------------------------------------------------- cp.async
def _cp_async(e: Emitter, i: Instr) -> None:
    refuse_unknown(i, {"async", "ca", "cg", "shared", "shared::cta", "global", *CACHE_HINTS})
    operands = list(i.operands)
    if "L2::cache_hint" in i.mods:
        operands.pop()
    size = operands[2].value if isinstance(operands[2], Imm) else 0
    if size not in (4, 8, 16) or ("cg" in i.mods and size != 16):
        raise Unsupported(f"{i.text} with cp-size {size}")
    base = e.spill(e.address(operands[0]), "<32 x i64>", 0)
    e.spill(e.address(operands[1]), "<32 x i64>", 1)
    sized = 0
    if len(operands) > 3 and not (isinstance(operands[3], Imm) and operands[3].value == size):
        sized = 1
        _source_size(e, operands[3], size)
    e.call("tl_cp_async", base, e.active(), size, sized, e.iid, fallible=True)


def _source_size(e: Emitter, operand: object, size: int) -> None:
    """The fourth operand: bytes to read (the rest is zero), or a predicate that says to read none."""
    if isinstance(operand, Reg) and operand.bits == 1:
        ignore = e.value(operand, "pred")
        take = e.op(f"select <32 x i1> {ignore}, <32 x i64> zeroinitializer, <32 x i64> {e.splat('<32 x i64>', size)}")
        e.spill(take, "<32 x i64>", 2)
    else:
        wide(e, operand, "u32", 2)


def _commit(e: Emitter, i: Instr) -> None:
    bulk = "bulk" in i.mods
    refuse_unknown(i, {"async", "bulk", "commit_group"})
    e.call("tl_commit", L.W_BULK_GROUP if bulk else L.W_CP_GROUP, e.active(), e.iid)


def _wait(e: Emitter, i: Instr) -> tuple[str, bool]:
    bulk = "bulk" in i.mods
    refuse_unknown(i, {"async", "wait_group", *(("bulk", "read") if bulk else ("wait_all",))})
    most = -1 if "wait_all" in i.mods else pending_groups(i)
    kind = L.WAIT_CP if not bulk else L.WAIT_BULK_READ if "read" in i.mods else L.WAIT_BULK
    field = L.W_BULK_GROUP if bulk else L.W_CP_GROUP
    go = e.call("tl_wait_groups", field, kind, most, e.active(), e.iid)
    return e.op(f"icmp ne i64 {go}, 0"), False


def _arrive(e: Emitter, i: Instr) -> None:
    refuse_unknown(i, {"async", "mbarrier", "arrive", "noinc", "shared", "shared::cta", "b64"})
    address = e.spill(e.address(i.operands[0]), "<32 x i64>", 0)
    e.call("tl_cp_arrive", address, e.active(), int("noinc" not in i.mods), e.iid, fallible=True)


_SMALL = {"commit_group": _commit, "wait_group": _wait, "wait_all": _wait, "mbarrier": _arrive}


# ---------------------------------------------------------------- cp.async.bulk
def _prefetch(e: Emitter, i: Instr):
    """cp.async.bulk.prefetch: a cache hint (the tensor form checks its map)."""
    from tensorladder.vgpu.codegen import tensor_copy

    if "tensor" in i.mods:
        return tensor_copy.prefetch(e, i)
    refuse_unknown(i, {"async", "bulk", "prefetch", "L2", "global", *CACHE_HINTS})
    return None


_BULK = {"commit_group": _commit, "wait_group": _wait, "prefetch": _prefetch}


def _bulk(e: Emitter, i: Instr) -> None:
    """A bulk copy or reduction: one operation for each active lane."""
    reduces = "reduce" in i.mods
    known = {"async", "bulk", "reduce", "global", "shared::cta", "shared::cluster", "mbarrier::complete_tx::bytes",
             "bulk_group", "multicast::cluster", "cp_mask", *CACHE_HINTS, *_WEAK}  # fmt: skip
    if reduces:
        known |= {"noftz", *REDUCTIONS, *_TYPES}
    refuse_unknown(i, known)
    operands = list(i.operands)
    if "L2::cache_hint" in i.mods:
        # the policy stands after the CTA mask, but before the byte mask
        operands.pop(-2 if "cp_mask" in i.mods else -1)
    spaces = [m for m in i.mods if m in ("global", "shared::cta", "shared::cluster")]
    reduction = _reduction(i) if reduces else 0
    base = e.spill(e.address(operands[0]), "<32 x i64>", 0)
    e.spill(e.address(operands[1]), "<32 x i64>", 1)
    wide(e, operands[2], "u32", 2)
    if spaces[0] == "global":
        kind = L.OP_BULK_REDUCE if reduces else L.OP_BULK_S2G
        flags = 0
        if "cp_mask" in i.mods:
            flags = K.FLAG_BYTE_MASK
            wide(e, operands[3], "u16", 4)
        e.call("tl_bulk_store", base, e.active(), kind, flags, reduction, e.iid, fallible=True)
        return
    e.spill(e.address(operands[3]), "<32 x i64>", 3)
    kind = L.OP_BULK_REDUCE if reduces else L.OP_BULK_G2S if spaces[-1] == "global" else L.OP_BULK_S2S
    flags = K.FLAG_OWN if spaces[0] == "shared::cta" else 0
    if "multicast::cluster" in i.mods:
        flags |= K.FLAG_MULTICAST
        wide(e, operands[4], "u16", 4)
    e.call("tl_bulk_load", base, e.active(), kind, flags, reduction, e.iid, fallible=True)


def _reduction(i: Instr) -> int:
    """Operation | type << 8 of a reduction, refused where the ISA has no such pair."""
    op = next((m for m in i.mods if m in REDUCTIONS), "")
    ty = i.mods[-1]
    if ty not in _TYPES or op not in _ALLOWED[ty]:
        raise Unsupported(i.text)
    return REDUCTIONS[op] | _TYPES[ty] << 8
