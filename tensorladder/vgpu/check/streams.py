"""What the host's streams, events and waits order, and accesses of launches and copies that nothing orders.

Two operations of different streams are concurrent unless an event, a wait or the host comes between (CUDA programming
guide, "Asynchronous Concurrent Execution"). Each stream has a vector clock: how many operations of every stream have
happened before its next one. An operation takes its stream's clock and the host's; an event is a clock that was copied;
a wait joins it. What is found hangs on these alone, not on when the operations ran.

The legacy default stream (handle 0) waits for all blocking streams, and they for it; streams that are made with
cudaStreamNonBlocking, torch's among them, take no part in that ("Default Stream").

Several host threads may enqueue at a time. They are one host: what one of them has waited for, the others know, since
the locks and queues by which they tell each other are not seen here.
"""

from __future__ import annotations

import functools
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

import numpy as np

from tensorladder.core.findings import Finding, Verdict, Where
from tensorladder.vgpu.check.footprints import (
    END,
    NOTHING,
    NUMBER,
    SITE,
    START,
    WRITE,
    Accessed,
    Kind,
    Runs,
    laid_over,
    runs_of,
)

Clock = dict[int, int]
"""Stream -> how many of its operations have happened before."""

LEGACY, PER_THREAD, HOST = 0, 2, -1
#: how many operations of a stream may wait to be merged
_LATE = 64
#: earlier operations that one operation is compared with in findings
_MOST = 8
_VGPU = Path(__file__).resolve().parent.parent
#: whose lines are nobody's: those that stand between a script and its launches
_OURS = tuple(
    str(folder) for folder in (_VGPU, *(_VGPU.parent / n for n in ("frontends", "core", "measure", "cli", "ops")))
)
_LIBRARY = (sysconfig.get_paths()["stdlib"], *{sysconfig.get_paths()[n] for n in ("purelib", "platlib")}, "<")


def called_at() -> tuple[str, int] | None:
    """File and line of the person's code that is running now."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_OURS) and not name.startswith(_LIBRARY):
            return name, frame.f_lineno
        frame = frame.f_back  # type: ignore[assignment]
    return None


@dataclass
class Work:
    """One operation of a stream: a launch, a copy, an access of the host's.

    number: from 1 on in its stream. clock: what has happened before it. serial: the order in which the host enqueued.
    called: the line that did. where: the instruction of a site.
    """

    stream: int
    number: int
    clock: Clock
    what: str
    serial: int
    called: tuple[str, int] | None = None
    where: Callable[[int], Where] | None = None

    def place(self, site: int) -> Where:
        """Where an access of it is written."""
        if self.where is not None:
            return self.where(site)
        file, line = self.called or (None, None)
        return Where(self.what, file, line, space="global")


_Side = tuple[Work, int, str]
"""An access of a finding: the operation, the site, what it does."""


@dataclass(frozen=True)
class Freed:
    """Memory that is no more. what: in words. home: the stream whose next work may be given it at once, None: it comes
    back when all is done. users: streams that the allocator waits for (Tensor.record_stream)."""

    start: int
    end: int
    what: str = "memory"
    home: int | None = None
    users: frozenset[int] = frozenset()

    def runs(self) -> Runs:
        return runs_of(np.array([self.start]), np.array([self.end]))


@dataclass
class _Stream:
    name: str
    blocking: bool
    clock: Clock = field(default_factory=dict)
    accessed: Accessed = field(default_factory=Accessed)
    late: list[Mapping[Kind, Runs]] = field(default_factory=list)
    works: dict[int, Work] = field(default_factory=dict)
    last: int = 0  # number of the last operation with accesses

    def merged(self) -> Accessed:
        """All accesses that are kept."""
        for one in self.late:
            self.accessed.add(one)
        if self.late:
            self.late = []
            kept = np.unique(np.concatenate([runs[:, NUMBER] for runs in self.accessed.runs.values()]))
            self.works = {number: self.works[number] for number in kept.tolist()}
        return self.accessed

    def forget(self, cover: Runs) -> None:
        self.merged().forget(cover)

    def clear(self) -> None:
        """Everything that comes is ordered after this stream's operations."""
        self.accessed, self.late, self.works, self.last = Accessed(), [], {}, 0


def _join(clock: Clock, other: Clock) -> None:
    for stream, number in other.items():
        if number > clock.get(stream, 0):
            clock[stream] = number


_P = ParamSpec("_P")
_R = TypeVar("_R")


