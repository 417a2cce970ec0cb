"""Benchmarks: suites, the method of timing (on a GPU of numpy and a clock), records, files, pictures, the verb."""

from __future__ import annotations

import itertools
import json
import math
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import numpy as np
import pytest

from tensorladder import problems
from tensorladder.cli import bench as verb
from tensorladder.core.errors import UsageError
from tensorladder.draw import benchmarks as pictures
from tensorladder.measure import bench, suites
from tensorladder.measure import pack as packs
from tensorladder.rungs.rung import catalog, find
from tensorladder.silicon import timing
from tensorladder.silicon.nvml import Meter
from tensorladder.silicon.pack import Array, Entry
from tensorladder.silicon.timing import Alone, Blocks, Options, Times, compare
from tests.measure.fake_torch import Torch

KEYS = {"rung", "shape", "dtype", "median_us", "tflops", "baseline", "baseline_us", "ratio"}


# ----------------------------------------------------------------------------------------------------------- suites


def test_suites_have_the_shapes_that_were_promised():
    llm = suites.SUITES["llm"].shapes
    assert len(llm) >= 25 and {m for m, _, _ in llm} >= {1, 8, 16, 32, 64, 128}
    assert set(suites.SUITES["ladder"].shapes) == {(4096,) * 3, (8192,) * 3}
    sides = [m for m, n, k in suites.SUITES["square"].shapes if m == n == k]
    assert min(sides) == 512 and max(sides) == 16384 and sides == sorted(sides)


@pytest.mark.parametrize(
    ("arch", "suite", "names"),
    [
        ("sm_90a", "llm", {"c5-ping-pong"}),
        ("sm_80", "square", {"b2-warp-mma"}),
        ("sm_100a", "square", {"d4-persistent", "v9-two-consumers"}),
    ],
)
def test_suites_take_the_tops_of_an_architecture(arch, suite, names):
    assert {info.name for info in suites.rungs_of(suites.SUITES[suite], catalog(), arch)} >= names


def test_the_ladder_is_every_product():
    names = {info.name for info in suites.rungs_of(suites.SUITES["ladder"], catalog(), "sm_90a")}
    assert {"a1-naive-cute", "b2-warp-mma", "b6-colwise-scaling", "c1-wgmma"} <= names
    assert not names & {"a0-vector-add", "a1-grouped", "d3-two-cta"}
    assert suites.dtype_for(suites.SUITES["ladder"], find("a1-dependent-launch")) == "fp32"


# ----------------------------------------------------------------------------------------------------------- timing


def contender(torch, us, seen=None):
    def call(number):
        if seen is not None:
            seen.append(number)
        torch.clock.now += us() if callable(us) else us

    return [lambda number=number: call(number) for number in range(3)]


def test_contenders_take_turns_and_inputs_rotate():
    torch, seen = Torch(), []
    options = Options(settle=0.01, seconds=0.001, rounds=6)
    measured = compare(
        torch, {"ours": contender(torch, 100.0, seen), "base": contender(torch, 150.0)}, Meter(), options
    )
    ours, base = measured.times["ours"], measured.times["base"]
    assert ours.median == pytest.approx(100.0) and base.median == pytest.approx(150.0)
    assert len(ours.rounds) == len(base.rounds) >= 6 and ours.batch == 30 and base.batch == 20
    assert seen == [i % 3 for i in range(len(seen))]
    assert measured.clock_mhz is None and measured.power_w is None
    record = bench.against("cublas", ours, base)
    assert record["ratio"] == pytest.approx(1.5)


def test_the_pause_lets_the_host_stay_ahead_of_short_kernels():
    torch = Torch()
    compare(torch, {"ours": contender(torch, 2.0)}, Meter(), Options(settle=0.0, seconds=0.0, rounds=1))
    assert torch.slept[-1] >= 64 * 12 * 1000  # cycles: 64 launches of 12 us on the host, at a GHz or more


