"""Benchmarks: kernels of a suite beside cuBLAS (and QuACK) in one process, checked before they are timed.

On a GPU: inputs are standard normal, in as many sets as fill twice the L2; a kernel's result on the first set is
compared with float64 element by element; then kernel and baselines take turns (`silicon.timing`). `ratio` is the
baseline's time over ours, so above 1 is faster. Where it is asked for (`Options.alone`), each is also timed by itself
at the clocks that it settles at, since at the power limit those in turn share one: `alone_ratio`. On the virtual GPU
what is timed is the emulation on this computer's CPU, beside numpy's float32 product: useful to compare emulations, and
no statement about a GPU.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import math
import os
import platform
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tensorladder import __version__
from tensorladder.core import probes
from tensorladder.core.errors import TensorladderError, UsageError
from tensorladder.core.files import write_whole
from tensorladder.measure import pack as packs
from tensorladder.measure import run as harness
from tensorladder.measure.baselines import BASELINES, versions
from tensorladder.measure.suites import Suite, takes
from tensorladder.problems import DTYPES, Problem
from tensorladder.rungs import rung as rungs
from tensorladder.silicon import driver
from tensorladder.silicon.nvml import Meter
from tensorladder.silicon.pack import Array, Entry, Kernel
from tensorladder.silicon.target import arch_for, cuda_torch
from tensorladder.silicon.timing import Alone, Options, Times, alone, compare, host_us

Record = dict[str, Any]

EMULATED_FLOPS = 2 * 512**3  # what the virtual GPU is asked to compute at most
MOST_SETS = 256
CHECKED_AT_ONCE = 1 << 26  # elements of C, in float64
BEST = "best of them"
#: dense fp16 operations a clock and SM, by compute capability (NVIDIA's architecture papers)
TENSOR_FLOPS = {(8, 0): 2048, (9, 0): 4096, (10, 0): 8192}


@dataclass(frozen=True)
class Job:
    """One thing to time on the GPU. label: the rung, with what sets it apart from others of the same rung."""

    label: str
    entry: Entry
    load: Callable[[], Kernel]


class Rival(NamedTuple):
    """What ours is timed beside: a call for each set of operands, and what was chosen to get there ("": no choice)."""

    runs: Sequence[Callable[[], Any]]
    choice: str = ""


# --------------------------------------------------------------------------------------------------------- what to do


def from_pack(folder: str, suite: Suite, specs: Sequence[str] = (), dtypes: Sequence[str] = ()) -> list[Job]:
    """The pack's entries for the suite's shapes, of the rungs that `specs` name (all for none)."""
    opened = packs.open_current(folder)
    opened.check_gpu()
    chosen = [
        entry
        for entry in opened.entries
        if entry.shape in suite.shapes
        and (not dtypes or entry.dtype in dtypes)
        and (not specs or any(matches(entry, spec) for spec in specs))
    ]
    if not chosen:
        have = ", ".join(dict.fromkeys(entry.label for entry in opened.entries))
        raise UsageError(f"pack {folder} has nothing of suite {suite.name} that was asked for: it has {have[:200]}")
    return _jobs(chosen, lambda entry: opened.kernel(entry))


def matches(entry: Entry, spec: str) -> bool:
    """Whether an entry is what "c5" or "c5:stages=5" names. UsageError where there is no such rung."""
    name, _, settings = spec.partition(":")
    if entry.rung != rungs.find(name).name:
        return False
    wanted = (setting.partition("=") for setting in filter(None, settings.split(",")))
    return all(_text(entry.config.get(knob)) == value for knob, _, value in wanted)


def compiled_here(
    suite: Suite, specs: Sequence[str] = (), dtypes: Sequence[str] = (), refused: list[str] | None = None
) -> list[Job]:
    """The suite's kernels, compiled now for the GPU here."""
    archs = dict.fromkeys(arch for info in rungs.catalog() for arch in info.archs)
    # The architecture with the most features that the GPU runs: those that end in a letter.
    arch = arch_for(sorted(archs, key=lambda name: (not name.endswith("a"), name)))
    made = list(packs.make_all(packs.wanted(specs, arch, suite, (), dtypes), arch, refused))
    code = {digest: image for one in made for digest, image in one.code.items()}

    def function(digest: str, kernel: str) -> Any:
        return driver.load(code[digest], kernel)

    return _jobs([one.entry for one in made], lambda entry: Kernel(entry, function))


def _jobs(entries: Sequence[Entry], load: Callable[[Entry], Kernel]) -> list[Job]:
    labels = _labels(entries)
    return [Job(label, entry, functools.partial(load, entry)) for label, entry in zip(labels, entries)]


