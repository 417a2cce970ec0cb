"""A unified diff as HTML: what is gone, what is new, and within a line that was edited, what of it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from tensorladder.report.markup import Markup, join, scrolling, tag, words

ELEMENTS = {"-": "del", "+": "ins"}
#: two lines are one line edited where this part of the longer is the same at its ends
ALIKE = 0.5

_HUNK = re.compile(r"@@ -\d+(?:,\d+)? \+(\d+)")


def changes(diff: str, label: str) -> Markup:
    """The diff as one block of code, its file header left out; a hunk begins with the line it stands at."""
    runs = [(mark, list(lines)) for mark, lines in itertools.groupby(diff.splitlines()[2:], key=lambda line: line[:1])]
    parts: list[str] = []
    for number, (mark, lines) in enumerate(runs):
        following = runs[number + 1] if number + 1 < len(runs) else ("", [])
        if mark == "-" and following[0] == "+":
            parts += _edited(lines, following[1])
        elif mark == "+" and number and runs[number - 1][0] == "-":
            continue  # written with what it replaces
        elif mark == "@":
            parts += [tag("span", f"from line {_start(line)}", class_="hunk") for line in lines]
        else:
            parts.append(_block(mark, [words(line) for line in lines]))
    return scrolling("pre", tag("code", *parts), label=label, class_="diff")


def _start(line: str) -> str:
    found = _HUNK.match(line)
    return found.group(1) if found else "?"


def _block(mark: str, lines: Sequence[Markup]) -> Markup:
    return tag(ELEMENTS.get(mark, "span"), join(lines, "\n"))


def _edited(old: Sequence[str], new: Sequence[str]) -> list[Markup]:
    """Lines replaced by others: where as many came as went, those that are alike show what differs."""
    pairs = [_marked(*pair) for pair in zip(old, new)] if len(old) == len(new) else []
    if not pairs:
        pairs = list(itertools.zip_longest(map(words, old), map(words, new)))
    return [_block(mark, [line for line in side if line is not None]) for mark, side in zip("-+", zip(*pairs))]


def _marked(old: str, new: str) -> tuple[Markup, Markup]:
    """Two lines with what lies between their common ends marked, unless little else is left."""
    head = 1 + _common(old[1:], new[1:])
    tail = min(_common(old[::-1], new[::-1]), len(old) - head, len(new) - head)
    if head - 1 + tail < ALIKE * max(len(old), len(new)):
        return words(old), words(new)
    return tuple(  # type: ignore[return-value]
        join([line[:head], tag("mark", line[head : len(line) - tail]), line[len(line) - tail :]])
        if len(line) - tail > head else words(line)
        for line in (old, new)
    )  # fmt: skip


def _common(old: str, new: str) -> int:
    """How many characters two lines share at their beginning."""
    return next((i for i, (a, b) in enumerate(zip(old, new)) if a != b), min(len(old), len(new)))