@pytest.mark.parametrize(("early", "repeated", "bound"), [(2, 2, False), (99, 5, True)])
def test_a_batch_that_the_gpu_began_too_early_is_repeated_behind_a_longer_pause(early, repeated, bound):
    torch = Torch()
    run = timing._Run(torch, contender(torch, 2.0))
    run.size_up(Options())
    before = len(torch.slept)
    torch.early = [True] * early
    assert run.batch_us(None) == pytest.approx(2.0) and run.starved is bound
    pauses = torch.slept[before:]
    assert len(pauses) == 1 + repeated and all(b > 1.9 * a for a, b in itertools.pairwise(pauses))
    if bound:
        ours, bound_times = Times((2.0,), 64), Times((2.0,), 64, True)
        assert bench.timed(bound_times, 1)["host_bound"] and "host_bound" not in bench.timed(ours, 1)
        assert bench.against("x", ours, bound_times)["baseline_host_bound"]


def test_gaps_around_a_single_launch_do_not_make_a_kernel_long():
    torch = Torch()
    gap = [40.0]  # what the first launch of a batch is charged on top

    def call():
        torch.clock.now += 5.0 + (gap.pop() if gap else 0.0)

    run = timing._Run(torch, [call])
    run.batch_us(None)
    assert run.each == pytest.approx(45.0)
    gap.append(40.0)
    run.size_up(Options())
    assert run.each == pytest.approx(5.0) and run.batch == 64
    run.batch_us(None)
    assert torch.slept[-1] >= 64 * 12 * 1000


def test_long_kernels_need_no_queue_before_they_begin():
    torch = Torch()
    run = timing._Run(torch, contender(torch, 500.0))
    run.size_up(Options())
    torch.early = [True]
    before = len(torch.slept)
    run.batch_us(None)
    assert len(torch.slept) == before + 1 and not run.starved


def test_rounds_before_the_clocks_settle_do_not_count():
    torch = Torch()
    cooling = iter([300.0, 250.0, 200.0, 150.0] + [100.0] * 100000)
    measured = compare(
        torch, {"ours": contender(torch, lambda: next(cooling))}, Meter(),
        Options(batch_us=1.0, settle=5.0, seconds=0.0, rounds=3),
    )  # fmt: skip
    assert measured.times["ours"].rounds == (100.0,) * 3


def test_a_kernel_of_a_second_gets_its_few_rounds_and_no_more():
    torch, seen = Torch(), []
    compare(torch, {"ours": contender(torch, 1.2e6, seen)}, Meter(), Options(seconds=0.0, rounds=3))
    assert len(seen) == 4  # one that loads and shows how long it takes


class Readings:
    """A meter that reads what the kernel that runs now sets."""

    mhz, watts = 1980, 100.0

    def clock(self):
        return self.mhz

    def power_now(self):
        return self.watts

    def power(self):
        return self.watts + 1.0  # an average, of what ran before as well


SHORT_BLOCKS = Blocks(settle=0.0, seconds=0.0, launches=30)


def test_alone_each_has_blocks_of_its_own_in_both_orders():
    torch, meter, seen = Torch(), Readings(), []

    def calls_of(name, us, mhz, watts):
        def call(number):
            seen.append((name, number))
            meter.mhz, meter.watts = mhz, watts
            torch.clock.now += us

        return [lambda number=number: call(number) for number in range(3)]

    contenders = {"ours": calls_of("ours", 200.0, 1400, 700.0), "base": calls_of("base", 150.0, 1500, 600.0)}
    found = timing.alone(torch, contenders, meter, SHORT_BLOCKS)
    ours, base = found["ours"], found["base"]
    assert ours.blocks == pytest.approx((200.0, 200.0)) and base.median == pytest.approx(150.0)
    assert (ours.clock_mhz, ours.power_w, base.clock_mhz, base.power_w) == (1400, 700.0, 1500, 600.0)
    assert ours.millijoules == pytest.approx(140.0) and not ours.host_bound
    assert [name for name, _ in itertools.groupby(name for name, _ in seen)] == ["ours", "base", "ours", "base", "ours"]
    numbers = [number for name, number in seen if name == "ours"]
    assert numbers == [i % 3 for i in range(len(numbers))]  # inputs rotate across all of its blocks
    record = bench.settled_against(ours, base)
    assert record["alone_ratio"] == 0.75 and record["baseline_alone_clock_mhz"] == 1500
    assert bench.settled(ours)["alone_mj"] == 140.0 and "alone_host_bound" not in bench.settled(ours)


