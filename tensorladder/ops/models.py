"""How long a kernel with certain knobs takes for a product on an H200, in microseconds: one model a kernel.

They count waves: the busiest SM's tiles, one after the other. A K step of a tile takes the longer of what its
multiplications take at the tensor cores' rate and what the way of its operands takes (`way`). The constants are fitted
to times of all candidates on bf16 products; what they leave out is learnt from such times besides (`ops.learnt`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import ceil, gcd, hypot, inf, log2
from typing import Any, NamedTuple

from tensorladder.ops import unmeasured
from tensorladder.ops.kernels import Choice, Product, choice
from tensorladder.rungs.parts.form import Form

BYTES = {"fp16": 2, "bf16": 2, "fp32": 4}  # of an element; all others have one
ROW = 128  # bytes of a K step
SMEM = 227 * 1024  # bytes that a CTA can have
SMS = 132  # of an H200
RING = 150_000  # bytes of shared memory that stages of split-K have at least, where passes can give it to them
CLOCKS_A_US = 1980.0
UNKNOWN = 4.0  # times as long, where a tile is so empty that it was not measured: the fit says nothing there
#: of all SMs, those that clusters of so many CTAs can occupy at a time: some groups of SMs have odd ones out
USABLE = {3: 39 / 44, 4: 30 / 33, 8: 30 / 33}


class Model(NamedTuple):
    """A kernel's candidates, whether it takes one for a form, and what that does for a product on so many SMs, or how
    many microseconds that takes where nothing else is known of it."""

    candidates: tuple[Choice, ...]
    fits: Callable[[dict[str, Any], Form], bool]
    work: Callable[[dict[str, Any], Product, int], Work | float]


class Rates(NamedTuple):
    """What limits a kernel, an SM's clocks unless said otherwise.

    multiply: times the clocks of the tensor cores' peak that multiplications take. step: clocks a K step besides.
    latency: until the bytes of a request are there; shared: times as long for a ring that a cluster fills together,
    less 1. memory, l2: bytes a clock that global memory, and L2, give to all SMs; arriving: that an SM takes.
    split_lines: bytes from L2 that a byte costs besides, by the largest power of two that divides the pitch of an
    operand in bytes, where that is less than a line of 128: a row of a box then lies in two lines. absent: clocks, of
    all SMs, of a row of A, and of B, that a box asks for outside of its matrix. element: of an element of C, where
    nothing hides its epilogue. ramp: until the first bytes are there, for operands of so many MB or more. launch:
    microseconds. whole: bytes a microsecond of global memory over a whole launch, and flops / 1e6 that the card's power
    allows.
    """

    multiply: float
    step: dict[str, float]
    latency: float
    shared: float
    memory: float
    l2: float
    arriving: float
    split_lines: dict[int, float]
    absent: tuple[float, float]
    element: float
    ramp: tuple[float, float]
    launch: float
    whole: tuple[float, float]


class Tiles(NamedTuple):
    """How a kernel cuts a product. down, across: clusters' tiles along M, and along N of all products. steps: K steps
    of a tile. ahead: of them that are under way. ctas: of a cluster. resident: clusters at a time. load: bytes that
    come from L2 to a CTA a step. absent: clocks of the rows that it asks for outside of A and B. rows, cols: bytes
    of A and of B that a cluster reads a step; all_rows, all_cols: that all clusters do."""

    down: int
    across: int
    steps: int
    ahead: int
    ctas: int
    resident: int
    load: float
    absent: float
    rows: float
    cols: float
    all_rows: float
    all_cols: float


class Work(NamedTuple):
    """What a kernel does for a product. us: microseconds that it takes. tiles; waves: (how many, clusters at a time).
    multiply: clocks of a K step's multiplications; ways: and of the way of its operands, for each of the waves. rows,
    cols: of A, and of B, that a cluster's tile has. pitches: bytes to the next line of A, and of B."""

    us: float
    tiles: Tiles
    waves: list[tuple[int, int]]
    multiply: float
    ways: list[float]
    rows: int
    cols: int
    pitches: tuple[int, int]


def bytes_of(dtype: str) -> int:
    """Of an element."""
    return BYTES.get(dtype, 1)


