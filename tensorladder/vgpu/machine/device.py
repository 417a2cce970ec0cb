"""The virtual GPU that users hold: memory, streams, launches."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any, Protocol

import numpy as np

from tensorladder.core import arch as archs
from tensorladder.core.errors import MissingExtra, UsageError
from tensorladder.core.findings import Where
from tensorladder.core.program import Launch
from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.machine.arena import Memory, Range
from tensorladder.vgpu.machine.execution import Run, Traced, launch_registers, run_all
from tensorladder.vgpu.machine.numerics import parse_numerics, refuse_unmeasured
from tensorladder.vgpu.machine.unit import Unit

#: launch attribute: need not wait for the end of the launch before
_DEPENDENT = "programmatic_stream_serialization"
_HANDLES = itertools.count(0x7E57_0000_0000, 0x100)
POLICIES = {"eager": L.POLICY_EAGER, "lazy": L.POLICY_LAZY, "random": L.POLICY_RANDOM, "timed": L.POLICY_TIMED}


def parse_policy(text: str) -> tuple[int, int]:
    """(policy code, seed) of `eager`, `lazy`, `timed`, `random` or `random:SEED`."""
    name, _, seed = text.partition(":")
    if name not in POLICIES or (seed and (name != "random" or not seed.isdecimal())):
        raise UsageError(f"async policy {text!r}: choose eager, lazy, timed or random:SEED")
    return POLICIES[name], int(seed or 0)


def _follows(launch: Launch, before: Launch) -> bool:
    """Whether a launch is a dependent one of that before it."""
    return bool(launch.attributes.get(_DEPENDENT)) and launch.stream == before.stream


class Event:
    """A point in a stream's work, which other streams and the host can wait for (cudaEventRecord)."""

    def __init__(self, stream: Stream, clock: Any):
        self._stream, self._clock = stream, clock

    def synchronize(self) -> None:
        """Run the work before it, and let the host wait for that."""
        self._stream.flush()
        if self._stream.device.order is not None:
            self._stream.device.order.synchronize(self._clock)


class Stream:
    """Launches in order; they run at `synchronize`, or when what waits for them runs.

    Launches of two streams of a device are concurrent unless an event or the host orders them: a device with a checker
    takes them so. Several host threads may use a stream, and the streams of a device, at a time.
    """

    def __init__(self, device: Device):
        self.device = device
        self._pending: list[tuple[Launch, Any]] = []  # launches, and what each is for the checker's order
        self._adding = threading.Lock()  # of the list above, whose order is the checker's
        self._running = threading.RLock()  # held while launches run: who waits for the stream waits for those, too
        self.handle = device._new_handle(self) if device.order is not None else 0

    def enqueue(self, launch: Launch) -> None:
        """Remember a launch."""
        known = self.device.order is not None
        with self._adding:
            self._pending.append((launch, self.device.begin(launch, self.handle) if known else None))

    def synchronize(self) -> None:
        """Run what was enqueued. Raises KernelError or Unsupported for the first launch that fails."""
        order = self.device.order
        try:
            self.flush(awaited=True)
        finally:
            if order is not None:
                order.synchronize(order.record(self.handle))

    def flush(self, awaited: bool = False) -> None:
        """Run what was enqueued; the host does not wait for it, unless it is `awaited`."""
        with self._running:
            with self._adding:
                pending, self._pending = self._pending, []
            order, works = self.device.order, [work for _, work in pending if work is not None]
            # no other host thread can launch beside them
            alone = awaited and threading.active_count() == 1 and all(order.alone(work) for work in works)
            try:
                self.device.run_stream([launch for launch, _ in pending], [] if alone else works)
            finally:
                for work in works:
                    order.drop(work)

    def record(self) -> Event:
        """An event after all that was enqueued so far."""
        order = self.device.order
        return Event(self, None if order is None else order.record(self.handle))

    def wait(self, event: Event) -> None:
        """What is enqueued from now on comes after the event (cudaStreamWaitEvent). Runs what it waits for."""
        self.flush()
        event._stream.flush()
        if self.device.order is not None:
            self.device.order.wait(self.handle, event._clock)


class Checker(Protocol):
    """A hazard checker as launches see it (check.engine). entry: address of the function that is told of events. order:
    what streams and events order (check.streams)."""

    @property
    def entry(self) -> int: ...

    @property
    def order(self) -> Any: ...

    def watch(self, run: Run, unit: Unit) -> int:
        """Address of what it keeps about a unit, which is about to run."""

    def collect(self, runs: Sequence[Run]) -> None:
        """Launches have run, or have stopped."""


