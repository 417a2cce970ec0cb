"""Lanes of one warp: they need not run in lockstep, so what one writes another may touch only after bar.warp.sync.

A warp has one clock. Beside it, its accesses since the lanes last met are kept with the lanes' addresses, and for each
lane the lanes that its access comes before: bar.warp.sync orders those of its mask, a barrier all of them, and who has
waited (for an mbarrier, for a flag) comes after everyone. shfl, vote, elect and other collectives order no memory (PTX
ISA). An .aligned instruction does not either, but its lanes do run together: for review, since practice leans on that.
"""

from __future__ import annotations

from tensorladder.vgpu.check import layout as X
from tensorladder.vgpu.check.clocks import clock_of, known, site_of
from tensorladder.vgpu.check.elected import all_there, closed, entry_of, release_by
from tensorladder.vgpu.check.shadow import at_place, found, range_row, shared_place
from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.machine.hooks import ACCESS_ALIGNED, ACCESS_ATOMIC, ACCESS_STRONG, ACCESS_WIDTH, ACCESS_WRITE
from tensorladder.vgpu.machine.native import helper
from tensorladder.vgpu.machine.raw import copy_bytes, fill_bytes, ld8, ld32, ld64, st32, st64, trailing_zeros

_BLOCKS = 32  # bytes of ENTRY_BLOCKS


# ---------------------------------------------------------------- the log
@helper
def log_of(x, n):
    """A warp's log: writes kept, reads kept, then entries, those of writes first."""
    return ld64(x + X.X_LANE_LOG) + n * X.LOG_BYTES


@helper
def all_met(x, n):
    """All lanes of a warp have met: what they did is over."""
    log = log_of(x, n)
    st64(log, 0)
    st64(log + 8, 0)
    if ld64(x + X.X_ANY_LEFT) != 0:
        closed(x, n)


@helper
def come_after(x, n, lanes, among, live):
    """Lanes of a warp come after what those of `among` did, and what these came after."""
    if live & ~lanes == 0:
        all_met(x, n)
        return
    log = log_of(x, n)
    for write in range(2):
        for k in range(min(ld64(log if write != 0 else log + 8), X.LOG_MOST)):
            entry = entry_of(log, write, k)
            for lane in range(L.LANES):
                seen = ld32(entry + X.ENTRY_SEEN + 4 * lane)
                if (seen | 1 << lane) & among != 0:
                    st32(entry + X.ENTRY_SEEN + 4 * lane, seen | lanes)


@helper
def lanes_met(x, n, mask, live):
    """bar.warp.sync of the lanes of a mask."""
    come_after(x, n, mask, mask, live)


@helper
def lanes_waited(x, n, lanes, live):
    """Lanes have waited for something: they come after all that the warp's lanes did."""
    come_after(x, n, lanes, -1, live)


# ---------------------------------------------------------------- one instruction
@helper
def apart(addresses, lanes, size):
    """Whether the lanes' bytes do not overlap, as far as one look at each shows: they rise, or differ in low bits.

    Sizes are powers of two, addresses aligned to them.
    """
    shift = trailing_zeros(size)
    places = 0
    end = 0
    rising = True
    spread = True
    while lanes != 0:
        lane = trailing_zeros(lanes)
        lanes &= lanes - 1
        at = ld64(addresses + 8 * lane)
        bit = 1 << ((at >> shift) & 63)
        rising = rising and at >= end
        spread = spread and places & bit == 0
        end = at + size
        places |= bit
    return rising or spread


