"""Packed host code: kernels for extents that were symbols when they were compiled, so for any that come along.

Such an entry of a pack carries the compiler's own host part as a relocatable object. For extents that have not been
seen, that object is loaded (`frontends.objectcode`: no linker, no LLVM), asked what it would launch, and the answer is
kept as an ordinary entry; from then on a call costs what a packed entry's does. The object is native code for the
machine it was packed on, which the entry names; entries of fixed extents run anywhere.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from tensorladder.core.dlpack import View
from tensorladder.core.errors import UsageError
from tensorladder.core.program import Launch, LaunchRecorder, Module
from tensorladder.frontends import cutedsl_inner as inner
from tensorladder.frontends.cutedsl import PackedEntry
from tensorladder.frontends.cutedsl_inner import Dim, Extent, TensorSpec
from tensorladder.frontends.ptxparams import entry as head_of
from tensorladder.silicon import relocate
from tensorladder.silicon.pack import Array, Dynamic, Entry, Kernel, Pack

Extents = tuple[tuple[int, ...], ...]


def arguments(specs: Sequence[TensorSpec]) -> list[dict[str, Any]]:
    """What compiled host code demands of its arrays, as JSON: a number, or [bits, divisor, symbol or None] a dim."""
    symbols: dict[int, int] = {}

    def plain(dim: Dim) -> Any:
        if isinstance(dim, int):
            return dim
        number = None if dim.symbol is None else symbols.setdefault(dim.symbol, len(symbols))
        return [dim.bits, dim.divisor, number]

    def dims(found: Sequence[Dim]) -> list[Any]:
        return [plain(dim) for dim in found]

    return [
        {"dtype": one.dtype, "shape": dims(one.shape), "strides": dims(one.strides), "align": one.align}
        for one in specs
    ]


def specs(given: Sequence[Mapping[str, Any]]) -> list[TensorSpec]:
    """What `arguments` wrote down."""

    def dims(found: Sequence[Any]) -> tuple[Dim, ...]:
        return tuple(d if isinstance(d, int) else Extent(*d) for d in found)

    return [TensorSpec(a["dtype"], dims(a["shape"]), dims(a["strides"]), a["align"]) for a in given]


class DynamicKernel:
    """A dynamic entry of a pack: call it with a stream's handle and torch tensors of any extents that fit."""

    def __init__(self, pack: Pack, entry: Dynamic) -> None:
        self.entry = entry
        self._pack = pack
        self._specs = specs(entry.arguments)
        self._module = Module(entry.heads, entry.arch, pack.code(entry.code), entry.rung)
        self._host: PackedEntry | None = None
        self._kernels: dict[Any, Kernel] = {}
        self._lock = threading.Lock()

    def __call__(self, stream: int, *tensors: Any) -> None:
        """Launch. UsageError where an array is not what the kernel was compiled for."""
        key = tuple((tensor.shape, tensor.stride()) for tensor in tensors)
        kernel = self._kernels.get(key)
        if kernel is None:
            shapes, strides = (tuple(tuple(part[which]) for part in key) for which in range(2))
            with self._lock:
                kernel = self._kernels.setdefault(key, self._pack.kernel(self.instantiate(shapes, strides)))
        kernel(stream, *tensors)

    def instantiate(self, shapes: Extents, strides: Extents) -> Entry:
        """The entry for arrays of these extents and strides (in elements). UsageError where they do not fit."""
        given = self.entry
        if len(shapes) != len(self._specs):
            raise UsageError(f"{given.rung}: {len(shapes)} arrays given, it takes {', '.join(given.names)}")
        arrays = tuple(
            Array(name, shape, steps, spec.dtype, name in given.outputs)
            for name, shape, steps, spec in zip(given.names, shapes, strides, self._specs)
        )
        digests = {id(self._module): given.code}
        launches = relocate.templates(given.rung, self._launches, arrays, self._about, digests)
        return Entry(
            given.rung, given.arch, shapes[0], given.dtype, given.config, given.source, arrays, launches
        )

    def _about(self, launch: Launch) -> Any:
        return head_of(self._module.ptx, launch.kernel).params, self.entry.unread[launch.kernel]

    def _launches(self, views: list[View]) -> list[Launch]:
        if self._host is None:
            self._host = PackedEntry(self.entry.function, self._pack.host(self.entry.host), self._module, llvm=False)
        symbols: dict[int, int] = {}
        for name, view, spec in zip(self.entry.names, views, self._specs):
            inner.check(name, view, spec, symbols)
        packed = [inner.TensorArgument(view, spec) for view, spec in zip(views, self._specs)]
        recorder = LaunchRecorder()
        self._host(recorder, [address for argument in packed for address in argument.__c_pointers__()])
        return recorder.launches
