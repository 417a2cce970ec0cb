"""Scaled dot-product attention, O = softmax(Q K^T / sqrt(D)) V for each head of each sequence, plain and causal.

The shape (B, H, M, N, D): B sequences, H heads, M queries, N keys and values of D elements. Q and O are (B, H, M, D), K
and V (B, H, N, D). Causal: query i sees the keys up to i (`is_causal` of torch.nn.functional). `attend` and
`attend_bound` are one head's exact result and its tolerance, which other attention problems use as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tensorladder.problems.problem import ACCUMULATE_STEP, CONFIDENCE, Arrays, Dtype, Operand, Problem, Shape

_F32 = 2.0**-24  # unit roundoff of float32
_EX2, _LG2 = 2.0**-22, 2.0**-22  # PTX ISA, ex2.approx (relative error) and lg2.approx (absolute error)

Pair = tuple[np.ndarray, np.ndarray]


def attend(
    queries: np.ndarray, keys: np.ndarray, values: np.ndarray, scale: float, seen: np.ndarray | None = None
) -> Pair:
    """softmax(queries keys^T * scale) values, and the logarithm to base 2 of the softmax's sums: (M, D), (M,).

    seen: (M, N), which keys a query sees; each has to see one.
    """
    logits = _logits(queries, keys, scale, seen)
    most = logits.max(axis=1, keepdims=True)
    weights = np.exp(logits - most)
    total = weights.sum(axis=1, keepdims=True)
    return weights @ values / total, ((most + np.log(total)) / math.log(2))[:, 0]


def attend_bound(
    queries: np.ndarray, keys: np.ndarray, values: np.ndarray, scale: float, dtype: Dtype, exact: Pair,
    seen: np.ndarray | None = None,
) -> Pair:  # fmt: skip
    """The largest right absolute errors of what `attend` gave (`exact`), where the output is stored as `dtype`.

    They are what the errors of the logits, of exp, of storing the weights as `dtype` and of the sums add up to. A logit
    is off by `e`: its sum of products (see `problem`), a few roundings of it and of the maximum, and exp's own error.
    Its weight w (of sum 1) is then off by the part e, which moves the output by w e (v - o) and the log-sum-exp by w e.
    Weights are multiplied with the values as `dtype`, each off by the part u: the sum of w u |v| at the most, and
    CONFIDENCE * sqrt(sum of (w u v)^2) where the roundings are independent. The sum of weights is not of rounded ones.
    """
    output, lse = exact
    logits = _logits(queries, keys, scale, seen)
    weights = np.exp2(logits / math.log(2) - lse[:, None])
    sizes = np.where(weights > 0, abs(logits), 0)
    product = CONFIDENCE * math.sqrt(queries.shape[1]) * ACCUMULATE_STEP
    off = product * scale * (abs(queries) @ abs(keys).T) + 4 * _F32 * (sizes + sizes.max(axis=1, keepdims=True)) + _EX2
    moved, summed = weights * off, CONFIDENCE * math.sqrt(len(keys)) * ACCUMULATE_STEP
    slack = np.minimum(weights @ abs(values), CONFIDENCE * np.sqrt(weights**2 @ values**2)) * dtype.unit
    slack += moved @ abs(values) + abs(output) * moved.sum(axis=1, keepdims=True)
    slack += summed * (weights @ abs(values) + abs(output))
    of_lse = (moved.sum(axis=1) + summed) / math.log(2) + (_LG2 + _F32) * (1 + abs(lse))
    return dtype.unit * (abs(output) + slack) + slack + dtype.tiny, of_lse


def norm_tolerance(depth: int, scale: float, dtype: Dtype) -> float:
    """The largest right relative norm of the output's error, for standard normal queries and keys of `depth` elements.

    Weights and outputs as `dtype`, and the logits' sums of products, which are 2 / pi on average.
    """
    return 2 * dtype.unit + CONFIDENCE * math.sqrt(depth) * ACCUMULATE_STEP * scale * depth * 2 / math.pi


def _logits(queries: np.ndarray, keys: np.ndarray, scale: float, seen: np.ndarray | None) -> np.ndarray:
    logits = queries @ keys.T * scale
    return logits if seen is None else np.where(seen, logits, -np.inf)


def causal_mask(m: int, n: int) -> np.ndarray:
    """(M, N): query i sees key j where j <= i."""
    return np.tri(m, n, dtype=bool)


def _operands(shape: Shape, dtype: str) -> tuple[Operand, ...]:
    b, h, m, n, d = shape
    return (
        Operand("Q", (b, h, m, d), dtype),
        Operand("K", (b, h, n, d), dtype),
        Operand("V", (b, h, n, d), dtype),
        Operand("O", (b, h, m, d), dtype, output=True),
    )


def _for_each_head(inputs: Arrays, shape: Shape, one: Callable[..., np.ndarray]) -> Arrays:
    """O from what `one(queries, keys, values, scale)` gives for each head."""
    b, h, m, _, d = shape
    output = np.empty((b, h, m, d))
    for place in np.ndindex(b, h):
        output[place] = one(inputs["Q"][place], inputs["K"][place], inputs["V"][place], d**-0.5)
    return {"O": output}


def _problem(causal: bool) -> Problem:
    def seen(shape: Shape) -> np.ndarray | None:
        return causal_mask(*shape[2:4]) if causal else None

    def compute(inputs: Arrays, shape: Shape, dtype: Dtype) -> Arrays:
        return _for_each_head(inputs, shape, lambda q, k, v, scale: attend(q, k, v, scale, seen(shape))[0])

    def bound(inputs: Arrays, reference: Arrays, shape: Shape, dtype: Dtype) -> Arrays:
        def one(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float) -> np.ndarray:
            exact = attend(q, k, v, scale, seen(shape))
            return attend_bound(q, k, v, scale, dtype, exact, seen(shape))[0]

        return _for_each_head(inputs, shape, one)

    def flops(shape: Shape) -> int:
        b, h, m, n, d = shape
        return 4 * b * h * d * (int(causal_mask(m, n).sum()) if causal else m * n)

    return Problem(
        name="attention_causal" if causal else "attention",
        summary=f"O = softmax(Q K^T / sqrt(D)) V{', each query sees the keys up to its own' if causal else ''}",
        axes=("B", "H", "M", "N", "D"),
        default_shape=(1, 2, 128, 128, 64),
        dtypes=("fp16", "bf16", "fp32"),
        operands=_operands,
        compute=compute,
        bound=bound,
        tolerance=lambda shape, dtype: norm_tolerance(shape[-1], shape[-1] ** -0.5, dtype),
        flops=flops,
    )


ATTENTION = _problem(False)
ATTENTION_CAUSAL = _problem(True)
