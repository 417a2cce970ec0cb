"""Mutation: a rung with one fence, wait, arrival, expect_tx, parity, count or commit changed, under the hazard checker.

    python -m benchmarks.mutation c2 b7          # a table, and the share of the harmful mutants that was flagged
    python -m benchmarks.mutation c2 --json      # a line a mutant

A mutant is *flagged* by a finding of rank error; it is for *review* when only findings of that rank are new. Without
either it is *missed* where its result is wrong under one of the policies, *same* where what was changed says the same
as before (EQUIVALENT says why), and else *harmless*: right under every policy at this shape. Those want a look.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tensorladder.core.errors import TensorladderError, UsageError
from tensorladder.core.findings import Verdict
from tensorladder.core.program import Launch, Program, Stream
from tensorladder.measure.hazards import new_checker
from tensorladder.measure.run import Request, VirtualTarget, build, judge, plan
from tensorladder.rungs.rung import find
from tensorladder.vgpu.check import finding_of
from tensorladder.zoo.mutate import Mutant, mutants

POLICIES = ("eager", "lazy", "random:1")
#: small shapes that go round each rung's ring of stages
SHAPES = {
    "b7": (128, 128, 320),
    "c1": (128, 128, 320),
    "c2": (128, 256, 384),
    "d2": (128, 256, 512),
    "v7": (256, 256, 512),
}
#: SMs, where a CTA has to go on to a second tile
SM_COUNT = {"v7": 1}
#: changes that leave a kernel as right as before, by opcode and change, and why
EQUIVALENT = (
    (r"fence|wgmma\.fence|tcgen05\.fence", "doubled", "a second fence with nothing between orders nothing more"),
    (r"tcgen05\.wait|.*wait_group|.*wait_all", "doubled", "the second wait finds nothing to wait for"),
    (r".*commit_group", "doubled", "an empty group: waits for all but the last n groups leave fewer operations"),
    (r"bar\.|barrier\.", "doubled", "all meet twice"),
    (r"tcgen05\.relinquish_alloc_permit", "", "the permit ends with the CTA, too"),
)


class Mutated:
    """A stream whose launches run another PTX text."""

    def __init__(self, stream: Stream, text: str):
        self.stream, self.text = stream, text

    def enqueue(self, launch: Launch) -> None:
        self.stream.enqueue(replace(launch, module=replace(launch.module, ptx=self.text, cubin=None)))

    def synchronize(self) -> None:
        self.stream.synchronize()


def check(asked: Request, program: Program, text: str, policy: str) -> tuple[Verdict, set[str], str]:
    """(verdict, kinds of error and of review, "" or how the result is wrong) of a rung with another PTX text."""
    checker = new_checker()
    one = replace(asked, policy=policy)
    target = VirtualTarget(one, checker)
    case = asked.info.problem.make(asked.shape, asked.dtype, asked.seed, target.allocate)
    stream = Mutated(target.device.stream(), text)
    wrong = ""
    try:
        program(stream, *case.arrays.values())
        stream.synchronize()
        result = judge(one, case, 0.0, 0.0)
        wrong = "" if result.ok else result.message
    except UsageError:
        raise
    except TensorladderError as stopped:
        checker.findings.append(finding_of(stopped))
    report = checker.report(asked.info.name)
    return report.verdict, {f"{f.kind}:{f.severity}" for f in report.findings}, wrong


def judged(asked: Request, program: Program, mutant: Mutant, known: set[str]) -> tuple[str, str]:
    """(flagged, review, missed, same or harmless; what was found, or why it is the same)."""
    seen: set[str] = set()
    wrong = ""
    for policy in POLICIES:
        try:
            verdict, kinds, said = check(asked, program, mutant.text, policy)
        except UsageError as refused:  # a launch or a module that cannot be run at all
            return "flagged", f"refused: {refused}"
        if verdict is Verdict.ERROR:
            return "flagged", " ".join(sorted(kind for kind in kinds if kind.endswith(":error")))
        seen |= kinds - known
        wrong = wrong or (f"{policy}: {said}" if said else "")
    if wrong:
        return "missed", wrong
    if seen:
        return "review", " ".join(sorted(seen))
    for op, change, why in EQUIVALENT:
        if re.match(op, mutant.op) and mutant.change.startswith(change):
            return "same", why
    return "harmless", ""


def run(name: str, every: int = 1) -> Iterator[dict[str, Any]]:
    """A record a mutant of a rung, of each `every`-th one; the rung itself has no error."""
    info = find(name)
    asked = plan(info, shape=SHAPES.get(info.step), sm_count=SM_COUNT.get(info.step), timeout=60.0)
    program = build(asked)
    text = program.modules[0].ptx
    verdict, known, wrong = check(asked, program, text, "eager")
    if verdict is Verdict.ERROR or wrong:
        raise UsageError(f"{info.name} itself is not right: {known} {wrong}")
    for mutant in itertools.islice(mutants(text), 0, None, every):
        start = time.perf_counter()
        fate, found = judged(asked, program, mutant, known)
        yield {
            "rung": info.name, "mutant": mutant.what, "op": mutant.op, "change": mutant.change, "ptx_line": mutant.line,
            "line": mutant.source[1] if mutant.source else None, "fate": fate, "found": found,
            "seconds": round(time.perf_counter() - start, 1),
        }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rungs", nargs="+", metavar="RUNG")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only each Nth mutant")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    fates: collections.Counter[str] = collections.Counter()
    for name in asked.rungs:
        for record in run(name, max(asked.every, 1)):
            fates[record["fate"]] += 1
            if asked.json:
                print(json.dumps(record), flush=True)
            else:
                place = f"line {record['line'] or '?':>4} PTX {record['ptx_line']:>5}"
                print(
                    f"{record['rung']:24} {record['fate']:9} {place}  {record['mutant']}: {record['found']}", flush=True
                )
    harmful = fates["flagged"] + fates["review"] + fates["missed"]
    print(json.dumps({"summary": dict(fates), "seen": round((harmful - fates["missed"]) / max(harmful, 1), 4)}))


if __name__ == "__main__":
    main()
