"""A rung's docstring as HTML: paragraphs, lists, tables, commands, `code`, and links where it names a rung."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Callable

from tensorladder.report.markup import Markup, join, table, tag, words

#: from a rung's name or step to where it is in the page, or None
Find = Callable[[str], "str | None"]

# code between backticks, or a word that may be a rung's name
_SPAN = re.compile(r"`([^`\n]+(?:\n[^`\n]+)?)`|(?<![\w./-])([a-z]+(?:-[a-z0-9]+)*\d[a-z0-9-]*)(?![\w/=(]|\.\w)")


def spans(text: str, find: Find, own: str = "") -> Markup:
    """Running text: code set as code, names of rungs (but `own`) as links to them."""
    parts, end = [], 0
    for match in _SPAN.finditer(text):
        name = " ".join((match.group(1) or match.group(2)).split())
        shown = tag("code", name) if match.group(1) else words(name)
        anchor = None if name == own else find(name)
        parts += [words(text[end : match.start()]), tag("a", shown, href=f"#{anchor}") if anchor else shown]
        end = match.end()
    return join([*parts, words(text[end:])])


def blocks(text: str, find: Find, caption: str, own: str = "") -> Markup:
    """A section: its blank-line paragraphs, its `- ` lists and its `|` tables, in order."""
    runs = itertools.groupby(_split(inspect.cleandoc(text)), key=lambda run: run[0])
    return join(_made(kind, [lines for _, lines in group], find, caption, own) for kind, group in runs)


def command(text: str) -> Markup:
    """The run line."""
    return tag("pre", tag("code", inspect.cleandoc(text)), class_="command")


def _split(text: str) -> list[tuple[str, list[str]]]:
    """Runs of lines of a kind: a paragraph ("text"), an "item" of a list, a "table"."""
    found: list[tuple[str, list[str]]] = []
    above = ""
    for line in text.splitlines():
        kind = "table" if line.startswith("|") else "item" if line.startswith("- ") else "text"
        if above.strip() and line.strip() and _goes_on(found[-1][0], kind, line):
            found[-1][1].append(line)
        elif line.strip():
            found.append((kind, [line]))
        above = line
    return found


def _goes_on(above: str, kind: str, line: str) -> bool:
    """Whether a line belongs to the run above it: a new item does not, and lines of an item are indented."""
    return kind == "text" and line.startswith(" ") if above == "item" else kind == above


def _made(kind: str, runs: list[list[str]], find: Find, caption: str, own: str) -> Markup:
    if kind == "table":
        return join(_table(lines, find, caption, own) for lines in runs)
    texts = [spans("\n".join(line.strip() for line in lines).removeprefix("- "), find, own) for lines in runs]
    return tag("ul", *(tag("li", text) for text in texts)) if kind == "item" else join(tag("p", text) for text in texts)


def _table(lines: list[str], find: Find, caption: str, own: str) -> Markup:
    """A table of bars. A row whose first cell is empty goes on with the row above."""
    cells = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]
    heads, body = cells[0], [row for row in cells[1:] if not all(set(cell) <= set("-:") and cell for cell in row)]
    rows: list[list[str]] = []
    for row in body:
        if rows and not row[0]:
            rows[-1] = [f"{above} {more}".strip() for above, more in itertools.zip_longest(rows[-1], row, fillvalue="")]
        else:
            rows.append(row)
    return table(heads, ([spans(cell, find, own) for cell in row] for row in rows), caption)
