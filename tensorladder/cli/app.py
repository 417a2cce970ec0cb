"""The verbs under one name, and the rule that every refusal is one line and an exit code.

Exit codes: 0 what is reported is good; 1 a result is wrong or a hazard was found; 2 asked wrongly; 3 incomplete.
"""

from __future__ import annotations

import errno
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from tensorladder import __version__
from tensorladder.cli import (
    bench,
    check,
    climb,
    doctor,
    draw,
    exec,
    list,
    output,
    pack,
    report,
    run,
    show,
    submit,
    trace,
)
from tensorladder.core.errors import TensorladderError, missing_extra, no_memory
from tensorladder.core.pipes import silence

USAGE = 2
INTERRUPTED = 130

app = typer.Typer(
    name="tensorladder",
    help="Tensor-core kernels, one feature a rung, run and checked on a virtual or a real GPU.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

# Verbs in the order a person meets them.
app.command("doctor")(doctor.doctor)
app.command("list")(list.list_rungs)
app.command("show")(show.show)
app.command("run")(run.run)
app.command("climb")(climb.climb)
app.command("check")(check.check)
app.command("pack")(pack.pack)
app.command("bench")(bench.bench)
app.command("trace")(trace.trace)
app.command("draw")(draw.draw)
app.command("report")(report.report)
# Options before SCRIPT are ours, those after it are the script's.
app.command("exec", context_settings={"allow_interspersed_args": False})(exec.exec_script)
app.command("submit", context_settings={"allow_interspersed_args": False})(submit.submit)


def _print_version(wanted: bool) -> None:
    if wanted:
        output.write(f"tensorladder {__version__}")
        raise typer.Exit(0)


@app.callback(invoke_without_command=True)
def _top(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="print the version", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        output.write(context.get_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line on `arguments` (default: the process's own) and returns the exit code.

    Never raises for what a person did: a TensorladderError or a usage error is one line on stderr.
    """
    with warnings.catch_warnings():
        warnings.showwarning = _warn
        return _run(arguments)


def _run(arguments: Sequence[str] | None) -> int:
    command = typer.main.get_command(app)
    try:
        code = command.main(
            args=None if arguments is None else [*arguments], prog_name="tensorladder", standalone_mode=False
        )
        sys.stdout.flush()
        if code == INTERRUPTED:  # typer's newer releases turn a KeyboardInterrupt into this
            output.complain("interrupted")
        return code if isinstance(code, int) else 0
    except TensorladderError as error:
        output.complain(error)
        return error.exit_code
    except ModuleNotFoundError as error:
        missing = missing_extra(error)
        if missing is None:
            raise
        output.complain(missing)
        return missing.exit_code
    except MemoryError as error:
        stop = no_memory(error)
        output.complain(stop)
        return stop.exit_code
    except (KeyboardInterrupt, typer.Abort):
        output.complain("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        silence()
        return 0
    except SystemExit as stop:
        # typer turns a broken pipe into an exit of its own.
        if isinstance(stop.__context__, BrokenPipeError):
            silence()
            return 0
        raise
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        silence()
        output.complain("the output cannot be written: no space left on the device")
        return 1
    except Exception as error:
        # typer raises its parser's errors, whose class moved between releases; they all can format themselves.
        if not hasattr(error, "format_message"):
            raise
        output.complain(_usage_line(error))
        return USAGE


def _warn(message: Warning | str, *_: Any, **__: Any) -> None:
    """A warning as one line: neither the place in the source nor the source line means anything to a person here."""
    output.complain(f"warning: {message}")


def _usage_line(error: Exception) -> str:
    message = output.one_line(error.format_message()).rstrip(".")  # type: ignore[attr-defined]
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "tensorladder"
    return f"{message} (see `{path} --help`)"


def entry() -> None:
    """The console script."""
    closed = sys.stdout is None  # as `>&-` leaves it
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (as long as the process)
    if closed:
        output.complain("the output cannot be written: it is closed")
    sys.exit(1 if closed else main())
