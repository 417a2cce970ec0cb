"""What kernels say about launches: clusterlaunchcontrol.try_cancel, griddepcontrol (PTX ISA, instructions so named)."""

from __future__ import annotations

from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.machine.effects import begin, submit
from tensorladder.vgpu.machine.grids import RESPONSE_BYTES, all_ended, cluster_ctas, trigger
from tensorladder.vgpu.machine.hooks import CHECK_GRID_WAIT, CHECK_ISSUE, EVENT_ISSUE, observe, record
from tensorladder.vgpu.machine.lanes import block, fail
from tensorladder.vgpu.machine.layout import SPACE_GENERIC, SPACE_SHARED
from tensorladder.vgpu.machine.mbarrier import mbarrier_at, shared_at
from tensorladder.vgpu.machine.memory import in_own_window
from tensorladder.vgpu.machine.native import export, helper
from tensorladder.vgpu.machine.queue import LAT_BULK, NO_GROUP, rng
from tensorladder.vgpu.machine.raw import ld64, st64


@helper
def in_own_shared(w, space, address):
    """Whether an address lies in the shared::cta window of the warp's CTA."""
    if space == SPACE_GENERIC and address & L.WINDOW_MASK != L.SHARED_WINDOW:
        return False
    return in_own_window(w, address)


@export
def tl_try_cancel(w, space, responses, barriers, every, lanes, iid):
    """clusterlaunchcontrol.try_cancel of each active lane; every: the response goes to all CTAs of the cluster."""
    cta = ld64(w + L.W_CTA)
    for lane in range(L.LANES):
        if (lanes >> lane) & 1 == 0:
            continue
        address = ld64(responses + 8 * lane)
        barrier = ld64(barriers + 8 * lane)
        if not in_own_shared(w, space, address) or not in_own_shared(w, space, barrier):
            fail(w, L.ERR_CLC_SPACE, iid, lane, barrier if in_own_shared(w, space, address) else address, 0, 0)
            return 0
        if address & (RESPONSE_BYTES - 1):
            fail(w, L.ERR_MISALIGNED, iid, lane, address & 0xFFFFFFFF, RESPONSE_BYTES, SPACE_SHARED)
            return 0
        if shared_at(w, address, RESPONSE_BYTES, iid, lane) == 0 or mbarrier_at(w, space, barrier, 1, iid, lane) == 0:
            return 0
        if ld64(cta + L.C_CLC_FAILED) != 0:
            fail(w, L.ERR_CLC_AFTER, iid, lane, 0, 0, 0)
            return 0
        op = begin(w, L.OP_CLC, 1 << lane, iid)
        if op == 0:
            return 0
        st64(op + L.A_GROUP, NO_GROUP)
        st64(op + L.A_DST, address & 0xFFFFFFFF)
        st64(op + L.A_MBAR, barrier & 0xFFFFFFFF)
        all_ranks = (1 << cluster_ctas(ld64(w + L.W_LAUNCH))) - 1
        st64(op + L.A_SIZE, all_ranks if every != 0 else 1 << ld64(w + L.W_RANK))
        record(w, EVENT_ISSUE, address & 0xFFFFFFFF, L.OP_CLC, 1 << lane, iid)
        st64(op + L.A_CHECK, observe(w, CHECK_ISSUE, op, 0, 0, 1 << lane, iid))
        submit(w, op, LAT_BULK, RESPONSE_BYTES)
    st64(w + L.W_PROGRESS, ld64(w + L.W_PROGRESS) + 1)
    return 0


@export
def tl_cancel_failed(w, lanes):
    """Lanes have seen a response that says that the request failed: their CTA may not ask again."""
    if lanes != 0:
        st64(ld64(w + L.W_CTA) + L.C_CLC_FAILED, 1)
    return 0


@export
def tl_launch_dependents(w, lanes, iid):
    """griddepcontrol.launch_dependents: 1 to go on; 0 when the lanes let a dependent launch start before they do."""
    if lanes == 0:
        return 1
    cta = ld64(w + L.W_CTA)
    first = ld64(cta + L.C_TRIGGERED) == 0
    trigger(cta)
    launch = ld64(w + L.W_LAUNCH)
    policy = ld64(launch + L.L_POLICY)
    if not first or ld64(launch + L.L_FOLLOWED) == 0 or policy == L.POLICY_EAGER:
        return 1
    u = ld64(w + L.W_UNIT)
    until = ld64(u + L.U_CLOCK)
    if policy == L.POLICY_RANDOM:
        r = rng(u + L.U_RNG)
        until += r & 0x3FFFF if r & 0x40000000 else r & 0xFFF
    st64(w + L.W_PROGRESS, ld64(w + L.W_PROGRESS) + 1)
    block(w, lanes, L.WAIT_TIME, until, ld64(u + L.U_ROUND), iid)
    return 0


@export
def tl_grid_wait(w, lanes, iid):
    """griddepcontrol.wait: 1 to go on, 0 when the lanes wait for the launches before this one to be complete.

    That is all of them, also where the one just before has not waited in its turn: so an H200 has it, and the ISA
    speaks of all prerequisite grids in flight.
    """
    launch = ld64(w + L.W_LAUNCH)
    if lanes != 0:
        observe(w, CHECK_GRID_WAIT, 0, 0, 0, lanes, iid)
    if lanes == 0 or all_ended(launch):
        return 1
    block(w, lanes, L.WAIT_GRID, launch, 0, iid)
    return 0
