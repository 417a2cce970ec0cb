"""cp.async with a source size: what a 16-byte copy does at the edge of a matrix."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass._mlir.dialects import nvvm
from cutlass.cute.typing import AddressSpace
from cutlass.cutlass_dsl import dsl_user_op

BYTES = 16


@cute.jit
def copy_16_bytes(dst: cute.Tensor, src: cute.Tensor, count: cutlass.Int32, swizzle_bits: cutlass.Constexpr):
    """Start to copy `count` elements, from 0 on, of a vector of 16 bytes to shared memory; the rest of it becomes zero.

    What lies past `count` is not read. The DSL's own copy takes or leaves a whole vector. swizzle_bits: of dst's
    swizzle, of 16-byte pieces by 128 bytes; dst's own pointer may not have one.
    """
    address = dst.iterator.toint()
    address = address ^ ((address >> 3) & (((1 << swizzle_bits) - 1) << 4))
    place = cute.make_ptr(dst.element_type, address, AddressSpace.smem, assumed_align=BYTES)
    start_copy(place, src.iterator, count * (dst.element_type.width // 8))


@cute.jit
def hand_over(younger: cutlass.Constexpr, full: cute.Pointer, lane: cutlass.Int32):
    """Wait for a warp's groups of copies but the `younger` last, then arrive once at an mbarrier whose waiters read
    them through the async proxy: each thread fences what it wrote before that."""
    cute.arch.cp_async_wait_group(younger)
    cute.arch.fence_proxy("async.shared", space="cta")
    cute.arch.sync_warp()
    if lane == 0:
        cute.arch.mbarrier_arrive(full)


@dsl_user_op
def start_copy(dst: cute.Pointer, src: cute.Pointer, size: Any, *, loc: Any = None, ip: Any = None) -> None:
    """cp.async.cg of 16 bytes, of which `size` are read."""
    nvvm.cp_async_shared_global(
        dst.to_llvm_ptr(loc=loc, ip=ip),
        src.to_llvm_ptr(loc=loc, ip=ip),
        BYTES,
        nvvm.LoadCacheModifierKind.CG,
        cp_size=cutlass.Int32(size).ir_value(loc=loc, ip=ip),
        loc=loc,
        ip=ip,
    )
