"""`tensorladder draw`: every example is a well-formed, labelled, readable picture; bad input is one line."""

from __future__ import annotations

import functools
import json
import os
import re
import shlex
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorladder.core.errors import UsageError
from tensorladder.draw import svg
from tensorladder.draw.grid import record, render
from tensorladder.draw.what import KINDS, draw

SVG = "{http://www.w3.org/2000/svg}"
EXAMPLES = [example for kind in KINDS.values() for example in kind.examples]
SMALL = [kind.examples[0] for kind in KINDS.values() if kind.name not in ("wgmma", "copy")]
#: what is asked wrongly -> a word of the one line that says so
REFUSED = {
    "": "layout such as", "circle": "circle", "(4,8": "not a layout", "(4,8):(8)": "nested alike",
    "(4,x):(8,1)": "not a", "4,8:1": "not a layout", "(0,8):(8,1)": "below 1", "(1000,1000):(1,1000)": "1000000 cells",
    "S<3,4,2> o 0 o (8,8):(8,1)": "no such swizzle", "S<3,4,99> o 0 o (8,8):(8,1)": "at most 32",
    "S<3> o 0 o 8": "swizzle", "swizzle:256B": "256B", "swizzle:128B,rows=8": "tile",
    "swizzle:128B,tile=8": "two numbers", "swizzle:128B,at=1": "1", "swizzle:128B,bits=4": "bits=4",
    "swizzle:128B,access=diagonal": "diagonal", "swizzle:128B,at=64": "outside", "swizzle:128B,tile=4x64": "8 rows",
    "swizzle:128B,tile=8x1": "words of 4", "swizzle:S<3,0,3>": "4 bytes",
    "swizzle:S<1,2,3>,width=16": "parts an access", "swizzle:128B,access=row,width=3": "1, 2, 4, 8 or 16",
    "swizzle:128B,mode=64B": "twice", "swizzle:128B,access=row,at=8": "outside", "swizzle:none,pad=2": "words of 4",
    "mma:m16n8k15": "m16n8k16", "mma:m16n8k16,bits=64x": "number", "mma:m16n8k8,bits=8": "8-bit",
    "mma:operand=d": "operand=d", "wgmma:33": "multiple of 8", "wgmma:operand=b": "operand=b",
    "wgmma:bits=4": "not 4", "(2,2):(1,99999999999999999999)": "9 digits", "tv:(2,2):(1,99999999999)": "9 digits",
    "S<1,3,3> o 9999999999 o 8:1": "9 digits", "tv:(2,2):(1,-1)": "index -1",
    f"{'(' * 400}1{')' * 400}": "300 characters", "ldmatrix:x3": "x3",
    "ldmatrix:x1,trans=maybe": "yes or no", "copy:(8,4,2):(8,1,64)": "one or two",
    "copy:(8,4):(0,0)": "each number once", "tv:(4,8):(1,4),tile=2x2": "outside", "tv:4:1,tile=2x2": "two modes",
    "tv:(4,2):(1,4),tile=0x8": "empty", "descriptor:96B": "96B", "descriptor:128B,major=n": "k or mn",
    "descriptor:128B,tile=64x12": "whole 16 bytes", "descriptor:128B,start=8": "start",
    "descriptor:32B,tile=64x32": "64 bytes of K", "descriptor:128B,base=8": "0 to 7",
    "descriptor:raw=0x1c00000000000": "46", "descriptor:128B,sbo=262128,tile=256x16": "cells",
    "descriptor:128B,bits=6": "bits=6", "tmem:32x32b": "count", "tmem:8x8b.x1": "32x32b",
    "tmem:16x256b.x64": "up to 32", "tmem:32x32b.x3": "power of two", "tmem:32x32b.x8,half=4": "half",
    "accumulator:192x64": "M=192", "accumulator:256x255": "N=255", "accumulator:256x256,cta_group=3": "cta_group",
    "raster:16x16,raster=0": "at least 1", "raster:15x16,cluster=2x1": "whole clusters",
    "raster:16x16,cluster=4x2": "multiple", "copy:(8,4):(4,1),values=(2,2):(1,1)": "each number once",
}  # fmt: skip


