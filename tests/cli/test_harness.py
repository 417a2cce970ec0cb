"""The harness on a made-up rung and a made-up machine: what it hands on, what it judges, what it reports."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tensorladder.core.errors import KernelError, MissingExtra, Unsupported, UsageError
from tensorladder.core.program import Program
from tensorladder.measure import run as harness
from tensorladder.problems import numpy_empty
from tensorladder.rungs.rung import Rung, RungInfo

RUN_KEYS = {"rung", "arch", "on", "shape", "dtype", "ok", "error", "tolerance", "seconds", "compile_seconds"}


class Machine:
    """Runs a program at once, in host memory."""

    def __init__(self, asked):
        self.asked = asked

    allocate = staticmethod(numpy_empty)

    def run(self, program, case):
        program(None, *case.arrays.values())
        return 0.25, 0.5


def right(stream, a, b, c):
    c[...] = (a.astype(np.float32) + b.astype(np.float32)).astype(c.dtype)


def wrong_once(stream, a, b, c):
    right(stream, a, b, c)
    c[7] += 1


def nothing(stream, a, b, c):
    pass


def spoils_an_input(stream, a, b, c):
    right(stream, a, b, c)
    a[3] = 0


def hangs(stream, a, b, c):
    raise KernelError("deadlock: warp 0 waits at mbarrier.try_wait")


def unmodelled(stream, a, b, c):
    raise Unsupported("wgmma.mma_async.sp is not modelled")


class Absent:
    """An import hook: importing `module` finds that the package `lacks` is not there."""

    def __init__(self, module, lacks):
        self.module, self.lacks = module, lacks

    def find_spec(self, name, path=None, target=None):
        if name == self.module:
            raise ModuleNotFoundError(f"No module named {self.lacks!r}", name=self.lacks)
        return None


def rung(name="x1-made-up", archs=("sm_80", "sm_90a"), **more):
    made = Rung(name=name, parent=None, adds="nothing", archs=archs, problem="vector_add", **more)
    return RungInfo(made, Path(__file__), "made.up")


@pytest.fixture
def machine(monkeypatch):
    """Puts `Machine` in the virtual GPU's place; the fixture's value sets the rung's host function."""
    hosts = {"default": right}

    def load(info):
        def compile(arch, shape, dtype, config):
            hosts["compiled"] = (arch, shape, dtype, config)
            return Program(info.name, arch, (), hosts.get(info.name, hosts["default"]))

        return SimpleNamespace(compile=compile, RUNG=info.rung)

    monkeypatch.setattr(harness.rungs, "load", load)
    monkeypatch.setitem(harness.TARGETS, "vgpu", Machine)
    return hosts


def test_defaults_are_the_rungs(machine):
    result = harness.run_rung(rung(dtypes=("bf16", "fp16"), shape=(77,), config=dict))
    assert machine["compiled"] == ("sm_80", (77,), "bf16", {})
    assert result.ok and result.exit_code == 0 and result.message == ""
    assert result.seconds == 0.25 and result.compile_seconds >= 0.5


def test_record_has_the_keys_of_the_contract(machine):
    record = harness.run_rung(rung(), shape=(64,), arch="sm_90a", dtype="float16", seed=3, policy="lazy").record()
    assert set(record) >= RUN_KEYS
    assert record["arch"] == "sm_90a" and record["shape"] == [64] and record["dtype"] == "fp16"
    assert record["async"] == "lazy" and record["seed"] == 3
    assert json.loads(json.dumps(record, allow_nan=False)) == record


@pytest.mark.parametrize("host", [wrong_once, nothing, spoils_an_input])
def test_a_wrong_result_is_not_ok_and_says_where(machine, host):
    machine["default"] = host
    result = harness.run_rung(rung(), shape=(1000,))
    assert not result.ok and result.exit_code == 1
    assert "first at" in result.message and "\n" not in result.message
    json.dumps(result.record(), allow_nan=False)


def test_a_rung_of_free_order_is_judged_by_its_own_tolerance(machine):
    machine["default"] = wrong_once
    loose = harness.run_rung(rung(deterministic=False, tolerance=1.0), shape=(1000,))
    tight = harness.run_rung(rung(deterministic=False, tolerance=1e-9), shape=(1000,))
    assert loose.ok and not tight.ok and tight.tolerance == 1e-9


