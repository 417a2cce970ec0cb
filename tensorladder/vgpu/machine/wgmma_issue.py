"""Issue of WGMMA: what generated code calls for wgmma.mma_async and its groups."""

from __future__ import annotations

from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.machine.effects import begin
from tensorladder.vgpu.machine.hooks import (
    CHECK_WGMMA,
    CHECK_WGMMA_COMMIT,
    CHECK_WGMMA_SETTLE,
    CHECK_WGMMA_WAIT,
    EVENT_ISSUE,
    observe,
    record,
)
from tensorladder.vgpu.machine.lanes import block, fail
from tensorladder.vgpu.machine.native import export, helper
from tensorladder.vgpu.machine.queue import LAT_TENSOR, NEVER, append, is_eager, ready_time, release_op, remove_at
from tensorladder.vgpu.machine.raw import ld64, st64
from tensorladder.vgpu.machine.vectors import lanes_equal64
from tensorladder.vgpu.machine.wgmma import (
    FORM_N,
    G_DESC_A,
    G_DESC_B,
    G_FORM,
    G_FRAMES,
    G_GROUPS,
    G_ISSUED,
    G_KEEP,
    G_TABLE,
    groups_pending,
    joined,
    position_of,
    reserved_bits,
    run_wgmma,
    start_fields,
    warpgroup_of,
    writing_group,
)  # fmt: skip

_ALL = 0xFFFFFFFF
#: what the lanes or warps of a warpgroup may not differ in (ERR_WGMMA_DIFFER)
DIFFER_A, DIFFER_B, DIFFER_SCALE, DIFFER_INSTRUCTION = range(4)


@helper
def uniform(w, descriptors, which, iid):
    """Whether all lanes have the same good descriptor; the error is recorded."""
    descriptor = ld64(descriptors)
    same = lanes_equal64(descriptors, descriptor)
    if same != _ALL:
        fail(w, L.ERR_WGMMA_DIFFER, iid, 0, 0, which, 0)
        return False
    if reserved_bits(descriptor) != 0:
        fail(w, L.ERR_WGMMA_DESC, iid, 0, descriptor, which, reserved_bits(descriptor))
        return False
    return True


@helper
def agree(w, op, form, a, b, keep, iid):
    """Whether a warp issues what the others of its warpgroup have issued; the error is recorded."""
    if ld64(op + L.A_IID) != iid or ld64(op + G_FORM) != form:
        fail(w, L.ERR_WGMMA_DIFFER, iid, 0, 0, DIFFER_INSTRUCTION, 1)
    elif ld64(op + G_DESC_A) != a:
        fail(w, L.ERR_WGMMA_DIFFER, iid, 0, 0, DIFFER_A, 1)
    elif ld64(op + G_DESC_B) != b:
        fail(w, L.ERR_WGMMA_DIFFER, iid, 0, 0, DIFFER_B, 1)
    elif ld64(op + G_KEEP) != keep:
        fail(w, L.ERR_WGMMA_DIFFER, iid, 0, 0, DIFFER_SCALE, 1)
    else:
        return True
    return False


@helper
def whole_warpgroup(w, lanes, iid):
    """Whether 32 lanes of a warp execute, in a CTA that has the other warps of the warpgroup; the error is recorded."""
    if lanes & _ALL != _ALL:
        fail(w, L.ERR_WGMMA_LANES, iid, 0, 0, lanes & _ALL, 0)
        return False
    warp = ld64(w + L.W_WARPID)
    if (warp | 3) >= ld64(ld64(w + L.W_CTA) + L.C_NWARPS):
        fail(w, L.ERR_WGMMA_WARPS, iid, 0, 0, warp & ~3, ld64(ld64(w + L.W_CTA) + L.C_NWARPS))
        return False
    return True


#: operations that a warp may be ahead of another of its warpgroup before it lets that one run: the pool is finite
_MOST_AHEAD = 64


@helper
def ahead(first, seq):
    """Whether operation `seq` is far ahead of what some warp of the warpgroup has issued; `first`: its first warp."""
    least = seq
    for k in range(4):
        least = min(least, ld64(first + k * L.W_BYTES + L.W_WGMMA_SEQ))
    return seq - least > _MOST_AHEAD


