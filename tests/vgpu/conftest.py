"""Fixtures of the virtual GPU's tests. The harness is imported as `tests.vgpu.ptx_kernels`, as the recorder does."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.vgpu.ptx_kernels import Recorder


@pytest.fixture(scope="session")
def recorder(request: pytest.FixtureRequest, on: str) -> Iterator[Recorder | None]:
    """Collects what silicon gives, under `--on gpu --record`."""
    if on != "gpu" or not request.config.getoption("--record"):
        yield None
        return
    recorder = Recorder()
    yield recorder
    recorder.write()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Property tests are the same on every run."""
    try:
        from hypothesis import settings
    except ImportError:
        return
    settings.register_profile("vgpu", deadline=None, derandomize=True)
    settings.load_profile("vgpu")
