"""What the Blackwell rungs say to tensor memory besides loads, stores and MMAs.

tcgen05 instructions are asynchronous and weakly ordered: a barrier orders the threads that meet at it, but not the
tensor memory accesses that they have issued. The two fences close that gap (PTX ISA, "tcgen05.fence" and "Memory
Consistency Model for tcgen05"): one before a thread lets others go on, one after a thread was let on.
`tcgen05.commit` fences before its arrival by itself.
"""

from __future__ import annotations

from typing import Any

from cutlass._mlir.dialects import nvvm
from cutlass.cutlass_dsl import dsl_user_op


@dsl_user_op
def fence_before_thread_sync(*, loc: Any = None, ip: Any = None) -> None:
    """Orders this thread's earlier tcgen05 operations before its next barrier or arrival."""
    nvvm.tcgen05_fence(nvvm.Tcgen05FenceKind.BEFORE_THREAD_SYNC, loc=loc, ip=ip)


@dsl_user_op
def fence_after_thread_sync(*, loc: Any = None, ip: Any = None) -> None:
    """Orders this thread's later tcgen05 operations after the barrier or wait that it has come through."""
    nvvm.tcgen05_fence(nvvm.Tcgen05FenceKind.AFTER_THREAD_SYNC, loc=loc, ip=ip)


def tmem_columns(columns: int) -> int:
    """What has to be allocated for so many columns of tensor memory: a power of two from 32."""
    return max(32, 1 << (columns - 1).bit_length())
