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
    first = on_barrier = None
    for unit in run.stuck():
        for slot in range(unit.slots):
            if unit.ctas[slot * L.C_BYTES + L.C_DONE]:
                continue
            for warp in range(unit.warps):
                for kind, address, where in _waits(run, unit, slot, warp):
                    if kind == L.WAIT_REGISTERS:  # what others wait for
                        return where, None
                    if kind in _ON_MBARRIER:
                        on_barrier = on_barrier or (where, _last_arrival(run, unit, slot, address))
                    first = first or (where, None)
    return on_barrier or first


def absent(run: Run) -> tuple[Where, Where, int] | None:
    """Of a launch that hangs: (a collective that lanes wait at, where the lanes that it names are, those lanes)."""
    for unit in run.stuck():
        for slot in range(unit.slots):
            if unit.ctas[slot * L.C_BYTES + L.C_DONE]:
                continue
            for warp in range(unit.warps):
                found = _absent(run, unit, slot, warp)
                if found is not None:
                    return found
    return None


def _absent(run: Run, unit: Unit, slot: int, warp: int) -> tuple[Where, Where, int] | None:
    raw = unit.warp_words(slot, warp)
    words = raw.view(np.int64)
    live, ready, last = (int(words[at // 8]) for at in (L.W_LIVE, L.W_READY, L.W_IID))
    pcs, kinds = (raw[at : at + 128].view(np.int32) for at in (L.W_PC, L.W_WAIT))
    lanes = [lane for lane in range(L.LANES) if live >> lane & 1]
    here = [lane for lane in lanes if kinds[lane] == L.WAIT_MEET and not ready >> lane & 1]
    if not here:
        return None
    pc = int(pcs[here[0]])
    at = sum(1 << lane for lane in here if pcs[lane] == pc)
    missing = int(words[L.W_WAIT_A // 8 + here[0]]) & live & ~at
    if not missing:
        return None
    collective = run.compiled.low.block_iids[pc]
    elsewhere = run.compiled.low.block_iids[int(pcs[(missing & -missing).bit_length() - 1])]
    cta = _coordinates(unit, slot)
    where, other = (
        Where(**{**vars(place(run.compiled, iid, cta, warp, 0)), "lanes": mask})
        for iid, mask in ((collective, at), (elsewhere if last == collective else last, missing))
    )
    return where, other, missing


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
