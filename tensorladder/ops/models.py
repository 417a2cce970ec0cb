"""How long a kernel with certain knobs takes for a product on an H200, in microseconds: one model a kernel.

They count waves: the busiest SM's tiles, one after the other. A K step of a tile takes the longest of what its
multiplications take at the tensor cores' rate, what a ring of so many stages takes for a request to global memory, what
the operands of all tiles that run at a time take from L2, and what those of them that nobody has read yet take from
global memory. The constants are fitted to the times in tests/data/silicon/choice_h200.jsonl (bf16, one product).
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


def two_lines(major: str, rows: int, k: int, size: int) -> bool:
    """Whether an operand, where it is dense, has a pitch that is no multiple of 128 bytes: each row of a box then lies
    in two lines of L2."""
    return (k if major == "k" else rows) * size % ROW != 0


LATENCY = 3046.0  # clocks from a request to global memory until its bytes are there, under load
L2_FILLED = 10070.0  # bytes a clock that L2 takes from global memory while it gives none
L2_OF_ALL = 8000.0  # bytes a clock that arrive at all SMs together, at most
UNKNOWN = 4.0  # times as long, where a tile is so empty that it was not measured: the fit says nothing there
#: of all SMs, those that clusters of so many CTAs can occupy at a time: some groups of SMs have odd ones out
USABLE = {3: 39 / 44, 4: 30 / 33, 8: 30 / 33}


class Tiles(NamedTuple):
    """How a kernel cuts a product. down, across: clusters' tiles along M, and along N of all products. steps: K steps
    of a tile. ahead: of them that are under way. ctas: of a cluster. resident: clusters at a time. load: bytes that
    arrive at an SM a step. rows, cols: bytes of A and of B that a cluster reads a step."""

    down: int
    across: int
    steps: int
    ahead: int
    ctas: int
    resident: int
    load: float
    rows: float
    cols: float


def main_loops(tiles: Tiles, raster: float, multiply: float, arriving: float, memory: float) -> tuple[float, int]:
    """(clocks of the busiest SM's K steps, waves). multiply: clocks of a step's multiplications. arriving, memory:
    bytes a clock that an SM takes and that global memory gives, at most."""

    def step(clusters: int) -> float:
        """Clocks of a K step of so many clusters at a time."""
        high = min(tiles.down, raster, clusters)
        wide = min(tiles.across, ceil(clusters / high))
        fresh = high * tiles.rows + wide * tiles.cols  # bytes that nobody has read yet
        arrive = max(tiles.load / arriving, tiles.load * clusters * tiles.ctas / L2_OF_ALL + fresh / L2_FILLED)
        return max(multiply, LATENCY / tiles.ahead, arrive, fresh / memory)

    waves, rest = divmod(tiles.down * tiles.across, tiles.resident)
    clocks = tiles.steps * (waves * step(tiles.resident) + (step(rest) if rest else 0.0))
    return clocks, waves + (rest > 0)


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
    "m": [
        ((256, 160), 2, 1), ((256, 160), 1, 2), ((128, 256), 4, 1), ((128, 256), 2, 1), ((128, 256), 1, 1),
        ((128, 224), 2, 1), ((128, 96), 2, 1),
    ],
}  # fmt: skip


def _c7_candidates() -> Iterator[Choice]:
    shared = [(split, *one) for split, tiles in C7_TILES.items() for one in tiles]
    for split, (rows, cols), cluster_m, cluster_n in shared:
        wide = rows * cols // (256 if split else 128) > 160  # accumulators a thread
        # A second buffer of C where it costs no stage.
        room, one = SMEM - 1024, 2 * 64 * 128
        stages, fewer = ((room - c_stages * one) // (ROW * (rows + cols)) for c_stages in (1, 2))
        c_stages = 2 if fewer == stages or not (wide or split) else 1
        yield choice(
            "c7", tile=(rows, cols, 64), split=split, cluster_m=cluster_m, cluster_n=cluster_n, c_stages=c_stages,
            stages=min(stages if c_stages == 1 else fewer, 10),
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


MULTIPLY = 1.212  # times the clocks of the tensor cores' peak that multiplications take
EPILOGUE_ELEMENT = 0.09734  # clocks of an element of C whose epilogue nothing hides
C7_STEP = 20.32  # clocks a K step besides
C7_MEMORY = 2028.0  # bytes a clock that come from global memory, at most
C7_TWO_LINES = 1.715  # times as long for bytes that lie so
C7_CLUSTER = 640.0  # clocks until the CTAs of a cluster have met
C7_LAUNCH = 2.192  # microseconds


def _c7_us(knobs: dict[str, Any], product: Product, sm_count: int) -> float:
    (rows, cols, _), cm, cn = knobs["tile"], knobs["cluster_m"], knobs["cluster_n"]
    m, n, k, l, form = product
    ctas = cm * cn
    resident = int(sm_count * USABLE.get(ctas, 1.0)) // ctas
    if not resident:
        return inf
    size, parts = bytes_of(form.dtype), 2 if form.gated else 1
    a = C7_TWO_LINES if two_lines(form.a_major, m, k, size) else 1.0
    b = C7_TWO_LINES if two_lines(form.b_major, n, k, size) else 1.0
    tiles = Tiles(
        ceil(m / (rows * cm)), ceil(n / (cols // parts * cn)) * l, ceil(k * size / ROW), knobs["stages"], ctas,
        resident, ROW * (rows / cn * a + cols / cm * b), ROW * min(rows * cm, m),
        ROW * min(cols * cn, n * parts),
    )  # fmt: skip
    if ctas in USABLE and tiles.down * tiles.across > resident:
        return inf  # what finds no room waits for all that the others do
    multiply = MULTIPLY * rows * cols / 32 + C7_STEP
    main, waves = main_loops(tiles, knobs["raster"], multiply, inf, C7_MEMORY)
    shown = (waves if knobs["split"] else 1) * EPILOGUE_ELEMENT * rows * cols
    compute = main + shown + C7_CLUSTER * (ctas > 1)
    unknown = (m <= 64 < rows * cm) or 2 * n <= cols > 64
    return (C7_LAUNCH + compute / CLOCKS_A_US) * (UNKNOWN if unknown else 1.0)


# ------------------------------------------------------------------------------------------------------- c8: split-K

#: parts of K by (rows of B, rows of A): of 45 that were measured those that are the best of all, or near, for some
#: shape
C8_TILES = {
    (64, 8): (1, 2, 4, 8), (128, 8): (4,), (64, 16): (1, 2, 4, 8), (64, 32): (1, 2, 4, 8), (128, 32): (4,),
    (64, 64): (1, 2, 3, 8), (128, 64): (2,), (64, 128): (1, 3), (128, 128): (2,),
}  # fmt: skip


def _c8_candidates() -> Iterator[Choice]:
    for (cols, rows), splits in C8_TILES.items():
        for split in splits:
            passes = 2 if rows > 64 and split > 1 else 1
            sums = (2 * split - 1) * ceil(rows // passes / split) * (cols + 4) * 4
            depth = 64 if rows > 32 else 128
            stages = min((SMEM - 2048 - sums) // (2 * depth * (cols + rows)), 24)
            groups = 2 if rows > 32 and cols > 64 else 1
            yield choice(
                "c8", tile=(cols, rows, depth), split=split, warpgroups=groups, passes=passes, stages=stages
            )  # fmt: skip


def _c8_fits(knobs: dict[str, Any], form: Form) -> bool:
    """As `rungs.parts.limits` has it."""
    cols, rows, _ = knobs["tile"]
    return (form.a_major == "k" or rows % 64 == 0) and (form.b_major == "k" or cols // (1 + form.gated) % 64 == 0)


C8_STEP = 76.13  # clocks a K step besides its multiplications
C8_ARRIVING, C8_MEMORY = 120.0, 2428.0  # bytes a clock that arrive at an SM, that come from global memory
C8_WHOLE = 0.8928  # of that where all CTAs read the same columns of K at a time
C8_TWO_LINES = 1.909  # times as long for bytes that lie so, on their way from L2
C8_MORE = 0.3245  # the part of an epilogue that is not hidden after the first tile
C8_SUMS = {1: 0.0, 2: 1735.0, 3: 499.0, 4: 276.0, 8: 495.0}  # clocks of the sums' way, by parts of K
C8_RAMP = 1094.0  # clocks until all SMs are served
C8_LAUNCH = 2.165  # microseconds


def _c8_us(knobs: dict[str, Any], product: Product, sm_count: int) -> float:
    (cols, rows, depth), split = knobs["tile"], knobs["split"]
    m, n, k, l, form = product
    resident = int(sm_count * USABLE.get(split, 1.0)) // split
    if not resident:
        return inf
    size, parts = bytes_of(form.dtype), 2 if form.gated else 1
    bad = two_lines(form.a_major, m, k, size) or two_lines(form.b_major, n, k, size)
    arriving = C8_TWO_LINES if bad else 1.0
    tiles = Tiles(
        ceil(m / rows), ceil(n / (cols // parts)) * l, ceil(ceil(k * size / ROW) / split),
        knobs["stages"] * depth // 64, split, resident, ROW * (rows + cols) * arriving, ROW * split * min(rows, m),
        ROW * split * min(cols, n * parts),
    )  # fmt: skip
    multiply = MULTIPLY * max(rows, 16) * cols / 32 + C8_STEP
    memory = C8_MEMORY * (C8_WHOLE if split == 1 else 1.0)
    main, waves = main_loops(tiles, inf, multiply, C8_ARRIVING, memory)
    shown = (1 + (waves - 1) * C8_MORE) * (EPILOGUE_ELEMENT * rows * cols + C8_SUMS[split])
    ramp = C8_RAMP * min(1.0, tiles.down * tiles.across / resident)
    unknown = 4 * m <= rows > 8 or m > 8 * rows
    return (C8_LAUNCH + (main + shown + ramp) / CLOCKS_A_US) * (UNKNOWN if unknown else 1.0)


MODELS: dict[str, Model] = {
    "c7": Model(tuple(_c7_candidates()), _c7_fits, _c7_us),
    "c8": Model(tuple(_c8_candidates()), _c8_fits, _c8_us),
    "b9": Model(unmeasured.B9, unmeasured.b9_fits, unmeasured.b9_us),
    "d5": Model(unmeasured.D5, unmeasured.d5_fits, unmeasured.d5_us),
}
