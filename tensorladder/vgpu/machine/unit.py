"""Host side of a launch: the memory of units and workers, laid out as layout.py says."""

from __future__ import annotations

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


class Unit:
    """Memory for `slots` CTAs that one scheduler runs together."""

    def __init__(
        self, launch: Words, kernel: int, low, slots: int, threads: int, shared_bytes: int, tensor_memory: bool = False
    ):
        warps = -(-threads // L.LANES)
        self.slots, self.warps = slots, warps
        frame = low.frame_bytes
        self.words = Words(L.U_BYTES)
        self.ctas = Words(L.C_BYTES * slots)
        self._keep: list[Any] = []
        warp_memory = self._take(L.W_BYTES * warps * slots)
        frames = self._take(frame * warps * slots)
        local = self._take(max(low.local_bytes, 16) * L.LANES * warps * slots)
        # windows of CTAs are 1024-aligned as on the chip; a guard of one KB follows
        stride = -(-(shared_bytes + 1024) // 1024) * 1024
        shared = self._take(stride * slots)
        maps = self._take((-(-shared_bytes // 64) + 64) * slots)
        self.warp_memory = warp_memory
        self.warp_view = self._keep[0]
        # one SM a slot: CTAs that share an SM share the address
        tmem = [self._tensor_memory() if tensor_memory else 0 for _ in range(slots)]
        ops = min(OPS_A_CTA * slots, 65536)
        self._ops(ops)
        u = self.words
        u[L.U_LAUNCH] = launch.address
        u[L.U_CTAS] = self.ctas.address
        u[L.U_NCTAS] = slots
        u[L.U_MATRIX] = self._take(L.MATRIX_BYTES)
        u[L.U_RNG] = launch[L.L_SEED] * 2654435761 + 99
        for s in range(slots):
            c = s * L.C_BYTES
            base = warp_memory + s * warps * L.W_BYTES
            for field, value in (
                (L.C_SHARED, shared + s * stride),
                (L.C_SHARED_SIZE, shared_bytes),
                (L.C_UNIT, u.address),
                (L.C_WARPS, base),
                (L.C_NWARPS, warps),
                (L.C_MBAR_MAP, maps + s * (-(-shared_bytes // 64) + 64)),
                (L.C_LAUNCH, launch.address),
                (L.C_DONE, 1),
                (L.C_NTHREADS, threads),
                (L.C_TMEM, tmem[s]),
            ):
                self.ctas[c + field] = value
            for n in range(warps):
                k = s * warps + n
                self._warp(base + n * L.W_BYTES, frames + k * frame, frame, kernel)
                self._put(base + n * L.W_BYTES + L.W_LOCAL, local + k * L.LANES * max(low.local_bytes, 16))
                self._put(base + n * L.W_BYTES + L.W_LOCAL_SIZE, low.local_bytes)

    def _take(self, size: int) -> int:
        raw, address = _aligned(size)
        self._keep.append(raw)
        return address

    def _tensor_memory(self) -> int:
        """Tensor memory of an SM, all of it free (an allocation poisons what it gets)."""
        address = self._take(L.T_BYTES)
        raw = self._keep[-1]
        at = address - raw.ctypes.data
        raw[at : at + L.T_DATA] = 0
        return address

    def _put(self, address: int, value: int) -> None:
        raw = self.warp_view
        at = address - raw.ctypes.data
        raw[at : at + 8].view(np.int64)[0] = value

    def _warp(self, w: int, frame: int, size: int, kernel: int) -> None:
        self._put(w + L.W_FRAME, frame)
        self._put(w + L.W_FRAME_BYTES, size)
        self._put(w + L.W_KERNEL, kernel)
        self._put(w + L.W_LIVE, 0)

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

    # ------------------------------------------------------------ reading back, for messages
    def warp_words(self, slot: int, n: int) -> np.ndarray:
        """A warp's fixed part as bytes."""
        at = self.warp_memory + (slot * self.warps + n) * L.W_BYTES - self.warp_view.ctypes.data
        return self.warp_view[at : at + L.W_SCRATCH]
