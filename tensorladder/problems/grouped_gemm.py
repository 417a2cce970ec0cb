"""G independent matrix products C_g = A_g B_g^T of different M, N and K, their matrices packed one after another.

The shape (G, M, N, K) gives the number of groups and the largest extents; `groups` says which each group has. A, B and
C are vectors that hold the row-major matrices of group 0, then those of group 1, and so on. A kernel finds its way by
the table T, a row a group: M, N, K, and where its A, B and C begin (in elements).
"""

from __future__ import annotations

import math

import numpy as np

from tensorladder.problems.problem import ACCUMULATE_STEP, CONFIDENCE, Arrays, Dtype, Operand, Problem, Shape

Extents = tuple[int, int, int]


def groups(shape: Shape) -> tuple[Extents, ...]:
    """(M, N, K) of each group: M falls from the largest, N rises to it, K alternates between all and three quarters."""
    count, m, n, k = shape
    return tuple(
        (max(1, m * (count - g) // count), max(1, n * (g + 1) // count), max(1, k - (g % 2) * (k // 4)))
        for g in range(count)
    )


def table(shape: Shape) -> tuple[tuple[int, ...], ...]:
    """T's rows: (M, N, K, first element of A, of B, of C)."""
    rows, a, b, c = [], 0, 0, 0
    for m, n, k in groups(shape):
        rows.append((m, n, k, a, b, c))
        a, b, c = a + m * k, b + n * k, c + m * n
    return tuple(rows)


def _operands(shape: Shape, dtype: str) -> tuple[Operand, ...]:
    sizes = groups(shape)
    return (
        Operand("A", (sum(m * k for m, n, k in sizes),), dtype),
        Operand("B", (sum(n * k for m, n, k in sizes),), dtype),
        Operand("C", (sum(m * n for m, n, k in sizes),), dtype, output=True),
        Operand("T", (shape[0], 6), "int32", values=table(shape)),
    )


def _products(a: np.ndarray, b: np.ndarray, shape: Shape, scale: bool) -> np.ndarray:
    """A_g B_g^T of all groups, packed; each times sqrt(K_g) if `scale`."""
    parts = []
    for m, n, k, at_a, at_b, _ in table(shape):
        c = a[at_a : at_a + m * k].reshape(m, k) @ b[at_b : at_b + n * k].reshape(n, k).T
        parts.append(c.ravel() * (math.sqrt(k) if scale else 1.0))
    return np.concatenate(parts)


def _compute(inputs: Arrays, shape: Shape, dtype: Dtype) -> Arrays:
    return {"C": _products(inputs["A"], inputs["B"], shape, False)}


def _bound(inputs: Arrays, reference: Arrays, shape: Shape, dtype: Dtype) -> Arrays:
    accumulate = CONFIDENCE * ACCUMULATE_STEP * _products(abs(inputs["A"]), abs(inputs["B"]), shape, True)
    return {"C": dtype.unit * (abs(reference["C"]) + accumulate) + accumulate + dtype.tiny}


GROUPED_GEMM = Problem(
    name="grouped_gemm",
    summary="C_g = A_g B_g^T, groups of different M, N, K",
    axes=("G", "M", "N", "K"),
    default_shape=(4, 128, 128, 64),
    dtypes=("fp16", "bf16", "fp32"),
    operands=_operands,
    compute=_compute,
    bound=_bound,
    tolerance=lambda shape, dtype: dtype.unit + CONFIDENCE * math.sqrt(shape[-1]) * ACCUMULATE_STEP,
    flops=lambda shape: sum(2 * m * n * k for m, n, k in groups(shape)),
)
