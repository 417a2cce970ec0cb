"""What scripts ask of torch's CUDA side besides streams, tensors and graphs: accelerators, generators, raw handles,
statistics. What has no meaning here is refused by name."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch

from .session import DEVICE_MEMORY, Session
from .streams import LEGACY
from .tensors import OnHost, is_device_memory, require_device

Point = tuple[Any, str, Any]
"""An object, the name of its attribute, what stands there in a script."""

PRIORITIES = (0, -5)  # least and greatest, as an H100 and newer ones say
#: of torch.cuda: they have nothing to act upon
_QUIET = (
    "_sleep", "reset_max_memory_cached", "reset_accumulated_memory_stats", "reset_accumulated_host_memory_stats",
    "set_sync_debug_mode", "set_per_process_memory_fraction",
)  # fmt: skip
_REFUSED = (
    "make_graphed_callables", "current_blas_handle", "MemPool", "caching_allocator_alloc", "change_current_allocator",
    "memory_snapshot", "memory_summary",
)  # fmt: skip


class _Runtime:
    """torch.cuda.cudart(): a profiler has nothing to see here, the rest is refused."""

    def __init__(self, session: Session):
        self._session = session

    def cudaProfilerStart(self) -> int:
        return 0

    cudaProfilerStop = cudaProfilerStart

    def cudaMemGetInfo(self, _device: int = 0) -> tuple[int, int]:
        return DEVICE_MEMORY, DEVICE_MEMORY

    def __getattr__(self, name: str) -> Any:
        self._session.refuse(f"torch.cuda.cudart().{name}")


class Properties(types.SimpleNamespace):
    """torch.cuda.get_device_properties: what is not known of the virtual GPU is refused by name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        self.__dict__["_session"].refuse(f"torch.cuda.get_device_properties().{name}")


def points(session: Session, mode: OnHost) -> list[Point]:
    """What is replaced while a script runs."""
    runtime, generator = _Runtime(session), torch.default_generator
    cuda: dict[str, Any] = {
        **{name: quiet() for name in _QUIET},
        **{name: _refuse(session, f"torch.cuda.{name}") for name in _REFUSED},
        "cudart": lambda: runtime,
        "default_generators": (generator,),
        "device_of": lambda _: torch.cuda.device(0),
        "get_allocator_backend": lambda: "native",
        "get_rng_state": lambda *_, **__: generator.get_state(),
        "get_rng_state_all": lambda: [generator.get_state()],
        "get_stream_from_external": lambda pointer, *_: torch.cuda.ExternalStream(pointer),
        "get_sync_debug_mode": lambda: 0,
        "graph_pool_handle": lambda: (0, 0),
        "initial_seed": generator.initial_seed,
        "set_rng_state": lambda state, *_, **__: generator.set_state(state),
        "set_rng_state_all": lambda states: generator.set_state(states[0]),
    }
    raw = {
        "_cuda_getCurrentRawStream": of_device(lambda: session.streams.current),
        "_cuda_getDevice": lambda: 0,
        "_cuda_setDevice": of_device(lambda: None),
        "_cuda_exchangeDevice": of_device(lambda: 0),
        "_cuda_maybeExchangeDevice": of_device(lambda: 0),
        "_accelerator_getDeviceIndex": lambda: 0,
        "_accelerator_setDeviceIndex": of_device(lambda: None),
        "_accelerator_exchangeDevice": of_device(lambda: 0),
        "_accelerator_maybeExchangeDevice": of_device(lambda: 0),
    }
    return [
        *((torch.cuda, name, answer) for name, answer in cuda.items()),
        *((torch._C, name, answer) for name, answer in raw.items()),
        *((torch.cuda.profiler, name, quiet()) for name in ("start", "stop")),
        *_accelerator(session),
        *_from_dlpack(session, mode),
    ]


def quiet() -> Callable[..., None]:
    """A function that does nothing: a new one each time, because torch._dynamo keeps rules by function."""
    return lambda *_, **__: None


def of_device(answer: Callable[[], Any]) -> Callable[..., Any]:
    """A function of a device, of which there is one."""

    def of(device: Any = None) -> Any:
        require_device(device)
        return answer()

    return of


def _refuse(session: Session, what: str) -> Callable[..., Any]:
    return lambda *_, **__: session.refuse(what)


def _accelerator(session: Session) -> list[Point]:
    """torch.accelerator, in releases that have it."""
    owner = getattr(torch, "accelerator", None)
    streams = session.streams
    answers = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_accelerator": lambda *_, **__: torch.device("cuda"),
        "synchronize": of_device(streams.synchronize),
        "current_stream": of_device(lambda: torch.cuda.current_stream()),
        "set_stream": lambda stream: streams.use(getattr(stream, "cuda_stream", LEGACY)),
    }
    return [(owner, name, answer) for name, answer in answers.items() if hasattr(owner, name)]


def _from_dlpack(session: Session, mode: OnHost) -> list[Point]:
    """What is taken over from device memory lies there."""
    original = torch.utils.dlpack.from_dlpack

    def from_dlpack(*args: Any, **kwargs: Any) -> Any:
        made = original(*args, **kwargs)
        on_device = is_device_memory(session, made) or (made.numel() and session.at(made.data_ptr()) is not None)
        return mode.claim(made) if on_device else made

    return [(torch.utils.dlpack, "from_dlpack", from_dlpack), (torch, "from_dlpack", from_dlpack)]
