"""`--break`, `--dump` and `--continue`, for the verbs that run kernels on the virtual GPU."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TextIO

import typer

from tensorladder.cli import output
from tensorladder.measure.breakpoints import breakpoints

Break = Annotated[
    list[str] | None,
    typer.Option(
        "--break",
        metavar="WHERE[@WHEN]",
        help="stop a warp and show what the machine holds: at ptx:LINE, FILE.py:LINE, KERNEL+LINES, or at a hang; "
        "behind an @ cta=X,Y,Z, warp=N, lane=N, hit=N, launch=N, kernel=NAME",
    ),
]
Dump = Annotated[
    list[str] | None,
    typer.Option("--dump", metavar="smem:ADDR:BYTES[:TYPE]", help="memory to show there too; or tmem:COLUMN:COLUMNS"),
]
Continue = Annotated[
    int | None, typer.Option("--continue", metavar="N", help="show the first N hits and go on, in place of stopping")
]


def asked(
    texts: Sequence[str] | None, dump: Sequence[str] | None, going_on: int | None, as_json: bool, *, whole: bool = True
) -> Any:
    """The breakpoints that a verb was asked for, which print themselves; None without any."""
    return breakpoints(texts or (), dump or (), going_on, printer(sys.stdout if whole else sys.stderr, as_json),
                       whole=whole)  # fmt: skip


def printer(stream: TextIO, as_json: bool) -> Callable[[Any], None]:
    """What prints a dump, as text or as one JSON object."""

    def show(dump: Any) -> None:
        output.emit(dump.to_json(), stream) if as_json else output.write(f"{dump}\n", stream)

    return show


def say_unmet(points: Any) -> None:
    """Tell of breakpoints that nothing came to, unless another one has ended the run."""
    if points is not None and points.stopped is None:
        for line in points.unmet():
            output.complain(line)
