"""cuda.core in an unmodified script: devices, streams, buffers, programs and launches on a session's virtual GPU.

The names are those of cuda.core 1.x (and of `cuda.core.experimental`, where they were before) that compile and launch
kernels: Device, Stream, Event, Buffer and memory resources, Program with its options, ObjectCode, Kernel, LaunchConfig,
launch. Work is done when a call returns; what streams and events order is looked at where hazards are checked.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ..core.devicefacts import device_attribute
from ..core.program import Module
from ..vgpu.driver.bindings import do
from ..vgpu.driver.session import Graph as Captured
from ..vgpu.driver.session import Session
from .standins import Facade, Host, Refusing, extents, provided, translated

#: options of ProgramOptions that NVRTC has under another spelling, as flags of a value
_FLAGS: dict[str, Callable[[Any], list[str]]] = {
    "std": lambda v: [f"-std={v}"],
    "max_register_count": lambda v: [f"--maxrregcount={v}"],
    "include_path": lambda v: [f"-I{path}" for path in _several(v)],
    "pre_include": lambda v: [f"--pre-include={path}" for path in _several(v)],
    "define_macro": lambda v: [f"-D{'='.join(map(str, m)) if isinstance(m, tuple) else m}" for m in _macros(v)],
    "undefine_macro": lambda v: [f"-U{name}" for name in _several(v)],
    "use_fast_math": lambda v: ["--use_fast_math"] if v else [],
    "ftz": lambda v: [f"--ftz={str(bool(v)).lower()}"],
    "prec_sqrt": lambda v: [f"--prec-sqrt={str(bool(v)).lower()}"],
    "prec_div": lambda v: [f"--prec-div={str(bool(v)).lower()}"],
    "fma": lambda v: [f"--fmad={str(bool(v)).lower()}"],
    "device_as_default_execution_space": lambda v: ["-default-device"] if v else [],
    "disable_warnings": lambda v: ["-w"] if v else [],
    "extra_device_vectorization": lambda v: ["--extra-device-vectorization"] if v else [],
    "relocatable_device_code": lambda v: ["-rdc=true"] if v else [],
    "debug": lambda v: [],  # line information is there anyway, and nothing is optimised away from PTX's text
    "lineinfo": lambda v: [],
    "name": lambda v: [],
    "arch": lambda v: [],
}
_NUMBERS = {  # of DeviceProperties, by CUdevice_attribute
    "max_threads_per_block": 1, "max_block_dim_x": 2, "max_block_dim_y": 3, "max_block_dim_z": 4, "max_grid_dim_x": 5,
    "max_grid_dim_y": 6, "max_grid_dim_z": 7, "max_shared_memory_per_block": 8, "warp_size": 10,
    "max_registers_per_block": 12, "clock_rate": 13, "multiprocessor_count": 16, "l2_cache_size": 38,
    "max_threads_per_multiprocessor": 39, "compute_capability_major": 75, "compute_capability_minor": 76,
    "max_shared_memory_per_multiprocessor": 81, "max_registers_per_multiprocessor": 82, "cooperative_launch": 95,
    "max_shared_memory_per_block_optin": 97, "max_blocks_per_multiprocessor": 106,
}  # fmt: skip
_OF_FUNCTION = {"max_threads_per_block": 0, "shared_size_bytes": 1, "num_regs": 4, "max_dynamic_shared_size_bytes": 8}


def _several(given: Any) -> Sequence[Any]:
    return given if isinstance(given, tuple | list) else [given]


def _macros(given: Any) -> Sequence[Any]:
    """One macro (a name, or a name and its value), or a list of them."""
    return given if isinstance(given, list) else [given]


class ComputeCapability(NamedTuple):
    major: int
    minor: int


class CUDAError(Exception):
    """cuda.core's own error: the name of a CUresult."""


class Event(Refusing):
    _label = "cuda.core.Event"

    def __init__(self, host: Host):
        self._session, self._host = host.session, host
        self.handle = host.events.create()
        self.is_done = True

    def sync(self) -> None:
        self._host.events.synchronize(self.handle)

    def close(self) -> None:
        self._host.events.destroy(self.handle)

    def __sub__(self, other: Event) -> float:
        """Milliseconds between two events."""
        return self._host.events.elapsed(other.handle, self.handle)


