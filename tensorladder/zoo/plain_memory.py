"""Plain memory: accesses outside what they belong to, and reads of what nobody wrote."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass.memory import SmemAllocator

from tensorladder.zoo.case import Case

CASES = [
    Case(
        name="memory-global-past-end",
        wrong="the last thread reads one element past the array",
        kind="out-of-bounds",
    ),
    Case(
        name="memory-shared-past-end",
        wrong="a row too long: the store leaves the CTA's shared memory",
        kind="out-of-bounds",
        language="cuda",
    ),
    Case(
        name="memory-shared-uninitialised",
        wrong="half of the buffer was never written, and its words go to global memory",
        kind="uninitialised",
    ),
    Case(
        name="memory-ragged-copy",
        wrong="the copy brings 48 of 64 words, and all are added up",
        kind="uninitialised",
        language="cuda",
    ),
]


@cute.kernel
def memory_global_past_end(x: cute.Tensor, out: cute.Tensor, broken: cutlass.Constexpr):
    tidx, _, _ = cute.arch.thread_idx()
    past = 1 if broken else 0
    out[tidx] = x[4096 - 64 + tidx + past]  # hazard: memory-global-past-end


@cute.kernel
def memory_shared_uninitialised(x: cute.Tensor, out: cute.Tensor, broken: cutlass.Constexpr):
    tidx, _, _ = cute.arch.thread_idx()
    buffer = SmemAllocator().allocate_tensor(cutlass.Uint32, cute.make_layout(64))
    if tidx < (32 if broken else 64):
        buffer[tidx] = x[tidx]
    cute.arch.sync_threads()
    out[tidx] = buffer[63 - tidx]  # hazard: memory-shared-uninitialised
