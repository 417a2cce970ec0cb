"""`python -m benchmarks.tables`: the README's figures and all pictures, from the kept results and nothing else.

It rewrites what stands between the marks `results` in README.md, `benchmarks/results/README.md` (every shape of the op,
the losses as well), and the SVG pictures beside the result files. A test compares them with what this gives.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks import sparse_attention, topk_indexer
from tensorladder.core.pipes import piped
from tensorladder.draw.benchmarks import pictures
from tensorladder.measure import bench, suites
from tensorladder.rungs.rung import asides

Record = bench.Record
Kept = Mapping[str, tuple[Record, list[Record]]]

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
OP = ("llm", "square", "fused", "epilogues", "grouped", "fp8")  # suites that time the op, as they are shown
SIDES = (4096, 8192)
ABOUT = """# Results

Written by `python -m benchmarks.tables` from the files here, each of them kept by `tensorladder bench`.

`us` is the GPU's time: launches of one contender follow each other, so that kernels with programmatic dependent launch
(ours) begin under the end of the one before. `host us` is what a call takes on the CPU.
"""
HOST = " (h)"  # a time in which the GPU waited for the host
OUTLIER = 3.0  # a ratio that says more about the baseline than about us
ALONE = "In brackets: each timed alone, at the clocks that it settles at (`--alone`)."
KINDS = {"": "", "alone_": "alone "}  # of means: the keys' beginning, and what is said before a figure
LEAST = 100.0  # TFLOPS from which a rung is in the short table


def read(folder: Path = RESULTS) -> dict[str, tuple[Record, list[Record]]]:
    """Results taken on a GPU by the stem of their file: the machine and the records."""
    found = {}
    for path in sorted(folder.glob("*.jsonl")):
        host, records = bench.read(path)
        if host.get("on") == "gpu":
            found[path.stem] = host, records
    return found


def of(kept: Kept, suite: str) -> dict[str, tuple[Record, list[Record]]]:
    """A suite's results, by stem: one for each GPU."""
    return {stem: one for stem, one in kept.items() if one[0]["suite"] == suite}


# --------------------------------------------------------------------------------------------------------- the ladder


def ladder(stem: str, host: Record, records: Sequence[Record], published: Sequence[Record]) -> Iterator[str]:
    """Rungs with tensor cores at both sizes: TFLOPS, over cuBLAS, the published kernel's TFLOPS, the tensor pipe."""
    by_rung: dict[str, dict[int, Record]] = {}
    for record in records:
        if record["ok"] and record["dtype"] == "fp16":
            by_rung.setdefault(record["rung"], {}).setdefault(record["shape"][0], record)
    theirs = {(one["rung"], one["shape"][0]): one for one in published}
    shown = [rung for rung, by_side in by_rung.items() if max(r["tflops"] for r in by_side.values()) >= LEAST]
    yield f"The ladder, fp16 ({_machine(host)}; [picture]({stem}.svg), [all rungs]({stem}.jsonl)):"
    yield ""
    both = any(record.get("alone_ratio") for rung in shown for record in by_rung[rung].values())
    over = "over cuBLAS (alone)" if both else "over cuBLAS"
    heads = [f"{side}: TFLOPS | {over} | tensor pipe | published" for side in SIDES]
    yield f"| rung | {' | '.join(heads)} |"
    yield "|---" * (1 + 4 * len(SIDES)) + "|"
    beside = asides()
    for rung in sorted(shown, key=lambda name: (name in beside, name)):
        cells = [cell for side in SIDES for cell in _rung_cells(by_rung[rung].get(side), theirs.get((rung, side)))]
        yield f"| {rung}{' (aside)' if rung in beside else ''} | {' | '.join(cells)} |"
    yield ""
    absent = ", ".join(host.get("not_measured", []))
    yield (
        "Published: the kernel of the same step in learn-cutedsl, in turns with ours in a run of its own."
        + (f" Not measured: {absent}, whose code this GPU does not run." if absent else "")
        + (f" {ALONE}" if both else "")
    )


