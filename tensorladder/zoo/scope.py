"""Scope and mask: an ordering among the CTA's own threads where others read, a mask that names who is not there."""

from __future__ import annotations

from tensorladder.zoo.case import Case

CASES = [
    Case(
        name="scope-multicast-outside",
        wrong="the multicast mask names three CTAs, the cluster has two",
        kind="scope",
        language="cuda",
        grid=(2, 1, 1),
        cluster=(2, 1, 1),
    ),
    Case(
        name="scope-cta-barrier-before-peer-reads",
        wrong="a CTA reads its peer's shared memory after a barrier of its own threads alone",
        kind="race",
        language="cuda",
        grid=(2, 1, 1),
        cluster=(2, 1, 1),
    ),
]
