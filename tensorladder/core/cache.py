"""The disk cache: where compiled things are kept between runs.

`TENSORLADDER_CACHE` names the folder; otherwise it is `tensorladder` in the user's cache folder. A cache that cannot be
written is one warning, and everything still works. Each file starts with the SHA-256 of the rest: native code is loaded
from here, and a file that was cut short or damaged would crash the process instead of being built anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

_DIGEST = hashlib.sha256().digest_size


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
    """What was kept under `name`, or None where there is nothing or it is damaged."""
    try:
        kept = (cache_dir() / name).read_bytes()
    except OSError:
        return None
    digest, data = kept[:_DIGEST], kept[_DIGEST:]
    return data if hashlib.sha256(data).digest() == digest else None


def write(name: str, data: bytes) -> None:
    """Keep `data` under `name`, atomically: a reader sees the old file or the whole new one."""
    path = cache_dir() / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd, temporary = tempfile.mkstemp(dir=path.parent)
        try:
            with os.fdopen(fd, "wb") as f:
                f.write(hashlib.sha256(data).digest() + data)
            os.replace(temporary, path)
        except BaseException:  # a full disk, or an interrupt
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    except OSError as e:
        blocked = isinstance(e, FileExistsError | NotADirectoryError)
        _warn_once(str(cache_dir()), "a file stands where a folder must be" if blocked else e.strerror or str(e))


@contextlib.contextmanager
def _alone(name: str) -> Iterator[None]:
    """Processes that want the same file wait for the one that builds it, where the system has file locks."""
    path = cache_dir() / f"{name}.lock"
    try:
        import fcntl

        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.open("w")
    except (ImportError, OSError):  # then each builds its own
        yield
        return
    with lock:
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
        path.unlink(missing_ok=True)


def cached_bytes(name: str, build: Callable[[], bytes], label: str = "") -> bytes:
    """The cached bytes under `name`, made by `build` where there are none, by one process at a time.

    `label` is shown while building.
    """
    data = read(name)
    if data is not None:
        return data
    with _alone(name):
        data = read(name)
        if data is None:
            if label and sys.stderr.isatty():
                print(f"{label} ...", file=sys.stderr, flush=True)
            data = build()
            write(name, data)
    return data
