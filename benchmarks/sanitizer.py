"""`python -m benchmarks.sanitizer pack DIR`, then on a GPU, with TENSORLADDER_PACK=DIR/ops, `python -m
benchmarks.sanitizer run DIR`.

Every rung for sm_90a and every call of the op, at small odd shapes, and kernels that the op takes for larger products
alone, under each tool of NVIDIA's compute-sanitizer:
memcheck (accesses out of bounds), racecheck (hazards in shared memory), synccheck (barriers misused), initcheck (reads
of memory that nobody wrote). A process takes several targets; where it has errors, each of them gets one of its own. A
table of the errors, exit status 1 where there are any. The op finds its kernels as always: in the pack that
TENSORLADDER_PACK names (DIR/ops has those of FORCED), or by compiling them.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any
from unittest import mock

from tensorladder.core.errors import TensorladderError, UsageError
from tensorladder.core.pipes import piped
from tensorladder.measure import bench
from tensorladder.measure import pack as packs
from tensorladder.measure.suites import Suite
from tensorladder.ops import calls, fast, packing, tune
from tensorladder.ops.kernels import Choice
from tensorladder.ops.models import MODELS
from tensorladder.rungs import rung as rungs

ARCH = "sm_90a"
TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
#: tried in this order: ragged in all extents, then as a rung's problem would have it
ODD = ((77, 70, 33), (264, 136, 72), (264, 136, 80))
#: past a wave of an H200's SMs, where rungs that look at the shape take other knobs
WAVES = (2056, 2120, 72)
OP_SHAPES = ((77, 144, 80), (1, 144, 528), (264, 272, 272))
#: kernels that the model gives no product as small: by a name (call, kernel, what tells the candidate)
FORCED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "matmul by c7 160x128 swapped": ("matmul", "c7", {"tile": (128, 160, 64), "swap": True, "cluster_m": 2}),
    "matmul by c7 96x192 swapped": ("matmul", "c7", {"tile": (192, 96, 64), "swap": True, "cluster_n": 2}),
    "matmul by c7 192x128": ("matmul", "c7", {"tile": (192, 128, 64), "cluster_n": 1}),
    "matmul by c7 128x96 in fours": ("matmul", "c7", {"tile": (128, 96, 64), "cluster_m": 2, "cluster_n": 2}),
    "matmul by c7 64x144": ("matmul", "c7", {"tile": (64, 144, 64)}),
    "matmul by c7 168x128 swapped": ("matmul", "c7", {"tile": (128, 168, 64), "swap": True, "cluster_m": 1}),
    "matmul by c7 152x256 in turns": ("matmul", "c7", {"tile": (256, 152, 64), "swap": True, "cluster_m": 2}),
    "bias-gelu by c7 128x184": ("bias-gelu", "c7", {"tile": (128, 184, 64), "cluster_m": 1}),
    "matmul by c8 160 rows": ("matmul", "c8", {"tile": (128, 160, 64)}),
    "matmul by c8 224 rows": ("matmul", "c8", {"tile": (128, 224, 64)}),
    "swiglu by c7 160x128 swapped": ("swiglu", "c7", {"tile": (128, 160, 64), "swap": True, "cluster_m": 1}),
    "fp8 by c7 160x128 swapped": ("fp8", "c7", {"tile": (128, 160, 64), "swap": True, "cluster_m": 1}),
}
#: theirs: C stored by TMA alone, and by words where a row ends amid 16 bytes
FORCED_SHAPES = ((264, 272, 272), (77, 142, 80))
GROUP = 6
TIMEOUT = 240.0
SUMMARY = re.compile(r"^=+ (?:ERROR|RACECHECK) SUMMARY: (?:\d+ hazards? displayed \()?(\d+) error", re.M)
#: what a tool prints first about an error
FIRST = re.compile(r"^=+ (?!COMPUTE-SANITIZER|ERROR SUMMARY|RACECHECK SUMMARY)(\S.*)$", re.M)


def make(folder: Path) -> str:
    """Write a pack of every rung at the first of the shapes that it takes, and at one that other knobs suit better; a
    line on it."""
    made = []
    for info in rungs.catalog():
        if ARCH not in info.archs:
            continue
        suite = Suite("odd", "", info.dtypes[0], {})
        for shape in (*ODD, info.default_shape):
            try:
                (one,) = packs.wanted([info.name], ARCH, suite, [shape])
                made.append(packs.make(one, ARCH))
                break
            except UsageError:
                continue
        if rungs.default_config(info, WAVES) != one.config:
            made += [packs.make(another, ARCH) for another in packs.wanted([info.name], ARCH, suite, [WAVES])]
    entries, _, size = packs.write(folder, ARCH, made)
    of_ops = [packing.make(ARCH, each) for each in wanted_of_ops()]
    more = packing.write(folder / "ops", ARCH, of_ops, packs.made_with())
    return f"{folder}: {entries} kernels, {len(of_ops)} of the op, {size + more >> 10} KiB"


def wanted_of_ops() -> list[packing.Wanted]:
    """The op's kernels for its calls here."""
    sms, found = packing.SMS, {}
    for name in FORCED:
        call, one = forced(name)
        for shape in FORCED_SHAPES:
            found[packing.Wanted(calls.planned(call, shape, call.dtypes[0]).form, one, sms)] = None
    for call in calls.CALLS.values():
        for shape in OP_SHAPES:
            found[packing.Wanted(*calls.pick(call, shape, call.dtypes[0], sms), sms)] = None
    return list(found)


