"""Warp-level instructions: elect, vote, shfl, match, redux, activemask (PTX ISA, "Parallel Synchronization", "shfl").

The lanes that take part are those of the group; a lane's member mask never brings in one that has exited. Code for
diverged groups has gathered the named lanes before (`kernel.meet`), so the group holds them all.
"""

from __future__ import annotations

from tensorladder.core.errors import Unsupported
from tensorladder.vgpu.codegen.emit import Emitter
from tensorladder.vgpu.codegen.modifiers import pick
from tensorladder.vgpu.codegen.special import LANE
from tensorladder.vgpu.codegen.table import instruction
from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.ptx.nodes import Imm, Instr, Pair, Reg

#: the operand that names the participating lanes; other collectives want all lanes that have not exited
_MEMBER_OPERAND = {"shfl": -1, "vote": -1, "match": -1, "redux": -1, "elect": -1}
_FULL = 0xFFFFFFFF
#: scratch vector of a collective's member masks, behind its operands
_MASKS = 8


def member_mask(e: Emitter, i: Instr) -> str:
    """<32 x i32>: for each lane, the lanes that must be at a collective with it."""
    if i.op in _MEMBER_OPERAND:
        operand = i.operands[_MEMBER_OPERAND[i.op]]
        if isinstance(operand, Imm | Reg):
            return e.value(operand, "u32")
    return e.splat("<32 x i32>", _FULL)


def _members(e: Emitter, i: Instr, operand: object) -> str:
    """<32 x i32>: the lanes that a lane's member mask names and that are here. A lane left out of its mask stops."""
    here = e.once("lanes32", lambda: e.broadcast("i32", e.lanes()))
    if isinstance(operand, Imm):
        if operand.value & _FULL == _FULL:
            return here
        masks = e.splat("<32 x i32>", operand.value & _FULL)
    else:
        masks = e.value(operand, "u32")
    own = e.op(f"and <32 x i32> {masks}, <{', '.join(f'i32 {1 << k}' for k in range(32))}>")
    left_out = e.op(f"icmp eq <32 x i32> {own}, zeroinitializer")
    bad = e.op(f"and i32 {e.lanes()}, {e.op(f'bitcast <32 x i1> {left_out} to i32')}")
    wrong = e.op(f"icmp ne i32 {bad}, 0")
    e.count += 1
    n = e.count
    e.line(f"br i1 {wrong}, label %outside{n}, label %inside{n}")
    e.label(f"outside{n}")
    e.line(f"%om{n} = zext i32 {bad} to i64")
    e.declare("declare i64 @tl_fail(i64, i64, i64, i64)")
    e.line(f"call i64 @tl_fail(i64 %w, i64 {L.ERR_COLLECTIVE_MASK}, i64 {i.index}, i64 %om{n})")
    e.line("br label %failed")
    e.label(f"inside{n}")
    if e.checked and not isinstance(operand, Imm):
        e.call("tl_hook_members", e.spill(masks, "<32 x i32>", _MASKS), e.active(), i.index)
    return e.op(f"and <32 x i32> {masks}, {here}")


def _need_sync(i: Instr) -> None:
    if "sync" not in i.mods:
        raise Unsupported(f"{i.text} (without .sync it does not exist on sm_70 and later)")


@instruction("vote", kind=lambda i: "meet" if "sync" in i.mods else "", forms=".sync.all, .any, .uni, .ballot",
             refused="forms without .sync (not on sm_70 and later)")  # fmt: skip
def vote(e: Emitter, i: Instr) -> None:
    """vote.sync: a predicate over the member lanes."""
    _need_sync(i)
    mode, _, ty = pick(i, ("all", "any", "uni", "ballot"), ("sync",), ("pred", "b32"))
    if not mode or ty != ("b32" if mode == "ballot" else "pred"):
        raise Unsupported(i.text)
    members = _members(e, i, i.operands[2])
    bits = e.op(f"bitcast <32 x i1> {e.value(i.operands[1], 'pred')} to i32")
    yes = e.op(f"and <32 x i32> {e.broadcast('i32', bits)}, {members}")
    if mode == "ballot":
        e.set(i.operands[0], yes, "b32")
        return
    every = e.op(f"icmp eq <32 x i32> {yes}, {members}") if mode != "any" else ""
    none = e.op(f"icmp eq <32 x i32> {yes}, zeroinitializer") if mode != "all" else ""
    if mode == "any":
        result = e.op(f"xor <32 x i1> {none}, splat (i1 true)")
    else:
        result = every if mode == "all" else e.op(f"or <32 x i1> {every}, {none}")
    e.set(i.operands[0], result, "pred")


