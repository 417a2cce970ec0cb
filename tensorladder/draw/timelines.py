"""A timeline as a picture: a row a warp's role, rows for TMA and tensor cores, arrows from what ended a wait."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tensorladder.core.timeline import COPY, LOAD, RUN, STORE, TENSOR, WAIT, Span, Timeline
from tensorladder.draw import svg

WIDTH, ROW, LANE, GAP, PAD, AXIS = 860, 16, 9, 6, 12, 26
MOST_SPANS = 1200  # a longer timeline is drawn from its start as far as these reach
_WHEEL = svg.wheel(6)
#: colours, and what the legend calls them
COLOURS = {RUN: _WHEEL[3], WAIT: svg.BLANK, LOAD: _WHEEL[4], STORE: _WHEEL[1], TENSOR: _WHEEL[2], COPY: _WHEEL[5]}
WORDS = {RUN: "runs", WAIT: "waits", LOAD: "load in flight", STORE: "store in flight", TENSOR: "tensor cores",
         COPY: "copy"}  # fmt: skip
_LANE = re.compile(r" \(\d+\)$")


@dataclass(frozen=True)
class _Row:
    """tracks: one, or the lanes of a unit."""

    label: str
    tracks: tuple[int, ...]

    @property
    def height(self) -> float:
        return ROW if len(self.tracks) == 1 else LANE * len(self.tracks)


def picture(line: Timeline, group: str | None = None) -> str | None:
    """One group of a timeline (the first unless named) as SVG; None where nothing waits and no unit does anything."""
    if not line.groups:
        return None
    group = group or line.groups[0]
    line = line.only([group])
    rows = _rows(line)
    shown = {track for row in rows for track in row.tracks}
    spans = sorted((n for n, span in enumerate(line.spans) if span.track in shown), key=lambda n: line.spans[n].start)
    if all(line.spans[n].kind == RUN for n in spans):
        return None
    spans = spans[:MOST_SPANS]
    return _document(line, group, rows, spans)


def _rows(line: Timeline) -> list[_Row]:
    """One warp of each role (one a warpgroup where a role has more than one), then the units."""
    made: list[_Row] = []
    first: dict[str, int] = {}
    units: dict[str, list[int]] = {}
    for number, track in enumerate(line.tracks):
        if not track.role:
            units.setdefault(_LANE.sub("", track.name), []).append(number)
            continue
        warp = re.match(r"warp (\d+)", track.name)
        at = int(warp.group(1)) if warp else 0
        if track.role == "nothing" or (track.role in first and (at - first[track.role]) % 4):
            continue
        first.setdefault(track.role, at)
        made.append(_Row(track.name[:40], (number,)))
    return made + [_Row(name, tuple(tracks)) for name, tracks in units.items()]


def _document(line: Timeline, group: str, rows: Sequence[_Row], spans: Sequence[int]) -> str:
    label = max(len(row.label) for row in rows) * svg.CHARACTER + 2 * PAD
    begin = min(line.spans[n].start for n in spans)
    end = max(line.spans[n].end for n in spans)
    scale = WIDTH / max(end - begin, 1e-9)
    tops: dict[int, float] = {}
    y = float(AXIS + 2 * PAD)
    parts: list[str] = []
    for row in rows:
        parts.append(svg.text(PAD, y + row.height / 2 + 4, row.label))
        step = row.height / len(row.tracks)
        tops.update({track: y + k * step for k, track in enumerate(row.tracks)})
        y += row.height + GAP
    bottom = y
    parts += _axis(begin, end, scale, label, bottom)
    heights = {track: row.height / len(row.tracks) for row in rows for track in row.tracks}
    for n in spans:
        span = line.spans[n]
        x, width = label + (span.start - begin) * scale, max((span.end - span.start) * scale, 0.3)
        height = heights[span.track] - 1
        parts.append(svg.area(x, tops[span.track], width, height, COLOURS[span.kind], note=_note(span)))
    parts += _arrows(line, set(spans), tops, heights, lambda at: label + (at - begin) * scale)
    kinds = [kind for kind in COLOURS if any(line.spans[n].kind == kind for n in spans)]
    parts += _legend(kinds, label, bottom + 4)
    title = f"Timeline: {line.title}, {group}"
    words = ", ".join(f"{WORDS[kind]} {sum(line.spans[n].kind == kind for n in spans)} times" for kind in kinds)
    description = f"{(end - begin):.0f} ns; rows: {', '.join(row.label for row in rows)}; {words}"
    return svg.document(label + WIDTH + PAD, bottom + 3 * PAD, title, description, parts)


def _note(span: Span) -> str:
    more = [f"{span.facts[key]}" for key in ("for", "at") if span.facts.get(key)]
    return ", ".join([f"{span.name}: {span.start:.0f} to {span.end:.0f} ns", *more])


def _axis(begin: float, end: float, scale: float, left: float, bottom: float) -> list[str]:
    """Ticks at round numbers of nanoseconds, some eight of them."""
    step = 10 ** math.floor(math.log10(max(end - begin, 1e-9) / 8))
    step *= next(factor for factor in (1, 2, 5, 10) if (end - begin) / (step * factor) <= 8)
    made = [svg.text(PAD, PAD + svg.LINE, "ns", style="pale")]
    for k in range(int((end - begin) / step) + 1):
        x = left + k * step * scale
        made.append(svg.text(x, PAD + svg.LINE, f"{k * step:g}", "middle", "pale"))
        made.append(f"<path class='tl-cell' d='M{x:.1f} {AXIS}V{bottom:.1f}' fill='none' opacity='.35'/>")
    return made


def _arrows(
    line: Timeline,
    shown: set[int],
    tops: dict[int, float],
    heights: dict[int, float],
    at: Callable[[float], float],
) -> list[str]:
    """From the end of what ended a wait to the start of what follows it."""
    made = []
    for arrow in line.arrows:
        if arrow.source not in shown or arrow.target not in shown:
            continue
        source, target = line.spans[arrow.source], line.spans[arrow.target]
        x = at(target.start)
        y0 = tops[source.track] + heights[source.track] / 2
        y1 = tops[target.track] + heights[target.track] / 2
        x0 = min(at(source.end), x)
        tip = -3 if y1 > y0 else 3
        made.append(
            f"<path class='tl-cell' d='M{x0:.1f} {y0:.1f}L{x:.1f} {y1:.1f}m-2 {tip}l2 {-tip}l2 {tip}' fill='none'/>"
        )
    return made


def _legend(kinds: Sequence[str], x: float, y: float) -> list[str]:
    made = []
    for kind in kinds:
        made += [svg.area(x, y, 10, 10, COLOURS[kind]), svg.text(x + 15, y + 9, WORDS[kind], style="pale")]
        x += 15 + len(WORDS[kind]) * svg.CHARACTER + 3 * PAD
    return made
