"""The indexer of DeepSeek's sparse attention: for each query the tokens that score best, out of a paged cache.

    score[b, t] = scale[t] * sum over heads h of weights[b, h] * max(0, q[b, h] . k[t])

The shape (B, pages, topk): B queries of 64 heads by 128, up to so many pages of 64 tokens each, so many tokens wanted.
The cache is bytes, as the kernels of DeepSeek-V3.2 have it: a page holds 64 x 128 e4m3 numbers, then 64 float32 scales.
`block_table` says which pages a query's tokens lie in, `seq_lens` how many tokens there are; entries and tokens past
that end are garbage here. `idx` takes the chosen tokens as page * 64 + offset, in any order, and -1 from the end on;
`scores` takes every token's score (nothing is asked of it past the end). Definition: dsa_topk_indexer_fp8_h64_d128_
topk2048_ps64 of the MLSys 2026 FlashInfer contest; DeepSeek-V3.2 report, section 2.1.

Two things are judged. Each score against float64, within what the sums lose. And the choice, twice: exactly, by the
scores that the kernel wrote, where any of equal ones is right; and by the float64 ones, up to what those may be off.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tensorladder.problems.gemm import NARROW_K, NARROW_STEP, narrow_sum
from tensorladder.problems.problem import (
    ACCUMULATE_STEP,
    CONFIDENCE,
    DTYPES,
    Arrays,
    Dtype,
    Operand,
    Problem,
    Shape,
    Verdict,
    relative_norm,
)

HEADS, DIM, PAGE = 64, 128, 64
VALUES = PAGE * DIM
"""Bytes of a page before its scales."""
PAGE_BYTES = VALUES + 4 * PAGE
NAN = 0x7F  # in e4m3
LARGEST = 448.0  # in e4m3
UNWRITTEN = 0x7F  # of each byte of idx: no index, while -1 is one


def lengths(shape: Shape) -> np.ndarray:
    """seq_lens: the last query has all tokens, those before a ragged end, half of topk, topk, none, one, and so on."""
    batch, pages, topk = shape
    most = pages * PAGE
    kinds = (most, most - 3, topk // 2, topk, 0, 1, most // 2 + 1)
    return np.array([min(kinds[i % len(kinds)], most) for i in reversed(range(batch))], np.int32)


def cache_pages(shape: Shape) -> int:
    """Of the cache: one for each entry of the table, and one that is nobody's."""
    return shape[0] * shape[1] + 1


def _operands(shape: Shape, dtype: str) -> tuple[Operand, ...]:
    batch, pages, topk = shape
    return (
        Operand("q", (batch, HEADS, DIM), dtype),
        Operand("cache", (cache_pages(shape), PAGE, 1, DIM + 4), "uint8"),
        Operand("weights", (batch, HEADS), "fp32"),
        Operand("seq_lens", (batch,), "int32"),
        Operand("block_table", (batch, pages), "int32"),
        Operand("idx", (batch, topk), "int32", output=True, poison=UNWRITTEN),
        Operand("scores", (batch, pages * PAGE), "fp32", output=True),
    )


def quantise(keys: np.ndarray) -> np.ndarray:
    """Keys (pages, 64, 128) as pages of the cache (pages, 64, 1, 132): a scale a token, its largest element / 448."""
    e4m3 = DTYPES["e4m3"].numpy
    scales = (abs(keys).max(axis=-1) / LARGEST).astype(np.float32)
    values = (keys / scales[..., None]).astype(e4m3).view(np.uint8).reshape(len(keys), VALUES)
    return np.hstack([values, scales.view(np.uint8)]).reshape(len(keys), PAGE, 1, DIM + 4)


