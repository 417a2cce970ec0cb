"""The benchmark of sparse attention without a GPU: torch's way is right, its inputs and judgement are the problem's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import sparse_attention as bench
from benchmarks import sparse_peers as peers
from tensorladder.core.errors import MissingExtra, UsageError
from tensorladder.problems.sparse_attention import HEADS, PAGE, SPARSE_ATTENTION

torch = pytest.importorskip("torch")
pytest.importorskip("ml_dtypes")

SHAPE = (3, 100, 4)
NAMES = ("q_nope", "q_pe", "ckv_cache", "kpe_cache", "sparse_indices")


@pytest.fixture(scope="module")
def cache():
    return bench.Cache(torch, SHAPE[2], "cpu")


@pytest.fixture(scope="module")
def drawn(cache):
    return bench.inputs(torch, SHAPE, cache, 1, "cpu")


def test_inputs_are_the_problems_with_full_rows(drawn):
    operands = SPARSE_ATTENTION.operands(SHAPE, "bf16")
    assert [(one.name, one.shape) for one in operands] == [(name, tuple(x.shape)) for name, x in drawn.items()]
    for row in drawn["sparse_indices"].numpy():
        assert len(set(row)) == SHAPE[1] and row.min() >= 0 and row.max() < SHAPE[2] * PAGE


def test_the_judgement_is_the_problems(drawn, cache):
    inputs = {name: drawn[name].double().numpy() for name in NAMES}
    problem = SPARSE_ATTENTION.compute(inputs, SHAPE, None)
    for row in range(SHAPE[0]):
        (output, lse), bounds = bench.exact(torch, drawn, cache, row)
        assert np.allclose(output, problem["output"][row]) and np.allclose(lse, problem["lse"][row])
        assert bounds[0].shape == output.shape and (bounds[0] > 0).all()


def test_torch_gives_what_it_should(drawn, cache):
    """In float32, where nothing but the way can be wrong; and a -1 is left out."""
    given = [drawn[name].float() if drawn[name].is_floating_point() else drawn[name].clone() for name in NAMES]
    output, lse = bench.by_torch(torch)(*given)
    for row in range(SHAPE[0]):
        right = bench.exact(torch, drawn, cache, row)[0]
        assert np.allclose(output[row], right[0], atol=1e-5) and np.allclose(lse[row], right[1], atol=1e-4)
    shorter = {**drawn, "sparse_indices": drawn["sparse_indices"][:, 5:]}
    given[4][:, :5] = -1
    output, _ = bench.by_torch(torch)(*given)
    assert np.allclose(output[0], bench.exact(torch, shorter, cache, 0)[0][0], atol=1e-5)


def test_peers_say_what_is_missing(monkeypatch, tmp_path):
    monkeypatch.setattr(peers.shutil, "which", lambda name: None)
    with pytest.raises(MissingExtra, match="nvcc"):
        peers.build("flashmla", [], tmp_path / "x.so")
    monkeypatch.undo()
    monkeypatch.setattr(peers.shutil, "which", lambda name: "/bin/nvcc")
    failed = type("Done", (), {"returncode": 1, "stderr": "a.cu(1): error: no such header\nmore"})
    monkeypatch.setattr(peers.subprocess, "run", lambda *a, **k: failed)
    with pytest.raises(UsageError, match="no such header"):
        peers.build("flashmla", peers.flashmla_folders(Path("a"), Path("b")), tmp_path / "x.so")


def test_a_line_says_what_was_measured():
    record = {
        "rung": "fused-dsa-wgmma", "shape": [8, 2048, 512], "ok": True, "error": 1e-3, "median_us": 12.5, "tflops": 1.0,
        "gathered_gb_s": 3.0, "baseline": "torch", "baseline_us": 25.0, "ratio": 2.0, "baseline_ok": False,
    }  # fmt: skip
    assert "2.00x  outside the bounds" in bench._line(record)
    assert "WRONG" in bench._line({name: record[name] for name in ("rung", "shape", "error")} | {"ok": False})


def test_a_peer_s_error_is_said():
    peers.check(0, "flashmla")
    with pytest.raises(UsageError, match="flashmla: CUDA error 700"):
        peers.check(700, "flashmla")
    assert HEADS < peers.PADDED


def test_tables_show_losses_and_the_fastest_of_each_shape():
    def record(rows, baseline, ratio, **other):
        timed = {"median_us": 10.0, "tflops": 5.0, "gathered_gb_s": 900.0, "ratio": ratio, "baseline_ok": True}
        shape = [rows, bench.TOPK, 512]
        return {"rung": "fused-dsa-wgmma", "shape": shape, "ok": True, "baseline": baseline, **timed, **other}

    records = [
        {"rung": "fused-dsa-wgmma", "shape": [7, 333, 8], "ok": True, "error": 1e-3},  # an odd shape, not timed
        record(8, "flashmla", 4.0), record(64, "flashmla", 1.0, baseline_ok=False),
        record(8, "flashinfer-fa3", 0.5), record(64, "flashinfer-fa3", 2.0),
        record(8, "flashinfer-fa3", 9.0, rung="fused-dsa-split"), record(1, "flashmla", 9.0, ok=False),
    ]  # fmt: skip
    assert list(bench.means(records))[2:] == [
        "| flashmla | 2 | **2.00** | 1.00 | 4.00 | 0 | 1 |",
        "| flashinfer-fa3 | 2 | **1.00** | 0.50 | 2.00 | 1 | all |",
        "| the fastest of each shape | 2 | **0.71** | 0.50 | 1.00 | 1 | |",
    ]
    assert list(bench.shapes(records))[2:] == [
        "| 8, 32768 | 10.0 | 5 | 900 | 4.00 | 0.50 | **0.50** |",
        "| 64, 32768 | 10.0 | 5 | 900 | 1.00 | 2.00 | **1.00** |",
    ]
