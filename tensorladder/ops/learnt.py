"""How much longer than a model says a kernel takes, as learnt from the times on an H200.

choice_trees_h200.json: oblivious regression trees (all nodes of a level ask the same, so that the answers are the
number of a leaf), made by gradient boosting with CatBoost (Prokhorenkova et al., 2018) on the logarithm of the measured
time over the model's (`benchmarks.choice fit`). They know a product by what a kernel makes of it: how its tiles fill
the SMs and lie over the matrices, what bounds a K step, how long it is.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from math import gcd, log2
from typing import Any, NamedTuple

import numpy as np

from tensorladder.ops.kernels import Product
from tensorladder.ops.models import ROW, Work, bytes_of
from tensorladder.rungs.parts.form import Form

FILE = "choice_trees_h200.json"
SMS = 132  # of the GPU that was measured
PLAIN = Form("bf16", "bf16")  # of most of what was
WORTH = 1.6  # times the best by the models: what is said to take longer never was the fastest, but once in 2,070 shapes
PARTS = 1e5  # of 1: leaves are kept as so many
NEVER = 1e30  # no feature is greater
KINDS = ("", "m")  # c7's by how warpgroups share a tile; then c8


def knows(product: Product, sm_count: int) -> bool:
    """Whether such products were measured, on such a GPU."""
    return sm_count == SMS and product.l == 1


def features(given: Iterable[tuple[str, Any]], product: Product, work: Work) -> dict[str, float]:
    """What the trees may ask, of a kernel with these knobs. K and its steps as of 16-bit elements."""
    knobs, form = dict(given), product.form
    m, n, k = product.m, product.n * (1 + form.gated), product.k * bytes_of(form.dtype) / 2
    tiles, waves = work.tiles, sum(count for count, _ in work.waves)
    down, across, resident = tiles.down, tiles.across, tiles.resident
    operands, result = (m + n) * k, m * n
    shared, swap = knobs["split"], bool(knobs.get("swap"))
    return {
        "M": log2(m), "N": log2(n), "K": log2(k), "M over N": log2(m / n), "flops": log2(m * n * k),
        "bytes": log2(operands + result), "C of the bytes": result / (operands + result), "us": log2(work.us),
        "kind": KINDS.index(shared) if shared in KINDS else len(KINDS), "swap": swap, "CTAs": tiles.ctas,
        "CTAs along M": knobs.get("cluster_n" if swap else "cluster_m", 1), "rows": work.rows, "cols": work.cols,
        "area": work.rows * work.cols, "stages": tiles.ahead, "buffers of C": knobs.get("c_stages", 1),
        "passes": knobs.get("passes", 1), "raster": knobs.get("raster", 1), "steps": tiles.steps,
        "steps over stages": tiles.steps / tiles.ahead, "down": down, "across": across, "tiles": down * across,
        "waves": waves, "tiles at a time": down * across / resident, "full": down * across / (waves * resident),
        "last wave": work.waves[-1][1] / resident, "real rows": m / (down * work.rows),
        "real cols": n / (across * work.cols), "pitch of A": gcd(work.pitches[0], ROW),
        "pitch of B": gcd(work.pitches[1], ROW), "end of K": k * 2 / ROW % 1,
        "way": log2(work.ways[0] / work.multiply), "last way": log2(work.ways[-1] / work.multiply),
    }  # fmt: skip


class Trees(NamedTuple):
    """asked: what features, in which order. number, border: of the feature that a level of a tree asks for, and what it
    must be greater than (trees, levels), at most 8. leaves: (trees, 2 ** levels); the first level's answer is the
    lowest bit."""

    asked: tuple[str, ...]
    number: np.ndarray
    border: np.ndarray
    leaves: np.ndarray


@functools.cache
def trees() -> Trees:
    """The package's own."""
    return made_of(json.loads(files(__package__).joinpath(FILE).read_text()))


def made_of(kept: Mapping[str, Any]) -> Trees:
    """The trees of a file."""
    number, border, leaves = (np.array([one[part] for one in kept["trees"]]) for part in ("number", "border", "leaves"))
    return Trees(tuple(kept["features"]), number, border.astype(np.float32), leaves / PARTS)


def table(rows: Sequence[Mapping[str, float]], names: Sequence[str]) -> np.ndarray:
    """Features as `answers` takes them, in the order of these names."""
    return np.array([[row[name] for name in names] for row in rows], np.float32)


def answers(given: np.ndarray, by: Trees) -> np.ndarray:
    """Logarithms of the times as long as a model says that a kernel takes, a row of features."""
    leaf = np.zeros((len(given), len(by.leaves)), np.uint8)
    for level, (number, border) in enumerate(zip(by.number.T, by.border.T)):
        leaf |= (given[:, number] > border).view(np.uint8) << np.uint8(level)
    return by.leaves[np.arange(len(by.leaves)), leaf].sum(axis=1)
