"""What all tests share: where they run (`--on vgpu|gpu`), and what is left out unless asked for."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass

import pytest

# marker -> (option that asks for it, why it was left out)
ON_REQUEST = {
    "matrix": ("--matrix", "runs under `make matrix`"),
    "peers": ("--peers", "runs under `make peers PEERS=folder`"),
}


#: objects made since the last collection of garbage that start the next: tests and modules are a million objects that
#: stay, and looking through them again and again took a fifth of the time of short tests
gc.set_threshold(50_000, 20, 20)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--on", choices=("vgpu", "gpu"), default="vgpu", help="where device code runs")
    parser.addoption("--record", action="store_true", help="with --on gpu: keep results in tests/data/silicon")
    parser.addoption("--matrix", action="store_true", help="the whole policy matrix")
    parser.addoption("--peers", action="store_true", help="third-party kernels (TENSORLADDER_PEERS says where)")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = {name for name, (option, _) in ON_REQUEST.items() if not config.getoption(option)}
    if config.getoption("--on") != "gpu":
        left_out.add("gpu")
    kept = [item for item in items if not any(item.get_closest_marker(name) for name in left_out)]
    if len(kept) < len(items):
        kept_ids = {id(item) for item in kept}
        config.hook.pytest_deselected(items=[item for item in items if id(item) not in kept_ids])
        items[:] = kept


def pytest_collection_finish(session: pytest.Session) -> None:
    """What the tests themselves are made of is no garbage until the end."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def on(request: pytest.FixtureRequest) -> str:
    """Where device code runs: "vgpu" or "gpu"."""
    return request.config.getoption("--on")


@dataclass(frozen=True)
class Said:
    """The exit code, and what was written to stdout and stderr."""

    code: int
    out: str
    err: str


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """Calls `tensorladder` with arguments, in process."""
    from tensorladder.cli.app import main

    def call(*arguments: str) -> Said:
        capsys.readouterr()
        code = main(arguments)
        captured = capsys.readouterr()
        return Said(code, captured.out, captured.err)

    return call
