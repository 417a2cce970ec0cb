"""What the rung files say about themselves, read without importing a DSL."""

from __future__ import annotations

import ast
import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tensorladder import problems, rungs
from tensorladder.core.arch import ARCHS
from tensorladder.core.errors import UsageError
from tensorladder.measure import bench
from tensorladder.rungs.rung import SECTIONS, asides, catalog, find, lacking, load

COURSE = Path(__file__).parents[2] / "docs" / "course"
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
SAID = r"([\d.]+) times as fast as the parent at 4096 cubed, ([\d.]+) at 8192, alone ([\d.]+) and ([\d.]+)"
INFOS = [pytest.param(info, id=info.name) for info in catalog()]
LADDER = [
    "a0-vector-add",
    "a0-cluster-reduce",
    "a1-naive-cuda-like",
    "a1-dependent-launch",
    "a1-naive-cute",
    "a1-naive-batched",
    "a1-naive-persistent",
    "a1-cluster-launch-control",
    "a1-grouped",
    "a1-naive-static-scheduler",
    "a1-naive-tvm-ffi",
    "a2-smem-padded",
    "a2-smem-swizzled",
    "a2-smem-pipeline",
    "b2-warp-mma",
    "b5-tma",
    "b6-colwise-scaling",
    "b7-warp-specialized",
    "b8-register-double-buffering",
    "b10-implicit-gemm",
    "c1-wgmma",
    "c2-warp-specialized",
    "c3-persistent",
    "c4-multicast",
    "c5-ping-pong",
    "c6-epilogue",
    "c7-fused-ping-pong",
    "c8-split-k",
    "c9-grouped",
    "d1-tcgen05",
    "d1-tcgen05-subtiles",
    "d2-warp-specialized",
    "d3-two-cta",
    "d4-persistent",
    "d4-block-scaled",
    "z0-swizzle",
    "z1-tv-to-mn",
    "z2-tmem-lifecycle",
]


def test_the_ladder_is_complete_and_in_order():
    names = [info.name for info in catalog() if info.series in "abcdz"]
    assert [name for name in names if name in LADDER] == LADDER
    assert len(set(names)) == len(names)


def test_listing_imports_no_dsl():
    script = "import sys, tensorladder.rungs as r; r.catalog(); print('cutlass' in sys.modules, len(r.catalog()))"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert out == ["False", str(len(catalog()))]


@pytest.mark.parametrize("info", INFOS)
def test_metadata(info):
    assert info.path.stem == info.name.replace("-", "_")
    assert info.adds and len(info.adds) < 120
    assert info.archs and set(info.archs) <= set(ARCHS)
    assert info.problem.name in problems.PROBLEMS
    assert set(info.dtypes) <= set(info.problem.dtypes)
    assert info.rung.check(info.archs[0], info.default_shape, info.dtypes[0])


@pytest.mark.parametrize("info", INFOS)
def test_parent_exists_and_comes_before(info):
    names = [other.name for other in catalog()]
    if info.parent is None:
        assert info.step.endswith("0")
    else:
        assert names.index(info.parent) < names.index(info.name)


@pytest.mark.parametrize("info", INFOS)
def test_a_step_goes_on_from_a_step(info):
    """Where it computes what its parent does: it is compared with it then. Else a ladder begins, from wherever."""
    if info.aside:
        assert re.fullmatch(r"(for|where) .+[^.]", info.aside) and len(info.remark) < 120
    elif info.parent and find(info.parent).rung.problem == info.rung.problem:
        assert not find(info.parent).aside, f"{info.name} is a step from the aside {info.parent}"


