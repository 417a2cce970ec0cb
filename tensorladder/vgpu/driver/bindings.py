"""`cuda.bindings` for a script on a machine with no driver: devices, streams, events, memory, modules and graphs.

Two tables, one for the driver API and one for the runtime API; each entry returns what follows the error code. A call
that is in neither is refused by name. Device memory lies in host memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from ...core import arch as archs
from ...core.devicefacts import device_attribute
from ...core.errors import Unsupported, UsageError
from .modules import DriverError, Modules, listen_to_nvrtc
from .session import DEVICE_MEMORY, TIMES_NOTE, Graph, HostRange, Session

_VERSION = 13000
_POISON = 0xFF
_PINNED = "pinned memory"


class Memory:
    """Blocks that a script allocates through the driver: poisoned, tracked while they are not freed."""

    def __init__(self, session: Session):
        self._session = session
        self._blocks: dict[int, _Block] = {}

    def allocate(self, size: int, name: str = "driver memory") -> int:
        """Address of a fresh block at a 256-byte boundary; name: what messages call it."""
        block = _Block(np.full(max(int(size), 1) + 256, _POISON, np.uint8))
        address = -(-block.array.ctypes.data // 256) * 256
        self._blocks[address] = block
        self._session.track(block, HostRange(name, address, int(size)))
        return address

    def free(self, pointer: Any) -> None:
        """UsageError for what was not allocated, as the driver's CUDA_ERROR_INVALID_VALUE."""
        address = _address(pointer)
        if address and self._blocks.pop(address, None) is None:
            raise UsageError(f"cuMemFree: {address:#x} was not allocated, or freed before")

    def register(self, pointer: Any, size: int, *_: Any) -> None:
        """Pin memory of the host's: the device may access it (cuMemHostRegister)."""
        address = _address(pointer)
        if address in self._blocks:
            raise DriverError("CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED")
        block = self._blocks[address] = _Block(pointer)
        self._session.track(block, HostRange(_PINNED, address, int(size)))

    def unregister(self, pointer: Any) -> None:
        """Let go of it again."""
        if self._blocks.pop(_address(pointer), None) is None:
            raise DriverError("CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED")


class _Block:
    """A numpy array, or a script's own buffer, that can be weakly referred to and hashed."""

    def __init__(self, array: Any):
        self.array = array


def _copy(session: Session, name: str, at: int | None) -> Callable[..., None]:
    """A copy; at: which argument behind the size is its stream, None: it is not asynchronous."""

    def copy(target: Any, source: Any, size: int, *rest: Any) -> None:
        to, whence = _address(target), _address(source)
        stream = _stream(rest, at)

        def work() -> None:
            ctypes.memmove(to, whence, int(size))
            if session.order is None:
                return
            places = [session.at(where) for where in (whence, to)]
            # what is not the device's is the host's own business
            reads, writes = ([(where, int(size))] if p else [] for p, where in zip(places, (whence, to)))
            session.streams.accessed(stream, name, reads, writes)
            if _waits_for_copy(at is None, *places):
                session.streams.synchronize(stream)

        do(session, work, target, source)

    return copy


def _waits_for_copy(blocking: bool, source: HostRange | None, target: HostRange | None) -> bool:
    """Whether the host waits for a copy ("API synchronization behavior" of the runtime's reference): where it is not
    asynchronous, unless from device to device memory; and for one to memory that is not pinned."""
    if blocking:
        return not all(place is not None and place.name != _PINNED for place in (source, target))
    return target is None


def _stream(rest: tuple[Any, ...], at: int | None) -> int:
    """The stream among a call's last arguments, the default one where it is left out."""
    return int(rest[at] or 0) if at is not None and len(rest) > at else 0


def do(session: Session, work: Callable[[], Any], *keep: Any) -> None:
    """Do it now, or at each replay of the graph that is captured; `keep` stays alive as long as that."""

    def step(_keep: tuple[Any, ...] = keep) -> None:
        work()

    if session.capturing:
        session.record(step)
    else:
        with session.turn:  # launches of other threads on that stream have been, or come afterwards
            work()


