"""Slot reused too early: a copy overwrites a stage that is still read, threads write what TMA still reads."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import cpasync
from cutlass.memory import SmemAllocator

from tensorladder.zoo.case import Case

CASES = [
    Case(
        name="slot-reuse-load-over-readers",
        wrong="the second load into the slot is asked for before the other warp has read the first",
        kind="slot-reuse missing-wait",
    ),
    Case(
        name="slot-reuse-store-in-flight",
        wrong="threads write the next chunk into the buffer that a bulk store still reads",
        kind="slot-reuse",
        language="cuda",
    ),
    Case(
        name="slot-reuse-commit-but-no-wait",
        wrong="two buffers, three chunks: the wait lets two groups be in flight where one may",
        kind="slot-reuse",
        language="cuda",
    ),
]


@cute.kernel
def slot_reuse_load_over_readers(x: cute.Tensor, out: cute.Tensor, broken: cutlass.Constexpr):
    tidx, _, _ = cute.arch.thread_idx()
    smem = SmemAllocator()
    slot = smem.allocate_tensor(cutlass.Uint32, cute.make_layout(64), 128)
    full = smem.allocate_array(cutlass.Int64, 1)
    load = cute.make_copy_atom(cpasync.CopyBulkG2SOp(), cutlass.Uint32)
    if tidx == 0:
        cute.arch.mbarrier_init(full, 1)
    cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()
    total = cutlass.Uint32(0)
    for step in cutlass.range(2, unroll=1):
        if tidx == 0:
            cute.arch.mbarrier_arrive_and_expect_tx(full, 256)
            source = cute.local_tile(x, (64,), (step,))
            cute.copy(load, source, slot, mbar_ptr=full)  # hazard: slot-reuse-load-over-readers
        cute.arch.mbarrier_wait(full, step)
        total += slot[63 - tidx]
        if cutlass.const_expr(not broken):
            cute.arch.sync_threads()
    out[tidx] = total
