"""Race: two warps use the same bytes and no barrier orders them."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass.memory import SmemAllocator

from tensorladder.zoo.case import Case

CASES = [
    Case(
        name="race-read-before-barrier",
        wrong="a warp reads what another one writes, with no barrier between",
        kind="race",
    ),
    Case(
        name="race-write-before-readers-are-done",
        wrong="the loop's second write comes before the other warp has read the first",
        kind="race",
        language="cuda",
    ),
    Case(
        name="race-two-ctas-write",
        wrong="two CTAs write the same word of global memory",
        kind="race",
        language="cuda",
        grid=(2, 1, 1),
    ),
    Case(
        name="race-arrival-nobody-waits-for",
        wrong="the writers arrive at an mbarrier, and the readers do not wait for it",
        kind="race",
    ),
    Case(
        name="race-flag-without-fences",
        wrong="a volatile flag is polled, and no fence stands on either side",
        kind="race",
        language="cuda",
        grid=(2, 1, 1),
    ),
]


@cute.kernel
def race_read_before_barrier(x: cute.Tensor, out: cute.Tensor, broken: cutlass.Constexpr):
    tidx, _, _ = cute.arch.thread_idx()
    buffer = SmemAllocator().allocate_tensor(cutlass.Uint32, cute.make_layout(64))
    buffer[tidx] = x[tidx]
    if cutlass.const_expr(not broken):
        cute.arch.sync_threads()
    out[tidx] = buffer[63 - tidx]  # hazard: race-read-before-barrier


@cute.kernel
def race_arrival_nobody_waits_for(x: cute.Tensor, out: cute.Tensor, broken: cutlass.Constexpr):
    tidx, _, _ = cute.arch.thread_idx()
    smem = SmemAllocator()
    buffer = smem.allocate_tensor(cutlass.Uint32, cute.make_layout(64))
    full = smem.allocate_array(cutlass.Int64, 1)
    if tidx == 0:
        cute.arch.mbarrier_init(full, 64)
    cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()
    buffer[tidx] = x[tidx]
    cute.arch.mbarrier_arrive(full)
    if cutlass.const_expr(not broken):
        cute.arch.mbarrier_wait(full, 0)
    out[tidx] = buffer[63 - tidx]  # hazard: race-arrival-nobody-waits-for
