"""Warm calls: what they launch is what the kernel's own host code would, and whatever else torch has to do is done."""

from __future__ import annotations

import contextlib
import threading
import types

import pytest

import tensorladder
from tensorladder.core.errors import UsageError

torch = pytest.importorskip("torch")
pytest.importorskip("cutlass")
pytest.importorskip("llvmlite")
pytest.importorskip("ml_dtypes")

from tensorladder.ops import execute, factors, fast, launch, operator  # noqa: E402
from tensorladder.ops.kernels import choice  # noqa: E402
from tensorladder.ops.plan import Array, operands, plan  # noqa: E402
from tests.ops import silicon  # noqa: E402

SMALL = choice("c6", tile=(64, 64, 64), warpgroups=1, stages=2, c_stages=1)


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(execute.tuning, "ranked", lambda place, plan: (SMALL,))
    torch.manual_seed(0)
    return silicon.install(monkeypatch)


@pytest.fixture
def planned(monkeypatch):
    """How often a call was planned."""
    made: list[int] = []
    monkeypatch.setattr(operator, "plan", lambda *given, **more: made.append(1) or plan(*given, **more))
    return made


def normal(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape).to(dtype)


def close(got, exact):
    limit = {torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7, torch.float32: 2.0**-18}[got.dtype]
    return bool(((got.double() - exact).abs() <= limit * (1 + exact.abs())).all())


def test_a_warm_call_is_right_and_neither_planned_nor_asked_for_again(gpu, planned, monkeypatch):
    weight, bias = normal(136, 72), normal(136)
    asked = []
    templates = launch.templates
    monkeypatch.setattr(launch, "templates", lambda *given: asked.append(1) or templates(*given))
    for alpha in (1.0, 0.5, -2.0):
        a, residual = normal(2, 35, 72), normal(2, 35, 136)
        got = tensorladder.matmul(a, weight.t(), bias=bias, residual=residual, alpha=alpha, beta=alpha + 3)
        exact = alpha * a.double() @ weight.double().t() + (alpha + 3) * residual.double() + bias.double()
        assert got.shape == (2, 35, 136) and got.is_contiguous() and close(got, exact)
    assert len(planned) == len(asked) == 1 and len(gpu.launched) == 3


PRODUCTS = [
    {"m": 1, "bias": torch.float32},
    {"m": 130, "out": torch.float32},
    {"m": 17, "residual": torch.bfloat16, "b_contiguous": False},
    {"m": 64, "dtype": torch.float16, "residual": torch.float16, "in_place": True, "bias": torch.float16},
]


@pytest.mark.parametrize("product", PRODUCTS, ids=str)
def test_what_a_template_launches_is_what_the_host_code_launches_at_those_addresses(gpu, product):
    """Both made of the same addresses, the one by asking the compiled host part, byte for byte."""
    gpu.run = False
    dtype, m, n, k = product.get("dtype", torch.bfloat16), product["m"], 264, 72
    a, b = normal(m, k, dtype=dtype), normal(k, n, dtype=dtype)
    b = b if product.get("b_contiguous", True) else b.t().contiguous().t()
    more = {name: normal(n, dtype=kind) for name, kind in product.items() if name == "bias"}
    if "residual" in product:
        more |= {"residual": normal(m, n, dtype=product["residual"]), "beta": 1.0}
    if product.get("in_place"):
        more["out"] = more["residual"]
    for _ in range(2):
        a = a.clone()
        got = tensorladder.matmul(a, b, **more, out_dtype=product.get("out"))
    plans = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fast, "call", lambda *given, **more: None)
        patch.setattr(execute, "run", lambda *given: plans.append(given))
        tensorladder.matmul(a, b, **more | {"out": got})
    ((made, tensors, *_),) = plans
    stream, warm = gpu.launched[-1]
    where = factors.of(0).find(1.0, more.get("beta", 0.0))[0]
    (own,) = execute.program(made.form, execute.knobs(SMALL, 132)).launches(*silicon.views(made, tensors, where))
    assert stream == 7 and silicon.read(warm) == silicon.read(own)
    for fact in ("kernel", "grid", "block", "smem", "cluster", "attributes"):
        assert getattr(warm, fact) == getattr(own, fact)


