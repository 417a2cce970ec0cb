"""The table of kernels, and the choice among them by extents and form."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorladder.core.errors import UsageError
from tensorladder.ops import kernels
from tensorladder.ops.choose import ARCH, BUSY, MODELS, choose, fitting, order, ordered, predicted, rank
from tensorladder.ops.kernels import KERNELS, Product
from tensorladder.ops.learnt import SMS
from tensorladder.rungs.parts.form import Form

PLAIN = Form("bf16", "bf16")
NARROW = [Form("e4m3", out, scaled=scaled) for out in ("bf16", "fp32") for scaled in (False, True)]
FORMS = NARROW + [
    Form(dtype, out, residual, "" if gated else bias, a_major, b_major, activation, gated=gated, c_tma=c_tma)
    for dtype, out, residual, bias, (a_major, b_major), activation, gated, c_tma in itertools.product(
        ("fp16", "bf16"), ("bf16", "fp32"), ("", "fp16"), ("", "fp32"), itertools.product(("k", "mn"), repeat=2),
        ("none", "gelu"), (False, True), (False, True),
    )
]  # fmt: skip
EXTENT = st.integers(1, 40000) | st.sampled_from([1, 2**31 - 1])


def tile(*shape):
    return dict(choose(*shape, 1, PLAIN, 132).knobs)["tile"][:2]


def test_choices():
    assert math.prod(tile(8192, 8192, 8192)) >= 128 * 128
    assert max(tile(64, 512, 4096)) <= 64  # many CTAs
    assert tile(1024, 1024, 1024)[0] * tile(1024, 1024, 1024)[1] <= 8192  # 132 SMs all have one


@settings(max_examples=200, deadline=None)
@given(EXTENT, EXTENT, EXTENT, st.integers(1, 100), st.sampled_from(FORMS), st.integers(1, 200))
def test_any_product_has_a_choice_and_it_is_the_fastest_by_the_models(m, n, k, l, form, sms):
    product, found = Product(m, n, k, l, form), choose(m, n, k, l, form, sms)
    assert KERNELS[found.kernel].takes(product)
    ranked = rank(m, n, k, l, form, sms)
    assert found == ranked[0] and len(set(ranked)) == len(ranked)
    times = predicted(ranked, product, sms)
    wide = form.dtype in ("fp16", "bf16")
    busy = wide and l == 1 and sms == SMS and m * n * (1 + form.gated) * k / min(times) > BUSY
    assert (busy or times == sorted(times)) and 0 < times[0] <= 1.1 * min(times) < math.inf
    here = [name for name in MODELS if ARCH in KERNELS[name].archs and KERNELS[name].takes(product)]
    assert set(ranked) == {one for name in here for one in fitting(name, form)}


@pytest.mark.parametrize("rate, expected", [(0.99 * BUSY, [0, 1, 2, 3]), (1.01 * BUSY, [2, 0, 1, 3])])
def test_at_the_limit_of_power_traffic_counts_besides(rate, expected):
    assert order([100.0, 100.5, 101.0, 103.0], [2.6, 2.62, 2.0, 2.0], rate) == expected


@pytest.mark.parametrize(
    "dtype, l, sms, arch, weighed",
    [("bf16", 1, SMS, ARCH, True), ("fp16", 1, SMS, ARCH, True), ("e4m3", 1, SMS, ARCH, False),
     ("bf16", 2, SMS, ARCH, False), ("bf16", 1, 114, ARCH, False), ("bf16", 1, SMS, "sm_100a", False)],
)  # fmt: skip
def test_energy_counts_only_where_it_was_measured(dtype, l, sms, arch, weighed):
    product = Product(4096, 4096, 14336, l, Form(dtype, "bf16"))
    narrow, wide = (
        next(one for one in fitting("c7", PLAIN) if dict(one.knobs)["tile"][:2] == tile)
        for tile in ((128, 112), (128, 256))
    )
    us = 4096 * 4096 * 14336 / (2 * BUSY)
    assert ordered({narrow: us, wide: 1.01 * us}, product, sms, arch)[0] == (wide if weighed else narrow)


def test_choosing_again_costs_nothing():
    choose(777, 6400, 1600, 1, PLAIN, 132)
    before = rank.cache_info().hits
    start = time.perf_counter()
    for _ in range(1000):
        choose(777, 6400, 1600, 1, PLAIN, 132)
    assert rank.cache_info().hits == before + 1000 and time.perf_counter() - start < 0.1


def test_what_no_kernel_does_is_one_line():
    with pytest.raises(UsageError, match=r"^no kernel for sm_70 does this: bf16 to bf16$"):
        choose(8, 8, 8, 1, PLAIN, 132, "sm_70")


@pytest.mark.parametrize("name", MODELS)
def test_every_candidate_for_a_form_is_a_legal_config_of_its_kernel(name):
    pytest.importorskip("cutlass")
    kernel = KERNELS[name]
    offered = 0
    for form in {dataclasses.replace(form, activation="none", bias="") for form in FORMS}:
        if not kernel.takes(Product(64, 64, 64, 1, form)):
            continue
        for one in fitting(name, form):
            config = kernels.config(one, 132)
            assert one.kernel == name and kernels.of(config) is kernel and getattr(config, "sm_count", 132) == 132
            kernel.rung().check_config(config, kernel.archs[0], form)
            offered += 1
    assert offered >= len(MODELS[name].candidates)


def test_a_config_of_no_kernel_is_refused():
    @dataclasses.dataclass(frozen=True)
    class Other:
        sm_count: int = 1

    with pytest.raises(UsageError, match=r"^config: Other: it takes "):
        kernels.of(Other())
    with pytest.raises(UsageError, match=r"^kernel 'c0' is not known: use one of "):
        kernels.find("c0")


def test_the_digest_is_the_one_that_packs_have():
    from tensorladder.measure.pack import source_digest
    from tensorladder.rungs import rung

    for name in KERNELS:
        assert kernels.source_digest(name) == source_digest(rung.find(name))
