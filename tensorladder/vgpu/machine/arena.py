"""Global memory of the virtual GPU: an arena with guard gaps, and ranges of host arrays handed in.

A generic global address is the host address, so an array in the arena is an ordinary numpy array. Every allocation
starts at a 256-byte boundary and is followed by a gap that belongs to nobody; fresh memory holds a poison pattern (all
ones: a NaN in every float format).
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tensorladder.core.errors import UsageError

GAP = 4096
ALIGN = 256
_CHUNK = 64 << 20


@dataclass(frozen=True)
class Range:
    """One allocation: [start, end) in bytes. `array` is kept alive, and gives shape and dtype for messages."""

    start: int
    end: int
    name: str
    writable: bool
    array: np.ndarray | None = None
    strides: tuple[int, ...] | None = None
    shape: tuple[int, ...] | None = None
    itemsize: int = 1


def _united(ranges: Sequence[Range]) -> list[Range]:
    """Ranges by their start; the same memory under several views is one range over all of them, with the name and shape
    of the widest, of equals the last."""
    kept: list[Range] = []
    rank = -1  # in `ranges`, of what the last one is named after
    order = sorted(enumerate(ranges), key=lambda numbered: (numbered[1].start, numbered[1].end))
    for number, new in order:
        last = kept[-1] if kept else None
        if last is None or new.start >= last.end:
            kept.append(new)
            rank = number
            continue
        sizes = [(last.end - last.start, rank), (new.end - new.start, number)]
        widest = last if sizes[0] > sizes[1] else new
        rank = max(sizes)[1]
        kept[-1] = replace(
            widest, start=last.start, end=max(last.end, new.end), writable=last.writable or new.writable
        )
    return kept


class Memory:
    """Allocations that kernels may access. Several host threads may allocate and launch at a time: `ranges` is replaced
    by another list, never changed."""

    def __init__(self, ranges: Sequence[Range] = ()) -> None:
        self._lock = threading.Lock()
        self._chunks: list[np.ndarray] = []
        self._at = 0
        self._end = 0
        self.ranges = _united(ranges)

    def beside(self, ranges: Sequence[Range]) -> Memory:
        """What a launch may access: these allocations, as they are now, and some more."""
        return Memory([*self.ranges, *ranges])

    def _take(self, size: int) -> np.ndarray:
        """`size` fresh bytes at a 256-byte boundary, with a gap after them."""
        need = size + GAP + ALIGN
        if self._at + need > self._end:
            chunk = np.empty(max(_CHUNK, need + GAP), np.uint8)
            self._chunks.append(chunk)
            self._at = chunk.ctypes.data + GAP
            self._end = chunk.ctypes.data + chunk.nbytes
        start = -(-self._at // ALIGN) * ALIGN
        self._at = start + size + GAP
        at = start - self._chunks[-1].ctypes.data
        return self._chunks[-1][at : at + size]

    def empty(self, name: str, shape: tuple[int, ...] | int, dtype: Any, order: str = "C") -> np.ndarray:
        """A poisoned array of `shape` and `dtype` inside the arena; `order` is "C" or "F"."""
        dtype = np.dtype(dtype)
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        if any(n < 0 for n in shape):
            raise UsageError(f"{name}: negative extent in shape {shape}")
        count = int(np.prod(shape, dtype=np.int64))
        size = count * dtype.itemsize
        with self._lock:
            raw = self._take(max(size, 1))
        raw[:] = 0xFF
        start = raw.ctypes.data
        array = raw[:size].view(dtype).reshape(shape, order=order)
        self._add(Range(start, start + size, name, True, array, array.strides, shape, dtype.itemsize))
        return array

    def copy_in(self, name: str, array: np.ndarray) -> np.ndarray:
        """A copy of `array` inside the arena."""
        out = self.empty(name, array.shape, array.dtype, "F" if array.flags.f_contiguous else "C")
        out[...] = array
        return out

    def attach(self, name: str, array: np.ndarray, writable: bool | None = None) -> None:
        """Let kernels access a host array at its own address; out of it is an error."""
        lo, hi = np.lib.array_utils.byte_bounds(array)
        ok = array.flags.writeable if writable is None else writable
        self.add_range(lo, hi, name, ok, array.shape, array.strides, array.itemsize, array)

    def add_range(
        self,
        start: int,
        end: int,
        name: str,
        writable: bool = True,
        shape: tuple[int, ...] | None = None,
        strides: tuple[int, ...] | None = None,
        itemsize: int = 1,
        keep: Any = None,
    ) -> None:
        """Let kernels access [start, end)."""
        self._add(Range(start, end, name, writable, keep, strides, shape, itemsize))

    def _add(self, new: Range) -> None:
        with self._lock:
            self.ranges = _united([*self.ranges, new])

    def table(self) -> np.ndarray:
        """Rows (start, end, flags) sorted by start, for the runtime."""
        rows = np.zeros((len(self.ranges) + 1, 3), np.int64)  # one more: no row has no address
        for n, r in enumerate(self.ranges):
            rows[n] = (r.start, r.end, int(r.writable))
        return rows[:-1]

    def describe(self, address: int, size: int) -> str:
        """Where an address is, in a person's words: the array and index it hits, or what lies nearest."""
        ranges = self.ranges
        k = bisect.bisect_right([r.start for r in ranges], address) - 1
        near = ranges[max(k, 0) : k + 2]
        inside = next((r for r in near if r.start <= address < r.end), None)
        if inside is not None:
            return f"{inside.name}{_index(inside, address - inside.start)}"
        if not near:
            return f"address {address:#x}"
        best = min(near, key=lambda r: min(abs(address - r.end), abs(r.start - address)))
        if address >= best.end:
            return f"{address - best.end + size} bytes past the end of {_shape(best)}"
        return f"{best.start - address} bytes before the start of {_shape(best)}"


def _shape(r: Range) -> str:
    dims = f" of shape {r.shape}" if r.shape is not None else f" ({r.end - r.start} bytes)"
    return f"{r.name}{dims}"


def _index(r: Range, offset: int) -> str:
    """`[i, j]` of a byte offset, where the strides allow it."""
    if r.shape is None or r.strides is None or not r.shape or any(s <= 0 for s in r.strides):
        return f"+{offset}"
    index = [0] * len(r.shape)
    rest = offset
    strides = r.strides
    for axis in sorted(range(len(r.shape)), key=lambda a: -strides[a]):
        index[axis], rest = divmod(rest, strides[axis])
    return "[" + ", ".join(map(str, index)) + "]"
