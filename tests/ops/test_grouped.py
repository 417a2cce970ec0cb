"""`tensorladder.grouped_matmul` on the virtual GPU against float64, group by group; its plan; torch's own checks."""

from __future__ import annotations

import pytest

import tensorladder
from tensorladder.core.errors import UsageError
from tensorladder.ops.grouped_plan import GroupedPlan, choices, choose, plan
from tensorladder.ops.plan import Array
from tensorladder.rungs.parts.form import Form

pytest.importorskip("torch")
pytest.importorskip("cutlass")
pytest.importorskip("llvmlite")
pytest.importorskip("ml_dtypes")

import torch

from tensorladder.measure.dynamic import templates
from tensorladder.ops import execute, grouped, kernels
from tensorladder.rungs.hopper import c9_grouped
from tests.ops import silicon

BF16 = torch.bfloat16
ROUNDING = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-22}
ACTIVATIONS = {"none": lambda x: x, "silu": torch.nn.functional.silu}


@pytest.fixture(autouse=True)
def on_the_virtual_gpu(monkeypatch):
    monkeypatch.setenv("TENSORLADDER_DEVICE", "vgpu:random:1")
    torch.manual_seed(0)


def normal(*shape, dtype=BF16):
    return torch.randn(*shape).to(dtype)


def ends(*values):
    return torch.tensor(values, dtype=torch.int32)


def spans(offs):
    return list(zip([0, *offs.tolist()], offs.tolist()))


def exact(a, b, offs, bias=None):
    """In float64, groups of rows, of K or of columns; differentiable."""
    a, b = a.double(), b.double()
    if a.dim() == b.dim() == 2:
        parts = [a[:, i:j] @ b[i:j] for i, j in spans(offs)]
    elif a.dim() == 2:
        parts = [a[i:j] @ b[g] for g, (i, j) in enumerate(spans(offs))]
    else:
        parts = [a[g] @ b[:, i:j] for g, (i, j) in enumerate(spans(offs))]
    if bias is not None:
        rows = bias.double().expand(len(parts), -1)
        parts = [part + row for part, row in zip(parts, rows)]
    return torch.stack(parts) if a.dim() == b.dim() == 2 else torch.cat(parts, 0 if a.dim() == 2 else 1)


def close(got, want):
    limit = ROUNDING[got.dtype] * want.abs() + 2.0**-18 * (1 + want.norm() / max(want.numel(), 1) ** 0.5)
    return got.shape == want.shape and bool(((got.double() - want).abs() <= limit).all())


OFFS = {
    "empty groups": ends(0, 37, 37, 60),
    "all in one": ends(0, 0, 60, 60),
    "one each": ends(*range(1, 61)),
    "none": ends(0, 0),
}


@pytest.mark.parametrize("policy", ["eager", "lazy", "random:2"])
@pytest.mark.parametrize("offs", OFFS)
def test_groups_of_rows(monkeypatch, policy, offs):
    monkeypatch.setenv("TENSORLADDER_DEVICE", f"vgpu:{policy}")
    offs = OFFS[offs]
    a, b = normal(67, 72), normal(len(offs), 72, 136)
    got = tensorladder.grouped_matmul(a, b, offs)
    last = int(offs[-1])
    assert got.dtype == BF16 and close(got[:last], exact(a, b, offs)) and not got[last:].any()


@pytest.mark.parametrize("offs", OFFS)
def test_groups_of_k(offs):
    offs = OFFS[offs]
    a, b = normal(40, 72), normal(72, 24)
    a[:, 60:] = torch.nan  # of no group: ignored
    assert close(tensorladder.grouped_matmul(a, b, offs), exact(a, b, offs))


def test_groups_of_columns():
    offs = OFFS["empty groups"]
    a, b = normal(4, 24, 72), normal(72, 64)
    got = tensorladder.grouped_matmul(a, b, offs)
    assert got.shape == (24, 64) and close(got[:, :60], exact(a, b, offs)) and not got[:, 60:].any()


