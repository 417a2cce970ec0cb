"""CuTe DSL front end: a `@cute.jit` function in, a `Program` out, for any architecture and with no GPU.

    program = compile_program(vector_add, a, b, c, arch="sm_90a")
    program(stream, a, b, c)            # the DSL's own host code runs here and enqueues its launches
    program.launches(a, b, c)           # or only look at them

Arguments are those of `cute.compile`: fake tensors with symbolic extents, DLPack tensors of the DSL, Constexpr
values, streams; numpy arrays and torch tensors too, which become tensors with a dynamic layout, as the DSL does at a
call. At run time arrays are given directly (or as DSL tensors), Constexpr arguments are left out, and so may be
streams: launches go to the stream that the program is called with.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from ..core import dlpack
from ..core.arch import find
from ..core.errors import TensorladderError, UsageError
from ..core.program import Module, Program, Stream
from . import cutedsl_cache
from . import cutedsl_inner as inner
from .hostcode import HostCode, packed

_KEEP_MLIR: ContextVar[bool] = ContextVar("keep_mlir", default=False)
_LINES: ContextVar[bool] = ContextVar("lines", default=True)
_OURS = ("--gpu-arch", "--dump-dir", "--keep-ptx", "--keep-cubin")


@contextmanager
def keeping_mlir() -> Iterator[None]:
    """Programs compiled inside keep their MLIR, whoever calls the compiler (a rung's `compile` does not ask for it)."""
    token = _KEEP_MLIR.set(True)
    try:
        yield
    finally:
        _KEEP_MLIR.reset(token)


@contextmanager
def without_lines() -> Iterator[None]:
    """Programs compiled inside carry no source lines: their machine code is a quarter of the size."""
    token = _LINES.set(False)
    try:
        yield
    finally:
        _LINES.reset(token)


def compile_program(
    fn: Any,
    *args: Any,
    arch: str,
    name: str | None = None,
    options: str = "",
    keep_mlir: bool = False,
    **kwargs: Any,
) -> Program:
    """Compile a `@cute.jit` function (or an object with a jitted `__call__`) for `arch`, e.g. "sm_90a".

    options: further options of `cute.compile`, e.g. "--enable-tvm-ffi --opt-level 2". keep_mlir: fill `Program.mlir`
    with the DSL's MLIR before lowering. The PTX carries `.loc` lines (but `without_lines`), the cubin belongs to it.
    UsageError for what the DSL refuses, MissingExtra without it.
    """
    arch = find(arch).name
    if any(word in options.split() for word in _OURS):
        raise UsageError(f"options {options!r}: {', '.join(_OURS)} are set by the front end, from arch=")
    inner.load()
    args = tuple(_as_tensor(a) for a in args)
    kwargs = {key: _as_tensor(a) for key, a in kwargs.items()}
    start = time.perf_counter()
    compiled = _compiled(fn, args, kwargs, arch, options, keep_mlir or _KEEP_MLIR.get())
    return _program(compiled, arch, name or inner.function_name(fn), time.perf_counter() - start)


def _compiled(
    fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], arch: str, options: str, keep_mlir: bool
) -> inner.Compiled:
    """From the disk cache, or compiled and kept there."""
    lines = _LINES.get()
    cached = cutedsl_cache.key(fn, args, kwargs, arch, options, keep_mlir, lines)
    found = cutedsl_cache.load(cached, fn, args, kwargs) if cached else None
    if found is not None:
        return found
    compiled = inner.compile_function(fn, args, kwargs, arch, options, keep_mlir, lines)
    if cached:
        cutedsl_cache.store(cached, compiled, fn)
    return compiled


def _as_tensor(arg: Any) -> Any:
    """Plain arrays as DSL tensors in global memory with a dynamic layout; everything else as it is."""
    if type(arg).__name__ in ("_Tensor", "_FakeTensor") or not hasattr(arg, "__dlpack__"):
        return arg
    from cutlass.cute.runtime import from_dlpack

    seen = dlpack.view(arg)
    tensor = from_dlpack(inner.on_cuda(seen))
    return tensor.mark_layout_dynamic() if seen.shape else tensor


def _program(compiled: inner.Compiled, arch: str, name: str, seconds: float) -> Program:
    module = Module(compiled.ptx, arch, compiled.cubin, name)
    host = (_FfiHost if compiled.ffi else _PackedHost)(compiled, module)
    return Program(name, arch, (module,), host, seconds, compiled.mlir)


