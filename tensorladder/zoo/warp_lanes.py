"""Lanes of one warp: one reads what another wrote, and no bar.warp.sync of both comes between.

Since sm_70 each lane has a program counter of its own. Shuffles and votes make lanes meet, but order no memory.
"""

from __future__ import annotations

from tensorladder.zoo.case import Case

CASES = [
    Case(
        name="lanes-no-warp-sync",
        wrong="lanes read each other's words with no __syncwarp after they wrote them",
        kind="race",
        language="cuda",
        block=(32, 1, 1),
    ),
    Case(
        name="lanes-shuffle-for-sync",
        wrong="a shuffle stands in place of __syncwarp",
        kind="race",
        language="cuda",
        block=(32, 1, 1),
    ),
    Case(
        name="lanes-sync-of-one-side",
        wrong="the lanes that write meet among themselves, those that read do not take part",
        kind="race",
        language="cuda",
        block=(32, 1, 1),
    ),
    Case(
        name="lanes-one-word",
        wrong="32 lanes store different values to one word in one instruction",
        kind="race",
        language="cuda",
        block=(32, 1, 1),
    ),
    Case(
        name="lanes-one-arrives",
        wrong="lane 0 arrives for its warp, whose other lanes have not met it after they wrote",
        kind="race",
        language="cuda",
    ),
]
