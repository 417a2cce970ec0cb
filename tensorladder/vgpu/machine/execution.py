"""Launches while they run: their memory, the threads that run them, what is said when they fail."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tensorladder.core import arch as archs
from tensorladder.core.errors import KernelError
from tensorladder.core.program import Launch
from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.machine import messages
from tensorladder.vgpu.machine.arena import Range
from tensorladder.vgpu.machine.latency import timing
from tensorladder.vgpu.machine.trace import TRACE_WORDS
from tensorladder.vgpu.machine.unit import Group, Unit, Words

if TYPE_CHECKING:
    from tensorladder.vgpu.machine.device import Device

_PRINT_BYTES = 1 << 20
_TRACE_EVENTS = 1 << 20


class Traced(NamedTuple):
    """What a launch recorded. ordered: its CTAs ran under one scheduler, whose clock they share; else each cluster (or
    batch of them) has its own. start: cycles of the launches before. used: events there were, more than `events` holds
    where the buffer was full."""

    compiled: Any
    ordered: bool
    start: int
    events: np.ndarray
    used: int


def launch_registers(launch: Launch) -> int | None:
    """Registers a thread takes, from the cubin where there is one."""
    if launch.module.cubin is None:
        return None
    from tensorladder.core.cubin import registers

    return registers(launch.module.cubin, launch.kernel)


def pool_registers(launch: Launch, directives: dict[str, tuple[int, ...]]) -> int:
    """Registers a thread that a CTA starts with, as far as setmaxnreg counts; 0 where the kernel has no limit.

    Without .maxnreg or .minnctapersm ptxas takes as few as it needs (8 and 10 in the zoo's kernels): no limit, and
    setmaxnreg may have no effect. Where no cubin says, as many as an SM has for so many blocks. They are allocated in
    steps of 8: 256 where 255 can be named.
    """
    if not {"maxnreg", "minnctapersm"} & directives.keys():
        return 0
    known = launch_registers(launch)
    if known is None:
        threads = prod(launch.block) * max(directives.get("minnctapersm", (1,))[0], 1)
        most = min(archs.REGISTERS_PER_SM // threads & ~7, archs.MAX_REGISTERS_PER_THREAD)
        known = min(most, *directives.get("maxnreg", (most,)))
    return (known + 7) & ~7


class Run:
    """One launch while it runs.

    together: it overlaps with others, so one scheduler runs all of its CTAs. ranges: memory that it may access besides
    the device's.
    """

    def __init__(
        self, device: Device, launch: Launch, compiled, together: bool = False, ranges: Sequence[Range] = ()
    ):
        self.device, self.launch, self.compiled = device, launch, compiled
        self.ordered = together or compiled.low.ordered
        self.units: list[Unit] = []
        self.before: Run | None = None
        self.work: Any = None  # what it is among its device's streams (check.streams)
        self.keep: list = []
        number = next(device.launch_numbers)
        self.words = w = Words(L.L_BYTES)
        low = compiled.low
        for k in range(3):
            w[L.L_GRID + 8 * k] = launch.grid[k]
            w[L.L_BLOCK + 8 * k] = launch.block[k]
            w[L.L_CLUSTER + 8 * k] = launch.cluster[k]
        raw = np.zeros(len(launch.params) + 128, np.uint8)
        skip = -raw.ctypes.data % 64
        self.params = raw[skip : skip + len(launch.params)]
        self.params[:] = np.frombuffer(launch.params, np.uint8)
        self.keep.append(raw)
        w[L.L_PARAMS] = self.params.ctypes.data
        symbols = np.array([*device.variables(launch, compiled), 0], np.int64)
        at = self.params.ctypes.data
        params = Range(at, at + max(len(launch.params), 1), "kernel parameters", False)
        self.memory = device.memory.beside([*ranges, params])
        self.table = table = self.memory.table()
        self.keep.append(symbols)
        w[L.L_SYMBOLS] = symbols.ctypes.data
        w[L.L_RANGES] = table.ctypes.data
        w[L.L_NRANGES] = len(table)
        w[L.L_DYNAMIC_SMEM] = launch.smem
        self.shared_bytes = self._shared_bytes()
        w[L.L_TOTAL_SMEM] = self.shared_bytes - L.SHARED_RESERVED
        w[L.L_NSMID] = device.sm_count
        w[L.L_POLICY] = device.policy
        w[L.L_SEED] = device.seed
        w[L.L_GRIDID] = number
        times = timing(device.arch)
        w[L.L_CLOCK_KHZ] = times.clock_khz
        w[L.L_TIME0] = device.cycles * 1_000_000 // times.clock_khz + 1_000_000_000
        w[L.L_CLOCKED] = int(low.clocked)
        w[L.L_NUMERICS] = device.numerics_code
        w[L.L_SHADOWED] = int(low.shadowed)
        w[L.L_REGISTERS] = pool_registers(launch, low.directives) if low.moves_registers else 0
        latency = np.array(times.rows, np.int64)
        prints = np.zeros(_PRINT_BYTES, np.uint8)
        self.keep += [latency, prints]
        self.prints = prints
        w[L.L_LATENCY] = latency.ctypes.data
        w[L.L_PRINT], w[L.L_PRINT_SIZE] = prints.ctypes.data, _PRINT_BYTES
        if device.checker is not None:
            w[L.L_CHECK] = device.checker.entry
        elif device.checked:
            self.events = np.zeros((1 << 20, 8), np.int64)
            w[L.L_HOOKS], w[L.L_HOOKS_SIZE] = self.events.ctypes.data, len(self.events)
        self.low = low
        if device.breakpoints is not None:
            w[L.L_BREAK] = device.breakpoints.entry
        if device.traced:
            self.trace = np.zeros((_TRACE_EVENTS, TRACE_WORDS), np.int64)
            w[L.L_TRACE], w[L.L_TRACE_SIZE] = self.trace.ctypes.data, _TRACE_EVENTS

    def _shared_bytes(self) -> int:
        low, launch = self.compiled.low, self.launch
        end = L.SHARED_RESERVED + low.static_shared
        if launch.smem:
            end = max(end, low.dynamic_shared + launch.smem)
        return max(end, L.SHARED_RESERVED + 16)

    def group(self, more: int = 0) -> Group:
        """A group for units of this launch, and for `more` dependent ones."""
        return Group(self.device.sm_count, more, "tcgen05" in self.device.arch)

    def groups(self) -> list[Group]:
        """The units of a launch by itself, each a worker's."""
        cluster, total = prod(self.launch.cluster), prod(self.launch.grid)
        workers = 1 if self.ordered else min(self.device.workers, max(1, total // cluster // self._batch()))
        groups = [self.group() for _ in range(workers)]
        for group in groups:
            group.append(self.unit(group))
        return groups

    def _resident(self) -> int:
        """CTAs that an SM holds at a time."""
        registers = launch_registers(self.launch) or 32
        smem = self.shared_bytes - L.SHARED_RESERVED
        return max(archs.occupancy(self.device.arch, prod(self.launch.block), registers, smem).ctas, 1)

    def _batch(self) -> int:
        """Clusters that a worker runs together: one, but as many as compete for the tensor memory of an SM."""
        if not self.low.allocates:
            return 1
        cluster = prod(self.launch.cluster)
        beside = self.device.sm_count // cluster
        return min(self._resident(), -(-prod(self.launch.grid) // cluster // beside))

    def unit(self, group: Group) -> Unit:
        """Memory for the CTAs that run at a time: all that the SMs hold where CTAs see each other, else a batch."""
        cluster, threads = prod(self.launch.cluster), prod(self.launch.block)
        batch, cost = self._batch(), 0
        sms = [k % cluster for k in range(batch * cluster)]
        if self.ordered:
            resident, beside = self._resident(), self.device.sm_count // cluster
            batch, cost = 0, L.ROOM // resident
            slots = min(prod(self.launch.grid), resident * beside * cluster)
            # a CTA of a cluster has an SM of its own
            sms = [s // cluster % beside * cluster + s % cluster for s in range(slots)]
        unit = Unit(self.words, self.compiled.address, self.low, group, sms, threads, self.shared_bytes, batch, cost)
        self.units.append(unit)
        if self.device.checker is not None:
            unit.words[L.U_CHECK] = self.device.checker.watch(self, unit)
        return unit

    def follow(self, before: Run) -> None:
        """Make this a dependent of the launch before it in the stream."""
        self.before = before
        self.words[L.L_DEPENDS] = before.words.address
        before.words[L.L_FOLLOWED] = 1

    def stuck(self) -> list[Unit]:
        """The units whose CTAs wait where it hangs: of a deadlock the one that cannot go on (`stall.give_up`), since
        other workers were stopped in the midst of theirs; of a time-out all."""
        words = self.words
        if words[L.L_ERROR] != L.ERR_DEADLOCK:
            return self.units
        return [unit for unit in self.units if unit.words.address == words[L.L_ERROR_ADDR]]

    def finish(self) -> None:
        """Print what the launch printed."""
        used = self.words[L.L_PRINT_USED]
        if used:
            from tensorladder.vgpu.machine.printf import render

            self.device.output(render(self.prints[:used]))


def run_all(device: Device, runs: Sequence[Run]) -> None:
    """Run a launch with all workers, or successive launches of a stream that may overlap under one scheduler.

    Raises KernelError or Unsupported for the first of them that fails, and for the device's time-out.
    """
    from tensorladder.vgpu.machine.native import runtime

    rt = runtime()
    if device.breakpoints is not None:
        device.breakpoints.watch(runs)
    jobs: list[Callable[[], object]]
    if len(runs) == 1:
        groups = runs[0].groups()
        jobs = [partial(rt.call, "tl_worker", g.words.address) for g in groups]
    else:
        for before, run in pairwise(runs):
            run.follow(before)
        groups = [runs[0].group(len(runs) - 1)]
        jobs = [partial(_overlapping, rt, groups[0], runs)]
    try:
        timed_out = _work(jobs, runs, device.timeout)
        _raise_failure(device, runs, timed_out)
    finally:
        if device.checker is not None:
            device.checker.collect(runs)
        if device.traced:  # of a launch that hangs too
            device.trace += [
                Traced(run.compiled, run.ordered, device.cycles, run.trace, run.words[L.L_TRACE_USED]) for run in runs
            ]
        for run in runs:
            run.finish()
    device.count(
        L.LANES * sum(u.words[L.U_INSTRS] for run in runs for u in run.units),
        max(u.words[L.U_CLOCK] for run in runs for u in run.units),
    )
    if device.checked and device.checker is None:
        device.events += [run.events[: min(run.words[L.L_HOOKS_USED], len(run.events))] for run in runs]


def _overlapping(rt, group: Group, runs: Sequence[Run]) -> None:
    """Run launches under one scheduler, each unit made when it may start and its memory freed when it is done."""
    for run in runs:
        for done in group.append(run.unit(group)):
            done.release()
        if rt.call("tl_worker", group.words.address) == 0:
            return


def _raise_failure(device: Device, runs: Sequence[Run], timed_out: bool) -> None:
    """KernelError or Unsupported of what went wrong while the parameters still have a name; Stopped at a breakpoint."""
    if device.breakpoints is not None:
        device.breakpoints.check()
        if timed_out or any(run.words[L.L_ERROR] == L.ERR_DEADLOCK for run in runs):
            device.breakpoints.hang(runs)
    for run in runs:
        if run.words[L.L_ERROR]:
            raise messages.error(run.compiled, run.words, run.memory, run.stuck(), _others(runs, run))
    if timed_out:
        running = [run for run in runs if not run.words[L.L_COMPLETE]] or runs
        who = running[0]
        raise KernelError(
            f"kernel {who.low.name} stopped after the time-out of {device.timeout:g} s: "
            + messages.hang(who.compiled, who.units, who.memory)
            + _others(running, who)
        )


def _others(runs: Sequence[Run], one: Run) -> str:
    """What the launches beside one wait for."""
    beside = [r for r in runs if r is not one and r.units and not r.words[L.L_COMPLETE]]
    return "".join(f"; kernel {r.low.name}: {messages.hang(r.compiled, r.units, r.memory)}" for r in beside)


def _work(jobs: Sequence[Callable[[], object]], runs: Sequence[Run], timeout: float | None) -> bool:
    """Do the jobs in threads (native calls release the GIL) and wait; true when the time-out stopped them."""
    failures: list[BaseException] = []

    def guarded(job: Callable[[], object]) -> None:
        try:
            job()
        except BaseException as failure:  # raised again below, in the caller's thread
            failures.append(failure)

    def stop() -> None:
        for run in runs:
            run.words[L.L_STOP] = 1

    timed_out = False
    if len(jobs) == 1 and timeout is None and threading.current_thread() is not threading.main_thread():
        guarded(jobs[0])
    else:
        threads = [threading.Thread(target=guarded, args=(job,), daemon=True) for job in jobs]
        for t in threads:
            t.start()
        end = None if timeout is None else time.monotonic() + timeout * len(runs)
        try:
            for t in threads:
                while t.is_alive():
                    t.join(0.5 if end is None else max(0.0, min(0.5, end - time.monotonic())))
                    if end is not None and time.monotonic() >= end and t.is_alive():
                        timed_out = True
                        stop()
                        t.join()
        except BaseException:  # interrupted: stop the workers before their memory goes
            stop()
            for t in threads:
                t.join()
            raise
    if failures:
        raise failures[0]
    return timed_out
