"""Calls of the op as benchmarks time them: operands, float64 judgement, rivals, records (by torch on the CPU)."""

from __future__ import annotations

import functools
import json
import math
import re
import types

import pytest

torch = pytest.importorskip("torch")

from tensorladder.core.errors import MissingExtra, UsageError  # noqa: E402
from tensorladder.measure import bench as measure  # noqa: E402
from tensorladder.measure import suites  # noqa: E402
from tensorladder.ops import bench, calls, rivals  # noqa: E402
from tensorladder.silicon.timing import Measured, Options, Times  # noqa: E402
from tests.measure.fake_torch import Torch  # noqa: E402

SHAPE = (37, 48, 80)


def work(name, dtype=None, shape=SHAPE, l2=0):
    call = calls.find(name)
    return calls.Work(torch, call, shape, dtype or call.dtypes[0], l2, device="cpu")


def by_torch(made, number=0):
    """What a right kernel gives: float32 sums and epilogue, rounded once."""
    call, t = made.call, made.sets[number]

    def run():
        if call.groups:
            ends = t["ends"].tolist()
            x = torch.cat([t["A"][i:j].float() @ b.float().t() for i, j, b in zip([0, *ends], ends, t["B"])])
        else:
            x = t["A"].float() @ t["B"].float().t()
        if call.scales:
            x = x * t["p"] * t["q"]
        if call.bias:
            x = x + t["bias"].float()
        if call.residual:
            x = x + t["R"].float()
        activate = functools.partial(calls.ACTIVATIONS[call.activation], torch)
        half = made.shape[1] // 2
        x = activate(x[:, :half]) * x[:, half:] if call.gated else activate(x)
        t["C"].copy_(x)

    return run


CASES = [(name, dtype) for name, call in calls.CALLS.items() for dtype in call.dtypes]


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_a_right_result_passes_and_one_wrong_element_does_not(monkeypatch, name, dtype):
    monkeypatch.setattr(measure, "CHECKED_AT_ONCE", 48 * 10)
    made = work(name, dtype)
    run = by_torch(made)
    within, error = made.check(run)
    assert within and error <= made.tolerance

    def spoilt():
        run()
        c = made.sets[0]["C"]
        c[36, -1] += 0.02 * max(1.0, float(c[36, -1].abs()))

    assert not made.check(spoilt)[0]
    within, error = made.check(lambda: None)  # C was poisoned
    assert not within and math.isinf(error)


@pytest.mark.parametrize("name", ["bias-residual", "swiglu", "grouped-8", "fp8-rows"])
def test_the_op_passes_on_the_virtual_gpu(monkeypatch, name):
    pytest.importorskip("cutlass")
    monkeypatch.setenv("TENSORLADDER_DEVICE", "vgpu")
    made = work(name)
    within, error = made.check(calls.ours(made.call, made.sets[0]))
    assert within and error <= made.tolerance


def test_operands_fill_twice_the_l2_and_rows_of_c_are_aligned():
    made = work("matmul", shape=(5, 13, 16), l2=2000)
    assert (len(made.sets) - 1) * made.bytes >= 4000
    assert made.sets[0]["C"].shape == (5, 13) and made.sets[0]["C"].stride() == (16, 1)
    assert not torch.equal(made.sets[0]["A"], made.sets[1]["A"]) and made.flops == 2 * 5 * 13 * 16
    assert work("swiglu").sets[0]["C"].shape == (37, 24)


@pytest.mark.parametrize("name", [name for name, call in calls.CALLS.items() if not (call.scales or call.groups)])
def test_torch_of_its_own_computes_the_same(name):
    made = work(name)
    by_torch(made)()
    expected = made.sets[0]["C"].float()
    found = rivals.plain(torch, made.call)(*rivals._arguments(made.sets[0]))
    assert float((found.float() - expected).norm() / expected.norm()) < rivals.SAME / 2


def test_what_the_op_chooses_is_named():
    for name in ("matmul", "bias-residual", "grouped-8"):
        made = work(name)
        found = calls.chosen(made.call, made.shape, made.dtype, 132)
        assert found["kernel"] and found["config"]
        json.dumps(found)


