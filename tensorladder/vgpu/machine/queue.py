"""The pool of asynchronous operations of a unit, in order of issue.

An operation is issued (`new_op`, filled in, `submit`), takes effect when the policy says so (`effects.run_op`), and is
then freed. Who waits for one (a cp.async group, a bulk group) looks for it among the pending ones.
"""

from __future__ import annotations

from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.machine.lanes import fail
from tensorladder.vgpu.machine.native import helper
from tensorladder.vgpu.machine.raw import ld64, st64

NEVER = 1 << 62
#: A_GROUP of operations that complete on an mbarrier: later than any group
NO_GROUP = 1 << 40
#: rows of the latency table (L_LATENCY, latency.Timing.rows): cycles, and bytes (tensor: multiply-adds of f16) a cycle
LAT_CP_ASYNC, LAT_TMA_LOAD, LAT_TMA_STORE, LAT_BULK, LAT_TENSOR, LAT_TMEM = 0, 1, 2, 3, 4, 5
LATENCY_ROW = 16
#: cycles between reading a store's source and its write being complete (timed)
STORE_TAIL = 300


@helper
def rng(state):
    """Next 31 random bits of the generator whose 64-bit state is at `state` (splitmix64, kept in int64 arithmetic)."""
    x = ld64(state) + -7046029254386353131
    st64(state, x)
    z = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * -4658895280553007687
    z = (z ^ ((z >> 27) & 0x1FFFFFFFFF)) * -7723592293110705685
    return (z ^ ((z >> 31) & 0x1FFFFFFFF)) & 0x7FFFFFFF


@helper
def new_op(w, kind, lanes, iid):
    """A fresh operation of a warp; 0 with the error recorded when the pool is full."""
    u = ld64(w + L.W_UNIT)
    free = ld64(u + L.U_NFREE)
    if free == 0:
        fail(w, L.ERR_ASYNC_FULL, iid, 0, 0, 0, 0)
        return 0
    index = ld64(ld64(u + L.U_FREE) + 8 * (free - 1))
    st64(u + L.U_NFREE, free - 1)
    op = ld64(u + L.U_OPS) + index * L.A_BYTES
    st64(op + L.A_KIND, kind)
    st64(op + L.A_WARP, w)
    st64(op + L.A_LANES, lanes)
    st64(op + L.A_IID, iid)
    st64(op + L.A_STAGE, 0)
    st64(op + L.A_GROUP, 0)
    st64(op + L.A_MBAR, 0)
    st64(op + L.A_BYTES_TX, 0)
    st64(op + L.A_FLAGS, 0)
    st64(op + L.A_QUEUE, 0)
    st64(op + L.A_HELD, 0)
    st64(op + L.A_CTA, ld64(w + L.W_CTA))
    seq = ld64(u + L.U_SEQ)
    st64(u + L.U_SEQ, seq + 1)
    st64(op + L.A_SEQ, seq)
    return op


@helper
def ready_time(w, op, row, size):
    """Clock at which an operation issued now may take effect, by the launch's policy."""
    launch = ld64(w + L.W_LAUNCH)
    policy = ld64(launch + L.L_POLICY)
    now = ld64(w + L.W_CLOCK)
    if policy == L.POLICY_LAZY:
        return NEVER
    if policy == L.POLICY_RANDOM:
        r = rng(ld64(w + L.W_UNIT) + L.U_RNG)
        return now + (r & 0xFFF) if r & 0x3000 else now + (r & 0x3FFFF)
    if policy == L.POLICY_TIMED:
        p = ld64(launch + L.L_LATENCY) + row * LATENCY_ROW
        st64(op + L.A_ISSUED, now)
        st64(op + L.A_START, now)
        st64(op + L.A_BUSY, 0)
        st64(op + L.A_WORK, size)
        if row == LAT_TMEM:  # no unit that others keep busy
            return now + ld64(p)
        free = ld64(w + L.W_CTA) + L.C_TENSOR_CLOCK if row == LAT_TENSOR else ld64(w + L.W_UNIT) + L.U_TMA_CLOCK
        busy = size // max(ld64(p + 8), 1)
        start = max(now, ld64(free))
        if row != LAT_CP_ASYNC:
            st64(free, start + busy)
        st64(op + L.A_START, start)
        st64(op + L.A_BUSY, busy)
        return start + busy + ld64(p)
    return now


@helper
def postpone(u, op):
    """When the next stage of an operation may run: as late as allowed, or some time after now."""
    policy = ld64(ld64(u + L.U_LAUNCH) + L.L_POLICY)
    if policy == L.POLICY_RANDOM:
        st64(op + L.A_READY, ld64(op + L.A_READY) + (rng(u + L.U_RNG) & 0xFFF))
    elif policy == L.POLICY_TIMED:
        st64(op + L.A_READY, ld64(op + L.A_READY) + STORE_TAIL)


@helper
def enqueue(w, op, row, size):
    """Append an operation to the pending ones, with the time that the policy gives it."""
    append(ld64(w + L.W_UNIT), op, ready_time(w, op, row, size))


@helper
def append(u, op, ready):
    """Append an operation that may take effect from clock `ready` on to the pending ones."""
    st64(op + L.A_READY, ready)
    count = ld64(u + L.U_COUNT)
    st64(ld64(u + L.U_ORDER) + 8 * count, (op - ld64(u + L.U_OPS)) // L.A_BYTES)
    st64(u + L.U_COUNT, count + 1)


@helper
def release_op(u, op):
    """Give an operation's slot back (it is not in the order list any more)."""
    free = ld64(u + L.U_NFREE)
    st64(ld64(u + L.U_FREE) + 8 * free, (op - ld64(u + L.U_OPS)) // L.A_BYTES)
    st64(u + L.U_NFREE, free + 1)


@helper
def pending_op(u, position):
    """The operation at a position of the order list."""
    return ld64(u + L.U_OPS) + ld64(ld64(u + L.U_ORDER) + 8 * position) * L.A_BYTES


@helper
def movable(u, position):
    """Whether the operation at a position may take effect: issued in full, and first of its queue."""
    op = pending_op(u, position)
    if ld64(op + L.A_HELD) != 0:
        return False
    queue = ld64(op + L.A_QUEUE)
    if queue != 0:
        for before in range(position):
            if ld64(pending_op(u, before) + L.A_QUEUE) == queue:
                return False
    return True


@helper
def remove_at(u, position):
    """Take an operation out of the order list."""
    order = ld64(u + L.U_ORDER)
    count = ld64(u + L.U_COUNT) - 1
    for i in range(position, count):
        st64(order + 8 * i, ld64(order + 8 * (i + 1)))
    st64(u + L.U_COUNT, count)


@helper
def is_eager(w):
    """Whether effects happen at issue."""
    return ld64(ld64(w + L.W_LAUNCH) + L.L_POLICY) == L.POLICY_EAGER
