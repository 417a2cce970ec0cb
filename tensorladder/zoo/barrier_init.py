"""A barrier that is not initialised, not yet visible, or initialised twice, where it is used."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass.memory import SmemAllocator

from tensorladder.zoo.case import Case

CASES = [
    Case(
        name="init-no-barrier-after",
        wrong="the other warp arrives with nothing that orders the initialisation before it",
        kind="barrier-init",
    ),
    Case(
        name="init-twice",
        wrong="each warp's first thread initialises the same barrier",
        kind="barrier-init",
        language="cuda",
    ),
    Case(
        name="init-peer-not-waited-for",
        wrong="a barrier of the CTA alone comes before an arrival at the peer's barrier",
        kind="barrier-init",
        language="cuda",
        grid=(2, 1, 1),
        cluster=(2, 1, 1),
    ),
]


@cute.kernel
def init_no_barrier_after(x: cute.Tensor, out: cute.Tensor, broken: cutlass.Constexpr):
    tidx, _, _ = cute.arch.thread_idx()
    full = SmemAllocator().allocate_array(cutlass.Int64, 1)
    if tidx == 0:
        cute.arch.mbarrier_init(full, 64)
        cute.arch.mbarrier_init_fence()
    if cutlass.const_expr(not broken):
        cute.arch.sync_threads()
    cute.arch.mbarrier_arrive(full)  # hazard: init-no-barrier-after
    cute.arch.mbarrier_wait(full, 0)
