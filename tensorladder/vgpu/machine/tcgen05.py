"""Effects of tcgen05's asynchronous operations: commit (PTX ISA 9.7.16, "tcgen05.commit").

tcgen05.mma, .cp, .shift and .commit of a CTA take effect in order of issue, those of cta_group::2 in the order of the
pair (`tcgen05_issue.queue_of`). So a commit needs no list of what it waits for: when its turn comes, all that was
issued before it is complete.
"""

from __future__ import annotations

from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.machine.hooks import EVENT_ARRIVE, record
from tensorladder.vgpu.machine.mbarrier import arrive, mbarrier_at
from tensorladder.vgpu.machine.memory import SPACE_SHARED
from tensorladder.vgpu.machine.native import helper
from tensorladder.vgpu.machine.raw import ld64, trailing_zeros


@helper
def arrive_one(w, address, iid, lane):
    """One arrival on the mbarrier at a shared::cluster address: false with the error recorded."""
    host = mbarrier_at(w, SPACE_SHARED, address, 1, iid, lane)
    if host == 0:
        return False
    record(w, EVENT_ARRIVE, host, 1, 1 << lane, iid)
    return arrive(w, host, address, 1, 0, 0, iid, lane) >= 0


@helper
def run_commit(op):
    """Arrive on the mbarrier at A_MBAR, or at the same place of every CTA in the mask A_OP where that is not -1."""
    w = ld64(op + L.A_WARP)
    iid = ld64(op + L.A_IID)
    lane = trailing_zeros(ld64(op + L.A_LANES))
    address = ld64(op + L.A_MBAR)
    mask = ld64(op + L.A_OP)
    if mask < 0:
        arrive_one(w, address, iid, lane)
        return True
    while mask != 0:
        rank = trailing_zeros(mask)
        mask &= mask - 1
        if not arrive_one(w, (rank << L.RANK_SHIFT) | (address & 0xFFFFFF), iid, lane):
            return True
    return True
