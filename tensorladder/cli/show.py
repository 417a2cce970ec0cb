"""`tensorladder show RUNG`: its lesson, or what changed from its parent, or what the compiler made of it."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.syntax import Syntax

from tensorladder.cli import output
from tensorladder.cli.list import record
from tensorladder.cli.options import Arch, Dtype, Json, RungName, Shape
from tensorladder.core.errors import UsageError
from tensorladder.core.files import check_place
from tensorladder.measure import inspect
from tensorladder.measure.request import parse_shape
from tensorladder.measure.run import plan
from tensorladder.rungs.rung import SECTIONS, RungInfo, find

# What the compiler makes -> how it is taken from the program, and the lexer that colours it.
COMPILED = {
    "ptx": (inspect.ptx, "text"),
    "sass": (inspect.sass, "text"),
    "mlir": (inspect.mlir, "mlir"),
}


def show(
    rung: RungName,
    diff: Annotated[bool, typer.Option("--diff", help="what changed from its parent")] = False,
    ptx: Annotated[bool, typer.Option("--ptx", help="the compiled PTX")] = False,
    sass: Annotated[bool, typer.Option("--sass", help="the machine code")] = False,
    cubin: Annotated[
        str | None, typer.Option("--cubin", metavar="FILE", help="write the machine code there, for cuobjdump")
    ] = None,
    mlir: Annotated[bool, typer.Option("--mlir", help="the front end's MLIR")] = False,
    source: Annotated[bool, typer.Option("--source", help="the file itself")] = False,
    shape: Shape = None,
    dtype: Dtype = None,
    arch: Arch = None,
    as_json: Json = False,
) -> int:
    """Show a rung: what it adds, its warp roles, its budget; or its code at any stage."""
    info = find(rung)
    chosen = [name for name, on in _views(diff, ptx, sass, cubin, mlir, source).items() if on]
    if len(chosen) > 1:
        raise UsageError(f"--{chosen[0]} and --{chosen[1]} cannot be shown at once: choose one")
    view = chosen[0] if chosen else "doc"
    given = [f"--{name}" for name, value in (("shape", shape), ("dtype", dtype), ("arch", arch)) if value is not None]
    if given and view != "cubin" and view not in COMPILED:
        raise UsageError(f"{given[0]} is for what the compiler makes: give --ptx, --sass, --cubin or --mlir as well")
    asked = {"shape": parse_shape(shape, least=0) if shape else None, "dtype": dtype, "arch": arch}
    if cubin is not None:
        return _write(info, cubin, asked, as_json)
    text, lexer = _text(info, view, asked)
    if as_json:
        output.emit({**record(info), "view": view, "text": text})
    elif view == "doc":
        _print_lesson(info)
    elif sys.stdout.isatty() and lexer != "text":
        output.console().print(Syntax(text, lexer, word_wrap=False, background_color="default"))
    else:
        output.write(text)
    return 0


def _views(diff: bool, ptx: bool, sass: bool, cubin: str | None, mlir: bool, source: bool) -> dict[str, bool]:
    return {"diff": diff, "ptx": ptx, "sass": sass, "cubin": cubin is not None, "mlir": mlir, "source": source}


def _write(info: RungInfo, file: str, asked: dict, as_json: bool) -> int:
    """The machine code to a file: a line on each that was written."""
    check_place(file, "--cubin")
    request = plan(info, **asked)
    with output.progress(f"compiling {info.name} for {request.arch}"):
        written = inspect.write_cubins(inspect.compiled(request), file)
    for path, size in written.items():
        if as_json:
            output.emit({**record(info), "view": "cubin", "file": str(path), "arch": request.arch, "bytes": size})
        else:
            output.write(f"{path}: {info.name} for {request.arch}, {size} bytes")
    return 0


def _text(info: RungInfo, view: str, asked: dict) -> tuple[str, str]:
    if view in COMPILED:
        take, lexer = COMPILED[view]
        request = plan(info, **asked)
        with output.progress(f"compiling {info.name} for {request.arch}"):
            return take(inspect.compiled(request)), lexer
    if view == "diff":
        return inspect.diff(info), "diff"
    if view == "source":
        return inspect.source(info), "python"
    return info.doc, "text"


def _print_lesson(info: RungInfo) -> None:
    """The metadata, then the docstring, its headings in bold on a terminal."""
    facts = (
        ("rung", info.name),
        ("parent", info.parent or "none: the bottom of its series"),
        *((("aside", f"pays {info.aside}"),) if info.aside else ()),
        ("archs", " ".join(info.archs)),
        ("problem", f"{info.problem.name}: {info.problem.summary}; --shape {','.join(info.problem.axes)}"),
        ("default", f"--shape {','.join(map(str, info.default_shape))} --dtype {info.dtypes[0]}"),
        ("dtypes", " ".join(info.dtypes)),
    )
    console = output.console()
    for name, value in facts:
        console.print(f"[bold]{name:<8}[/bold] ", end="")
        console.print(value, markup=False, soft_wrap=True)
    console.print()
    for line in info.doc.splitlines():
        heading = line.rstrip(":") in SECTIONS
        console.print(line, markup=False, soft_wrap=True, style="bold" if heading else None)