def forced(name: str) -> tuple[calls.Call, Choice]:
    """The call and the candidate of one of FORCED."""
    call, kernel, told = FORCED[name]
    for one in MODELS[kernel].candidates:
        knobs = dict(one.knobs)
        if {"swap": False, **knobs}.items() >= {"swap": False, **told}.items():
            return calls.find(call), one
    raise UsageError(f"{name}: {kernel} has no such candidate any more: {told}")


def targets(folder: Path) -> list[str]:
    """What is run: labels of the pack's entries and names of calls."""
    opened = packs.open_current(folder)
    return [entry.label for entry in opened.entries] + [f"op {name}" for name in (*calls.CALLS, *FORCED)]


def one(folder: Path, target: str) -> bool:
    """Run a target on the GPU; whether its result was right."""
    from tensorladder.silicon.target import cuda_torch, download, upload

    torch = cuda_torch()
    if target[3:] in FORCED:
        call, one = forced(target[3:])
        fast.forget()  # what a call launched before
        with mock.patch.object(tune, "ranked", return_value=(one,)):
            right = all(_op(torch, call, shape) for shape in FORCED_SHAPES)
        fast.forget()
        return right
    if target.startswith("op "):
        return all(_op(torch, calls.find(target[3:]), shape) for shape in OP_SHAPES)
    opened = packs.open_current(folder)
    entry = next(entry for entry in opened.entries if entry.label == target)
    case = rungs.find(entry.rung).problem.make(entry.shape, entry.dtype)
    tensors = [upload(torch, array) for array in case.arrays.values()]
    opened.kernel(entry)(torch.cuda.current_stream().cuda_stream, *tensors)
    torch.cuda.synchronize()
    for tensor, array in zip(tensors, case.arrays.values()):
        download(torch, tensor, array)
    return bool(case.judge()[0])


def _op(torch: Any, call: calls.Call, shape: calls.Shape) -> bool:
    """A call of the op; the float64 judgement is the CPU's, so that no kernel but the op's is looked at."""
    work = calls.Work(torch, call, shape, call.dtypes[0], 0, device="cpu")
    on_gpu = {name: tensor.cuda() for name, tensor in work.sets[0].items()}
    on_gpu["C"].fill_(float("nan"))
    if call.groups:  # its result is a new tensor: torch gives out this block again, with what stands in it
        del on_gpu["C"]
    within, error = work.check(calls.ours(call, on_gpu))
    return within and error <= work.tolerance


