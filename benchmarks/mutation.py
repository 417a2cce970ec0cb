"""Mutation: a rung with one fence, wait, arrival, expect_tx, parity, count or commit changed, under the hazard checker.

    python -m benchmarks.mutation c2 b7            # what came of each mutant that no error was found in, and the shares
    python -m benchmarks.mutation c2 --keep        # and kept in benchmarks/results/mutation.jsonl
    python -m benchmarks.mutation --all --keep     # every rung that can be mutated
    python -m benchmarks.mutation --summary        # the table of what is kept; 1 where something is not explained

A mutant is *flagged* by a finding of rank error under some schedule. Without one it is *unseen* where its result is
wrong under a schedule, for *review* where findings of that rank are new, and else *right* under every schedule at this
shape, or *not run* there. `reason` (benchmarks.mutation_reasons) says why a change is none, or does not matter. All
mutants of a rung are one module (zoo.mutate.schema), so the rung is compiled once.
"""

from __future__ import annotations

import argparse
import collections
import json
import linecache
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.mutation_reasons import IDLE, SAME, by_construction, reason
from tensorladder.core.errors import TensorladderError, UsageError
from tensorladder.core.findings import Finding, Verdict
from tensorladder.core.program import Launch, Program, Stream
from tensorladder.measure import bench
from tensorladder.measure.hazards import new_checker
from tensorladder.measure.run import Request, VirtualTarget, build, digest, judge, plan
from tensorladder.rungs.rung import catalog, find
from tensorladder.vgpu.check import finding_of
from tensorladder.zoo.mutate import Mutant, Schema, schema

RESULTS = Path(__file__).parent / "results" / "mutation.jsonl"
POLICIES = ("eager", "lazy", "random:1", "random:2", "random:3")
TIMEOUT = 30.0
#: the smallest that go twice round a rung's ring of stages, a CTA on to further tiles: shape, SMs
SHAPES: dict[str, tuple[tuple[int, ...], int | None]] = {
    "a1-cluster-launch-control": ((256, 256, 16), 1),
    "a1-dependent-launch": ((32, 64, 32), None),
    "a1-grouped": ((4, 64, 64, 32), 1),
    "a2-smem-pipeline": ((64, 64, 160), None),
    "b2-warp-mma": ((128, 128, 224), None),
    "b5-tma": ((128, 128, 448), None),
    "b7-warp-specialized": ((128, 128, 448), None),
    "b8-register-double-buffering": ((128, 128, 448), None),
    "b9-epilogue": ((128, 128, 224), None),
    "b10-implicit-gemm": ((1, 8, 8, 32, 32, 3, 3, 1, 1, 1), None),
    "c1-wgmma": ((128, 128, 448), None),
    "c2-warp-specialized": ((128, 256, 576), None),
    "c3-persistent": ((384, 256, 448), 1),
    "c4-multicast": ((768, 256, 448), 2),
    "c5-ping-pong": ((768, 256, 448), 2),
    "c6-epilogue": ((384, 256, 448), 1),
    "c7-fused-ping-pong": ((768, 256, 448), 2),
    "c8-split-k": ((64, 192, 1920), 2),
    "c9-grouped": ((4, 512, 256, 448), 2),
    "d1-tcgen05": ((128, 128, 576), None),
    "d1-tcgen05-subtiles": ((128, 256, 576), None),
    "d2-warp-specialized": ((128, 256, 576), None),
    "d3-two-cta": ((256, 512, 832), None),
    "d4-persistent": ((768, 256, 448), 2),
    "d4-block-scaled": ((768, 256, 1792), 2),
    "d5-epilogue": ((768, 256, 448), 2),
    "fused-dsa-split": ((4, 400, 8), 1),
    "fused-dsa-wgmma": ((4, 400, 8), 1),
    "v4-tma": ((128, 128, 448), None),
    "v5-pipeline": ((128, 128, 320), None),
    "v6-persistent": ((256, 256, 320), 1),
    "v7-warp-specialized": ((256, 256, 576), 1),
    "v8-two-cta": ((768, 256, 448), 2),
    "v9-two-consumers": ((1024, 256, 576), 2),
    "cuda-c1-wgmma": ((128, 128, 448), None),
    "cuda-d1-tcgen05": ((128, 128, 576), None),
}
#: a rung in another language at the shape of its twin
TWINS = {"tirx-": ""}


@dataclass(frozen=True)
class Mutated:
    """A stream whose launches run mutant `number` of a module; 0: none, and `which` says of which one."""

    stream: Stream
    schemas: dict[str | None, Schema]
    which: str | None = None
    number: int = 0

    def enqueue(self, launch: Launch) -> None:
        made = self.schemas[launch.module.ptx]
        number = self.number if launch.module.ptx == self.which else 0
        params = made.params(launch.kernel, launch.params, number)
        module = replace(launch.module, ptx=made.text, cubin=None)
        self.stream.enqueue(replace(launch, module=module, params=params))

    def synchronize(self) -> None:
        self.stream.synchronize()