def test_out_of_ones_own_is_written_and_may_not_lie_on_an_operand(gpu, planned):
    a, b, memory = normal(64, 64), normal(64, 64), torch.zeros(2, 64, 72, dtype=torch.bfloat16)
    out = memory[0, :, :64]
    for _ in range(2):
        assert tensorladder.matmul(a, b, out=out) is out and close(out, a.double() @ b.double())
    assert (memory[0, :, 64:] == 0).all() and (memory[1] == 0).all() and len(planned) == 1
    square = normal(64, 64)
    with pytest.raises(UsageError, match="out: shares memory with a"):
        tensorladder.matmul(square, b, out=square)
    for _ in range(2):  # of the same key, first apart, then on one another
        tensorladder.matmul(square, b, out=normal(64, 64))
    with pytest.raises(UsageError, match="out: shares memory with b"):
        tensorladder.matmul(square, b, out=b)
    exact = a.double() @ b.double() + square.double()
    tensorladder.matmul(a, b, residual=square.clone(), beta=1.0, out=normal(64, 64))
    assert close(tensorladder.matmul(a, b, residual=square, beta=1.0, out=square), exact)


def test_autograd_sees_that_out_was_written(gpu):
    a, b, saved = normal(8, 64), normal(64, 64), normal(8, 64)
    for _ in range(2):
        wanting = torch.ones(8, 64, dtype=torch.bfloat16, requires_grad=True)
        product = (wanting * saved).sum()
        tensorladder.matmul(a, b, out=saved)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.backward()


def test_gradients_are_not_lost_after_a_warm_call(gpu, planned):
    a, b = normal(16, 64), normal(64, 64)
    tensorladder.matmul(a, b)
    weight = torch.nn.Parameter(b.clone())
    with torch.no_grad():
        for _ in range(2):
            assert not tensorladder.matmul(a, weight).requires_grad
    before = len(planned)
    for _ in range(3):
        got = tensorladder.matmul(a, weight)
        assert got.requires_grad
    assert len(planned) == before
    got.float().sum().backward()
    assert close(weight.grad, a.double().t() @ torch.ones(16, 64).double())