class Watcher(Protocol):
    """Breakpoints as launches see them (debug.Breakpoints). places: what kernels are compiled with. entry: address of
    the function that is told that a warp has come to one."""

    @property
    def places(self) -> tuple: ...

    @property
    def entry(self) -> int: ...

    def found_in(self, kernels: Iterable[Any]) -> None:
        """Kernels that are about to run."""

    def watch(self, runs: Sequence[Run]) -> None:
        """Launches that are about to run."""

    def hang(self, runs: Sequence[Run]) -> None:
        """Launches hang, or took too long."""

    def check(self) -> None:
        """Launches have ended: raise Stopped if that was a breakpoint's doing."""


class Device:
    """A virtual GPU.

    arch: architecture name ("sm_90a"). policy: when asynchronous effects happen (eager, lazy, random:SEED, timed).
    seed: of everything random. checked: run the variant with hazard hooks. timeout: seconds a launch may take.
    workers: threads (default: all cores). numerics: how matrix products accumulate, "f32" (in steps of one fused
    multiply-add), "f64" (rounded once an instruction) or "exact" (bit for bit as on the chip; sm_90 alone).
    sm_count: SMs, for another part than the architecture's reference one. checker: looks for hazards (vgpu.check).
    breakpoints: where warps stop (vgpu.debug); one worker then runs all, so that which of them comes first is the same
    every time.
    """

    def __init__(
        self,
        arch: str = "sm_90a",
        policy: str = "eager",
        seed: int = 0,
        checked: bool = False,
        timeout: float | None = None,
        workers: int | None = None,
        numerics: str = "f32",
        sm_count: int | None = None,
        checker: Checker | None = None,
        breakpoints: Watcher | None = None,
    ):
        self.arch = archs.find(arch)
        self.policy, policy_seed = parse_policy(policy)
        self.seed = (seed + policy_seed) & 0x7FFF_FFFF  # 31 bits: the generators multiply it
        self.checker, self.breakpoints = checker, breakpoints
        self.checked, self.timeout = checked or checker is not None, timeout
        self.workers = 1 if breakpoints is not None else workers or len(os.sched_getaffinity(0))
        self.numerics = numerics
        self.numerics_code = parse_numerics(numerics, self.arch)
        if sm_count is not None and (not isinstance(sm_count, int) or sm_count < 1):
            raise UsageError(f"sm_count={sm_count!r}: a positive number of SMs is wanted")
        self.sm_count = sm_count or self.arch.limits.sm_count
        self.memory = Memory()
        self.order: Any = None if checker is None else checker.order
        if self.order is not None:
            self.order.synchronize()  # with what other devices under this checker have run
            self.order.place = lambda address: self.memory.describe(address, 1)
        self._free_handles: list[int] = []
        self.output: Callable[[str], None] = lambda text: print(text, end="")
        self.seconds = 0.0  # of launches so far
        self.events: list = []  # of the checked variant
        self.launch_numbers = itertools.count(1)
        self.traced = False  # launches record their timelines (timed policy), in `trace`
        self.trace: list[Traced] = []
        self.cycles = 0
        self.instructions = 0  # run so far, in lanes of full warps (32 a warp instruction)
        self._variables: dict[str, dict] = {}
        self._lock = threading.RLock()  # of the sums and variables, which host threads that launch at a time share
        # breakpoints know the launches of one call
        self._turn: AbstractContextManager = contextlib.nullcontext() if breakpoints is None else threading.RLock()

    def stream(self) -> Stream:
        """A new stream."""
        return Stream(self)

    def _new_handle(self, stream: Stream) -> int:
        """A handle for a stream, given back when that goes."""
        try:
            handle = self._free_handles.pop()
        except IndexError:
            handle = next(_HANDLES)
            self.order.create(handle, blocking=False)
        weakref.finalize(stream, self._free_handles.append, handle)
        return handle

    def begin(self, launch: Launch, stream: int) -> Any:
        """A launch as an operation of a stream, for the checker. `run_stream` or `order.drop` ends it."""
        from tensorladder.vgpu.debug.text import short

        return self.order.begin(stream, f"kernel {short(launch.kernel)}", partial(self._where, launch), later=True)

    def _where(self, launch: Launch, site: int) -> Where:
        """The place in a kernel of an instruction, by number."""
        compiled = self._compile(launch)[1]
        lines = compiled.low.lines
        text, ptx, file, row, _ = lines[site] if site < len(lines) else ("", 0, 0, 0, 0)
        file = compiled.files.get(file) or None
        return Where(text, file, (row or None) if file else None, ptx or None, compiled.low.name, space="global")

    def run(self, launch: Launch) -> None:
        """Run one launch to its end."""
        stream = self.stream()
        stream.enqueue(launch)
        stream.synchronize()

    def run_stream(
        self, launches: Sequence[Launch], works: Sequence[Any] = (), ranges: Sequence[Range] = ()
    ) -> None:
        """Run launches of one stream in order. works: what each is for the checker's `order`, where its accesses are to
        be compared with other streams'. ranges: memory that they may access besides the device's.

        One with the attribute "programmatic_stream_serialization" may start when all CTAs of the launch before it have
        executed griddepcontrol.launch_dependents or exited (PTX ISA, "griddepcontrol"); under the eager policy all of
        them start when the launch before is complete.
        """
        with self._turn:
            self._run_stream(launches, iter(works), ranges)

    def _run_stream(self, launches: Sequence[Launch], works: Iterator[Any], ranges: Sequence[Range]) -> None:
        waiting = list(launches)
        if self.breakpoints is not None:
            self.breakpoints.found_in([self._compile(launch)[1] for launch in waiting])
        while waiting:
            chain = [self._compile(waiting.pop(0))]
            # a kernel that never triggers is complete when its dependents may start
            while waiting and chain[-1][1].low.triggers and _follows(waiting[0], chain[-1][0]):
                chain.append(self._compile(waiting.pop(0)))
            start = time.perf_counter()
            runs = [Run(self, launch, compiled, len(chain) > 1, ranges) for launch, compiled in chain]
            for run in runs:
                run.work = next(works, None)
            run_all(self, runs)
            with self._lock:
                self.seconds += time.perf_counter() - start

    def count(self, instructions: int, cycles: int) -> None:
        """Launches have run."""
        with self._lock:
            self.instructions += instructions
            self.cycles += cycles

    def _compile(self, launch: Launch):
        """(launch with the cluster that it gets, compiled kernel); raises where the driver would refuse the launch."""
        try:
            from tensorladder.vgpu.machine.program import compile_kernel
        except ImportError as e:
            raise MissingExtra(e.name or "llvmlite", "climb") from None
        places = None if self.breakpoints is None else self.breakpoints.places
        compiled = compile_kernel(launch.module.ptx, launch.kernel, self.checked, places)
        return replace(launch, cluster=self._check(launch, compiled)), compiled

    def _check(self, launch: Launch, compiled) -> tuple[int, int, int]:
        low = compiled.low
        name = f"kernel {launch.kernel}"
        if len(launch.params) < low.param_bytes:
            raise UsageError(
                f"{name}: {len(launch.params)} parameter bytes given, its .param list takes {low.param_bytes}"
            )
        if self.numerics_code == L.NUMERICS_EXACT:
            refuse_unmeasured(launch.kernel, low.lines)
        directives = low.directives
        limits = archs.KernelLimits(
            static_smem=low.static_shared,
            registers=launch_registers(launch),
            reqntid=directives.get("reqntid"),
            maxntid=directives.get("maxntid"),
            reqnctapercluster=directives.get("reqnctapercluster"),
            maxclusterrank=next(iter(directives.get("maxclusterrank", ())), None),
        )
        cluster = archs.check_launch(
            self.arch, launch.grid, launch.block, launch.cluster, launch.smem, limits, name=name
        )
        if launch.attributes.get("cooperative"):
            smem = low.static_shared + launch.smem
            archs.check_cooperative(
                self.arch, launch.grid, launch.block, smem, limits.registers or 0, sm_count=self.sm_count, name=name
            )
        if prod(cluster) > self.sm_count:
            raise UsageError(f"{name}: a cluster of {prod(cluster)} CTAs does not fit on {self.sm_count} SMs")
        return cluster

    def variables(self, launch: Launch, compiled) -> list[int]:
        """Host addresses of the module's variables, in the order the kernel numbers them; allocated on first use."""
        with self._lock:
            table = self._variables.setdefault(launch.module.ptx, {})
            for name in compiled.low.symbols:
                if name not in table:
                    self._load_variable(name, compiled, table)
            for name in compiled.low.symbols:
                self._relocate(name, compiled, table)
        return [table[n].ctypes.data for n in compiled.low.symbols]

    def _load_variable(self, name: str, compiled, table: dict) -> None:
        var = compiled.variables.get(name)
        if var is None:
            raise UsageError(f"PTX variable {name} is not defined in the module")
        array = self.memory.empty(name, max(var.size, 1), np.uint8)
        array[:] = 0
        if var.init is not None:
            array[: len(var.init)] = np.frombuffer(var.init, np.uint8)
        table[name] = array

    def _relocate(self, name: str, compiled, table: dict) -> None:
        for offset, symbol, addend in compiled.variables[name].relocs:
            if symbol not in table:
                self._load_variable(symbol, compiled, table)
            table[name][offset : offset + 8].view(np.int64)[0] = table[symbol].ctypes.data + addend
