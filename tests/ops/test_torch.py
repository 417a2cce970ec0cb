"""The ops as parts of torch: layers, gradients, compilation, transforms, other libraries' arrays."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

import tensorladder
from tensorladder.core.errors import UsageError

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("vgpu")
F = torch.nn.functional
F16 = torch.float16


def normal(*shape, dtype=F16):
    return torch.randn(*shape).to(dtype)


def check_gradients(ours, exact, *operands):
    """Of `ours` against float64's; gradients are rounded to fp16 on the way, so by norm."""
    mine = [x.detach().requires_grad_() for x in operands]
    right = [x.double().requires_grad_() for x in operands]
    got, want = ours(*mine), exact(*right)
    weight = torch.randn(want.shape)
    (got.float() * weight).sum().backward()
    (want * weight.double()).sum().backward()
    for one, other in zip(mine, right):
        assert one.grad.dtype == one.dtype and one.grad.shape == one.shape
        assert (one.grad.double() - other.grad).norm() <= 0.01 * other.grad.norm()


def test_gradients_of_a_batch():
    check_gradients(
        lambda a, b, r: tensorladder.matmul(a, b, residual=r, beta=-1.5, alpha=0.5, activation="relu"),
        lambda a, b, r: torch.relu(0.5 * a @ b - 1.5 * r),
        normal(2, 3, 8, 24), normal(2, 3, 24, 16), normal(2, 3, 8, 16),
    )  # fmt: skip