def _address(pointer: Any) -> int:
    """A device pointer, an integer, or host memory (a buffer) as an address."""
    try:
        return int(pointer)
    except (TypeError, ValueError):
        return np.frombuffer(pointer, np.uint8).ctypes.data


def _fill(session: Session, name: str, width: int, at: int | None) -> Callable[..., None]:
    """A memset of words; at: as of `_copy`, though the host waits for none of them."""

    def fill(target: Any, value: int, count: int, *rest: Any) -> None:
        size = width * int(count)
        block = (ctypes.c_uint8 * size).from_address(int(target))
        array = np.frombuffer(memoryview(block), f"u{width}")
        word = int(value) & ((1 << 8 * width) - 1)
        stream = _stream(rest, at)

        def work() -> None:
            array.fill(word)
            session.streams.accessed(stream, name, writes=[(int(target), size)])

        do(session, work)

    return fill


def _nothing(*_: Any) -> None:
    pass


class Events:
    """Events are handles to points on the wall clock, and in the streams' work."""

    def __init__(self, session: Session):
        self._session = session
        self._times: dict[int, float] = {}

    def create(self, *_: Any) -> int:
        return self._session.streams.new_event()

    def record(self, event: Any, stream: Any = 0, *_: Any) -> None:
        self._times[int(event)] = time.perf_counter()
        self._session.streams.record(int(event), int(stream or 0))

    def wait(self, stream: Any, event: Any, *_: Any) -> None:
        """A stream waits for an event."""
        self._session.streams.wait(int(stream or 0), int(event))

    def synchronize(self, event: Any) -> None:
        """The host waits for an event, or sees that it has come."""
        self._session.streams.synchronize_event(int(event))

    def destroy(self, event: Any) -> None:
        self._session.streams.forget_event(int(event))

    def elapsed(self, start: Any, end: Any) -> float:
        """Milliseconds."""
        if not {int(start), int(end)} <= self._times.keys():
            raise DriverError("CUDA_ERROR_INVALID_HANDLE")  # never recorded
        self._session.note(TIMES_NOTE)
        return max((self._times[int(end)] - self._times[int(start)]) * 1e3, 1e-6)


class _Capture(threading.local):
    """What a host thread captures: the session's context, and the graph."""

    context: contextlib.AbstractContextManager[Graph] | None = None
    graph = Graph()


class _Graphs:
    """Captured graphs, by the handles that a script holds; an instantiated graph has its own."""

    def __init__(self, session: Session):
        self._session = session
        self._graphs: dict[int, Graph] = {}
        self._next = itertools.count(1)
        self._capture = _Capture()

    def begin(self, stream: Any = 0, *_: Any) -> None:
        if self._capture.context is not None:
            raise DriverError("CUDA_ERROR_ILLEGAL_STATE")
        self._capture.context = self._session.capture(int(stream or 0))
        self._capture.graph = self._capture.context.__enter__()

    def end(self, *_: Any) -> int:
        """The captured graph."""
        if self._capture.context is None:
            raise DriverError("CUDA_ERROR_ILLEGAL_STATE")
        self._capture.context.__exit__(None, None, None)
        self._capture.context = None
        return self._add(self._capture.graph)

    def copy(self, graph: Any, *_: Any) -> int:
        """A handle of its own for a graph: cloned, or instantiated."""
        return self._add(self._graph_of(graph))

    def launch(self, graph: Any, stream: Any = 0, *_: Any) -> None:
        self._session.replay(self._graph_of(graph), int(stream or 0))

    def nodes(self, kind: Callable[[int], Any]) -> Callable[..., tuple[list[Any], int]]:
        """What answers for a graph's nodes: as many handles of a kind as are asked for, and how many there are."""

        def answer(graph: Any, most: int = 0) -> tuple[list[Any], int]:
            count = self._graph_of(graph).nodes
            return [kind(number + 1) for number in range(min(int(most), count))], count

        return answer

    def _add(self, graph: Graph) -> int:
        number = next(self._next)
        self._graphs[number] = Graph(graph.origin, list(graph.steps))
        return number

    def _graph_of(self, graph: Any) -> Graph:
        if int(graph) not in self._graphs:
            raise DriverError("CUDA_ERROR_INVALID_HANDLE")
        return self._graphs[int(graph)]