def _labels(entries: Sequence[Entry]) -> list[str]:
    """Rung names; where a rung is there with several settings for one product, with the knobs that differ."""
    times = Counter((entry.rung, entry.shape, entry.dtype) for entry in entries)
    several = {rung for (rung, *_), count in times.items() if count > 1}
    values: dict[str, dict[str, set[str]]] = {}
    for entry in entries:
        for knob, value in entry.config.items():
            values.setdefault(entry.rung, {}).setdefault(knob, set()).add(_text(value))
    made = []
    for entry in entries:
        differ = [k for k in entry.config if entry.rung in several and len(values[entry.rung][k]) > 1]
        settings = ",".join(f"{k}={_text(entry.config[k])}" for k in differ)
        made.append(f"{entry.rung}:{settings}" if settings else entry.rung)
    return made


def _text(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, list | tuple) else str(value).lower()


# ----------------------------------------------------------------------------------------------------- on a real GPU


def machine(suite: Suite) -> Record:
    """What GPU, which libraries, which limits: the first line of a result file."""
    torch = cuda_torch()
    torch.mm(*(torch.ones(8, 8, device="cuda") for _ in range(2)))  # loads cuBLAS
    known, meter = driver.facts(), Meter()
    flops = TENSOR_FLOPS.get(tuple(known["capability"]))
    clock = meter.highest_clock()
    return {
        "suite": suite.name,
        "on": "gpu",
        **known,
        "highest_clock_mhz": clock,
        "power_limit_w": meter.power_limit(),
        "peak_tflops": flops * known["sms"] * clock / 1e6 if flops and clock else None,
        **versions(torch),
        "not_measured": not_measured(tuple(known["capability"])),
        "tensorladder": __version__,
        "python": platform.python_version(),
        "when": _now(),
    }


def not_measured(have: tuple[int, int]) -> list[str]:
    """The architectures that rungs compile for and a GPU of this compute capability cannot run."""
    archs = dict.fromkeys(arch for info in rungs.catalog() for arch in info.archs)
    return [arch for arch in archs if not driver.runs_on(arch, have)]


def on_gpu(jobs: Sequence[Job], suite: Suite, options: Options, refused: list[str]) -> Iterator[Record]:
    """A record for each kernel and baseline. refused: gets a line for each baseline that could not be run."""
    torch = cuda_torch()
    meter, l2 = Meter(), driver.facts()["l2_bytes"]
    places: dict[tuple[int, ...], int] = {shape: place for place, shape in enumerate(suite.shapes)}

    def group(job: Job) -> tuple[Any, ...]:
        # what probes write to is an array of its own size
        problem, more = rungs.find(job.entry.rung).rung.problem, job.entry.arrays[-1].name == probes.NAME
        return places[job.entry.shape], job.entry.dtype, problem, job.entry.arrays[-1].shape if more else ()

    for (place, dtype, problem, _), members in itertools.groupby(sorted(jobs, key=group), group):
        shape = list(suite.shapes)[place]
        timed_here = list(members)
        arrays = timed_here[0].entry.arrays
        workload = Workload(torch, rungs.problems.find(problem), shape, dtype, arrays, l2)
        for job in timed_here:
            yield from _one(torch, job, workload, meter, options, refused)
        del workload
        torch.cuda.empty_cache()


def with_shares(rows: Iterable[Record], shares: Mapping[Any, float]) -> Iterator[Record]:
    """Records with `tensor_pipe`, per cent, where `counters.tensor_pipe` has it."""
    for record in rows:
        share = shares.get((record["rung"], tuple(record["shape"]), record["dtype"]))
        yield record if share is None else {**record, "tensor_pipe": share}


