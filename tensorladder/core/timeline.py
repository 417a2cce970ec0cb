"""A timeline: tracks of spans and the arrows between them, whoever recorded it, and the file that Perfetto opens.

The file is the Trace Event Format (Chrome's JSON), as PyTorch's profiler writes it: Perfetto's UI and trace processor
and chrome://tracing read it, and a machine with a GPU needs no package to write it. Of that format only complete events
(`X`), flows (`s`, `f`) and names (`M`) are used, and the spans of one track never overlap, which is what Perfetto's
importer supports. Times are nanoseconds here, and microseconds in the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tensorladder.core.files import write_whole

#: kinds of spans, by which they are counted and coloured
RUN, WAIT, LOAD, STORE, TENSOR, COPY = "run", "wait", "load", "store", "tensor", "copy"


@dataclass(frozen=True)
class Track:
    """A row. group: what it belongs to, such as a CTA on its SM. role: the warp's part in the kernel, "" for units."""

    group: str
    name: str
    role: str = ""


@dataclass(frozen=True)
class Span:
    """What a track did from `start` to `end` (ns). kind: of the constants above. facts: shown with it."""

    track: int
    name: str
    kind: str
    start: float
    end: float
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Arrow:
    """From the end of one span to the start of another (indices into `Timeline.spans`): the one let the other begin."""

    name: str
    source: int
    target: int


@dataclass
class Timeline:
    """What was recorded of a launch. facts: what was run and where; left_out: records that there was no room for."""

    title: str
    facts: dict[str, Any] = field(default_factory=dict)
    tracks: list[Track] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    arrows: list[Arrow] = field(default_factory=list)
    left_out: int = 0

    @property
    def groups(self) -> list[str]:
        """The groups, in the order of their tracks."""
        return list(dict.fromkeys(track.group for track in self.tracks))

    def of_kind(self, kind: str, group: str | None = None) -> list[Span]:
        """The spans of a kind, of all groups or one."""
        return [s for s in self.spans if s.kind == kind and group in (None, self.tracks[s.track].group)]

    @property
    def shown(self) -> list[Span]:
        """The spans that the file has: those that last a nanosecond, its resolution. Arrows at others find the next."""
        return [span for span in self.spans if round(span.end) > round(span.start)]

    @property
    def length(self) -> float:
        """Nanoseconds from the first start to the last end."""
        if not self.spans:
            return 0.0
        return max(s.end for s in self.spans) - min(s.start for s in self.spans)

    def overlap(self, one: str, other: str) -> float | None:
        """The share of the time in which `other` is under way in which `one` is too, both in the same group.

        Groups are added up; None where `other` never is.
        """
        found: dict[tuple[str, str], list[Interval]] = {}
        for span in self.spans:
            if span.kind in (one, other):
                found.setdefault((self.tracks[span.track].group, span.kind), []).append((span.start, span.end))
        both = alone = 0.0
        for group in self.groups:
            first, second = merged(found.get((group, one), ())), merged(found.get((group, other), ()))
            both += common(first, second)
            alone += sum(end - start for start, end in second)
        return both / alone if alone else None

    def only(self, groups: Sequence[str]) -> Timeline:
        """The part of these groups."""
        kept = [n for n, track in enumerate(self.tracks) if track.group in groups]
        place = {old: new for new, old in enumerate(kept)}
        spans = [n for n, span in enumerate(self.spans) if span.track in place]
        at = {old: new for new, old in enumerate(spans)}
        made = [self.spans[n] for n in spans]
        return Timeline(
            self.title, self.facts, [self.tracks[n] for n in kept],
            [Span(place[s.track], s.name, s.kind, s.start, s.end, s.facts) for s in made],
            [Arrow(a.name, at[a.source], at[a.target]) for a in self.arrows if a.source in at and a.target in at],
            self.left_out,
        )  # fmt: skip

    def events(self) -> list[dict[str, Any]]:
        """As the Trace Event Format has them: names, then everything by time."""
        groups = {name: n + 1 for n, name in enumerate(self.groups)}
        made = [_named("process_name", pid, 0, name) for name, pid in groups.items()]
        made += [_sorted("process_sort_index", pid, 0, pid) for pid in groups.values()]
        for tid, track in enumerate(self.tracks, 1):
            pid = groups[track.group]
            made += [_named("thread_name", pid, tid, track.name), _sorted("thread_sort_index", pid, tid, tid)]
        timed: list[tuple[int, int, dict[str, Any]]] = []
        for span in self.shown:
            start, end = round(span.start), round(span.end)
            place = {"pid": groups[self.tracks[span.track].group], "tid": span.track + 1}
            event = {"ph": "X", "name": span.name, "cat": span.kind, "ts": _microseconds(start),
                     "dur": _microseconds(end - start), **place, "args": span.facts}  # fmt: skip
            # of spans that begin together, the longer one first: it would hold the other
            timed.append((start, start - end, event))
        for number, arrow in enumerate(self.arrows, 1):
            timed += self._ends(number, arrow, groups)
        return made + [event for _, _, event in sorted(timed, key=lambda one: one[:2])]

    def _ends(self, number: int, arrow: Arrow, groups: dict[str, int]) -> list[tuple[int, int, dict[str, Any]]]:
        """Both ends of an arrow; each lies inside its span, by which readers find it."""
        source, target = self.spans[arrow.source], self.spans[arrow.target]
        begin = round(target.start)
        leave = max(round(source.start), min(round(source.end) - 1, begin))
        made = []
        for phase, at, span in (("s", leave, source), ("f", max(begin, leave), target)):
            event = {"ph": phase, "name": arrow.name, "cat": "flow", "id": number, "ts": _microseconds(at),
                     "pid": groups[self.tracks[span.track].group], "tid": span.track + 1}  # fmt: skip
            made.append((at, 1 if phase == "s" else 2, event | ({"bp": "e"} if phase == "f" else {})))
        return made

    def write(self, path: str | Path) -> int:
        """Write the file, whole or not at all; its bytes. UsageError where it cannot be written."""
        # No "displayTimeUnit": Perfetto's trace processor would take "ns" for the unit of all times.
        whole = {"traceEvents": self.events(), "otherData": self._about()}
        text = json.dumps(whole, separators=(",", ":"), allow_nan=False) + "\n"
        return write_whole(Path(path), text.encode(), "-o")

    def _about(self) -> dict[str, Any]:
        return {"title": self.title, **self.facts, "left_out": self.left_out}


