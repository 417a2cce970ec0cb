"""`tensorladder climb`: every rung at its default shape, the table as it grows."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Annotated

import typer
from rich.console import Group
from rich.live import Live
from rich.spinner import Spinner

from tensorladder.cli import output
from tensorladder.cli.options import Json, On, Policy, Seed, Series, SmCount, Timeout
from tensorladder.cli.run import COLUMNS, RIGHT, row
from tensorladder.measure import run as harness
from tensorladder.measure.request import parse_series
from tensorladder.measure.run import Request, Result
from tensorladder.rungs.rung import RungInfo, lacking


def climb(
    series: Series = None,
    all_archs: Annotated[
        bool, typer.Option("--all-archs", help="every architecture a rung compiles for, not its first alone")
    ] = False,
    on: On = "vgpu",
    policy: Policy = "eager",
    seed: Seed = 0,
    timeout: Timeout = None,
    sm_count: SmCount = None,
    as_json: Json = False,
) -> int:
    """Run every rung of the ladder and print the table."""
    infos = parse_series(series)
    if series is None:
        infos = _in_languages_here(infos)
    asked = list(
        harness.requests(
            infos, all_archs=all_archs, on=on, policy=policy, seed=seed, timeout=timeout, sm_count=sm_count
        )
    )
    left_out = {info.name for info in infos} - {one.info.name for one in asked}
    if left_out:
        output.complain(f"left out, the GPU here runs none of their architectures: {', '.join(sorted(left_out))}")
    start = time.perf_counter()
    results = list((_json_lines if as_json else _watched)(asked))
    _close(results, time.perf_counter() - start, as_json)
    return harness.exit_code(results)


def _in_languages_here(infos: tuple[RungInfo, ...]) -> tuple[RungInfo, ...]:
    """The rungs but those in a language of an extra that is not installed, with one line that says so.

    The `climb` extra itself is no such language: without it there is nothing to climb.
    """
    lacks = {info.name: lack for info in infos if (lack := lacking(info)) and lack.extra != "climb"}
    for reason in sorted({str(lack) for lack in lacks.values()}):
        names = ", ".join(name for name, lack in lacks.items() if str(lack) == reason)
        output.complain(f"left out: {names}: {reason}")
    return tuple(info for info in infos if info.name not in lacks)


def _json_lines(asked: list[Request]) -> Iterator[Result]:
    for result in harness.climb(asked):
        output.emit(result.record())
        yield result


def _watched(asked: list[Request]) -> Iterator[Result]:
    """On a terminal the table grows under the reader's eyes; in a pipe it comes at the end."""
    table = output.table(COLUMNS, right=RIGHT)
    console = output.console()
    if not sys.stdout.isatty():
        for result in harness.climb(asked):
            output.add_row(table, row(result))
            yield result
        output.print_table(table)
        return
    with Live(console=console, refresh_per_second=8) as live:
        for number, one in enumerate(asked, 1):
            words = f"{one.info.name} for {one.arch} ({number} of {len(asked)})"
            live.update(Group(table, Spinner("dots", words)))
            for result in harness.climb([one]):
                output.add_row(table, row(result))
                yield result
        live.update(table)


def _close(results: list[Result], seconds: float, as_json: bool) -> None:
    counts = harness.summary(results)
    if as_json:
        output.emit({"summary": counts})
        return
    output.write(f"{counts['rungs']} rungs, {counts['ok']} ok, {counts['failed']} failed, {seconds:.1f} s")
    for result in results:
        if result.message:
            output.complain(f"{result.request.info.name} for {result.request.arch}: {result.message}")