@instruction("activemask", forms=".b32")
def activemask(e: Emitter, i: Instr) -> None:
    """The lanes that execute this instruction now."""
    pick(i, ("b32",))
    e.set(i.operands[0], e.broadcast("i32", e.op(f"trunc i64 {e.active()} to i32")), "b32")


@instruction("elect", kind="meet", forms=".sync: the lowest member lane")
def elect(e: Emitter, i: Instr) -> None:
    """elect.sync d|p, membermask: one leader, the same each time."""
    pick(i, ("sync",))
    members = _members(e, i, i.operands[1])
    leader = e.intrinsic("llvm.cttz.v32i32", "<32 x i32>", ("<32 x i32>", members), ("i1", "false"))
    chosen = e.op(f"icmp eq <32 x i32> {leader}, {LANE}")
    target = i.operands[0]
    if isinstance(target, Pair):
        e.set(target.first, leader, "b32")
        e.set(target.second, chosen, "pred")
    else:
        e.set(target, leader, "b32")


# ---------------------------------------------------------------- shfl
_SHFL_MODES = ("up", "down", "bfly", "idx")


def _shfl_sources(mode: str, b: int, c: int) -> tuple[list[int], list[bool]]:
    """(source lane, in range) for each lane: the pseudo-code of the ISA."""
    sources, inside = [], []
    bval, cval, segment = b & 31, c & 31, (c >> 8) & 31
    for lane in range(L.LANES):
        low = lane & segment
        limit = low | (cval & ~segment & 31)
        j = {"up": lane - bval, "down": lane + bval, "bfly": lane ^ bval, "idx": low | (bval & ~segment & 31)}[mode]
        ok = j >= limit if mode == "up" else j <= limit
        sources.append(j if ok else lane)
        inside.append(ok)
    return sources, inside


@instruction("shfl", kind=lambda i: "meet" if "sync" in i.mods else "", forms=".sync.up, .down, .bfly, .idx, with d|p",
             refused="forms without .sync (not on sm_70 and later)")  # fmt: skip
def shfl(e: Emitter, i: Instr) -> None:
    """shfl.sync d{|p}, a, b, c, membermask.

    What a source lane that is not here gives is undefined by the ISA: all ones, to be seen. An H200 gives 0 for a lane
    that has exited.
    """
    _need_sync(i)
    mode, _, _ = pick(i, _SHFL_MODES, ("sync",), ("b32",))
    target, a, b, c, mask = i.operands
    _members(e, i, mask)
    value = e.value(a, "b32")
    if isinstance(b, Imm) and isinstance(c, Imm):
        result, inside = _static_shuffle(e, value, *_shfl_sources(mode, b.value, c.value))
    else:
        result, inside = _dynamic_shuffle(e, mode, value, b, c)
    if isinstance(target, Pair):
        e.set(target.second, inside, "pred")
        target = target.first
    e.set(target, result, "b32")


def _static_shuffle(e: Emitter, value: str, sources: list[int], inside: list[bool]) -> tuple[str, str]:
    index = "<" + ", ".join(f"i32 {s}" for s in sources) + ">"
    moved = e.op(f"shufflevector <32 x i32> {value}, <32 x i32> poison, <32 x i32> {index}")
    here = e.lanes_vector()
    present = e.op(f"shufflevector <32 x i1> {here}, <32 x i1> poison, <32 x i32> {index}")
    result = e.op(f"select <32 x i1> {present}, <32 x i32> {moved}, <32 x i32> splat (i32 -1)")
    return result, "<" + ", ".join(f"i1 {'true' if p else 'false'}" for p in inside) + ">"