def share(busy: float) -> float:
    """The part of global memory's rate that is asked for where this part of the SMs has work. SMs come in pairs that
    have one way to memory: with one of each at work nearly all of it is taken, and a few more take turns."""
    return min(1.15 * busy, 0.5) if busy <= 0.5 else max(busy, min(0.5 + 8 * (busy - 0.5), 1.0))


def way(tiles: Tiles, rates: Rates, raster: float, clusters: int) -> float:
    """Clocks of the way of a K step's operands, where so many clusters work at a time."""
    # Where a band of `raster` rows is too narrow for all, the next ones have begun.
    high = min(tiles.down, max(raster, ceil(clusters / tiles.across)), clusters)
    wide = min(tiles.across, ceil(clusters / high))
    fresh = min(high * tiles.rows, tiles.all_rows) + min(wide * tiles.cols, tiles.all_cols)  # nobody has read them yet
    busy, ctas = clusters / tiles.resident, clusters * tiles.ctas
    waits = rates.latency / tiles.ahead * (1 + rates.shared * (tiles.ctas > 1))
    memory = fresh / rates.memory * share(busy) / busy
    return hypot(waits, memory, tiles.load * ctas / rates.l2, tiles.load / rates.arriving) + tiles.absent * ctas


def waves_of(tiles: Tiles) -> list[tuple[int, int]]:
    """(how many, clusters at a time) of whole waves, and of the last."""
    whole, rest = divmod(tiles.down * tiles.across, tiles.resident)
    return [(count, clusters) for count, clusters in ((whole, tiles.resident), (1, rest)) if count and clusters]


def launched(rates: Rates, product: Product, clocks: float) -> float:
    """Microseconds of a launch whose busiest SM works for so many clocks."""
    m, n, k, l, form = product
    size, columns = bytes_of(form.dtype), n * (2 if form.gated else 1)
    operands = (m + columns) * k * l * size
    ramp = rates.ramp[0] * min(operands / (rates.ramp[1] * 1e6), 1.0)
    memory = (operands + m * n * l * bytes_of(form.out)) / rates.whole[0]
    power = m * columns * k * l * size / 1e6 / rates.whole[1]  # 8-bit floats take half as much
    return rates.launch + hypot((clocks + ramp) / CLOCKS_A_US, memory, power)


class Operand(NamedTuple):
    """What a kernel's tile has of a matrix. extent: the matrix's rows (those of B and U, where there are two).
    pitch: bytes to the next line. rows: of a cluster's tile. loaded: of these, that come from L2 to a CTA."""

    extent: int
    pitch: int
    rows: int
    loaded: float


def operands(product: Product, a: tuple[int, float], b: tuple[int, float]) -> tuple[Operand, Operand]:
    """A and B of a product, dense. a, b: `rows` and `loaded`."""
    m, n, k, _, form = product
    size = bytes_of(form.dtype)

    def one(extent: int, parts: int, major: str, tile: tuple[int, float]) -> Operand:
        return Operand(extent * parts, (k if major == "k" else extent) * size, *tile)

    return one(m, 1, form.a_major, a), one(n, 2 if form.gated else 1, form.b_major, b)


def cut(
    rates: Rates, product: Product, pair: tuple[Operand, Operand], steps: int, ahead: int, ctas: int, resident: int,
    split: int = 1,
) -> Tiles:  # fmt: skip
    """pair: the operand whose rows are a tile's rows, and the one whose rows are its columns. split: parts of K."""
    below, beside = pair
    l = product.l
    down, across = ceil(below.extent / below.rows), ceil(beside.extent / beside.rows) * l
    there = product.k * bytes_of(product.form.dtype) / (ROW * steps * split)  # of the steps' bytes of a row
    real = (below.extent / (down * below.rows) * there, beside.extent * l / (across * beside.rows) * there)
    load = absent = 0.0
    for one, part, missing in zip(pair, real, rates.absent):
        load += ROW * part * one.loaded * (1 + rates.split_lines.get(gcd(one.pitch, ROW), 0.0))
        absent += (1 - part) * one.loaded * missing
    read = ROW * split * there  # bytes of a row, by all parts
    return Tiles(
        down, across, steps, ahead, ctas, resident, load, absent, read * below.rows, read * beside.rows,
        read * below.extent, read * beside.extent * l,
    )  # fmt: skip


# ----------------------------------------------------------------------------------------------- c7: fused ping-pong

