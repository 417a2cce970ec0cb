"""Problems: inputs from a seed, poisoned outputs, verdicts that catch one wrong element and let rounding pass."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tensorladder import problems
from tensorladder.core.errors import UsageError
from tensorladder.problems import DTYPES, PROBLEMS, examine, judge
from tensorladder.problems.problem import dtype_named, numpy_empty

SMALL = {
    "vector_add": (1000,),
    "row_sum": (7, 300),
    "gemm": (33, 17, 40),
    "gemm_batched": (3, 9, 7, 24),
    "gemm_colwise_scale": (33, 17, 40),
    "gemm_epilogue": (33, 17, 40),
    "grouped_gemm": (3, 33, 17, 40),
    "swizzle": (24, 64),
    "tv_to_mn": (2, 4),
    "doubled": (33, 20),
    "gemm_block_scaled": (130, 24, 160),
    "ragged_gemm": (4, 40, 24, 40),
    "sparse_attention": (6, 40, 2),
    "attention": (2, 3, 20, 33, 40),
    "attention_causal": (2, 3, 20, 33, 40),
    "topk_indexer": (7, 4, 100),
    "convolution": (2, 7, 9, 5, 6, 3, 2, 2, 1, 2),
}
CASES = [(name, dtype) for name, problem in PROBLEMS.items() for dtype in problem.dtypes]


def solved(name, dtype, seed=0):
    """A case whose outputs are the reference, rounded to the output's type."""
    pytest.importorskip("ml_dtypes")
    case = PROBLEMS[name].make(SMALL[name], dtype, seed)
    for output in case.outputs:
        case.arrays[output][...] = case.reference()[output].astype(case.arrays[output].dtype)
    return case


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_the_rounded_reference_is_right(name, dtype):
    ok, error = judge(solved(name, dtype))
    assert ok and error <= DTYPES[dtype].unit


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_untouched_outputs_are_wrong(name, dtype):
    pytest.importorskip("ml_dtypes")
    ok, error = judge(PROBLEMS[name].make(SMALL[name], dtype))
    assert not ok and error > 0.5


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_one_wrong_element_is_found(name, dtype):
    case = solved(name, dtype)
    output = case.arrays[case.outputs[0]]
    last = tuple(extent - 1 for extent in output.shape)
    output[last] = output[last] + output.dtype.type(3)
    verdict = examine(case)
    assert not verdict.ok
    assert verdict.wrong == {case.outputs[0]: (1, last)}


@pytest.mark.parametrize("name", [name for name in PROBLEMS if name != "tv_to_mn"])
def test_a_spoilt_input_is_found(name):
    case = solved(name, PROBLEMS[name].dtypes[0])
    spoilt = next(array for array in case.arrays if array not in case.outputs)
    case.arrays[spoilt][...] = 0
    verdict = examine(case)
    assert not verdict.ok and math.isinf(verdict.error) and spoilt in verdict.wrong


def test_inputs_depend_on_the_seed_and_nothing_else():
    first, again, other = (PROBLEMS["gemm"].make((8, 8, 8), "fp16", seed) for seed in (1, 1, 2))
    assert np.array_equal(first.arrays["A"], again.arrays["A"])
    assert not np.array_equal(first.arrays["A"], other.arrays["A"])
    assert not np.array_equal(first.arrays["A"], first.arrays["B"])


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize("k", [16, 1024])
def test_float32_accumulation_in_any_order_is_right(dtype, k):
    """A sequential float32 sum, the least exact that a kernel does, stays far inside the bounds; fp16 sums do not."""
    pytest.importorskip("ml_dtypes")
    case = PROBLEMS["gemm"].make((16, 16, k), dtype, 3)
    a, b = (case.arrays[name].astype(np.float32) for name in "AB")
    acc = np.zeros((16, 16), np.float32)
    for i in range(k):
        acc += np.outer(a[:, i], b[:, i])
    case.arrays["C"][...] = acc.astype(case.arrays["C"].dtype)
    assert judge(case)[0]


def test_float16_accumulation_is_wrong():
    case = PROBLEMS["gemm"].make((16, 16, 1024), "fp16", 3)
    acc = np.zeros((16, 16), np.float16)
    for i in range(1024):
        acc += np.outer(case.arrays["A"][:, i], case.arrays["B"][:, i])
    case.arrays["C"][...] = acc
    assert not judge(case)[0]


def test_a_missing_k_step_is_wrong():
    case = PROBLEMS["gemm"].make((64, 64, 4096), "fp16", 0)
    a, b = (case.arrays[name].astype(np.float64) for name in "AB")
    case.arrays["C"][...] = (a[:, :-16] @ b[:, :-16].T).astype(np.float16)
    assert not judge(case)[0]


def test_flops_and_bytes():
    case = PROBLEMS["gemm"].make((16, 32, 64), "fp16")
    assert case.flops == 2 * 16 * 32 * 64
    assert case.bytes == 2 * (16 * 64 + 32 * 64 + 16 * 32)


def test_outputs_are_poison_and_memory_is_aligned():
    case = PROBLEMS["gemm"].make((5, 7, 9), "fp16")
    assert np.isnan(case.arrays["C"]).all()
    assert all(array.ctypes.data % 256 == 0 for array in case.arrays.values())
    assert numpy_empty("x", (4, 6), np.float32, order="F").flags.f_contiguous


@pytest.mark.parametrize(
    ("name", "shape", "dtype"),
    [
        ("gemm", (1, 2), "fp16"),
        ("gemm", (0, 2, 3), "fp16"),
        ("gemm", (1, -2, 3), "fp16"),
        ("gemm", (1.5, 2, 3), "fp16"),
        ("gemm", (1, 2, 3), "int4"),
        ("gemm_batched", (1, 2, 3, 4), "fp8"),
        ("gemm", (1, 2, 3), "int32"),
        ("tv_to_mn", (1, 1), "fp16"),
    ],
)
def test_bad_requests_are_refused_in_one_line(name, shape, dtype):
    with pytest.raises(UsageError) as refusal:
        PROBLEMS[name].make(shape, dtype)
    assert "\n" not in str(refusal.value)


def test_names():
    assert dtype_named("Half").name == "fp16" and dtype_named("bfloat16").name == "bf16"
    with pytest.raises(UsageError, match="vector_add"):
        problems.find("conv")