def _dynamic_shuffle(e: Emitter, mode: str, value: str, b: object, c: object) -> tuple[str, str]:
    e.spill(value, "<32 x i32>", 0)
    e.spill(e.value(b, "b32"), "<32 x i32>", 1)
    e.spill(e.value(c, "b32"), "<32 x i32>", 2)
    inside = e.call("tl_shfl", _SHFL_MODES.index(mode), e.scratch_address(0), e.active())
    bits = e.op(f"trunc i64 {inside} to i32")
    return e.reload("<32 x i32>", 3), e.op(f"bitcast i32 {bits} to <32 x i1>")


# ---------------------------------------------------------------- match, redux
@instruction("match", kind="meet", forms=".any.sync, .all.sync with d|p; .b32, .b64")
def match(e: Emitter, i: Instr) -> None:
    """match.sync: the member lanes that hold the same value."""
    mode, _, ty = pick(i, ("any", "all"), ("sync",), ("b32", "b64"))
    if not mode or not ty:
        raise Unsupported(i.text)
    target, a, mask = i.operands
    e.spill(_members(e, i, mask), "<32 x i32>", 0)
    wide = e.value(a, ty)
    if ty == "b32":
        wide = e.op(f"zext <32 x i32> {wide} to <32 x i64>")
    e.spill(wide, "<32 x i64>", 1)
    same = e.call("tl_match", int(mode == "all"), e.scratch_address(0), e.active())
    if isinstance(target, Pair):
        bits = e.op(f"trunc i64 {same} to i32")
        e.set(target.second, e.op(f"bitcast i32 {bits} to <32 x i1>"), "pred")
        target = target.first
    e.set(target, e.reload("<32 x i32>", 2), "b32")


#: (operation, type) -> (number for the runtime, LLVM reduction, identity)
_REDUX = {
    ("add", "u32"): (0, "add", 0),
    ("add", "s32"): (0, "add", 0),
    ("min", "u32"): (1, "umin", -1),
    ("max", "u32"): (2, "umax", 0),
    ("min", "s32"): (3, "smin", 0x7FFFFFFF),
    ("max", "s32"): (4, "smax", -0x80000000),
    ("and", "b32"): (5, "and", -1),
    ("or", "b32"): (6, "or", 0),
    ("xor", "b32"): (7, "xor", 0),
    ("min", "f32"): (8, "", 0),
    ("max", "f32"): (9, "", 0),
}
REDUX_NAN = 16  # added to the number: a NaN wins


@instruction(
    "redux", kind="meet", forms=".sync: add, min, max (u32, s32), and, or, xor (b32), min, max (f32, with .abs, .NaN)"
)
def redux(e: Emitter, i: Instr) -> None:
    """redux.sync: a reduction over the member lanes."""
    what, _, absolute, nan, ty = pick(
        i, ("add", "min", "max", "and", "or", "xor"), ("sync",), ("abs",), ("NaN",), ("u32", "s32", "b32", "f32")
    )
    if (what, ty) not in _REDUX or ((absolute or nan) and ty != "f32"):
        raise Unsupported(i.text)
    number, name, identity = _REDUX[what, ty]
    target, a, mask = i.operands
    members = _members(e, i, mask)
    value = e.value(a, "b32")
    if isinstance(mask, Imm) and name:
        lanes = e.op(f"and i32 {e.lanes()}, {mask.value & _FULL}")
        chosen = e.op(f"bitcast i32 {lanes} to <32 x i1>")
        kept = e.op(f"select <32 x i1> {chosen}, <32 x i32> {value}, <32 x i32> splat (i32 {identity})")
        total = e.intrinsic(f"llvm.vector.reduce.{name}.v32i32", "i32", ("<32 x i32>", kept))
        e.set(target, e.broadcast("i32", total), "b32")
        return
    if absolute:
        value = e.op(f"and <32 x i32> {value}, splat (i32 {0x7FFFFFFF})")
    e.spill(members, "<32 x i32>", 0)
    e.spill(value, "<32 x i32>", 1)
    e.call("tl_redux", number + (REDUX_NAN if nan else 0), e.scratch_address(0), e.active())
    e.set(target, e.reload("<32 x i32>", 2), "b32")
