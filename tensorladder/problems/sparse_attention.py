"""DeepSeek's sparse attention: each token attends to the cached tokens that an indexer chose for it.

The definition dsa_sparse_attention_h16_ckv512_kpe64_topk2048_ps64 of the public contest. The cache holds one latent
vector of 512 and one rotary vector of 64 a token, which all 16 heads share; the latent one is key and value at once
(multi-head latent attention with absorbed projections). For token t, head h, and the tokens j of row t of
`sparse_indices` that are not -1:

    s[j] = (q_nope[t, h] . ckv[j] + q_pe[t, h] . kpe[j]) * SM_SCALE
    output[t, h] = sum of exp(s[j]) * ckv[j] / sum of exp(s[j])         lse[t, h] = log2(sum of exp(s[j]))

A row of -1 alone has output 0 and lse -inf. An index is its token's page * 64 + its place in the page.

The shape (T, topk, pages). Arrays, in order: q_nope (T, 16, 512), q_pe (T, 16, 64), ckv_cache (pages, 64, 512),
kpe_cache (pages, 64, 64), bf16; sparse_indices (T, topk), int32; output (T, 16, 512), bf16; lse (T, 16), f32; and two
scratch arrays for what kernels that split a row's tokens pass on, f32: partial_output (S, T, 16, 512) and partial_lse
(S, T, 16, 2), with S = `max_splits(shape)`. What a rung keeps in them, and how many of the S it uses, is its own affair.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from tensorladder.problems.problem import ACCUMULATE_STEP, CONFIDENCE, DTYPES, Arrays, Dtype, Operand, Problem, Shape

HEADS, LATENT, ROTARY, PAGE = 16, 512, 64, 64
SM_SCALE = 192**-0.5
"""The model's: its heads had 128 + 64 elements before the projections were absorbed."""

SPLIT_TOKENS, SPLIT_ROWS = 16, 1024
_F32 = 2.0**-24  # unit roundoff of float32
_EX2, _LG2 = 2.0**-22, 2.0**-22  # PTX ISA, ex2.approx (relative error) and lg2.approx (absolute error)


def max_splits(shape: Shape) -> int:
    """How many parts of a row the scratch arrays have room for: of 16 tokens or more, and about 1024 of all rows."""
    rows, topk, _ = shape
    return min(math.ceil(topk / SPLIT_TOKENS), math.ceil(SPLIT_ROWS / rows))


