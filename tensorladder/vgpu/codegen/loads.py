"""Neighbouring loads of a block as one access a lane.

Unrolled loops load [p], [p+4], [p+8], ... one by one. A lane's cache line is touched once, and its address checked
once, when they are done together at the place of the first: no other warp runs within a block, and nothing between
them may write memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tensorladder.vgpu.codegen import table
from tensorladder.vgpu.ptx.cfg import registers
from tensorladder.vgpu.ptx.nodes import TYPE_BITS, Instr, Mem, Reg, Vec

#: families whose instructions read and write registers only
_PURE = {"integer", "floating", "half", "packed", "approx", "logic", "compare", "convert", "misc"}
_PURE_OPS = {"mov", "cvta", "isspacep"}
#: loads that other agents' progress may be seen through stay where they are
_ORDERED = {"volatile", "relaxed", "acquire", "mmio"}
MOST_BYTES = 64


@dataclass
class LoadRun:
    """Loads of `count` consecutive elements from `mem`; `values` are the elements once loaded."""

    first: int  # instruction at whose place all are done
    mem: Mem
    bits: int
    count: int
    align: int
    places: dict[int, int] = field(default_factory=dict)  # instruction -> its first element
    values: list[str] = field(default_factory=list)


def _items(i: Instr) -> int:
    return len(i.operands[0].items) if isinstance(i.operands[0], Vec) else 1


def _key(i: Instr) -> tuple | None:
    """What loads must share to be done together, or None for a load that stays alone."""
    mem = i.operands[1]
    space = next((m for m in i.mods if m.startswith(("global", "shared", "const", "local"))), "")
    bits = TYPE_BITS.get(i.mods[-1], 0) if i.mods else 0
    if i.op != "ld" or i.pred is not None or not space or _ORDERED.intersection(i.mods) or bits not in (16, 32, 64):
        return None
    if not isinstance(mem, Mem) or not isinstance(mem.base, Reg) or mem.extra:
        return None
    return space, mem.base, bits


def find(instrs: list[Instr]) -> dict[int, LoadRun]:
    """Runs of a block, by the index of each instruction in them."""
    runs: dict[int, LoadRun] = {}
    open_: dict[tuple, list[Instr]] = {}

    def close(keys: list[tuple]) -> None:
        for key in keys:
            _join(open_.pop(key), key[2], runs)

    for i in instrs:
        key = _key(i) if i.op == "ld" and len(i.operands) > 1 else None
        if key is not None:
            open_.setdefault(key, []).append(i)
        elif not is_pure(i):
            close(list(open_))
        results = table.results(i)
        changed = {r for o in i.operands[:results] for r in registers(o)}
        close([k for k in open_ if k[1] in changed])
    close(list(open_))
    return runs


def is_pure(i: Instr) -> bool:
    """Whether an instruction works on registers alone."""
    if i.op in _PURE_OPS or (i.op == "ld" and i.mods and i.mods[0] == "param"):
        return True
    entry = table.TABLE.get(i.op)
    return entry is not None and entry.family in _PURE


def _join(loads: list[Instr], bits: int, runs: dict[int, LoadRun]) -> None:
    size = bits // 8
    part: list[Instr] = []
    end = 0
    for i in sorted(loads, key=lambda i: i.operands[1].offset):
        offset = i.operands[1].offset
        if part and (offset != end or end - part[0].operands[1].offset + _items(i) * size > MOST_BYTES):
            _add(part, bits, runs)
            part = []
        part.append(i)
        end = offset + _items(i) * size
    _add(part, bits, runs)


def _add(part: list[Instr], bits: int, runs: dict[int, LoadRun]) -> None:
    if len(part) < 2:
        return
    size = bits // 8
    start = part[0].operands[1].offset
    # each access has its own alignment; the narrowest is what the run is checked for
    align = min(_items(i) * size for i in part)
    if any((i.operands[1].offset - start) % (_items(i) * size) for i in part):
        return
    count = sum(_items(i) for i in part)
    run = LoadRun(min(i.index for i in part), part[0].operands[1], bits, count, align)
    for i in part:
        run.places[i.index] = (i.operands[1].offset - start) // size
        runs[i.index] = run
