"""The app for Modal: this package on an image of its own, one function that makes a call, mapped over all of them.

Building it needs no account and no network; `submit` does. Modal retries a call whose container is lost by itself
(`Job.retries`), and does not say so: `attempt` is 1 there.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tensorladder.core.errors import MissingExtra, UsageError
from tensorladder.measure.environment import declared
from tensorladder.submit import call
from tensorladder.submit.job import Job, SubmitError

NAME = "tensorladder"
PACKAGE = Path(__file__).parents[1]
GPU = "H200"
TIMEOUT_S = 3600


def app(job: Job, gpu: str = GPU) -> tuple[Any, Any]:
    """The app and its function for `job`: arguments of a call in, its place and outcome out. Nothing is sent.

    gpu: Modal's name for the kind, taken where job.gpus is not 0.
    """
    modal = _modal()
    if job.gpus != int(job.gpus):
        raise UsageError(f"--gpus {job.gpus:g}: Modal gives whole GPUs")
    made = modal.App(NAME)
    function = made.function(
        image=image(torch=job.gpus > 0),
        cpu=job.cpus or None,  # None: Modal's own share
        gpu=f"{gpu}:{job.gpus:g}" if job.gpus else None,
        retries=modal.Retries(max_retries=job.retries, backoff_coefficient=1.0),
        timeout=TIMEOUT_S,
        name="call",
        serialized=True,
    )(_work)
    return made, function


def image(torch: bool) -> Any:
    """Debian with this Python, the extra climb (and torch, for a real GPU) and this very package."""
    wanted = ["climb", "torch"] if torch else ["climb"]
    version = "{}.{}".format(*sys.version_info[:2])
    packages = [one for extra in (None, *wanted) for one in declared(extra)]
    if not packages:
        raise UsageError(f"{NAME} is not installed here: pip install . writes the list of what the image needs")
    made = _modal().Image.debian_slim(python_version=version).pip_install(*packages)
    # add_local_python_source would leave out tables and CUDA sources; /root is on the path there.
    return made.add_local_dir(PACKAGE, f"/root/{NAME}", ignore=["**/__pycache__"])


def submit(job: Job, gpu: str = GPU) -> Iterator[call.Event]:
    """Runs `job` on Modal under the account that `modal setup` left here; events as for Ray, in the calls' order."""
    modal = _modal()
    calls = job.calls()
    try:
        made, function = app(job, gpu)
        with made.run():
            for arguments, value in zip(calls, function.map(calls, return_exceptions=True)):
                yield _done(arguments, value)
    except modal.exception.AuthError as error:
        raise UsageError(f"--on modal: no account here: `modal setup` makes one: {error}") from None
    except modal.exception.InvalidError as error:
        raise UsageError(f"--on modal: {error}") from None
    except modal.exception.Error as error:
        raise SubmitError(f"Modal ended early: {type(error).__name__}: {error}") from None


def _done(arguments: tuple[str, ...], value: Any) -> call.Event:
    if isinstance(value, BaseException):
        ran = call.where(arguments, {"host": None}, 1)
        said = f"no worker finished it: {type(value).__name__}: {value}"
        return call.done(ran, {"exit": None, "lines": [], "said": said})
    found, outcome = value
    return call.done(call.where(arguments, found, 1), outcome)


def _work(arguments: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
    """In a container."""
    return call.place(), call.run(arguments)


def _modal() -> Any:
    try:
        import modal
    except ImportError:
        raise MissingExtra("modal", "modal") from None
    return modal
