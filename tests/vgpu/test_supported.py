"""SUPPORTED.md says what the dispatch table says, and the table says something of each instruction."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("llvmlite")
from tensorladder.vgpu.codegen import supported, table
from tensorladder.vgpu.ptx import isa

ROOT = Path(__file__).parents[2]


def test_the_file_is_up_to_date() -> None:
    written = (ROOT / "SUPPORTED.md").read_text()
    assert written == supported.document(), "run `python -m tensorladder.vgpu.codegen.supported`"


def test_every_instruction_of_the_isa_is_in_it_once() -> None:
    text = supported.document()
    for name in isa.FAMILIES:
        assert f"`{name}`" in text, name
    words = [word for _, words in supported.sections().values() for word in words]
    assert len(words) == len(set(words)) == len(isa.MNEMONICS)


def test_the_table_holds_only_instructions_of_the_isa_and_says_what_runs() -> None:
    for name, entry in table.load().items():
        assert name in isa.MNEMONICS
        assert entry.forms, f"{name}: forms= is empty, so SUPPORTED.md cannot say what runs"
