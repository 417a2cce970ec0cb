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
(S, T, 16, 2), with S = `max_splits(shape)`. What a rung keeps in them, and how many of the S it uses, is up to it. The
tolerance is that of `attention`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from tensorladder.problems.attention import attend, attend_bound, norm_tolerance
from tensorladder.problems.problem import DTYPES, Arrays, Dtype, Operand, Problem, Shape

HEADS, LATENT, ROTARY, PAGE = 16, 512, 64, 64
SM_SCALE = 192**-0.5
"""The model's: its heads had 128 + 64 elements before the projections were absorbed."""

SPLIT_TOKENS, SPLIT_ROWS = 16, 1024


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
        output[row], lse[row] = attend(queries, keys, values, SM_SCALE)
    return {"output": output, "lse": lse}


def _bound(inputs: Arrays, reference: Arrays, shape: Shape, dtype: Dtype) -> Arrays:
    output, lse = np.zeros_like(reference["output"]), np.zeros_like(reference["lse"])
    for row, queries, keys, values in _rows(inputs):
        exact = reference["output"][row], reference["lse"][row]
        output[row], lse[row] = attend_bound(queries, keys, values, SM_SCALE, dtype, exact)
    return {"output": output, "lse": lse}


SPARSE_ATTENTION = Problem(
    name="sparse_attention",
    summary="DeepSeek sparse attention: 16 heads attend to the chosen tokens of a paged latent cache",
    axes=("T", "topk", "pages"),
    default_shape=(5, 128, 4),
    dtypes=("bf16",),
    operands=_operands,
    compute=_compute,
    bound=_bound,
    tolerance=lambda shape, dtype: norm_tolerance(LATENT + ROTARY, SM_SCALE, dtype),
    flops=lambda shape: 2 * HEADS * (2 * LATENT + ROTARY) * sum(valid_counts(shape)),
    draw=_draw,
)