@pytest.mark.parametrize("name", [name for name, call in calls.CALLS.items() if not call.groups])
@pytest.mark.parametrize("shape", [SHAPE, (5, 26, 96)])
def test_calls_are_planned_as_their_tensors_lie(monkeypatch, name, shape):
    """The op plans the same from tensors: what is packed by it is what is called."""
    from tensorladder.ops import operator

    seen = []
    monkeypatch.setattr(operator.execute, "run", lambda planned, *arguments: seen.append(planned))
    made = work(name, shape=shape)
    try:
        calls.ours(made.call, made.sets[0])()
    except UsageError as error:
        with pytest.raises(UsageError, match=re.escape(str(error)[:20])):
            calls.planned(made.call, shape, made.dtype)
    else:
        assert calls.planned(made.call, shape, made.dtype) == seen[0]


def test_wrong_names_are_one_line():
    with pytest.raises(UsageError, match="--op 'gemv' is not known: use one of matmul"):
        calls.find("gemv")
    with pytest.raises(UsageError, match="--dtype e4m3: --op matmul takes bf16, fp16"):
        calls.dtype_of(calls.find("matmul"), "e4m3")
    with pytest.raises(UsageError, match="--shape 1,2: a suite's are M,N,K"):
        suites.only(suites.SUITES["llm"], [(1, 2)])
    with pytest.raises(UsageError, match=r"not what `python -m benchmarks.quack` makes|apache-tvm-ffi"):
        rivals.Quack("/nowhere", 66)


def test_the_fastest_of_many_is_found_in_turns(monkeypatch):
    fake = Torch()
    seen = []

    def runs(name, us):
        def run():
            seen.append(name)
            fake.clock.now += us

        return [run]

    candidates = {f"tile {us}": runs(us, float(us)) for us in (90, 70, 50, 60, 80, 55)}
    assert rivals.fastest(fake, candidates) == "tile 50"
    assert set(seen[-20:]) <= {50, 55, 60, 70}  # the end is between those that came first


# ---------------------------------------------------------------------------------------------------------- records


def fake_compare(times):
    """Measures nothing: every contender has its time."""

    def compare(torch, contenders, meter, options):
        for calls_of in contenders.values():
            calls_of[-1]()
        return Measured({name: Times((times[name],) * 3, 4) for name in contenders}, 1700.0, 600.0)

    return compare


def records(monkeypatch, suite, names, times, right=1.0, ours=None):
    monkeypatch.setattr(bench, "cuda_torch", lambda: torch)
    monkeypatch.setattr(bench.driver, "facts", lambda: {"l2_bytes": 1000, "sms": 132})
    monkeypatch.setattr(bench, "Work", functools.partial(calls.Work, device="cpu"))
    monkeypatch.setattr(measure, "compare", fake_compare(times))
    monkeypatch.setattr(rivals, "fastest", lambda torch, candidates: next(iter(candidates)))
    monkeypatch.setattr(measure, "host_us", lambda torch, runs: 7.5)
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)

    def multiply(call, t):
        made = types.SimpleNamespace(call=call, sets=[t], shape=SHAPE)
        run = by_torch(made)

        def spoilt():
            run()
            t["C"].mul_(right)

        return spoilt

    monkeypatch.setattr(bench, "ours", ours or multiply)
    refused = []
    called = [(calls.find(name), calls.find(name).dtypes[0]) for name in names]
    return list(bench.on_gpu(called, suite, Options(), refused)), refused


SMALL = suites.Suite("small", "", "bf16", {SHAPE: ""})


def test_a_record_for_every_rival_and_the_best_of_them(monkeypatch):
    def quack(made, given):
        return measure.Rival([by_torch(made, i) for i in range(len(made.sets))], "128x192 pingpong")

    monkeypatch.setattr(rivals, "_quack", quack)
    found, refused = records(monkeypatch, SMALL, ["matmul"], {"ours": 10.0, "cublas": 12.0, "quack": 11.0})
    assert [one["baseline"] for one in found] == ["cublas", "quack"] and not refused
    assert [one["ratio"] for one in found] == [1.2, 1.1] and {one["best_ratio"] for one in found} == {1.1}
    assert found[0]["host_us"] == 7.5 and found[1]["baseline_host_us"] == 7.5
    assert found[1]["baseline_choice"] == "128x192 pingpong" and "baseline_choice" not in found[0]
    assert all(one["rung"] == "matmul" and one["kernel"] and one["ok"] for one in found)
    means = {one["baseline"]: one["geometric_mean"] for one in measure.geometric_means(found)}
    assert means == {"cublas": 1.2, "quack": 1.1, measure.BEST: 1.1}
    json.dumps(found, allow_nan=False)


