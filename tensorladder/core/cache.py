"""The disk cache: where compiled things are kept between runs.

`TENSORLADDER_CACHE` names the folder; otherwise it is `tensorladder` in the user's cache folder. A cache that cannot be
written is one warning, and everything still works.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path


def cache_dir() -> Path:
    """The cache folder (it may not exist yet)."""
    named = os.environ.get("TENSORLADDER_CACHE")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "tensorladder"


@cache
def _warn_once(folder: str, reason: str) -> None:
    warnings.warn(f"the cache {folder} cannot be written ({reason}); nothing is kept", stacklevel=3)


def read(name: str) -> bytes | None:
    """A cached file's content, or None."""
    try:
        return (cache_dir() / name).read_bytes()
    except OSError:
        return None


def write(name: str, data: bytes) -> None:
    """Keep `data` under `name`, atomically: a reader sees the old file or the whole new one."""
    path = cache_dir() / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd, temporary = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(fd, "wb") as f:
            f.write(data)
        os.replace(temporary, path)
    except OSError as e:
        _warn_once(str(cache_dir()), e.strerror or type(e).__name__)


def cached_bytes(name: str, build: Callable[[], bytes], label: str = "") -> bytes:
    """The cached bytes under `name`, made by `build` where there are none. `label` is shown while building."""
    data = read(name)
    if data is None:
        if label and sys.stderr.isatty():
            print(f"{label} ...", file=sys.stderr, flush=True)
        data = build()
        write(name, data)
    return data
