"""Grouped products against float64, group by group: ragged rows and ragged K, ends of all kinds, several schedules."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from tensorladder.problems import DTYPES
from tensorladder.problems.gemm_epilogue import gelu

pytest.importorskip("cutlass")
pytest.importorskip("ml_dtypes")
pytest.importorskip("llvmlite")

from tensorladder.rungs.hopper.c9_grouped import GroupedGemmConfig, build
from tensorladder.rungs.parts.form import Form
from tensorladder.vgpu import Device

SMALL = GroupedGemmConfig(tile=(64, 64, 64), cluster_n=1, c_stages=1, stages=2, sm_count=3)
ONE = GroupedGemmConfig(tile=(128, 128, 64), split="n", cluster_m=2, cluster_n=2, stages=3, sm_count=5, raster=1)
GATED = GroupedGemmConfig(split="m", cluster_n=2, stages=4, sm_count=5, raster=1)
ENDS = {
    "odd": (200, [37, 37, 102, 103, 200]),
    "one group": (150, [0, 150, 150]),
    "one row each": (40, list(range(1, 41))),
    "none": (70, [0, 0, 0]),
    "tail": (300, [128, 131]),
}
WRONG = (90, [50, 20, 400])  # falls, and passes the end
FORMS = {
    "fp8, scaled": Form("e4m3", "bf16", bias="bf16", scaled=True),
    "gated, scaled": Form("bf16", "fp16", b_major="mn", activation="gelu", scaled=True, gated=True),
    "bf16": Form("bf16", "bf16", b_major="mn"),
    "bf16, A^T": Form("bf16", "bf16", a_major="mn", b_major="mn"),
    "fp16, bias, gelu": Form("fp16", "fp16", bias="fp32", activation="gelu"),
    "fp32 out, A^T": Form("bf16", "fp32", a_major="mn", b_major="mn"),
    "all K": Form("bf16", "bf16", bias="bf16"),
}
VALUES = {"none": lambda x: x, "gelu": gelu}


def make(device, name, shape, dtype, contiguous):
    """Of that shape, contiguous along one extent, with 16 elements or more of NaN after each line."""
    order = [axis for axis in reversed(range(len(shape))) if axis != contiguous] + [contiguous]
    extents = [shape[axis] for axis in order]
    extents[-1] = -(-extents[-1] // 16) * 16 + 16
    memory = device.memory.empty(name, tuple(extents), DTYPES[dtype].numpy)
    memory[...] = np.nan
    array = memory[..., : shape[contiguous]].transpose(np.argsort(order))
    return memory, array


def normal(array, seed):
    array[...] = np.random.default_rng(seed).standard_normal(array.shape).astype(array.dtype)


def spans(ends, limit):
    """[begin, end) of each group as the kernel cuts them."""
    begins = [min(max(end, 0), limit) for end in [0, *ends[:-1]]]
    return [(begin, max(min(end, limit), begin)) for begin, end in zip(begins, ends)]


def run(form, ragged, ends, t, n, rest, policy, config, nan_outside=False):
    """A, B, U, C, bias, p and q in float64, after the kernel."""
    device = Device(arch="sm_90a", policy=policy)
    count = len(ends)
    shapes = {"m": ((t, rest), (n, rest, count), (t, n)), "k": ((rest, t), (n, t), (rest, n, count))}[ragged]
    _, a = make(device, "A", shapes[0], form.dtype, int(form.a_major == "k"))
    _, b = make(device, "B", shapes[1], form.dtype, int(form.b_major == "k"))
    memory, c = make(device, "C", shapes[2], form.out, 1)
    u = make(device, "U", shapes[1], form.dtype, int(form.b_major == "k"))[1] if form.gated else None
    v = device.memory.empty("V", (count, n), DTYPES[form.bias].numpy) if form.bias else None
    p, q = (device.memory.empty("p", s, np.dtype(np.float32)) if form.scaled else None for s in ((t,), (count, n)))
    for seed, array in enumerate((a, b, u, v, p, q)):
        if array is not None:
            normal(array, seed)
    if nan_outside:
        last = spans(ends, t)[-1][1]
        (a[last:] if ragged == "m" else a[:, last:])[...] = np.nan
        if ragged == "k":
            b[:, last:] = np.nan
    offs = device.memory.empty("offs", (count,), np.dtype(np.int32))
    offs[...] = ends
    stream = device.stream()
    build("sm_90a", replace(form, ragged=ragged), config)(stream, a, b, u, c, v, p, q, offs)
    stream.synchronize()
    assert np.isnan(memory[..., n:].astype(np.float32)).all(), "written past the columns of C"
    return tuple(None if x is None else x.astype(np.float64) for x in (a, b, u, c, v, p, q))


def check(form, ragged, ends, t, n, rest, policy, config, **more):
    a, b, u, c, v, p, q = run(form, ragged, ends, t, n, rest, policy, config, **more)
    stored, last = DTYPES[form.out], 0
    for group, (begin, end) in enumerate(spans(ends, t)):
        left, right = (a[begin:end], b[..., group]) if ragged == "m" else (a[:, begin:end], b[:, begin:end])
        exact, size = left @ right.T, abs(left) @ abs(right).T
        factors = p[begin:end, None] * q[group] if form.scaled else 1.0
        exact, size = factors * exact, abs(factors) * size
        if v is not None:
            exact, size = exact + v[group], size + abs(v[group])
        steps = 1.13 * (8 * math.sqrt(left.shape[1] + 1) + 16) * (2.0**-13 if form.dtype == "e4m3" else 2.0**-23)
        slack, exact = steps * size, VALUES[form.activation](exact)
        if form.gated:
            other = factors * (left @ u[..., group].T)
            slack = slack * abs(other) + steps * abs(exact) * abs(factors) * (abs(left) @ abs(u[..., group]).T)
            exact = exact * other
        got = c[begin:end] if ragged == "m" else c[..., group]
        assert (abs(got - exact) <= stored.unit * (abs(exact) + slack) + slack + stored.tiny).all(), group
        last = end
    if ragged == "m":
        assert (c[last:] == 0).all()


@pytest.mark.parametrize("policy", ["eager", "lazy", "random:1"])
@pytest.mark.parametrize("ends", ENDS)
def test_rows(ends, policy):
    t, ends = ENDS[ends]
    check(FORMS["bf16"], "m", ends, t, 136, 72, policy, SMALL, nan_outside=True)


@pytest.mark.parametrize("form", ["fp8, scaled", "gated, scaled", "fp16, bias, gelu", "fp32 out, A^T"])
def test_forms_of_rows(form):
    t, ends = ENDS["odd"]
    check(FORMS[form], "m", ends, t, 136, 208, "random:2", GATED if FORMS[form].gated else ONE)


@pytest.mark.parametrize("policy", ["eager", "lazy", "random:1"])
@pytest.mark.parametrize("ends", ENDS)
def test_k(ends, policy):
    t, ends = ENDS[ends]
    check(FORMS["bf16, A^T"], "k", ends, t, 136, 72, policy, SMALL, nan_outside=True)


def test_wrong_ends_are_cut():
    t, ends = WRONG
    check(FORMS["bf16, A^T"], "k", ends, t, 72, 72, "random:4", SMALL)
    a, b, _, c, *_ = run(FORMS["bf16"], "m", ends, t, 72, 72, "random:4", SMALL)
    assert np.linalg.norm(c[50:] - a[50:] @ b[..., 2].T) <= 0.01 * np.linalg.norm(c[50:])


@pytest.mark.parametrize("form", ["fp32 out, A^T", "all K"])
def test_forms_of_k(form):
    t, ends = ENDS["odd"]
    check(FORMS[form], "k", ends, t, 72, 200, "random:2", SMALL, nan_outside=True)


def test_many_groups():
    """More than a window of 32, and a CTA that steps over several windows without a tile of its own."""
    sizes = np.random.default_rng(0).integers(0, 4, 130) * (np.arange(130) % 50 < 20)
    ends = np.cumsum(sizes).tolist()
    check(FORMS["bf16"], "m", ends, ends[-1] + 5, 16, 24, "random:3", SMALL)
