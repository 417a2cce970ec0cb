"""Vector clocks: components, joins, what a warp knows and hands on.

A component is an agent whose events are ordered among themselves: a warp, an mbarrier (its clock counts complete
phases), the cp.async copies of a warp, the bulk copies of a thread (one component for "has been read", one for
"complete"), the wgmma of a warpgroup, the tcgen05 operations that a thread commits. Each warp has two clocks: what
happened before (V), and what of that the async proxy sees (P), which only proxy fences raise.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from tensorladder.vgpu.check import layout as X
from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.machine.native import helper
from tensorladder.vgpu.machine.raw import copy_bytes, fill_bytes, ld32, ld64, st32, st64


def _lanewise(predicate: str):
    """dst[i] = the larger (or smaller) of dst[i] and src[i] over 16 words of 32 bits."""

    @intrinsic
    def combine(typing, dst, src):
        def codegen(context, builder, sig, args):
            ty = ir.VectorType(ir.IntType(32), 16).as_pointer()
            d, s = (builder.inttoptr(a, ty) for a in args)
            a, b = builder.load(d, align=4), builder.load(s, align=4)
            builder.store(builder.select(builder.icmp_unsigned(predicate, a, b), a, b), d, align=4)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), codegen

    return combine


_max16, _min16 = _lanewise(">"), _lanewise("<")


@helper
def join(x, dst, src):
    """dst becomes the least clock that is as late as both."""
    size = 4 * ld64(x + X.X_USED)
    for k in range(0, size, 64):
        _max16(dst + k, src + k)


@helper
def meet(x, dst, src):
    """dst becomes what both know."""
    size = 4 * ld64(x + X.X_USED)
    for k in range(0, size, 64):
        _min16(dst + k, src + k)


@helper
def rounded(x):
    """Bytes of the part of a clock that is in use, in whole vectors."""
    return (4 * ld64(x + X.X_USED) + 63) & ~63


@helper
def clear(x, clock):
    """Set a clock to nothing."""
    fill_bytes(clock, 0, rounded(x))


@helper
def copy(x, dst, src):
    """Set a clock to another."""
    copy_bytes(dst, src, rounded(x))


@helper
def clock_of(v, component):
    """A component of a clock."""
    return ld32(v + 4 * component)


@helper
def raise_to(v, component, value):
    """Raise a component of a clock."""
    if value > ld32(v + 4 * component):
        st32(v + 4 * component, value)


@helper
def slot_of(x, cta):
    """Number of a CTA's slot in the unit."""
    return (cta - ld64(ld64(x + X.X_UNIT) + L.U_CTAS)) // L.C_BYTES


@helper
def number_of(x, w):
    """Number of a warp in the unit: its component."""
    return slot_of(x, ld64(w + L.W_CTA)) * ld64(x + X.X_WARPS) + ld64(w + L.W_WARPID)


@helper
def row(x, n, k):
    """A clock of warp n (X_KNOWN)."""
    return ld64(x + X.X_KNOWN) + (ld64(x + X.X_ROWS) * n + k) * ld64(x + X.X_CLOCK_BYTES)


@helper
def known(x, n):
    """V of warp n; its other clocks follow."""
    return row(x, n, 0)


@helper
def visible(x, n):
    """P of warp n."""
    return row(x, n, 1)


@helper
def fenced(x, n):
    """V of warp n as of its last memory fence; P follows."""
    return row(x, n, X.ROW_FENCED)


@helper
def fenced_tensor(x, n):
    """V of warp n as of its last tcgen05.fence::after_thread_sync."""
    return row(x, n, X.ROW_TENSOR)


@helper
def fenced_proxy(x, n):
    """V of warp n as of its last fence.proxy.async of shared memory."""
    return row(x, n, X.ROW_PROXY)


@helper
def tick(x, n):
    """A warp's next event is later than all so far."""
    at = known(x, n) + 4 * n
    st32(at, ld32(at) + 1)


@helper
def release_to(x, n, dst):
    """What a warp has done and knows goes to dst (V, then P)."""
    join(x, dst, known(x, n))
    join(x, dst + ld64(x + X.X_CLOCK_BYTES), visible(x, n))


@helper
def acquire_from(x, n, src):
    """A warp learns what is in src (V, then P)."""
    join(x, known(x, n), src)
    join(x, visible(x, n), src + ld64(x + X.X_CLOCK_BYTES))


@helper
def record_of(x, n):
    """Z_ record of warp n."""
    return ld64(x + X.X_Z) + n * X.Z_BYTES


@helper
def slot_record(x, slot):
    """Y_ record of a slot."""
    return ld64(x + X.X_Y) + slot * X.Y_BYTES


@helper
def window_of(x, slot):
    """Host address of a slot's shared memory."""
    return ld64(x + X.X_SHARED) + slot * ld64(x + X.X_STRIDE)


@helper
def warp_of(x, k):
    """The warp (number in the unit) that a component of a warp's own is of: its cp.async, its tcgen05.st."""
    at = ld64(x + X.X_COMPONENTS) + k * X.K_BYTES
    return ld64(at + X.K_SLOT) * ld64(x + X.X_WARPS) + ld64(at + X.K_WARP)


@helper
def component(x, kind, slot, warp, lane):
    """A new component; the last one is shared by all that come when the clocks are full."""
    k = ld64(x + X.X_USED)
    if k >= ld64(x + X.X_KMAX):
        st64(x + X.X_OVERFLOW, 1)
        return k - 1
    st64(x + X.X_USED, k + 1)
    at = ld64(x + X.X_COMPONENTS) + k * X.K_BYTES
    st64(at + X.K_KIND, kind)
    st64(at + X.K_SLOT, slot)
    st64(at + X.K_WARP, warp)
    st64(at + X.K_LANE, lane)
    return k


@helper
def epoch_of(k, clock, lane, flags):
    """An epoch: component, its clock, the lane that shows it, EPOCH_*."""
    return ((k + 1) << 48) | (clock << 16) | (lane << 8) | flags


@helper
def before(x, v, epoch, shared):
    """Whether an access at an epoch happened before what clock v knows.

    In global memory accesses of CTAs that ran earlier in a slot are met: where clusters cannot synchronise they are
    unordered.
    """
    k = (epoch >> 48) - 1
    clock = (epoch >> 16) & 0xFFFFFFFF
    if ld32(v + 4 * k) < clock:
        return False
    if shared == 0 and clock <= ld32(ld64(x + X.X_STARTS) + 4 * k):
        return ld64(x + X.X_ORDERED) != 0
    return True


@helper
def site_of(n, iid):
    """An access's place: instruction and warp."""
    return (iid & 0xFFFFF) | ((n & 0xFFF) << 20)
