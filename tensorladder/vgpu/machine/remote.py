"""Effects of st.async and red.async: a lane's value in shared memory of a CTA of the cluster, reported to an mbarrier.

The operation is one lane's: A_DST and A_MBAR are 32-bit shared::cluster addresses, the value stands at A_LANE_DST,
A_SIZE is its bytes, A_OP -1 for a store or operation | kind << 8 as `atomics` numbers them.
"""

from __future__ import annotations

from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.machine.atomics import combine, load_bits, store_bits
from tensorladder.vgpu.machine.hooks import EVENT_EFFECT, record
from tensorladder.vgpu.machine.mbarrier import complete_tx, shared_at
from tensorladder.vgpu.machine.native import helper
from tensorladder.vgpu.machine.raw import copy_bytes, ld64, trailing_zeros


@helper
def run_remote(op):
    """Write or reduce, then complete as many bytes on the mbarrier."""
    w = ld64(op + L.A_WARP)
    lanes = ld64(op + L.A_LANES)
    iid = ld64(op + L.A_IID)
    size = ld64(op + L.A_SIZE)
    lane = trailing_zeros(lanes)
    host = shared_at(w, ld64(op + L.A_DST), size, iid, lane)
    if host == 0:
        return True
    what = ld64(op + L.A_OP)
    if what < 0:
        copy_bytes(host, op + L.A_LANE_DST, size)
    else:
        old = load_bits(host, size)
        store_bits(host, size, combine(what & 0xFF, what >> 8, size, old, load_bits(op + L.A_LANE_DST, size), 0))
    record(w, EVENT_EFFECT, host, ld64(op + L.A_KIND), lanes, iid)
    complete_tx(w, ld64(op + L.A_MBAR), size, iid, lane)
    return True
