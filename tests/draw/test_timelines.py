"""Pictures of timelines: every span in its row at its time, arrows where they begin and end, in both modes readable."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from tensorladder.core.timeline import LOAD, RUN, TENSOR, WAIT, Arrow, Span, Timeline, Track
from tensorladder.draw.svg import BLANK, ON, READABLE, contrast
from tensorladder.draw.timelines import COLOURS, WIDTH, picture

SVG = "{http://www.w3.org/2000/svg}"


def made() -> Timeline:
    line = Timeline("kernel <1>")
    line.tracks = [Track("CTA 0", f"warp {n}: consumers", "consumers") for n in range(8)]
    line.tracks += [Track("CTA 0", "warp 8: producer", "producer"), Track("CTA 0", "warp 9: nothing", "nothing")]
    line.tracks += [Track("CTA 0", "TMA loads"), Track("CTA 0", "TMA loads (2)"), Track("CTA 1", "tensor cores")]
    line.spans = [
        Span(0, "wait: mbarrier", WAIT, 0, 600, {"for": "mbarrier 8", "at": "c2.py:3"}), Span(0, "run", RUN, 600, 1000),
        Span(1, "run", RUN, 0, 1000), Span(4, "run", RUN, 0, 900), Span(8, "run", RUN, 0, 100),
        Span(9, "wait: barrier", WAIT, 0, 5), Span(10, "TMA load", LOAD, 100, 600),
        Span(11, "TMA load", LOAD, 110, 800), Span(12, "wgmma", TENSOR, 0, 5000),
    ]  # fmt: skip
    line.arrows = [Arrow("ends wait: mbarrier", 6, 1)]
    return line


def noted(root: ElementTree.Element) -> dict[str, dict[str, str]]:
    """The areas that say something, by what they say."""
    areas = [(one.find(f"{SVG}title"), one.attrib) for one in root.iter(f"{SVG}rect")]
    return {title.text: attributes for title, attributes in areas if title is not None}


def test_rows_are_roles_and_units_and_spans_stand_at_their_times():
    root = ElementTree.fromstring(picture(made()))
    words = [one.text for one in root.iter(f"{SVG}text")]
    assert [w for w in words if w.startswith(("warp", "TMA"))] == [
        "warp 0: consumers", "warp 4: consumers", "warp 8: producer", "TMA loads"]  # fmt: skip
    spans = noted(root)
    assert len(spans) == 6  # neither warp 1, nor one that does nothing, nor another CTA's
    waits = spans["wait: mbarrier: 0 to 600 ns, mbarrier 8, c2.py:3"]
    run = spans["run: 600 to 1000 ns"]
    assert float(waits["width"]) == pytest.approx(0.6 * WIDTH, abs=0.1) and waits["fill"] == COLOURS[WAIT] == BLANK
    assert float(run["x"]) == pytest.approx(float(waits["x"]) + 0.6 * WIDTH, abs=0.2) and run["y"] == waits["y"]
    loads = [attributes for title, attributes in spans.items() if title.startswith("TMA load")]
    assert float(loads[1]["y"]) - float(loads[0]["y"]) == 9  # in flight together: one below the other


def test_an_arrow_goes_from_the_load_to_what_it_let_go():
    text = picture(made())
    (arrow,) = re.findall(r"<path class='tl-cell' d='M([\d.]+) ([\d.]+)L([\d.]+) ([\d.]+)m", text)
    titled = noted(ElementTree.fromstring(text))
    load, run = titled["TMA load: 100 to 600 ns"], titled["run: 600 to 1000 ns"]
    x0, y0, x1, y1 = map(float, arrow)
    assert x0 == pytest.approx(float(load["x"]) + float(load["width"]), abs=0.2)
    assert x1 == pytest.approx(float(run["x"]), abs=0.2)
    assert float(load["y"]) < y0 < float(load["y"]) + float(load["height"]) + 1
    assert float(run["y"]) < y1 < float(run["y"]) + float(run["height"]) + 1


def test_there_is_a_picture_of_what_waits_only():
    line = made()
    assert picture(line, "CTA 1") is not None
    line.spans = [span for span in line.spans if span.kind == RUN]
    line.arrows = []
    assert picture(line) is None and picture(Timeline("none")) is None


def test_colours_bear_the_text_and_differ():
    filled = [colour for colour in COLOURS.values() if colour != BLANK]
    assert len(set(filled)) == len(filled) == 5 and all(contrast(colour, ON) >= READABLE for colour in filled)


def test_hostile_names_stay_text():
    line = made()
    line.title = "</title><script>"
    assert "<script" not in picture(line)
