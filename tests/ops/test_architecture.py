"""Which kernels a call gets on which architecture: what a GPU and the environment say, and products on each of them.

Forms in all variety are in tests/rungs/test_epilogue_arches.py.
"""

from __future__ import annotations

import pytest

from tensorladder.core.errors import UsageError
from tensorladder.ops import architecture, kernels, unmeasured
from tensorladder.ops.architecture import Virtual
from tensorladder.ops.choose import choose, rank
from tensorladder.ops.models import MODELS
from tensorladder.rungs.parts.form import Form

KERNEL = {"sm_80": "b9", "sm_120": "b9", "sm_100a": "d5"}


@pytest.mark.parametrize(
    ("capability", "arch"),
    [((8, 0), "sm_80"), ((8, 9), "sm_80"), ((9, 0), "sm_90a"), ((10, 0), "sm_100a"), ((12, 0), "sm_120"),
     ((12, 1), "sm_120")],
)  # fmt: skip
def test_of_a_gpu(capability, arch):
    assert architecture.of_gpu(capability) == arch


@pytest.mark.parametrize("capability", [(7, 5), (9, 1), (10, 3), (11, 0), (13, 0)])
def test_gpus_without_kernels(capability):
    with pytest.raises(UsageError, match=rf"compute capability {capability[0]}\.{capability[1]}: .*8\.x, 9\.0, 10\.0"):
        architecture.of_gpu(capability)


@pytest.mark.parametrize(
    ("device", "arch", "found"),
    [
        ("", "sm_80", None),
        ("cuda", "", None),
        ("vgpu", "", Virtual("sm_90a", "eager")),
        ("vgpu:lazy", "sm_100a", Virtual("sm_100a", "lazy")),
        ("VGPU@SM_80:random:7", "sm_100a", Virtual("sm_80", "random:7")),
        ("vgpu@sm_86", "", Virtual("sm_80", "eager")),
        ("vgpu@sm_120a:timed", "", Virtual("sm_120", "timed")),
    ],
)
def test_the_virtual_gpu_asked_for(monkeypatch, device, arch, found):
    monkeypatch.setenv("TENSORLADDER_DEVICE", device)
    monkeypatch.setenv("TENSORLADDER_ARCH", arch)
    assert architecture.virtual() == found


@pytest.mark.parametrize(
    ("device", "arch", "named"),
    [
        ("vgpu@sm_75", "", "TENSORLADDER_DEVICE.*sm_75.*sm_80, sm_90a, sm_100a, sm_120"),
        ("vgpu@sm_103a", "", "TENSORLADDER_DEVICE.*sm_103a"),
        ("vgpu", "hopper", "TENSORLADDER_ARCH.*'hopper'.*sm_90a"),
        ("vgpu@", "", "TENSORLADDER_DEVICE.*''"),
        ("gpu@sm_80", "", "TENSORLADDER_DEVICE='gpu@sm_80'"),
        ("vgpu:sometimes", "", "sometimes"),
    ],
)
def test_refused_in_one_line(monkeypatch, device, arch, named):
    monkeypatch.setenv("TENSORLADDER_DEVICE", device)
    monkeypatch.setenv("TENSORLADDER_ARCH", arch)
    with pytest.raises(UsageError, match=named) as refusal:
        architecture.virtual()
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("arch", KERNEL)
def test_every_candidate_has_possible_knobs(arch):
    pytest.importorskip("cutlass")
    forms = [Form("bf16", "fp32"), Form("fp16", "fp16", a_major="mn", b_major="mn"), Form("bf16", "bf16", gated=True)]
    for form in forms:
        found = rank(4096, 4096, 4096, 1, form, 100, arch)
        assert found and {one.kernel for one in found} == {KERNEL[arch]}
        for one in found:
            rung = kernels.find(one.kernel).rung()
            rung.check_config(kernels.config(one, 100), "sm_86" if arch == "sm_80" else arch, form)


def test_large_products_have_large_tiles():
    plain = Form("bf16", "bf16")
    assert dict(choose(8192, 8192, 8192, 1, plain, 108, "sm_80").knobs)["tile"] == (128, 128, 32)
    assert dict(choose(64, 4096, 4096, 1, plain, 108, "sm_80").knobs)["tile"][0] <= 64
    assert dict(choose(3, 4096, 4096, 1, plain, 108, "sm_80").knobs)["tile"][0] == 16
    assert dict(choose(8192, 8192, 8192, 1, plain, 148, "sm_100a").knobs)["tile"] == (256, 256, 64)
    assert dict(choose(64, 4096, 4096, 1, plain, 148, "sm_100a").knobs)["tile"][1] == 64


