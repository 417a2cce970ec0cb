"""Packed host code: kernels for extents that were symbols when they were compiled, so for any that come along.

Such an entry of a pack carries the compiler's own host part as a relocatable object. For extents that have not been
seen, that object is loaded (`frontends.objectcode`: no linker, no LLVM), asked what it would launch, and the answer is
kept as an ordinary entry; from then on a call costs what a packed entry's does. The object is native code for the
machine it was packed on, which the entry names; entries of fixed extents run anywhere.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from tensorladder.core import dlpack
from tensorladder.core.errors import UsageError
from tensorladder.core.program import Launch, Module, Program, Stream
from tensorladder.frontends import cutedsl_inner as inner
from tensorladder.frontends import ptxparams
from tensorladder.frontends.cutedsl import PackedEntry
from tensorladder.frontends.cutedsl_inner import Dim, Extent, TensorSpec
from tensorladder.silicon import relocate
from tensorladder.silicon.pack import Array, Dynamic, Entry, Kernel, Pack, Template, digest

Extents = tuple[tuple[int, ...], ...]
_digest = functools.lru_cache(maxsize=64)(digest)


def digest_of(module: Module) -> str:
    """Of its machine code, which is asked for with every new extent."""
    return _digest(module.cubin or b"")


def arguments(specs: Sequence[TensorSpec | None]) -> list[dict[str, Any] | None]:
    """What compiled host code demands of its arrays, as JSON: a number, or [bits, divisor, symbol or None] a dim.

    None for an argument that is absent.
    """
    symbols: dict[int, int] = {}

    def plain(dim: Dim) -> Any:
        if isinstance(dim, int):
            return dim
        number = None if dim.symbol is None else symbols.setdefault(dim.symbol, len(symbols))
        return [dim.bits, dim.divisor, number]

    def dims(found: Sequence[Dim]) -> list[Any]:
        return [plain(dim) for dim in found]

    return [
        None if one is None else
        {"dtype": one.dtype, "shape": dims(one.shape), "strides": dims(one.strides), "align": one.align}
        for one in specs
    ]  # fmt: skip


def specs(given: Sequence[Mapping[str, Any] | None]) -> list[TensorSpec | None]:
    """What `arguments` wrote down."""

    def dims(found: Sequence[Any]) -> tuple[Dim, ...]:
        return tuple(d if isinstance(d, int) else Extent(*d) for d in found)

    return [
        None if a is None else TensorSpec(a["dtype"], dims(a["shape"]), dims(a["strides"]), a["align"]) for a in given
    ]


def templates(
    program: Program,
    arrays: Sequence[Array | None],
    unread: Mapping[str, Any] | None = None,
    low: Sequence[int] = (),
) -> tuple[Template, ...]:
    """What a program launches for arrays of these extents and strides, wherever they lie.

    unread: for each kernel, which parts of its parameters it does not read; None where the program's PTX shows it. low:
    each address's last bits, where they are not zero. UsageError where the arrays do not fit.
    """

    def about(launch: Launch) -> Any:
        ptx, kernel = launch.module.ptx, launch.kernel
        return ptxparams.entry(ptx, kernel).params, ptxparams.unread(ptx, kernel) if unread is None else unread[kernel]

    digests = {id(one): digest_of(one) for one in program.modules}
    return relocate.templates(program.name, lambda views: program.launches(*views), arrays, about, digests, low)


def program(pack: Pack, entry: Dynamic) -> Program:
    """A dynamic entry as a program: the compiler's own host part, loaded when it is first called.

    It takes the entry's arrays in order, None where one is absent. UsageError where one is not what was compiled for.
    """
    module = Module(entry.heads, entry.arch, pack.code(entry.code), entry.rung)
    demands = specs(entry.arguments)
    load = functools.cache(lambda: PackedEntry(entry.function, pack.host(entry.host), module, llvm=False))

    def host(stream: Stream, *arrays: Any) -> None:
        if len(arrays) != len(demands):
            raise UsageError(f"{entry.rung}: {len(arrays)} arrays given, it takes {', '.join(entry.names)}")
        symbols: dict[int, int] = {}
        packed = []
        for name, array, demand in zip(entry.names, arrays, demands):
            if (array is None) != (demand is None):
                raise UsageError(f"{entry.rung}: {name}: compiled for {'none' if demand is None else demand}")
            if demand is not None:
                seen = dlpack.view(array)
                inner.check(name, seen, demand, symbols)
                packed.append(inner.TensorArgument(seen, demand))
        load()(stream, [address for argument in packed for address in argument.__c_pointers__()])

    return Program(entry.rung, entry.arch, (module,), host)


class DynamicKernel:
    """A dynamic entry of a pack: call it with a stream's handle and torch tensors of any extents that fit."""

    def __init__(self, pack: Pack, entry: Dynamic) -> None:
        self.entry = entry
        self._pack = pack
        self._program = program(pack, entry)
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
        if len(shapes) != len(given.arguments):
            raise UsageError(f"{given.rung}: {len(shapes)} arrays given, it takes {', '.join(given.names)}")
        arrays = tuple(
            Array(name, shape, steps, demand["dtype"], name in given.outputs)
            for name, shape, steps, demand in zip(given.names, shapes, strides, given.arguments)
            if demand is not None
        )
        launches = templates(self._program, arrays, given.unread)
        return Entry(given.rung, given.arch, shapes[0], given.dtype, given.config, given.source, arrays, launches)