def valid_counts(shape: Shape) -> tuple[int, ...]:
    """How many indices of each row are not -1: all, a part, one or none; the same for every seed."""
    rows, topk, pages = shape
    most = min(topk, pages * PAGE)
    kinds = (most - most // 16, 0, most, max(1, most // 3), 1, most, max(1, most // 2), most)
    return tuple(kinds[row % len(kinds)] for row in range(rows))


def _operands(shape: Shape, dtype: str) -> tuple[Operand, ...]:
    rows, topk, pages = shape
    splits = max_splits(shape)
    return (
        Operand("q_nope", (rows, HEADS, LATENT), dtype),
        Operand("q_pe", (rows, HEADS, ROTARY), dtype),
        Operand("ckv_cache", (pages, PAGE, LATENT), dtype),
        Operand("kpe_cache", (pages, PAGE, ROTARY), dtype),
        Operand("sparse_indices", (rows, topk), "int32"),
        Operand("output", (rows, HEADS, LATENT), dtype, output=True),
        Operand("lse", (rows, HEADS), "fp32", output=True),
        Operand("partial_output", (splits, rows, HEADS, LATENT), "fp32", scratch=True),
        Operand("partial_lse", (splits, rows, HEADS, 2), "fp32", scratch=True),
    )


def _draw(shape: Shape, dtype: str, seed: int) -> Arrays:
    """Standard normals, and rows of different tokens from pages in random order.

    Where a row has -1, every fourth row has them at its end, the others in the midst of its indices.
    """
    generator = np.random.default_rng([seed, *shape])
    element = DTYPES[dtype].numpy
    arrays = {
        one.name: generator.standard_normal(one.shape, dtype=np.float32).astype(element)
        for one in _operands(shape, dtype)[:4]
    }
    rows, topk, pages = shape
    indices = np.full((rows, topk), -1, np.int32)
    for row, count in enumerate(valid_counts(shape)):
        places = np.arange(count) if row % 4 == 3 else np.sort(generator.choice(topk, count, replace=False))
        indices[row, places] = generator.choice(pages * PAGE, count, replace=False)
    return {**arrays, "sparse_indices": indices}


def _rows(inputs: Arrays) -> Iterator[tuple[int, np.ndarray, np.ndarray, np.ndarray]]:
    """Each row that has tokens: (row, queries (16, 576), keys (tokens, 576), values (tokens, 512))."""
    queries = np.concatenate([inputs["q_nope"], inputs["q_pe"]], axis=-1)
    latent, rotary = inputs["ckv_cache"].reshape(-1, LATENT), inputs["kpe_cache"].reshape(-1, ROTARY)
    for row, indices in enumerate(inputs["sparse_indices"].astype(np.int64)):
        chosen = indices[indices >= 0]
        if chosen.size:
            keys = np.concatenate([latent[chosen], rotary[chosen]], axis=-1)
            yield row, queries[row], keys, keys[:, :LATENT]


def _compute(inputs: Arrays, shape: Shape, dtype: Dtype) -> Arrays:
    output, lse = np.zeros((shape[0], HEADS, LATENT)), np.full((shape[0], HEADS), -np.inf)
    for row, queries, keys, values in _rows(inputs):
        logits = queries @ keys.T * SM_SCALE
        most = logits.max(axis=1, keepdims=True)
        weights = np.exp(logits - most)
        total = weights.sum(axis=1, keepdims=True)
        output[row] = weights @ values / total
        lse[row] = (most + np.log(total))[:, 0] / math.log(2)
    return {"output": output, "lse": lse}


def _bound(inputs: Arrays, reference: Arrays, shape: Shape, dtype: Dtype) -> Arrays:
    """What the errors of the logits, of exp, of storing the weights in `dtype` and of the sums add up to.

    A logit is off by `e`: its sum of 576 products (see `problem`), and a few roundings of it and of the maximum. Its
    weight w (of sum 1) is then off by the part e, which moves the output by w e (v - o) and the log-sum-exp by w e.
    Weights are multiplied with the values as `dtype`, each off by the part u: the sum of w u |v| at the most, and
    CONFIDENCE * sqrt(sum of (w u v)^2) where the roundings are independent. The sum of weights is not of rounded ones.
    """
    output, lse = np.zeros_like(reference["output"]), np.zeros_like(reference["lse"])
    product = CONFIDENCE * math.sqrt(LATENT + ROTARY) * ACCUMULATE_STEP
    for row, queries, keys, values in _rows(inputs):
        logits = queries @ keys.T * SM_SCALE
        most = abs(logits).max(axis=1, keepdims=True)
        weights = np.exp2(logits / math.log(2) - reference["lse"][row][:, None])
        off = product * SM_SCALE * (abs(queries) @ abs(keys).T) + 4 * _F32 * (abs(logits) + most) + _EX2
        moved, summed = weights * off, CONFIDENCE * math.sqrt(len(keys)) * ACCUMULATE_STEP
        stored = np.minimum(weights @ abs(values), CONFIDENCE * np.sqrt(weights**2 @ values**2)) * dtype.unit
        there = abs(reference["output"][row])
        slack = moved @ abs(values) + there * moved.sum(axis=1, keepdims=True) + stored
        slack += summed * (weights @ abs(values) + there)
        output[row] = dtype.unit * (there + slack) + slack + dtype.tiny
        lse[row] = (moved.sum(axis=1) + summed) / math.log(2) + (_LG2 + _F32) * (1 + abs(reference["lse"][row]))
    return {"output": output, "lse": lse}


def _tolerance(shape: Shape, dtype: Dtype) -> float:
    """Weights and outputs as `dtype`, and the logits' sums, where |q||k| is 2 / pi on average for standard normals."""
    width = LATENT + ROTARY
    return 2 * dtype.unit + CONFIDENCE * math.sqrt(width) * ACCUMULATE_STEP * SM_SCALE * width * 2 / math.pi


SPARSE_ATTENTION = Problem(
    name="sparse_attention",
    summary="DeepSeek sparse attention: 16 heads attend to the chosen tokens of a paged latent cache",
    axes=("T", "topk", "pages"),
    default_shape=(5, 128, 4),
    dtypes=("bf16",),
    operands=_operands,
    compute=_compute,
    bound=_bound,
    tolerance=_tolerance,
    flops=lambda shape: 2 * HEADS * (2 * LATENT + ROTARY) * sum(valid_counts(shape)),
    draw=_draw,
)
