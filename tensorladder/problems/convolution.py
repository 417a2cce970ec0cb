"""Convolution of images: Y[n, p, q, k] = sum over r, s, c of X[n, p u - o + r d, q u - o + s d, c] F[k, r, s, c].

X is (N, H, W, C) and Y (N, P, Q, K), channels contiguous (NHWC); F is (K, R, S, C) (KRSC). Stride u, padding o (zeros
on every side) and dilation d are the same along both directions. It is what machine learning calls a convolution: the
filter is not turned. P = (H + 2 o - d (R - 1) - 1) / u + 1, rounded down, and Q alike.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tensorladder.problems.problem import ACCUMULATE_STEP, CONFIDENCE, Arrays, Dtype, Operand, Problem, Shape

AXES = ("N", "H", "W", "C", "K", "R", "S", "stride", "padding", "dilation")


def output_extents(shape: Shape) -> tuple[int, int]:
    """(P, Q), height and width of Y; below 1 where the filter is larger than the padded image."""
    _, h, w, _, _, r, s, stride, padding, dilation = shape

    def extent(image: int, taps: int) -> int:
        return (image + 2 * padding - dilation * (taps - 1) - 1) // stride + 1

    return extent(h, r), extent(w, s)


def _operands(shape: Shape, dtype: str) -> tuple[Operand, ...]:
    n, h, w, c, k, r, s, *_ = shape
    return (
        Operand("X", (n, h, w, c), dtype),
        Operand("F", (k, r, s, c), dtype),
        Operand("Y", (n, *output_extents(shape), k), dtype, output=True),
    )


def convolve(x: np.ndarray, f: np.ndarray, shape: Shape) -> np.ndarray:
    """The sum, a tap (r, s) after the other: each is a product of what it sees of X, strided, and its channels of F."""
    *_, taps_r, taps_s, stride, padding, dilation = shape
    (p, q), around = output_extents(shape), (padding, padding)
    padded = np.pad(x, ((0, 0), around, around, (0, 0)))
    y = np.zeros((x.shape[0], p, q, f.shape[0]))
    for r in range(taps_r):
        for s in range(taps_s):
            rows = slice(r * dilation, r * dilation + stride * (p - 1) + 1, stride)
            columns = slice(s * dilation, s * dilation + stride * (q - 1) + 1, stride)
            y += padded[:, rows, columns] @ f[:, r, s].T
    return y


def _compute(inputs: Arrays, shape: Shape, dtype: Dtype) -> Arrays:
    return {"Y": convolve(inputs["X"], inputs["F"], shape)}


def _lost(shape: Shape) -> float:
    """What summing R S C products in float32 loses, relative to the sum of magnitudes (problem.py)."""
    _, _, _, c, _, r, s, *_ = shape
    return CONFIDENCE * math.sqrt(r * s * c) * ACCUMULATE_STEP


def allowed(reference: Any, magnitudes: Any, shape: Shape, dtype: Dtype) -> Any:
    """The largest right error of each element. magnitudes: the convolution of |X| with |F|."""
    accumulate = _lost(shape) * magnitudes
    return dtype.unit * (abs(reference) + accumulate) + accumulate + dtype.tiny


def _bound(inputs: Arrays, reference: Arrays, shape: Shape, dtype: Dtype) -> Arrays:
    magnitudes = convolve(abs(inputs["X"]), abs(inputs["F"]), shape)
    return {"Y": allowed(reference["Y"], magnitudes, shape, dtype)}


def _flops(shape: Shape) -> int:
    n, _, _, c, k, r, s, *_ = shape
    return 2 * n * math.prod(output_extents(shape)) * k * r * s * c


def _refuse(shape: Shape, dtype: str) -> str | None:
    _, h, w, _, _, r, s, _, padding, dilation = shape
    for axis, taps_axis, extent, taps in (("H", "R", h, r), ("W", "S", w, s)):
        if extent + 2 * padding < dilation * (taps - 1) + 1:
            return (
                f"{taps_axis}={taps} taps, dilation {dilation}, span {dilation * (taps - 1) + 1} elements, and {axis}"
                f"={extent} with padding {padding} has {extent + 2 * padding}: take fewer taps or more padding"
            )
    return None


CONVOLUTION = Problem(
    name="convolution",
    summary="Y = X convolved with F, images NHWC, filters KRSC",
    axes=AXES,
    default_shape=(2, 14, 14, 64, 64, 3, 3, 1, 1, 1),
    dtypes=("fp16", "bf16", "fp32"),
    operands=_operands,
    compute=_compute,
    bound=_bound,
    tolerance=lambda shape, dtype: dtype.unit + _lost(shape),
    flops=_flops,
    refuse=_refuse,
    may_be_zero=("padding",),
)
