"""Attention: the bounds against float32 kernels, and rungs on odd and causal shapes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tensorladder.core.errors import UsageError
from tensorladder.measure.run import run_rung
from tensorladder.problems import PROBLEMS, examine
from tensorladder.problems.attention import causal_mask
from tensorladder.rungs.rung import find, load

pytest.importorskip("cutlass")
pytest.importorskip("ml_dtypes")

NAIVE = find("fused-sdpa-naive")


def emulate(case, causal, last=0):
    """O in float32, weights rounded to the element type. last: keys that are left out at the end."""
    q, k, v = (case.arrays[name].astype(np.float32) for name in "QKV")
    seen = causal_mask(*case.shape[2:4]) if causal else np.ones(case.shape[2:4], bool)
    seen[:, case.shape[3] - last :] = False
    logits = np.where(seen, q @ k.swapaxes(-1, -2) * np.float32(case.shape[-1] ** -0.5), -np.inf)
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    rounded = weights.astype(case.arrays["O"].dtype).astype(np.float32)
    case.arrays["O"][...] = (rounded @ v / weights.sum(axis=-1, keepdims=True)).astype(case.arrays["O"].dtype)


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize("causal", [False, True])
def test_what_a_kernel_rounds_is_right_and_a_missing_key_is_not(causal, dtype):
    problem = PROBLEMS["attention_causal" if causal else "attention"]
    case = problem.make((1, 2, 40, 150 if not causal else 40, 64), dtype)
    emulate(case, causal)
    assert examine(case).ok
    emulate(case, causal, last=1)
    assert not examine(case).ok


@pytest.mark.parametrize(
    ("shape", "dtype", "arch", "policy", "knobs"),
    [
        ((1, 2, 37, 53, 64), "fp16", "sm_80", "lazy", {}),
        ((2, 1, 1, 1, 32), "bf16", "sm_90a", "timed", {"warps": 1}),
        ((1, 3, 9, 130, 96), "fp32", "sm_100a", "random:1", {"unroll": 1}),
        ((1, 1, 40, 70, 256), "bf16", "sm_120a", "eager", {"warps": 3}),
        ((1, 2, 45, 45, 128), "bf16", "sm_90a", "random:2", {"causal": True}),
        ((1, 1, 20, 7, 64), "fp16", "sm_80", "lazy", {"causal": True}),
        ((2, 1, 5, 40, 32), "fp32", "sm_80", "timed", {"causal": True}),
    ],
)
def test_naive(shape, dtype, arch, policy, knobs):
    config = load(NAIVE).RUNG.config(**knobs)
    problem = "attention_causal" if config.causal else "attention"
    info = dataclasses.replace(NAIVE, rung=dataclasses.replace(NAIVE.rung, problem=problem))
    result = run_rung(info, shape=shape, dtype=dtype, arch=arch, policy=policy, config=config, seed=3)
    assert result.ok, result.message


@pytest.mark.parametrize(
    ("shape", "knobs", "said"),
    [((1, 1, 8, 8, 40), {}, "D=40"), ((1, 1, 8, 8, 288), {}, "D=288"), ((1, 1, 8, 8, 64), {"warps": 33}, "warps=33")],
)
def test_naive_refuses(shape, knobs, said):
    module = load(NAIVE)
    with pytest.raises(UsageError, match=said):
        module.compile("sm_80", shape, "fp16", module.RUNG.config(**knobs))
