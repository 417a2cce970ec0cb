"""Which of a rung's configurations suits the extents of C: waves of tiles over the SMs, by the last one's waste."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

Config = TypeVar("Config", bound=Any)


def tiles(shape: Sequence[int], tile: Sequence[int]) -> int:
    """How many tiles of (M, N, ...) cover C of (M, N, ...)."""
    return -(-shape[0] // tile[0]) * -(-shape[1] // tile[1])


def most_work(shape: Sequence[int], config: Config) -> int:
    """Elements of C, with what lies outside of it, that the SM with most tiles computes (`tile`, `sm_count`)."""
    return -(-tiles(shape, config.tile) // config.sm_count) * config.tile[0] * config.tile[1]


def fitting(shape: Sequence[int], usual: Config, *others: Config) -> Config:
    """The configuration with the least `most_work`, the earlier one of equals; `usual` where it fills no wave."""
    if tiles(shape, usual.tile) <= usual.sm_count:
        return usual
    return min((usual, *others), key=lambda config: most_work(shape, config))
