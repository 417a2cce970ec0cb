"""Modifiers of an opcode, sorted into what each of them says; what is left over is refused by name."""

from __future__ import annotations

from tensorladder.core.errors import Unsupported, UsageError
from tensorladder.vgpu.codegen.emit import Emitter
from tensorladder.vgpu.ptx.nodes import Imm, Instr

SCOPES = ("cta", "cluster", "gpu", "sys")
PAIR = ("cta_group::1", "cta_group::2")
SEMANTICS = ("relaxed", "acquire", "release", "acq_rel", "sc", "weak", "volatile")


def pick(i: Instr, *groups: tuple[str, ...]) -> list[str]:
    """The modifier of each group that the opcode carries ("" for none), in whatever order they stand.

    Raises Unsupported for a modifier that is in no group and for two of one group.
    """
    found = [""] * len(groups)
    for m in i.mods:
        k = next((n for n, group in enumerate(groups) if m in group and not found[n]), None)
        if k is None:
            raise Unsupported(f"{i.text} (.{m})")
        found[k] = m
    return found


def pair_of(e: Emitter, i: Instr, group: str) -> int:
    """1 for cta_group::2, 0 for ::1, of a tcgen05 instruction; one of them for all of a kernel, as ptxas wants it."""
    if not group:
        raise Unsupported(i.text)
    if e.cta_group not in ("", group):
        raise UsageError(f"PTX line {i.line}: {i.text} in a kernel whose other tcgen05 instructions say {e.cta_group}")
    e.cta_group = group
    return int(group == "cta_group::2")


def pending_groups(i: Instr) -> int:
    """N of a wait_group, how many of the latest groups may be pending: an immediate from 0 on, or UsageError."""
    count = i.operands[0] if len(i.operands) == 1 else None
    if not isinstance(count, Imm) or not isinstance(count.value, int) or count.value < 0:
        raise UsageError(f"PTX line {i.line}: {i.text} wants one count of groups, an immediate from 0 on")
    return count.value
