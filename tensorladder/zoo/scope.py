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
    Case(
        name="scope-fence-of-cta-before-flag",
        wrong="a fence of CTA scope stands before the flag that another CTA polls",
        kind="scope",
        language="cuda",
        grid=(2, 1, 1),
    ),
    Case(
        name="scope-fence-of-cta-after-poll",
        wrong="the polling CTA's fence is of CTA scope",
        kind="scope",
        language="cuda",
        grid=(2, 1, 1),
    ),
    Case(
        name="scope-atomics-of-cta",
        wrong="two CTAs add to one word with atomics of CTA scope",
        kind="scope",
        language="cuda",
        grid=(2, 1, 1),
    ),
    Case(
        name="scope-arrival-of-cta-at-peer",
        wrong="a CTA has read its peer's buffer and arrives at the peer's mbarrier with CTA scope",
        kind="scope",
        language="cuda",
        grid=(2, 1, 1),
        cluster=(2, 1, 1),
    ),
    Case(
        name="scope-wait-of-cta-for-peer-writes",
        wrong="what the peer wrote is read after a wait on an mbarrier that acquires with CTA scope, the default",
        kind="scope",
        language="cuda",
        grid=(2, 1, 1),
        cluster=(2, 1, 1),
        verdict="review",
    ),
]