def sets_for(size: int, l2: int) -> int:
    """How many sets of operands of so many bytes fill twice an L2 of `l2` bytes beside the one in use."""
    return max(2, min(MOST_SETS, -(-2 * l2 // size) + 1))


class Workload:
    """Sets of tensors for one problem, enough of them to fill twice the L2."""

    def __init__(
        self, torch: Any, problem: Problem, shape: tuple[int, ...], dtype: str, arrays: Sequence[Array], l2: int
    ) -> None:
        self.torch, self.problem, self.shape, self.dtype, self.arrays = torch, problem, shape, dtype, arrays
        first = self._draw(0)
        self.bytes = sum(tensor.numel() * tensor.element_size() for tensor in first.values())
        self.sets = [first, *(self._draw(seed) for seed in range(1, sets_for(self.bytes, l2)))]

    def _draw(self, seed: int) -> dict[str, Any]:
        torch = self.torch
        generator = torch.Generator("cuda").manual_seed(seed)
        made = {}
        for array in self.arrays:
            dtype = getattr(torch, array.dtype)
            if array.output:
                made[array.name] = torch.empty(array.shape, device="cuda", dtype=dtype)
                continue
            # Types of 8 bits cannot be drawn in.
            drawn = torch.float16 if dtype.itemsize == 1 else dtype
            made[array.name] = torch.randn(array.shape, generator=generator, device="cuda", dtype=drawn).to(dtype)
        return made

    def check(self, run: Callable[[], None]) -> tuple[bool, float]:
        """Run once on the first set and compare C with float64: (every element within its bound, relative norm)."""
        torch, tensors = self.torch, self.sets[0]
        tensors["C"].fill_(math.nan)
        run()
        torch.cuda.synchronize()
        dtype = DTYPES[self.dtype]
        shared = {a.name: tensors[a.name].double() for a in self.arrays if not a.output and a.name != "A"}

        def reference(rows: slice) -> tuple[Any, Any]:
            inputs = {"A": tensors["A"][rows].double(), **shared}
            value = self.problem.compute(inputs, self.shape, dtype)["C"]
            return value, self.problem.bound(inputs, {"C": value}, self.shape, dtype)["C"]

        return judged(tensors["C"], reference)


def judged(c: Any, reference: Callable[[slice], tuple[Any, Any]]) -> tuple[bool, float]:
    """(every element within its bound, relative norm of the error) of a matrix, some rows at a time.

    reference: for some rows (what they should be in float64, what each element may be off).
    """
    rows = max(1, CHECKED_AT_ONCE // c.shape[1])
    within, wrong, size = True, 0.0, 0.0
    for at in range(0, c.shape[0], rows):
        part = slice(at, at + rows)
        value, bound = reference(part)
        difference = c[part].double() - value
        within = within and bool((difference.abs() <= bound).all())
        wrong += float((difference**2).sum())
        size += float((value**2).sum())
    return within, math.sqrt(wrong / size) if math.isfinite(wrong) else math.inf


def _one(
    torch: Any, job: Job, workload: Workload, meter: Meter, options: Options, refused: list[str]
) -> Iterator[Record]:
    entry, rung = job.entry, rungs.find(job.entry.rung).rung
    stream = torch.cuda.current_stream().cuda_stream
    kernel = job.load()
    ours = [kernel.bind(stream, *(t[array.name] for array in entry.arrays)) for t in workload.sets]
    within, error = workload.check(ours[0])
    derived = workload.problem.tolerance(entry.shape, DTYPES[entry.dtype])
    tolerance = derived if rung.tolerance is None else rung.tolerance
    ok = error <= tolerance and (within or rung.tolerance is not None)
    base: Record = {
        "rung": job.label, "shape": list(entry.shape), "dtype": entry.dtype, "arch": entry.arch, "on": "gpu",
        "config": dict(entry.config), "ok": ok, "error": error_of(error),
        "tolerance": tolerance, "bytes": workload.bytes, "flops": workload.problem.flops(entry.shape),
    }  # fmt: skip
    if not ok:
        yield {**base, **untimed("wrong, so not timed")}
        return
    contenders = {}
    for name, make in BASELINES.items():
        try:
            made = (make(rung.problem, torch, tensors) for tensors in workload.sets)
            calls = [call for call in made if call is not None]
            if calls:
                calls[0]()
                contenders[name] = Rival(calls)
        except Exception as problem:  # another project's code: say what it said, and go on without it
            refused.append(f"{name} on {entry.label}: {' '.join(str(problem).split())[:200] or type(problem).__name__}")
    yield from contest(torch, base, ours, contenders, meter, options)


def contest(
    torch: Any,
    base: Record,
    runs: Sequence[Callable[[], Any]],
    contenders: Mapping[str, Rival],
    meter: Meter,
    options: Options,
) -> Iterator[Record]:
    """Time ours in turn with the others: a record for each of them, or one alone where there are none.

    `best_ratio` is that of the fastest of the others; `best_alone_ratio` too, where each is also timed alone.
    """
    calls = {"ours": runs, **{name: rival.runs for name, rival in contenders.items()}}
    measured = compare(torch, calls, meter, options)
    times = measured.times["ours"]
    base = {**base, **timed(times, base["flops"]), "host_us": round(host_us(torch, runs), 1)}
    base |= {"clock_mhz": measured.clock_mhz, "power_w": measured.power_w, "sets": len(runs)}
    by_itself = alone(torch, calls, meter, options.alone) if options.alone else {}
    if by_itself:
        base |= settled(by_itself["ours"])
    if not contenders:
        yield {**base, "baseline": None, "baseline_us": None, "ratio": None}
        return
    best = min(measured.times[name].median for name in contenders)
    base["best_ratio"] = round(best / times.median, 4)
    if by_itself:
        best = min(by_itself[name].median for name in contenders)
        base["best_alone_ratio"] = round(best / by_itself["ours"].median, 4)
    for name, rival in contenders.items():
        more: Record = {"baseline_host_us": round(host_us(torch, rival.runs), 1)}
        if rival.choice:
            more["baseline_choice"] = rival.choice
        if by_itself:
            more |= settled_against(by_itself["ours"], by_itself[name])
        yield {**base, **against(name, times, measured.times[name]), **more}


def error_of(error: float) -> float | None:
    """Four digits of it; None for infinity, which JSON has not."""
    return float(f"{error:.4g}") if math.isfinite(error) else None


def timed(times: Times, flops: int) -> Record:
    """A kernel's part of a record. Microseconds; low and high are the 10th and 90th percentile of the rounds."""
    low, high = times.spread
    return {
        "median_us": round(times.median, 3), "low_us": round(low, 3), "high_us": round(high, 3),
        "tflops": float(f"{flops / times.median / 1e6:.5g}"), "rounds": len(times.rounds), "batch": times.batch,
        **({"host_bound": True} if times.host_bound else {}),
    }  # fmt: skip


def against(name: str, ours: Times, baseline: Times) -> Record:
    """A baseline's part of a record."""
    low, high = baseline.spread
    return {
        "baseline": name, "baseline_us": round(baseline.median, 3), "baseline_low_us": round(low, 3),
        "baseline_high_us": round(high, 3), "ratio": round(baseline.median / ours.median, 4),
        **({"baseline_host_bound": True} if baseline.host_bound else {}),
    }  # fmt: skip


def settled(times: Alone) -> Record:
    """A kernel's part of a record, of what it takes alone: low and high are its fastest and its slowest block."""
    energy = times.millijoules
    return {
        "alone_us": round(times.median, 3), "alone_low_us": round(min(times.blocks), 3),
        "alone_high_us": round(max(times.blocks), 3), "alone_clock_mhz": times.clock_mhz,
        "alone_power_w": times.power_w, "alone_mj": None if energy is None else float(f"{energy:.5g}"),
        **({"alone_host_bound": True} if times.host_bound else {}),
    }  # fmt: skip


def settled_against(ours: Alone, baseline: Alone) -> Record:
    """A baseline's part of a record, of what each takes alone."""
    theirs = {f"baseline_{key}": value for key, value in settled(baseline).items()}
    return {**theirs, "alone_ratio": round(baseline.median / ours.median, 4)}


def untimed(why: str) -> Record:
    keys = ("median_us", "tflops", "baseline", "baseline_us", "ratio")
    return {**dict.fromkeys(keys), "message": why}


# ------------------------------------------------------------------------------------------------- on the virtual GPU


def emulator(suite: str) -> Record:
    """The computer that emulates: the first line of a result file."""
    cpu = platform.processor() or platform.machine()
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as info:
        cpu = next((line.split(":", 1)[1].strip() for line in info if line.startswith("model name")), cpu)
    return {
        "suite": suite, "on": "vgpu", "gpu": "vgpu", "clock": "wall time of the emulation", "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)), "load": round(os.getloadavg()[0], 2), "tensorladder": __version__,
        "python": platform.python_version(), "when": _now(),
    }  # fmt: skip


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())


def emulated(suite: Suite, specs: Sequence[str], arch: str | None, refused: list[str]) -> list[harness.Request]:
    """What is run on the virtual GPU: the ladder at the rungs' default shapes, other suites' shapes where small.

    arch: of the virtual GPU; None: each rung's first. refused: gets a line for each shape that is left out. UsageError
    for a rung of `specs` that does not exist or compile for `arch`; MissingExtra where none of them can be run here.
    """
    infos = [rungs.find(spec) for spec in specs] or [
        info for info in rungs.catalog() if takes(info) and (arch is None or arch in info.archs)
    ]
    made = []
    for info in infos:
        own = suite.every_rung or not takes(info)
        for shape in [info.default_shape] if own else list(suite.shapes):
            label = f"{info.name} {'x'.join(map(str, shape))}"
            if info.problem.flops(shape) > EMULATED_FLOPS:
                refused.append(f"{label}: too much to emulate")
            else:
                made.append(harness.plan(info, shape=shape, arch=arch))
    if made:
        harness.VirtualTarget(made[0])  # its engine is for all of them, or for none
        lacks = [rungs.lacking(one.info) for one in made]
        if lacks[0] is not None and all(lacks):
            raise lacks[0]
    return made


def on_vgpu(asked: Iterable[harness.Request], rounds: int, refused: list[str]) -> Iterator[Record]:
    """Wall time of the emulation, a record a request. refused: gets a line for each shape that a rung does not take."""
    for one in asked:
        try:
            yield _emulated(one, rounds)
        except UsageError as error:
            refused.append(f"{one.info.name} {'x'.join(map(str, one.shape))}: {error}")


def _emulated(asked: harness.Request, rounds: int) -> Record:
    info = asked.info
    results = [harness.execute(asked) for _ in range(rounds)]
    last, flops = results[-1], info.problem.flops(asked.shape)
    times = Times(tuple((result.seconds or 0.0) * 1e6 for result in results), 1)
    base = {
        "rung": info.name, "shape": list(asked.shape), "dtype": asked.dtype, "arch": asked.arch, "on": "vgpu",
        "clock": "wall time of the emulation", "ok": last.ok, "error": last.record()["error"],
        "tolerance": last.tolerance, "flops": flops, **timed(times, flops),
    }  # fmt: skip
    if not takes(info):
        return {**base, "baseline": None, "baseline_us": None, "ratio": None}
    m, n, k = asked.shape
    a, b = (np.random.default_rng(i).standard_normal(e, dtype=np.float32) for i, e in enumerate(((m, k), (n, k))))
    _wall(lambda: a @ b.T)  # the library starts its threads at the first product
    return {**base, **against("numpy float32", times, Times(tuple(_wall(lambda: a @ b.T) for _ in range(rounds)), 1))}


def _wall(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return (time.perf_counter() - start) * 1e6


# ------------------------------------------------------------------------------------------------------- afterwards


def geometric_means(records: Iterable[Record]) -> list[Record]:
    """For each rung and baseline over all shapes: geometric mean of the ratios, the extremes, how many are below 1.

    Where a rung has several baselines, also against the fastest of them at each shape. What was timed alone as well has
    the same of those ratios, as `alone_geometric_mean` and so on.
    """
    known = list(records)
    by_itself = _ratios(known, "alone_ratio")
    made = []
    for pair, found in _ratios(known, "ratio").items():
        row = {"rung": pair[0], "baseline": pair[1], **_mean(found)}
        if pair in by_itself:
            row |= {f"alone_{key}": value for key, value in _mean(by_itself[pair]).items()}
        made.append(row)
    return made


def _ratios(records: Sequence[Record], key: str) -> dict[tuple[str, str], list[float]]:
    """A kind of ratio by rung and baseline; last, those to the best of several baselines."""
    ratios: dict[tuple[str, str], list[float]] = {}
    best: dict[str, dict[tuple[Any, ...], float]] = {}
    for record in records:
        if record.get(key):
            ratios.setdefault((record["rung"], record["baseline"]), []).append(record[key])
        if record.get(f"best_{key}"):
            place = (*record["shape"], record["dtype"])
            best.setdefault(record["rung"], {})[place] = record[f"best_{key}"]
    for rung, found in best.items():
        if sum(of == rung for of, _ in ratios) > 1:
            ratios[rung, BEST] = list(found.values())
    return ratios


def _mean(found: Sequence[float]) -> Record:
    return {
        "geometric_mean": round(statistics.geometric_mean(found), 4), "worst": min(found), "best": max(found),
        "shapes": len(found), "losses": sum(ratio < 1 for ratio in found),
    }  # fmt: skip


def file_stem(suite: Suite, gpu: str) -> str:
    """ "ladder-h200" for the NVIDIA H200."""
    return f"{suite.name}-{re.sub(r'[^a-z0-9]+', '-', gpu.lower().removeprefix('nvidia')).strip('-')}"


def keep(path: Path, host: Record, records: Iterable[Record]) -> None:
    """Write a result file, whole or not at all: a line that describes the machine, then a line a record. UsageError
    where it cannot be written."""
    lines = [json.dumps({"machine": host}), *(json.dumps(record) for record in records)]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error
    write_whole(path, ("\n".join(lines) + "\n").encode(), "--results")


def read(path: str | Path) -> tuple[Record, list[Record]]:
    """(machine, records) of a result file; UsageError where it is none."""
    try:
        first, *rest = Path(path).read_text(encoding="utf-8").splitlines()
        return json.loads(first)["machine"], [json.loads(line) for line in rest]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is no result file of `tensorladder bench`: {error}") from error


def exit_code(records: Sequence[Mapping[str, Any]]) -> int:
    """1 where a kernel was wrong."""
    return TensorladderError.exit_code if any(not record["ok"] for record in records) else 0