@helper
def add_warp(w, op, slot):
    """A warp's part of an operation."""
    st64(op + G_FRAMES + 8 * slot, ld64(w + L.W_FRAME))
    st64(op + G_GROUPS + 8 * slot, ld64(w + L.W_WGMMA_GROUP))
    st64(op + G_ISSUED, ld64(op + G_ISSUED) | (1 << slot))


@export
def tl_wgmma_mma(w, table, form, a, b, keeps, lanes, iid):
    """wgmma.mma_async of one warp.

    table: the registers' offsets (G_TABLE); form: G_FORM; a, b: addresses of 32 descriptors (a 0: in registers); keeps,
    lanes: lanes whose scale-d is true, and lanes that execute.
    """
    if not whole_warpgroup(w, lanes, iid):
        return 0
    if keeps != 0 and keeps != _ALL:
        fail(w, L.ERR_WGMMA_DIFFER, iid, 0, 0, DIFFER_SCALE, 0)
        return 0
    if (a != 0 and not uniform(w, a, DIFFER_A, iid)) or not uniform(w, b, DIFFER_B, iid):
        return 0
    a = ld64(a) if a != 0 else 0
    b = ld64(b)
    keep = 1 if keeps != 0 else 0
    u = ld64(w + L.W_UNIT)
    queue = warpgroup_of(w)
    seq = ld64(w + L.W_WGMMA_SEQ)
    st64(w + L.W_WGMMA_SEQ, seq + 1)
    op = joined(u, queue, seq)
    if op == 0:
        op = begin(w, L.OP_WGMMA, lanes, iid)
        if op == 0:
            return 0
        start_fields(op, queue, seq)
        st64(op + G_TABLE, table)
        st64(op + G_FORM, form)
        st64(op + G_DESC_A, a)
        st64(op + G_DESC_B, b)
        st64(op + G_KEEP, keep)
        st64(op + L.A_HELD, 1)
        append(u, op, NEVER)
        st64(w + L.W_PROGRESS, ld64(w + L.W_PROGRESS) + 1)
        if ahead(queue, seq):
            st64(w + L.W_LIMIT, 0)
        record(w, EVENT_ISSUE, b & 0x3FFF, L.OP_WGMMA, lanes, iid)
    elif not agree(w, op, form, a, b, keep, iid):
        return 0
    add_warp(w, op, ld64(w + L.W_WARPID) & 3)
    observe(w, CHECK_WGMMA, op, seq, 0, lanes, iid)
    if ld64(op + G_ISSUED) != 15:
        return 0
    st64(op + L.A_HELD, 0)
    st64(op + L.A_WARP, w)
    if not is_eager(w):
        st64(op + L.A_READY, ready_time(w, op, LAT_TENSOR, 64 * 16 * ((form >> FORM_N) & 0x1FF)))
        return 1
    run_wgmma(u, op)
    remove_at(u, position_of(u, op))
    release_op(u, op)
    st64(w + L.W_PROGRESS, ld64(w + L.W_PROGRESS) + 1)
    return 1


@export
def tl_wgmma_settle(w, table, count, lanes, iid):
    """1 when no operation in flight will write one of `count` registers (offsets in `table`), else the lanes wait."""
    observe(w, CHECK_WGMMA_SETTLE, table, count, 0, lanes, iid)
    if ld64(ld64(w + L.W_UNIT) + L.U_COUNT) == 0:
        return 1
    group = writing_group(w, table, count)
    if group < 0:
        return 1
    block(w, lanes, L.WAIT_WGMMA, group, 0, iid)
    return 0


@export
def tl_wgmma_commit(w, iid):
    """wgmma.commit_group."""
    observe(w, CHECK_WGMMA_COMMIT, 0, 0, 0, 0xFFFFFFFF, iid)
    st64(w + L.W_WGMMA_GROUP, ld64(w + L.W_WGMMA_GROUP) + 1)
    return 0


@export
def tl_wgmma_wait(w, most, lanes, iid):
    """wgmma.wait_group: 1 when at most `most` of the warp's committed groups are pending, else the lanes wait."""
    group = ld64(w + L.W_WGMMA_GROUP) - most - 1
    observe(w, CHECK_WGMMA_WAIT, group, most, 0, lanes, iid)
    if not groups_pending(w, group):
        return 1
    block(w, lanes, L.WAIT_WGMMA, group, 0, iid)
    return 0
