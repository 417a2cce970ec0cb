"""The table of kernels, and the choice among them by extents and form."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorladder.core.errors import UsageError
from tensorladder.ops import kernels
from tensorladder.ops.choose import MODELS, choose, clocks, rank
from tensorladder.ops.kernels import KERNELS, Product
from tensorladder.rungs.parts.form import Form

PLAIN = Form("bf16", "bf16")
FORMS = [
    Form(dtype, out, residual, bias, a_major, b_major, activation)
    for dtype, out, residual, bias, (a_major, b_major), activation in itertools.product(
        ("fp16", "bf16"), ("fp16", "fp32"), ("", "bf16"), ("", "fp32"), (("k", "k"), ("mn", "mn")), ("none", "gelu")
    )
]
EXTENT = st.integers(1, 40000) | st.sampled_from([1, 2**31 - 1])


@pytest.mark.parametrize(("shape", "tile"), [((8192, 8192, 8192), (128, 256)), ((64, 512, 4096), (64, 64))])
def test_choices(shape, tile):
    assert dict(choose(*shape, 1, PLAIN, 132).knobs)["tile"][:2] == tile


@settings(max_examples=200, deadline=None)
@given(EXTENT, EXTENT, EXTENT, st.sampled_from(FORMS), st.integers(1, 200))
def test_any_product_has_a_choice_and_it_is_the_fewest_clocks(m, n, k, form, sms):
    product, found = Product(m, n, k, 1, form), choose(m, n, k, 1, form, sms)
    assert KERNELS[found.kernel].takes(product)
    fitting = [one for name, model in MODELS.items() if KERNELS[name].takes(product) for one in model.candidates]
    assert clocks(found, product, sms) == min(clocks(one, product, sms) for one in fitting)
    assert sorted(rank(m, n, k, 1, form, sms)) == sorted(fitting)


def test_what_no_kernel_does_is_one_line():
    with pytest.raises(UsageError, match=r"^no kernel for sm_70 does this: bf16 to bf16$"):
        choose(8, 8, 8, 1, PLAIN, 132, "sm_70")


def test_every_candidate_is_a_legal_config_of_its_kernel():
    pytest.importorskip("cutlass")
    for name, model in MODELS.items():
        for one in model.candidates:
            config = kernels.config(one, 132)
            assert one.kernel == name and kernels.of(config) is KERNELS[name] and config.sm_count == 132
            form = () if KERNELS[name].flat else (Form("fp16", "fp16"),)
            KERNELS[name].rung().check_config(config, KERNELS[name].archs[0], *form)


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
