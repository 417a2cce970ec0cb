"""What can be asked for, without any cluster: fans, refusals in one line, a call in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tensorladder.submit import Job, call
from tensorladder.submit.job import parse_fan


def test_fans_of_one_option_add_up_and_of_several_multiply():
    job = Job(("run", "c2"), ("shape=64,64,64", "shape=128,64,64", "async=lazy", "async=random:1..2"))
    assert job.calls() == [
        ("run", "c2", "--shape", shape, "--async", policy)
        for shape in ("64,64,64", "128,64,64")
        for policy in ("lazy", "random:1", "random:2")
    ]
    assert Job(("list",)).calls() == [("list",)]
    assert Job.from_json(job.to_json()) == job


@pytest.mark.parametrize(
    ("text", "values"), [("seed=8..8", ["8"]), ("sm-count=9..11", ["9", "10", "11"]), ("shape=8,8", ["8,8"])]
)
def test_a_fan_is_an_option_and_its_values(text, values):
    assert parse_fan(text) == (text.split("=")[0], values)


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["show", "c2"], "show"),
        (["submit", "run", "c2"], "submit"),
        (["--fan", "seed", "run", "c2"], "--fan 'seed'"),
        (["--fan", "--seed=1", "run", "c2"], "--fan '--seed=1'"),
        (["--fan", "seed=8..1", "run", "c2"], "goes up"),
        (["--fan", "seed=1..99999999", "run", "c2"], "10000"),
        (["--fan", "seed=1..200", "--fan", "sm-count=1..200", "run", "c2"], "40000 calls"),
        (["--fan", "seed=1..2", "run", "c2", "--seed=3"], "--seed"),
        (["--fan", "sed=1", "run", "c2"], "--sed"),
        (["--fan", "seed=x", "run", "c2"], "--seed"),
        (["--gpus", "-1", "run", "c2"], "--gpus"),
        (["--retries", "-1", "run", "c2"], "--retries"),
        (["--on", "slurm", "list"], "--on 'slurm'"),
        (["run", "c2", "--nonsense"], "--nonsense"),
    ],
)
def test_what_is_asked_wrongly_is_one_line_before_anything_is_sent(ask, words, names):
    said = ask("submit", *words)
    assert said.code == 2 and said.out == ""
    assert names in said.err and said.err.count("\n") == 1


@pytest.mark.parametrize("place", ["ray", "modal"])
def test_a_missing_extra_is_one_line(ask, monkeypatch, place):
    monkeypatch.setitem(sys.modules, place, None)
    monkeypatch.setitem(sys.modules, "ray.job_submission", None)
    said = ask("submit", "--on", place, "--", "list")
    assert (said.code, said.out) == (2, "")
    assert said.err == f"tensorladder: {place} is not installed: pip install 'tensorladder[{place}]'\n"


def test_a_call_gives_the_lines_and_the_code_of_the_command_line(ask):
    outcome = call.run(["list", "--series", "z"])
    here = [json.loads(line) for line in ask("list", "--series", "z", "--json").out.splitlines()]
    assert outcome == {"exit": 0, "lines": here, "said": ""}
    ran = call.where(["list", "--series", "z"], call.place(), 1)
    event = call.done(ran, outcome)["done"]
    assert event["records"] == [{**line, "ran": ran} for line in here] and ran["call"] == "list --series z"


def test_a_call_without_lines_still_gives_a_record():
    outcome = call.run(["list", "--series", "nonsense"])
    assert outcome["exit"] == 2 and outcome["lines"] == [] and "nonsense" in outcome["said"]
    (record,) = call.done({}, outcome)["done"]["records"]
    assert record == {"ok": False, "message": outcome["said"], "ran": {}}


@pytest.mark.parametrize(
    ("codes", "worst"), [([], 0), ([2], 2), ([3, 2], 3), ([None, 2], 3), ([1, None], 1), ([-9, 3], 1)]
)
def test_the_exit_code_is_the_worst(codes, worst):
    from tensorladder.cli.submit import _worst

    assert _worst(codes) == worst


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_killed_worker_leaves_no_call_behind():
    code = "from tensorladder.submit import call; call._ENTRY += 'import time; time.sleep(60)'; call.run(['list'])"
    path = os.pathsep.join([str(Path(call.__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    code = code.replace("call._ENTRY +=", "call._ENTRY = call._ENTRY.replace('entry()', '') +")
    worker = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path})
    children = Path(f"/proc/{worker.pid}/task/{worker.pid}/children")
    try:
        child = _wait(lambda: children.read_text().split())[0]
        command = Path(f"/proc/{child}/cmdline")
        # it has asked for the signal once it sleeps, which is when it has imported the command line
        _wait(lambda: "tensorladder" in command.read_text())
        time.sleep(1.5)
    finally:
        worker.kill()
        worker.wait()
    _wait(lambda: not command.exists() or not command.read_text())


def _wait(ready, seconds=20):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := ready():
            return found
        time.sleep(0.02)
    raise AssertionError("it did not happen")
