"""Sparse attention on an H200 beside torch, FlashMLA and FlashInfer: `python -m benchmarks.sparse_attention`.

`pack DIR [--flashmla CHECKOUT --flashinfer DATA --cutlass CHECKOUT]` compiles, with no GPU, fused-dsa-wgmma and
fused-dsa-split for each number of rows, and the peers (`benchmarks.sparse_peers`, which says what they are given).
`run DIR` times them in turn on a GPU, prints a table, and keeps it with `--results FILE`.

Every row has 2048 tokens, different ones, anywhere in the cache: of 2048 pages (131072 tokens, 151 MB) or of 512
(38 MB, which the L2 holds). Queries, indices and outputs rotate through as many sets as it takes to pass twice the L2
by what their tokens are. torch gathers the keys, multiplies and sums, eager and compiled. All results are compared with
the problem's bounds, element by element, in three of the rows; and before anything is timed, ours are judged on odd
shapes with the problem's own inputs, which have rows of few tokens and of none.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import sparse_peers as peers
from tensorladder.core.errors import TensorladderError
from tensorladder.core.pipes import piped
from tensorladder.measure import bench
from tensorladder.measure import pack as packs
from tensorladder.measure.suites import Suite
from tensorladder.problems import DTYPES, examine
from tensorladder.problems.attention import attend, attend_bound
from tensorladder.problems.sparse_attention import HEADS, LATENT, PAGE, ROTARY, SM_SCALE, SPARSE_ATTENTION
from tensorladder.silicon import pack
from tensorladder.silicon.driver import facts
from tensorladder.silicon.nvml import Meter
from tensorladder.silicon.target import cuda_torch, download, upload
from tensorladder.silicon.timing import Options, compare

SUITE = "sparse-attention"
ABOUT = (
    "DeepSeek's sparse attention (`fused-dsa-wgmma`, `benchmarks.sparse_attention`): rows of 2048 tokens, anywhere in "
    "a cache of so many. GB/s: of the tokens gathered, out of memory or L2. Columns of the others: their time over "
    "ours, in turns in one process; the fastest of them last. FlashInfer 0.7.4, FlashMLA at 9241ae3."
)
ARCH, TOPK = "sm_90a", 2048
ROWS = {2048: (1, 4, 8, 16, 32, 64, 256, 1024), 512: (1, 8, 64, 256, 1024)}  # by the cache's pages
SHAPES: list[tuple[int, ...]] = [(rows, TOPK, pages) for pages in ROWS for rows in ROWS[pages]]
ODD = [(7, 333, 8), (3, 2048, 40), (150, 130, 3)]
OURS = ("fused-dsa-wgmma", "fused-dsa-split")
MOST_SETS = 64
BESIDE = ("torch", *peers.SOURCES, "torch.compile")
KEY = LATENT + ROTARY


def make(folder: Path, flashmla: Path | None, flashinfer: Path | None, cutlass: Path | None, specs: list[str]) -> str:
    """Write a pack of all shapes and rungs, and the peers beside it; a line on it."""
    made = []
    for spec in specs:
        info, config = packs.parse_spec(spec)
        for shape in SHAPES + ODD:
            made.append(packs.make(packs.Wanted(info, config, shape, "bf16"), ARCH))
            print(f"{spec} {shape}: packed", file=sys.stderr)
    entries, _, size = packs.write(folder, ARCH, made)
    wanted = {}
    if flashmla and cutlass:
        wanted["flashmla"] = peers.flashmla_folders(flashmla, cutlass)
    if flashinfer:
        wanted |= dict.fromkeys(("flashinfer-fa3", "flashinfer-fa2"), peers.flashinfer_folders(flashinfer))
    for name, folders in wanted.items():
        peers.build(name, folders, library(folder, name))
    return f"{folder}: {entries} kernels, {size >> 10} KiB; peers: {', '.join(wanted) or 'none'}"


def library(folder: Path, name: str) -> Path:
    """Where a peer's library lies beside a pack."""
    return folder / f"lib{name}.so"


