"""How to see a finding again: of a check under several schedules, the one that showed it, as a command.

The virtual GPU is deterministic for a policy and seed, so the command gives the same findings, bit for bit.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from tensorladder.core.findings import Finding


def command(target: str, policy: str, options: Mapping[str, Any]) -> str:
    """The `tensorladder check` of one target under one policy, for a shell.

    options: by name. None and False are left out, True is a flag, a tuple is joined by commas, a list is an option for
    each of its values.
    """
    words = ["tensorladder", "check", target, "--async", policy]
    for name, value in options.items():
        if value is None or value is False:
            continue
        values = value if isinstance(value, list) else [value]
        for one in values:
            text = ",".join(map(str, one)) if isinstance(one, tuple) else str(one)
            words += [f"--{name}"] if one is True else [f"--{name}", text]
    return shlex.join(words)


def stamped(findings: Iterable[Finding], target: str, policy: str, options: Mapping[str, Any]) -> list[Finding]:
    """Findings of a run that say under which policy, and how to repeat it."""
    again = command(target, policy, options)
    return [replace(finding, policy=policy, replay=again) for finding in findings]
