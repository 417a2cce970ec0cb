"""Wrong phase: the parity that a wait asks for is not flipped, flipped twice, or starts wrong."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass.memory import SmemAllocator

from tensorladder.zoo.case import Case

CASES = [
    Case(
        name="phase-not-flipped",
        wrong="the second round waits for the parity of the first, which is over",
        kind="race",
    ),
    Case(
        name="phase-starts-at-one",
        wrong="the first wait asks for parity 1, which a new barrier lets through at once",
        kind="race",
        language="cuda",
    ),
    Case(
        name="phase-flipped-twice",
        wrong="the parity is flipped twice a round, so that the second wait is for a phase that never comes",
        kind="deadlock race",
        language="cuda",
    ),
]


@cute.kernel
def phase_not_flipped(x: cute.Tensor, out: cute.Tensor, broken: cutlass.Constexpr):
    tidx, _, _ = cute.arch.thread_idx()
    smem = SmemAllocator()
    buffer = smem.allocate_tensor(cutlass.Uint32, cute.make_layout((64, 2)))
    full = smem.allocate_array(cutlass.Int64, 1)
    if tidx == 0:
        cute.arch.mbarrier_init(full, 64)
    cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()
    for step in cutlass.range(2, unroll=1):
        buffer[tidx, step] = x[tidx]
        cute.arch.mbarrier_arrive(full)
        cute.arch.mbarrier_wait(full, 0 if broken else step)
        out[64 * step + tidx] = buffer[63 - tidx, step]  # hazard: phase-not-flipped
