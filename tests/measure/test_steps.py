"""Rungs beside their parents: which pairs, and what a line says."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import steps
from tensorladder.measure import bench
from tensorladder.silicon.pack import Array
from tensorladder.silicon.timing import Blocks
from tests.measure.fake_torch import Torch

US = {"b2-warp-mma": 300.0, "b5-tma": 200.0, "b7-warp-specialized": 250.0}


def entry(rung, side, dtype="fp16"):
    return SimpleNamespace(rung=rung, shape=(side, side, side), dtype=dtype)


def test_products_go_by_size_and_the_rest_is_left_out():
    names = ["b5-tma", "b7-warp-specialized", "c1-wgmma", "b6-colwise-scaling"]
    opened = SimpleNamespace(entries=[entry(name, side) for name in names for side in (64, 128)])
    found = steps.sizes(opened)
    assert list(found) == [((64,) * 3, "fp16"), ((128,) * 3, "fp16")]
    assert all(list(by_rung) == names[:3] for by_rung in found.values())


def test_pairs_are_those_whose_parent_is_there():
    names = dict.fromkeys(["b2-warp-mma", "b5-tma", "c1-wgmma", "c3-persistent", "c4-multicast"])
    assert steps.pairs(names) == [
        ("b5-tma", "b2-warp-mma"), ("c1-wgmma", "b5-tma"), ("c4-multicast", "c3-persistent"),
    ]  # fmt: skip


def test_a_line_says_who_is_faster_in_turns_and_alone_and_what_is_wrong():
    record = {
        "rung": "c2", "shape": [64, 64, 64], "dtype": "e4m3", "median_us": 3.0, "ratio": 1.0123, "baseline": "c1",
        "ok": False, "alone_us": 3.2, "alone_ratio": 0.99, "alone_clock_mhz": 1410.0, "alone_power_w": 698.4,
    }  # fmt: skip
    told = steps.line(record)
    assert told.endswith("1.012 times as fast as c1; alone 3.2 us, 1410 MHz, 698 W, 0.990  WRONG")
    unknown = {**record, "ok": True, "alone_clock_mhz": None, "alone_power_w": None}
    assert steps.line(unknown).endswith("as c1; alone 3.2 us, 0.990")


@pytest.fixture
def on_a_gpu(monkeypatch, tmp_path):
    """The command on a GPU of numpy whose kernels take what `US` says; spoilt: those that are wrong."""
    torch, spoilt = Torch(), set()
    arrays = tuple(Array(name, (64, 64), (64, 1), "float16", name == "C") for name in "ABC")

    class Kernel:
        def __init__(self, rung):
            self.rung = rung

        def bind(self, stream, a, b, c):
            def launch():
                torch.clock.now += US[self.rung]
                wrong = 2.0 if self.rung in spoilt else 1.0
                c.array[...] = (a.array.astype(np.float32) @ b.array.astype(np.float32).T) * wrong

            return launch

    entries = [SimpleNamespace(**{**vars(entry(name, 64)), "arrays": arrays}) for name in US]
    opened = SimpleNamespace(entries=entries, check_gpu=lambda: None, kernel=lambda one: Kernel(one.rung))
    monkeypatch.setattr(steps, "cuda_torch", lambda: torch)
    monkeypatch.setattr(steps, "facts", lambda: {"l2_bytes": 1000})
    monkeypatch.setattr(steps.packs, "open_current", lambda folder: opened)
    monkeypatch.setattr(steps, "ALONE", Blocks(settle=0.0, seconds=0.0))
    monkeypatch.setattr(bench, "machine", lambda suite: {"suite": suite.name, "on": "gpu"})

    def run():
        return steps.main(["run", "pack", "--seconds", "0.001", "--results", str(tmp_path / "kept.jsonl")])

    return SimpleNamespace(run=run, spoilt=spoilt, kept=tmp_path / "kept.jsonl")


def test_every_pair_is_timed_in_turns_and_alone_and_who_is_not_faster_is_told(on_a_gpu, capsys):
    assert on_a_gpu.run() == 0
    *_, last = capsys.readouterr().out.splitlines()
    assert last == "not faster than b5-tma in turns: b7-warp-specialized at 64x64x64 fp16 (0.800)"
    host, (b5, b7) = bench.read(on_a_gpu.kept)
    assert host["alone"]["rounds"] == 2 and (b5["ratio"], b5["alone_ratio"]) == (1.5, 1.5)
    slow = {"rung": "c4-multicast", "baseline": "c3-persistent", "shape": [64] * 3, "dtype": "fp16", "ratio": 0.99}
    assert next(steps.not_faster([slow])).endswith("64x64x64 fp16 (0.990); aside: pays " + steps.rungs.find("c4").aside)
    assert b7["alone_us"] == 250.0 and b7["baseline_alone_us"] == 200.0 and b7["alone_ratio"] == 0.8


@pytest.mark.parametrize("seconds", ["inf", "nan", "0"])
def test_a_time_that_never_ends_is_refused(capsys, seconds):
    assert steps.main(["run", "p", "--seconds", seconds]) == 2 and "--seconds" in capsys.readouterr().err


def test_a_wrong_result_is_the_commands_exit_status(on_a_gpu, capsys):
    on_a_gpu.spoilt.add("b5-tma")
    assert on_a_gpu.run() == 1 and "WRONG" in capsys.readouterr().out
