"""How long a kernel with certain knobs takes for a product on an H200, in microseconds: one model a kernel.

All count waves: the busiest SM's tiles, one after the other. A K step of a tile takes what its multiplications take at
the tensor cores' rate or what its operands take to arrive, whichever is longer; global memory as a whole takes what
all bytes take at its rate. The constants are fitted to the times in tests/data/silicon/choice_h200.jsonl.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import ceil, inf, log2
from typing import Any, NamedTuple

from tensorladder.ops import unmeasured
from tensorladder.ops.kernels import Choice, Product, choice
from tensorladder.rungs.parts.form import Form

BYTES = {"fp16": 2, "bf16": 2, "fp32": 4}  # of an element; all others have one
ROW = 128  # bytes of a K step
SMEM = 227 * 1024  # bytes that a CTA can have
SMS = 132  # of an H200
CLOCKS_A_US = 1750.0


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


def lines(major: str, rows: int, k: int, size: int) -> float:
    """How much longer an operand takes to arrive where it is dense and its pitch no multiple of 128 bytes: each of the
    box's rows then lies in two lines of L2."""
    return TWO_LINES if (k if major == "k" else rows) * size % ROW else 1.0


TWO_LINES = 1.944
L2_OF_ONE = 76.9  # bytes a clock that arrive at an SM, at most
L2_OF_ALL = 8017.0  # at all of them together
MEMORY = 3022.0  # that come from global memory


# ----------------------------------------------------------------------------------------------- c7: fused ping-pong

#: (tile of C, CTAs of a cluster along M, along N), by how warpgroups share a tile: they take turns (""), or have a half
#: each, below ("m") the other's. Of 60 that were measured those that are the best of all, or near, for some shape.
C7_TILES = {
    "": [
        ((128, 192), 2, 1), ((128, 192), 1, 1), ((128, 160), 2, 1), ((128, 160), 1, 1), ((128, 128), 1, 2),
        ((128, 128), 1, 1), ((128, 96), 1, 2), ((64, 224), 1, 1), ((64, 192), 2, 1), ((64, 192), 1, 1),
        ((64, 160), 1, 2), ((64, 160), 1, 1), ((64, 128), 2, 1), ((64, 128), 1, 1), ((64, 96), 1, 2), ((64, 64), 1, 2),
        ((64, 64), 1, 1),
    ],
    "m": [((256, 160), 2, 1), ((256, 160), 1, 2), ((128, 256), 2, 1), ((128, 256), 1, 1), ((128, 224), 2, 1)],
}  # fmt: skip


def _c7_candidates() -> Iterator[Choice]:
    shared = [(split, *one) for split, tiles in C7_TILES.items() for one in tiles]
    for split, (rows, cols), cluster_m, cluster_n in shared:
        wide = rows * cols // (256 if split else 128) > 160  # accumulators a thread
        c_stages = 1 if wide or split else 2
        room = SMEM - 1024 - 2 * c_stages * 64 * 128
        yield choice(
            "c7", tile=(rows, cols, 64), split=split, cluster_m=cluster_m, cluster_n=cluster_n, c_stages=c_stages,
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


MULTIPLY, STEP = 1.18, 59.0  # a K step: times the clocks of the tensor cores' peak, and clocks besides
EPILOGUE, EPILOGUE_ELEMENT = 342.0, 0.093  # clocks of what of a tile's epilogue nothing hides, and an element
CLUSTER = 740.0  # clocks until the CTAs of a cluster have met
LAUNCH = 2.0  # microseconds


def _c7_us(knobs: dict[str, Any], product: Product, sm_count: int) -> float:
    (rows, cols, _), cm, cn = knobs["tile"], knobs["cluster_m"], knobs["cluster_n"]
    m, n, k, l, form = product
    resident = sm_count // (cm * cn)
    if not resident:
        return inf
    size, parts = bytes_of(form.dtype), 2 if form.gated else 1
    down, across = ceil(m / (rows * cm)), ceil(n / (cols // parts * cn)) * l  # clusters' tiles
    multiply = MULTIPLY * rows * cols / 32 + STEP
    ways = lines(form.a_major, m, k, size), lines(form.b_major, n, k, size)
    load = ROW * (rows / cn * ways[0] + cols / cm * ways[1])  # bytes that arrive at an SM

    def step(clusters: int) -> float:
        """Clocks of a K step of so many clusters at a time."""
        high = min(down, knobs["raster"], clusters)
        wide = min(across, ceil(clusters / high))
        fresh = ROW * (high * min(rows * cm, m) + wide * min(cols * cn, n * parts))  # bytes that nobody has read yet
        return max(multiply, load / L2_OF_ONE, load * clusters * cm * cn / L2_OF_ALL, fresh / MEMORY)

    waves, rest = divmod(down * across, resident)
    main = ceil(k * size / ROW) * (waves * step(resident) + (step(rest) if rest else 0.0))
    shown = (waves + (rest > 0) if knobs["split"] else 1) * (EPILOGUE + EPILOGUE_ELEMENT * rows * cols)
    compute = main + shown + CLUSTER * (cm * cn > 1)
    return LAUNCH + max(compute, traffic(product) / 2523.0) / CLOCKS_A_US


MODELS: dict[str, Model] = {
    "c7": Model(tuple(_c7_candidates()), _c7_fits, _c7_us),
    "b9": Model(unmeasured.B9, unmeasured.b9_fits, unmeasured.b9_us),
    "d5": Model(unmeasured.D5, unmeasured.d5_fits, unmeasured.d5_us),
}
