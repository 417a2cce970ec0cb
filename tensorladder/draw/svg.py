"""SVG as text: elements, colours, and a document that reads in light and in dark and that screen readers can name.

The same input gives the same bytes. Styles are classes whose names begin with `tl-`, so that a picture put into a page
changes nothing else there; coloured areas are pale in both modes and carry dark text (`tl-on`).
"""

from __future__ import annotations

import colorsys
import zlib
from collections.abc import Sequence
from html import escape

#: pixels of a character and of a line of the text (monospace, 11 px)
CHARACTER, LINE, FONT = 6.7, 13, 11
#: text on coloured areas; page, ink and pale ink in light and in dark
ON = "#14181d"
LIGHT = {"page": "#ffffff", "ink": "#1f2328", "pale": "#57606a"}
DARK = {"page": "#0d1117", "ink": "#e6edf3", "pale": "#9198a1"}
BLANK = "none"
#: least contrast of text: WCAG's 4.5 and some more
READABLE = 6.0


def wheel(count: int) -> tuple[str, ...]:
    """`count` pale colours around the wheel; neighbours differ in lightness too, and all bear dark text."""
    made = []
    for i in range(count):
        lightness, saturation = ((0.80, 0.75), (0.66, 0.62))[i % 2]
        while contrast(colour := _hex(i / count, lightness, saturation), ON) < READABLE:
            lightness += 0.02  # blue is dark for its lightness
        made.append(colour)
    return tuple(made)


def _hex(hue: float, lightness: float, saturation: float) -> str:
    return "#" + "".join(f"{round(255 * part):02x}" for part in colorsys.hls_to_rgb(hue, lightness, saturation))


def contrast(one: str, other: str) -> float:
    """The contrast ratio of two colours "#rrggbb", 1 to 21 (WCAG 2.2, "contrast ratio")."""
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear))


def _number(value: float) -> str:
    """To a tenth of a pixel, as short as it goes."""
    return f"{value:.1f}".removesuffix(".0")


def text(x: float, y: float, words: str, anchor: str = "start", style: str = "ink") -> str:
    """Words with their base line at y. style: ink, pale, bold or on (a coloured area)."""
    where = f"x='{_number(x)}' y='{_number(y)}'" + ("" if anchor == "start" else f" text-anchor='{anchor}'")
    return f"<text class='tl-{style}' {where}>{escape(words, quote=False)}</text>"


def area(
    x: float, y: float, width: float, height: float, fill: str = BLANK, style: str = "cell", note: str = ""
) -> str:
    """A rectangle; note: what a pointer over it, or a screen reader, says."""
    sizes = {"x": x, "y": y, "width": width, "height": height}
    where = " ".join(f"{name}='{_number(value)}'" for name, value in sizes.items())
    inside = f"<title>{escape(note, quote=False)}</title>" if note else ""
    return f"<rect class='tl-{style}' {where} fill='{fill}'>{inside}</rect>"


def document(width: float, height: float, title: str, description: str, parts: Sequence[str]) -> str:
    """The whole picture: title and description first, for who cannot see it."""
    mark = f"tl-{zlib.crc32(title.encode()):08x}"
    return "\n".join([
        f"<svg xmlns='http://www.w3.org/2000/svg' class='tl-picture' role='img' aria-labelledby='{mark}-t {mark}-d' "
        f"viewBox='0 0 {width:.0f} {height:.0f}' width='{width:.0f}' height='{height:.0f}'>",
        f"<title id='{mark}-t'>{escape(title, quote=False)}</title>",
        f"<desc id='{mark}-d'>{escape(description, quote=False)}</desc>",
        f"<style>{_style()}</style>",
        "<rect class='tl-page' width='100%' height='100%'/>",
        *parts,
        "</svg>",
    ]) + "\n"  # fmt: skip


def _style() -> str:
    font = f"font:{FONT}px ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace"
    fixed = (
        f".tl-picture text{{{font};pointer-events:none}}.tl-picture .tl-bold{{font-weight:bold}}"
        f".tl-on{{fill:{ON}}}.tl-cell{{stroke-width:.6}}.tl-mark{{stroke-width:2.4}}"
    )
    return f"{fixed}{_mode(LIGHT)}@media(prefers-color-scheme:dark){{{_mode(DARK)}}}"


def _mode(colours: dict[str, str]) -> str:
    ink, pale, page = colours["ink"], colours["pale"], colours["page"]
    return (
        f".tl-page{{fill:{page}}}.tl-ink,.tl-bold{{fill:{ink}}}.tl-pale{{fill:{pale}}}"
        f".tl-cell{{stroke:{pale}}}.tl-mark{{stroke:{ink}}}"
    )
