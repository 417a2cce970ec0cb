"""Mutants of a PTX text: one fence, wait, arrival, expect_tx, phase flip, count or commit removed, doubled or changed.

    made = schema(text)                                  # all of them in one module, which is compiled once
    made.mutants[3].what                                 # "mbarrier.arrive.shared.b64 removed"
    made.params(kernel, params, made.mutants[3].number)  # a parameter more says which one a launch runs

Where in the text an instruction stands is found from its parsed form (`vgpu.ptx`): line, guard, opcode, up to the
semicolon. The names of what is removed are PTX's own.
"""

from __future__ import annotations

import collections
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from tensorladder.vgpu.ptx import parse
from tensorladder.vgpu.ptx.nodes import Imm, Instr, Reg


@dataclass(frozen=True)
class Mutant:
    """A change of a module. op: the opcode that is changed; change: how; line: of the PTX; source: file and line, where
    the PTX says so; number: in its schema, from 1; probe: the number with which the kernel traps there instead.
    """

    op: str
    change: str
    line: int
    source: tuple[str, int] | None
    number: int
    probe: int

    @property
    def what(self) -> str:
        return f"{self.op} {self.change}"


Change = tuple[str, Callable[[str, "_Statement"], str | None]]
"""A name, and what makes the new statement of the old one (None: does not apply)."""


@dataclass(frozen=True)
class _Statement:
    """An instruction as written: its guard ("@%p1 " or ""), its opcode, its operands."""

    guard: str
    op: str
    operands: tuple[str, ...]

    def with_operand(self, n: int, text: str) -> str:
        operands = [text if n in (k, k - len(self.operands)) else old for k, old in enumerate(self.operands)]
        return f"{self.guard}{self.op} {', '.join(operands)};"


def _removed(text: str, _: _Statement) -> str:
    return ""


def _doubled(text: str, _: _Statement) -> str:
    return f"{text} {text}"


def _passed(text: str, statement: _Statement) -> str:
    """A wait that says at once that the phase is complete."""
    return f"{statement.guard}setp.eq.u32 {statement.operands[0]}, 0, 0;"


def _expected(text: str, statement: _Statement) -> str:
    """An arrival that announces bytes: it announces them, and does not arrive."""
    space = next(part for part in statement.op.split(".") if part.startswith("shared"))
    operands = ", ".join(statement.operands[-2:])
    return f"{statement.guard}mbarrier.expect_tx.relaxed.cta.{space}.b64 {operands};"


_APPLIED: dict[str, Callable[[int, int], int]] = {
    "add.s32": operator.add, "xor.b32": operator.xor, "shl.b32": operator.lshift, "and.b32": operator.and_,
}  # fmt: skip


def _changed(n: int, op: str, by: int, least: int = 0) -> Callable[[str, _Statement], str | None]:
    """Operand n, an immediate or a register, changed by `op` (of `_APPLIED`)."""

    def change(text: str, statement: _Statement) -> str | None:
        if n >= len(statement.operands):
            return None
        old = statement.operands[n]
        if re.fullmatch(r"-?\d+", old):
            value = _APPLIED[op](int(old), by)
            return statement.with_operand(n, str(value)) if value >= least else None
        if not old.startswith("%"):
            return None
        return f"{{ .reg .b32 %mutated; {op} %mutated, {old}, {by}; {statement.with_operand(n, '%mutated')} }}"

    return change


