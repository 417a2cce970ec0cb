"""Products with K split over a cluster: every split, extents that no tile divides, several schedules, the same bits."""

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

from tensorladder.measure.run import run_rung
from tensorladder.rungs.hopper.c8_split_k import SplitKGemmConfig as Config
from tensorladder.rungs.hopper.c8_split_k import build
from tensorladder.rungs.parts.form import Form
from tensorladder.rungs.rung import find
from tensorladder.vgpu import Device

POLICIES = ("eager", "lazy", "random:1")
# Every split; extents that no tile divides; K of less tiles than parts; several tiles a cluster; several passes.
CASES = [
    (Config((64, 8, 64), split=1, stages=3, sm_count=3), (1, 200, 136)),
    (Config((64, 8, 64), split=2, stages=2, sm_count=4), (7, 321, 264)),
    (Config((64, 16, 128), split=3, stages=2, sm_count=6), (33, 130, 520)),
    (Config((64, 32, 64), split=4, stages=4, sm_count=8), (33, 129, 72)),
    (Config((64, 8, 64), split=5, stages=2, sm_count=5), (9, 100, 1000)),
    (Config((128, 24, 64), split=6, stages=3, warpgroups=2, sm_count=6), (24, 131, 648)),
    (Config((64, 32, 64), split=7, stages=2, sm_count=14), (33, 64, 8)),
    (Config((64, 32, 64), split=8, stages=2, sm_count=8), (31, 67, 1032)),
    (Config((128, 64, 64), split=2, stages=2, passes=4, sm_count=4), (70, 200, 328)),
    (Config((128, 64, 64), split=2, share=2, stages=2, warpgroups=2, sm_count=4), (70, 300, 328)),
    (Config((128, 160, 64), split=4, stages=2, warpgroups=2, passes=4, sm_count=8), (170, 140, 520)),
    (Config((64, 224, 64), split=3, stages=2, passes=4, sm_count=6), (230, 70, 392)),
]


@pytest.mark.parametrize(("config", "shape"), CASES, ids=str)
def test_every_split_is_right_and_the_same_under_every_schedule(config, shape):
    results = {policy: run_rung(find("c8"), shape=shape, config=config, policy=policy) for policy in POLICIES}
    for policy, result in results.items():
        assert result.ok, (policy, result.message)
    assert len({result.digest for result in results.values()}) == 1


def test_fp8():
    config = Config((64, 16, 64), split=4, stages=2, sm_count=4)
    assert run_rung(find("c8"), shape=(5, 72, 1040), dtype="e4m3", config=config, policy="lazy").ok


ACTIVATIONS = {
    "none": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "gelu": gelu,
    "silu": lambda x: x / (1 + np.exp(-x)),
}
NARROW = Config((64, 16, 64), split=3, stages=2, sm_count=6)
WIDE = Config((128, 64, 64), split=2, stages=2, warpgroups=2, passes=2, sm_count=4)
FORMS = [
    (Form("fp16", "fp32", c_tma=False), NARROW, (20, 131, 200, 1)),
    (Form("bf16", "bf16", "fp32", "bf16", activation="relu", c_tma=False), NARROW, (7, 77, 264, 2)),
    (Form("bf16", "fp16", "fp16", "fp32", b_major="mn", activation="gelu", c_tma=False), NARROW, (33, 136, 72, 1)),
    (Form("fp16", "bf16", "bf16", a_major="mn", b_major="mn", activation="silu", c_tma=False), WIDE, (72, 264, 136, 2)),
    (Form("bf16", "bf16", "bf16", activation="silu", gated=True, c_tma=False), NARROW, (20, 70, 264, 2)),
    (
        Form("fp16", "fp16", b_major="mn", activation="gelu", scaled=True, gated=True, c_tma=False),
        WIDE,
        (9, 136, 200, 1),
    ),
    (Form("bf16", "fp32", gated=True, c_tma=False), Config((64, 16, 128), sm_count=4), (9, 70, 520, 1)),
    (Form("e4m3", "bf16", bias="bf16", scaled=True, c_tma=False), NARROW, (17, 90, 272, 2)),
    (Form("e4m3", "fp32", activation="silu", scaled=True, gated=True, c_tma=False), WIDE, (65, 90, 272, 1)),
]


