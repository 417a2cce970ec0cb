"""Host side of a launch: the memory of units and workers, laid out as layout.py says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorladder.vgpu.machine import layout as L

OPS_A_CTA = 2048


class Words:
    """64-bit fields at byte offsets of a block of memory."""

    def __init__(self, size: int):
        self.data = np.zeros(size // 8 + 8, np.int64)
        skip = (-self.data.ctypes.data % 64) // 8
        self.view = self.data[skip:]
        self.address = self.view.ctypes.data

    def __setitem__(self, offset: int, value: int) -> None:
        self.view[offset // 8] = value

    def __getitem__(self, offset: int) -> int:
        return int(self.view[offset // 8])


def _aligned(size: int, align: int = 4096) -> tuple[np.ndarray, int]:
    raw = np.empty(size + align, np.uint8)
    address = -(-raw.ctypes.data // align) * align
    return raw, address


class Group:
    """Units that one scheduler interleaves: a launch's, or those of successive launches of a stream that overlap.

    sms: SMs whose room they share. more: dependent launches to come (see `append`). tensor_memory: the SMs have some.
    """

    def __init__(self, sms: int, more: int = 0, tensor_memory: bool = False):
        self.words = Words(L.G_BYTES)
        self.tensor_memory = tensor_memory
        self._memories: dict[int, tuple[np.ndarray, int]] = {}
        self.units: list[Unit] = []
        self._table = np.zeros(L.MOST_UNITS + 1, np.int64)
        self.words[L.G_UNITS] = self._table.ctypes.data
        self.words[L.G_ROOM] = sms * L.ROOM
        self.words[L.G_MORE] = more

    def append(self, unit: Unit) -> list[Unit]:
        """Bring a unit, which starts at the others' time; gives those that are done, whose places are taken away."""
        done = [u for u in self.units if u.words[L.U_DONE]]
        if self.units:
            unit.words[L.U_CLOCK] = max(u.words[L.U_CLOCK] for u in self.units)
            unit.words[L.U_ROUND] = max(u.words[L.U_ROUND] for u in self.units)
        unit.words[L.U_GROUP] = self.words.address
        self.units = [*(u for u in self.units if not u.words[L.U_DONE]), unit]
        self._table[: len(self.units)] = [u.words.address for u in self.units]
        self.words[L.G_COUNT] = len(self.units)
        return done

    def memory_of(self, sm: int) -> int:
        """Address of an SM's tensor memory, all of it free at first (an allocation poisons what it gets); 0: none."""
        if not self.tensor_memory:
            return 0
        if sm not in self._memories:
            raw, address = _aligned(L.T_BYTES)
            at = address - raw.ctypes.data
            raw[at : at + L.T_DATA] = 0
            self._memories[sm] = raw, address
        return self._memories[sm][1]


