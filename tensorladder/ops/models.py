"""How long a kernel with certain knobs takes for a product on an H200, in microseconds: one model a kernel.

All count waves: the busiest SM's tiles, one after the other. A K step of a tile takes what its multiplications take at
the tensor cores' rate or what its operands take to arrive, whichever is longer; global memory as a whole takes what
all bytes take at its rate. The constants are fitted to the times in tests/data/silicon/choice_h200.jsonl.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product as all_of
from math import ceil, inf, log2
from typing import Any, NamedTuple

from tensorladder.ops.kernels import Choice, Product, choice
from tensorladder.rungs.parts.form import Form

BYTES = {"fp16": 2, "bf16": 2, "fp32": 4}  # of an element; all others have one
ROW = 128  # bytes of a K step
SMEM = 227 * 1024  # bytes that a CTA can have
SMS = 132  # of an H200
CLOCKS_A_US = 1750.0
BYTES_A_US = 4.717e6  # of global memory


class Model(NamedTuple):
    """A kernel's candidates, whether it takes one for a form, and how many microseconds that takes for a product on so
    many SMs."""

    candidates: tuple[Choice, ...]
    fits: Callable[[dict[str, Any], Form], bool]
    us: Callable[[dict[str, Any], Product, int], float]


def bytes_of(dtype: str) -> int:
    """Of an element."""
    return BYTES.get(dtype, 1)


def traffic(product: Product) -> float:
    """Bytes that global memory moves at the least: every operand once."""
    m, n, k, l, form = product
    rights = 2 if form.gated else 1
    operands = (m + rights * n) * k * bytes_of(form.dtype)
    residual = bytes_of(form.residual) if form.residual else 0
    return l * (operands + m * n * (bytes_of(form.out) + residual))


# ----------------------------------------------------------------------------------------------- c7: fused ping-pong


def _c7_candidates() -> Iterator[Choice]:
    tiles = [(128, n) for n in (192, 160, 128, 96, 64)] + [(64, n) for n in (256, 224, 192, 160, 128, 96, 64)]
    for (rows, cols), (cluster_m, cluster_n) in all_of(tiles, ((2, 1), (1, 2), (1, 1))):
        wide = rows * cols // 128 > 160
        c_stages = 1 if wide else 2
        room = SMEM - 1024 - 2 * c_stages * 64 * 128
        yield choice(
            "c7", tile=(rows, cols, 64), cluster_m=cluster_m, cluster_n=cluster_n, c_stages=c_stages,
            stages=min(room // (ROW * (rows + cols)), 10),
            raster=_raster(rows * cluster_m, cols * cluster_n, cluster_m * cluster_n),
            producer_registers=24 if wide else 40, consumer_registers=240 if wide else 232,
        )  # fmt: skip


def _raster(rows: int, cols: int, ctas: int) -> int:
    """Rows of clusters' tiles before the next column: the power of two that makes what runs at a time most square, so
    that the least of A and B is read for the most of C."""
    side = (SMS // ctas * cols / rows) ** 0.5
    return 2 ** round(log2(side))


def _c7_fits(knobs: dict[str, Any], form: Form) -> bool:
    """As `rungs.parts.limits` has it."""
    rows, cols, _ = knobs["tile"]
    parts = 2 if form.gated else 1
    if cols % (parts * (64 if form.b_major == "mn" else 32)):
        return False
    shared = ((knobs["cluster_m"], cols // parts, form.b_major), (knobs["cluster_n"], rows, form.a_major))
    return all(ctas == 1 or extent % ((64 if major == "mn" else 8) * ctas) == 0 for ctas, extent, major in shared)


MULTIPLY = 1.371  # times the clocks of the tensor cores' peak
STEP = 97  # clocks a K step besides
L2_BYTES_A_CLOCK = 99.7, 7500.0  # that arrive at an SM, and at all of them together, at most
SPLIT_ROWS = 1.915  # times as long where rows do not begin at multiples of 128 bytes: each then lies in two lines
CLUSTER = 666  # clocks until the CTAs of a cluster have met
LAUNCH = 3.67  # microseconds until the first operands have come, and for the last tile's epilogue


def _c7_us(knobs: dict[str, Any], product: Product, sm_count: int) -> float:
    (rows, cols, _), cm, cn = knobs["tile"], knobs["cluster_m"], knobs["cluster_n"]
    m, n, k, l, form = product
    clusters = ceil(m / (rows * cm)) * ceil(n / (cols // (2 if form.gated else 1) * cn)) * l
    if sm_count < cm * cn:
        return inf
    waves = ceil(clusters / (sm_count // (cm * cn)))
    size = bytes_of(form.dtype)
    steps = ceil(k * size / ROW)
    loads = ROW * (rows / cn * _lines(form.a_major, m, k, size) + cols / cm * _lines(form.b_major, n, k, size))
    one, all_of_them = L2_BYTES_A_CLOCK
    ctas = min(clusters, sm_count // (cm * cn)) * cm * cn
    step = max(MULTIPLY * rows * cols / 32 + STEP, loads / one, loads * ctas / all_of_them)
    compute = (waves * steps * step + CLUSTER * (cm * cn > 1)) / CLOCKS_A_US
    return LAUNCH + max(compute, traffic(product) / BYTES_A_US)


def _lines(major: str, rows: int, k: int, size: int) -> float:
    """How much longer an operand takes to arrive for its pitch, where it is dense."""
    return SPLIT_ROWS if (k if major == "k" else rows) * size % ROW else 1.0


MODELS: dict[str, Model] = {"c7": Model(tuple(_c7_candidates()), _c7_fits, _c7_us)}