def examine(tool: str, folder: Path, group: Sequence[str]) -> list[bench.Record]:
    """Run targets under a tool: a record each. Where a process of several has errors, each gets its own."""
    command = [
        "compute-sanitizer", "--tool", tool, "--print-limit", "3", sys.executable, "-m", "benchmarks.sanitizer", "one",
        str(folder), *group,
    ]  # fmt: skip
    start = time.perf_counter()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
        said, status = done.stdout + done.stderr, done.returncode
    except subprocess.TimeoutExpired:
        said, status = "", None
    errors = sum(map(int, SUMMARY.findall(said)))
    counted = SUMMARY.search(said) is not None
    if len(group) > 1 and (errors or status or not counted):
        return [record for target in group for record in examine(tool, folder, [target])]
    first = FIRST.search(said)
    words = first[1] if errors and first else _ending(said, status, counted)
    ok = counted and not errors and status == 0
    return [
        {
            "rung": target, "tool": tool, "ok": ok, "errors": errors if counted else None,
            "seconds": round((time.perf_counter() - start) / len(group), 1), "message": "" if ok else words,
        }
        for target in group
    ]  # fmt: skip


def _ending(said: str, status: int | None, counted: bool) -> str:
    if status is None:
        return f"still running after {TIMEOUT:.0f} s"
    if counted and status == 1:
        return "no finding of the tool, but the result is wrong"
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1][:200] if lines else f"exit status {status}"


def run(folder: Path, tools: Sequence[str], jobs: int, only: Sequence[str]) -> Iterator[bench.Record]:
    """Records of all targets under all tools, as they are done."""
    asked = [target for target in targets(folder) if not only or any(word in target for word in only)]
    groups = [asked[at : at + GROUP] for at in range(0, len(asked), GROUP)]
    with ThreadPoolExecutor(jobs) as pool:
        for done in as_completed([pool.submit(examine, tool, folder, group) for tool in tools for group in groups]):
            yield from done.result()


def table(records: Sequence[bench.Record]) -> str:
    """A line a target: errors by tool, and the first message of each tool that found something."""
    tools = list(dict.fromkeys(record["tool"] for record in records))
    by_target: dict[str, dict[str, bench.Record]] = {}
    for record in records:
        by_target.setdefault(record["rung"], {})[record["tool"]] = record
    width = max(len(target) for target in by_target)
    lines = [f"{'':<{width}}  " + "  ".join(f"{tool:>9}" for tool in tools)]
    for target, found in by_target.items():
        lines.append(f"{target:<{width}}  " + "  ".join(f"{_count(found.get(tool)):>9}" for tool in tools))
    lines += [f"{r['rung']}, {r['tool']}: {r['message']}" for r in records if not r["ok"]]
    return "\n".join(lines)


def _count(record: bench.Record | None) -> str:
    if record is None or record["errors"] is None:
        return "-" if record is None else "stopped"
    return str(record["errors"]) if record["ok"] or record["errors"] else "wrong"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; its exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sanitizer", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("pack", help="compile the rungs, with no GPU").add_argument("folder", type=Path)
    inner = verbs.add_parser("one", help="run targets once (what the tools run)")
    inner.add_argument("folder", type=Path)
    inner.add_argument("targets", nargs="+")
    running = verbs.add_parser("run", help="everything under every tool")
    running.add_argument("folder", type=Path)
    running.add_argument("only", nargs="*", metavar="WORD", help="only targets with one of these in their names")
    running.add_argument("--tool", action="append", choices=TOOLS, help="only these")
    running.add_argument("--jobs", type=int, default=max(1, min(8, (os.cpu_count() or 2) // 2)), metavar="N")
    running.add_argument("--results", type=Path, metavar="FILE", help="keep the records there")
    args = parser.parse_args(arguments)
    try:
        if args.verb == "pack":
            print(make(args.folder))
            return 0
        if args.verb == "one":
            wrong = [target for target in args.targets if not one(args.folder, target)]
            print("wrong: " + ", ".join(wrong) if wrong else "right")
            return 1 if wrong else 0
        if shutil.which("compute-sanitizer") is None:
            raise UsageError("compute-sanitizer is not in PATH (the CUDA toolkit brings it)")
        host = bench.machine(Suite("sanitizer", "", "", {})) if args.results else {}
        records = []
        for record in run(args.folder, args.tool or TOOLS, args.jobs, args.only):
            records.append(record)
            if args.results:  # as they come: a run may be cut short
                bench.keep(args.results, host, records)
        print(table(records))
        return bench.exit_code(records)
    except TensorladderError as error:
        print(f"benchmarks.sanitizer: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(piped(main))