# ------------------------------------------------------------------------------------------------------------- inputs


class Cache:
    """A cache of standard normals, in the problem's two parts and, for a peer, as one."""

    def __init__(self, torch: Any, pages: int, device: str = "cuda") -> None:
        generator = torch.Generator(device).manual_seed(pages)
        whole = torch.randn(pages * PAGE, KEY, generator=generator, device=device).to(torch.bfloat16)
        self.whole = whole
        self.latent = whole[:, :LATENT].contiguous().view(pages, PAGE, LATENT)
        self.rotary = whole[:, LATENT:].contiguous().view(pages, PAGE, ROTARY)


def inputs(torch: Any, shape: tuple[int, ...], cache: Cache, seed: int, device: str = "cuda") -> dict[str, Any]:
    """The problem's arrays, every row full; outputs and scratch are poisoned."""
    rows, topk, pages = shape
    generator = torch.Generator(device).manual_seed(seed)
    order = [torch.randperm(pages * PAGE, generator=generator, device=device)[:topk] for _ in range(rows)]
    of = {one.name: one for one in SPARSE_ATTENTION.operands(shape, "bf16")}

    def empty(name: str) -> Any:
        dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[of[name].dtype]
        return torch.full(of[name].shape, float("nan"), dtype=dtype, device=device)

    def normal(width: int) -> Any:
        return torch.randn(rows, HEADS, width, generator=generator, device=device).to(torch.bfloat16)

    arrays = {"q_nope": normal(LATENT), "q_pe": normal(ROTARY), "ckv_cache": cache.latent, "kpe_cache": cache.rotary}
    arrays["sparse_indices"] = torch.stack(order).to(torch.int32)
    return arrays | {name: empty(name) for name in ("output", "lse", "partial_output", "partial_lse")}


def exact(torch: Any, t: dict[str, Any], cache: Cache, row: int) -> tuple[Any, Any]:
    """((output, lse), their bounds) of a row, as the problem has them."""
    keys = cache.whole[t["sparse_indices"][row].long()].double().cpu().numpy()
    queries = torch.cat([t["q_nope"][row], t["q_pe"][row]], -1).double().cpu().numpy()
    given = queries, keys, keys[:, :LATENT], SM_SCALE
    right = attend(*given)
    return right, attend_bound(*given, DTYPES["bf16"], right)


def by_torch(torch: Any) -> Any:
    """A function of the inputs that gives output and log-sum-exp, written with torch alone."""

    def run(q: Any, q_pe: Any, latent: Any, rotary: Any, indices: Any) -> Any:
        at = indices.long()
        there = (at >= 0)[:, None]
        values = latent.view(-1, LATENT)[at.clamp(min=0)]
        keys = torch.cat([values, rotary.view(-1, ROTARY)[at.clamp(min=0)]], -1)
        logits = torch.bmm(torch.cat([q, q_pe], -1), keys.transpose(1, 2)).float() * SM_SCALE
        logits = logits.masked_fill(~there, float("-inf"))
        lse = torch.logsumexp(logits, -1)
        weights = torch.exp(logits - lse[..., None]).to(q.dtype)
        return torch.bmm(weights, values), lse / np.log(2)

    return run


# --------------------------------------------------------------------------------------------------------- contenders


