"""mbarrier objects (PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier").

The state is the 64-bit word in shared memory itself: bit 0 the phase, bits 1 to 20 pending arrivals, bits 21 to 40
the arrivals that the next phase expects, bits 41 to 61 the transaction count (signed). A bitmap of each CTA says which
words are initialised. The state that an arrival returns is the word before it.
"""

from __future__ import annotations

from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.machine.hooks import (
    CHECK_ARRIVE,
    CHECK_FLIP,
    CHECK_INIT,
    CHECK_INVAL,
    CHECK_TX,
    CHECK_WAIT,
    EVENT_ARRIVE,
    EVENT_WAIT,
    observe,
    record,
)
from tensorladder.vgpu.machine.lanes import block, fail
from tensorladder.vgpu.machine.memory import SPACE_GENERIC, SPACE_SHARED, shared_host
from tensorladder.vgpu.machine.native import export, helper
from tensorladder.vgpu.machine.queue import rng
from tensorladder.vgpu.machine.raw import ld8, ld32, ld64, st8, st32, st64, trailing_zeros
from tensorladder.vgpu.machine.trace import arrived, catch_up, is_timed, mbar_stamp
from tensorladder.vgpu.machine.vectors import lanes_equal64

COUNT_MASK = (1 << 20) - 1
TX_MASK = (1 << 21) - 1
TX_LIMIT = (1 << 20) - 1
_PENDING, _EXPECTED, _TX = 1, 21, 41
#: entries of a CTA's ring of arrivals
RING = L.SHARED_RESERVED // 16 - 1

#: flags of tl_mbar_arrive
ARRIVE_EXPECT_TX, ARRIVE_DROP, ARRIVE_NO_COMPLETE = 1, 2, 4
#: flags of tl_mbar_wait
WAIT_BLOCKS, WAIT_BY_STATE = 1, 2
#: flags of both that only the hazard checker looks at
RELAXED, SCOPE_CLUSTER, SCOPE_CTA = 16, 32, 64


@helper
def cta_of_rank(w, rank):
    """The CTA with this rank in the warp's cluster (the rank must exist)."""
    return ld64(w + L.W_CTA) + (rank - ld64(w + L.W_RANK)) * L.C_BYTES


@helper
def shared_at(w, address, size, iid, lane):
    """Host address of `size` bytes at a 32-bit shared::cluster address, of any CTA; 0 with the error recorded."""
    address &= 0xFFFFFFFF
    place = address & 0xFFFFFF
    if place < L.SHARED_RESERVED or place + size > ld64(w + L.W_SHARED_SIZE):
        fail(w, L.ERR_OUT_OF_BOUNDS, iid, lane, address, size, SPACE_SHARED)
        return 0
    return shared_host(w, address, size, iid, lane)


@helper
def map_byte(w, address):
    """Host address of the byte of the bitmap that holds an mbarrier's bit."""
    cta = cta_of_rank(w, (address & 0xFFFFFFFF) >> L.RANK_SHIFT)
    return ld64(cta + L.C_MBAR_MAP) + ((address & 0xFFFFFF) >> 6)


@helper
def mbarrier_at(w, space, address, initialised, iid, lane):
    """Host address of the mbarrier at a shared (or generic) address; 0 with the error recorded."""
    if space == SPACE_GENERIC and address & L.WINDOW_MASK != L.SHARED_WINDOW:
        fail(w, L.ERR_WRONG_SPACE, iid, lane, address, 0, 0)
        return 0
    address &= 0xFFFFFFFF
    if address & 7:
        fail(w, L.ERR_MISALIGNED, iid, lane, address, 8, SPACE_SHARED)
        return 0
    host = shared_at(w, address, 8, iid, lane)
    if host == 0:
        return 0
    if initialised != 0 and (ld8(map_byte(w, address)) >> ((address >> 3) & 7)) & 1 == 0:
        fail(w, L.ERR_MBAR_UNINIT, iid, lane, address, 0, 0)
        return 0
    return host


@helper
def own_barrier(w, address, iid, lane):
    """Whether an mbarrier lies in the CTA's own shared memory, where this operation must have it (.shared::cta)."""
    if (address & 0xFFFFFFFF) >> L.RANK_SHIFT != ld64(w + L.W_RANK):
        fail(w, L.ERR_MBAR_REMOTE, iid, lane, address & 0xFFFFFFFF, 0, 0)
        return False
    return True


