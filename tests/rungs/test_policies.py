"""Every rung under every policy: the same bits, and right. CI runs a stated subset, `make matrix` all of it.

The subset: each rung at its default shape for its first architecture, under eager, lazy, timed and one random order.
The whole: each architecture and element type under 20 random orders, and smaller and ragged shapes under the subset.
"""

from __future__ import annotations

import pytest

from tensorladder.core.errors import UsageError
from tensorladder.measure.run import plan, run_rung
from tensorladder.rungs.rung import catalog

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


@pytest.mark.matrix
@pytest.mark.parametrize(("info", "arch", "dtype"), ALL)
def test_no_order_of_effects_changes_anything(info, arch, dtype):
    same_under(WHOLE, info, arch=arch, dtype=dtype)
    for shape in other_shapes(info.default_shape):
        try:
            plan(info, arch=arch, dtype=dtype, shape=shape)
            same_under(SUBSET, info, arch=arch, dtype=dtype, shape=shape)
        except UsageError as refusal:
            # A rung may refuse a shape, but has to say which extent and what it takes.
            assert info.name in str(refusal) and "\n" not in str(refusal)


def other_shapes(shape):
    """Half of it, and one with no extent that a tile divides."""
    return tuple(max(1, extent // 2) for extent in shape), tuple(max(1, extent - 3) for extent in shape)
