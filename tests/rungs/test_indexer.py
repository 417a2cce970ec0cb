"""The sparse-attention indexer: what its judgement lets pass and what not, and its rungs."""

from __future__ import annotations

import dataclasses
import math
import re

import numpy as np
import pytest

from tensorladder.core.errors import UsageError
from tensorladder.measure.run import run_rung
from tensorladder.problems import examine
from tensorladder.problems.topk_indexer import PAGE, TOPK_INDEXER, choice, lengths, score
from tensorladder.rungs.rung import find, load
from tensorladder.silicon.disassemble import find_nvdisasm, sass

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


# ------------------------------------------------------------------------------------------------------------ rungs

WGMMA, TCGEN05 = "fused-topk-indexer-wgmma", "fused-topk-indexer-tcgen05"
# (rung, shape, knobs): a page alone, topk past all tokens, ragged parts, rings that come round, CTAs with no page.
CASES = [
    (WGMMA, (1, 1, 1), {}),
    (WGMMA, (7, 3, 300), {"cluster": 1, "threads": 64}),
    (WGMMA, (2, 35, 100), {"stages": 2, "sm_count": 1, "pages_per_cta": 40}),
    (WGMMA, (5, 9, 64), {"stages": 4, "sm_count": 3, "pages_per_cta": 4, "cluster": 3}),
    (TCGEN05, (1, 1, 1), {}),
    (TCGEN05, (2, 35, 100), {"stages": 2, "accumulators": 1, "sm_count": 1, "pages_per_cta": 40, "threads": 64}),
    (TCGEN05, (5, 9, 64), {"stages": 3, "accumulators": 3, "sm_count": 3, "pages_per_cta": 4, "cluster": 3}),
]


@pytest.mark.parametrize(("name", "shape", "knobs"), CASES, ids=str)
def test_rung(name, shape, knobs):
    pytest.importorskip("cutlass")
    info = find(name)
    config, digests = dataclasses.replace(load(info).RUNG.config(), **knobs), set()
    for policy in ("eager", "lazy", "random:1"):
        result = run_rung(info, shape=shape, config=config, policy=policy, seed=3)
        assert result.ok, (policy, result.message)
        digests.add(result.digest)
    assert len(digests) == 1


def test_scores_as_hopper_sums_them_are_within_the_bounds():
    pytest.importorskip("cutlass")
    result = run_rung(find(WGMMA), shape=(2, 8, 200), numerics="exact")
    assert result.ok and 1e-6 < result.error < result.tolerance / 8, result.message


# QGMMA: wgmma of 8 bits. UTCQMMA: tcgen05.mma of 8 bits. UTCBAR: its commit. LDTM: tcgen05.ld. UTMALDG: TMA. PREEXIT,
# ACQBULK: griddepcontrol. UCGABAR: the cluster barrier. UBLKCP: a bulk copy to another CTA.
CLAIMS = {
    WGMMA: ["QGMMA.64x64x32.F32.E4M3.E4M3", "UTMALDG.3D", "UTMALDG.2D"],
    TCGEN05: ["UTCQMMA", "UTCBAR", "LDTM.x64", "UTMALDG.3D", "UTMALDG.2D"],
}
SELECT = ["PREEXIT", "ACQBULK", "UCGABAR_ARV", "UBLKCP", "REDUX.SUM.S32", "ATOMS.POPC.INC"]


@pytest.mark.skipif(find_nvdisasm() is None, reason="no nvdisasm here")
@pytest.mark.parametrize("name", CLAIMS)
def test_machine_code(name):
    pytest.importorskip("cutlass")
    info = find(name)
    (module,) = load(info).compile(info.archs[0], (1, 1024, 2048), "e4m3").modules
    text = sass(module.cubin)
    assert [claim for claim in CLAIMS[name] + SELECT if claim not in text] == []
    assert not re.search(r"\b(LDL|STL)\b", text), "spilt"


BAD = {
    WGMMA: ["stages=1", "stages=3", "stages=14", "ctas_per_sm=4"],
    TCGEN05: ["stages=1", "stages=7", "accumulators=0", "accumulators=5", "ctas_per_sm=3"],
}
BAD = [(name, bad) for name, own in BAD.items() for bad in [*own, "threads=96", "cluster=9", "pages_per_cta=0"]]


@pytest.mark.parametrize(("name", "bad"), BAD)
def test_bad_knobs_are_refused(name, bad):
    pytest.importorskip("cutlass")
    info, (knob, value) = find(name), bad.split("=")
    config = dataclasses.replace(load(info).RUNG.config(), **{knob: int(value)})
    with pytest.raises(UsageError, match=bad):
        load(info).compile(info.archs[0], info.default_shape, "e4m3", config)
