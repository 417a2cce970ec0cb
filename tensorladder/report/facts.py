"""What the report tells, before it is a page: each rung with its knobs, its changes and its figures."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tensorladder.measure.accepted import Judged
from tensorladder.measure.inspect import diff
from tensorladder.report.markup import slug
from tensorladder.report.results import LADDER, Results, read_folder
from tensorladder.rungs.rung import RungInfo, catalog

TIMING = ("rung", "shape", "dtype", "median_us", "tflops", "baseline", "ratio", "tensor_pipe", "host_us")


@dataclass(frozen=True)
class Knob:
    """A field of a rung's config, as its file spells it. default: "" where it has none."""

    name: str
    type: str
    default: str


@dataclass(frozen=True)
class Timing:
    """A time of a rung, or of a call of the op that chose it. record: of the baseline that was fastest."""

    source: Results
    record: Mapping[str, Any]


@dataclass(frozen=True)
class RungFacts:
    """One rung. anchor: its id in the page. knobs_doc: what its config's docstring says. diff: from its parent, ""
    where it has none. own: times of the rung itself; called: of calls of the op that ran it. timeline: SVG, or "".
    hazards: what a check found; None where it was not checked.
    """

    info: RungInfo
    anchor: str
    knobs: tuple[Knob, ...]
    knobs_doc: str
    diff: str
    own: tuple[Timing, ...]
    called: tuple[Timing, ...]
    timeline: str = ""
    hazards: Judged | None = None

    @property
    def best(self) -> Timing | None:
        """The time with the most TFLOPS in the ladder's suite, where rungs can be compared."""
        comparable = (timing for timing in self.own if timing.source.suite == LADDER)
        return max(comparable, key=lambda timing: timing.record["tflops"], default=None)

    def changed(self) -> tuple[int, int]:
        """Lines added to the parent, and removed from it."""
        body = self.diff.splitlines()[2:]
        return sum(line.startswith("+") for line in body), sum(line.startswith("-") for line in body)

    def record(self) -> dict[str, Any]:
        """The same as JSON; `timings` also holds calls of the op."""
        added, removed = self.changed()
        times = [{key: one.record.get(key) for key in TIMING} for one in (*self.own, *self.called)]
        return {
            "anchor": self.anchor,
            "sections": self.info.sections(),
            "knobs": [vars(knob) for knob in self.knobs],
            "added": added,
            "removed": removed,
            "timings": times,
            **({"hazards": self.hazards.to_json()} if self.hazards else {}),
        }


@dataclass(frozen=True)
class Facts:
    """All of it. anchors: the ids that are taken by rungs and result files."""

    rungs: tuple[RungFacts, ...]
    results: tuple[tuple[str, Results], ...]

    def anchor(self, name: str) -> str | None:
        """The id of a rung by its name, or by its step (then of the step's first)."""
        for one in self.rungs:
            if name in (one.info.name, one.info.step):
                return one.anchor
        return None

    def place(self, results: Results) -> str:
        """The id of a result file's part of the page."""
        return next(anchor for anchor, one in self.results if one is results)


def gather(
    folder: str | None = None,
    infos: Sequence[RungInfo] | None = None,
    timeline: Callable[[RungInfo], str] = lambda _: "",
    hazards: Callable[[RungInfo], Judged | None] = lambda _: None,
) -> Facts:
    """The facts of every rung (or of `infos`), with the figures of the result files in `folder`.

    folder: as `results.read_folder` takes it. timeline: draws a rung's (`timelines.Drawer`). hazards: says what is
    known of them (`hazards.Kept`, `hazards.Runner`). UsageError for result files that cannot be read.
    """
    results = read_folder(folder)
    taken: set[str] = {"top", "main", "ladder", "results", "rungs"}
    infos = catalog() if infos is None else infos
    steps = {info.step: info.name for info in reversed(infos)}  # a step is its first rung
    rungs = tuple(
        replace(
            _rung(info, results, taken, steps[info.step] == info.name), timeline=timeline(info), hazards=hazards(info)
        )
        for info in infos
    )
    return Facts(rungs, tuple((slug(f"results-{one.name}", taken), one) for one in results))


def _rung(info: RungInfo, results: Sequence[Results], taken: set[str], first: bool) -> RungFacts:
    knobs, doc = knobs_of(info)
    own = _timings(results, "rung", info.name)
    called = _timings(results, "kernel", info.step) if first else ()
    changes = diff(info) if info.parent else ""
    return RungFacts(info, slug(info.name, taken), knobs, doc, changes, own, called)


def knobs_of(info: RungInfo) -> tuple[tuple[Knob, ...], str]:
    """The fields and the docstring of a rung's config, read from its file."""
    for node in ast.parse(info.path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name == info.rung.config:
            fields = [one for one in node.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)]
            return tuple(_knob(one) for one in fields), inspect.cleandoc(ast.get_docstring(node) or "")
    return (), ""


def _knob(node: ast.AnnAssign) -> Knob:
    return Knob(ast.unparse(node.target), ast.unparse(node.annotation), ast.unparse(node.value) if node.value else "")


def _timings(results: Sequence[Results], key: str, name: str) -> tuple[Timing, ...]:
    """Times whose record says `name` under `key`, one a file, call, shape and type: beside its fastest baseline."""
    found: dict[tuple[Any, ...], Timing] = {}
    for source in results:
        for row in source.timed:
            if row.get(key) != name:
                continue
            place = source.name, row["rung"], tuple(row["shape"]), row["dtype"]
            kept = found.get(place)
            if kept is None or _ratio(row) < _ratio(kept.record):
                found[place] = Timing(source, row)
    return tuple(found.values())


def _ratio(row: Mapping[str, Any]) -> float:
    return row["ratio"] or float("inf")
