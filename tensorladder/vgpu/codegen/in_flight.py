"""Where a kernel writes or moves accumulators that a wgmma.mma_async may still work on.

The ISA leaves undefined what such an access gives before the wait. Compilers that take the operation for an ordinary
instruction emit it all the same (a loop that swaps two sets of accumulators); ptxas then says so (C7514) and makes the
operation complete first. So does the virtual GPU: before a stretch of such instructions stands one that waits for the
operations concerned. What reads an accumulator in any other way sees the old value: that is a missing wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tensorladder.vgpu.codegen import table
from tensorladder.vgpu.ptx.cfg import registers
from tensorladder.vgpu.ptx.nodes import Function, Imm, Instr, Label, Reg, Sym, Vec

#: the modifier of the instruction that is put in: no PTX text has one like it
SETTLE = "accumulators in flight"
#: committed groups that are told apart
_GROUPS = 8

#: bits of registers: of the open group, of the newest committed one, of the one before, ...
State = tuple[int, ...]


def settle(fn: Function) -> Function:
    """The function with a waiting instruction wherever one is needed, instructions numbered anew; often `fn` itself."""
    bits: dict[Reg, int] = {}
    for i in fn.body:
        if _is(i, "mma_async") and i.operands:
            for reg in registers(i.operands[0]):
                bits.setdefault(reg, 1 << len(bits))
    if not bits:
        return fn
    places = dict(_places(fn, bits))
    if not places:
        return fn
    body = []
    for n, item in enumerate(fn.body):
        if n in places:
            body.append(Instr("wgmma", (SETTLE,), [Vec(tuple(places[n]))], item.line, item.loc))
        body.append(replace(item) if isinstance(item, Instr) else item)
    for n, item in enumerate(body):
        if isinstance(item, Instr):
            item.index = n
    return replace(fn, body=body)


def _is(item: Instr | Label, what: str) -> bool:
    return isinstance(item, Instr) and item.op == "wgmma" and item.mods[:1] == (what,)


def _places(fn: Function, bits: dict[Reg, int]) -> Iterator[tuple[int, list[Reg]]]:
    """(place in the body, registers to wait for)."""
    for start, state in _entries(fn, bits).items():
        done = 0
        for n in range(start, _end(fn, start)):
            item = fn.body[n]
            if not isinstance(item, Instr):
                continue
            if item.op == "wgmma":
                state = _after(item, state, bits)
                done = 0
            elif _touched(item, bits) & _all(state) & ~done:
                stretch = _stretch(fn, n, bits) & _all(state)
                done |= stretch
                yield n, [reg for reg, bit in bits.items() if bit & stretch]


def _stretch(fn: Function, start: int, bits: dict[Reg, int]) -> int:
    """What the instructions from `start` to the next wgmma touch."""
    found = 0
    for n in range(start, _end(fn, start)):
        item = fn.body[n]
        if isinstance(item, Instr):
            if item.op == "wgmma":
                break
            found |= _touched(item, bits)
    return found


def _touched(i: Instr, bits: dict[Reg, int]) -> int:
    """Accumulators that an instruction writes, or moves."""
    count = len(i.operands) if i.op == "mov" else table.results(i)
    return sum(bits[r] for r in {r for o in i.operands[:count] for r in registers(o)} if r in bits)


def _all(state: State) -> int:
    found = 0
    for part in state:
        found |= part
    return found


def _after(i: Instr, state: State, bits: dict[Reg, int]) -> State:
    """What is in flight after a wgmma instruction."""
    if _is(i, "mma_async"):
        return state[0] | sum(bits[r] for r in set(_operands(i)) if r in bits), *state[1:]
    if _is(i, "commit_group"):
        if len(state) > _GROUPS:
            state = (*state[:-2], state[-2] | state[-1])
        return 0, *state
    if _is(i, "wait_group") and i.pred is None and i.operands and isinstance(i.operands[0], Imm):
        return state[: 1 + i.operands[0].value]
    return state


# ---------------------------------------------------------------- for the checked variant
def watched(fn: Function) -> dict[int, tuple[list[Reg], list[Reg]]]:
    """By instruction: accumulators that it reads, and fragments of A that it writes, that may be in flight then."""
    bits: dict[Reg, int] = {}
    fragments = 0
    for i in fn.body:
        if _is(i, "mma_async") and len(i.operands) > 1:
            for reg in _operands(i):
                bits.setdefault(reg, 1 << len(bits))
            fragments |= sum(bits[r] for r in set(registers(i.operands[1])) if isinstance(i.operands[1], Vec))
    found: dict[int, tuple[list[Reg], list[Reg]]] = {}
    for start, state in _entries(fn, bits).items() if bits else ():
        for n in range(start, _end(fn, start)):
            item = fn.body[n]
            if not isinstance(item, Instr):
                continue
            if item.op == "wgmma":
                state = _after(item, state, bits)
                continue
            count = table.results(item)
            flying = _all(state)
            reads = [r for o in item.operands[count:] for r in registers(o) if bits.get(r, 0) & flying & ~fragments]
            writes = [r for o in item.operands[:count] for r in registers(o) if bits.get(r, 0) & flying & fragments]
            if (reads and item.op != "mov") or writes:
                found[item.index] = reads if item.op != "mov" else [], writes
    return found


def changed(fn: Function) -> set[int]:
    """Instructions other than moves that write a register of a wgmma.mma_async."""
    used = {r for i in fn.body if _is(i, "mma_async") and len(i.operands) > 1 for r in _operands(i)}
    return {
        i.index
        for i in fn.body
        if isinstance(i, Instr) and i.op not in ("wgmma", "mov")
        and used.intersection(r for o in i.operands[: table.results(i)] for r in registers(o))
    } if used else set()  # fmt: skip


def _operands(i: Instr) -> list[Reg]:
    """Registers of D and, where it is in registers, of A."""
    return [*registers(i.operands[0]), *(registers(i.operands[1]) if isinstance(i.operands[1], Vec) else ())]


# ---------------------------------------------------------------- straight stretches of the body and what leads to them
_ENDS = ("bra", "brx", "ret", "exit", "trap")


def _end(fn: Function, start: int) -> int:
    """Where the straight stretch from `start` ends: behind a branch, or at a label."""
    for n in range(start, len(fn.body)):
        if isinstance(fn.body[n], Instr) and fn.body[n].op in _ENDS:
            return n + 1
        if n > start and isinstance(fn.body[n], Label):
            return n
    return len(fn.body)


def _entries(fn: Function, bits: dict[Reg, int]) -> dict[int, State]:
    """What may be in flight at the start of each straight stretch that can be reached."""
    labels = {item.name: n for n, item in enumerate(fn.body) if isinstance(item, Label)}
    found: dict[int, State] = {0: (0,)}
    work = [0]
    while work:
        start = work.pop()
        end = _end(fn, start)
        state = found[start]
        for item in fn.body[start:end]:
            if isinstance(item, Instr) and item.op == "wgmma":
                state = _after(item, state, bits)
        for successor in _successors(fn, end, labels):
            merged = _merge(found.get(successor), state)
            if merged != found.get(successor):
                found[successor] = merged
                work.append(successor)
    return found


def _successors(fn: Function, end: int, labels: dict[str, int]) -> list[int]:
    last = fn.body[end - 1]
    targets: list[int] = []
    falls = True
    if isinstance(last, Instr) and last.op in _ENDS:
        falls = last.pred is not None
        names = [o.name for o in last.operands if isinstance(o, Label | Sym)]
        if last.op == "brx":
            names = [name for table_ in names for name in fn.branch_targets.get(table_, [])]
        targets = [labels[name] for name in names if name in labels]
    return targets + ([end] if falls and end < len(fn.body) else [])


def _merge(a: State | None, b: State) -> State:
    if a is None:
        return b
    n = max(len(a), len(b))
    a, b = (x + (0,) * (n - len(x)) for x in (a, b))
    return tuple(x | y for x, y in zip(a, b, strict=True))
