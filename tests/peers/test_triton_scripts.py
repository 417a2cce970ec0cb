"""Triton's tutorials, unmodified, through `tensorladder exec`. Needs `pip install triton`; a script says what else.

A checkout of triton-cpu serves as well, in a folder `triton`: these tutorials are there as they are.
"""

from __future__ import annotations

import os
import re
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
NO_SWEEP = ((r"^ *(benchmark|bench_layer_norm)\.run.*$", ""),)
#: 09 at a small size, with one configuration of each kernel
PERSISTENT = (
    (r"validate\(8192, 8192, .*\)", "validate(512, 768, 256, dtype)"),
    (r"^        proton\.start[\s\S]*", ""), (r"for BN in .*$", "for BN in [128]"), (r"for BK in .*$", "for BK in [64]"),
    (r"for s in .*$", "for s in [3]"), (r"for w in .*$", "for w in [4]"),
    (r"for SUBTILE in .*$", "for SUBTILE in [False]"),
)  # fmt: skip
BLOCK_SCALED = (
    (r"^( *)cublas = .*$", r"\1cublas = None"), (r"(validate_block_scaled\()8192, 8192, 8192", r"\g<1>256, 512, 512"),
    (r"^        if args\.bench:[\s\S]*", ""),
)  # fmt: skip
#: script, architecture, arguments, and what is changed in the copy that runs: patterns and what stands in their place.
#: Sweeps over sizes and timings are left out
CUT = [
    ("02-fused-softmax", "sm_90a", "", NO_SWEEP),
    ("03-matrix-multiplication", "sm_90a", "", NO_SWEEP),
    ("03-matrix-multiplication", "sm_100a", "", NO_SWEEP),
    ("05-layer-norm", "sm_100a", "", NO_SWEEP),
    ("09-persistent-matmul", "sm_90a", "", PERSISTENT),
    ("09-persistent-matmul", "sm_100a", "", PERSISTENT),
    ("10-block-scaled-matmul", "sm_100a", "", BLOCK_SCALED),
    ("10-block-scaled-matmul", "sm_100a", "--format mixed", BLOCK_SCALED),
    ("11-programmatic-dependent-launch", "sm_90a", "", NO_SWEEP),
]


def assert_runs(script: Path, arch: str, folder: Path, arguments: str = "") -> None:
    path = os.pathsep.join(filter(None, [str(checked.HOME), os.environ.get("PYTHONPATH", "")]))
    environment = os.environ | {"TRITON_CACHE_DIR": str(folder / "cache"), "MPLBACKEND": "agg", "PYTHONPATH": path}
    command = checked.exec_command(script, arch, "eager", arguments.split())
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=environment, cwd=folder)
    assert done.returncode == 0, (done.stdout + done.stderr)[-2000:]
    # the third tutorial and the ninth only print it
    assert "Torch differ" not in done.stdout and "\N{CROSS MARK}" not in done.stdout, done.stdout[-500:]


@pytest.mark.parametrize(("name", "arch", "modules"), SCRIPTS)
def test_tutorial(checkout, tmp_path, name, arch, modules) -> None:
    for module in ("triton", *modules):
        pytest.importorskip(module)
    assert_runs(checkout("triton", f"python/tutorials/{name}.py"), arch, tmp_path)


@pytest.mark.parametrize(("name", "arch", "arguments", "changes"), CUT, ids=lambda v: v if isinstance(v, str) else "")
def test_tutorial_without_its_sweep(checkout, tmp_path, name, arch, arguments, changes) -> None:
    pytest.importorskip("triton")
    source = checkout("triton", f"python/tutorials/{name}.py").read_text()
    for pattern, instead in changes:
        assert re.search(pattern, source, re.M), pattern
        source = re.sub(pattern, instead, source, flags=re.M)
    script = tmp_path / f"{name}.py"
    script.write_text(source)
    assert_runs(script, arch, tmp_path, arguments)