@pytest.mark.parametrize("rows", [1, 4, None])
def test_bias(rows):
    offs = OFFS["empty groups"]
    a, b = normal(67, 72), normal(4, 136, 72).mT
    bias = normal(136) if rows is None else normal(rows, 136)
    got = tensorladder.grouped_matmul(a, b, offs, bias=bias, activation="silu", out_dtype=torch.float32)
    assert close(got[:60], ACTIVATIONS["silu"](exact(a, b, offs, bias))) and not got[60:].any()


@pytest.mark.parametrize("scales", ["both", "a", "one and b"])
def test_fp8_and_scales(scales):
    offs, fp8 = OFFS["empty groups"], torch.float8_e5m2 if scales == "a" else torch.float8_e4m3fn
    a, b = torch.randn(67, 80).to(fp8), torch.randn(4, 136, 80).to(fp8).mT
    p = torch.tensor(0.25) if scales == "one and b" else torch.rand(67) + 0.5
    q = None if scales == "a" else torch.rand(4, 136) + 0.5
    got = tensorladder.grouped_matmul(a, b, offs, scale_a=p, scale_b=q)
    columns = torch.ones(4, 136) if q is None else q
    rows = torch.cat([columns[g].expand(j - i, 136) for g, (i, j) in enumerate(spans(offs))]).double()
    want = exact(a, b, offs) * rows * (p.double() if p.dim() == 0 else p[:60, None].double())
    assert got.dtype == BF16 and not got[60:].any()
    assert (got[:60].double() - want).norm() <= 2.0**-8 * want.norm()


@pytest.mark.parametrize(("t", "k", "n"), [(0, 8, 8), (4, 0, 8), (4, 8, 0)])
def test_nothing_to_multiply(t, k, n):
    offs, bias = ends(0, min(t, 3)), normal(2, n)
    got = tensorladder.grouped_matmul(normal(t, k), normal(2, k, n), offs, bias=bias, activation="relu")
    want = torch.relu(bias[1:].expand(t, n)) * (torch.arange(t) < 3)[:, None]
    assert torch.equal(got, want) if k == 0 else got.shape == (t, n)
    assert not tensorladder.grouped_matmul(normal(8, 0), normal(0, 8), ends(0, 0)).any()


CASES = {"rows": ((64, 24), (4, 24, 16)), "k": ((24, 64), (64, 16)), "columns": ((4, 24, 16), (16, 64))}


@pytest.mark.parametrize(("case", "activation"), [("rows", "silu"), ("k", "none"), ("columns", "none")])
def test_gradients(case, activation):
    offs, biased = ends(0, 37, 37, 64), case != "columns"
    made = [normal(*shape) for shape in CASES[case]] + [normal(4, 16, dtype=torch.float32)] * biased
    if activation == "silu":
        made[1] = made[1].mT.contiguous().mT
    ours = [x.clone().requires_grad_() for x in made]
    theirs = [x.double().requires_grad_() for x in made]
    bias = ours[2] if biased else None
    got = tensorladder.grouped_matmul(*ours[:2], offs, bias=bias, activation=activation)
    want = ACTIVATIONS[activation](exact(*theirs[:2], offs, theirs[2] if biased else None))
    weight = torch.randn(want.shape)
    (got.float() * weight).sum().backward()
    (want * weight.double()).sum().backward()
    for mine, right in zip(ours, theirs):
        assert (mine.grad.dtype, mine.grad.shape, mine.grad.stride()) == (mine.dtype, mine.shape, mine.stride())
        assert (mine.grad.double() - right.grad).norm() <= 0.01 * right.grad.norm()


def test_rows_of_no_group_have_no_gradient():
    a = normal(67, 24).requires_grad_()
    tensorladder.grouped_matmul(a, normal(4, 24, 16), OFFS["empty groups"]).float().sum().backward()
    assert a.grad[:60].any() and not a.grad[60:].any()


