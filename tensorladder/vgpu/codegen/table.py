"""The one dispatch table: PTX mnemonic to the function that generates its code.

A family module registers its instructions with `@instruction`. The table tells the control-flow graph how many leading
operands are results and whether lanes meet or can block at an instruction; SUPPORTED.md is written from it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from tensorladder.vgpu.codegen.malformed import reading
from tensorladder.vgpu.ptx.nodes import Instr

FAMILIES = ("integer", "floating", "approx", "logic", "compare", "convert", "control", "memory", "atomic", "warp",
            "sync", "matrix", "mbarrier", "async_copy", "tensor_copy", "tcgen05", "misc", "video",
            "wgmma", "wmma", "launch")  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """How one mnemonic is compiled.

    emit(e, instr): emits code. results: number of leading result operands, or a function of the instruction.
    kind: "" plain; "meet" all lanes concerned must be here; "block" lanes may wait here; or a function of the
    instruction. forms: what runs, for SUPPORTED.md; refused: what is refused by name.
    """

    name: str
    family: str
    emit: Callable
    results: int | Callable[[Instr], int] = 1
    kind: str | Callable[[Instr], str] = ""
    forms: str = ""
    refused: str = ""


TABLE: dict[str, Entry] = {}


def instruction(*names: str, results=1, kind="", forms: str = "", refused: str = ""):
    """Register `emit(e, instr)` for mnemonics; see Entry."""

    def register(fn: Callable) -> Callable:
        family = fn.__module__.rpartition(".")[2]
        for name in names:
            TABLE[name] = Entry(name, family, fn, results, kind, forms, refused)
        return fn

    return register


@cache  # asked for at every instruction
def load() -> dict[str, Entry]:
    """The table with every family in it."""
    for family in FAMILIES:
        importlib.import_module(f"tensorladder.vgpu.codegen.{family}")
    return TABLE


def classify(instr: Instr) -> str:
    """"" | meet | block | end, for the control-flow graph."""
    if instr.op in ("bra", "brx", "ret", "exit", "trap"):
        return "end"
    entry = load().get(instr.op)
    if entry is None:
        return ""
    if isinstance(entry.kind, str):
        return entry.kind
    with reading(instr):
        return entry.kind(instr)


def results(instr: Instr) -> int:
    """Number of leading operands that are results."""
    entry = load().get(instr.op)
    if entry is None:
        return 0
    if isinstance(entry.results, int):
        return entry.results
    with reading(instr):
        return entry.results(instr)