@helper
def note(w, address, iid, lane):
    """Remember who changed an mbarrier last, for messages: a ring in the reserved first KB of its CTA's window.

    At its start the number of the newest entry (-1: none), from byte 16 on 16 bytes an entry: place << 32 | iid, then
    rank << 32 | warp << 8 | lane.
    """
    cta = cta_of_rank(w, (address & 0xFFFFFFFF) >> L.RANK_SHIFT)
    ring = ld64(cta + L.C_SHARED)
    if is_timed(w):
        host = ring + (address & 0xFFFFFF)
        arrived(w, mbar_stamp(cta, host, ld64(host) & 1), host)
    newest = ld64(ring) + 1
    st64(ring, newest)
    entry = ring + 16 + 16 * (newest % RING)
    st64(entry, ((address & 0xFFFFFF) << 32) | iid)
    st64(entry + 8, (ld64(w + L.W_RANK) << 32) | (ld64(w + L.W_WARPID) << 8) | lane)


@helper
def tx_of(word):
    """The signed transaction count of a word."""
    tx = (word >> _TX) & TX_MASK
    return tx - (TX_MASK + 1) if tx > TX_LIMIT else tx


@helper
def settle(host, phase, pending, expected, tx):
    """Store the state; the phase completes when nothing is pending and no bytes are owed. True if it did."""
    done = pending == 0 and tx == 0
    if done:
        phase ^= 1
        pending = expected
    st64(host, phase | (pending << _PENDING) | (expected << _EXPECTED) | ((tx & TX_MASK) << _TX))
    return done


@helper
def arrive(w, host, address, count, expect, flags, iid, lane):
    """`count` arrivals, after raising the transaction count by `expect`. The word before; -1: error recorded."""
    note(w, address, iid, lane)
    word = ld64(host)
    pending = (word >> _PENDING) & COUNT_MASK
    expected = (word >> _EXPECTED) & COUNT_MASK
    tx = tx_of(word) + expect
    if expect < 0 or tx > TX_LIMIT:
        fail(w, L.ERR_MBAR_TX, iid, lane, address, tx, expect)
        return -1
    if count < 1 or count > pending:
        fail(w, L.ERR_MBAR_COUNT, iid, lane, address, count, pending)
        return -1
    if flags & ARRIVE_DROP:
        expected -= count
        if expected < 0:
            fail(w, L.ERR_MBAR_COUNT, iid, lane, address, count, expected + count)
            return -1
    if settle(host, word & 1, pending - count, expected, tx):
        if flags & ARRIVE_NO_COMPLETE:
            fail(w, L.ERR_MBAR_NO_COMPLETE, iid, lane, address, count, pending)
            return -1
        observe(w, CHECK_FLIP, host, 0, 0, 1 << lane, iid)
    return word


@helper
def add_tx(w, host, address, amount, iid, lane):
    """Raise (expect-tx) or lower (complete-tx) the transaction count. False: it overflows, error recorded."""
    note(w, address, iid, lane)
    word = ld64(host)
    tx = tx_of(word) + amount
    if tx > TX_LIMIT or tx < -TX_LIMIT:
        fail(w, L.ERR_MBAR_TX, iid, lane, address, tx, amount)
        return False
    if settle(host, word & 1, (word >> _PENDING) & COUNT_MASK, (word >> _EXPECTED) & COUNT_MASK, tx):
        observe(w, CHECK_FLIP, host, 0, 0, 1 << lane, iid)
    return True


@helper
def complete_tx(w, address, size, iid, lane):
    """An asynchronous operation reports `size` bytes to the mbarrier at a shared::cluster address."""
    host = mbarrier_at(w, SPACE_SHARED, address, 1, iid, lane)
    if host == 0:
        return False
    record(w, EVENT_ARRIVE, host, -size, 1 << lane, iid)
    return add_tx(w, host, address, -size, iid, lane)


@helper
def add_pending(w, host, address, iid, lane):
    """One more pending arrival in this phase (cp.async.mbarrier.arrive without .noinc)."""
    word = ld64(host)
    pending = (word >> _PENDING) & COUNT_MASK
    if pending == COUNT_MASK:
        fail(w, L.ERR_MBAR_COUNT, iid, lane, address, 1, pending)
        return False
    st64(host, word + (1 << _PENDING))
    return True


