"""Dependent launch: a launch that overlaps with the one before it uses what that one writes.

griddepcontrol.launch_dependents lets the next launch start and hands on no memory: griddepcontrol.wait does.
"""

from __future__ import annotations

from tensorladder.zoo.case import Case

CASES = [
    Case(
        name="dependent-no-wait",
        wrong="the second launch reads and writes what the first one writes, and waits for nothing",
        kind="race",
        language="cuda",
        launches=2,
    ),
    Case(
        name="dependent-wait-of-one-warp",
        wrong="one warp waits for the launch before, and no barrier makes the other one wait too",
        kind="race",
        language="cuda",
        launches=2,
    ),
    Case(
        name="dependent-trigger-taken-for-wait",
        wrong="the first launch triggers after its stores and a fence, and the second one does not wait",
        kind="race",
        language="cuda",
        launches=2,
    ),
]