@dataclass(frozen=True)
class _Host:
    """What stands behind the calls of both APIs."""

    session: Session
    memory: Memory
    events: Events
    modules: Modules
    graphs: _Graphs

    def attribute(self, attribute: Any, *_: Any) -> int:
        try:
            return device_attribute(self.session.arch.name, int(attribute))
        except Unsupported:
            self.session.refuse(f"device attribute {attribute}")


Table = dict[str, Callable[..., Any]]
_DRIVER_QUIET = (
    "cuInit", "cuCtxSetCurrent", "cuCtxPushCurrent", "cuCtxDestroy", "cuDevicePrimaryCtxRelease", "cuStreamDestroy",
    "cuGraphDestroy", "cuGraphExecDestroy", "cuGraphUpload", "cuCtxSetCacheConfig", "cuFuncSetCacheConfig",
)  # fmt: skip
_RUNTIME_QUIET = (
    "cudaSetDevice", "cudaStreamDestroy", "cudaGraphDestroy", "cudaGraphExecDestroy", "cudaGraphUpload",
    "cudaDeviceReset", "cudaSetDeviceFlags", "cudaInitDevice",
)  # fmt: skip
_ALLOCATIONS = {  # call -> what frees it
    "cuMemAlloc": "cuMemFree", "cuMemAllocAsync": "cuMemFreeAsync", "cuMemAllocManaged": "cuMemFree",
    "cudaMalloc": "cudaFree", "cudaMallocAsync": "cudaFreeAsync", "cudaMallocManaged": "cudaFree",
    # pinned memory of the host is the device's as well
    "cuMemAllocHost": "cuMemFreeHost", "cuMemHostAlloc": "cuMemFreeHost", "cudaMallocHost": "cudaFreeHost",
    "cudaHostAlloc": "cudaFreeHost",
}  # fmt: skip
_FROM_POOLS = {"cu": "cuMemAllocFromPoolAsync", "cuda": "cudaMallocFromPoolAsync"}
_POOL_QUIET = ("MemPoolSetAttribute", "MemPoolTrimTo", "MemPoolDestroy", "DeviceSetMemPool")
_POINTERS = ("cuMemAlloc", "cuMemAllocAsync", "cuMemAllocManaged")


def _new_stream(session: Session, wrap: Callable[[int], Any]) -> Callable[..., Any]:
    """The call that makes a stream, as `wrap` has its handle; flag 1: apart from the legacy default one."""
    return lambda flags=0, *_: wrap(session.streams.create(not int(flags) & 1))


def _waits(host: _Host, prefix: str, whole: str) -> Table:
    """The calls of an API that wait, or ask whether something is over; whole: what synchronises with the device."""
    session, events = host.session, host.events

    def synchronize(stream: Any = 0, *_: Any) -> None:
        session.streams.synchronize(int(stream or 0))

    return {
        f"{prefix}{whole}Synchronize": lambda *_: session.streams.synchronize(),
        f"{prefix}StreamSynchronize": synchronize,
        f"{prefix}StreamQuery": synchronize,
        f"{prefix}StreamWaitEvent": events.wait,
        f"{prefix}EventRecord": events.record,
        f"{prefix}EventRecordWithFlags": events.record,
        f"{prefix}EventSynchronize": events.synchronize,
        f"{prefix}EventQuery": events.synchronize,
        f"{prefix}EventDestroy": events.destroy,
        f"{prefix}EventElapsedTime": events.elapsed,
    }


def _allocations(host: _Host, prefix: str, pointer: Callable[[int], Any]) -> Table:
    table: Table = {}
    for name, free in _ALLOCATIONS.items():
        if name.startswith(prefix):
            wrap = pointer if name in _POINTERS else int
            kind = _PINNED if "Host" in name else "driver memory"
            table[name] = lambda size, *_, wrap=wrap, kind=kind: wrap(host.memory.allocate(size, kind))
            table[free] = lambda address, *_: host.memory.free(address)
    return table