class Stream(Refusing):
    """handle: an existing stream's."""

    _label = "cuda.core.Stream"

    def __init__(self, host: Host, device: Device, handle: int, nonblocking: bool = False):
        self._session, self._host, self.device = host.session, host, device
        self.handle, self.is_nonblocking, self.priority = handle, nonblocking, 0

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle

    def sync(self) -> None:
        self._session.streams.synchronize(self.handle)

    def close(self) -> None:
        """Nothing is held."""

    def wait(self, event_or_stream: Any) -> None:
        """Let the stream wait for an event, or for all that another stream has to do now."""
        if isinstance(event_or_stream, Event):
            self._host.events.wait(self.handle, event_or_stream.handle)
        else:
            self._session.streams.wait_stream(self.handle, handle_of(event_or_stream))

    def record(self, event: Event | None = None, options: Any = None) -> Event:
        event = event or Event(self._host)
        self._host.events.record(event.handle, self.handle)
        return event

    def create_graph_builder(self) -> GraphBuilder:
        return GraphBuilder(self._host, self)


class Graph(Refusing):
    """What a builder has captured, instantiated."""

    _label = "cuda.core.Graph"

    def __init__(self, session: Session, captured: Captured):
        self._session, self._captured = session, captured

    def launch(self, stream: Any) -> None:
        self._session.replay(self._captured, handle_of(stream))

    def upload(self, stream: Any) -> None:
        """A launch needs nothing that is made ahead."""

    def close(self) -> None:
        """Nothing is held."""


class GraphBuilder(Refusing):
    """A stream whose work is captured; `split` makes builders of streams that start where it is, `join` ends them."""

    _label = "cuda.core.GraphBuilder"

    def __init__(self, host: Host, stream: Stream, first: GraphBuilder | None = None):
        self._session, self._host, self.stream = host.session, host, stream
        self._first = first or self
        self._capture: Any = None
        self._captured: Captured | None = None

    @property
    def handle(self) -> int:
        return self.stream.handle

    @property
    def is_building(self) -> bool:
        return self._first._capture is not None

    @property
    def is_join_required(self) -> bool:
        return self._first is not self

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle

    def begin_building(self, mode: str = "relaxed") -> GraphBuilder:
        if self._captured is not None:
            raise RuntimeError("Cannot resume building after building has ended.")
        self._capture = self._session.capture(self.handle)
        self._captured = self._capture.__enter__()
        return self

    def end_building(self) -> GraphBuilder:
        if not self.is_building or self._first is not self:
            raise RuntimeError("Graph builder is not building.")
        self._capture.__exit__(None, None, None)
        self._capture = None
        return self

    def complete(self, options: Any = None) -> Graph:
        if self._captured is None or self.is_building:
            raise RuntimeError("Graph has not finished building.")
        return Graph(self._session, self._captured)

    def split(self, count: int) -> tuple[GraphBuilder, ...]:
        if count < 2:
            raise ValueError(f"Invalid split count: expecting >= 2, got {count}")
        others = [self.stream.device.create_stream() for _ in range(count - 1)]
        for stream in others:
            stream.wait(self)
        return (self, *(GraphBuilder(self._host, stream, self._first) for stream in others))

    @staticmethod
    def join(*builders: GraphBuilder) -> GraphBuilder:
        if len(builders) < 2 or not all(isinstance(one, GraphBuilder) for one in builders):
            raise ValueError("Must join with at least two graph builders")
        root = next((one for one in builders if not one.is_join_required), builders[0])
        for one in builders:
            if one is not root:
                root.stream.wait(one)
        return root

    def close(self) -> None:
        """Nothing is held."""


def handle_of(stream: Any) -> int:
    """The handle of a stream, a package's object for one, or none: the default stream."""
    if stream is None:
        return 0
    return int(stream.__cuda_stream__()[1]) if hasattr(stream, "__cuda_stream__") else int(stream)