def test_kernels_for_other_gpus_are_not_chosen_on_an_sm_90():
    assert {one.kernel for one in rank(512, 512, 512, 1, Form("bf16", "bf16"), 132)} == {"c7", "c8"}
    assert set(KERNEL.values()) <= set(MODELS) and unmeasured.B9


def test_what_an_architecture_has_no_kernel_for():
    with pytest.raises(UsageError, match="no kernel for sm_80 does this: e4m3 to bf16 with scales"):
        choose(64, 64, 64, 1, Form("e4m3", "bf16", scaled=True), 108, "sm_80")
    with pytest.raises(UsageError, match=r"config: .*sm_90a, not for sm_80"):
        pytest.importorskip("cutlass")
        c7 = kernels.find("c7").rung()
        kernels.build("sm_80", Form("bf16", "bf16"), c7.FusedGemmConfig())


@pytest.mark.parametrize("device", ["vgpu@sm_80:random:1", "vgpu@sm_120", "vgpu@sm_100a:lazy"])
def test_products(monkeypatch, device):
    torch = pytest.importorskip("torch")
    pytest.importorskip("cutlass")
    pytest.importorskip("llvmlite")
    import tensorladder

    monkeypatch.setenv("TENSORLADDER_DEVICE", device)
    torch.manual_seed(0)
    x, weight, bias = torch.randn(2, 35, 72).half(), torch.randn(131, 72).half(), torch.randn(131).half()
    added = torch.randn(2, 35, 131).half()
    got = tensorladder.matmul(x, weight.t(), bias=bias, residual=added, beta=-2.0, activation="relu")
    exact = torch.relu(x.double() @ weight.double().t() + bias.double() - 2 * added.double())
    assert got.shape == exact.shape and (got.double() - exact).norm() <= 2.0**-10 * exact.norm()


@pytest.mark.parametrize("device", ["vgpu@sm_80", "vgpu@sm_100a:random:3"])
def test_gated_products(monkeypatch, device):
    torch = pytest.importorskip("torch")
    pytest.importorskip("cutlass")
    pytest.importorskip("llvmlite")
    import tensorladder

    monkeypatch.setenv("TENSORLADDER_DEVICE", device)
    torch.manual_seed(0)
    x, weight = torch.randn(2, 35, 72).half(), torch.randn(128, 72).half()
    got = tensorladder.swiglu(x, torch.cat([weight, weight.flip(0)]).t(), out_dtype=torch.float32)
    gate, up = x.double() @ weight.double().t(), x.double() @ weight.flip(0).double().t()
    exact = torch.nn.functional.silu(gate) * up
    assert got.shape == (2, 35, 128) and (got.double() - exact).norm() <= 2.0**-16 * exact.norm()


def test_8_bit_operands_are_for_blackwell(monkeypatch):
    torch = pytest.importorskip("torch")
    pytest.importorskip("cutlass")
    pytest.importorskip("llvmlite")
    import tensorladder

    monkeypatch.setenv("TENSORLADDER_DEVICE", "vgpu@sm_100a:random:2")
    torch.manual_seed(0)
    a, b = torch.randn(40, 96).to(torch.float8_e4m3fn), torch.randn(48, 96).to(torch.float8_e4m3fn)
    scale_a, scale_b = torch.rand(40, 1), torch.rand(1, 48)
    got = tensorladder.matmul(a, b.t(), scale_a=scale_a, scale_b=scale_b, out_dtype=torch.bfloat16)
    exact = scale_a.double() * (a.double() @ b.double().t()) * scale_b.double()
    assert (got.double() - exact).norm() <= 2.0**-8 * exact.norm()
    monkeypatch.setenv("TENSORLADDER_DEVICE", "vgpu@sm_80")
    with pytest.raises(UsageError, match="no kernel for sm_80 does this: e4m3 to bf16"):
        tensorladder.matmul(a, b.t(), scale_a=scale_a, scale_b=scale_b, out_dtype=torch.bfloat16)


def test_grouped_products_are_for_hopper(monkeypatch):
    torch = pytest.importorskip("torch")
    import tensorladder

    monkeypatch.setenv("TENSORLADDER_DEVICE", "vgpu@sm_80")
    ends = torch.tensor([8, 16], dtype=torch.int32)
    with pytest.raises(UsageError, match="grouped_matmul has a kernel for sm_90a alone, not for sm_80"):
        tensorladder.grouped_matmul(torch.ones(16, 8).half(), torch.ones(2, 8, 8).half(), ends)
