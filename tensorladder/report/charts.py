"""Pictures of `draw.benchmarks` put into the page: named for who cannot see them, as wide as the page at most, and
in the page's own colours in light and in dark.
"""

from __future__ import annotations

import colorsys
import re

from tensorladder.draw.benchmarks import BASE, COLOURS, INK, PALE
from tensorladder.draw.svg import DARK, contrast
from tensorladder.report.markup import Markup, words

#: least contrast of a mark on its ground (WCAG 2.2, non-text contrast)
SEEN = 3.5
_HEAD = re.compile(r"<svg xmlns='[^']*' width='(\d+)' height='(\d+)'")


def inline(svg: str, label: str) -> Markup:
    """A picture with a name and a view box; its name space is the page's."""
    name = words(label)

    def head(found: re.Match[str]) -> str:
        width, height = found.groups()
        sizes = f"viewBox='0 0 {width} {height}' width='{width}' height='{height}'"
        return f"<svg class='chart' role='img' aria-label='{name}' {sizes}"

    return Markup(_HEAD.sub(head, svg, count=1).strip())


def style() -> str:
    """Rules that put the page's colours for those that the pictures name."""
    ground = ".chart>rect[fill=white]{fill:none}"
    fixed = {INK: "var(--ink)", PALE: "var(--line)"}
    pairs = {colour: f"light-dark({colour},{lighter(colour)})" for colour in (*COLOURS, BASE)}
    rules = (
        f".chart [{what}='{colour}']{{{what}:{value}}}"
        for colour, value in {**fixed, **pairs}.items()
        for what in ("fill", "stroke")
    )
    return "\n".join([ground, *rules])


def lighter(colour: str) -> str:
    """The colour, as light as it must be to be seen on the dark page."""
    hue, lightness, saturation = colorsys.rgb_to_hls(*(int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)))
    made = colour
    while contrast(made, DARK["page"]) < SEEN:
        lightness += 0.02
        made = "#" + "".join(f"{round(255 * part):02x}" for part in colorsys.hls_to_rgb(hue, lightness, saturation))
    return made
