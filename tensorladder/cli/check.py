"""`tensorladder check`: hazards of rungs and of PTX files."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from tensorladder.cli import output, stops
from tensorladder.cli.options import (
    Arch,
    Baseline,
    Dtype,
    Json,
    Junit,
    Policy,
    Sarif,
    Seed,
    Shape,
    SmCount,
    Timeout,
    WriteBaseline,
)
from tensorladder.core.errors import UsageError
from tensorladder.core.findings import Report, Verdict
from tensorladder.measure.accepted import Judged
from tensorladder.measure.hazard_files import HazardFiles
from tensorladder.measure.request import parse_policy, parse_seed, parse_shape, parse_timeout
from tensorladder.measure.run import plan
from tensorladder.rungs.rung import RungInfo, find


def check(
    targets: Annotated[
        list[str] | None,
        typer.Argument(metavar="RUNG|FILE.ptx ...", help="rungs, by name or step; PTX files; with --zoo its cases"),
    ] = None,
    shape: Shape = None,
    dtype: Dtype = None,
    arch: Arch = None,
    policy: Policy = "eager",
    seeds: Annotated[
        int, typer.Option("--seeds", metavar="N", help="runs: the first as asked, the others with random schedules")
    ] = 1,
    advice: Annotated[
        bool, typer.Option("--advice", help="rungs: also bank conflicts, and accesses that are not coalesced")
    ] = False,
    seed: Seed = 0,
    timeout: Timeout = None,
    sm_count: SmCount = None,
    kernel: Annotated[str | None, typer.Option("--kernel", help="of a PTX file with several")] = None,
    grid: Annotated[str, typer.Option("--grid", metavar="X,Y,Z", help="of a PTX file's launch")] = "1",
    block: Annotated[str, typer.Option("--block", metavar="X,Y,Z", help="of a PTX file's launch")] = "32",
    cluster: Annotated[str, typer.Option("--cluster", metavar="X,Y,Z", help="of a PTX file's launch")] = "1",
    smem: Annotated[int, typer.Option("--smem", metavar="BYTES", help="dynamic shared memory of a PTX file")] = 0,
    arguments: Annotated[
        list[str] | None,
        typer.Option("--arg", metavar="f32[N]|NUMBER", help="an argument of a PTX file's kernel, in order"),
    ] = None,
    zoo: Annotated[
        bool, typer.Option("--zoo", help="broken kernels and their repaired twins, all or those named")
    ] = False,
    baseline: Baseline = None,
    write_baseline: WriteBaseline = None,
    junit: Junit = None,
    sarif: Sarif = None,
    breaks: stops.Break = None,
    dump: stops.Dump = None,
    going_on: stops.Continue = None,
    as_json: Json = False,
) -> int:
    """Run targets under the hazard checker: races, proxies, barriers, tensor memory, hangs."""
    targets = targets or []
    if zoo and any((baseline, write_baseline, junit, sarif)):
        raise UsageError("--zoo knows what each of its kernels is to give: no baseline, JUnit or SARIF file of it")
    if zoo and breaks:
        raise UsageError("--zoo with --break: show a case's PTX, and check that with --break")
    of_runs = {
        "--arch": arch is not None, "--async": policy != "eager", "--seed": seed != 0, "--seeds": seeds != 1,
        "--timeout": timeout is not None, "--dump": dump, "--continue": going_on is not None,
    }  # fmt: skip
    if zoo and (idle := [option for option, given in of_runs.items() if given]):
        raise UsageError(f"--zoo with {idle[0]}: each of its cases says how it is run, leave {idle[0]} out")
    for_ptx = {
        "--kernel": kernel, "--grid": grid != "1", "--block": block != "32", "--cluster": cluster != "1",
        "--smem": smem, "--arg": arguments,
    }  # fmt: skip
    for_rungs = {"--shape": shape, "--dtype": dtype, "--sm-count": sm_count, "--advice": advice}
    ptx = [not zoo and target.endswith(".ptx") for target in targets]
    _refuse_unless(any(ptx), for_ptx, "a PTX file")
    _refuse_unless(not zoo and not all(ptx), for_rungs, "a rung")
    if zoo:
        return _check_zoo(targets, as_json)
    if not targets:
        raise UsageError("nothing to check: name rungs or PTX files, or give --zoo")
    if seeds < 1:
        raise UsageError(f"--seeds {seeds}: at least one run is wanted")
    if breaks and len(targets) > 1:
        raise UsageError(f"--break is of one target: name one of {', '.join(targets)}")
    from tensorladder.measure import hazards

    points = stops.asked(breaks, dump, going_on, as_json)
    files = HazardFiles(baseline, write_baseline, junit, sarif)
    worst = Verdict.CLEAN
    for target in targets:
        begin = time.perf_counter()
        with output.progress("" if points else f"checking {target}"):
            if target.endswith(".ptx"):
                report = hazards.check_ptx(
                    Path(target), kernel=kernel, grid=_extents(grid, "--grid"), block=_extents(block, "--block"),
                    cluster=_extents(cluster, "--cluster"), smem=smem, arguments=arguments or [], arch=arch,
                    policy=parse_policy(policy), seed=parse_seed(seed), seeds=seeds, timeout=parse_timeout(timeout),
                    breakpoints=points,
                )  # fmt: skip
            else:
                report = hazards.check_rung(
                    plan(
                        _rung(target), shape=parse_shape(shape) if shape is not None else None, dtype=dtype, arch=arch,
                        policy=policy, seed=seed, timeout=timeout, sm_count=sm_count,
                    ),
                    seeds,
                    advice,
                    points,
                )  # fmt: skip
        judged = files.take(report, time.perf_counter() - begin)
        worst = max(worst, judged.report.verdict)
        if as_json:
            output.emit(judged.to_json() | ({"stopped": True} if points and points.stopped else {}))
        else:
            output.write(text_of(judged, "stopped at a breakpoint; until then " if points and points.stopped else ""))
    stops.say_unmet(points)
    files.write()
    return worst.exit_code


def _refuse_unless(there: bool, options: dict[str, Any], what: str) -> None:
    """UsageError for an option of targets of which none is named."""
    given = [option for option, value in options.items() if value]
    if given and not there:
        raise UsageError(f"{given[0]} is for {what}: none is named")


#: files that others take, or that PTX is made of
_OTHERS = {
    ".cu": "nvcc -ptx -lineinfo -arch sm_90a {0} makes one of CUDA C++",
    ".py": "`tensorladder exec --check {0}` runs a script",
    ".cubin": "machine code does not run here, PTX does",
}


def _rung(target: str) -> RungInfo:
    """The rung of that name; UsageError for a file that is not PTX."""
    suffix = Path(target).suffix
    if suffix in _OTHERS or "/" in target or Path(target).is_file():
        hint = f": {_OTHERS[suffix].format(target)}" if suffix in _OTHERS else ""
        raise UsageError(f"{target}: check takes rungs and files of PTX, NAME.ptx{hint}")
    return find(target)


def _check_zoo(names: list[str], as_json: bool) -> int:
    """The zoo's cases, all or those named: a line or a JSON object a twin; 1 where one is not as expected."""
    from tensorladder.measure.zoo import check_all
    from tensorladder.zoo import case

    cases = [case.find(name) for name in names] if names else list(case.catalog())
    columns = ("case", "twin", "expected", "verdict", "kind", "ok", "why")
    made, total, wrong = output.table(columns), 0, 0
    with output.progress(f"checking {len(cases)} cases"):
        for outcome in check_all(cases):
            record = outcome.record()
            total, wrong = total + 1, wrong + (not outcome.ok)
            if as_json:
                output.emit(record)
            else:
                output.add_row(made, [record[name] for name in columns])
    if not as_json:
        output.print_table(made)
        output.write(f"{total} kernels, {total - wrong} as expected" + (f", {wrong} not" if wrong else ""))
    return 1 if wrong else 0


def _extents(text: str, option: str) -> tuple[int, ...]:
    try:
        extents = tuple(int(part) for part in text.split(","))
    except ValueError:
        extents = ()
    if not 1 <= len(extents) <= 3 or min(extents) < 1:
        raise UsageError(f"{option} {text}: one to three positive numbers, such as 4 or 4,2")
    return extents


def text_of(judged: Judged, first: str = "") -> str:
    """A report for a person: the verdict (with `first` before it), then each finding with both places and the fix, then
    what a baseline has to say."""
    report: Report = judged.report
    shown = report.grouped()
    count = len(shown)
    lines = [f"{report.target}: {first}{report.verdict}" + (f", {count} finding{'s' * (count != 1)}" if count else "")]
    for finding in shown:
        lines += ["", *(f"  {line}" for line in str(finding).splitlines())]
    return "\n".join([*lines, *judged.text()])
