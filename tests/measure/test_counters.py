"""The tensor pipe's share: what is asked of ncu, how its answer is read, and one line where there is none."""

from __future__ import annotations

import json
import subprocess

import pytest

from tensorladder.measure import bench, counters, suites

SUITE = suites.Suite("small", "", "fp16", {(64, 64, 64): ""})
KNOWN = "sm__pipe_tensor_op_hmma_cycles_active  Counter  cycle  # of\nsm__cycles_active  Counter  cycle  # of\n"


def mark(label, launches, shape=(64, 64, 64)):
    return counters.MARK + json.dumps({"label": label, "shape": list(shape), "dtype": "fp16", "launches": launches})


def answer(*values, marks):
    header = '"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'
    rows = [f'"{i}","7","kernel, with ""commas""","sm__x","%","{value}"' for i, value in enumerate(values)]
    return "\n".join(["==PROF== Connected to process 7", *marks, "==PROF== Disconnected", header, *rows]) + "\n"


def test_each_launch_belongs_to_its_rung_and_the_busiest_of_several_counts():
    said = answer("0", "12.25", "88.04", marks=[mark("a1", 2), mark("c5", 1)])
    key = (64, 64, 64), "fp16"
    assert counters.shares(said) == {("a1", *key): 12.2, ("c5", *key): 88.0}


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (answer("1", marks=[mark("c5", 2)]), "1 kernels read of 2 launched"),
        (answer("n/a", marks=[mark("c5", 1)]), "the counter's value is 'n/a'"),
    ],
)
def test_an_answer_that_does_not_fit_is_refused(said, words):
    with pytest.raises(counters.Unavailable, match=words):
        counters.shares(said)


def ncu(monkeypatch, *answers):
    asked, left = [], list(answers)

    def run(command, **options):
        asked.append(command)
        code, text = left.pop(0)
        return subprocess.CompletedProcess(command, code, text, "")

    monkeypatch.setattr(counters.shutil, "which", lambda name: "/bin/ncu")
    monkeypatch.setattr(counters.subprocess, "run", run)
    return asked


def test_the_first_counter_that_this_ncu_knows_is_read(monkeypatch):
    asked = ncu(monkeypatch, (0, KNOWN), (0, answer("50.5", marks=[mark("c5", 1)])))
    counter, found = counters.tensor_pipe("pack", SUITE, ["c5"], [])
    assert counter == "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active"
    assert list(found.values()) == [50.5] and asked[1][asked[1].index("--metrics") + 1] == counter
    assert json.loads(asked[1][-1]) == ["pack", "small", [[64, 64, 64]], ["c5"], []]


def test_the_program_that_ncu_runs_launches_what_the_suite_asks_for(monkeypatch):
    seen = []
    monkeypatch.setattr(bench, "from_pack", lambda *arguments: arguments)
    monkeypatch.setattr(counters, "launch", seen.append)
    counters.main(json.dumps(["p", "small", [[64, 64, 64]], ["c5"], []]))
    assert seen == [("p", suites.Suite("small", "", "", SUITE.shapes), ["c5"], [])]


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ([(0, "")], "knows none of sm__"),
        ([(0, KNOWN), (1, "==PROF== x\n==ERROR== ERR_NVGPUCTRPERM - no permission\n")], "ERR_NVGPUCTRPERM"),
        ([(0, KNOWN), (9, "")], "exit status 9"),
    ],
)
def test_where_counters_cannot_be_read_it_is_one_line(monkeypatch, answers, words):
    ncu(monkeypatch, *answers)
    with pytest.raises(counters.Unavailable, match=words):
        counters.tensor_pipe("pack", SUITE, [], [])


def test_without_ncu_it_is_one_line(monkeypatch):
    monkeypatch.setattr(counters.shutil, "which", lambda name: None)
    with pytest.raises(counters.Unavailable, match="ncu is not in PATH"):
        counters.tensor_pipe("pack", SUITE, [], [])


def test_records_get_their_share():
    rows = [{"rung": "c5", "shape": [64, 64, 64], "dtype": "fp16"}, {"rung": "b2", "shape": [64] * 3, "dtype": "fp16"}]
    with_share, without = bench.with_shares(iter(rows), {("c5", (64, 64, 64), "fp16"): 88.0})
    assert with_share["tensor_pipe"] == 88.0 and "tensor_pipe" not in without


def test_what_a_gpu_cannot_run_is_said():
    assert "sm_100a" in bench.not_measured((9, 0)) and "sm_90a" not in bench.not_measured((9, 0))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--ncu",), "--ncu is for --on gpu with --pack"),
        (("--ncu", "--pack", "p", "--op", "matmul"), "--ncu is for rungs"),
    ],
)
def test_a_wrong_request_is_one_line(ask, arguments, words):
    said = ask("bench", *arguments)
    assert said.code == 2 and words in said.err and said.err.count("\n") == 1


def test_the_table_says_what_was_not_measured():
    from tensorladder.cli import bench as verb

    said = verb._absent({"not_measured": ["sm_100a"]})
    assert said.startswith("not measured here: the tensor pipe's share (--ncu reads it), sm_100a (code that")
    assert verb._absent({"not_measured": [], "tensor_pipe": "sm__x"}) == "tensor %: sm__x"
