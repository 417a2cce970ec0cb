"""From the machine's events (`machine.trace`) to a timeline, in nanoseconds of the architecture's clock.

A group is a CTA on its SM, a track a warp or a unit of it. A warp either runs or waits, and a wait that something ended
has an arrow from that to what the warp did next: from the copy whose bytes, or the warp whose arrival, completed the
mbarrier's phase, from the product that a wait for WGMMA or tcgen05 stood for, from the last warp at a named barrier.

Clusters that see each other share one clock. Others run one after the other on this computer and have the chip's clock
from when the clusters before them on their SMs end.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tensorladder.core.errors import UsageError
from tensorladder.core.timeline import COPY, LOAD, RUN, STORE, TENSOR, WAIT, Arrow, Span, Timeline, Track, lanes
from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.machine.execution import Traced
from tensorladder.vgpu.machine.latency import timing
from tensorladder.vgpu.machine.trace import TRACE_ARRIVE, TRACE_CTA, TRACE_EXIT, TRACE_GO, TRACE_OP, TRACE_STOP

Roles = Sequence[tuple[range, str]]

#: what a unit's operation is called: its track, its kind, its name. Those that are not here only carry arrows.
UNITS = {
    L.OP_TMA_LOAD: ("TMA loads", LOAD, "TMA load"),
    L.OP_BULK_G2S: ("TMA loads", LOAD, "bulk load"),
    L.OP_BULK_S2S: ("TMA loads", COPY, "bulk copy to the cluster"),
    L.OP_TMA_STORE: ("TMA stores", STORE, "TMA store"),
    L.OP_TMA_REDUCE: ("TMA stores", STORE, "TMA reduce"),
    L.OP_BULK_S2G: ("TMA stores", STORE, "bulk store"),
    L.OP_BULK_REDUCE: ("TMA stores", STORE, "bulk reduce"),
    L.OP_WGMMA: ("tensor cores", TENSOR, "wgmma"),
    L.OP_TC_MMA: ("tensor cores", TENSOR, "tcgen05.mma"),
    L.OP_TC_CP: ("tensor cores", COPY, "tcgen05.cp"),
    L.OP_TC_SHIFT: ("tensor cores", COPY, "tcgen05.shift"),
    L.OP_TC_ST: ("tensor memory", COPY, "tcgen05.st"),
    L.OP_CP_ASYNC: ("cp.async", LOAD, "cp.async"),
    L.OP_REMOTE: ("distributed shared memory", COPY, "st.async"),
    L.OP_CLC: ("launch control", LOAD, "try_cancel"),
}
#: units that do one thing after the other; of all others, what is in flight is shown
IN_ORDER = ("tensor cores",)
_STORES = (L.OP_TMA_STORE, L.OP_TMA_REDUCE, L.OP_BULK_S2G, L.OP_BULK_REDUCE)

#: kinds of waits in words
WAITS = {
    L.WAIT_MEET: "wait: lanes of the warp", L.WAIT_WARP: "wait: lanes of the warp", L.WAIT_BAR: "wait: barrier",
    L.WAIT_BAR_WARP: "wait: lanes of the warp", L.WAIT_BAR_RED: "wait: barrier", L.WAIT_MBAR: "wait: mbarrier",
    L.WAIT_MBAR_STATE: "wait: mbarrier", L.WAIT_CP: "wait: cp.async", L.WAIT_BULK: "wait: TMA store",
    L.WAIT_BULK_READ: "wait: TMA store", L.WAIT_TIME: "sleep", L.WAIT_CLUSTER: "wait: cluster barrier",
    L.WAIT_WGMMA: "wait: WGMMA", L.WAIT_TMEM_ALLOC: "wait: tensor memory", L.WAIT_TMEM_STORE: "wait: tcgen05.st",
    L.WAIT_GRID: "wait: grid before", L.WAIT_REGISTERS: "wait: registers",
}  # fmt: skip
#: which operations of its own a warp waits for
_OWN = {L.WAIT_CP: (L.OP_CP_ASYNC,), L.WAIT_BULK: _STORES, L.WAIT_BULK_READ: _STORES, L.WAIT_WGMMA: (L.OP_WGMMA,),
        L.WAIT_TMEM_STORE: (L.OP_TC_ST,)}  # fmt: skip


#: what A of a wait is, where it says something to a person
_WAITED_FOR = {
    L.WAIT_BAR: "barrier", L.WAIT_BAR_RED: "barrier", L.WAIT_TMEM_ALLOC: "columns:",
    L.WAIT_REGISTERS: "a thread:", L.WAIT_CP: "groups up to",
    L.WAIT_BULK: "groups up to", L.WAIT_BULK_READ: "groups up to", L.WAIT_WGMMA: "groups up to",
}  # fmt: skip


def timeline(device: Any, roles: Roles = ()) -> Timeline:
    """The timeline of what a traced device has run. roles: what warps do, by number (`measure.trace.roles`).

    UsageError where nothing was traced, or not under the timed policy, the only one in which clocks mean anything.
    """
    if not device.trace or device.policy != L.POLICY_TIMED:
        raise UsageError('no timeline: set `traced` of a Device with policy="timed" before the launch')
    made = Timeline("virtual GPU")
    nanoseconds = 1e6 / timing(device.arch).clock_khz
    began = start = end = 0
    for number, one in enumerate(device.trace):
        name = f"{one.compiled.low.name} {number + 1}, " if len(device.trace) > 1 else ""
        if one.start != began:  # not a launch that overlaps the one before
            began, start = one.start, max(one.start, end)  # a store's tail may outlast the clock of the last warp
        end = max(end, _Launch(one, roles, name, nanoseconds, made).add(start))
        made.left_out += max(0, one.used - len(one.events))
    return made


@dataclass
class _Cta:
    """A CTA while its events are read. home, address, shared: of its unit, its state and its shared memory."""

    linear: int
    sm: int
    start: int
    home: int
    address: int
    shared: int
    end: int = 0
    shift: int = 0
    warps: dict[int, _Warp] = field(default_factory=dict)
    works: list[_Work] = field(default_factory=list)


@dataclass
class _Warp:
    """A warp: clock from which on it runs, its pieces (start, end, wait or None), the open wait."""

    since: int
    pieces: list[tuple[int, int, _Wait | None]] = field(default_factory=list)
    wait: _Wait | None = None
    done: bool = False


@dataclass
class _Wait:
    start: int
    kind: int
    barrier: int
    iid: int
    by: _Source | None = None


@dataclass
class _Work:
    """An operation of a unit: clocks of issue, of the unit's start and of completion, cycles that the unit is busy."""

    kind: int
    warp: int
    issued: int
    start: int
    busy: int
    work: int
    iid: int
    done: int


