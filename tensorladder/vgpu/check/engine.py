"""The checker as launches see it: memory for what it knows about each unit, and what it found, as findings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from tensorladder.core.errors import TensorladderError
from tensorladder.core.findings import Finding, Report, Where, summarise
from tensorladder.vgpu.check import layout as X
from tensorladder.vgpu.check.footprints import footprint
from tensorladder.vgpu.check.streams import Order
from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.machine.native import checker
from tensorladder.vgpu.machine.unit import Unit, Words

if TYPE_CHECKING:
    from tensorladder.vgpu.machine.execution import Run

_MOST_COMPONENTS = 16384
#: strong accesses and fences whose scope is narrower than the GPU
_NARROW = re.compile(r"\b(ld|st|atom|red|fence)\.(?!mbarrier_init|proxy)[\w.:]*\.(cta|cluster)\b|\bmembar\.cta\b")
#: arrivals and waits that order execution and no memory
_RELAXED = re.compile(r"\b(mbarrier|barrier\.cluster)\.[\w.:]*\brelaxed\b")
_COPIES = re.compile(r"\bcp\.async\.c[ag]\b")
#: accesses of other CTAs' shared memory
_CROSS = re.compile(r"\b(ld|st|atom|red)\.[\w.:]*shared::cluster\b|\bmapa\.")


@lru_cache(maxsize=64)
def _has(pattern: re.Pattern[str], text: str) -> bool:
    """Whether a module's text holds what a pattern says: of each module once, not at each launch."""
    return pattern.search(text) is not None


