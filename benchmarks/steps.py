"""Rungs beside their parents in one process: `python -m benchmarks.steps pack DIR`, which needs no GPU, then
`python -m benchmarks.steps run DIR [--results FILE]` on one.

A GPU at its power limit runs slower after a kernel that heats it, so ratios to cuBLAS that two rungs have differ by a
half per cent for no other reason; here a rung and its parent alternate. So they share one clock, and what a rung costs
in energy lowers it for both: each is timed alone as well, at the clocks that it settles at (`silicon.timing`). A line a
rung whose parent is packed too: its time and its parent's over it, in turns and alone, and what it draws alone. The
rungs for Hopper at 4096 and 8192 cubed in fp16; multicast also where L2 has more to do: 2048 cubed, 4104, 5000 and 8200
(rows of A and B that do not begin at lines of L2), 16384, and in fp8. At the end, which are no faster than their
parents in turns; the exit status is 1 where a result is wrong.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tensorladder.core.errors import TensorladderError, UsageError
from tensorladder.core.pipes import piped
from tensorladder.measure import bench
from tensorladder.measure import pack as packs
from tensorladder.measure.suites import Suite
from tensorladder.problems import find as problem_named
from tensorladder.rungs import rung as rungs
from tensorladder.silicon.driver import facts
from tensorladder.silicon.nvml import Meter
from tensorladder.silicon.pack import Entry, Pack
from tensorladder.silicon.target import cuda_torch
from tensorladder.silicon.timing import Blocks, Options, alone, compare

ARCH, PROBLEM = "sm_90a", "gemm"
RUNGS = ("b2", "b5", "b7", "b8", "c1", "c2", "c3", "c4", "c5")
#: (rungs, sides of cubes, element type)
PACKED = (
    (RUNGS, (4096, 8192), "fp16"),
    (("c3", "c4"), (2048, 4104, 5000, 8200, 16384), "fp16"),
    (("c3", "c4"), (4096, 8192), "e4m3"),
)
METERS = {"alone_clock_mhz": "MHz", "alone_power_w": "W"}
ALONE = Blocks(rounds=3)  # of 32 rungs in 100 s; the median of three blocks, since one in ten is off by 1 %


def make(folder: Path) -> str:
    """Write the pack; a line on it."""
    wanted = [
        one
        for names, sides, dtype in PACKED
        for one in packs.wanted(names, ARCH, Suite("steps", "", dtype, {}), [(side,) * 3 for side in sides], [dtype])
    ]
    entries, _, size = packs.write(folder, ARCH, [packs.make(one, ARCH) for one in wanted])
    return f"{folder}: {entries} kernels, {size >> 10} KiB"


def sizes(opened: Pack) -> dict[tuple[tuple[int, ...], str], dict[str, Entry]]:
    """The pack's products, by extents and element type, then by rung."""
    found: dict[tuple[tuple[int, ...], str], dict[str, Entry]] = {}
    for entry in opened.entries:
        if rungs.find(entry.rung).rung.problem == PROBLEM:
            found.setdefault((entry.shape, entry.dtype), {})[entry.rung] = entry
    return found


def pairs(names: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(rung, parent) of those that are there with their parents."""
    found = ((name, rungs.find(name).parent) for name in names)
    return [(name, parent) for name, parent in found if parent and parent in names]


def measure(folder: Path, options: Options) -> Iterator[bench.Record]:
    """A record a rung and size: its time beside its parent's, in turns and alone, and whether its result was right."""
    torch = cuda_torch()
    opened = packs.open_current(folder)
    opened.check_gpu()
    meter, l2 = Meter(), facts()["l2_bytes"]
    stream = torch.cuda.current_stream().cuda_stream
    for (shape, dtype), entries in sizes(opened).items():
        arrays = next(iter(entries.values())).arrays
        work = bench.Workload(torch, problem_named(PROBLEM), shape, dtype, arrays, l2)
        calls: dict[str, Any] = {}
        checked = {}
        for name, entry in entries.items():
            kernel = opened.kernel(entry)
            calls[name] = [kernel.bind(stream, *(tensors[a.name] for a in entry.arrays)) for tensors in work.sets]
            checked[name] = work.check(calls[name][0])
        turns = {
            (name, parent): compare(torch, {one: calls[one] for one in (parent, name)}, meter, options)
            for name, parent in pairs(entries)
        }
        by_itself = alone(torch, calls, meter, ALONE)  # after the turns, on a chip that they have warmed
        flops = problem_named(PROBLEM).flops(shape)
        for (name, parent), measured in turns.items():
            ours, theirs = measured.times[name], measured.times[parent]
            yield {
                "rung": name, "shape": list(shape), "dtype": dtype, "ok": checked[name][0], "error": checked[name][1],
                **bench.timed(ours, flops), **bench.against(parent, ours, theirs), "clock_mhz": measured.clock_mhz,
                "power_w": measured.power_w, **bench.settled(by_itself[name]),
                **bench.settled_against(by_itself[name], by_itself[parent]),
            }  # fmt: skip
        del work, calls
        torch.cuda.empty_cache()


def line(record: bench.Record) -> str:
    """A record as a line of a table."""
    wrong = "" if record["ok"] else "  WRONG"
    size = "x".join(map(str, record["shape"]))
    meters = [f"{record[key]:.0f} {unit}" for key, unit in METERS.items() if record[key] is not None]
    return (
        f"{record['rung']:30} {size:17} {record['dtype']:4} {record['median_us']:9.1f} us  "
        f"{record['ratio']:.3f} times as fast as {record['baseline']}; alone {record['alone_us']:.1f} us, "
        f"{', '.join([*meters, format(record['alone_ratio'], '.3f')])}{wrong}"
    )


def not_faster(records: Sequence[bench.Record]) -> Iterator[str]:
    """A line a rung that is no faster than its parent in turns at some sizes; of an aside, where it pays."""
    slow: dict[tuple[str, str], list[str]] = {}
    for one in records:
        if one["ratio"] <= 1:
            where = f"{'x'.join(map(str, one['shape']))} {one['dtype']} ({one['ratio']:.3f})"
            slow.setdefault((one["rung"], one["baseline"]), []).append(where)
    for (rung, parent), places in slow.items():
        remark = rungs.find(rung).remark
        why = f"; {remark}" if remark else ""
        yield f"not faster than {parent} in turns: {rung} at {', '.join(places)}{why}"


def main(arguments: list[str] | None = None) -> int:
    """The command line; its exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.steps", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("pack", help="compile the rungs, with no GPU").add_argument("folder", type=Path)
    running = verbs.add_parser("run", help="time them on a GPU")
    running.add_argument("folder", type=Path)
    running.add_argument("--seconds", type=float, default=0.8, help="to measure each pair in turns for")
    running.add_argument("--results", type=Path, help="keep the figures there")
    args = parser.parse_args(arguments)
    try:
        if args.verb == "run" and not 0 < args.seconds < float("inf"):
            raise UsageError(f"--seconds {args.seconds:g} must be a positive number of seconds")
        if args.verb == "pack":
            print(make(args.folder))
            return 0
        records = []
        host = {**bench.machine(Suite("steps", "", "", {})), "alone": asdict(ALONE)} if args.results else {}
        for record in measure(args.folder, Options(seconds=args.seconds)):
            records.append(record)
            print(line(record), flush=True)
            if args.results:  # at once: a run may be cut short
                bench.keep(args.results, host, records)
        for told in not_faster(records):
            print(told)
        return bench.exit_code(records)
    except TensorladderError as error:
        print(f"benchmarks.steps: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(piped(main))
