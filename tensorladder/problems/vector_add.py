"""C[N] = A[N] + B[N], one rounding an element."""

from __future__ import annotations

from tensorladder.problems.problem import Arrays, Dtype, Operand, Problem, Shape


def _operands(shape: Shape, dtype: str) -> tuple[Operand, ...]:
    return Operand("A", shape, dtype), Operand("B", shape, dtype), Operand("C", shape, dtype, output=True)


def _compute(inputs: Arrays, shape: Shape, dtype: Dtype) -> Arrays:
    return {"C": inputs["A"] + inputs["B"]}


def _bound(inputs: Arrays, reference: Arrays, shape: Shape, dtype: Dtype) -> Arrays:
    # The sum may be rounded twice: to float32, then to the output type.
    return {"C": (dtype.unit + 2.0**-24) * abs(reference["C"]) + dtype.tiny}


VECTOR_ADD = Problem(
    name="vector_add",
    summary="C = A + B",
    axes=("N",),
    default_shape=(1 << 16,),
    dtypes=("fp16", "bf16", "fp32"),
    operands=_operands,
    compute=_compute,
    bound=_bound,
    tolerance=lambda shape, dtype: dtype.unit + 2.0**-24,
    flops=lambda shape: shape[0],
)