def test_an_epilogue_is_measured_against_torch_in_all_its_ways(monkeypatch):
    times = {"ours": 10.0, "cublaslt": 10.5, "torch.compile": 11.0, "torch": 14.0}
    found, refused = records(monkeypatch, SMALL, ["bias-gelu", "swiglu"], times)
    assert [(one["rung"], one["baseline"]) for one in found] == [
        ("matmul bias-gelu", "cublaslt"), ("matmul bias-gelu", "torch.compile"), ("matmul bias-gelu", "torch"),
        ("matmul swiglu", "torch.compile"), ("matmul swiglu", "torch"),
    ]  # fmt: skip
    assert found[1]["baseline_choice"] == "default" and not refused


def test_grouped_products_have_torchs_own_beside_them(monkeypatch):
    (found,), refused = records(monkeypatch, SMALL, ["grouped-8"], {"ours": 10.0, "torch": 12.0})
    assert found["baseline"] == "torch" and found["ratio"] == 1.2 and refused == []


def test_cublas_may_leave_rows_dense_where_they_are_padded(monkeypatch):
    monkeypatch.setattr(rivals, "fastest", lambda torch, candidates: list(candidates)[-1])
    odd = work("matmul", shape=(5, 13, 16))
    by_torch(odd)()
    ((name, rival),) = rivals.rivals(odd, None, [])
    assert name == "cublas" and rival.choice == "rows dense" and rival.runs[0]().is_contiguous()
    assert rivals._cublas_best(work("matmul")).choice == ""


def test_a_wrong_op_is_not_timed_and_a_wrong_rival_is_left_out(monkeypatch):
    (found,), _ = records(monkeypatch, SMALL, ["matmul"], {}, right=1.05)
    assert not found["ok"] and found["median_us"] is None

    def wrong(torch, call, t):
        return lambda: t["C"].zero_()

    monkeypatch.setattr(rivals, "_cublas", wrong)
    (found,), refused = records(monkeypatch, SMALL, ["matmul"], {"ours": 1.0})
    assert found["ok"] and found["baseline"] is None and refused == ["cublas on matmul 37x48x80 bf16: is off by 1"]


def test_a_shape_that_the_op_refuses_is_left_out(monkeypatch):
    odd = (37, 50, 80)

    def some(call, t):
        if t["B"].shape[0] == 50:
            raise UsageError("b: N=50: pad it")
        return by_torch(types.SimpleNamespace(call=call, sets=[t], shape=SHAPE))

    two = suites.Suite("two", "", "bf16", {odd: "", SHAPE: ""})
    (found,), refused = records(monkeypatch, two, ["matmul"], {"ours": 1.0, "cublas": 2.0}, ours=some)
    assert found["shape"] == list(SHAPE) and refused == ["matmul 37x50x80 bf16: b: N=50: pad it"]
    with pytest.raises(UsageError, match="nothing was timed: matmul 37x50x80 bf16: b: N=50"):
        records(monkeypatch, suites.only(two, [odd]), ["matmul"], {}, ours=some)

    def missing(call, t):
        raise MissingExtra("the DSL", "climb")

    with pytest.raises(MissingExtra):
        records(monkeypatch, two, ["matmul"], {}, ours=missing)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--op", "gemv"), "--op 'gemv' is not known"),
        (("--op", "matmul", "--rungs", "c5"), "--rungs and --op: one of them"),
        (("--op", "matmul", "--dtype", "e4m3"), "--dtype e4m3: --op matmul takes"),
        (("--quack", "x", "--rungs", "c5"), "--quack and --tune are for --op"),
        (("--suite", "fused", "--on", "vgpu"), "are for --on gpu"),
        (("--suite", "llm", "--shape", "5,5"), "a suite's are M,N,K"),
    ],
)
def test_a_wrong_request_is_one_line(ask, arguments, words):
    said = ask("bench", *arguments)
    assert said.code == 2 and words in said.err and said.err.count("\n") == 1 and said.out == ""
