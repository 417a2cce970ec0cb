"""Hazards of rungs for the page: from the lines that `tensorladder check --json` gave, or by checking each rung now."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorladder.core.errors import TensorladderError, UsageError
from tensorladder.core.findings import Finding, Report
from tensorladder.measure.accepted import Judged
from tensorladder.rungs.rung import RungInfo


class Kept:
    """What a file of `check --json` says, by rung; of several lines about one, the last. UsageError names a bad line.

    rest: targets whose rung was not asked for, so far.
    """

    def __init__(self, path: str) -> None:
        try:
            lines = Path(path).read_text(encoding="utf-8").split("\n")
        except OSError as error:
            raise UsageError(f"--hazards {path}: cannot be read ({error.strerror})") from None
        except UnicodeDecodeError:
            raise UsageError(f"--hazards {path}: not text: lines of `tensorladder check --json` are wanted") from None
        found = (_judged(f"{path}:{number}", line) for number, line in enumerate(lines, 1) if line.strip())
        self._found = {one.report.target: one for one in found}
        self.rest = dict.fromkeys(self._found)

    def __call__(self, info: RungInfo) -> Judged | None:
        self.rest.pop(info.name, None)
        return self._found.get(info.name)

    @property
    def refused(self) -> list[str]:
        """A line for each target that is not on the page."""
        return [f"{target}: no rung of this name; not shown" for target in self.rest]


def _judged(where: str, line: str) -> Judged:
    try:
        record = json.loads(line)
        return Judged(
            Report(_text(record["target"]), _findings(record["findings"])),
            _findings(record.get("accepted", [])),
        )
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise UsageError(f"{where}: not a line of `tensorladder check --json`") from None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _findings(records: list[Mapping[str, Any]]) -> tuple[Finding, ...]:
    """Findings of their JSON objects; what is not of a finding's form raises one of those that `_judged` knows."""
    findings = tuple(Finding.from_json(record) for record in records)
    for one in findings:
        _text(one.message), _text(one.fix), str(one)
    return findings


class Runner:
    """Called with a rung it checks it at its default shape; None for one that cannot run here, which `refused` says.

    MissingExtra where none can.
    """

    def __init__(self) -> None:
        from tensorladder.measure.hazards import new_checker

        new_checker()
        self.refused: list[str] = []

    def __call__(self, info: RungInfo) -> Judged | None:
        from tensorladder.measure import hazards
        from tensorladder.measure.run import plan

        try:
            return Judged(hazards.check_rung(plan(info)))
        except TensorladderError as error:
            self.refused.append(f"{info.name}: {error}")
            return None
