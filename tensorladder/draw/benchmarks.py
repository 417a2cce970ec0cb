"""Pictures of benchmark records: the ladder (a bar a rung), ratios (a row a shape, a point a baseline), and the
roofline (a point a kernel and shape).

Records are those of `tensorladder bench --json`, `machine` the first line of a result file. Records without a time
(wrong results) are left out.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from html import escape
from typing import Any

Record = Mapping[str, Any]

INK, PALE, BASE = "#222", "#ccc", "#d95f02"
COLOURS = ("#1b6ca8", "#5aa469", "#8e44ad", "#c0392b", "#b8860b", "#16a085", "#7f8c8d", "#2c3e50")
GREY = COLOURS[6]
ASIDE = "asides, beside the ladder: no step goes on from them"
FONT = "font-family='sans-serif' font-size='12'"
MOST_RATIO, TICKS = 2.5, (0.25, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 2.5)
ROW, LABEL, PLOT, RIGHT, TOP = 18, 240, 460, 130, 46


def pictures(machine: Record, records: Sequence[Record], asides: Collection[str] = ()) -> dict[str, str]:
    """The pictures that are kept beside a result file, by what follows its stem: "" and "-roofline" (of a GPU).

    asides: the rungs that are no step of a ladder.
    """
    op = any(str(row["rung"]).startswith("matmul") for row in records)
    made = {"": ratios(machine, records) if op else ladder(machine, records, asides)}
    return made if machine.get("on") == "vgpu" else {**made, "-roofline": roofline(machine, records)}


def ladder(machine: Record, records: Iterable[Record], asides: Collection[str] = ()) -> str:
    """A bar a rung and shape, as long as its TFLOPS; a mark where the baseline beside it was; the ratio in figures.

    Of each shape the steps stand one below the other, by series, and under a heading of their own, in grey, `asides`.
    """
    rows = _timed(records)
    shapes = list(dict.fromkeys(tuple(row["shape"]) for row in rows))
    most = max([max(row["tflops"], _baseline_tflops(row) or 0.0) for row in rows], default=1.0)
    parts, y = [], TOP
    for shape in shapes:
        parts.append(_text(8, y + 12, "x".join(map(str, shape)), weight="bold"))
        y += ROW
        mine = sorted((row for row in rows if tuple(row["shape"]) == shape), key=_series)
        beside = [row for row in mine if str(row["rung"]).partition(":")[0] in asides]  # with other knobs too
        for row in mine:
            if row not in beside:
                parts += _bar(row, y, most, COLOURS[0])
                y += ROW
        if beside:
            parts.append(_text(8, y + 12, ASIDE))
            y += ROW
        for row in beside:
            parts += _bar(row, y, most, GREY)
            y += ROW
        y += ROW // 2
    against = ", ".join(dict.fromkeys(row["baseline"] for row in rows if row["baseline"]))
    title = f"TFLOPS on {_name(machine)}; mark: {against} beside it (in brackets: its time over ours)"
    return _svg(LABEL + PLOT + RIGHT, y + 8, title, parts)


def _series(row: Record) -> str:
    return str(row["rung"]).partition("-")[0].rstrip("0123456789")


def _bar(row: Record, y: float, most: float, colour: str) -> list[str]:
    """A line of the ladder. most: the TFLOPS of the longest bar."""
    width, base = PLOT * row["tflops"] / most, _baseline_tflops(row)
    ratio = f" ({row['ratio']:.2f})" if row["ratio"] else ""
    parts = [
        _text(LABEL - 6, y + 12, row["rung"], anchor="end"),
        f"<rect x='{LABEL}' y='{y + 2}' width='{width:.1f}' height='{ROW - 4}' fill='{colour}'/>",
        _text(LABEL + PLOT + 8, y + 12, f"{row['tflops']:.3g}{ratio}"),
    ]
    if base:
        x = LABEL + PLOT * base / most
        parts.append(f"<path d='M{x:.1f} {y}V{y + ROW}' stroke='{BASE}' stroke-width='2'/>")
    return parts


def ratios(machine: Record, records: Iterable[Record]) -> str:
    """A row a call and shape: a point for each baseline's time over ours, right of the line where ours is faster."""
    rows = [row for row in records if row.get("ratio")]
    found: dict[str, dict[tuple[int, ...], list[Record]]] = {}
    for row in rows:
        found.setdefault(row["rung"], {}).setdefault(tuple(row["shape"]), []).append(row)
    baselines = list(dict.fromkeys(row["baseline"] for row in rows))
    colours = {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(baselines)}
    every = [row["ratio"] for row in rows]
    low, high = min(0.9, *every, 0.9) * 0.97, min(max(1.1, *every, 1.1) * 1.03, MOST_RATIO)
    parts, y = [], TOP

    def across(ratio: float) -> float:
        return LABEL + PLOT * math.log(min(ratio, high) / low) / math.log(high / low)

    for name, shapes in found.items():
        parts.append(_text(8, y + 12, name, weight="bold"))
        y += ROW
        for shape, mine in shapes.items():
            parts.append(_text(LABEL - 6, y + 12, "x".join(map(str, shape)), anchor="end"))
            parts.append(f"<path d='M{LABEL} {y + 9}H{LABEL + PLOT}' stroke='{PALE}'/>")
            parts += [_point(across(row["ratio"]), y + 9, colours[row["baseline"]], row) for row in mine]
            parts.append(_text(LABEL + PLOT + 8, y + 12, f"{min(row['ratio'] for row in mine):.2f}"))
            y += ROW
    ticks = [tick for tick in TICKS if low <= tick <= high]
    lines = [f"<path d='M{across(x):.1f} {TOP}V{y}' stroke='{INK if x == 1.0 else PALE}'/>" for x in ticks]
    parts += [_text(across(tick), y + 14, f"{tick:g}", anchor="middle") for tick in ticks]
    title = f"Its time over ours on {_name(machine)} (figure: against the fastest)"
    return _svg(LABEL + PLOT + RIGHT, y + 24, title, [*lines, *_key(colours), *parts])


