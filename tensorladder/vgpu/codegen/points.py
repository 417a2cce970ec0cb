"""Breakpoints in generated code: at which instructions they stand, and which registers of the warp are kept there.

A breakpoint costs nothing where there is none: a kernel is compiled with those that are asked for, or without any. They
change neither blocks nor the count of instructions, so a schedule is the same with them and without.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import NamedTuple

from tensorladder.vgpu.codegen.in_flight import SETTLE
from tensorladder.vgpu.ptx.cfg import Block, Graph, registers
from tensorladder.vgpu.ptx.nodes import TYPE_BITS, Function, Instr, Mem, Reg, Sym, Vec

#: types that tell how to show a register of the same width
_FLOATS = ("f16", "bf16", "f32", "f64", "f16x2", "bf16x2")
#: instructions whose memory operands are shown otherwise
_NO_DATA = ("mbarrier", "prefetch", "applypriority")
_OTHER_SPACES = {"global", "local", "param", "const"}
_DEFAULT_BYTES = 16


class Place(NamedTuple):
    """A line: of the PTX text ("ptx"), of a source file ("file"), or counted from a kernel's .entry ("kernel").

    name: the file's last parts, or the kernel's name or a part of it.
    """

    kind: str
    name: str
    line: int


class Shown(NamedTuple):
    """A register: its type as it is to be shown, and where it stands in the warp's frame (bytes)."""

    name: str
    type: str
    bits: int
    offset: int


class Access(NamedTuple):
    """A memory operand: `[register + offset]`, or at `offset` of the window where there is no register."""

    register: str
    offset: int
    bytes: int
    what: str


@dataclass
class Point:
    """A breakpoint at an instruction, which stands for some of the places that were asked for (by number)."""

    number: int
    iid: int
    places: list[int]
    live: list[Reg] = field(default_factory=list)
    registers: list[Shown] = field(default_factory=list)
    accesses: list[Access] = field(default_factory=list)


@dataclass
class Points:
    """The breakpoints of a kernel. blocks: registers that live at the start of each block, by its number.

    lines: for each place that has no instruction, the lines of its file (or of the PTX) that have.
    bytes: what they add to a frame.
    """

    points: list[Point]
    blocks: list[list[Shown]]
    lines: dict[int, list[int]]
    files: list[str]
    bytes: int

    def by_instruction(self) -> dict[int, Point]:
        """The points by instruction number."""
        return {point.iid: point for point in self.points}


def find(
    graph: Graph, fn: Function, files: Mapping[int, str], places: Sequence[Place], frame: int,
    slots: Mapping[Reg, int], symbols: Mapping[str, tuple[str, int]],
) -> Points:  # fmt: skip
    """The breakpoints of a kernel at `places`; `frame`: bytes of the frame, `slots`: of registers that it holds."""
    types = _types(fn)
    found: dict[int, Point] = {}
    lines: dict[int, list[int]] = {}
    most = 0
    for number, place in enumerate(places):
        hits = [pair for block in graph.blocks for pair in _first(block, place, fn, files)]
        if not hits:
            lines[number] = sorted({line for block in graph.blocks for line in _lines(block, place, fn, files)})
        for block, instr in hits:
            point = found.get(instr.index)
            if point is None:
                point = found[instr.index] = Point(len(found), instr.index, [])
                point.live = sorted(_live_before(graph, block, instr), key=_order)
                point.registers, size = _kept(point.live, types, frame)
                point.accesses = list(_accesses(graph, block, instr, set(point.live), symbols))
                most = max(most, size)
            point.places.append(number)
    blocks = [
        [
            Shown(r.name, types.get(r, r.type), r.bits, slots[r])
            for r in sorted(b.live_in, key=_order)
            if r in slots and not r.shadow
        ]
        for b in graph.blocks
    ]
    named = sorted({files[i.loc[0]] for b in graph.blocks for i in _instructions(b) if i.loc[0] in files})
    return Points(list(found.values()), blocks, lines, named, most)


def _order(reg: Reg) -> int:
    return reg.index


def _instructions(block: Block) -> list[Instr]:
    """The instructions of a block that the PTX text has: none that the code generator put in."""
    items = [*block.instrs, *([block.term] if block.term is not None else [])]
    return [i for i in items if not is_put_in(i)]


