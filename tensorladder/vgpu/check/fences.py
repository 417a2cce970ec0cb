"""Proxy fences that shared memory's clocks do not say: of the async proxy for global memory, of tensor maps.

Such fences are rare, so each one is kept with what its warp knew then. What a thread wrote is seen through the other
proxy where a fence stands on the way (PTX ISA, "Causality order", proxy-preserved): one that the writer, the reader or
somebody between executed, who knew of the write, and of which the reader knows. A ring holds the newest; what drops out
of it is taken to have been seen by all.
"""

from __future__ import annotations

from tensorladder.vgpu.check import layout as X
from tensorladder.vgpu.check.clocks import clock_of, copy, join, known
from tensorladder.vgpu.machine.native import helper
from tensorladder.vgpu.machine.raw import ld64, st64


# ---------------------------------------------------------------- the rings
@helper
def ring_of(x, kind):
    """A ring (FENCED_*): count, floor's clock, then (warp, its clock, address) and a clock each."""
    return ld64(x + X.X_FENCES) + kind * (X.FENCE_HEAD + (X.FENCE_MOST + 1) * ld64(x + X.X_CLOCK_BYTES))


@helper
def ring_clock(x, ring, k):
    """The k-th fence's clock, the floor's for FENCE_MOST."""
    return ring + X.FENCE_HEAD + k * ld64(x + X.X_CLOCK_BYTES)


@helper
def keep_fence(x, kind, n, address):
    """Keep a fence of a warp, whose next event has a later clock; address: of the map that an acquire names."""
    ring = ring_of(x, kind)
    count = ld64(ring)
    k = count % X.FENCE_MOST
    if count >= X.FENCE_MOST:
        join(x, ring_clock(x, ring, X.FENCE_MOST), ring_clock(x, ring, k))
    st64(ring, count + 1)
    at = ring + 8 + 24 * k
    st64(at, n)
    st64(at + 8, clock_of(known(x, n), n))
    st64(at + 16, address)
    copy(x, ring_clock(x, ring, k), known(x, n))


@helper
def fence_between(x, kind, v, epoch, address):
    """Whether a fence stands between an access and whoever knows v; address 0: any."""
    ring = ring_of(x, kind)
    k = (epoch >> 48) - 1
    clock = (epoch >> 16) & 0xFFFFFFFF
    if clock_of(ring_clock(x, ring, X.FENCE_MOST), k) >= clock:
        return True
    count = ld64(ring)
    for i in range(min(count, X.FENCE_MOST)):
        at = ring + 8 + 24 * i
        if address != 0 and ld64(at + 16) != address:
            continue
        if clock_of(v, ld64(at)) >= ld64(at + 8) and clock_of(ring_clock(x, ring, i), k) >= clock:
            return True
    return False
