"""Launch and budget: what a launch asks for and the chip, or the kernel's own bounds, do not give."""

from __future__ import annotations

from tensorladder.zoo.case import Case

CASES = [
    Case(
        name="launch-shared-memory",
        wrong="a megabyte of dynamic shared memory",
        kind="launch",
        language="cuda",
        smem=1048576,
        repaired={"smem": 4096},
    ),
    Case(
        name="launch-block-not-reqntid",
        wrong="128 threads, and the kernel says that it needs 64",
        kind="launch",
        language="cuda",
        block=(128, 1, 1),
        repaired={"block": (64, 1, 1)},
    ),
    Case(
        name="launch-cluster-too-large",
        wrong="clusters of 32 CTAs",
        kind="launch",
        language="cuda",
        grid=(32, 1, 1),
        cluster=(32, 1, 1),
        repaired={"cluster": (8, 1, 1)},
    ),
    Case(
        name="launch-registers-nobody-gives",
        wrong="a warpgroup asks for more registers, and the other gives none of its own back: setmaxnreg.inc waits on",
        kind="deadlock",
        language="cuda",
        block=(256, 1, 1),
    ),
    Case(
        name="launch-registers-do-not-add-up",
        wrong="one warpgroup gives 88 registers a thread back, and the other takes 96",
        kind="deadlock",
        language="cuda",
        block=(256, 1, 1),
    ),
]
