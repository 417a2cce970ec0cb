"""Files of a check for other programs: JUnit XML for CI, SARIF 2.1.0 for code scanning, a baseline for the next run.

Sources: the JUnit schema that Jenkins and GitLab read (one testcase a target); SARIF 2.1.0 (OASIS, 2020), sections 3.14
(run), 3.19 (toolComponent), 3.27 (result), 3.28 (location), 3.35 (suppression).
"""

from __future__ import annotations

import hashlib
import json
import re
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tensorladder import __version__
from tensorladder.core.errors import UsageError
from tensorladder.core.files import check_place, write_whole
from tensorladder.core.findings import KINDS, Finding, Report, Verdict, Where
from tensorladder.measure import accepted
from tensorladder.measure.accepted import Judged

SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
LEVELS = {Verdict.ERROR: "error", Verdict.INCOMPLETE: "warning", Verdict.REVIEW: "note", Verdict.CLEAN: "none"}
#: what XML 1.0 cannot hold
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class HazardFiles:
    """The files that a check reads and writes: their places are looked at, and the baseline read, before anything runs.

    `take` judges each target's report, `write` then writes all. UsageError for files that cannot be read or written;
    prefix: what the options are called, before "baseline".
    """

    def __init__(
        self,
        baseline: str | None,
        write_baseline: str | None,
        junit: str | None,
        sarif: str | None,
        prefix: str = "--",
    ) -> None:
        self._known = accepted.read(baseline, prefix) if baseline is not None else None
        self._baseline = baseline or ""
        self._writers = {"write-baseline": self._new_baseline, "junit": self._junit, "sarif": self._sarif}
        asked = dict(zip(self._writers, (write_baseline, junit, sarif), strict=True))
        self._prefix = prefix
        self._places = {
            f"{prefix}{name}": check_place(path, f"{prefix}{name}") for name, path in asked.items() if path is not None
        }
        if len({place.resolve() for place in self._places.values()}) < len(self._places):
            raise UsageError(f"{' and '.join(self._places)}: each needs a file of its own")
        self._new: Counter[accepted.Fingerprint] = Counter()
        self._judged: list[Judged] = []

    def judge(self, report: Report) -> Judged:
        """A target's report without what is accepted: by the baseline, or since it is being written."""
        written = self._places.get(f"{self._prefix}write-baseline")
        if written is not None:
            return accepted.accept(report, accepted.of_reports([report]), str(written))
        return Judged(report) if self._known is None else accepted.accept(report, self._known, self._baseline)

    def take(self, report: Report, seconds: float = 0.0) -> Judged:
        """The same, kept for the files."""
        self._new |= accepted.of_reports([report])
        self._judged.append(replace(self.judge(report), seconds=seconds))
        return self._judged[-1]

    def write(self) -> None:
        """Write what was asked for."""
        for option, place in self._places.items():
            write_whole(place, self._writers[option.removeprefix(self._prefix)](), option)

    def _new_baseline(self) -> bytes:
        return accepted.to_bytes(self._new)

    def _junit(self) -> bytes:
        return junit(self._judged)

    def _sarif(self) -> bytes:
        return sarif(self._judged)