class Buffer(Refusing):
    """Memory of the virtual GPU, poisoned until it is written; it lies in host memory. host: the script may know."""

    _label = "cuda.core.Buffer"

    def __init__(self, host: Host, size: int, resource: Any, visible: bool):
        self._session, self._host = host.session, host
        self.size, self.memory_resource, self.device_id = size, resource, -1 if visible and not resource.device else 0
        self.handle = host.memory.allocate(size)
        self.is_host_accessible, self.is_device_accessible = visible, True

    @property
    def _bytes(self) -> np.ndarray:
        if not self.handle and self.size:
            raise CUDAError("CUDA_ERROR_INVALID_VALUE: the buffer is closed")
        return np.ctypeslib.as_array((ctypes.c_uint8 * self.size).from_address(self.handle))

    def close(self, stream: Any = None) -> None:
        if self.handle:
            self._host.memory.free(self.handle)
            self.handle = 0

    def copy_to(self, dst: Buffer | None = None, *, stream: Any = None) -> Buffer:
        dst = dst or self.memory_resource.allocate(self.size)
        if dst.size != self.size:
            raise ValueError(f"buffer sizes mismatch between src and dst: {self.size} and {dst.size}")
        source, target = self._bytes, dst._bytes
        extents = [(one.handle, one.size) for one in (self, dst)]

        def work() -> None:
            target[:] = source
            self._session.streams.accessed(handle_of(stream), "Buffer.copy_to", extents[:1], extents[1:])

        do(self._session, work, self, dst)
        return dst

    def copy_from(self, src: Buffer, *, stream: Any = None) -> None:
        src.copy_to(self, stream=stream)

    def fill(self, value: Any, *, stream: Any = None) -> None:
        """An int is a byte; a buffer of 1, 2 or 4 bytes is repeated."""
        pattern = np.frombuffer(bytes([value]) if isinstance(value, int) else bytes(memoryview(value)), np.uint8)
        if len(pattern) not in (1, 2, 4) or self.size % len(pattern):
            raise ValueError(f"a value of {len(pattern)} bytes cannot fill {self.size}")
        rows, extent = self._bytes.reshape(-1, len(pattern)), (self.handle, self.size)

        def work() -> None:
            rows[:] = pattern
            self._session.streams.accessed(handle_of(stream), "Buffer.fill", writes=[extent])

        do(self._session, work, self)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": (self.size,), "typestr": "|i1", "data": (self.handle, False), "version": 3, "strides": None}

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0) if self.is_host_accessible else (2, 0)

    def __dlpack__(self, *, stream: Any = None, **options: Any) -> Any:
        if not self.is_host_accessible:
            self._session.refuse("DLPack of a cuda.core.Buffer on the device")
        return self._bytes.view(np.int8).__dlpack__(**options)


class MemoryResource(Refusing):
    """A memory resource of a kind; all memory is the host's, and what the script may touch differs."""

    def __init__(self, host: Host, label: str, device: bool, visible: bool):
        self._session, self._host, self._label = host.session, host, label
        self.device, self.is_host_accessible, self.is_device_accessible = device, visible, True
        self.device_id = 0 if device else -1

    def allocate(self, size: int, *, stream: Any = None) -> Buffer:
        return Buffer(self._host, int(size), self, self.is_host_accessible)

    def close(self) -> None:
        """Buffers are freed one by one."""


class _Properties(Refusing):
    _label = "cuda.core.DeviceProperties"

    def __init__(self, session: Session):
        self._session = session

    def __getattr__(self, name: str) -> Any:
        return device_attribute(self._session.arch.name, _NUMBERS[name]) if name in _NUMBERS else (
            super().__getattr__(name))  # fmt: skip


