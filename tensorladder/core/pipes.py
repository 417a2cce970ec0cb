"""Output to a pipe whose reader may go away (`| head`): no error, and nothing more can be said there."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable


def silence() -> None:
    """What is in the buffers of stdout and stderr and cannot be written would fail again when Python exits."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def piped(main: Callable[[], int | None]) -> int:
    """The exit code of a program: 0 where the reader of its output went away."""
    try:
        try:
            return main() or 0
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        silence()
        return 0