@dataclass
class Subject:
    """A rung at one shape, compiled, with the mutants of its modules."""

    asked: Request
    program: Program

    def __post_init__(self) -> None:
        self.schemas = {module.ptx: schema(module.ptx) for module in self.program.modules if module.ptx}
        self.known: set[tuple[Any, ...]] = set()  # findings for review of the rung itself
        self.right: set[str] = set()  # digests of results that were judged right

    def mutants(self) -> Iterator[tuple[str | None, Mutant]]:
        for text, made in self.schemas.items():
            for mutant in made.mutants:
                yield text, mutant

    def run(self, policy: str, which: str | None = None, number: int = 0) -> tuple[tuple[Finding, ...], str]:
        """(findings, "" or how the result is wrong) under one schedule."""
        checker = new_checker()
        asked = replace(self.asked, policy=policy)
        target = VirtualTarget(asked, checker)
        case = asked.info.problem.make(asked.shape, asked.dtype, asked.seed, target.allocate)
        stream = Mutated(target.device.stream(), self.schemas, which, number)
        wrong = ""
        try:
            self.program(stream, *case.arrays.values())
            stream.synchronize()
            if digest(case) not in self.right and not _has_error(checker.findings):
                result = judge(asked, case, 0.0, 0.0)
                wrong = "" if result.ok else result.message
                self.right |= set() if wrong else {digest(case)}
        except UsageError:
            raise
        except TensorladderError as stopped:
            checker.findings.append(finding_of(stopped))
        return checker.report(asked.info.name).findings, wrong

    def learn(self) -> None:
        """What is found in the rung itself; UsageError where that is an error."""
        for policy in POLICIES:
            findings, wrong = self.run(policy)
            if wrong or _has_error(findings):
                raise UsageError(f"{self.asked.info.name} itself is not right under {policy}: {wrong} {findings}")
            self.known |= {f.key() for f in findings}

    def reached(self, which: str | None, mutant: Mutant) -> bool:
        """Whether what is changed is executed at this shape."""
        return any(f.kind == "trap" for f in self.run("eager", which, mutant.probe)[0])

    def fate(self, which: str | None, mutant: Mutant) -> dict[str, Any]:
        """fate, and the kinds of what was found (of errors where there are any), and how the result was wrong."""
        seen: set[str] = set()
        wrong = ""
        for policy in POLICIES[:2] if by_construction(mutant.op, mutant.change) else POLICIES:
            try:
                findings, said = self.run(policy, which, mutant.number)
            except UsageError as refused:  # a launch or a module that cannot be run at all
                return {"fate": "flagged", "kinds": ["launch"], "wrong": str(refused)}
            errors = {f.kind for f in findings if f.severity is Verdict.ERROR}
            if errors:
                return {"fate": "flagged", "kinds": sorted(errors), "wrong": ""}
            seen |= {f.kind for f in findings if f.key() not in self.known}
            wrong = wrong or (f"{policy}: {said}" if said else "")
        fate = "review" if seen else "unseen" if wrong else "right" if self.reached(which, mutant) else "not run"
        return {"fate": fate, "kinds": sorted(seen), "wrong": wrong}


def _has_error(findings: Iterable[Finding]) -> bool:
    return any(finding.severity is Verdict.ERROR for finding in findings)


def subject(name: str) -> Subject:
    """A rung at the shape of SHAPES; UsageError where nothing of it can be mutated."""
    info = find(name)
    twin = next((find(to + name.removeprefix(by)).name for by, to in TWINS.items() if name.startswith(by)), info.name)
    shape, sm_count = SHAPES.get(info.name) or SHAPES.get(twin) or (None, None)
    asked = plan(info, shape=shape, sm_count=sm_count, timeout=TIMEOUT)
    return Subject(asked, build(asked))


def records(name: str, every: int = 1) -> Iterator[dict[str, Any]]:
    """A record a mutant of a rung, of each `every`-th one."""
    rung = subject(name)
    todo = list(rung.mutants())[::every]
    if not todo:
        return
    rung.learn()
    asked = rung.asked
    for which, mutant in todo:
        start = time.perf_counter()
        found = rung.fate(which, mutant)
        file, line = mutant.source or ("", 0)
        yield {
            "rung": asked.info.name, "shape": list(asked.shape), "sm_count": asked.sm_count, "op": mutant.op,
            "change": mutant.change, "ptx_line": mutant.line, "file": Path(file).name, "line": line,
            "code": linecache.getline(file, line).strip(), **found, "seconds": round(time.perf_counter() - start, 2),
        }  # fmt: skip


