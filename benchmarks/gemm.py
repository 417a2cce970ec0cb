"""A GEMM rung with its arrays on a virtual GPU, ready to be timed; and the same loop for numba."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.timing import Time, timed
from tensorladder.core.program import Launch, Program
from tensorladder.rungs import rung
from tensorladder.vgpu import Checker, Device

_KINDS = {"fp16": np.float16, "fp32": np.float32}


class Gemm:
    """C = A B^T of `shape` (m, n, k), A (m, k) and B (n, k) row-major of `dtype` ("fp16" or "fp32"), by rung `name`."""

    def __init__(self, name: str, arch: str, shape: tuple[int, int, int], dtype: str, checker: Checker | None = None):
        module = rung.load(rung.find(name))
        self.program: Program = module.compile(arch, shape, dtype, module.RUNG.config())
        m, n, k = shape
        rng = np.random.default_rng(0)
        self.device = Device(arch, checker=checker)
        self.a = self.device.memory.copy_in("A", rng.standard_normal((m, k)).astype(_KINDS[dtype]))
        self.b = self.device.memory.copy_in("B", rng.standard_normal((n, k)).astype(_KINDS[dtype]))
        self.c = self.device.memory.empty("C", (m, n), _KINDS[dtype])

    def launch(self) -> Launch:
        """Its one launch."""
        (launch,) = self.program.launches(self.a, self.b, self.c)
        return launch

    def once(self) -> None:
        """Run it."""
        stream = self.device.stream()
        self.program(stream, self.a, self.b, self.c)
        stream.synchronize()

    def run(self) -> Time:
        """Run it and say how long it took, its host part with it."""
        return timed(self.once)

    def first(self) -> int:
        """A first run, which compiles; its thread-instructions. A wrong result raises: a wrong kernel has no speed."""
        self.c[:] = np.nan
        before = self.device.instructions
        self.once()
        check(self.a, self.b, self.c)
        return self.device.instructions - before


def check(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    """Raise AssertionError unless c is a b^T: within 2e-3 of float64 for float16 (its rounding), 1e-5 for float32."""
    want = a.astype(np.float64) @ b.astype(np.float64).T
    error = np.linalg.norm(c - want) / np.linalg.norm(want)
    limit = 2e-3 if c.dtype == np.float16 else 1e-5
    if not error < limit:
        raise AssertionError(f"wrong result: relative error {error:.3g}, limit {limit:g}")


def numba_gemm(fastmath: bool) -> Callable[[np.ndarray, np.ndarray, np.ndarray], None]:
    """The triple loop of the naive kernel, compiled by numba for all cores, a row a task.

    fastmath: let the compiler reorder the sum, and so vectorise it; the kernel itself adds in order.
    """
    import numba

    @numba.njit(parallel=True, fastmath=fastmath)
    def gemm(a, b, c):
        for i in numba.prange(a.shape[0]):
            for j in range(b.shape[0]):
                total = np.float32(0)
                for k in range(a.shape[1]):
                    total += a[i, k] * b[j, k]
                c[i, j] = total

    return gemm
