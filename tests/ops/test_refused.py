"""Calls that are no product: one line that names the argument, and never a wrong result or another library's error."""

from __future__ import annotations

import numpy as np
import pytest

import tensorladder as tl
from tensorladder.core.errors import UsageError

torch = pytest.importorskip("torch")


def halves(*shape):
    return torch.ones(shape, dtype=torch.float16)


def read_only():
    out = np.empty((16, 24), np.float16)
    out.setflags(write=False)
    return out


def freed():
    one = halves(16, 64)
    one.untyped_storage().resize_(0)
    return one


CALLS = {
    "activation: 3": {"activation": 3},
    "alpha: 'x'": {"alpha": "x"},
    "beta: None": {"beta": None},
    "out_dtype: 'fp32'": {"out_dtype": "fp32"},
    "out: a read-only": {"out": read_only()},
    "a: dtype object": {"a": np.empty((16, 64), object)},
    "a: strides": {"a": np.zeros((16, 64), [("x", "f2"), ("y", "i1")])["x"]},
    "one device: a on cpu, b on meta": {"b": torch.empty(64, 24, dtype=torch.float16, device="meta")},
    "one device: a on cpu, b on cpu, scale_a on meta": {"scale_a": torch.ones(1, device="meta")},
    "one device: a on cpu, b on cpu, out on meta": {"out": torch.empty(16, 24, dtype=torch.float16, device="meta")},
    "a: has no memory": {"a": freed()},
    "a: has no memory of its own": {"a": torch._efficientzerotensor(16, 64, dtype=torch.float16)},
}


@pytest.mark.parametrize("says", CALLS)
def test_arguments(vgpu, says):
    with pytest.raises(UsageError, match=says) as raised:
        tl.matmul(**{"a": halves(16, 64), "b": halves(64, 24), **CALLS[says]})
    assert "\n" not in str(raised.value)


def test_swiglu_of_a_number(vgpu):
    with pytest.raises(UsageError, match="b: shape"):
        tl.swiglu(halves(16, 64), halves(1)[0])


@pytest.mark.parametrize("policy", ["foo", "random", "random:x"])
def test_policies(monkeypatch, policy):
    monkeypatch.setenv("TENSORLADDER_DEVICE", f"vgpu:{policy}")
    with pytest.raises(UsageError, match=f"^TENSORLADDER_DEVICE='vgpu:{policy}'"):
        tl.matmul(halves(16, 64), halves(64, 24))


META = {
    "b: 65 rows": (halves(16, 64), halves(65, 24), None),
    "a: fp32": (torch.ones(16, 64), torch.ones(64, 24), None),
    "b: bf16": (halves(16, 64), halves(64, 24).bfloat16(), None),
    "a: shape": (halves(64), halves(64, 24), None),
    "bias: shape": (halves(16, 64), halves(64, 24), halves(23)),
}


@pytest.mark.parametrize("says", META)
def test_shapes_alone(says):
    """Where nothing is computed: the meta device, and what torch.compile looks at."""
    a, b, bias = (None if one is None else one.to("meta") for one in META[says])
    with pytest.raises(UsageError, match=says):
        tl.matmul(a, b, bias=bias)


def test_swiglu_of_shapes_alone():
    with pytest.raises(UsageError, match="N=25"):
        tl.swiglu(halves(16, 64).to("meta"), halves(64, 25).to("meta"))


def test_more_than_32_bits_of_elements():
    a, b = halves(1, 64).to("meta").expand(2**28, 64), halves(64, 72).to("meta")
    assert tl.matmul(a, b).shape == (2**28, 72)


@pytest.mark.parametrize(
    "call",
    [
        lambda config: tl.matmul(halves(2, 16, 64), halves(2, 64, 24), config=config),
        lambda config: tl.matmul(halves(16, 64), halves(64, 24), config=config, scale_b=torch.ones(24)),
        lambda config: tl.swiglu(halves(16, 64), halves(48, 64).t(), config=config),
        lambda config: tl.matmul(halves(16, 64), halves(9, 64).t(), config=config),
        lambda config: tl.grouped_matmul(
            halves(16, 64), halves(1, 64, 24), torch.tensor([16], dtype=torch.int32), config=config
        ),
    ],
    ids=["batch", "scales", "swiglu", "odd", "grouped"],
)
def test_a_config_of_a_kernel_that_leaves_part_of_it_out(vgpu, call):
    from tensorladder.rungs.hopper.c6_epilogue import EpilogueGemmConfig

    with pytest.raises(UsageError, match="config: EpilogueGemmConfig is for"):
        call(EpilogueGemmConfig())


def test_a_config_of_groups(vgpu):
    from tensorladder.rungs.hopper.c9_grouped import GroupedGemmConfig

    for b in (halves(64, 24), halves(2, 64, 24)):
        multiply = tl.grouped_matmul if b.dim() == 3 else tl.matmul
        a = halves(*b.shape[:-2], 16, 64)
        with pytest.raises(UsageError, match="config: GroupedGemmConfig is for grouped_matmul"):
            multiply(a, b, config=GroupedGemmConfig())


def test_layers():
    for name, wrong in (("in_features", ("8", -1, True, 30)), ("out_features", (8.0, -3, False, None)),
                        ("bias", (None, torch.ones(16))), ("activation", ("tanh", ["relu"])), ("device", ("gpu", 3.5)),
                        ("dtype", ("fp16", torch.float64, torch.int32, torch.complex64))):  # fmt: skip
        for value in wrong:
            with pytest.raises(UsageError, match=f"^{name}: "):
                tl.Linear(**{"in_features": 8, "out_features": 16, name: value})
    layer = tl.Linear(8, 16, dtype=torch.float16, device="meta")
    assert layer(halves(3, 8).to("meta")).shape == (3, 16)
    for x in (halves(3, 7), halves(1)[0]):
        with pytest.raises(UsageError, match="input: shape"):
            layer(x)
