"""Times on a real GPU that can be compared: contenders in turn, in one process, on inputs that rotate through memory.

A round gives every contender one batch of launches, back to back between two events, behind a pause on the GPU while
the host queues them (a kernel launched into an idle stream would be charged the host's time). The pause follows from
how long the host takes; where the GPU began on short kernels before all were queued, the batch counts for nothing and
is done again behind a longer one. Who is first
changes from round to round, and each launch takes the next set of inputs, so that none finds its own in L2. Rounds
before the clocks have settled are thrown away. Reported are the median, and the 10th and 90th percentile.

At the power limit contenders in turn share one clock, which what each of them costs in energy lowers for all alike:
such times compare cycles. `alone` gives each the GPU for so long that its clocks settle, and so compares what a user of
one kernel gets, energy included.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensorladder.silicon.nvml import Meter

Call = Callable[[], None]

HOST_CALLS = 33  # of one contender; few enough that none waits for room in the GPU's queue
HOST_US, MOST_HOST_US = 12.0, 100.0  # what queueing one launch costs the host, at least and at most
SHORT = 2.0  # kernels up to so many times what their launch costs the host are queued before the first begins
ATTEMPTS = 6  # each with twice the pause of the one before
TRIAL, TRIAL_US = 8, 10_000.0  # launches together that show how long one takes, where one alone took less than that
PAUSE_CYCLES = 2000  # a microsecond of the GPU's clock, about
SETTLED = 0.01  # the medians of two windows of rounds agree to this
WINDOW = 5
AHEAD_US, MOST_AHEAD = 12_000.0, 8  # alone: what the host queues before it waits, in GPU time and in batches
READ_S = 0.01  # alone: between two readings of clock and power
AVERAGED_S = 1.0  # of what `Meter.power` is the average


@dataclass(frozen=True)
class Blocks:
    """What `alone` gives a contender at a time: seconds for its clocks to settle (a batch at the least), then seconds
    measured (`launches` at the least: a kernel may take a second). rounds: such blocks a contender."""

    settle: float = 0.5
    seconds: float = 0.5
    rounds: int = 2
    launches: int = 3


@dataclass(frozen=True)
class Options:
    """batch_us: aimed at a batch's length. settle: seconds of warm-up at most. seconds, rounds: what is measured, at
    most and at least (a kernel of a second still gets `rounds`). alone: what is measured besides, where that is done
    (`compare` does not)."""

    batch_us: float = 3000.0
    most_launches: int = 64
    settle: float = 1.0
    seconds: float = 0.5
    rounds: int = 3
    alone: Blocks | None = None


@dataclass(frozen=True)
class Times:
    """Microseconds a launch, one number a round. host_bound: in some round the GPU waited for the host all the same."""

    rounds: tuple[float, ...]
    batch: int
    host_bound: bool = False

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)

    @property
    def spread(self) -> tuple[float, float]:
        """The 10th and the 90th percentile."""
        ordered = sorted(self.rounds)
        last = len(ordered) - 1
        return ordered[round(0.1 * last)], ordered[round(0.9 * last)]


@dataclass(frozen=True)
class Measured:
    """Times by contender; the SMs' clock in MHz and the card's power in W meanwhile (None where unknown)."""

    times: dict[str, Times]
    clock_mhz: float | None
    power_w: float | None


@dataclass(frozen=True)
class Alone:
    """One contender by itself at its own settled clocks.

    blocks: microseconds a launch, one number a block, all its time over all its launches: clocks go in steps of 1 %, of
    which a median of batches would see one or the other. clock_mhz: the median of what was read meanwhile. power_w: the
    meter's average over the last second of a block, which readings of the instant miss by up to 2 %; their median where
    blocks are shorter. None where unknown. host_bound: the GPU may have waited for the host.
    """

    blocks: tuple[float, ...]
    clock_mhz: float | None
    power_w: float | None
    host_bound: bool = False

    @property
    def median(self) -> float:
        return statistics.median(self.blocks)

    @property
    def millijoules(self) -> float | None:
        """Energy a launch."""
        return None if self.power_w is None else self.power_w * self.median / 1e3


def compare(torch: Any, contenders: Mapping[str, Sequence[Call]], meter: Meter, options: Options) -> Measured:
    """Time all contenders side by side; each is a list of calls on different sets of inputs, taken in turn."""
    runs = {name: _Run(torch, calls) for name, calls in contenders.items()}
    for run in runs.values():
        run.size_up(options)
    names = list(runs)
    history: list[float] = []
    start = time.perf_counter()
    # Where a round takes a good part of that time, the clocks have settled when the first is over.
    quick = sum(run.each * run.batch for run in runs.values()) < options.settle * 1e6 / (2 * WINDOW)
    while quick and time.perf_counter() - start < options.settle and not _settled(history):
        history.append(_round(runs, names, None)[names[0]])
    for run in runs.values():
        run.starved = False
    samples: dict[str, list[float]] = {name: [] for name in names}
    readings: list[tuple[float | None, float | None]] = []
    start = time.perf_counter()
    number = 0
    while number < options.rounds or time.perf_counter() - start < options.seconds:
        order = names[number % len(names) :] + names[: number % len(names)]
        for name, value in _round(runs, order, lambda: readings.append((meter.clock(), meter.power()))).items():
            samples[name].append(value)
        number += 1
    times = {name: Times(tuple(values), runs[name].batch, runs[name].starved) for name, values in samples.items()}
    return Measured(times, _middle(clock for clock, _ in readings), _middle(power for _, power in readings))


def alone(torch: Any, contenders: Mapping[str, Sequence[Call]], meter: Meter, blocks: Blocks) -> dict[str, Alone]:
    """Time each contender by itself, at the clocks that it settles at, in blocks of a second or so.

    Contenders take turns at such blocks, in one order and then in the other, so that a GPU that warms favours none. The
    host is ahead of the GPU by a few batches all the time, and no more, so that a block ends in time.
    """
    runs = {name: _Run(torch, calls) for name, calls in contenders.items()}
    for run in runs.values():
        run.size_up(Options())
    found: dict[str, list[_Block]] = {name: [] for name in runs}
    for number in range(blocks.rounds):
        for name in list(runs)[:: -1 if number % 2 else 1]:
            found[name].append(_block(torch, runs[name], meter, blocks))
    return {name: _together(made) for name, made in found.items()}


def quick(torch: Any, calls: Sequence[Call], options: Options) -> float:
    """Microseconds a launch, the median of `options.rounds` batches: enough to tell configurations apart."""
    run = _Run(torch, calls)
    run.size_up(options)
    return statistics.median(run.batch_us(None) for _ in range(options.rounds))


def host_us(torch: Any, calls: Sequence[Call]) -> float:
    """Microseconds that a warm call keeps the host, the median of a few on an idle GPU."""
    taken = []
    torch.cuda.synchronize()
    for number in range(HOST_CALLS):
        began = time.perf_counter()
        calls[number % len(calls)]()
        taken.append((time.perf_counter() - began) * 1e6)
    torch.cuda.synchronize()
    return statistics.median(taken)


def _settled(history: Sequence[float]) -> bool:
    if len(history) < 2 * WINDOW:
        return False
    before, now = (statistics.median(history[a:b]) for a, b in ((-2 * WINDOW, -WINDOW), (-WINDOW, None)))
    return abs(now - before) <= SETTLED * before


def _round(runs: Mapping[str, _Run], order: Sequence[str], read: Callable[[], None] | None) -> dict[str, float]:
    return {name: runs[name].batch_us(read) for name in order}


def _middle(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


@dataclass
class _Block:
    """us: a launch of one contender by itself; what the meter said meanwhile; whether the host was ever late."""

    us: float
    clocks: list[float | None]
    powers: list[float | None]
    late: bool


def _together(made: Sequence[_Block]) -> Alone:
    clocks, powers = ([value for block in made for value in getattr(block, kind)] for kind in ("clocks", "powers"))
    us = tuple(block.us for block in made)
    return Alone(us, _middle(clocks), _middle(powers), any(block.late for block in made))


def _block(torch: Any, run: _Run, meter: Meter, blocks: Blocks) -> _Block:
    """Launches without a gap: first those that settle the clocks, then those that count."""
    queue = _Queue(torch, run)
    first = began = time.perf_counter()
    queue.batch()
    while time.perf_counter() - began < blocks.settle:
        queue.batch()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    queue.late = False
    start.record()
    began, read, launches = time.perf_counter(), 0.0, 0
    clocks: list[float | None] = []
    powers: list[float | None] = []
    while launches < blocks.launches or time.perf_counter() - began < blocks.seconds:
        queue.batch()
        launches += run.batch
        now = time.perf_counter()
        if now - read >= READ_S:
            read = now
            clocks.append(meter.clock())
            powers.append(meter.power_now())
    if time.perf_counter() - first >= AVERAGED_S:  # all of that second was this contender's
        powers = [meter.power()]
    end.record()
    end.synchronize()
    return _Block(start.elapsed_time(end) * 1e3 / launches, clocks, powers, queue.late)


class _Queue:
    """Batches of one contender, so many of them queued that the GPU finds the next one there."""

    def __init__(self, torch: Any, run: _Run) -> None:
        self.run = run
        depth = max(2, min(MOST_AHEAD, round(AHEAD_US / max(run.each * run.batch, 1e-3))))
        self.late = False
        self._ends = [torch.cuda.Event(enable_timing=True) for _ in range(depth)]
        self._queued = 0

    def batch(self) -> None:
        """Queue a batch; wait where as many are under way as there are events."""
        ends, place = self._ends, self._queued % len(self._ends)
        if self._queued >= len(ends):
            ends[place].synchronize()
        self.run.launch()
        if self._queued and ends[place - 1].query():  # the batch before is over: less than one is left to do
            self.late = True
        ends[place].record()
        self._queued += 1


class _Run:
    """One contender: its calls, where it is among its inputs, and how many launches make a batch."""

    def __init__(self, torch: Any, calls: Sequence[Call]) -> None:
        self.torch = torch
        self.calls = calls
        self.next = 0
        self.batch = 1
        self.each = 0.0
        self.starved = False
        self._host = HOST_US
        self._longer = 1.0
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]

    def size_up(self, options: Options) -> None:
        """A launch that loads; then, where it was quick, a few together: one alone is charged the gaps around it."""
        self.batch_us(None)
        if self.each < TRIAL_US:
            self.batch, self.each = TRIAL, 0.0
            self.batch_us(None)
        self.batch = max(1, min(options.most_launches, round(options.batch_us / max(self.each, 1e-3))))

    def launch(self) -> None:
        """Queue one batch, each launch on the next inputs."""
        for _ in range(self.batch):
            self.calls[self.next]()
            self.next = (self.next + 1) % len(self.calls)

    def batch_us(self, read: Callable[[], None] | None) -> float:
        """Microseconds a launch of one batch. read: called while the GPU works."""
        for _ in range(ATTEMPTS):
            took, waited = self._once(read)
            if not waited:
                self.each = took
                return took
            self._longer *= 2
        self.each, self.starved = took, True
        return took

    def _once(self, read: Callable[[], None] | None) -> tuple[float, bool]:
        """(microseconds a launch, whether the GPU may have waited for the host in between)."""
        start, end = self._events
        # Kernels much longer than a launch takes need a start only; short ones must all be queued before the first.
        short = self.each < SHORT * self._host
        pause = self._host * (3 + (self.batch if short else 0)) * self._longer
        self.torch.cuda._sleep(int(pause * PAUSE_CYCLES))
        start.record()
        began = time.perf_counter()
        self.launch()
        end.record()
        if self.batch > 1:  # the first launch, alone, also loads
            host = (time.perf_counter() - began) * 1e6 / self.batch
            self._host = max(self._host, min(host, MOST_HOST_US))
        waited = short and self.batch > 1 and start.query()
        if read is not None:
            read()
        end.synchronize()
        return start.elapsed_time(end) * 1e3 / self.batch, waited
