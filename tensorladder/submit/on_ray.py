"""This side of a Ray cluster: sends this package and the job through Ray's job API, reads its events as they come."""

from __future__ import annotations

import json
import logging
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tensorladder.core.errors import MissingExtra, UsageError
from tensorladder.submit.call import Event
from tensorladder.submit.job import Job, SubmitError
from tensorladder.submit.ray_driver import MARK

ADDRESS = "http://127.0.0.1:8265"
PACKAGE = Path(__file__).parents[1]
ENDS = ("SUCCEEDED", "FAILED", "STOPPED")


def submit(job: Job, address: str = ADDRESS, poll_s: float = 0.5) -> Iterator[Event]:
    """Runs `job` on the cluster whose dashboard answers at `address`, and yields events as its driver writes them.

    The workers get this very package; its extras (climb for the virtual GPU) they must have. Closing the iterator
    before its end stops the job. UsageError: no Ray here or no cluster there; SubmitError: the job ended early.
    """
    client = _client(address)
    number = client.submit_job(
        entrypoint=f"python -m tensorladder.submit.ray_driver {shlex.quote(job.to_json())}",
        runtime_env={"py_modules": [str(PACKAGE)]},
        metadata={"tensorladder": shlex.join(job.arguments)},
    )
    whole = False
    try:
        for event in _events(client, number, poll_s):
            whole = "ended" in event
            if not whole:
                yield event
        if not whole:
            raise SubmitError(f"Ray's job {number} ended early: {_why(client, number)}")
    finally:
        if not whole:
            _stop(client, number)


def _client(address: str) -> Any:
    try:
        from ray.job_submission import JobSubmissionClient
    except ImportError:
        raise MissingExtra("ray", "ray") from None
    # They say on stderr that they upload a package; two set their own levels.
    for name in ("dashboard.modules.dashboard_sdk", "dashboard.modules.job.sdk", "_private.runtime_env.packaging"):
        logging.getLogger(f"ray.{name}").setLevel(logging.WARNING)
    try:
        return JobSubmissionClient(address)
    except Exception as error:  # whatever Ray's transports raise
        why = str(error).split("\n")[0]
        raise UsageError(
            f"--address {address!r}: no Ray dashboard answers there, such as {ADDRESS} of `ray start --head`: {why}"
        ) from None


def _events(client: Any, number: str, poll_s: float) -> Iterator[Event]:
    """The events in the job's log until it is at an end. The log is asked for whole each time: Ray has no other way
    that survives a dropped connection."""
    seen, over = 0, False
    while not over:
        over = str(client.get_job_status(number).value) in ENDS  # asked before the log, so that the last log is whole
        log = client.get_job_logs(number)
        fresh = log[seen : log.rfind("\n") + 1]
        seen += len(fresh)
        for line in fresh.splitlines():
            if line.startswith(MARK):
                yield json.loads(line[len(MARK) :])
        if not over:
            time.sleep(poll_s)


def _why(client: Any, number: str) -> str:
    info = client.get_job_info(number)
    return " ".join(f"{info.status}: {info.message or 'no message'}".split())[:500]


def _stop(client: Any, number: str) -> None:
    """Best effort: the cluster may be what failed."""
    try:
        client.stop_job(number)
    except Exception:  # the error that brought us here says more
        return
