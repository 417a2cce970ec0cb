"""Every form of a product by the fused ping-pong kernel against float64: types, majors, batches, scales, gates."""

from __future__ import annotations

import functools
import itertools
import math
import re
from dataclasses import replace

import numpy as np
import pytest

from tensorladder.core.errors import UsageError
from tensorladder.problems import DTYPES
from tensorladder.problems.gemm_epilogue import gelu

pytest.importorskip("cutlass")
pytest.importorskip("ml_dtypes")
pytest.importorskip("llvmlite")

from tensorladder.rungs.hopper import c7_fused_ping_pong as c7
from tensorladder.rungs.hopper.c7_fused_ping_pong import FusedGemmConfig
from tensorladder.rungs.parts.form import Form
from tensorladder.silicon.disassemble import find_nvdisasm, sass
from tensorladder.vgpu import Device

ACTIVATIONS = {
    "none": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "gelu": gelu,
    "silu": lambda x: x / (1 + np.exp(-x)),
}
POLICIES = ("eager", "lazy", "random:1")
build = functools.lru_cache(c7.build)
NARROW_STEP = 2.0**-13  # of a sum of fp8 products, which Hopper keeps 13 fraction bits of


def small(rows, cols, cluster=(1, 1), stages=3, **knobs):
    """Few CTAs and short rings, so that each does many tiles."""
    knobs = {"c_stages": 1, "sm_count": 4, "raster": 2} | knobs
    return FusedGemmConfig((rows, cols, 64), cluster_m=cluster[0], cluster_n=cluster[1], stages=stages, **knobs)


# (form, (M, N, K, L), knobs)
CASES = [
    (Form("fp16", "fp16"), (300, 264, 200, 1), small(128, 64, (2, 1), c_stages=2)),
    (Form("fp16", "fp16"), (1, 8, 8, 1), small(64, 32, (2, 1))),
    (Form("bf16", "bf16", "bf16", "bf16", activation="gelu"), (190, 136, 72, 2), small(64, 96)),
    (Form("fp16", "fp32", "fp16", "fp32", "mn", "mn", "relu"), (136, 200, 136, 3), small(64, 64)),
    (Form("bf16", "fp32", "fp32", b_major="mn"), (70, 264, 200, 1), small(64, 128, (2, 1))),
    (Form("fp16", "fp16", bias="fp16", a_major="mn"), (304, 136, 200, 2), small(128, 32, (1, 2), split="m")),
    (Form("bf16", "bf16", "bf16", activation="silu"), (70, 136, 72, 1), small(64, 64, split="n")),
    (Form("e4m3", "bf16", "", "fp32", scaled=True), (140, 168, 208, 2), small(64, 32, (1, 2))),
    (Form("bf16", "bf16", "bf16", activation="silu", gated=True), (130, 136, 72, 2), small(64, 64, (2, 1))),
    (Form("fp16", "fp32", b_major="mn", gated=True), (140, 136, 72, 1), small(128, 128, split="m")),
    (Form("e5m2", "fp16", activation="relu", scaled=True, gated=True), (70, 72, 144, 1), small(64, 64)),
    (Form("bf16", "bf16", "bf16", "fp32", c_tma=False), (70, 97, 72, 1), small(64, 32)),
    (Form("fp16", "fp32", c_tma=False), (66, 33, 72, 2), small(64, 32, (2, 1))),
    (Form("fp16", "fp16", c_tma=False), (70, 41, 72, 2), small(64, 96)),
    (Form("bf16", "bf16", "bf16", "bf16", activation="gelu"), (190, 136, 72, 2), small(64, 96, swap=True)),
    (Form("fp16", "fp16"), (300, 264, 72, 1), small(64, 64, (2, 2), sm_count=9)),
    (Form("fp16", "fp32", "fp16", "fp32", "mn", "mn", "relu"), (136, 264, 72, 1), small(128, 64, split="m", swap=True)),
    (Form("e4m3", "bf16", "", "fp32", scaled=True), (140, 168, 208, 2), small(64, 32, (1, 2), swap=True)),
    (Form("bf16", "bf16", "bf16", activation="silu", gated=True), (130, 136, 72, 2), small(128, 32, (2, 1), swap=True)),
    (Form("fp16", "fp32", b_major="mn", gated=True), (70, 264, 72, 1), small(256, 64, split="m", stages=2, swap=True)),
    (Form("bf16", "bf16", "bf16", c_tma=False), (41, 97, 72, 2), small(64, 64, swap=True)),
    (Form("bf16", "bf16", bias="bf16", activation="gelu"), (140, 152, 136, 1), small(128, 72, split="m", c_stages=2)),
    (Form("bf16", "fp32"), (140, 152, 136, 1), small(64, 56, (1, 2), swap=True)),
    (Form("e4m3", "fp16", scaled=True, gated=True), (70, 80, 144, 1), small(64, 80)),
    (Form("bf16", "bf16", c_tma=False), (70, 85, 72, 2), small(64, 40)),
    (Form("fp16", "fp16"), (140, 152, 200, 1), small(64, 72, (2, 1))),
    (Form("fp16", "fp16", gated=True), (200, 152, 200, 1), small(64, 112, (4, 1), sm_count=9)),
    (Form("fp16", "fp16", activation="relu", gated=True), (70, 136, 72, 1), small(128, 32, (1, 2), swap=True)),
]

