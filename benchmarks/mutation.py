"""Mutation: a rung with one fence, wait, arrival, expect_tx, phase flip, count or commit changed, under the checker.

    python -m benchmarks.mutation c2 b7            # what came of each mutant that no error was found in, and the shares
    python -m benchmarks.mutation c2 --keep        # and kept in benchmarks/results/mutation.jsonl
    python -m benchmarks.mutation --all --keep     # every rung that can be mutated
    python -m benchmarks.mutation --stale --keep   # of those the ones that are not kept, or of another checker's source
    python -m benchmarks.mutation --summary        # the table of what is kept; 1 where something is not explained
    python -m benchmarks.mutation --opcodes        # what is changed of each instruction in the rungs' PTX; 1 if unsaid

A mutant is *flagged* by a finding of rank error under some schedule. Without one it is *unseen* where its result is
wrong under a schedule, for *review* where findings of that rank are new, and else *right* under every schedule at this
shape, or *not run* there. `reason` (benchmarks.mutation_reasons) says why a change is none, or does not matter. All
mutants of a rung are one module (zoo.mutate.schema), so the rung is compiled once.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import linecache
import re
import struct
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.mutation_reasons import UNCHANGED, by_construction
from benchmarks.mutation_table import keep, line_of, row, stale, summary
from tensorladder.core.errors import TensorladderError, UsageError
from tensorladder.core.findings import Finding, Verdict
from tensorladder.core.pipes import piped
from tensorladder.core.program import Launch, Module, Program, Stream
from tensorladder.measure.hazards import new_checker
from tensorladder.measure.run import Request, VirtualTarget, build, digest, judge, plan
from tensorladder.rungs.rung import catalog, default_config, find
from tensorladder.vgpu.check import finding_of
from tensorladder.vgpu.ptx import parse
from tensorladder.vgpu.ptx.nodes import Instr
from tensorladder.zoo.mutate import Mutant, Schema, schema

POLICIES = ("eager", "lazy", "random:1", "random:2", "random:3")
#: besides, where what was found is for review and hangs on who comes first
SEEDS = ("timed", *(f"random:{n}" for n in range(4, 16)))
TIMELY = {"barrier-phase", "barrier-count"}
TIMEOUT = 30.0
#: the smallest that go twice round a rung's ring of stages, a CTA on to further tiles, ragged where that is a way of
#: its own, and whose rings do not come to an end with a CTA's last tile: shape, SMs
SHAPES: dict[str, tuple[tuple[int, ...], int | None]] = {
    "a1-cluster-launch-control": ((256, 256, 16), 1),
    "a1-dependent-launch": ((32, 64, 32), None),
    "a1-grouped": ((4, 64, 64, 32), 1),
    "a2-smem-pipeline": ((64, 64, 416), None),
    "b2-warp-mma": ((128, 128, 224), None),
    "b5-tma": ((128, 128, 448), None),
    "b6-colwise-scaling": ((128, 128, 224), None),
    "b7-warp-specialized": ((128, 128, 448), None),
    "b8-register-double-buffering": ((128, 128, 448), None),
    "b9-epilogue": ((128, 128, 224), None),
    "b10-implicit-gemm": ((1, 8, 8, 32, 32, 3, 3, 1, 1, 1), None),
    "c1-wgmma": ((128, 128, 448), None),
    "c2-warp-specialized": ((128, 256, 576), None),
    "c3-persistent": ((384, 256, 448), 1),
    "c4-multicast": ((768, 256, 448), 2),
    "c5-ping-pong": ((768, 256, 448), 1),
    "c6-epilogue": ((384, 256, 448), 1),
    "c7-fused-ping-pong": ((768, 256, 448), 2),
    "c8-split-k": ((64, 256, 2816), 4),
    "c9-grouped": ((4, 512, 256, 448), 2),
    "d1-tcgen05": ((128, 128, 576), None),
    "d1-tcgen05-subtiles": ((128, 256, 576), None),
    "d2-warp-specialized": ((128, 256, 576), None),
    "d3-two-cta": ((256, 512, 832), None),
    "d4-persistent": ((1024, 256, 448), 2),
    "d4-block-scaled": ((768, 256, 1792), 2),
    "d5-epilogue": ((1024, 256, 448), 2),
    "fused-dsa-split": ((4, 400, 8), 1),
    "fused-dsa-wgmma": ((1, 800, 13), 1),
    "fused-dsa-tcgen05": ((1, 1000, 16), 2),
    "fused-dsa-pipelined": ((1, 896, 14), 2),
    "fused-topk-indexer-wgmma": ((3, 44, 2048), 2),
    "fused-topk-indexer-tcgen05": ((3, 29, 1024), 1),
    "v2-k-loop": ((128, 128, 256), None),
    "v3-grid": ((256, 128, 256), None),
    "v4-tma": ((128, 128, 448), None),
    "v5-pipeline": ((128, 128, 320), None),
    "v6-persistent": ((256, 256, 320), 1),
    "v7-warp-specialized": ((256, 256, 576), 1),
    "v8-two-cta": ((1024, 256, 448), 2),
    "v9-two-consumers": ((2048, 256, 576), 2),
    "tirx-v7-warp-specialized": ((384, 256, 576), 1),
    "tirx-v9-two-consumers": ((2560, 256, 576), 2),
    "cuda-b1-wmma": ((72, 56, 40), None),
    "cuda-b1-wmma-smem": ((72, 56, 72), None),
    "cuda-b1-wmma-vectorized": ((136, 136, 72), None),
    "cuda-b2-vectorized-2d": ((128, 128, 288), None),
    "cuda-c1-wgmma": ((128, 128, 448), None),
    "cuda-d1-tcgen05": ((128, 128, 576), None),
}
#: shapes of the same PTX for what is not run at the first one, or right there: another remainder of an unrolled loop,
#: more tiles
ALSO: dict[str, tuple[int, ...]] = {
    "c6-epilogue": (384, 256, 512),
    "c7-fused-ping-pong": (768, 256, 512),
    "c8-split-k": (64, 256, 3072),
    "c9-grouped": (4, 2048, 256, 512),
}
#: knobs that make a rung go where it seldom does
KNOBS: dict[str, dict[str, Any]] = {
    "c8-split-k": {"split": 2, "share": 2},  # multicast besides
    "fused-dsa-pipelined": {"rise": 0.0},  # O is rescaled whenever a maximum moves
    "fused-topk-indexer-wgmma": {"cluster": 2},  # of CTAs that choose together
}
#: instructions that wait, signal, order, or work on their own
COLLECTIVE = re.compile(
    r"mbarrier|bar\b|barrier|fence|membar|cp\.async|wgmma|tcgen05|griddepcontrol|tensormap|setmaxnreg|elect|shfl|vote|"
    r"redux|match|wmma|clusterlaunchcontrol|st\.async|red\.async|prefetch|\w+\.sync|.*\.(acquire|release|acq_rel)"
)
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
    also: Subject | None = None  # at another shape

    def __post_init__(self) -> None:
        texts = (module.ptx for module in self.program.modules if module.ptx)
        self.schemas: dict[str | None, Schema] = {text: schema(text) for text in texts}
        self.known: set[tuple[Any, ...]] = set()  # findings for review of the rung itself
        self.right: set[str] = set()  # digests of results that were judged right
        self.probed: dict[tuple[str | None, int], bool] = {}
        problem = self.asked.info.problem
        self.problem = replace(problem, draw=cache(problem.inputs))  # drawn once, copied for each run

    def mutants(self) -> Iterator[tuple[str | None, Mutant]]:
        for text, made in self.schemas.items():
            for mutant in made.mutants:
                yield text, mutant

    def run(
        self, policy: str, which: str | None = None, number: int = 0, before: bool = False
    ) -> tuple[tuple[Finding, ...], str]:
        """(findings, "" or how the result is wrong) under one schedule. before: a launch that writes all arrays comes
        before the rung's own, which may begin before its end."""
        checker = new_checker()
        asked = replace(self.asked, policy=policy)
        target = VirtualTarget(asked, checker)
        case = self.problem.make(asked.shape, asked.dtype, asked.seed, target.allocate)
        stream = Mutated(target.device.stream(), self.schemas, which, number)
        if before:
            stream.stream.enqueue(writer(asked.arch, list(case.arrays.values())))
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
        waits = any(depends(mutant) for _, mutant in self.mutants())
        for policy, before in itertools.product(POLICIES, (False, True) if waits else (False,)):
            findings, wrong = self.run(policy, before=before)
            if wrong or _has_error(findings):
                raise UsageError(f"{self.asked.info.name} itself is not right under {policy}: {wrong} {findings}")
            self.known |= {f.key() for f in findings}
        if self.also is not None:
            self.also.learn()

    def reached(self, which: str | None, mutant: Mutant) -> bool:
        """Whether what is changed is executed at this shape."""
        if (which, mutant.probe) not in self.probed:
            found, _ = self.run("eager", which, mutant.probe)
            self.probed[which, mutant.probe] = any(f.kind == "trap" for f in found)
        return self.probed[which, mutant.probe]

    def fate(self, which: str | None, mutant: Mutant) -> dict[str, Any]:
        """fate, and kinds and rules of what was found (of errors where there are any), and how the result was wrong."""
        found = self.fate_here(which, mutant)
        sure = found["fate"] == "right" and by_construction(mutant.op, mutant.change)
        if self.also is None or sure or found["fate"] not in ("right", "not run"):
            return found
        there = self.also.fate_here(which, mutant)
        return found if there["fate"] == "not run" else there

    def fate_here(self, which: str | None, mutant: Mutant) -> dict[str, Any]:
        """`fate` at this shape alone."""
        seen: list[Finding] = []
        wrong = ""
        for policy in POLICIES[:2] if by_construction(mutant.op, mutant.change) else (*POLICIES, *SEEDS):
            if policy in SEEDS and TIMELY.isdisjoint(f.kind for f in seen):
                break
            try:
                findings, said = self.run(policy, which, mutant.number, depends(mutant))
            except UsageError as refused:  # a launch or a module that cannot be run at all
                return {"fate": "flagged", "kinds": ["launch"], "rules": ["launch"], "wrong": str(refused)}
            errors = [f for f in findings if f.severity is Verdict.ERROR]
            if errors:
                return {"fate": "flagged", **_said(errors), "wrong": ""}
            seen += [f for f in findings if f.key() not in self.known]
            wrong = wrong or (f"{policy}: {said}" if said else "")
        fate = "review" if seen else "unseen" if wrong else "right" if self.reached(which, mutant) else "not run"
        return {"fate": fate, **_said(seen), "wrong": wrong}


