"""What a call means, and every refusal, from shapes and strides alone."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorladder.core.errors import UsageError
from tensorladder.ops.plan import Array, Matrix, fold, plan


def array(*shape, dtype="fp16", strides=None, address=0):
    steps = [1]
    for extent in reversed(shape[1:]):
        steps.append(steps[-1] * extent)
    return Array(shape, strides or tuple(reversed(steps)), dtype, address)


def test_needs_neither_torch_nor_a_dsl():
    modules = "choose, kernels, plan"
    script = f"import sys; from tensorladder.ops import {modules}; print({{'torch', 'cutlass'}} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "set()"


def test_a_weight_of_either_major_costs_nothing():
    a = array(2, 3, 64)
    kn = plan(a, array(64, 40))
    assert (kn.m, kn.n, kn.k, kn.shape) == (6, 40, 64, (2, 3, 40))
    assert kn.a == Matrix((6, 64), "k", 64) and kn.b == Matrix((40, 64), "mn", 40)
    assert plan(a, array(64, 40, strides=(1, 64))).b == Matrix((40, 64), "k", 64)
    assert plan(array(16, 24, strides=(1, 16)), array(24, 40)).a == Matrix((16, 24), "mn", 16)


def test_padded_rows_and_single_ones():
    assert plan(array(5, 13, strides=(16, 1)), array(13, 8, strides=(1, 24))).a == Matrix((5, 13), "k", 16)
    # a single row's pitch means nothing, whatever the tensor says
    assert plan(array(1, 13, strides=(3, 1)), array(13, 8)).a == Matrix((1, 13), "k", 16)


@pytest.mark.parametrize("shape", [(0, 8, 8), (4, 0, 8), (4, 8, 0), (0, 0, 0)])
def test_empty(shape):
    m, n, k = shape
    found = plan(array(m, k), array(k, n))
    assert found.empty and found.shape == (m, n)


A, B = array(16, 64), array(64, 40)
REFUSED = [
    ({"a": array(64)}, "a: shape"),
    ({"b": array(2, 64, 40)}, "b: shape"),
    ({"b": array(63, 40)}, "b: shape"),
    ({"a": array(16, 64, dtype="fp32")}, "a: fp32"),
    ({"b": array(64, 40, dtype="bf16")}, "b: bf16"),
    ({"b": array(64, 42)}, "b: N=42"),
    ({"a": array(16, 63), "b": array(63, 40)}, "a: strides"),
    ({"a": array(16, 64, strides=(128, 2))}, "a: strides"),
    ({"a": array(16, 64, strides=(0, 1))}, "a: strides"),
    ({"a": array(16, 64, strides=(32, 1))}, "a: strides"),
    ({"a": array(2, 8, 64, strides=(1024, 64, 1))}, "a: shape"),
    ({"a": array(16, 64, address=8)}, "a: address"),
    ({"a": array(2**16, 2**15, 64)}, "a: M="),
    ({"out": array(16, 48)}, "out: shape"),
    ({"out": array(16, 40, strides=(1, 16), address=1 << 20)}, "out: strides"),
    ({"out": array(16, 40), "out_dtype": "fp32"}, "out_dtype: fp32"),
    ({"out_dtype": "int8"}, "out_dtype: int8"),
    ({"out": array(16, 40, address=1024)}, "out: shares memory with a"),
    ({"bias": array(1)}, "bias: shape"),
    ({"bias": array(40, strides=(2,))}, "bias: stride"),
    ({"bias": array(40, address=2)}, "bias: address"),
    ({"bias": array(40, dtype="float64")}, "bias: float64"),
    ({"residual": array(40), "beta": 1.0}, "residual: shape"),
    ({"residual": array(16, 40)}, "residual: its factor beta is 0"),
    ({"beta": 1.0}, "beta: 1.0"),
    ({"activation": "tanh"}, "activation: 'tanh'"),
]


@pytest.mark.parametrize(("changed", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_refusals_name_the_argument(changed, message):
    with pytest.raises(UsageError) as refusal:
        plan(**{"a": A, "b": B, **changed})
    assert str(refusal.value).startswith(message) and "\n" not in str(refusal.value)


def test_the_residual_may_lie_where_the_result_goes():
    c = array(16, 40, address=1 << 20)
    assert plan(A, B, out=c, residual=c, beta=1.0).r == Matrix((16, 40), "k", 40)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=2, max_size=4), st.permutations(range(4)), st.booleans())
def test_folding_names_the_same_elements(shape, order, padded):
    """Against numpy: what is folded shows the same elements in the same order, what is refused numpy has to copy."""
    rank = len(shape)
    order = [axis for axis in order if axis < rank]
    base = np.arange(int(np.prod(shape)) * (2 if padded else 1)).reshape([2] * padded + [shape[i] for i in order])
    seen = (base[0] if padded else base).transpose(np.argsort(order))
    one = Array(seen.shape, tuple(step // seen.itemsize for step in seen.strides), "fp16")
    try:
        folded = fold("x", one)
    except UsageError:
        with pytest.raises(ValueError):
            np.reshape(seen, (-1, shape[-1]), copy=False)
        return
    steps = [step * seen.itemsize for step in folded.strides]
    again = np.lib.stride_tricks.as_strided(seen, folded.shape, steps)
    assert np.array_equal(again, seen.reshape(-1, shape[-1]))