def test_transforms_modes_and_traces_see_the_operator(gpu):
    from torch.utils._python_dispatch import TorchDispatchMode

    a, b = normal(3, 16, 64), normal(64, 64)
    for one in a:
        tensorladder.matmul(one, b)
    assert torch.equal(torch.vmap(lambda x: tensorladder.matmul(x, b))(a), tensorladder.matmul(a, b))
    seen = []

    class Watching(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **kwargs or {})

    with Watching():
        tensorladder.matmul(a[0], b)
    assert torch.ops.tensorladder.matmul.default in seen
    traced = torch.jit.trace(lambda x: tensorladder.matmul(x, b), a[0], check_trace=False)
    assert "tensorladder::matmul" in str(traced.graph)
    compiled = torch.compile(lambda x: tensorladder.matmul(x, b) * 2, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(a[0]), tensorladder.matmul(a[0], b) * 2)
    with torch.autograd.forward_ad.dual_level(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(operator, "call", lambda *given: seen.append("operator"))
        tensorladder.matmul(torch.autograd.forward_ad.make_dual(a[0], a[1]), b)
    assert seen[-1] == "operator"


def test_what_is_no_plain_tensor_is_refused_when_a_plain_one_of_its_shape_was_here(gpu):
    a, b = normal(16, 64, dtype=torch.float16), normal(64, 64, dtype=torch.float16)
    tensorladder.matmul(a, b)
    for other, words in (
        (torch._neg_view(a), "a: a conjugate or negative"),
        (a.to_sparse(), "a: torch.sparse_coo"),
        (torch._efficientzerotensor(16, 64, dtype=torch.float16), "a: has no memory"),
        (a.float(), "a: fp32"),
    ):
        with pytest.raises(UsageError, match=words):
            tensorladder.matmul(other, b)
    assert close(tensorladder.matmul(a.numpy(), b), a.double() @ b.double())
    with pytest.raises(UsageError, match="alpha: str"):
        tensorladder.matmul(a, b, alpha="2")


def test_strides_and_alignments_are_told_apart(gpu):
    b, base = normal(72, 64), normal(40 * 80 + 8)
    for _ in range(2):
        for a in (base[:1152].view(16, 72), base[:1280].view(16, 80)[:, :72], base[8:1160].view(16, 72),
                  base[:1152].view(72, 16).t()):  # fmt: skip
            assert close(tensorladder.matmul(a, b), a.double() @ b.double())
    out, bias = torch.zeros(16 * 64 + 8, dtype=torch.bfloat16), normal(72)
    for _ in range(2):
        for shift in (0, 1, 8, 3):
            got, added = out[shift : shift + 1024].view(16, 64), bias[shift : shift + 64]
            a = normal(16, 72)
            with contextlib.suppress(UsageError):
                tensorladder.matmul(a, b, out=got, bias=added)
                assert close(got, a.double() @ b.double() + added.double())


def test_a_gated_product_and_scales(gpu, monkeypatch):
    monkeypatch.undo()
    gpu = silicon.install(monkeypatch)
    a, b = normal(16, 64), normal(128, 64).t()
    for layout, parts in (("halves", b.chunk(2, 1)), ("interleaved", (b[:, ::2], b[:, 1::2]))):
        gate, up = (a.double() @ part.double() for part in parts)
        for _ in range(2):
            got = tensorladder.swiglu(a, b.clone(memory_format=torch.preserve_format), layout=layout)
            assert close(got, torch.nn.functional.silu(gate) * up)
    scale, before = torch.rand(16), len(gpu.launched)
    for factor in (scale, scale + 1):
        got = tensorladder.matmul(a, b, scale_a=factor)
        assert close(got, factor.double()[:, None] * (a.double() @ b.double()))
    assert len(gpu.launched) == before + 2
    narrow, weight = (x.to(torch.float8_e5m2) for x in (a, b.t()))
    for factor in (scale, scale + 1):
        got = tensorladder.matmul(narrow, weight.t(), scale_a=factor)
        assert close(got, factor.double()[:, None] * (narrow.double() @ weight.double().t()))


def test_the_least_used_is_forgotten(gpu, monkeypatch, planned):
    monkeypatch.setattr(fast, "MOST", 2)
    gpu.run = False
    b = normal(64, 64)
    for m in (1, 2, 3, 1, 4, 1, 5, 1, 6, 1):
        tensorladder.matmul(normal(m, 64), b)
    assert len(planned) == 6 and len(fast._recent) + len(fast._older) <= 4
    tensorladder.matmul(normal(2, 64), b)
    assert len(planned) == 7
    monkeypatch.setattr(fast, "VARIANTS", 2)
    for pitch in (64, 72, 80, 88):
        tensorladder.matmul(normal(8, pitch)[:, :64], b)
    assert max(map(len, fast._recent.values())) == 2


def test_threads_and_streams(gpu):
    """Each with operands and a stream of its own, all with one template; a launch takes parameters of one call only."""
    gpu.run = False
    b = normal(64, 64)
    tensorladder.matmul(normal(8, 64), b)
    gpu.launched.clear()
    handles = threading.local()
    gpu.handle = lambda: handles.one
    wrong, made = [], {}

    def work(number):
        handles.one = number
        kept = made[number] = []
        for _ in range(50):
            a = normal(8, 64)
            kept.append((a, tensorladder.matmul(a, b)))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 5)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    found = {number: [] for number in made}
    for stream, one in gpu.launched:
        found[stream].append(silicon.maps(one))
    for number, kept in made.items():
        wanted = [[a.data_ptr(), b.data_ptr(), c.data_ptr()] for a, c in kept]
        wrong += [pair for pair in zip(found[number], wanted) if pair[0] != pair[1]]
    assert not wrong and sum(map(len, found.values())) == 200


