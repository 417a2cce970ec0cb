"""`tensorladder draw WHAT -o F.svg`: a picture of a layout, a swizzle, a thread-value map, tensor memory, a raster."""

from __future__ import annotations

import inspect
from typing import Annotated

import typer

from tensorladder.cli import output
from tensorladder.cli.options import Json
from tensorladder.core.errors import UsageError
from tensorladder.draw import what as catalogue
from tensorladder.draw.grid import record, render


def draw(
    what: Annotated[
        str | None,
        typer.Argument(metavar="WHAT", help="a layout such as '(4,8):(8,1)', or KIND:VALUE,KNOB=VALUE (see --list)"),
    ] = None,
    file: Annotated[str | None, typer.Option("-o", "--output", metavar="F.svg", help="the file to write")] = None,
    listed: Annotated[
        bool, typer.Option("--list", help="what can be drawn, with examples; with a KIND: what its knobs mean")
    ] = False,
    as_json: Json = False,
) -> int:
    """Draw a layout, a swizzle, a thread-value map, a matrix descriptor, tensor memory or a raster of tiles."""
    if listed:
        _list([catalogue.find(what)] if what else list(catalogue.KINDS.values()), as_json, bool(what))
        return 0
    if what is None:
        raise UsageError("nothing to draw: say what (`tensorladder draw --list` has examples)")
    place = catalogue.check_output(file) if file is not None else None
    picture = catalogue.draw(what)
    if place is not None:
        catalogue.write(place, render(picture))
    if as_json:
        output.emit({"what": what, "file": file, **record(picture)})
    elif place is None:
        output.write(render(picture))
    else:
        output.write(f"{file}: {picture.title}")
        for note in picture.notes:
            output.write(f"  {note}")
    return 0


def _list(kinds: list[catalogue.Kind], as_json: bool, closely: bool) -> None:
    """A line a kind; of one that was named, what its knobs mean too."""
    if as_json:
        for kind in kinds:
            facts = {"kind": kind.name, "draws": kind.draws, "knobs": kind.defaults, "examples": list(kind.examples)}
            output.emit({**facts, "help": output.one_line(kind.knobs.__doc__)})
        return
    rows = [(kind.name, kind.draws, " ".join(kind.defaults), "\n".join(kind.examples)) for kind in kinds]
    output.print_table(output.table(("kind", "draws", "knobs", "examples"), rows))
    if closely:
        output.write(f"\n{inspect.cleandoc(kinds[0].knobs.__doc__ or '')}")
        output.write(f"\ndefaults: {', '.join(f'{name}={value}' for name, value in kinds[0].spelt.items())}")