def test_alone_what_runs_while_the_clocks_settle_does_not_count():
    torch = Torch()
    run = timing._Run(torch, [])
    run.batch, run.each, cooling = 1, 3000.0, iter([300.0] + [100.0] * 9)
    run.calls = [lambda: setattr(torch.clock, "now", torch.clock.now + next(cooling))]
    made = timing._block(torch, run, Meter(), Blocks(settle=0.0, seconds=0.0, launches=9))
    assert made.us == pytest.approx(100.0)
    both = timing._together([made, replace(made, us=110.0, late=True)])
    assert both == Alone((100.0, 110.0), None, None, True) and both.median == 105.0 and both.millijoules is None
    assert bench.settled(both)["alone_host_bound"] and bench.settled(both)["alone_mj"] is None


def test_alone_power_is_the_average_where_a_block_is_as_long_as_that(monkeypatch):
    torch = Torch()
    monkeypatch.setattr(timing, "AVERAGED_S", 0.0)
    assert timing.alone(torch, {"ours": contender(torch, 9.0)}, Readings(), SHORT_BLOCKS)["ours"].power_w == 101.0


def test_alone_a_kernel_of_a_second_gets_a_few_launches_a_block():
    torch, seen = Torch(), []
    timing.alone(torch, {"ours": contender(torch, 1.2e6, seen)}, Meter(), Blocks(settle=0.0, seconds=0.0))
    assert len(seen) == 1 + 2 * (1 + 3)  # one that loads, and a block: one that settles, three that count


@pytest.mark.parametrize(("each", "depth"), [(10.0, 8), (3000.0, 4), (2e6, 2)])
def test_alone_few_batches_are_queued_ahead(each, depth):
    torch = Torch()
    run = timing._Run(torch, [lambda: None])
    run.each = each
    queue, waits = timing._Queue(torch, run), []
    for event in queue._ends:
        event.synchronize = lambda: waits.append(queue._queued)
    for _ in range(depth + 2):
        queue.batch()
    assert waits == [depth, depth + 1] and not queue.late


def test_alone_a_batch_that_finds_the_one_before_over_came_late():
    torch = Torch()
    queue = timing._Queue(torch, timing._Run(torch, [lambda: None]))
    queue.batch()
    torch.early = [True]
    queue.batch()
    assert queue.late


def test_the_hosts_share_of_a_call_is_its_median():
    torch, seen = Torch(), []
    assert 0 <= timing.host_us(torch, contender(torch, 5.0, seen)) < 1000
    assert seen == [i % 3 for i in range(timing.HOST_CALLS)]


def test_spread_is_the_10th_and_90th_percentile():
    times = Times(tuple(float(i) for i in range(100, -1, -1)), 1)
    assert times.median == 50.0 and times.spread == (10.0, 90.0)


# ---------------------------------------------------------------------------------------------------------- checking

SHAPE = (48, 40, 72)
ARRAYS = (
    Array("A", (48, 72), (72, 1), "float16", False),
    Array("B", (40, 72), (72, 1), "float16", False),
    Array("C", (48, 40), (40, 1), "float16", True),
)


def workload(l2=0):
    return bench.Workload(Torch(), problems.find("gemm"), SHAPE, "fp16", ARRAYS, l2)


def multiply(work, spoil=lambda c: None):
    t = work.sets[0]

    def run():
        t["C"].array[...] = t["A"].array.astype(np.float32) @ t["B"].array.astype(np.float32).T
        spoil(t["C"].array)

    return run


