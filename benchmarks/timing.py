"""Timing beside a peer: rounds in turn, so that both see the same machine, and the shortest of them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """quick: small problems and no claims, a smoke test. tinygrad: path of its PTX emulator, or None."""

    quick: bool = False
    tinygrad: str | None = None


@dataclass(frozen=True)
class Time:
    """Seconds of a run: by the wall clock, and of all its threads on a core (what a busy machine leaves as it is)."""

    wall: float
    cpu: float


def cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0))


def timed(run: Callable[[], object]) -> Time:
    """One run, in this process."""
    cpu, wall = time.process_time(), time.perf_counter()
    run()
    return Time(time.perf_counter() - wall, time.process_time() - cpu)


def best(rounds: Sequence[Time]) -> Time:
    """The shortest wall time and the least CPU time of several rounds: what interrupts them only adds."""
    return Time(min(t.wall for t in rounds), min(t.cpu for t in rounds))


def in_turn(*runs: Callable[[], Time], rounds: int = 5) -> list[Time]:
    """Best time of each of `runs`, which take turns."""
    table = [[run() for run in runs] for _ in range(rounds)]
    return [best(column) for column in zip(*table)]


def row(
    what: str, value: float | None, unit: str, o: Options, claim: tuple[str, float] | None = None, **more: object
) -> dict:
    """One line of the results; value None: not measured.

    claim: ("<=" or ">=", limit), judged on `value`; `more` is kept beside it.
    """
    ok, text = None, ""
    if claim is not None and value is not None and not o.quick:
        sign, limit = claim
        ok = bool(value <= limit if sign == "<=" else value >= limit)
        text = f"{sign} {limit:g}"
    return {"what": what, "value": value, "unit": unit, "claim": text, "ok": ok, **more}


def ratio(
    what: str, over: Time, under: Time, o: Options, claim: tuple[str, float] | None = None, **more: object
) -> dict:
    """A row for a quotient of wall times, with the quotient of the CPU times and both wall times beside it."""
    seconds = {"cpu": over.cpu / under.cpu, "seconds": [over.wall, under.wall]}
    return row(what, over.wall / under.wall, "x", o, claim, **seconds, **more)


_NUMPY = """
import ctypes, glob, os, sys, time
import numpy as np
m, n, k = map(int, sys.argv[1:])
rng = np.random.default_rng(0)
a, b = (rng.standard_normal(s).astype(np.float32) for s in ((m, k), (n, k)))
core = "unknown"
for path in glob.glob(os.path.join(os.path.dirname(np.__file__), "..", "numpy.libs", "*openblas*")):
    name = getattr(ctypes.CDLL(path), "scipy_openblas_get_corename64_", None)
    if name is not None:
        name.restype = ctypes.c_char_p
        core = name().decode()
print(f"numpy {np.__version__}, OpenBLAS {core}", flush=True)
for _ in sys.stdin:
    cpu, wall = time.process_time(), time.perf_counter()
    a @ b.T
    print(time.perf_counter() - wall, time.process_time() - cpu, flush=True)
"""

#: settings that would hold numpy's BLAS back: another core's kernels, smaller blocks, fewer threads
_BLAS_SETTINGS = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")


class NumpyMatmul:
    """numpy's float32 `a @ b.T` with a (m, k) and b (n, k), in a process of its own without any BLAS settings.

    kernel: which kernels its BLAS picked for this processor.
    """

    def __init__(self, m: int, n: int, k: int):
        env = {key: value for key, value in os.environ.items() if key not in _BLAS_SETTINGS}
        command = [sys.executable, "-c", _NUMPY, str(m), str(n), str(k)]
        self.process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.kernel = self._line()
        self.run()

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def run(self) -> Time:
        """One product."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        wall, cpu = map(float, self._line().split())
        return Time(wall, cpu)

    def __enter__(self) -> NumpyMatmul:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate()  # the end of its input ends it