def test_torch_checks_the_operator():
    a, b, bias = normal(20, 24).requires_grad_(), normal(2, 24, 16).requires_grad_(), normal(16).requires_grad_()
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    arguments = (a, b, ends(3, 20), bias, None, None, "none", None)
    torch.library.opcheck(torch.ops.tensorladder.grouped_matmul.default, arguments, test_utils=checks)


def test_one_graph():
    def experts(x, up, down, offs):
        hidden = tensorladder.grouped_matmul(x, up, offs)
        return tensorladder.grouped_matmul(hidden, down, offs)

    arguments = normal(20, 24), normal(2, 24, 16), normal(2, 16, 24), ends(3, 20)
    compiled = torch.compile(experts, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(*arguments), experts(*arguments))


def test_as_torch_does():
    """Where torch has it (on a CPU too): the same call, the same result but for rows of no group."""
    theirs = getattr(torch.nn.functional, "grouped_mm", None)
    if theirs is None:
        pytest.skip("this torch has no grouped_mm")
    offs, a, b = ends(8, 24, 40), normal(40, 64), normal(3, 64, 32)
    for left, right in ((a, b), (a.mT, normal(40, 32)), (normal(3, 24, 64), a.mT)):
        got, want = tensorladder.grouped_matmul(left, right, offs), theirs(left, right, offs=offs)
        assert close(got, want.double()) or (got.double() - want.double()).norm() <= 2.0**-8 * want.double().norm()


def array(*shape, dtype="bf16", strides=None, address=0):
    steps = [1]
    for extent in reversed(shape[1:]):
        steps.append(steps[-1] * extent)
    return Array(shape, strides or tuple(reversed(steps)), dtype, address)


A, B, ENDS = array(40, 64), array(3, 64, 32), array(3, dtype="int32")
REFUSED = [
    ({"a": array(40)}, "a: shape"),
    ({"b": array(3, 63, 32)}, "b: shape"),
    ({"b": array(4, 64, 32)}, "offs: 3 ends"),
    ({"b": array(3, 64, 36)}, "b: N=36"),
    ({"b": array(3, 64, 32, strides=(0, 32, 1))}, "b: the same matrix"),
    ({"b": array(3, 64, 32, dtype="fp16")}, "b: fp16"),
    ({"a": array(40, 64, dtype="fp32")}, "a: fp32"),
    ({"a": array(40, 64, strides=(60, 1))}, "a: strides"),
    ({"a": array(40, 64, address=8)}, "a: address"),
    ({"offs": array(3, dtype="int64")}, "offs: int64"),
    ({"offs": array(3, dtype="int32", strides=(2,))}, "offs: stride"),
    ({"offs": array(3, 1, dtype="int32")}, "offs: int32 of shape"),
    ({"bias": array(40)}, "bias: shape"),
    ({"bias": array(3, 32, strides=(33, 1))}, "bias: strides"),
    ({"bias": array(32, address=8)}, "bias: address"),
    ({"bias": array(32, dtype="int32")}, "bias: int32"),
    ({"activation": "tanh"}, "activation: 'tanh'"),
    ({"scale_a": array(40), "scale_b": array(32, dtype="fp32")}, "scale_a: bf16"),
    ({"scale_a": array(41, dtype="fp32"), "scale_b": array(32, dtype="fp32")}, "scale_a: shape"),
    ({"scale_a": array(40, dtype="fp32"), "scale_b": array(2, 32, dtype="fp32")}, "scale_b: shape"),
    ({"a": array(40, 64, dtype="e4m3"), "b": array(3, 64, 32, dtype="e4m3")}, "b: e4m3 with strides"),
    ({"out_dtype": "e4m3"}, "out_dtype: e4m3"),
]


