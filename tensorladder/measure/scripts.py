"""Unmodified scripts on the virtual GPU, with the hooks of every front end that is installed."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


def run_script(path: str | Path, argv: Sequence[str] = (), **options: Any) -> int:
    """Run `path` as `python PATH ARGV` would, its CUDA device the virtual GPU; its exit code.

    options: arch, policy, seed, checker and breakpoints, as `vgpu.driver.run_script` takes them.
    """
    from tensorladder.vgpu import driver

    return driver.run_script(path, argv, hooks=hooks(), **options)


def hooks() -> list[Any]:
    """What takes over the launches of each installed front end."""
    found = []
    if importlib.util.find_spec("cutlass"):
        from tensorladder.frontends.cutedsl_script import cutedsl_hook

        found.append(cutedsl_hook)
    if importlib.util.find_spec("triton"):
        from tensorladder.frontends.triton_script import triton_hook

        found.append(triton_hook)
    from tensorladder.frontends.cudacore_script import cudacore_hook
    from tensorladder.frontends.cupy_script import cupy_hook

    return [*found, cudacore_hook, cupy_hook]


@dataclass
class Unchecked:
    """How many launches no checker saw, beside those of a script's own CUDA device."""

    launches: int = 0

    def __str__(self) -> str:
        launches = "1 launch" if self.launches == 1 else f"{self.launches} launches"
        return f"not checked: {launches} by vgpu.launch, or by matmul of CPU tensors"


@contextlib.contextmanager
def unchecked() -> Iterator[Unchecked]:
    """While this lasts, launches are counted that run with no checker, on devices that a script, or what it calls,
    makes itself."""
    counted, one_by_one = Unchecked(), threading.Lock()

    def count(device: Any, launches: Sequence[Any]) -> contextlib.AbstractContextManager[object]:
        if device.checker is None:
            with one_by_one:
                counted.launches += len(launches)
        return contextlib.nullcontext()

    with around_launches(count):
        yield counted


@contextlib.contextmanager
def around_launches(
    around: Callable[[Any, Sequence[Any]], contextlib.AbstractContextManager[object]],
) -> Iterator[None]:
    """While this lasts, launches of any device run within `around(device, launches)`."""
    from tensorladder.vgpu import Device

    run = Device.run_stream

    def run_stream(device: Device, launches: Sequence[Any], *args: Any, **kwargs: Any) -> None:
        with around(device, launches):
            run(device, launches, *args, **kwargs)

    Device.run_stream = run_stream  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        Device.run_stream = run  # type: ignore[method-assign]


class ErrorsSeen:
    """What generated code writes to file descriptor 2 while launches run goes where that led when this was made.

    pytest leads it to a file of its own, which is lost when the process ends at once, as it does where the virtual GPU
    gets no more memory. Python's sys.stderr is no part of this.
    """

    def __init__(self) -> None:
        self._seen = os.dup(2)
        self._captured = -1
        self._launches = 0
        self._one_by_one = threading.Lock()

    @contextlib.contextmanager
    def __call__(self, *_: Any) -> Iterator[None]:
        with self._one_by_one:  # host threads may launch at a time
            if not self._launches:
                self._captured = os.dup(2)
                os.dup2(self._seen, 2)
            self._launches += 1
        try:
            yield
        finally:
            with self._one_by_one:
                self._launches -= 1
                if not self._launches:
                    os.dup2(self._captured, 2)
                    os.close(self._captured)

    def close(self) -> None:
        os.close(self._seen)
