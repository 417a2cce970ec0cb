"""What the course's pages show of the rungs, made from the rungs when mkdocs builds them.

A page holds prose and directives, each an HTML comment on a line of its own:

    <!-- table: z -->                      the rungs of a series, a row each: its steps, then what stands beside them
    <!-- rungs: z -->                      each rung of a series: lesson, measured figures, what changed
    <!-- draw: swizzle:128B | caption -->  a picture, as `tensorladder draw` makes it
    <!-- picture: llm-h200 | caption -->   a picture kept beside the benchmark results
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from tensorladder.draw.grid import render
from tensorladder.draw.what import draw
from tensorladder.report import lesson
from tensorladder.report.facts import Facts, RungFacts, gather
from tensorladder.report.markup import slug
from tensorladder.rungs.rung import RungInfo, catalog, find

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "benchmarks" / "results"
DIRECTIVE = re.compile(r"^<!-- (\w+): (.+?)(?: \| (.+?))? -->$", re.MULTILINE)
#: a link to a rung as `report.lesson` writes it
TO_RUNG = re.compile(r'href="#([^"]+)"')
PAGES = {
    "z": "layouts", "a": "simt", "b": "ampere", "c": "hopper", "d": "blackwell", "v": "nine-steps", "cuda": "cuda",
    "tirx": "tirx", "fused": "fused",
}  # fmt: skip


def on_files(files: Files, config: Any) -> Files:
    """Add the pictures that pages ask for."""
    for page in sorted(DOCS.rglob("*.md")):
        for kind, what, _ in DIRECTIVE.findall(page.read_text(encoding="utf-8")):
            if kind in PICTURES and files.get_file_from_path(place(kind, what)) is None:
                files.append(File.generated(config, place(kind, what), content=PICTURES[kind](what)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """A page's text with its directives carried out. ValueError for one that there is not."""
    up = "../" * page.file.src_uri.count("/")

    def made(match: re.Match[str]) -> str:
        kind, what, caption = match.groups()
        if kind in PICTURES:
            return f"![{caption or what}]({up}{place(kind, what)})\n\n*{caption or what}*"
        if kind in LISTS:
            return LISTS[kind](what)
        # marks of text that a program keeps up to date
        return match.group(0)

    return DIRECTIVE.sub(made, markdown)


def place(kind: str, what: str) -> str:
    """Where a picture lies in the site."""
    return f"pictures/{kind}-{slug(what, set())}.svg"


def _kept(name: str) -> str:
    return (RESULTS / f"{name}.svg").read_text(encoding="utf-8")


PICTURES: dict[str, Callable[[str], str]] = {"draw": lambda what: render(draw(what)), "picture": _kept}


@functools.cache
def gathered() -> Facts:
    """Every rung, with the figures that are kept."""
    return gather(str(RESULTS))


def table(series: str) -> str:
    """The rungs of a series: what each adds, to which, for which architectures; asides in a table of their own."""
    mine = [info for info in catalog() if info.series == series]
    steps = _table("adds", "parent", ((info, info.adds) for info in mine if not info.aside))
    beside = [(info, f"{info.adds}<br>*pays {info.aside}*") for info in mine if info.aside]
    if not beside:
        return steps
    return f"{steps}\n\nAsides, which no step goes on from:\n\n{_table('adds, and pays', 'beside', beside)}"


def _table(what: str, parent: str, rows: Iterable[tuple[RungInfo, str]]) -> str:
    lines = [f"| rung | {what} | {parent} | compiles for |", "|---|---|---|---|"]
    for info, words in rows:
        place = link(info.parent) if info.parent else ""
        lines.append(f"| {link(info.name)} | {words} | {place} | {' '.join(info.archs)} |")
    return "\n".join(lines)


def link(name: str) -> str:
    """A rung's name as a link to its lesson."""
    return f"[{name}]({PAGES[find(name).series]}.md#{name})"


def rungs(series: str) -> str:
    """The lessons of a series."""
    return "\n\n".join(section(one) for one in gathered().rungs if one.info.series == series)


def section(one: RungFacts) -> str:
    """A rung's lesson: its docstring, what was measured, its knobs and what changed from its parent, folded."""
    info = one.info
    parts = info.sections()
    run = "\n".join(f"$ {line.strip()}" for line in parts.get("Run", "").splitlines() if line.strip())
    text = [f"## {info.name} {{#{info.name}}}", f"**Adds** {info.adds}."]
    text += [f"**An aside**, no step of the ladder: pays {info.aside}."] if info.aside else []
    text += [_html(parts.get("", ""), info.name), _html(parts.get("Adds", ""), info.name)]
    for name in ("Warp roles", "Budget"):
        if parts.get(name):
            text += [f"**{name}**", _html(parts[name], info.name)]
    text += [f"```console\n{run}\n```", _measured(one)]
    if info.parent:
        added, removed = one.changed()
        text.append(f'??? note "Changed from {info.parent}: {added} lines more, {removed} less"')
        text.append("\n".join(f"    {line}" for line in ("```diff", *one.diff.splitlines()[2:], "```")))
    return "\n\n".join(part for part in text if part)


def _html(text: str, own: str) -> str:
    """A docstring's part as HTML, without blank lines, which would end it in Markdown."""
    if not text.strip():
        return ""
    made = lesson.blocks(text, gathered().anchor, f"of {own}", own)
    return TO_RUNG.sub(lambda found: f'href="{PAGES[find(found[1]).series]}.html#{found[1]}"', made).replace("\n", " ")


def _measured(one: RungFacts) -> str:
    """Its times in the ladder's suite as a table; "" where there are none."""
    rows = [timing for timing in one.own if timing.source.suite == "ladder"]
    if not rows:
        return ""
    lines = ["| measured on | M, N, K | type | us | TFLOPS | over cuBLAS |", "|---|---|---|---|---|---|"]
    for timing in rows:
        row = timing.record
        ratio = f"{row['ratio']:.3f}" if row.get("ratio") else ""
        shape = ", ".join(map(str, row["shape"]))
        lines.append(
            f"| {timing.source.where} | {shape} | {row['dtype']} | {row['median_us']:.5g} | {row['tflops']:.4g} "
            f"| {ratio} |"
        )
    return "\n".join(lines)


LISTS: dict[str, Callable[[str], str]] = {"table": table, "rungs": rungs}
