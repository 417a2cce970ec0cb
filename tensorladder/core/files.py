"""Files that a person names for output: checked before the work, written whole or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from tensorladder.core.errors import UsageError


def check_place(path: str, option: str) -> Path:
    """Where an output goes, before anything runs. UsageError for a folder, or in a folder that is not there."""
    place = _named(path, option)
    if not place.parent.is_dir():
        raise UsageError(f"{option} {path}: there is no folder {place.parent}")
    if place.is_dir():
        raise UsageError(f"{option} {path}: cannot be written (it is a folder)")
    return place


def check_folder(path: str, option: str) -> Path:
    """Where a folder of output goes, which is made where it is not there, before anything runs. UsageError where it
    cannot be."""
    place = _named(path, option)
    there = next(one for one in (place, *place.absolute().parents) if one.exists())
    if not there.is_dir():
        raise UsageError(f"{option} {path}: {there} is a file, name a folder")
    if not os.access(there, os.W_OK):
        raise UsageError(f"{option} {path}: {there} is write-protected")
    return place


def _named(path: str, option: str) -> Path:
    if not path:
        raise UsageError(f"{option} '': it takes a name")
    return Path(path)


def write_whole(path: Path, data: bytes, option: str) -> int:
    """`data` into a file, whole or not at all; its bytes. A file that cannot be written is a UsageError."""
    target = Path(os.path.realpath(path))  # a link stays one
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        if path.exists() and not path.is_file() and not path.is_dir():  # a pipe, as /dev/stdout may be
            return path.write_bytes(data)
        if target.exists() and not os.access(target, os.W_OK):
            raise PermissionError(0, "it is write-protected")
        try:
            draft.write_bytes(data)
            os.replace(draft, target)
        except BaseException:  # a full disk, or an interrupt
            with contextlib.suppress(OSError):
                draft.unlink()
            raise
    except OSError as error:
        raise UsageError(f"{option} {path}: cannot be written ({error.strerror})") from None
    return len(data)
