"""Issue of st.async and red.async: an operation a lane."""

from __future__ import annotations

from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.machine.effects import begin, submit
from tensorladder.vgpu.machine.hooks import CHECK_ISSUE, EVENT_ISSUE, observe, record
from tensorladder.vgpu.machine.lanes import fail
from tensorladder.vgpu.machine.memory import SPACE_SHARED
from tensorladder.vgpu.machine.native import export
from tensorladder.vgpu.machine.queue import LAT_CP_ASYNC, NO_GROUP
from tensorladder.vgpu.machine.raw import copy_bytes, ld64, st64


@export
def tl_remote(w, what, args, size, count, lanes, iid):
    """`count` elements of `size` bytes a lane; args: addresses, mbarriers (i64), then the elements, 256 bytes apart.

    what: -1 to store, or the reduction (see remote.run_remote). Addresses may be 32-bit ones or generic.
    """
    whole = size * count
    for lane in range(L.LANES):
        if (lanes >> lane) & 1 == 0:
            continue
        address = ld64(args + 8 * lane)
        if address & (whole - 1):
            fail(w, L.ERR_MISALIGNED, iid, lane, address, whole, SPACE_SHARED)
            return 0
        op = begin(w, L.OP_REMOTE, 1 << lane, iid)
        if op == 0:
            return 0
        st64(op + L.A_GROUP, NO_GROUP)
        st64(op + L.A_OP, what)
        st64(op + L.A_DST, address & 0xFFFFFFFF)
        st64(op + L.A_MBAR, ld64(args + 256 + 8 * lane) & 0xFFFFFFFF)
        st64(op + L.A_SIZE, whole)
        for k in range(count):
            copy_bytes(op + L.A_LANE_DST + size * k, args + 256 * (2 + k) + size * lane, size)
        record(w, EVENT_ISSUE, address & 0xFFFFFFFF, L.OP_REMOTE, 1 << lane, iid)
        st64(op + L.A_CHECK, observe(w, CHECK_ISSUE, op, 0, 0, 1 << lane, iid))
        submit(w, op, LAT_CP_ASYNC, whole)
    st64(w + L.W_PROGRESS, ld64(w + L.W_PROGRESS) + 1)
    return 0
