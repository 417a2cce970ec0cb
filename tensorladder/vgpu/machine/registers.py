"""setmaxnreg: registers that the warps of a CTA hand on through its pool (PTX ISA, "setmaxnreg").

A CTA has what its launch gave it, the same for each thread. A warp that asks for more waits until others have released
so many; warps that have exited hold none.
"""

from __future__ import annotations

from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.machine.lanes import all_here, block, fail
from tensorladder.vgpu.machine.native import export, helper
from tensorladder.vgpu.machine.raw import ld64, st64


@helper
def can_grow(w, count):
    """Whether a warp's CTA has so many registers a thread for it, beside what the other warps hold."""
    c = ld64(w + L.W_CTA)
    warps = ld64(c + L.C_NWARPS)
    free = warps * ld64(ld64(w + L.W_LAUNCH) + L.L_REGISTERS)
    for n in range(warps):
        other = ld64(c + L.C_WARPS) + n * L.W_BYTES
        if other != w and ld64(other + L.W_LIVE) != 0:
            free -= ld64(other + L.W_MAXNREG)
    return free >= count


@export
def tl_setmaxnreg(w, grows, count, lanes, iid):
    """setmaxnreg.inc (grows) or .dec: 1 when the warp has so many registers, 0 to wait (or with the error recorded)."""
    if not all_here(w, lanes, iid):
        return 0
    have = ld64(w + L.W_MAXNREG)
    if ld64(ld64(w + L.W_LAUNCH) + L.L_REGISTERS) != 0:
        if (count < have) if grows != 0 else (count > have):
            fail(w, L.ERR_SETMAXNREG, iid, 0, 0, count, have)
            return 0
        if grows != 0 and not can_grow(w, count):
            block(w, lanes, L.WAIT_REGISTERS, count, 0, iid)
            return 0
    st64(w + L.W_MAXNREG, count)
    times = (ld64(w + L.W_SETMAXNREG) >> 32) + 1
    st64(w + L.W_SETMAXNREG, (times << 32) | (iid + 1))
    st64(w + L.W_PROGRESS, ld64(w + L.W_PROGRESS) + 1)
    return 1
