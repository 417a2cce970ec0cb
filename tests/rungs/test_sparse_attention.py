"""Sparse attention: the problem's own properties, its bounds against kernels emulated in float32, and its rungs."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tensorladder.core.errors import UsageError
from tensorladder.measure.hazards import new_checker
from tensorladder.measure.run import TARGETS, VirtualTarget, plan, run_rung
from tensorladder.measure.trace import from_probes
from tensorladder.problems import PROBLEMS, examine
from tensorladder.problems.sparse_attention import LATENT, SM_SCALE, max_splits, valid_counts
from tensorladder.rungs.rung import find, load
from tests.rungs.test_needed import without

ml_dtypes = pytest.importorskip("ml_dtypes")
PROBLEM = PROBLEMS["sparse_attention"]
SHAPE = (7, 200, 4)


def emulate(case, splits=3, drop=0):
    """Fill in the outputs as a kernel would: float32 sums by parts of the row, weights in bf16.

    drop: tokens left out of each part.
    """
    a = {name: array.astype(np.float32) for name, array in case.arrays.items() if name != "sparse_indices"}
    latent, rotary = a["ckv_cache"].reshape(-1, LATENT), a["kpe_cache"].reshape(len(a["ckv_cache"]) * 64, -1)
    for row, indices in enumerate(case.arrays["sparse_indices"]):
        parts = []
        for part in np.array_split(indices, splits):
            chosen = part[part >= 0][drop:]
            if not chosen.size:
                continue
            logits = (a["q_nope"][row] @ latent[chosen].T + a["q_pe"][row] @ rotary[chosen].T) * np.float32(SM_SCALE)
            most = logits.max(axis=1)
            weights = np.exp(logits - most[:, None])
            rounded = weights.astype(ml_dtypes.bfloat16).astype(np.float32)
            parts.append((most, weights.sum(axis=1), rounded @ latent[chosen]))
        if not parts:
            case.arrays["output"][row], case.arrays["lse"][row] = 0, -np.inf
            continue
        most = np.max([m for m, _, _ in parts], axis=0)
        total = sum(np.exp(m - most) * s for m, s, _ in parts)
        out = sum(np.exp(m - most)[:, None] * o for m, _, o in parts)
        case.arrays["output"][row] = (out / total[:, None]).astype(ml_dtypes.bfloat16)
        case.arrays["lse"][row] = (most + np.log(total)) / np.float32(np.log(2))


@pytest.mark.parametrize("splits", [1, 4])
def test_what_a_kernel_rounds_is_right(splits):
    case = PROBLEM.make(SHAPE, "bf16", seed=splits)
    emulate(case, splits)
    verdict = examine(case)
    assert verdict.ok, verdict
    # and the bounds are not so wide that nothing could fail: some element uses a tenth of its own
    got = case.arrays["output"].astype(np.float64)
    used = abs(got - case.reference()["output"]) / np.maximum(case.bounds()["output"], 1e-300)
    assert 0.1 < used.max() <= 1


def test_a_token_left_out_is_wrong():
    case = PROBLEM.make(SHAPE, "bf16")
    emulate(case, splits=2, drop=1)
    wrong = examine(case).wrong
    assert wrong["output"][0] > LATENT and wrong["lse"][0] > 8


def test_empty_rows_have_to_be_zero_and_minus_infinity():
    case = PROBLEM.make(SHAPE, "bf16")
    empty = [row for row, count in enumerate(valid_counts(SHAPE)) if not count]
    assert empty and (case.arrays["sparse_indices"][empty] == -1).all()
    emulate(case)
    case.arrays["lse"][empty[0], 3] = np.inf
    case.arrays["output"][empty[0], 2, 5] = 1e-20
    assert examine(case).wrong == {"lse": (1, (empty[0], 3)), "output": (1, (empty[0], 2, 5))}


@pytest.mark.parametrize("shape", [SHAPE, (1, 16, 1), (9, 100, 1), (1024, 8, 2)])
def test_rows_have_different_tokens_and_minus_ones_anywhere(shape):
    rows, topk, pages = shape
    indices = PROBLEM.inputs(shape, "bf16", 5)["sparse_indices"]
    assert indices.shape == (rows, topk) and indices.min() >= -1 and indices.max() < pages * 64
    for row, count in zip(indices, valid_counts(shape), strict=True):
        assert len(set(row[row >= 0])) == (row >= 0).sum() == count
    if rows > 3:
        before = [(row[:-1] < 0) & (row[1:] >= 0) for row in indices]
        assert any(one.any() for one in before), "no -1 in the midst"


def test_scratch_is_poisoned_has_room_and_is_nobody_s_result():
    case = PROBLEM.make(SHAPE, "bf16")
    partial = case.arrays["partial_output"]
    assert np.isnan(partial).all() and partial.shape[0] == max_splits(SHAPE) == 13
    assert max_splits((1, 2048, 40)) == 128 and max_splits((1024, 2048, 40)) == 1
    assert case.outputs == ("output", "lse")
    judged = sum(a.nbytes for name, a in case.arrays.items() if not name.startswith("partial"))
    assert case.bytes == judged


# (rung, architecture or "" for its first, shape, policy, knobs)
RUNS = [
    ("fused-dsa-split", "", (1, 333, 8), "lazy", {}),
    ("fused-dsa-split", "sm_100a", (9, 31, 1), "timed", {"overlap": False}),
    ("fused-dsa-split", "", (4, 160, 2), "random:2", {"sm_count": 4, "ctas_per_sm": 2}),
    # one tile, so that the second warpgroup has none; more tiles than stages in one part of a row, and in each of two
    ("fused-dsa-wgmma", "", (3, 33, 1), "lazy", {}),
    ("fused-dsa-wgmma", "", (2, 450, 8), "random:1", {"sm_count": 2}),
    ("fused-dsa-wgmma", "", (1, 900, 15), "timed", {"sm_count": 3, "stages": 2}),
    ("fused-dsa-tcgen05", "", (1, 1, 1), "lazy", {}),
    ("fused-dsa-tcgen05", "", (9, 129, 3), "timed", {}),
    ("fused-dsa-tcgen05", "", (3, 900, 15), "random:1", {"sm_count": 1}),
    ("fused-dsa-tcgen05", "", (1, 900, 3), "random:2", {"least": 1}),
    ("fused-dsa-pipelined", "", (1, 1, 1), "lazy", {}),
    ("fused-dsa-pipelined", "", (9, 65, 3), "timed", {}),
    ("fused-dsa-pipelined", "", (3, 900, 15), "random:1", {"sm_count": 1, "stages": 8, "rise": 0.0}),
    ("fused-dsa-pipelined", "", (1, 900, 15), "random:2", {"sm_count": 1, "rise": 0.5}),
    ("fused-dsa-pipelined", "", (1, 900, 3), "random:3", {"least": 1}),
]


def config_of(name, knobs):
    return dataclasses.replace(load(find(name)).RUNG.config(), **knobs)


@pytest.mark.parametrize(("name", "arch", "shape", "policy", "knobs"), RUNS)
def test_rungs(name, arch, shape, policy, knobs):
    pytest.importorskip("cutlass")
    info = find(name)
    arch = arch or info.archs[0]
    result = run_rung(info, shape=shape, arch=arch, policy=policy, config=config_of(name, knobs), seed=len(shape))
    assert result.ok, result.message


@pytest.mark.parametrize("name", dict.fromkeys(name for name, *_ in RUNS))
def test_what_no_index_names_is_not_read(name):
    """Tokens that no row has chosen hold NaN, as a cache does that was never filled: also the first and the last."""
    pytest.importorskip("cutlass")
    info = find(name)
    asked = plan(info, shape=(5, 128, 4))
    target = TARGETS["vgpu"](asked)
    case = info.problem.make(asked.shape, asked.dtype, 1, target.allocate)
    chosen = np.unique(case.arrays["sparse_indices"])
    unused = np.setdiff1d(np.arange(4 * 64), chosen)
    # the ends too: whatever row has them takes another token
    indices = case.arrays["sparse_indices"]
    indices[(indices == 0) | (indices == 255)] = chosen[2]
    for cache in ("ckv_cache", "kpe_cache"):
        flat = case.arrays[cache].reshape(256, -1)
        flat[[*unused, 0, 255]] = np.nan
    target.run(load(info).compile(asked.arch, asked.shape, asked.dtype), case)
    assert np.isfinite(case.arrays["output"].astype(np.float32)).all()
    empty = [row for row, count in enumerate(valid_counts(asked.shape)) if not count]
    assert (case.arrays["output"][empty] == 0).all() and np.isneginf(case.arrays["lse"][empty]).all()
    assert np.isfinite(np.delete(case.arrays["lse"], empty, axis=0)).all()


def test_how_rows_are_split_for_wgmma():
    pytest.importorskip("cutlass")
    splits_for = load(find("fused-dsa-wgmma")).sparse.splits_for
    # as was fastest on an H200: two tiles side by side, room for the second kernel, one part where rows fill the GPU
    rows = (1, 2, 4, 8, 16, 64, 256, 1024)
    assert [splits_for(one, 32, 128, 132, 2) for one in rows] == [16, 16, 16, 8, 6, 2, 1, 1]
    assert splits_for(1, 32, 3, 132, 2) == 3 and splits_for(1, 1, 8, 132) == 1


@pytest.mark.parametrize(
    ("name", "shape", "knobs", "said"),
    [
        ("fused-dsa-split", (2, 64, 1), {"warps": 8}, "warps=8"),
        ("fused-dsa-split", (2, 64, 1), {"sm_count": 0}, "sm_count=0"),
        ("fused-dsa-split", (2, 64, 70000), {}, "pages=70000"),
        ("fused-dsa-wgmma", (2, 64, 1), {"stages": 4}, "stages=4"),
        ("fused-dsa-tcgen05", (2, 64, 1), {"sm_count": 0}, "sm_count=0"),
        ("fused-dsa-tcgen05", (70000, 1, 1), {}, "T=70000"),
        ("fused-dsa-pipelined", (2, 64, 1), {"stages": 7}, "stages=7: at least 8"),
        ("fused-dsa-pipelined", (2, 64, 1), {"stages": 13}, "stages=13: .* bytes of shared memory"),
        ("fused-dsa-pipelined", (2, 64, 1), {"rise": -1.0}, "rise=-1.0"),
    ],
)
def test_rungs_refuse(name, shape, knobs, said):
    pytest.importorskip("cutlass")
    with pytest.raises(UsageError, match=said):
        load(find(name)).compile(find(name).archs[0], shape, "bf16", config_of(name, knobs))


def test_the_pipelined_form_overlaps_what_it_says():
    """Its probes, each role's: gathering goes on while tensor cores work, and the result is as right as without."""
    pytest.importorskip("cutlass")
    traced = from_probes(plan(find("fused-dsa-pipelined"), shape=(2, 600, 10)))
    assert traced.result.ok, traced.result.message
    line = traced.timeline
    assert {track.role for track in line.tracks} >= {"gather", "MMA", "softmax"} and len(line.groups) == 2 * 5
    assert line.overlap(*traced.overlap) > 0.5


@pytest.mark.parametrize(
    ("name", "fence", "kind"),
    [
        ("fused-dsa-tcgen05", "", None),
        ("fused-dsa-tcgen05", r"tcgen05\.fence::after_thread_sync;", "tcgen05-order"),
        ("fused-dsa-pipelined", "", None),
        ("fused-dsa-pipelined", r"fence\.proxy\.async[^;]*;", "missing-proxy-fence"),
    ],
)
def test_the_checker_sees_a_fence_that_is_missing(name, fence, kind):
    """Fences change no value on the virtual GPU; the happens-before checker tells whether one is there."""
    pytest.importorskip("cutlass")
    info, shape = find(name), (1, 300, 6)
    program = load(info).compile("sm_100a", shape, "bf16", config_of(name, {"sm_count": 1}))
    checker = new_checker()
    target = VirtualTarget(plan(info, shape=shape), checker)
    case = info.problem.make(shape, "bf16", 0, target.allocate)
    target.run(without(program, fence, "") if fence else program, case)
    kinds = {finding.kind for finding in checker.report(name).findings}
    assert kinds == ({kind} if kind else set())
