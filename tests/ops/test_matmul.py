"""`tensorladder.matmul` on the virtual GPU against float64, and through torch's own checks of operators."""

from __future__ import annotations

import pytest

import tensorladder
from tensorladder.core.errors import UsageError

torch = pytest.importorskip("torch")
pytest.importorskip("cutlass")
pytest.importorskip("llvmlite")
pytest.importorskip("ml_dtypes")

ROUNDING = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-22}
ACTIVATIONS = {
    None: lambda x: x,
    "relu": torch.relu,
    "gelu": torch.nn.functional.gelu,
    "silu": torch.nn.functional.silu,
}


@pytest.fixture(autouse=True, params=["vgpu:random:1"])
def on_the_virtual_gpu(monkeypatch, request):
    monkeypatch.setenv("TENSORLADDER_DEVICE", request.param)
    torch.manual_seed(0)


def close(got, exact, scale=1.0):
    """Elements within a rounding of the result's type and the slack of float32 sums of such length."""
    limit = ROUNDING[got.dtype] * exact.abs() + 2.0**-18 * scale * (1 + exact.abs().max())
    return bool(((got.double() - exact).abs() <= limit).all())


def normal(*shape, dtype=torch.float16):
    return torch.randn(*shape).to(dtype)


@pytest.mark.parametrize("policy", ["eager", "lazy", "timed", "random:2"])
def test_a_layer(monkeypatch, policy):
    monkeypatch.setenv("TENSORLADDER_DEVICE", f"vgpu:{policy}")
    x, weight, bias = normal(2, 35, 72), normal(136, 72), normal(136)
    got = tensorladder.matmul(x, weight.t(), bias=bias, activation="gelu")
    exact = torch.nn.functional.gelu(x.double() @ weight.double().t() + bias.double())
    assert got.shape == (2, 35, 136) and got.dtype == torch.float16 and close(got, exact)


@pytest.mark.parametrize(
    ("activation", "dtype", "stored"),
    [(None, torch.float16, torch.float32), ("silu", torch.bfloat16, None), ("relu", torch.float16, torch.bfloat16)],
)
def test_epilogues_into_padded_memory(activation, dtype, stored):
    a, b, residual = normal(40, 64, dtype=dtype).t(), normal(40, 24, dtype=dtype), normal(64, 24, dtype=dtype)
    out = torch.full((64, 32), 7.0, dtype=stored or dtype)
    got = tensorladder.matmul(
        a, b, residual=residual, alpha=0.5, beta=-2.0, activation=activation, out=out[:, :24], out_dtype=stored
    )
    exact = ACTIVATIONS[activation](0.5 * a.double() @ b.double() - 2 * residual.double())
    assert got.data_ptr() == out.data_ptr() and close(got, exact)
    assert (out[:, 24:] == 7.0).all()


def test_not_a_number_stays_one():
    a, b = normal(8, 24), normal(24, 16)
    a[3, 5] = float("nan")
    got = tensorladder.matmul(a, b, activation="relu")
    assert got[3].isnan().all() and not got[:3].isnan().any() and not got[4:].isnan().any()


def test_the_residual_in_place_and_a_single_row():
    a, b, c = normal(1, 72), normal(72, 24), normal(1, 24)
    exact = a.double() @ b.double() + c.double()
    assert close(tensorladder.matmul(a, b, residual=c, beta=1.0, out=c), exact)


@pytest.mark.parametrize(("m", "n", "k"), [(0, 8, 8), (4, 0, 8), (4, 8, 0)])
def test_empty(m, n, k):
    bias, residual = normal(n), normal(m, n)
    got = tensorladder.matmul(
        normal(m, k), normal(k, n), bias=bias, residual=residual, beta=2.0, activation="gelu", out_dtype=torch.float32
    )
    exact = torch.nn.functional.gelu(2 * residual.double() + bias.double())
    assert got.shape == (m, n) and close(got, exact) if got.numel() else got.shape == (m, n)


def test_a_config_of_ones_own():
    from tensorladder.rungs.hopper.c6_epilogue import EpilogueGemmConfig

    config = EpilogueGemmConfig(tile=(64, 128, 64), warpgroups=1, stages=2, c_stages=1, sm_count=2)
    a, b = normal(130, 72), normal(72, 264)
    assert close(tensorladder.matmul(a, b, config=config), a.double() @ b.double())


def test_refusals_come_through_the_operator_in_one_line(monkeypatch):
    with pytest.raises(UsageError, match="b: strides"):
        tensorladder.matmul(normal(8, 8), normal(8, 42))
    with pytest.raises(UsageError, match="out: has no gradients"):
        tensorladder.matmul(normal(8, 8).requires_grad_(), normal(8, 8), out=normal(8, 8))
    monkeypatch.setenv("TENSORLADDER_DEVICE", "tpu")
    with pytest.raises(UsageError, match="TENSORLADDER_DEVICE='tpu'"):
        tensorladder.matmul(normal(8, 8), normal(8, 8))
    monkeypatch.delenv("TENSORLADDER_DEVICE")
    if not torch.cuda.is_available():
        with pytest.raises(UsageError, match="there is no GPU here"):
            tensorladder.matmul(normal(8, 8), normal(8, 8))


@pytest.mark.parametrize("activation", [None, "relu", "gelu", "silu"])
def test_gradients(activation):
    """Against float64's; an operand's gradient is rounded to bf16 on the way, so by norm."""
    made = [normal(2, 4, 24, dtype=torch.bfloat16), normal(24, 16, dtype=torch.bfloat16),
            normal(16, dtype=torch.float32), normal(2, 4, 16, dtype=torch.bfloat16)]  # fmt: skip
    ours = [x.clone().requires_grad_() for x in made]
    exact = [x.double().requires_grad_() for x in made]
    a, b, bias, residual = ours
    got = tensorladder.matmul(a, b, bias=bias, residual=residual, alpha=0.5, beta=-1.5, activation=activation)
    a, b, bias, residual = exact
    want = ACTIVATIONS[activation](0.5 * a @ b - 1.5 * residual + bias)
    weight = torch.randn(want.shape)
    (got.float() * weight).sum().backward()
    (want * weight.double()).sum().backward()
    for mine, right in zip(ours, exact):
        assert mine.grad.dtype == mine.dtype and mine.grad.shape == mine.shape
        assert (mine.grad.double() - right.grad).norm() <= 0.01 * right.grad.norm()
