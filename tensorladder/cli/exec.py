"""`tensorladder exec SCRIPT`: an unmodified script on the virtual GPU."""

from __future__ import annotations

import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tensorladder.cli import output, stops
from tensorladder.cli.check import text_of
from tensorladder.cli.options import Baseline, Junit, Policy, Sarif, WriteBaseline
from tensorladder.core import arch as architectures
from tensorladder.core.errors import Stopped, TensorladderError, UsageError, missing_extra
from tensorladder.measure.hazard_files import HazardFiles
from tensorladder.measure.request import parse_policy, parse_seed

if TYPE_CHECKING:
    from tensorladder.measure.accepted import Judged
    from tensorladder.measure.scripts import Unchecked


def exec_script(
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="a Python file that uses a GPU")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="ARGS", help="the script's own arguments")] = None,
    arch: Annotated[str, typer.Option("--arch", help="the architecture that the script sees")] = "sm_90a",
    policy: Policy = "eager",
    seed: Annotated[int, typer.Option("--seed", help="seed of the virtual GPU's own choices")] = 0,
    check: Annotated[bool, typer.Option("--check", help="look for hazards while it runs")] = False,
    baseline: Baseline = None,
    write_baseline: WriteBaseline = None,
    junit: Junit = None,
    sarif: Sarif = None,
    breaks: stops.Break = None,
    dump: stops.Dump = None,
    going_on: stops.Continue = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="findings and breakpoints as one JSON object a line, on stderr")
    ] = False,
) -> int:
    """Run a script that uses torch with device="cuda" on CPU memory and the virtual GPU."""
    if not Path(script).is_file():
        raise UsageError(f"no such script: {script!r}")
    if not check and any((baseline, write_baseline, junit, sarif)):
        raise UsageError("a baseline, JUnit and SARIF files are of hazards: give --check as well")
    options = {"arch": architectures.find(arch).name, "policy": parse_policy(policy), "seed": parse_seed(seed)}
    files = HazardFiles(baseline, write_baseline, junit, sarif) if check else None
    points = stops.asked(breaks, dump, going_on, as_json, whole=False)
    try:
        code = _run(script, arguments or [], files, as_json, breakpoints=points, **options)
    except Stopped as stop:
        output.complain(stop)
        return stop.exit_code
    except (TensorladderError, BrokenPipeError):  # the latter: whoever read the script's output went away
        raise
    except ModuleNotFoundError as error:
        missing = missing_extra(error)
        if missing is not None:
            raise missing from error
        _print_from_the_script(error, script)
        return 1
    except Exception as error:
        _print_from_the_script(error, script)
        return 1
    if points is not None:
        points.require_places()
        stops.say_unmet(points)
    return code


def _run(script: str, arguments: list[str], files: HazardFiles | None, as_json: bool, **options: Any) -> int:
    """Run the script, with `files` under the hazard checker, and say on stderr what that found; the worse exit code."""
    from tensorladder.measure.hazards import new_checker
    from tensorladder.measure.scripts import run_script, unchecked

    if files is None:
        return run_script(script, arguments, **options)
    checker = new_checker()
    begin = time.perf_counter()
    with unchecked() as unseen:
        try:
            code = run_script(script, arguments, checker=checker, **options)
        except (Stopped, UsageError):
            raise
        except TensorladderError as error:
            checker.stopped(error)
            raise
        finally:  # also beside the error that stopped a launch
            judged = files.take(checker.report(script), time.perf_counter() - begin)
            _say(judged, unseen, as_json)
            files.write()
    return code or judged.report.verdict.exit_code


def _say(judged: Judged, unseen: Unchecked, as_json: bool) -> None:
    if as_json:
        output.emit(judged.to_json(), sys.stderr)
    else:
        output.write(text_of(judged), sys.stderr)
    if unseen.launches and as_json:
        output.emit({"unchecked_launches": unseen.launches}, sys.stderr)
    elif unseen.launches:
        output.write(str(unseen), sys.stderr)


def _print_from_the_script(error: Exception, script: str) -> None:
    """The script's own failure as Python prints it, without the frames of whoever ran the script."""
    frame = error.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename != script:
        frame = frame.tb_next
    if frame is None and not isinstance(error, SyntaxError):  # of the script itself: it has no frame yet
        frame = error.__traceback__
    traceback.print_exception(type(error), error, frame, file=sys.stderr)