class Watch:
    """What the checker knows about one unit: all its memory, most of it touched only where it is needed."""

    def __init__(self, run: Run, unit: Unit, advice: bool = False):
        self.run = run
        self.warps, self.slots = unit.warps, unit.slots
        self._keep: list[np.ndarray] = []
        self.words = x = Words(X.X_BYTES)
        size = prod(run.launch.cluster)
        warps = unit.warps * unit.slots
        most = min(-(-(3 * warps + 104 * unit.slots + 128) // 16) * 16, _MOST_COMPONENTS)
        clock = 4 * most
        barriers = 64 * unit.slots
        window = run.shared_bytes
        scoped = _has(_NARROW, run.launch.module.ptx)
        rows = X.SCOPED_ROWS if scoped else X.ROWS
        relaxed = clock if _RELAXED.search(run.launch.module.ptx) else 0
        for field, value in {
            X.X_KMAX: most, X.X_USED: warps, X.X_CLOCK_BYTES: clock, X.X_SLOTS: unit.slots, X.X_WARPS: unit.warps,
            X.X_SIZE: size, X.X_B_MAX: barriers, X.X_SHARED: unit.shared, X.X_STRIDE: unit.stride,
            X.X_WINDOW: window, X.X_UNIT: unit.words.address, X.X_ORDERED: int(run.ordered),
            X.X_LAUNCH: run.words.address, X.X_ROWS: rows, X.X_SCOPED: int(scoped),
            X.X_CROSS: int(size > 1 and _has(_CROSS, run.launch.module.ptx)),
        }.items():  # fmt: skip
            x[field] = value
        clusters = -(-unit.slots // size)
        groups = unit.slots * -(-unit.warps // 4) if "wgmma" in run.launch.module.ptx else 1
        for field, count in {
            X.X_KNOWN: rows * warps * clock, X.X_COMPONENTS: most * X.K_BYTES, X.X_STARTS: clock,
            X.X_Z: warps * X.Z_BYTES, X.X_Y: unit.slots * X.Y_BYTES, X.X_B: barriers * X.B_BYTES,
            X.X_B_CLOCKS: X.B_CLOCKS * barriers * clock, X.X_B_SEEN: 16 * barriers * unit.warps,
            X.X_FINDINGS: X.FINDINGS * X.F_BYTES, X.X_HASH: 8 * X.HASH_SLOTS,
            X.X_BARS: 2 * 16 * unit.slots * clock, X.X_CLUSTERS: 4 * clusters * clock,
            X.X_SYNC: X.SYNC_BYTES * X.SYNC_SLOTS, X.X_SYNC_CLOCKS: 2 * X.SYNC_MOST * clock, X.X_EDGES: 24 * X.EDGES,
            X.X_EDGE_CLOCKS: X.EDGES * clock,
            X.X_FENCES: 3 * (X.FENCE_HEAD + (X.FENCE_MOST + 1) * clock), X.X_STARTED: 24 * X.STARTED,
            X.X_VISITS: 8 * size * warps, X.X_RELAXED: 2 * warps * clock, X.X_LANE_LOG: warps * X.LOG_BYTES,
            X.X_LEFT: warps * X.LEFT_BYTES,
            X.X_COPY_LOG: warps * X.COPY_BYTES if _has(_COPIES, run.launch.module.ptx) else 0,
            X.X_MEET: groups * X.MEETS * 2 * clock, X.X_DOUBTS: warps * clock if x[X.X_CROSS] else 0,
            X.X_B_OWN: 2 * barriers * clock if x[X.X_CROSS] else 0,
            X.X_BAR_DOUBTS: 16 * unit.slots * clock if x[X.X_CROSS] else 0, X.X_EXECUTED: warps * relaxed,
            X.X_PAD: relaxed,
            X.X_B_EXECUTED: 2 * barriers * relaxed, X.X_BAR_EXECUTED: 16 * unit.slots * relaxed,
            X.X_CLUSTER_EXECUTED: 2 * clusters * relaxed, X.X_SENT: unit.slots * X.SENT_BYTES,
        }.items():  # fmt: skip
            x[field] = self._take(count) if count else 0
        if advice:
            x[X.X_ADVICE] = self._take(24 * X.ADVICE_ROWS)
        self._registers(unit)
        self._components(warps)
        if run.before is not None:
            self._depends(warps)
        self._slots(run, unit, window)
        self._ranges(run)

    def _take(self, size: int) -> int:
        """Address of zeroed memory."""
        raw = np.zeros(size + 64, np.uint8)
        self._keep.append(raw)
        return -(-raw.ctypes.data // 64) * 64

    def _view(self, address: int, count: int) -> np.ndarray:
        """64-bit words at an address that `_take` gave."""
        import ctypes

        return np.ctypeslib.as_array((ctypes.c_int64 * count).from_address(address))

    def _registers(self, unit: Unit) -> None:
        """What warps will have asked for with setmaxnreg is read at the end: nothing yet."""
        self._warps = [unit.warp_words(slot, n).view(np.int64) for slot in range(unit.slots) for n in range(unit.warps)]
        for words in self._warps:
            words[L.W_MAXNREG // 8] = 0

    def asked_registers(self) -> int:
        """The most registers that the warps of a CTA ask for with setmaxnreg together; 0: not all of them do."""
        most = 0
        for slot in range(self.slots):
            counts = [int(w[L.W_MAXNREG // 8]) for w in self._warps[slot * self.warps : (slot + 1) * self.warps]]
            if all(counts):
                most = max(most, L.LANES * sum(counts))
        return most

    def costs(self) -> np.ndarray:
        """(accesses, units taken, least units) by instruction."""
        return self._view(self.words[X.X_ADVICE], 3 * X.ADVICE_ROWS).reshape(-1, 3)

    def _components(self, warps: int) -> None:
        table = self._view(self.words[X.X_COMPONENTS], warps * X.K_BYTES // 8).reshape(warps, -1)
        table[:, X.K_KIND // 8] = X.K_IS_WARP
        table[:, X.K_SLOT // 8] = np.arange(warps) // self.warps
        table[:, X.K_WARP // 8] = np.arange(warps) % self.warps

    def _depends(self, first: int) -> None:
        """A component of "the launch before is over", which griddepcontrol.wait tells a warp."""
        row = self._view(self.words[X.X_COMPONENTS] + first * X.K_BYTES, X.K_BYTES // 8)
        row[X.K_KIND // 8], row[X.K_SLOT // 8] = X.K_IS_GRID, -1
        self.words[X.X_GRID], self.words[X.X_USED] = first, first + 1

    def _slots(self, run: Run, unit: Unit, window: int) -> None:
        cells = X.CELL * (-(-window // 16) + 1)
        cells_of = self._take(cells * unit.slots)
        map_bytes = 4 * (window // 8 + 1)
        maps = self._take(map_bytes * unit.slots)
        table = self._view(self.words[X.X_Y], unit.slots * X.Y_BYTES // 8).reshape(unit.slots, -1)
        place = np.arange(unit.slots)
        table[:, X.Y_CELLS // 8] = cells_of + cells * place
        table[:, X.Y_BARRIER_MAP // 8] = maps + map_bytes * place
        undefined = self._take(window * unit.slots)
        table[:, X.Y_UNDEFINED // 8] = undefined + window * place
        memories: dict[int, tuple[int, int]] = {}
        for slot in place:
            memory = unit.ctas[int(slot) * L.C_BYTES + L.C_TMEM]
            if memory:
                if memory not in memories:
                    cells = self._take(X.CELL * X.TMEM_CELLS + X.R_BYTES)
                    memories[memory] = cells, self._take(L.TMEM_LANES * L.TMEM_ROW)
                table[slot, X.Y_TMEM // 8], table[slot, X.Y_TMEM_UNDEFINED // 8] = memories[memory]

    def _ranges(self, run: Run) -> None:
        """The allocations are those that the launch began with: others may come and go while it runs."""
        rows = np.zeros((len(run.table) + 1, X.RANGE_BYTES // 8), np.int64)
        for row, (start, end, writable) in zip(rows, run.table.tolist(), strict=False):
            cells = X.CELL * ((end - (start & ~15)) // 16 + 2)
            row[:3] = start, end, self._take(cells) if writable else 0
            row[4] = np.iinfo(np.int64).max
            if writable and run.before is not None:
                row[3] = self._take(cells)
        self._rows = rows
        self.words[X.X_RANGES], self.words[X.X_NRANGES] = rows.ctypes.data, len(run.table)

    def records(self) -> np.ndarray:
        """The findings' records, a row each."""
        count = self.words[X.X_NFINDINGS]
        width = X.F_BYTES // 8
        return self._view(self.words[X.X_FINDINGS], X.FINDINGS * width).reshape(-1, width)[:count].copy()

    def global_rows(self) -> np.ndarray:
        """(start, end, cells, cells of accesses before griddepcontrol.wait, lowest byte accessed, end of the bytes
        accessed) of the allocations; cells 0: none."""
        return self._rows[: self.words[X.X_NRANGES]]

    def component(self, k: int) -> tuple[int, int, int, int]:
        """(kind, slot, warp, lane) of a component."""
        row = self._view(self.words[X.X_COMPONENTS] + k * X.K_BYTES, 4)
        return int(row[0]), int(row[1]), int(row[2]), int(row[3])

    def barrier_offset(self, number: int) -> int:
        """Offset in its window of an mbarrier, by number."""
        return int(self._view(self.words[X.X_B] + number * X.B_BYTES, X.B_BYTES // 8)[X.B_OFFSET // 8])

    def barrier_base(self, number: int) -> int:
        """Phases that an mbarrier's component had counted when it was initialised."""
        return int(self._view(self.words[X.X_B] + number * X.B_BYTES, X.B_BYTES // 8)[X.B_BASE // 8])

    def release(self) -> None:
        """Free everything."""
        self._free_arenas()
        self._keep.clear()

    def _free_arenas(self) -> None:
        import ctypes

        libc = ctypes.CDLL(None)
        libc.free.argtypes = [ctypes.c_void_p]
        slots = self._view(self.words[X.X_Y], self.slots * X.Y_BYTES // 8).reshape(self.slots, -1)
        firsts = [int(row[(X.Y_ARENA + X.E_FIRST) // 8]) for row in slots] + [self.words[X.X_ARENA + X.E_FIRST]]
        for chunk in firsts:
            while chunk:
                after = ctypes.c_int64.from_address(chunk).value
                libc.free(chunk)
                chunk = after


class Checker:
    """Looks for hazards in what a device runs: `Device(arch, checker=Checker())`; `report` says what was found.

    advice: also count bank conflicts and accesses that are not coalesced (kinds bank-conflict and lint, for review).
    """

    def __init__(self, advice: bool = False) -> None:
        self._advice = advice
        self.findings: list[Finding] = []
        self.order = Order(lambda finding: self.findings.append(finding))
        self._watches: dict[Run, list[Watch]] = {}  # host threads may launch at a time: each changes its own entry
        self._waiting: tuple[Where, Where | None] | None = None
        self._absent: tuple[Where, Where, int] | None = None

    @property
    def entry(self) -> int:
        """Address of the native function that is told of events."""
        return checker().symbols["tl_check"]

    def watch(self, run: Run, unit: Unit) -> int:
        """Memory for a unit that is about to run; gives its address."""
        watch = Watch(run, unit, self._advice)
        self._watches.setdefault(run, []).append(watch)
        return watch.words.address

    def collect(self, runs: Sequence[Run]) -> None:
        """Turn what was found in some launches into findings."""
        from tensorladder.vgpu.check.across import conflicts, overlaps
        from tensorladder.vgpu.check.hangs import absent, waiting
        from tensorladder.vgpu.check.words import finding_across, findings_of

        done = [watch for run in runs for watch in self._watches.pop(run, [])]
        for run in runs:
            if not run.words[L.L_COMPLETE]:
                self._waiting = self._waiting or waiting(run)
                self._absent = self._absent or absent(run)
            units = [w for w in done if w.run is run]
            if len(units) > 1:
                self.findings += [finding_across(c) for c in conflicts(units)]
            if run.work is not None:
                self.order.accessed(run.work, footprint(units))
        self.findings += [finding_across(c) for c in overlaps(done, runs)]
        for watch in done:
            self.findings += findings_of(watch)
            watch.release()

    def stopped(self, error: TensorladderError, kernel: str = "") -> None:
        """A launch stopped with an error: that is a finding too, a hang with who waits and who arrived last."""
        from tensorladder.vgpu.check.errors import finding_of
        from tensorladder.vgpu.check.words import lanes_missing

        finding = finding_of(error, kernel)
        if finding.kind in ("deadlock", "timeout") and self._waiting is not None:
            where, other = self._waiting
            finding = replace(finding, where=where, other=other)
            if self._absent is not None:
                self.findings.append(lanes_missing(*self._absent))
        self._waiting = self._absent = None
        self.findings.append(finding)

    def report(self, target: str) -> Report:
        """What was found, each thing once."""
        return summarise(target, self.findings)
