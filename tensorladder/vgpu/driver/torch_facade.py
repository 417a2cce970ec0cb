"""`torch.cuda` for a script on a machine with no GPU: what it asks is answered for the virtual GPU.

One table, `_answers`, holds what is replaced. What a script may not have here is refused by name. Times of
events are those of the emulation, and the script's reader is told so.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_map

from ...core.devicefacts import device_attribute
from . import reentry, torch_asked
from .session import DEVICE_MEMORY, TIMES_NOTE, Graph, Session
from .tensors import CudaTensor, OnHost, claims_cuda, require_device
from .torch_accesses import Accesses


def _stream(session: Session) -> tuple[type, type]:
    """torch.cuda.Stream and torch.cuda.ExternalStream: streams that do not wait for the default one."""
    streams = session.streams

    class VirtualStream:
        """A CUDA stream. Its work is done by the time a call returns: what waits for it orders, and takes no time."""

        device = torch.device("cuda", 0)
        device_index, device_type, priority = 0, 1, 0

        def __init__(self, device: Any = None, priority: int = 0, *, stream_id: int | None = None, **_: Any):
            self.cuda_stream = streams.create(blocking=False) if stream_id is None else stream_id
            self.priority = priority

        @property
        def stream_id(self) -> int:
            return self.cuda_stream

        @staticmethod
        def priority_range() -> tuple[int, int]:
            return torch_asked.PRIORITIES

        def synchronize(self) -> None:
            streams.synchronize(self.cuda_stream)

        def wait_stream(self, other: Any) -> None:
            streams.wait_stream(self.cuda_stream, other.cuda_stream)

        def wait_event(self, event: Any) -> None:
            event.wait(self)

        def record_event(self, event: Any = None) -> Any:
            event = event or torch.cuda.Event()
            event.record(self)
            return event

        def query(self) -> bool:
            self.synchronize()
            return True

        def __cuda_stream__(self) -> tuple[int, int]:
            return (0, self.cuda_stream)

        def __eq__(self, other: object) -> bool:
            return isinstance(other, VirtualStream) and other.cuda_stream == self.cuda_stream

        def __hash__(self) -> int:
            return hash(self.cuda_stream)

        def __repr__(self) -> str:
            return f"<torch.cuda.Stream device=cuda:0 cuda_stream={self.cuda_stream:#x}>"

        def __enter__(self) -> Any:
            streams.enter(self.cuda_stream)
            return self

        def __exit__(self, *_: Any) -> None:
            streams.leave()

    class ExternalStream(VirtualStream):
        """A stream by the handle that another library has for it."""

        def __init__(self, stream_ptr: int, device: Any = None, **_: Any):
            super().__init__(stream_id=int(stream_ptr))

    return VirtualStream, ExternalStream


def _event(session: Session) -> type:
    streams = session.streams

    def handle(stream: Any) -> int:
        return streams.current if stream is None else stream.cuda_stream

    class VirtualEvent:
        """A CUDA event on the clock of the emulation."""

        def __init__(self, *_: Any, **__: Any):
            self._at = 0.0
            self.cuda_event = streams.new_event()
            weakref.finalize(self, streams.forget_event, self.cuda_event)

        def record(self, stream: Any = None) -> None:
            self._at = time.perf_counter()
            streams.record(self.cuda_event, handle(stream))

        def synchronize(self) -> None:
            streams.synchronize_event(self.cuda_event)

        def wait(self, stream: Any = None) -> None:
            streams.wait(handle(stream), self.cuda_event)

        def query(self) -> bool:
            self.synchronize()
            return True

        def elapsed_time(self, other: Any) -> float:
            """Milliseconds of wall time."""
            session.note(TIMES_NOTE)
            return max((other._at - self._at) * 1e3, 1e-6)

    return VirtualEvent


def _properties(session: Session) -> torch_asked.Properties:
    arch = session.arch
    major, minor = arch.compute_capability
    return torch_asked.Properties(
        _session=session,
        name=_name(session),
        major=major,
        minor=minor,
        multi_processor_count=arch.sm_count,
        total_memory=DEVICE_MEMORY,
        max_threads_per_multi_processor=arch.max_threads_per_sm,
        max_threads_per_block=1024,
        warp_size=32,
        regs_per_multiprocessor=65536,
        shared_memory_per_block=48 * 1024,
        shared_memory_per_block_optin=arch.smem_per_cta,
        shared_memory_per_multiprocessor=arch.smem_per_sm,
        L2_cache_size=50 << 20,
        clock_rate=device_attribute(arch.name, 13),
        is_integrated=0,
        is_multi_gpu_board=0,
    )


def _name(session: Session) -> str:
    return f"tensorladder virtual GPU ({session.arch.name})"


def _graph(session: Session) -> tuple[type, type]:
    """torch.cuda.CUDAGraph and torch.cuda.graph: work is recorded, and run at each replay."""

    class VirtualGraph:
        """A graph of launches and of torch's own operations on device tensors."""

        def __init__(self, *_: Any, **__: Any):
            self._graph = Graph()
            self._capture: contextlib.AbstractContextManager[Graph] | None = None

        def capture_begin(self, *_: Any, **__: Any) -> None:
            self._capture = session.capture(session.streams.current)
            self._graph = self._capture.__enter__()

        def capture_end(self) -> None:
            if self._capture is None:
                raise RuntimeError("CUDAGraph.capture_end() without capture_begin()")
            self._capture.__exit__(None, None, None)
            self._capture = None

        def replay(self) -> None:
            session.replay(self._graph, session.streams.current)

        def reset(self) -> None:
            self._graph = Graph()

        def pool(self) -> tuple[int, int]:
            return (0, 0)

    class graph:
        """The context manager around a capture."""

        def __init__(self, cuda_graph: Any, pool: Any = None, stream: Any = None, **_: Any):
            self._graph = cuda_graph
            self._stream = torch.cuda.stream(stream or torch.cuda.Stream())

        def __enter__(self) -> None:
            torch.cuda.synchronize()
            self._stream.__enter__()
            self._graph.capture_begin()

        def __exit__(self, *_: Any) -> None:
            self._graph.capture_end()
            self._stream.__exit__(None, None, None)

    return VirtualGraph, graph


