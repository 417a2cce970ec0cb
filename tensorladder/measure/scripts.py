"""Unmodified scripts on the virtual GPU, with the hooks of every front end that is installed."""

from __future__ import annotations

import contextlib
import importlib.util
import threading
from collections.abc import Iterator, Sequence
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
    from tensorladder.vgpu import Device

    run, counted, one_by_one = Device.run_stream, Unchecked(), threading.Lock()

    def run_stream(device: Device, launches: Sequence[Any], *args: Any, **kwargs: Any) -> None:
        if device.checker is None:
            with one_by_one:
                counted.launches += len(launches)
        run(device, launches, *args, **kwargs)

    Device.run_stream = run_stream  # type: ignore[method-assign, assignment]
    try:
        yield counted
    finally:
        Device.run_stream = run  # type: ignore[method-assign]
