"""How verbs speak: tables for people, one JSON object a line for programs, progress only on a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

# A pipe has no width of its own; wide enough that a row stays one line.
PIPED_WIDTH = 160
WORDS = {True: "ok", False: "no"}
STYLES = {"ok": "green", "no": "red", "wrong": "bold red", "stopped": "bold red", "incomplete": "yellow"}


def console() -> Console:
    """The console for results (stdout). Built per call: tests and callers swap sys.stdout."""
    if sys.stdout.isatty():
        return Console(highlight=False)
    return Console(highlight=False, width=PIPED_WIDTH, no_color=True)


def emit(record: Mapping[str, Any], stream: TextIO | None = None) -> None:
    """One JSON object, one line, at once (so that a reader of the pipe sees each row as it comes)."""
    stream = stream or sys.stdout
    stream.write(json.dumps(record, allow_nan=False) + "\n")
    stream.flush()


def table(columns: Sequence[str], rows: Iterable[Sequence[object]] = (), right: Sequence[str] = ()) -> Table:
    """A plain table: no frame, so that it can be cut, copied and compared."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        made.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        add_row(made, row)
    return made


def print_table(made: Table) -> None:
    """The table on stdout; in a pipe no line of it ends in blanks."""
    to = console()
    if to.is_terminal:
        to.print(made)
        return
    with to.capture() as shown:
        to.print(made)
    write("\n".join(line.rstrip() for line in shown.get().splitlines()))


def add_row(made: Table, row: Sequence[object]) -> None:
    """Cells are text as it is (no markup: shapes and findings have brackets); verdicts are coloured on a terminal."""
    made.add_row(*(_cell(value) for value in row))


def _cell(value: object) -> Text:
    word = WORDS[value] if isinstance(value, bool) else str("" if value is None else value)
    return Text(word, style=STYLES.get(word, ""))


def write(text: str, stream: TextIO | None = None) -> None:
    """Plain text to stdout (or another stream), ending in exactly one newline."""
    (stream or sys.stdout).write(text.rstrip("\n") + "\n")


def complain(message: object) -> None:
    """One line to stderr, whatever newlines the message holds."""
    sys.stderr.write(f"tensorladder: {one_line(message)}\n")
    sys.stderr.flush()


def one_line(message: object) -> str:
    """The message with all runs of white space as one blank."""
    return " ".join(str(message).split())


@contextmanager
def progress(text: str) -> Iterator[None]:
    """A spinner on stderr while something long runs; nothing without a text, or when stderr is no terminal."""
    errors = Console(stderr=True)
    if not text or not errors.is_terminal:
        yield
        return
    with errors.status(text):
        yield
