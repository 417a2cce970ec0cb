"""Copies into the shared memory of another CTA of the cluster."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass._mlir.dialects import llvm, nvvm
from cutlass.cute.typing import AddressSpace
from cutlass.cutlass_dsl import dsl_user_op


@dsl_user_op
def copy_bulk(
    target: cute.Pointer, source: cute.Pointer, size: Any, barrier: cute.Pointer, *, loc: Any = None, ip: Any = None
) -> None:
    """Start to copy `size` bytes, a multiple of 16, of this CTA's shared memory; to be called by one thread.

    target, barrier: of the same CTA, as `cute.arch.map_dsmem_ptr` gives them; the mbarrier counts the bytes, and its
    completion makes them visible (PTX ISA, "cp.async.bulk"). No fence of the cluster's scope is needed, which would
    wait for all that the thread has stored, in global memory too. Addresses: multiples of 16 bytes. The copy reads by
    the asynchronous proxy: writers of `source` fence before the barrier that this thread waits at.
    """
    to, of = (pointer.to_llvm_ptr(loc=loc, ip=ip) for pointer in (target, source))
    # The operation wants the barrier's address, a peer's too, as one of the CTA's own space.
    address = barrier.toint(loc=loc, ip=ip).ir_value(loc=loc, ip=ip)
    counted = llvm.inttoptr(llvm.PointerType.get(AddressSpace.smem), address, loc=loc, ip=ip)
    nvvm.cp_async_bulk_shared_cluster_shared_cta(
        to, of, counted, cutlass.Int32(size).ir_value(loc=loc, ip=ip), loc=loc, ip=ip
    )