#: (tile of C, CTAs of a cluster along M, along N), by how warpgroups share a tile: they take turns (""), or have a half
#: each, below ("m") the other's. Of those that were measured the ones that some shape would miss.
C7_TILES = {
    "": [
        ((128, 192), 2, 1), ((128, 192), 1, 1), ((128, 160), 2, 1), ((128, 160), 1, 1), ((128, 128), 1, 2),
        ((128, 128), 1, 1), ((64, 224), 1, 1), ((64, 192), 2, 1), ((64, 192), 1, 1),
        ((64, 160), 1, 2), ((64, 160), 1, 1), ((64, 128), 2, 1), ((64, 128), 1, 1), ((64, 96), 1, 2), ((64, 64), 1, 2),
        ((64, 64), 1, 1), ((192, 128), 1, 1), ((64, 160), 4, 1), ((64, 192), 4, 1), ((128, 192), 2, 2),
        ((128, 112), 1, 1), ((128, 152), 1, 1), ((128, 176), 2, 1), ((128, 184), 1, 1), ((128, 184), 2, 1),
    ],
    "m": [
        ((128, 256), 2, 1), ((128, 256), 1, 1),
        ((128, 224), 2, 1), ((128, 96), 2, 1), ((128, 224), 1, 2), ((128, 224), 1, 1), ((128, 96), 2, 2),
        ((128, 256), 2, 2), ((128, 72), 1, 1), ((256, 88), 1, 1), ((256, 104), 1, 1), ((256, 152), 2, 1),
    ],
}  # fmt: skip

#: the same with operands swapped: tiles are of (N, M), CTAs along N and along M
C7_SWAPPED = {
    "": [
        ((64, 96), 1, 1), ((64, 128), 1, 1), ((128, 64), 1, 2), ((128, 96), 1, 2), ((128, 96), 2, 1),
        ((128, 128), 1, 2), ((128, 160), 2, 1), ((128, 160), 1, 1), ((128, 192), 2, 1), ((128, 192), 1, 2),
        ((192, 96), 1, 4), ((192, 96), 1, 2), ((192, 96), 1, 1), ((256, 96), 1, 2), ((256, 96), 1, 1),
        ((128, 168), 1, 1), ((128, 168), 2, 1), ((128, 152), 2, 1), ((128, 176), 1, 1), ((128, 112), 2, 1),
    ],
    "m": [((128, 104), 1, 1), ((128, 256), 1, 1), ((256, 152), 2, 1)],
}  # fmt: skip

#: with one buffer of C where a second one would cost a stage, and those that were measured with one alone
C7_ONE = [
    ((64, 160), 1, 2), ((64, 160), 1, 1), ((64, 160), 4, 1), ((64, 96), 1, 2), ((64, 72), 1, 1), ((64, 88), 1, 1),
    ((64, 104), 1, 1), ((64, 112), 1, 1), ((64, 112), 1, 2), ((64, 144), 1, 1), ((64, 168), 1, 1),
]  # fmt: skip
C7_ONE_SWAPPED = [((64, 96), 1, 1), ((128, 96), 1, 2), ((128, 96), 2, 1), ((64, 88), 1, 1), ((64, 104), 1, 1)]