# Rows of C end amid 16 bytes and begin at multiples of them.
PADDED = [
    (Form("bf16", "bf16", "bf16", c_tma=False), (70, 131, 72, 2), small(64, 64)),
    (Form("fp16", "fp32", c_tma=False), (130, 41, 72, 2), small(64, 32, (2, 1))),
    (Form("fp16", "fp16", c_tma=False), (131, 70, 72, 2), small(64, 64, swap=True)),
]


class Bench:
    """One launch: arrays with poison around and in C, the float64 reference and its error bound."""

    def __init__(self, form, shape, policy, factors=(0.5, -1.5), padded=False):
        self.form, (self.m, self.n, self.k, self.l) = form, shape
        # Of rows of C and R: in a longer pitch, not at an aligned address where that is allowed.
        self.around = (0, 16) if form.c_tma else (0, 16 - self.n % 16) if padded else (1, 2)
        self.device = Device(arch="sm_90a", policy=policy)
        self.factors = self.fill("S", (2,), "fp32", factors)
        self.a, self.b = self.matrix("A", self.m, form.a_major), self.matrix("B", self.n, form.b_major)
        self.u = self.matrix("U", self.n, form.b_major) if form.gated else None
        self.c = self.rows("C", form.out)
        self.c[...] = np.nan
        self.r = self.rows("R", form.residual) if form.residual else None
        self.bias = self.fill("V", (self.n,), form.bias) if form.bias else None
        self.p = self.fill("p", (self.m,), "fp32") if form.scaled else None
        self.q = self.fill("q", (self.n,), "fp32") if form.scaled else None

    def fill(self, name, shape, dtype, values=None):
        array = self.device.memory.empty(name, shape, DTYPES[dtype].numpy)
        random = np.random.default_rng(ord(name[0]))
        array[...] = (random.standard_normal(shape) if values is None else np.array(values)).astype(array.dtype)
        return array

    def matrix(self, name, lines, major):
        if major == "k":
            return self.fill(name, (self.l, lines, self.k), self.form.dtype).transpose(1, 2, 0)
        return self.fill(name, (self.l, self.k, lines), self.form.dtype).transpose(2, 1, 0)

    def rows(self, name, dtype):
        """(M, N, L)."""
        ahead, behind = self.around
        array = self.fill(name, (self.l, self.m, ahead + self.n + behind), dtype)
        setattr(self, f"around_{name}", array)
        return array[..., ahead : ahead + self.n].transpose(1, 2, 0)

    def run(self, config):
        around = self.around_C.astype(np.float64)
        stream = self.device.stream()
        program = build("sm_90a", self.form, config)
        program(stream, self.a, self.b, self.u, self.c, self.r, self.bias, self.factors, self.p, self.q)
        stream.synchronize()
        ours = np.zeros(self.around_C.shape, bool)
        ours[..., self.around[0] :][..., : self.n] = True
        np.testing.assert_array_equal(self.around_C.astype(np.float64)[~ours], around[~ours])
        return self.c.astype(np.float64)

    def product(self, right):
        """alpha p q A right^T, and what its error is relative to."""
        a, b = self.a.astype(np.float64), right.astype(np.float64)
        factor = self.factors[0] * np.ones((1, 1, 1))
        if self.p is not None:
            factor = factor * self.p.astype(np.float64)[:, None, None] * self.q.astype(np.float64)[None, :, None]
        exact, size = np.einsum("mkl,nkl->mnl", a, b), np.einsum("mkl,nkl->mnl", abs(a), abs(b))
        step = (math.sqrt(self.k) + 16) * 2.0**-20
        if DTYPES[self.form.dtype].bits == 8:
            step += NARROW_STEP
        return factor * exact, step * abs(factor) * size

    def expected(self):
        """(exact, bound of the error before C is rounded)."""
        act, slope = ACTIVATIONS[self.form.activation], 1.13
        exact, slack = self.product(self.b)
        added = 0 if self.r is None or not self.factors[1] else self.factors[1] * self.r.astype(np.float64)
        if self.form.gated:
            gate, (up, up_slack) = act(exact), self.product(self.u)
            return gate * up + added, slope * slack * (abs(up) + up_slack) + abs(gate) * up_slack + 2e-6 * abs(added)
        bias = 0 if self.bias is None else self.bias.astype(np.float64)[None, :, None]
        return act(exact + added + bias), slope * (slack + 2e-6 * (abs(added) + abs(bias)))


