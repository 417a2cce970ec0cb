"""`cuda.bindings` for a script on a machine with no driver: the calls that set up devices, streams, events and memory.

Two tables, one for the driver API and one for the runtime API; each entry returns what follows the error code. What
is not in them stays what it was and fails for want of a driver. Device memory lies in host memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np

from ...core.devicefacts import device_attribute
from ...core.errors import UsageError
from .session import TIMES_NOTE, HostRange, Session

_VERSION = 13000
_POISON = 0xFF


class Memory:
    """Blocks that a script allocates through the driver: poisoned, tracked while they are not freed."""

    def __init__(self, session: Session):
        self._session = session
        self._blocks: dict[int, _Block] = {}

    def allocate(self, size: int) -> int:
        """Address of a fresh block at a 256-byte boundary."""
        block = _Block(np.full(max(int(size), 1) + 256, _POISON, np.uint8))
        address = -(-block.array.ctypes.data // 256) * 256
        self._blocks[address] = block
        self._session.track(block, HostRange("driver memory", address, int(size)))
        return address

    def free(self, address: Any) -> None:
        """UsageError for what was not allocated, as the driver's CUDA_ERROR_INVALID_VALUE."""
        if int(address) and self._blocks.pop(int(address), None) is None:
            raise UsageError(f"cuMemFree: {int(address):#x} was not allocated, or freed before")


class _Block:
    """A numpy array that can be weakly referred to and hashed."""

    def __init__(self, array: np.ndarray):
        self.array = array


def _copy(target: Any, source: Any, size: int, *_: Any) -> None:
    ctypes.memmove(_address(target), _address(source), int(size))


def _address(pointer: Any) -> int:
    """A device pointer, an integer, or host memory (a buffer) as an address."""
    try:
        return int(pointer)
    except (TypeError, ValueError):
        return np.frombuffer(pointer, np.uint8).ctypes.data


def _fill(width: int) -> Callable[..., None]:
    def fill(target: Any, value: int, count: int, *_: Any) -> None:
        block = (ctypes.c_uint8 * (width * int(count))).from_address(int(target))
        np.frombuffer(memoryview(block), f"u{width}")[:] = value

    return fill


def _nothing(*_: Any) -> None:
    pass


class _Events:
    """Events are handles to points on the wall clock."""

    def __init__(self, session: Session):
        self._session = session
        self._times: dict[int, float] = {}
        self._next = itertools.count(1)

    def create(self, *_: Any) -> int:
        return next(self._next)

    def record(self, event: Any, *_: Any) -> None:
        self._times[int(event)] = time.perf_counter()

    def elapsed(self, start: Any, end: Any) -> float:
        """Milliseconds."""
        self._session.note(TIMES_NOTE)
        return max((self._times[int(end)] - self._times[int(start)]) * 1e3, 1e-6)


Table = dict[str, Callable[..., Any]]


def _driver(driver: ModuleType, session: Session, memory: Memory, events: _Events) -> Table:
    context = driver.CUcontext(1)
    quiet = (
        "cuInit", "cuCtxSetCurrent", "cuCtxPushCurrent", "cuCtxSynchronize", "cuCtxDestroy", "cuEventSynchronize",
        "cuEventDestroy", "cuDevicePrimaryCtxRelease", "cuStreamDestroy", "cuStreamSynchronize", "cuStreamQuery",
        "cuStreamWaitEvent",
    )  # fmt: skip
    table: Table = dict.fromkeys(quiet, _nothing)
    contexts = ("cuCtxCreate", "cuCtxGetCurrent", "cuCtxPopCurrent", "cuDevicePrimaryCtxRetain")
    table |= {name: lambda *_: context for name in contexts}
    copies = ("cuMemcpy", "cuMemcpyHtoD", "cuMemcpyDtoH", "cuMemcpyDtoD")
    table |= {name + tail: _copy for name in copies for tail in ("", "Async")}
    table |= {f"cuMemsetD{8 * w}{tail}": _fill(w) for w in (1, 2, 4) for tail in ("", "Async")}
    return table | {
        "cuDriverGetVersion": lambda: _VERSION,
        "cuDeviceGetCount": lambda: 1,
        "cuDeviceGet": lambda _: driver.CUdevice(0),
        "cuCtxGetDevice": lambda *_: driver.CUdevice(0),
        "cuDeviceGetName": lambda *_: b"tensorladder virtual GPU",
        "cuDeviceGetAttribute": lambda attribute, _: device_attribute(session.arch.name, int(attribute)),
        "cuStreamCreate": lambda *_: driver.CUstream(0),
        "cuEventCreate": lambda *_: driver.CUevent(events.create()),
        "cuEventRecord": events.record,
        "cuEventElapsedTime": events.elapsed,
        "cuMemAlloc": lambda size: driver.CUdeviceptr(memory.allocate(size)),
        "cuMemFree": memory.free,
    }


def _runtime(runtime: ModuleType, session: Session, memory: Memory, events: _Events) -> Table:
    quiet = (
        "cudaSetDevice", "cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaStreamDestroy", "cudaGetLastError",
        "cudaPeekAtLastError", "cudaEventSynchronize", "cudaEventDestroy", "cudaStreamWaitEvent",
    )  # fmt: skip
    table: Table = dict.fromkeys(quiet, _nothing)
    table |= dict.fromkeys(("cudaMemcpy", "cudaMemcpyAsync"), _copy)
    table |= {name: _fill(1) for name in ("cudaMemset", "cudaMemsetAsync")}
    return table | {
        "cudaGetDevice": lambda: 0,
        "cudaGetDeviceCount": lambda: 1,
        "cudaDriverGetVersion": lambda: _VERSION,
        "cudaRuntimeGetVersion": lambda: _VERSION,
        "cudaDeviceGetAttribute": lambda attribute, _: device_attribute(session.arch.name, int(attribute)),
        "cudaStreamCreate": lambda: runtime.cudaStream_t(0),
        "cudaStreamCreateWithFlags": lambda _: runtime.cudaStream_t(0),
        "cudaEventCreate": lambda: runtime.cudaEvent_t(events.create()),
        "cudaEventRecord": events.record,
        "cudaEventElapsedTime": events.elapsed,
        "cudaMalloc": memory.allocate,
        "cudaFree": memory.free,
    }


def _returning(success: Any, answer: Callable[..., Any]) -> Callable[..., tuple[Any, ...]]:
    """As cuda.bindings returns: the error code, then the results."""

    def call(*args: Any) -> tuple[Any, ...]:
        result = answer(*args)
        return (success,) if result is None else (success, result)

    return call


@contextlib.contextmanager
def driver_facade(session: Session) -> Iterator[None]:
    """While this lasts, `cuda.bindings` finds one device: the virtual GPU. Without the package: nothing."""
    try:
        from cuda.bindings import driver, runtime
    except ImportError:
        driver = runtime = None
    if driver is None:  # outside the handler: what the script raises has nothing to do with the missing package
        yield
        return
    memory, events = Memory(session), _Events(session)
    tables = (
        (driver, driver.CUresult.CUDA_SUCCESS, _driver(driver, session, memory, events)),
        (runtime, runtime.cudaError_t.cudaSuccess, _runtime(runtime, session, memory, events)),
    )
    before = [(module, name, getattr(module, name)) for module, _, table in tables for name in table]
    for module, success, table in tables:
        for name, answer in table.items():
            setattr(module, name, _returning(success, answer))
    try:
        yield
    finally:
        for module, name, old in before:
            setattr(module, name, old)
