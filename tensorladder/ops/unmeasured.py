"""Models of kernels for GPUs that none of them has been timed on: which of their tiles has the least to do.

A K step takes what its multiplications take at the tensor cores' peak or what its operands take to arrive from L2,
whichever is longer, and a barrier's round; with warp MMA also what warps read from shared memory. An SM does its tiles
one after the other, each with an epilogue. The peaks are those of NVIDIA's papers on A100 and B200 (dense fp16, divided
by SMs and clock), the rest orders of magnitude.
"""

from __future__ import annotations

from math import ceil
from typing import Any, NamedTuple

from tensorladder.ops.kernels import Choice, Product, choice
from tensorladder.rungs.parts.form import Form

BYTES = {"fp16": 2, "bf16": 2, "fp32": 4}  # of an element; all others have one
BARRIER = 32  # clocks a K step
SMEM_BYTES_A_CLOCK = 128
FIRST_TILE = 1500  # clocks until the first operands have come
EPILOGUE_BYTES_A_CLOCK = 32


class Rates(NamedTuple):
    """Of an SM, a clock: multiplications and additions of fp16, bytes that arrive from L2. MHz."""

    flops: float
    l2_bytes: float
    mhz: float


A100 = Rates(2048, 64, 1410)
B200 = Rates(8192, 64, 1850)


def _us(
    tile: tuple[int, int, int], ctas: int, rates: Rates, product: Product, sm_count: int, reads: float = 0.0
) -> float:
    """tile: of a cluster of so many CTAs, an SM each; K in 16-bit elements. reads: bytes that warps read a K step."""
    (rows, cols, depth), (m, n, k, l, form) = tile, product
    size = BYTES.get(form.dtype, 1)
    tiles = ceil(m / rows) * ceil(n / (cols // (2 if form.gated else 1))) * l
    steps = ceil(k * size / (2 * depth))
    multiply = 2 * rows * cols * depth / rates.flops / ctas + reads / SMEM_BYTES_A_CLOCK
    load = 2 * (rows + cols) * depth / rates.l2_bytes / ctas
    store = BYTES.get(form.out, 1) * rows * cols / EPILOGUE_BYTES_A_CLOCK / ctas
    waves = ceil(tiles / max(sm_count // ctas, 1))
    return (FIRST_TILE + waves * (steps * (max(multiply, load) + BARRIER) + store)) / rates.mhz


def _b9(tile: tuple[int, int, int], stages: int, warps: tuple[int, int] = (2, 2)) -> Choice:
    return choice("b9", tile=tile, stages=stages, warps_m=warps[0], warps_n=warps[1])


#: at most 99 KB of shared memory, what sm_86, sm_89 and sm_120 have
B9 = (
    _b9((128, 128, 32), 4),
    _b9((64, 128, 64), 3),
    _b9((128, 64, 64), 3),
    _b9((64, 64, 64), 4),
    _b9((32, 128, 64), 4, (1, 4)),
    _b9((16, 128, 64), 5, (1, 4)),
    _b9((16, 64, 64), 9, (1, 4)),
)


def b9_fits(knobs: dict[str, Any], form: Form) -> bool:
    """Half of a gated product's columns are U's; what M or N is contiguous of lies in shared memory by blocks of 64."""
    rows, cols, _ = knobs["tile"]
    return cols % (128 if form.gated else 64) == 0 and (form.a_major == "k" or rows % 64 == 0)


def b9_us(knobs: dict[str, Any], product: Product, sm_count: int) -> float:
    """Microseconds, on a GPU like an A100."""
    rows, cols, depth = knobs["tile"]
    reads = 2 * depth * (rows * knobs["warps_n"] + cols * knobs["warps_m"])  # each warp its part of A and of B
    return _us(knobs["tile"], 1, A100, product, sm_count, reads)


STAGES = {256: 6, 192: 6, 128: 8, 64: 9}  # that fit into shared memory, for columns of a tile
D5 = tuple(choice("d5", tile=(256, cols, 64), stages=stages) for cols, stages in STAGES.items())


def d5_fits(knobs: dict[str, Any], form: Form) -> bool:
    """A CTA of the pair has whole swizzles of B; a thread finishes 32 columns of C at a time."""
    return knobs["tile"][1] % (128 if form.b_major == "mn" else 64) == 0


def d5_us(knobs: dict[str, Any], product: Product, sm_count: int) -> float:
    """Microseconds, on a GPU like a B200."""
    return _us(knobs["tile"], 2, B200, product, sm_count)
