"""Waiting at an mbarrier for threads of another CTA of the cluster."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass._mlir.dialects import nvvm
from cutlass.cutlass_dsl import dsl_user_op

CLUSTER = nvvm.MemScopeKind.CLUSTER  # scope of an arrival that another CTA waits for


@cute.jit
def wait_cluster(barrier: cute.Pointer, phase: cutlass.Int32):
    """Wait for the phase of a parity of a barrier of this CTA that threads of other CTAs arrive at.

    `cute.arch.mbarrier_wait` acquires what threads of the same CTA have released; this acquires at cluster scope (PTX
    ISA, "mbarrier.try_wait": .sem and .scope).
    """
    done = try_wait_cluster(barrier, phase)
    while not done:
        done = try_wait_cluster(barrier, phase)


@dsl_user_op
def try_wait_cluster(barrier: cute.Pointer, phase: Any, *, loc: Any = None, ip: Any = None) -> cutlass.Boolean:
    """True once the phase has completed; may sleep for a while before it says that it has not."""
    return cutlass.Boolean(
        nvvm.mbarrier_wait_parity(
            barrier.to_llvm_ptr(loc=loc, ip=ip),
            cutlass.Int32(phase).ir_value(loc=loc, ip=ip),
            nvvm.MBarrierWaitKind.TRY,
            scope=CLUSTER,
            order=nvvm.MemOrderKind.ACQUIRE,
            loc=loc,
            ip=ip,
        )
    )
