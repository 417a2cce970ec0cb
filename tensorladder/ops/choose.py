"""Which tile for which product, by a model of waves: the time of the busiest SM, in clocks, the least of them wins.

A tile's K step takes what its multiplications take at the tensor cores' peak or what its operands take to arrive from
L2, whichever is longer, and a barrier's round; a tile costs the epilogue besides that is not hidden, and a CTA's first
tile the way from global memory. The numbers are Hopper's (fp16 peak from NVIDIA's architecture paper; the rest orders
of magnitude); the model has not been fitted to measurements.
"""

from __future__ import annotations

from typing import NamedTuple

K_STEP = 64
FLOPS_A_CLOCK = 4096  # of an SM, dense fp16
L2_BYTES_A_CLOCK = 64  # that arrive at an SM
BARRIERS = 64  # clocks a K step
FIRST_TILE = 1500  # clocks until the first operands have come
EPILOGUE_BYTES_A_CLOCK = 32


class Choice(NamedTuple):
    """Knobs of the kernel that depend on the shape: the tile, consumer warpgroups and stages."""

    tile: tuple[int, int, int]
    warpgroups: int
    stages: int
    c_stages: int = 2


CHOICES = (
    Choice((128, 256, 64), 2, 4),
    Choice((128, 192, 64), 2, 4, 1),
    Choice((128, 128, 64), 2, 6),
    Choice((128, 64, 64), 2, 7, 1),
    Choice((64, 256, 64), 1, 5),
    Choice((64, 128, 64), 1, 8),
    Choice((64, 64, 64), 1, 10, 1),
)


def clocks(choice: Choice, m: int, n: int, k: int, sm_count: int) -> float:
    """What the busiest SM needs for a product of these extents, by the model."""
    rows, cols, _ = choice.tile
    waves = -(-(-(-m // rows) * -(-n // cols)) // sm_count)
    multiply = 2 * rows * cols * K_STEP / FLOPS_A_CLOCK
    load = 2 * (rows + cols) * K_STEP / L2_BYTES_A_CLOCK
    step = max(multiply, load) + BARRIERS
    return FIRST_TILE + waves * (-(-k // K_STEP) * step + 2 * rows * cols / EPILOGUE_BYTES_A_CLOCK)


def choose(m: int, n: int, k: int, sm_count: int) -> Choice:
    """The choice of the fewest clocks; of equals the largest tile, which reads least."""
    return min(CHOICES, key=lambda choice: clocks(choice, m, n, k, sm_count))
