"""Kernels of the product for the other architectures: every form against float64, odd extents and pitches, several
schedules. b9 where there is warp MMA (sm_80, sm_120a), d5 on sm_100a."""

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

from tensorladder.core.errors import UsageError
from tensorladder.rungs.ampere import b9_epilogue as b9
from tensorladder.rungs.blackwell import d5_epilogue as d5
from tensorladder.rungs.parts.form import Form
from tensorladder.vgpu import Device

SMALL = b9.WarpEpilogueGemmConfig(tile=(64, 128, 32), warps_m=1, warps_n=2, stages=3)
ACTIVATIONS = {
    "none": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "gelu": gelu,
    "silu": lambda x: x / (1 + np.exp(-x)),
}
FACTORS = (0.5, -1.5)
POISON = 7.0

#: (M, N, K, L), most of them odd: what is contiguous of A and B has a pitch of 16 elements, C and R any
PLAIN = Form("fp16", "fp32")
FORMS = [
    (PLAIN, (75, 131, 77, 1)),
    (PLAIN, (1, 1, 1, 1)),
    (Form("bf16", "bf16", "fp32", a_major="mn", b_major="mn", activation="relu"), (69, 136, 45, 1)),
    (Form("fp16", "bf16", bias="fp32", a_major="mn", activation="silu"), (70, 129, 32, 2)),
    (Form("fp16", "fp16", "fp16", "fp16", activation="gelu", scaled=True), (133, 200, 104, 3)),
    (Form("bf16", "bf16", "bf16", b_major="mn", activation="silu", scaled=True, gated=True), (66, 99, 50, 2)),
]