@pytest.mark.parametrize("rows", [1 << 26, 40 * 7])
def test_a_right_result_passes_and_one_wrong_element_does_not(monkeypatch, rows):
    monkeypatch.setattr(bench, "CHECKED_AT_ONCE", rows)
    work = workload()
    within, error = work.check(multiply(work))
    assert within and 0 < error < 2**-11

    def spoil(c):
        c[47, 39] += 0.25

    assert not work.check(multiply(work, spoil))[0]
    within, error = work.check(lambda: None)  # C was poisoned
    assert not within and math.isinf(error)


def test_inputs_fill_twice_the_l2():
    work = workload(l2=50_000)
    assert work.bytes == 2 * (48 * 72 + 40 * 72 + 48 * 40)
    assert (len(work.sets) - 1) * work.bytes >= 2 * 50_000 > (len(work.sets) - 3) * work.bytes
    first, second = (work.sets[i]["A"].array for i in range(2))
    assert not np.array_equal(first, second) and len(workload().sets) == 2


class FakeKernel:
    def __init__(self, torch, us, right):
        self.torch, self.us, self.right = torch, us, right

    def bind(self, stream, a, b, c):
        def run():
            self.torch.clock.now += self.us
            c.array[...] = (a.array.astype(np.float32) @ b.array.astype(np.float32).T) * self.right

        return run


def records(monkeypatch, right=1.0, alone=None):
    torch = Torch()

    def baseline(problem, torch, tensors):
        return lambda: setattr(torch.clock, "now", torch.clock.now + 30.0)

    def broken(problem, torch, tensors):
        raise RuntimeError("no such\nconfig")

    monkeypatch.setattr(bench, "cuda_torch", lambda: torch)
    monkeypatch.setattr(bench.driver, "facts", lambda: {"l2_bytes": 1000})
    monkeypatch.setattr(bench, "BASELINES", {"cublas": baseline, "quack": broken, "absent": lambda *_: None})
    entry = Entry("b5-tma", "sm_90a", SHAPE, "fp16", {"stages": 3}, "", ARRAYS, ())
    suite = suites.Suite("small", "", "fp16", {SHAPE: ""})
    refused = []
    job = bench.Job("b5-tma", entry, lambda: FakeKernel(torch, 20.0, right))
    return list(bench.on_gpu([job], suite, Options(settle=0.0, seconds=0.0, alone=alone), refused)), refused


def test_a_record_says_what_was_measured(monkeypatch):
    (record,), refused = records(monkeypatch)
    assert record.keys() >= KEYS and record["ok"] and record["on"] == "gpu"
    assert record["median_us"] == pytest.approx(20.0) and record["baseline_us"] == pytest.approx(30.0)
    assert record["baseline"] == "cublas" and record["ratio"] == pytest.approx(1.5)
    assert record["tflops"] == pytest.approx(2 * 48 * 40 * 72 / 20.0 / 1e6)
    assert refused == ["quack on b5-tma 48x40x72 fp16: no such config"]
    json.dumps(record, allow_nan=False)
    assert not [key for key in record if "alone" in key]


def test_a_record_says_what_each_takes_alone_where_that_is_asked_for(monkeypatch):
    (record,), _ = records(monkeypatch, alone=Blocks(settle=0.0, seconds=0.0))
    assert record["alone_us"] == 20.0 and record["baseline_alone_us"] == 30.0
    assert record["alone_ratio"] == record["best_alone_ratio"] == 1.5
    assert {"alone_clock_mhz", "alone_power_w", "baseline_alone_clock_mhz", "baseline_alone_power_w"} <= record.keys()
    (wrong,), _ = records(monkeypatch, right=1.01, alone=Blocks(settle=0.0, seconds=0.0))
    assert not wrong["ok"] and "alone_us" not in wrong


