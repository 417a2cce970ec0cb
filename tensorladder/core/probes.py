"""The host's side of probes: what a rung marks (`RUNG.probes`), the buffer's size, and times out of its words.

A track is a warp of each CTA that marks time as it goes round a loop: mark i * len(loop) + j begins span j of iteration
i, the marks after the loop begin the spans of `after`, and one last mark ends them. Device code writes a row of int64 a
track (`rungs.parts.probes`): the SM's number, %globaltimer, then a word a mark, %clock in the low half and
%globaltimer's low half in the high one. Rows are poisoned with -1 before the launch.

%globaltimer is one for all SMs but ticks coarsely (32 ns on an H200); %clock counts an SM's cycles. Of each SM's marks
a line is fitted through (cycles, nanoseconds), and times are read off it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorladder.core.errors import KernelError, UsageError
from tensorladder.core.timeline import COPY, LOAD, RUN, TENSOR, WAIT, Arrow, Span, Timeline, Track, lanes

HEADER = 2  # words before a row's marks: SM, %globaltimer
POISON = -1
_HALF = 1 << 32
NAME = "probes"  # the buffer's, among a rung's arrays
#: kinds of spans by the first word of their names; all others are RUN
KINDS = {"wait:": WAIT, "copy": COPY}


@dataclass(frozen=True)
class ProbeTrack:
    """role: the warp's part. loop, after: names of the spans, "" for one that is not shown; `KINDS` go by the names."""

    role: str
    loop: tuple[str, ...]
    after: tuple[str, ...] = ()

    def marks(self, iterations: int) -> int:
        """How many marks there are."""
        return iterations * len(self.loop) + len(self.after) + 1

    def iterations(self, marks: int) -> int:
        """Of how many iterations there are so many marks; -1 where that cannot be."""
        whole, rest = divmod(marks - len(self.after) - 1, len(self.loop))
        return whole if rest == 0 and whole >= 0 else -1

    def name(self, span: int, iterations: int) -> tuple[str, int]:
        """(name, iteration) of the span that mark `span` begins."""
        inside = iterations * len(self.loop)
        if span < inside:
            return self.loop[span % len(self.loop)], span // len(self.loop)
        return self.after[span - inside], iterations

    def place(self, name: str, iteration: int, iterations: int) -> int:
        """Number of a named span of an iteration; past the last, of the first span after the loop."""
        if iteration < iterations:
            return iteration * len(self.loop) + self.loop.index(name)
        return iterations * len(self.loop)


@dataclass(frozen=True)
class InFlight:
    """Asynchronous work, a span an iteration: from the start of a span of one track to the end of one of another.

    The end is when a warp saw it: work that nobody waited for had ended before.

    begin, end: (role, name). later: iterations from the one to the other.
    """

    name: str
    kind: str
    begin: tuple[str, str]
    end: tuple[str, str]
    later: int = 0


@dataclass(frozen=True)
class Release:
    """What ends a wait: the named work (or span) of iteration i lets the wait (role, name) of i + later go on.

    later: a number, or the knob of the rung that holds it.
    """

    by: tuple[str, str]
    wait: tuple[str, str]
    later: int | str = 0


