"""The sparse-attention indexer on an H200 beside torch and DeepGEMM: `python -m benchmarks.topk_indexer`.

`pack DIR [--deepgemm CHECKOUT --cutlass CHECKOUT]` compiles, with no GPU, fused-topk-indexer-wgmma for each number of
queries and length, whole and as its two kernels, and DeepGEMM's kernel of scores. `run DIR` times them in turn on a
GPU, prints a table, and keeps it with `--results FILE`. What is compared:

- whole: q, cache, table to indices. torch gathers the pages, multiplies, and calls topk: eager in float32 (tf32, which
  holds e4m3 exactly) and in bfloat16, and compiled. DeepGEMM has no choice of its own: its scores, then torch's topk.
- scores: DeepGEMM's kernel alone (how it divides the tokens is planned before, as a model does once for all layers).
- choice: torch.topk on the same scores.

Every contender's choice is compared with the exact one: `found` is which part of the best tokens it has. Ours and
DeepGEMM's scores have to be within the problem's bounds, and our choice exact by our scores. Inputs rotate through
twice the L2, so that the cache comes from memory, as it does in a model of many layers.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import deepgemm
from tensorladder.core.errors import TensorladderError
from tensorladder.core.pipes import piped
from tensorladder.measure import bench
from tensorladder.measure import pack as packs
from tensorladder.measure.dynamic import templates
from tensorladder.measure.suites import Suite
from tensorladder.problems.topk_indexer import DIM, HEADS, PAGE, PAGE_BYTES, VALUES, choice, scored
from tensorladder.rungs import rung as rungs
from tensorladder.silicon import pack
from tensorladder.silicon.driver import facts
from tensorladder.silicon.nvml import Meter
from tensorladder.silicon.pack import Array, Entry
from tensorladder.silicon.target import cuda_torch
from tensorladder.silicon.timing import Options, compare

SUITE = "topk-indexer"
ABOUT = (
    "The indexer of DeepSeek's sparse attention (`fused-topk-indexer-wgmma`, `benchmarks.topk_indexer`): microseconds "
    "of both kernels, of each alone, and of the others; the best 2048 of all tokens, out of memory. An empty cell was "
    "not measured: the GPU's time was up."
)
RUNG, ARCH, TOPK = "fused-topk-indexer-wgmma", "sm_90a", 2048
QUERIES, LENGTHS = (1, 8, 64), (4096, 8192, 16384, 32768, 65536)
SHAPES = [(batch, length // PAGE, TOPK) for batch in QUERIES for length in LENGTHS]
WHOLE, SCORES, CHOICE = RUNG, f"{RUNG} scores", f"{RUNG} choice"
PEER, PLAN = "deepgemm", "deepgemm plan"
MOST_SETS = 256


# ------------------------------------------------------------------------------------------------------------ packing


def make(folder: Path, checkout: Path | None, cutlass: Path | None, only: list[int]) -> str:
    """Write a pack of all shapes, or those of so many queries; a line on it."""
    info, made = rungs.find(RUNG), []
    peer = deepgemm.compile_module(checkout, cutlass) if checkout and cutlass else None
    for shape in (shape for shape in SHAPES if not only or shape[0] in only):
        one = packs.make(packs.Wanted(info, rungs.load(info).RUNG.config(), shape, "e4m3"), ARCH)
        made += [one, *(_part(one, name, at) for name, at in ((SCORES, 0), (CHOICE, 1)))]
        if peer is not None:
            made += _peers(peer, shape, one.entry.arrays)
        print(f"{shape}: packed", file=sys.stderr)
    entries, _, size = packs.write(folder, ARCH, made)
    return f"{folder}: {entries} kernels, {size >> 10} KiB"


def _part(made: packs.Made, name: str, at: int) -> packs.Made:
    """One of the rung's two kernels; the second launched as if it came first."""
    launch = dataclasses.replace(made.entry.launches[at], attributes={})
    return made._replace(entry=dataclasses.replace(made.entry, rung=name, source="", launches=(launch,)))


