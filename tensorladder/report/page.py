"""The whole page, and how it gets into its file."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

from tensorladder import __version__
from tensorladder.core.errors import UsageError
from tensorladder.core.files import check_place, write_whole
from tensorladder.report import charts, sections
from tensorladder.report.facts import Facts
from tensorladder.report.markup import Markup, tag

_HERE = Path(__file__).parent


def page(facts: Facts) -> str:
    """The page as one HTML document. It loads nothing: style, script and pictures are in it, and its security policy
    allows only this script, whatever a result file or a docstring says. The same facts give the same bytes.
    """
    script = (_HERE / "page.js").read_text(encoding="utf-8")
    css = (_HERE / "page.css").read_text(encoding="utf-8") + charts.style()
    parts = {
        "Ladder": sections.ladder(facts),
        "Results": sections.results(facts),
        "Rungs": tag("div", sections.rungs(facts), tag("p", "No rung matches.", id="none", hidden=True)),
    }
    parts = {name: made for name, made in parts.items() if made}
    made = tag(
        "html",
        tag("head", *_head(css, script)),
        tag(
            "body",
            tag("a", "Skip to the ladder", href="#main", class_="skip"),
            tag("header", tag("h1", "tensorladder"), _about(facts), _controls(facts, list(parts)), id="top"),
            tag("main", *(_part(name, inner) for name, inner in parts.items()), id="main"),
            tag("script", Markup(script)),
        ),
        lang="en",
    )
    return f"<!DOCTYPE html>\n{made}\n"


def _head(css: str, script: str) -> list[Markup]:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    return [
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", "tensorladder: the ladder"),
        tag("link", rel="icon", href="data:,"),
        tag("style", Markup(css)),
    ]


def _about(facts: Facts) -> Markup:
    where = " and ".join(dict.fromkeys(one.where for _, one in facts.results))
    measured = f", measured on {where}" if where else ""
    words = f"Tensor-core kernels for NVIDIA GPUs, one hardware feature a rung: {len(facts.rungs)} rungs{measured}."
    return tag("p", f"{words} Version {__version__}.")


def _controls(facts: Facts, parts: list[str]) -> Markup:
    """Links, and what needs the script; it shows them itself."""
    series = list(dict.fromkeys(one.info.series for one in facts.rungs))
    archs = sorted({name for one in facts.rungs for name in one.info.archs}, key=lambda name: (len(name), name))
    search = tag("input", id="search", type="search", autocomplete="off", spellcheck="false", aria_keyshortcuts="/",
                 placeholder="mbarrier ring ( / )")  # fmt: skip
    form = tag(
        "form",
        tag("label", "Search ", search),
        _select("Series", "series", ["all", *series]),
        _select("Compiles for", "arch", ["all", *archs]),
        _select("Colours", "colours", ["system", "light", "dark"]),
        tag("button", "Open all", type="button", id="open"),
        tag("button", "Close all", type="button", id="close"),
        tag("output", "", id="count", for_="search series arch", aria_live="polite"),
        id="controls",
        role="search",
        hidden=True,
    )
    links = tag("nav", *(tag("a", name, href=f"#{name.lower()}") for name in parts), aria_label="Parts of the page")
    return tag("div", links, form, class_="bar")


def _select(label: str, name: str, values: list[str]) -> Markup:
    return tag("label", f"{label} ", tag("select", *(tag("option", value, value=value) for value in values), id=name))


def _part(name: str, inner: Markup) -> Markup:
    anchor = name.lower()
    return tag("section", tag("h2", name, id=f"{anchor}-head"), inner, id=anchor, aria_labelledby=f"{anchor}-head")


def check_output(path: str) -> Path:
    """Where the page goes. UsageError for a name of another format, or a folder that is not there."""
    place = Path(path)
    if place.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"-o {path}: the report is HTML, name it {place.stem or 'ladder'}.html")
    return check_place(path, "-o")


def write(path: Path, text: str) -> int:
    """The page into a file, whole or not at all; its bytes. A file that cannot be written is a UsageError."""
    return write_whole(path, text.encode("utf-8"), "-o")
