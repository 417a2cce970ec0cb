"""The course and the guides: every block of code runs, every rung has its lesson, the site builds without a warning."""

from __future__ import annotations

import fnmatch
import re
import shlex
from pathlib import Path

import pytest

from tensorladder.rungs.rung import catalog

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```', re.MULTILINE | re.DOTALL)
#: what stands behind a command that cannot run in a test: it needs a library's checkout, or a GPU
NOT_HERE = "# not run here"
STATUS = re.compile(r"# exit status (\d)")
#: languages that are run, written into files, or shown as they are
LANGUAGES = {"python", "console", "ptx", "text", "c", "cpp", "cuda"}


def blocks(page: Path) -> list[tuple[str, str, str]]:
    """(language, title, text) of a page's blocks of code."""
    return [(one[1], one[2] or "", one[3]) for one in BLOCK.finditer(page.read_text(encoding="utf-8"))]


def pages_with(language: str) -> list[Path]:
    return [page for page in PAGES if any(kind == language for kind, _, _ in blocks(page))]


def name(page: Path) -> str:
    return str(page.relative_to(DOCS))


def test_blocks_are_of_languages_that_are_run():
    assert {kind for page in PAGES for kind, _, _ in blocks(page)} <= LANGUAGES


@pytest.mark.parametrize("page", pages_with("python"), ids=name)
def test_the_python_runs(page, tmp_path, monkeypatch):
    """All blocks of a page, one after the other, with the names of those before."""
    for needed in ("llvmlite", "cutlass", "torch"):
        pytest.importorskip(needed)
    monkeypatch.setenv("TENSORLADDER_DEVICE", "vgpu")
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": page.stem}
    for number, (kind, _, text) in enumerate(blocks(page)):
        if kind == "python":  # as a file: the DSL reads a kernel's source
            place = tmp_path / f"block{number}.py"
            place.write_text(text)
            exec(compile(text, str(place), "exec"), names)


@pytest.mark.parametrize("page", pages_with("console"), ids=name)
def test_the_commands_run(page, tmp_path, monkeypatch, ask):
    """Each command, in a folder that has the page's titled blocks as files; what it prints is what is shown."""
    for needed in ("llvmlite", "cutlass"):
        pytest.importorskip(needed)
    monkeypatch.chdir(tmp_path)
    for _, title, text in blocks(page):
        if title:
            (tmp_path / title).write_text(text)
    for kind, _, text in blocks(page):
        if kind == "console":
            for command, shown in commands(text):
                carry_out(command, shown, ask)


def commands(text: str) -> list[tuple[str, list[str]]]:
    """The commands of a block, each with the lines that it is said to print."""
    found: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif line.strip():
            found[-1][1].append(line)
    return found


def carry_out(command: str, shown: list[str], ask) -> None:
    if NOT_HERE in command:
        return
    program, verb, *words = shlex.split(command, comments=True)
    assert program == "tensorladder", f"{command}: only tensorladder's own commands are run: add {NOT_HERE!r}"
    said = ask(verb, *words)
    status = STATUS.search(command)
    assert said.code == (int(status[1]) if status else 0), f"{command}: {said.err}"
    # "..." stands for anything, on a line or for lines
    pattern = "*".join(" ".join(line.split()).replace("[", "[[]") for line in shown).replace("...", "*")
    assert fnmatch.fnmatchcase(" ".join(said.out.split()), f"{pattern}*"), f"{command} printed:\n{said.out}"


def test_every_rung_has_its_lesson_on_one_page():
    asked = re.findall(r"^<!-- rungs: (\w+) -->$", "\n".join(page.read_text() for page in PAGES), re.MULTILINE)
    assert sorted(asked) == sorted({info.series for info in catalog()})


def test_the_site_builds(tmp_path, monkeypatch):
    """Strictly: a link or an anchor that leads nowhere is an error. Nothing in it is loaded from elsewhere."""
    pytest.importorskip("material")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    monkeypatch.setenv("NO_MKDOCS_2_WARNING", "1")
    config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path / "site"))
    build(config)
    made = {page.relative_to(tmp_path / "site").as_posix(): page.read_text() for page in tmp_path.rglob("*.html")}
    for info in catalog():
        holders = [place for place, text in made.items() if f'<h2 id="{info.name}"' in text]
        assert len(holders) == 1, f"{info.name}: {holders}"
    broken = [link for text in made.values() for link in re.findall(r'href="([\w-]+\.html)#', text)
              if f"course/{link}" not in made and link not in made and f"guides/{link}" not in made]  # fmt: skip
    assert not broken
    loads = re.compile(r'<(?:script|link|img)[^>]+(?:src|href)="(https?://[^"]+)"')
    elsewhere = {url for text in made.values() for url in loads.findall(text)}
    assert not elsewhere