def _peers(module: Any, shape: tuple[int, ...], arrays: tuple[Array, ...]) -> Iterator[packs.Made]:
    batch = shape[0]
    of = {array.name: array for array in arrays}
    lens = Array("lens", (batch, 1), (1, 1), "int32", False)
    plan = Array("plan", (deepgemm.SMS + 1, 2), (2, 1), "int32", True)
    inputs = [of[name] for name in ("q", "cache", "weights")] + [lens, of["block_table"], plan, of["scores"]]
    for name, program, takes in (
        (PLAN, deepgemm.plan(module, batch), [lens, plan]),
        (PEER, deepgemm.scores(module, shape), inputs),
    ):
        launches = templates(program, takes)
        entry = Entry(name, ARCH, shape, "e4m3", {}, "", tuple(takes), launches)
        yield packs.Made(entry, {pack.digest(module.cubin): module.cubin}, None, {})


# ------------------------------------------------------------------------------------------------------------- inputs


def inputs(torch: Any, shape: tuple[int, ...], seed: int, device: str = "cuda") -> dict[str, Any]:
    """Arrays of the problem as torch tensors, all queries of full length, pages at random places; poisoned outputs."""
    batch, pages, topk = shape
    generator = torch.Generator(device).manual_seed(seed)
    number = batch * pages + 1

    def normal(*extents: int) -> Any:
        return torch.randn(extents, generator=generator, device=device)

    keys = normal(number, PAGE, DIM)
    scales = keys.abs().amax(-1) / 448
    cache = torch.empty(number, PAGE_BYTES, dtype=torch.uint8, device=device)
    cache[:, :VALUES] = (keys / scales[..., None]).to(torch.float8_e4m3fn).view(torch.uint8).reshape(number, VALUES)
    cache[:, VALUES:] = scales.view(torch.uint8).reshape(number, 4 * PAGE)
    order = torch.randperm(number, generator=generator, device=device)[: batch * pages]
    return {
        "q": normal(batch, HEADS, DIM).to(torch.float8_e4m3fn),
        "cache": cache.view(number, PAGE, 1, DIM + 4),
        "weights": normal(batch, HEADS) / (HEADS * DIM) ** 0.5,
        "seq_lens": torch.full((batch,), pages * PAGE, dtype=torch.int32, device=device),
        "block_table": order.view(batch, pages).to(torch.int32),
        "idx": torch.full((batch, topk), -2, dtype=torch.int32, device=device),
        "scores": torch.full((batch, pages * PAGE), float("nan"), device=device),
    }


def picked(torch: Any, t: dict[str, Any], row: Any = slice(None)) -> tuple[Any, Any]:
    """The keys (queries, tokens, 128) in e4m3 and their scales (queries, tokens), gathered by the table."""
    table = t["block_table"][row].long()
    pages = t["cache"].view(-1, PAGE_BYTES)[table]
    keys = pages[..., :VALUES].contiguous().view(torch.float8_e4m3fn).reshape(len(table), -1, DIM)
    return keys, pages[..., VALUES:].contiguous().view(torch.float32).reshape(len(table), -1)


def exact(torch: Any, t: dict[str, Any], row: int) -> tuple[np.ndarray, np.ndarray]:
    """As `problems.topk_indexer.score`, on the GPU."""
    keys, scales = (x[0].double() for x in picked(torch, t, slice(row, row + 1)))
    right, slack = scored(keys, scales, t["q"][row].double(), t["weights"][row].double())
    return right.cpu().numpy(), slack.cpu().numpy()


def tokens(t: dict[str, Any], row: int) -> np.ndarray:
    """The indices of a query's tokens."""
    table = t["block_table"][row].cpu().numpy().astype(np.int64)
    return (table[:, None] * PAGE + np.arange(PAGE)).ravel()


