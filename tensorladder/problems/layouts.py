"""What the layout rungs compute: where the hardware puts things, as numbers, and a way through tensor memory.

The references of both layouts are written from the PTX ISA alone, not with the package's layout algebra, so that each
checks the other.
"""

from __future__ import annotations

import math

import numpy as np

from tensorladder.problems.problem import Arrays, Dtype, Operand, Problem, Shape


def _swizzle_operands(shape: Shape, dtype: str) -> tuple[Operand, ...]:
    return Operand("X", shape, dtype), Operand("Y", shape, dtype, output=True)


def _swizzle_compute(inputs: Arrays, shape: Shape, dtype: Dtype) -> Arrays:
    """Y is the shared-memory image of the row-major tile X under the 128-byte swizzle.

    PTX ISA, "Swizzling modes" (tensor data movement): the number of a 16-byte chunk (address bits 4 to 6) is XORed with
    that of its 128-byte line (bits 7 to 9): chunk c of line i lies at c ^ (i % 8). Rows of X are whole lines.
    """
    chunks = inputs["X"].reshape(-1, 8, 128 // dtype.bits)
    image = np.empty_like(chunks)
    for line in range(len(chunks)):
        image[line, np.arange(8) ^ (line % 8)] = chunks[line]
    return {"Y": image.reshape(shape)}


def _tv_operands(shape: Shape, dtype: str) -> tuple[Operand, ...]:
    return (Operand("MN", (32 * shape[0] * shape[1], 8, 2), "int32", output=True),)


def _tv_compute(inputs: Arrays, shape: Shape, dtype: Dtype) -> Arrays:
    """MN[thread, value] = (m, n) of the accumulators of m16n8k16, two instructions along N a warp.

    PTX ISA, "Matrix fragments for mma.m16n8k16": c0..c3 of a lane lie at row lane / 4 (+ 8 for c2, c3) and column
    2 * (lane % 4) + (i & 1). Warps are numbered along M first; the second instruction is 8 * warps_n columns on.
    """
    warps_m, warps_n = shape
    thread, value = np.meshgrid(np.arange(32 * warps_m * warps_n), np.arange(8), indexing="ij")
    lane, warp = thread % 32, thread // 32
    m = 16 * (warp % warps_m) + lane // 4 + 8 * ((value >> 1) & 1)
    n = 8 * (warp // warps_m) + 2 * (lane % 4) + (value & 1) + 8 * warps_n * (value >> 2)
    return {"MN": np.stack([m, n], axis=-1).astype(np.float64)}


def _doubled_operands(shape: Shape, dtype: str) -> tuple[Operand, ...]:
    return Operand("X", shape, dtype), Operand("Y", shape, dtype, output=True)


def _exact(inputs: Arrays, reference: Arrays, shape: Shape, dtype: Dtype) -> Arrays:
    return {name: np.zeros_like(array) for name, array in reference.items()}


SWIZZLE = Problem(
    name="swizzle",
    summary="Y = the shared-memory image of X under the 128-byte swizzle",
    axes=("rows", "cols"),
    default_shape=(64, 64),
    dtypes=("fp16", "bf16", "fp32"),
    operands=_swizzle_operands,
    compute=_swizzle_compute,
    bound=_exact,
    tolerance=lambda shape, dtype: 0.0,
    flops=lambda shape: 0,
)

TV_TO_MN = Problem(
    name="tv_to_mn",
    summary="MN[thread, value] = (m, n) of a warp MMA's accumulator",
    axes=("warps_m", "warps_n"),
    default_shape=(2, 2),
    dtypes=("int32",),
    operands=_tv_operands,
    compute=_tv_compute,
    bound=_exact,
    tolerance=lambda shape, dtype: 0.0,
    flops=lambda shape: 0,
)

DOUBLED = Problem(
    name="doubled",
    summary="Y = 2 X",
    axes=("rows", "cols"),
    default_shape=(200, 100),
    dtypes=("fp32",),
    operands=_doubled_operands,
    compute=lambda inputs, shape, dtype: {"Y": 2 * inputs["X"]},
    bound=_exact,
    tolerance=lambda shape, dtype: 0.0,
    flops=lambda shape: math.prod(shape),
)
