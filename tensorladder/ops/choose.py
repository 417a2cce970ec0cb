"""Which kernel with which knobs for which product, by a model of waves: the time of the busiest SM, in clocks.

A tile's K step takes what its multiplications take at the tensor cores' peak or what its operands take to arrive from
L2, whichever is longer, and a barrier's round; a tile costs the epilogue besides that is not hidden, and a CTA's first
tile the way from global memory. The numbers are Hopper's (fp16 peak from NVIDIA's architecture paper; the rest orders
of magnitude); the model has not been fitted to measurements.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

from tensorladder.ops.kernels import Choice, Product, choice, taking
from tensorladder.rungs.parts.form import Form

ARCH = "sm_90a"
K_STEP = 64
FLOPS_A_CLOCK = 4096  # of an SM, dense fp16
L2_BYTES_A_CLOCK = 64  # that arrive at an SM
BARRIERS = 64  # clocks a K step
FIRST_TILE = 1500  # clocks until the first operands have come
EPILOGUE_BYTES_A_CLOCK = 32


class Model(NamedTuple):
    """A kernel's candidates, the largest tile first, and how many clocks one of them takes for a product."""

    candidates: tuple[Choice, ...]
    clocks: Callable[[Choice, Product, int], float]


def _c6(tile: tuple[int, int], warpgroups: int, stages: int, c_stages: int = 2) -> Choice:
    return choice("c6", tile=(*tile, K_STEP), warpgroups=warpgroups, stages=stages, c_stages=c_stages)


C6 = (
    _c6((128, 256), 2, 4),
    _c6((128, 192), 2, 4, 1),
    _c6((128, 128), 2, 6),
    _c6((128, 64), 2, 7, 1),
    _c6((64, 256), 1, 5),
    _c6((64, 128), 1, 8),
    _c6((64, 64), 1, 10, 1),
)


def _c6_clocks(one: Choice, product: Product, sm_count: int) -> float:
    rows, cols, _ = dict(one.knobs)["tile"]
    waves = -(-(-(-product.m // rows) * -(-product.n // cols)) // sm_count)
    multiply = 2 * rows * cols * K_STEP / FLOPS_A_CLOCK
    load = 2 * (rows + cols) * K_STEP / L2_BYTES_A_CLOCK
    step = max(multiply, load) + BARRIERS
    return FIRST_TILE + waves * (-(-product.k // K_STEP) * step + 2 * rows * cols / EPILOGUE_BYTES_A_CLOCK)


C7 = tuple(choice("c7", tile=(rows, 128, K_STEP), cluster_m=1, stages=stages) for rows, stages in ((128, 6), (64, 8)))


def _c7_clocks(one: Choice, product: Product, sm_count: int) -> float:
    """As c6's, with the products of a batch side by side; last of all, until it is fitted to measurements."""
    rows = dict(one.knobs)["tile"][0]
    batch = product._replace(m=-(-product.m // rows) * rows * product.l)
    return _c6_clocks(one, batch, sm_count) + 1e9


MODELS: dict[str, Model] = {"c6": Model(C6, _c6_clocks), "c7": Model(C7, _c7_clocks)}


def clocks(one: Choice, product: Product, sm_count: int) -> float:
    """What the busiest SM needs for a product, by the kernel's model."""
    return MODELS[one.kernel].clocks(one, product, sm_count)


@functools.lru_cache(maxsize=1024)
def rank(m: int, n: int, k: int, l: int, form: Form, sm_count: int, arch: str = ARCH) -> tuple[Choice, ...]:
    """Everything that does the product, the fewest clocks first; of equals in the order of the kernels and their
    candidates. UsageError where nothing does it.
    """
    product = Product(m, n, k, l, form)
    found = [one for kernel in taking(product, arch) for one in MODELS[kernel.name].candidates]
    return tuple(sorted(found, key=lambda one: clocks(one, product, sm_count)))


def choose(m: int, n: int, k: int, l: int, form: Form, sm_count: int, arch: str = ARCH) -> Choice:
    """The first of `rank`: l products of (m, n, k), extents >= 1, on a GPU of so many SMs."""
    return rank(m, n, k, l, form, sm_count, arch)[0]