def _rung_cells(record: Record | None, published: Record | None) -> list[str]:
    theirs = ""
    if published is not None:
        theirs = f"{published['baseline_tflops']:.0f}" + ("" if published["baseline_ok"] else ", wrong result")
    if record is None:
        return ["", "", "", theirs]
    share = f"{record['tensor_pipe']:.0f} %" if "tensor_pipe" in record else ""
    return [f"{record['tflops']:.0f}", _both(record, ".2f"), share, theirs]


def _both(record: Record, digits: str) -> str:
    """A ratio as measured in turns, and in brackets, where there is one, that of each alone."""
    if not record["ratio"]:
        return ""
    by_itself = f" ({record['alone_ratio']:{digits}})" if record.get("alone_ratio") else ""
    return f"{record['ratio']:{digits}}{by_itself}"


def _machine(host: Record) -> str:
    power = f" at {host['power_limit_w']:.0f} W" if host.get("power_limit_w") else ""
    quack = f", QuACK {host['quack']}" if host.get("quack") else ""
    return f"{host['gpu']}{power}, cuBLAS {host['cublas']}, torch {host['torch']}{quack}, {host['when'][:10]}"


# ------------------------------------------------------------------------------------------------------------- the op


def means(kept: Kept) -> Iterator[str]:
    """A line a call of the op, suite and baseline: geometric mean of the ratios, extremes, losses."""
    yield "Ratios of the baseline's time to ours, above 1 where ours is faster:"
    yield ""
    records = [record for name in OP for _, found in of(kept, name).values() for record in found]
    both = any(record.get("alone_ratio") for record in records)
    last = " each alone |" if both else ""
    yield f"| suite | call | against | shapes | geometric mean | worst | best | slower |{last}"
    yield "|---" * (9 if both else 8) + "|"
    odd = []
    for name in OP:
        for stem, (_, records) in of(kept, name).items():
            for mean in bench.geometric_means(records):
                yield (
                    f"| [{name}]({stem}.svg) | {mean['rung']} | {mean['baseline']} | {mean['shapes']} | "
                    f"**{mean['geometric_mean']:.3f}** | {mean['worst']:.2f} | {mean['best']:.2f} | {mean['losses']} |"
                    f"{_mean_alone(mean) if both else ''}"
                )
                without = [f"{word}{found}" for kind, word in KINDS.items() if (found := _without_best(mean, kind))]
                if told := ", ".join(without):
                    odd.append(
                        f"Suite {name} without the shape at which {mean['baseline']} is slowest "
                        f"({mean['best']:.2f}): {told}."
                    )
    if both:
        odd.append(
            "Each alone: timed by itself, at the clocks that it settles at (`--alone`); of so many shapes, where not "
            "all were timed so."
        )
    if odd:
        yield ""
        yield " ".join(odd)


def _without_best(mean: Record, kind: str) -> str:
    """A mean without its best shape, where that says more about the baseline; kind: "" in turns, "alone_" alone."""
    best, shapes = mean.get(f"{kind}best", 0.0), mean.get(f"{kind}shapes", 0)
    if best <= OUTLIER or shapes < 2:
        return ""
    return f"{(mean[f'{kind}geometric_mean'] ** shapes / best) ** (1 / (shapes - 1)):.3f}"


def _mean_alone(mean: Record) -> str:
    """The cell for what each takes alone, with the number of shapes where that is not all of them."""
    if "alone_geometric_mean" not in mean:
        return "  |"
    part = f" of {mean['alone_shapes']}" if mean["alone_shapes"] < mean["shapes"] else ""
    return f" {mean['alone_geometric_mean']:.3f}{part} |"