def close(got, bench):
    exact, slack = bench.expected()
    stored = DTYPES[bench.form.out]
    return abs(got - exact) <= stored.unit * (abs(exact) + slack) + slack + 1e-6 * abs(exact) + stored.tiny


@pytest.mark.parametrize(("form", "shape", "config"), CASES, ids=[f"{form.dtype}-{shape}" for form, shape, _ in CASES])
def test_forms(form, shape, config):
    for policy in POLICIES:
        bench = Bench(form, shape, policy)
        got = bench.run(config)
        wrong = ~close(got, bench)
        assert not wrong.any(), f"{policy}: {np.argwhere(wrong)[:4].tolist()} of {shape}"
        exact, _ = bench.expected()
        tolerance = {"fp16": 1e-3, "bf16": 8e-3, "fp32": 2e-5}[form.out] + (DTYPES[form.dtype].bits == 8) * 1e-3
        assert np.linalg.norm(got - exact) <= tolerance * np.linalg.norm(exact)


@pytest.mark.parametrize(("form", "shape", "config"), PADDED, ids=[f"{form.out}-{shape}" for form, shape, _ in PADDED])
def test_rows_that_end_amid_16_bytes_leave_their_padding_alone(form, shape, config):
    for policy in POLICIES:
        bench = Bench(form, shape, policy, padded=True)
        assert close(bench.run(config), bench).all()


def test_a_residual_times_zero_is_not_read():
    form, shape, config = next(case for case in CASES if case[0].residual)
    bench = Bench(form, shape, "eager", factors=(1.0, 0.0))
    bench.r[...] = np.nan
    assert close(bench.run(config), bench).all()


def test_one_factor_for_all_rows_or_columns():
    form, shape, config = next(case for case in CASES if case[0].scaled)
    bench = Bench(form, shape, "eager")
    bench.p, bench.q = (np.broadcast_to(x[:1], x.shape) for x in (bench.p, bench.q))
    assert close(bench.run(config), bench).all()