# --------------------------------------------------------------------------------------------------------- contenders


def by_torch(torch: Any, dtype: Any) -> Any:
    """A function of q, cache, weights, block_table that gives indices, written with torch alone."""

    def run(q: Any, cache: Any, weights: Any, table: Any, topk: int) -> Any:
        keys, scales = picked(torch, {"cache": cache, "block_table": table})
        dots = torch.bmm(keys.to(dtype), q.to(dtype).transpose(1, 2))
        scores = (dots.relu().float() * weights[:, None, :]).sum(-1) * scales
        return named(torch, scores, table, topk)

    return run


def named(torch: Any, scores: Any, table: Any, topk: int) -> Any:
    """torch's topk of scores, as indices into the cache."""
    at = scores.topk(topk, sorted=False).indices
    return table.gather(1, at // PAGE) * PAGE + at % PAGE


class Work:
    """The contenders of a shape, each a list of calls on rotating inputs, and what they gave."""

    def __init__(self, torch: Any, opened: pack.Pack, shape: tuple[int, ...], compiled: Any, l2: int) -> None:
        self.torch, self.topk = torch, shape[2]
        size = shape[0] * shape[1] * PAGE_BYTES
        self.sets = [inputs(torch, shape, seed) for seed in range(min(MOST_SETS, 1 + 2 * l2 // size))]
        self.entries = {entry.rung: entry for entry in opened.entries if entry.shape == shape}
        self.stream = torch.cuda.current_stream().cuda_stream
        self.opened = opened
        self.functions = {
            "torch tf32": by_torch(torch, torch.float32), "torch bf16": by_torch(torch, torch.bfloat16),
            **({} if compiled is None else {"torch.compile bf16": compiled}),
        }  # fmt: skip

    def packed(self, name: str) -> list[Any]:
        """Calls of an entry of the pack."""
        entry = self.entries[name]
        kernel = self.opened.kernel(entry)
        return [kernel.bind(self.stream, *(t[array.name] for array in entry.arrays)) for t in self.sets]

    def by_name(self) -> dict[str, list[Any]]:
        """All calls. Those of torch leave their indices in `chosen` of the set."""
        calls = {name: self.packed(name) for name in (WHOLE, SCORES, CHOICE)}
        for call in calls[SCORES]:  # the choices alone need some
            call()
        for name, function in self.functions.items():
            calls[name] = [self._keeping(function, t) for t in self.sets]
        calls["torch.topk"] = [self._topk(t) for t in self.sets]
        if PEER in self.entries:
            for t in self.sets:
                t["lens"] = t["seq_lens"].view(-1, 1)
                t["plan"] = self.torch.zeros(deepgemm.SMS + 1, 2, dtype=self.torch.int32, device="cuda")
            for call in self.packed(PLAN):
                call()
            calls[PEER] = self.packed(PEER)
            calls[f"{PEER}, torch.topk"] = [self._both(a, b) for a, b in zip(calls[PEER], calls["torch.topk"])]
        return calls

    def _keeping(self, function: Any, t: dict[str, Any]) -> Any:
        def call() -> None:
            t["chosen"] = function(t["q"], t["cache"], t["weights"], t["block_table"], self.topk)

        return call

    def _topk(self, t: dict[str, Any]) -> Any:
        def call() -> None:
            t["chosen"] = named(self.torch, t["scores"], t["block_table"], self.topk)

        return call

    def _both(self, scores: Any, topk: Any) -> Any:
        def call() -> None:
            scores()
            topk()

        return call

    def check(self, calls: dict[str, list[Any]]) -> dict[str, bench.Record]:
        """Whether each contender's first result is right, its error, and the part of the best tokens it found."""
        t = self.sets[0]
        rows = sorted({0, len(t["q"]) // 2, len(t["q"]) - 1})
        best = {row: exact(self.torch, t, row) for row in rows}
        return {name: self._one(name, calls[name][0], best) for name in calls}

    def _one(self, name: str, call: Any, best: dict[int, tuple[np.ndarray, np.ndarray]]) -> bench.Record:
        t = self.sets[0]
        writes = name in (WHOLE, SCORES, PEER, f"{PEER}, torch.topk")
        if writes:
            t["scores"].fill_(float("nan"))
        t["idx"].fill_(-2)
        t.pop("chosen", None)
        call()
        self.torch.cuda.synchronize()
        ours = name in (WHOLE, CHOICE)
        chosen = t["idx"] if ours else t.get("chosen")
        ok, error, found = True, 0.0, []
        for row, (right, slack) in best.items():
            scores, named_ = t["scores"][row].cpu().numpy(), tokens(t, row)
            if writes:
                ok &= bool((abs(scores - right) <= slack).all())
                error = max(error, float(np.linalg.norm(scores - right) / np.linalg.norm(right)))
            if chosen is not None:
                mine = chosen[row].cpu().numpy().astype(np.int64)
                ok &= not (ours and choice(mine, named_, scores).any())
                ok &= not choice(mine, named_, right, slack).any()
                top = named_[np.argsort(-right)[: self.topk]]
                found.append(len(np.intersect1d(mine, top)) / len(top))
        return {"ok": ok, "error": error, **({"found": round(min(found), 5)} if found else {})}


def measure(folder: Path, options: Options, only: list[int], compiles: bool) -> Iterator[bench.Record]:
    """A record of each of the pack's shapes, part and baseline.

    only: lengths, or none for all. compiles: with torch.compile, too.
    """
    torch = cuda_torch()
    torch.backends.cuda.matmul.allow_tf32 = True
    opened = pack.Pack.open(folder)
    opened.check_gpu()
    meter, l2 = Meter(), facts()["l2_bytes"]
    compiled = torch.compile(by_torch(torch, torch.bfloat16), dynamic=True) if compiles else None
    there = {entry.shape for entry in opened.entries}
    for shape in (shape for shape in SHAPES if shape in there):
        if only and shape[1] * PAGE not in only:
            continue
        work = Work(torch, opened, shape, compiled, l2)
        calls = work.by_name()
        judged = work.check(calls)
        measured = compare(torch, calls, meter, options)
        for part, name, baselines in (
            ("whole", WHOLE, ["torch tf32", "torch bf16", "torch.compile bf16", f"{PEER}, torch.topk"]),
            ("scores", SCORES, [PEER]),
            ("choice", CHOICE, ["torch.topk"]),
        ):
            ours, moved = measured.times[name], shape[0] * shape[1] * PAGE_BYTES
            flops = shape[0] * shape[1] * PAGE * HEADS * (2 * DIM + 3)
            for baseline in baselines:
                if baseline in calls:
                    yield {
                        "rung": RUNG, "part": part, "shape": list(shape), "dtype": "e4m3", **judged[name],
                        **bench.timed(ours, flops), "cache_gb_s": round(moved / ours.median / 1e3, 1),
                        **bench.against(baseline, ours, measured.times[baseline]),
                        "baseline_ok": judged[baseline]["ok"], "baseline_found": judged[baseline].get("found"),
                        "clock_mhz": measured.clock_mhz,
                    }  # fmt: skip
        del work, calls
        torch.cuda.empty_cache()


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> int:
    """The command line; its exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.topk_indexer", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    packing = verbs.add_parser("pack")
    packing.add_argument("folder", type=Path)
    packing.add_argument("--deepgemm", type=Path, help="a checkout of DeepGEMM")
    packing.add_argument("--cutlass", type=Path, help="a checkout of CUTLASS, whose headers it needs")
    packing.add_argument("--queries", type=_numbers, default=[], help="how many a shape has; all")
    running = verbs.add_parser("run")
    running.add_argument("folder", type=Path)
    running.add_argument("--seconds", type=float, default=0.5)
    running.add_argument("--settle", type=float, default=1.0)
    running.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    running.add_argument("--lengths", type=_numbers, default=[])
    running.add_argument("--results", type=Path, help="keep the figures there")
    args = parser.parse_args()
    try:
        if args.verb == "pack":
            print(make(args.folder, args.deepgemm, args.cutlass, args.queries))
            return 0
        records = []
        options = Options(seconds=args.seconds, settle=args.settle)
        for record in measure(args.folder, options, args.lengths, args.compile):
            records.append(record)
            print(_line(record), flush=True)
        if args.results:
            bench.keep(args.results, bench.machine(Suite(SUITE, "", "e4m3", {})), records)
        return bench.exit_code(records)
    except TensorladderError as error:
        print(f"benchmarks.topk_indexer: {error}", file=sys.stderr)
        return error.exit_code


# ------------------------------------------------------------------------------------------------------------- tables


def means(records: list[bench.Record]) -> Iterator[str]:
    """A row a part and baseline: the geometric mean of its time over ours, the worst and the best."""
    yield "| part | against | shapes | geometric mean | worst | best | its choice is right, finds of the best |"
    yield "|---|---|---|---|---|---|---|"
    for part, baseline in dict.fromkeys((r["part"], r["baseline"]) for r in records):
        rows = [r for r in records if (r["part"], r["baseline"]) == (part, baseline) and r["ok"]]
        ratios = [r["ratio"] for r in rows]
        found = [r["baseline_found"] for r in rows if r["baseline_found"] is not None]
        right = f"{'yes' if all(r['baseline_ok'] for r in rows) else 'no'}, {min(found):.4f}" if found else ""
        yield (
            f"| {part} | {baseline} | {len(rows)} | **{statistics.geometric_mean(ratios):.2f}** | {min(ratios):.2f} | "
            f"{max(ratios):.2f} | {right} |"
        )


def shapes(records: list[bench.Record]) -> Iterator[str]:
    """A row a shape: our times, what the cache was read with, and the baselines'."""
    pairs = list(dict.fromkeys((r["part"], r["baseline"]) for r in records))
    yield f"| queries, tokens | us | scores | GB/s | choice | {' | '.join(f'{part}: {who}' for part, who in pairs)} |"
    yield "|---" * (5 + len(pairs)) + "|"
    for shape in sorted({tuple(r["shape"]) for r in records}):
        mine = {(r["part"], r["baseline"]): r for r in records if tuple(r["shape"]) == shape}
        parts = {part: r for (part, _), r in mine.items()}
        ours = [_us(parts, part, "median_us") for part in ("whole", "scores", "choice")]
        read = f"{parts['scores']['cache_gb_s']:.0f}" if "scores" in parts else ""
        cells = [*ours[:2], read, ours[2], *(_us(mine, pair, "baseline_us") for pair in pairs)]
        yield f"| {shape[0]}, {shape[1] * PAGE} | {' | '.join(cells)} |"


def _us(rows: Mapping[Any, bench.Record], which: Any, key: str) -> str:
    """A time in a table; nothing where it was not measured."""
    return f"{rows[which][key]:.1f}" if which in rows else ""


def _line(r: bench.Record) -> str:
    batch, pages, _ = r["shape"]
    found = "" if r["baseline_found"] is None else f", finds {r['baseline_found']:.4f}"
    return (
        f"{r['part']:<6} {batch:>2} x {pages * PAGE:>5}  {r['median_us']:8.1f} us {r['cache_gb_s']:6.0f} GB/s"
        f"{'' if r['ok'] else '  WRONG'}   {r['baseline']:<20} {r['baseline_us']:9.1f} us  {r['ratio']:6.2f}x"
        f"{'' if r['baseline_ok'] else '  not exact'}{found}"
    )


if __name__ == "__main__":
    sys.exit(piped(main))
