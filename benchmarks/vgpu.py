"""How fast the virtual GPU is, always against something else that runs beside it on the same cores."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator

import numpy as np

from benchmarks import tinygrad
from benchmarks.gemm import Gemm, check, numba_gemm
from benchmarks.timing import NumpyMatmul, Options, Time, best, cores, in_turn, ratio, row, timed


def _rate_row(what: str, count: int, time: Time, o: Options, claim: tuple[str, float] | None = None) -> dict:
    """Thread-instructions a second and core; `cpu` is the same by CPU seconds."""
    return row(what, count / time.wall / cores(), "1/s", o, claim, cpu=count / time.cpu, seconds=[time.wall])


def _numba_loop(ours: Gemm, fastmath: bool) -> Callable[[], Time]:
    """numba's triple loop on the arrays of `ours`, compiled and checked."""
    loop = numba_gemm(fastmath)
    c = np.full(ours.c.shape, np.nan, np.float32)
    loop(ours.a, ours.b, c)
    check(ours.a, ours.b, c)
    return lambda: timed(lambda: loop(ours.a, ours.b, c))


def naive(o: Options) -> Iterator[dict]:
    """a1, fp32: thread-instructions a second and core, and against the same triple loop compiled by numba."""
    n = 256 if o.quick else 1024
    ours = Gemm("a1-naive-cute", "sm_90a", (n, n, n), "fp32")
    count = ours.first()
    loops = [_numba_loop(ours, fastmath) for fastmath in (False, True)]
    time, theirs, reordered = in_turn(ours.run, *loops)
    yield _rate_row(f"a1 {n}^3 fp32, thread-instructions a second and core", count, time, o, (">=", 1e9))
    yield ratio(f"a1 {n}^3 fp32, time over numba's triple loop", time, theirs, o, ("<=", 4))
    yield ratio(f"a1 {n}^3 fp32, the same with numba's fastmath", time, reordered, o)
    other = Gemm("a1-naive-cuda-like", "sm_90a", (n, n, n), "fp32")
    count = other.first()
    (time,) = in_turn(other.run)
    yield _rate_row(f"a1 {n}^3 fp32, the same where lanes read a row apart", count, time, o)


def peer(o: Options) -> Iterator[dict]:
    """a1, fp32, against tinygrad's PTX emulator on the same PTX (its file is given with --tinygrad)."""
    if not o.tinygrad:
        yield row("a1, tinygrad's time over ours: give --tinygrad FILE", None, "x", o)
        return
    emu = tinygrad.load(o.tinygrad)
    for n in (64,) if o.quick else (256, 1024):
        ours = Gemm("a1-naive-cute", "sm_90a", (n, n, n), "fp32")
        ours.first()
        run = tinygrad.call(emu, ours.launch())
        ours.c[:] = np.nan
        theirs = best([timed(run)])
        check(ours.a, ours.b, ours.c)  # the peer wrote it this time
        (time,) = in_turn(ours.run)
        yield ratio(f"a1 {n}^3 fp32, tinygrad's time over ours", theirs, time, o, (">=", 20))


def warp_mma(o: Options) -> Iterator[dict]:
    """b2 against numpy's float32 matmul of the same size."""
    n = 512 if o.quick else 2048
    ours = Gemm("b2", "sm_80", (n, n, n), "fp16")
    ours.first()
    with NumpyMatmul(n, n, n) as theirs:
        time, matmul = in_turn(ours.run, theirs.run)
    yield ratio(f"b2 {n}^3 fp16, time over numpy's f32 matmul", time, matmul, o, ("<=", 10), peer=theirs.kernel)


#: rung, architecture, extent of the cube, most times numpy's time
_TENSOR = (
    ("c2", "sm_90a", 1024, 12), ("v7", "sm_100a", 1024, 12), ("d3", "sm_100a", 4096, 8), ("v9", "sm_100a", 4096, 8),
)  # fmt: skip


def tensor_cores(o: Options) -> Iterator[dict]:
    """WGMMA and tcgen05 rungs against numpy's float32 matmul of the same size."""
    for name, arch, n, limit in _TENSOR:
        n = n // 2 if o.quick else n
        ours = Gemm(name, arch, (n, n, n), "fp16")
        ours.first()
        with NumpyMatmul(n, n, n) as theirs:
            time, matmul = in_turn(ours.run, theirs.run)
        what = f"{name} {n}^3 fp16, time over numpy's f32 matmul"
        yield ratio(what, time, matmul, o, ("<=", limit), peer=theirs.kernel)


_MEMORY = """
import sys
from benchmarks.gemm import Gemm

def resident(field):
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith(field)) / 2**20

name, arch, n = sys.argv[1], sys.argv[2], int(sys.argv[3])
small = Gemm(name, arch, (256, 256, 256), "fp16")
small.once()
del small
ours = Gemm(name, arch, (n, n, n), "fp16")
ours.c[:] = 0
before = resident("VmRSS")
ours.once()
print(resident("VmHWM") - before)
"""


def memory(o: Options) -> Iterator[dict]:
    """What the virtual GPU holds over a kernel's arrays, at its peak, in a fresh process."""
    for name, arch, n, _ in _TENSOR[2:]:
        n = n // 2 if o.quick else n
        command = [sys.executable, "-c", _MEMORY, name, arch, str(n)]
        gigabytes = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        yield row(f"{name} {n}^3 fp16, memory over the arrays", gigabytes, "GB", o, ("<=", 2))


