"""`tensorladder bench`: kernels beside cuBLAS on a real GPU, or the speed of the emulation."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from tensorladder.cli import output
from tensorladder.cli.options import Arch, Json, On
from tensorladder.core.errors import UsageError
from tensorladder.core.files import check_folder, write_whole
from tensorladder.draw.benchmarks import pictures
from tensorladder.measure import bench as measure
from tensorladder.measure import counters, suites
from tensorladder.measure.request import parse_place, parse_shape
from tensorladder.ops import bench as op_bench
from tensorladder.ops import calls
from tensorladder.ops.rivals import Quack
from tensorladder.rungs.rung import asides
from tensorladder.silicon.timing import Blocks

COLUMNS = (
    "rung", "shape", "dtype", "us", "10-90 %", "TFLOPS", "baseline", "its us", "ratio", "tensor %", "MHz", "W", "notes",
)  # fmt: skip
ALONE = ("us alone", "ratio alone")  # before the notes, where that was asked for
RIGHT = ("us", "10-90 %", "TFLOPS", "its us", "ratio", "tensor %", "MHz", "W", *ALONE)
HOST_BOUND = {
    "host_bound": "ours waits for the host",
    "baseline_host_bound": "it waits for the host",
    "alone_host_bound": "ours alone waits for the host",
    "baseline_alone_host_bound": "it alone waits for the host",
}
KEPT = Path("benchmarks") / "results"


def bench(
    on: On = "gpu",
    suite: Annotated[
        str, typer.Option("--suite", metavar="|".join(suites.SUITES), help="which rungs and shapes")
    ] = "ladder",
    pack: Annotated[
        str | None, typer.Option("--pack", metavar="DIR", help="kernels made by `tensorladder pack`")
    ] = None,
    rungs: Annotated[
        list[str] | None,
        typer.Option("--rungs", metavar="'c4 c5:stages=5'", help="only these, with other knobs (repeatable)"),
    ] = None,
    op: Annotated[
        list[str] | None,
        typer.Option("--op", metavar="|".join(calls.CALLS), help="not rungs but calls of the op (repeatable)"),
    ] = None,
    tune: Annotated[
        bool, typer.Option("--tune", help="with --op: once more, with kernels that the op tuned first")
    ] = False,
    shape: Annotated[
        list[str] | None, typer.Option("--shape", metavar="512,512,512", help="these shapes (repeatable)")
    ] = None,
    dtype: Annotated[list[str] | None, typer.Option("--dtype", help="these element types (repeatable)")] = None,
    quack: Annotated[
        str | None, typer.Option("--quack", metavar="DIR", help="QuACK's kernels, made by `python -m benchmarks.quack`")
    ] = None,
    ncu: Annotated[
        bool, typer.Option("--ncu", help="with --pack: also how busy the tensor pipe is, by Nsight Compute's counters")
    ] = False,
    alone: Annotated[
        bool,
        typer.Option(
            "--alone",
            help="also time each contender by itself at the clocks that it settles at: at the power limit those in "
            "turns share one (2 s more a contender)",
        ),
    ] = False,
    arch: Arch = None,
    seconds: Annotated[
        float, typer.Option("--seconds", help="to measure each kernel for; on the virtual GPU: three runs each")
    ] = 0.5,
    results: Annotated[
        str | None,
        typer.Option("--results", metavar="DIR", help=f"keep results and pictures there (default: {KEPT}, if there)"),
    ] = None,
    as_json: Json = False,
) -> int:
    """Time kernels beside a baseline in one process, after checking what they compute."""
    chosen = suites.find(suite)
    if ncu and pack is None:
        raise UsageError("--ncu is for --on gpu with --pack: a second program launches the pack's kernels")
    if shape:
        chosen = suites.only(chosen, [parse_shape(text) for text in shape])
    specs = [spec for text in rungs or () for spec in text.split()]
    if not 0 < seconds < float("inf"):
        raise UsageError(f"--seconds {seconds:g} must be a positive number of seconds")
    if results is not None:
        check_folder(results, "--results")
    ops = list(op or (() if specs else chosen.ops))
    refused: list[str] = []
    if parse_place(on) == "gpu":
        if arch is not None:
            raise UsageError("--arch is for --on vgpu: on a GPU the architecture is the GPU's, or the pack's")
        options = measure.Options(seconds=seconds, alone=Blocks(seconds=seconds) if alone else None)
        if ops:
            if specs:
                raise UsageError("--rungs and --op: one of them, a run times rungs or calls of the op")
            if ncu:
                raise UsageError("--ncu is for rungs")
            host, rows = _op_on_gpu(chosen, ops, tune, pack, quack, dtype or (), options, refused)
        else:
            if quack is not None or tune:
                raise UsageError("--quack and --tune are for --op")
            host, rows = _on_gpu(chosen, pack, specs, dtype or (), options, refused)
            if ncu:
                rows = _with_counters(chosen, pack, specs, dtype or (), host, rows, refused)
    else:
        if alone:
            raise UsageError("--alone is for --on gpu: the emulation has no clock that settles and no limit of power")
        if pack is not None or dtype or ops or quack is not None or tune:
            raise UsageError("--pack, --dtype, --quack, --op, --tune and the suites of the op are for --on gpu")
        asked = measure.emulated(chosen, specs, arch, refused)
        host, rows = measure.emulator(chosen.name), measure.on_vgpu(asked, 3, refused)
    if alone:
        host["alone"] = asdict(Blocks(seconds=seconds))
    keep = functools.partial(_keep, chosen, host, folder=results, on=on)
    records = _show(host, rows, as_json, keep)
    means = measure.geometric_means(records)
    for line in refused:
        output.complain(f"left out: {line}")
    if not records:
        raise UsageError("nothing was timed: all that was asked for is left out")
    if as_json:
        output.emit({"summary": means})
    else:
        _means(means)
    keep(records)
    return measure.exit_code(records)


def _on_gpu(
    suite: suites.Suite,
    pack: str | None,
    specs: list[str],
    dtypes: Sequence[str],
    options: measure.Options,
    refused: list[str],
) -> tuple[measure.Record, Iterator[measure.Record]]:
    with output.progress("compiling" if pack is None else "loading"):
        jobs = (
            measure.compiled_here(suite, specs, dtypes, refused)
            if pack is None
            else measure.from_pack(pack, suite, specs, dtypes)
        )
    return measure.machine(suite), measure.on_gpu(jobs, suite, options, refused)


def _with_counters(
    suite: suites.Suite,
    pack: str | None,
    specs: list[str],
    dtypes: Sequence[str],
    host: measure.Record,
    rows: Iterator[measure.Record],
    refused: list[str],
) -> Iterator[measure.Record]:
    """The records with the tensor pipe's share; as they are, and a line, where it cannot be read."""
    assert pack is not None
    try:
        with output.progress("reading counters"):
            host["tensor_pipe"], shares = counters.tensor_pipe(pack, suite, specs, dtypes)
    except counters.Unavailable as error:
        refused.append(f"the tensor pipe's share: {error}")
        return rows
    return measure.with_shares(rows, shares)