REMOVED: Change = ("removed", _removed)
DOUBLED: Change = ("doubled", _doubled)
#: what is changed, by how the opcode starts (the first that fits)
CHANGES: tuple[tuple[str, tuple[Change, ...]], ...] = (
    (r"fence\.proxy", (REMOVED, DOUBLED)),
    (r"fence\.mbarrier_init", (REMOVED, DOUBLED)),
    (r"fence\.|membar", (REMOVED, DOUBLED)),
    (r"mbarrier\.init", (
        REMOVED, DOUBLED, ("count + 1", _changed(1, "add.s32", 1)), ("count - 1", _changed(1, "add.s32", -1, 1)),
    )),
    (r"mbarrier\.arrive.*expect_tx", (
        REMOVED, DOUBLED, ("bytes doubled", _changed(-1, "shl.b32", 1)), ("bytes removed", _changed(-1, "and.b32", 0)),
        ("arrival removed", _expected),
    )),
    (r"mbarrier\.expect_tx", (REMOVED, DOUBLED)),
    (r"mbarrier\.arrive|cp\.async\.mbarrier\.arrive", (REMOVED, DOUBLED)),
    (r"mbarrier\.(try|test)_wait\.parity", (
        ("removed", _passed), DOUBLED, ("parity flipped", _changed(2, "xor.b32", 1)),
    )),
    (r"(bar|barrier)\.(cta\.)?(sync|arrive)", (
        REMOVED, DOUBLED, ("count + 32", _changed(1, "add.s32", 32)), ("count - 32", _changed(1, "add.s32", -32, 32)),
    )),
    (r"bar\.warp\.sync", (REMOVED, DOUBLED)),
    (r"barrier\.cluster\.(arrive|wait)", (REMOVED, DOUBLED)),
    (r"griddepcontrol\.(wait|launch_dependents)", (REMOVED, DOUBLED)),
    (r"wgmma\.(fence|commit_group|wait_group)", (REMOVED, DOUBLED)),
    (r"cp\.async\.(bulk\.)?(commit_group|wait_group|wait_all)", (REMOVED, DOUBLED)),
    (r"tcgen05\.(commit|wait|fence|relinquish_alloc_permit|dealloc)", (REMOVED, DOUBLED)),
)  # fmt: skip
_WAIT = re.compile(r"mbarrier\.(try|test)_wait\.parity")


def _flips(body: list[Instr]) -> dict[int, int]:
    """The phase flips of a kernel: xor of the register that a wait takes its parity from with 1, or with 1 where a ring
    of slots comes to its end and else with 0. By the instruction's number: which operand is the phase before."""
    made_by: dict[Reg, list[Instr]] = collections.defaultdict(list)
    for instr in body:
        if instr.operands and isinstance(instr.operands[0], Reg):
            made_by[instr.operands[0]].append(instr)
    todo = [i.operands[2] for i in body if _WAIT.match(i.text)]
    seen: set[Reg] = set()
    found: dict[int, int] = {}
    while todo:
        parity = todo.pop()
        if not isinstance(parity, Reg) or parity in seen:
            continue
        seen.add(parity)
        for instr in made_by[parity]:
            if instr.op == "xor" and instr.pred is None:
                found[instr.index] = kept = 1 if _is_flip(instr.operands[2], made_by) else 2
                todo.append(instr.operands[kept])
            elif instr.op in ("mov", "selp"):
                todo += instr.operands[1:3]
    return found


def _is_flip(operand: object, made_by: dict[Reg, list[Instr]]) -> bool:
    """Whether an operand says if to flip: 1, or chosen or masked just before."""
    if isinstance(operand, Reg):
        return all(i.op in ("selp", "and") for i in made_by[operand])
    return isinstance(operand, Imm)


def _without_flip(kept: int) -> Callable[[str, _Statement], str]:
    """The phase stays. (Flipped twice it does, too.)"""
    return lambda text, statement: f"mov.b32 {statement.operands[0]}, {statement.operands[kept]};"


def _flipping(old: str, by: str) -> str:
    """Traps where the phase does change."""
    return f"{{ .reg .pred %flips; setp.ne.b32 %flips, {by}, 0; @%flips trap; }} {old}"


@dataclass(frozen=True)
class Schema:
    """All mutants of a module in one text, after Untch, Offutt and Harrold, "Mutation analysis using mutant schemata"
    (ISSTA 1993): where an instruction is changed the kernel branches on a parameter more. 0 there is the kernel itself.
    """

    text: str
    mutants: tuple[Mutant, ...]

    @cached_property
    def _offsets(self) -> dict[str, int]:
        return {name: kernel.params[-1].offset for name, kernel in parse(self.text).kernels.items()}

    def params(self, kernel: str, params: bytes, number: int) -> bytes:
        """A launch's parameter block for mutant `number` (0: none)."""
        offset = self._offsets[kernel]
        return params[:offset].ljust(offset, b"\0") + number.to_bytes(4, "little")


_WHICH = "tl_mutant"


