"""How fast the virtual GPU is, always against something else that runs in the same process on the same cores."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from tensorladder.core.program import Program
from tensorladder.rungs import rung
from tensorladder.vgpu import Device


@dataclass(frozen=True)
class Options:
    """quick: a quarter of every extent, without claims. tinygrad: path of its PTX emulator, or None."""

    quick: bool = False
    tinygrad: str | None = None


def _row(what: str, value: float, unit: str, claim: str = "", ok: bool | None = None, o: Options | None = None) -> dict:
    if o is not None and o.quick:
        claim, ok = "", None
    return {"what": what, "value": value, "unit": unit, "claim": claim, "ok": ok}


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _best(run: Callable[[], object], times: int = 3) -> float:
    """Shortest wall time of a few runs, seconds."""
    best = float("inf")
    for _ in range(times):
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best


class _Gemm:
    """A GEMM rung with its arrays on a device."""

    def __init__(self, name: str, arch: str, shape: tuple[int, int, int], dtype: str, workers: int | None = None):
        self.info = rung.find(name)
        self.module = rung.load(self.info)
        self.program: Program = self.module.compile(arch, shape, dtype, self.module.RUNG.config())
        m, n, k = shape
        kind = {"fp16": np.float16, "fp32": np.float32}[dtype]
        rng = np.random.default_rng(0)
        self.device = Device(arch, workers=workers)
        self.a = self.device.memory.copy_in("A", rng.standard_normal((m, k)).astype(kind))
        self.b = self.device.memory.copy_in("B", rng.standard_normal((n, k)).astype(kind))
        self.c = self.device.memory.empty("C", (m, n), kind)

    def run(self) -> float:
        """One launch; its seconds."""
        before = self.device.seconds
        stream = self.device.stream()
        self.program(stream, self.a, self.b, self.c)
        stream.synchronize()
        return self.device.seconds - before

    def check(self) -> None:
        """The result is right (a wrong kernel has no speed)."""
        want = self.a.astype(np.float64) @ self.b.astype(np.float64).T
        assert np.linalg.norm(self.c - want) < 2e-3 * np.linalg.norm(want)


def _numba_gemm():
    """The triple loop of the naive kernel, compiled, one row a task."""
    import numba

    @numba.njit(parallel=True)
    def gemm(a, b, c):
        for i in numba.prange(a.shape[0]):
            for j in range(b.shape[0]):
                total = np.float32(0)
                for k in range(a.shape[1]):
                    total += a[i, k] * b[j, k]
                c[i, j] = total

    return gemm


def _rate(g: _Gemm) -> tuple[float, float]:
    """(seconds of a launch, thread-instructions a second and core)."""
    g.run()
    g.check()
    before = g.device.instructions
    g.run()
    count = g.device.instructions - before
    seconds = min(g.run() for _ in range(3))
    return seconds, count / seconds / _cores()


def naive(o: Options) -> Iterator[dict]:
    """a1, fp32: thread-instructions a second and core, and against the same triple loop compiled by numba."""
    n = 256 if o.quick else 1024
    g = _Gemm("a1-naive-cute", "sm_90a", (n, n, n), "fp32")
    ours, rate = _rate(g)
    yield _row(f"a1 {n}^3 fp32, thread-instructions a second and core", rate, "1/s", ">= 1e9", rate >= 1e9, o)
    yield _row(
        f"a1-naive-cuda-like {n}^3 (lanes a row apart), the same",
        _rate(_Gemm("a1", "sm_90a", (n, n, n), "fp32"))[1],
        "1/s",
    )
    loop = _numba_gemm()
    c = np.zeros((n, n), np.float32)
    loop(g.a, g.b, c)
    theirs = _best(lambda: loop(g.a, g.b, c))
    ratio = ours / theirs
    yield _row(f"a1 {n}^3 fp32, time over numba's triple loop", ratio, "x", "<= 4", ratio <= 4, o)


def tinygrad(o: Options) -> Iterator[dict]:
    """Against tinygrad's PTX emulator on the same PTX (its file is given with --tinygrad)."""
    if not o.tinygrad:
        yield _row("a1 over tinygrad's PTX emulator: give --tinygrad FILE", float("nan"), "x", ">= 20", None)
        return
    spec = importlib.util.spec_from_file_location("tinygrad_emu", o.tinygrad)
    emu = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(emu)
    n = 64 if o.quick else 256
    g = _Gemm("a1-naive-cute", "sm_90a", (n, n, n), "fp32")
    g.run()
    g.check()
    ours = min(g.run() for _ in range(3))
    (launch,) = g.program.launches(g.a, g.b, g.c)
    run, result = _tinygrad_call(emu, launch, g)
    theirs = _best(run, 1)
    want = g.a.astype(np.float64) @ g.b.astype(np.float64).T
    assert np.linalg.norm(result - want) < 1e-3 * np.linalg.norm(want), "the peer's result is wrong"
    ratio = theirs / ours
    yield _row(f"a1 {n}^3 fp32, tinygrad's time over ours", ratio, "x", ">= 20", ratio >= 20, o)


