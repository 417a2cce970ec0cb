"""Order of tcgen05 operations: a commit to an mbarrier says when they are done, a fence makes a wait count."""

from __future__ import annotations

from tensorladder.zoo.case import Case

CASES = [
    Case(
        name="tcgen05-no-commit",
        wrong="a barrier of threads in place of commit and wait: the product may still run",
        kind="missing-wait",
        language="cuda",
        arch="sm_100a",
        block=(128, 1, 1),
    ),
    Case(
        name="tcgen05-commit-before-product",
        wrong="the commit stands before the product that it is to cover",
        kind="missing-wait",
        language="cuda",
        arch="sm_100a",
        block=(128, 1, 1),
    ),
    Case(
        name="tcgen05-commit-by-other-thread",
        wrong="one thread issues the product and another one commits, which tracks its own operations alone",
        kind="tcgen05-order missing-wait",
        language="cuda",
        arch="sm_100a",
        block=(128, 1, 1),
    ),
    Case(
        name="tcgen05-no-fence-after-wait",
        wrong="the wait for the product is not followed by tcgen05.fence::after_thread_sync",
        kind="tcgen05-order",
        verdict="review",
        language="cuda",
        arch="sm_100a",
        block=(128, 1, 1),
    ),
    Case(
        name="tcgen05-no-fence-before-barrier",
        wrong="no tcgen05.fence::before_thread_sync between tcgen05.st and the barrier that hands it on",
        kind="tcgen05-order",
        verdict="review",
        language="cuda",
        arch="sm_100a",
        block=(256, 1, 1),
    ),
    Case(
        name="tcgen05-no-fence-after-barrier",
        wrong="no tcgen05.fence::after_thread_sync between the barrier and another warp's tcgen05.ld",
        kind="tcgen05-order",
        verdict="review",
        language="cuda",
        arch="sm_100a",
        block=(256, 1, 1),
    ),
]
