"""Findings that are known and accepted: a baseline file, so that a check fails for what is new alone.

An entry holds what a finding is, not where it stood: the target, the kind, and for each of its two places the text of
the source line and the function around it (of a PTX file: the kernel and the instruction, registers without their
numbers). So it survives edits elsewhere in the file, and no longer matches once the line itself is changed. What counts
as often as the entry says is accepted; one more of the same is new. What was not modelled is never accepted, since
nothing is promised about the rest of such a run.
"""

from __future__ import annotations

import json
import linecache
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from tensorladder.core.errors import UsageError
from tensorladder.core.findings import KINDS, Finding, Report, Verdict, Where

VERSION = 1
_DEF = re.compile(r"(\s*)(?:async )?def (\w+)")
_PYTHON = {".py", ".pyi", ".ipynb", ""}
#: of C++ what has no braces of the language in it, and its braces and ends of statements
_CPP = re.compile(
    r"//[^\n]*|/\*.*?\*/|^[ \t]*\#(?:\\\n|[^\n])*"  # comments, directives
    r"|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])'|[{};]",
    re.S | re.M,
)
#: the head of a function's body: its name before the last parentheses at its end
_HEAD = re.compile(r"([\w:~]+)\s*(\((?:[^()]|\([^()]*\))*\))[\s\w&]*(?::[^:].*|->.*)?$", re.S)
_NO_FUNCTIONS = {"if", "for", "while", "switch", "catch"}


class Fingerprint(NamedTuple):
    """What makes a finding the same in another run: no line numbers, CTAs or bytes. places: one or two, in words."""

    target: str
    kind: str
    verdict: str
    places: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.kind}: {' <-> '.join(self.places)}"


@dataclass(frozen=True)
class Judged:
    """A target's report with a baseline taken off it.

    report: what counts. accepted: what the baseline knew. stale: entries for this target that matched nothing, with
    how often each was expected still. baseline: its file, "" where none was given. seconds: the time the check took.
    """

    report: Report
    accepted: tuple[Finding, ...] = ()
    stale: tuple[tuple[Fingerprint, int], ...] = ()
    baseline: str = ""
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """The report's object; with a baseline, `accepted` (findings) and `stale` (entries) besides."""
        known = {
            "accepted": [finding.to_json() for finding in self.accepted],
            "stale": [_entry(print_, count) for print_, count in self.stale],
        }
        return {**self.report.to_json(), **(known if self.baseline else {})}

    def text(self) -> list[str]:
        """The lines for a person, beyond those of the report."""
        lines = []
        for finding in Report(self.report.target, self.accepted).grouped():
            more = f"; {finding.more_places()}" if finding.more else ""
            lines.append(f"  accepted: {finding.kind}: {finding.message} ({finding.where}{more})")
        return lines + [f"  no longer found, delete it from {self.baseline}: {print_}" for print_, _ in self.stale]


def target_of(target: str) -> str:
    """A target's name in files that are shared: a rung as it is, a file relative to the working folder if in it."""
    path = Path(target)
    if path.suffix and path.is_absolute() and path.is_relative_to(Path.cwd()):
        return path.relative_to(Path.cwd()).as_posix()
    return target


def fingerprint(target: str, finding: Finding) -> Fingerprint:
    """The fingerprint of a finding of `target`; reads the source files that the finding names."""
    places = [_place(target, where) for where in (finding.where, finding.other) if where is not None]
    if not any(places):  # a result that is wrong, a launch that is refused: the words, without their numbers
        places = [re.sub(r"\d+(\.\d+)?(e[-+]?\d+)?", "#", finding.message)]
    return Fingerprint(target_of(target), finding.kind, str(finding.severity), tuple(place or "-" for place in places))


def _place(target: str, where: Where) -> str:
    if where.file and where.line and (source := _lines(where.file))[where.line - 1 : where.line]:
        function = _function if Path(where.file).suffix in _PYTHON else _cpp_function
        return f"{Path(where.file).name}: {function(source, where.line)}: {source[where.line - 1].strip()}"
    text = where.what
    if where.ptx_line and target.endswith(".ptx"):
        text = " ".join("".join(_lines(target)[where.ptx_line - 1 : where.ptx_line]).split()) or text
    named = [where.kernel or "", re.sub(r"(%[a-z]+)\d+", r"\1", text)]
    return ": ".join(part for part in named if part) if text else ""


def _lines(path: str) -> list[str]:
    linecache.checkcache(path)
    return linecache.getlines(path)


