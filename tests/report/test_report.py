"""`tensorladder report`: the page is whole, self-contained, labelled; hostile text stays text; bad input is a line."""

from __future__ import annotations

import base64
import errno
import hashlib
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tensorladder.core.errors import UsageError
from tensorladder.core.findings import Finding, Report, Where
from tensorladder.draw.benchmarks import BASE, COLOURS
from tensorladder.draw.svg import DARK, contrast
from tensorladder.measure.inspect import diff
from tensorladder.report import charts, gather, page, write
from tensorladder.report.changes import changes
from tensorladder.report.hazards import Runner
from tensorladder.report.lesson import blocks
from tensorladder.rungs.rung import Rung, RungInfo, catalog, find

ROOT = Path(__file__).parents[2]
KEPT = str(ROOT / "benchmarks" / "results")
VOID = {"meta", "link", "input"}
HOSTILE = "</script></style><img src=x onerror=alert(1)>'\"&amp; `<b>` \\1 \\q \u202e\0"


class Node:
    """An element: its tag, attributes, children, and all of its text."""

    def __init__(self, tag: str, attributes: dict[str, str], parent: Node | None):
        self.tag, self.attributes, self.parent = tag, attributes, parent
        self.children: list[Node] = []
        self.words: list[str] = []

    def __iter__(self):
        for child in self.children:
            yield child
            yield from child

    def find(self, tag: str = "", **wanted: str) -> list[Node]:
        """Below it: elements of this tag, with these attributes (class_: among its classes)."""
        return [
            one for one in self
            if (not tag or one.tag == tag) and all(
                value in (one.attributes.get("class") or "").split() if key == "class_"
                else one.attributes.get(key.replace("_", "-")) == value for key, value in wanted.items())
        ]  # fmt: skip

    @property
    def text(self) -> str:
        return "".join(self.words)

    @property
    def ancestors(self) -> list[Node]:
        return [] if self.parent is None else [self.parent, *self.parent.ancestors]


class Tree(HTMLParser):
    """The page as a tree; every element has to be closed where it was opened."""

    def __init__(self, html: str):
        super().__init__(convert_charrefs=True)
        self.root = self.here = Node("", {}, None)
        self.feed(html)
        self.close()
        assert self.here is self.root, self.here.tag

    def handle_starttag(self, tag, attrs):
        assert len(dict(attrs)) == len(attrs), attrs
        made = Node(tag, dict(attrs), self.here)
        self.here.children.append(made)
        if tag not in VOID:
            self.here = made

    def handle_startendtag(self, tag, attrs):
        self.here.children.append(Node(tag, dict(attrs), self.here))

    def handle_endtag(self, tag):
        assert self.here.tag == tag, f"</{tag}> in <{self.here.tag}>"
        self.here = self.here.parent

    def handle_data(self, data):
        one = self.here
        while one is not None:
            one.words.append(data)
            one = one.parent


@pytest.fixture(scope="module")
def facts():
    return gather(KEPT)


@pytest.fixture(scope="module")
def html(facts):
    return page(facts)


@pytest.fixture(scope="module")
def tree(html):
    return Tree(html).root


def check_whole(root: Node) -> None:
    """Ids are unique, links lead to them, and nothing is loaded from anywhere."""
    ids = Counter(one.attributes["id"] for one in root if "id" in one.attributes)
    assert ids and max(ids.values()) == 1 and all(re.fullmatch(r"[\w.-]+", name) for name in ids)
    for one in root:
        assert not {"src", "srcset", "action", "formaction", "data", "poster", "style"} & set(one.attributes), one.tag
        assert not any(name.startswith("on") for name in one.attributes)
        href = one.attributes.get("href")
        assert href is None or href == "data:," or (href.startswith("#") and href[1:] in ids), href
        for name in ("aria-labelledby", "for", "aria-describedby"):
            assert all(word in ids for word in one.attributes.get(name, "").split())
        assert one.tag not in ("img", "iframe", "object", "embed", "base", "b")
    assert len(root.find("script")) == 1
    style = "".join(one.text for one in root.find("style"))
    assert "url(" not in style and "@import" not in style and "http" not in style


def test_it_is_whole_and_loads_nothing(tree, html):
    check_whole(tree)
    assert html.startswith('<!DOCTYPE html>\n<html lang="en">')
    assert len(html.encode()) < 4_000_000


def test_only_its_own_script_may_run(tree):
    policy = tree.find("meta", http_equiv="Content-Security-Policy")[0].attributes["content"]
    digest = base64.b64encode(hashlib.sha256(tree.find("script")[0].text.encode()).digest()).decode()
    assert policy.split("; ")[0] == "default-src 'none'" and f"script-src 'sha256-{digest}'" in policy