def _point(x: float, y: float, colour: str, row: Record) -> str:
    words = escape(f"{row['baseline']} {row['ratio']:.3f}")
    return f"<circle cx='{x:.1f}' cy='{y}' r='4' fill='{colour}'><title>{words}</title></circle>"


def _key(colours: Mapping[str, str]) -> list[str]:
    """Which colour is what, above the plot."""
    parts, x = [], LABEL
    for name, colour in colours.items():
        parts += [f"<circle cx='{x}' cy='{TOP - 9}' r='4' fill='{colour}'/>", _text(x + 8, TOP - 5, name)]
        x += 30 + 8 * len(name)
    return parts


EIGHT_BITS = ("e4m3", "e5m2")


def roofline(machine: Record, records: Iterable[Record]) -> str:
    """TFLOPS over operations a byte (every array moved once), both logarithmic, under the roofs of memory and of the
    tensor cores, for the element types that are there."""
    rows = [row for row in _timed(records) if row.get("bytes")]
    width, height, left, bottom = 620, 380, 60, 40
    points = [(row["flops"] / row["bytes"], row["tflops"], row["rung"]) for row in rows]
    rungs = list(dict.fromkeys(rung for _, _, rung in points))
    memory, peaks = machine.get("memory_bytes_s") or 0.0, _peaks(machine, rows)
    xs, ys = [x for x, _, _ in points] or [1.0], [y for _, y, _ in points] or [1.0]
    x0, x1 = math.floor(math.log10(min(xs))), math.ceil(math.log10(max(xs) * 1.01))
    y0, y1 = math.floor(math.log10(min(ys))), math.ceil(math.log10(max([*ys, *peaks]) * 1.01))

    def at(x: float, y: float) -> tuple[float, float]:
        across = (math.log10(x) - x0) / (x1 - x0)
        up = (math.log10(y) - y0) / (y1 - y0)
        return left + across * (width - left - 20), TOP + (1 - up) * (height - TOP - bottom)

    parts = _grid(at, range(x0, x1 + 1), range(y0, y1 + 1))
    for peak, bits in peaks.items() if memory else ():
        ridge = peak * 1e12 / memory
        start = max(10.0**x0, 10.0**y0 * 1e12 / memory)
        corners = [(start, start * memory / 1e12), (min(ridge, 10.0**x1), min(peak, 10.0**x1 * memory / 1e12))]
        corners += [(10.0**x1, peak)] if ridge < 10.0**x1 else []
        path = "L".join("{:.1f} {:.1f}".format(*at(*corner)) for corner in corners)
        parts.append(f"<path d='M{path}' fill='none' stroke='{INK}' stroke-width='1.5'/>")
        words = f"{peak:.0f} TFLOPS at the highest clock, {bits} bits"
        parts.append(_text(width - 24, at(10.0**x1, peak)[1] - 5, words, anchor="end"))
    for x, y, rung in points:
        px, py = at(x, y)
        colour = COLOURS[rungs.index(rung) % len(COLOURS)]
        name = f"<title>{escape(rung)}</title>"
        parts.append(f"<circle cx='{px:.1f}' cy='{py:.1f}' r='3.5' fill='{colour}'>{name}</circle>")
    for i, rung in enumerate(rungs):
        parts.append(f"<circle cx='{width + 8}' cy='{TOP + 6 + ROW * i}' r='3.5' fill='{COLOURS[i % len(COLOURS)]}'/>")
        parts.append(_text(width + 18, TOP + 10 + ROW * i, rung))
    parts.append(_text((left + width) / 2, height - 6, "operations a byte", anchor="middle"))
    title = f"TFLOPS by arithmetic intensity on {_name(machine)}"
    return _svg(width + 250, max(height, TOP + ROW * len(rungs) + 10), title, parts)


