"""Disk cache of what became of a TIRx kernel: host plan, PTX and cubin of a function that makes it, and its arguments.

Tracing and lowering take a second, NVRTC another; reading the result does not. The key covers what a trace can see: the
arguments, the source of the function's module and of every module that it can reach by name (TVM and other packages by
their release), plain values among their globals. What is not understood makes a function uncacheable; it is compiled as
ever, and nothing is guessed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
import types
from collections.abc import Iterator
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ..core import cache
from ..core.program import Module
from . import nvrtc
from .tirx_host import Plan

_PACKAGES = ("apache-tvm", "apache-tvm-ffi", "nvidia-cuda-nvrtc", "nvidia-cuda-runtime", "nvidia-cuda-cccl")
_PLAIN = (type(None), bool, int, float, complex, str, bytes)


class _NotUnderstood(Exception):
    """A value whose influence on the result is not known."""


def key(make: types.FunctionType, args: tuple[Any, ...], *rest: str) -> str | None:
    """Name of the cached result of `make(*args)`, or None where it cannot be cached. rest: architecture, options."""
    try:
        if make.__closure__:
            raise _NotUnderstood
        facts = [make.__module__, make.__qualname__, [_plain(arg) for arg in args], *rest, *versions(), _sources(make)]
    except _NotUnderstood:
        return None
    return f"tirx/{hashlib.sha256(json.dumps(facts).encode()).hexdigest()}"


def _plain(value: Any) -> list[Any]:
    """A JSON-ready account of a value."""
    if isinstance(value, _PLAIN):
        return [type(value).__name__, repr(value)]
    if isinstance(value, tuple | list):
        return [type(value).__name__, [_plain(item) for item in value]]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [[one.name, _plain(getattr(value, one.name))] for one in dataclasses.fields(value)]
        return [type(value).__qualname__, fields]
    raise _NotUnderstood


def _sources(make: types.FunctionType) -> list[Any]:
    """Every module that is no installed package's and that `make` can reach by name: digest and plain globals."""
    found: dict[str, Any] = {}
    waiting = [make.__module__]
    while waiting:
        name = waiting.pop()
        if name in found or name not in sys.modules or name.partition(".")[0] in sys.stdlib_module_names:
            continue
        module = sys.modules[name]
        file = getattr(module, "__file__", None)
        if not file or name == "__main__":  # nothing says what a script has done so far
            raise _NotUnderstood
        if {"site-packages", "dist-packages"} & set(Path(file).parts):
            continue
        found[name] = [_digest(file), list(_globals(module))]
        waiting += _reached(module)
    return sorted(found.items())


def _globals(module: types.ModuleType) -> Iterator[list[Any]]:
    for name, value in sorted(vars(module).items()):
        if not name.startswith("__") and isinstance(value, (*_PLAIN, tuple)):
            try:
                yield [name, _plain(value)]
            except _NotUnderstood:  # a tuple of functions and the like: its source is the module's
                continue


def _reached(module: types.ModuleType) -> Iterator[str]:
    for value in vars(module).values():
        name = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
        if isinstance(name, str):
            yield name


def _digest(file: str) -> str:
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError:
        raise _NotUnderstood from None


@lru_cache(maxsize=1)
def versions() -> tuple[str, ...]:
    """What a result depends on besides sources and arguments: releases, this front end, where headers come from."""
    found = []
    for package in _PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            found.append(package)
    ours = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        ours.update(path.read_bytes())
    return (*found, ours.hexdigest(), *nvrtc.header_folders())


def load(name: str, arch: str) -> tuple[Plan, Module] | None:
    """The cached result, or None."""
    data = cache.read(name)
    if not data:
        return None
    head, _, body = data.partition(b"\n")
    facts = json.loads(head)
    ptx, cubin = body[: facts["ptx"]], body[facts["ptx"] :]
    return facts["plan"], Module(ptx.decode(), arch, cubin or None, facts["name"])


def store(name: str, made: Plan, module: Module) -> None:
    """Keep a result."""
    ptx = module.ptx.encode()
    head = json.dumps({"name": module.name, "ptx": len(ptx), "plan": made})
    cache.write(name, head.encode() + b"\n" + ptx + (module.cubin or b""))
