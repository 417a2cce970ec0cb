"""The choice against times on an H200: those that it is fitted to (choice_h200.jsonl, some of them here), and
those of shapes that nothing was fitted to (choice_fresh_h200.jsonl). `python -m benchmarks.choice judge [FILE]`.
"""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.choice import ALONE, CANDIDATES, FRESH, KEPT, Rows, Times, of_torch, read, regrets, rows
from tensorladder.ops.choose import modelled, predicted, rank
from tensorladder.ops.kernels import Product
from tensorladder.ops.learnt import PLAIN, SMS, Trees, answers, trees

WITHIN = 1.10  # of the fastest candidate's time


@pytest.fixture(scope="module")
def kept() -> Times:
    return read(KEPT)


@pytest.fixture(scope="module")
def some(kept: Times) -> Rows:
    return rows(dict(list(kept.items())[::16]))


def mean(found: np.ndarray) -> float:
    return float(np.exp(np.log(found).mean()))


def test_every_candidate_was_measured(kept):
    assert {one for at in kept.values() for one in at.us} >= set(CANDIDATES), "record the times again"
    assert len(kept) >= 2000


def test_the_untuned_choice_is_near_the_best_where_that_was_measured(some):
    found = regrets(some, answers(some.x, trees()))
    assert mean(found) < 1.01 and (found > WITHIN).mean() < 0.02


def test_how_near_it_is_where_nothing_was_measured():
    fresh = read(FRESH)
    known = rows(fresh)
    found = regrets(known, answers(known.x, trees()))
    assert len(fresh) >= 110 and not set(fresh) & set(read(KEPT))
    assert mean(found) < 1.012 and (found > WITHIN).mean() < 0.02 and found.max() < 1.15


def test_at_the_limit_of_power_the_choice_holds_alone_too():
    by = {power: np.log([of_torch(*one, power) for one in read(ALONE).items()]).mean(axis=0) for power in (True, False)}
    (alone, turns), (without, fastest) = np.exp(by[True]), np.exp(by[False])
    assert alone < 0.995 < without and turns < 0.97 and turns < 1.01 * fastest


def test_what_the_model_alone_is_worth(some):
    found = regrets(some)
    assert mean(found) < 1.05 and (found > WITHIN).mean() < 0.15


def test_the_choice_is_what_is_judged(kept):
    for product in list(kept)[::300]:
        at = kept[product]
        timed, known = {**at.first, **at.us}, rows({product: at})
        first = next(one for one in rank(*product, SMS) if one in timed)
        assert timed[first] / min(at.us.values()) == pytest.approx(regrets(known, answers(known.x, trees()))[0])


def test_trees_ask_for_what_there_is(some):
    assert trees().asked == some.names


@pytest.mark.parametrize("l, sms", [(1, 114), (2, SMS)])
def test_where_nothing_was_learnt_the_model_decides(l, sms):
    product = Product(64, 512, 512, l, PLAIN)
    assert predicted(CANDIDATES[:3], product, sms) == [modelled(one, product, sms) for one in CANDIDATES[:3]]


def test_a_trees_answers_are_the_number_of_a_leaf():
    by = Trees(("a", "b"), np.array([[0, 1], [1, 1]]), np.array([[0.5, 2.0], [1.0, 3.0]], np.float32),
               np.array([[1.0, 2.0, 4.0, 8.0], [0.1, 0.2, 0.4, 0.8]]))  # fmt: skip
    given = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 2.5], [1.0, 9.0]], np.float32)
    assert answers(given, by) == pytest.approx([1.1, 2.1, 4.2, 8.8])
