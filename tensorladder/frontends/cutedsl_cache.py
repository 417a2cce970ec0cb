"""Disk cache of what CuTe DSL compiled: tracing and lowering take most of a second, reading the result does not.

The key covers what a trace can see: the source of the function's module and of every module it can reach by name
(the DSL itself by its version), plain values among their globals, closures and the state of a callable object, the
arguments' demands, architecture, options, `CUTE_DSL_*` variables and the host's CPU. A value of a kind that is not
understood here makes the function uncacheable; it is compiled as ever, and nothing is guessed.
"""

from __future__ import annotations

import dis
import enum
import functools
import hashlib
import inspect
import json
import os
import platform
import sys
import types
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..core import cache
from . import cutedsl_inner as inner

_FORMAT = 1
_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_CODE = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type)
_DEPTH = 6
_VERSIONED = ("cutlass", "cuda", "numpy", "torch", "tvm_ffi", "ml_dtypes", "llvmlite", "numba")
"""Packages whose release stands for their source."""


class _NotUnderstood(Exception):
    """A value whose influence on the result is not known."""


def key(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *rest: Any) -> str | None:
    """File name of the cached result, or None where it cannot be cached. rest: architecture, options and the like."""
    try:
        facts = _Facts()
        parts = [facts.describe(fn), [facts.describe(a) for a in args], facts.describe(kwargs), list(rest)]
        parts += [_FORMAT, _versions(), _host(), sorted(i for i in os.environ.items() if i[0].startswith("CUTE_DSL_"))]
        parts.append(facts.sources(fn))
    except (_NotUnderstood, RecursionError):
        return None
    return f"cutedsl/{hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()}"


@functools.cache
def _versions() -> list[str]:
    found = [f"{name} {version(name)}" for name in ("nvidia-cutlass-dsl", "llvmlite")]
    ours = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        ours.update(path.read_bytes())
    return [*found, ours.hexdigest()]


@functools.cache
def _host() -> list[str]:
    import llvmlite.binding as binding

    return [platform.machine(), binding.get_host_cpu_name()]


class _Facts:
    """Turns values into plain lists; symbolic extents are numbered by first occurrence."""

    def __init__(self) -> None:
        self._symbols: dict[int, int] = {}
        self._modules: set[str] = set()

    def describe(self, value: Any, depth: int = 0) -> Any:
        """A JSON-ready account of `value`; _NotUnderstood where there is none."""
        if depth > _DEPTH:
            raise _NotUnderstood
        if isinstance(value, _PLAIN):
            return [type(value).__name__, repr(value)]
        spec = inner.tensor_spec(value)
        if spec is not None:
            dims = [self._dim(d) for d in (*spec.shape, *spec.strides)]
            return ["tensor", spec.dtype, dims, spec.align, str(value.memspace), type(value).__name__]
        if inner.is_stream(value):
            return ["stream", type(value).__name__, bool(getattr(value, "use_tvm_ffi_env_stream", False))]
        if isinstance(value, list | tuple | set | frozenset):
            items = [self.describe(v, depth + 1) for v in value]
            return [type(value).__name__, sorted(items, key=str) if isinstance(value, set | frozenset) else items]
        if isinstance(value, dict):
            return ["dict", [[self.describe(k, depth + 1), self.describe(v, depth + 1)] for k, v in value.items()]]
        return self._object(value, depth)

    def _dim(self, dim: Any) -> Any:
        if isinstance(dim, int):
            return dim
        number = None if dim.symbol is None else self._symbols.setdefault(dim.symbol, len(self._symbols))
        return ["?", dim.bits, dim.divisor, number]

    def _object(self, value: Any, depth: int) -> Any:
        if isinstance(value, enum.Enum):
            return ["enum", type(value).__qualname__, value.name]
        if isinstance(value, type):
            self._modules.add(value.__module__)
            return ["type", value.__module__, value.__qualname__]
        if isinstance(value, types.FunctionType):
            return self._function(value, depth)
        if isinstance(value, types.MethodType):
            return ["method", self.describe(value.__func__, depth + 1), self.describe(value.__self__, depth + 1)]
        if isinstance(value, functools.partial):
            return ["partial", *(self.describe(v, depth + 1) for v in (value.func, value.args, value.keywords))]
        kind = type(value)
        if not hasattr(value, "__dict__") or kind.__module__.partition(".")[0] in _VERSIONED:
            raise _NotUnderstood
        self._modules.add(kind.__module__)
        return ["object", kind.__module__, kind.__qualname__, self.describe(vars(value), depth + 1)]

    def _function(self, fn: types.FunctionType, depth: int) -> Any:
        inside = inspect.unwrap(fn)
        self._modules.add(inside.__module__)
        cells = [self.describe(c.cell_contents, depth + 1) for c in inside.__closure__ or ()]
        defaults = self.describe([inside.__defaults__, inside.__kwdefaults__], depth + 1)
        # Lambdas share a name; the DSL gives functions that it rewrites another first line.
        line = inside.__code__.co_firstlineno if inside.__name__ == "<lambda>" else 0
        return ["function", inside.__module__, inside.__qualname__, line, cells, defaults]

    def sources(self, fn: Any) -> list[Any]:
        """Every module that the described values can reach by name: path, digest, and values of its globals."""
        found: dict[str, Any] = {}
        waiting = [*self._modules, getattr(fn, "__module__", type(fn).__module__)]
        while waiting:
            name = waiting.pop()
            module = sys.modules.get(name)
            if name in found or module is None or not _is_source(name):
                continue
            file = getattr(module, "__file__", None)
            if not file:
                raise _NotUnderstood
            codes = [code for value in vars(module).values() for code in _codes(value, name)]
            read = {n for code in codes for n in code.co_names}
            found[name] = [file, _digest(file), self._globals(module, read)]
            waiting += [*_reached(module), *_imported(module, codes), *self._modules]
        return sorted(found.items())

    def _globals(self, module: types.ModuleType, read: set[str]) -> list[Any]:
        """Values of the globals that functions of this module read. What a script merely counts does not matter."""
        own = {n: vars(module)[n] for n in sorted(read & vars(module).keys())}
        values = {n: v for n, v in own.items() if not isinstance(v, _CODE)}
        if _is_library(module):  # constants all, some of them of kinds that describe() does not know
            values = {n: v for n, v in values.items() if _is_plain(v)}
        return [[n, self.describe(v)] for n, v in values.items()]


