"""Every form of the fused epilogue against float64: element types, majors, parts and activations, several schedules."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from tensorladder.problems import DTYPES
from tensorladder.problems.gemm_epilogue import gelu

pytest.importorskip("cutlass")
pytest.importorskip("ml_dtypes")
pytest.importorskip("llvmlite")

from tensorladder.rungs.hopper.c6_epilogue import EpilogueGemmConfig, build
from tensorladder.rungs.parts.form import Form
from tensorladder.vgpu import Device

SMALL = EpilogueGemmConfig(tile=(128, 64, 64), c_stages=1, stages=2, sm_count=3)
ACTIVATIONS = {
    "none": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "gelu": gelu,
    "silu": lambda x: x / (1 + np.exp(-x)),
}
FORMS = [
    (Form("fp16", "fp32"), (300, 264, 200)),
    (Form("bf16", "bf16", "fp32", a_major="mn", b_major="mn", activation="relu"), (304, 264, 200)),
    (Form("fp16", "bf16", bias="fp32", a_major="mn", activation="silu"), (304, 264, 200)),
    (Form("bf16", "fp32", "bf16", "bf16", b_major="mn", activation="gelu"), (130, 72, 72)),
    (Form("fp16", "fp16"), (1, 8, 8)),
]


def make(device, name, shape, dtype, major="k"):
    order = "F" if major == "mn" else "C"
    array = device.memory.empty(name, shape, DTYPES[dtype].numpy, order=order)
    array[...] = np.random.default_rng(len(shape) + ord(name)).standard_normal(shape).astype(array.dtype)
    return array


def run(form, shape, policy, factors=(0.5, -1.5), spoil=False):
    """(C, the float64 reference, a bound of the error of its elements before they are rounded)."""
    m, n, k = shape
    device = Device(arch="sm_90a", policy=policy)
    a, b = make(device, "A", (m, k), form.dtype, form.a_major), make(device, "B", (n, k), form.dtype, form.b_major)
    c = make(device, "C", (m, n), form.out)
    r = make(device, "R", (m, n), form.residual) if form.residual else None
    v = make(device, "V", (n,), form.bias) if form.bias else None
    if spoil:
        r[...] = np.nan
    s = device.memory.empty("S", (2,), np.dtype(np.float32))
    s[...] = factors
    stream = device.stream()
    build("sm_90a", form, SMALL)(stream, a, b, c, r, v, s)
    stream.synchronize()
    a, b = (x.astype(np.float64) for x in (a, b))
    exact, size = factors[0] * (a @ b.T), abs(factors[0]) * (abs(a) @ abs(b).T)
    if r is not None and factors[1]:
        exact, size = exact + factors[1] * r.astype(np.float64), size + abs(factors[1] * r.astype(np.float64))
    if v is not None:
        exact, size = exact + v.astype(np.float64), size + abs(v.astype(np.float64))
    slack = 1.13 * (8 * math.sqrt(k) + 16) * 2.0**-23 * size
    return c.astype(np.float64), ACTIVATIONS[form.activation](exact), slack


@pytest.mark.parametrize(
    ("form", "shape", "policy"),
    [(form, shape, policy) for (form, shape), policy in itertools.product(FORMS, ("lazy", "timed", "random:1"))],
    ids=str,
)
def test_forms(form, shape, policy):
    got, exact, slack = run(form, shape, policy)
    stored = DTYPES[form.out]
    assert (abs(got - exact) <= stored.unit * (abs(exact) + slack) + slack + stored.tiny).all()


def test_a_residual_times_zero_is_not_read():
    got, exact, slack = run(FORMS[1][0], (8, 8, 8), "eager", (1.0, 0.0), spoil=True)
    assert (abs(got - exact) <= 2.0**-8 * abs(exact) + 2 * slack).all()
