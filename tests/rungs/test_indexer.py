"""The sparse-attention indexer: what its judgement lets pass and what not."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tensorladder.problems import examine
from tensorladder.problems.topk_indexer import PAGE, TOPK_INDEXER, choice, lengths, score

pytest.importorskip("ml_dtypes")

SHAPE = (4, 5, 64)


def solved(shape=SHAPE, seed=0):
    """A case with the reference as its outputs."""
    case = TOPK_INDEXER.make(shape, "e4m3", seed)
    for name, array in case.reference().items():
        case.arrays[name][...] = array
    return case


def test_sums_in_float32_are_right_and_heads_left_out_are_not():
    for heads, right in ((64, True), (63, False)):
        case = solved()
        inputs = case._inputs64()
        for row, length in enumerate(lengths(SHAPE)):
            inputs["weights"][row, heads:] = 0
            exact, _ = score(inputs, row)
            case.arrays["scores"][row, :length] = exact
        found = examine(case)
        assert ("scores" not in found.wrong) == right


def test_the_order_of_the_chosen_does_not_matter():
    case = solved()
    case.arrays["idx"][-1] = case.arrays["idx"][-1, ::-1]
    assert examine(case).ok


@pytest.mark.parametrize("what", ["again", "outside", "of another query", "past the end", "gap", "tail", "next best"])
def test_a_wrong_choice_is_found(what):
    case = solved()
    idx, rows = case.arrays["idx"], {n: i for i, n in enumerate(lengths(SHAPE).tolist())}
    row, short, ragged = rows[SHAPE[1] * PAGE], rows[SHAPE[2] // 2], rows[SHAPE[1] * PAGE - 3]
    last = case.arrays["block_table"][ragged, -1]
    at, value = {
        "again": ((row, 9), idx[row, 3]),
        "outside": ((row, 9), 10**6),
        "of another query": ((row, 9), idx[ragged, 0]),
        "past the end": ((ragged, 9), last * PAGE + PAGE - 1),
        "gap": ((row, 9), -1),
        "tail": ((short, 40), idx[short, 0]),
        "next best": ((row, 9), None),
    }[what]
    if value is None:
        tokens = case.problem.compute(case._inputs64(), (SHAPE[0], SHAPE[1], 320), None)["idx"][row]
        value = tokens[100]
    idx[at] = value
    found = examine(case)
    assert not found.ok and found.wrong["idx"] == (1, at)


def test_untouched_tails_are_wrong():
    case = TOPK_INDEXER.make(SHAPE, "e4m3", 0)
    idx = case.arrays["idx"].copy()
    case.arrays["idx"][...], case.arrays["scores"][...] = case.reference()["idx"], case.reference()["scores"]
    tail = case.arrays["idx"] == -1
    case.arrays["idx"][tail] = idx[tail]
    assert examine(case).wrong["idx"][0] == tail.sum() > 0


def test_equal_scores_may_be_chosen_in_any_way():
    tokens, scores = np.arange(6), np.array([1.0, 2, 2, 2, 3, 0])
    for chosen in ((4, 1, 2), (4, 3, 1), (2, 3, 4)):
        assert not choice(np.array(chosen), tokens, scores).any()
    assert choice(np.array([1, 2, 3]), tokens, scores).sum() == 1  # 4 is left out
    assert choice(np.array([4, 1, 0]), tokens, scores).tolist() == [False, False, True]


def test_scores_that_are_closer_than_their_slack_may_change_places():
    tokens, scores = np.arange(4), np.array([1.0, 1.01, 2, 0])
    assert choice(np.array([2, 0]), tokens, scores, 0.004).any()
    assert not choice(np.array([2, 0]), tokens, scores, 0.006).any()
    assert choice(np.array([2, 3]), tokens, scores, 0.006).any()


def test_choices_by_perturbed_scores_pass():
    """Whatever errors within the slack do to the scores, a choice by those is right."""
    generator = np.random.default_rng(0)
    for _ in range(200):
        scores, slack = generator.standard_normal(50), generator.random(50) * 0.3
        seen = scores + slack * generator.uniform(-1, 1, 50)
        n = int(generator.integers(1, 50))
        assert not choice(np.argsort(-seen)[:n], np.arange(50), scores, slack).any()


def test_error_is_infinite_where_no_token_is_named():
    case = solved()
    case.arrays["idx"][-1, 0] = -7
    assert math.isinf(examine(case).error)
