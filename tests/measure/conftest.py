"""The command line in process: what it wrote and what it returned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tensorladder.cli.app import main


@dataclass(frozen=True)
class Said:
    """The exit code, and what was written to stdout and stderr."""

    code: int
    out: str
    err: str


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """Calls `tensorladder` with arguments, in process."""

    def call(*arguments: str) -> Said:
        capsys.readouterr()
        code = main(arguments)
        captured = capsys.readouterr()
        return Said(code, captured.out, captured.err)

    return call
