"""Modifiers of an opcode, sorted into what each of them says; what is left over is refused by name."""

from __future__ import annotations

from tensorladder.core.errors import Unsupported
from tensorladder.vgpu.ptx.nodes import Instr

SCOPES = ("cta", "cluster", "gpu", "sys")
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