def test_a_thread_without_a_context_gets_one(gpu):
    a, b = normal(8, 64), normal(64, 64)
    tensorladder.matmul(a, b)
    contexts, gpu.answers = gpu.contexts, [201]
    assert close(tensorladder.matmul(a, b), a.double() @ b.double()) and gpu.contexts == contexts + 1


def test_another_device_than_the_current_one(gpu, monkeypatch):
    a, b = normal(8, 64), normal(64, 64)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    current = types.SimpleNamespace(index=0, seen=[])

    @contextlib.contextmanager
    def device(index):
        current.seen.append(index)
        before, current.index = current.index, index
        yield
        current.index = before

    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(fast, "_device", lambda: current.index)
    current.index = -1
    tensorladder.matmul(a, b)
    current.index, current.seen = 0, []
    assert close(tensorladder.matmul(a, b), a.double() @ b.double()) and current.seen == [-1] and current.index == 0


def test_factors_beyond_those_that_are_kept_are_written_for_each_call(gpu, monkeypatch):
    a, b = normal(8, 64), normal(64, 64)
    monkeypatch.setattr(factors, "MOST", 2)
    monkeypatch.setattr(factors, "PLACE", "cpu")
    for alpha in (1.0, 2.0, 3.0, 4.0, 1, float("nan"), 3.0):
        got = tensorladder.matmul(a, b, alpha=alpha)
        assert close(got, alpha * a.double() @ b.double()) or got.isnan().all()
    assert set(factors.of(0).known) == {(1.0, 0.0), (2.0, 0.0)}


@pytest.mark.parametrize("made", [fast.Guard, fast._native])
def test_guards(made):
    one, other = torch.zeros(2, 3), torch.ones(2, 3)
    check = made(one, other).check
    seen = [check(one, torch.zeros(2, 4)), check(one, other.half()), check(one, other.clone().requires_grad_())]
    seen += [check(one, torch._neg_view(other)), check(one, torch.nn.Parameter(other, False))]
    seen.append(check(one.to_sparse(), one))
    torch.vmap(lambda x: (seen.append(check(one, other)), seen.append(check(x, x)), x)[2])(torch.zeros(4, 2, 3))
    with torch.inference_mode():
        seen.append(check(one, other))
    assert not any(seen) and check(other, one) and check(torch.rand(2, 3), one)
    assert fast._native_is_right()


def test_where_torch_has_another_guard_python_asks(gpu, monkeypatch, planned):
    fast._native_is_right.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fast, "_native", lambda *tensors: types.SimpleNamespace(check=lambda *given: True))
        assert not fast._native_is_right()
        a, b = normal(8, 64), normal(64, 64)
        for _ in range(2):
            assert close(tensorladder.matmul(a, b), a.double() @ b.double())
        assert len(planned) == 1
    fast._native_is_right.cache_clear()


def test_launchers_take_what_plans_name():
    made = plan(Array((8, 64), (64, 1), "bf16"), Array((64, 64), (64, 1), "bf16"))
    assert {"up", "factors", *launch.NAMES} == set(operands(made))


def test_ops_are_looked_up_once():
    found = tensorladder.matmul
    assert vars(tensorladder)["matmul"] is found


def test_a_compiled_model_calls_an_operator_without_gradients_where_none_are_wanted(gpu):
    graphs = []

    def backend(graph, inputs):
        graphs.append({str(node.target) for node in graph.graph.nodes})
        return graph.forward

    layer = torch.compile(lambda x, w: tensorladder.matmul(x, w.t()), backend=backend, fullgraph=True)
    a, w = normal(8, 64), torch.nn.Parameter(normal(64, 64))
    with torch.no_grad():
        assert close(layer(a, w), a.double() @ w.double().t())
    layer(a, w).sum().backward()
    assert w.grad is not None
    for named, graph in zip(("product", "matmul"), graphs, strict=True):
        assert any(f"tensorladder.{named}" in target for target in graph)