def _microseconds(nanoseconds: int) -> float:
    """As the file has them, and a fifth of a nanosecond: readers cut off what is left after multiplying by 1000."""
    return (10 * nanoseconds + 2) / 1e4


def _named(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def _sorted(what: str, pid: int, tid: int, index: int) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"sort_index": index}}


Interval = tuple[float, float]


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """The union of intervals, in order, without overlaps."""
    made: list[Interval] = []
    for start, end in sorted(intervals):
        if made and start <= made[-1][1]:
            made[-1] = (made[-1][0], max(made[-1][1], end))
        else:
            made.append((start, end))
    return made


def common(first: Sequence[Interval], second: Sequence[Interval]) -> float:
    """The length that two unions (as `merged` makes them) have in common."""
    total, n = 0.0, 0
    for start, end in first:
        while n < len(second) and second[n][1] <= start:
            n += 1
        at = n
        while at < len(second) and second[at][0] < end:
            total += min(end, second[at][1]) - max(start, second[at][0])
            at += 1
    return total


def lanes(intervals: Sequence[Interval]) -> list[int]:
    """A lane for each of some intervals, ordered by start, so that none overlaps another of its lane; as few as can."""
    ends: list[float] = []
    places = []
    for start, end in intervals:
        lane = next((n for n, busy in enumerate(ends) if busy <= start), len(ends))
        if lane == len(ends):
            ends.append(end)
        ends[lane] = end
        places.append(lane)
    return places