class Device(Refusing):
    _label = "cuda.core.Device"
    _host: Host

    def __init__(self, device_id: Any = None):
        if device_id not in (None, 0) and not isinstance(device_id, Device):
            raise ValueError(f"device_id must be within [0, 1), got {device_id}")
        self._session = self._host.session
        arch = self._session.arch
        self.device_id, self.pci_bus_id = 0, "0000:00:00.0"
        self.name = f"tensorladder virtual GPU ({arch.name})"
        self.compute_capability = ComputeCapability(*arch.compute_capability)
        self.arch = "".join(map(str, arch.compute_capability))
        self.properties = _Properties(self._session)
        self.default_stream = Stream(self._host, self, 0)
        self.memory_resource = MemoryResource(self._host, "cuda.core.DeviceMemoryResource", True, False)
        self.context = None

    def set_current(self, ctx: Any = None) -> None:
        """There is one device."""

    def sync(self) -> None:
        self._session.streams.synchronize()

    def create_stream(self, obj: Any = None, options: Any = None) -> Stream:
        """A stream that does not wait for the default one, unless the options say so; or `obj`, another package's."""
        if obj is not None:
            return Stream(self._host, self, handle_of(obj))
        nonblocking = bool((options or {}).get("nonblocking", True))
        return Stream(self._host, self, self._session.streams.create(not nonblocking), nonblocking)

    def create_graph_builder(self) -> GraphBuilder:
        return self.create_stream().create_graph_builder()

    def create_event(self, options: Any = None) -> Event:
        return Event(self._host)

    def allocate(self, size: int, *, stream: Any = None) -> Buffer:
        return self.memory_resource.allocate(size, stream=stream)


@dataclass(frozen=True)
class LaunchConfig:
    grid: Any = (1, 1, 1)
    block: Any = (1, 1, 1)
    cluster: Any = None
    shmem_size: int = 0
    is_cooperative: bool = False
    cooperative_launch: bool = False


class Kernel(Refusing):
    _label = "cuda.core.Kernel"

    def __init__(self, host: Host, function: int):
        self._session, self._host, self.handle = host.session, host, function
        self.attributes = _KernelAttributes(self)


class _KernelAttributes(Refusing):
    _label = "cuda.core.KernelAttributes"

    def __init__(self, kernel: Kernel):
        self._session, self._kernel = kernel._session, kernel

    def __getattr__(self, name: str) -> Any:
        if name not in _OF_FUNCTION:
            return super().__getattr__(name)
        kernel = self._kernel
        value = kernel._host.modules.attribute(_OF_FUNCTION[name], kernel.handle)
        return lambda device_id=None: value


class ObjectCode(Refusing):
    """Code of a program, or PTX that the script brings."""

    _label = "cuda.core.ObjectCode"
    _host: Host

    def __init__(self, made: Module, code_type: str, names: Mapping[str, str] | None = None, name: str = ""):
        self._session, self._made, self.code_type, self.name = self._host.session, made, code_type, name
        self.code = made.cubin if code_type == "cubin" else made.ptx.encode()
        self.symbol_mapping = dict(names or {})
        self._handle = 0

    @classmethod
    def from_ptx(cls, module: Any, *, name: str = "", symbol_mapping: Mapping[str, str] | None = None) -> ObjectCode:
        """From PTX text, its bytes, or the name of its file."""
        data = module
        if isinstance(data, str) and ".target" not in data:
            with open(data, "rb") as file:
                data = file.read()
        text = data if isinstance(data, str) else bytes(data).rstrip(b"\0").decode()
        return cls(Module(text, cls._host.session.arch.name), "ptx", symbol_mapping, name)

    def get_kernel(self, name: Any) -> Kernel:
        text = name.decode() if isinstance(name, bytes) else str(name)
        self._handle = self._handle or self._host.load(self._made)
        with translated(CUDAError):
            return Kernel(self._host, self._host.modules.function(self._handle, self.symbol_mapping.get(text, text)))


@dataclass
class ProgramOptions:
    """Options by name, as given; what is not known is refused when the program is made."""

    given: dict[str, Any] = field(default_factory=dict)


