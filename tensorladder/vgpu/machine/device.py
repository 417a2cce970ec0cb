"""The virtual GPU that users hold: memory, streams, launches."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import numpy as np

from tensorladder.core import arch as archs
from tensorladder.core.errors import KernelError, MissingExtra, UsageError
from tensorladder.core.program import Launch
from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.machine import messages
from tensorladder.vgpu.machine.arena import Memory
from tensorladder.vgpu.machine.latency import timing
from tensorladder.vgpu.machine.numerics import parse_numerics, refuse_unmeasured
from tensorladder.vgpu.machine.unit import Unit, Words

POLICIES = {"eager": L.POLICY_EAGER, "lazy": L.POLICY_LAZY, "random": L.POLICY_RANDOM, "timed": L.POLICY_TIMED}
_PRINT_BYTES = 1 << 20


def parse_policy(text: str) -> tuple[int, int]:
    """(policy code, seed) of `eager`, `lazy`, `timed`, `random` or `random:SEED`."""
    name, _, seed = text.partition(":")
    if name not in POLICIES or (seed and (name != "random" or not seed.isdecimal())):
        raise UsageError(f"async policy {text!r}: choose eager, lazy, timed or random:SEED")
    return POLICIES[name], int(seed or 0)


class Stream:
    """Launches in order; they run at `synchronize`."""

    def __init__(self, device: Device):
        self.device = device
        self.pending: list[Launch] = []

    def enqueue(self, launch: Launch) -> None:
        """Remember a launch."""
        self.pending.append(launch)

    def synchronize(self) -> None:
        """Run what was enqueued. Raises KernelError or Unsupported for the first launch that fails."""
        pending, self.pending = self.pending, []
        for launch in pending:
            self.device.run(launch)


class Device:
    """A virtual GPU.

    arch: architecture name ("sm_90a"). policy: when asynchronous effects happen (eager, lazy, random:SEED, timed).
    seed: of everything random. checked: run the variant with hazard hooks. timeout: seconds a launch may take.
    workers: threads (default: all cores). numerics: how matrix products accumulate, "f32" (in steps of one fused
    multiply-add), "f64" (rounded once an instruction) or "exact" (bit for bit as on the chip; sm_90 alone).
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
    ):
        self.arch = archs.find(arch)
        self.policy, policy_seed = parse_policy(policy)
        self.seed = (seed + policy_seed) & 0x7FFF_FFFF  # 31 bits: the generators multiply it
        self.checked, self.timeout = checked, timeout
        self.workers = workers or len(os.sched_getaffinity(0))
        self.numerics = numerics
        self.numerics_code = parse_numerics(numerics, self.arch)
        self.memory = Memory()
        self.output: Callable[[str], None] = lambda text: print(text, end="")
        self.seconds = 0.0  # of launches so far
        self.events: list = []  # of the checked variant
        self.cycles = 0
        self.instructions = 0  # run so far, in lanes of full warps (32 a warp instruction)
        self._variables: dict[str, dict] = {}
        self._launches = 0

    def stream(self) -> Stream:
        """A new stream."""
        return Stream(self)

    def run(self, launch: Launch) -> None:
        """Run one launch to its end."""
        try:
            from tensorladder.vgpu.machine.program import compile_kernel
        except ImportError as e:
            raise MissingExtra(e.name or "llvmlite", "climb") from None
        compiled = compile_kernel(launch.module.ptx, launch.kernel, self.checked)
        self._check(launch, compiled)
        start = time.perf_counter()
        _Run(self, launch, compiled).run()
        self.seconds += time.perf_counter() - start

    def _check(self, launch: Launch, compiled) -> None:
        low = compiled.low
        if self.numerics_code == L.NUMERICS_EXACT:
            refuse_unmeasured(launch.kernel, low.lines)
        if len(launch.params) < low.param_bytes:
            raise UsageError(
                f"kernel {launch.kernel}: {len(launch.params)} parameter bytes given, "
                f"its .param list takes {low.param_bytes}"
            )
        limits = archs.KernelLimits(
            static_smem=low.static_shared,
            registers=launch_registers(launch),
            reqntid=low.directives.get("reqntid"),
            maxntid=low.directives.get("maxntid"),
            reqnctapercluster=low.directives.get("reqnctapercluster"),
        )
        archs.check_launch(
            self.arch, launch.grid, launch.block, launch.cluster, launch.smem, limits, name=f"kernel {launch.kernel}"
        )

    def variables(self, launch: Launch, compiled) -> list[int]:
        """Host addresses of the module's variables, in the order the kernel numbers them; allocated on first use."""
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


def launch_registers(launch: Launch) -> int | None:
    """Registers a thread takes, from the cubin where there is one."""
    if launch.module.cubin is None:
        return None
    from tensorladder.core.cubin import registers

    return registers(launch.module.cubin, launch.kernel)


