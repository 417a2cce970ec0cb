"""CuPy in an unmodified script: raw kernels of CUDA C++ and of PTX on a session's virtual GPU, with the arrays around.

RawKernel and RawModule compile through NVRTC, and run as everything else does here; arrays and what numpy knows to do
with them are `cupy_arrays`. Elementwise and reduction kernels, fusion, cupyx and CuPy's libraries are refused by name.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..core.devicefacts import device_attribute
from ..core.errors import UsageError
from ..core.program import Module
from ..vgpu.driver.session import DEVICE_MEMORY, Session
from ..vgpu.driver.streams import LEGACY, PER_THREAD
from .cupy_arrays import FUNCTIONS, Arrays, DeviceArray, MemoryPointer, UnownedMemory, random_functions
from .standins import Facade, Host, Refusing, provided, translated

_VERSION = 13000
#: of Device.attributes, by CUdevice_attribute
_ATTRIBUTES = {
    "MaxThreadsPerBlock": 1, "MaxBlockDimX": 2, "MaxBlockDimY": 3, "MaxBlockDimZ": 4, "MaxGridDimX": 5,
    "MaxGridDimY": 6, "MaxGridDimZ": 7, "MaxSharedMemoryPerBlock": 8, "WarpSize": 10, "MaxRegistersPerBlock": 12,
    "ClockRate": 13, "MultiProcessorCount": 16, "L2CacheSize": 38, "MaxThreadsPerMultiProcessor": 39,
    "ComputeCapabilityMajor": 75, "ComputeCapabilityMinor": 76, "MaxSharedMemoryPerMultiprocessor": 81,
    "MaxRegistersPerMultiprocessor": 82, "CooperativeLaunch": 95, "MaxSharedMemoryPerBlockOptin": 97,
}  # fmt: skip
_PROPERTIES = {
    "major": 75, "minor": 76, "multiProcessorCount": 16, "warpSize": 10, "maxThreadsPerBlock": 1,
    "sharedMemPerBlock": 8, "regsPerBlock": 12, "maxThreadsPerMultiProcessor": 39, "l2CacheSize": 38,
    "sharedMemPerMultiprocessor": 81, "sharedMemPerBlockOptin": 97, "regsPerMultiprocessor": 82,
}  # fmt: skip
_OF_FUNCTION = {"max_threads_per_block": 0, "shared_size_bytes": 1, "num_regs": 4, "max_dynamic_shared_size_bytes": 8}
_DTYPES = ("bool_", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32",
           "float64", "complex64", "complex128", "intc", "intp", "uintp")  # fmt: skip
_CONSTANTS = ("pi", "e", "inf", "nan", "newaxis", "dtype", "finfo", "iinfo", "result_type", "can_cast", "promote_types")


class CUDADriverError(RuntimeError):
    """The name of a CUresult."""


class Function(Refusing):
    """A kernel: called with grid, block and arguments."""

    _label = "cupy.RawKernel"

    def __init__(self, host: Host, find: Callable[[], int], name: str, cooperative: bool = False):
        self._session, self._host, self._find, self.name = host.session, host, find, name
        self._cooperative = cooperative
        self._handle: int | None = None

    @property
    def kernel(self) -> int:
        """The function's handle; compiles at the first use."""
        if self._handle is None:
            with translated(CUDADriverError):
                self._handle = self._find()
        return self._handle

    def compile(self, log_stream: Any = None) -> None:
        """Compile now and not at the first call."""
        _ = self.kernel

    def __call__(self, grid: Any, block: Any, args: Sequence[Any] = (), *, shared_mem: int = 0, stream: Any = None,
                 **others: Any) -> None:  # fmt: skip
        for name in others:
            self._session.refuse(f"cupy.RawKernel(..., {name}=...)")
        with translated(CUDADriverError):
            self._host.launch(self.kernel, grid, block, [_argument(arg) for arg in args], shared_mem,
                              cooperative=self._cooperative, stream=None if stream is None else stream.ptr)  # fmt: skip

    @property
    def attributes(self) -> dict[str, int]:
        """What of CuPy's table is known here."""
        with translated(CUDADriverError):
            return {name: self._host.modules.attribute(n, self.kernel) for name, n in _OF_FUNCTION.items()}

    @property
    def max_dynamic_shared_size_bytes(self) -> int:
        return self.attributes["max_dynamic_shared_size_bytes"]

    @max_dynamic_shared_size_bytes.setter
    def max_dynamic_shared_size_bytes(self, size: int) -> None:
        with translated(CUDADriverError):
            self._host.modules.set_attribute(self.kernel, _OF_FUNCTION["max_dynamic_shared_size_bytes"], int(size))

    @property
    def num_regs(self) -> int:
        return self.attributes["num_regs"]

    @property
    def shared_size_bytes(self) -> int:
        return self.attributes["shared_size_bytes"]


