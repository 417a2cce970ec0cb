"""compute-sanitizer over rungs and the op: what is run, how its answers are read, who is to blame."""

from __future__ import annotations

import subprocess

import pytest

from benchmarks import sanitizer
from tensorladder.core.errors import UsageError

CLEAN = "========= COMPUTE-SANITIZER\nright\n========= ERROR SUMMARY: 0 errors\n"
BAD = (
    "========= COMPUTE-SANITIZER\n========= Invalid __global__ read of size 16 bytes\n=========     at kernel+0x10\n"
    "========= ERROR SUMMARY: 3 errors\n"
)
RACES = (
    "========= COMPUTE-SANITIZER\n========= Error: Race reported\n"
    "========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)\n"
)
NO_RACES = "========= COMPUTE-SANITIZER\n========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n"


def tool(monkeypatch, answer):
    asked = []

    def run(command, **options):
        group = command[command.index("one") + 2 :]
        asked.append(group)
        said, status = answer(group)
        return subprocess.CompletedProcess(command, status, said, "")

    monkeypatch.setattr(sanitizer.subprocess, "run", run)
    return asked


def test_a_clean_group_is_one_process(monkeypatch, tmp_path):
    asked = tool(monkeypatch, lambda group: (CLEAN, 0))
    found = sanitizer.examine("memcheck", tmp_path, ["b5", "c1", "op matmul"])
    assert [record["rung"] for record in found] == ["b5", "c1", "op matmul"] and len(asked) == 1
    assert all(record["ok"] and record["errors"] == 0 for record in found)


def test_a_group_with_errors_is_taken_apart(monkeypatch, tmp_path):
    asked = tool(monkeypatch, lambda group: (BAD, 0) if "c1" in group else (CLEAN, 0))
    good, bad = sanitizer.examine("memcheck", tmp_path, ["b5", "c1"])
    assert asked == [["b5", "c1"], ["b5"], ["c1"]]
    assert good["ok"] and not bad["ok"] and bad["errors"] == 3
    assert bad["message"] == "Invalid __global__ read of size 16 bytes"
    shown = sanitizer.table([good, bad, {**good, "tool": "racecheck"}])
    assert "c1, memcheck: Invalid" in shown and shown.splitlines()[1].split() == ["b5", "0", "0"]
    assert shown.splitlines()[2].split() == ["c1", "3", "-"]


@pytest.mark.parametrize(
    ("said", "status", "ok", "errors", "words"),
    [
        (RACES, 0, False, 1, "Error: Race reported"),
        (NO_RACES, 0, True, 0, ""),
        (CLEAN, 1, False, 0, "the result is wrong"),
        ("Traceback\nRuntimeError: no such kernel\n", 1, False, None, "no such kernel"),
        ("", 127, False, None, "exit status 127"),
    ],
)
def test_answers_are_read(monkeypatch, tmp_path, said, status, ok, errors, words):
    tool(monkeypatch, lambda group: (said, status))
    (found,) = sanitizer.examine("racecheck", tmp_path, ["c5"])
    assert (found["ok"], found["errors"]) == (ok, errors) and words in found["message"]


def test_a_tool_that_does_not_end_is_stopped(monkeypatch, tmp_path):
    def run(command, timeout, **options):
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(sanitizer.subprocess, "run", run)
    (found,) = sanitizer.examine("synccheck", tmp_path, ["c5"])
    assert not found["ok"] and "still running after 240 s" in found["message"]


def test_every_target_is_run_under_every_tool(monkeypatch, tmp_path):
    monkeypatch.setattr(sanitizer, "targets", lambda folder: [f"r{i}" for i in range(8)] + ["op matmul"])
    tool(monkeypatch, lambda group: (CLEAN, 0))
    found = list(sanitizer.run(tmp_path, sanitizer.TOOLS, 2, []))
    assert len(found) == 36 and {record["tool"] for record in found} == set(sanitizer.TOOLS)
    assert {record["rung"] for record in sanitizer.run(tmp_path, ["memcheck"], 1, ["op"])} == {"op matmul"}


def test_records_are_kept_and_the_status_says_whether_all_are_clean(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(sanitizer, "targets", lambda folder: ["b5", "c1"])
    monkeypatch.setattr(sanitizer.shutil, "which", lambda name: name)
    monkeypatch.setattr(sanitizer.bench, "machine", lambda suite: {"suite": suite.name, "on": "gpu"})
    tool(monkeypatch, lambda group: (BAD, 0) if "c1" in group else (CLEAN, 0))
    kept = tmp_path / "s.jsonl"
    arguments = ["run", str(tmp_path), "--tool", "memcheck", "--jobs", "1", "--results", str(kept)]
    assert sanitizer.main(arguments) == 1 and "c1, memcheck: Invalid" in capsys.readouterr().out
    host, records = sanitizer.bench.read(kept)
    assert host["suite"] == "sanitizer" and [one["ok"] for one in records] == [True, False]
    tool(monkeypatch, lambda group: (CLEAN, 0))
    assert sanitizer.main(arguments) == 0


def test_without_the_tool_or_a_pack_it_is_one_line(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(sanitizer.shutil, "which", lambda name: None)
    assert sanitizer.main(["run", str(tmp_path)]) == 2
    assert "compute-sanitizer is not in PATH" in capsys.readouterr().err
    monkeypatch.setattr(sanitizer.shutil, "which", lambda name: name)
    assert sanitizer.main(["run", str(tmp_path)]) == 2
    assert "is no pack" in capsys.readouterr().err


def test_kernels_that_are_forced_are_candidates_of_the_op(monkeypatch):
    found = [sanitizer.forced(name) for name in sanitizer.FORCED]
    assert len(set(found)) == len(sanitizer.FORCED) and {one.kernel for _, one in found} == {"c7", "c8"}
    monkeypatch.setitem(sanitizer.FORCED, "gone", ("matmul", "c7", {"tile": (1, 2, 3)}))
    with pytest.raises(UsageError, match="no such candidate"):
        sanitizer.forced("gone")