def dequantise(cache: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The values (pages, 64, 128) and the scales (pages, 64) of a cache, in float64."""
    pages = np.ascontiguousarray(cache).astype(np.uint8).reshape(len(cache), PAGE_BYTES)
    values = pages[:, :VALUES].copy().view(DTYPES["e4m3"].numpy).astype(np.float64)
    scales = pages[:, VALUES:].copy().view(np.float32).astype(np.float64)
    return values.reshape(-1, PAGE, DIM), scales


def _draw(shape: Shape, dtype: str, seed: int) -> Arrays:
    batch, pages, _ = shape
    generator = np.random.default_rng([seed, 0])
    lens = lengths(shape)
    keys = generator.standard_normal((cache_pages(shape), PAGE, DIM), dtype=np.float32)
    keys *= 2.0 ** generator.integers(-2, 3, (len(keys), PAGE, 1))  # a scale at the wrong place shows
    cache = quantise(keys)
    table = generator.permutation(len(cache))[: batch * pages].reshape(batch, pages).astype(np.int32)
    bytes_of = cache.reshape(len(cache), PAGE_BYTES)
    values, scales = bytes_of[:, :VALUES].reshape(-1, PAGE, DIM), bytes_of[:, VALUES:].view(np.float32)
    for row, length in enumerate(lens):
        used = -(-int(length) // PAGE)
        if length % PAGE:
            values[table[row, used - 1], length % PAGE :] = NAN
            scales[table[row, used - 1], length % PAGE :] = np.nan
        table[row, used:] = -1
    return {
        "q": generator.standard_normal((batch, HEADS, DIM), dtype=np.float32).astype(DTYPES[dtype].numpy),
        "cache": cache,
        "weights": generator.standard_normal((batch, HEADS), dtype=np.float32) / np.float32(math.sqrt(HEADS * DIM)),
        "seq_lens": lens,
        "block_table": table,
    }


def _pages(inputs: Arrays, row: int) -> np.ndarray:
    """The pages that a query's tokens lie in."""
    return inputs["block_table"][row, : -(-int(inputs["seq_lens"][row]) // PAGE)].astype(np.int64)


def _tokens(inputs: Arrays, row: int) -> np.ndarray:
    """The indices in the cache of a query's tokens, in their order."""
    return (_pages(inputs, row)[:, None] * PAGE + np.arange(PAGE)).ravel()[: int(inputs["seq_lens"][row])]


def scored(k: Any, scale: Any, q: Any, w: Any) -> tuple[Any, Any]:
    """The scores of keys k (tokens, 128) with these scales (tokens), and by how much a right kernel's float32 ones may
    differ. q (heads, 128) and w (heads) of one query; all in float64, of numpy or of torch."""
    kept = (k @ q.T).clip(0)
    exact = scale * (kept @ w)
    # Of a dot product as in `gemm`: what e4m3 sums lose on Hopper, each head on its own, so that squares add up; what
    # they lose towards zero, and what float32 additions of products and of heads lose.
    squares = (k**2) @ (q**2).T @ w**2
    narrow = CONFIDENCE * narrow_sum((DIM,), DTYPES["e4m3"]) * squares**0.5
    towards_zero = DIM / NARROW_K * NARROW_STEP * (kept @ abs(w))
    added = CONFIDENCE * math.sqrt(DIM + HEADS) * ACCUMULATE_STEP * (abs(k) @ abs(q).T @ abs(w))
    stored = DTYPES["fp32"]
    return exact, scale * (narrow + towards_zero + added) + stored.unit * abs(exact) + stored.tiny


def score(inputs: Arrays, row: int) -> tuple[np.ndarray, np.ndarray]:
    """What `scored` says of a query's tokens."""
    length = int(inputs["seq_lens"][row])
    values, scales = dequantise(inputs["cache"][_pages(inputs, row)])
    k, scale = values.reshape(-1, DIM)[:length], scales.ravel()[:length]
    return scored(k, scale, inputs["q"][row].astype(np.float64), inputs["weights"][row].astype(np.float64))


def _compute(inputs: Arrays, shape: Shape, dtype: Dtype) -> Arrays:
    """The best tokens from the first on, of equal ones the earlier; scores past the end are NaN."""
    batch, pages, topk = shape
    idx = np.full((batch, topk), -1.0)
    scores = np.full((batch, pages * PAGE), np.nan)
    for row in range(batch):
        exact, _ = score(inputs, row)
        best = np.argsort(-exact, kind="stable")[:topk]
        idx[row, : len(best)] = _tokens(inputs, row)[best]
        scores[row, : len(exact)] = exact
    return {"idx": idx, "scores": scores}


def _bound(inputs: Arrays, reference: Arrays, shape: Shape, dtype: Dtype) -> Arrays:
    bounds = np.full(reference["scores"].shape, np.inf)
    for row in range(shape[0]):
        _, slack = score(inputs, row)
        bounds[row, : len(slack)] = slack
    return {"idx": np.zeros_like(reference["idx"]), "scores": bounds}


def choice(chosen: np.ndarray, tokens: np.ndarray, scores: np.ndarray, slack: np.ndarray | float = 0.0) -> np.ndarray:
    """Which entries of `chosen` (topk) are wrong, as flags, where `tokens` have these scores, known up to `slack`.

    With n = min(topk, tokens): the first n entries are different tokens, the rest -1. Whatever the true scores are,
    the n-th largest lies between the n-th largest of scores - slack and of scores + slack; an entry is wrong whose
    score is below that for sure. Where none is and yet a token is left out that is above it for sure, the lowest entry
    counts as the wrong one.
    """
    n = min(len(chosen), len(tokens))
    wrong = np.zeros(len(chosen), bool)
    wrong[n:] = chosen[n:] != -1
    if n == 0:
        return wrong
    order = np.argsort(tokens)
    place = order[np.minimum(np.searchsorted(tokens[order], chosen[:n]), len(tokens) - 1)]
    _, first = np.unique(chosen[:n], return_index=True)
    again = np.ones(n, bool)
    again[first] = False
    low, high = scores - slack, scores + slack
    wrong[:n] = again | (tokens[place] != chosen[:n]) | (high[place] < np.partition(low, -n)[-n])
    left_out = np.ones(len(tokens), bool)
    left_out[place] = False
    if not wrong.any() and (low[left_out] > np.partition(high, -n)[-n]).any():
        wrong[np.argmin(high[place])] = True
    return wrong


def _verify(outputs: Arrays, inputs: Arrays, shape: Shape, dtype: Dtype) -> Verdict:
    """Scores within their bounds; the choice right by them, exactly, and by those in float64, up to the bounds.

    The error is the larger of two relative norms: of the scores, and of the chosen tokens' exact scores, both sorted,
    from the best ones'.
    """
    wrong = {name: np.zeros(outputs[name].shape, bool) for name in ("idx", "scores")}
    got, exact, taken, best = [], [], [], []
    for row in range(shape[0]):
        chosen, tokens = outputs["idx"][row].astype(np.int64), _tokens(inputs, row)
        true, slack = score(inputs, row)
        written = outputs["scores"][row, : len(tokens)].astype(np.float64)
        wrong["scores"][row, : len(tokens)] = ~(abs(written - true) <= slack)
        wrong["idx"][row] = choice(chosen, tokens, np.nan_to_num(written, nan=-np.inf))
        wrong["idx"][row] |= choice(chosen, tokens, true, slack)
        n = min(len(chosen), len(tokens))
        by_token = dict(zip(tokens.tolist(), true.tolist()))
        taken.append(np.sort([by_token.get(token, math.inf) for token in chosen[:n].tolist()]))
        best.append(np.sort(true)[len(true) - n :])
        got.append(written)
        exact.append(true)
    pairs = ((got, exact), (taken, best))
    error = max(relative_norm(np.concatenate(a), np.concatenate(b)) for a, b in pairs)
    return Verdict(error, wrong)


def _tolerance(shape: Shape, dtype: Dtype) -> float:
    """What a sum loses at random, and what all heads lose towards zero, which their weights' signs do not cancel: up
    to the root of their number times a score."""
    towards_zero = math.sqrt(HEADS) * DIM / NARROW_K * NARROW_STEP
    return 2 * narrow_sum((DIM,), DTYPES["e4m3"]) + towards_zero


TOPK_INDEXER = Problem(
    name="topk_indexer",
    summary="idx = the topk tokens of a paged fp8 cache with the largest sum of weights * ReLU(q . k)",
    axes=("B", "pages", "topk"),
    default_shape=(3, 40, 2048),
    dtypes=("e4m3",),
    operands=_operands,
    compute=_compute,
    bound=_bound,
    tolerance=_tolerance,
    flops=lambda shape: int(lengths(shape).sum()) * HEADS * (2 * DIM + 3),
    draw=_draw,
    verify=_verify,
)