def _compile(session: Session) -> Callable[..., Any]:
    """torch.compile: what it would compile for the GPU runs as it is."""

    def compile(model: Any = None, **_: Any) -> Any:
        if model is None:
            return lambda function: compile(function)
        session.note("torch.compile is left out: what it wraps runs eagerly")
        return model

    return compile


def _load() -> Callable[..., Any]:
    """torch.load: tensors that are asked for on the GPU are moved there from the host."""
    original = torch.load

    def load(f: Any, map_location: Any = None, *args: Any, **options: Any) -> Any:
        if not isinstance(map_location, str | torch.device | int) or not claims_cuda(map_location):
            return original(f, map_location, *args, **options)
        loaded = original(f, "cpu", *args, **options)
        return tree_map(lambda x: x.cuda() if isinstance(x, torch.Tensor | torch.nn.Module) else x, loaded)

    return load


def _profile(session: Session) -> type:
    """torch.profiler.profile: kernels are not seen by it here."""

    class VirtualProfile(torch.profiler.profile):
        def __init__(self, *, activities: Any = None, **options: Any):
            if activities is not None and torch.profiler.ProfilerActivity.CUDA in activities:
                session.refuse("CUDA activity of torch.profiler")
            super().__init__(activities=activities, **options)

    return VirtualProfile


class VirtualDevice(contextlib.nullcontext[None]):
    """torch.cuda.device(index) as a context: there is one device."""

    def __init__(self, device: Any = None):
        require_device(device)
        super().__init__()