def test_climb_goes_on_after_what_stops_a_rung(machine):
    machine.update({"x1-hangs": hangs, "x2-incomplete": unmodelled, "x3-wrong": nothing})
    infos = [rung("x1-hangs"), rung("x2-incomplete"), rung("x3-wrong"), rung("x4-right")]
    results = list(harness.climb(harness.requests(infos)))
    assert [result.exit_code for result in results] == [1, 3, 1, 0]
    assert [result.verdict for result in results] == ["stopped", "incomplete", "wrong", "ok"]
    assert harness.summary(results) == {"rungs": 4, "ok": 1, "failed": 3}
    assert "deadlock" in results[0].message and results[0].error is None
    assert harness.exit_code(results) == 1
    assert harness.exit_code(results[1:2] + results[3:]) == 3
    assert harness.exit_code(results[3:]) == 0


def test_all_archs_is_a_run_for_each(machine):
    asked = list(harness.requests([rung(), rung("x2-one", archs=("sm_90a",))], all_archs=True))
    assert [(one.info.name, one.arch) for one in asked] == [
        ("x1-made-up", "sm_80"),
        ("x1-made-up", "sm_90a"),
        ("x2-one", "sm_90a"),
    ]


def test_a_missing_extra_ends_the_climb(machine, monkeypatch):
    def load(info):
        raise MissingExtra("nvidia-cutlass-dsl", "climb")

    monkeypatch.setattr(harness.rungs, "load", load)
    with pytest.raises(UsageError, match=r"tensorladder\[climb\]"):
        list(harness.climb(harness.requests([rung()])))


def test_an_engine_that_is_not_installed_is_a_missing_extra(machine, monkeypatch):
    monkeypatch.setitem(harness.TARGETS, "vgpu", harness.VirtualTarget)
    monkeypatch.delitem(sys.modules, "tensorladder.vgpu", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Absent("tensorladder.vgpu", "numba"), *sys.meta_path])
    with pytest.raises(MissingExtra, match=r"numba .*tensorladder\[climb\]"):
        harness.run_rung(rung())


def test_run_and_climb_speak_json(machine, ask, monkeypatch):
    machine["x2-wrong"] = wrong_once
    infos = (rung(), rung("x2-wrong"))
    monkeypatch.setattr("tensorladder.cli.climb.parse_series", lambda text: infos)
    monkeypatch.setattr("tensorladder.cli.run.find", lambda name: infos[name == "x2-wrong"])
    said = ask("run", "x1", "--shape", "640", "--json")
    record = json.loads(said.out)
    assert said.code == 0 and set(record) >= RUN_KEYS and record["shape"] == [640]
    said = ask("run", "x2-wrong")
    assert said.code == 1 and said.err.count("\n") == 1
    said = ask("climb", "--json")
    *records, last = map(json.loads, said.out.splitlines())
    assert said.code == 1 and [record["ok"] for record in records] == [True, False]
    assert all(set(record) >= RUN_KEYS for record in records)
    assert last == {"summary": {"rungs": 2, "ok": 1, "failed": 1}}
    said = ask("climb")
    assert re.fullmatch(r"2 rungs, 1 ok, 1 failed, \d+\.\d s", said.out.splitlines()[-1])
    assert len(said.out.splitlines()) == 4 and said.err.count("\n") == 1


def test_climb_leaves_out_what_is_in_a_language_that_is_not_installed(machine, ask, monkeypatch, tmp_path):
    source = tmp_path / "x2_elsewhere.py"
    source.write_text("from tvm.script import tirx\n")
    infos = (rung(), replace(rung("x2-elsewhere"), path=source))
    monkeypatch.setattr("tensorladder.cli.climb.parse_series", lambda text: infos)
    here = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "tvm" else here(name))
    said = ask("climb", "--json")
    assert said.code == 0 and json.loads(said.out.splitlines()[-1])["summary"]["rungs"] == 1
    assert "left out: x2-elsewhere: apache-tvm is not installed: pip install 'tensorladder[tirx]'" in said.err
    assert json.loads(ask("climb", "--series", "x", "--json").out.splitlines()[-1])["summary"]["rungs"] == 2