@dataclass(frozen=True)
class Plan:
    """What a rung marks. overlap: kinds of spans whose overlap is the rung's point (`Timeline.overlap`)."""

    tracks: tuple[ProbeTrack, ...]
    in_flight: tuple[InFlight, ...] = ()
    releases: tuple[Release, ...] = ()
    overlap: tuple[str, str] = (LOAD, TENSOR)

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> Plan:
        """From the literals of `RUNG.probes`."""
        return cls(
            tuple(ProbeTrack(*one) for one in said["tracks"]),
            tuple(InFlight(*one) for one in said.get("in_flight", ())),
            tuple(Release(*one) for one in said.get("releases", ())),
            tuple(said.get("overlap", (LOAD, TENSOR))),
        )

    def shape(self, ctas: int, iterations: int) -> tuple[int, int, int]:
        """The buffer's: (CTAs, tracks, words of a row, an even number of them)."""
        words = HEADER + max(track.marks(iterations) for track in self.tracks)
        return ctas, len(self.tracks), -(-words // 2) * 2


def poisoned(shape: Sequence[int]) -> np.ndarray:
    """A buffer that nothing has been written to."""
    return np.full(tuple(shape), POISON, np.int64)


def decode(plan: Plan, buffer: np.ndarray, config: Mapping[str, Any], title: str) -> Timeline:
    """The timeline of a buffer that a kernel with these knobs has filled; a group a CTA, time 0 its first mark.

    KernelError where a row is not whole: a CTA that did not run, or a mark that was left out.
    """
    if buffer.ndim != 3 or buffer.shape[1] != len(plan.tracks) or buffer.dtype != np.int64:
        raise UsageError(f"a buffer of {len(plan.tracks)} tracks is wanted, not {buffer.shape} of {buffer.dtype}")
    rows = [[_Row.read(plan, buffer, cta, n) for n in range(len(plan.tracks))] for cta in range(len(buffer))]
    every = [row for cta in rows for row in cta]
    # %globaltimer counts from 1970: as doubles such times would be 256 ns apart.
    origin = min(int(row.timer[0]) for row in every)
    for row in every:
        row.timer -= origin
    _assign_times(every)
    first = min(row.times[0] for row in every)
    timeline = Timeline(title)
    for cta, of_cta in sorted(enumerate(rows), key=lambda one: (one[1][0].sm, one[1][0].times[0])):
        for row in of_cta:
            row.times = row.times - first
        _Cta(plan, config, f"SM {of_cta[0].sm}, CTA {cta}", of_cta, timeline).add()
    return timeline


class _Row:
    """A track of a CTA: its SM, and for each mark the cycle and the nanosecond (both unwrapped), later its time."""

    def __init__(self, track: ProbeTrack, sm: int, cycles: np.ndarray, timer: np.ndarray, iterations: int) -> None:
        self.track, self.sm, self.cycles, self.timer, self.iterations = track, sm, cycles, timer, iterations
        self.times = np.empty(0)

    @classmethod
    def read(cls, plan: Plan, buffer: np.ndarray, cta: int, number: int) -> _Row:
        track, words = plan.tracks[number], buffer[cta, number]
        marks = words[HEADER:]
        written = int(np.count_nonzero(marks != POISON))
        iterations = track.iterations(written)
        if words[0] == POISON or iterations < 0 or (marks[:written] == POISON).any():
            missing = int(np.argmax(marks == POISON)) if (marks == POISON).any() else written
            raise KernelError(
                f"probes of CTA {cta}, track {track.role!r}: {written} marks were written, mark {missing} is missing"
            )
        low = marks[:written].view(np.uint64)
        cycles, timer = (low & (_HALF - 1)).astype(np.int64), (low >> np.uint64(32)).astype(np.int64)
        start = int(words[1])
        return cls(track, int(words[0]), cycles, start + (timer - start) % _HALF, iterations)


def _assign_times(rows: Sequence[_Row]) -> None:
    """Times of marks, SM by SM: off the line through its (cycles, nanoseconds)."""
    by_sm: dict[int, list[_Row]] = {}
    for row in rows:
        by_sm.setdefault(row.sm, []).append(row)
    for of_sm in by_sm.values():
        origin = min(of_sm, key=lambda row: int(row.timer[0]))
        # Of one SM's marks, none is half of what %clock holds away from another.
        middle = int(origin.cycles[0]) - _HALF // 2
        cycles = [(row.cycles - middle) % _HALF for row in of_sm]
        x = np.concatenate(cycles).astype(np.float64)
        base = int(origin.timer[0])
        y = np.concatenate([row.timer - base for row in of_sm]).astype(np.float64)
        if len(np.unique(y)) < 3 or np.ptp(x) == 0:  # too short to tell the clock's rate
            for row in of_sm:
                row.times = row.timer.astype(np.float64)
            continue
        slope, _ = np.polyfit(x - x.mean(), y, 1)
        for row, count in zip(of_sm, cycles):
            row.times = base + y.mean() + slope * (count - x.mean())


class _Cta:
    """Spans and arrows of one CTA."""

    def __init__(
        self, plan: Plan, config: Mapping[str, Any], group: str, rows: Sequence[_Row], timeline: Timeline
    ) -> None:
        self.plan, self.config, self.group, self.timeline = plan, config, group, timeline
        self.rows = {row.track.role: row for row in rows}
        #: (role or name of the work, name of the span, iteration) -> its number in the timeline
        self.found: dict[tuple[str, str, int], int] = {}

    def add(self) -> None:
        """Put them into the timeline."""
        for work in self.plan.in_flight:
            self._flight(work)
        for role, row in self.rows.items():
            if any(row.track.loop + row.track.after):
                self._track(role, row)
        for release in self.plan.releases:
            self._arrows(release)

    def _new_track(self, name: str, role: str) -> int:
        self.timeline.tracks.append(Track(self.group, name, role))
        return len(self.timeline.tracks) - 1

    def _span(self, key: tuple[str, str, int], track: int, kind: str, start: float, end: float) -> None:
        self.found[key] = len(self.timeline.spans)
        start, end = float(start), float(max(start, end))
        self.timeline.spans.append(Span(track, key[1], kind, start, end, {"iteration": key[2]}))

    def _track(self, role: str, row: _Row) -> None:
        number = self._new_track(role, role)
        for span in range(len(row.times) - 1):
            name, iteration = row.track.name(span, row.iterations)
            if name:
                kind = KINDS.get(name.split()[0], RUN)
                self._span((role, name, iteration), number, kind, row.times[span], row.times[span + 1])

    def _flight(self, work: InFlight) -> None:
        begin, end = self.rows[work.begin[0]], self.rows[work.end[0]]
        intervals: list[tuple[float, float]] = []
        for i in range(begin.iterations):
            start = begin.times[begin.track.place(work.begin[1], i, begin.iterations)]
            stop = end.times[end.track.place(work.end[1], i + work.later, end.iterations) + 1]
            if work.kind == TENSOR and intervals:  # what a warpgroup or a CTA issues is done in order
                start = max(start, intervals[-1][1])
            intervals.append((float(start), float(max(start, stop))))
        places = lanes(intervals)
        names = [f"{work.name} ({n + 1})" if n else work.name for n in range(max(places, default=0) + 1)]
        tracks = [self._new_track(name, "") for name in names]
        for i, ((start, stop), lane) in enumerate(zip(intervals, places)):
            self._span((work.name, work.name, i), tracks[lane], work.kind, start, stop)

    def _arrows(self, release: Release) -> None:
        later = self.config[release.later] if isinstance(release.later, str) else release.later
        role, name = release.wait
        row = self.rows[role]
        for i in range(row.iterations - later):
            source = self.found.get((*release.by, i))
            after = self._after(row, row.track.place(name, i + later, row.iterations))
            if source is not None and after is not None:
                self.timeline.arrows.append(Arrow(f"ends {name}", source, after))

    def _after(self, row: _Row, span: int) -> int | None:
        """The span that follows one of a row."""
        if span + 1 >= len(row.times) - 1:
            return None
        name, iteration = row.track.name(span + 1, row.iterations)
        return self.found.get((row.track.role, name, iteration))