@export
def tl_mbar_init(w, space, addresses, counts, mask, iid):
    """mbarrier.init: phase 0, `count` arrivals expected, no transactions."""
    for lane in range(L.LANES):
        if (mask >> lane) & 1 == 0:
            continue
        address = ld64(addresses + 8 * lane)
        host = mbarrier_at(w, space, address, 0, iid, lane)
        if host == 0 or not own_barrier(w, address, iid, lane):
            return 0
        count = ld64(counts + 8 * lane)
        if count < 1 or count > COUNT_MASK:
            fail(w, L.ERR_MBAR_INIT, iid, lane, address & 0xFFFFFFFF, count, 0)
            return 0
        st64(host, (count << _PENDING) | (count << _EXPECTED))
        if is_timed(w):
            st64(mbar_stamp(ld64(w + L.W_CTA), host, 0), 0)
            st64(mbar_stamp(ld64(w + L.W_CTA), host, 1), 0)
        byte = map_byte(w, address)
        st8(byte, ld8(byte) | (1 << ((address >> 3) & 7)))
        observe(w, CHECK_INIT, host, count, 0, 1 << lane, iid)
    st64(w + L.W_PROGRESS, ld64(w + L.W_PROGRESS) + 1)
    return 1


@export
def tl_mbar_inval(w, space, addresses, mask, iid):
    """mbarrier.inval: the word is ordinary memory again, with undefined content."""
    for lane in range(L.LANES):
        if (mask >> lane) & 1 == 0:
            continue
        address = ld64(addresses + 8 * lane)
        host = mbarrier_at(w, space, address, 1, iid, lane)
        if host == 0 or not own_barrier(w, address, iid, lane):
            return 0
        st64(host, -1)
        byte = map_byte(w, address)
        st8(byte, ld8(byte) & ~(1 << ((address >> 3) & 7)))
        observe(w, CHECK_INVAL, host, 0, 0, 1 << lane, iid)
    st64(w + L.W_PROGRESS, ld64(w + L.W_PROGRESS) + 1)
    return 1


@export
def tl_mbar_arrive(w, space, addresses, counts, expects, states, mask, flags, iid):
    """mbarrier.arrive and arrive_drop of every active lane, in lane order; `states` gets the words before (0: none)."""
    for lane in range(L.LANES):
        if (mask >> lane) & 1 == 0:
            continue
        address = ld64(addresses + 8 * lane)
        host = mbarrier_at(w, space, address, 1, iid, lane)
        if host == 0:
            return 0
        if (states != 0 or flags & ARRIVE_NO_COMPLETE) and not own_barrier(w, address, iid, lane):
            return 0
        count = ld64(counts + 8 * lane) if counts != 0 else 1
        expect = ld64(expects + 8 * lane) if flags & ARRIVE_EXPECT_TX else 0
        record(w, EVENT_ARRIVE, host, count, 1 << lane, iid)
        observe(w, CHECK_ARRIVE, host, count | mask << 32, flags, 1 << lane, iid)
        before = arrive(w, host, address & 0xFFFFFFFF, count, expect, flags, iid, lane)
        if before < 0:
            return 0
        if states != 0:
            st64(states + 8 * lane, before)
    st64(w + L.W_PROGRESS, ld64(w + L.W_PROGRESS) + 1)
    return 1


@export
def tl_mbar_tx(w, space, addresses, amounts, mask, sign, iid):
    """mbarrier.expect_tx (sign 1) and mbarrier.complete_tx (sign -1)."""
    for lane in range(L.LANES):
        if (mask >> lane) & 1 == 0:
            continue
        address = ld64(addresses + 8 * lane)
        host = mbarrier_at(w, space, address, 1, iid, lane)
        amount = sign * ld64(amounts + 8 * lane)
        if host != 0:
            observe(w, CHECK_TX, host, amount, 0, 1 << lane, iid)
        if host == 0 or not add_tx(w, host, address & 0xFFFFFFFF, amount, iid, lane):
            return 0
        record(w, EVENT_ARRIVE, host, amount, 1 << lane, iid)
    st64(w + L.W_PROGRESS, ld64(w + L.W_PROGRESS) + 1)
    return 1