def is_put_in(i: Instr) -> bool:
    """Whether the text has no such instruction: the end of a kernel, a wait for accumulators, a branch that stands for
    the guard of the collective that comes next."""
    skips = i.op == "bra" and bool(i.operands) and getattr(i.operands[0], "name", "").startswith("$skip")
    return i.index < 0 or i.mods == (SETTLE,) or skips


def _line(i: Instr, place: Place, fn: Function, files: Mapping[int, str]) -> int | None:
    """An instruction's line, counted as the place does; None where it belongs to another file or kernel."""
    if place.kind == "ptx":
        return i.line
    if place.kind == "kernel":
        return i.line - fn.line if place.name in fn.name else None
    file = files.get(i.loc[0])
    return i.loc[1] if file is not None and is_file(file, place.name) else None


def is_file(path: str, name: str) -> bool:
    """Whether `name` is the path of a file, or the last parts of it."""
    parts, wanted = PurePath(path).parts, PurePath(name).parts
    return parts[-len(wanted) :] == wanted


def _first(
    block: Block, place: Place, fn: Function, files: Mapping[int, str]
) -> Iterator[tuple[Block, Instr]]:
    """The first instruction of the place's line in a block."""
    for i in _instructions(block):
        if _line(i, place, fn, files) == place.line:
            yield block, i
            return


def _lines(block: Block, place: Place, fn: Function, files: Mapping[int, str]) -> Iterator[int]:
    for i in _instructions(block):
        line = _line(i, place, fn, files)
        if line:
            yield line


def _live_before(graph: Graph, block: Block, instr: Instr) -> set[Reg]:
    """Registers whose values may be read from `instr` on."""
    live = set(block.live_out)
    for i in reversed([*block.instrs, *([block.term] if block.term is not None else [])]):
        uses, defs = graph.uses_defs(i)
        if i.pred is None:
            live.difference_update(defs)
        else:  # what a guarded write leaves alone was there before
            live.update(defs)
        live.update(uses)
        if i is instr:
            break
    return {r for r in live if not r.shadow}


def _kept(live: Sequence[Reg], types: Mapping[Reg, str], at: int) -> tuple[list[Shown], int]:
    """The registers at places behind the frame's own part, and the bytes that takes."""
    start, kept = at, []
    for reg in live:
        kept.append(Shown(reg.name, types.get(reg, reg.type), reg.bits, at))
        at += max(64, reg.bits // 8 * 32)
    return kept, at - start


def _types(fn: Function) -> dict[Reg, str]:
    """Registers that instructions of one floating-point type use: compilers declare most as .b32 or .b64."""
    found: dict[Reg, str] = {}
    for i in fn.body:
        if not isinstance(i, Instr):
            continue
        named = [m for m in i.mods if m in TYPE_BITS]
        if len(named) == 1 and named[0] in _FLOATS:
            bits = TYPE_BITS[named[0]]
            for operand in i.operands:
                if isinstance(operand, Mem):
                    continue
                found.update((reg, named[0]) for reg in registers(operand) if reg.bits == bits)
    return found


def _accesses(
    graph: Graph, block: Block, instr: Instr, live: set[Reg], symbols: Mapping[str, tuple[str, int]]
) -> Iterator[Access]:
    """Memory operands of `instr` and of what follows it in the block, as far as their addresses are known already."""
    items = [*block.instrs, *([block.term] if block.term is not None else [])]
    known = set(live)
    for i in items[next(n for n, one in enumerate(items) if one is instr) :]:
        elsewhere = _OTHER_SPACES.intersection(i.mods) and not any(m.startswith("shared") for m in i.mods)
        for operand in () if i.op in _NO_DATA or elsewhere else i.operands:
            if not isinstance(operand, Mem):
                continue
            base, size = operand.base, _bytes(i)
            if isinstance(base, Reg) and base in known:
                yield Access(base.name, operand.offset, size, i.text)
            elif isinstance(base, Sym) and symbols.get(base.name, ("", 0))[0] == "shared":
                yield Access("", symbols[base.name][1] + base.offset + operand.offset, size, i.text)
        known.difference_update(graph.uses_defs(i)[1])


def _bytes(i: Instr) -> int:
    """Bytes that a lane's access takes, for a load or store."""
    named = [m for m in i.mods if m in TYPE_BITS]
    if i.op not in ("ld", "st", "atom", "red", "ldu") or not named:
        return _DEFAULT_BYTES
    count = max((len(o.items) for o in i.operands if isinstance(o, Vec)), default=1)
    return max(TYPE_BITS[named[-1]] // 8, 1) * count
