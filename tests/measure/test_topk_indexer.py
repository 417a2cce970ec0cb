"""The indexer's benchmark without a GPU: torch's way is right, its judgement is the problem's, DeepGEMM's host part."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import tables
from benchmarks import topk_indexer as bench
from tensorladder.core.errors import UsageError
from tensorladder.core.program import Module
from tensorladder.core.tensormap import decode
from tensorladder.problems.topk_indexer import PAGE, choice, score

torch = pytest.importorskip("torch")
pytest.importorskip("ml_dtypes")

SHAPE = (2, 4, 60)


@pytest.fixture(scope="module")
def drawn():
    return bench.inputs(torch, SHAPE, 1, "cpu")


def as_numpy(t):
    return {name: t[name].float().numpy() for name in ("q", "cache", "weights", "seq_lens", "block_table")}


def test_the_judgement_is_the_problems(drawn):
    for row in range(SHAPE[0]):
        for ours, problem in zip(bench.exact(torch, drawn, row), score(as_numpy(drawn), row)):
            assert np.allclose(ours, problem, rtol=1e-12)


def test_torch_finds_the_best(drawn):
    function = bench.by_torch(torch, torch.float32)
    chosen = function(*(drawn[name] for name in ("q", "cache", "weights", "block_table")), SHAPE[2])
    for row in range(SHAPE[0]):
        right, slack = bench.exact(torch, drawn, row)
        assert not choice(chosen[row].numpy(), bench.tokens(drawn, row), right, slack).any()


def test_deepgemms_parameters():
    """Extents, addresses and tensor maps where its kernel has its parameters."""
    module = Module(".entry _sm90_fp8_paged_mqa_logitsILj1(\n.entry _sm90_paged_mqa_logits_metadataILj64(", "sm_90a")
    batch, pages = 3, 8
    arrays = [
        np.zeros(shape, dtype)
        for shape, dtype in (
            ((batch, 64, 128), np.uint8), ((25, PAGE, 1, 132), np.uint8), ((batch, 64), np.float32),
            ((batch, 1), np.int32), ((batch, pages), np.int32), ((133, 2), np.int32), ((batch, 512), np.float32),
        )
    ]  # fmt: skip
    (launch,) = bench.deepgemm.scores(module, (batch, pages)).launches(*arrays)
    words = np.frombuffer(launch.params[:56], np.uint64)
    assert np.frombuffer(launch.params[:12], np.uint32).tolist() == [batch, 512, pages]
    assert words[2:].tolist() == [arrays[i].ctypes.data if i else 0 for i in (3, 6, 4, 0, 5)]
    q, keys, scales, weights = (decode(launch.params[at : at + 128]) for at in range(128, 640, 128))
    assert q.dims == (128, 192) and weights.box == (64, 1)
    assert keys.dims == (128, 64, 25) and keys.strides == (128, 8448) and keys.swizzle == 3
    assert scales.address == keys.address + 8192 == arrays[1].ctypes.data + 8192
    (launch,) = bench.deepgemm.plan(module, batch).launches(arrays[3], arrays[5])
    assert "metadata" in launch.kernel and launch.params[8] == 1
    with pytest.raises(UsageError, match="multiple of 4"):
        bench.deepgemm.scores(module, (1, 3))


def test_tables():
    row = {"rung": bench.RUNG, "shape": [8, 64, 2048], "ok": True, "baseline_ok": True, "cache_gb_s": 811.0}
    records = [
        {**row, "part": part, "median_us": us, "baseline": who, "baseline_us": them, "ratio": them / us, **more}
        for part, us, who, them, more in (
            ("whole", 10.0, "torch bf16", 40.0, {"baseline_ok": False, "baseline_found": 0.998}),
            ("scores", 5.0, "deepgemm", 4.0, {"baseline_found": None}),
            ("choice", 6.0, "torch.topk", 9.0, {"baseline_found": 1.0}),
        )
    ]
    host = {"suite": bench.SUITE, "on": "gpu", "gpu": "H200", "power_limit_w": 700.0, "when": "2026-11-30T00:00:00"}
    kept = {"topk-indexer-h200": ({**host, "cublas": "13", "torch": "2.11", "quack": None}, records)}
    shown = tables.summary(kept)
    assert "| whole | torch bf16 | 1 | **4.00** | 4.00 | 4.00 | no, 0.9980 |" in shown
    assert "| scores | deepgemm | 1 | **0.80** | 0.80 | 0.80 |  |" in shown and "| 1.50 | yes, 1.0000 |" in shown
    assert "| 8, 4096 | 10.0 | 5.0 | 811 | 6.0 | 40.0 | 4.0 | 9.0 |" in tables.details(kept)
