"""Rows in groups, each times a matrix of its own, as experts take tokens: C[begin:end] = A[begin:end] B_g^T + V_g.

The shape (G, T, N, K): the groups' rows follow each other in A (T, K) and C (T, N); offs (G,) says where each ends.
Their sizes differ: every fourth group is empty, and the last rows belong to none; C is zero there. B is (N, K, G) with
N contiguous, which is PyTorch's (G, K, N).
"""

from __future__ import annotations

import math

import numpy as np

from tensorladder.problems.problem import ACCUMULATE_STEP, CONFIDENCE, Arrays, Dtype, Operand, Problem, Shape

OUTSIDE = 16  # a sixteenth of the rows belongs to no group


def ends(shape: Shape) -> tuple[int, ...]:
    """offs: where each group ends. Sizes rise from group to group but for every fourth, which is empty."""
    count, rows, *_ = shape
    weights = [0 if g % 4 == 1 else g + 1 for g in range(count)]
    total, inside = sum(weights), rows - rows // OUTSIDE
    return tuple(int(end) * inside // total for end in np.cumsum(weights))


def _operands(shape: Shape, dtype: str) -> tuple[Operand, ...]:
    count, t, n, k = shape
    return (
        Operand("A", (t, k), dtype),
        Operand("B", (n, k, count), dtype, order="F"),
        Operand("C", (t, n), dtype, output=True),
        Operand("V", (count, n), dtype),
        Operand("offs", (count,), "int32", values=ends(shape)),
    )


def _sums(inputs: Arrays, shape: Shape, magnitude: bool) -> np.ndarray:
    a, b, v = (abs(inputs[x]) if magnitude else inputs[x] for x in "ABV")
    c, begin = np.zeros((shape[1], shape[2])), 0
    for group, end in enumerate(ends(shape)):
        c[begin:end] = a[begin:end] @ b[:, :, group].T + v[group]
        begin = end
    return c


def _compute(inputs: Arrays, shape: Shape, dtype: Dtype) -> Arrays:
    return {"C": _sums(inputs, shape, False)}


def _bound(inputs: Arrays, reference: Arrays, shape: Shape, dtype: Dtype) -> Arrays:
    slack = CONFIDENCE * math.sqrt(shape[-1]) * ACCUMULATE_STEP * _sums(inputs, shape, True)
    # No slack where C is zero: rows of no group.
    return {"C": dtype.unit * (abs(reference["C"]) + slack) + slack + dtype.tiny * (slack > 0)}


RAGGED_GEMM = Problem(
    name="ragged_gemm",
    summary="rows in groups, a B and V for each: C[begin:end] = A[begin:end] B_g^T + V_g",
    axes=("G", "T", "N", "K"),
    default_shape=(4, 512, 256, 128),
    dtypes=("bf16", "fp16"),
    operands=_operands,
    compute=_compute,
    bound=_bound,
    tolerance=lambda shape, dtype: dtype.unit + CONFIDENCE * math.sqrt(shape[-1]) * ACCUMULATE_STEP,
    flops=lambda shape: 2 * ends(shape)[-1] * shape[2] * shape[3],
)