def _op_on_gpu(
    suite: suites.Suite,
    ops: list[str],
    tune: bool,
    pack: str | None,
    quack: str | None,
    dtypes: Sequence[str],
    options: measure.Options,
    refused: list[str],
) -> tuple[measure.Record, Iterator[measure.Record]]:
    found = [calls.find(name) for name in ops]
    called = [(call, calls.dtype_of(call, dtype)) for call in found for dtype in dtypes or (None,)]
    if tune:  # after all the others: a call takes what was tuned once
        called += [(replace(call, tune=True), dtype) for call, dtype in called]
    if pack is not None:
        os.environ["TENSORLADDER_PACK"] = pack
    host = measure.machine(suite)
    theirs = None if quack is None else Quack(quack, host["sms"] // 2)
    host["quack"] = theirs.version if theirs else host["quack"]
    return host, op_bench.on_gpu(called, suite, options, refused, theirs)


def _show(
    host: measure.Record, rows: Iterator[measure.Record], as_json: bool, keep: Callable[[list[measure.Record]], None]
) -> list[measure.Record]:
    """Print the records as they come, or as a table at the end. Each is kept at once: a run may be cut short."""
    if as_json:
        output.emit({"machine": host})
    else:
        output.write(_headline(host))
    alone, records = "alone" in host, []
    with output.progress(f"timing suite {host['suite']}"):
        for record in rows:
            records.append(record)
            keep(records)
            if as_json:
                output.emit(record)
            elif sys.stderr.isatty():
                output.complain(" ".join(filter(None, _row(record, alone))))
    if not as_json:
        if records:
            columns = (*COLUMNS[:-1], *ALONE, COLUMNS[-1]) if alone else COLUMNS
            output.print_table(output.table(columns, (_row(record, alone) for record in records), RIGHT))
        if host["on"] == "gpu" and (absent := _absent(host)):
            output.write(absent)
    return records


def _headline(host: measure.Record) -> str:
    if host["on"] == "vgpu":
        return f"wall time of the emulation on {host['cpu']}, {host['cores']} cores: not a GPU's"
    power = f", {host['power_limit_w']:.0f} W" if host["power_limit_w"] else ""
    return f"{host['gpu']}{power}, torch {host['torch']}, cuBLAS {host['cublas']}, QuACK {host['quack'] or 'not here'}"


def _absent(host: measure.Record) -> str:
    """What the table has no figures of, since this GPU or this call has none; which counter a column is."""
    counter, absent = host.get("tensor_pipe"), []
    if not counter:
        absent.append("the tensor pipe's share (--ncu reads it)")
    if host["not_measured"]:
        absent.append(f"{', '.join(host['not_measured'])} (code that this GPU does not run)")
    said = [f"tensor %: {counter}"] if counter else []
    return "; ".join([*said, *([f"not measured here: {', '.join(absent)}"] if absent else [])])


def _row(record: measure.Record, alone: bool) -> tuple[str, ...]:
    shape = "x".join(map(str, record["shape"]))
    if not record["ok"]:
        return record["rung"], shape, record["dtype"], "wrong", *[""] * (9 + len(ALONE) * alone)
    spread = f"{record['low_us']:.5g}-{record['high_us']:.5g}"
    baseline = ("", "", "")
    if record["baseline"]:
        baseline = record["baseline"], f"{record['baseline_us']:.5g}", f"{record['ratio']:.3f}"
    meters = [f"{record[key]:.0f}" if record.get(key) else "" for key in ("tensor_pipe", "clock_mhz", "power_w")]
    times = f"{record['median_us']:.5g}", spread, f"{record['tflops']:.4g}"
    if alone:
        meters.append(f"{record['alone_us']:.5g}")
        meters.append(f"{record['alone_ratio']:.3f}" if record["baseline"] else "")
    return record["rung"], shape, record["dtype"], *times, *baseline, *meters, _notes(record)


def _notes(record: measure.Record) -> str:
    """The op's kernel, what the baseline chose, and whether the host was too slow for one of them."""
    notes = [record.get("kernel"), record.get("baseline_choice")]
    notes += [words for key, words in HOST_BOUND.items() if record.get(key)]
    return ", ".join(filter(None, notes))


def _means(means: list[measure.Record]) -> None:
    for mean in means:
        losses = f"{mean['losses']} of {mean['shapes']} shapes slower, worst {mean['worst']:.3f}"
        alone = f", each alone {mean['alone_geometric_mean']:.3f}" if "alone_geometric_mean" in mean else ""
        output.write(
            f"{mean['rung']} over {mean['baseline']}: geometric mean {mean['geometric_mean']:.3f}{alone}, {losses}"
        )


def _keep(
    suite: suites.Suite, host: measure.Record, records: list[measure.Record], folder: str | None, on: str
) -> None:
    """Result file and pictures: where a person said, else in a checkout's own place for those of a real GPU."""
    if folder is None and (on != "gpu" or not KEPT.is_dir()):
        return
    stem = measure.file_stem(suite, host["gpu"])
    place = KEPT if folder is None else Path(folder)
    measure.keep(place / f"{stem}.jsonl", host, records)
    for suffix, drawn in pictures(host, records, asides()).items():
        write_whole(place / f"{stem}{suffix}.svg", drawn.encode(), "--results")