class Work:
    """The contenders of a shape, each a list of calls on rotating inputs, and what the first of them gave."""

    def __init__(self, torch: Any, opened: pack.Pack, shape: tuple[int, ...], cache: Cache) -> None:
        self.torch, self.shape, self.cache = torch, shape, cache
        rows, topk, _ = shape
        count = min(MOST_SETS, 1 + 2 * facts()["l2_bytes"] // (rows * topk * KEY * 2))
        self.sets = [inputs(torch, shape, cache, seed) for seed in range(count)]
        self.stream = torch.cuda.current_stream().cuda_stream
        self.opened = opened

    def by_name(self, functions: dict[str, Any], built: dict[str, Path]) -> dict[str, list[Any]]:
        """All calls. functions: of torch, by name; built: libraries of peers, by name."""
        calls: dict[str, list[Any]] = {}
        for entry in self.opened.entries:
            if entry.shape == self.shape:
                kernel = self.opened.kernel(entry)
                name = entry.rung if entry.rung not in calls else f"{entry.rung} {entry.config}"
                calls[name] = [kernel.bind(self.stream, *(t[a.name] for a in entry.arrays)) for t in self.sets]
        for name, function in functions.items():
            calls[name] = [self._keeping(function, t) for t in self.sets]
        for name, path in built.items():
            calls[name] = self._peer(name, path)
        return calls

    def _peer(self, name: str, path: Path) -> list[Any]:
        if name == "flashmla":
            one = peers.FlashMla(self.torch, path, self.cache.whole, facts()["sms"])
            return [one.bind(t, self.stream) for t in self.sets]
        other = peers.FlashInfer(self.torch, path, self.shape, self.stream)
        return [other.bind(t) for t in self.sets]

    def _keeping(self, function: Any, t: dict[str, Any]) -> Any:
        names = ("q_nope", "q_pe", "ckv_cache", "kpe_cache", "sparse_indices")

        def call() -> None:
            t["kept"] = function(*(t[name] for name in names))

        return call

    def check(self, calls: dict[str, list[Any]]) -> dict[str, bench.Record]:
        """Whether each contender's output is right, and the relative norm of its error."""
        rows = sorted({0, self.shape[0] // 2, self.shape[0] - 1})
        right = {row: exact(self.torch, self.sets[0], self.cache, row) for row in rows}
        judged = {}
        for name in calls:
            print(f"{self.shape}: {name}", file=sys.stderr, flush=True)  # so that one that hangs is known
            judged[name] = self._one(name, calls[name][0], right)
        return judged

    def _one(self, name: str, call: Any, rights: dict[int, tuple[Any, Any]]) -> bench.Record:
        t = self.sets[0]
        for poisoned in ("output", "lse", "partial_output", "partial_lse"):
            t[poisoned].fill_(float("nan"))
        call()
        self.torch.cuda.synchronize()
        given, lse = t["output"], t["lse"]
        if name.startswith("torch"):
            given, lse = t.pop("kept")
        elif name == "flashmla":
            given = t["padded out"]
        ok, error = True, 0.0
        for row, (right, bounds) in rights.items():
            out = given[row, :HEADS].double().cpu().numpy()
            ok &= bool((abs(out - right[0]) <= bounds[0]).all())
            error = max(error, float(np.linalg.norm(out - right[0]) / np.linalg.norm(right[0])))
            if name.startswith(OURS):
                ok &= bool((abs(lse[row].double().cpu().numpy() - right[1]) <= bounds[1]).all())
        return {"ok": ok, "error": error}


def judge_odd(torch: Any, opened: pack.Pack) -> Iterator[bench.Record]:
    """Whether each rung is right on each odd shape: records without times."""
    stream = torch.cuda.current_stream().cuda_stream
    for entry in (entry for entry in opened.entries if entry.shape in ODD):
        case = SPARSE_ATTENTION.make(entry.shape, "bf16", seed=len(entry.rung))
        tensors = {name: upload(torch, array) for name, array in case.arrays.items()}
        opened.kernel(entry)(stream, *(tensors[array.name] for array in entry.arrays))
        torch.cuda.synchronize()
        for name in case.arrays:
            download(torch, tensors[name], case.arrays[name])
        verdict = examine(case)
        yield {
            "rung": entry.rung, "config": dict(entry.config), "shape": list(entry.shape), "dtype": "bf16",
            "ok": verdict.ok, "error": verdict.error, "tolerance": case.tolerance,
        }  # fmt: skip


def measure(folder: Path, options: Options, only: list[int], beside: list[str]) -> Iterator[bench.Record]:
    """A record a shape, rung and baseline. only: numbers of rows, none for all. beside: names out of BESIDE.

    All shapes beside torch, then beside each peer there is, in the end beside torch.compile, which takes long to
    compile: what goes wrong with one costs none of the figures before it.
    """
    torch = cuda_torch()
    opened = pack.Pack.open(folder)
    opened.check_gpu()
    yield from judge_odd(torch, opened)
    shapes = [shape for shape in SHAPES if not only or shape[0] in only]
    for name in (name for name in BESIDE if name in beside):
        functions: dict[str, Any] = {}
        built: dict[str, Path] = {}
        if name not in peers.SOURCES:
            functions[name] = by_torch(torch)
            if name == "torch.compile":
                functions[name] = torch.compile(functions[name], dynamic=True)
        elif (path := library(folder, name)).exists():
            built[name] = path
        else:
            continue
        yield from _beside(torch, opened, shapes, functions, built, options)


def _beside(
    torch: Any, opened: pack.Pack, shapes: list[tuple[int, ...]], functions: dict[str, Any], built: dict[str, Path],
    options: Options,
) -> Iterator[bench.Record]:  # fmt: skip
    meter, cache = Meter(), None
    for shape in shapes:
        if cache is None or cache.latent.shape[0] != shape[2]:
            cache = Cache(torch, shape[2])
        work = Work(torch, opened, shape, cache)
        calls = work.by_name(functions, built)
        judged = work.check(calls)
        measured = compare(torch, calls, meter, options)
        yield from _records(shape, judged, measured)
        del work, calls
        torch.cuda.empty_cache()


def _records(shape: tuple[int, ...], judged: dict[str, bench.Record], measured: Any) -> Iterator[bench.Record]:
    rows, topk, _ = shape
    flops, moved = 2 * HEADS * (KEY + LATENT) * rows * topk, 2 * KEY * rows * topk
    ours = [name for name in measured.times if name.startswith(OURS)]
    for name in ours:
        times = measured.times[name]
        for baseline in measured.times:
            if baseline not in ours:
                yield {
                    "rung": name, "shape": list(shape), "dtype": "bf16", **judged[name], **bench.timed(times, flops),
                    "gathered_gb_s": round(moved / times.median / 1e3, 1),
                    **bench.against(baseline, times, measured.times[baseline]),
                    "baseline_ok": judged[baseline]["ok"], "baseline_error": judged[baseline]["error"],
                    "clock_mhz": measured.clock_mhz,
                }  # fmt: skip


# ------------------------------------------------------------------------------------------------------------- tables


def _timed(records: list[bench.Record]) -> list[bench.Record]:
    """What was measured of the rung, without the judgements of odd shapes."""
    return [r for r in records if r["rung"] == OURS[0] and "baseline" in r and r["ok"]]


def means(records: list[bench.Record]) -> Iterator[str]:
    """A row a baseline: the geometric mean of its time over ours, extremes, losses; then against the best of all."""
    yield "| against | shapes | geometric mean | worst | best | slower | within the bounds |"
    yield "|---|---|---|---|---|---|---|"
    rows = _timed(records)
    for name in dict.fromkeys(r["baseline"] for r in rows):
        mine = [r for r in rows if r["baseline"] == name]
        right = sum(r["baseline_ok"] for r in mine)
        yield _mean(name, [r["ratio"] for r in mine]) + f" {'all' if right == len(mine) else right} |"
    best = {shape: min(r["ratio"] for r in rows if tuple(r["shape"]) == shape) for shape in _shapes(rows)}
    yield _mean("the fastest of each shape", list(best.values())) + " |"


def _mean(name: str, ratios: list[float]) -> str:
    slower = sum(ratio < 1 for ratio in ratios)
    return (
        f"| {name} | {len(ratios)} | **{statistics.geometric_mean(ratios):.2f}** | {min(ratios):.2f} | "
        f"{max(ratios):.2f} | {slower} |"
    )


def _shapes(rows: list[bench.Record]) -> list[tuple[int, ...]]:
    return list(dict.fromkeys(tuple(r["shape"]) for r in rows))


def shapes(records: list[bench.Record]) -> Iterator[str]:
    """A row a shape: our time and rates, the ratio to every baseline, and the least of these ratios."""
    rows = _timed(records)
    names = list(dict.fromkeys(r["baseline"] for r in rows))
    yield f"| rows, tokens | us | TFLOPS | GB/s | {' | '.join(names)} | the fastest |"
    yield "|---" * (5 + len(names)) + "|"
    for shape in _shapes(rows):
        mine = {r["baseline"]: r for r in rows if tuple(r["shape"]) == shape}
        us, tflops, read = (
            statistics.median(r[key] for r in mine.values()) for key in ("median_us", "tflops", "gathered_gb_s")
        )
        cells = [f"{mine[name]['ratio']:.2f}" if name in mine else "" for name in names]
        least = min(r["ratio"] for r in mine.values())
        yield (
            f"| {shape[0]}, {shape[2] * PAGE} | {us:.1f} | {tflops:.0f} | {read:.0f} | {' | '.join(cells)} | "
            f"**{least:.2f}** |"
        )


def main() -> int:
    """The command line; its exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sparse_attention", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    packing = verbs.add_parser("pack")
    packing.add_argument("folder", type=Path)
    packing.add_argument("--flashmla", type=Path, help="a checkout of FlashMLA")
    packing.add_argument("--flashinfer", type=Path, help="the folder flashinfer/data of FlashInfer's wheel")
    packing.add_argument("--cutlass", type=Path, help="a checkout of CUTLASS, whose headers FlashMLA needs")
    packing.add_argument("--rungs", type=lambda text: text.split(), default=list(OURS), help="with knobs, by spaces")
    running = verbs.add_parser("run")
    running.add_argument("folder", type=Path)
    running.add_argument("--seconds", type=float, default=0.5)
    running.add_argument("--settle", type=float, default=1.0)
    running.add_argument("--beside", type=lambda text: text.split(","), default=list(BESIDE), help="by commas; all")
    running.add_argument("--rows", type=lambda text: [int(part) for part in text.split(",")], default=[])
    running.add_argument("--results", type=Path, help="keep the figures there")
    args = parser.parse_args()
    try:
        if args.verb == "pack":
            print(make(args.folder, args.flashmla, args.flashinfer, args.cutlass, args.rungs))
            return 0
        records: list[bench.Record] = []
        options = Options(seconds=args.seconds, settle=args.settle)
        host = bench.machine(Suite(SUITE, "", "bf16", {})) if args.results else {}
        for record in measure(args.folder, options, args.rows, args.beside):
            records.append(record)
            print(_line(record), flush=True)
            if args.results:
                bench.keep(args.results, host, records)
        return bench.exit_code(records)
    except TensorladderError as error:
        print(f"benchmarks.sparse_attention: {error}", file=sys.stderr)
        return error.exit_code


def _line(r: bench.Record) -> str:
    rows, topk, pages = r["shape"]
    if "baseline" not in r:
        verdict = "right" if r["ok"] else "WRONG"
        return f"{r['rung']:<16} {rows:>4} x {topk} of {pages * PAGE}: {verdict}, error {r['error']:.1e}"
    return (
        f"{r['rung']:<16} {rows:>4} of {pages * PAGE:>6}  {r['median_us']:8.1f} us {r['tflops']:6.1f} TFLOPS "
        f"{r['gathered_gb_s']:6.0f} GB/s{'' if r['ok'] else '  WRONG'}   {r['baseline']:<15} {r['baseline_us']:9.1f} us"
        f"  {r['ratio']:6.2f}x{'' if r['baseline_ok'] else '  outside the bounds'}"
    )


if __name__ == "__main__":
    sys.exit(piped(main))
