"""Barriers, fences and what else orders threads (PTX ISA, "Parallel Synchronization and Communication Instructions").

The machine runs one access at a time, so a fence changes no value here; the checked variant records it. Every modifier
is known by name all the same.
"""

from __future__ import annotations

from tensorladder.core.errors import Unsupported, UsageError
from tensorladder.vgpu.codegen.emit import Emitter
from tensorladder.vgpu.codegen.modifiers import SCOPES, pick
from tensorladder.vgpu.codegen.table import instruction
from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.machine.barriers import BAR_AND, BAR_ARRIVE, BAR_OR, BAR_POPC, BAR_SYNC
from tensorladder.vgpu.ptx.nodes import Imm, Instr

_FULL = 0xFFFFFFFF
_BAR_OPS = {"sync": BAR_SYNC, "arrive": BAR_ARRIVE, "popc": BAR_POPC, "and": BAR_AND, "or": BAR_OR}
_RED_TYPES = {"popc": "u32", "and": "pred", "or": "pred"}


def _bar_kind(i: Instr) -> str:
    return "" if "cluster" in i.mods and "arrive" in i.mods else "block"


def _bar_results(i: Instr) -> int:
    return int("red" in i.mods)


@instruction("bar", "barrier", results=_bar_results, kind=_bar_kind,
             forms="bar and barrier{.cta}: .sync, .arrive, .red.popc, .and, .or, with and without .aligned; "
                   "bar.warp.sync; barrier.cluster.arrive and .wait")  # fmt: skip
def barrier(e: Emitter, i: Instr):
    """Dispatch on what the barrier joins."""
    if "warp" in i.mods:
        return _warp_sync(e, i)
    if "cluster" in i.mods:
        return _cluster(e, i)
    _, what, op, _, ty = pick(
        i, ("cta",), ("sync", "arrive", "red"), ("popc", "and", "or"), ("aligned",), ("u32", "pred")
    )
    if (what == "red") != bool(op) or ty != _RED_TYPES.get(op, ""):
        raise Unsupported(i.text)
    operands = i.operands[int(what == "red") :]
    vote = "0"
    if what == "red":
        bits = e.op(f"bitcast <32 x i1> {e.value(operands.pop(), 'pred')} to i32")
        vote = e.op(f"zext i32 {bits} to i64")
    index = _uniform(e, operands[0], 0)
    count = _uniform(e, operands[1], 1) if len(operands) > 1 else "0"
    if e.checked and e.masked and (i.op == "bar" or "aligned" in i.mods):
        e.call("tl_hook_apart", index, e.active(), i.index)
    code = e.call("tl_bar", _BAR_OPS[op or what], index, count, e.active(), vote, i.index, fallible=True)
    if what == "red":
        value = e.broadcast("i32", e.op(f"trunc i64 {code} to i32"))
        e.set(i.operands[0], value if op == "popc" else e.op(f"icmp ne <32 x i32> {value}, zeroinitializer"), ty)
    return e.op(f"icmp sge i64 {code}, 0"), what == "red"


def _uniform(e: Emitter, operand: object, slot: int) -> str | int:
    """An operand that all lanes of a group have to agree on, as i64."""
    if isinstance(operand, Imm):
        return operand.value
    return e.call("tl_uniform", e.spill(e.value(operand, "u32"), "<32 x i32>", slot), e.active(), e.iid, fallible=True)


def _warp_sync(e: Emitter, i: Instr):
    pick(i, ("warp",), ("sync",))
    mask = i.operands[0]
    if isinstance(mask, Imm) and mask.value & _FULL == _FULL and not e.masked:
        if e.checked:
            e.call("tl_warp_sync", e.spill(e.value(mask, "u32"), "<32 x i32>", 0), e.active(), i.index)
        return "true", False  # all are here
    masks = e.spill(e.value(mask, "u32"), "<32 x i32>", 0)
    if e.checked and not isinstance(mask, Imm):
        e.call("tl_hook_members", masks, e.active(), i.index)
    go = e.call("tl_warp_sync", masks, e.active(), i.index, fallible=True)
    return e.op(f"icmp ne i64 {go}, 0"), False


def _cluster(e: Emitter, i: Instr):
    _, what, order, _ = pick(i, ("cluster",), ("arrive", "wait"), ("release", "relaxed", "acquire"), ("aligned",))
    if not what or order not in (("", "acquire") if what == "wait" else ("", "release", "relaxed")):
        raise Unsupported(i.text)
    if what == "arrive":
        e.call("tl_cluster_arrive", e.active(), int(order == "relaxed"), i.index, fallible=True)
        return None
    go = e.call("tl_cluster_wait", e.active(), i.index, fallible=True)
    return e.op(f"icmp ne i64 {go}, 0"), True