@pytest.mark.parametrize("alone", [False, True])
def test_the_table_has_columns_for_what_each_takes_alone_where_that_is_asked_for(monkeypatch, capsys, tmp_path, alone):
    host = {
        **dict.fromkeys(("cublas", "quack", "power_limit_w")), "suite": "small", "on": "gpu", "gpu": "H200",
        "torch": "2", "not_measured": [],
    }  # fmt: skip
    blocks = Blocks(settle=0.0, seconds=0.0) if alone else None
    monkeypatch.setattr(verb.measure, "machine", lambda suite: host.copy())
    monkeypatch.setattr(verb.measure, "from_pack", lambda *_: [])
    found, _ = records(monkeypatch, alone=blocks)
    wrong, _ = records(monkeypatch, right=1.01, alone=blocks)
    monkeypatch.setattr(verb.measure, "on_gpu", lambda jobs, suite, options, refused: iter([*found, *wrong]))
    monkeypatch.setenv("COLUMNS", "200")
    assert verb.bench(pack="p", alone=alone, results=str(tmp_path)) == 1
    told = capsys.readouterr().out
    assert ("us alone  ratio alone" in told) == alone and ("geometric mean 1.500, each alone 1.500" in told) == alone


def test_what_was_timed_before_an_interrupt_is_kept(monkeypatch, tmp_path):
    found, _ = records(monkeypatch, alone=Blocks(settle=0.0, seconds=0.0))
    host = {**dict.fromkeys(("cublas", "quack", "power_limit_w")), "suite": "ladder", "on": "gpu", "gpu": "H200"}

    def interrupted(*_):
        yield from found
        raise KeyboardInterrupt

    monkeypatch.setattr(verb.measure, "machine", lambda suite: {**host, "torch": "2"})
    monkeypatch.setattr(verb.measure, "from_pack", lambda *_: [])
    monkeypatch.setattr(verb.measure, "on_gpu", interrupted)
    with pytest.raises(KeyboardInterrupt):
        verb.bench(pack="p", alone=True, results=str(tmp_path))
    assert bench.read(tmp_path / "ladder-h200.jsonl")[1] == found


def test_a_wrong_kernel_is_not_timed(monkeypatch):
    (record,), _ = records(monkeypatch, right=1.01)
    assert not record["ok"] and record["median_us"] is None and record["ratio"] is None
    assert bench.exit_code([record]) == 1 and bench.geometric_means([record]) == []


# --------------------------------------------------------------------------------------------------------- what to do

SMALL = suites.Suite("small", "", "fp16", {(128, 128, 64): "", (129, 128, 60): ""}, every_rung=True)


def test_without_a_pack_kernels_are_compiled_for_the_gpu_here(monkeypatch):
    pytest.importorskip("cutlass")
    monkeypatch.setattr(bench, "arch_for", lambda archs: archs[[name == "sm_90a" for name in archs].index(True)])
    loaded = []
    monkeypatch.setattr(bench.driver, "load", lambda image, kernel: loaded.append((image[:4], kernel)))
    monkeypatch.setattr(bench.driver, "use_context", lambda: None)
    monkeypatch.setattr(bench.driver, "Prepared", FakePrepared)
    refused = []
    (job,) = bench.compiled_here(SMALL, ["b5"], [], refused)
    assert job.label == "b5-tma" and job.entry.shape == (128, 128, 64) and job.entry.arch == "sm_90a"
    assert len(refused) == 1 and "K=60" in refused[0]
    job.load()
    assert loaded == [(b"\x7fELF", job.entry.launches[0].kernel)]


class FakePrepared:
    def __init__(self, launch, offsets, function, places):
        pass


