"""The radix select alone, on crafted scores: exact by the bits, ties by place, whatever the rows' lengths."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from tensorladder.frontends.cutedsl import compile_program

pytest.importorskip("cutlass")
pytest.importorskip("llvmlite")

from tensorladder.rungs.parts.radix_select import RadixSelect
from tensorladder.rungs.parts.tensors import row_major
from tensorladder.vgpu import Device

ROWS, COLUMNS, TOPK, PAGE = 6, 1000, 70, 10


@functools.cache
def build(arch="sm_90a", topk=TOPK, threads=64, cluster=2):
    select = RadixSelect(topk, PAGE, threads, cluster)
    shapes = {"fp32": [(ROWS, COLUMNS)], "int32": [(ROWS,), (ROWS, COLUMNS // PAGE), (ROWS, topk)]}
    return compile_program(select, *(row_major(t, s) for t, all in shapes.items() for s in all), arch=arch)


def order(scores):
    """totalOrder of IEEE 754, as whole numbers."""
    bits = scores.view(np.int32).astype(np.int64)
    return np.where(bits < 0, -(bits & 0x7FFFFFFF) - 1, bits)


def expected(scores, lens, table, topk):
    idx = np.full((len(scores), topk), -1, np.int32)
    for row, length in enumerate(lens):
        best = np.sort(np.argsort(-order(scores[row, :length]), kind="stable")[:topk])
        idx[row, : len(best)] = table[row, best // PAGE] * PAGE + best % PAGE
    return idx


def check(scores, lens=(COLUMNS,) * ROWS, policy="eager", program=None, topk=TOPK, arch="sm_90a"):
    device = Device(arch=arch, policy=policy)
    table = np.random.default_rng(1).permutation(ROWS * COLUMNS // PAGE).reshape(ROWS, -1).astype(np.int32)
    arrays = [
        device.memory.empty(name, array.shape, array.dtype)
        for name, array in (("S", scores), ("L", np.zeros(ROWS, np.int32)), ("T", table))
    ]
    for array, values in zip(arrays, (scores, lens, table)):
        array[...] = values
    idx = device.memory.empty("I", (ROWS, topk), np.dtype(np.int32))
    idx[...] = 0x7F7F7F7F
    stream = device.stream()
    (program or build())(stream, *arrays, idx)
    stream.synchronize()
    assert np.array_equal(idx, expected(scores, lens, table, topk))


def normal(seed=0):
    return np.random.default_rng(seed).standard_normal((ROWS, COLUMNS)).astype(np.float32)


def words(values):
    """Rows drawn from a few bit patterns."""
    patterns = np.array(values, np.uint32).view(np.float32)
    return np.random.default_rng(2).choice(patterns, (ROWS, COLUMNS))


CRAFTED = {
    "normal": normal(),
    "negative": -abs(normal()) - 1,
    "all equal": np.full((ROWS, COLUMNS), 1.5, np.float32),
    "all zero": np.zeros((ROWS, COLUMNS), np.float32),
    "zeros of both signs": words([0, 0x80000000]),
    "denormals": words(list(range(40)) + [0x80000000 + i for i in range(40)]),
    "infinities": words([0x7F800000, 0xFF800000, 0x7F7FFFFF, 0xFF7FFFFF]),
    "NaN": words([0x7FC00000, 0xFFC00000, 0x7FFFFFFF, 0x3F800000, 0xFFFFFFFF]),
    "last bit": words([0x3F800000 + i for i in range(256)]),
    "bytes": words([i << shift for i in range(256) for shift in (0, 8, 16, 24)]),
    "few values": np.round(normal(3) * 2),
    "any bits": np.random.default_rng(4).integers(0, 2**32, (ROWS, COLUMNS), np.uint64).astype(np.uint32).view("f4"),
}


@pytest.mark.parametrize("policy", ["eager", "lazy", "random:1"])
def test_lengths(policy):
    """None, one, less than topk, topk, one more, all; what lies past the end is above everything."""
    lens = (0, 1, TOPK - 1, TOPK, TOPK + 1, COLUMNS)
    scores = normal(5)
    for row, length in enumerate(lens):
        scores[row, length:] = np.inf
    check(scores, lens, policy)


@pytest.mark.parametrize("scores", CRAFTED.values(), ids=CRAFTED)
def test_crafted(scores):
    check(scores, lens=(COLUMNS, 999, 500, 97, 71, 70))


@pytest.mark.parametrize(("threads", "cluster", "topk"), [(32, 1, 1), (256, 1, 5), (128, 8, 999), (32, 3, 64)])
def test_knobs(threads, cluster, topk):
    check(CRAFTED["few values"], program=build("sm_90a", topk, threads, cluster), topk=topk, policy="random:2")


def test_blackwell():
    check(CRAFTED["any bits"], program=build("sm_100a"), arch="sm_100a")