def schema(text: str) -> Schema:
    """Every mutant of a module's kernels in one text, line by line as it was. Raises UsageError where one of the
    changed instructions stands in a function that is no kernel."""
    pieces: list[str] = []
    found: list[Mutant] = []
    first, last = 1, 0
    for site in _sites(text):
        probe = first + len(site.changes)
        for n, (change, _) in enumerate(site.changes, first):
            found.append(Mutant(site.instr.text, change, site.instr.line, site.source, n, probe))
        pieces += [text[last : site.start], _switch(site, first)]
        first, last = probe + 1, site.end
    made = re.sub(r"(\.entry\s+[\w$]+\s*\()([^()]*)\)", _with_parameter, "".join([*pieces, text[last:]]))
    parse(made)
    return Schema(made, tuple(found))


def _with_parameter(entry: re.Match[str]) -> str:
    comma = "," if entry[2].strip() else ""
    return f"{entry[1]}{entry[2]}{comma} .param .u32 {_WHICH})"


def _switch(site: _Site, first: int) -> str:
    """The instruction, or what mutant `first` and those after it make of it, or in the end a trap."""
    label = f"$tl_{first}"
    instead = [*(new for _, new in site.changes), site.probe]
    tests = [f"setp.eq.u32 %tl_is, %tl_which, {first + n}; @%tl_is bra {label}_{n};" for n in range(len(instead))]
    bodies = [f"{label}_{n}: {new} bra {label}_end;" for n, new in enumerate(instead)]
    head = f"{{ .reg .b32 %tl_which; .reg .pred %tl_is; ld.param.u32 %tl_which, [{_WHICH}];"
    return " ".join([head, *tests, site.old, f"bra {label}_end;", *bodies, f"{label}_end: }}"])


@dataclass(frozen=True)
class _Site:
    """An instruction that can be changed: where it stands in the text, how it is written, the new statements, and one
    that traps where it does something."""

    instr: Instr
    source: tuple[str, int] | None
    start: int
    end: int
    old: str
    changes: tuple[tuple[str, str], ...]
    probe: str


def _sites(text: str) -> list[_Site]:
    """What can be changed, in the text's order."""
    module = parse(text)
    starts = _line_starts(text)
    found = []
    bodies = [[i for i in f.body if isinstance(i, Instr)] for f in module.functions.values()]
    for instr, kept in ((i, flips.get(i.index)) for body in bodies for flips in [_flips(body)] for i in body):
        changes = next((c for pattern, c in CHANGES if re.match(pattern, instr.text)), ())
        if kept is not None:
            changes = (("flip removed", _without_flip(kept)),)
        span = _span(text, starts, instr) if changes else None
        if span is None:
            continue
        old = text[slice(*span)]
        statement = _read(old)
        file, row, _ = instr.loc
        source = (module.files[file], row) if file in module.files and row else None
        made = tuple((name, new) for name, change in changes if (new := change(old, statement)) is not None)
        probe = f"{statement.guard}trap;" if kept is None else _flipping(old, statement.operands[3 - kept])
        found.append(_Site(instr, source, *span, old, made, probe))
    return sorted(found, key=lambda site: site.start)


def _line_starts(text: str) -> list[int]:
    """Offsets of the lines, by number from 1."""
    return [0, 0, *(m.end() for m in re.finditer("\n", text))]


def _span(text: str, starts: list[int], instr: Instr) -> tuple[int, int] | None:
    """Where an instruction stands, its guard and semicolon included."""
    guard = r"(?:@!?[%\w$]+\s+)?" if instr.pred is not None else ""
    found = re.compile(guard + re.escape(instr.text) + r"(?![\w.:])[^;]*;").search(text, starts[instr.line])
    if found is None or (instr.pred is None and text.count("\n", starts[instr.line], found.start()) > 0):
        return None
    return found.span()


def _read(text: str) -> _Statement:
    """An instruction's parts. Commas inside braces or brackets do not part operands."""
    found = re.fullmatch(r"(@\S+\s+)?(\S+?)(?:\s+(.*))?;", text, re.DOTALL)
    assert found is not None, text
    operands = re.split(r",\s*(?![^{\[]*[}\]])", found[3]) if found[3] else []
    return _Statement(found[1] or "", found[2], tuple(operand.strip() for operand in operands))
