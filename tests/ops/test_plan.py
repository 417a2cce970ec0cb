"""What a call means, and every refusal, from shapes and strides alone."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorladder.core.errors import UsageError
from tensorladder.ops.plan import Array, Matrix, fold, operands, plan


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


def test_products():
    """Leading extents of b are products; an operand that lacks them, or has 1, is the same for all (step 0)."""
    found = plan(array(2, 3, 16, 64), array(2, 3, 64, 40))
    assert (found.l, found.m, found.shape) == (6, 16, (2, 3, 16, 40))
    assert found.a == Matrix((16, 64), "k", 64, 6, 1024) and found.b == Matrix((40, 64), "mn", 40, 6, 2560)
    assert found.c == Matrix((16, 40), "k", 40, 6, 640)
    shared = plan(array(16, 64), array(5, 64, 40, strides=(2560, 1, 64)))
    assert shared.a == Matrix((16, 64), "k", 64, 5, 0) and shared.b == Matrix((40, 64), "k", 64, 5, 2560)
    one = plan(array(4, 16, 64), array(1, 64, 40), out=array(4, 16, 40, address=1 << 20))
    assert (one.l, one.m) == (1, 64)


def test_rows_that_are_no_sequence_are_products():
    found = plan(array(2, 8, 64, strides=(1024, 64, 1)), array(64, 40))
    assert (found.l, found.m, found.a.step, found.b.step) == (2, 8, 1024, 0)
    # heads of an attention layer: (batch, heads, length, width) seen in memory of (batch, length, heads, width)
    heads = array(1, 12, 16, 64, strides=(16 * 768, 64, 768, 1))
    found = plan(heads, array(1, 12, 64, 40), out=array(1, 12, 16, 40, strides=(7680, 40, 480, 1), address=1 << 20))
    assert (found.a.step, found.a.pitch, found.c.step, found.c.pitch) == (64, 768, 40, 480)


def test_scales():
    a, b = array(2, 8, 64, dtype="e4m3"), array(64, 40, dtype="e4m3", strides=(1, 64))
    one = array(dtype="fp32")
    plain = plan(a, b)
    assert (plain.form.scaled, plain.p, plain.q, plain.form.out) == (False, None, None, "bf16")
    assert (plan(a, b, scale_a=one).p, plan(a, b, scale_a=one).q) == (0, 0)
    rows = plan(a, b, scale_a=array(2, 8, 1, dtype="fp32"), scale_b=array(1, 40, dtype="fp32"), out_dtype="fp32")
    assert (rows.p, rows.q, rows.form.scaled) == (1, 1, True)
    assert plan(a, b, scale_a=array(2, 8, dtype="fp32"), scale_b=array(40, dtype="fp32")).p == 1


def test_gated():
    halves = plan(array(4, 64), array(64, 24, strides=(48, 1)), up=array(64, 24, strides=(48, 1), address=48))
    assert halves.form.gated and halves.b == Matrix((24, 64), "mn", 48)
    turns = plan(array(4, 64), array(64, 24, strides=(1, 128)), up=array(64, 24, strides=(1, 128), address=128))
    assert turns.b == Matrix((24, 64), "k", 128) and turns.shape == (4, 24)


def test_more_than_two_to_the_31st_elements():
    a, b = array(2**20, 2**13), array(2**13, 2**17, strides=(1, 2**13))
    found = plan(a, b)
    assert found.c == Matrix((2**20, 2**17), "k", 2**17)
    assert a.span()[1] == 2**34 and Array((2**20, 2**17), found.c.strides, "fp16").span()[1] == 2**38
    many = plan(array(2**10, 2**16, 2**8), array(2**10, 2**8, 2**10))
    assert (many.a.step, many.c.step, many.l) == (2**24, 2**26, 2**10)
    out = array(2**20, 2**17, address=2**33)
    with pytest.raises(UsageError, match="out: shares memory with a"):
        plan(a, b, out=out)


@pytest.mark.parametrize(
    "changed",
    [
        {"b": array(64, 42, strides=(1, 64))},
        {"out": array(16, 40, strides=(41, 1), address=1 << 20)},
        {"out": array(16, 40, address=(1 << 20) + 2)},
        {"bias": array(40, address=2)},
        {"residual": array(16, 40, address=2), "beta": 1.0},
        {"residual": array(16, 40, strides=(41, 1)), "beta": 1.0},
    ],
)
def test_what_only_the_epilogue_sees_may_lie_anywhere(changed):
    assert plan(A, B).form.c_tma and not plan(**{"a": A, "b": B, **changed}).form.c_tma


def test_one_row_as_residual_of_all():
    assert plan(A, B, residual=array(16, 40, strides=(0, 1)), beta=1.0).r == Matrix((16, 40), "k", 0)


@pytest.mark.parametrize("shape", [(0, 8, 8), (4, 0, 8), (4, 8, 0), (0, 0, 0)])
def test_empty(shape):
    m, n, k = shape
    found = plan(array(m, k), array(k, n))
    assert found.empty and found.shape == (m, n)


A, B = array(16, 64), array(64, 40)
REFUSED = [
    ({"a": array(64)}, "a: shape"),
    ({"b": array(64)}, "b: shape"),
    ({"a": array(3, 16, 64), "b": array(2, 64, 40)}, "b: shape"),
    ({"b": array(2, 64, 40, strides=(2564, 40, 1))}, "b: its matrices lie 2564 elements apart"),
    ({"b": array(2, 2, 64, 40, strides=(8192, 2560, 40, 1))}, "b: shape"),
    ({"a": array(2, 1, 16, 64), "b": array(1, 2, 64, 40), "residual": array(2, 2, 16, 40), "beta": 1.0}, "a: shape"),
    ({"b": array(63, 40)}, "b: shape"),
    ({"a": array(16, 64, dtype="fp32")}, "a: fp32"),
    ({"b": array(64, 40, dtype="bf16")}, "b: bf16"),
    ({"b": array(64, 42)}, "b: strides"),
    ({"a": array(16, 63), "b": array(63, 40)}, "a: strides"),
    ({"a": array(16, 64, strides=(128, 2))}, "a: strides"),
    ({"a": array(16, 64, strides=(0, 1))}, "a: strides"),
    ({"a": array(16, 64, strides=(32, 1))}, "a: strides"),
    ({"a": array(2, 2, 8, 64, strides=(4096, 1024, 64, 1))}, "a: shape"),
    ({"a": array(16, 64, strides=(2**39, 1))}, "a: strides"),
    ({"out": array(2, 16, 40, strides=(8, 48, 1), address=1 << 20), "b": array(2, 64, 40)}, "out: its matrices lie 8"),
    ({"scale_a": array(16)}, "scale_a: fp16"),
    ({"scale_a": array(15, dtype="fp32")}, "scale_a: shape"),
    ({"a": array(2, 8, 64), "scale_a": array(2, 8, dtype="fp32", strides=(1, 2))}, "scale_a: shape"),
    ({"scale_b": array(16, dtype="fp32")}, "scale_b: shape"),
    ({"b": array(2, 64, 40), "a": array(2, 16, 64), "scale_a": array(2, 16, dtype="fp32")}, "scale_a: a factor a row"),
    ({"b": array(64, 40, strides=(80, 2)), "up": array(64, 40, strides=(80, 2), address=2)}, "b: interleaved columns"),
    ({"b": array(64, 20, strides=(40, 1)), "up": array(64, 20, strides=(40, 1), address=40)}, "b: its second half"),
    ({"up": array(64, 20)}, "up: shape"),
    ({"up": array(64, 40), "scale_b": array(40, dtype="fp32")}, "scale_b: shape"),
    ({"a": array(16, 64, dtype="e4m3"), "b": array(64, 40, dtype="e4m3")}, "b: e4m3 with strides"),
    ({"a": array(16, 64, strides=(1, 16), dtype="e4m3"), "b": array(64, 40, strides=(1, 64), dtype="e4m3")}, "a: e4m3"),
    ({"a": array(16, 64, dtype="e5m2"), "b": array(64, 40, dtype="e4m3")}, "b: e4m3, but a is e5m2"),
    ({"out": array(16, 40, address=(1 << 20) + 1)}, "out: address"),
    ({"out": array(16, 40, strides=(0, 1), address=1 << 20)}, "out: strides"),
    ({"a": array(16, 64, address=8)}, "a: address"),
    ({"a": array(2**16, 2**15, 64)}, "a: M="),
    ({"out": array(16, 48)}, "out: shape"),
    ({"out": array(16, 40, strides=(1, 16), address=1 << 20)}, "out: strides"),
    ({"out": array(16, 40), "out_dtype": "fp32"}, "out_dtype: fp32"),
    ({"out_dtype": "int8"}, "out_dtype: int8"),
    ({"out": array(16, 40, address=1024)}, "out: shares memory with a"),
    ({"bias": array(1)}, "bias: shape"),
    ({"bias": array(40, strides=(2,))}, "bias: stride"),
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


def placed(draw, shape, pad):
    """An array of numpy's of this shape, its extents in memory in any order, and as it is planned with."""
    order = draw(st.permutations(range(len(shape))))
    extents = [shape[axis] for axis in order]
    extents[-1] += pad
    memory = np.arange(math.prod(extents), dtype=np.float64).reshape(extents)
    array = memory[..., : extents[-1] - pad].transpose(np.argsort(order))
    return memory, array, Array(array.shape, tuple(step // 8 for step in array.strides), "fp16")


def shown(memory, operand):
    """What a kernel sees of memory."""
    return np.lib.stride_tricks.as_strided(memory, operand.shape, [8 * step for step in operand.strides])


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_what_kernels_see_is_the_product(data):
    """Of arrays in any order in memory, with padding and broadcast: what the kernel's operands name, multiplied, and
    put where its result goes, is numpy's product; or the call is refused."""
    draw = data.draw
    m, n, k = (draw(st.sampled_from(extents)) for extents in ((1, 3, 8), (1, 5, 8, 16), (1, 8, 16)))
    lead = draw(st.lists(st.integers(1, 3), max_size=2))
    whole = st.tuples(*(st.sampled_from((1, extent)) for extent in lead))
    own = [draw(whole)[draw(st.integers(0, len(lead))) :] for _ in range(2)]
    shape = (*np.broadcast_shapes(*own), m, n)
    (left, a, seen_a), (right, b, seen_b) = (
        placed(draw, (*part, *matrix), draw(st.sampled_from((0, 8)))) for part, matrix in zip(own, ((m, k), (k, n)))
    )
    target, c, seen_c = placed(draw, shape, draw(st.sampled_from((0, 3, 8))))
    given_out = draw(st.booleans())
    try:
        found = plan(seen_a, seen_b, out=replace(seen_c, address=1 << 30) if given_out else None)
    except UsageError:
        return
    called = operands(found)
    product = np.einsum("mkl,nkl->mnl", shown(left, called["a"]), shown(right, called["b"]))
    if not given_out:
        target = c = np.zeros(shape)
    shown(target, called["out"])[...] = product
    assert found.shape == shape and np.array_equal(c, a @ b)


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
