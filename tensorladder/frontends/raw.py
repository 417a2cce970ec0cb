"""Raw PTX front end: text or a file in, a `Module` out, with no compiler at all."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ..core.arch import find
from ..core.errors import UsageError
from ..core.program import Module

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_VERSION = re.compile(r"^\s*\.version\s+(\d+)\.(\d+)", re.M)
_TARGET = re.compile(r"^\s*\.target\s+(sm_\w+)", re.M)
_ENTRY = re.compile(r"\.entry\s+[\w$%]+")


def load_ptx(source: str | os.PathLike[str], arch: str | None = None) -> Module:
    """A module from PTX text, or from the path of a file that holds it.

    A string with a line break, or one that starts as PTX does, is text; anything else is a path. arch: the
    architecture to run on; by default the text's own `.target`. UsageError for what is no PTX.
    """
    text, where = _read(source)
    body = _COMMENT.sub("", text)
    for what, pattern in ((".version", _VERSION), (".target", _TARGET), (".entry", _ENTRY)):
        if not pattern.search(body):
            raise UsageError(f"{where} is no PTX that can run: it has no {what} directive")
    target = _TARGET.search(body)
    assert target
    name = Path(where).stem if where != "the text" else "ptx"
    return Module(text, find(arch or target[1]).name, None, name)


def _read(source: str | os.PathLike[str]) -> tuple[str, str]:
    """Text and how to call it in a message."""
    if isinstance(source, str) and ("\n" in source or source.lstrip().startswith((".version", "//"))):
        return source, "the text"
    path = Path(source)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    if data[:4] in (b"\x7fELF", b"\x50\xed\x55\xba"):
        raise UsageError(f"{path} is a compiled binary: give the PTX text (cuobjdump --dump-ptx writes it)")
    try:
        return data.rstrip(b"\0").decode(), str(path)
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is no text (byte {error.start}): PTX is ASCII") from error
