"""What a code generator says of an instruction that it cannot read: operands missing, too many, or of a wrong kind.

Emitters unpack operands as the ISA has them and do not check each. Whatever that raises means that the text is not
PTX, and becomes one line with the place.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tensorladder.core.errors import UsageError
from tensorladder.vgpu.ptx.nodes import Instr

#: what reading operands of a wrong number or kind raises
_TROUBLE = (LookupError, TypeError, AttributeError, ValueError, ArithmeticError, RuntimeError, struct.error)


def malformed(i: Instr) -> UsageError:
    """The error for an instruction whose operands or modifiers do not fit each other."""
    operands = ", ".join(_spelt(o) for o in i.operands)
    text = f"{i.text} {operands}".strip()
    return UsageError(f"PTX line {i.line}: malformed {i.op}: `{text[:160]}`: wrong number or kind of operands or types")


#: operands of instructions whose emitters read none or few of them: (least, most)
_COUNTS = {
    "membar": (0, 0), "fence": (0, 4), "griddepcontrol": (0, 0), "nanosleep": (1, 1), "pmevent": (1, 1),
    "brev": (2, 2), "clz": (2, 2), "popc": (2, 2), "not": (2, 2), "cnot": (2, 2), "activemask": (1, 1),
    "sqrt": (2, 2), "rsqrt": (2, 2), "rcp": (2, 2), "ex2": (2, 2), "lg2": (2, 2), "sin": (2, 2), "cos": (2, 2),
    "tanh": (2, 2), "applypriority": (2, 2), "discard": (2, 2), "prefetch": (1, 3), "prefetchu": (1, 1),
    "and": (3, 3), "or": (3, 3), "xor": (3, 3), "shl": (3, 3), "shr": (3, 3), "bra": (1, 1), "ret": (0, 0),
    "exit": (0, 0), "trap": (0, 0), "ld": (2, 4), "ldu": (2, 2), "st": (2, 4), "isspacep": (2, 2), "elect": (2, 2),
    "neg": (2, 2), "abs": (2, 2), "add": (3, 3), "sub": (3, 3), "mul": (3, 3), "div": (3, 3), "rem": (3, 3),
    "mad": (4, 4), "fma": (4, 4), "mul24": (3, 3), "mad24": (4, 4), "sad": (4, 4), "selp": (4, 4), "slct": (4, 4),
    "cvt": (2, 4), "mma": (4, 8), "ldmatrix": (2, 2), "stmatrix": (2, 2), "mapa": (3, 3), "getctarank": (2, 2),
}  # fmt: skip


def check_count(i: Instr) -> None:
    """UsageError where an instruction has fewer operands than any form of it, or more."""
    least, most = _COUNTS.get(i.op, (0, 99))
    if not least <= len(i.operands) <= most:
        raise malformed(i)


@contextmanager
def reading(i: Instr) -> Iterator[None]:
    """Errors of an emitter that met operands it does not expect, as UsageError with the PTX line."""
    check_count(i)
    try:
        yield
    except _TROUBLE as e:
        raise malformed(i) from e


def _spelt(operand: Any) -> str:
    """An operand nearly as it was written."""
    for name in ("name", "value"):
        if hasattr(operand, name):
            return str(getattr(operand, name))
    if hasattr(operand, "items"):
        return "{" + ", ".join(map(_spelt, operand.items)) + "}"
    if hasattr(operand, "base"):
        offset = f"+{operand.offset}" if operand.offset else ""
        return "[" + ", ".join([_spelt(operand.base) + offset, *map(_spelt, operand.extra)]) + "]"
    if hasattr(operand, "first"):
        return f"{_spelt(operand.first)}|{_spelt(operand.second)}"
    if hasattr(operand, "operand"):
        return f"-{_spelt(operand.operand)}"
    return "_"
