"""The job on a Ray cluster: hands calls to workers, and those of a lost worker to another.

Run by `ray job submit` (`on_ray.py`) as `python -m tensorladder.submit.ray_driver JOB`. Writes one event a line after
MARK, as Ray writes into the same log:

    {"waiting": why}               no node there now can take a call; Ray waits for one
    {"began": ran}                 a worker has a call (`call.where`)
    {"lost": {"ran", "why", "retried"}}   the worker of a call was lost: killed, out of memory, its node gone
    {"done": ...}                  `call.done`; exit is None where no worker came to an end with it
    {"ended": number of calls}     the last one
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tensorladder.submit import call
from tensorladder.submit.job import Job

MARK = "@tensorladder "


@dataclass
class _Try:
    """A call that a worker has, or waits for."""

    arguments: tuple[str, ...]
    attempt: int
    ran: dict[str, Any]


def drive(job: Job) -> Iterator[call.Event]:
    """Runs the calls of `job` on the cluster that this process is part of; events as they come."""
    import ray
    from ray import exceptions

    lost = (
        exceptions.WorkerCrashedError,
        exceptions.NodeDiedError,
        exceptions.OutOfMemoryError,
        exceptions.ObjectLostError,
        exceptions.LocalRayletDiedError,
    )
    # Retries are ours, so that each loss is reported; Ray's own are silent.
    task = ray.remote(_work).options(
        num_cpus=job.cpus, num_gpus=job.gpus, max_retries=0, num_returns="streaming", scheduling_strategy="SPREAD"
    )

    def start(arguments: tuple[str, ...], attempt: int) -> None:
        running[task.remote(arguments)] = _Try(arguments, attempt, call.where(arguments, {"host": None}, attempt))

    running: dict[Any, _Try] = {}
    yield from _unable(job, ray.nodes())
    for arguments in job.calls():
        start(arguments, 1)
    while running:
        ready: Any = ray.wait([*running], num_returns=1, fetch_local=False)[0]
        worker = ready[0]
        one = running[worker]
        try:
            value: Any = ray.get(next(worker))
        except StopIteration:
            del running[worker]
        except exceptions.RayError as error:
            del running[worker]
            again = isinstance(error, lost) and one.attempt <= job.retries
            why = " ".join(str(error).split())
            yield {"lost": {"ran": one.ran, "why": why, "retried": again}}
            if again:
                start(one.arguments, one.attempt + 1)
            else:
                yield call.done(one.ran, {"exit": None, "lines": [], "said": f"no worker finished it: {why}"})
        else:
            if "exit" in value:
                yield call.done(one.ran, value)
            else:
                one.ran = call.where(one.arguments, value, one.attempt)
                yield {"began": one.ran}


def _work(arguments: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """On a worker: first where it is, so that a loss can be placed, then the outcome."""
    import ray

    yield {**call.place(), "node": ray.get_runtime_context().get_node_id()}
    yield call.run(arguments)


def _unable(job: Job, nodes: list[dict[str, Any]]) -> Iterator[call.Event]:
    """An event where no node has what a call takes: Ray would wait in silence."""
    wanted = {"CPU": job.cpus, "GPU": job.gpus}
    alive = [node["Resources"] for node in nodes if node["Alive"]]
    if not any(all(node.get(kind, 0) >= count for kind, count in wanted.items()) for node in alive):
        yield {"waiting": f"no node has {job.cpus:g} CPUs and {job.gpus:g} GPUs: waiting for one that has"}


def main() -> None:
    import ray

    job = Job.from_json(sys.argv[1])
    ray.init(log_to_driver=False)
    for event in drive(job):
        print(MARK + json.dumps(event), flush=True)
    print(MARK + json.dumps({"ended": len(job.calls())}), flush=True)


if __name__ == "__main__":
    main()
