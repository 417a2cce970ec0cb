"""The table of twins: what counts as a line of code, and rungs that exist."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks import twins
from tensorladder.measure import suites
from tensorladder.measure.suites import TWINS
from tensorladder.rungs.rung import catalog, find

ROOT = Path(__file__).parents[2]
PYTHON = '''"""A docstring,
of two lines."""

import os  # one


def f(x):
    """Not counted."""
    # nor this
    text = """but
this"""
    return text, (
        x,
    )
'''
CUDA = """// A comment.
#include "b.cuh"

/* another,
   longer */
int f() { return 1; }  // two
"""


def test_lines_of_code(tmp_path):
    (tmp_path / "a.py").write_text(PYTHON)
    (tmp_path / "a.cu").write_text(CUDA)
    (tmp_path / "b.cuh").write_text("#pragma once\n// no\nint g();\n")
    assert twins._python(tmp_path / "a.py") == 7
    assert twins._cuda(tmp_path / "a.cu") == 2
    files = twins._files([tmp_path / "a.py", tmp_path / "a.cu"])
    assert [path.name for path in files] == ["a.py", "a.cu", "b.cuh"]


def test_twins_compute_the_same():
    for ours, theirs in ((find(name), find(twin)) for name, twin in TWINS if twin):
        assert ours.series == "cuda" and theirs.series == ours.step[-2]
        assert ours.problem is theirs.problem and "fp16" in ours.dtypes


def test_every_rung_in_cuda_is_in_the_table_and_timed():
    assert {name for name, _ in TWINS} == {info.name for info in catalog() if info.series == "cuda"}
    timed = [info.name for info in suites.rungs_of(suites.find("twins"), catalog(), "sm_90a")]
    assert set(timed) == {name for pair in TWINS for name in pair if name and "sm_90a" in find(name).archs}


def test_times_are_read_from_kept_results(tmp_path):
    kept = tmp_path / "ladder.jsonl"
    kept.write_text(
        '{"machine": {}}\n'
        '{"rung": "c1-wgmma", "shape": [2048, 2048, 2048], "dtype": "fp16", "ok": true, "tflops": 500.0}\n'
        '{"rung": "b5-tma", "shape": [4096, 4096, 4096], "dtype": "fp16", "ok": true, "tflops": 300.0}\n'
    )
    found = twins.measured([kept])
    assert list(found) == ["c1-wgmma"] and found["c1-wgmma"]["tflops"] == 500.0


def test_the_readme_has_the_kept_times_and_the_lines_of_today():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    times = twins.measured([ROOT / "benchmarks/results/twins-h200.jsonl"])
    for name in (name for pair in TWINS for name in pair if name):
        row = re.search(rf"^\| {name} \|.*\|$", readme.partition("<!-- twins: begin -->")[2], re.M)
        shown = [cell.strip() for cell in row[0].split("|")[1:-1]]
        assert shown[1] == str(twins.lines(find(name))) and tuple(shown[-3:]) == twins.cells(times.get(name)), (
            "put what `python -m benchmarks.twins benchmarks/results/twins-h200.jsonl` prints into README.md"
        )