# ---------------------------------------------------------------- fences
_SEMANTICS = ("sc", "acq_rel", "acquire", "release")
_RESTRICT = ("sync_restrict::shared::cta", "sync_restrict::shared::cluster")
_PROXIES = ("alias", "async", "tensormap::generic", "async::generic")
_PROXY_SPACES = ("global", "shared::cta", "shared::cluster")
#: what the hook of a fence says: kind | semantics << 4 | scope << 8 | space << 12 (0: none, else 1 + place)
FENCE_MEMORY, FENCE_MBARRIER_INIT, FENCE_PROXY = 0, 1, 2  # a proxy fence's kind: FENCE_PROXY + place in _PROXIES
FENCE_ASYNC, FENCE_TENSOR_MAP, FENCE_ASYNC_GENERIC = (FENCE_PROXY + _PROXIES.index(p) for p in _PROXIES[1:])
#: tcgen05: wait::ld, wait::st, fence::before_thread_sync, fence::after_thread_sync in the bits of the semantics
FENCE_TCGEN05 = 8
FENCE_WGMMA = 9


def _place(word: str, words: tuple[str, ...]) -> int:
    return words.index(word) + 1 if word else 0


@instruction("fence", results=0,
             forms=".sc, .acq_rel, .acquire, .release with all scopes; .mbarrier_init; .proxy.alias, .async, "
                   ".tensormap::generic, .async::generic",
             refused=".proxy with fabric, fence.alias")  # fmt: skip
def fence(e: Emitter, i: Instr) -> None:
    """Memory and proxy fences: recorded, without effect on values."""
    if i.mods[:1] == ("mbarrier_init",):
        _, semantics, scope = pick(i, ("mbarrier_init",), ("release",), ("cluster",))
        kind, space = FENCE_MBARRIER_INIT, ""
    elif i.mods[:1] == ("proxy",):
        _, proxy, space, semantics, _, scope = pick(
            i, ("proxy",), _PROXIES, _PROXY_SPACES, ("acquire", "release"), _RESTRICT, SCOPES
        )
        if not proxy:
            raise Unsupported(i.text)
        kind = FENCE_PROXY + _PROXIES.index(proxy)
    else:
        semantics, _, scope = pick(i, _SEMANTICS, _RESTRICT, SCOPES)
        kind, space = FENCE_MEMORY, ""
    if e.checked:
        what = (
            kind | _place(semantics, _SEMANTICS) << 4 | _place(scope, SCOPES) << 8 | _place(space, _PROXY_SPACES) << 12
        )
        address: str | int = 0
        if kind == FENCE_TENSOR_MAP and i.operands:  # an acquire names the map
            address = e.spill(e.address(i.operands[0]), "<32 x i64>", 0)
        e.call("tl_hook_fence", what, address, e.active(), i.index)


@instruction("membar", results=0, forms=".cta, .gl, .sys, .proxy.alias")
def membar(e: Emitter, i: Instr) -> None:
    """The old spelling: fence.sc with a scope."""
    level, proxy, _ = pick(i, ("cta", "gl", "sys"), ("proxy",), ("alias",))
    if not level and not proxy:
        raise Unsupported(i.text)
    if e.checked:
        kind = FENCE_PROXY if proxy else FENCE_MEMORY
        scope = {"": 0, "cta": 1, "gl": 3, "sys": 4}[level]
        e.call("tl_hook_fence", kind | 1 << 4 | scope << 8, 0, e.active(), i.index)


# ---------------------------------------------------------------- time, registers, debugging
@instruction("nanosleep", results=0, kind="block", forms=".u32, immediate or register, at most a millisecond")
def nanosleep(e: Emitter, i: Instr):
    """Sleep; other warps run meanwhile."""
    pick(i, ("u32",))
    e.call("tl_sleep", e.spill(e.value(i.operands[0], "u32"), "<32 x i32>", 0), e.active(), i.index)
    return "false", False


@instruction("setmaxnreg", results=0, kind="block", forms=".inc, .dec: warps of a CTA hand on registers; .inc waits")
def setmaxnreg(e: Emitter, i: Instr):
    """Release registers to the CTA's pool, or take some from it."""
    way, _, _, _ = pick(i, ("inc", "dec"), ("sync",), ("aligned",), ("u32",))
    count = i.operands[0]
    if not way or not isinstance(count, Imm):
        raise Unsupported(i.text)
    if count.value % 8 or not 24 <= count.value <= 256:
        raise UsageError(f"PTX line {i.line}: {i.text} of {count.value}: a multiple of 8 from 24 to 256 is wanted")
    go = e.call("tl_setmaxnreg", int(way == "inc"), count.value, e.active(), i.index, fallible=True)
    return e.op(f"icmp ne i64 {go}, 0"), True


@instruction("pmevent", results=0, forms="immediate, .mask: no performance monitors to trigger")
def pmevent(e: Emitter, i: Instr) -> None:
    """Performance monitor events have no effect on a program."""
    pick(i, ("mask",))


@instruction("brkpt", results=0, forms="stops the launch")
def brkpt(e: Emitter, i: Instr) -> None:
    """A breakpoint without a debugger ends the kernel."""
    pick(i)
    e.call("tl_fail", L.ERR_BREAKPOINT, i.index, e.active(), fallible=True)