@helper
def timed_out(w, mask):
    """Lanes of `mask` whose suspended wait the scheduler gave up; the marks are taken away."""
    lanes = 0
    for lane in range(L.LANES):
        if (mask >> lane) & 1 and ld32(w + L.W_WAIT + 4 * lane) == L.WAIT_TIMED_OUT:
            st32(w + L.W_WAIT + 4 * lane, L.WAIT_NONE)
            lanes |= 1 << lane
    return lanes


@helper
def uniform(addresses, tokens, mask):
    """Whether all active lanes have one address and one phase."""
    first = trailing_zeros(mask)
    address = ld64(addresses + 8 * first)
    token = ld64(tokens + 8 * first)
    differ = 0
    for lane in range(L.LANES):
        other = (ld64(addresses + 8 * lane) ^ address) | ((ld64(tokens + 8 * lane) ^ token) & 1)
        differ |= other if (mask >> lane) & 1 else 0
    return differ == 0


@helper
def lanes_passed(w, space, addresses, tokens, mask, iid):
    """Lanes whose phase is complete; -1 with the error recorded. `addresses` become host addresses."""
    if uniform(addresses, tokens, mask):
        first = trailing_zeros(mask)
        address = ld64(addresses + 8 * first)
        host = mbarrier_at(w, space, address, 1, iid, first)
        if host == 0 or not own_barrier(w, address, iid, first):
            return -1
        for lane in range(L.LANES):
            st64(addresses + 8 * lane, host)
        return mask if (ld64(host) ^ ld64(tokens + 8 * first)) & 1 else 0
    passed = 0
    for lane in range(L.LANES):
        if (mask >> lane) & 1 == 0:
            continue
        address = ld64(addresses + 8 * lane)
        host = mbarrier_at(w, space, address, 1, iid, lane)
        if host == 0 or not own_barrier(w, address, iid, lane):
            return -1
        st64(addresses + 8 * lane, host)
        if (ld64(host) ^ ld64(tokens + 8 * lane)) & 1:
            passed |= 1 << lane
    return passed


@helper
def observe_passed(w, addresses, tokens, passed, flags, iid):
    """Tell the hazard checker of lanes whose wait is over, once for all that waited for the same mbarrier."""
    while passed != 0:
        first = trailing_zeros(passed)
        same = passed & lanes_equal64(addresses, ld64(addresses + 8 * first))
        passed &= ~same
        observe(w, CHECK_WAIT, ld64(addresses + 8 * first), ld64(tokens + 8 * first), flags, same, iid)


@export
def tl_mbar_wait(w, space, addresses, tokens, mask, flags, iid):
    """mbarrier.test_wait and try_wait: lanes whose phase is complete, or -1 when the group was made to wait.

    A token is a phase parity, or the state of an arrival (its bit 0 is the phase). The lanes wait only when none of
    them can go on: any lane may be told false at any time. Under the random policy that happens now and then.
    """
    if mask == 0:
        return 0
    passed = lanes_passed(w, space, addresses, tokens, mask, iid)
    if passed < 0:
        return 0
    gave_up = timed_out(w, mask)
    random = ld64(ld64(w + L.W_LAUNCH) + L.L_POLICY) == L.POLICY_RANDOM
    if passed != 0:
        if flags & WAIT_BLOCKS and not random:
            # others that wait for the same phases get a turn: code in which nothing else holds this warp back is
            # common, and right on a chip whose warps go on side by side
            st64(w + L.W_LIMIT, 0)
        if is_timed(w):
            first = trailing_zeros(passed)
            host, phase = ld64(addresses + 8 * first), ld64(tokens + 8 * first) & 1
            catch_up(w, ld64(mbar_stamp(ld64(w + L.W_CTA), host, phase)), L.WAIT_MBAR, host, phase, iid)
        record(w, EVENT_WAIT, ld64(addresses), 0, passed, iid)
        observe_passed(w, addresses, tokens, passed, flags, iid)
        return passed
    if flags & WAIT_BLOCKS == 0 or gave_up != 0:
        return 0
    if random and rng(ld64(w + L.W_UNIT) + L.U_RNG) & 7 == 0:
        return 0
    kind = L.WAIT_MBAR_STATE if flags & WAIT_BY_STATE else L.WAIT_MBAR
    for lane in range(L.LANES):
        if (mask >> lane) & 1:
            block(w, 1 << lane, kind, ld64(addresses + 8 * lane), ld64(tokens + 8 * lane) & 1, iid)
    return -1
