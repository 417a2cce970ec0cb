"""One call of the command line on the machine that it was given to, in a process of its own.

A process, so that a fault in native code is an exit code of that call and no worker's loss, and so that the call is
exactly what a person would have typed there.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Event = dict[str, Any]

# The kernel ends this process with its worker (PR_SET_PDEATHSIG): a killed worker leaves nothing running behind.
_ENTRY = """
import ctypes, signal
ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
from tensorladder.cli.app import entry
entry()
"""


def place() -> dict[str, Any]:
    """Where this process is: host name, process, and the GPUs that it was given (None: nobody said)."""
    return {"host": platform.node(), "pid": os.getpid(), "gpus": os.environ.get("CUDA_VISIBLE_DEVICES") or None}


def run(arguments: Sequence[str]) -> dict[str, Any]:
    """Calls `tensorladder ARGUMENTS --json` here and waits for its end.

    Returns exit (its code; -9 for SIGKILL), lines (the JSON objects it wrote) and said (its stderr, and what on stdout
    was no JSON).
    """
    package = Path(__file__).parents[2]
    path = os.pathsep.join(filter(None, [str(package), os.environ.get("PYTHONPATH")]))
    ended = subprocess.run(
        [sys.executable, "-c", _ENTRY, *arguments, "--json"],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
    )
    lines, words = [], []
    for line in ended.stdout.splitlines():
        try:
            lines.append(json.loads(line))
        except ValueError:
            words.append(line)
    said = " ".join(" ".join([*words, ended.stderr]).split())
    return {"exit": ended.returncode, "lines": lines, "said": said}


def where(arguments: Sequence[str], found: dict[str, Any], attempt: int) -> dict[str, Any]:
    """The key `ran` of a record: which call, where (`place`), at which attempt (the first is 1)."""
    return {"call": shlex.join(arguments), **found, "attempt": attempt}


def done(ran: dict[str, Any], outcome: dict[str, Any]) -> Event:
    """A call's end. The event's records are the lines of a local call, each with `ran`; a call that gave none gets one
    that says how it ended."""
    lines = outcome["lines"] or [{"ok": outcome["exit"] == 0, "message": outcome["said"]}]
    records = [{**line, "ran": ran} for line in lines]
    return {"done": {"ran": ran, "exit": outcome["exit"], "records": records, "said": outcome["said"]}}
