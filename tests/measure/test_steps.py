"""Rungs beside their parents: which pairs, and what a line says."""

from __future__ import annotations

from types import SimpleNamespace

from benchmarks import steps


def entry(rung, side, dtype="fp16"):
    return SimpleNamespace(rung=rung, shape=(side, side, side), dtype=dtype)


def test_products_go_by_size_and_the_rest_is_left_out():
    names = ["b5-tma", "b7-warp-specialized", "c1-wgmma", "b6-colwise-scaling"]
    opened = SimpleNamespace(entries=[entry(name, side) for name in names for side in (64, 128)])
    found = steps.sizes(opened)
    assert list(found) == [((64,) * 3, "fp16"), ((128,) * 3, "fp16")]
    assert all(list(by_rung) == names[:3] for by_rung in found.values())


def test_pairs_are_those_whose_parent_is_there():
    names = dict.fromkeys(["b2-warp-mma", "b5-tma", "c1-wgmma", "c3-persistent", "c4-multicast"])
    assert steps.pairs(names) == [
        ("b5-tma", "b2-warp-mma"), ("c1-wgmma", "b5-tma"), ("c4-multicast", "c3-persistent"),
    ]  # fmt: skip


def test_a_line_says_who_is_faster_and_what_is_wrong():
    record = {
        "rung": "c2", "shape": [64, 64, 64], "dtype": "e4m3", "median_us": 3.0, "ratio": 1.0123, "baseline": "c1",
        "ok": False,
    }  # fmt: skip
    assert steps.line(record).endswith("1.012 times as fast as c1  WRONG")
