"""How deep a ring of stages has to be, and what waits where it is not: `python -m benchmarks.pipeline_depth`.

`pack DIR` compiles c2 with 2 to 7 stages for sm_90a, with no GPU, in two tiles of C, for short and long K, and the
variants with probes of c2 (its own tile of 128 x 256, 2 to 4 stages) and a2-smem-pipeline. `run DIR` times them beside
cuBLAS on a GPU, `trace DIR` takes their timelines; both keep the records with `--results FILE`. With nothing said it
prints the tables of the records that are kept here.

Both tiles leave room for seven stages. 128 x 128 is multiplied by two warpgroups, 64 x 128 by one; a CTA has as many
registers as let one or two of them on an SM, whatever the stages.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tensorladder.core.errors import TensorladderError
from tensorladder.core.pipes import piped
from tensorladder.core.timeline import LOAD
from tensorladder.measure import bench, trace
from tensorladder.measure import pack as packs
from tensorladder.measure.run import plan
from tensorladder.measure.suites import Suite
from tensorladder.rungs import rung as rungs
from tensorladder.silicon.timing import Options

ARCH, DTYPE, SIDE = "sm_90a", "fp16", 4096
DEPTHS = range(2, 8)
K_EXTENTS = (512, 2048, 8192)
#: a tile of C and the warpgroups that multiply it
TILES = {"128x128x64": 2, "64x128x64": 1}
KEPT = Path(__file__).parent / "results" / "pipeline-depth-h200.jsonl"
TRACED = KEPT.with_name("trace-h200.jsonl")
#: whose timelines are taken: rung, knobs, shape
PROBED = (
    *(("c2", f"stages={stages}", (SIDE, SIDE, 4096)) for stages in (2, 3, 4)),
    ("c2", "stages=4", (SIDE, SIDE, 512)),
    ("a2-smem-pipeline", "stages=4", (SIDE, SIDE, 512)),
)
ENOUGH = 0.98  # of the best depth's speed


def specs() -> list[str]:
    """The rungs with their knobs, as `tensorladder pack` takes them."""
    return [
        f"c2:tile={tile},warpgroups={groups},stages={stages}" for tile, groups in TILES.items() for stages in DEPTHS
    ]


def suite() -> Suite:
    """The products: SIDE by SIDE by each K."""
    return Suite("pipeline-depth", "c2 with 2 to 7 stages", DTYPE, {(SIDE, SIDE, k): f"K = {k}" for k in K_EXTENTS})


def make(folder: Path) -> str:
    """Write the pack; a line on it."""
    wanted = packs.wanted(specs(), ARCH, suite())
    for rung, knobs, shape in PROBED:
        wanted += packs.wanted([f"{rung}:probes=true,{knobs}"], ARCH, suite(), [shape], [DTYPE])
    entries, _, size = packs.write(folder, ARCH, list(packs.make_all(wanted, ARCH)))
    return f"{folder}: {entries} kernels, {size / 1e6:.1f} MB"


def measure(folder: Path, options: Options, refused: list[str]) -> Iterator[bench.Record]:
    """A record for each kernel and K, beside cuBLAS."""
    yield from bench.on_gpu(bench.from_pack(str(folder), suite(), specs()), suite(), options, refused)


def timelines(folder: Path) -> Iterator[bench.Record]:
    """A record for each of PROBED, as `tensorladder trace --json` has it, with its knobs and the time of a load."""
    for rung, knobs, shape in PROBED:
        asked = plan(rungs.find(rung), shape=shape, dtype=DTYPE, on="gpu", policy="timed")
        traced = trace.from_probes(asked, str(folder), knobs)
        loads = sorted(span.end - span.start for span in traced.timeline.of_kind(LOAD))
        tenths = [round(loads[len(loads) * tenth // 10], 1) for tenth in (1, 5, 9)] if loads else None
        yield {**traced.record(), "settings": knobs, "load_ns": tenths}


def traced_table(records: Sequence[bench.Record]) -> str:
    """For each timeline: how much of one kind of work the other overlaps, and where roles wait."""
    lines = []
    for r in records:
        shape, of = "x".join(map(str, r["shape"])), r["overlap"]
        share = f"{of['with']} during {100 * of['share']:.0f} % of {of['of']}" if of else ""
        low, middle, high = r["load_ns"] or (0, 0, 0)
        load = f", a load takes {middle:.0f} ns (10 to 90 %: {low:.0f} to {high:.0f})" if middle else ""
        lines.append(f"{r['rung']} {r['settings']} {shape}: {share}{load}")
        for role, waits in r["waits"].items():
            lines.append(f"    {role}: " + ", ".join(f"{100 * part:.0f} % in {name!r}" for name, part in waits.items()))
    return "\n".join(lines)


def table(records: Sequence[bench.Record]) -> str:
    """TFLOPS by depth (rows), tile and K (columns), and from which depth on it is within 2 % of the best."""
    found = {(r["config"]["stages"], _tile(r), r["shape"][2]): r for r in records if r["ok"]}
    columns = [(tile, k) for tile in TILES for k in K_EXTENTS]
    lines = [
        f"{'stages':>8}" + "".join(f"{tile + ' K=' + str(k):>20}" for tile, k in columns),
    ]
    for stages in DEPTHS:
        cells = [found.get((stages, tile, k)) for tile, k in columns]
        lines.append(f"{stages:>8}" + "".join(f"{_cell(cell):>20}" for cell in cells))
    speeds = [{n: found[n, tile, k]["ratio"] for n in DEPTHS if (n, tile, k) in found} for tile, k in columns]
    enough = [_enough(speed) for speed in speeds]
    lines.append(f"{'enough':>8}" + "".join(f"{depth:>20}" for depth in enough))
    return "\n".join(lines)


def _tile(record: bench.Record) -> str:
    return "x".join(map(str, record["config"]["tile"]))


def _cell(record: bench.Record | None) -> str:
    return "-" if record is None else f"{record['tflops']:.0f} ({record['ratio']:.2f})"


def _enough(speeds: dict[int, float]) -> str:
    """The least depth within `ENOUGH` of the best speed over cuBLAS (the clock drops as the card warms up)."""
    if not speeds:
        return "-"
    best = max(speeds.values())
    return str(min(depth for depth, speed in speeds.items() if speed >= ENOUGH * best))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; its exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipeline_depth", description=__doc__)
    verbs = parser.add_subparsers(dest="verb")
    verbs.add_parser("pack").add_argument("folder", type=Path)
    for verb in ("run", "trace"):
        measuring = verbs.add_parser(verb)
        measuring.add_argument("folder", type=Path)
        measuring.add_argument("--results", type=Path, help="keep the records there")
        measuring.add_argument("--seconds", type=float, default=0.3, help="run: to measure each kernel for")
    parser.add_argument("--from", dest="kept", type=Path, default=KEPT, help="the records to print")
    args = parser.parse_args(arguments)
    try:
        if args.verb == "pack":
            print(make(args.folder))
            return 0
        if args.verb is None:
            machine, records = bench.read(args.kept)
            print(f"{machine['gpu']}, TFLOPS (over cuBLAS), M = N = {SIDE}, {DTYPE}\n{table(records)}")
            if args.kept == KEPT:
                print(traced_table(bench.read(TRACED)[1]))
            return 0
        host, records, refused = bench.machine(suite()), [], []
        timed = measure(args.folder, Options(seconds=args.seconds), refused)
        rows, said = (timelines(args.folder), traced_table) if args.verb == "trace" else (timed, table)
        for record in rows:
            records.append(record)
            if args.results:
                bench.keep(args.results, host, records)
        print(said(records))
        for line in refused:
            print(f"benchmarks.pipeline_depth: left out: {line}", file=sys.stderr)
        return bench.exit_code(records)
    except TensorladderError as error:
        print(f"benchmarks.pipeline_depth: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(piped(main))
