"""ld, st, mov, cvta and address queries (PTX ISA, "Data Movement and Conversion Instructions")."""

from __future__ import annotations

from tensorladder.core.errors import Unsupported
from tensorladder.vgpu.codegen.emit import Emitter, ivec, vec
from tensorladder.vgpu.codegen.remote import store_async
from tensorladder.vgpu.codegen.table import instruction
from tensorladder.vgpu.machine import hooks as H
from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.machine.layout import SPACE_GENERIC, SPACE_GLOBAL, SPACE_LOCAL, SPACE_OWN, SPACE_SHARED
from tensorladder.vgpu.ptx.nodes import TYPE_BITS, Instr, Mem, Reg, Sym, Vec

_SPACES = {
    "global": SPACE_GLOBAL, "const": SPACE_GLOBAL, "shared": SPACE_OWN, "shared::cta": SPACE_OWN,
    "shared::cluster": SPACE_SHARED, "local": SPACE_LOCAL, "param": SPACE_GLOBAL, "param::entry": SPACE_GLOBAL,
    "param::func": SPACE_LOCAL,
}  # fmt: skip
_VECTORS = {"v2": 2, "v4": 4, "v8": 8}
#: orderings, scopes, caching and eviction hints: no effect on values in a machine that runs one access at a time
_HINTS = {
    "weak", "relaxed", "acquire", "release", "volatile", "mmio", "cta", "cluster", "gpu", "sys",
    "ca", "cg", "cs", "lu", "cv",
    "wb", "wt", "nc", "L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last", "L1::no_allocate",
    "L2::evict_first", "L2::evict_last", "L2::evict_normal", "L2::cache_hint", "L2::64B", "L2::128B", "L2::256B",
    "unified",
}  # fmt: skip


def split(i: Instr) -> tuple[int, int, str]:
    """(space, vector count, type) of a load or store; every modifier is known or refused by name."""
    space, count, ty = SPACE_GENERIC, 1, ""
    for m in i.mods:
        if m in _SPACES:
            space = _SPACES[m]
        elif m in _VECTORS:
            count = _VECTORS[m]
        elif m in TYPE_BITS:
            ty = m
        elif m not in _HINTS:
            raise Unsupported(f"{i.text} (.{m})")
    if not ty:
        raise Unsupported(i.text)
    return space, count, ty


def _is_call_param(e: Emitter, mem: Mem) -> bool:
    return isinstance(mem.base, Sym) and e.symbols.get(mem.base.name, ("",))[0] == "local"


def _space_of(e: Emitter, i: Instr, mem: Mem, space: int) -> int:
    """`.param` is the kernel's parameter block, or per-thread memory for the parameters of a call."""
    if any(m.startswith("param") for m in i.mods):
        return SPACE_LOCAL if _is_call_param(e, mem) else SPACE_GLOBAL
    return space


@instruction("ld", "ldu",
             forms="all spaces, vectors and types; cache, eviction and prefetch hints; "
             "volatile to acquire")  # fmt: skip