class _Run:
    """One launch while it runs."""

    def __init__(self, device: Device, launch: Launch, compiled):
        self.device, self.launch, self.compiled = device, launch, compiled
        self.keep: list = []
        device._launches += 1
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
        device.memory.add_range(
            self.params.ctypes.data, self.params.ctypes.data + max(len(launch.params), 1), "kernel parameters", False
        )
        table = device.memory.table()
        self.keep += [symbols, table]
        w[L.L_SYMBOLS] = symbols.ctypes.data
        w[L.L_RANGES] = table.ctypes.data
        w[L.L_NRANGES] = len(table)
        w[L.L_DYNAMIC_SMEM] = launch.smem
        self.shared_bytes = self._shared_bytes()
        w[L.L_TOTAL_SMEM] = self.shared_bytes - L.SHARED_RESERVED
        w[L.L_NSMID] = device.arch.limits.sm_count
        w[L.L_POLICY] = device.policy
        w[L.L_SEED] = device.seed
        w[L.L_GRIDID] = device._launches
        times = timing(device.arch)
        w[L.L_CLOCK_KHZ] = times.clock_khz
        w[L.L_TIME0] = device.cycles * 1_000_000 // times.clock_khz + 1_000_000_000
        w[L.L_CLOCKED] = int(low.clocked)
        w[L.L_NUMERICS] = device.numerics_code
        latency = np.array(times.rows, np.int64)
        prints = np.zeros(_PRINT_BYTES, np.uint8)
        self.keep += [latency, prints]
        self.prints = prints
        w[L.L_LATENCY] = latency.ctypes.data
        w[L.L_PRINT], w[L.L_PRINT_SIZE] = prints.ctypes.data, _PRINT_BYTES
        if device.checked:
            self.events = np.zeros((1 << 20, 8), np.int64)
            w[L.L_HOOKS], w[L.L_HOOKS_SIZE] = self.events.ctypes.data, len(self.events)
        self.low = low

    def _shared_bytes(self) -> int:
        low, launch = self.compiled.low, self.launch
        end = L.SHARED_RESERVED + low.static_shared
        if launch.smem:
            end = max(end, low.dynamic_shared + launch.smem)
        return max(end, L.SHARED_RESERVED + 16)

    def run(self) -> None:
        from tensorladder.vgpu.machine.native import runtime

        d, launch = self.device, self.launch
        cluster = int(np.prod(launch.cluster))
        total = int(np.prod(launch.grid))
        threads = int(np.prod(launch.block))
        if self.low.ordered:
            registers = launch_registers(launch) or 32
            resident = archs.occupancy(d.arch, threads, registers, self.shared_bytes - L.SHARED_RESERVED).ctas
            slots = min(total, max(resident * d.arch.limits.sm_count // cluster, 1) * cluster)
            workers = 1
        else:
            slots, workers = cluster, min(d.workers, max(1, total // cluster))
        self.units = [
            Unit(
                self.words, self.compiled.address, self.low, slots, threads, self.shared_bytes, "tcgen05" in d.arch
            )
            for _ in range(workers)
        ]
        rt = runtime()
        try:
            self._work(rt)
            self._raise_failure()
        finally:
            d.memory.ranges = [r for r in d.memory.ranges if r.start != self.params.ctypes.data]
            self._printed()
        d.instructions += L.LANES * sum(u.words[L.U_INSTRS] for u in self.units)
        d.cycles += max(u.words[L.U_CLOCK] for u in self.units)
        if d.checked:
            d.events.append(self.events[: min(self.words[L.L_HOOKS_USED], len(self.events))])

    def _raise_failure(self) -> None:
        """KernelError or Unsupported of what went wrong, while the parameters still have a name."""
        d = self.device
        if self.words[L.L_ERROR]:
            raise messages.error(self.compiled, self.words, d.memory, self.units)
        if self.timed_out:
            raise KernelError(
                f"kernel {self.low.name} stopped after the time-out of {d.timeout:g} s: "
                + messages.hang(self.compiled, self.units, d.memory)
            )

    def _work(self, rt) -> None:
        """Run the workers in threads (the calls release the GIL) and wait, with the time-out."""
        self.timed_out = False
        in_thread = threading.current_thread() is not threading.main_thread()
        if len(self.units) == 1 and self.device.timeout is None and in_thread:
            rt.call("tl_worker", self.units[0].words.address)
            return
        threads = [
            threading.Thread(target=rt.call, args=("tl_worker", u.words.address), daemon=True) for u in self.units
        ]
        for t in threads:
            t.start()
        end = None if self.device.timeout is None else time.monotonic() + self.device.timeout
        try:
            for t in threads:
                while t.is_alive():
                    t.join(0.5 if end is None else max(0.0, min(0.5, end - time.monotonic())))
                    if end is not None and time.monotonic() >= end and t.is_alive():
                        self.timed_out = True
                        self.words[L.L_STOP] = 1
                        t.join()
        except BaseException:  # interrupted: stop the workers before their memory goes
            self.words[L.L_STOP] = 1
            for t in threads:
                t.join()
            raise

    def _printed(self) -> None:
        used = self.words[L.L_PRINT_USED]
        if used:
            from tensorladder.vgpu.machine.printf import render

            self.device.output(render(self.prints[:used]))