def _argument(arg: Any) -> Any:
    """A kernel argument: arrays and pointers by address, what else there is as `standins.piece_of` takes it."""
    if isinstance(arg, DeviceArray):
        return arg.data.ptr
    if isinstance(arg, MemoryPointer):
        return arg.ptr
    if isinstance(arg, np.ndarray):  # by value: a structure
        return (ctypes.c_char * arg.nbytes).from_buffer_copy(arg.tobytes())
    return arg


class RawModule(Refusing):
    """CUDA C++ text, or a file of PTX."""

    _label = "cupy.RawModule"

    def __init__(self, host: Host, code: str | None = None, *, path: str | None = None, options: Sequence[str] = (),
                 backend: str = "nvrtc", translate_cucomplex: bool = False, enable_cooperative_groups: bool = False,
                 name_expressions: Sequence[str] | None = None, jitify: bool = False):  # fmt: skip
        self._session, self._host = host.session, host
        if (code is None) == (path is None):
            raise TypeError("Exactly one of `code` and `path` keyword arguments must be given.")
        for asked, what in ((backend != "nvrtc", f"backend={backend!r}"), (jitify, "jitify=True"),
                            (translate_cucomplex, "translate_cucomplex=True")):  # fmt: skip
            if asked:
                host.session.refuse(f"cupy.RawModule({what})")
        self.code, self.file_path, self.options = code, path, tuple(options)
        self.enable_cooperative_groups = enable_cooperative_groups
        self.name_expressions = tuple(name_expressions or ())
        self._made: tuple[int, dict[str, str]] | None = None

    def _module(self) -> tuple[int, dict[str, str]]:
        """The module's handle, and the names in it; compiled at the first use."""
        if self._made is None:
            if self.file_path is not None:
                try:
                    text = Path(self.file_path).read_bytes()
                except OSError as error:
                    raise UsageError(f"cupy.RawModule(path={self.file_path!r}): {error.strerror}") from None
                self._made = self._host.modules.load(text), {}
            else:
                assert self.code is not None
                words = [word for word in self.options if not word.startswith(("-arch=", "--gpu-architecture="))]
                given = [word.partition("=")[2] for word in self.options if word not in words]
                arch = given[-1].replace("compute_", "sm_") if given else ""
                made, names = self._host.compile(self.code, "cupy.cu", words, self.name_expressions, arch)
                self._made = self._host.load(made), names
        return self._made

    def compile(self, log_stream: Any = None) -> None:
        """Compile now and not at the first use."""
        self._module()

    def get_function(self, name: str) -> Function:
        """A kernel, by its name or by one of the name expressions."""

        def find() -> int:
            module, names = self._module()
            return self._host.modules.function(module, names.get(name, name))

        found = Function(self._host, find, name, self.enable_cooperative_groups)
        found.compile()
        return found


class PtxModule(Refusing):
    """cupy.cuda.Module: PTX, loaded."""

    _label = "cupy.cuda.Module"

    def __init__(self, host: Host):
        self._session, self._host = host.session, host
        self._handle = 0

    def load(self, image: Any) -> None:
        text = image.encode() if isinstance(image, str) else bytes(image)
        self._handle = self._host.load(Module(text.rstrip(b"\0").decode(), self._session.arch.name))

    def load_file(self, path: Any) -> None:
        with translated(CUDADriverError):
            self._handle = self._host.modules.load_file(path)

    def get_function(self, name: str) -> Function:
        found = Function(self._host, lambda: self._host.modules.function(self._handle, name), name)
        found.compile()
        return found