_COMPILE = """
import time
import cutlass.cute, numpy  # what a program pays once
from tensorladder.rungs import rung
from tensorladder.vgpu.machine.native import runtime
from tensorladder.vgpu.machine.program import compile_kernel
module = rung.load(rung.find("b7"))
runtime()
cpu, wall = time.process_time(), time.perf_counter()
program = module.compile("sm_90a", (256, 256, 256), "fp16", module.RUNG.config())
a, b, c = (numpy.zeros((256, 256), numpy.float16) for _ in range(3))
(launch,) = program.launches(a, b, c)
compile_kernel(launch.module.ptx, launch.kernel)
print(time.perf_counter() - wall, time.process_time() - cpu)
"""


def compile_time(o: Options) -> Iterator[dict]:
    """b7: front end plus code generation in fresh processes, with an empty cache and from the cache.

    Imports and the virtual GPU's own runtime, built once an installation, are ready before the clock starts.
    """
    from tensorladder.core.cache import cache_dir
    from tensorladder.vgpu.machine.native import runtime

    def once(folder: str) -> Time:
        env = {**os.environ, "TENSORLADDER_CACHE": folder}
        out = subprocess.run([sys.executable, "-c", _COMPILE], env=env, capture_output=True, text=True, check=True)
        wall, cpu = map(float, out.stdout.split()[-2:])
        return Time(wall, cpu)

    runtime()
    cold, warm = [], []
    for _ in range(1 if o.quick else 3):
        with tempfile.TemporaryDirectory() as folder:
            for path in cache_dir().glob("runtime-*.o"):
                shutil.copy(path, folder)
            cold.append(once(folder))
            warm.append(once(folder))
    first, again = best(cold), best(warm)
    yield row("b7, compile and code generation, cold", first.wall, "s", o, ("<=", 3), cpu=first.cpu)
    yield ratio("b7, the same from the cache over cold", again, first, o, ("<=", 0.1))


def linear(o: Options) -> Iterator[dict]:
    """b2: how cost grows in CTAs, with the work of a CTA fixed: the exponent of a power law, and the fit of a line."""
    sides = [(256, 256), (256, 512), (512, 512), (512, 1024), (1024, 1024), (1024, 2048), (2048, 2048)]
    sides = sides[:3] if o.quick else sides
    runs = [Gemm("b2", "sm_80", (m, n, 512), "fp16") for m, n in sides]
    for each in runs:
        each.first()
    ctas = np.array([np.prod(each.launch().grid) for each in runs], np.float64)
    times = in_turn(*[each.run for each in runs])
    for clock in ("cpu", "wall"):
        seconds = np.array([getattr(t, clock) for t in times])
        exponent = float(np.polyfit(np.log(ctas), np.log(seconds), 1)[0])
        # weights of 1/seconds fit relative distances: the small grids count as much as the large
        slope, offset = map(float, np.polyfit(ctas, seconds, 1, w=1 / seconds))
        worst = float(np.abs((slope * ctas + offset) / seconds - 1).max())
        more = {"ctas": ctas.astype(int).tolist(), "seconds": seconds.tolist(), "slope": slope, "offset": offset}
        # cost is what the cores spend: other processes reach into wall time
        limits = (("<=", 1.1), ("<=", 0.25)) if clock == "cpu" else (None, None)
        what = f"b2, {clock} time in CTAs ({ctas[0]:g} to {ctas[-1]:g})"
        yield row(f"{what}: exponent", exponent, "", o, limits[0], **more)
        yield row(f"{what}: worst distance from a line", worst, "", o, limits[1])


def checks(o: Options) -> Iterator[dict]:
    """What the hazard checker costs: the same rung with and without, in turn."""
    from tensorladder.vgpu import Checker

    for name, arch in (("c2", "sm_90a"), ("d3", "sm_100a")):
        n = 512 if o.quick else 1024
        checker = Checker()
        plain, checked = Gemm(name, arch, (n, n, n), "fp16"), Gemm(name, arch, (n, n, n), "fp16", checker)
        plain.first()
        checked.first()
        without, with_ = in_turn(plain.run, checked.run)
        if checker.findings:
            raise AssertionError(f"{name} has findings: {checker.findings[0].message}")
        yield ratio(f"{name} {n}^3 fp16, time with hazards checked over without", with_, without, o, ("<=", 6))


def climb(o: Options) -> Iterator[dict]:
    """The whole ladder from the command line, in a fresh process, once set up."""
    command = [sys.executable, "-m", "tensorladder", "climb"]

    def run() -> None:
        subprocess.run(command, capture_output=True, check=True)

    run()
    seconds = timed(run).wall
    yield row("climb, once set up", seconds, "s", o, ("<=", 180))


BENCHMARKS: dict[str, Callable[[Options], Iterator[dict]]] = {
    "naive": naive,
    "tinygrad": peer,
    "warp-mma": warp_mma,
    "tensor-cores": tensor_cores,
    "memory": memory,
    "compile": compile_time,
    "linear": linear,
    "checks": checks,
    "climb": climb,
}
