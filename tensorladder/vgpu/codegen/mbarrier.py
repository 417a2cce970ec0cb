"""mbarrier.* (PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier")."""

from __future__ import annotations

from tensorladder.core.errors import Unsupported
from tensorladder.vgpu.codegen.emit import Emitter
from tensorladder.vgpu.codegen.table import instruction
from tensorladder.vgpu.machine import mbarrier as M
from tensorladder.vgpu.machine.layout import SPACE_GENERIC, SPACE_SHARED
from tensorladder.vgpu.ptx.nodes import Instr, Mem, Sink

_SPACES = {"shared", "shared::cta", "shared::cluster"}
#: orderings and scopes say how others see memory; the machine runs one access at a time, so any of them holds
_ORDER = {"acquire", "release", "relaxed", "cta", "cluster"}
#: modifiers of each operation beside space, ordering, scope and type
_OWN = {
    "init": set(), "inval": set(), "arrive": {"expect_tx", "noComplete"}, "arrive_drop": {"expect_tx", "noComplete"},
    "test_wait": {"parity"}, "try_wait": {"parity"}, "expect_tx": set(), "complete_tx": set(), "pending_count": set(),
}  # fmt: skip
_VALUE_RESULT = {"test_wait", "try_wait", "pending_count"}


def _results(i: Instr) -> int:
    what = i.mods[0] if i.mods else ""
    if what in _VALUE_RESULT:
        return 1
    return int(what in ("arrive", "arrive_drop") and not isinstance(i.operands[0], Mem))


def _kind(i: Instr) -> str:
    return "block" if i.mods[:1] == ("try_wait",) else ""


def space_of(i: Instr) -> int:
    """The state space of the address operand: shared, or generic when none is named."""
    return SPACE_SHARED if _SPACES.intersection(i.mods) else SPACE_GENERIC


def wide(e: Emitter, operand: object, ty: str, slot: int) -> str:
    """Spill an integer operand as i64 lanes, zero-extended (sign-extended for s types)."""
    value = e.value(operand, ty)
    bits = 64 if ty in ("b64", "u64", "s64") else int(ty[1:])
    if bits < 64:
        value = e.op(f"{'sext' if ty[0] == 's' else 'zext'} <32 x i{bits}> {value} to <32 x i64>")
    return e.spill(value, "<32 x i64>", slot)


@instruction("mbarrier", results=_results, kind=_kind,
             forms="init, inval, arrive and arrive_drop (.expect_tx, .noComplete, count, shared::cluster), test_wait "
                   "and try_wait (state, .parity, time hint), expect_tx, complete_tx, pending_count",
             refused=".multicast::cluster, .phase_type::conditional, .layout::v1, check_layout")  # fmt: skip
def mbarrier(e: Emitter, i: Instr):
    """Dispatch on the operation."""
    what = i.mods[0] if i.mods else ""
    if what not in _OWN:
        raise Unsupported(i.text)
    for m in i.mods[1:]:
        if m not in _OWN[what] and m not in _SPACES and m not in _ORDER and m != "b64":
            raise Unsupported(f"{i.text} (.{m})")
    return _OPERATIONS[what](e, i)


def _init(e: Emitter, i: Instr) -> None:
    address = e.spill(e.address(i.operands[0]), "<32 x i64>", 0)
    count = wide(e, i.operands[1], "u32", 1)
    e.call("tl_mbar_init", space_of(i), address, count, e.active(), e.iid, fallible=True)


def _inval(e: Emitter, i: Instr) -> None:
    address = e.spill(e.address(i.operands[0]), "<32 x i64>", 0)
    e.call("tl_mbar_inval", space_of(i), address, e.active(), e.iid, fallible=True)


def _arrive(e: Emitter, i: Instr) -> None:
    n = _results(i)
    mem, rest = i.operands[n], i.operands[n + 1 :]
    flags = M.ARRIVE_DROP if i.mods[0] == "arrive_drop" else 0
    flags |= M.ARRIVE_NO_COMPLETE if "noComplete" in i.mods else 0
    flags |= M.RELAXED if "relaxed" in i.mods else 0
    flags |= M.SCOPE_CLUSTER if "cluster" in i.mods else M.SCOPE_CTA if "cta" in i.mods else 0
    address = e.spill(e.address(mem), "<32 x i64>", 0)
    count: int | str = 0
    expect: int | str = 0
    if "expect_tx" in i.mods:
        flags |= M.ARRIVE_EXPECT_TX
        expect = wide(e, rest[0], "u32", 2)
        rest = rest[1:]
    if rest:
        count = wide(e, rest[0], "u32", 1)
    wants = n and not isinstance(i.operands[0], Sink)
    states = e.scratch_address(3) if wants else 0
    e.call("tl_mbar_arrive", space_of(i), address, count, expect, states, e.active(), flags, e.iid, fallible=True)
    if wants:
        e.set(i.operands[0], e.reload("<32 x i64>", 3), "b64")


def _wait(e: Emitter, i: Instr):
    """test_wait gives nothing back; try_wait is a blocking instruction that runs again when it is woken."""
    dst, mem, token = i.operands[:3]
    blocks = i.mods[0] == "try_wait"
    by_state = "parity" not in i.mods
    address = e.spill(e.address(mem), "<32 x i64>", 0)
    tokens = wide(e, token, "b64" if by_state else "u32", 1)
    flags = (M.WAIT_BLOCKS if blocks else 0) | (M.WAIT_BY_STATE if by_state else 0)
    flags |= M.RELAXED if "relaxed" in i.mods else 0
    flags |= M.SCOPE_CLUSTER if "cluster" in i.mods else 0
    passed = e.call("tl_mbar_wait", space_of(i), address, tokens, e.active(), flags, e.iid, fallible=True)
    bits = e.op(f"trunc i64 {passed} to i32")
    e.set(dst, e.op(f"bitcast i32 {bits} to <32 x i1>"), "pred")
    if not blocks:
        return None
    return e.op(f"icmp sge i64 {passed}, 0"), True


def _tx(e: Emitter, i: Instr) -> None:
    address = e.spill(e.address(i.operands[0]), "<32 x i64>", 0)
    amount = wide(e, i.operands[1], "u32", 1)
    sign = 1 if i.mods[0] == "expect_tx" else -1
    e.call("tl_mbar_tx", space_of(i), address, amount, e.active(), sign, e.iid, fallible=True)


def _pending_count(e: Emitter, i: Instr) -> None:
    state = e.value(i.operands[1], "b64")
    count = e.op(f"lshr <32 x i64> {state}, splat (i64 1)")
    count = e.op(f"and <32 x i64> {count}, {e.splat('<32 x i64>', M.COUNT_MASK)}")
    e.set(i.operands[0], e.op(f"trunc <32 x i64> {count} to <32 x i32>"), "b32")


_OPERATIONS = {
    "init": _init, "inval": _inval, "arrive": _arrive, "arrive_drop": _arrive, "test_wait": _wait, "try_wait": _wait,
    "expect_tx": _tx, "complete_tx": _tx, "pending_count": _pending_count,
}  # fmt: skip
