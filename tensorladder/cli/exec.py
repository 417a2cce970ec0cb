"""`tensorladder exec SCRIPT`: an unmodified script on the virtual GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tensorladder.cli.options import Policy
from tensorladder.core.errors import UsageError
from tensorladder.measure.request import parse_policy


def exec_script(
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="a Python file that uses a GPU")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="ARGS", help="the script's own arguments")] = None,
    arch: Annotated[str, typer.Option("--arch", help="the architecture that the script sees")] = "sm_90a",
    policy: Policy = "eager",
    check: Annotated[bool, typer.Option("--check", help="look for hazards while it runs")] = False,
) -> int:
    """Run a script that uses torch with device="cuda" on CPU memory and the virtual GPU."""
    if not Path(script).is_file():
        raise UsageError(f"no such script: {script!r}")
    from tensorladder.vgpu.driver import run_script

    return run_script(script, arguments or [], arch=arch, policy=parse_policy(policy), check=check) or 0
