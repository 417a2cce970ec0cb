"""Y[M] = sum over N of X[M, N]: long rows, summed in float32 (integers exactly)."""

from __future__ import annotations

import math

from tensorladder.problems.problem import CONFIDENCE, Arrays, Dtype, Operand, Problem, Shape

_STEP = 2.0**-24  # unit roundoff of a float32 addition


def _operands(shape: Shape, dtype: str) -> tuple[Operand, ...]:
    return Operand("X", shape, dtype), Operand("Y", shape[:1], dtype, output=True)


def _compute(inputs: Arrays, shape: Shape, dtype: Dtype) -> Arrays:
    return {"Y": inputs["X"].sum(axis=1)}


def _accumulate(shape: Shape, dtype: Dtype) -> float:
    """What float32 additions in any order lose, relative to the sum of magnitudes (problem.py); integers nothing."""
    return CONFIDENCE * math.sqrt(shape[1]) * _STEP if dtype.unit else 0.0


def _bound(inputs: Arrays, reference: Arrays, shape: Shape, dtype: Dtype) -> Arrays:
    lost = _accumulate(shape, dtype) * abs(inputs["X"]).sum(axis=1)
    return {"Y": dtype.unit * (abs(reference["Y"]) + lost) + lost + dtype.tiny}


ROW_SUM = Problem(
    name="row_sum",
    summary="Y[m] = sum of X[m, :]",
    axes=("M", "N"),
    default_shape=(8, 1 << 14),
    dtypes=("fp32", "int32", "fp16", "bf16"),
    operands=_operands,
    compute=_compute,
    bound=_bound,
    tolerance=lambda shape, dtype: dtype.unit + _accumulate(shape, dtype),
    flops=lambda shape: shape[0] * (shape[1] - 1),
)
