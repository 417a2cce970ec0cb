"""A product with what stands around it in a model: C = gelu(alpha A B^T + beta R + V), V a number a column.

B is (N, K) with N contiguous, which is a (K, N) matrix as PyTorch keeps the right factor of a product.
"""

from __future__ import annotations

import math

import numpy as np

from tensorladder.problems.problem import ACCUMULATE_STEP, CONFIDENCE, Arrays, Dtype, Operand, Problem, Shape

FACTORS = (0.5, -1.5)
SLOPE = 1.13  # the steepest of gelu, at x = 1.41
EPILOGUE_STEPS = 16  # float32 roundings that the epilogue's own operations may cost, erf among them

_erf = np.vectorize(math.erf, otypes=[np.float64])


def gelu(x: np.ndarray) -> np.ndarray:
    """x times the normal distribution's probability of less than x, in float64."""
    return 0.5 * x * (1.0 + _erf(x * math.sqrt(0.5)))


def _operands(shape: Shape, dtype: str) -> tuple[Operand, ...]:
    m, n, k = shape
    return (
        Operand("A", (m, k), dtype),
        Operand("B", (n, k), dtype, order="F"),
        Operand("C", (m, n), dtype, output=True),
        Operand("R", (m, n), dtype),
        Operand("V", (n,), dtype),
        Operand("S", (2,), "fp32", values=FACTORS),
    )


def _linear(inputs: Arrays, magnitude: bool) -> np.ndarray:
    a, b, r, v, (alpha, beta) = (abs(inputs[x]) if magnitude else inputs[x] for x in "ABRVS")
    return alpha * (a @ b.T) + beta * r + v


def _compute(inputs: Arrays, shape: Shape, dtype: Dtype) -> Arrays:
    return {"C": gelu(_linear(inputs, False))}


def _bound(inputs: Arrays, reference: Arrays, shape: Shape, dtype: Dtype) -> Arrays:
    steps = CONFIDENCE * math.sqrt(shape[-1]) + EPILOGUE_STEPS
    linear = SLOPE * steps * ACCUMULATE_STEP * _linear(inputs, True)
    return {"C": dtype.unit * (abs(reference["C"]) + linear) + linear + dtype.tiny}


GEMM_EPILOGUE = Problem(
    name="gemm_epilogue",
    summary="C = gelu(alpha A B^T + beta R + V), B stored (K, N)",
    axes=("M", "N", "K"),
    default_shape=(256, 256, 256),
    dtypes=("fp16", "bf16"),
    operands=_operands,
    compute=_compute,
    bound=_bound,
    tolerance=lambda shape, dtype: (
        dtype.unit + 4 * SLOPE * (CONFIDENCE * math.sqrt(shape[-1]) + EPILOGUE_STEPS) * ACCUMULATE_STEP
    ),
    flops=lambda shape: 2 * math.prod(shape),
)