def test_a_packs_entries_are_those_of_the_suite_that_were_asked_for(monkeypatch, tmp_path):
    pytest.importorskip("cutlass")
    made = [packs.make(one, "sm_90a") for one in packs.wanted(["b5", "b2"], "sm_90a", SMALL, [(128, 128, 64)])]
    packs.write(tmp_path, "sm_90a", made)
    monkeypatch.setattr(bench.driver, "capability", lambda device=0: (9, 0))
    assert [job.label for job in bench.from_pack(tmp_path, SMALL)] == ["b5-tma", "b2-warp-mma"]
    assert [job.label for job in bench.from_pack(tmp_path, SMALL, ["b2"])] == ["b2-warp-mma"]
    for suite, specs, dtypes in ((SMALL, ["c1"], ()), (SMALL, [], ["bf16"]), (suites.SUITES["llm"], [], ())):
        with pytest.raises(UsageError, match=r"has nothing of suite .* b5-tma 128x128x64 fp16"):
            bench.from_pack(tmp_path, suite, specs, dtypes)
    monkeypatch.setattr(bench.driver, "capability", lambda device=0: (8, 0))
    with pytest.raises(UsageError, match="is for sm_90a, the GPU here is sm_80"):
        bench.from_pack(tmp_path, SMALL)


# ----------------------------------------------------------------------------------------------------- what comes out


def entry(rung="c5-ping-pong", **config):
    return Entry(rung, "sm_90a", (64, 64, 64), "fp16", {"tile": [128, 128, 64], "stages": 6, **config}, "", (), ())


def test_entries_of_one_rung_are_told_apart():
    made = bench._labels([entry(), entry(stages=5), entry("c4-multicast")])
    assert made == ["c5-ping-pong:stages=6", "c5-ping-pong:stages=5", "c4-multicast"]
    other = replace(entry(stages=5), shape=(128, 128, 64))
    assert bench._labels([entry(), other]) == ["c5-ping-pong"] * 2  # as the shape asks for
    assert bench.matches(entry(stages=5), "c5:stages=5,tile=128x128x64") and not bench.matches(entry(), "c5:stages=5")
    assert not bench.matches(entry(), "c4")
    with pytest.raises(UsageError, match="no rung"):
        bench.matches(entry(), "q7")


HOST = {"suite": "ladder", "on": "gpu", "gpu": "NVIDIA H200", "peak_tflops": 1000.0, "memory_bytes_s": 4.9e12}


def row(rung, side, us, ratio):
    flops = 2 * side**3
    return {
        "rung": rung, "shape": [side] * 3, "dtype": "fp16", "median_us": us, "tflops": flops / us / 1e6, "flops": flops,
        "bytes": 6 * side**2, "baseline": "cublas", "baseline_us": us * ratio, "ratio": ratio, "ok": True,
    }  # fmt: skip


ROWS = [
    row("c5-ping-pong", 4096, 200.0, 1.02),
    row("c5-ping-pong", 8192, 1600.0, 0.98),
    row("b2-<warp>", 4096, 700.0, 0.3),
]


def test_ratios_of_each_alone_have_a_mean_of_their_own():
    rows = [{**ROWS[0], "alone_ratio": 1.0}, {**ROWS[1], "alone_ratio": 0.96}, ROWS[2]]
    first, second = bench.geometric_means(rows)
    assert first["alone_geometric_mean"] == pytest.approx(math.sqrt(0.96), abs=1e-4) and first["alone_losses"] == 1
    assert not [key for key in second if "alone" in key]


def test_means_are_geometric_and_losses_are_counted():
    (first, second) = bench.geometric_means(ROWS)
    assert first["geometric_mean"] == pytest.approx(math.sqrt(1.02 * 0.98), abs=1e-4)
    assert (first["shapes"], first["losses"], first["worst"]) == (2, 1, 0.98)
    assert second["rung"] == "b2-<warp>" and second["losses"] == 1


def test_result_files_begin_with_the_machine(tmp_path):
    path = tmp_path / "sub" / f"{bench.file_stem(suites.SUITES['ladder'], 'NVIDIA H200')}.jsonl"
    assert path.name == "ladder-h200.jsonl"
    bench.keep(path, HOST, ROWS)
    assert json.loads(path.read_text().splitlines()[0]) == {"machine": HOST}
    assert bench.read(path) == (HOST, ROWS)
    path.write_text("{}")
    with pytest.raises(UsageError, match="no result file"):
        bench.read(path)


