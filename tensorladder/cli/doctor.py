"""`tensorladder doctor`: versions, extras, GPU and driver, caches, and what would work here."""

from __future__ import annotations

from tensorladder.cli import output
from tensorladder.cli.options import Json
from tensorladder.measure import environment


def doctor(as_json: Json = False) -> int:
    """Say what is installed, what the machine has and what would work here."""
    checks = environment.examine()
    if as_json:
        for check in checks:
            output.emit(check.record())
    else:
        rows = ((check.name, check.ok, check.detail) for check in checks)
        output.print_table(output.table(("name", "ok", "detail"), rows))
    return 0
