"""Control-flow graph of a kernel, cut for the code generator.

Blocks are numbered in a weak topological order (Bourdoncle 1993): loops are contiguous and a block that
post-dominates a branch comes after everything between the two. "Run the lanes with the lowest block number first" is
then reconvergence at post-dominators.

A block ends at a branch, at an instruction on which a lane group can block, and before a collective, so that lanes
which arrive apart can wait there for each other (a *meeting*). Code for full warps runs through meetings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tensorladder.core.errors import UsageError
from tensorladder.vgpu.ptx.nodes import Function, Group, Instr, Label, Mem, Neg, Pair, Part, Reg, Vec


@dataclass
class Block:
    """Instructions with one entry. `term` is the instruction that ends it (branch, exit, blocking) or None.

    succs: block numbers; for a conditional branch (taken, fall through); for brx the whole target list.
    meeting: the first instruction is a collective. `number` is its place in the order, and its PC.
    """

    instrs: list[Instr] = field(default_factory=list)
    term: Instr | None = None
    succs: list[int] = field(default_factory=list)
    preds: list[int] = field(default_factory=list)
    number: int = -1
    meeting: bool = False
    live_in: set[Reg] = field(default_factory=set)
    live_out: set[Reg] = field(default_factory=set)
    loop_head: bool = False


def registers(operand: object) -> list[Reg]:
    """All registers in an operand."""
    if isinstance(operand, Reg):
        return [operand]
    if isinstance(operand, Vec | Group):
        return [r for o in operand.items for r in registers(o)]
    if isinstance(operand, Mem):
        return registers(operand.base) + [r for o in operand.extra for r in registers(o)]
    if isinstance(operand, Pair):
        return registers(operand.first) + registers(operand.second)
    if isinstance(operand, Neg):
        return registers(operand.operand)
    if isinstance(operand, Part):
        return [operand.reg]
    return []


class Graph:
    """Blocks of one kernel in their final order."""

    def __init__(self, fn: Function, classify: Callable[[Instr], str], results: Callable[[Instr], int]):
        """classify(instr) -> "" | "meet" | "block" | "end"; results(instr) -> number of leading result operands."""
        self.fn = fn
        self.results = results
        self.blocks = _cut(fn, classify)
        self._order()
        self._liveness()

    def _order(self) -> None:
        order = _weak_topological_order([b.succs for b in self.blocks])
        rank = {old: new for new, old in enumerate(order)}
        blocks = [self.blocks[old] for old in order]
        for b in blocks:
            b.succs = [rank[s] for s in b.succs]
        for n, b in enumerate(blocks):
            b.number = n
        for b in blocks:
            for s in dict.fromkeys(b.succs):
                blocks[s].preds.append(b.number)
                if s <= b.number:
                    blocks[s].loop_head = True
        self.blocks = blocks

    def uses_defs(self, instr: Instr) -> tuple[list[Reg], list[Reg]]:
        """Registers an instruction reads and those it writes."""
        k = self.results(instr)
        defs = [r for o in instr.operands[:k] for r in registers(o)]
        uses = [r for o in instr.operands[k:] for r in registers(o)]
        if instr.pred is not None:
            uses.append(instr.pred)
        return uses, defs

    def _liveness(self) -> None:
        gen, kill = [], []
        for b in self.blocks:
            g: set[Reg] = set()
            k: set[Reg] = set()
            for i in [*b.instrs, *([b.term] if b.term else [])]:
                uses, defs = self.uses_defs(i)
                g.update(u for u in uses if u not in k)
                if i.pred is None:
                    k.update(defs)
                else:  # a guarded write keeps the old value in some lanes
                    g.update(d for d in defs if d not in k)
            gen.append(g)
            kill.append(k)
        work = list(range(len(self.blocks)))
        queued = set(work)
        while work:
            n = work.pop()
            queued.discard(n)
            b = self.blocks[n]
            b.live_out = set().union(*(self.blocks[s].live_in for s in b.succs)) if b.succs else set()
            live = gen[n] | (b.live_out - kill[n])
            if live != b.live_in:
                b.live_in = live
                for p in b.preds:
                    if p not in queued:
                        queued.add(p)
                        work.append(p)


def _cut(fn: Function, classify: Callable[[Instr], str]) -> list[Block]:
    """Linear code to blocks, in text order, with succs as indices into the list."""
    blocks: list[Block] = [Block()]
    labels: dict[str, int] = {}
    falls: dict[int, int] = {}

    def start(meeting: bool = False) -> Block:
        falls[len(blocks) - 1] = len(blocks)
        blocks.append(Block(meeting=meeting))
        return blocks[-1]

    cur = blocks[0]
    for item in fn.body:
        if isinstance(item, Label):
            if cur.instrs or cur.term is not None or cur.meeting:
                cur = start()
            labels[item.name] = len(blocks) - 1
            continue
        if cur.term is not None:
            cur = start()
        kind = classify(item)
        if kind and item.pred is not None and kind in ("meet", "block"):
            # a guarded collective is a branch around it
            skip = f"$skip{item.index}"
            cur.term = Instr("bra", (), [Label(skip)], item.line, item.loc, item.pred, not item.pred_neg, item.index)
            cur = start()
            item = Instr(item.op, item.mods, item.operands, item.line, item.loc, None, False, item.index)
            cur = _place(item, kind, cur, start)
            if cur.instrs or cur.term is not None:
                cur = start()
            labels[skip] = len(blocks) - 1
            continue
        cur = _place(item, kind, cur, start)
    if cur.term is None:  # falling off the end returns
        cur.term = Instr("ret", (), [], fn.line)
    for n, b in enumerate(blocks):
        b.succs = _successors(fn, b, labels, falls.get(n))
    return _reachable(blocks)


def _place(item: Instr, kind: str, cur: Block, start: Callable) -> Block:
    if kind == "meet":
        if cur.instrs:
            cur = start(meeting=True)
        cur.meeting = True
        cur.instrs.append(item)
    elif kind == "block":
        if cur.instrs or cur.meeting:
            cur = start()
        cur.term = item
    elif kind == "end":
        cur.term = item
    else:
        cur.instrs.append(item)
    return cur


def _successors(fn: Function, b: Block, labels: dict[str, int], fall: int | None) -> list[int]:
    t = b.term
    further = [] if fall is None else [fall]
    if t is None:
        return further
    if t.op == "bra":
        target = _target(t, labels, getattr(t.operands[0], "name", "") if t.operands else "")
        return [target] if t.pred is None else [target, *further]
    if t.op == "brx":
        table = getattr(t.operands[1], "name", "") if len(t.operands) > 1 else ""
        if not fn.branch_targets.get(table):
            raise UsageError(f"PTX line {t.line}: {t.text} without a list of .branchtargets")
        return [_target(t, labels, n) for n in fn.branch_targets[table]]
    if t.op in ("ret", "exit", "trap"):
        return [] if t.pred is None else further
    return further


def _target(t: Instr, labels: dict[str, int], name: str) -> int:
    if name not in labels:
        raise UsageError(f"PTX line {t.line}: {t.text} to {name!r}, which is not a label")
    return labels[name]


def _reachable(blocks: list[Block]) -> list[Block]:
    seen, work = {0}, [0]
    while work:
        for s in blocks[work.pop()].succs:
            if s is not None and s not in seen:
                seen.add(s)
                work.append(s)
    keep = sorted(seen)
    rank = {old: new for new, old in enumerate(keep)}
    out = [blocks[n] for n in keep]
    for b in out:
        b.succs = [rank[s] for s in b.succs]
    return out


def _weak_topological_order(succs: list[list[int]]) -> list[int]:
    """Block indices in a weak topological order from block 0 (iterative Tarjan, recursion on the components)."""
    order: list[int] = []
    work: list[tuple[int, frozenset[int]]] = [(0, frozenset(range(len(succs))))]
    while work:
        entry, allowed = work.pop()
        if entry < 0:
            continue
        pending: list[tuple[int, frozenset[int]]] = []
        for comp in _components(entry, allowed, succs):
            head = comp[0]
            if len(comp) == 1:
                pending.append((head, frozenset((head,))))
            else:
                pending.append((head, frozenset(comp)))
        if len(pending) == 1 and pending[0][0] == entry:
            # one component: its head, then the rest without the head
            order.append(entry)
            rest = pending[0][1] - {entry}
            if rest:
                inner = _multi_components(rest, entry, succs)
                work.extend(reversed(inner))
        else:
            work.extend(reversed(pending))
    return order


def _components(entry: int, allowed: frozenset[int], succs: list[list[int]]) -> list[list[int]]:
    """Strongly connected components reachable from `entry` inside `allowed`, in topological order, head first."""
    return _tarjan([entry], allowed, succs)


def _multi_components(rest: frozenset[int], head: int, succs: list[list[int]]) -> list[tuple[int, frozenset[int]]]:
    roots = [s for s in succs[head] if s in rest] + sorted(rest)
    return [(c[0], frozenset(c)) for c in _tarjan(roots, rest, succs)]


def _tarjan(roots: list[int], allowed: frozenset[int], succs: list[list[int]]) -> list[list[int]]:
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    on: set[int] = set()
    stack: list[int] = []
    comps: list[list[int]] = []
    for root in roots:
        if root in index or root not in allowed:
            continue
        frames = [(root, iter(succs[root]))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on.add(root)
        while frames:
            v, it = frames[-1]
            for s in it:
                if s not in allowed:
                    continue
                if s not in index:
                    index[s] = low[s] = len(index)
                    stack.append(s)
                    on.add(s)
                    frames.append((s, iter(succs[s])))
                    break
                if s in on:
                    low[v] = min(low[v], index[s])
            else:
                frames.pop()
                if frames:
                    low[frames[-1][0]] = min(low[frames[-1][0]], low[v])
                if low[v] == index[v]:
                    comp = []
                    while True:
                        w = stack.pop()
                        on.discard(w)
                        comp.append(w)
                        if w == v:
                            break
                    comps.append(sorted(comp, key=lambda x: index[x]))
    comps.reverse()
    return comps
