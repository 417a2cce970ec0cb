"""Who waits when nothing moves any more, and who arrived last at what is waited on: places for a deadlock's finding."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from tensorladder.core.findings import Where
from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.machine.messages import place

if TYPE_CHECKING:
    from tensorladder.vgpu.machine.execution import Run
    from tensorladder.vgpu.machine.unit import Unit

_ON_MBARRIER = (L.WAIT_MBAR, L.WAIT_MBAR_STATE)


def waiting(run: Run) -> tuple[Where, Where | None] | None:
    """(a warp that waits, the last arrival where it waits on an mbarrier) of a launch that hangs; None: nobody does."""
    found = None
    for unit in run.units:
        for slot in range(unit.slots):
            if unit.ctas[slot * L.C_BYTES + L.C_DONE]:
                continue
            for warp in range(unit.warps):
                for kind, address, where in _waits(run, unit, slot, warp):
                    if kind in _ON_MBARRIER:
                        return where, _last_arrival(run, unit, slot, address)
                    found = found or (where, None)
    return found


def _coordinates(unit: Unit, slot: int) -> tuple[int, int, int]:
    x, y, z = (unit.ctas[slot * L.C_BYTES + L.C_CTAID + 8 * k] for k in range(3))
    return x, y, z


def _waits(run: Run, unit: Unit, slot: int, warp: int) -> Iterator[tuple[int, int, Where]]:
    """(kind of wait, what is waited on, where) of a warp's lanes that are blocked."""
    raw = unit.warp_words(slot, warp)
    words = raw.view(np.int64)
    blocked = int(words[L.W_LIVE // 8]) & ~int(words[L.W_READY // 8]) & 0xFFFFFFFF
    if not blocked:
        return
    lane = (blocked & -blocked).bit_length() - 1
    kind = int(raw[L.W_WAIT : L.W_WAIT + 128].view(np.int32)[lane])
    address = int(words[L.W_WAIT_A // 8 + lane])
    here = place(run.compiled, int(words[L.W_IID // 8]), _coordinates(unit, slot), warp, 0)
    yield kind, address, Where(**{**vars(here), "lanes": blocked})


def _last_arrival(run: Run, unit: Unit, slot: int, address: int) -> Where | None:
    """Who changed an mbarrier last (machine.mbarrier.note)."""
    window = unit.ctas[slot * L.C_BYTES + L.C_SHARED]
    ring = np.ctypeslib.as_array((ctypes.c_int64 * (L.SHARED_RESERVED // 8)).from_address(window))
    entries = ring[2:].reshape(-1, 2)
    newest = int(ring[0])
    for n in range(newest, max(newest - len(entries), -1), -1):
        what, who = (int(x) for x in entries[n % len(entries)])
        if what >> 32 == address - window:
            other = slot - unit.ctas[slot * L.C_BYTES + L.C_RANK] + (who >> 32)
            return place(run.compiled, what & 0xFFFFFFFF, _coordinates(unit, other), who >> 8 & 0xFFFFFF, who & 0xFF)
    return None