def _peaks(machine: Record, rows: Sequence[Record]) -> dict[float, int]:
    """TFLOPS at most -> bits of the operands that are multiplied at that rate: half the bits, twice the rate."""
    peak = machine.get("peak_tflops")
    narrow = {row["dtype"] in EIGHT_BITS for row in rows}
    return {peak * (1 + eight): 8 if eight else 16 for eight in sorted(narrow)} if peak else {}


def _grid(at: Any, columns: Sequence[int], rows: Sequence[int]) -> list[str]:
    (left, bottom), (right, top) = at(10.0 ** columns[0], 10.0 ** rows[0]), at(10.0 ** columns[-1], 10.0 ** rows[-1])
    parts = []
    for power in columns:
        x = at(10.0**power, 10.0 ** rows[0])[0]
        parts.append(f"<path d='M{x:.1f} {bottom:.1f}V{top:.1f}' stroke='{PALE}'/>")
        parts.append(_text(x, bottom + 15, f"{10.0**power:g}", anchor="middle"))
    for power in rows:
        y = at(10.0 ** columns[0], 10.0**power)[1]
        parts.append(f"<path d='M{left:.1f} {y:.1f}H{right:.1f}' stroke='{PALE}'/>")
        parts.append(_text(left - 6, y + 4, f"{10.0**power:g}", anchor="end"))
    return parts


def _timed(records: Iterable[Record]) -> list[Record]:
    """Records with a time, one a rung and shape (the first baseline's)."""
    first: dict[tuple[Any, ...], Record] = {}
    for row in records:
        if row.get("tflops"):
            first.setdefault((row["rung"], tuple(row["shape"]), row["dtype"]), row)
    return list(first.values())


def _baseline_tflops(row: Record) -> float | None:
    return row["tflops"] * row["median_us"] / row["baseline_us"] if row.get("baseline_us") else None


def _name(machine: Record) -> str:
    if machine.get("on") == "vgpu":
        return f"the virtual GPU ({machine.get('cpu', 'CPU')}; wall time of the emulation)"
    return str(machine.get("gpu", "?"))


def _text(x: float, y: float, words: str, anchor: str = "start", weight: str = "normal") -> str:
    where = f"x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' font-weight='{weight}'"
    return f"<text {where} fill='{INK}'>{escape(words)}</text>"


def _svg(width: float, height: float, title: str, parts: Sequence[str]) -> str:
    head = f"<svg xmlns='http://www.w3.org/2000/svg' width='{width:.0f}' height='{height:.0f}' {FONT}>"
    back = "<rect width='100%' height='100%' fill='white'/>"
    return "\n".join([head, back, _text(8, 22, title, weight="bold"), *parts, "</svg>"]) + "\n"