class _Quiet(Refusing):
    """A device or pool that has nothing to do; fields: what it has."""

    def __init__(self, session: Session, label: str, **fields: Any):
        self._session, self._label = session, label
        self.id, self.device_id, self.ptr, self.done = 0, 0, 0, True
        self.__dict__.update(fields)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to leave."""

    def use(self) -> Any:
        return self

    def synchronize(self) -> None:
        self._session.streams.synchronize()

    def __int__(self) -> int:
        return 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Quiet) and self._label == other._label

    def __hash__(self) -> int:
        return hash(self._label)


class Event(Refusing):
    _label = "cupy.cuda.Event"

    def __init__(self, host: Host):
        self._session, self._host, self.done = host.session, host, True
        self.ptr = host.events.create()

    def record(self, stream: Any = None) -> None:
        self._host.events.record(self.ptr, self._session.streams.current if stream is None else stream.ptr)

    def synchronize(self) -> None:
        self._host.events.synchronize(self.ptr)


class _Stream(Refusing):
    _label = "cupy.cuda.Stream"

    def __init__(self, host: Host, handle: int):
        self._session, self._host, self.ptr = host.session, host, handle
        self.device_id, self.priority = 0, 0

    @property
    def done(self) -> bool:
        self.synchronize()
        return True

    def __enter__(self) -> Any:
        self._session.streams.enter(self.ptr)
        return self

    def __exit__(self, *_: object) -> None:
        self._session.streams.leave()

    def use(self) -> Any:
        self._session.streams.use(self.ptr)
        return self

    def synchronize(self) -> None:
        self._session.streams.synchronize(self.ptr)

    def record(self, event: Event | None = None) -> Event:
        event = event or Event(self._host)
        event.record(self)
        return event

    def wait_event(self, event: Any) -> None:
        self._host.events.wait(self.ptr, event.ptr)

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.ptr

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Stream) and self.ptr == other.ptr

    def __hash__(self) -> int:
        return hash(self.ptr)


def _device(session: Session, number: Any = None) -> Any:
    if number not in (None, 0) and not isinstance(number, _Quiet):
        raise CUDADriverError("CUDA_ERROR_INVALID_DEVICE")
    return _Quiet(
        session, "cupy.cuda.Device", compute_capability="".join(map(str, session.arch.compute_capability)),
        mem_info=(DEVICE_MEMORY, DEVICE_MEMORY),
        attributes={name: device_attribute(session.arch.name, n) for name, n in _ATTRIBUTES.items()},
    )  # fmt: skip


def _cuda(host: Host) -> dict[str, Facade]:
    """cupy.cuda and what is below it."""
    session = host.session
    null_stream, streams = _Stream(host, LEGACY), session.streams

    class Stream(_Stream):
        null, ptds = null_stream, _Stream(host, PER_THREAD)

        def __init__(self, null: bool = False, non_blocking: bool = False, ptds: bool = False, priority: Any = None):
            known = LEGACY if null else PER_THREAD if ptds else streams.create(not non_blocking)
            super().__init__(host, known)

    def current(*_: Any) -> _Stream:
        return _Stream(host, streams.current)

    class OurEvent(Event):
        def __init__(self, block: bool = True, disable_timing: bool = False, interprocess: bool = False):
            super().__init__(host)

    class OurModule(PtxModule):
        def __init__(self) -> None:
            super().__init__(host)

    def elapsed(start: Event, end: Event) -> float:
        return host.events.elapsed(start.ptr, end.ptr)

    def properties(_: int) -> dict[str, Any]:
        known: dict[str, Any] = {name: device_attribute(session.arch.name, n) for name, n in _PROPERTIES.items()}
        return known | {"name": f"tensorladder virtual GPU ({session.arch.name})".encode(),
                        "totalGlobalMem": DEVICE_MEMORY}  # fmt: skip

    runtime = Facade("cupy.cuda.runtime", session, {
        "getDevice": lambda: 0, "getDeviceCount": lambda: 1, "setDevice": lambda _: None,
        "deviceSynchronize": lambda: streams.synchronize(), "streamSynchronize": lambda s: streams.synchronize(int(s)),
        "getDeviceProperties": properties,
        "memGetInfo": lambda: (DEVICE_MEMORY, DEVICE_MEMORY), "runtimeGetVersion": lambda: _VERSION,
        "driverGetVersion": lambda: _VERSION, "is_hip": False, "CUDARuntimeError": CUDADriverError,
        "deviceGetAttribute": lambda number, _: device_attribute(session.arch.name, int(number)),
    })  # fmt: skip
    driver = Facade("cupy.cuda.driver", session, {"CUDADriverError": CUDADriverError})
    function = Facade("cupy.cuda.function", session, {"Module": OurModule, "Function": Function})
    names = {"Stream": Stream, "Event": OurEvent, "get_elapsed_time": elapsed, "Module": OurModule}
    below = Facade("cupy.cuda.stream", session, {**names, "get_current_stream": current})
    cuda = Facade("cupy.cuda", session, {
        **names, "Device": lambda device=None: _device(session, device), "runtime": runtime, "driver": driver,
        "function": function, "stream": below, "get_current_stream": current, "is_available": lambda: True,
        "MemoryPointer": MemoryPointer, "UnownedMemory": UnownedMemory,
        "MemoryPool": lambda *_: _pool(session), "set_allocator": lambda *_: None,
        "PinnedMemoryPool": lambda *_: _pool(session), "set_pinned_memory_allocator": lambda *_: None,
        "alloc_pinned_memory": lambda size: np.empty(size, np.uint8),
        "ExternalStream": lambda ptr, device_id=-1: _Stream(host, int(ptr)),
    })  # fmt: skip
    return {one.__name__: one for one in (cuda, runtime, driver, function, below)}


def _pool(session: Session) -> Any:
    """A memory pool: memory is freed when nobody holds it."""
    counts = dict.fromkeys(("used_bytes", "total_bytes", "free_bytes", "n_free_blocks"), lambda: 0)

    def malloc(*_: Any) -> None:
        session.refuse("cupy.cuda.MemoryPool.malloc")

    return _Quiet(session, "cupy.cuda.MemoryPool", free_all_blocks=lambda *_, **__: None, malloc=malloc, **counts)


def _library(name: str, arrays: Arrays) -> Facade:
    """cupy.linalg or cupy.fft: what numpy has under the name, on the host."""
    theirs = getattr(np, name)
    found = {one: arrays.function(getattr(theirs, one)) for one in theirs.__all__ if callable(getattr(theirs, one))}
    return Facade(f"cupy.{name}", arrays.session, found)


def _testing(arrays: Arrays) -> dict[str, Any]:
    """cupy.testing's comparisons."""
    names = ("assert_allclose", "assert_array_equal", "assert_array_almost_equal", "assert_array_less")

    def hosted(value: Any) -> Any:
        return value.get() if isinstance(value, DeviceArray) else value

    def compare(name: str) -> Callable[..., None]:
        return lambda a, b, *rest, **options: getattr(np.testing, name)(hosted(a), hosted(b), *rest, **options)

    return {name: compare(name) for name in names}