def test_every_rung_is_there_in_order(tree):
    boxes = tree.find("details", class_="rung")
    assert [box.find("h4")[0].text for box in boxes] == [info.name for info in catalog()]
    rows = [row for row in tree.find("tr") if "data-rung" in row.attributes]
    assert [row.attributes["data-rung"] for row in rows] == [box.attributes["id"] for box in boxes]
    for info, row in zip(catalog(), rows):
        links = [one.text for one in row.find("a")]
        assert links[0] == info.name and (info.parent is None or info.parent in links)
        assert [one.text.replace("`", "") for one in row.find("p", class_="aside")] == (
            [info.remark.replace("`", "")] if info.aside else []
        )


@pytest.mark.parametrize("info", catalog(), ids=lambda info: info.name)
def test_a_rung_shows_all_of_its_lesson_its_knobs_and_its_changes(tree, info):
    (box,) = tree.find("details", id=info.name)
    (lesson,) = box.find("div", class_="lesson")
    said, wanted = (Counter(re.findall(r"\w+", text)) for text in (" ".join(lesson.words), info.doc))
    assert not wanted - said
    headings = [one.text for one in box.find("h5")]
    assert headings[:5] == ["Adds", "Warp roles", "Budget", "Run", "Knobs"]
    assert len(box.find("dl")) == 1
    changed = box.find("pre", class_="diff")
    assert len(changed) == (info.parent is not None)
    if info.parent is not None:
        body = diff(info).splitlines()[2:]
        for mark, name in (("+", "ins"), ("-", "del")):
            shown = [line for one in changed[0].find(name) for line in one.text.split("\n")]
            assert shown == [line for line in body if line.startswith(mark)]


def test_figures_stand_with_their_rung_and_lead_to_their_picture(tree, facts):
    assert len(facts.results) >= 8 and sum(len(one.own) > 0 for one in facts.rungs) >= 10
    for one in facts.rungs:
        (box,) = tree.find("details", id=one.anchor)
        measured = "Measured" in [head.text for head in box.find("h5")]
        assert measured == bool(one.own or one.called)
        for timing in one.own:
            assert f"{timing.record['tflops']:.4g}" in box.text and timing.record["rung"] == one.info.name
    for anchor, one in facts.results:
        (part,) = tree.find("section", id=anchor)
        assert len(part.find("svg", class_="chart")) == len(one.charts)
        assert len(part.find("tbody")[0].children) == (len(one.timed) or len(one.records))


def test_it_is_labelled_for_who_cannot_see_it(tree):
    levels = [int(one.tag[1]) for one in tree if re.fullmatch("h[1-6]", one.tag)]
    assert levels.count(1) == 1 and all(after <= before + 1 for before, after in itertools.pairwise(levels))
    assert all(one.text.strip() for one in tree if re.fullmatch("h[1-6]|a|button|summary|label", one.tag))
    for one in tree.find("input") + tree.find("select"):
        assert "label" in [above.tag for above in one.ancestors]
    for one in tree.find("table"):
        assert one.children[0].tag == "caption" and one.children[0].text
        assert all(head.attributes.get("scope") for head in one.find("th"))
    for one in tree.find("svg"):
        assert one.attributes["role"] == "img" and one.attributes["aria-label"] and one.attributes["viewbox"]
    for one in tree.find(class_="scrolls"):
        assert one.attributes["tabindex"] == "0" and one.attributes["role"] and one.attributes["aria-label"]
    assert tree.find("html", lang="en") and tree.find("main") and tree.find("nav") and tree.find("title")[0].text


