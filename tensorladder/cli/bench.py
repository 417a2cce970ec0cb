"""`tensorladder bench`: kernels beside cuBLAS on a real GPU, or the speed of the emulation."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from tensorladder.cli import output
from tensorladder.cli.options import Arch, Json, On
from tensorladder.core.errors import UsageError
from tensorladder.draw import benchmarks as pictures
from tensorladder.measure import bench as measure
from tensorladder.measure import suites
from tensorladder.measure.request import parse_place

COLUMNS = ("rung", "shape", "dtype", "us", "10-90 %", "TFLOPS", "baseline", "its us", "ratio", "MHz", "W")
RIGHT = ("us", "10-90 %", "TFLOPS", "its us", "ratio", "MHz", "W")
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
    dtype: Annotated[list[str] | None, typer.Option("--dtype", help="these element types (repeatable)")] = None,
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
    specs = [spec for text in rungs or () for spec in text.split()]
    if not 0 < seconds < float("inf"):
        raise UsageError(f"--seconds {seconds:g} must be a positive number of seconds")
    refused: list[str] = []
    if parse_place(on) == "gpu":
        if arch is not None:
            raise UsageError("--arch is for --on vgpu: on a GPU the architecture is the GPU's, or the pack's")
        host, rows = _on_gpu(chosen, pack, specs, dtype or (), seconds, refused)
    else:
        if pack is not None or dtype:
            raise UsageError("--pack and --dtype are for --on gpu")
        asked = measure.emulated(chosen, specs, arch, refused)
        host, rows = measure.emulator(chosen), measure.on_vgpu(asked, 3, refused)
    records = _show(host, rows, as_json)
    means = measure.geometric_means(records)
    for line in refused:
        output.complain(f"left out: {line}")
    if as_json:
        output.emit({"summary": means})
    else:
        _means(means)
    _keep(chosen, host, records, results, on)
    return measure.exit_code(records)


def _on_gpu(
    suite: suites.Suite,
    pack: str | None,
    specs: list[str],
    dtypes: Sequence[str],
    seconds: float,
    refused: list[str],
) -> tuple[measure.Record, Iterator[measure.Record]]:
    with output.progress("compiling" if pack is None else "loading"):
        jobs = (
            measure.compiled_here(suite, specs, dtypes, refused)
            if pack is None
            else measure.from_pack(pack, suite, specs, dtypes)
        )
    return measure.machine(suite), measure.on_gpu(jobs, suite, measure.Options(seconds=seconds), refused)


def _show(host: measure.Record, rows: Iterator[measure.Record], as_json: bool) -> list[measure.Record]:
    """Print the records as they come, or as a table at the end."""
    if as_json:
        output.emit({"machine": host})
    else:
        output.write(_headline(host))
    records = []
    with output.progress(f"timing suite {host['suite']}"):
        for record in rows:
            records.append(record)
            if as_json:
                output.emit(record)
            elif sys.stderr.isatty():
                output.complain(" ".join(filter(None, _row(record))))
    if not as_json:
        output.console().print(output.table(COLUMNS, [_row(record) for record in records], RIGHT))
    return records


def _headline(host: measure.Record) -> str:
    if host["on"] == "vgpu":
        return f"wall time of the emulation on {host['cpu']}, {host['cores']} cores: not a GPU's"
    power = f", {host['power_limit_w']:.0f} W" if host["power_limit_w"] else ""
    return f"{host['gpu']}{power}, torch {host['torch']}, cuBLAS {host['cublas']}, QuACK {host['quack'] or 'not here'}"


def _row(record: measure.Record) -> tuple[str, ...]:
    shape = "x".join(map(str, record["shape"]))
    if not record["ok"]:
        return record["rung"], shape, record["dtype"], "wrong", *[""] * 7
    spread = f"{record['low_us']:.5g}-{record['high_us']:.5g}"
    baseline = ("", "", "")
    if record["baseline"]:
        baseline = record["baseline"], f"{record['baseline_us']:.5g}", f"{record['ratio']:.3f}"
    meters = [f"{record[key]:.0f}" if record.get(key) else "" for key in ("clock_mhz", "power_w")]
    times = f"{record['median_us']:.5g}", spread, f"{record['tflops']:.4g}"
    return record["rung"], shape, record["dtype"], *times, *baseline, *meters


def _means(means: list[measure.Record]) -> None:
    for mean in means:
        losses = f"{mean['losses']} of {mean['shapes']} shapes slower, worst {mean['worst']:.3f}"
        output.write(f"{mean['rung']} over {mean['baseline']}: geometric mean {mean['geometric_mean']:.3f}, {losses}")


def _keep(
    suite: suites.Suite, host: measure.Record, records: list[measure.Record], folder: str | None, on: str
) -> None:
    """Result file and pictures: where a person said, else in a checkout's own place for those of a real GPU."""
    if folder is None and (on != "gpu" or not KEPT.is_dir()):
        return
    stem = measure.file_stem(suite, host["gpu"])
    place = KEPT if folder is None else Path(folder)
    measure.keep(place / f"{stem}.jsonl", host, records)
    (place / f"{stem}.svg").write_text(pictures.ladder(host, records), encoding="utf-8")
    if on == "gpu":
        (place / f"{stem}-roofline.svg").write_text(pictures.roofline(host, records), encoding="utf-8")
