"""Timelines: interval arithmetic against a count of points, and the file's rules that readers rely on."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorladder.core.errors import UsageError
from tensorladder.core.timeline import LOAD, RUN, TENSOR, WAIT, Arrow, Span, Timeline, Track, common, lanes, merged
from tests.core.trace_files import problems

intervals = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 12)).map(lambda one: (one[0], one[0] + one[1])))


def points(given_intervals):
    return {at for start, end in given_intervals for at in range(start, end)}


@given(intervals, intervals)
def test_unions_and_what_they_share_count_points(one, other):
    first, second = merged(one), merged(other)
    assert sum(end - start for start, end in first) == len(points(one))
    assert all(a[1] < b[0] for a, b in itertools.pairwise(first))
    assert common(first, second) == common(second, first) == len(points(one) & points(other))


@given(intervals)
def test_lanes_hold_no_overlap_and_are_as_few_as_can_be(given_intervals):
    ordered = sorted(given_intervals)
    places = lanes(ordered)
    for lane in set(places):
        mine = [span for span, place in zip(ordered, places) if place == lane]
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(mine))
    deepest = max((sum(start <= at < end for start, end in ordered) for at in range(80)), default=0)
    assert len(set(places)) == deepest


def made() -> Timeline:
    line = Timeline("x", {"rung": "x"})
    line.tracks = [
        Track("SM 0", "producer", "producer"), Track("SM 0", "TMA"), Track("SM 1", "tensor"), Track("SM 0", "tensor"),
    ]  # fmt: skip
    line.spans = [
        Span(0, "ask", RUN, 0.0, 1.2), Span(1, "load", LOAD, 1.0, 500.4), Span(0, "wait: full", WAIT, 1.2, 500.4),
        Span(0, "run", RUN, 500.4, 510.0), Span(2, "wgmma", TENSOR, 0.0, 100.0), Span(3, "mma", TENSOR, 400.4, 600.4),
    ]  # fmt: skip
    line.arrows = [Arrow("ends wait: full", 1, 3)]
    return line


def test_overlap_is_of_the_same_group():
    line = made()
    assert line.overlap(LOAD, TENSOR) == pytest.approx(100 / 300)  # what SM 1 does counts, but no load is there
    assert line.overlap(TENSOR, "nothing") is None
    assert line.only(["SM 0"]).overlap(LOAD, TENSOR) == pytest.approx(0.5)
    assert line.only(["SM 1"]).arrows == [] and len(line.only(["SM 1"]).spans) == 1
    assert line.only(["SM 0"]).arrows == [Arrow("ends wait: full", 1, 3)]


def test_the_file_keeps_the_rules_of_the_format(tmp_path):
    path = tmp_path / "t.json"
    assert made().write(path) == path.stat().st_size
    whole = json.loads(path.read_text())
    assert problems(whole) == []
    assert whole["otherData"] == {"title": "x", "rung": "x", "left_out": 0}
    start = next(event for event in whole["traceEvents"] if event["ph"] == "s")
    end = next(event for event in whole["traceEvents"] if event["ph"] == "f")
    assert (start["ts"], end["ts"], start["id"], end["bp"]) == (0.4992, 0.5002, end["id"], "e")


def test_the_rules_are_ones_that_a_file_can_break(tmp_path):
    line = made()
    line.spans.append(Span(0, "too early", RUN, 400.0, 505.0))
    line.write(tmp_path / "t.json")
    assert any("overlap" in said for said in problems(json.loads((tmp_path / "t.json").read_text())))
    with pytest.raises(UsageError, match="cannot be written"):
        made().write(tmp_path / "no" / "such" / "t.json")