@helper
def stored_byte(values, width, lane, offset):
    """A byte that a lane stores, `offset` from its address: values are vectors of 256 bytes, one an element."""
    return ld8(values + 256 * (offset // width) + width * lane + offset % width)


@helper
def place_of(x, n, lanes, address, size):
    """Findings are about these bytes now."""
    place = shared_place(x, address)
    if place >= 0:
        lo = place & 0xFFFFFFFF
        at_place(x, n, lanes, X.SPACE_SHARED, place >> 32, lo, lo + size)
        return True
    row = range_row(x, address)
    if row == 0 or ld64(row + 16) == 0:
        return False
    at_place(x, n, lanes, X.SPACE_GLOBAL, ld64(row), address - ld64(row), address - ld64(row) + size)
    return True


@helper
def store_collides(x, n, addresses, lanes, size, width, iid):
    """Lanes of one instruction that store different values to the same bytes."""
    values = addresses + 256
    left = lanes
    while left != 0:
        i = trailing_zeros(left)
        left &= left - 1
        a = ld64(addresses + 8 * i)
        others = left
        while others != 0:
            j = trailing_zeros(others)
            others &= others - 1
            b = ld64(addresses + 8 * j)
            for at in range(max(a, b), min(a, b) + size):
                if stored_byte(values, width, i, at - a) != stored_byte(values, width, j, at - b):
                    if place_of(x, n, 1 << i | 1 << j, at, 1):
                        found(x, X.LANES_STORE, site_of(n, iid), 0, 0, 0, i, j)
                    return


# ---------------------------------------------------------------- two instructions
@helper
def same_lanes(entry, addresses, lanes, size, disjoint):
    """Whether each lane touches the bytes that it has touched there, and no two of them overlap."""
    if ld64(entry + X.ENTRY_SIZE) != size or (disjoint == 0 and ld64(entry + X.ENTRY_APART) == 0):
        return False
    differ = lanes & ~ld64(entry + X.ENTRY_LANES)
    for lane in range(L.LANES):
        if (lanes >> lane) & 1:
            differ |= ld64(entry + X.ENTRY_ADDRESSES + 8 * lane) ^ ld64(addresses + 8 * lane)
    return differ == 0


@helper
def came_along(entry, i, j):
    """Whether lane j was there when lane i accessed, or in a shuffle or vote with it since: practice leans on that
    where a write follows a read."""
    both = ld64(entry + X.ENTRY_COLLECTIVE)
    return (ld64(entry + X.ENTRY_LANES) >> j) & 1 != 0 or (both >> i) & (both >> j) & 1 != 0


@helper
def compare(x, n, entry, addresses, lanes, size, what, iid):
    """Judge an access against one that lanes of the warp made before."""
    its = ld64(entry + X.ENTRY_SIZE)
    strong = what & ACCESS_STRONG
    while lanes != 0:
        j = trailing_zeros(lanes)
        lanes &= lanes - 1
        a = ld64(addresses + 8 * j)
        if a >= ld64(entry + X.ENTRY_HI) or a + size <= ld64(entry + X.ENTRY_LO):
            continue
        others = ld64(entry + X.ENTRY_LANES) & ~(1 << j)
        while others != 0:
            i = trailing_zeros(others)
            others &= others - 1
            b = ld64(entry + X.ENTRY_ADDRESSES + 8 * i)
            if a >= b + its or b >= a + size or (ld32(entry + X.ENTRY_SEEN + 4 * i) >> j) & 1:
                continue
            its_what = ld64(entry + X.ENTRY_WHAT)
            if what & its_what & 15 == ACCESS_WRITE and (ld64(x + X.X_STORED_SAME) >> j) & 1:
                continue  # the same value
            if strong & its_what != 0 or not place_of(x, n, 1 << j, max(a, b), min(a + size, b + its) - max(a, b)):
                return
            code = X.LANES_TOGETHER if (what | its_what) & ACCESS_ALIGNED else X.LANES_RACE
            if code == X.LANES_RACE and its_what & 15 == 0 and came_along(entry, i, j):
                code = X.LANES_AFTER
            found(x, code, site_of(n, iid), 0, site_of(n, ld64(entry + X.ENTRY_IID)), 0, i, j)
            return


@helper
def keep(log, addresses, lanes, size, what, lo, hi, disjoint, write, iid, component, clock):
    """Keep an access, whose epoch is of a component and its clock."""
    count_at = log if write != 0 else log + 8
    count = ld64(count_at)
    st64(count_at, count + 1)
    entry = entry_of(log, write, count % X.LOG_MOST)
    st64(entry + X.ENTRY_LO, lo)
    st64(entry + X.ENTRY_HI, hi)
    st64(entry + X.ENTRY_LANES, lanes)
    st64(entry + X.ENTRY_SIZE, size)
    st64(entry + X.ENTRY_WHAT, what)
    st64(entry + X.ENTRY_IID, iid)
    st64(entry + X.ENTRY_APART, disjoint)
    st64(entry + X.ENTRY_COMPONENT, component)
    st64(entry + X.ENTRY_CLOCK, clock)
    st64(entry + X.ENTRY_TOGETHER, 0)
    st64(entry + X.ENTRY_RELEASED, 0)
    st64(entry + X.ENTRY_COLLECTIVE, 0)
    st64(log + X.LOG_NUMBER, ld64(log + X.LOG_NUMBER) + 1)
    st64(entry + X.ENTRY_NUMBER, ld64(log + X.LOG_NUMBER))
    copy_bytes(entry + X.ENTRY_BLOCKS, log + X.LOG_BLOCKS, _BLOCKS)
    copy_bytes(entry + X.ENTRY_ADDRESSES, addresses, 8 * L.LANES)
    fill_bytes(entry + X.ENTRY_SEEN, 0, 4 * L.LANES)


@helper
def note_blocks(log, addresses, lanes, size):
    """LOG_BLOCKS of an access; the range of bytes that lanes touch."""
    lo = ld64(addresses + 8 * trailing_zeros(lanes))
    hi = lo
    a, b, c, d = 0, 0, 0, 0
    while lanes != 0:
        lane = trailing_zeros(lanes)
        lanes &= lanes - 1
        at = ld64(addresses + 8 * lane)
        lo = min(lo, at)
        hi = max(hi, at)
        for block in range(at >> 4, ((at + size - 1) >> 4) + 1):
            bit = 1 << (block & 63)
            word = (block >> 6) & 3
            a |= bit if word == 0 else 0
            b |= bit if word == 1 else 0
            c |= bit if word == 2 else 0
            d |= bit if word == 3 else 0
    st64(log + X.LOG_BLOCKS, a)
    st64(log + X.LOG_BLOCKS + 8, b)
    st64(log + X.LOG_BLOCKS + 16, c)
    st64(log + X.LOG_BLOCKS + 24, d)
    return lo, hi + size


@helper
def may_meet(log, entry, lo, hi):
    """Whether bytes of the access that is looked at may be bytes of one that is kept."""
    if ld64(entry + X.ENTRY_LO) >= hi or ld64(entry + X.ENTRY_HI) <= lo:
        return False
    common = 0
    for k in range(0, _BLOCKS, 8):
        common |= ld64(entry + X.ENTRY_BLOCKS + k) & ld64(log + X.LOG_BLOCKS + k)
    return common != 0


@helper
def among_lanes(x, w, n, addresses, lanes, size, what, write, iid):
    """An access of some lanes, as the other lanes of the warp see it."""
    log = log_of(x, n)
    lo, hi = note_blocks(log, addresses, lanes, size)
    disjoint = 0
    if write != 0:
        disjoint = 1 if apart(addresses, lanes, size) else 0
        width = 1 << (what >> ACCESS_WIDTH & 7)
        if disjoint == 0 and what & (15 | ACCESS_STRONG | ACCESS_ALIGNED) < ACCESS_ATOMIC:
            store_collides(x, n, addresses, lanes, size, width, iid)
    all_there(w, log)
    for kind in range(2 if write != 0 else 1):
        for k in range(min(ld64(log if kind == 0 else log + 8), X.LOG_MOST)):
            entry = entry_of(log, 1 - kind, k)
            if may_meet(log, entry, lo, hi) and not same_lanes(entry, addresses, lanes, size, disjoint):
                compare(x, n, entry, addresses, lanes, size, what, iid)
    keep(log, addresses, lanes, size, what, lo, hi, disjoint, write, iid, n, clock_of(known(x, n), n))


@helper
def lanes_release(x, w, n, lanes, iid):
    """Some lanes of a warp are to release what they have done (elected.py)."""
    log = log_of(x, n)
    if ld64(log) | ld64(log + 8) | ld64(x + X.X_ANY_LEFT):
        release_by(x, w, n, log, lanes, iid)


@helper
def lane_copies_out(x, w, n, lane, host, size, iid):
    """One lane issues a copy from these bytes of shared memory: what other lanes wrote there has to come before."""
    log = log_of(x, n)
    all_there(w, log)
    for k in range(min(ld64(log), X.LOG_MOST)):
        entry = entry_of(log, 1, k)
        if ld64(entry + X.ENTRY_WHAT) & ACCESS_ALIGNED or ld64(entry + X.ENTRY_TOGETHER) != 0:
            continue
        others = ld64(entry + X.ENTRY_LANES) & ~(1 << lane)
        while others != 0:
            i = trailing_zeros(others)
            others &= others - 1
            at = ld64(entry + X.ENTRY_ADDRESSES + 8 * i)
            if at >= host + size or at + ld64(entry + X.ENTRY_SIZE) <= host:
                continue
            if (ld32(entry + X.ENTRY_SEEN + 4 * i) >> lane) & 1 == 0 and place_of(x, n, 1 << lane, at, 1):
                found(x, X.LANES_COPIED, site_of(n, iid), 0, site_of(n, ld64(entry + X.ENTRY_IID)), 0, i, lane)
                return


# ---------------------------------------------------------------- cp.async
@helper
def copies_at(x, n):
    """The log of a warp's cp.async."""
    return ld64(x + X.X_COPY_LOG) + n * X.COPY_BYTES


@helper
def lanes_copy(x, n, addresses, lanes, size, seq, iid):
    """A cp.async of some lanes: a write that other lanes see no earlier than its lane has waited and they have met."""
    log = log_of(x, n)
    lo, hi = note_blocks(log, addresses, lanes, size)
    for kind in range(2):
        for k in range(min(ld64(log if kind == 0 else log + 8), X.LOG_MOST)):
            entry = entry_of(log, 1 - kind, k)
            if ld64(entry + X.ENTRY_WHAT) & ACCESS_ALIGNED == 0 and may_meet(log, entry, lo, hi):
                compare(x, n, entry, addresses, lanes, size, ACCESS_WRITE, iid)
    copies = copies_at(x, n)
    one = copies + X.COPY_HEAD + X.COPY * (ld64(copies) % X.COPY_MOST)
    st64(copies, ld64(copies) + 1)
    st64(one + X.COPY_SEQ, seq)
    st64(one + X.COPY_LANES, lanes)
    st64(one + X.COPY_WAITED, 0)
    st64(one + X.COPY_SIZE, size)
    st64(one + X.COPY_IID, iid)
    st64(one + X.COPY_LO, lo)
    st64(one + X.COPY_HI, hi)
    copy_bytes(one + X.COPY_ADDRESSES, addresses, 8 * L.LANES)


@helper
def lanes_have_copied(x, w, n, lanes, component, seq):
    """Some lanes have waited for their cp.async up to the one of this number: which one all that copied waited for."""
    copies = copies_at(x, n)
    log = log_of(x, n)
    all_there(w, log)
    for k in range(min(ld64(copies), X.COPY_MOST)):
        one = copies + X.COPY_HEAD + X.COPY * k
        its = ld64(one + X.COPY_SEQ)
        mine = ld64(one + X.COPY_LANES) & lanes
        waited = ld64(one + X.COPY_WAITED)
        if its > seq or mine == 0:
            continue
        if mine & ~waited != 0:
            st64(one + X.COPY_WAITED, waited | mine)
            note_blocks(log, one + X.COPY_ADDRESSES, mine & ~waited, ld64(one + X.COPY_SIZE))
            keep(
                log, one + X.COPY_ADDRESSES, mine & ~waited, ld64(one + X.COPY_SIZE), ACCESS_WRITE,
                ld64(one + X.COPY_LO), ld64(one + X.COPY_HI), 1, 1, ld64(one + X.COPY_IID), component, its,
            )  # fmt: skip
        if ld64(one + X.COPY_LANES) & ~(waited | mine) != 0:
            seq = min(seq, its - 1)
    return seq
