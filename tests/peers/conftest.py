"""Checkouts of other projects: `make peers PEERS=folder` names the folder that holds them.

Nothing of theirs is in this project: a test reads a file from the checkout, lets the project's front ends or its own
compiler make PTX of it, and runs that on the virtual GPU. A checkout is found by its own name (`cutlass`), by
`owner/name`, or by `owner+name`; a test whose checkout is absent is skipped and says which one it wants.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

OWNERS = {
    "cutlass": "NVIDIA",
    "cuda-samples": "NVIDIA",
    "DeepGEMM": "deepseek-ai",
    "learn-cutedsl": "luongthecong123",
    "quack": "Dao-AILab",
    "modern-gpu-programming-for-mlsys": "mlc-ai",
    "triton": "triton-lang",
}


@pytest.fixture(scope="session")
def checkout() -> Callable[[str, str], Path]:
    """checkout(project, file): the path of a file in a project's checkout; skips where it is absent."""

    def find(project: str, file: str) -> Path:
        folder = os.environ.get("TENSORLADDER_PEERS", "")
        if not folder:
            pytest.skip("run as `make peers PEERS=folder`")
        owner = OWNERS[project]
        for name in (project, f"{owner}/{project}", f"{owner}+{project}"):
            path = Path(folder) / name / file
            if path.exists():
                return path
        pytest.skip(f"no {owner}/{project} with {file} in {folder}")

    return find
