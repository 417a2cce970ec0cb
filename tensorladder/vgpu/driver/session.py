"""One script's view of a GPU: an architecture, a place where launches run, and a clock for events.

Launches are run as soon as a host function that enqueued them returns: the script's tensors lie in host memory and
may be read by the next line. Launches of one host function still run together, so that dependent grids overlap. Those
of several host threads take turns, which keeps the order of a stream that they share.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from ...core.arch import Arch
from ...core.errors import TensorladderError, Unsupported, UsageError
from ...core.program import Launch, LaunchRecorder, Stream
from ..machine.arena import Memory, Range
from .streams import Streams, Told

DEVICE_MEMORY = 80 << 30
"""Bytes that the device says it has."""
TIMES_NOTE = "times are the emulation's wall time, not a GPU's"


@dataclass(frozen=True)
class HostRange:
    """Host memory that launches may touch: bytes [address, address + size), with what a message may say of it.

    shape and strides (in bytes) where one dense array fills the range. owner keeps it alive. home: the stream whose
    work may be given the memory as soon as it is freed, as torch's allocator does; None: freed when all is done.
    """

    name: str
    address: int
    size: int
    shape: tuple[int, ...] | None = None
    strides: tuple[int, ...] | None = None
    itemsize: int = 1
    owner: Any = None
    home: int | None = None


def range_of(r: HostRange) -> Range:
    """Host memory as an allocation of the virtual GPU's."""
    return Range(r.address, r.address + r.size, r.name, True, r.owner, r.strides, r.shape, r.itemsize)


def _covering(address: int, ranges: Iterable[HostRange]) -> HostRange | None:
    return next((r for r in ranges if r.address <= address < r.address + r.size), None)


Step = Launch | Callable[[], None]
"""What a captured graph does: a kernel, or work that the facade does on the host."""


@dataclass
class Graph:
    """Captured work, in the order in which it was enqueued. origin: the stream that was captured first. kept: owners of
    memory that it names, beside the script's own."""

    origin: int = 0
    steps: list[Step] = field(default_factory=list)
    kept: list[Any] = field(default_factory=list)

    @property
    def nodes(self) -> int:
        """Kernels, copies and memsets."""
        return sum(not isinstance(step, Told) for step in self.steps)


@dataclass(frozen=True)
class _Placed:
    """A stream whose launches are on the streams of the checker's order."""

    stream: Stream
    streams: Streams

    def enqueue(self, launch: Launch) -> None:
        on = self.streams.at(launch.stream)
        self.stream.enqueue(replace(launch, stream=on))
        for name in ("programmatic_event", "launch_completion_event"):
            if launch.attributes.get(name):
                self.streams.recorded(launch.attributes[name], on)

    def synchronize(self) -> None:
        self.stream.synchronize()


class _OfThread(threading.local):
    """What each host thread has for itself: a graph that it captures, and what it holds (`holding`)."""

    captured: Graph | None = None
    held: list[Any] | None = None