def shapes(suite: str, host: Record, records: Sequence[Record]) -> Iterator[str]:
    """Every shape of a suite: our time and kernel, and the ratio to each baseline."""
    baselines = list(dict.fromkeys(record["baseline"] for record in records if record["baseline"]))
    rows: dict[tuple[str, tuple[int, ...]], dict[str, Record]] = {}
    for record in records:
        rows.setdefault((record["rung"], tuple(record["shape"])), {})[record["baseline"] or ""] = record
    yield f"## {suite}"
    yield ""
    there, asked = len({shape for _, shape in rows}), len(suites.SUITES[suite].shapes)
    part = f" {there} of its {asked} shapes: the GPU's time was up." if there < asked else ""
    yield f"{suites.SUITES[suite].summary[0].upper()}{suites.SUITES[suite].summary[1:]}. {_machine(host)}.{part}"
    yield ""
    both = any(record.get("alone_ratio") for record in records)
    over = " | ".join(f"over {name}{' (alone)' if both else ''}" for name in baselines)
    yield f"| call | M, N, K | what it is | kernel | us | host us | TFLOPS | {over} |"
    yield "|---" * (7 + len(baselines)) + "|"
    for (rung, shape), found in rows.items():
        first = next(iter(found.values()))
        what = suites.SUITES[suite].shapes.get((shape[0], shape[1], shape[2]), "")
        extents = ", ".join(map(str, shape))
        kernel = first.get("kernel", "")
        if not first["ok"]:
            yield f"| {rung} | {extents} | {what} | {kernel} | wrong | {' | '.join([''] * (2 + len(baselines)))} |"
            continue
        ratios = [_ratio(found.get(name)) for name in baselines]
        waits = HOST if first.get("host_bound") else ""
        times = f"{first['median_us']:.1f}{waits} | {first.get('host_us', '')} | {first['tflops']:.0f}"
        yield f"| {rung} | {extents} | {what} | {kernel} | {times} | {' | '.join(ratios)} |"
    if any(record.get("host_bound") or record.get("baseline_host_bound") for record in records):
        yield ""
        yield f"{HOST.strip()}: the GPU waited for the host in some rounds."
    if both:
        yield ""
        yield ALONE


def _ratio(record: Record | None) -> str:
    if record is None or not record["ratio"]:
        return ""
    return f"{_both(record, '.3f')}{HOST if record.get('baseline_host_bound') else ''}"


# ------------------------------------------------------------------------------------------------------------ writing


def summary(kept: Kept) -> str:
    """What the README shows."""
    lines = []
    for stem, (host, records) in of(kept, "ladder").items():
        gpu = stem.removeprefix("ladder")
        lines += [*ladder(stem, host, records, kept.get(f"published{gpu}", ({}, []))[1]), ""]
    lines += [*steps(kept), ""]
    lines += [*means(kept), "", *overhead(kept), "", *sanitizer(kept), "", *indexer(kept), "", *attention(kept)]
    return "\n".join(lines).strip()


def steps(kept: Kept) -> Iterator[str]:
    """How many times as fast as its parent each rung is, in a table a GPU."""
    beside = asides()
    for host, records in of(kept, "steps").values():
        sizes = [_size(one) for one in records]
        usual = [size for size in dict.fromkeys(sizes) if sizes.count(size) == sizes.count(sizes[0])]
        by_rung: dict[str, dict[str, str]] = {}
        for size, one in zip(sizes, records):
            rung = f"{one['rung']}{' (aside)' if one['rung'] in beside else ''}"
            by_rung.setdefault(f"{rung} | {one['baseline']}", {})[size] = _both(one, ".3f")
        both = ", in brackets each alone" if any("alone_ratio" in one for one in records) else ""
        yield f"Times as fast as its parent, the two in turns{both} ({host['gpu']}, `benchmarks.steps`):"
        yield ""
        yield f"| rung | parent | {' | '.join(usual)} | elsewhere |"
        yield "|---" * (3 + len(usual)) + "|"
        for pair, ratios in by_rung.items():
            elsewhere = ", ".join(f"{size}: {ratio}" for size, ratio in ratios.items() if size not in usual)
            yield f"| {pair} | {' | '.join(ratios.get(size, '') for size in usual)} | {elsewhere} |"