def _function(source: list[str], line: int) -> str:
    """The name of the Python function around a line, "" where there is none."""
    depth = len(source[line - 1]) - len(source[line - 1].lstrip())
    for text in reversed(source[: line - 1]):
        found = _DEF.match(text)
        if found and len(found[1]) < depth:
            return found[2]
    return ""


def _cpp_function(source: list[str], line: int) -> str:
    """The name of the C++ function whose body a line is in, "" where there is none: `NAME(args)` for a macro's."""
    text, begin = "".join(source), sum(map(len, source[: line - 1]))
    open_: list[str] = []
    code, head, opened = "", 0, ""
    for token in _CPP.finditer(text, 0, begin + len(source[line - 1])):
        code += text[head : token.start()]
        head = token.end()
        if token[0] == "{":
            open_.append(_name_of(code.strip()))
            opened = open_[-1] if token.start() >= begin and open_[-1] else opened
        elif token[0] == "}" and open_:
            open_.pop()
        code = "" if token[0] in "{};" else code
    return opened or next((name for name in reversed(open_) if name), "")  # one that the line opens, else around it


def _name_of(head: str) -> str:
    """The function that a block of C++ is the body of, "" for another block."""
    found = _HEAD.search(head)
    if found is None or found[1] in _NO_FUNCTIONS:
        return ""
    return "".join(found.group(1, 2)) if found[1].isupper() else found[1]


def accept(report: Report, known: Counter[Fingerprint], baseline: str) -> Judged:
    """Take what a baseline knows off a report."""
    left = Counter({print_: n for print_, n in known.items() if print_.target == target_of(report.target)})
    counted, accepted = [], []
    for finding in report.findings:
        print_ = fingerprint(report.target, finding)
        if left[print_] > 0 and finding.severity is not Verdict.INCOMPLETE:
            left[print_] -= 1
            accepted.append(finding)
        else:
            counted.append(finding)
    stale = tuple((print_, n) for print_, n in left.items() if n > 0)
    return Judged(replace(report, findings=tuple(counted)), tuple(accepted), stale, baseline)


def of_reports(reports: Iterable[Report]) -> Counter[Fingerprint]:
    """What a baseline of these reports knows: all but what was not modelled."""
    return Counter(
        fingerprint(report.target, finding)
        for report in reports
        for finding in report.findings
        if finding.severity is not Verdict.INCOMPLETE
    )


# ---------------------------------------------------------------- the file
def to_bytes(known: Counter[Fingerprint]) -> bytes:
    """A baseline as JSON, in a fixed order, so that a change of it reads well in a diff."""
    entries = [_entry(print_, count) for print_, count in sorted(known.items())]
    return (json.dumps({"version": VERSION, "findings": entries}, indent=1) + "\n").encode()


def _entry(print_: Fingerprint, count: int) -> dict[str, Any]:
    return {**print_._asdict(), "places": list(print_.places), "count": count}


def read(path: str, prefix: str = "--") -> Counter[Fingerprint]:
    """A baseline file. UsageError, in one line, for one that is not there or damaged; prefix: of the options' names."""
    asked, anew = f"{prefix}baseline {path}", f"write it anew with {prefix}write-baseline"
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{asked}: cannot be read ({error.strerror}): {prefix}write-baseline writes one") from None
    except (ValueError, RecursionError):
        raise UsageError(f"{asked}: not JSON: {anew}") from None
    if not isinstance(data, dict) or data.get("version") != VERSION or not isinstance(data.get("findings"), list):
        raise UsageError(f"{asked}: not a baseline of version {VERSION}: {anew}")
    known: Counter[Fingerprint] = Counter()
    for number, entry in enumerate(data["findings"], 1):
        wrong = _wrong(entry)
        if wrong:
            raise UsageError(f"{asked}: entry {number}: {wrong}")
        print_ = Fingerprint(entry["target"], entry["kind"], entry["verdict"], tuple(entry["places"]))
        known[print_] += entry["count"]
    return known


def _wrong(entry: Any) -> str:
    """What is the matter with an entry, "" where it is right."""
    if not isinstance(entry, Mapping):
        return "not an object"
    places, count = entry.get("places"), entry.get("count")
    checks = {
        "target must be text": isinstance(entry.get("target"), str),
        f"kind must be one of {', '.join(KINDS)}": isinstance(entry.get("kind"), str) and entry["kind"] in KINDS,
        "verdict must be review or error": entry.get("verdict") in ("review", "error"),
        "places must be a list of text": isinstance(places, list) and all(isinstance(one, str) for one in places),
        "count must be a positive whole number": type(count) is int and count > 0,
    }
    return next((words for words, right in checks.items() if not right), "")
