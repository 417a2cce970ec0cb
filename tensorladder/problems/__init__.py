"""What the rungs compute, by name. Needs numpy alone."""

from __future__ import annotations

from tensorladder.core.errors import UsageError
from tensorladder.problems.attention import ATTENTION, ATTENTION_CAUSAL
from tensorladder.problems.block_scaled import GEMM_BLOCK_SCALED
from tensorladder.problems.convolution import CONVOLUTION
from tensorladder.problems.gemm import GEMM, GEMM_BATCHED, GEMM_COLWISE_SCALE
from tensorladder.problems.gemm_epilogue import GEMM_EPILOGUE
from tensorladder.problems.grouped_gemm import GROUPED_GEMM
from tensorladder.problems.layouts import DOUBLED, SWIZZLE, TV_TO_MN
from tensorladder.problems.problem import (
    DTYPES,
    Case,
    Dtype,
    Judgement,
    Operand,
    Problem,
    dtype_named,
    examine,
    judge,
    numpy_empty,
)
from tensorladder.problems.ragged_gemm import RAGGED_GEMM
from tensorladder.problems.row_sum import ROW_SUM
from tensorladder.problems.sparse_attention import SPARSE_ATTENTION
from tensorladder.problems.topk_indexer import TOPK_INDEXER
from tensorladder.problems.vector_add import VECTOR_ADD

PROBLEMS: dict[str, Problem] = {
    problem.name: problem
    for problem in (
        VECTOR_ADD, ROW_SUM, GEMM, GEMM_BATCHED, GEMM_COLWISE_SCALE, GEMM_EPILOGUE, GROUPED_GEMM, RAGGED_GEMM,
        GEMM_BLOCK_SCALED, ATTENTION, ATTENTION_CAUSAL, SPARSE_ATTENTION, SWIZZLE, TV_TO_MN, DOUBLED,
        TOPK_INDEXER, CONVOLUTION,
    )
}  # fmt: skip


def find(name: str) -> Problem:
    """The problem of that name; UsageError with the names there are for any other."""
    try:
        return PROBLEMS[name]
    except KeyError:
        raise UsageError(f"problem {name!r} is not known: use one of {', '.join(PROBLEMS)}") from None


__all__ = [
    "DTYPES",
    "PROBLEMS",
    "Case",
    "Dtype",
    "Judgement",
    "Operand",
    "Problem",
    "dtype_named",
    "examine",
    "find",
    "judge",
    "numpy_empty",
]