class Unit:
    """Memory for CTAs that one scheduler runs together, a slot for each of `sms`: the SM that it is on.

    batch: clusters that start together when those before them are done; 0: slots are filled as they come free. cost:
    what a CTA takes of an SM's room (layout.ROOM).
    """

    def __init__(
        self,
        launch: Words,
        kernel: int,
        low,
        group: Group,
        sms: Sequence[int],
        threads: int,
        shared_bytes: int,
        batch: int = 0,
        cost: int = 0,
    ):
        slots, warps = len(sms), -(-threads // L.LANES)
        self.slots, self.warps = slots, warps
        frame = low.frame_bytes
        self.words = Words(L.U_BYTES)
        self.ctas = Words(L.C_BYTES * slots)
        self._keep: list[Any] = []
        warp_memory = self._take(L.W_BYTES * warps * slots)
        frames = self._take(frame * warps * slots)
        local_bytes = (1 + low.shadowed) * L.LANES * max(low.local_bytes, 16)
        local = self._take(local_bytes * warps * slots)
        # windows of CTAs are 1024-aligned as on the chip; a guard of one KB follows
        stride = -(-(shared_bytes + 1024) // 1024) * 1024
        shared = self._take(stride * slots)
        clocks = self._take(2 * stride * slots)  # pages that nobody touches take no memory
        maps = self._take((-(-shared_bytes // 64) + 64) * slots)
        self.shared, self.stride = shared, stride
        self.warp_memory = warp_memory
        self.warp_view = self._keep[0]
        ops = min(OPS_A_CTA * slots, 65536)
        self._ops(ops)
        u = self.words
        u[L.U_LAUNCH] = launch.address
        u[L.U_CTAS] = self.ctas.address
        u[L.U_NCTAS] = slots
        u[L.U_MATRIX] = self._take(L.MATRIX_BYTES)
        u[L.U_BATCH] = batch
        u[L.U_COST] = cost
        u[L.U_RNG] = launch[L.L_SEED] * 2654435761 + 99
        place = np.arange(slots, dtype=np.int64)
        map_bytes = -(-shared_bytes // 64) + 64
        memories = {sm: group.memory_of(sm) for sm in dict.fromkeys(sms)}
        self._fill(
            self.ctas.view,
            L.C_BYTES,
            slots,
            {
                L.C_SHARED: shared + place * stride,
                L.C_SHARED_SIZE: shared_bytes,
                L.C_UNIT: u.address,
                L.C_WARPS: warp_memory + place * warps * L.W_BYTES,
                L.C_NWARPS: warps,
                L.C_MBAR_MAP: maps + place * map_bytes,
                L.C_MBAR_CLOCK: clocks + place * 2 * stride,
                L.C_LAUNCH: launch.address,
                L.C_DONE: 1,
                L.C_NTHREADS: threads,
                L.C_SMID: np.array(sms),
                L.C_TMEM: np.array([memories[sm] for sm in sms]),
            },
        )
        place = np.arange(slots * warps, dtype=np.int64)
        start = warp_memory - self.warp_view.ctypes.data
        self._fill(
            self.warp_view[start : start + L.W_BYTES * slots * warps].view(np.int64),
            L.W_BYTES,
            slots * warps,
            {
                L.W_FRAME: frames + place * frame,
                L.W_FRAME_BYTES: frame,
                L.W_KERNEL: kernel,
                L.W_LIVE: 0,
                L.W_LOCAL: local + place * local_bytes,
                L.W_LOCAL_SIZE: low.local_bytes,
            },
        )

    @staticmethod
    def _fill(words: np.ndarray, size: int, count: int, fields: dict[int, Any]) -> None:
        """Fields of `count` records of `size` bytes: a value for all, or one each."""
        table = words[: count * (size // 8)].reshape(count, size // 8)
        for field, value in fields.items():
            table[:, field // 8] = value

    def _take(self, size: int) -> int:
        raw, address = _aligned(size)
        self._keep.append(raw)
        return address

    def _ops(self, count: int) -> None:
        pool = self._take(count * L.A_BYTES)
        self.order = np.zeros(count, np.int64)
        self.free = np.arange(count, dtype=np.int64)[::-1].copy()
        u = self.words
        u[L.U_OPS] = pool
        u[L.U_NOPS] = count
        u[L.U_ORDER] = self.order.ctypes.data
        u[L.U_FREE] = self.free.ctypes.data
        u[L.U_NFREE] = count

    def release(self) -> None:
        """Free the memory of a unit that is done, but for its counters."""
        self._keep.clear()
        self.warp_view = np.empty(0, np.uint8)

    # ------------------------------------------------------------ reading back, for messages
    def warp_words(self, slot: int, n: int) -> np.ndarray:
        """A warp's fixed part as bytes."""
        at = self.warp_memory + (slot * self.warps + n) * L.W_BYTES - self.warp_view.ctypes.data
        return self.warp_view[at : at + L.W_SCRATCH]
