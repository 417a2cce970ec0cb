"""Two pictures of benchmark records: the ladder (a bar a rung) and the roofline (a point a kernel and shape).

Records are those of `tensorladder bench --json`, `machine` the first line of a result file. Records without a time
(wrong results) are left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

Record = Mapping[str, Any]

INK, PALE, BASE = "#222", "#ccc", "#d95f02"
COLOURS = ("#1b6ca8", "#5aa469", "#8e44ad", "#c0392b", "#b8860b", "#16a085", "#7f8c8d", "#2c3e50")
FONT = "font-family='sans-serif' font-size='12'"
ROW, LABEL, PLOT, RIGHT, TOP = 18, 240, 460, 130, 46


def ladder(machine: Record, records: Iterable[Record]) -> str:
    """A bar a rung and shape, as long as its TFLOPS; a mark where the baseline beside it was; the ratio in figures."""
    rows = _timed(records)
    shapes = list(dict.fromkeys(tuple(row["shape"]) for row in rows))
    most = max([max(row["tflops"], _baseline_tflops(row) or 0.0) for row in rows], default=1.0)
    parts, y = [], TOP
    for shape in shapes:
        parts.append(_text(8, y + 12, "x".join(map(str, shape)), weight="bold"))
        y += ROW
        for row in (row for row in rows if tuple(row["shape"]) == shape):
            width, base = PLOT * row["tflops"] / most, _baseline_tflops(row)
            parts.append(_text(LABEL - 6, y + 12, row["rung"], anchor="end"))
            parts.append(f"<rect x='{LABEL}' y='{y + 2}' width='{width:.1f}' height='{ROW - 4}' fill='{COLOURS[0]}'/>")
            ratio = f" ({row['ratio']:.2f})" if row["ratio"] else ""
            parts.append(_text(LABEL + PLOT + 8, y + 12, f"{row['tflops']:.3g}{ratio}"))
            if base:
                x = LABEL + PLOT * base / most
                parts.append(f"<path d='M{x:.1f} {y}V{y + ROW}' stroke='{BASE}' stroke-width='2'/>")
            y += ROW
        y += ROW // 2
    against = ", ".join(dict.fromkeys(row["baseline"] for row in rows if row["baseline"]))
    title = f"TFLOPS on {_name(machine)}; mark: {against} beside it (in brackets: its time over ours)"
    return _svg(LABEL + PLOT + RIGHT, y + 8, title, parts)


def roofline(machine: Record, records: Iterable[Record]) -> str:
    """TFLOPS over operations a byte (every array moved once), both logarithmic, under the machine's two roofs."""
    rows = [row for row in _timed(records) if row.get("bytes")]
    width, height, left, bottom = 620, 380, 60, 40
    points = [(row["flops"] / row["bytes"], row["tflops"], row["rung"]) for row in rows]
    rungs = list(dict.fromkeys(rung for _, _, rung in points))
    peak, memory = machine.get("peak_tflops"), machine.get("memory_bytes_s")
    xs, ys = [x for x, _, _ in points] or [1.0], [y for _, y, _ in points] or [1.0]
    x0, x1 = math.floor(math.log10(min(xs))), math.ceil(math.log10(max(xs) * 1.01))
    y0, y1 = math.floor(math.log10(min(ys))), math.ceil(math.log10(max([*ys, peak or 0.0]) * 1.01))

    def at(x: float, y: float) -> tuple[float, float]:
        across = (math.log10(x) - x0) / (x1 - x0)
        up = (math.log10(y) - y0) / (y1 - y0)
        return left + across * (width - left - 20), TOP + (1 - up) * (height - TOP - bottom)

    parts = _grid(at, range(x0, x1 + 1), range(y0, y1 + 1))
    if peak and memory:
        ridge = peak * 1e12 / memory
        start = max(10.0**x0, 10.0**y0 * 1e12 / memory)
        corners = [(start, start * memory / 1e12), (min(ridge, 10.0**x1), min(peak, 10.0**x1 * memory / 1e12))]
        corners += [(10.0**x1, peak)] if ridge < 10.0**x1 else []
        path = "L".join("{:.1f} {:.1f}".format(*at(*corner)) for corner in corners)
        parts.append(f"<path d='M{path}' fill='none' stroke='{INK}' stroke-width='1.5'/>")
        words = f"{peak:.0f} TFLOPS at the highest clock"
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
