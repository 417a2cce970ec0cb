"""Triton's tutorials, unmodified, through `tensorladder exec`. Needs `pip install triton`; a script says what else.

A checkout of triton-cpu serves as well, in a folder `triton`: these tutorials are there as they are.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.peers import checked

pytestmark = pytest.mark.peers

#: script, architecture, the modules it imports besides torch
SCRIPTS = [
    ("04-low-memory-dropout", "sm_90a", ("tabulate",)),
    ("07-extern-functions", "sm_90a", ()),
    ("07-extern-functions", "sm_100a", ()),
]
#: script, architecture, how the lines begin that sweep sizes in a benchmark: they are left out of the copy that runs
WITH_SWEEP = [
    ("02-fused-softmax", "sm_90a", "benchmark.run"),
    ("03-matrix-multiplication", "sm_90a", "benchmark.run"),
    ("03-matrix-multiplication", "sm_100a", "benchmark.run"),
    ("05-layer-norm", "sm_100a", "bench_layer_norm.run"),
]


def assert_runs(script: Path, arch: str, folder: Path) -> None:
    path = os.pathsep.join(filter(None, [str(checked.HOME), os.environ.get("PYTHONPATH", "")]))
    environment = os.environ | {"TRITON_CACHE_DIR": str(folder / "cache"), "MPLBACKEND": "agg", "PYTHONPATH": path}
    command = checked.exec_command(script, arch, "eager")
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=environment, cwd=folder)
    assert done.returncode == 0, (done.stdout + done.stderr)[-2000:]
    assert "Torch differ" not in done.stdout, done.stdout[-500:]  # the third tutorial only prints it


@pytest.mark.parametrize(("name", "arch", "modules"), SCRIPTS)
def test_tutorial(checkout, tmp_path, name, arch, modules) -> None:
    for module in ("triton", *modules):
        pytest.importorskip(module)
    assert_runs(checkout("triton", f"python/tutorials/{name}.py"), arch, tmp_path)


@pytest.mark.parametrize(("name", "arch", "sweep"), WITH_SWEEP)
def test_tutorial_without_its_sweep(checkout, tmp_path, name, arch, sweep) -> None:
    pytest.importorskip("triton")
    source = checkout("triton", f"python/tutorials/{name}.py").read_text().splitlines(keepends=True)
    script = tmp_path / f"{name}.py"
    script.write_text("".join(line for line in source if not line.startswith(sweep)))
    assert_runs(script, arch, tmp_path)
