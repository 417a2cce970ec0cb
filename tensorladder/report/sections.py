"""The parts of the page: the ladder's table, the results, and a rung with what is known about it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tensorladder.report import charts, lesson
from tensorladder.report.changes import changes
from tensorladder.report.facts import Facts, RungFacts, Timing
from tensorladder.report.markup import Markup, join, table, tag
from tensorladder.report.results import Results
from tensorladder.rungs.rung import SECTIONS

#: a picture by the end of its name, in words
CHARTS = {"": "its speed beside the baselines", "-roofline": "its speed by arithmetic intensity"}
TIMES = ("shape", "dtype", "us", "TFLOPS", "baseline", "over it", "tensor pipe")
FIGURES = ("us", "TFLOPS", "over it", "tensor pipe")


def ladder(facts: Facts) -> Markup:
    """The table: a row a rung, its series in one body each."""
    best = [one.best for one in facts.rungs if one.best is not None]
    baselines = " or ".join(dict.fromkeys(one.record["baseline"] for one in best if one.record["baseline"]))
    measured = (f"TFLOPS (over {baselines})" if baselines else "TFLOPS",) if best else ()
    heads = ("rung", "adds", "parent", "compiles for", "problem", *measured)
    figures = dict.fromkeys(measured, "figure")
    top = tag("tr", *(tag("th", head, scope="col", class_=figures.get(head)) for head in heads))
    bodies = [
        tag("tbody", tag("tr", tag("th", f"Series {series}", colspan=str(len(heads)), scope="rowgroup")),
            *(_row(facts, one, bool(best)) for one in group), class_="series")
        for series, group in _series(facts)
    ]  # fmt: skip
    caption = tag("caption", "A row a rung, and what it adds to its parent; no step goes on from an aside")
    inner = tag("table", caption, tag("thead", top), *bodies, class_="ladder")
    return tag("div", inner, class_="scrolls", tabindex="0", role="group", aria_label="table of the ladder")


def _series(facts: Facts) -> list[tuple[str, list[RungFacts]]]:
    return [(name, list(group)) for name, group in itertools.groupby(facts.rungs, key=lambda one: one.info.series)]


def _row(facts: Facts, one: RungFacts, measured: bool) -> Markup:
    info = one.info
    cells = [
        tag("td", lesson.spans(info.adds, facts.anchor, info.name), _remark(facts, one)),
        tag("td", _link(facts, info.parent)),
        tag("td", " ".join(info.archs)),
        tag("td", info.problem.name),
    ]
    if measured:
        cells.append(tag("td", _speed(one.best), class_="figure"))
    name = tag("th", tag("a", info.name, href=f"#{one.anchor}"), scope="row")
    return tag("tr", name, *cells, data_rung=one.anchor)


def _remark(facts: Facts, one: RungFacts) -> str:
    remark = one.info.remark
    return tag("p", lesson.spans(remark, facts.anchor, one.info.name), class_="aside") if remark else ""


def _link(facts: Facts, name: str | None) -> str:
    anchor = facts.anchor(name) if name else None
    return tag("a", name or "", href=f"#{anchor}") if anchor else name or ""


def _speed(best: Timing | None) -> str:
    if best is None:
        return ""
    ratio = best.record["ratio"]
    over = f" ({ratio:.{2 if ratio >= 0.1 else 4}f})" if ratio else ""
    return f"{best.record['tflops']:.4g}{over}"


def rungs(facts: Facts) -> Markup:
    """Every rung, folded, under the heading of its series."""
    return join(
        tag("section", tag("h3", f"Series {series}"), *(_rung(facts, one) for one in group), class_="series")
        for series, group in _series(facts)
    )


def _rung(facts: Facts, one: RungFacts) -> Markup:
    info = one.info
    head = tag("summary", tag("h4", info.name), tag("span", lesson.spans(info.adds, lambda _: None), class_="adds"))
    inner = [made for part in PARTS if (made := part(facts, one))]
    return tag(
        "details", head, *inner, id=one.anchor, class_="rung", data_series=info.series, data_archs=" ".join(info.archs)
    )


def _lesson(facts: Facts, one: RungFacts) -> Markup:
    """What stands before the first heading, the facts, then a section a heading."""
    sections = one.info.sections()
    intro = lesson.blocks(sections.pop("", ""), facts.anchor, one.info.name, one.info.name)
    parts = [intro, _facts(facts, one)]
    for name, text in sections.items():
        body = lesson.command(text) if name == SECTIONS[-1] else lesson.blocks(
            text, facts.anchor, f"{name} of {one.info.name}", one.info.name
        )  # fmt: skip
        parts += [tag("h5", name), body]
    return tag("div", *parts, class_="lesson")


def _facts(facts: Facts, one: RungFacts) -> Markup:
    info, problem = one.info, one.info.problem
    rows = {
        "parent": _link(facts, info.parent) or "none: the bottom of its series",
        **({"aside": f"pays {info.aside}"} if info.aside else {}),
        "compiles for": " ".join(info.archs),
        "problem": f"{problem.name}: {problem.summary}",
        "default shape": f"{'x'.join(map(str, info.default_shape))} ({', '.join(problem.axes)})",
        "types": " ".join(info.dtypes),
    }
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", value)) for name, value in rows.items()))


def _knobs(facts: Facts, one: RungFacts) -> Markup | None:
    if not one.knobs:
        return None
    rows = [[tag("code", knob.name), tag("code", knob.type), tag("code", knob.default)] for knob in one.knobs]
    made = table(("knob", "type", "default"), rows, f"Knobs of {one.info.name}")
    return join([tag("h5", "Knobs"), lesson.blocks(one.knobs_doc, facts.anchor, one.info.name, one.info.name), made])


def _measured(facts: Facts, one: RungFacts) -> Markup | None:
    parts = []
    if one.own:
        parts.append(_times(facts, one.own, f"Measured: {one.info.name}"))
    if one.called:
        made = _times(facts, one.called, f"Calls of the op that ran {one.info.step}")
        parts.append(tag("details", tag("summary", f"As the kernel of the op: {len(one.called)} calls"), made))
    return join([tag("h5", "Measured"), *parts]) if parts else None


def _times(facts: Facts, timings: Sequence[Timing], caption: str) -> Markup:
    rows = [
        [tag("a", f"{row['rung']}, {one.source.suite}", href=f"#{facts.place(one.source)}"), *_time(row)]
        for one in timings for row in (one.record,)
    ]  # fmt: skip
    return table(("what, suite", *TIMES), rows, caption, right=FIGURES)


def _time(row: Mapping[str, Any]) -> list[str]:
    pipe = row.get("tensor_pipe")
    return [
        "x".join(map(str, row["shape"])), row["dtype"], f"{row['median_us']:.5g}", f"{row['tflops']:.4g}",
        row["baseline"] or "", f"{row['ratio']:.3f}" if row["ratio"] else "", f"{pipe:.0f} %" if pipe else "",
    ]  # fmt: skip


def _changes(facts: Facts, one: RungFacts) -> Markup | None:
    if not one.diff:
        return None
    added, removed = one.changed()
    words = tag("span", f"{added} lines more, {removed} less", class_="count")
    head = tag("summary", tag("h5", "Changes from ", one.info.parent or ""), " ", words)
    return tag("details", head, changes(one.diff, f"changes from {one.info.parent} to {one.info.name}"),
               class_="changes")  # fmt: skip


def _timeline(facts: Facts, one: RungFacts) -> Markup | None:
    if not one.timeline:
        return None
    figure = tag("figure", Markup(one.timeline.strip()))
    words = "One CTA on the virtual GPU, under its table of latencies: not a GPU's times"
    name = f"timeline of {one.info.name}"
    scrolls = tag("div", figure, class_="scrolls", tabindex="0", role="group", aria_label=name)
    return join([tag("h5", "Timeline"), tag("p", words), scrolls])


def _hazards(facts: Facts, one: RungFacts) -> Markup | None:
    if one.hazards is None:
        return None
    report = one.hazards.report
    rows = [
        [f.kind, state, f.message, "; ".join(str(place) for place in (f.where, f.other) if place is not None), f.fix]
        for findings, known in ((report.findings, ""), (one.hazards.accepted, "accepted"))
        for f in findings
        for state in (known or str(f.severity),)
    ]
    words = tag("p", "Under the hazard checker of the virtual GPU: ", tag("strong", str(report.verdict)))
    found = table(("kind", "verdict", "what", "where", "fix"), rows, f"Hazards of {one.info.name}") if rows else ""
    return join([tag("h5", "Hazards"), words, found])


#: what a rung shows, in order; one that has nothing to say makes nothing
PARTS: tuple[Callable[[Facts, RungFacts], Markup | None], ...] = (
    _lesson, _knobs, _timeline, _hazards, _measured, _changes,
)  # fmt: skip


def results(facts: Facts) -> Markup:
    """Links to them, then a part for each result file: its pictures, and its records in a table."""
    links = [tag("li", tag("a", f"{one.suite} on {one.where}", href=f"#{anchor}")) for anchor, one in facts.results]
    parts = [_results(anchor, one) for anchor, one in facts.results]
    return join([tag("ul", *links, class_="links"), *parts] if parts else [])


def _results(anchor: str, one: Results) -> Markup:
    figures = [
        tag("figure", charts.inline(svg, f"{one.suite} on {one.where}: {CHARTS.get(suffix, suffix)}"))
        for suffix, svg in one.charts.items()
    ]
    day = f", {one.day}" if one.day else ""
    records = tag("details", tag("summary", f"{len(one.records)} records"), _records(one))
    inner = [tag("div", figure, class_="scrolls", tabindex="0", role="group", aria_label=f"picture of {one.suite}")
             for figure in figures]  # fmt: skip
    head = tag("h3", f"{one.suite} on {one.where}", tag("small", day))
    return tag("section", head, *inner, records if one.records else "", id=anchor, class_="result")


def _records(one: Results) -> Markup:
    caption = f"Records of {one.name}.jsonl"
    if one.timed:
        rows = [[row["rung"], *_time(row)] for row in one.timed]
        return table(("what", *TIMES), rows, caption, right=FIGURES)
    keys = list(dict.fromkeys(key for row in one.records for key in row))
    return table(keys, ([_cell(row.get(key)) for key in keys] for row in one.records), caption)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.5g}"
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)
