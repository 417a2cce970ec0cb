"""Breakpoints as the verbs take them: nothing where none is asked for, one line where the engine is missing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tensorladder.core.errors import UsageError, importing_engine


def breakpoints(
    texts: Sequence[str], dump: Sequence[str], going_on: int | None, show: Callable[[Any], None], *, whole: bool
) -> Any:
    """A vgpu.debug.Breakpoints of what `--break`, `--dump` and `--continue` say; None where no --break is given.

    show: is given each dump. whole: as Breakpoints takes it.
    """
    if not texts:
        if dump or going_on is not None:
            raise UsageError(f"--{'dump' if dump else 'continue'}: of which breakpoint? --break says where")
        return None
    with importing_engine():
        from tensorladder.vgpu.debug import Breakpoints
    return Breakpoints(texts, dump, going_on, show, whole)
