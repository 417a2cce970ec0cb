"""Machine code as text, by NVIDIA's nvdisasm."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tensorladder.core.errors import KernelError, MissingExtra

TIMEOUT = 120


def find_nvdisasm() -> str | None:
    """The path of nvdisasm: from PATH, or from the package nvidia-cuda-nvdisasm; None where there is none."""
    found = shutil.which("nvdisasm")
    if found:
        return found
    spec = importlib.util.find_spec("nvidia")
    for root in (spec.submodule_search_locations or ()) if spec else ():
        for path in sorted(Path(root).glob("*/bin/nvdisasm")):
            if os.access(path, os.X_OK):
                return str(path)
    return None


def sass(cubin: bytes) -> str:
    """The SASS of a cubin. MissingExtra where there is no nvdisasm, KernelError where it refuses the file."""
    tool = find_nvdisasm()
    if tool is None:
        raise MissingExtra("nvdisasm", "cuda")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run(
            [tool, "--print-code", file.name], capture_output=True, text=True, timeout=TIMEOUT, check=False
        )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no reason given"]
        raise KernelError(f"nvdisasm refused the cubin: {lines[-1]}")
    return done.stdout