@dataclass
class Session:
    """arch: what the script sees. new_stream(ranges): a stream on which launches may touch the given host memory.

    tensor_types: classes of arrays on the device that a facade added; modes: how many of torch's it entered. failure is
    the first error of a launch, kept because foreign code between it and the top may turn it into another; incomplete
    the first thing that is not modelled, kept because a script may catch it and go on. launches counts those that were
    run. order: a checker's, of streams (check.streams). in_threads: what each host thread of the script runs in.
    unseen: what stopped a launch in a thread, where nobody caught it. turn: held by the host thread whose launches, or
    accesses, are under way.
    """

    arch: Arch
    new_stream: Callable[[list[HostRange]], Stream]
    emulated_seconds: float = 0.0
    failure: TensorladderError | None = None
    incomplete: Unsupported | None = None
    launches: int = 0
    tensor_types: tuple[type, ...] = ()
    modes: int = 0
    order: Any = None
    in_threads: list[Callable[[], contextlib.AbstractContextManager[Any]]] = field(default_factory=list)
    unseen: TensorladderError | None = None
    _tracked: dict[int, tuple[weakref.ref[Any], HostRange]] = field(default_factory=dict)
    _users: dict[int, set[int]] = field(default_factory=dict)
    _notes: set[str] = field(default_factory=set)
    turn: threading.RLock = field(default_factory=threading.RLock)  # type: ignore[valid-type]
    _mine: _OfThread = field(default_factory=_OfThread)

    def __post_init__(self) -> None:
        self.streams = Streams(self, self.order)
        if self.order is not None:
            self.order.place = self._place

    def _place(self, address: int) -> str:
        """What lies at an address, in words."""
        r = self.at(address) or _covering(address, (r for _, r in list(self.streams.shared.values())))
        return Memory([] if r is None else [range_of(r)]).describe(address, 1)

    @property
    def capturing(self) -> bool:
        """Whether launches of this thread are recorded into a graph now instead of run."""
        return self._mine.captured is not None

    @contextlib.contextmanager
    def capture(self, origin: int = 0) -> Iterator[Graph]:
        """While this lasts, what host functions enqueue is appended to the graph and does not run."""
        if self._mine.captured is not None:
            raise UsageError("a graph is being captured already")
        self._mine.captured = Graph(origin)
        try:
            yield self._mine.captured
        finally:
            self._mine.captured = None

    def record(self, step: Callable[[], None]) -> None:
        """Append work that is no launch to the graph that is captured."""
        assert self._mine.captured is not None
        self._mine.captured.steps.append(step)

    def keep(self, owners: Iterable[Any]) -> None:
        """A graph that is captured keeps memory alive that its launches name; without one nothing has to."""
        if self._mine.captured is not None:
            self._mine.captured.kept += owners

    def launch(self, launch: Launch) -> None:
        """Run one launch, or record it where a graph is captured."""
        self.run(lambda stream: stream.enqueue(launch))

    def replay(self, graph: Graph, stream: int = 0) -> None:
        """Run captured work on a stream, in order, on the memory that it names. Neighbouring launches run together."""
        with self.turn, self.streams.replaying(id(graph), graph.origin, stream):
            for _, group in itertools.groupby(graph.steps, lambda step: isinstance(step, Launch)):
                neighbours = list(group)
                launches = [step for step in neighbours if isinstance(step, Launch)]
                if launches:
                    self.run_all(launches)
                for step in neighbours:
                    if not isinstance(step, Launch):
                        step()

    def run_all(self, launches: Sequence[Launch]) -> None:
        """Run launches together, or record them where a graph is captured."""

        def enqueue(stream: Stream) -> None:
            for launch in launches:
                stream.enqueue(launch)

        self.run(enqueue)

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        """Device memory that the script allocates while this lasts stays alive until its end.

        For calls that get addresses only: on a GPU torch's allocator keeps freed memory mapped, and scripts lean on it.
        """
        before, self._mine.held = self._mine.held, []
        try:
            yield
        finally:
            self._mine.held = before

    def run(self, enqueue: Callable[[Stream], Any], extra: list[HostRange] | None = None) -> Any:
        """Call `enqueue` with a stream, then run what it enqueued. extra: further memory that launches may touch."""
        if self._mine.captured is not None:
            recorder = LaunchRecorder()
            result = enqueue(recorder)
            self._mine.captured.steps += recorder.launches
            return result
        with self.turn:
            return self._run(enqueue, extra or [])

    def _run(self, enqueue: Callable[[Stream], Any], extra: list[HostRange]) -> Any:
        stream = self.new_stream([*self.ranges(), *extra])
        start = time.perf_counter()
        try:
            result = enqueue(stream if self.order is None else _Placed(stream, self.streams))
            self.launches += 1
            stream.synchronize()
        except TensorladderError as error:
            self.failure = self.failure or error
            if isinstance(error, Unsupported):
                self.incomplete = self.incomplete or error
            raise
        finally:
            self.emulated_seconds += time.perf_counter() - start
        return result

    def track(self, owner: Any, range_: HostRange) -> None:
        """Device memory of the script, as long as `owner` lives: what owns the memory itself, not a view of it.

        Of several ranges for one owner the first that has a shape is kept.
        """
        key = id(owner)

        def gone(_: Any) -> None:
            _, range_ = self._tracked.pop(key, (None, None))
            users = frozenset(self._users.pop(key, ()))
            if self.order is not None and range_ is not None:
                from ..check.streams import Freed

                what = f"a {range_.name} of {range_.size} bytes"
                self.order.forget(Freed(range_.address, range_.address + range_.size, what, range_.home, users))

        if self._mine.held is not None:
            self._mine.held.append(owner)
        known = self._tracked.get(key)
        if range_.size and (known is None or (known[1].shape is None and range_.shape is not None)):
            range_ = range_ if known is None else replace(range_, home=known[1].home)
            self._tracked[key] = (weakref.ref(owner, gone), range_)

    def used_on(self, owner: Any, stream: int) -> None:
        """Memory of `owner` is given back only when a stream is done with it, too (Tensor.record_stream)."""
        self._users.setdefault(id(owner), set()).add(stream)

    def tracks(self, owner: Any) -> bool:
        """Whether this is an owner of device memory."""
        return id(owner) in self._tracked

    def at(self, address: int) -> HostRange | None:
        """The device memory at an address."""
        return _covering(address, (r for _, r in list(self._tracked.values())))

    def ranges(self) -> list[HostRange]:
        """The device memory that is alive now, with its owner held."""
        alive = [(reference(), range_) for reference, range_ in list(self._tracked.values())]
        return [replace(range_, owner=owner) for owner, range_ in alive if owner is not None]

    def refuse(self, what: str) -> NoReturn:
        """Unsupported: a script asks for something of a GPU that is not modelled."""
        error = Unsupported(f"{what} is not modelled by the virtual GPU")
        self.incomplete = self.incomplete or error
        raise error

    def note(self, text: str) -> None:
        """Tell the person something once, beside the script's own output."""
        if text not in self._notes:
            self._notes.add(text)
            print(f"tensorladder: {text}", file=sys.stderr)
