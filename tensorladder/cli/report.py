"""`tensorladder report -o F.html`: the ladder, its changes and its figures as one page that needs no network."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tensorladder import report as library
from tensorladder.cli import output
from tensorladder.cli.list import record
from tensorladder.cli.options import Json
from tensorladder.core.errors import UsageError
from tensorladder.report.hazards import Kept, Runner
from tensorladder.report.results import KEPT
from tensorladder.report.timelines import Drawer


def report(
    file: Annotated[str | None, typer.Option("-o", "--output", metavar="F.html", help="the file to write")] = None,
    results: Annotated[
        str | None,
        typer.Option("--results", metavar="DIR", help=f"result files of `bench` (default: {KEPT}, if there)"),
    ] = None,
    timelines: Annotated[
        bool, typer.Option("--timelines", help="run every rung on the virtual GPU and draw its timeline (minutes)")
    ] = False,
    hazards: Annotated[
        str | None, typer.Option("--hazards", metavar="F.jsonl", help="what `check --json` said of the rungs")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="run every rung under the hazard checker and show what it finds (minutes)")
    ] = False,
    as_json: Json = False,
) -> int:
    """Write one HTML page: the ladder, each rung's lesson and changes, pictures of what was measured."""
    if file is None and not as_json:
        raise UsageError("nowhere to write: -o ladder.html names a file (--json prints the facts)")
    place = library.check_output(file) if file is not None else None
    if hazards is not None and check:
        raise UsageError("--hazards and --check: either what a file says, or a check now")
    asked: dict[str, Any] = {}
    if timelines:
        asked["timeline"] = Drawer()
    if hazards is not None or check:
        asked["hazards"] = Kept(hazards) if hazards is not None else Runner()
    with output.progress("running every rung"):
        facts = library.gather(results, **asked)
    for name, source in asked.items():
        for line in source.refused:
            output.complain(f"no {name}: {line}")
    size = library.write(place, library.page(facts)) if place is not None else None
    if as_json:
        for rung in facts.rungs:
            output.emit({**record(rung.info), **rung.record()})
        for anchor, one in facts.results:
            output.emit({"results": one.name, "anchor": anchor, "where": one.where, "records": len(one.records)})
        summary = {"file": file, "bytes": size, "rungs": len(facts.rungs), "results": len(facts.results)}
        output.emit({"summary": summary})
    else:
        megabytes = f"{(size or 0) / 1e6:.1f} MB"
        output.write(f"{file}: {len(facts.rungs)} rungs, {len(facts.results)} result files, {megabytes}")
    return 0
