"""Verbs on a real Ray head with two workers: results as here, and a worker that is killed in the middle.

Skipped where Ray is not installed: pip install 'tensorladder[ray]', then `pytest tests/submit`.
"""

from __future__ import annotations

import json
import os
import signal
import socket

import pytest

pytest.importorskip("ray", reason="needs the ray extra: pip install 'tensorladder[ray]'")
pytest.importorskip("ray.dashboard.modules.job.job_head", reason="needs ray[default]: pip install 'tensorladder[ray]'")
pytest.importorskip("llvmlite")
pytest.importorskip("cutlass")

from ray.cluster_utils import Cluster

from tensorladder.submit import Job, SubmitError, on_ray

# What differs from run to run; the error in its last digit only, with the number of threads that sum float64's norm.
VARIES = ("seconds", "compile_seconds", "error", "ran")
RUN = ("run", "c1", "--shape", "128,128,64")


@pytest.fixture(scope="module")
def cluster():
    """A head that takes no calls, and two workers that take one each; one says that it has a GPU."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    made = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "include_dashboard": True, "dashboard_port": port},
        shutdown_at_exit=False,
    )
    try:
        made.workers = [made.add_node(num_cpus=1, num_gpus=gpus) for gpus in range(2)]
        made.wait_for_nodes()
        made.address_of_jobs = f"http://{made.head_node.webui_url}"
        yield made
    finally:
        made.shutdown()


def fixed(record):
    return {key: value for key, value in record.items() if key not in VARIES}


def by_call(lines):
    records = [json.loads(line) for line in lines]
    return {record["ran"]["call"]: record for record in records if "ran" in record}


def test_results_are_those_of_here_wherever_they_ran(cluster, ask):
    fans = ("--fan", "seed=1..2", "--fan", "async=eager", "--fan", "async=random:7..7")
    said = ask("submit", "--address", cluster.address_of_jobs, *fans, "--json", "--", *RUN)
    assert (said.code, said.err) == (0, "")
    *lines, last = said.out.splitlines()
    assert json.loads(last) == {"summary": {"calls": 4, "ok": 4, "failed": 0, "lost": 0}}
    there = by_call(lines)
    for seed in "12":
        for policy in ("eager", "random:7"):
            call = (*RUN, "--seed", seed, "--async", policy)
            here = json.loads(ask(*call, "--json").out)
            found = there[" ".join(call)]
            assert found.keys() == here.keys() | {"ran"} and fixed(found) == fixed(here)
            assert found["error"] == pytest.approx(here["error"], rel=1e-12)
            assert found["digest"] == here["digest"] != None  # noqa: E711  (the very bits)
    assert {record["ran"]["node"] for record in there.values()} == {node.node_id for node in cluster.workers}
    assert all(record["ran"]["attempt"] == 1 for record in there.values())


def test_what_fails_there_says_so_here(cluster, ask):
    said = ask("submit", "--address", cluster.address_of_jobs, "--json", "--fan", "shape=128,128,65", "--", "run", "c1")
    record, summary = map(json.loads, said.out.splitlines())
    assert said.code == 2 and summary["summary"]["failed"] == 1
    assert record["ok"] is False and "K=65" in record["message"] and "K=65" in said.err


def test_a_call_for_a_gpu_goes_where_one_is(cluster):
    events = list(on_ray.submit(Job(("list", "--series", "z"), gpus=1), cluster.address_of_jobs, poll_s=0.05))
    ran = events[-1]["done"]["ran"]
    assert [next(iter(event)) for event in events] == ["began", "done"]
    assert (ran["node"], ran["gpus"]) == (cluster.workers[1].node_id, "0")


def test_a_call_outlives_the_node_and_the_process_it_ran_on(cluster):
    """A worker's node is killed, then another's process, each in the middle of a call: the calls end all the same."""
    job = Job(("run", "a1", "--shape", "512,512,512"), ("seed=1..3",))
    ends, losses, killed = {}, [], []
    for event in on_ray.submit(job, cluster.address_of_jobs, poll_s=0.05):
        if "began" in event and len(killed) < 2:
            killed.append(event["began"])
            if len(killed) == 1:
                node = next(one for one in cluster.workers if one.node_id == event["began"]["node"])
                cluster.workers.remove(node)
                cluster.remove_node(node, allow_graceful=False)
            else:
                os.kill(event["began"]["pid"], signal.SIGKILL)
        elif "lost" in event:
            losses.append(event["lost"])
        elif "done" in event:
            ends[event["done"]["ran"]["call"]] = event["done"]
    assert sorted(loss["ran"]["call"] for loss in losses) == sorted(ran["call"] for ran in killed)
    assert all(loss["retried"] and loss["why"] for loss in losses)
    assert [loss["ran"] for loss in sorted(losses, key=lambda loss: loss["ran"]["call"])] == sorted(
        killed, key=lambda ran: ran["call"]
    )
    assert len(ends) == 3 and all(end["exit"] == 0 and end["records"][0]["ok"] for end in ends.values())
    for ran in killed:
        assert ends[ran["call"]]["ran"]["attempt"] == 2


def test_a_call_that_no_worker_finishes_is_incomplete(cluster):
    job = Job(("run", "a1", "--shape", "512,512,512"), retries=0)
    losses, ends = [], []
    for event in on_ray.submit(job, cluster.address_of_jobs, poll_s=0.05):
        if "began" in event:
            os.kill(event["began"]["pid"], signal.SIGKILL)
        losses += [event["lost"]] if "lost" in event else []
        ends += [event["done"]] if "done" in event else []
    assert [loss["retried"] for loss in losses] == [False]
    assert [end["exit"] for end in ends] == [None] and "no worker finished it" in ends[0]["said"]


def test_waiting_for_a_worker_is_said_and_the_job_can_be_left(cluster):
    from ray.job_submission import JobSubmissionClient

    events = on_ray.submit(Job(("list",), gpus=2), cluster.address_of_jobs, poll_s=0.05)
    assert "2 GPUs" in next(events)["waiting"]
    events.close()
    client = JobSubmissionClient(cluster.address_of_jobs)
    newest = max(client.list_jobs(), key=lambda job: job.start_time)
    assert client.get_job_status(newest.submission_id).value in ("STOPPED", "RUNNING")
    assert client.get_job_info(newest.submission_id).metadata == {"tensorladder": "list"}


def test_a_job_that_ends_early_is_said(cluster, monkeypatch):
    monkeypatch.setattr(Job, "to_json", lambda job: "{}")
    with pytest.raises(SubmitError, match="ended early: FAILED"):
        list(on_ray.submit(Job(("list",)), cluster.address_of_jobs, poll_s=0.05))
