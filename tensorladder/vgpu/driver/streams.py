"""CUDA streams and events as a script names them: handles, the current one, and what they order where that is checked.

Work runs when a call returns, on whatever stream it is, which is one of the orders that a GPU may choose. With a hazard
checker the rest of them is looked at as well: every launch, copy and wait is told to its `order` (check.streams).
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .session import HostRange, Session

LEGACY, PER_THREAD, HOST = 0, 2, -1
_LEGACY_TOO = 1  # cudaStreamLegacy
Extent = tuple[int, int]
"""Bytes of memory: address and size."""


@dataclass(frozen=True)
class Told:
    """A step of a captured graph that only tells the order of an event or a wait: no node of the graph."""

    tell: Callable[[], None]

    def __call__(self) -> None:
        self.tell()


#: pieces of memory of one strided array, beyond which its accesses are not followed
_MOST_PIECES = 1 << 16


def pieces(address: int, shape: Sequence[int], strides: Sequence[int], size: int) -> list[Extent]:
    """The memory of an array's elements of `size` bytes, neighbouring ones together; strides in bytes, none negative.
    None where there are too many pieces."""
    axes = sorted((step, n) for n, step in zip(shape, strides, strict=True) if n != 1 and step)
    if 0 in shape or (axes and axes[0][0] < 0):
        return []
    while axes and axes[0][0] == size:
        size *= axes.pop(0)[1]
    if prod(n for _, n in axes) > _MOST_PIECES:
        return []
    places = itertools.product(*(range(0, step * n, step) for step, n in axes))
    return [(address + sum(place), size) for place in places]


class _OfThread(threading.local):
    """What each host thread has for itself."""

    current = LEGACY
    per_thread: int | None = None  # its per-thread default stream
    left: tuple[int, ...] = ()  # those that were current before the streams that it has entered
    moving = 0
    branches: dict[int, int] | None = None  # while a graph is replayed: its streams -> those of the replay
    replay: tuple[int, int, Any] = (0, 0, None)  # graph, stream, what came before the replay


class Streams:
    """The streams of one session. order: what the checker knows of them, None without one."""

    def __init__(self, session: Session, order: Any = None):
        self._session, self.order = session, order
        self._handles = itertools.count(0x5700_0000, 0x100)
        self._names: dict[int, str] = {}
        self._event_handles = itertools.count(1)
        self._events: dict[int, Any] = {}
        # host memory that copies access while the host goes on, by id of its owner
        self.shared: dict[int, tuple[Any, HostRange]] = {}
        self._mine = _OfThread()
        self._first = threading.get_ident()  # its per-thread default stream has the handle for that

    # ------------------------------------------------------------ handles
    def create(self, blocking: bool = True, name: str = "") -> int:
        """A new stream's handle. blocking: it and the legacy default stream wait for each other."""
        handle = next(self._handles)
        if self.order is not None:
            self.order.create(handle, blocking, name)
        return handle

    def new_event(self) -> int:
        """A new event's handle."""
        return next(self._event_handles)

    @property
    def current(self) -> int:
        """The stream of this thread that a library launches on."""
        return self._mine.current

    def use(self, stream: int) -> None:
        """Make a stream this thread's current one."""
        self._mine.current = stream

    def enter(self, stream: int) -> None:
        """Make a stream this thread's current one, until it `leave`s it."""
        self._mine.left += (self.current,)
        self.use(stream)

    def leave(self) -> None:
        """The stream before the last one that was entered is current again."""
        self.use(self._mine.left[-1])
        self._mine.left = self._mine.left[:-1]

    @contextlib.contextmanager
    def using(self, stream: int) -> Iterator[None]:
        """A stream is the current one while this lasts."""
        self.enter(stream)
        try:
            yield
        finally:
            self.leave()

    def at(self, stream: int) -> int:
        """The stream that work is on which the script enqueued, or captured, on `stream`."""
        stream = LEGACY if stream == _LEGACY_TOO else stream
        if stream == PER_THREAD and threading.get_ident() != self._first:
            if self._mine.per_thread is None:
                self._mine.per_thread = self.create(name="a thread's default stream")
            stream = self._mine.per_thread
        branches = self._mine.branches
        if branches is None or stream == HOST:
            return stream
        if stream not in branches:
            graph, launched_on, before = self._mine.replay
            branch = branches[stream] = hash((graph, stream, launched_on)) | 1 << 62
            self.order.branch(branch, before, f"a branch of a graph on {self.order.name(launched_on)}")
        return branches[stream]

    # ------------------------------------------------------------ order
    def _told(self, step: Callable[[], None]) -> None:
        """Tell the order something, now or at each replay of the graph that is captured."""
        if self.order is None:
            return
        if self._session.capturing:
            self._session.record(Told(step))
        else:
            step()

    def record(self, event: int, stream: int) -> None:
        """An event is recorded on a stream."""
        self._told(lambda: self.recorded(event, self.at(stream)))

    def recorded(self, event: int, stream: int) -> None:
        """An event comes now, on a stream of the order."""
        self._events[event] = self.order.record(stream)

    def wait(self, stream: int, event: int) -> None:
        """A stream waits for an event; for one that was never recorded there is nothing to wait for."""
        self._told(lambda: self.order.wait(self.at(stream), self._events.get(event, {})))

    def wait_stream(self, stream: int, other: int) -> None:
        """A stream waits for all that another one has to do now."""
        self._told(lambda: self.order.wait(self.at(stream), self.order.record(self.at(other))))

    def forget_event(self, event: int) -> None:
        """An event is no more."""
        self._events.pop(event, None)

    def synchronize_event(self, event: int) -> None:
        """The host waits for an event, or sees that it has come."""
        if self.order is not None and not self._session.capturing:
            self.order.synchronize(self._events.get(event, {}))

    def synchronize(self, stream: int | None = None) -> None:
        """The host waits for a stream, without one for the device."""
        if self.order is not None and not self._session.capturing:
            self.order.synchronize(None if stream is None else self.order.record(self.at(stream)))

    def barrier(self) -> None:
        """All work so far comes before all that follows."""
        if self.order is not None:
            self.order.synchronize()

    # ------------------------------------------------------------ work
    def accessed(self, stream: int, what: str, reads: Sequence[Extent] = (), writes: Sequence[Extent] = ()) -> None:
        """Work of a stream that is no launch: bytes that it reads and writes. Not while a graph is captured."""
        if self.order is None or self._session.capturing:
            return
        from ..check.footprints import footprint_of

        footprint = footprint_of(reads, writes)
        if footprint:
            with self._session.turn:  # launches of other threads on that stream have been, or come afterwards
                self.order.over(self.at(stream), what, footprint)

    # ------------------------------------------------------------ host memory that copies access while the host goes on
    @contextlib.contextmanager
    def moving(self) -> Iterator[None]:
        """While this lasts, the host accesses nothing: what is copied is read by the copy."""
        self._mine.moving += 1
        try:
            yield
        finally:
            self._mine.moving -= 1

    def share(self, owner: Any, whole: HostRange) -> bool:
        """Copies for which the host does not wait access host memory of `owner`: from now on, what the host does with
        it counts. whole: all that it owns. False where nothing is checked."""
        if self.order is None or self._session.capturing:
            return False
        from ..check.streams import Freed

        key = id(owner)

        def gone(_: Any) -> None:
            self.shared.pop(key, None)
            self.order.forget(Freed(whole.address, whole.address + whole.size))

        if key not in self.shared:
            self.shared[key] = weakref.ref(owner, gone), whole
        return True

    def host_accesses(self, owner: Any, what: str, reads: Sequence[Extent] = (), writes: Sequence[Extent] = ()) -> None:
        """The host accesses memory that such copies may still access."""
        if id(owner) in self.shared and not self._mine.moving and not self._session.capturing:
            self.accessed(HOST, what, reads, writes)

    @contextlib.contextmanager
    def replaying(self, graph: int, origin: int, stream: int) -> Iterator[None]:
        """While this lasts, work of a graph runs: what was captured on its first stream is on `stream`, other streams
        are branches, which are over when the graph is."""
        if self.order is None:
            yield
            return
        mine = self._mine
        mine.replay = graph, stream, self.order.record(stream)
        branches = mine.branches = {origin: stream, LEGACY: stream}
        try:
            yield
        finally:
            mine.branches = None
            for branch in branches.values():
                self.order.wait(stream, self.order.record(branch))
