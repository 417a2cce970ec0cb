"""What stand-ins for Python packages that call the driver from native code share (CuPy, cuda.core).

The packages themselves cannot run on the virtual GPU: below their Python names is compiled code. A stand-in has the
names that scripts with kernels of their own use; any other is refused by name. It is imported in place of the package,
which may be installed or not, while `provided` lasts.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import spec_from_loader
from types import ModuleType
from typing import Any

import numpy as np

from ..core.program import Module
from ..vgpu.driver.bindings import Events, Memory
from ..vgpu.driver.modules import DriverError, Modules
from ..vgpu.driver.session import Session
from . import nvrtc

__all__ = ["DriverError", "Facade", "Host", "Refusing", "extents", "piece_of", "provided", "translated"]


class Host:
    """What stands behind a stand-in's names: memory, events, modules and functions of a session."""

    def __init__(self, session: Session):
        self.session = session
        self.memory, self.events, self.modules = Memory(session), Events(session), Modules(session)

    def compile(
        self, source: str, name: str, options: Sequence[str], expressions: Sequence[str] = (), arch: str = ""
    ) -> tuple[Module, dict[str, str]]:
        """CUDA C++ by NVRTC, for the session's architecture unless another is named: the module, and the names in it of
        `expressions`."""
        made, names = nvrtc.compile_named(source, arch or self.session.arch.name, options, name, None, expressions)
        if made.cubin is not None:
            self.modules.remember(made.cubin, made.ptx)
        return made, names

    def load(self, module: Module) -> int:
        """A handle for what was compiled."""
        return self.modules.load(module.cubin if module.cubin is not None else module.ptx.encode())

    def launch(
        self, function: int, grid: Any, block: Any, args: Sequence[Any], smem: int = 0, cluster: Any = (1, 1, 1),
        cooperative: bool = False, stream: int | None = None,
    ) -> None:  # fmt: skip
        """Launch a function; grid, block and cluster have one to three extents; stream: a handle, the current one."""
        x, y, z = extents(cluster)
        attributes = {"cooperative": True} if cooperative else {}
        pieces = [piece_of(arg) for arg in args]
        on = self.session.streams.current if stream is None else stream
        sizes = [*extents(grid), *extents(block)]
        self.modules.start(function, sizes, int(smem), (x, y, z), attributes, pieces, stream=on)


def extents(given: Any) -> tuple[int, int, int]:
    """One to three extents, or a number, as three."""
    numbers = [int(n) for n in (given if isinstance(given, tuple | list) else (given,))]
    return tuple([*numbers, 1, 1, 1][:3])  # type: ignore[return-value]


def piece_of(arg: Any) -> bytes:
    """A kernel argument's bytes: a Python int has 8, a float is a double; TypeError for what is no argument."""
    if isinstance(arg, bool | np.bool_):
        return bytes([bool(arg)])
    if isinstance(arg, int):
        return (arg & (1 << 64) - 1).to_bytes(8, "little")
    if isinstance(arg, float):
        return np.float64(arg).tobytes()
    if isinstance(arg, complex):
        return np.complex128(arg).tobytes()
    if isinstance(arg, np.generic):
        return arg.tobytes()
    if isinstance(arg, ctypes._SimpleCData | ctypes.Structure | ctypes.Array):
        return bytes(arg)
    raise TypeError(f"unsupported kernel argument of type {type(arg).__name__}")


class Refusing:
    """An object with `_session` and `_label`: attributes that it lacks are refused by name."""

    _session: Session
    _label = ""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        self._session.refuse(f"{self._label or type(self).__name__}.{name}")


class Facade(ModuleType):
    """A module with the names it is given; others are refused by name."""

    def __init__(self, name: str, session: Session, names: Mapping[str, Any]):
        super().__init__(name, f"{name}, as far as scripts with kernels of their own use it, on the virtual GPU")
        self.__dict__.update(names)
        self.__dict__["_session"] = session

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        self._session.refuse(f"{self.__name__}.{name}")


@dataclass
class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives the stand-ins' modules to `import`, and refuses the other modules of those packages."""

    session: Session
    modules: Mapping[str, ModuleType]
    packages: Sequence[str]

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name in self.modules:
            return spec_from_loader(name, self, is_package=True)
        if any(name.startswith(f"{package}.") for package in self.packages):
            self.session.refuse(f"module {name}")
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return self.modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        """Its names are there already."""


@contextlib.contextmanager
def translated(kind: type[Exception]) -> Iterator[None]:
    """What the driver would answer, as the package's own kind of error."""
    try:
        yield
    except DriverError as error:
        raise kind(str(error)) from None


@contextlib.contextmanager
def provided(session: Session, modules: Mapping[str, ModuleType], *packages: str) -> Iterator[None]:
    """While this lasts, importing one of `packages` gives the modules; what was imported before comes back after."""

    def ours(name: str) -> bool:
        return any(name == package or name.startswith(f"{package}.") for package in packages)

    before = {name: sys.modules.pop(name) for name in list(sys.modules) if ours(name)}
    parents = [(sys.modules.get(p.rpartition(".")[0]), p.rpartition(".")[2]) for p in packages if "." in p]
    held = [(parent, name, parent.__dict__.pop(name)) for parent, name in parents
            if parent is not None and name in parent.__dict__]  # fmt: skip
    finder = _Finder(session, modules, packages)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if ours(name)]:
            del sys.modules[name]
        for package in packages:
            above, _, name = package.rpartition(".")
            if above in sys.modules:
                sys.modules[above].__dict__.pop(name, None)
        sys.modules.update(before)
        for parent, name, module in held:
            setattr(parent, name, module)