class PackedEntry:
    """Native entry of an ordinary compiled function: `_mlir__mlir_ciface_NAME`, which takes argument addresses."""

    def __init__(self, name: str, image: bytes, module: Module, llvm: bool = True):
        self._label = inner.short_name(name)
        self._code = HostCode(image, module, self._label, llvm=llvm)
        self._entry = self._code.function(f"_mlir__mlir_ciface_{name}")
        if self._code.address("_mlir_cuda_init"):  # absent where the function launches nothing
            self._code.call(None, self._load)

    def _load(self) -> None:
        """What the DSL does before a first call: register the library, then fetch its kernels for device 0."""
        library, error, device = ctypes.c_void_p(), ctypes.c_int32(), ctypes.c_int32()
        to_library = ctypes.pointer(library)
        to_to_library = ctypes.pointer(to_library)
        at = ctypes.addressof
        self._code.function("_mlir_cuda_init")(packed(at(to_to_library), at(error)))
        if not error.value:
            arguments = packed(at(to_to_library), at(device), at(error))
            self._code.function("_mlir_cuda_load_to_device")(arguments)
        self._check(error.value)

    def _check(self, code: int) -> None:
        if code:
            raise UsageError(f"{self._label}: its host code returned CUDA error {code}")

    def __call__(self, stream: Stream, addresses: list[int]) -> None:
        """Enqueue the launches for arguments at these addresses."""
        result = ctypes.c_int32()
        self._code.call(stream, lambda: self._entry(packed(*addresses, ctypes.addressof(result))))
        self._check(result.value)


class FfiEntry:
    """Native entry of a function compiled with --enable-tvm-ffi: `__tvm_ffi_NAME`, called through tvm_ffi."""

    def __init__(self, name: str, image: bytes, module: Module):
        import tvm_ffi
        import tvm_ffi.libinfo as libinfo

        self._label = inner.short_name(name)
        library = ctypes.CDLL(libinfo.find_libtvm_ffi())
        self._code = HostCode(image, module, self._label, (library,))
        address = self._code.address(f"__tvm_ffi_{name}")
        self._function = tvm_ffi.Function.__from_extern_c__(address, keep_alive_object=self._code)

    def __call__(self, stream: Stream, values: list[Any]) -> None:
        """Enqueue the launches for these values (tensors that claim CUDA, numbers). UsageError for what it refuses."""
        try:
            self._code.call(stream, lambda: self._function(*values))
        except TensorladderError:
            raise
        except Exception as error:
            raise UsageError(f"{self._label}: {inner.one_line(error)}") from error


class _PackedHost:
    """A program's host part over `PackedEntry`: runtime arguments are checked and packed first."""

    def __init__(self, compiled: inner.Compiled, module: Module):
        self._compiled = compiled
        self._entry = PackedEntry(compiled.name, compiled.image, module)

    def __call__(self, stream: Stream, *args: Any, **kwargs: Any) -> None:
        from cuda.bindings.driver import CUstream  # what the DSL packs; its value is never looked at

        values = inner.bind_arguments(self._compiled, args, kwargs, CUstream(0))
        addresses, _alive = inner.argument_addresses(self._compiled, values)
        self._entry(stream, addresses)


def host_part(program: Program) -> inner.Compiled | None:
    """The compiled host part, where it takes arrays alone and learns some of their extents at a call; else None.

    Some of its arguments may be ABSENT: None at compile time.
    """
    host = program.host
    if not isinstance(host, _PackedHost) or len(program.modules) != 1:
        return None
    compiled = host._compiled
    demands = [compiled.specs.get(name) for name in compiled.names]
    found = [spec for spec in demands if spec != inner.ABSENT]
    if not all(isinstance(spec, inner.TensorSpec) for spec in found):
        return None
    symbolic = any(isinstance(dim, inner.Extent) for spec in found for dim in spec.shape)  # type: ignore[union-attr]
    return compiled if symbolic else None


class _FfiHost:
    """A program's host part over `FfiEntry`."""

    def __init__(self, compiled: inner.Compiled, module: Module):
        self._compiled = compiled
        self._entry = FfiEntry(compiled.name, compiled.image, module)

    def __call__(self, stream: Stream, *args: Any, **kwargs: Any) -> None:
        values = inner.bind_arguments(self._compiled, args, kwargs, ctypes.c_void_p(0))
        given = [v for n, v in zip(self._compiled.names, values) if self._compiled.specs.get(n) != "env"]
        self._entry(stream, given)
