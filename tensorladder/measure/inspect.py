"""What a rung is made of: its source, what changed from its parent, and what the compiler made of it."""

from __future__ import annotations

import difflib
from pathlib import Path

from tensorladder.core.errors import UsageError
from tensorladder.core.files import check_place, write_whole
from tensorladder.core.program import Program
from tensorladder.measure.run import Request, build
from tensorladder.rungs.rung import RungInfo, find
from tensorladder.silicon.disassemble import sass as disassemble


def source(info: RungInfo) -> str:
    """The rung's file as it is, and below it that of its kernel where it has one."""
    return "\n".join(path.read_text(encoding="utf-8") for path in info.files)


def diff(info: RungInfo, context: int = 3) -> str:
    """A unified diff from the parent's source to this rung's. UsageError for a rung with no parent."""
    if info.parent is None:
        raise UsageError(f"{info.name} stands at the bottom of its series: it has no parent to compare with")
    parent = find(info.parent)
    lines = difflib.unified_diff(
        source(parent).splitlines(keepends=True),
        source(info).splitlines(keepends=True),
        fromfile=parent.name,
        tofile=info.name,
        n=context,
    )
    return "".join(lines)


def compiled(asked: Request) -> Program:
    """The rung compiled for what was asked, its MLIR kept (MissingExtra where its language is not installed)."""
    from tensorladder.frontends.cutedsl import keeping_mlir

    with keeping_mlir():
        return build(asked)


def ptx(program: Program) -> str:
    """The PTX of all modules."""
    return "\n".join(module.ptx for module in program.modules)


def mlir(program: Program) -> str:
    """The front end's MLIR; UsageError where it has none."""
    if program.mlir is None:
        raise UsageError(f"{program.name}: its front end makes no MLIR: use --ptx")
    return program.mlir


def sass(program: Program) -> str:
    """The machine code of all modules, disassembled."""
    return "\n".join(disassemble(code) for code in cubins(program))


def cubins(program: Program) -> list[bytes]:
    """The machine code of all modules; UsageError where the front end makes none."""
    made = [module.cubin for module in program.modules if module.cubin]
    if len(made) < len(program.modules):
        raise UsageError(f"{program.name}: its front end makes no machine code: use --ptx")
    return made


def write_cubins(program: Program, file: str | Path) -> dict[Path, int]:
    """Write the machine code to a file, of several modules to file.0, file.1 and so on; their sizes in bytes.

    UsageError where there is none, or a file cannot be written.
    """
    made, path = cubins(program), check_place(str(file), "--cubin")
    paths = [path] if len(made) == 1 else [path.with_name(f"{path.name}.{number}") for number in range(len(made))]
    return {one: write_whole(one, code, "--cubin") for one, code in zip(paths, made)}
