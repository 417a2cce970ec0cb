"""CuTe DSL inside an unmodified script: its compiled functions launch on a session of the virtual GPU.

The DSL compiles as it does on a GPU machine (the architecture is set in its environment record); only the last step
is replaced, where a compiled function would load its cubin into the driver. `cutedsl_hook` is the hook for
`vgpu.driver.run_script`. Which inner parts of the DSL are replaced is one table, `cutedsl_inner.exec_points`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import tempfile
import time
import warnings
from collections.abc import Iterator
from typing import Any

from ..core import dlpack
from ..core.arch import find
from ..core.errors import CooperativeTooLarge, Unsupported
from ..core.program import Module
from ..vgpu.driver.session import TIMES_NOTE, Session
from . import cutedsl_inner as inner
from .cutedsl import FfiEntry, PackedEntry


@contextlib.contextmanager
def cutedsl_hook(session: Session) -> Iterator[None]:
    """While this lasts, functions compiled by CuTe DSL run on `session`. Without the DSL installed: nothing."""
    arch = session.arch.name
    os.environ.setdefault("CUTE_DSL_ARCH", arch)
    try:
        cutlass = inner.load()
    except Exception as error:
        session.note(f"CuTe DSL is not available here: {error}")
        yield
        return
    for kind in session.tensor_types:
        inner.accept_as_tensor(kind)
    warnings.filterwarnings("ignore", message="Cache is disabled as user wants to generate")  # because PTX is kept
    with tempfile.TemporaryDirectory(prefix="tensorladder-") as folder:
        settings = {"arch": arch, "keep_ptx": True, "keep_cubin": True, "lineinfo": True, "dump_dir": folder}
        with inner.environment(cutlass, settings), _replaced(_replacements(session)):
            yield


@contextlib.contextmanager
def _replaced(points: list[tuple[Any, str, Any]]) -> Iterator[None]:
    before = [(owner, name, owner.__dict__[name]) for owner, name, _ in points]
    for owner, name, new in points:
        setattr(owner, name, new)
    try:
        yield
    finally:
        for owner, name, old in before:
            setattr(owner, name, old)


def _replacements(session: Session) -> list[tuple[Any, str, Any]]:
    points = inner.exec_points()
    original_init = points["tensor_init"][0].__dict__["__init__"]
    new = {
        "to": lambda compiled, device=None: _Executor(session, compiled),
        "create_ffi": lambda compiled: _ffi_function(session, compiled),
        "tensor_init": lambda self, tensor, *args, **kwargs: original_init(self, _on_device(tensor), *args, **kwargs),
        "benchmark": lambda fn, **kwargs: _benchmark(session, fn, **kwargs),
        "cute_benchmark": lambda fn, **kwargs: _benchmark(session, fn, **kwargs),
        "autotune": lambda fn, *args, **kwargs: _autotune(session, fn, *args, **kwargs),
        "hardware_init": lambda self, device_id=0: None,
        "hardware_clusters": lambda self, cluster_size, *_, **__: session.arch.sm_count // cluster_size,
        "hardware_l2": lambda self: 50 << 20,
        "hardware_sms": lambda self: session.arch.sm_count,
    }
    return [(owner, name, new[key]) for key, (owner, name) in points.items()]


def _on_device(tensor: Any) -> Any:
    """A tensor that says it is CUDA's, exported so that the DSL puts it into global memory."""
    if not getattr(tensor, "is_cuda", False):
        return tensor
    return inner.on_cuda(dlpack.view(tensor))


def _module(session: Session, compiled: Any) -> Module:
    if not compiled.has_gpu_module:
        return Module("", session.arch.name, None, compiled.function_name)
    if not isinstance(compiled.__ptx__, str) or not isinstance(compiled.__cubin__, bytes):
        raise Unsupported(
            f"{inner.short_name(compiled.function_name)}: compiled before the virtual GPU was attached: no PTX was kept"
        )
    target = compiled.__ptx__.partition(".target ")[2].split()[0].rstrip(",")
    return Module(compiled.__ptx__, find(target).name, compiled.__cubin__, compiled.function_name)


class _Executor:
    """Stands where the DSL's executor on a device would: packed argument addresses in, launches out."""

    def __init__(self, session: Session, compiled: Any):
        self._session = session
        self._arguments = compiled.execution_args
        self._entry = PackedEntry(compiled.function_name, inner.host_object(compiled), _module(session, compiled))

    def run_compiled_program(self, addresses: list[Any]) -> int:
        plain = inner.plain_addresses(addresses)
        try:
            self._session.run(lambda stream: self._entry(stream, plain))
        except CooperativeTooLarge as error:  # scripts try it out
            raise inner.cooperative_too_large() from error
        return 0

    def generate_execution_args(self, *args: Any, **kwargs: Any) -> Any:
        return self._arguments.generate_execution_args(args, kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> int:
        addresses, _alive = self.generate_execution_args(*args, **kwargs)
        return self.run_compiled_program(addresses)


def _ffi_function(session: Session, compiled: Any) -> Any:
    """A tvm_ffi.Function that claims its tensors for CUDA and launches on the session."""
    import tvm_ffi

    entry = FfiEntry(compiled.function_name, inner.host_object(compiled), _module(session, compiled))

    def call(*args: Any) -> Any:
        values = [_claimed(a) for a in args]
        current = session.streams.current  # what the library takes for the stream of its environment
        around = tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", 0), current) if current else contextlib.nullcontext()
        with around:
            return session.run(lambda stream: entry(stream, values))

    return tvm_ffi.convert(call)


def _claimed(arg: Any) -> Any:
    """An argument as it would come from a GPU's arrays: tensors, also in tuples, lie on the device."""
    import tvm_ffi

    if isinstance(arg, tuple | list | tvm_ffi.Array):
        return tuple(_claimed(item) for item in arg)
    if not isinstance(arg, tvm_ffi.Tensor):
        if type(arg).__name__ in ("CUstream", "cudaStream_t", "VirtualStream"):
            return ctypes.c_void_p(int(getattr(arg, "cuda_stream", arg)))
        return arg
    return tvm_ffi.from_dlpack(inner.on_cuda(dlpack.view(arg)))


def _benchmark(session: Session, fn: Any, **kwargs: Any) -> float:
    """Stands for cutlass.testing.benchmark: one call, its wall time in microseconds."""
    session.note(TIMES_NOTE)
    generator = kwargs.get("workspace_generator")
    with session.holding():  # a workspace may be tables of addresses, of tensors that only the generator held
        arguments = generator() if generator else kwargs["kernel_arguments"]
        start = time.perf_counter()
        fn(*arguments.args, **arguments.kwargs)
        return (time.perf_counter() - start) * 1e6


_AUTOTUNE_OPTIONS = ("warmup_iterations", "iterations", "use_cold_l2", "print_verbose", "current_stream")


def _autotune(session: Session, fn: Any, *args: Any, **kwargs: Any) -> float:
    """Stands for the autotuner's benchmark: one call, its wall time in microseconds. It tunes for the emulation."""
    session.note(TIMES_NOTE)
    start = time.perf_counter()
    fn(*args, **{k: v for k, v in kwargs.items() if k not in _AUTOTUNE_OPTIONS})
    return (time.perf_counter() - start) * 1e6