def _answers(session: Session) -> dict[str, Any]:
    """Attribute of torch.cuda -> what it is in a script."""
    streams = session.streams
    kind, external = _stream(session)
    default = kind(stream_id=0)
    graphs = _graph(session)
    quiet = ("init", "_lazy_init", "empty_cache", "reset_peak_memory_stats",
             "reset_max_memory_allocated", "ipc_collect")  # fmt: skip
    sizes = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved")
    seed = torch.default_generator.manual_seed  # not torch.manual_seed, which seeds torch.cuda in turn
    seeds = {"manual_seed": seed, "manual_seed_all": seed, "seed": torch.default_generator.seed}
    return {
        **{name: torch_asked.quiet() for name in quiet},
        **{name: torch_asked.of_device(lambda: 0) for name in sizes},
        **seeds,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "is_bf16_supported": lambda *_, **__: session.arch.compute_capability >= (8, 0),
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "synchronize": torch_asked.of_device(streams.synchronize),
        "current_stream": torch_asked.of_device(lambda: kind(stream_id=streams.current)),
        "default_stream": torch_asked.of_device(lambda: default),
        "set_stream": lambda stream: streams.use(stream.cuda_stream),
        "Stream": kind,
        "ExternalStream": external,
        "Event": _event(session),
        "stream": lambda stream: contextlib.nullcontext() if stream is None else streams.using(stream.cuda_stream),
        "device": VirtualDevice,
        "set_device": torch_asked.of_device(lambda: None),
        "get_device_name": torch_asked.of_device(lambda: _name(session)),
        "get_device_capability": torch_asked.of_device(lambda: session.arch.compute_capability),
        "get_device_properties": torch_asked.of_device(lambda: _properties(session)),
        "mem_get_info": torch_asked.of_device(lambda: (DEVICE_MEMORY, DEVICE_MEMORY)),
        "CUDAGraph": graphs[0],
        "graph": graphs[1],
        "is_current_stream_capturing": lambda: session.capturing,
    }


_ABSENT = object()


@contextlib.contextmanager
def torch_facade(session: Session) -> Iterator[None]:
    """While this lasts, torch has one CUDA device: the virtual GPU."""
    mode = OnHost(session)
    session.tensor_types += (CudaTensor,)
    session.modes = 1 if session.order is None else 2

    def set_default_device(device: Any) -> None:
        mode.default_is_cuda = claims_cuda(device)

    replaced: list[tuple[Any, str, Any]] = [(torch.cuda, name, new) for name, new in _answers(session).items()]
    replaced += [
        (torch, "set_default_device", set_default_device),
        (torch.version, "cuda", "13.0"),
        (torch.cuda.nvtx, "range_push", torch_asked.quiet()),
        (torch.cuda.nvtx, "range_pop", torch_asked.quiet()),
        (torch.cuda.nvtx, "mark", torch_asked.quiet()),
        (torch, "Generator", VirtualGenerator),
        (torch, "compile", _compile(session)),
        (torch, "load", _load()),
        (torch.profiler, "profile", _profile(session)),
    ]
    replaced += [*torch_asked.points(session, mode), *reentry.points(session, mode)]
    before = [(owner, name, getattr(owner, name, _ABSENT)) for owner, name, _ in replaced]
    for owner, name, new in replaced:
        setattr(owner, name, new)
    overwrite = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(True)  # Module.cuda() then takes the new tensors

    @contextlib.contextmanager
    def modes() -> Iterator[None]:
        """Torch's modes hold for the thread that enters them."""
        with mode, contextlib.nullcontext() if session.order is None else Accesses(session):
            yield

    session.in_threads.append(modes)
    try:
        with modes():
            yield
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(overwrite)
        for owner, name, old in before:
            if old is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, old)


class VirtualGenerator(torch.Generator):
    """A generator of "cuda" draws on the host, as the tensors lie there."""

    def __new__(cls, device: Any = "cpu") -> VirtualGenerator:
        return super().__new__(cls, "cpu" if claims_cuda(device) else device)


__all__ = ["CudaTensor", "torch_facade"]