def _said(findings: Iterable[Finding]) -> dict[str, list[str]]:
    """What findings are called: their kinds, and the checker's own names."""
    findings = list(findings)
    return {"kinds": sorted({f.kind for f in findings}), "rules": sorted({f.rule or f.kind for f in findings})}


def depends(mutant: Mutant) -> bool:
    """Whether a change matters only where a launch before it writes what the kernel uses."""
    return mutant.op.startswith("griddepcontrol")


def writer(arch: str, arrays: list[Any]) -> Launch:
    """A launch that lets the next one begin, then writes every word of `arrays` (to what it is)."""
    takes = ", ".join(f".param .u64 at{n}, .param .u32 words{n}" for n in range(len(arrays)))
    text = f"""
.version 8.6
.target {arch}
.address_size 64
.visible .entry writer({takes})
{{
.reg .b32 %value, %left; .reg .b64 %at; .reg .pred %more;
griddepcontrol.launch_dependents;
"""
    for n in range(len(arrays)):
        text += f"""
ld.param.u64 %at, [at{n}]; ld.param.u32 %left, [words{n}];
$word{n}: setp.eq.u32 %more, %left, 0; @%more bra $end{n};
ld.global.u32 %value, [%at]; st.global.u32 [%at], %value; add.u64 %at, %at, 4; sub.u32 %left, %left, 1; bra $word{n};
$end{n}:
"""
    params = b"".join(struct.pack("<QIxxxx", a.ctypes.data, a.nbytes // 4) for a in arrays)
    return Launch(Module(text + "ret;\n}\n", arch), "writer", (1, 1, 1), (1, 1, 1), params)


def _has_error(findings: Iterable[Finding]) -> bool:
    return any(finding.severity is Verdict.ERROR for finding in findings)


def subject(name: str) -> Subject:
    """A rung at the shape of SHAPES."""
    info = find(name)
    twin = next((find(to + name.removeprefix(by)).name for by, to in TWINS.items() if name.startswith(by)), info.name)
    shape, sm_count = SHAPES.get(info.name) or SHAPES.get(twin) or (None, None)
    asked = plan(info, shape=shape, sm_count=sm_count, timeout=TIMEOUT)
    if info.name in KNOBS:
        asked = replace(asked, config=replace(default_config(info, asked.shape), **KNOBS[info.name]))
    made = Subject(asked, build(asked))
    if info.name in ALSO:
        asked = replace(asked, shape=ALSO[info.name])
        made.also = Subject(asked, build(asked))
        if made.also.schemas.keys() != made.schemas.keys():
            raise UsageError(f"{info.name}: its PTX at {asked.shape} is another one than at {shape}")
    return made


def head_of(asked: Request) -> dict[str, Any]:
    return {"rung": asked.info.name, "shape": list(asked.shape), "sm_count": asked.sm_count}


def records(rung: Subject, every: int = 1) -> Iterator[dict[str, Any]]:
    """A record a mutant of a rung, of each `every`-th one."""
    todo = list(rung.mutants())[::every]
    if todo:
        rung.learn()
    for which, mutant in todo:
        start = time.perf_counter()
        found = rung.fate(which, mutant)
        file, line = mutant.source or ("", 0)
        yield {
            **head_of(rung.asked), "op": mutant.op, "change": mutant.change, "ptx_line": mutant.line,
            "file": Path(file).name, "line": line, "code": linecache.getline(file, line).strip(), **found,
            "seconds": round(time.perf_counter() - start, 2),
        }  # fmt: skip


def opcodes() -> int:
    """Print each opcode of asynchronous or collective work in the rungs' PTX: how many there are, in how many rungs,
    and what is changed of them, or why nothing is; 1 where that is not said."""
    places: dict[str, set[tuple[str, int]]] = collections.defaultdict(set)
    changes: dict[str, set[str]] = collections.defaultdict(set)
    for info in catalog():
        for text, made in subject(info.name).schemas.items():
            for mutant in made.mutants:
                places[mutant.op].add((info.name, mutant.line))
                changes[mutant.op].add(mutant.change)
            for function in parse(text or "").functions.values():
                for instr in (i for i in function.body if isinstance(i, Instr) and COLLECTIVE.match(i.text)):
                    places[instr.text].add((info.name, instr.line))
    left = 0
    for op, where in sorted(places.items()):
        why = next((why for pattern, why in UNCHANGED if re.match(pattern, op)), "")
        left += not changes[op] and not why
        what = ", ".join(sorted(changes[op])) or f"none: {why or 'not said'}"
        print(f"{len(where):5} in {len({rung for rung, _ in where}):2}  {op}  {what}")
    return 1 if left else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rungs", nargs="*", metavar="RUNG")
    parser.add_argument("--all", action="store_true", help="every rung")
    parser.add_argument("--stale", action="store_true", help="every rung that is not kept with this checker")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only each Nth mutant")
    parser.add_argument("--keep", action="store_true", help="write the results to benchmarks/results/mutation.jsonl")
    parser.add_argument("--summary", action="store_true", help="the table of what is kept, and what it does not hold")
    parser.add_argument("--opcodes", action="store_true", help="what is changed of which instruction")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    if asked.summary:
        return summary(asked.json)
    if asked.opcodes:
        return opcodes()
    names = [rung.name for rung in catalog()] if asked.all else stale() if asked.stale else asked.rungs
    for name in names:
        rung, found = subject(name), []
        for record in records(rung, max(asked.every, 1)):
            found.append(record)
            if asked.json:
                print(json.dumps(record), flush=True)
            elif record["fate"] != "flagged":
                print(line_of(record), flush=True)
        print(json.dumps(row(rung.asked.info.name, found)), flush=True)
        if asked.keep:
            keep(head_of(rung.asked), found)
    return 0


if __name__ == "__main__":
    sys.exit(piped(main))
