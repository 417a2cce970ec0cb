"""What front ends hand over: `Program` (code and a host part) and `Launch` (one kernel launch, ready to run).

A front end compiles source for one architecture and returns a `Program`. Calling the program with arrays and a
stream runs the front end's own host code, which *enqueues* launches; nothing executes before the stream is
synchronised, so that dependent grids can overlap. The virtual GPU and the silicon driver each bring a stream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

Dim3 = tuple[int, int, int]


@dataclass(frozen=True)
class Module:
    """One loadable unit of device code.

    ptx: PTX text (the virtual GPU runs this). cubin: machine code of the same kernels, or None (silicon loads
    this; registers and static shared memory are read from it). arch: what it was compiled for ("sm_90a").
    """

    ptx: str
    arch: str
    cubin: bytes | None = None
    name: str = "module"


@dataclass(frozen=True)
class Launch:
    """One kernel launch as the CUDA driver would get it.

    params: the parameter block, laid out as the kernel's `.param` declarations say (offsets, sizes, alignment).
    smem: dynamic shared memory in bytes. attributes: launch attributes that matter to the machine, by name:
    "cooperative" (bool), "programmatic_stream_serialization" (bool), "programmatic_event" and "launch_completion_event"
    (handles of events). stream: handle of the CUDA stream that host code named, 0 the default one; whoever runs the
    launch says what it means.
    """

    module: Module
    kernel: str
    grid: Dim3
    block: Dim3
    params: bytes
    smem: int = 0
    cluster: Dim3 = (1, 1, 1)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    stream: int = 0


class Stream(Protocol):
    """Where host code enqueues launches. `synchronize` runs what was enqueued, in order."""

    def enqueue(self, launch: Launch) -> None: ...

    def synchronize(self) -> None: ...


@dataclass(frozen=True)
class Program:
    """A compiled kernel with its host part.

    host(stream, *args) enqueues the launches for these arguments (DLPack arrays and plain numbers), doing all
    checks that the front end's own host code does. compile_seconds is what the front end took.
    """

    name: str
    arch: str
    modules: tuple[Module, ...]
    host: Callable[..., None]
    compile_seconds: float = 0.0
    mlir: str | None = None

    def __call__(self, stream: Stream, *args: Any) -> None:
        self.host(stream, *args)

    def launches(self, *args: Any) -> list[Launch]:
        """The launches that a call with `args` would make, without running any."""
        recorder = LaunchRecorder()
        self.host(recorder, *args)
        return recorder.launches


class LaunchRecorder:
    """A stream that only remembers."""

    def __init__(self) -> None:
        self.launches: list[Launch] = []

    def enqueue(self, launch: Launch) -> None:
        self.launches.append(launch)

    def synchronize(self) -> None:
        """Nothing runs here."""