@pytest.mark.parametrize(("a", "b"), [((8, 24), (3, 24, 16)), ((3, 8, 24), (1, 24, 13))])
def test_gradients_of_what_is_the_same_for_all(a, b):
    pitch = -(-b[-1] // 8) * 8  # b's rows are padded
    b = torch.nn.functional.pad(normal(*b), (0, pitch - b[-1]))[..., : b[-1]]
    check_gradients(lambda a, b: tensorladder.matmul(a, b), lambda a, b: a @ b, normal(*a), b)


@pytest.mark.parametrize("layout", ["halves", "interleaved"])
def test_gradients_of_swiglu(layout):
    def exact(a, w, r):
        z = a @ w.mT
        gate, up = z.chunk(2, -1) if layout == "halves" else (z[..., 0::2], z[..., 1::2])
        return F.silu(gate) * up + r

    check_gradients(
        lambda a, w, r: tensorladder.swiglu(a, w.mT, layout=layout, residual=r, beta=1.0),
        exact, normal(2, 8, 24), normal(32, 24), normal(2, 8, 16),
    )  # fmt: skip


def test_linear():
    """Results, gradients and parameters of `torch.nn.Linear`, whose state it takes; a result of odd rows."""
    layer, exact = tensorladder.Linear(24, 13, activation="gelu", dtype=F16), torch.nn.Linear(24, 13).double()
    exact.load_state_dict(layer.state_dict())
    x = normal(2, 5, 24)
    check_gradients(layer, lambda x: F.gelu(exact(x)), x)
    want = F.gelu(exact(x.double()))
    assert (layer(x).double() - want).norm() <= 2.0**-10 * want.norm()
    for name in ("weight", "bias"):
        mine, right = getattr(layer, name).grad, getattr(exact, name).grad
        assert mine.is_contiguous() and (mine.double() - right).norm() <= 0.01 * right.norm()
    assert layer(x[0, 0]).shape == (13,)
    assert isinstance(layer, torch.nn.Linear) and layer.weight.std() > 0.05


def test_linear_under_autocast():
    layer = tensorladder.Linear(24, 16)
    with torch.autocast("cpu", F16):
        made = layer(torch.randn(5, 24))
    made.sum().backward()
    assert made.dtype == F16 and layer.weight.grad.dtype == torch.float32


def test_torch_checks_the_operators():
    from tensorladder.ops import operator  # noqa: F401 (defines them)

    op, out = torch.ops.tensorladder.matmul.default, torch.ops.tensorladder.matmul_out.default
    a, b = normal(2, 8, 24), normal(2, 24, 16)
    residual, bias = normal(2, 8, 16), normal(16)
    rest = ("", "relu", 1.0, 1.0)
    wanted = [x.clone().requires_grad_() for x in (a, b, bias, residual)]
    torch.library.opcheck(op, (*wanted, None, None, *rest, None, False))
    glu = (None, None, None, None, "halves", "silu", 1.0, 0.0, None, False)
    torch.library.opcheck(op, (a, b.mT.contiguous().mT, *glu), test_utils=("test_schema", "test_faketensor"))
    narrow, scales = (normal(2, 8, 32).to(E4M3), normal(16, 32).to(E4M3).t()), (torch.ones(2, 8, 1), torch.ones(16))
    fp8 = (*narrow, None, None, *scales, "", "none", 1.0, 0.0, None, False)
    torch.library.opcheck(op, fp8, test_utils="test_faketensor")
    torch.library.opcheck(out, (a, b, torch.empty(2, 8, 16), bias, residual, None, None, *rest, False))


class Block(torch.nn.Module):
    """A feed-forward block of a model, with all that the ops do in it."""

    def __init__(self):
        super().__init__()
        self.up, self.down = (tensorladder.Linear(*shape, bias=False, dtype=F16) for shape in ((24, 32), (16, 24)))

    def forward(self, x):
        hidden = tensorladder.swiglu(x * 2, self.up.weight.t(), layout="interleaved")
        return tensorladder.matmul(hidden, self.down.weight.t(), residual=x, beta=1.0) + 1


@pytest.mark.parametrize(("backend", "train"), [("aot_eager", True), ("inductor", False)])
def test_one_graph_for_all_shapes(backend, train):
    """Forward and backward, compiled as a whole (fullgraph raises at a break) and once for all numbers of rows."""
    if backend == "inductor" and not (shutil.which("g++") or shutil.which("clang++")):
        pytest.skip("inductor wants a C++ compiler")
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    block, counter = Block().requires_grad_(train), CompileCounterWithBackend(backend)
    compiled = torch.compile(block, backend=counter, fullgraph=True)
    for rows in (5, 8):
        x = normal(2, rows, 24)
        torch._dynamo.mark_dynamic(x, 1)
        results = []
        for one in (block, compiled):
            block.zero_grad()
            made = one(x)
            if train:
                made.float().square().sum().backward()
            results.append([made, *(p.grad for p in block.parameters() if train)])
        for mine, right in zip(*results):
            assert (mine.double() - right.double()).norm() <= 2.0**-10 * right.double().norm()
    assert counter.frame_count == 1


def test_out_in_a_graph():
    def call(a, b, out):
        tensorladder.matmul(a, b, out=out)
        return out + 1

    a, b = normal(8, 24), normal(24, 16)
    ours, theirs = torch.zeros(8, 16), torch.zeros(8, 16)
    got = torch.compile(call, backend="aot_eager", fullgraph=True)(a, b, ours)
    assert torch.equal(got, call(a, b, theirs)) and torch.equal(ours, theirs)


def test_a_config_ends_a_graph():
    from tensorladder.rungs.hopper.c6_epilogue import EpilogueGemmConfig

    config = EpilogueGemmConfig(tile=(64, 64, 64), warpgroups=1, stages=2, c_stages=1, sm_count=2)
    call = lambda: tensorladder.matmul(A, B, config=config) + 1  # noqa: E731
    assert torch.equal(torch.compile(call, backend="eager")(), call())
    torch._dynamo.reset()
    with pytest.raises(Exception, match="outside_of_graphs"):
        torch.compile(call, backend="eager", fullgraph=True)()


def test_transforms():
    a, b = normal(3, 8, 24), normal(3, 24, 16)
    close = lambda got, exact: (got.double() - exact).norm() <= 2.0**-10 * exact.norm()  # noqa: E731
    exact = a.double() @ b.double()
    assert close(torch.vmap(tensorladder.matmul)(a, b), exact)
    assert close(torch.vmap(tensorladder.matmul, (0, None))(a, b[0]), a.double() @ b[0].double())
    turned = torch.vmap(tensorladder.matmul, (None, 1), 2)(a[0], b.movedim(0, 1).contiguous())
    assert close(turned.movedim(2, 0), a[0].double() @ b.double())
    loss = lambda b, a: tensorladder.matmul(a, b, out_dtype=torch.float32).sum()  # noqa: E731
    each = torch.vmap(torch.func.grad(loss), (None, 0))(b[0], a)
    assert close(each, a.double().sum(1)[..., None].expand(3, 24, 16))
    with pytest.raises(UsageError, match="bias: vmap"):
        torch.vmap(lambda bias: tensorladder.matmul(a[0], b[0], bias=bias))(normal(3, 16))


def test_second_derivatives():
    a, b = (torch.randn(8, 8).half().requires_grad_() for _ in range(2))
    made = tensorladder.matmul(a, b, out_dtype=torch.float32)
    (first,) = torch.autograd.grad(made.square().sum(), a, create_graph=True)
    (second,) = torch.autograd.grad(first.float().sum(), a)
    exact = 2 * torch.ones(8, 8).double() @ (b.double() @ b.double().t())
    assert (second.double() - exact).norm() <= 0.01 * exact.norm()


def test_arrays_of_other_libraries(close):
    import ml_dtypes

    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((8, 24)), rng.standard_normal((24, 16))
    for dtype in (np.float16, ml_dtypes.bfloat16):
        x, y, out = a.astype(dtype), b.astype(dtype), np.zeros((8, 16), np.float32)
        exact = torch.from_numpy(x.astype(np.float64) @ y.astype(np.float64))
        got = tensorladder.matmul(x, y, out=out)
        assert isinstance(got, torch.Tensor) and close(got, exact) and close(torch.from_numpy(out), exact)
    frozen = a.astype(np.float16)
    frozen.flags.writeable = False
    assert tensorladder.matmul(frozen, b.astype(np.float16)).dtype == torch.float16


def test_arrays_of_jax():
    numpy = pytest.importorskip("jax.numpy")
    made = tensorladder.matmul(numpy.full((8, 24), 2, numpy.bfloat16), numpy.ones((24, 16), numpy.bfloat16))
    assert made.dtype == torch.bfloat16 and (made == 48).all()


def test_shapes_without_memory():
    made = tensorladder.matmul(torch.empty(2, 8, 24, device="meta", dtype=F16), normal(24, 13).to("meta"))
    assert made.shape == (2, 8, 13) and made.device.type == "meta"


class Wrapped(torch.Tensor):
    """Memory of its own kind."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError


A, B = normal(8, 24), normal(24, 16)
E4M3 = torch.float8_e4m3fn
REFUSED = {
    "a: list": lambda: tensorladder.matmul([1.0], B),
    "a: None": lambda: tensorladder.matmul(None, B),
    "b: strides (-64, 4) in bytes": lambda: tensorladder.matmul(A, np.zeros((24, 16), np.float32)[::-1]),
    "a: a nested tensor": lambda: tensorladder.matmul(torch.nested.nested_tensor([A], layout=torch.jagged), B),
    "b: torch.sparse_coo": lambda: tensorladder.matmul(A, B.to_sparse()),
    "a: int32": lambda: tensorladder.matmul(A.int(), B),
    "a: Wrapped": lambda: tensorladder.matmul(A.as_subclass(Wrapped), B, config=object()),
    "b: fp16, but a is bf16": lambda: tensorladder.matmul(A.bfloat16(), B),
    "out: has no gradients": lambda: tensorladder.matmul(A.clone().requires_grad_(), B, out=A.new_empty(8, 16)),
    "scale_b: has no gradients": lambda: tensorladder.matmul(A, B.clone().requires_grad_(), scale_b=torch.ones(1)),
    "a: products of 8-bit": lambda: tensorladder.matmul(A.to(E4M3).requires_grad_(), B.to(E4M3)),
    "out_dtype: fp32, but out is fp16": lambda: tensorladder.matmul(A, B, out=A[:, :16].clone(), out_dtype=torch.float),
    "config: dict": lambda: tensorladder.matmul(A, B, config={"tile": 128}),
    "out: shares memory with b": lambda: tensorladder.matmul(A, B, out=B[:8]),
}


@pytest.mark.parametrize("message", REFUSED)
def test_refusals_name_the_argument(message):
    with pytest.raises(UsageError) as refusal:
        REFUSED[message]()
    assert str(refusal.value).startswith(message) and "\n" not in str(refusal.value)


def test_the_same_bits_every_time(vgpu):
    made = []
    for policy in ("eager", "random:3", "random:4"):
        vgpu(policy)
        made.append(tensorladder.matmul(A, B))
    assert torch.equal(made[0], made[1]) and torch.equal(made[1], made[2])
