"""Arrivals or bytes that never come, or come twice: a barrier that hangs, or a phase that is over too early."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import cpasync
from cutlass.memory import SmemAllocator

from tensorladder.zoo.case import Case

CASES = [
    Case(
        name="count-too-many-expected",
        wrong="the barrier expects an arrival a thread, and one thread a warp arrives",
        kind="deadlock",
    ),
    Case(
        name="count-too-few-expected",
        wrong="the barrier expects one arrival and gets one a warp: the phase is over after the first",
        kind="race",
        language="cuda",
    ),
    Case(
        name="count-bytes-too-many",
        wrong="expect_tx announces twice the bytes that the copy brings",
        kind="deadlock",
    ),
    Case(
        name="count-no-expect-tx",
        wrong="a plain arrival where expect_tx is wanted: the phase is over before the bytes have come",
        kind="missing-wait race",
        language="cuda",
    ),
    Case(
        name="count-a-warp-too-few",
        wrong="four warps arrive each round, and the barrier expects three: the last one counts for the next round",
        kind="barrier-count",
        language="cuda",
        block=(160, 1, 1),
    ),
    Case(
        name="count-one-for-a-warp",
        wrong="a warp's 32 lanes arrive where one is expected",
        kind="barrier-count",
        language="cuda",
    ),
    Case(
        name="count-two-wait-on-each-other",
        wrong="producer and consumer both wait first: the slot is empty at the start, and nobody has said so",
        kind="deadlock",
        language="cuda",
    ),
]


@cute.kernel
def count_too_many_expected(x: cute.Tensor, out: cute.Tensor, broken: cutlass.Constexpr):
    tidx, _, _ = cute.arch.thread_idx()
    smem = SmemAllocator()
    buffer = smem.allocate_tensor(cutlass.Uint32, cute.make_layout(64))
    full = smem.allocate_array(cutlass.Int64, 1)
    if tidx == 0:
        cute.arch.mbarrier_init(full, 64 if broken else 2)
    cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()
    buffer[tidx] = x[tidx]
    cute.arch.sync_warp()
    if tidx % 32 == 0:
        cute.arch.mbarrier_arrive(full)
    cute.arch.mbarrier_wait(full, 0)  # hazard: count-too-many-expected
    out[tidx] = buffer[63 - tidx]


@cute.kernel
def count_bytes_too_many(x: cute.Tensor, out: cute.Tensor, broken: cutlass.Constexpr):
    tidx, _, _ = cute.arch.thread_idx()
    smem = SmemAllocator()
    slot = smem.allocate_tensor(cutlass.Uint32, cute.make_layout(64), 128)
    full = smem.allocate_array(cutlass.Int64, 1)
    load = cute.make_copy_atom(cpasync.CopyBulkG2SOp(), cutlass.Uint32)
    if tidx == 0:
        cute.arch.mbarrier_init(full, 1)
    cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()
    if tidx == 0:
        cute.arch.mbarrier_arrive_and_expect_tx(full, 512 if broken else 256)
        cute.copy(load, cute.local_tile(x, (64,), (0,)), slot, mbar_ptr=full)
    cute.arch.mbarrier_wait(full, 0)  # hazard: count-bytes-too-many
    out[tidx] = slot[tidx]
