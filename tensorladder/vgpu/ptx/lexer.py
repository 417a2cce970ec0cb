"""PTX text to tokens (PTX ISA, "Syntax"). One regular expression; comments and white space are dropped."""

from __future__ import annotations

import re

from tensorladder.core.errors import UsageError

_TOKEN = re.compile(
    r"""
    (?P<skip>[ \t\r\f\v]+|//[^\n]*|/\*.*?\*/)
  | (?P<nl>\n)
  | (?P<str>"(?:[^"\\\n]|\\.)*")
  | (?P<num>0[fF][0-9a-fA-F]{8}\b|0[dD][0-9a-fA-F]{16}\b|0[xX][0-9a-fA-F]+U?|0[bB][01]+U?
      |\d+\.\d*(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|\d+U?)
  | (?P<id>[%$_a-zA-Z][\w$]*(?:(?:::|\.)[\w$]+)*(?:::[\w$]+)*)
  | (?P<dir>\.[a-zA-Z_][\w:]*)
  | (?P<punct>[{}()\[\],;:@!|+\-*/<>=&~?^\#])
    """,
    re.VERBOSE | re.DOTALL,
)


def tokenize(text: str) -> list[tuple[str, str, int]]:
    """Tokens as (kind, text, line); kinds are str, num, id, dir and punct.

    Raises UsageError naming the line of the first character that no PTX token starts with.
    """
    out: list[tuple[str, str, int]] = []
    line, pos, end = 1, 0, len(text)
    match = _TOKEN.match
    append = out.append
    while pos < end:
        m = match(text, pos)
        if m is None:
            raise UsageError(f"PTX line {line}: unexpected character {text[pos]!r}")
        kind = m.lastgroup or ""
        if kind == "nl":
            line += 1
        elif kind == "skip":
            if text.startswith("/*", pos):
                line += m.group().count("\n")
        else:
            append((kind, m.group(), line))
        pos = m.end()
    return out


def inline_lines(lines: list[str]) -> set[int]:
    """Lines inside inline assembly: CuTe DSL's compiler counts its lines on from the source line, as if they stood
    there, so that their `.loc` names lines that have nothing to do with it."""
    inside, found = False, set()
    for number, line in enumerate(lines, 1):
        inside = (inside or "// begin inline asm" in line) and "// end inline asm" not in line
        if inside:
            found.add(number)
    return found