def _one_at_a_time(method: Callable[Concatenate[Order, _P], _R]) -> Callable[Concatenate[Order, _P], _R]:
    """One host thread at a time."""

    @functools.wraps(method)
    def locked(self: Order, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        with self._lock:
            return method(self, *args, **kwargs)

    return locked


class Order:
    """What is ordered among the operations of one device's streams and its host.

    found: is told of each finding. place: what lies at an address, in words.
    """

    def __init__(self, found: Callable[[Finding], None]) -> None:
        self._lock = threading.RLock()
        self._found = found
        self.place: Callable[[int], str] = lambda address: f"address {address:#x}"
        self._host: Clock = {}
        self._streams = {
            LEGACY: _Stream("the default stream", True),
            PER_THREAD: _Stream("the per-thread default stream", True),
            HOST: _Stream("the host", False),
        }
        self._freed: list[Freed] = []
        self._running: set[int] = set()  # streams with operations that the host has not waited for
        self._kept: set[int] = set()  # streams whose accesses are kept
        self._later: set[int] = set()  # serials of operations that are enqueued and have not run
        self._made = self._serial = 0

    # ------------------------------------------------------------ streams
    @_one_at_a_time
    def create(self, handle: int, blocking: bool = True, name: str = "") -> None:
        """A stream by its handle. blocking: it and the legacy default stream wait for each other."""
        self._made += 1
        self._streams[handle] = _Stream(name or f"stream {self._made}", blocking)

    @_one_at_a_time
    def branch(self, handle: int, before: Clock, name: str) -> None:
        """A branch of a graph that is launched: it comes after what came before the graph."""
        _join(self._streams.setdefault(handle, _Stream(name, False)).clock, before)

    def name(self, stream: int) -> str:
        """A stream's name in findings."""
        return self._streams[stream].name if stream in self._streams else f"stream {stream:#x}"

    def _now(self, stream: int) -> Clock:
        """The clock of a stream, with what its next operation waits for by itself."""
        if stream not in self._streams:
            self.create(stream, name=f"stream {stream:#x}")
        one = self._streams[stream]
        _join(one.clock, self._host)
        if stream == LEGACY:
            for other in self._streams.values():
                if other.blocking:
                    _join(one.clock, other.clock)
        elif one.blocking:
            _join(one.clock, self._streams[LEGACY].clock)
        return one.clock

    @_one_at_a_time
    def begin(self, stream: int, what: str, where: Callable[[int], Where] | None = None, later: bool = False) -> Work:
        """The next operation of a stream (HOST: of the host, which is over when this returns).

        later: it runs after other calls of the host; `accessed` says that it has run.
        """
        clock = self._now(stream)
        number = clock.get(stream, 0) + 1
        work = Work(stream, number, dict(clock), what, self._serial, called_at(), where)
        self._serial += 1
        clock[stream] = number
        if later:
            self._later.add(work.serial)
        if stream == HOST:
            self._host[HOST] = number
        else:
            self._running.add(stream)
        return work

    # ------------------------------------------------------------ order
    @_one_at_a_time
    def record(self, stream: int) -> Clock:
        """What an event that is recorded now stands for."""
        return dict(self._now(stream))

    @_one_at_a_time
    def wait(self, stream: int, event: Clock) -> None:
        """The stream's next operations come after the event."""
        _join(self._now(stream), event)

    @_one_at_a_time
    def synchronize(self, event: Clock | None = None) -> None:
        """The host waits for an event, without one for the whole device."""
        clocks = [self._streams[handle].clock for handle in self._running] if event is None else [event]
        for clock in clocks:
            _join(self._host, clock)
        self._running = {h for h in self._running if self._streams[h].clock[h] > self._host.get(h, 0)}
        self._clear()

    def _clear(self) -> None:
        """Forget accesses that everything comes after."""
        for handle in list(self._kept) if not self._later else ():
            stream = self._streams[handle]
            if stream.last <= self._host.get(handle, 0):
                stream.clear()
                self._kept.remove(handle)

    @_one_at_a_time
    def alone(self, work: Work) -> bool:
        """Whether nothing may run beside an operation that the host waits for now."""
        others = ((h, self._streams[h].clock[h]) for h in (self._running | self._kept) - {work.stream})
        return all(number <= work.clock.get(handle, 0) for handle, number in others)

    @_one_at_a_time
    def drop(self, work: Work) -> None:
        """An operation has run, or its accesses are of no interest: it is `alone`."""
        self._later.discard(work.serial)

    # ------------------------------------------------------------ accesses
    def forget(self, freed: Freed) -> None:
        """Memory was freed: taken note of at the next operation. The garbage collector calls this at any time, so it
        takes no lock."""
        self._freed.append(freed)

    @_one_at_a_time
    def accessed(self, work: Work, footprint: Mapping[Kind, Runs]) -> None:
        """What an operation accesses: findings where nothing orders it, then it is kept for later ones."""
        self._later.discard(work.serial)
        self._forget()
        mine = self._streams[work.stream]
        new = {kind: runs.copy() for kind, runs in footprint.items() if len(runs)}
        if not new:
            return
        for runs in new.values():
            runs[:, NUMBER] = work.number
        for handle in sorted(self._kept - {work.stream}):
            seen = work.clock.get(handle, 0)
            if self._streams[handle].last > seen:
                for finding in self._collisions(work, self._streams[handle], new, seen):
                    self._found(finding)
        if work.number <= self._host.get(work.stream, 0) and not self._later:
            return
        self._kept.add(work.stream)
        mine.works[work.number] = work
        mine.late.append(new)
        mine.last = work.number
        if len(mine.late) > _LATE:
            mine.merged()

    @_one_at_a_time
    def over(self, stream: int, what: str, footprint: Mapping[Kind, Runs]) -> None:
        """An operation of a stream that is no launch, and what it accesses."""
        self.accessed(self.begin(stream, what), footprint)

    def _forget(self) -> None:
        freed = []
        while self._freed:
            freed.append(self._freed.pop())
        if not freed or not self._kept:
            return
        for one in freed:
            for finding in self._still_used(one):
                self._found(finding)
        cover = NOTHING
        for one in freed:
            cover = laid_over(cover, one.runs())
        for handle in self._kept:
            self._streams[handle].forget(cover)

    def _still_used(self, freed: Freed) -> Iterator[Finding]:
        """What other streams may still do with memory that the allocator can give to the next work of its own."""
        if freed.home is None:
            return
        home = self._now(freed.home)
        for handle in sorted(self._kept - {freed.home, *freed.users}):
            stream, seen = self._streams[handle], home.get(handle, 0)
            if stream.last <= seen:
                continue
            for _, (wrote, _), rows, _ in stream.merged().collisions({WRITE: freed.runs()}, seen):
                work = stream.works[int(rows[-1, NUMBER])]
                name, does = self.name(freed.home), "writes" if wrote else "reads"
                message = (
                    f"{freed.what} is freed, which {self._named(work)} {does}: {name}, where it was made, has not "
                    "waited for that, and its next allocation may be given the same memory"
                )
                fix = f"Tensor.record_stream({stream.name}) before it goes, or let {name} wait for {stream.name}"
                yield Finding("race", message, work.place(int(rows[-1, SITE])), None, fix, Verdict.REVIEW)
                break

    def _collisions(self, work: Work, other: _Stream, new: Mapping[Kind, Runs], seen: int) -> Iterator[Finding]:
        for (writes, _), (wrote, _), rows, sites in other.merged().collisions(new, seen):
            for number in np.unique(rows[:, NUMBER])[:_MOST].tolist():
                of_it = rows[:, NUMBER] == number
                row, size = rows[of_it][0], int((rows[of_it, END] - rows[of_it, START]).sum())
                earlier = other.works[number]
                here = work, int(sites[of_it][0]), "writes" if writes else "reads"
                there = earlier, int(row[SITE]), "writes" if wrote else "reads"
                yield self._finding(here, there, int(row[START]), size)

    def _finding(self, one: _Side, two: _Side, first: int, size: int) -> Finding:
        """Two accesses, the later one of the host's order first."""
        (work, site, does), (earlier, other_site, did) = sorted((one, two), key=lambda side: -side[0].serial)
        message = (
            f"{self._named(work)} {does} {size} byte{'s' * (size > 1)} of {self.place(first)} that "
            f"{self._named(earlier)} {did}: no event, wait or synchronisation orders the two"
        )
        return Finding("race", message, work.place(site), earlier.place(other_site), self._fix(work, earlier))

    def _named(self, work: Work) -> str:
        if work.stream == HOST:
            return f"{work.what} by the host"
        return f"{work.what} on {self._streams[work.stream].name}{_at(work)}"

    def _fix(self, work: Work, earlier: Work) -> str:
        before, after = self._streams[earlier.stream].name, self._streams[work.stream].name
        if work.stream == HOST:
            return f"synchronize {before}, or an event that was recorded on it afterwards, first"
        return (
            f"record an event on {before} after the earlier one, and let {after} wait for it before the later one "
            "(wait_stream; cudaEventRecord and cudaStreamWaitEvent)"
        )


def _at(work: Work) -> str:
    """The line that enqueued a launch, for a sentence."""
    if work.where is None or work.called is None:
        return ""
    return f" (enqueued at {Path(work.called[0]).name}:{work.called[1]})"