class Program(Refusing):
    _label = "cuda.core.Program"
    _host: Host

    def __init__(self, code: Any, code_type: str, options: ProgramOptions | None = None):
        self._session = self._host.session
        kind = code_type.lower()
        if kind not in ("c++", "ptx"):
            self._session.refuse(f"cuda.core.Program of {code_type}")
        self._code, self._kind = code.decode() if isinstance(code, bytes) else code, kind
        self._given = dict(options.given) if options is not None else {}
        for name in self._given:
            if name not in _FLAGS:
                self._session.refuse(f"cuda.core.ProgramOptions({name}=...)")
        self.backend = "NVRTC" if kind == "c++" else "nvJitLink"

    def compile(self, target_type: str, name_expressions: Sequence[Any] = (), logs: Any = None) -> ObjectCode:
        """ "ptx" or "cubin"; PTX is taken as it is."""
        if target_type not in ("ptx", "cubin"):
            self._session.refuse(f"cuda.core.Program.compile({target_type!r})")
        if self._kind == "ptx":
            return self._code_of(Module(self._code, self._session.arch.name), "ptx", {})
        wanted = [name.decode() if isinstance(name, bytes) else str(name) for name in name_expressions]
        words = [word for name, value in self._given.items() if value is not None for word in _FLAGS[name](value)]
        name = str(self._given.get("name") or "default_program")
        made, names = self._host.compile(
            self._code, name, words, wanted, str(self._given.get("arch") or "").replace("compute_", "sm_")
        )
        return self._code_of(made, target_type, names)

    def _code_of(self, made: Module, kind: str, names: Mapping[str, str]) -> ObjectCode:
        raise NotImplementedError

    def close(self) -> None:
        """Nothing is held."""


def names_of(host: Host) -> dict[str, Any]:
    """The names of cuda.core, for one session."""

    class OurDevice(Device):
        _host = host

    class OurCode(ObjectCode):
        _host = host

    class OurProgram(Program):
        _host = host

        def _code_of(self, made: Module, kind: str, names: Mapping[str, str]) -> ObjectCode:
            return OurCode(made, kind, names)

    def launch(stream: Any, config: LaunchConfig, kernel: Kernel, *args: Any) -> None:
        """Launch a kernel: buffers by address, numbers as they are. With clusters, the grid counts these."""
        values = [arg.handle if isinstance(arg, Buffer) else arg for arg in args]
        cooperative = config.is_cooperative or config.cooperative_launch
        cluster = extents(config.cluster or 1)
        grid = [n * size for n, size in zip(extents(config.grid), cluster, strict=True)]
        with translated(CUDAError):
            host.launch(
                kernel.handle, grid, config.block, values, config.shmem_size, cluster, cooperative, handle_of(stream)
            )

    def resource(label: str, device: bool, visible: bool) -> Callable[..., MemoryResource]:
        return lambda *_, **__: MemoryResource(host, f"cuda.core.{label}", device, visible)

    def options(**given: Any) -> ProgramOptions:
        return ProgramOptions(given)

    for made in (OurDevice, OurCode, OurProgram):
        made.__name__ = made.__qualname__ = made.__mro__[1].__name__
    kinds = {
        "DeviceMemoryResource": (True, False), "LegacyPinnedMemoryResource": (False, True),
        "PinnedMemoryResource": (False, True), "ManagedMemoryResource": (True, True),
    }  # fmt: skip
    return {
        "Device": OurDevice, "Program": OurProgram, "ProgramOptions": options, "ObjectCode": OurCode, "Kernel": Kernel,
        "LaunchConfig": LaunchConfig, "launch": launch, "Stream": Stream, "Event": Event, "Buffer": Buffer,
        "Graph": Graph, "GraphBuilder": GraphBuilder, "MemoryResource": MemoryResource,
        "StreamOptions": lambda **given: given, "EventOptions": lambda **given: given,
        "__version__": "1.2.2", **{name: resource(name, *kind) for name, kind in kinds.items()},
    }  # fmt: skip


@contextlib.contextmanager
def cudacore_hook(session: Session) -> Iterator[None]:
    """While this lasts, `cuda.core` finds one device, the session's."""
    host = Host(session)
    names = names_of(host)
    utils = Facade("cuda.core.utils", session, {})
    experimental = Facade("cuda.core.experimental", session, {**names, "utils": utils})
    core = Facade("cuda.core", session, {**names, "utils": utils, "experimental": experimental})
    modules = {one.__name__: one for one in (core, experimental, utils)}
    with provided(session, {**_namespace(session), **modules}, "cuda.core"):
        yield


def _namespace(session: Session) -> dict[str, Any]:
    """The package around it, where no package of NVIDIA's brings it."""
    try:
        import cuda  # noqa: F401
    except ImportError:
        return {"cuda": Facade("cuda", session, {})}
    return {}
