"""`tensorladder list`: the ladder, a line a rung."""

from __future__ import annotations

from tensorladder.cli import output
from tensorladder.cli.options import Json, Series
from tensorladder.measure.request import parse_series
from tensorladder.rungs.rung import RungInfo


def list_rungs(series: Series = None, as_json: Json = False) -> int:
    """List the ladder: what each rung adds to the one below it, and which are asides, that no step goes on from."""
    infos = parse_series(series)
    if as_json:
        for info in infos:
            output.emit(record(info))
    else:
        rows = ((info.name, _adds(info), info.parent, " ".join(info.archs), info.problem.name) for info in infos)
        output.print_table(output.table(("rung", "adds", "parent", "archs", "problem"), rows))
    return 0


def _adds(info: RungInfo) -> str:
    return f"{info.adds}\n{info.remark}" if info.aside else info.adds


def record(info: RungInfo) -> dict[str, object]:
    """A rung as a JSON object."""
    return {
        "rung": info.name,
        "series": info.series,
        "parent": info.parent,
        "adds": info.adds,
        "aside": info.aside,
        "archs": list(info.archs),
        "problem": info.problem.name,
        "dtypes": list(info.dtypes),
        "shape": list(info.default_shape),
    }
