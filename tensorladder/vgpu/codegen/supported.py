"""SUPPORTED.md: which PTX instructions run on the virtual GPU, from the dispatch table and the table of the ISA.

python -m tensorladder.vgpu.codegen.supported [FILE]    rewrite SUPPORTED.md (a test says when it is out of date)
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tensorladder.vgpu.codegen import special, table
from tensorladder.vgpu.ptx import isa, isa_arithmetic, isa_machine

#: instructions that end blocks are compiled by `kernel`, not by an entry of the table
ENDS = {
    "bra": "with and without a guard; .uni",
    "brx": ".idx with a table of targets",
    "ret": "with and without a guard; .uni",
    "exit": "with and without a guard",
    "trap": "stops the launch with the lanes that reached it",
}

_HEAD = """# PTX that the virtual GPU runs

Written by `python -m tensorladder.vgpu.codegen.supported` from the dispatch table; do not edit.

Sections and instructions are those of the PTX ISA, chapter "Instruction Set". What stands under *refused*, and every
modifier that is not named, compiles to a stop: the run ends with one line that names the instruction, the PTX line
and the source line (exit 3). No instruction is skipped in silence. A spelling that the ISA does not know is
corrupt text (exit 2).
"""


def mnemonic(family: str) -> str:
    """First word of an ISA family: `cp` of `cp.async.bulk`."""
    return family.split(".")[0].split("::")[0]


def sections() -> dict[str, tuple[str, dict[str, list[str]]]]:
    """Section number -> (title, mnemonic -> families), each mnemonic under the section that has it first."""
    titles = {n: title for n, (title, _) in (isa_arithmetic.TABLES | isa_machine.TABLES).items()}
    found: dict[str, tuple[str, dict[str, list[str]]]] = {n: (title, {}) for n, title in titles.items()}
    home: dict[str, str] = {}
    for name, family in isa.FAMILIES.items():
        word = mnemonic(name)
        found[home.setdefault(word, family.section)][1].setdefault(word, []).append(name)
    return {n: section for n, section in found.items() if section[1]}


def forms(word: str) -> tuple[str, str]:
    """(what runs, what is refused) of a mnemonic; nothing runs where the first is empty."""
    if word in ENDS:
        return ENDS[word], ""
    entry = table.load().get(word)
    return (entry.forms or "yes", entry.refused) if entry else ("", "")


def runs(family: str) -> bool:
    """Whether any form of an ISA family runs: its mnemonic has an entry that does not name it as refused."""
    text, refused = forms(mnemonic(family))
    return bool(text) and family not in re.findall(r"[\w.:]+", refused)


def _row(word: str, families: list[str]) -> str:
    text, refused = forms(word)
    more = [f"`{name}`" for name in families if name != word and runs(name)]
    names = f"`{word}`" + (f" ({', '.join(more)})" if more else "")
    return f"| {names} | {_cell(text)} | {_cell(refused)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def document() -> str:
    """The whole text of SUPPORTED.md."""
    parts = [_HEAD]
    for number, (title, words) in sections().items():
        parts.append(f"\n## {title} ({number})\n")
        rows = [_row(word, families) for word, families in words.items() if forms(word)[0]]
        if rows:
            parts += ["| instruction | runs | refused |", "|---|---|---|", *rows]
        whole = [f"`{name}`" for families in words.values() for name in families if not runs(name)]
        if whole:
            parts.append(("\n" if rows else "") + f"Refused whole: {', '.join(whole)}.")
    registers = ", ".join(f"`{name}`" for name in special.SUPPORTED)
    parts.append(f"\n## Special registers\n\n{registers}. All others are refused by name.")
    return "\n".join(parts) + "\n"


def main(arguments: list[str]) -> None:
    """Write the file that is named, or SUPPORTED.md in the present folder."""
    Path(arguments[0] if arguments else "SUPPORTED.md").write_text(document())


if __name__ == "__main__":
    main(sys.argv[1:])
