"""Unmodified scripts on the virtual GPU, with the hooks of every front end that is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
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
