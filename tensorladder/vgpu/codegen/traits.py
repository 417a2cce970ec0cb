"""What a kernel has in it, which its launch wants to know."""

from __future__ import annotations

from tensorladder.vgpu.ptx.nodes import Function, Instr, Special

#: instructions through which CTAs see each other: their order is one scheduler's business
_ORDERED_MODS = {"acquire", "volatile", "release", "relaxed", "acq_rel", "mmio"}


def ordered(fn: Function) -> bool:
    """Whether CTAs of a kernel see each other through it."""
    for i in fn.body:
        if not isinstance(i, Instr):
            continue
        shared = any(m.startswith("shared") for m in i.mods)
        if i.op in ("atom", "red") and not shared:
            return True
        if i.op in ("ld", "st") and not shared and _ORDERED_MODS.intersection(i.mods):
            return True
        if i.op == "clusterlaunchcontrol":
            return True
        if i.op == "cp" and "reduce" in i.mods and "global" in i.mods:
            return True
    return False


def holds(fn: Function, op: str, mod: str) -> bool:
    """Whether a kernel has an instruction with this modifier."""
    return any(isinstance(i, Instr) and i.op == op and mod in i.mods for i in fn.body)


def multiplies(fn: Function) -> bool:
    """Whether a kernel multiplies matrices."""
    return any(
        i.op == "mma" or (i.op in ("wgmma", "wmma", "tcgen05") and any(m.startswith("mma") for m in i.mods))
        for i in fn.body
        if isinstance(i, Instr)
    )


def clocked(fn: Function) -> bool:
    """Whether a kernel reads a clock."""
    return any(
        isinstance(o, Special) and o.name.startswith(("%clock", "%globaltimer"))
        for i in fn.body
        if isinstance(i, Instr)
        for o in i.operands
    )
