"""Measured choices with a timer that invents times: what is measured, kept, found again, and not believed."""

from __future__ import annotations

import contextlib
import json
import threading
import time
import warnings
from dataclasses import replace

import pytest

from tensorladder.core import cache
from tensorladder.core.errors import UsageError
from tensorladder.ops import tune
from tensorladder.ops.choose import MODELS, choose, rank
from tensorladder.ops.kernels import KERNELS, Product
from tensorladder.ops.plan import Array, Matrix, plan
from tensorladder.silicon import timing

PLACE = tune.Place("NVIDIA H200", "580.159", "sm_90a", 132)
A, B = Array((777, 1600), (1600, 1), "bf16"), Array((1600, 6400), (1, 1600), "bf16")
PLAN = plan(A, B)
PRODUCT = Product(777, 6400, 1600, 1, PLAN.form)


@pytest.fixture(autouse=True)
def a_cache_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORLADDER_CACHE", str(tmp_path))
    tune.forget()
    yield tmp_path
    tune.forget()


class Timer:
    """Calls every candidate but one slow; counts how often it is asked."""

    def __init__(self, fast=3, seconds=0.0):
        self.fast, self.asked, self.seconds = fast, [], seconds

    def __call__(self, candidates):
        self.asked.append(candidates)
        time.sleep(self.seconds)
        return {one: 1.0 if number == self.fast else 2.0 + number for number, one in enumerate(candidates)}


def key(a=A, place=PLACE, **options):
    return tune.key(place, plan(a, B, **options))


def test_the_fastest_is_kept_and_found_by_the_next_process():
    timer = Timer()
    found = tune.tune(key(), timer)
    assert found == timer.asked[0][3] and tune.winner(key()) == found
    tune.forget()
    assert tune.winner(key()) == found
    assert tune.tune(key(), timer) == found and len(timer.asked) == 1


def test_contenders_are_the_models_first_and_one_of_every_kernel():
    timer = Timer()
    tune.tune(key(), timer)
    (asked,) = timer.asked
    assert asked[: tune.MOST] == rank(*PRODUCT, 132)[: tune.MOST] and len(asked) <= 12
    here = {name for name in MODELS if "sm_90a" in KERNELS[name].archs and KERNELS[name].takes(PRODUCT)}
    assert {one.kernel for one in asked} == here


def test_without_a_measurement_there_is_no_winner():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert tune.winner(key()) is None


OTHERS = {
    "gpu": key(place=replace(PLACE, gpu="NVIDIA H100")),
    "driver": key(place=replace(PLACE, driver="590.1")),
    "sms": key(place=replace(PLACE, sm_count=114)),
    "extents": key(replace(A, shape=(776, 1600))),
    "form": key(out_dtype="fp32"),
    "layout": key(replace(A, strides=(1608, 1))),
    "source": replace(key(), source="c6:0000"),
    "version": replace(key(), version="0.0"),
}


@pytest.mark.parametrize("what", OTHERS)
def test_a_winner_is_for_its_key_alone(what):
    tune.tune(key(), Timer())
    assert tune.winner(OTHERS[what]) is None


def damaged(of, how):
    path = cache.cache_dir() / of.file
    if how == "cut":
        path.write_bytes(path.read_bytes()[:-20])
        return
    record = json.loads(cache.read(of.file))
    cache.write(of.file, json.dumps(HARM[how](record)).encode() if how != "no json" else b"{")


def knob(record):
    record["measured"][record["best"]]["knobs"]["tile"] = [1, 2, 3]
    return record


HARM = {
    "no json": None,
    "another product": lambda record: {**record, "for": {}},
    "past the end": lambda record: {**record, "best": 99},
    "no record": lambda record: 7,
    "an unknown candidate": knob,
}


@pytest.mark.parametrize("how", ["cut", *HARM])
def test_a_damaged_file_is_a_warning_and_is_measured_anew(how):
    timer = Timer()
    tune.tune(key(), timer)
    damaged(key(), how)
    tune.forget()
    with pytest.warns(UserWarning, match=r"the measured choice .* is ignored \(.*\): the model chooses") as said:
        assert tune.winner(key()) is None
    assert len(said) == 1
    assert tune.winner(key()) is None and tune.tune(key(), timer) is not None and len(timer.asked) == 2
    tune.forget()
    assert tune.winner(key()) == timer.asked[0][3]


