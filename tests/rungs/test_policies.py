"""Every rung under every policy: the same bits, and right. CI runs a stated subset, `make matrix` all of it.

The subset: each rung at its default shape for its first architecture, under eager, lazy, timed and one random order.
The whole: each architecture and element type under 20 random orders, and smaller and ragged shapes under the subset.
"""

from __future__ import annotations

import dataclasses

import pytest

from tensorladder.core.errors import UsageError
from tensorladder.measure.run import plan, run_rung
from tensorladder.rungs.rung import catalog, find, lacking, load

pytest.importorskip("cutlass")

SUBSET = ("lazy", "timed", "random:1")
WHOLE = ("lazy", "timed", *(f"random:{seed}" for seed in range(20)))

FIRST = [pytest.param(info, id=info.name) for info in catalog()]
ALL = [
    pytest.param(info, arch, dtype, id=f"{info.name}-{arch}-{dtype}")
    for info in catalog()
    for arch in info.archs
    for dtype in info.dtypes
]


def same_under(policies, info, **asked):
    """Runs under `eager` and then under each policy; asserts that all are right and, where promised, bit-identical."""
    if lack := lacking(info):
        pytest.skip(str(lack))
    eager = run_rung(info, policy="eager", **asked)
    assert eager.ok, eager.message
    for policy in policies:
        result = run_rung(info, policy=policy, **asked)
        assert result.ok, (policy, result.message)
        if info.rung.deterministic:
            assert result.digest == eager.digest, policy


@pytest.mark.parametrize("info", FIRST)
def test_the_order_of_effects_changes_nothing(info):
    same_under(SUBSET, info)


# Few CTAs and a short ring: every CTA does many tiles, and the ring's phases come round in the middle of them.
WALKS = [
    ("c3-persistent", {"tile": (128, 64, 64), "stages": 2, "c_stages": 1, "sm_count": 3}),
    ("c4-multicast", {"tile": (128, 64, 64), "stages": 3, "c_stages": 1, "sm_count": 4, "cluster_n": 2}),
    ("c5-ping-pong", {"tile": (64, 64, 64), "stages": 5, "c_stages": 1, "sm_count": 4}),
    ("c6-epilogue", {"tile": (128, 64, 64), "stages": 2, "c_stages": 1, "sm_count": 3}),
    ("c7-fused-ping-pong", {"tile": (64, 128, 64), "stages": 5, "c_stages": 1, "sm_count": 4}),
    ("c7-fused-ping-pong", {"tile": (64, 64, 64), "stages": 5, "c_stages": 1, "sm_count": 4, "swap": True}),
    ("c8-split-k", {"tile": (64, 32, 64), "stages": 2, "split": 3, "passes": 2, "sm_count": 6}),
    ("c9-grouped", {"tile": (64, 64, 64), "stages": 2, "c_stages": 1, "sm_count": 4}),
    ("d5-epilogue", {"tile": (256, 128, 64), "stages": 2, "buffers": 2, "sm_count": 2}),
    ("fused-dsa-tcgen05", {"sm_count": 1}),
    ("fused-dsa-pipelined", {"sm_count": 1, "rise": 0.5}),
    ("v5-pipeline", {"stages": 3}),
    ("v6-persistent", {"sm_count": 2, "raster": 2}),
    ("v7-warp-specialized", {"sm_count": 2, "raster": 2, "stages": 3}),
    ("v8-two-cta", {"sm_count": 2, "stages": 3}),
    ("v9-two-consumers", {"sm_count": 2, "stages": 3}),
]


SHAPES = {"sparse_attention": (2, 700, 12)}


@pytest.mark.parametrize(("name", "knobs"), WALKS, ids=lambda value: value if isinstance(value, str) else "")
def test_nor_does_it_where_a_cta_does_many_tiles(name, knobs):
    info = find(name)
    config = dataclasses.replace(load(info).RUNG.config(), **knobs)
    shape = SHAPES.get(info.problem.name, (7, 300, 264, 200)[-len(info.default_shape) :])
    same_under((*SUBSET, "random:2", "random:3"), info, shape=shape, config=config)


def test_nor_does_it_where_ctas_take_over_the_tiles_of_others():
    same_under((*SUBSET, "random:2", "random:3"), find("a1-cluster-launch-control"), shape=(200, 260, 24), sm_count=1)


@pytest.mark.matrix
@pytest.mark.parametrize(("info", "arch", "dtype"), ALL)
def test_no_order_of_effects_changes_anything(info, arch, dtype):
    same_under(WHOLE, info, arch=arch, dtype=dtype)
    for shape in other_shapes(info.default_shape):
        try:
            plan(info, arch=arch, dtype=dtype, shape=shape)
            same_under(SUBSET, info, arch=arch, dtype=dtype, shape=shape)
        except UsageError as refusal:
            # A rung or its problem may refuse a shape, but has to say which extent and what it takes.
            assert (info.name in str(refusal) or info.problem.name in str(refusal)) and "\n" not in str(refusal)


def other_shapes(shape):
    """Half of it, and one with no extent that a tile divides."""
    return tuple(max(1, extent // 2) for extent in shape), tuple(max(1, extent - 3) for extent in shape)