class Arrays:
    """Operands of a form on a virtual GPU, drawn from a seed, rows of C and R further apart than they are long."""

    def __init__(self, form, shape, policy):
        m, n, k, batches = shape
        self.device = Device(arch="sm_90a", policy=policy)
        self.generator = np.random.default_rng(sum(shape))
        self.A = self.operand("A", m, k, batches, form.dtype, form.a_major)
        self.B = self.operand("B", n, k, batches, form.dtype, form.b_major)
        self.U = self.operand("U", n, k, batches, form.dtype, form.b_major) if form.gated else None
        self.around = self.drawn("C", (batches, m, n + 3), form.out)  # C, and what must stay as it is
        self.C = self.around[:, :, :n].transpose(1, 2, 0)
        self.C[...] = np.nan
        self.R = self.drawn("R", (batches, m, n + 3), form.residual) if form.residual else None
        self.R = self.R[:, :, :n].transpose(1, 2, 0) if form.residual else None
        self.V = self.drawn("V", (n,), form.bias) if form.bias else None
        self.S = self.drawn("S", (2,), "fp32")
        self.S[...] = 0.5, -1.5
        self.p = self.drawn("p", (m,), "fp32") if form.scaled else None
        self.q = self.drawn("q", (n,), "fp32") if form.scaled else None

    def drawn(self, name, shape, dtype):
        array = self.device.memory.empty(name, shape, DTYPES[dtype].numpy)
        array[...] = self.generator.standard_normal(shape).astype(array.dtype)
        return array

    def operand(self, name, rows, k, batches, dtype, major):
        if major == "k":
            return self.drawn(name, (batches, rows, k), dtype).transpose(1, 2, 0)
        return self.drawn(name, (batches, k, rows), dtype).transpose(2, 1, 0)

    def all(self):
        return self.A, self.B, self.U, self.C, self.R, self.V, self.S, self.p, self.q


def reference(form, arrays):
    """(C in float64, a bound of the error of its elements before they are rounded)."""
    a, b, u, _, r, v, s, p, q = (None if x is None else x.astype(np.float64) for x in arrays.all())
    scale = s[0] * (np.outer(p, q)[..., None] if form.scaled else 1.0)
    steps = (8 * math.sqrt(a.shape[1]) + 16) * 2.0**-23 + (2.0**-9 if form.dtype == "e4m3" else 0)

    def product(x, y):
        return np.einsum("mkl,nkl->mnl", x, y)

    exact, size = scale * product(a, b), abs(scale) * product(abs(a), abs(b))
    activation = ACTIVATIONS[form.activation]
    rest, added = 0.0, 0.0
    if r is not None:
        rest, added = rest + s[1] * r, added + abs(s[1] * r)
    if v is not None:
        rest, added = rest + v[None, :, None], added + abs(v)[None, :, None]
    if not form.gated:
        return activation(exact + rest), 1.13 * steps * (size + added)
    up, up_size = scale * product(a, u), abs(scale) * product(abs(a), abs(u))
    slack = 1.13 * steps * (size * abs(up) + abs(activation(exact)) * up_size + added)
    return activation(exact) * up + rest, slack


@pytest.mark.parametrize(
    ("form", "config", "shape", "policy"),
    [(*one, policy) for one, policy in zip(FORMS, itertools.cycle(("lazy", "random:1", "timed")))],
    ids=str,
)
def test_forms(form, config, shape, policy):
    arrays = Arrays(form, shape, policy)
    around = arrays.around[:, :, shape[1] :].copy()
    stream = arrays.device.stream()
    build("sm_90a", form, config)(stream, *arrays.all())
    stream.synchronize()
    exact, slack = reference(form, arrays)
    stored = DTYPES[form.out]
    assert (abs(arrays.C.astype(np.float64) - exact) <= stored.unit * (abs(exact) + slack) + slack + stored.tiny).all()
    assert arrays.around[:, :, shape[1] :].tobytes() == around.tobytes()