@pytest.mark.parametrize(("changed", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_refusals_name_the_argument(changed, message):
    with pytest.raises(UsageError) as refusal:
        plan(**{"a": A, "b": B, "offs": ENDS, **changed})
    assert str(refusal.value).startswith(message) and "\n" not in str(refusal.value)


CALLS = [
    (lambda: tensorladder.grouped_matmul(normal(8, 8), normal(2, 8, 8)), "offs: None"),
    (lambda: tensorladder.grouped_matmul(normal(2, 8, 8), normal(2, 8, 8), ends(4, 8)), "offs: a and b"),
    (lambda: tensorladder.grouped_matmul(normal(8), normal(2, 8, 8), ends(4, 8)), "a: shape"),
    (lambda: tensorladder.grouped_matmul(normal(2, 8, 8), normal(8, 8), ends(4, 8), bias=normal(8)), "bias: columns"),
    (lambda: tensorladder.grouped_matmul(normal(2, 7, 8), normal(8, 8), ends(4, 8)), "groups of columns"),
    (
        lambda: tensorladder.grouped_matmul(normal(8, 8), normal(8, 8), ends(4, 8), scale_a=torch.ones(8)),
        "scale_a: groups of K",
    ),
    (
        lambda: tensorladder.grouped_matmul(
            normal(8, 8).requires_grad_(), normal(2, 8, 8), ends(4, 8), scale_a=torch.ones(8)
        ),
        "scale_a: has no gradients",
    ),
]


@pytest.mark.parametrize(("call", "message"), CALLS, ids=[message for _, message in CALLS])
def test_refusals_of_calls(call, message):
    with pytest.raises(UsageError) as refusal:
        call()
    assert str(refusal.value).startswith(message) and "\n" not in str(refusal.value)


@pytest.mark.parametrize("majors", [("k", "k"), ("k", "mn"), ("mn", "mn")])
@pytest.mark.parametrize("ragged", ["m", "k"])
def test_every_choice_is_a_legal_config(ragged, majors):
    form = Form("bf16", "fp32", a_major=majors[0], b_major=majors[1], ragged=ragged)
    for one in choices(form):
        c9_grouped.check_config(kernels.config(one, 132), "sm_90a", form)
    for t, n, k in ((1, 8, 8), (700, 512, 264), (8192, 14336, 4096), (32768, 2880, 2880)):
        assert choose(GroupedPlan(form, 8, t, n, k, ()), 132) in choices(form)


def test_the_host_code_takes_what_a_gpu_call_hands_it():
    """Without a GPU: the launch that the compiled host part makes of the plan's extents and pitches."""
    planned = plan(array(40, 64), array(3, 64, 256), ENDS, bias=array(256))
    config = grouped.config_for(planned, 132)
    (made,) = templates(execute.program(planned.form, config), grouped.arrays(planned))
    numbers = {number for _, number, _ in made.addresses}
    assert numbers == {at for at, (_, one) in enumerate(planned.operands) if one is not None}
    assert made.cluster[0] == 2 and made.grid[0] <= 132 and made.attributes["programmatic_stream_serialization"]


def test_calls_on_a_gpu_plan_once(monkeypatch):
    """With the driver replaced: cold and warm calls are right wherever tensors lie; other strides are another plan."""
    monkeypatch.delenv("TENSORLADDER_DEVICE")
    gpu = silicon.install(monkeypatch)
    offs = OFFS["empty groups"]
    plans = []
    monkeypatch.setattr(grouped, "plan", lambda *given, **options: plans.append(given) or plan(*given, **options))
    for number in range(3):
        a, b = normal(67, 72), normal(4, 136, 72).mT
        got = tensorladder.grouped_matmul(a, b, offs)
        assert close(got[:60], exact(a, b, offs)) and not got[60:].any()
        assert len(gpu.launched) == number + 1 and len(plans) == 1
    offs = ends(7, 7, 9, 67)  # data, not part of a plan
    b = normal(4, 72, 136)
    assert close(tensorladder.grouped_matmul(a, b, offs), exact(a, b, offs)) and len(plans) == 2
    moved = torch.cat((ends(0), offs))[1:]  # at another multiple of 4 bytes
    assert close(tensorladder.grouped_matmul(a, b, moved), exact(a, b, offs)) and len(plans) == 3
    a = a.requires_grad_()
    for _ in range(2):
        tensorladder.grouped_matmul(a, b, offs).float().sum().backward()
    assert len(plans) == 5  # forward, and the gradient of a
