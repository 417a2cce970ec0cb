"""What an asynchronous operation does when its time comes: one dispatch over the units that work on their own."""

from __future__ import annotations

from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.machine.copies import drop_buffer, run_arrive, run_bulk_load, run_bulk_store, run_cp_async
from tensorladder.vgpu.machine.grids import run_cancel
from tensorladder.vgpu.machine.native import helper
from tensorladder.vgpu.machine.queue import enqueue, is_eager, movable, new_op, pending_op, release_op, remove_at
from tensorladder.vgpu.machine.raw import ld64
from tensorladder.vgpu.machine.remote import run_remote
from tensorladder.vgpu.machine.tcgen05 import run_commit, run_cp, run_shift
from tensorladder.vgpu.machine.tcmma import run_mma
from tensorladder.vgpu.machine.tma import REDUCE, STORE, run_tma_load, run_tma_store
from tensorladder.vgpu.machine.tmem import run_store
from tensorladder.vgpu.machine.trace import begin_effect, end_effect
from tensorladder.vgpu.machine.wgmma import run_wgmma


@helper
def effect(u, op):
    """What an operation does in its present stage: true when that was the last one."""
    kind = ld64(op + L.A_KIND)
    eager = ld64(ld64(u + L.U_LAUNCH) + L.L_POLICY) == L.POLICY_EAGER
    if kind == L.OP_CP_ASYNC:
        return run_cp_async(op)
    if kind == L.OP_TC_MMA:
        return run_mma(op)
    if kind == L.OP_TMA_LOAD:
        return run_tma_load(op)
    if kind == L.OP_TMA_STORE:
        return run_tma_store(u, op, eager, STORE)
    if kind == L.OP_TMA_REDUCE:
        return run_tma_store(u, op, eager, REDUCE)
    if kind == L.OP_MBAR_ARRIVE:
        return run_arrive(op)
    if kind == L.OP_TC_COMMIT:
        return run_commit(op)
    if kind == L.OP_TC_CP:
        return run_cp(op)
    if kind == L.OP_TC_SHIFT:
        return run_shift(op)
    if kind == L.OP_TC_ST:
        return run_store(op)
    if kind == L.OP_WGMMA:
        return run_wgmma(u, op)
    if kind == L.OP_REMOTE:
        return run_remote(op)
    if kind == L.OP_CLC:
        return run_cancel(op)
    if kind == L.OP_BULK_S2G or (kind == L.OP_BULK_REDUCE and ld64(op + L.A_MBAR) == 0):
        return run_bulk_store(u, op, eager)
    return run_bulk_load(op)


@helper
def run_op(u, op):
    """Advance an operation by one stage: true when it is done and can be freed."""
    if ld64(ld64(u + L.U_LAUNCH) + L.L_POLICY) != L.POLICY_TIMED:
        return effect(u, op)
    begin_effect(u, op)
    done = effect(u, op)
    end_effect(u)
    return done


@helper
def abandon(u):
    """A launch that stopped early leaves operations behind: free what they hold."""
    for position in range(ld64(u + L.U_COUNT)):
        drop_buffer(pending_op(u, position))


@helper
def begin(w, kind, lanes, iid):
    """A fresh operation; when the pool is full, the oldest one that can move takes effect first."""
    u = ld64(w + L.W_UNIT)
    if ld64(u + L.U_NFREE) == 0:
        for position in range(ld64(u + L.U_COUNT)):
            if movable(u, position):
                op = pending_op(u, position)
                while not run_op(u, op):
                    pass
                remove_at(u, position)
                release_op(u, op)
                break
    return new_op(w, kind, lanes, iid)


@helper
def submit(w, op, row, size):
    """Issue: run all stages now under the eager policy, else put it into the queue."""
    if not is_eager(w):
        enqueue(w, op, row, size)
        return
    u = ld64(w + L.W_UNIT)
    while not run_op(u, op):
        pass
    release_op(u, op)