@pytest.mark.parametrize("rows", [ROWS, [], [{**ROWS[0], "tflops": None}]])
@pytest.mark.parametrize("picture", [pictures.ladder, pictures.roofline, pictures.ratios])
def test_pictures_are_wellformed_and_show_every_rung(picture, rows):
    drawn = picture(HOST, rows)
    root = ElementTree.fromstring(drawn)
    words = {element.text for element in root.iter() if element.text}
    for one in rows:
        assert not one["tflops"] or one["rung"] in words
    assert "nan" not in drawn and "NVIDIA H200" in drawn
    width, height = float(root.get("width")), float(root.get("height"))
    for rect in root.iter("{http://www.w3.org/2000/svg}rect"):
        if rect.get("x"):
            assert float(rect.get("x")) + float(rect.get("width")) <= width and float(rect.get("y")) <= height


def test_the_ladder_shows_asides_below_all_steps():
    """Of each shape, whatever the order of the records: no step stands on an aside."""
    rungs = "c3", "c4:stages=5", "c5"
    rows = [row(rung, side, 200.0, 1.0) for side in (4096, 8192) for rung in rungs]
    drawn = ElementTree.fromstring(pictures.ladder(HOST, rows, {"c4"}))
    seen = [element.text for element in drawn.iter() if element.text in (*rungs, pictures.ASIDE)]
    assert seen == ["c3", "c5", pictures.ASIDE, "c4:stages=5"] * 2
    bars = [one.get("fill") for one in drawn.iter("{http://www.w3.org/2000/svg}rect") if one.get("x")]
    assert bars == [pictures.COLOURS[0], pictures.COLOURS[0], pictures.GREY] * 2
    assert pictures.ASIDE not in pictures.ladder(HOST, rows)


# ------------------------------------------------------------------------------------------------------ the verb


def test_the_verb_times_the_emulation_and_says_so(ask, tmp_path):
    pytest.importorskip("cutlass")
    said = ask("bench", "--on", "vgpu", "--rungs", "a1-naive-cute a0", "--json", "--results", str(tmp_path))
    assert said.code == 0, said.err
    first, *rows, last = map(json.loads, said.out.splitlines())
    assert first["machine"]["clock"] == "wall time of the emulation"
    assert all(one.keys() >= KEYS and one["on"] == "vgpu" for one in rows)
    assert [one["rung"] for one in rows] == ["a1-naive-cute", "a0-vector-add"] and rows[0]["ratio"] > 0
    assert last["summary"][0]["baseline"] == "numpy float32"
    assert bench.read(tmp_path / "ladder-vgpu.jsonl") == (first["machine"], rows)
    assert (tmp_path / "ladder-vgpu.svg").exists()
    said = ask("bench", "--on", "vgpu", "--suite", "square", "--rungs", "c2", "--shape", "4096,4096,4096")
    assert said.code == 2 and said.err.splitlines()[-1].startswith("tensorladder: nothing was timed")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--suite", "huge"), "--suite 'huge'"),
        (("--on", "tpu"), "--on 'tpu'"),
        (("--seconds", "0"), "--seconds 0"),
        (("--arch", "sm_80"), "--arch is for --on vgpu"),
        (("--on", "vgpu", "--pack", "p"), "--pack, --dtype, --quack, --op, --tune and the suites of the op are for"),
        (("--on", "vgpu", "--tune"), "--tune and the suites of the op are for --on gpu"),
        (("--on", "vgpu", "--results", ""), "--results '': it takes a name"),
        (("--on", "vgpu", "--rungs", "q9"), "no rung"),
        (("--on", "vgpu", "--alone"), "--alone is for --on gpu: the emulation has no clock that settles"),
        (("--on", "vgpu", "--rungs", "c5", "--arch", "sm_80"), "c5-ping-pong compiles for sm_90a"),
        (("--on", "gpu", "--pack", "/nowhere"), "is no pack"),
    ],
)
def test_a_wrong_request_is_one_line(ask, arguments, words):
    said = ask("bench", *arguments)
    assert said.code == 2 and words in said.err and said.err.count("\n") == 1 and said.out == ""
