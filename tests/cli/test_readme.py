"""The README says what is so: its table of rungs is the catalogue's, and the verbs and options it names exist.

Run as a script, this puts the table into the README.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tensorladder.rungs.rung import catalog
from tensorladder.zoo import case

README = Path(__file__).parents[2] / "README.md"


def rung_table() -> str:
    """The catalogue as the README's table."""
    rows = ["| rung | adds | parent | first architecture | problem |", "|---|---|---|---|---|"]
    for info in catalog():
        adds = f"{info.adds}<br>*{info.remark}*" if info.aside else info.adds
        rows.append(f"| `{info.name}` | {adds} | {info.parent or ''} | {info.archs[0]} | {info.problem.summary} |")
    return "\n".join(rows)


def between(text: str, name: str) -> str:
    return text.split(f"<!-- {name}: begin -->")[1].split(f"<!-- {name}: end -->")[0].strip()


def test_the_table_is_the_catalogue():
    assert between(README.read_text(encoding="utf-8"), "rungs") == rung_table(), (
        "the ladder changed: `python tests/cli/test_readme.py` brings the table in README.md up to date"
    )


def test_the_climb_shown_names_every_rung():
    shown = between(README.read_text(encoding="utf-8"), "climb")
    missing = [info.name for info in catalog() if info.name not in shown]
    assert not missing, f"run `make climb` and put its output into README.md: {missing}"


def test_the_classes_of_the_zoo_are_counted():
    classes = {info.hazard for info in case.catalog()}
    assert f"in {len(classes)} classes" in README.read_text(encoding="utf-8")


def test_commands_in_the_readme_are_understood(ask):
    """Each `tensorladder VERB ...` of the examples parses: its options are those that the verb has."""
    lines = re.findall(r"^\$ tensorladder (.+?)(?:\s+#.*)?$", README.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(lines) >= 5
    for line in lines:
        verb, *words = line.split()
        help_text = ask(verb, "--help").out
        for word in words:
            if word.startswith("--"):
                assert word in help_text, line


def test_the_python_in_the_readme_runs(tmp_path, monkeypatch):
    pytest.importorskip("llvmlite")
    pytest.importorskip("cutlass")
    shutil.copy(Path(__file__).parents[1] / "data" / "saxpy.ptx", tmp_path)
    pytest.importorskip("torch")
    monkeypatch.setenv("TENSORLADDER_DEVICE", "vgpu")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    names: dict = {}
    for block in blocks:
        exec(block, names)
    assert (names["y"] == 2).all() and names["result"].ok


if __name__ == "__main__":
    now = README.read_text(encoding="utf-8")
    README.write_text(now.replace(between(now, "rungs"), rung_table()), encoding="utf-8")
