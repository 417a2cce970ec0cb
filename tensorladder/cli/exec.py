"""`tensorladder exec SCRIPT`: an unmodified script on the virtual GPU."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import Annotated, Any

import typer

from tensorladder.cli.check import text_of
from tensorladder.cli.options import Policy
from tensorladder.core import arch as architectures
from tensorladder.core.errors import MissingExtra, TensorladderError, UsageError
from tensorladder.measure.request import parse_policy

# Modules that scripts import and the extras that bring them.
EXTRAS = {"torch": "torch", "cutlass": "climb", "cuda": "climb", "tvm_ffi": "climb", "tvm": "tirx", "triton": "triton"}


def exec_script(
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="a Python file that uses a GPU")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="ARGS", help="the script's own arguments")] = None,
    arch: Annotated[str, typer.Option("--arch", help="the architecture that the script sees")] = "sm_90a",
    policy: Policy = "eager",
    seed: Annotated[int, typer.Option("--seed", help="seed of the virtual GPU's own choices")] = 0,
    check: Annotated[bool, typer.Option("--check", help="look for hazards while it runs")] = False,
) -> int:
    """Run a script that uses torch with device="cuda" on CPU memory and the virtual GPU."""
    if not Path(script).is_file():
        raise UsageError(f"no such script: {script!r}")
    name = architectures.find(arch).name
    policy = parse_policy(policy)
    from tensorladder.measure.scripts import run_script

    try:
        if check:
            return _checked(script, arguments or [], arch=name, policy=policy, seed=seed)
        return run_script(script, arguments or [], arch=name, policy=policy, seed=seed)
    except TensorladderError:
        raise
    except ModuleNotFoundError as error:
        if error.name not in EXTRAS:
            _print_from_the_script(error, script)
            return 1
        raise MissingExtra(error.name, EXTRAS[error.name]) from error
    except Exception as error:
        _print_from_the_script(error, script)
        return 1


def _checked(script: str, arguments: list[str], **options: Any) -> int:
    """Run the script under the hazard checker and say on stderr what it found; the worse of both exit codes."""
    from tensorladder.measure.hazards import new_checker
    from tensorladder.measure.scripts import run_script

    checker = new_checker()
    try:
        code = run_script(script, arguments, checker=checker, **options)
    finally:  # also beside the error that stopped a launch
        report = checker.report(script)
        print(text_of(report), file=sys.stderr)
    return code or report.verdict.exit_code


def _print_from_the_script(error: Exception, script: str) -> None:
    """The script's own failure as Python prints it, without the frames of whoever ran the script."""
    frame = error.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename != script:
        frame = frame.tb_next
    traceback.print_exception(type(error), error, frame or error.__traceback__, file=sys.stderr)
