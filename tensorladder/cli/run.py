"""`tensorladder run RUNG`: one rung, run and judged."""

from __future__ import annotations

from tensorladder.cli import output, stops
from tensorladder.cli.options import Arch, Dtype, Json, Numerics, On, Policy, RungName, Seed, Shape, SmCount, Timeout
from tensorladder.measure.request import parse_shape
from tensorladder.measure.run import Result, execute, plan
from tensorladder.rungs.rung import find

COLUMNS = ("rung", "arch", "on", "shape", "dtype", "verdict", "error", "tolerance", "seconds", "compile")
RIGHT = ("error", "tolerance", "seconds", "compile")


def run(
    rung: RungName,
    shape: Shape = None,
    dtype: Dtype = None,
    on: On = "vgpu",
    arch: Arch = None,
    policy: Policy = "eager",
    seed: Seed = 0,
    numerics: Numerics = "f32",
    timeout: Timeout = None,
    sm_count: SmCount = None,
    breaks: stops.Break = None,
    dump: stops.Dump = None,
    going_on: stops.Continue = None,
    as_json: Json = False,
) -> int:
    """Run one rung, compare it with float64 and time the launch."""
    asked = plan(
        find(rung),
        shape=parse_shape(shape, least=0) if shape is not None else None,
        dtype=dtype,
        arch=arch,
        on=on,
        policy=policy,
        seed=seed,
        timeout=timeout,
        numerics=numerics,
        sm_count=sm_count,
    )
    points = stops.asked(breaks, dump, going_on, as_json)
    with output.progress("" if points else f"running {asked.info.name} for {asked.arch}"):
        result = execute(asked, points)
    stops.say_unmet(points)
    if as_json:
        output.emit(result.record())
    else:
        output.print_table(output.table(COLUMNS, [row(result)], RIGHT))
        if result.message:
            output.complain(f"{asked.info.name}: {result.message}")
    return result.exit_code


def row(result: Result) -> tuple[object, ...]:
    """A result as a row under COLUMNS."""
    asked = result.request
    return (
        asked.info.name,
        asked.arch,
        asked.on,
        "x".join(map(str, asked.shape)),
        asked.dtype,
        result.verdict,
        _number(result.error, ".1e"),
        _number(result.tolerance, ".1e"),
        _number(result.seconds, ".3f"),
        _number(result.compile_seconds, ".2f"),
    )


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