def _size(record: Record) -> str:
    side, dtype = record["shape"][0], record["dtype"]
    return str(side) if dtype == "fp16" else f"{side} in {dtype}"


def overhead(kept: Kept) -> Iterator[str]:
    """What a warm call costs the host, in a sentence a GPU."""
    for host, records in of(kept, "overhead").values():
        times = [f"`{one['call'].rstrip(':')}` {one['us']:.1f}" for one in records if "us" in one]
        yield f"Microseconds of the host, a warm call ({host['gpu']}'s; `benchmarks.overhead`): {', '.join(times)}."


def sanitizer(kept: Kept) -> Iterator[str]:
    """What compute-sanitizer found, in a sentence a GPU."""
    for host, records in of(kept, "sanitizer").values():
        bad = [record for record in records if not record["ok"]]
        targets, tools = (list(dict.fromkeys(record[key] for record in records)) for key in ("rung", "tool"))
        found = "no finding" if not bad else "; ".join(f"{r['rung']}, {r['tool']}: {_named(r['message'])}" for r in bad)
        yield f"compute-sanitizer on {host['gpu']} ({', '.join(tools)}; {len(targets)} rungs and calls): {found}."


def _named(message: str) -> str:
    """A message without the hundreds of characters of a kernel's mangled name."""
    return re.sub(r"\bkernel_\w+", "the kernel", message)


def indexer(kept: Kept) -> Iterator[str]:
    """The indexer of sparse attention beside torch and DeepGEMM: the means of each GPU."""
    for stem, (host, records) in of(kept, topk_indexer.SUITE).items():
        yield (
            f"The indexer of sparse attention ({_machine(host)}; [every shape](README.md#{topk_indexer.SUITE}), "
            f"[all figures]({stem}.jsonl)), the baseline's time over ours:"
        )
        yield ""
        yield from topk_indexer.means(records)


def attention(kept: Kept) -> Iterator[str]:
    """Sparse attention beside torch, FlashMLA and FlashInfer: the means of each GPU."""
    suite = sparse_attention.SUITE
    for stem, (host, records) in of(kept, suite).items():
        yield (
            f"Sparse attention itself ({_machine(host)}; [every shape](README.md#{suite}), "
            f"[all figures]({stem}.jsonl)), the other's time over ours:"
        )
        yield ""
        yield from sparse_attention.means(records)


def details(kept: Kept) -> str:
    """`benchmarks/results/README.md`."""
    lines = [ABOUT]
    for name in OP:
        for host, records in of(kept, name).values():
            lines += [*shapes(name, host, records), ""]
    for suite in (topk_indexer, sparse_attention):
        for host, records in of(kept, suite.SUITE).values():
            lines += [f"## {suite.SUITE}", "", f"{suite.ABOUT} {_machine(host)}.", "", *suite.shapes(records), ""]
    return "\n".join(lines).strip() + "\n"


def linked(text: str) -> str:
    """The summary as the top-level README has it: its links lead into the folder of the results."""
    return text.replace("](", "](benchmarks/results/")


def outputs(kept: Kept, readme: str) -> dict[Path, str]:
    """Every file that is made, with its text. readme: the present README.md."""
    head, rest = readme.split(BEGIN)
    _, tail = rest.split(END)
    made = {
        ROOT / "README.md": f"{head}{BEGIN}\n{linked(summary(kept))}\n{END}{tail}",
        RESULTS / "README.md": details(kept),
    }
    for stem, (host, records) in kept.items():
        if host["suite"] in suites.SUITES:
            for suffix, drawn in pictures(host, records, asides()).items():
                made[RESULTS / f"{stem}{suffix}.svg"] = drawn
    return made


def main() -> int:
    """Write all of them; the exit status."""
    for path, text in outputs(read(), (ROOT / "README.md").read_text(encoding="utf-8")).items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    sys.exit(piped(main))