def _tinygrad_call(emu, launch, g: _Gemm):
    """A call of tinygrad's `ptx_run` with the launch's own parameter values."""
    import ctypes

    from tensorladder.vgpu.ptx import parse

    params = parse(launch.module.ptx).kernels[launch.kernel].params
    values = [ctypes.create_string_buffer(launch.params[p.offset : p.offset + p.size], p.size) for p in params]
    pointers = (ctypes.c_void_p * len(values))(*[ctypes.addressof(v) for v in values])
    source = launch.module.ptx.encode()

    def run() -> None:
        emu.ptx_run(source, len(values), pointers, *launch.block, *launch.grid, launch.smem)

    return run, g.c


def warp_mma(o: Options) -> Iterator[dict]:
    """b2 against numpy's float32 matmul of the same size."""
    n = 512 if o.quick else 2048
    g = _Gemm("b2", "sm_80", (n, n, n), "fp16")
    g.run()
    g.check()
    ours = min(g.run() for _ in range(3))
    a, b = g.a.astype(np.float32), g.b.astype(np.float32)
    theirs = _best(lambda: a @ b.T)
    yield _row(f"b2 {n}^3 fp16, time over numpy's f32 matmul", ours / theirs, "x", "<= 10", ours / theirs <= 10, o)


_COMPILE = """
import sys, time
import cutlass.cute, numpy  # what a program pays once
from tensorladder.rungs import rung
from tensorladder.vgpu.machine.native import runtime
from tensorladder.vgpu.machine.program import compile_kernel
module = rung.load(rung.find("b7"))
runtime()
start = time.perf_counter()
program = module.compile("sm_90a", (256, 256, 256), "fp16", module.RUNG.config())
a, b, c = (numpy.zeros((256, 256), numpy.float16) for _ in range(3))
(launch,) = program.launches(a, b, c)
compile_kernel(launch.module.ptx, launch.kernel)
print(time.perf_counter() - start)
"""


def compile_time(o: Options) -> Iterator[dict]:
    """b7: front end plus code generation in a fresh process, with nothing cached and from the cache."""
    from tensorladder.core.cache import cache_dir
    from tensorladder.vgpu.machine.native import runtime

    runtime()
    with tempfile.TemporaryDirectory() as folder:
        for path in cache_dir().glob("runtime-*.o"):  # the runtime is built once an installation
            os.link(path, os.path.join(folder, path.name)) if _same_device(path, folder) else _copy(path, folder)
        env = {**os.environ, "TENSORLADDER_CACHE": folder}

        def once() -> float:
            out = subprocess.run([sys.executable, "-c", _COMPILE], env=env, capture_output=True, text=True, check=True)
            return float(out.stdout.split()[-1])

        cold = once()
        warm = min(once() for _ in range(2))
    yield _row("b7 compile and code generation, cold", cold, "s", "<= 3", cold <= 3, o)
    yield _row("b7 from the cache, share of cold", warm / cold, "", "<= 0.1", warm / cold <= 0.1, o)


def _same_device(path, folder: str) -> bool:
    return os.stat(path).st_dev == os.stat(folder).st_dev


def _copy(path, folder: str) -> None:
    import shutil

    shutil.copy(path, folder)


def linear(o: Options) -> Iterator[dict]:
    """Cost in CTAs: time a CTA as the grid grows, over that of the smallest grid."""
    sizes = (256, 512) if o.quick else (512, 1024, 2048)
    base = None
    for n in sizes:
        g = _Gemm("b2", "sm_80", (n, n, 512), "fp16")
        g.run()
        (launch,) = g.program.launches(g.a, g.b, g.c)
        ctas = int(np.prod(launch.grid))
        each = min(g.run() for _ in range(3)) / ctas
        base = base or each
        ok = None if n == sizes[0] else each / base <= 1.25
        claim = "" if n == sizes[0] else "<= 1.25"
        yield _row(f"b2 {n}x{n}x512, {ctas} CTAs: time a CTA over the first", each / base, "x", claim, ok, o)


def climb(o: Options) -> Iterator[dict]:
    """The whole ladder from the command line, in a fresh process, once set up."""
    command = [sys.executable, "-m", "tensorladder", "climb"]
    subprocess.run(command, capture_output=True, check=True)
    seconds = _best(lambda: subprocess.run(command, capture_output=True, check=True), 1)
    yield _row("climb, once set up", seconds, "s", "<= 90", seconds <= 90, o)


BENCHMARKS: dict[str, Callable[[Options], Iterator[dict]]] = {
    "naive": naive,
    "tinygrad": tinygrad,
    "warp-mma": warp_mma,
    "compile": compile_time,
    "linear": linear,
    "climb": climb,
}
