"""alpha and beta in a GPU's memory, where kernels read them, with no wait for work that the GPU has still to do.

A pair is copied there once, by a stream of its own that no other work is queued on; from then on every stream may read
it, and CUDA graphs may hold its address: it is never moved nor overwritten. Where more pairs come along than are kept
(a factor that changes with every step), a pair is written anew for each call, in the order of the call's stream.
"""

from __future__ import annotations

import ctypes
import functools
import numbers
import threading
from typing import Any

import torch

from tensorladder.core.errors import UsageError
from tensorladder.silicon import driver

MOST = 1024  # pairs that are kept a GPU
PLACE = "cuda"
UNIT = (1.0, 0.0)
SIZE = 8  # bytes of a pair
NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: does not wait for the default stream


class Factors:
    """The pairs of one GPU. known: addresses by (alpha, beta), `UNIT`'s always once there is one."""

    def __init__(self, device: int) -> None:
        self.known: dict[tuple[float, float], int] = {}
        self._device = device
        self._lock = threading.Lock()
        self._memory = ctypes.c_uint64()
        self._stream = ctypes.c_void_p()

    def find(self, alpha: float, beta: float) -> tuple[int, Any]:
        """Address of a pair, and what must be kept until the launch that reads it is queued.

        UsageError for what is no number.
        """
        for name, value in (("alpha", alpha), ("beta", beta)):
            if not isinstance(value, numbers.Real):
                raise UsageError(f"{name}: {type(value).__name__}: it takes a number")
        pair = float(alpha), float(beta)
        found = self.known.get(pair)
        if found is None and len(self.known) < MOST:
            found = self._keep(pair)
        if found is not None:
            return found, None
        made = torch.empty(2, dtype=torch.float32, device=torch.device(PLACE, self._device))
        for place, value in zip(made, pair):
            place.fill_(value)
        return made.data_ptr(), made

    def _keep(self, pair: tuple[float, float]) -> int | None:
        with self._lock, driver.while_capturing():
            if not self._memory.value:
                driver.call("cuStreamCreate", ctypes.byref(self._stream), NON_BLOCKING)
                driver.call("cuMemAlloc_v2", ctypes.byref(self._memory), ctypes.c_size_t(MOST * SIZE))
                self._write(UNIT)  # always there
            if pair not in self.known and len(self.known) < MOST:
                self._write(pair)
            return self.known.get(pair)

    def _write(self, pair: tuple[float, float]) -> None:
        place, values = self._memory.value + len(self.known) * SIZE, (ctypes.c_float * 2)(*pair)
        size = ctypes.c_size_t(SIZE)
        driver.call("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(place), values, size, self._stream)
        driver.call("cuStreamSynchronize", self._stream)
        self.known[pair] = place


@functools.cache
def of(device: int) -> Factors:
    """The pairs of a GPU."""
    return Factors(device)
