"""Probes: times out of a buffer's words, made here with known times, and what an H200 wrote."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tensorladder.core.errors import KernelError, UsageError
from tensorladder.core.probes import HEADER, Plan, decode, poisoned
from tensorladder.core.timeline import WAIT
from tensorladder.rungs.rung import find

RECORDED = Path(__file__).parent.parent / "data" / "silicon" / "probes_h200.npz"
PLAN = Plan.of({
    "tracks": (("producer", ("wait: empty", "copy")), ("landing", ("",)), ("consumer", ("wait: full",), ("store",))),
    "in_flight": (("load", "load", ("producer", "copy"), ("landing", "")),),
    "releases": (
        (("load", "load"), ("consumer", "wait: full")), (("consumer", "wait: full"), ("producer", "wait: empty"), 6),
    ),
})  # fmt: skip
EPOCH = 1_780_000_000_000_000_000 + (1 << 32) - 2000  # nanoseconds; its low half wraps during the kernel
TICK, RATE = 32, 1.755  # ns, cycles a ns


def word(at: float, sm: int) -> np.int64:
    """A mark at a time (ns): %globaltimer in ticks, the SM's %clock, which has a start of its own and wraps too."""
    cycles = (int(at * RATE) + (1 << 32) - 3000 + 1000 * sm) % (1 << 32)
    timer = (EPOCH + int(at)) // TICK * TICK % (1 << 32)
    return np.uint64(timer << 32 | cycles).astype(np.int64)


def write(times: list[list[list[float]]], sms: list[int]) -> np.ndarray:
    buffer = poisoned(PLAN.shape(len(times), 40))
    for cta, tracks in enumerate(times):
        for track, marks in enumerate(tracks):
            buffer[cta, track, 0] = sms[cta]
            buffer[cta, track, 1] = (EPOCH + int(marks[0])) // TICK * TICK
            buffer[cta, track, HEADER : HEADER + len(marks)] = [word(at, sms[cta]) for at in marks]
    return buffer


def times(start: float) -> list[list[float]]:
    """40 iterations: 60 ns of waiting and 50 of copying each, a load lands 500 ns after it was asked for."""
    producer = [start + 110 * i + more for i in range(40) for more in (0, 60)] + [start + 4400]
    landing = [start, *(start + 110 * i + 560 for i in range(40))]
    consumer = [start + 20, *(start + 110 * i + 575 for i in range(40)), start + 5200]
    return [producer, landing, consumer]


@pytest.mark.parametrize("sms", [[3, 7], [3, 3]], ids=["two SMs", "one SM"])
def test_times_are_finer_than_the_timer_and_agree_between_sms(sms):
    line = decode(PLAN, write([times(0.0), times(1000.0 if sms[0] != sms[1] else 6000.0)], sms), {}, "t")
    offset = 1000.0 if sms[0] != sms[1] else 6000.0
    # What the fit can be wrong by is the timer's rounding: half a tick in all, little between marks.
    for group, start in zip(sorted({0, 1}), (0.0, offset)):
        loads = [s for s in line.spans if s.name == "load" and line.tracks[s.track].group.endswith(f"CTA {group}")]
        assert len(loads) == 40
        for span in loads:
            at = start + 110 * span.facts["iteration"] + 60
            assert span.start == pytest.approx(at, abs=TICK) and span.end - span.start == pytest.approx(500, abs=2)
    waits = [s for s in line.spans if s.kind == WAIT and s.name == "wait: empty"]
    assert all(s.end - s.start == pytest.approx(60, abs=2) for s in waits)


def test_arrows_go_from_what_ends_a_wait_to_what_follows_it():
    line = decode(PLAN, write([times(0.0)], [3]), {}, "t")
    assert len(line.arrows) == 40 + 34  # every wait for a load; every wait for a free place but the first six
    for arrow in line.arrows:
        source, target = line.spans[arrow.source], line.spans[arrow.target]
        before = next(s for s in line.spans if s.track == target.track and s.end == target.start)
        assert before.kind == WAIT and arrow.name == f"ends {before.name}" and source.end <= target.start + TICK


@pytest.mark.parametrize(("change", "said"), [
    (lambda b: b.__setitem__((1, 0), -1), "CTA 1, track 'producer': 0 marks"),
    (lambda b: b.__setitem__((0, 2, HEADER + 5), -1), "track 'consumer': 41 marks were written, mark 5 is missing"),
    (lambda b: b.__setitem__((0, 0, HEADER + 80), -1), "track 'producer'"),
], ids=["no CTA", "a mark left out", "cut short"])  # fmt: skip
def test_a_buffer_that_is_not_whole_is_no_timeline(change, said):
    buffer = write([times(0.0), times(1000.0)], [3, 7])
    change(buffer)
    with pytest.raises(KernelError, match=said):
        decode(PLAN, buffer, {}, "t")


def test_a_buffer_of_another_plan_is_refused():
    with pytest.raises(UsageError, match="3 tracks"):
        decode(PLAN, poisoned((1, 2, 10)), {}, "t")


def recorded(name):
    rung = find(name).rung
    return decode(Plan.of(rung.probes), np.load(RECORDED)[rung.name], {"stages": 4}, name), Plan.of(rung.probes)


def test_loads_and_wgmma_overlap_on_an_h200():
    """c2, 256 x 256 x 2048: two CTAs, 32 K tiles, four stages."""
    line, plan = recorded("c2")
    assert line.overlap(*plan.overlap) > 0.75
    assert [group.split(", ")[1] for group in line.groups] == ["CTA 0", "CTA 1"]
    loads = [s for s in line.of_kind("load") if s.facts["iteration"] >= 8]
    assert all(400 < s.end - s.start < 800 for s in loads)  # ns from the request to the last byte
    for group in line.groups:
        products = [s for s in line.of_kind("tensor", group) if line.tracks[s.track].name == "WGMMA 0"]
        steady = [s.end - s.start for s in products[8:28]]
        # 64 x 256 x 64 by each of two warpgroups, at 4096 operations a clock and 1980 MHz at most
        assert min(steady) > 2 * 2 * 64 * 256 * 64 / 4096 / 1.98
    assert len({s.end - s.start for s in line.spans}) > 300, "as coarse as the timer"


def test_pipeline_async_on_an_h200_shows_producers_that_wait():
    line, _ = recorded("a2-smem-pipeline")
    assert len(line.groups) == 16
    roles = {line.tracks[s.track].role for s in line.spans}
    assert roles == {"producers", "consumers"}
    waited = {role: sum(s.end - s.start for s in line.spans if line.tracks[s.track].role == role and s.kind == WAIT)
              for role in roles}  # fmt: skip
    assert waited["producers"] > 10 * waited["consumers"]
