"""Products of a batched b, scales, gated products and unaligned memory, on the virtual GPU against float64."""

from __future__ import annotations

import pytest

import tensorladder
from tensorladder.core.errors import UsageError

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("vgpu")
POLICIES = ("eager", "lazy", "timed", "random:2")
F = torch.nn.functional
ACTIVATIONS = {"silu": F.silu, "gelu": F.gelu, "relu": torch.relu, "none": lambda x: x}


def normal(*shape, dtype=torch.float16):
    return torch.randn(*shape).to(dtype)


@pytest.mark.parametrize("policy", POLICIES)
def test_products_of_a_batch(vgpu, close, policy):
    vgpu(policy)
    a, b = normal(2, 3, 40, 72), normal(2, 3, 72, 136)
    got = tensorladder.matmul(a, b)
    assert got.shape == (2, 3, 40, 136) and close(got, a.double() @ b.double())


@pytest.mark.parametrize(
    ("a", "b"),
    [((40, 72), (3, 72, 136)), ((3, 40, 72), (1, 72, 136)), ((1, 40, 72), (3, 72, 136)), ((3, 1, 40, 72), (72, 136))],
)
def test_what_is_missing_is_the_same_for_all(close, a, b):
    a, b = normal(*a), normal(*b)
    assert close(tensorladder.matmul(a, b), a.double() @ b.double())


def test_heads_in_the_memory_of_a_layer(close):
    """(batch of 1, heads, length, width) seen in (batch, length, heads * width), in and out, nothing copied."""
    tokens, b, out = normal(1, 20, 3 * 40), normal(3, 40, 24), torch.full((1, 20, 3 * 24), 7.0, dtype=torch.float16)
    heads, results = (x.view(1, 20, 3, -1).transpose(1, 2) for x in (tokens, out))
    residual = normal(1, 3, 20, 24)
    got = tensorladder.matmul(heads, b, residual=residual, beta=-1.0, out=results)
    assert got is results and close(results, heads.double() @ b.double() - residual.double())


def test_rows_that_are_no_sequence(close):
    a, b = normal(40, 3, 72).transpose(0, 1), normal(72, 136)
    assert close(tensorladder.matmul(a, b), a.double() @ b.double())


@pytest.mark.parametrize("policy", POLICIES)
def test_memory_that_is_not_aligned(vgpu, close, policy):
    """N, pitches and addresses of all but a and b are any; what lies around the result stays."""
    vgpu(policy)
    a, b = normal(70, 72), normal(72, 24)[:, :13]
    bias, residual = normal(14)[1:], normal(70, 15)[:, 1:14]
    out = torch.full((70, 31), 7.0, dtype=torch.float16)
    got = tensorladder.matmul(a, b, bias=bias, residual=residual, beta=2.0, activation="gelu", out=out[:, 3:16])
    assert close(got, F.gelu(a.double() @ b.double() + 2 * residual.double() + bias.double()))
    assert (out[:, :3] == 7.0).all() and (out[:, 16:] == 7.0).all()


def test_a_result_of_one_column(close):
    a, b = normal(3, 5, 72), normal(1, 72).t()
    assert close(tensorladder.matmul(a, b), a.double() @ b.double())


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_scales(close, dtype):
    a, b = normal(2, 20, 64).to(dtype), normal(24, 64).to(dtype).t()
    rows, columns, one = torch.rand(2, 20, 1) + 0.5, torch.rand(24) + 0.5, torch.tensor(0.25)
    exact = a.double() @ b.double()
    got = tensorladder.matmul(a, b, scale_a=rows, scale_b=columns)
    assert got.dtype == torch.bfloat16 and close(got, rows.double() * exact * columns.double(), 2**6)
    assert close(tensorladder.matmul(a, b, scale_a=one, scale_b=columns[None]), 0.25 * exact * columns.double(), 2**6)
    every_other = torch.rand(40) + 0.5
    got = tensorladder.matmul(a, b, scale_a=every_other.repeat_interleave(2)[::2].view(2, 20))
    assert close(got, every_other.double().view(2, 20, 1) * exact, 2**6)


def test_one_scale_for_the_products_of_a_batch(close):
    a, b = normal(3, 20, 64).to(torch.float8_e4m3fn), normal(3, 24, 64).to(torch.float8_e4m3fn).mT
    got = tensorladder.matmul(a, b, scale_a=torch.tensor([2.0]), scale_b=torch.tensor([[0.5]]))
    assert close(got, a.double() @ b.double(), 2**6)


def gated(a, b, layout, activation):
    z = a.double() @ b.double()
    half = z.shape[-1] // 2
    gate, up = (z[..., :half], z[..., half:]) if layout == "halves" else (z[..., 0::2], z[..., 1::2])
    return ACTIVATIONS[activation](gate) * up


@pytest.mark.parametrize(("layout", "policy"), [("halves", "random:1"), *(("interleaved", name) for name in POLICIES)])
def test_swiglu_of_a_transposed_weight(vgpu, close, layout, policy):
    vgpu(policy)
    a, weight = normal(2, 35, 72), normal(2 * 72, 72)
    got = tensorladder.swiglu(a, weight.t(), layout=layout)
    assert got.shape == (2, 35, 72) and close(got, gated(a, weight.t(), layout, "silu"), 2**4)


def test_geglu_of_a_batch_with_a_residual(close):
    a, b, residual = (normal(2, *shape, dtype=torch.bfloat16) for shape in ((20, 40), (40, 48), (20, 24)))
    out = torch.empty(2, 20, 24)
    got = tensorladder.swiglu(a, b, activation="gelu", residual=residual, alpha=0.5, beta=-1.0, out=out)
    exact = gated(0.5 * a, b, "halves", "gelu") - residual.double()
    assert got is out and close(out, exact, 2**4)


REFUSED = [
    (lambda: tensorladder.swiglu(normal(8, 8), normal(8, 32), layout="interleaved"), "b: interleaved columns"),
    (lambda: tensorladder.swiglu(normal(8, 8), normal(8, 32), layout="thirds"), "layout: 'thirds'"),
    (lambda: tensorladder.swiglu(normal(8, 8), normal(33, 8).t()), "b: N=33"),
    (lambda: tensorladder.swiglu(normal(8, 8), normal(8, 40)[:, :24]), "b: its second half"),
    (lambda: tensorladder.matmul(normal(8, 8), normal(8, 16), activation="swiglu"), "activation: 'swiglu'"),
    (lambda: tensorladder.matmul(normal(8, 8).to(torch.float8_e4m3fn), normal(8, 8)), "b: fp16"),
    (lambda: tensorladder.matmul(normal(8, 8).double(), normal(8, 8)), "a: float64"),
    (lambda: tensorladder.matmul(normal(8, 8), normal(8, 8), scale_a=normal(8)), "scale_a: fp16"),
    (lambda: tensorladder.matmul(normal(3, 8, 8), normal(3, 8, 8), scale_a=torch.ones(3, 8)), "scale_a: a factor"),
    (lambda: tensorladder.matmul(normal(8, 9)[:, 1:], normal(8, 8)), "a: address"),
    (lambda: tensorladder.matmul(normal(8, 9), normal(9, 8)), "a: strides"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_refusals_name_the_argument(call, message):
    with pytest.raises(UsageError) as refusal:
        call()
    assert str(refusal.value).startswith(message) and "\n" not in str(refusal.value)