@functools.cache
def parsed(what: str) -> ET.Element:
    return ET.fromstring(render(draw(what)))


def rectangles(root: ET.Element) -> list[ET.Element]:
    return [one for one in root.iter(f"{SVG}rect") if one.get("class") in ("tl-cell", "tl-mark")]


@pytest.mark.parametrize("what", EXAMPLES)
def test_each_cell_is_drawn_once_and_labelled_as_in_the_record(what):
    picture, root = draw(what), parsed(what)
    for panel, group in zip(record(picture)["panels"], root.iter(f"{SVG}g"), strict=True):
        assert len(rectangles(group)) == len(panel["cells"]) == panel["rows"] * panel["columns"]
        assert {(cell["row"], cell["column"]) for cell in panel["cells"]} == {
            (i, j) for i in range(panel["rows"]) for j in range(panel["columns"])
        }
        words = [one.text for one in group.iter(f"{SVG}text") if one.get("class") in ("tl-on", "tl-pale")]
        heads = [*panel["column_heads"], *panel["row_heads"]]
        labels = [word for cell in panel["cells"] for word in cell["text"].split()]
        assert sorted(words) == sorted([*heads, *labels])
    assert len(rectangles(root)) == sum(len(panel.cells) for panel in picture.panels) + len(picture.legend)
    assert picture.legend and picture.legend_title


@pytest.mark.parametrize("what", EXAMPLES)
def test_a_screen_reader_is_told_what_it_is(what):
    root = parsed(what)
    title, description = root[0], root[1]
    assert (title.tag, description.tag) == (f"{SVG}title", f"{SVG}desc") and root.get("role") == "img"
    assert root.get("aria-labelledby") == f"{title.get('id')} {description.get('id')}"
    assert title.text == draw(what).title and len(description.text) > 30


@pytest.mark.parametrize("what", EXAMPLES)
def test_nothing_lies_outside_and_labels_fit_their_cells(what):
    root = parsed(what)
    width, height = int(root.get("width")), int(root.get("height"))
    assert root.get("viewBox") == f"0 0 {width} {height}"
    for one in rectangles(root):
        x, y, w, h = (float(one.get(name)) for name in ("x", "y", "width", "height"))
        assert x >= 0 and x + w <= width and y >= 0 and y + h <= height
    cell = float(rectangles(root)[0].get("width"))
    for group in root.iter(f"{SVG}g"):
        for one in group.iter(f"{SVG}text"):
            if one.get("class") == "tl-on":
                assert len(one.text) * svg.CHARACTER <= cell
    for one in root.iter(f"{SVG}text"):
        reach = float(one.get("x")) + (len(one.text) * svg.CHARACTER if one.get("text-anchor") is None else 0)
        assert reach <= width and float(one.get("y")) <= height, one.text


def test_text_can_be_read_on_every_colour_in_light_and_in_dark():
    for count in (8, 16, 32):
        assert len(set(svg.wheel(count))) == count
        assert min(svg.contrast(colour, svg.ON) for colour in svg.wheel(count)) >= svg.READABLE
    for mode in (svg.LIGHT, svg.DARK):
        assert min(svg.contrast(mode[ink], mode["page"]) for ink in ("ink", "pale")) >= svg.READABLE
    assert svg.contrast("#000000", "#ffffff") == pytest.approx(21)


def test_the_same_picture_has_the_same_bytes():
    """In another process, with another order of sets."""
    code = "import sys; from tensorladder.draw.what import draw; from tensorladder.draw.grid import render\n"
    code += f"for what in {SMALL}: sys.stdout.write(render(draw(what)))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                          env={**os.environ, "PYTHONHASHSEED": "1"}).stdout  # fmt: skip
    assert said == "".join(render(draw(what)) for what in SMALL)


