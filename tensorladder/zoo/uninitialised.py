"""Values that nobody wrote, where they matter. The repaired twins read some, too, and throw them away."""

from __future__ import annotations

from tensorladder.zoo.case import Case

CASES = [
    Case(
        name="uninitialised-decides",
        wrong="a branch on a flag in shared memory that only half of the threads have set",
        kind="uninitialised",
        language="cuda",
    ),
    Case(
        name="uninitialised-tail-of-a-sum",
        wrong="a warp adds up 32 words of which 24 were written",
        kind="uninitialised",
        language="cuda",
        block=(32, 1, 1),
    ),
    Case(
        name="uninitialised-lane-of-a-shuffle",
        wrong="the upper half of a warp has left, and the lower half adds what it takes from there",
        kind="collective",
        language="cuda",
        block=(32, 1, 1),
    ),
    Case(
        name="uninitialised-accumulator",
        wrong="tensor memory is read that no product and no store has filled",
        kind="uninitialised",
        language="cuda",
        arch="sm_100a",
        block=(128, 1, 1),
    ),
    Case(
        name="uninitialised-rows-of-a-product",
        wrong="64 of the 128 rows of A were written, and all rows of the product are stored",
        kind="uninitialised",
        language="cuda",
        arch="sm_100a",
        block=(128, 1, 1),
    ),
    Case(
        name="uninitialised-histogram",
        wrong="the bins of a histogram in shared memory are not cleared before they are counted up",
        kind="uninitialised",
        language="cuda",
    ),
]