# ---------------------------------------------------------------- JUnit
def junit(judged: Sequence[Judged]) -> bytes:
    """JUnit XML: a testcase a target; a failure has the text of its findings, an error says what is not modelled."""
    verdicts = [one.report.verdict for one in judged]
    counts = {
        "tests": str(len(judged)),
        "failures": str(verdicts.count(Verdict.ERROR)),
        "errors": str(verdicts.count(Verdict.INCOMPLETE)),
        "skipped": "0",
        "time": f"{sum(one.seconds for one in judged):.3f}",
    }
    root = ET.Element("testsuites", {"name": "tensorladder check", **counts})
    suite = ET.SubElement(root, "testsuite", {"name": "tensorladder check", **counts})
    for one in judged:
        _testcase(suite, one)
    ET.indent(root)
    return bytes(ET.tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"


def _testcase(suite: ET.Element, one: Judged) -> None:
    report = one.report
    name = _xml(report.target)
    case = ET.SubElement(
        suite, "testcase", {"name": name, "classname": "tensorladder.check", "time": f"{one.seconds:.3f}"}
    )
    text = _xml("\n\n".join(str(finding) for finding in report.grouped()))
    outcome = {Verdict.ERROR: "failure", Verdict.INCOMPLETE: "error"}.get(report.verdict)
    if outcome:
        kinds = ", ".join(dict.fromkeys(f.kind for f in report.findings if f.severity is report.verdict))
        worst = report.findings[0]
        ET.SubElement(case, outcome, {"message": _xml(worst.message), "type": kinds}).text = text
    besides = "\n".join(([] if outcome or not text else [text]) + [_xml(line) for line in one.text()])
    if besides:
        ET.SubElement(case, "system-out").text = besides


def _xml(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)


# ---------------------------------------------------------------- SARIF
def sarif(judged: Sequence[Judged]) -> bytes:
    """SARIF 2.1.0: a rule a kind of finding, a result a finding; what a baseline accepts is suppressed."""
    rules = [
        {
            "id": kind,
            "shortDescription": {"text": meaning},
            "defaultConfiguration": {"level": LEVELS[verdict]},
        }
        for kind, (verdict, meaning) in KINDS.items()
    ]
    seen: Counter[str] = Counter()
    results = [
        _result(one.report.target, finding, by, seen)
        for one in judged
        for findings, by in ((one.report.findings, ""), (one.accepted, one.baseline))
        for finding in findings
    ]
    run = {
        "tool": {"driver": {"name": "tensorladder", "version": __version__, "rules": rules}},
        "columnKind": "unicodeCodePoints",
        "results": results,
    }
    return (json.dumps({"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1) + "\n").encode()


def _result(target: str, finding: Finding, accepted_by: str, seen: Counter[str]) -> dict[str, Any]:
    """One result; `seen` numbers those with the same fingerprint, which viewers would take for one."""
    digest = hashlib.sha256(repr(tuple(accepted.fingerprint(target, finding))).encode("utf-8", "replace")).hexdigest()
    seen[digest] += 1
    made: dict[str, Any] = {
        "ruleId": finding.kind,
        "ruleIndex": list(KINDS).index(finding.kind),
        "level": LEVELS[finding.severity],
        "message": {"text": f"{target}: {finding.message}" + (f". Fix: {finding.fix}" if finding.fix else "")},
        "locations": [_location(target, finding.where)],
        "partialFingerprints": {"findingHash/v1": f"{digest[:32]}:{seen[digest]}"},
        "properties": {"target": target, "verdict": str(finding.severity)},
    }
    if finding.other is not None:
        other = {"id": 1, "message": {"text": str(finding.other)}}
        made["relatedLocations"] = [{**_location(target, finding.other), **other}]
    if accepted_by:
        made["suppressions"] = [{"kind": "external", "justification": f"accepted by {accepted_by}"}]
    return made


def _location(target: str, where: Where) -> dict[str, Any]:
    """The source line; else the line of the PTX file, or the rung's file."""
    line: int | None
    if where.file and where.line:
        file, line = Path(where.file), where.line
    else:
        file, line = _home(target), where.ptx_line if target.endswith(".ptx") else None
    place: dict[str, Any] = {"artifactLocation": _artifact(file)}
    if line:
        place["region"] = {"startLine": line}
    made: dict[str, Any] = {"physicalLocation": place}
    if where.kernel:
        made["logicalLocations"] = [{"fullyQualifiedName": where.kernel, "kind": "function"}]
    return made


def _home(target: str) -> Path:
    from tensorladder.rungs.rung import catalog

    file = target.partition("::")[0]  # of a test's name
    return next((info.path for info in catalog() if info.name == target), Path(file))


def _artifact(file: Path) -> dict[str, str]:
    """A file in the working folder is named from there, as code scanning wants it; another by its whole address."""
    whole = file if file.is_absolute() else Path.cwd() / file
    if whole.is_relative_to(Path.cwd()):
        return {"uri": quote(whole.relative_to(Path.cwd()).as_posix()), "uriBaseId": "%SRCROOT%"}
    return {"uri": whole.as_uri()}