@pytest.mark.parametrize("what", REFUSED)
def test_bad_input_is_one_line_with_the_fix(ask, what):
    said = ask("draw", what)
    assert said.code == 2 and said.out == "" and said.err.count("\n") == 1
    assert said.err.startswith("tensorladder: ") and REFUSED[what] in said.err


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_slip_of_the_pen_is_drawn_or_refused(data):
    """Examples with a letter lost, doubled or changed: a picture or a UsageError, nothing else."""
    what = data.draw(st.sampled_from([*SMALL, *EXAMPLES]))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(what) - 1)) if what else 0
        letter = data.draw(st.sampled_from(["", *"0123(),:=xS<>o-_ "]))
        what = what[:at] + letter + what[at + data.draw(st.integers(0, 1)) :]
    try:
        picture = draw(what)
    except UsageError as error:
        assert "\n" not in str(error)
    else:
        assert picture.panels


def test_numbers_may_have_leading_zeros():
    assert draw("wgmma:032") == draw("wgmma:32") and draw("descriptor:start=0x0800").facts["start"] == 2048


def test_a_file_a_record_or_the_text_itself(ask, tmp_path):
    place = str(tmp_path / "f.svg")
    said = ask("draw", "raster:4x4,raster=2,ctas=4", "-o", place)
    assert said.code == 0 and said.out.startswith(f"{place}: raster of 4 x 4") and said.err == ""
    text = (tmp_path / "f.svg").read_text()
    assert ask("draw", "raster:4x4,raster=2,ctas=4").out == text and text.startswith("<svg ")
    made = json.loads(ask("draw", "raster:4x4,raster=2,ctas=4", "-o", place, "--json").out)
    assert made["what"] == "raster:4x4,raster=2,ctas=4" and made["file"] == place and made["kind"] == "raster"
    assert len(made["panels"][0]["cells"]) == 16


def test_list_has_an_example_of_everything(ask):
    listed = {one["kind"]: one for one in map(json.loads, ask("draw", "--list", "--json").out.splitlines())}
    assert set(listed) == set(KINDS)
    table = ask("draw", "--list").out
    for name, kind in KINDS.items():
        assert listed[name]["examples"] == list(kind.examples) and listed[name]["knobs"]
        assert all(example in table for example in kind.examples)


@pytest.mark.parametrize("name", KINDS)
def test_list_of_a_kind_explains_its_knobs(ask, name):
    said = ask("draw", name, "--list")
    assert said.code == 0
    for knob, default in KINDS[name].spelt.items():
        assert f"{knob}={default}" in said.out
    for knob in KINDS[name].defaults:
        assert re.search(rf"\b{knob}\b.*:|{knob}, ", KINDS[name].knobs.__doc__), knob
    assert draw(name).panels  # the defaults are a picture


def test_the_commands_of_the_readme_draw(ask, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\$ tensorladder (draw .+)$", text, re.MULTILINE)
    commands = [shlex.split(line, comments=True) for line in lines]
    assert len(commands) >= 5
    for command in commands:
        said = ask(*command)
        assert said.code == 0, said.err
        if "-o" in command:
            assert ET.parse(command[command.index("-o") + 1])


@pytest.mark.parametrize(
    ("arguments", "word"),
    [((), "--list"), (("8:1", "-o", "f.png"), "f.svg"), (("8:1", "-o", "no/such/f.svg"), "no/such"),
     (("8:1", "-o", "folder.svg"), "cannot be written")],
)  # fmt: skip
def test_where_it_cannot_go(ask, tmp_path, monkeypatch, arguments, word):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.svg").mkdir()
    said = ask("draw", *arguments)
    assert said.code == 2 and said.err.count("\n") == 1 and word in said.err