def test_the_steps_of_each_series_are_those_of_the_course():
    """Its pages name them in lines of steps, each the parent of the next; all steps are there, and nothing else."""
    named = set()
    for page in COURSE.glob("*.md"):
        for line in re.findall(r"^\*\*Steps:\*\* (.+?)$\n\n", page.read_text(encoding="utf-8"), re.M | re.S):
            names = re.findall(r"`([\w-]+)`", line)
            assert "".join(line.split()) == "→".join(f"`{name}`" for name in names), page
            assert [find(name).parent for name in names[1:]] == names[:-1], page
            named.update(names)
    assert named == {info.name for info in catalog()} - asides()
    ends = [(info.parent, info.series, info.archs) for info in catalog() if info.parent and not info.aside]
    assert len(set(ends)) == len(ends), "two steps of a series go on from one rung for the same architectures"


def test_what_lessons_say_of_a_rung_beside_its_parent_is_what_was_measured():
    """In turns and alone, at the ladder's two sizes, within a hundredth of the kept results."""
    _, records = bench.read(RESULTS / "steps-h200.jsonl")
    told = 0
    for info in (find(name) for name in dict.fromkeys(one["rung"] for one in records)):
        (figures,) = re.findall(SAID, " ".join(info.doc.split()))
        mine = {one["shape"][0]: one for one in records if one["rung"] == info.name and one["dtype"] == "fp16"}
        measured = [mine[side].get(key) for key in ("ratio", "alone_ratio") for side in (4096, 8192)]
        for said, ratio in zip(figures, measured):
            assert ratio is None or float(said) == pytest.approx(ratio, abs=0.01), info.name
            told += ratio is not None
    assert told >= 16


@pytest.mark.parametrize("info", INFOS)
def test_docstring_has_its_parts_in_order(info):
    parts = info.sections()
    assert list(parts) == ["", *SECTIONS]
    assert all(text.strip() for text in parts.values())
    table = [line for line in parts["Warp roles"].splitlines() if line.strip()]
    assert len(table) >= 3 and all(line.strip().startswith("|") for line in table)
    assert re.search(r"SMEM\D*\d", parts["Budget"]) and re.search(r"[Rr]egisters\D*\d", parts["Budget"])
    assert parts["Run"].split()[:3] == ["tensorladder", "run", info.name]


@pytest.mark.parametrize("info", INFOS)
def test_shape_of_the_file(info):
    text = info.path.read_text()
    assert len(text.splitlines()) < 400
    functions = [node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    assert "compile" in functions and "main" not in functions


@pytest.mark.parametrize("info", INFOS)
def test_module_agrees_with_its_listing(info):
    if lack := lacking(info):
        pytest.skip(str(lack))
    module = load(info)
    listed = dataclasses.replace(info.rung, config=module.RUNG.config)
    assert listed == module.RUNG
    assert module.RUNG.config.__name__ == info.rung.config
    config = module.RUNG.config()
    assert dataclasses.is_dataclass(config)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(config, dataclasses.fields(config)[0].name, None)


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("b2", "b2-warp-mma"),
        ("a1", "a1-naive-cuda-like"),
        ("a2", "a2-smem-padded"),
        ("B7-Warp-Specialized", "b7-warp-specialized"),
        ("a1_naive_cute", "a1-naive-cute"),
        ("z", None),
        ("b10", "b10-implicit-gemm"),
        ("b11", None),
        ("", None),
        ("a1-naive-cut", None),
    ],
)
def test_find(asked, found):
    if found:
        assert find(asked).name == found
    else:
        with pytest.raises(UsageError) as refusal:
            find(asked)
        assert "\n" not in str(refusal.value)


def test_an_unknown_name_gets_the_nearest():
    with pytest.raises(UsageError, match="b7-warp-specialized"):
        find("b7-warp-specialised")


@pytest.mark.parametrize(
    ("info", "step", "series"),
    [("b2-warp-mma", "b2", "b"), ("cuda-a1-naive", "cuda-a1", "cuda"), ("tirx-v3", "tirx-v3", "tirx"),
     ("fused-dsa-attention", "fused", "fused"), ("z1-tv-to-mn", "z1", "z")],
)  # fmt: skip
def test_step_and_series(info, step, series):
    base = rungs.find("a0")
    named = dataclasses.replace(base, rung=dataclasses.replace(base.rung, name=info))
    assert (named.step, named.series) == (step, series)