def _c7_candidates() -> Iterator[Choice]:
    asked = [
        *((False, split, 0, *one) for split, tiles in C7_TILES.items() for one in tiles),
        *((False, "", 1, *one) for one in C7_ONE),
        *((True, split, 0, *one) for split, tiles in C7_SWAPPED.items() for one in tiles),
        *((True, "", 1, *one) for one in C7_ONE_SWAPPED),
    ]
    for swap, split, c_stages, (rows, cols), cluster_m, cluster_n in asked:
        wide = rows * cols // (256 if split else 128) > 160  # accumulators a thread
        # A second buffer of C where it costs no stage.
        room, one = SMEM - 1024, 2 * 64 * 128
        stages, fewer = ((room - buffers * one) // (ROW * (rows + cols)) for buffers in (1, 2))
        c_stages = c_stages or (2 if fewer == stages or not (wide or split) else 1)
        yield choice(
            "c7", tile=(rows, cols, 64), split=split, cluster_m=cluster_m, cluster_n=cluster_n, c_stages=c_stages,
            stages=min(stages if c_stages == 1 else fewer, 10),
            raster=_raster(rows * cluster_m, cols * cluster_n, cluster_m * cluster_n),
            producer_registers=24 if wide else 40, consumer_registers=240 if wide else 232,
            **({"swap": True} if swap else {}),
        )  # fmt: skip


def _raster(rows: int, cols: int, ctas: int) -> int:
    """Rows of clusters' tiles before the next column: the power of two that makes what runs at a time most square, so
    that the least of A and B is read for the most of C."""
    side = (SMS // ctas * cols / rows) ** 0.5
    return 2 ** round(log2(side))


def shared_traffic(knobs: dict[str, Any]) -> float:
    """How often a row of a K step goes through shared memory for 64 products of it: TMA writes each of a tile's rows
    once, a WGMMA reads its 64 rows of the first operand and all of the second's."""
    first, second = knobs["tile"][:2]
    return 64 * ((64 + second) / (64 * second) + (first + second) / (first * second))


def _c7_fits(knobs: dict[str, Any], form: Form) -> bool:
    """As `rungs.parts.limits` has it."""
    rows, cols, _ = knobs["tile"]
    parts = 2 if form.gated else 1  # of a tile's rows of B: some are U's
    below, beside, a_major, b_major = 1, parts, form.a_major, form.b_major
    if knobs.get("swap"):
        below, beside, a_major, b_major = parts, 1, form.b_major, form.a_major
        if form.gated and rows % (128 * knobs["cluster_n"]):
            return False
    if cols % (beside * (64 if b_major == "mn" else 8)) or rows % (below * (128 if knobs["split"] else 64)):
        return False
    along_m, along_n = knobs["cluster_m"], knobs["cluster_n"]
    if along_n == 1 and b_major == "k":  # CTAs take turns to load B's tile where they cannot cut it
        return True
    shared = ((along_m, cols // beside, b_major), (along_n, rows // below, a_major))
    return all(ctas == 1 or extent % ((64 if major == "mn" else 8) * ctas) == 0 for ctas, extent, major in shared)


C7 = Rates(
    multiply=1.161, step={"": 25.5, "m": 16.2}, latency=2235.0, shared=0.248, memory=3262.0, l2=14250.0,
    arriving=151.6, split_lines={16: 1.74, 32: 0.516, 64: 0.0949}, absent=(0.0624, 0.0738),
    element=0.179, ramp=(794.9, 0.822), launch=1.354, whole=(11160000.0, 1764.0),
)  # fmt: skip


def _c7(knobs: dict[str, Any], product: Product, sm_count: int) -> Work | float:
    (rows, cols, _), cm, cn = knobs["tile"], knobs["cluster_m"], knobs["cluster_n"]
    ctas, split, swap = cm * cn, knobs["split"], knobs.get("swap")
    resident = int(sm_count * USABLE.get(ctas, 1.0)) // ctas
    if not resident:
        return inf
    down, across = (rows * cm, rows / cn), (cols * cn, cols / cm)
    pair = operands(product, across, down)[::-1] if swap else operands(product, down, across)
    steps = ceil(product.k * bytes_of(product.form.dtype) / ROW)
    tiles = cut(C7, product, pair, steps, knobs["stages"], ctas, resident)
    multiply = C7.multiply * rows * cols / 32 + C7.step[split]
    epilogue, waves, clocks = C7.element * rows * cols, waves_of(tiles), 0.0
    ways = [way(tiles, C7, knobs["raster"], clusters) for _, clusters in waves]
    # By turns one warpgroup multiplies while the other finishes its tile: an SM has two at a time.
    turns = not split and sum(count for count, _ in waves) > 1
    for (count, _), arrive in zip(waves, ways):
        main = steps * max(multiply, arrive)
        clocks += count * (max(main, (main + epilogue) / 2) if turns else main)
        clocks += count * epilogue * bool(split)
    us = launched(C7, product, clocks + epilogue * (not split))
    below, beside = pair
    unknown = (below.extent <= 64 < below.rows) or 2 * beside.extent <= cols > 64
    left, right = pair[::-1] if swap else pair
    return Work(
        us * (UNKNOWN if unknown else 1.0), tiles, waves, multiply, ways, left.rows, right.rows,
        (left.pitch, right.pitch),
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------------- c8: split-K

#: parts of K by (rows of B, rows of A), likewise
C8_TILES = {
    (64, 8): (1, 2, 4, 8), (128, 8): (4,), (64, 16): (1, 2, 4, 8), (64, 32): (1, 2, 4, 8), (128, 32): (4,),
    (64, 64): (1, 2, 3, 8), (128, 64): (2, 3, 4, 8), (64, 128): (3,), (128, 128): (2, 4, 8), (128, 96): (2, 4),
    (128, 160): (2, 4, 8), (128, 192): (4,), (128, 224): (2,), (64, 224): (4,),
}  # fmt: skip


def _c8_candidates() -> Iterator[Choice]:
    for (cols, rows), splits in C8_TILES.items():
        for split in splits:
            depth = 64 if rows > 32 else 128
            stage = 2 * depth * (cols + rows)  # bytes
            # The fewest parts in which a tile can be added up while most of the memory is the ring's.
            for passes in (1, 2, 4):
                sums = (2 * split - 1) * ceil(rows // passes / split) * (cols + 4) * 4
                stages = min((SMEM - 2048 - sums) // stage, 24)
                if split == 1 or rows < 64 or stages * stage > RING:
                    break
            groups = 2 if rows > 32 and cols > 64 else 1
            yield choice(
                "c8", tile=(cols, rows, depth), split=split, warpgroups=groups, passes=passes, stages=stages
            )  # fmt: skip


def _c8_fits(knobs: dict[str, Any], form: Form) -> bool:
    """As `rungs.parts.limits` has it."""
    cols, rows, _ = knobs["tile"]
    return (form.a_major == "k" or rows % 64 == 0) and (form.b_major == "k" or cols // (1 + form.gated) % 64 == 0)


C8 = Rates(
    multiply=1.391, step={}, latency=2685.0, shared=0.0, memory=3301.0, l2=7484.0,
    arriving=184.6, split_lines={16: 1.49, 32: 0.433, 64: 0.277}, absent=(0.0307, 0.0656),
    element=0.0295, ramp=(1030.0, 5.36), launch=1.71, whole=(19070000.0, 2688.0),
)  # fmt: skip
C8_STEP = 180.1  # clocks of a K step's multiplications, at the least
C8_MORE = 0.705  # the part of an epilogue that is not hidden after the first tile
#: clocks of the sums' way to who adds them up: by parts of K, for each pass; and for each element that a CTA sends
C8_SUMS, C8_SENT = {1: 0.0, 2: 1100.0, 3: 378.1, 4: 163.1, 8: 411.1}, 0.439


def _c8(knobs: dict[str, Any], product: Product, sm_count: int) -> Work | float:
    (cols, rows, depth), split = knobs["tile"], knobs["split"]
    resident = int(sm_count * USABLE.get(split, 1.0)) // split
    if not resident:
        return inf
    boxes = depth * 2 // ROW  # of a stage
    steps = ceil(ceil(product.k * bytes_of(product.form.dtype) / (boxes * ROW)) / split) * boxes
    pair = operands(product, (rows, rows), (cols, cols))
    tiles = cut(C8, product, pair, steps, knobs["stages"] * boxes, split, resident, split)
    multiply = max(C8.multiply * max(rows, 16) * cols / 32, C8_STEP)
    waves = waves_of(tiles)
    ways = [way(tiles, C8, inf, clusters) for _, clusters in waves]
    clocks = sum(count * steps * max(multiply, arrive) for (count, _), arrive in zip(waves, ways))
    shown = 1 + (sum(count for count, _ in waves) - 1) * C8_MORE
    sums = C8_SUMS[split] * knobs["passes"] + C8_SENT * rows * cols * (split - 1) / split
    us = launched(C8, product, clocks + shown * (C8.element * rows * cols + sums))
    unknown = 4 * product.m <= rows > 8
    return Work(
        us * (UNKNOWN if unknown else 1.0), tiles, waves, multiply, ways, rows, cols, (pair[0].pitch, pair[1].pitch)
    )


MODELS: dict[str, Model] = {
    "c7": Model(tuple(_c7_candidates()), _c7_fits, _c7),
    "c8": Model(tuple(_c8_candidates()), _c8_fits, _c8),
    "b9": Model(unmeasured.B9, unmeasured.b9_fits, unmeasured.b9_us),
    "d5": Model(unmeasured.D5, unmeasured.d5_fits, unmeasured.d5_us),
}