def test_a_cache_that_cannot_be_written_still_serves_the_process(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TENSORLADDER_CACHE", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="cannot be written"):
        found = tune.tune(key(), Timer())
    assert tune.winner(key()) == found


def test_threads_measure_once():
    timer, found = Timer(seconds=0.05), []
    threads = [threading.Thread(target=lambda: found.append(tune.tune(key(), timer))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(timer.asked) == 1 and len(found) == 8 and len(set(found)) == 1


def test_products_are_measured_one_at_a_time():
    running, most = 0, 0

    def timer(candidates):
        nonlocal running, most
        running += 1
        most = max(most, running)
        time.sleep(0.01)
        running -= 1
        return dict.fromkeys(candidates, 1.0)

    keys = [key(replace(A, shape=(m, 1600))) for m in range(1, 7)]
    threads = [threading.Thread(target=tune.tune, args=(one, timer)) for one in keys]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_where_nothing_runs_it_is_one_line():
    with pytest.raises(UsageError, match=r"^tune: no candidate runs here"):
        tune.tune(key(), lambda candidates: {})
    assert tune.winner(key()) is None


# ------------------------------------------------------------------------------------- on a GPU, which is played here


@pytest.fixture
def torch(monkeypatch):
    torch = pytest.importorskip("torch")
    stream = type("Stream", (), {"synchronize": lambda self: None})()
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: type("P", (), {"L2_cache_size": 1 << 20})())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return torch


def call_of(torch):
    a = torch.randn(64, 96).t()
    b = torch.randn(48, 256)[:, :128]
    c = torch.randn(96, 128)
    return {"a": a, "b": b, "out": c, "residual": c, "bias": None, "row": torch.ones(1).expand(96)}


def test_results_are_scratch_and_operands_rotate(torch):
    tensors = call_of(torch)
    before = {name: tensor.clone() for name, tensor in tensors.items() if tensor is not None}
    sets = tune.operands(torch, tensors)
    size = sum(tune._span(x) * 4 for x in tensors.values() if x is not None)
    assert len(sets) == 1 + 2 * (1 << 20) // size
    own = {tensor.data_ptr() for tensor in tensors.values() if tensor is not None}
    assert sets[0]["a"] is tensors["a"] and sets[0]["out"].data_ptr() not in own
    for other in sets[1:]:
        for name, tensor in other.items():
            same = tensor is None and tensors[name] is None
            assert same or (tensor.stride() == tensors[name].stride() and torch.equal(tensor, before[name]))
            assert same or tensor.data_ptr() not in own
    for each in sets:
        each["out"].zero_()
    assert torch.equal(tensors["out"], before["out"])


def test_large_operands_are_not_copied(torch, monkeypatch):
    monkeypatch.setattr(tune, "COPIED", 1000)
    (one,) = tune.operands(torch, call_of(torch))
    assert one["out"].stride() == (128, 1)


def test_no_memory_for_a_result_is_one_line(torch, monkeypatch):
    def full(tensor):
        raise torch.cuda.OutOfMemoryError

    monkeypatch.setattr(tune, "_copy", full)
    with pytest.raises(UsageError, match=r"^tune: no memory for a result"):
        tune.operands(torch, call_of(torch))


def test_what_kernels_refuse_is_left_out(torch, monkeypatch):
    candidates = rank(*PRODUCT, 132)[:3]
    tensors, written = call_of(torch), []

    def bind(one, on):
        if one == candidates[0]:
            raise UsageError("c6: no room")
        return lambda: written.append(on["out"].data_ptr())

    def compare(torch, calls, meter, options):
        for each in calls.values():
            for call in each:
                call()
        times = {name: timing.Times((float(9 - number),) * 3, 1) for number, name in enumerate(calls)}
        return timing.Measured(times, None, None)

    monkeypatch.setattr(timing, "compare", compare)
    measured = tune.timer(torch, tensors, bind)(candidates)
    assert measured == {candidates[1]: 9.0, candidates[2]: 8.0}
    assert tensors["out"].data_ptr() not in written and written
    with pytest.raises(UsageError, match="no room"):
        tune.timer(torch, tensors, bind)(candidates[:1])


def test_not_while_a_graph_is_captured(torch, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(UsageError, match=r"^tune: nothing can be measured during a CUDA graph's capture"):
        tune.refuse_capture(torch)


def test_a_call_takes_the_winner_and_else_the_models_first():
    assert tune.chosen(PLACE, PLAN) == choose(*PRODUCT, 132)
    found = tune.tune(key(), Timer(fast=4))
    assert found != choose(*PRODUCT, 132) and tune.chosen(PLACE, PLAN) == found


def test_layouts():
    one = Array((16, 64), (64, 1), "bf16"), Array((64, 40), (40, 1), "bf16")
    assert tune.layout_of(plan(*one)) == "dense dense dense -"
    wide, row = Array((16, 64), (72, 1), "bf16"), Array((16, 40), (40, 1), "bf16", 1 << 20)
    assert tune.layout_of(plan(wide, one[1], residual=row, beta=1.0)) == "padded dense dense dense"
    many = Array((3, 16, 64), (1024, 64, 1), "bf16"), Array((3, 64, 40), (0, 40, 1), "bf16")
    assert tune.layout_of(plan(*many)) == "dense shared dense -"
    assert tune._lies(Matrix((16, 64), "k", 64, 3, 2048)) == "padded"


def test_calls_measure_once_and_then_run_the_winner(torch, monkeypatch):
    """`matmul`'s way on a GPU, with launches that are written down."""
    from tensorladder.ops import execute

    seen = []
    monkeypatch.setattr(
        execute.launch, "make",
        lambda plan, kernel, tensors, call, device: lambda *given: seen.append((tensors, kernel)),
    )  # fmt: skip
    monkeypatch.setattr(execute, "compiled", lambda form, config, arch: config)
    monkeypatch.setattr(execute, "knobs", lambda choice, sms: choice)
    monkeypatch.setattr(execute, "_properties", lambda index: ((9, 0), 132))
    monkeypatch.setattr(execute.driver, "use_context", lambda device: None)
    forgotten = []
    monkeypatch.setattr(execute.fast, "forget", lambda: forgotten.append(1))
    monkeypatch.setattr(tune, "place", lambda torch, index, arch: PLACE)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())

    def compare(torch, calls, meter, options):
        for each in calls.values():
            each[0]()
        return timing.Measured({name: timing.Times((float(-i),) * 3, 1) for i, name in enumerate(calls)}, None, None)

    monkeypatch.setattr(timing, "compare", compare)
    tensors = {"a": torch.ones(777, 1600), "b": torch.ones(1600, 6400), "out": torch.ones(777, 6400), "bias": None}
    for tuned in (False, True, True, False):
        seen.clear()
        execute._on_gpu(PLAN, tensors, tensors, (1.0, 0.0), None, tuned)
        assert seen[-1][0] is tensors and all(on["out"] is not tensors["out"] for on, _ in seen[:-1])
    assert len(seen) == 1 and seen[0][1] == tune.contenders(PRODUCT, 132, "sm_90a")[-1] != choose(*PRODUCT, 132)
    assert len(forgotten) == 1  # calls that knew the model's choice take the winner


def test_on_the_virtual_gpu_the_model_chooses(torch, monkeypatch):
    pytest.importorskip("cutlass")
    from tensorladder.ops import execute, kernels

    configs = []
    monkeypatch.setenv("TENSORLADDER_DEVICE", "vgpu")
    monkeypatch.setattr(execute.on_virtual, "run", lambda plan, tensors, factors, config, *rest: configs.append(config))
    tune.tune(key(), Timer(fast=4))
    with pytest.warns(UserWarning, match=r"^tune: the virtual GPU measures nothing, the model chooses$"):
        execute.run(PLAN, {"a": torch.ones(1), "b": torch.ones(1), "out": torch.ones(1)}, {}, 1.0, 0.0, tune=True)
    assert configs == [kernels.config(choose(*PRODUCT, 132), 132)]
