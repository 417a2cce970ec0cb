"""Streams: launches of two streams use the same memory, and no event, wait or synchronisation orders them.

The kernels are right; what is wrong stands in the host's part, a function a case. Both launches are the case's kernel.
"""

from __future__ import annotations

from typing import Any

from tensorladder.zoo.case import Case

CASES = [
    Case(
        name="streams-no-wait",
        wrong="the second stream updates what the first one updates, and waits for nothing",
        kind="race",
        language="cuda",
        streams=True,
    ),
    Case(
        name="streams-event-too-early",
        wrong="the event that the second stream waits for is recorded before the launch and not after it",
        kind="race",
        language="cuda",
        streams=True,
    ),
    Case(
        name="streams-wait-the-wrong-way",
        wrong="the first stream waits for the second one, which goes on before the first one's launch is over",
        kind="race",
        language="cuda",
        streams=True,
    ),
    Case(
        name="streams-other-one-synchronised",
        wrong="the host waits for a stream that has nothing to do, and not for the one that writes",
        kind="race",
        language="cuda",
        streams=True,
    ),
]


def streams_no_wait(launch: Any, one: Any, two: Any, broken: bool) -> None:
    one.enqueue(launch)
    if not broken:
        two.wait(one.record())
    two.enqueue(launch)


def streams_event_too_early(launch: Any, one: Any, two: Any, broken: bool) -> None:
    early = one.record()
    one.enqueue(launch)
    two.wait(early if broken else one.record())
    two.enqueue(launch)


def streams_wait_the_wrong_way(launch: Any, one: Any, two: Any, broken: bool) -> None:
    one.enqueue(launch)
    if broken:
        one.wait(two.record())
    else:
        two.wait(one.record())
    two.enqueue(launch)


def streams_other_one_synchronised(launch: Any, one: Any, two: Any, broken: bool) -> None:
    one.enqueue(launch)
    (two if broken else one).synchronize()
    two.enqueue(launch)
