"""Buffers of a launch and its checker with bytes before and after each that nothing may change.

Generated code writes to these by address: what goes past one shows nowhere else, but as a broken heap later on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from tensorladder.vgpu.check import engine
from tensorladder.vgpu.machine import unit

MARGIN = 4096
BYTE = 0xA5


class Canaries:
    """Buffers that were given out, and the bytes around them."""

    def __init__(self) -> None:
        self._around: list[tuple[str, np.ndarray]] = []

    def take(self, name: str, size: int, align: int, zero: bool) -> tuple[np.ndarray, int]:
        """An array, and the aligned address in it from which on `size` bytes are to be used."""
        raw = np.full(size + align + 2 * MARGIN, BYTE, np.uint8)
        start = MARGIN + -(raw.ctypes.data + MARGIN) % align
        if zero:
            raw[start : start + size] = 0
        self._around += [(f"before {name}", raw[:start]), (f"after {name}", raw[start + size :])]
        return raw, raw.ctypes.data + start

    @property
    def count(self) -> int:
        """Buffers given out."""
        return len(self._around) // 2

    def changed(self) -> list[str]:
        """What was written around buffers: which one, and the bytes' distances from it."""
        found = []
        for name, bytes_ in self._around:
            at = np.flatnonzero(bytes_ != BYTE)
            if len(at):
                at = at if name.startswith("after") else len(bytes_) - at
                found.append(f"{name}: bytes {at.min()} to {at.max()}")
        return found


@contextmanager
def canaries() -> Iterator[Canaries]:
    """While this lasts, memory of launches (units, their frames, windows, tensor memory) and of the checker (clocks,
    records, shadows, logs) lies between canaries."""
    kept = Canaries()

    def words(self: unit.Words, size: int) -> None:
        self.data, self.address = kept.take(f"words of {size} bytes", size, 64, True)
        start = self.address - self.data.ctypes.data
        self.view = self.data[start : start + size].view(np.int64)

    def aligned(size: int, align: int = 4096) -> tuple[np.ndarray, int]:
        return kept.take(f"a unit's {size} bytes", size, align, False)

    def take(self: engine.Watch, size: int) -> int:
        raw, address = kept.take(f"the checker's {size} bytes", size, 64, True)
        self._keep.append(raw)
        return address

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unit.Words, "__init__", words)
        patch.setattr(unit, "_aligned", aligned)
        patch.setattr(engine.Watch, "_take", take)
        yield kept
