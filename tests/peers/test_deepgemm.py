"""DeepGEMM's scores of a paged fp8 cache, compiled by nvcc from its headers, within the bounds of topk_indexer."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from benchmarks import deepgemm
from tensorladder.problems.topk_indexer import TOPK_INDEXER, score
from tensorladder.vgpu import Device

pytestmark = pytest.mark.peers


@pytest.mark.parametrize("policy", ["eager", "lazy", "random:1"])
def test_scores(checkout, policy):
    if shutil.which("nvcc") is None:
        pytest.skip("needs nvcc")
    root = checkout("DeepGEMM", "deep_gemm/include").parents[1]
    module = deepgemm.compile_module(root, checkout("cutlass", "include").parent)
    device = Device(arch=deepgemm.ARCH, policy=policy)
    shape = (3, 8, 100)
    case = TOPK_INDEXER.make(shape, "e4m3", 0, device.memory.empty)
    plan = device.memory.empty("plan", (deepgemm.SMS + 1, 2), np.dtype(np.int32))
    lens = device.memory.empty("lens", (shape[0], 1), np.dtype(np.int32))
    lens[:, 0] = case.arrays["seq_lens"]
    stream = device.stream()
    deepgemm.plan(module, shape[0])(stream, lens, plan)
    stream.synchronize()
    q, cache, weights, _, table, _, scores = case.arrays.values()
    deepgemm.scores(module, shape)(stream, q, cache, weights, lens, table, plan, scores)
    stream.synchronize()
    for row in range(shape[0]):
        right, slack = score(case._inputs64(), row)
        assert (abs(scores[row, : len(right)] - right) <= slack).all()
