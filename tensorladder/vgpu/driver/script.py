"""Run an unmodified script as `__main__` with the virtual GPU as its CUDA device."""

from __future__ import annotations

import contextlib
import importlib.util
import runpy
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from ...core import attached as known
from ...core.arch import find
from ...core.errors import TensorladderError, Unsupported, UsageError, memory_for
from ...core.program import Launch, Stream
from .bindings import driver_facade
from .gaps import gap_of, line_in
from .session import HostRange, Session, range_of
from .threads import ended_with_the_script, known_in_threads

Hook = Callable[[Session], AbstractContextManager[Any]]
"""What a front end does to a script's process: its own launches go to the session while the context lasts."""

StreamFactory = Callable[[list[HostRange]], Stream]


def run_script(
    path: str | Path,
    argv: Sequence[str] = (),
    *,
    arch: str = "sm_90a",
    policy: str = "eager",
    seed: int = 0,
    checker: Any = None,
    breakpoints: Any = None,
    hooks: Sequence[Hook] = (),
    stream_factory: StreamFactory | None = None,
) -> int:
    """Run `path` with `argv`, and return its exit code (0, or what it gave to sys.exit).

    arch: what the script's GPU is. hooks: the front ends whose launches are to run here (they are passed in, because
    front ends know the virtual GPU and not the other way round). checker: a vgpu.Checker that is to look for hazards in
    what is launched. breakpoints: a vgpu.debug.Breakpoints. stream_factory replaces the virtual GPU, for tests.
    Raises what a launch raised (KernelError, Unsupported); an exception of the script itself comes out as it is.
    """
    script = Path(path)
    if not script.is_file():
        raise UsageError(f"no such script: {str(path)!r}")
    device = attached(arch, policy, seed, checker, breakpoints=breakpoints, hooks=hooks, stream_factory=stream_factory)
    with device as session, _as_main(script, argv), ended_with_the_script(session):
        code = _run(script, session)
    if code == 0 and session.incomplete is not None:  # the script caught it and went on
        raise session.incomplete
    if code == 0 and session.unseen is not None:
        raise session.unseen
    return code


@contextlib.contextmanager
def attached(
    arch: str = "sm_90a",
    policy: str = "eager",
    seed: int = 0,
    checker: Any = None,
    *,
    breakpoints: Any = None,
    timeout: float | None = None,
    hooks: Sequence[Hook] = (),
    stream_factory: StreamFactory | None = None,
) -> Iterator[Session]:
    """While this lasts, this process has the virtual GPU for its CUDA device. Arguments as of `run_script`.

    timeout: seconds that a launch may take.
    """
    streams = stream_factory or _device_streams(arch, policy, seed, checker, timeout, breakpoints)
    session = Session(find(arch), streams, order=None if checker is None else checker.order)
    with contextlib.ExitStack() as stack:
        if importlib.util.find_spec("torch"):
            from .torch_facade import torch_facade

            stack.enter_context(torch_facade(session))
        stack.enter_context(driver_facade(session))
        for hook in hooks:
            stack.enter_context(hook(session))
        stack.enter_context(known_in_threads(session))
        before, known.session = known.session, session
        try:
            yield session
        finally:
            known.session = before


def _run(script: Path, session: Session) -> int:
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as stop:
        if session.failure is not None and stop.code:
            raise session.failure from None
        return stop.code if isinstance(stop.code, int) else (1 if stop.code else 0)
    except TensorladderError:
        raise
    except Exception as error:
        if session.failure is not None:
            raise session.failure from error
        gap = gap_of(error)
        if gap is not None:
            raise Unsupported(f"{line_in(error, str(script))}: {gap}") from error
        raise
    return 0


@contextlib.contextmanager
def _as_main(script: Path, argv: Sequence[str]) -> Iterator[None]:
    """sys.argv and sys.path as `python SCRIPT ARGS` would set them."""
    before = sys.argv, list(sys.path)
    sys.argv = [str(script), *argv]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        yield
    finally:
        sys.argv, sys.path[:] = before


def _device_streams(
    arch: str, policy: str, seed: int, checker: Any = None, timeout: float | None = None, breakpoints: Any = None
) -> StreamFactory:
    from ... import vgpu

    device = vgpu.Device(arch=arch, policy=policy, seed=seed, checker=checker, timeout=timeout, breakpoints=breakpoints)
    return lambda ranges: _ScriptStream(device, ranges)


class _ScriptStream:
    """A stream of the device on which launches may touch the script's memory, and let go of it when they have run.

    What it held on to would count as the script's own: memory that is alive may be touched.
    """

    def __init__(self, device: Any, ranges: list[HostRange]):
        self._device = device
        self._ranges = [range_of(r) for r in ranges]
        self._launches: list[Launch] = []
        self._works: list[Any] = []

    def enqueue(self, launch: Launch) -> None:
        self._launches.append(launch)
        if self._device.order is not None:
            self._works.append(self._device.begin(launch, launch.stream))

    def synchronize(self) -> None:
        """Run what was enqueued; the script's own host does not wait for it by that."""
        try:
            with memory_for(f"kernel {', '.join(dict.fromkeys(launch.kernel for launch in self._launches))}"):
                self._device.run_stream(self._launches, self._works, self._ranges)
        finally:
            for work in self._works:
                self._device.order.drop(work)
            self._ranges = []