def _is_source(name: str) -> bool:
    top = name.partition(".")[0]
    return top not in _VERSIONED and (top not in sys.stdlib_module_names or top == "__main__")


def _digest(file: str) -> str:
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError:
        raise _NotUnderstood from None


def _codes(value: Any, module: str) -> Iterator[types.CodeType]:
    """The code of a function or class of this module, with all code nested in it."""
    value = inspect.unwrap(value) if isinstance(value, types.FunctionType) else value
    if isinstance(value, types.FunctionType) and value.__module__ == module:
        yield from _nested(value.__code__)
    elif isinstance(value, type) and value.__module__ == module:
        for member in vars(value).values():
            yield from _codes(getattr(member, "__func__", member), module)


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _nested(constant)


def _is_plain(value: Any) -> bool:
    return isinstance(value, _PLAIN) or (isinstance(value, tuple) and all(_is_plain(v) for v in value))


def _is_library(module: types.ModuleType) -> bool:
    """This package and what is installed: their globals are taken for constants."""
    ours = module.__name__.partition(".")[0] == __name__.partition(".")[0]
    return ours or not {"site-packages", "dist-packages"}.isdisjoint(Path(module.__file__ or "").parts)


def _imported(module: types.ModuleType, codes: list[types.CodeType]) -> Iterator[str]:
    """Modules that functions import when they run; relative names are the package's.

    Names of attributes do not count: one that is spelt like a module would make the key depend on what is loaded.
    """
    package = getattr(module, "__package__", None)
    for code in codes:
        for name in code.co_names:
            wanted = [full for full in (name, f"{package}.{name}") if full in sys.modules]
            if wanted and name in _imports(code):
                yield from wanted


@functools.lru_cache(maxsize=10_000)
def _imports(code: types.CodeType) -> set[str]:
    return {i.argval for i in dis.get_instructions(code) if i.opname in ("IMPORT_NAME", "IMPORT_FROM")}


def _reached(module: types.ModuleType) -> Iterator[str]:
    for key, value in list(vars(module).items()):
        name = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
        if isinstance(name, str) and not key.startswith("__"):
            yield name


# ------------------------------------------------------------------------------------------- reading and writing


def load(name: str, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> inner.Compiled | None:
    """The cached result for this call of the compiler, or None."""
    data = cache.read(name)
    if not data:
        return None
    try:
        head, _, body = data.partition(b"\n")
        facts = json.loads(head)
        sizes = facts.pop("sizes")
        parts = [body[sum(sizes[:i]) : sum(sizes[: i + 1])] for i in range(4)]
        if len(body) != sum(sizes):
            return None
    except (ValueError, KeyError, TypeError):
        return None
    ptx, cubin, mlir, image = parts
    execution = inner.rebuilt_execution_args(fn, facts["name"])
    return inner.completed(
        fn, args, kwargs, facts["name"], ptx.decode(), cubin, mlir.decode() or None, image, facts["ffi"], execution
    )


def store(name: str, compiled: inner.Compiled, fn: Any) -> None:
    """Keep a result, unless its way of packing arguments cannot be set up again from `fn` alone."""
    if not inner.can_be_rebuilt(compiled, fn):
        return
    parts = [compiled.ptx.encode(), compiled.cubin, (compiled.mlir or "").encode(), compiled.image]
    head = {"name": compiled.name, "ffi": compiled.ffi, "sizes": [len(p) for p in parts]}
    cache.write(name, json.dumps(head).encode() + b"\n" + b"".join(parts))