def _pools(host: _Host, prefix: str, pool: Any, pointer: Callable[[int], Any]) -> Table:
    """Memory pools: what they keep has no meaning here, allocations of all are alike. Those from a pool name it behind
    the size."""
    return {
        **dict.fromkeys((f"{prefix}DeviceGetDefaultMemPool", f"{prefix}DeviceGetMemPool"), lambda *_: pool),
        f"{prefix}MemPoolCreate": lambda *_: pool,
        **dict.fromkeys((f"{prefix}{name}" for name in _POOL_QUIET), _nothing),
        _FROM_POOLS[prefix]: lambda size, *_: pointer(host.memory.allocate(size)),
    }


def _registered(host: _Host, prefix: str) -> Table:
    kind = f"{prefix}MemHost" if prefix == "cu" else "cudaHost"
    return {f"{kind}Register": host.memory.register, f"{kind}Unregister": host.memory.unregister}


def _driver(driver: ModuleType, host: _Host) -> Table:
    context = driver.CUcontext(1)
    session, events, modules, graphs = host.session, host.events, host.modules, host.graphs
    table: Table = dict.fromkeys(_DRIVER_QUIET, _nothing)
    contexts = ("cuCtxCreate", "cuCtxGetCurrent", "cuCtxPopCurrent", "cuDevicePrimaryCtxRetain")
    table |= {name: lambda *_: context for name in contexts}
    tails: tuple[tuple[str, int | None], ...] = (("", None), ("Async", 0))  # where the stream is
    for name in ("cuMemcpy", "cuMemcpyHtoD", "cuMemcpyDtoH", "cuMemcpyDtoD"):
        table |= {name + tail: _copy(session, name + tail, at) for tail, at in tails}
    for width in (1, 2, 4):
        name = f"cuMemsetD{8 * width}"
        table |= {name + tail: _fill(session, name + tail, width, at) for tail, at in tails}
    table |= _waits(host, "cu", "Ctx")
    table |= _allocations(host, "cuM", driver.CUdeviceptr) | _registered(host, "cu")
    table |= _pools(host, "cu", driver.CUmemoryPool(1), driver.CUdeviceptr)
    capturing = driver.CUstreamCaptureStatus
    return table | {
        "cuDriverGetVersion": lambda: _VERSION,
        "cuDeviceGetCount": lambda: 1,
        "cuDeviceGet": lambda _: driver.CUdevice(0),
        "cuCtxGetDevice": lambda *_: driver.CUdevice(0),
        "cuDeviceGetName": lambda length=64, *_: b"tensorladder virtual GPU"[: int(length)],
        "cuDeviceTotalMem": lambda _: DEVICE_MEMORY,
        "cuMemGetInfo": lambda: (DEVICE_MEMORY, DEVICE_MEMORY),
        "cuDeviceGetAttribute": host.attribute,
        "cuGetErrorName": lambda error: driver.CUresult(error).name.encode(),
        "cuGetErrorString": lambda error: driver.CUresult(error).name.encode(),
        **dict.fromkeys(("cuStreamCreate", "cuStreamCreateWithPriority"), _new_stream(session, driver.CUstream)),
        "cuEventCreate": lambda *_: driver.CUevent(events.create()),
        "cuMemHostGetDevicePointer": lambda pointer, *_: driver.CUdeviceptr(_address(pointer)),
        "cuModuleLoadData": lambda image: driver.CUmodule(modules.load(image)),
        "cuModuleLoadDataEx": lambda image, *_: driver.CUmodule(modules.load(image)),
        "cuModuleLoad": lambda path: driver.CUmodule(modules.load_file(path)),
        "cuModuleUnload": modules.unload,
        "cuModuleGetFunction": lambda module, name: driver.CUfunction(modules.function(module, name)),
        "cuLibraryLoadData": lambda image, *_: driver.CUlibrary(modules.load(image)),
        "cuLibraryLoadFromFile": lambda path, *_: driver.CUlibrary(modules.load_file(path)),
        "cuLibraryUnload": modules.unload,
        "cuLibraryGetKernel": lambda library, name: driver.CUkernel(modules.function(library, name)),
        "cuLibraryGetModule": lambda library: driver.CUmodule(int(library)),
        "cuKernelGetFunction": lambda kernel: driver.CUfunction(int(kernel)),
        "cuFuncGetAttribute": modules.attribute,
        "cuKernelGetAttribute": modules.attribute,
        "cuFuncSetAttribute": modules.set_attribute,
        "cuKernelSetAttribute": lambda attribute, value, kernel, *_: modules.set_attribute(kernel, attribute, value),
        "cuOccupancyMaxActiveBlocksPerMultiprocessor": modules.occupancy,
        "cuLaunchKernel": modules.launch,
        "cuLaunchKernelEx": modules.launch_ex,
        "cuLaunchCooperativeKernel": lambda *args: modules.launch(*args, cooperative=True),
        "cuStreamBeginCapture": graphs.begin,
        "cuStreamEndCapture": lambda *_: driver.CUgraph(graphs.end()),
        "cuStreamIsCapturing": lambda *_: capturing(int(session.capturing)),
        "cuGraphClone": lambda graph: driver.CUgraph(graphs.copy(graph)),
        "cuGraphInstantiate": lambda graph, *_: driver.CUgraphExec(graphs.copy(graph)),
        "cuGraphLaunch": graphs.launch,
        "cuGraphGetNodes": graphs.nodes(driver.CUgraphNode),
    }


