"""Timelines of rungs for the page: each run once on the virtual GPU at its default shape, one CTA of it drawn."""

from __future__ import annotations

from tensorladder.core.errors import TensorladderError
from tensorladder.draw.timelines import picture
from tensorladder.measure.run import plan
from tensorladder.measure.trace import from_machine
from tensorladder.rungs.rung import RungInfo


class Drawer:
    """Called with a rung it gives the picture, "" for one that has nothing to show. refused: a line for each that could
    not be run, or computed something else."""

    def __init__(self) -> None:
        self.refused: list[str] = []

    def __call__(self, info: RungInfo) -> str:
        try:
            traced = from_machine(plan(info))
        except TensorladderError as error:
            self.refused.append(f"{info.name}: {error}")
            return ""
        if not traced.result.ok:
            self.refused.append(f"{info.name}: {traced.result.message}")
            return ""
        return picture(traced.timeline) or ""