def ld(e: Emitter, i: Instr) -> None:
    """Load."""
    space, count, ty = split(i)
    dst, mem = i.operands[0], i.operands[1]
    space = _space_of(e, i, mem, space)
    items = dst.items if isinstance(dst, Vec) else (dst,)
    if any(m.startswith("param") for m in i.mods) and isinstance(mem.base, Sym) and space == SPACE_GLOBAL:
        _ld_param(e, mem, items, ty)
        return
    if i.index in e.runs:
        _ld_run(e, i, space, items, ty)
        return
    bits = max(TYPE_BITS[ty], 8)
    per = 2 if bits == 128 else 1  # a b128 element is two 64-bit ones
    size = bits // 8
    where = e.address(mem)
    if space == SPACE_GLOBAL and any(m.startswith("param") for m in i.mods):
        where = _in_params(e, where)
    address = e.spill(where, "<32 x i64>", 0)
    vectors = e.scratch_address(1)
    e.call("tl_ld", space, address, e.active(), vectors, size // per, count * per, size * count, e.iid, fallible=True)
    hook(e, "read", space, bits // 8 * count)
    for n, item in enumerate(items):
        if bits == 128:
            value = combine128(e, e.reload("<32 x i64>", 1 + 2 * n), e.reload("<32 x i64>", 2 + 2 * n))
            e.set(item, value, "b128")
        else:
            e.set(item, e.reload(vec(ty) if bits == TYPE_BITS[ty] else ivec(8), 1 + n), ty)


def _ld_run(e: Emitter, i: Instr, space: int, items: tuple, ty: str) -> None:
    """A load that is done together with its neighbours, at the place of the first of them."""
    run = e.runs[i.index]
    raw = ivec(run.bits)
    if i.index == run.first:
        address = e.spill(e.address(run.mem), "<32 x i64>", 0)
        vectors = e.scratch_address(1)
        e.call("tl_ld", space, address, e.active(), vectors, run.bits // 8, run.count, run.align, e.iid, fallible=True)
        run.values = [e.reload(raw, 1 + n) for n in range(run.count)]
    for n, item in enumerate(items):
        value = run.values[run.places[i.index] + n]
        if vec(ty) != raw:
            value = e.op(f"bitcast {raw} {value} to {vec(ty)}")
        e.set(item, value, ty)


def combine128(e: Emitter, low: str, high: str) -> str:
    """Two i64 vectors to one i128 vector."""
    a = e.op(f"zext <32 x i64> {low} to <32 x i128>")
    b = e.op(f"zext <32 x i64> {high} to <32 x i128>")
    b = e.op(f"shl <32 x i128> {b}, splat (i128 64)")
    return e.op(f"or <32 x i128> {a}, {b}")


def split128(e: Emitter, value: str) -> tuple[str, str]:
    """An i128 vector to its low and high halves."""
    low = e.op(f"trunc <32 x i128> {value} to <32 x i64>")
    high = e.op(f"lshr <32 x i128> {value}, splat (i128 64)")
    return low, e.op(f"trunc <32 x i128> {high} to <32 x i64>")


def _ld_param(e: Emitter, mem: Mem, items: tuple, ty: str) -> None:
    """A kernel parameter: one load for the whole warp."""
    assert isinstance(mem.base, Sym)
    place = e.symbols[mem.base.name][1] + mem.offset
    base = e.once("params", lambda: e.op(f"load ptr, ptr {e.warp_ptr(L.W_PARAMS)}"))
    bits = max(TYPE_BITS[ty], 8)
    for n, item in enumerate(items):
        p = e.op(f"getelementptr i8, ptr {base}, i64 {place + n * bits // 8}")
        scalar = e.op(f"load i{bits}, ptr {p}")
        value = e.broadcast(f"i{bits}", scalar)
        e.set(item, value, f"s{bits}" if ty.startswith("s") else f"b{bits}")


@instruction("st", results=0, forms="all spaces, vectors and types; cache and eviction hints; volatile to release; "
             "st.async to shared::cluster with an mbarrier",
             refused="st.async.release (to global memory), st.bulk")  # fmt: skip
def st(e: Emitter, i: Instr) -> None:
    """Store."""
    if "async" in i.mods:
        store_async(e, i)
        return
    space, count, ty = split(i)
    mem, src = i.operands[0], i.operands[1]
    space = _space_of(e, i, mem, space)
    items = src.items if isinstance(src, Vec) else (src,)
    bits = max(TYPE_BITS[ty], 8)
    per = 2 if bits == 128 else 1
    for n, item in enumerate(items):
        value = e.value(item, ty)
        if bits == 128:
            for k, half in enumerate(split128(e, value)):
                e.spill(half, "<32 x i64>", 1 + 2 * n + k)
        else:
            e.spill(value, vec(ty), 1 + n)
    address = e.spill(e.address(mem), "<32 x i64>", 0)
    values = e.scratch_address(1)
    e.call("tl_st", space, address, e.active(), values, bits // 8 // per, count * per, e.iid, fallible=True)
    hook(e, "write", space, bits // 8 * count, width=bits // 8 // per)


def hook(e: Emitter, what: str, space: int, size: int, lanes: str | int | None = None, aligned: bool = False,
         width: int = 1) -> None:  # fmt: skip
    """Where the checked variant sees an access: addresses (host) in scratch 0, lanes, bytes a lane, instruction.

    aligned: the instruction is one of the whole warp's. width: bytes of an element of a store.
    """
    if not e.checked or space == SPACE_LOCAL:
        return
    code = {"read": H.ACCESS_READ, "write": H.ACCESS_WRITE, "atomic": H.ACCESS_ATOMIC}[what]
    mods = e.instr.mods
    if what == "atomic" or _STRONG.intersection(mods):
        code |= H.ACCESS_STRONG
    if _ACQUIRES.intersection(mods):
        code |= H.ACCESS_ACQUIRE
    if _RELEASES.intersection(mods):
        code |= H.ACCESS_RELEASE
    if aligned:
        code |= H.ACCESS_ALIGNED
    if "exch" in mods:
        code |= H.ACCESS_EXCHANGE
    scope = H.SCOPE_CTA if "cta" in mods else H.SCOPE_CLUSTER if "cluster" in mods else H.SCOPE_GPU
    code |= (space & 3) << H.ACCESS_SPACE | scope << H.ACCESS_SCOPE | (width.bit_length() - 1) << H.ACCESS_WIDTH
    e.call("tl_hook_access", code, e.scratch_address(0), lanes or e.active(), size, e.iid)


_STRONG = {"volatile", "relaxed", "acquire", "release", "acq_rel", "mmio"}
_ACQUIRES, _RELEASES = {"acquire", "acq_rel"}, {"release", "acq_rel"}


@instruction("mov", forms="registers, immediates, special registers, addresses, packing and unpacking of vectors")
def mov(e: Emitter, i: Instr) -> None:
    """Move, pack or unpack."""
    ty = i.mods[-1]
    if ty not in TYPE_BITS:
        raise Unsupported(i.text)
    dst, src = i.operands
    if isinstance(dst, Vec):
        _unpack(e, dst, src, TYPE_BITS[ty])
    elif isinstance(src, Vec):
        e.set(dst, _pack(e, src, TYPE_BITS[ty]), f"b{TYPE_BITS[ty]}")
    elif isinstance(src, Sym) and TYPE_BITS[ty] == 32 and e.symbols.get(src.name, ("",))[0] == "param":
        e.set(dst, e.splat(ivec(32), e.symbols[src.name][1] + src.offset), ty)
    else:
        e.set(dst, e.value(src, ty), ty)


#: no host address is as low, every place in a parameter block is
_PARAM_LIMIT = 1 << 16


def _in_params(e: Emitter, address: str) -> str:
    """A .param address as a host address: a 32-bit register holds the place in the parameter block instead."""
    base = e.broadcast("i64", e.warp_field(L.W_PARAMS))
    low = e.op(f"icmp ult <32 x i64> {address}, {e.splat('<32 x i64>', _PARAM_LIMIT)}")
    moved = e.op(f"add <32 x i64> {address}, {base}")
    return e.op(f"select <32 x i1> {low}, <32 x i64> {moved}, <32 x i64> {address}")


def _pack(e: Emitter, src: Vec, bits: int) -> str:
    """{a, b, ..} with the first in the lowest bits."""
    part = bits // len(src.items)
    total = None
    for n, item in enumerate(src.items):
        value = e.value(item, f"b{part}")
        wide = e.op(f"zext {ivec(part)} {value} to {ivec(bits)}")
        if n:
            wide = e.op(f"shl {ivec(bits)} {wide}, {e.splat(ivec(bits), n * part)}")
        total = wide if total is None else e.op(f"or {ivec(bits)} {total}, {wide}")
    return total


def _unpack(e: Emitter, dst: Vec, src: object, bits: int) -> None:
    part = bits // len(dst.items)
    value = e.value(src, f"b{bits}")
    for n, item in enumerate(dst.items):
        piece = value if n == 0 else e.op(f"lshr {ivec(bits)} {value}, {e.splat(ivec(bits), n * part)}")
        e.set(item, e.op(f"trunc {ivec(bits)} {piece} to {ivec(part)}"), f"b{part}")


_WINDOWS = {"shared": L.SHARED_WINDOW, "shared::cta": L.SHARED_WINDOW, "shared::cluster": L.SHARED_WINDOW,
            "local": L.LOCAL_WINDOW, "global": 0, "const": 0, "param": 0, "param::entry": 0}  # fmt: skip


@instruction("cvta", forms="both directions, all spaces, u32 and u64")
def cvta(e: Emitter, i: Instr) -> None:
    """Generic address from or to a state space's address."""
    ty = i.mods[-1]
    to = i.mods[0] == "to"
    space = i.mods[1 if to else 0]
    if space not in _WINDOWS or ty not in ("u64", "u32"):
        raise Unsupported(i.text)
    src = i.operands[1]
    value = e.address(Mem(src, 0)) if isinstance(src, Reg | Sym) else e.value(src, "u64")
    window = _WINDOWS[space]
    if space.startswith("param") and not to:
        value = _in_params(e, value)
    if window:
        if to:
            value = e.op(f"and <32 x i64> {value}, {e.splat('<32 x i64>', ~L.WINDOW_MASK)}")
        else:
            value = e.op(f"or <32 x i64> {value}, {e.splat('<32 x i64>', window)}")
    if ty == "u32":
        value = e.op(f"trunc <32 x i64> {value} to <32 x i32>")
    e.set(i.operands[0], value, ty)


@instruction("isspacep", forms="global, const, shared, shared::cta, shared::cluster, local, param")
def isspacep(e: Emitter, i: Instr) -> None:
    """Whether a generic address lies in a space's window; .shared is .shared::cta, the CTA's own part of it."""
    space = i.mods[0]
    if space not in _WINDOWS:
        raise Unsupported(i.text)
    own = space in ("shared", "shared::cta")
    mask = L.WINDOW_MASK | (0xFF << L.RANK_SHIFT if own else 0)
    window = e.op(f"and <32 x i64> {e.value(i.operands[1], 'u64')}, {e.splat('<32 x i64>', mask)}")
    want = e.splat("<32 x i64>", _WINDOWS[space])
    if own:
        want = e.op(f"or <32 x i64> {want}, {e.broadcast('i64', e.warp_field(L.W_SMEM_BASE))}")
    e.set(i.operands[0], e.op(f"icmp eq <32 x i64> {window}, {want}"), "pred")


@instruction("prefetch", "prefetchu", "applypriority", "discard", "createpolicy",
             results=lambda i: int(i.op == "createpolicy"),
             forms="all: cache hints without effect on values; createpolicy gives an opaque policy")  # fmt: skip
def cache_hint(e: Emitter, i: Instr) -> None:
    """Cache control. `discard` makes the line's content undefined, which keeping it satisfies."""
    if i.op == "createpolicy":
        e.set(i.operands[0], e.splat("<32 x i64>", 0), "b64")