#: what ended a wait: an operation, or a warp at a clock
_Source = _Work | tuple[_Cta, int, int]


class _Launch:
    """One launch's events, read in order, then put into the timeline."""

    def __init__(self, traced: Traced, roles: Roles, prefix: str, nanoseconds: float, timeline: Timeline) -> None:
        self.traced, self.roles, self.prefix, self.scale = traced, roles, prefix, nanoseconds
        self.timeline = timeline
        self.ctas: dict[int, _Cta] = {}
        self.arrivals: dict[int, _Source] = {}
        self.works: dict[int, _Work] = {}
        self.last: dict[tuple[int, int, int], _Work] = {}  # of a CTA's warp (WGMMA: warpgroup) and kind
        self.tensor: dict[int, _Work] = {}  # last of a CTA's tensor cores, for commits
        self.joined: dict[tuple[int, ...], _Work] = {}

    def add(self, start: int) -> int:
        """Read all events and make tracks, spans and arrows of them, from cycle `start` on; gives the last cycle."""
        readers: dict[int, Callable[..., None]] = {
            TRACE_CTA: self._cta, TRACE_EXIT: self._exit, TRACE_STOP: self._stop, TRACE_GO: self._go,
            TRACE_ARRIVE: self._arrive, TRACE_OP: self._op,
        }  # fmt: skip
        for number, event in enumerate(self.traced.events[: self.traced.used].tolist()):
            readers[event[0]](number, *event[1:])
            cta = self.ctas[event[2]]
            cta.end = max(cta.end, event[1])
        self._place(start)
        at: dict[int, int] = {}  # id of a work -> its span
        runs: dict[tuple[int, int], list[int]] = {}
        for cta in sorted(self.ctas.values(), key=lambda one: (one.sm, one.start + one.shift, one.linear)):
            group = f"{self.prefix}SM {cta.sm}, CTA {cta.linear}"
            for number, warp in sorted(cta.warps.items()):
                runs[cta.linear, number] = self._warp_track(group, cta, number, warp)
            for name in dict.fromkeys(track for track, _, _ in UNITS.values()):
                self._unit_tracks(group, name, cta, at)
        self._arrows(at, runs)
        return max((cta.end + cta.shift for cta in self.ctas.values()), default=start)

    # ------------------------------------------------------------ reading
    def _cta(
        self, _: int, clock: int, linear: int, __: int, sm: int, home: int, address: int, shared: int, *rest: int
    ) -> None:
        self.ctas[linear] = _Cta(linear, sm, clock, home, address, shared, clock)

    def _warp(self, linear: int, warp: int) -> _Warp:
        cta = self.ctas[linear]
        return cta.warps.setdefault(warp, _Warp(cta.start))

    def _exit(self, _: int, clock: int, linear: int, warp: int, *rest: int) -> None:
        one = self._warp(linear, warp)
        one.pieces.append((one.since, clock, None))
        one.done = True

    def _stop(
        self, _: int, clock: int, linear: int, warp: int, kind: int, a: int, b: int, iid: int, *rest: int
    ) -> None:
        one = self._warp(linear, warp)
        again = one.pieces[-1][2] if one.pieces else None
        if again is not None and one.since == clock and (again.kind, again.barrier) == (kind, a):
            one.pieces.pop()  # woken to look, it waits on
            one.wait = again
            return
        if clock > one.since:
            one.pieces.append((one.since, clock, None))
        one.wait = _Wait(clock, kind, a, iid)

    def _go(self, _: int, clock: int, linear: int, warp: int, *rest: int) -> None:
        one = self._warp(linear, warp)
        if one.wait is not None:
            one.wait.by = self._released(one.wait, linear, warp)
            if clock > one.wait.start:
                one.pieces.append((one.wait.start, clock, one.wait))
            one.since, one.wait = clock, None

    def _released(self, wait: _Wait, linear: int, warp: int) -> _Source | None:
        """What ended a wait: the last arrival at its barrier, or its warp's last operation of the kind."""
        if wait.kind in (L.WAIT_MBAR, L.WAIT_MBAR_STATE):
            return self.arrivals.get(wait.barrier)
        if wait.kind == L.WAIT_BAR:
            return self.arrivals.get(self.ctas[linear].address + L.C_BAR + L.C_BAR_STRIDE * wait.barrier)
        found = [self.last.get((linear, _queue(kind, warp), kind)) for kind in _OWN.get(wait.kind, ())]
        return max((work for work in found if work is not None), key=lambda work: work.done, default=None)

    def _arrive(self, _: int, clock: int, linear: int, warp: int, barrier: int, agent: int, *rest: int) -> None:
        work = self.works.get(agent - 1) if agent else None
        if work is not None and work.kind == L.OP_TC_COMMIT:  # these two speak for what was issued before them
            work = self.tensor.get(linear, work)
        elif work is not None and work.kind == L.OP_MBAR_ARRIVE:
            work = self.last.get((linear, warp, L.OP_CP_ASYNC), work)
        self.arrivals[barrier] = work if work is not None else (self.ctas[linear], warp, clock)

    def _op(
        self, number: int, clock: int, linear: int, warp: int, kind: int, issued: int, start: int, busy: int, work: int,
        iid: int,
    ) -> None:  # fmt: skip
        kind &= 0xFF
        # A store's two stages are one, and what lanes or neighbouring instructions ask for together.
        key = (linear, warp, kind, iid if kind in _STORES else clock, issued)
        one = self.joined.get(key) if kind in _STORES or kind == L.OP_CP_ASYNC else None
        if one is None:
            one = self.joined[key] = _Work(kind, warp, issued, start, busy, work, iid, clock)
            self.ctas[linear].works.append(one)
        elif kind == L.OP_CP_ASYNC:
            one.work += work
        one.done = max(one.done, clock)
        self.works[number] = one
        self.last[linear, _queue(kind, warp), kind] = one
        if UNITS.get(kind, ("",))[0] == "tensor cores":
            self.tensor[linear] = one

    # ------------------------------------------------------------ placing
    def _place(self, start: int) -> None:
        """Give CTAs their time: after the launches before; clusters of a launch that is not ordered after those before
        them on their SMs."""
        if self.traced.ordered:
            for cta in self.ctas.values():
                cta.shift = start
            return
        batches: dict[tuple[int, int], list[_Cta]] = {}
        for cta in self.ctas.values():
            batches.setdefault((cta.home, cta.start), []).append(cta)
        free: dict[int, int] = {}
        for batch in sorted(batches.values(), key=lambda ctas: min(cta.linear for cta in ctas)):
            at = max(free.get(cta.sm, start) for cta in batch)
            for cta in batch:
                cta.shift = at - cta.start
            for cta in batch:
                free[cta.sm] = max(free.get(cta.sm, 0), cta.end + cta.shift)

    def _time(self, cta: _Cta, clock: int) -> float:
        return (clock + cta.shift) * self.scale

    # ------------------------------------------------------------ writing
    def _track(self, group: str, name: str, role: str = "") -> int:
        self.timeline.tracks.append(Track(group, name, role))
        return len(self.timeline.tracks) - 1

    def _span(self, track: int, name: str, kind: str, cta: _Cta, start: int, end: int, **facts: Any) -> int:
        facts = {"cycle": start + cta.shift, "cycles": end - start, **facts}
        self.timeline.spans.append(Span(track, name, kind, self._time(cta, start), self._time(cta, end), facts))
        return len(self.timeline.spans) - 1

    def _warp_track(self, group: str, cta: _Cta, number: int, warp: _Warp) -> list[int]:
        """The spans of a warp; gives their numbers."""
        if not warp.done:  # the launch stopped, or hangs
            start = warp.wait.start if warp.wait is not None else warp.since
            warp.pieces.append((start, max(cta.end, start + 1), warp.wait))
        role = next((word for warps, word in self.roles if number in warps), "")
        track = self._track(group, f"warp {number}: {role}" if role else f"warp {number}", role or f"warp {number}")
        made = []
        for start, end, wait in warp.pieces:
            if wait is None:
                made.append(self._span(track, "run", RUN, cta, start, end))
                continue
            facts = {"for": self._for(wait, cta), "at": self._source(wait.iid)}
            name = WAITS.get(wait.kind, "wait")
            made.append(self._span(track, name, WAIT if name != "sleep" else RUN, cta, start, end, **facts))
        return made

    def _for(self, wait: _Wait, cta: _Cta) -> str:
        if wait.kind in (L.WAIT_MBAR, L.WAIT_MBAR_STATE):
            return f"mbarrier at shared address {wait.barrier - cta.shared:#x}"
        words = _WAITED_FOR.get(wait.kind, "")
        return words and f"{words} {wait.barrier}"

    def _unit_tracks(self, group: str, name: str, cta: _Cta, at: dict[int, int]) -> None:
        """The spans of a unit's operations: its busy times, or what is in flight, in as many tracks as that takes."""
        works = [work for work in cta.works if work.kind in UNITS and UNITS[work.kind][0] == name]
        if not works:
            return
        ordered = name in IN_ORDER
        if ordered:
            works.sort(key=lambda work: work.start)
            times = [(work.start, work.start + max(work.busy, 1)) for work in works]
        else:
            works.sort(key=lambda work: work.issued)
            times = [(work.issued, work.done) for work in works]
        places = [0] * len(works) if ordered else lanes(times)
        tracks = [self._track(group, f"{name} ({n + 1})" if n else name) for n in range(max(places) + 1)]
        for work, (start, end), place in zip(works, times, places):
            _, kind, words = UNITS[work.kind]
            amount = {"multiply-adds" if kind == TENSOR else "bytes": work.work}
            facts = {"issued": work.issued + cta.shift, "done": work.done + cta.shift, "warp": work.warp, **amount,
                     "at": self._source(work.iid)}  # fmt: skip
            at[id(work)] = self._span(tracks[place], words, kind, cta, start, end, **facts)

    def _arrows(self, at: dict[int, int], runs: dict[tuple[int, int], list[int]]) -> None:
        spans = self.timeline.spans
        for cta in self.ctas.values():
            for number, warp in cta.warps.items():
                made = runs[cta.linear, number]
                for n, (_, _, wait) in enumerate(warp.pieces[:-1]):
                    source = self._span_of(wait.by, at, runs) if wait is not None and wait.by is not None else None
                    if source is not None and spans[source].start <= spans[made[n + 1]].start:
                        name = f"ends {spans[made[n]].name}"
                        self.timeline.arrows.append(Arrow(name, source, made[n + 1]))

    def _span_of(self, source: _Source, at: dict[int, int], runs: dict[tuple[int, int], list[int]]) -> int | None:
        if isinstance(source, _Work):
            return at.get(id(source))
        cta, number, clock = source
        pieces, made = cta.warps[number].pieces, runs[cta.linear, number]
        running = (n for n, (start, end, wait) in enumerate(pieces) if wait is None and start <= clock <= end)
        return next((made[n] for n in running), None)

    def _source(self, iid: int) -> str:
        """Source line of an instruction, else its PTX line."""
        lines = self.traced.compiled.low.lines
        text, line, file, row, _ = lines[iid] if 0 <= iid < len(lines) else ("", 0, 0, 0, 0)
        name = self.traced.compiled.files.get(file)
        return f"{os.path.basename(name)}:{row}" if name else f"PTX line {line}: {text}" if line else ""


def _queue(kind: int, warp: int) -> int:
    """Whose operations are told apart: a warp's, of WGMMA a warpgroup's."""
    return warp >> 2 if kind == L.OP_WGMMA else warp