def _runtime(runtime: ModuleType, host: _Host) -> Table:
    session, events, graphs = host.session, host.events, host.graphs
    at: int | None
    table: Table = dict.fromkeys(_RUNTIME_QUIET, _nothing)
    for tail, at in (("", None), ("Async", 1)):  # the kind of copy stands before the stream
        table[f"cudaMemcpy{tail}"] = _copy(session, f"cudaMemcpy{tail}", at)
    for tail, at in (("", None), ("Async", 0)):
        table[f"cudaMemset{tail}"] = _fill(session, f"cudaMemset{tail}", 1, at)
    table |= _allocations(host, "cuda", int) | _waits(host, "cuda", "Device") | _registered(host, "cuda")
    table |= _pools(host, "cuda", runtime.cudaMemPool_t(1), int)
    capturing = runtime.cudaStreamCaptureStatus
    streams = ("cudaStreamCreate", "cudaStreamCreateWithFlags", "cudaStreamCreateWithPriority")
    table |= dict.fromkeys(streams, _new_stream(session, runtime.cudaStream_t))
    lasts = ("cudaGetLastError", "cudaPeekAtLastError")
    return table | dict.fromkeys(lasts, _nothing) | {
        "cudaGetDevice": lambda: 0,
        "cudaGetDeviceCount": lambda: 1,
        "cudaDriverGetVersion": lambda: _VERSION,
        "cudaRuntimeGetVersion": lambda: _VERSION,
        "cudaDeviceGetAttribute": host.attribute,
        "cudaGetDeviceProperties": lambda _: _properties(runtime, session),
        "cudaMemGetInfo": lambda: (DEVICE_MEMORY, DEVICE_MEMORY),
        "cudaHostGetDevicePointer": lambda pointer, *_: _address(pointer),
        "cudaEventCreate": lambda: runtime.cudaEvent_t(events.create()),
        "cudaEventCreateWithFlags": lambda _: runtime.cudaEvent_t(events.create()),
        "cudaStreamBeginCapture": graphs.begin,
        "cudaStreamEndCapture": lambda *_: runtime.cudaGraph_t(graphs.end()),
        "cudaStreamIsCapturing": lambda *_: capturing(int(session.capturing)),
        "cudaGraphClone": lambda graph: runtime.cudaGraph_t(graphs.copy(graph)),
        "cudaGraphInstantiate": lambda graph, *_: runtime.cudaGraphExec_t(graphs.copy(graph)),
        "cudaGraphLaunch": graphs.launch,
        "cudaGraphGetNodes": graphs.nodes(runtime.cudaGraphNode_t),
    }  # fmt: skip


