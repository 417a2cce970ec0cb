"""Missing proxy fence: threads write shared memory, and TMA or a tensor core reads it with no fence.proxy.async.

Generic stores and the async proxy see shared memory through different paths: a barrier orders threads, not proxies.
Each thread that wrote fences its own writes, before the barrier that hands them on.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import cpasync
from cutlass.memory import SmemAllocator

from tensorladder.zoo.case import Case

CASES = [
    Case(
        name="proxy-fence-none",
        wrong="a bulk store sends what threads wrote, with a barrier and no proxy fence",
        kind="missing-proxy-fence",
    ),
    Case(
        name="proxy-fence-behind-barrier",
        wrong="the fence stands after the barrier, in the storing thread alone",
        kind="missing-proxy-fence",
        verdict="review",
        language="cuda",
    ),
    Case(
        name="proxy-fence-by-one-warp",
        wrong="one warp fences, and the other one's writes are not ordered by that",
        kind="missing-proxy-fence",
        language="cuda",
    ),
    Case(
        name="proxy-global-no-fence",
        wrong="a bulk load reads what threads wrote to global memory, with a barrier and no proxy fence",
        kind="missing-proxy-fence",
        language="cuda",
    ),
    Case(
        name="proxy-global-fence-of-shared",
        wrong="a bulk reduction adds to global memory that threads wrote, and the fence is of shared memory",
        kind="missing-proxy-fence",
        language="cuda",
    ),
    Case(
        name="proxy-store-not-complete",
        wrong="a thread reads what its bulk store writes after wait_group.read, which is for the source alone",
        kind="missing-wait",
        language="cuda",
    ),
]


@cute.kernel
def proxy_fence_none(x: cute.Tensor, out: cute.Tensor, broken: cutlass.Constexpr):
    tidx, _, _ = cute.arch.thread_idx()
    buffer = SmemAllocator().allocate_tensor(cutlass.Uint32, cute.make_layout(64), 128)
    store = cute.make_copy_atom(cpasync.CopyBulkS2GOp(), cutlass.Uint32)
    buffer[tidx] = x[tidx]
    if cutlass.const_expr(not broken):
        cute.arch.fence_proxy("async.shared", space="cta")
    cute.arch.sync_threads()
    if tidx == 0:
        cute.copy(store, buffer, cute.local_tile(out, (64,), (0,)))  # hazard: proxy-fence-none
        cute.arch.cp_async_bulk_commit_group()
        cute.arch.cp_async_bulk_wait_group(0, read=True)
