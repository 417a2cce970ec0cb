"""How busy a kernel keeps the tensor cores, as Nsight Compute's counters have it: `bench --ncu`.

`ncu` runs this file as a program of its own, which launches every kernel of a pack that a suite asks for once, between
a start and a stop of the profiler. The share is of the pipe's peak over the cycles in which an SM was active.
"""

from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tensorladder.core.errors import TensorladderError

if TYPE_CHECKING:
    from tensorladder.measure.bench import Job
    from tensorladder.measure.suites import Suite

SHARE = ".avg.pct_of_peak_sustained_active"
#: counters of the tensor pipe, the best first; not every architecture and release has every one (--query-metrics).
#: Not instructions: one of WGMMA does the work of dozens.
COUNTERS = ("sm__pipe_tensor_cycles_active", "sm__pipe_tensor_op_hmma_cycles_active")
TIMEOUT = 300.0  # seconds
KERNEL, METRIC, VALUE = "Kernel Name", "Metric Name", "Metric Value"
MARK = "@launched "  # what the program says of each
Key = tuple[str, tuple[int, ...], str]


class Unavailable(TensorladderError):
    """The counters cannot be read here; the message says why."""


def tensor_pipe(folder: str, suite: Suite, specs: Sequence[str], dtypes: Sequence[str]) -> tuple[str, dict[Key, float]]:
    """The counter that was read, and per cent of its peak by rung's label, shape and element type.

    Unavailable where there is no ncu, or it may not read the counters.
    """
    if shutil.which("ncu") is None:
        raise Unavailable("ncu is not in PATH (Nsight Compute brings it)")
    counter = _counter(_run("ncu", "--query-metrics"))
    asked = json.dumps([folder, suite.name, list(suite.shapes), list(specs), list(dtypes)])
    said = _run(
        "ncu", "--csv", "--clock-control", "none", "--profile-from-start", "off", "--metrics", counter + SHARE,
        sys.executable, "-m", "tensorladder.measure.counters", asked,
    )  # fmt: skip
    return counter + SHARE, shares(said)


def _run(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"ncu: {error}") from error
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if "ERROR" in line or "Error" in line]
        raise Unavailable(f"ncu: {lines[-1] if lines else f'exit status {done.returncode}'}"[:300])
    return done.stdout


def _counter(known: str) -> str:
    for name in COUNTERS:
        if any(line.startswith(f"{name} ") for line in known.splitlines()):
            return name
    raise Unavailable(f"this ncu knows none of {', '.join(COUNTERS)}")


def shares(said: str) -> dict[Key, float]:
    """What ncu read, by the list of launches that the program printed. Of several launches the busiest counts."""
    marks = [line for line in said.splitlines() if line.startswith(MARK)]
    rows = [line for line in said.splitlines() if line.startswith('"')]
    values = [row[VALUE] for row in csv.DictReader(io.StringIO("\n".join(rows))) if row.get(METRIC)]
    launched = [json.loads(line.removeprefix(MARK)) for line in marks]
    if len(values) != sum(one["launches"] for one in launched):
        raise Unavailable(f"ncu: {len(values)} kernels read of {sum(one['launches'] for one in launched)} launched")
    found: dict[Key, float] = {}
    for one in launched:
        mine, values = values[: one["launches"]], values[one["launches"] :]
        try:
            busiest = max(float(value.replace(",", "")) for value in mine)
        except ValueError as error:
            raise Unavailable(f"ncu: the counter's value is {mine[0]!r}") from error
        found[one["label"], tuple(one["shape"]), one["dtype"]] = round(busiest, 1)
    return found


def launch(jobs: Sequence[Job]) -> None:
    """Every job once on standard normal inputs, for the profiler; its label and number of launches are printed."""
    from tensorladder.silicon.target import cuda_torch

    torch = cuda_torch()
    stream = torch.cuda.current_stream().cuda_stream
    for job in jobs:
        arrays = [
            torch.randn(array.shape, device="cuda", dtype=torch.float16).to(getattr(torch, array.dtype))
            for array in job.entry.arrays
        ]
        run = job.load().bind(stream, *arrays)
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        run()
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()
        entry = job.entry
        mark = {
            "label": job.label, "shape": list(entry.shape), "dtype": entry.dtype, "launches": len(entry.launches),
        }  # fmt: skip
        print(MARK + json.dumps(mark), flush=True)


def main(text: str) -> None:
    """The program that ncu runs."""
    from tensorladder.measure import bench
    from tensorladder.measure.suites import Suite, only

    folder, name, shapes, specs, dtypes = json.loads(text)
    suite = only(Suite(name, "", "", {}), shapes)
    launch(bench.from_pack(folder, suite, specs, dtypes))


if __name__ == "__main__":
    main(sys.argv[1])