#: of cudaDeviceProp, by device attribute
_PROPERTIES = {
    "canMapHostMemory": 19, "unifiedAddressing": 41, "managedMemory": 83, "concurrentKernels": 31, "l2CacheSize": 38,
    "cooperativeLaunch": 95, "memoryPoolsSupported": 115, "maxBlocksPerMultiProcessor": 106, "asyncEngineCount": 15,
    "totalConstMem": 9, "regsPerBlock": 12, "reservedSharedMemPerBlock": 111,
}  # fmt: skip


def _properties(runtime: ModuleType, session: Session) -> Any:
    arch, made = session.arch, runtime.cudaDeviceProp()
    made.name = f"tensorladder virtual GPU ({arch.name})".encode().ljust(256, b"\0")  # a whole char[256]
    made.major, made.minor = arch.compute_capability
    made.totalGlobalMem, made.warpSize = DEVICE_MEMORY, archs.WARP_SIZE
    made.multiProcessorCount, made.maxThreadsPerMultiProcessor = arch.sm_count, arch.max_threads_per_sm
    made.maxThreadsPerBlock, made.regsPerMultiprocessor = archs.MAX_BLOCK_THREADS, archs.REGISTERS_PER_SM
    made.maxThreadsDim, made.maxGridSize = list(archs.MAX_BLOCK), list(archs.MAX_GRID)
    made.sharedMemPerBlock, made.sharedMemPerBlockOptin = archs.STATIC_SMEM_LIMIT, arch.smem_per_cta
    made.sharedMemPerMultiprocessor = arch.smem_per_sm
    for name, number in _PROPERTIES.items():
        setattr(made, name, device_attribute(arch.name, number))
    return made


def _returning(success: Any, answer: Callable[..., Any]) -> Callable[..., tuple[Any, ...]]:
    """As cuda.bindings returns: the error code, then the results."""
    kind = type(success)

    def call(*args: Any) -> tuple[Any, ...]:
        try:
            result = answer(*args)
        except DriverError as error:  # the codes of both APIs share their numbers
            from cuda.bindings import driver

            return (kind(int(getattr(driver.CUresult, str(error)))),)
        if result is None:
            return (success,)
        return (success, *result) if isinstance(result, tuple) else (success, result)

    return call


def _others(session: Session, module: ModuleType, prefix: str, known: Table) -> Iterator[tuple[Any, str, Any]]:
    """The calls of an API that are in no table, refused by name."""
    for name, value in vars(module).items():
        is_call = re.match(rf"{prefix}[A-Z]", name) and callable(value) and not isinstance(value, type)
        if is_call and name not in known and name not in _LOCAL:
            yield module, name, lambda *_, name=name: session.refuse(name)


_LOCAL = ("cudaGetErrorName", "cudaGetErrorString")  # need no driver


@contextlib.contextmanager
def driver_facade(session: Session) -> Iterator[None]:
    """While this lasts, `cuda.bindings` finds one device: the virtual GPU. Without the package: nothing."""
    try:
        from cuda.bindings import driver, nvrtc, runtime
    except ImportError:
        driver = runtime = nvrtc = None
    if driver is None:  # outside the handler: what the script raises has nothing to do with the missing package
        yield
        return
    modules = Modules(session)
    host = _Host(session, Memory(session), Events(session), modules, _Graphs(session))
    tables = (
        (driver, "cu", driver.CUresult.CUDA_SUCCESS, _driver(driver, host)),
        (runtime, "cuda", runtime.cudaError_t.cudaSuccess, _runtime(runtime, host)),
    )
    points = listen_to_nvrtc(nvrtc, modules)
    for module, prefix, success, table in tables:
        points += [(module, name, _returning(success, answer)) for name, answer in table.items()]
        points += _others(session, module, prefix, table)
    before = [(module, name, getattr(module, name, None)) for module, name, _ in points]
    for module, name, new in points:
        setattr(module, name, new)
    try:
        yield
    finally:
        for module, name, old in before:
            setattr(module, name, old)