def array(device, name, shape, dtype, major="k", pad=0, align=1):
    """An operand of extents (rows, columns, batches) or (extent,), normal values; rows a multiple of `align` apart."""
    numbers = np.random.default_rng(ord(name)).standard_normal(shape)
    if len(shape) == 1:
        made = device.memory.empty(name, shape, DTYPES[dtype].numpy)
        made[...] = numbers.astype(made.dtype)
        return made
    lines, extent = shape[:2] if major == "k" else shape[1::-1]
    pitch = -(-(extent + pad) // align) * align
    memory = device.memory.empty(name, (shape[2], lines, pitch), DTYPES[dtype].numpy)
    memory[...] = np.asarray(POISON).astype(memory.dtype)
    made = memory[:, :, :extent].transpose((1, 2, 0) if major == "k" else (2, 1, 0))
    made[...] = numbers.astype(made.dtype)
    return made


def behind_rows(matrix):
    """What lies between the rows of a padded matrix (rows, columns, batches)."""
    rows, cols, batches = matrix.shape
    pitch = matrix.strides[0] // matrix.itemsize
    return np.lib.stride_tricks.as_strided(matrix, (rows, pitch, batches), matrix.strides)[:, cols:]


def exactly(form, given, factors):
    """(The result in float64, the sum of magnitudes that float32 roundings are relative to)."""
    alpha, beta = factors
    wide = {name: None if x is None else x.astype(np.float64) for name, x in given.items()}

    def product(right, sign):
        left = wide["A"] if sign else abs(wide["A"])
        total = np.einsum("mkl,nkl->mnl", left, right if sign else abs(right)) * (alpha if sign else abs(alpha))
        if form.scaled:
            total = total * wide["p"][:, None, None] * wide["q"][None, :, None]
        return total

    acc, size = product(wide["B"], True), abs(product(wide["B"], False))
    activation = ACTIVATIONS[form.activation]
    if form.gated:
        up, up_size = product(wide["U"], True), abs(product(wide["U"], False))
        acc, size = activation(acc) * up, size * abs(up) + abs(acc) * up_size
    if wide["R"] is not None and beta:
        acc, size = acc + beta * wide["R"], size + abs(beta * wide["R"])
    if wide["bias"] is not None:
        acc, size = acc + wide["bias"][None, :, None], size + abs(wide["bias"])[None, :, None]
    return acc if form.gated else activation(acc), size


def run(build, config, arch, form, shape, policy, factors=FACTORS, pad=3, align=1, spoil=False):
    """Run the form; the elements within bounds and nothing written outside."""
    m, n, k, batches = shape
    device = Device(arch=arch, policy=policy)
    given = {
        "A": array(device, "A", (m, k, batches), form.dtype, form.a_major, align=16),
        "B": array(device, "B", (n, k, batches), form.dtype, form.b_major, align=16),
        "U": array(device, "U", (n, k, batches), form.dtype, form.b_major, align=16) if form.gated else None,
        "C": array(device, "C", (m, n, batches), form.out, pad=pad, align=align),
        "R": array(device, "R", (m, n, batches), form.residual, pad=pad, align=align) if form.residual else None,
        "bias": array(device, "V", (n,), form.bias) if form.bias else None,
        "S": array(device, "S", (2,), "fp32"),
        "p": array(device, "p", (m,), "fp32") if form.scaled else None,
        "q": array(device, "q", (n,), "fp32") if form.scaled else None,
    }
    given["S"][...] = factors
    if spoil:
        given["R"][...] = np.nan
    given["C"][...] = np.nan
    stream = device.stream()
    build(arch, form, config)(stream, *given.values())
    stream.synchronize()
    got = given["C"].astype(np.float64)
    exact, size = exactly(form, given, factors)
    assert (behind_rows(given["C"]).astype(np.float32) == POISON).all()
    slack = 1.13 * (8 * math.sqrt(k) + 24) * 2.0**-23 * size
    stored = DTYPES[form.out]
    assert np.linalg.norm(got - exact) <= 2 * stored.unit * np.linalg.norm(exact) + np.linalg.norm(slack)
    assert (abs(got - exact) <= stored.unit * (abs(exact) + slack) + slack + stored.tiny).all()


@pytest.mark.parametrize(
    ("form", "shape", "policy"),
    [(form, shape, policy) for (form, shape), policy in itertools.product(FORMS, ("eager", "lazy", "random:1"))],
    ids=str,
)
def test_forms_of_warp_mma(form, shape, policy):
    run(b9.build, SMALL, "sm_80", form, shape, policy)


PAIRS = d5.PairEpilogueGemmConfig(tile=(256, 128, 64), stages=2, buffers=2, sm_count=4)
PAIR_FORMS = [
    (PLAIN, (300, 268, 136, 1)),
    (PLAIN, (1, 8, 1, 1)),
    (Form("bf16", "bf16", "fp32", a_major="mn", b_major="mn", activation="relu"), (69, 136, 45, 2)),
    (Form("e4m3", "bf16", "bf16", "fp32", scaled=True, activation="gelu"), (258, 160, 144, 1)),
    (Form("bf16", "bf16", "bf16", b_major="mn", activation="silu", scaled=True, gated=True), (66, 104, 50, 2)),
    (Form("fp16", "bf16", "fp16", bias="fp16", c_tma=False), (130, 67, 70, 3)),
]


@pytest.mark.parametrize(
    ("form", "shape", "policy"),
    [(form, shape, policy) for (form, shape), policy in itertools.product(PAIR_FORMS, ("eager", "lazy", "random:1"))],
    ids=str,
)
def test_forms_of_pairs(form, shape, policy):
    pad = {"pad": 8, "align": 8} if form.c_tma else {}
    run(d5.build, PAIRS, "sm_100a", form, shape, policy, **pad)


@pytest.mark.parametrize(
    ("build", "config", "arch"), [(b9.build, SMALL, "sm_80"), (d5.build, PAIRS, "sm_100a")], ids=["b9", "d5"]
)
def test_a_residual_times_zero_is_not_read(build, config, arch):
    form = Form("bf16", "bf16", "fp32", a_major="mn", b_major="mn", activation="relu")
    run(build, config, arch, form, (8, 8, 8, 1), "eager", (1.0, 0.0), pad=8, align=8, spoil=True)


def test_few_rows():
    """A tile of 16 rows, four warps side by side."""
    config = b9.WarpEpilogueGemmConfig(tile=(16, 128, 64), warps_m=1, warps_n=4, stages=5)
    form = Form("bf16", "bf16", b_major="mn", activation="silu", gated=True)
    run(b9.build, config, "sm_80", form, (19, 131, 200, 1), "random:2")


@pytest.mark.parametrize("policy", ["eager", "random:4"])
@pytest.mark.parametrize(
    ("build", "config", "arch"), [(b9.build, SMALL, "sm_90a"), (d5.build, PAIRS, "sm_100a")], ids=["b9", "d5"]
)
def test_a_dependent_launch_waits_for_the_operand_that_the_one_before_makes(build, config, arch, policy):
    device, form = Device(arch=arch, policy=policy), Form("fp16", "fp16")
    a, b, c, d = (array(device, name, (64, 64, 1), "fp16") for name in "ABCD")
    s = array(device, "S", (2,), "fp32")
    s[...] = (0.125, 0.0)
    c[...], d[...] = np.nan, np.nan
    stream, program = device.stream(), build(arch, form, config)
    program(stream, a, b, None, c, None, None, s, None, None)
    program(stream, c, b, None, d, None, None, s, None, None)
    stream.synchronize()
    first = (0.125 * a[..., 0].astype(np.float64) @ b[..., 0].astype(np.float64).T).astype(np.float16)
    exact = 0.125 * first.astype(np.float64) @ b[..., 0].astype(np.float64).T
    assert np.linalg.norm(d[..., 0] - exact) <= 2.0**-9 * np.linalg.norm(exact)


@pytest.mark.parametrize("cluster", [(4, 1), (2, 2)])
def test_clusters_of_pairs_share_their_operands(cluster):
    """B's tile, or U's, is multicast along M; A's along N."""
    form = Form("bf16", "bf16", "bf16", b_major="mn", activation="silu", scaled=True, gated=True)
    config = d5.PairEpilogueGemmConfig(tile=(256, 256, 64), stages=2, buffers=2, sm_count=8, cluster=cluster)
    run(d5.build, config, "sm_100a", form, (600, 264, 136, 1), "random:3", pad=8, align=8)


@pytest.mark.parametrize(
    ("knobs", "form", "named"),
    [
        ({"tile": (128, 48, 32)}, PLAIN, "tile=.*N must be a multiple of 32"),
        ({"tile": (32, 128, 64)}, Form("fp16", "fp16", a_major="mn"), "tile=.*M must be a multiple of 64"),
        ({"tile": (128, 96, 32)}, Form("fp16", "fp16", gated=True), "tile=.*N must be a multiple of 64"),
        ({"stages": 12}, PLAIN, "stages=12: .* bytes of shared memory, sm_80 has"),
        ({}, Form("e4m3", "fp16"), "dtype=e4m3: operands are fp16, bf16"),
        ({}, Form("fp16", "fp16", bias="fp16", gated=True), "bias=fp16: a gated product has none"),
    ],
)
def test_impossible_knobs_of_warp_mma(knobs, form, named):
    with pytest.raises(UsageError, match=named):
        b9.build("sm_80", form, b9.WarpEpilogueGemmConfig(**knobs))


@pytest.mark.parametrize(
    ("knobs", "form", "named"),
    [
        ({"tile": (128, 256, 64)}, PLAIN, "tile=.*M must be 256"),
        ({"tile": (256, 64, 64)}, Form("fp16", "fp16", b_major="mn"), "tile=.*N must be a multiple of 128"),
        ({"cluster": (3, 1)}, PLAIN, "cluster=.*whole pairs"),
        ({"cluster": (4, 1), "tile": (256, 128, 64)}, Form("fp16", "fp16", b_major="mn"), "cluster=.*whole swizzles"),
        ({"stages": 8}, PLAIN, "stages=8: .* bytes of shared memory, sm_100a has"),
        ({}, Form("e4m3", "bf16", b_major="mn"), "b_major=mn: e4m3 is read along K alone"),
    ],
)
def test_impossible_knobs_of_pairs(knobs, form, named):
    with pytest.raises(UsageError, match=named):
        d5.build("sm_100a", form, d5.PairEpilogueGemmConfig(**knobs))
