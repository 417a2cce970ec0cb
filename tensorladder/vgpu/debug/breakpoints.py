"""Breakpoints of a device: where they stand in what it runs, when they count, and the dump of each hit."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from tensorladder.core.errors import Stopped, UsageError
from tensorladder.vgpu.codegen.points import Place, Point, Points, is_file
from tensorladder.vgpu.debug import state
from tensorladder.vgpu.debug.places import Breakpoint, parse, parse_region
from tensorladder.vgpu.debug.text import short, text_of
from tensorladder.vgpu.machine import layout as L

if TYPE_CHECKING:
    from tensorladder.vgpu.machine.execution import Run

_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 7)
#: CTAs of a hang that are dumped
_MOST_CTAS = 4
_POLICIES = {L.POLICY_EAGER: "eager", L.POLICY_LAZY: "lazy", L.POLICY_RANDOM: "random", L.POLICY_TIMED: "timed"}


class Dump:
    """The machine's state at a hit: `record` as data (its keys are in docs/guides/debug.md), `str` for a person."""

    def __init__(self, record: dict[str, Any]):
        self.record = record

    def to_json(self) -> dict[str, Any]:
        """The record."""
        return self.record

    def __str__(self) -> str:
        return text_of(self.record)


class Breakpoints:
    """Breakpoints for `Device(breakpoints=...)`, as texts (places.parse). UsageError for one that says nothing.

    dump: memory to show besides, as texts (places.parse_region). going_on: how many hits are kept while the launch goes
    on; None: the first one stops it, with Stopped. show: is given each Dump as it is made. whole: the first launches
    that a device gets are all there will be, so that a place which none of them has is refused before they run.
    """

    def __init__(
        self,
        texts: Sequence[str],
        dump: Sequence[str] = (),
        going_on: int | None = None,
        show: Callable[[Dump], None] | None = None,
        whole: bool = False,
    ):
        if going_on is not None and going_on < 1:
            raise UsageError(f"--continue {going_on}: at least one hit is to be shown")
        self.points: list[Breakpoint] = [parse(text) for text in texts]
        if not self.points:
            raise UsageError("no breakpoint is given: --break says where")
        self.regions = [parse_region(text) for text in dump]
        self.going_on, self.show, self.whole = going_on, show, whole
        self.hits: list[Dump] = []
        self.stopped: Dump | None = None
        self.failure: BaseException | None = None
        self.reached: Counter[int] = Counter()  # by number of the breakpoint, conditions aside
        self._times: Counter[tuple[int, int, int, int]] = Counter()
        self._found: set[int] = set()
        self._lines: dict[int, set[int]] = {}
        self._files: set[str] = set()
        self._kernels: set[str] = set()
        self._runs: list[Run] = []
        self._callback = _CALLBACK(self._called)

    @property
    def places(self) -> tuple[Place, ...]:
        """What kernels are to be compiled with."""
        return tuple(point.place or Place("ptx", "", 0) for point in self.points)

    @property
    def entry(self) -> int:
        """Address of the function that is told of hits (machine.hooks.tl_break)."""
        address = ctypes.cast(self._callback, ctypes.c_void_p).value
        assert address is not None
        return address

    # ------------------------------------------------------------ where they stand
    def found_in(self, kernels: Iterable[Any]) -> None:
        """Take note of compiled kernels that are about to run; UsageError where `whole` and one has no instruction."""
        for compiled in kernels:
            points: Points = compiled.low.points
            self._kernels.add(compiled.low.name)
            self._found |= {number for point in points.points for number in point.places}
            self._files |= set(points.files)
            for number, lines in points.lines.items():
                self._lines.setdefault(number, set()).update(lines)
        if self.whole:
            self.require_places()

    def require_places(self) -> None:
        """UsageError for the first breakpoint whose line has no instruction in any kernel that was launched."""
        for number, point in enumerate(self.points):
            if point.place is not None and number not in self._found and self._kernels:
                raise UsageError(f"--break {point.text}: {self._missing(point.place, self._lines.get(number, set()))}")

    def _missing(self, place: Place, lines: set[int]) -> str:
        kernels = ", ".join(sorted(map(short, self._kernels)))
        if place.kind == "kernel" and not any(place.name in name for name in self._kernels):
            return f"no kernel {place.name} was launched, only {kernels}"
        if place.kind == "file" and not self._files:
            how = "compile with CUTE_DSL_LINEINFO=1 or -lineinfo, or name a PTX line, ptx:LINE"
            return f"the PTX of {kernels} has no source lines: {how}"
        if place.kind == "file" and not any(is_file(file, place.name) for file in self._files):
            known = ", ".join(sorted({PurePath(file).name for file in self._files}))
            return f"no instruction of {kernels} comes from that file, but from {known}"
        below = max((line for line in lines if line < place.line), default=None)
        above = min((line for line in lines if line > place.line), default=None)
        near = " and ".join(str(line) for line in (below, above) if line is not None)
        return f"no instruction of {kernels} stands there; the nearest lines that have one: {near}"

    def unmet(self) -> list[str]:
        """A line for each breakpoint that stopped nothing and showed nothing, with why."""
        shown = {dump.record["break"] for dump in self.hits}
        return [
            f"--break {point.text}: " + (
                "the launch did not hang" if point.place is None
                else f"reached {self.reached[number]} times, never as its conditions say" if self.reached[number]
                else "never reached"
            )
            for number, point in enumerate(self.points) if point.text not in shown
        ]  # fmt: skip

    # ------------------------------------------------------------ hits
    def watch(self, runs: Sequence[Run]) -> None:
        """Launches that are about to run."""
        self._runs = list(runs)

    def _called(self, w: int, number: int, ahead: int, _a: int, _b: int, lanes: int, iid: int) -> int:
        """A warp has come to a point: 1 to stop the launch. Nothing may be raised from here, so it is kept."""
        try:
            return int(self._hit(w, number, ahead, lanes, iid))
        except BaseException as failure:
            self.failure = self.failure or failure
            return 1

    def _hit(self, w: int, number: int, ahead: int, lanes: int, iid: int) -> bool:
        launch, unit_at, cta_at = (state.word(w + at) for at in (L.W_LAUNCH, L.W_UNIT, L.W_CTA))
        run = next(run for run in self._runs if run.words.address == launch)
        point = run.low.points.points[number]
        warp, linear = state.word(w + L.W_WARPID), state.word(cta_at + L.C_LINEAR)
        x, y, z = (state.word(cta_at + L.C_CTAID + 8 * k) for k in range(3))
        for one in point.places:
            self.reached[one] += 1
            asked = self.points[one]
            order = run.words[L.L_GRIDID]
            if not asked.holds(run.low.name, order, (x, y, z), warp, lanes):
                continue
            key = (one, order, linear, warp)
            self._times[key] += 1
            if asked.hit not in (None, self._times[key]) or self._enough():
                continue
            unit = next(u for u in run.units if u.words.address == unit_at)
            slot = (cta_at - unit.ctas.address) // L.C_BYTES
            cta = state.Cta(run, unit, slot)
            if self._take(self._dump(asked, self._times[key], cta, warp, point, ahead, lanes, iid)):
                return True
        return False

    def _enough(self) -> bool:
        """Whether all hits that are to be shown have been: the rest of the launch is let go on."""
        return self.going_on is not None and len(self.hits) >= self.going_on

    def _take(self, dump: Dump) -> bool:
        """Keep and show a dump: whether the launch is to stop."""
        self.hits.append(dump)
        if self.show is not None:
            self.show(dump)
        if self.going_on is None:
            self.stopped = dump
        return self.going_on is None

    def _dump(
        self, asked: Breakpoint, times: int, cta: state.Cta, number: int, point: Point, ahead: int, lanes: int, iid: int
    ) -> Dump:
        warps = cta.warps()
        warp = warps[number]
        named = {reg.name: warp.lane_values(reg, lanes) for reg in point.registers if reg.bits in (16, 32, 64)}
        accesses = list(state.accesses(point, named))
        record = {
            "break": asked.text, "reason": "breakpoint", "time": times, **_of_launch(cta),
            "warp": number, "lanes": lanes, "where": cta.where(iid),
            "clock": warp[L.W_CLOCK] + ahead, "step": cta.unit.words[L.U_INSTRS],
            "registers": warp.registers(point.registers, lanes & (asked.lanes or lanes)),
            **cta.common(warps, number, accesses, self.regions, named), "warps": cta.stands(warps, number, False),
        }  # fmt: skip
        return Dump(record)

    def hang(self, runs: Sequence[Run]) -> None:
        """Launches have stopped, since nothing moves or time is up: dump the CTAs that still run, some of them."""
        for asked in self.points:
            if asked.place is None:
                for dump in self._hung(asked, runs):
                    self.hits.append(dump)
                    if self.show is not None:
                        self.show(dump)

    def _hung(self, asked: Breakpoint, runs: Sequence[Run]) -> Iterable[Dump]:
        standing = [
            state.Cta(run, unit, slot)
            for run in runs if not run.words[L.L_COMPLETE]
            for unit in run.stuck() for slot in range(unit.slots) if not unit.ctas[slot * L.C_BYTES + L.C_DONE]
        ]  # fmt: skip
        chosen = [
            cta for cta in standing
            if asked.holds(cta.run.low.name, cta.run.words[L.L_GRIDID], cta.coordinates, None, 0xFFFFFFFF)
        ]  # fmt: skip
        for cta in chosen[:_MOST_CTAS]:
            warps = cta.warps()
            stands = cta.stands(warps, None, True)
            kept = [entry for entry in stands if not asked.warps or entry["warp"] in asked.warps]
            yield Dump({
                "break": asked.text, "reason": "hang", **_of_launch(cta), "step": cta.unit.words[L.U_INSTRS],
                "clock": cta.unit.words[L.U_CLOCK], **cta.common(warps, None, [], self.regions, {}), "warps": kept,
                "others": len(chosen) - _MOST_CTAS if len(chosen) > _MOST_CTAS else 0,
            })  # fmt: skip

    def check(self) -> None:
        """Launches have ended: raise what stopped them, if that was a breakpoint (Stopped) or a failure in one."""
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure
        if self.stopped is not None:
            raise Stopped(f"stopped at breakpoint {self.stopped.record['break']}")


def _of_launch(cta: state.Cta) -> dict[str, Any]:
    """Which launch, under which order of events, which CTA."""
    run = cta.run
    device = run.device
    return {
        "kernel": run.low.name, "launch": run.words[L.L_GRIDID], "arch": device.arch.name,
        "policy": _POLICIES[device.policy], "seed": device.seed, "grid": list(run.launch.grid),
        "block": list(run.launch.block), "cluster": list(run.launch.cluster), "cta": list(cta.coordinates),
        "rank": cta[L.C_RANK], "sm": cta[L.C_SMID],
    }  # fmt: skip
