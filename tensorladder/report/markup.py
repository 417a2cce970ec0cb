"""HTML as text. A `str` is words and is escaped; only `Markup` is taken as it is, so that forgetting escapes twice."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape

VOID = ("input", "link", "meta")


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def words(text: str) -> Markup:
    """Text as HTML that shows it. What UTF-8 cannot hold (lone surrogates) and NUL become the replacement character."""
    shown = text.encode("utf-8", "replace").decode("utf-8").replace("\0", "\ufffd")
    return Markup(escape(shown))


def join(parts: Iterable[str], between: str = "") -> Markup:
    """Parts one after the other, words among them escaped."""
    return Markup(between.join(part if isinstance(part, Markup) else words(part) for part in parts))


def tag(name: str, /, *children: str, **attributes: str | bool | None) -> Markup:
    """An element. `class_` is the attribute class, `data_rung` data-rung; True: an attribute with no value, None or
    False: none.
    """
    said = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{words(str(value))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    return Markup(f"<{name}{said}>" + ("" if name in VOID else f"{join(children)}</{name}>"))


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], caption: str, right: Sequence[str] = ()) -> Markup:
    """A table in a frame that scrolls, a row's first cell its heading. right: columns of figures."""
    side = {i: "figure" for i, head in enumerate(heads) if head in right}
    lines = [
        tag("tr", *(
            tag("th", cell, scope="row") if i == 0 else tag("td", cell, class_=side.get(i))
            for i, cell in enumerate(row)
        ))
        for row in rows
    ]  # fmt: skip
    top = tag("tr", *(tag("th", head, scope="col", class_=side.get(i)) for i, head in enumerate(heads)))
    inner = tag("table", tag("caption", caption), tag("thead", top), tag("tbody", *lines))
    return scrolling("div", inner, label=caption)


def scrolling(name: str, *children: str, label: str, class_: str = "") -> Markup:
    """An element that may be wider than the page: the keyboard can reach it, to scroll."""
    return tag(name, *children, class_=f"scrolls {class_}".strip(), tabindex="0", role="group", aria_label=label)


def slug(text: str, taken: set[str]) -> str:
    """An id made of `text`, unlike all in `taken`, to which it is added."""
    base = re.sub(r"[^a-z0-9_.]+", "-", text.lower()).strip("-.") or "part"
    name, count = base, 1
    while name in taken:
        count += 1
        name = f"{base}-{count}"
    taken.add(name)
    return name