# ---------------------------------------------------------------- what is kept, and its table
def kept() -> list[dict[str, Any]]:
    return bench.read(RESULTS)[1] if RESULTS.exists() else []


def keep(name: str, found: Iterable[dict[str, Any]]) -> None:
    """A rung's mutants take the place of those kept before: a line for those flagged, and one for each other."""
    found = list(found)
    flagged = [record for record in found if record["fate"] == "flagged"]
    head = {key: found[0][key] for key in ("rung", "shape", "sm_count")}
    kinds = collections.Counter(kind for record in flagged for kind in record["kinds"])
    lines = [{**head, "fate": "flagged", "mutants": len(flagged), "kinds": dict(sorted(kinds.items()))}]
    for record in found:
        if record["fate"] != "flagged":
            lines.append({key: value for key, value in record.items() if key not in ("shape", "sm_count", "seconds")})
    others = [record for record in kept() if record["rung"] != name]
    made = sorted([*others, *lines], key=lambda record: record["rung"])
    bench.keep(RESULTS, bench.emulator("mutation"), made)


COLUMNS = ("rung", "mutants", "no effect", "harmful", "error", "review", "unseen", "error share", "unexplained")


def row(name: str, of: list[dict[str, Any]]) -> dict[str, Any]:
    """A rung's line of the table. harmful: all but what has no effect; unseen: of those, nothing was found."""
    count: collections.Counter[str] = collections.Counter()
    for record in of:
        if record["fate"] == "flagged":
            count["error"] += record.get("mutants", 1)
            continue
        rule = reason(record)
        count["unexplained"] += rule is None
        harmless = rule is not None and rule.effect in (SAME, IDLE)
        count["no effect" if harmless else "review" if record["fate"] == "review" else "unseen"] += 1
    harmful = count["error"] + count["review"] + count["unseen"]
    share = f"{count['error'] / harmful:.3f}" if harmful else ""
    made = {"rung": name, "mutants": harmful + count["no effect"], "harmful": harmful, "error share": share}
    return {key: made.get(key, count[key]) for key in COLUMNS}


def summary(as_json: bool) -> int:
    """Print the table of what is kept, and what it does not explain; 1 where there is such a mutant."""
    by: dict[str, list[dict[str, Any]]] = collections.defaultdict(list)
    for record in kept():
        by[record["rung"]].append(record)
    rows = [row(name, of) for name, of in by.items()]
    total = {key: sum(one[key] for one in rows) for key in COLUMNS if key not in ("rung", "error share")}
    total |= {"rung": "all", "error share": f"{total['error'] / max(total['harmful'], 1):.3f}"}
    for one in [*rows, total]:
        if as_json:
            print(json.dumps(one))
    if not as_json:
        print(" | ".join(COLUMNS))
        for one in [*rows, total]:
            print(" | ".join(str(one[key]) for key in COLUMNS))
    rest = [(r, reason(r)) for of in by.values() for r in of if r["fate"] != "flagged"]
    for text, count in collections.Counter(f"{why.effect}: {why.why}" for _, why in rest if why).most_common():
        print(f"{count:5}  {text}", file=sys.stderr)
    left = [record for record, why in rest if why is None]
    for record in left:
        print(line_of(record), file=sys.stderr)
    return 1 if left else 0


def line_of(record: dict[str, Any]) -> str:
    place = f"{record['file']}:{record['line']} PTX {record['ptx_line']}"
    what = f"{record['op']} {record['change']}"
    why = reason(record)
    text = " ".join([*record["kinds"], record["wrong"], why.why if why else ""]).strip()
    return f"{record['rung']:24} {record['fate']:8} {place}  {what}: {text}  [{record['code'][:70]}]"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rungs", nargs="*", metavar="RUNG")
    parser.add_argument("--all", action="store_true", help="every rung")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only each Nth mutant")
    parser.add_argument("--keep", action="store_true", help="write the results to benchmarks/results/mutation.jsonl")
    parser.add_argument("--summary", action="store_true", help="the table of what is kept")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    if asked.summary:
        return summary(asked.json)
    for name in [rung.name for rung in catalog()] if asked.all else asked.rungs:
        name, found = find(name).name, []
        for record in records(name, max(asked.every, 1)):
            found.append(record)
            if asked.json:
                print(json.dumps(record), flush=True)
            elif record["fate"] != "flagged":
                print(line_of(record), flush=True)
        if found:
            print(json.dumps(row(name, found)), flush=True)
            if asked.keep:
                keep(name, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
