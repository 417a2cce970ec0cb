"""The choice against times on an H200, those that it is fitted to (`ops/choice_h200.jsonl`, read by `ops.measured`).

What it is worth elsewhere is what it does at a shape when that is left out; `python -m benchmarks.choice judge`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from benchmarks.choice import by_model, by_others, regret
from tensorladder.ops import measured
from tensorladder.ops.choose import choose, modelled, predicted
from tensorladder.ops.kernels import KERNELS, Product, choice
from tensorladder.ops.measured import PLAIN, SMS, alike, corrections, near, times
from tensorladder.ops.models import MODELS

WITHIN = 1.10  # of the fastest candidate's time


def regrets(chosen: Callable) -> dict[measured.Extents, float]:
    """Times as long as the fastest."""
    return {shape: regret(shape, chosen(shape)) for shape in times()}


def mean(found: dict[measured.Extents, float]) -> float:
    return math.exp(sum(map(math.log, found.values())) / len(found))


def test_every_candidate_was_measured():
    known = {one for us in times().values() for one in us}
    here = [model.candidates for name, model in MODELS.items() if "sm_90a" in KERNELS[name].archs]
    assert known == {alike(one) for model in here for one in model}, "record the times again"
    assert len(times()) >= 600


def test_the_untuned_choice_is_near_the_best_where_that_was_measured():
    found = regrets(lambda shape: choose(*shape, 1, PLAIN, SMS))
    assert {shape: ratio for shape, ratio in found.items() if ratio > WITHIN} == {}
    assert mean(found) < 1.005


def test_how_near_it_is_where_nothing_was_measured():
    """Not all shapes are within 10 %: those that are not are counted here."""
    found = regrets(by_others)
    over = [shape for shape, ratio in found.items() if ratio > WITHIN]
    assert mean(found) < 1.02 and len(over) <= 0.04 * len(found) and max(found.values()) < 1.3


def test_what_the_model_alone_is_worth():
    found = regrets(lambda shape: by_model(shape, {}))
    assert mean(found) < 1.03 and sum(ratio > WITHIN for ratio in found.values()) <= 0.08 * len(found)


M, N, K = 128, 8192, 8192  # was measured


def test_what_was_measured_speaks_for_its_neighbours():
    product = Product(M, N, K, 1, PLAIN)
    assert ((M, N, K), 1.0) in near(product) and (M, N, K) not in dict(near(product, (M, N, K)))
    assert 0.5 < dict(near(product._replace(m=M + 8)))[M, N, K] < 1.0
    assert near(Product(M, 100_000, K, 1, PLAIN)) == []
    for other in (
        product._replace(l=2),
        product._replace(form=replace(PLAIN, b_major="mn")),
        product._replace(form=replace(PLAIN, a_major="mn")),
    ):
        assert near(other) == []
    narrow = product._replace(k=2 * K, form=replace(PLAIN, dtype="e4m3"))  # as many bytes
    gated = product._replace(n=N // 2, form=replace(PLAIN, gated=True))  # as many columns of B and U
    assert near(narrow) == near(gated) == near(product)


def test_a_correction_is_most_of_the_models_error(monkeypatch):
    product = Product(M, N, K, 1, PLAIN)
    fast, slow, other = measured.timed()[:3]
    monkeypatch.setattr(measured, "times", lambda: {(M, N, K): {fast: 50.0, slow: 200.0}})
    monkeypatch.setattr(measured, "_places", lambda: (((M, N, K), measured._place(M, N, K)),))
    found = corrections(product, lambda *_: 100.0)
    assert 100 * found[fast] == pytest.approx(50.0, rel=0.2) and 100 * found[fast] > 50.0
    assert 100 * found[slow] == pytest.approx(200.0, rel=0.2) and 100 * found[slow] < 200.0
    assert 1.0 < found[other] < math.exp(measured.UNTIMED)  # was left out
    assert corrections(product, lambda *_: 100.0, without=(M, N, K)) == {}


def test_other_gpus_have_the_model_alone():
    product = Product(M, N, K, 1, PLAIN)
    for one in MODELS["c7"].candidates[:3]:
        assert predicted(one, product, SMS - 20) == modelled(one, product, SMS - 20)


def test_a_second_buffer_of_c_has_no_times_of_its_own():
    assert alike(choice("c7", c_stages=2, stages=5)) == alike(choice("c7", c_stages=1, stages=5))