def _benchmark(host: Host) -> Callable[..., Any]:
    """cupyx.profiler.benchmark: wall times of a few calls, marked as the emulation's."""

    def benchmark(func: Any, args: Any = (), kwargs: Any = None, n_repeat: int = 1, *, name: str | None = None,
                  n_warmup: int = 0, **_: Any) -> Any:  # fmt: skip
        host.session.note("cupyx.profiler.benchmark: one call; times are the emulation's wall time, not a GPU's")
        start = time.perf_counter()
        func(*args, **(kwargs or {}))
        took = time.perf_counter() - start
        return _Quiet(host.session, "cupyx.profiler.benchmark", name=name or func.__name__,
                      cpu_times=np.array([took]), gpu_times=np.array([[took]]))  # fmt: skip

    return benchmark


@contextlib.contextmanager
def cupy_hook(session: Session) -> Iterator[None]:
    """While this lasts, `cupy` finds one device, the session's."""
    host, arrays = Host(session), Arrays(session)
    cuda = _cuda(host)

    class OurModule(RawModule):
        def __init__(self, code: str | None = None, **options: Any):
            super().__init__(host, code, **options)

    class RawKernel(Function):
        """One kernel of CUDA C++ text."""

        def __init__(self, code: str, name: str, options: Sequence[str] = (), **others: Any):
            module = OurModule(code, options=options, **others)
            self.code, self.options = code, tuple(options)
            super().__init__(host, lambda: host.modules.function(module._module()[0], name), name,
                             module.enable_cooperative_groups)  # fmt: skip

    for made in (OurModule, RawKernel):
        made.__module__ = "cupy"
    OurModule.__name__ = OurModule.__qualname__ = "RawModule"
    names: dict[str, Any] = {name: arrays.function(getattr(np, name)) for name in FUNCTIONS if hasattr(np, name)}
    names |= {name: getattr(np, name) for name in (*_DTYPES, *_CONSTANTS) if hasattr(np, name)}
    names |= {
        "ndarray": arrays.kind, "RawKernel": RawKernel, "RawModule": OurModule, "cuda": cuda["cupy.cuda"],
        "array": arrays.array, "asarray": lambda a, dtype=None, order="K", **_: arrays.array(a, dtype, False, order),
        "ascontiguousarray": lambda a, dtype=None: arrays.array(names["asarray"](a, dtype)._array.copy()),
        "asfortranarray": lambda a, dtype=None: arrays.array(a, dtype, order="F"),
        "empty": lambda shape, dtype=float, order="C": arrays.kind._of(arrays.empty(shape, dtype, order)),
        "copy": lambda a, order="K": arrays.array(a), "asnumpy": _asnumpy, "get_array_module": _module_of,
        "copyto": lambda to, source, **options: np.copyto(to._array, arrays.plain(source), **options),
        "shares_memory": lambda a, b: np.shares_memory(arrays.plain(a), arrays.plain(b)),
        "from_dlpack": lambda one: arrays.array(one, copy=False) if hasattr(one, "__cuda_array_interface__")
        else arrays.array(np.from_dlpack(one)), "asanyarray": lambda a, dtype=None: arrays.array(a, dtype, False),
        **{name: arrays.comparison(getattr(np, name)) for name in ("allclose", "isclose", "array_equal")},
        "get_default_memory_pool": lambda: _pool(session), "get_default_pinned_memory_pool": lambda: _pool(session),
        "is_available": lambda: True, "isscalar": np.isscalar, "__version__": "13.0.0", "bool": np.bool_,
    }  # fmt: skip
    linalg = _library("linalg", arrays)
    fft = _library("fft", arrays)
    random = Facade("cupy.random", session, random_functions(arrays))
    testing = Facade("cupy.testing", session, _testing(arrays))
    profiler = Facade("cupyx.profiler", session, {"benchmark": _benchmark(host)})
    cupyx = Facade("cupyx", session, {"profiler": profiler})
    cupy = Facade("cupy", session, {**names, "random": random, "testing": testing, "linalg": linalg, "fft": fft})
    modules = {one.__name__: one for one in (cupy, cupyx, profiler, random, testing, linalg, fft)}
    with provided(session, {**modules, **cuda}, "cupy", "cupyx"):
        yield


def _asnumpy(a: Any, stream: Any = None, order: Any = "C", out: Any = None, **_: Any) -> Any:
    return a.get(order=order, out=out) if isinstance(a, DeviceArray) else np.asarray(a, order=order)


def _module_of(*args: Any) -> Any:
    """cupy.get_array_module."""
    import cupy

    return cupy if any(isinstance(arg, DeviceArray) for arg in args) else np