def test_text_can_be_read_in_light_and_in_dark(tree):
    style = tree.find("style")[0].text
    found = {name: pair for name, *pair in re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", style)}
    for mode in (0, 1):
        colours = {name: pair[mode] for name, pair in found.items()}
        grounds = ("page", "shade", "new", "new-mark", "old", "old-mark")
        assert min(contrast(colours["ink"], colours[ground]) for ground in grounds) > 4.5
        assert min(contrast(colours[ink], colours[on]) for ink in ("pale", "link") for on in ("page", "shade")) > 4.5
    for colour in (*COLOURS, BASE):
        assert contrast(charts.lighter(colour), DARK["page"]) >= charts.SEEN and charts.lighter(colour) in style


def test_the_same_facts_have_the_same_bytes(html):
    code = f"import sys; from tensorladder.report import *; sys.stdout.write(page(gather({KEPT!r})))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                          env={**os.environ, "PYTHONHASHSEED": "7"}).stdout  # fmt: skip
    assert said == html


def hostile_rung(folder: Path, name: str) -> RungInfo:
    """A rung whose every text tries to be something else."""
    path = folder / "rung.py"
    text = HOSTILE.replace("\0", "")
    path.write_text(f"class Knobs:\n    {text!r}\n    tile: int = {text!r}\n# {text}\n", encoding="utf-8")
    doc = f"{HOSTILE}\n\nAdds:\n    {HOSTILE}\n    - `{HOSTILE.replace('`', '')}`\n\nRun:\n    {HOSTILE}"
    rung = Rung(name, "a0-vector-add", HOSTILE, (HOSTILE,), "gemm", (HOSTILE,), "Knobs")
    return RungInfo(rung, path, "none", doc)


def test_hostile_text_stays_text(tmp_path):
    record = {"rung": HOSTILE, "shape": [1], "dtype": HOSTILE, "tflops": 1.0, "median_us": 1.0, "baseline": HOSTILE,
              "baseline_us": 2.0, "ratio": 2.0, "kernel": HOSTILE, "bytes": 1, "flops": 1}  # fmt: skip
    other = {HOSTILE: {HOSTILE: [HOSTILE]}, "note": "\ud800"}
    for name, rows in (("a\"<i>'", [record]), ("b", [other]), ("matmul", [{**record, "rung": f"matmul {HOSTILE}"}])):
        lines = [{"machine": {"gpu": HOSTILE, "suite": "ladder", "when": HOSTILE}}, *rows]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    infos = [hostile_rung(tmp_path, name) for name in (HOSTILE, "<&>", "main", "MAIN", "")]
    made = page(gather(str(tmp_path), infos))
    root = Tree(made).root
    check_whole(root)
    shown = HOSTILE.replace("\0", "\ufffd")
    assert shown.replace("`", "") in root.find("details", class_="rung")[0].text.replace("`", "")
    assert shown in root.find("section", id="results")[0].text
    assert write(tmp_path / "f.html", made) == len(made.encode())


def test_lists_tables_and_names_of_rungs():
    text = "See c1, `c1` and\n`c1-x`, not c1x.\n- one\n  more\n- two\n\nEnd\n\n"
    text += "| a | b |\n|---|---|\n| 1 | x |\n|   | y |"
    root = Tree(blocks(text, {"c1": "the-c1"}.get, "words", "c1-x")).root
    assert [one.tag for one in root.children] == ["p", "ul", "p", "div"]
    assert [one.text for one in root.find("li")] == ["one\nmore", "two"]
    assert [one.attributes["href"] for one in root.find("a")] == ["#the-c1"] * 2
    assert [one.text for one in root.find("td")] == ["x y"]
    assert [one.text for one in root.find("code")] == ["c1", "c1-x"]


def test_what_differs_in_an_edited_line_is_marked():
    made = changes("--- a\n+++ b\n@@ -3,2 +4,2 @@\n same\n-stages = 3  # ring\n+stages = 44  # ring\n", "words")
    root = Tree(made).root
    assert [one.text for one in root.find("mark")] == ["3", "44"]
    assert "from line 4" in root.text and "-stages = 3  # ring" in root.text


def test_without_results_there_is_no_part_for_them(ask, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = ask("report", "-o", "ladder.html")
    assert said.code == 0 and said.err == "" and said.out.startswith(f"ladder.html: {len(catalog())} rungs, 0 result")
    root = Tree((tmp_path / "ladder.html").read_text(encoding="utf-8")).root
    check_whole(root)
    assert [one.text for one in root.find("h2")] == ["Ladder", "Rungs"] and not root.find("svg")
    assert os.listdir(tmp_path) == ["ladder.html"]


def test_json_gives_the_facts(ask, tmp_path):
    said = ask("report", "--json", "--results", KEPT, "-o", str(tmp_path / "f.html"))
    assert said.code == 0
    *lines, last = map(json.loads, said.out.splitlines())
    rungs = [line for line in lines if "rung" in line]
    assert [line["rung"] for line in rungs] == [info.name for info in catalog()]
    assert all({"parent", "adds", "sections", "knobs", "added", "removed", "timings"} <= set(line) for line in rungs)
    assert last["summary"]["bytes"] == (tmp_path / "f.html").stat().st_size
    assert last["summary"]["results"] == len(lines) - len(rungs)


MACHINE = '{"machine": {"gpu": "G"}}\n'
GOOD = '"rung": "x", "shape": [1], "dtype": "fp16", "median_us": 1'
#: a result file -> a word of the one line that refuses it
BAD_FILES = {
    "": "first line", "[]": "not an object", '{"rung": "x"}': "first line", '{"machine": 3}': "first line",
    "\x00\x01": "not JSON", MACHINE + "{": ":2: not JSON", MACHINE + "[" * 100_000: ":2: not JSON",
    MACHINE + '{"tflops": "fast"}': "positive number", MACHINE + f'{{{GOOD}, "tflops": 1e999}}': "positive number",
    MACHINE + f'{{{GOOD}, "tflops": -1}}': "positive number", MACHINE + f'{{{GOOD}, "tflops": true}}': "positive",
    MACHINE + f'{{{GOOD}, "tflops": 1{"0" * 400}}}': "positive number", MACHINE + '{"tflops": 1}': "without its rung",
    MACHINE + '{"ratio": 1}': "without its baseline", MACHINE + '{"shape": "1x1"}': "whole numbers",
    MACHINE + '{"bytes": 1}': "without its flops", MACHINE + '{"rung": 3}': "rung must be a text",
    '{"machine": {"peak_tflops": "many"}}': "peak_tflops",
}  # fmt: skip


@pytest.mark.parametrize("text", BAD_FILES, ids=lambda text: repr(text[:40]))
def test_a_bad_result_file_is_one_line(ask, tmp_path, text):
    (tmp_path / "r.jsonl").write_text(text, encoding="utf-8")
    said = ask("report", "--results", str(tmp_path), "-o", str(tmp_path / "f.html"))
    assert said.code == 2 and said.err.count("\n") == 1 and BAD_FILES[text] in said.err and "r.jsonl" in said.err
    assert not (tmp_path / "f.html").exists()


@pytest.mark.parametrize(
    ("arguments", "word"),
    [((), "-o ladder.html"), (("-o", "f.pdf"), "f.html"), (("-o", "no/such/f.html"), "no/such"),
     (("-o", "folder.html"), "cannot be written"), (("-o", "f.html", "--results", "gone"), "gone"),
     (("-o", ""), "ladder.html")],
)  # fmt: skip
def test_where_it_cannot_go(ask, tmp_path, monkeypatch, arguments, word):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.html").mkdir()
    said = ask("report", *arguments)
    assert said.code == 2 and said.out == "" and said.err.count("\n") == 1 and word in said.err
    assert os.listdir(tmp_path) == ["folder.html"]


@pytest.mark.parametrize("stage", ["write_bytes", "replace"])
def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch, stage):
    place = tmp_path / "f.html"
    place.write_text("old")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(*((Path, stage) if stage == "write_bytes" else (os, stage)), full)
    with pytest.raises(UsageError, match="No space left"):
        write(place, "new")
    assert place.read_text() == "old" and os.listdir(tmp_path) == ["f.html"]


def test_a_write_protected_file_is_left_alone(tmp_path, monkeypatch):
    (tmp_path / "f.html").write_text("old")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(UsageError, match="write-protected"):
        write(tmp_path / "f.html", "new")
    assert (tmp_path / "f.html").read_text() == "old"


def test_it_needs_no_compiler(tmp_path):
    code = (
        "import sys\n"
        "for name in ('cutlass', 'llvmlite', 'numba', 'torch', 'tvm', 'tvm_ffi'): sys.modules[name] = None\n"
        "from tensorladder.cli.app import main\n"
        f"sys.exit(main(['report', '-o', {str(tmp_path / 'f.html')!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_command_of_the_readme(ask, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (line,) = re.findall(r"^\$ tensorladder (report [^#\n]+)", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE)
    assert ask(*line.split()).code == 0 and len(os.listdir(tmp_path)) == 1


@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
def test_its_script_runs_in_a_browser(html, tmp_path):
    """Search and colours are shown by the script, and the browser complains of nothing."""
    (tmp_path / "f.html").write_text(html, encoding="utf-8")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", f"--user-data-dir={tmp_path}/u"]
    done = subprocess.run(["chromium", *flags, "--dump-dom", f"file://{tmp_path}/f.html#c2-warp-specialized"],
                          capture_output=True, text=True, timeout=120)  # fmt: skip
    assert done.returncode == 0 and "CONSOLE" not in done.stderr
    root = Tree(re.sub(r"<(line|rect|path|circle)([^>]*)/>", r"<\1\2></\1>", done.stdout)).root
    assert "hidden" not in root.find("form")[0].attributes
    assert root.find("output")[0].text == f"{len(catalog())} of {len(catalog())} rungs"
    assert [box.attributes["id"] for box in root.find("details", class_="rung") if "open" in box.attributes] == [
        "c2-warp-specialized"
    ]


def test_timelines_are_drawn_into_the_page():
    pytest.importorskip("cutlass")
    from tensorladder.report.timelines import Drawer

    drawer = Drawer()
    infos = [find("a1-naive-cuda-like"), find("c2")]
    root = Tree(page(gather(None, infos, drawer))).root
    check_whole(root)
    assert drawer.refused == []
    (figure,) = [one for one in root.find("figure") if one.find("svg", class_="tl-picture")]
    rung = next(one for one in figure.ancestors if one.attributes.get("class") == "rung")
    assert rung.attributes["id"] == "c2-warp-specialized"  # the naive one never waits: nothing to see
    labels = {one.text for one in figure.find("text")}
    assert {"warp 0: consumers", "warp 4: consumers", "warp 8: producer", "TMA loads", "tensor cores"} <= labels


def test_a_rung_that_cannot_be_traced_is_said_and_left_out(monkeypatch):
    from tensorladder.report import timelines

    def refuse(_):
        raise UsageError("no engine")

    monkeypatch.setattr(timelines, "from_machine", refuse)
    drawer = timelines.Drawer()
    assert drawer(find("c2")) == "" and drawer.refused == ["c2-warp-specialized: no engine"]


RACE = Finding("race", "<b>both</b> & neither", Where("st", "k.py", 3), Where("ld", "k.py", 5), "a barrier")


def test_hazards_of_a_file_stand_with_their_rung(ask, tmp_path):
    kept, place = tmp_path / "h.jsonl", tmp_path / "f.html"
    known = {**Report("a2-smem-padded").to_json(), "accepted": [RACE.to_json()]}
    lines = [Report("c2-warp-specialized", (RACE,)).to_json(), known, Report("x.ptx").to_json()]
    kept.write_text("".join(json.dumps(line) + "\n" for line in lines))
    said = ask("report", "-o", str(place), "--hazards", str(kept))
    assert said.code == 0 and said.err.count("\n") == 1 and "x.ptx" in said.err
    root = Tree(place.read_text(encoding="utf-8")).root
    check_whole(root)
    texts = {box.attributes["id"]: box.text for box in root.find("details", class_="rung")}
    assert [name for name, text in texts.items() if "hazard checker of the virtual GPU" in text] == [
        "a2-smem-padded", "c2-warp-specialized"]  # fmt: skip
    for words in ("virtual GPU: error", RACE.message, "k.py:3", "k.py:5", "a barrier"):
        assert words in texts["c2-warp-specialized"]
    assert "virtual GPU: clean" in texts["a2-smem-padded"] and "accepted" in texts["a2-smem-padded"]
    rows = [json.loads(line) for line in ask("report", "--json", "--hazards", str(kept)).out.splitlines()]
    assert {row["rung"]: row["hazards"]["verdict"] for row in rows if "hazards" in row} == {
        "a2-smem-padded": "clean", "c2-warp-specialized": "error"}  # fmt: skip


@pytest.mark.parametrize(
    "line",
    ["{", "[]", "3", '{"case": "x"}', '{"target": 3, "findings": []}', '{"target": "c2", "findings": 3}',
     '{"target": "c2", "findings": ["x"]}',
     *(json.dumps({"target": "c2", "findings": [{**RACE.to_json(), **wrong}]}) for wrong in (
         {"kind": "none"}, {"verdict": "bad"}, {"where": {"x": 1}}, {"where": {"bytes": [1]}}, {"message": 3}))],
)  # fmt: skip
def test_a_bad_hazard_file_is_one_line(ask, tmp_path, line):
    kept = tmp_path / "h.jsonl"
    kept.write_text(f"\n{line}\n")
    said = ask("report", "--json", "--hazards", str(kept))
    assert said.code == 2 and said.out == "" and said.err.count("\n") == 1 and f"{kept}:2" in said.err


def test_hazards_from_a_file_or_from_a_check(ask, tmp_path, monkeypatch):
    said = ask("report", "--json", "--check", "--hazards", "h.jsonl")
    assert said.code == 2 and said.err.count("\n") == 1
    said = ask("report", "--json", "--hazards", str(tmp_path / "none"))
    assert said.code == 2 and said.err.count("\n") == 1
    from tensorladder.measure import hazards as checks

    def check_rung(asked):
        if asked.info.step == "c2":
            raise UsageError("no engine")
        return Report(asked.info.name, (RACE,))

    monkeypatch.setattr(checks, "check_rung", check_rung)
    runner = Runner()
    made = [runner(find(name)) for name in ("a2-smem-padded", "c2")]
    assert made[0].report.findings == (RACE,) and made[1] is None
    assert runner.refused == ["c2-warp-specialized: no engine"]