@pytest.mark.parametrize("columns", [64, 96])  # halves of which a chunk of C divides, or does not
def test_the_residual_may_lie_where_the_result_goes(columns):
    form, shape, config = next(case for case in CASES if case[0].gated and case[0].residual)
    config = replace(config, tile=(64, columns, 64))
    bench = Bench(form, shape, "lazy")
    bench.c[...] = bench.r
    exact, slack = bench.expected()
    bench.r = bench.c
    assert (abs(bench.run(config) - exact) <= 2.0**-8 * abs(exact) + 2 * slack + 1e-5).all()


@pytest.mark.parametrize("policy", ["lazy", "random:1", "timed"])
def test_a_launch_waits_for_what_the_one_before_wrote(policy):
    form, _, config = CASES[1]
    bench = Bench(form, (72, 72, 72, 1), policy)
    program, stream = build("sm_90a", form, config), bench.device.stream()
    chain = [bench.a, *(bench.fill(f"X{i}", (1, 72, 72), "fp16", 0).transpose(1, 2, 0) for i in range(3))]
    for left, right in itertools.pairwise(chain):
        program(stream, left, bench.b, None, right, None, None, bench.fill("S", (2,), "fp32", (0.1, 0)), None, None)
    stream.synchronize()
    for left, right in itertools.pairwise(chain):
        exact = 0.1 * np.einsum("mkl,nkl->mnl", left.astype(np.float64), bench.b.astype(np.float64))
        assert np.linalg.norm(right - exact) <= 1e-3 * np.linalg.norm(exact)


@pytest.mark.parametrize(
    ("form", "knobs", "named"),
    [
        (Form("fp32", "fp32"), {}, "dtype=fp32"),
        (Form("fp16", "e4m3"), {}, "out=e4m3"),
        (Form("e4m3", "fp16", b_major="mn"), {}, "b_major=mn"),
        (Form("fp16", "fp16", bias="fp16", gated=True), {}, "bias=fp16"),
        (Form("fp16", "fp16"), {"tile": (64, 84, 64)}, "multiple of 8"),
        (Form("fp16", "fp16"), {"tile": (128, 104, 64), "split": "n"}, "multiple of 16"),
        (Form("fp16", "fp16"), {"tile": (64, 96, 64), "split": "m"}, "multiple of 128"),
        (Form("fp16", "fp16"), {"tile": (64, 72, 64), "cluster_m": 2, "cluster_n": 2}, "must cut 72 rows"),
        (Form("fp16", "fp16"), {"split": "k"}, "split='k'"),
        (Form("fp16", "fp16", gated=True), {"split": "n"}, "cut along M"),
        (Form("fp16", "fp16", gated=True), {"tile": (64, 72, 64)}, "multiple of 16"),
        (Form("fp16", "fp16", gated=True), {"tile": (64, 64, 128), "stages": 3}, "K must be 64"),
        (Form("fp16", "fp16", a_major="mn"), {"cluster_n": 2, "tile": (64, 128, 64)}, "cluster_n=2"),
        (Form("fp16", "fp16", a_major="mn"), {"swap": True, "tile": (64, 96, 64)}, "B's N is contiguous"),
        (Form("fp16", "fp16", gated=True), {"swap": True, "tile": (64, 96, 64)}, "half of its rows are U's"),
    ],
    ids=str,
)
def test_refusals(form, knobs, named):
    with pytest.raises(UsageError, match=re.escape(named)):
        build("sm_90a", form, FusedGemmConfig(**knobs))


@pytest.mark.skipif(find_nvdisasm() is None, reason="no nvdisasm here")
def test_nothing_is_spilt():
    # 192 accumulators a thread, the most there can be
    knobs = {"stages": 5, "c_stages": 1, "producer_registers": 24, "consumer_registers": 240}
    (module,) = build("sm_90a", Form("bf16", "bf16", "bf16"), FusedGemmConfig((128, 192, 64), **knobs)).modules
    text = sass(module.cubin)
    assert "HGMMA.64x192x16" in text
    assert not re.search(r"\b(LDL|STL)\b", text)
