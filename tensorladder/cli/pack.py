"""`tensorladder pack`: rungs compiled ahead of time into a folder that needs no compiler where it is used."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated

import typer

from tensorladder.cli import output
from tensorladder.cli.options import Json
from tensorladder.core.arch import find
from tensorladder.core.errors import UsageError
from tensorladder.core.files import check_folder
from tensorladder.measure import pack as packs
from tensorladder.measure import suites
from tensorladder.measure.request import parse_shape

SMS = 132


def pack(
    rungs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUNG[:KNOB=VALUE,...]...]", help="which rungs, with other knobs: c5:stages=5"),
    ] = None,
    arch: Annotated[str, typer.Option("--arch", help="architecture to compile for, such as sm_90a")] = "sm_90a",
    folder: Annotated[str, typer.Option("-o", "--output", metavar="DIR", help="the folder to write")] = "pack",
    suite: Annotated[
        str | None,
        typer.Option("--suite", metavar="|".join(suites.SUITES), help="whose rungs (ladder's), or calls of the ops"),
    ] = None,
    shape: Annotated[
        list[str] | None, typer.Option("--shape", metavar="512,512,512", help="these shapes (repeatable)")
    ] = None,
    dtype: Annotated[list[str] | None, typer.Option("--dtype", help="these element types (repeatable)")] = None,
    ops: Annotated[bool, typer.Option("--ops", help="kernels of the ops instead, for TENSORLADDER_PACK=DIR")] = False,
    form: Annotated[
        list[str] | None, typer.Option("--form", metavar="bf16,bias=bf16", help="of the ops, these (repeatable)")
    ] = None,
    sms: Annotated[int, typer.Option("--sms", help="of the ops, for a GPU of so many SMs")] = SMS,
    tune: Annotated[bool, typer.Option("--tune", help="of the ops, with --shape: all that tune=True measures")] = False,
    add: Annotated[bool, typer.Option("--add", help="of the ops, to a pack that is there")] = False,
    as_json: Json = False,
) -> int:
    """Compile rungs, with no GPU, into a folder that loads beside torch and a driver alone."""
    check_folder(folder, "-o")
    if ops or form:
        if rungs:
            raise UsageError(f"{rungs[0]}: --ops packs kernels of the ops alone: leave the rungs out")
        return _ops(folder, arch, form or (), dtype or (), shape or (), suite, sms, tune, add, as_json)
    for option, given in {"--tune": tune, "--sms": sms != SMS, "--add": add}.items():
        if given:
            raise UsageError(f"{option} is for kernels of the ops: add --ops")
    start = time.perf_counter()
    shapes = [parse_shape(text, least=0) for text in shape or ()]
    wanted = packs.wanted(rungs or (), arch, suites.find(suite or "ladder"), shapes, dtype or ())
    # What a suite asks for and a rung does not take is left out; what a person asks for by name must be there.
    refused: list[str] | None = None if shapes else []
    with output.progress(f"compiling {len(wanted)} kernels for {arch}"):
        made = list(packs.make_all(wanted, arch, refused))
    if refused and not made:
        raise UsageError(f"nothing to pack: {refused[0]}")
    for line in refused or ():
        output.complain(f"left out: {line}")
    entries, dynamic, size = packs.write(folder, arch, made)
    names = list(dict.fromkeys(one.entry.rung for one in made))
    seconds = time.perf_counter() - start
    if as_json:
        output.emit(
            {
                "file": folder, "rungs": names, "arch": arch, "entries": entries, "dynamic": dynamic, "bytes": size,
                "seconds": seconds,
            }
        )  # fmt: skip
    else:
        any_extents = f", {dynamic} of them also for any extents" if dynamic else ""
        output.write(
            f"{folder}: {entries} kernels of {len(names)} rungs for {arch}{any_extents}, {size / 1e6:.1f} MB, "
            f"{seconds:.1f} s"
        )
    return 0


def _ops(
    folder: str, arch: str, spelt: Sequence[str], dtypes: Sequence[str], shapes: Sequence[str],
    suite: str | None, sms: int, tune: bool, add: bool, as_json: bool,
) -> int:  # fmt: skip
    """Kernels of the ops: of these forms, of a suite's calls, or of what is packed by default for these types."""
    from tensorladder.ops import packing

    start = time.perf_counter()
    arch = find(arch).name
    if not 2 <= sms <= 1024:
        raise UsageError(f"--sms {sms} must lie between 2 and 1024")
    if tune and not shapes:
        raise UsageError("--tune: say for which products with --shape M,N,K")
    if suite is not None:
        if spelt or shapes or arch != "sm_90a":
            raise UsageError("--suite with --ops: its forms, shapes and sm_90a are given; leave the options out")
        wanted = packing.of_suite(suites.find(suite), sms)
    else:
        asked = [packing.parse_form(text) for text in spelt]
        forms = asked or [one for dtype in dtypes or packing.DTYPES for one in packing.forms(dtype)]
        wanted = packing.wanted(arch, forms, [parse_shape(text) for text in shapes], sms, tune)
    with output.progress(f"compiling {len(wanted)} kernels for {arch}"):
        made = [packing.make(arch, one) for one in wanted]
    size = packing.write(folder, arch, made, packs.made_with(), add)
    seconds = time.perf_counter() - start
    facts = {"file": folder, "rungs": [], "arch": arch, "ops": len(made), "bytes": size, "seconds": seconds}
    if as_json:
        output.emit(facts)
    else:
        output.write(f"{folder}: {len(made)} kernels of ops for {arch}, {size / 1e6:.1f} MB, {seconds:.1f} s")
    return 0
