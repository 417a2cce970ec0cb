"""Ways to compile: the page's table is what was measured, and what it says of checks is so (its plain blocks of Python
run in tests/docs)."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from benchmarks import ways

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "ways-to-compile.md"
KEPT = [str(ROOT / "benchmarks" / "results" / f"ways-{machine}.jsonl") for machine in ("amd-epyc", "h200")]


def test_the_table_is_made_of_the_kept_results():
    shown = PAGE.read_text(encoding="utf-8").split("<!-- ways: begin -->")[1].split("<!-- ways: end -->")[0].strip()
    assert shown == ways.table(KEPT), (
        "put what `python -m benchmarks.ways table benchmarks/results/ways-*.jsonl` prints into docs/ways-to-compile.md"
    )


def blocks(*kinds):
    text = PAGE.read_text(encoding="utf-8")
    return [code for kind, code in re.findall(r"^```python ?(\w*)\n(.*?)^```", text, re.M | re.S) if kind in kinds]


@pytest.mark.skipif(shutil.which("nvcc") is None or shutil.which("ninja") is None, reason="no nvcc or no ninja here")
def test_the_code_for_nvcc_runs(tmp_path, monkeypatch):
    pytest.importorskip("tvm_ffi")
    monkeypatch.setenv("TENSORLADDER_CACHE", str(tmp_path))
    exec("\n".join(blocks("nvcc")), {})


@pytest.mark.gpu
def test_the_code_for_a_gpu_runs():
    exec("\n".join(blocks("nvcc", "gpu")), {})


def test_a_row_has_its_cells():
    low = [float(i) for i in range(11)]
    row = ways._row("pack", "call", low)
    assert row == {"way": "pack", "what": "call", "us": 5.0, "p10": pytest.approx(0.2), "p90": pytest.approx(9.8)}
    assert {"CuTe DSL, DLPack", "CuTe DSL, TVM-FFI", "CUDA C++, PyTorch extension"} <= set(ways.FACTS)


def test_a_library_of_the_dsl_is_loaded_and_checks_what_it_is_given(tmp_path):
    for name in ("cutlass", "nvidia_cutlass_dsl", "tvm_ffi", "torch"):
        pytest.importorskip(name)
    if shutil.which("nvcc") is None:
        pytest.skip("no nvcc here, whose runtime it is linked with")
    import torch
    import tvm_ffi

    ways.dsl_library(tmp_path / "dsl.so")
    a = torch.zeros(ways.SIDE, ways.SIDE)
    with pytest.raises(ValueError, match="expected device_type=cuda"):
        tvm_ffi.load_module(str(tmp_path / "dsl.so")).gemm(a, a, a)
