"""Where lanes that others wait for at a collective have gone past it: for the checked variant.

A lane that is named in a member mask (or that .aligned asks for) and never comes: others wait until it ends. That it
went past is seen at a block that every way from the collective leads to (a post-dominator) and that does something. A
lane that ends without doing anything there left early, as it may.
"""

from __future__ import annotations

from tensorladder.vgpu.codegen.emit import Emitter
from tensorladder.vgpu.codegen.loads import is_pure
from tensorladder.vgpu.ptx.cfg import Block, Graph
from tensorladder.vgpu.ptx.nodes import Instr

#: (PC of the lanes that wait at a collective, its instruction) each
Passed = list[tuple[int, int]]
#: instructions on which a warp's lanes wait for each other as blocking ones, by opcode and modifier
_GATHER = (("bar", ""), ("barrier", "aligned"), ("tcgen05", "alloc"), ("tcgen05", "wait::st"), ("setmaxnreg", ""))


def tables(graph: Graph) -> dict[int, Passed]:
    """By block: the collectives that come before it on every way, where it is a place to see who went past them; or
    nothing, where it is the head of a loop: who is there may yet come."""
    after = _post_dominators(graph.blocks)
    waits = [wait for b in graph.blocks for wait in _waits(b)]
    found: dict[int, Passed] = {b.number: [] for b in graph.blocks if b.loop_head} if waits else {}
    for b in graph.blocks:
        passed = [(pc, i) for block, pc, i in waits if after[block] >> b.number & 1 and block != b.number]
        if passed and _acts(b):
            found[b.number] = passed
    return found


def look(e: Emitter, b: Block, passed: Passed | None) -> None:
    """At the start of a block that a lane group runs alone: see whom it has left waiting."""
    if passed is None:
        return
    first = b.instrs[0] if b.instrs else b.term
    name = f"passed_{b.number}"
    words = ", ".join(f"i32 {word}" for pair in passed or [(0, 0)] for word in pair)
    e.declare(f"@{name} = private constant [{2 * max(len(passed), 1)} x i32] [{words}]")
    table = e.op(f"ptrtoint ptr @{name} to i64")
    e.call("tl_passing", b.number, table, len(passed), first.index if first is not None else 0)


def _waits(b: Block) -> list[tuple[int, int, int]]:
    """(block, PC of those who wait, instruction) of a collective that the block starts or ends with."""
    if b.meeting:
        return [(b.number, b.number, b.instrs[0].index)]
    t = b.term
    if t is None or not any(t.op == op and (not mod or mod in t.mods) for op, mod in _GATHER):
        return []
    if "cluster" in t.mods:
        return []
    comes_again = t.op in ("tcgen05", "setmaxnreg") or "red" in t.mods
    return [(b.number, b.number if comes_again else b.succs[0], t.index)]


def _acts(b: Block) -> bool:
    """Whether a block does more than work on registers and branch."""
    return any(not is_pure(i) for i in b.instrs) or (b.term is not None and _does(b.term))


def _does(t: Instr) -> bool:
    return t.op not in ("bra", "brx", "ret", "exit")


def _post_dominators(blocks: list[Block]) -> list[int]:
    """By block, a bit for each block that every way from it to an end leads through."""
    every = (1 << len(blocks)) - 1
    ends = [not b.succs or (b.term is not None and b.term.op in ("ret", "exit")) for b in blocks]
    after = [1 << b.number if ends[b.number] else every for b in blocks]
    changed = True
    while changed:
        changed = False
        for b in reversed(blocks):
            if ends[b.number]:
                continue
            common = every
            for s in b.succs:
                common &= after[s]
            common |= 1 << b.number
            if common != after[b.number]:
                after[b.number] = common
                changed = True
    return after
