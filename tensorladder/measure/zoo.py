"""The zoo under the hazard checker: broken kernels are flagged as their cases say, repaired twins are clean."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorladder.core.errors import MissingExtra, TensorladderError
from tensorladder.core.findings import Finding, Report, Verdict
from tensorladder.core.program import LaunchRecorder
from tensorladder.measure.hazards import new_checker
from tensorladder.zoo.case import WORDS, CaseInfo, build, catalog, enqueue

SECONDS = 60.0  # that a launch of a case may take
_LINE = re.compile(r"[\w.]+\.(?:py|cu):\d+")


@dataclass(frozen=True)
class Outcome:
    """What the checker said about one twin. ok: as expected. why: what is not."""

    info: CaseInfo
    broken: bool
    report: Report
    ok: bool
    why: str = ""

    def record(self) -> dict[str, Any]:
        """As a JSON object with the keys of the contract."""
        case = self.info.case
        return {
            "case": self.info.name, "hazard": self.info.hazard, "language": case.language, "arch": case.arch,
            "twin": "broken" if self.broken else "repaired", "expected": case.kind if self.broken else "clean",
            "verdict": str(self.report.verdict), "kind": " ".join(dict.fromkeys(f.kind for f in self.report.findings)),
            "ok": self.ok, "why": self.why,
        }  # fmt: skip


def check(info: CaseInfo, broken: bool, policy: str | None = None) -> Outcome:
    """Run one twin under the checker and say whether it is as expected: the broken one flagged with its kind at its
    marked line, the repaired one without an error."""
    import numpy as np

    from tensorladder.vgpu import Device

    checker = new_checker()
    policy = policy or info.case.policy
    device = Device(info.case.arch, policy, timeout=SECONDS, checker=checker)
    x, out = (device.memory.empty(name, WORDS, np.uint32) for name in ("x", "out"))
    x[:] = np.arange(WORDS) % 7
    out[:] = 0
    streams = [device.stream(), device.stream()]
    recorded = LaunchRecorder()
    try:
        build(info, broken)(recorded, x, out)
        enqueue(info, broken, recorded.launches, streams)
        for stream in streams:
            stream.synchronize()
    except MissingExtra:
        raise
    except TensorladderError as stopped:
        checker.stopped(stopped)
    report = checker.report(info.name)
    why = (_flagged if broken else _clean)(info, report)
    return Outcome(info, broken, report, not why, why)


def _flagged(info: CaseInfo, report: Report) -> str:
    """What is not as expected about a broken twin, or nothing."""
    kinds, verdict = info.case.kind.split(), Verdict(info.case.verdict)
    of_kind = [f for f in report.findings if f.kind in kinds and f.severity is verdict]
    if not of_kind:
        return f"no {verdict} of kind {' or '.join(kinds)}"
    named = {line for finding in of_kind for line in _lines(finding)}
    marked = info.marked()
    if marked and not named & {f"{info.source.name}:{line}" for line in marked}:
        return f"line {min(marked)} is not named, but {', '.join(sorted(named)) or 'none'}"
    return ""


def _lines(finding: Finding) -> set[str]:
    """The source lines that a finding names, "race.cu:12": of its accesses and, of a hang, in its words."""
    places = (where for where in (finding.where, finding.other) if where is not None and where.file)
    return {f"{Path(where.file or '').name}:{where.line}" for where in places} | set(_LINE.findall(finding.message))


def _clean(info: CaseInfo, report: Report) -> str:
    """What is wrong with the report on a repaired twin, or nothing."""
    wrong = [f for f in report.findings if f.severity > Verdict.REVIEW]
    return f"flagged: {wrong[0].kind}" if wrong else ""


def check_all(cases: Sequence[CaseInfo] | None = None, policy: str | None = None) -> Iterator[Outcome]:
    """Both twins of the cases, of all of them without any."""
    for info in catalog() if cases is None else cases:
        for broken in (True, False):
            yield check(info, broken, policy)
