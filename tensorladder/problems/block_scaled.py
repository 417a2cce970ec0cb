"""Block-scaled GEMM: C[M,N] = A B^T where each block of elements along K shares a scale factor of eight bits.

Two formats, quantised as their definitions say:
- mxfp8: blocks of 32 e4m3 numbers, a power of two each. With E = floor(log2(max |x|)) - 8 (8: the exponent of e4m3's
  largest number) the scale is 2^E and the elements are x / 2^E, rounded to nearest even and clamped (OCP Microscaling
  Formats v1.0, section 6.3).
- nvfp4: blocks of 16 e2m1 numbers, an unsigned e4m3 each: max |x| / 6 (e2m1's largest number), rounded to nearest; the
  elements are x / scale, rounded likewise. (The float32 factor of a whole tensor that often comes with it is one here.)

Arrays are bytes. A is (M, K) elements, two e2m1 a byte, the even one in the low half. Scale factors lie as
tcgen05.cp and cuBLAS take them: blocks of 128 rows x 4 factors, 512 bytes each, K-blocks fastest; inside, the factor
(row r, column c) at byte 16 (r % 32) + 4 (r / 32) + c, zero where the matrix ends (PTX ISA, "Scale Factor A Layout";
cuBLAS, "1D Block Scaling Factors Layout").
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tensorladder.core import smallfloat
from tensorladder.problems.gemm import output_of
from tensorladder.problems.problem import ACCUMULATE_STEP, CONFIDENCE, Arrays, Dtype, Operand, Problem, Shape

ROWS, COLUMNS = 128, 4
"""Scale factors of one 512-byte block."""

SPREAD = 3
"""Blocks of the inputs differ in magnitude by up to 2^SPREAD either way, so that a scale at the wrong place shows."""


@dataclass(frozen=True)
class ScaledFormat:
    """element, scale: formats of core.smallfloat. block: elements that share a scale. bits: of an element."""

    element: str
    scale: str
    block: int
    bits: int


FORMATS: dict[str, ScaledFormat] = {
    "mxfp8": ScaledFormat("e4m3", "ue8m0", 32, 8),
    "nvfp4": ScaledFormat("e2m1", "ue4m3", 16, 4),
}


def scales_shape(rows: int, k: int, form: ScaledFormat) -> Shape:
    """Blocks along the rows and along K, and their bytes."""
    return math.ceil(rows / ROWS), math.ceil(k / (form.block * COLUMNS)), ROWS * COLUMNS


def quantise(x: np.ndarray, form: ScaledFormat) -> tuple[np.ndarray, np.ndarray]:
    """Codes of the elements (rows, K) and of the scales (rows, K / block), as uint8."""
    blocks = x.astype(np.float64).reshape(len(x), -1, form.block)
    largest = abs(blocks).max(axis=-1)
    top = smallfloat.FORMATS[form.element].max
    if form.scale == "ue8m0":
        scales = smallfloat.encode(largest / 2.0 ** math.floor(math.log2(top)), "ue8m0", "rz", satfinite=True)
    else:
        scales = smallfloat.encode(largest / top, form.scale, satfinite=True)
    factor = smallfloat.decode(scales, form.scale)[..., None]
    scaled = np.divide(blocks, factor, out=np.zeros_like(blocks), where=factor > 0)
    codes = smallfloat.encode(scaled, form.element, satfinite=True).reshape(x.shape)
    return codes.astype(np.uint8), scales.astype(np.uint8)


def pack(codes: np.ndarray, form: ScaledFormat) -> np.ndarray:
    """Codes as they lie in memory: two of four bits a byte."""
    return codes if form.bits == 8 else codes[:, 0::2] | codes[:, 1::2] << 4


def unpack(stored: np.ndarray, form: ScaledFormat) -> np.ndarray:
    """The codes that `pack` stored."""
    return stored if form.bits == 8 else np.stack([stored & 15, stored >> 4], axis=-1).reshape(len(stored), -1)


def block_scales(scales: np.ndarray, k: int, form: ScaledFormat) -> np.ndarray:
    """Scale factors (rows, columns) in blocks of 128 x 4, zeros beyond the edge."""
    down, across, size = scales_shape(len(scales), k, form)
    padded = np.zeros((down * ROWS, across * COLUMNS), np.uint8)
    padded[: scales.shape[0], : scales.shape[1]] = scales
    # (block, group of 32 rows, row, block, column) -> (block, block, row, group, column)
    return padded.reshape(down, 4, 32, across, COLUMNS).transpose(0, 3, 2, 1, 4).reshape(down, across, size)


def unblock_scales(blocked: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """The scale factors (rows, columns) that `block_scales` laid out."""
    down, across, _ = blocked.shape
    plain = blocked.reshape(down, across, 32, 4, COLUMNS).transpose(0, 3, 2, 1, 4)
    return plain.reshape(down * ROWS, across * COLUMNS)[:rows, :columns]


def dequantise(stored: np.ndarray, blocked: np.ndarray, form: ScaledFormat) -> np.ndarray:
    """The matrix that stored elements and blocked scales stand for, exactly, in float64."""
    elements = smallfloat.decode(unpack(stored, form), form.element)
    scales = unblock_scales(blocked, len(elements), elements.shape[1] // form.block)
    return elements * np.repeat(smallfloat.decode(scales, form.scale), form.block, axis=1)


def _operands(shape: Shape, dtype: str) -> tuple[Operand, ...]:
    m, n, k = shape
    form = FORMATS[dtype]
    return (
        Operand("A", (m, k * form.bits // 8), "uint8"),
        Operand("SA", scales_shape(m, k, form), "uint8"),
        Operand("B", (n, k * form.bits // 8), "uint8"),
        Operand("SB", scales_shape(n, k, form), "uint8"),
        Operand("C", (m, n), "fp16", output=True),
    )


def _draw(shape: Shape, dtype: str, seed: int) -> Arrays:
    m, n, k = shape
    form = FORMATS[dtype]
    drawn: Arrays = {}
    for index, (name, rows) in enumerate((("A", m), ("B", n))):
        generator = np.random.default_rng([seed, index])
        power = generator.integers(-SPREAD, SPREAD, (rows, k // form.block, 1), endpoint=True)
        blocks = generator.standard_normal((rows, k // form.block, form.block)) * 2.0**power
        codes, scales = quantise(blocks.reshape(rows, k), form)
        drawn |= {name: pack(codes, form), "S" + name: block_scales(scales, k, form)}
    return drawn


def _matrices(inputs: Arrays, dtype: Dtype) -> tuple[np.ndarray, np.ndarray]:
    stored = {name: array.astype(np.uint8) for name, array in inputs.items()}
    form = FORMATS[dtype.name]
    return dequantise(stored["A"], stored["SA"], form), dequantise(stored["B"], stored["SB"], form)


def _compute(inputs: Arrays, shape: Shape, dtype: Dtype) -> Arrays:
    a, b = _matrices(inputs, dtype)
    return {"C": a @ b.T}


def _bound(inputs: Arrays, reference: Arrays, shape: Shape, dtype: Dtype) -> Arrays:
    a, b = _matrices(inputs, dtype)
    accumulate = CONFIDENCE * math.sqrt(shape[-1]) * ACCUMULATE_STEP * (abs(a) @ abs(b).T)
    stored = output_of(dtype)
    return {"C": stored.unit * (abs(reference["C"]) + accumulate) + accumulate + stored.tiny}


def _refuse(shape: Shape, dtype: str) -> str | None:
    k, block = shape[-1], 32
    return None if k % block == 0 else f"K={k}: whole blocks and rows of 16 bytes, pad K to a multiple of {block}"


GEMM_BLOCK_SCALED = Problem(
    name="gemm_block_scaled",
    summary="C = A B^T, elements of A and B scaled by blocks along K",
    axes=("M", "N", "K"),
    default_shape=(256, 256, 256),
    dtypes=("mxfp8", "nvfp4"),
    operands=_operands,
    compute=_compute,
    bound=_bound,
    tolerance=lambda shape, dtype: output_of(dtype).unit + CONFIDENCE * math.sqrt(shape[-1]) * ACCUMULATE_STEP,
    flops=lambda shape: 2 * math.prod(shape),
    draw=_draw,
    refuse=_refuse,
)
