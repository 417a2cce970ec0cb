"""Matrix multiplication C[M,N] = A[M,K] B[N,K]^T: both operands K-major, float32 accumulator, output as the inputs
(fp16 where those are fp8).

B is stored (N, K) with K contiguous, as tensor cores like it (the "TN" case of BLAS). The variants: a leading batch
extent, and a factor a column (R[N]) applied to the accumulator before it is rounded.
"""

from __future__ import annotations

import math

import numpy as np

from tensorladder.problems.problem import (
    ACCUMULATE_STEP,
    CONFIDENCE,
    DTYPES,
    Arrays,
    Dtype,
    Operand,
    Problem,
    Shape,
)

OUTPUTS = {"e4m3": "fp16", "mxfp8": "fp16", "nvfp4": "fp16"}
"""Element type of C where it is not that of A and B: 3 bits of mantissa are too few for a sum."""


def output_of(dtype: Dtype) -> Dtype:
    """The element type of C."""
    return DTYPES[OUTPUTS.get(dtype.name, dtype.name)]


NARROW_STEP = 2.0**-13
NARROW_K = 32  # products of fp8 that one instruction sums


def narrow_sum(shape: Shape, dtype: Dtype) -> float:
    """What a sum of fp8 products loses on Hopper, as a standard deviation relative to its size; 0 for other types.

    Its tensor cores cut what an instruction adds 13 bits below the largest addend (NOTES.md). That is one rounding of
    the sum so far for every 32 products, and the square root of their number for all: measured, 1.3e-3 at K = 4096.
    """
    return math.sqrt(shape[-1] / NARROW_K) * NARROW_STEP if dtype.name == "e4m3" else 0.0


def gemm_problem(
    name: str,
    summary: str,
    *,
    batched: bool = False,
    scaled: bool = False,
    default_shape: Shape,
    dtypes: tuple[str, ...] = ("fp16", "bf16", "fp32"),
) -> Problem:
    """A GEMM variant. batched: axes are (L, M, N, K). scaled: a fourth array R[N] scales the columns."""

    def operands(shape: Shape, dtype: str) -> tuple[Operand, ...]:
        *batch, m, n, k = shape
        arrays = [
            Operand("A", (*batch, m, k), dtype),
            Operand("B", (*batch, n, k), dtype),
            Operand("C", (*batch, m, n), OUTPUTS.get(dtype, dtype), output=True),
        ]
        return (*arrays, Operand("R", (n,), dtype)) if scaled else tuple(arrays)

    def product(a: np.ndarray, b: np.ndarray, inputs: Arrays, magnitude: bool) -> np.ndarray:
        c = a @ b.swapaxes(-1, -2)
        if not scaled:
            return c
        return c * (abs(inputs["R"]) if magnitude else inputs["R"])

    def compute(inputs: Arrays, shape: Shape, dtype: Dtype) -> Arrays:
        return {"C": product(inputs["A"], inputs["B"], inputs, False)}

    def bound(inputs: Arrays, reference: Arrays, shape: Shape, dtype: Dtype) -> Arrays:
        sums = product(abs(inputs["A"]), abs(inputs["B"]), inputs, True)
        accumulate = CONFIDENCE * math.sqrt(shape[-1]) * ACCUMULATE_STEP * sums
        if narrow := narrow_sum(shape, dtype):
            squares = product(inputs["A"] ** 2, inputs["B"] ** 2, inputs, True)
            # what is cut is cut towards zero: where a sum is large, all of it goes the same way
            towards_zero = shape[-1] / NARROW_K * NARROW_STEP * abs(reference["C"])
            accumulate = accumulate + CONFIDENCE * narrow * squares**0.5 + towards_zero
        stored = output_of(dtype)
        return {"C": stored.unit * (abs(reference["C"]) + accumulate) + accumulate + stored.tiny}

    return Problem(
        name=name,
        summary=summary,
        axes=("L", "M", "N", "K") if batched else ("M", "N", "K"),
        default_shape=default_shape,
        dtypes=dtypes,
        operands=operands,
        compute=compute,
        bound=bound,
        tolerance=lambda shape, dtype: (
            output_of(dtype).unit + CONFIDENCE * math.sqrt(shape[-1]) * ACCUMULATE_STEP + 2 * narrow_sum(shape, dtype)
        ),
        flops=lambda shape: 2 * math.prod(shape),
    )


GEMM = gemm_problem("gemm", "C = A B^T", default_shape=(256, 256, 256), dtypes=("fp16", "bf16", "fp32", "e4m3"))
GEMM_BATCHED = gemm_problem("gemm_batched", "C[l] = A[l] B[l]^T", batched=True, default_shape=(2, 128, 128, 64))
GEMM_COLWISE_SCALE = gemm_problem(
    "gemm_colwise_scale", "C = (A B^T) * R, a factor a column", scaled=True, default_shape=(256, 256, 256)
)
