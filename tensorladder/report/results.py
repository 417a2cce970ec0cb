"""Result files as the report reads them: a machine, its records, the pictures of those that were timed.

Any file of JSON objects whose first is `{"machine": {...}}` is one; keys that pictures use are checked, others are
shown as they stand.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tensorladder.core.errors import UsageError
from tensorladder.draw.benchmarks import pictures
from tensorladder.rungs.rung import asides

#: where a checkout keeps them, as `tensorladder bench` does
KEPT = Path("benchmarks") / "results"
#: the suite in which rungs stand beside each other
LADDER = "ladder"
#: what pictures and tables compute with, where it is there at all: of the machine, and of a record
MACHINE = {
    "positive number": ("peak_tflops", "memory_bytes_s"),
    "text": ("gpu", "cpu", "on", "suite", "when"),
}
RECORD = {
    "positive number": ("tflops", "median_us", "ratio", "best_ratio", "baseline_us", "bytes", "flops"),
    "number": ("tensor_pipe",),
    "text": ("rung", "dtype", "baseline", "kernel"),
    "list of whole numbers": ("shape",),
}
#: what a value means nothing without
NEEDS = {
    "ratio": ("baseline", "baseline_us"),
    "bytes": ("flops",),
    "tflops": ("rung", "shape", "dtype", "median_us"),
}
#: what a record needs to be in a picture
CHARTED = ("rung", "shape", "dtype", "tflops", "median_us", "baseline", "ratio")


@dataclass(frozen=True)
class Results:
    """One result file. name: its stem. machine: its first line. records: the others, a dict each."""

    name: str
    machine: Mapping[str, Any]
    records: tuple[Mapping[str, Any], ...]

    @cached_property
    def timed(self) -> list[Mapping[str, Any]]:
        """Records with a time, complete enough to be drawn."""
        return [row for row in self.records if row.get("tflops") and all(key in row for key in CHARTED)]

    @cached_property
    def charts(self) -> dict[str, str]:
        """SVG by what follows the stem in the name of a kept picture; the roofline where bytes are known."""
        if not self.timed:
            return {}
        drawn = pictures(self.machine, self.timed, asides())
        return {
            suffix: svg for suffix, svg in drawn.items() if suffix == "" or any(row.get("bytes") for row in self.timed)
        }

    @property
    def where(self) -> str:
        """The machine in words."""
        if self.machine.get("gpu") and self.machine.get("on") != "vgpu":
            return str(self.machine["gpu"])
        return f"the virtual GPU on {self.machine.get('cpu') or 'a CPU'}"

    @property
    def suite(self) -> str:
        return str(self.machine.get("suite") or self.name)

    @property
    def day(self) -> str:
        """The day it was measured, where it says so."""
        return str(self.machine.get("when") or "").split(" ")[0]


def read_folder(folder: str | None) -> tuple[Results, ...]:
    """The result files of `folder`, the ladder's first, then by name; None: of `KEPT` where that is here, else none.

    UsageError for a folder that is not there, and for a file that is no result file (with its line).
    """
    place = KEPT if folder is None else Path(folder)
    if not place.is_dir():
        if folder is None:
            return ()
        raise UsageError(f"--results {folder}: there is no such folder")
    found = (read(path) for path in place.glob("*.jsonl"))
    return tuple(sorted(found, key=lambda one: (one.suite != LADDER, one.name)))


def read(path: Path) -> Results:
    """One result file; UsageError names the line that is wrong."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read as text ({error})") from None
    places = ((f"{path}:{number}", line) for number, line in enumerate(lines, 1) if line.strip())
    found = [(where, _record(where, line)) for where, line in places]
    machine = found[0][1].get("machine") if found else None
    if not isinstance(machine, dict):
        raise UsageError(f'{path}: not a result file: its first line must be {{"machine": {{...}}}}')
    _check(found[0][0], machine, MACHINE)
    for where, record in found[1:]:
        _check_record(where, record)
    return Results(path.stem, machine, tuple(record for _, record in found[1:]))


def _record(where: str, line: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        raise UsageError(f"{where}: not JSON: a result file holds one object a line") from None
    if not isinstance(record, dict):
        raise UsageError(f"{where}: not an object: a result file holds one object a line")
    return record


def _check(where: str, record: Mapping[str, Any], kinds: Mapping[str, Sequence[str]]) -> None:
    """UsageError for the first value that is not of its kind."""
    for kind, keys in kinds.items():
        for key in keys:
            value = record.get(key)
            if value is not None and not IS[kind](value):
                raise UsageError(f"{where}: {key} must be a {kind}, not {_short(value)}")


def _check_record(where: str, record: Mapping[str, Any]) -> None:
    """Each value, and that those are there without which another means nothing."""
    _check(where, record, RECORD)
    for key, needs in NEEDS.items():
        missing = [name for name in needs if record.get(name) is None]
        if record.get(key) is not None and missing:
            raise UsageError(f"{where}: {key} without its {' and '.join(missing)}")


def _finite(value: Any) -> bool:
    try:
        return not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value)
    except OverflowError:  # an integer that no float holds
        return False


def _short(value: Any) -> str:
    text = " ".join(json.dumps(value).split())
    return text if len(text) <= 40 else text[:37] + "..."


IS: Mapping[str, Callable[[Any], bool]] = {
    "positive number": lambda value: _finite(value) and value > 0,
    "number": _finite,
    "text": lambda value: isinstance(value, str),
    "list of whole numbers": lambda value: isinstance(value, list) and {*map(type, value)} == {int},
}
