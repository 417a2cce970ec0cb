"""A CTA of a cluster exits, and its shared memory with it, while a peer has still to access it."""

from __future__ import annotations

from tensorladder.zoo.case import Case

CASES = [
    Case(
        name="exit-before-peer-arrives",
        wrong="the last phase of a barrier, which the peer's arrival completes, is not waited for",
        kind="race out-of-bounds",
        language="cuda",
        grid=(2, 1, 1),
        cluster=(2, 1, 1),
    ),
    Case(
        name="exit-before-peer-reads",
        wrong="no cluster barrier between the peer's loads and the exit",
        kind="race",
        language="cuda",
        grid=(2, 1, 1),
        cluster=(2, 1, 1),
    ),
]
