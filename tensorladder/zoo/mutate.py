"""Mutants of a PTX text: one fence, wait, arrival, expect_tx, parity, count or commit removed, doubled or changed.

    for mutant in mutants(text, kernel):
        mutant.text                # the module with one instruction changed
        mutant.what                # "mbarrier.arrive.shared.b64 removed"

Where in the text an instruction stands is found from its parsed form (`vgpu.ptx`): line, guard, opcode, up to the
semicolon. The names of what is removed are PTX's own.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tensorladder.core.errors import UsageError
from tensorladder.vgpu.ptx import parse
from tensorladder.vgpu.ptx.nodes import Instr


@dataclass(frozen=True)
class Mutant:
    """A changed module. op: the opcode that was changed; change: how; line: of the PTX; source: file and line, where
    the PTX says so."""

    op: str
    change: str
    line: int
    source: tuple[str, int] | None
    text: str

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


_APPLIED: dict[str, Callable[[int, int], int]] = {
    "add.s32": operator.add, "xor.b32": operator.xor, "shl.b32": operator.lshift,
}  # fmt: skip


def _changed(n: int, op: str, by: int, least: int = 0) -> Callable[[str, _Statement], str | None]:
    """Operand n, an immediate or a register, changed by `op` ("add.s32", "xor.b32", "shl.b32")."""

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
    (r"mbarrier\.arrive.*expect_tx|mbarrier\.expect_tx", (
        REMOVED, DOUBLED, ("bytes doubled", _changed(-1, "shl.b32", 1)),
    )),
    (r"mbarrier\.arrive|cp\.async\.mbarrier\.arrive", (REMOVED, DOUBLED)),
    (r"mbarrier\.(try|test)_wait\.parity", (
        ("removed", _passed), ("parity flipped", _changed(2, "xor.b32", 1)),
    )),
    (r"(bar|barrier)\.(cta\.)?(sync|arrive)", (
        REMOVED, DOUBLED, ("count + 32", _changed(1, "add.s32", 32)),
    )),
    (r"bar\.warp\.sync", (REMOVED, DOUBLED)),
    (r"barrier\.cluster\.(arrive|wait)", (REMOVED,)),
    (r"wgmma\.(fence|commit_group|wait_group)", (REMOVED, DOUBLED)),
    (r"cp\.async\.(bulk\.)?(commit_group|wait_group|wait_all)", (REMOVED, DOUBLED)),
    (r"tcgen05\.(commit|wait|fence|relinquish_alloc_permit|dealloc)", (REMOVED, DOUBLED)),
)  # fmt: skip


def mutants(text: str, kernel: str | None = None) -> Iterator[Mutant]:
    """Every mutant of a module, or of one of its kernels; each parses."""
    module = parse(text)
    starts = _line_starts(text)
    bodies = [f.body for f in module.functions.values() if kernel is None or f.name == kernel]
    for instr in (i for body in bodies for i in body if isinstance(i, Instr)):
        changes = next((c for pattern, c in CHANGES if re.match(pattern, instr.text)), ())
        span = _span(text, starts, instr) if changes else None
        if span is None:
            continue
        old = text[slice(*span)]
        statement = _read(old)
        file, row, _ = instr.loc
        source = (module.files[file], row) if file in module.files and row else None
        for name, change in changes:
            new = change(old, statement)
            if new is not None:
                changed = text[: span[0]] + new + text[span[1] :]
                try:
                    parse(changed)
                except UsageError:
                    continue
                yield Mutant(instr.text, name, instr.line, source, changed)


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
