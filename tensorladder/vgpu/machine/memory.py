"""Loads and stores of a lane group: address windows, bounds, alignment, and the data.

Data moves between memory and lane vectors in the warp's scratch: element j of lane l stands at
`vectors + 256 * j + size * l`.
"""

from __future__ import annotations

from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.machine.lanes import fail
from tensorladder.vgpu.machine.layout import SPACE_GENERIC, SPACE_GLOBAL, SPACE_LOCAL, SPACE_OWN, SPACE_SHARED
from tensorladder.vgpu.machine.native import export, helper
from tensorladder.vgpu.machine.raw import ld8, ld16, ld32, ld64, st8, st16, st32, st64, trailing_zeros
from tensorladder.vgpu.machine.vectors import add_lanes, all_bits, greatest, least, load_four_words, settle


@helper
def range_of(w, lo, hi):
    """The row of the table of allocations that [lo, hi) lies in, 0 if there is none."""
    launch = ld64(w + L.W_LAUNCH)
    table = ld64(launch + L.L_RANGES)
    a = 0
    b = ld64(launch + L.L_NRANGES)
    while a < b:  # the last range that starts at or before lo
        mid = (a + b) >> 1
        if ld64(table + mid * L.RANGE_BYTES) <= lo:
            a = mid + 1
        else:
            b = mid
    if a == 0:
        return 0
    row = table + (a - 1) * L.RANGE_BYTES
    return row if hi <= ld64(row + 8) else 0


@helper
def writable_window(w, lo, hi):
    """Whether [lo, hi) lies in one allocation that may be read and written; remembers the allocation."""
    if lo >= ld64(w + L.W_LO) and hi <= ld64(w + L.W_HI):
        return True
    row = range_of(w, lo, hi)
    if row == 0 or ld64(row + 16) & L.RANGE_WRITE == 0:
        return False
    st64(w + L.W_LO, ld64(row))
    st64(w + L.W_HI, ld64(row + 8))
    return True


@helper
def global_ok(w, lo, hi, write, iid, lane):
    """Whether [lo, hi) lies in one allocation that may be accessed so."""
    if writable_window(w, lo, hi):
        return True
    if range_of(w, lo, hi) == 0:
        return False
    if write != 0:
        fail(w, L.ERR_READ_ONLY, iid, lane, lo, hi - lo, 0)
        return False
    return True


@helper
def shared_host(w, offset, size, iid, lane):
    """Host address of a 32-bit shared::cluster address, 0 with the error recorded when it is not this CTA's."""
    address = offset & 0xFFFFFFFF
    place = address & 0xFFFFFF
    if address - place != ld64(w + L.W_SMEM_BASE):
        remote = remote_window(w, address >> L.RANK_SHIFT)
        if remote == 0:
            fail(w, L.ERR_REMOTE, iid, lane, address, size, 0)
            return 0
        if place < L.SHARED_RESERVED or place + size > ld64(w + L.W_SHARED_SIZE):
            fail(w, L.ERR_OUT_OF_BOUNDS, iid, lane, address, size, SPACE_SHARED)
            return 0
        if has_exited(w, address >> L.RANK_SHIFT):
            fail(w, L.ERR_REMOTE_EXITED, iid, lane, address, address >> L.RANK_SHIFT, 0)
            return 0
        return remote + place
    if place < L.SHARED_RESERVED or place + size > ld64(w + L.W_SHARED_SIZE):
        fail(w, L.ERR_OUT_OF_BOUNDS, iid, lane, address, size, SPACE_SHARED)
        return 0
    return ld64(w + L.W_SHARED) + place


@helper
def in_own_window(w, address):
    """Whether a shared address is the CTA's own: its low 32 bits begin with the CTA's rank."""
    return (address & 0xFFFFFFFF) >> L.RANK_SHIFT == ld64(w + L.W_RANK)


@helper
def is_own(w, address, iid, lane):
    """Whether a 32-bit shared address is the CTA's own, as .shared::cta wants it; else the error is recorded."""
    if not in_own_window(w, address):
        address &= 0xFFFFFFFF
        fail(w, L.ERR_OWN, iid, lane, address, address >> L.RANK_SHIFT, ld64(w + L.W_RANK))
        return False
    return True


@helper
def remote_window(w, rank):
    """Host address of the window of the CTA with this rank in the cluster, 0 if there is none."""
    launch = ld64(w + L.W_LAUNCH)
    n = ld64(launch + L.L_CLUSTER) * ld64(launch + L.L_CLUSTER + 8) * ld64(launch + L.L_CLUSTER + 16)
    if rank < 0 or rank >= n:
        return 0
    cta = ld64(w + L.W_CTA) + (rank - ld64(w + L.W_RANK)) * L.C_BYTES
    return ld64(cta + L.C_SHARED)


@helper
def has_exited(w, rank):
    """Whether the CTA with this rank in the cluster (the rank must exist) has ended: its shared memory is gone."""
    return ld64(ld64(w + L.W_CTA) + (rank - ld64(w + L.W_RANK)) * L.C_BYTES + L.C_DONE) != 0


@helper
def resolve(w, space, address, size, write, iid, lane):
    """Host address of `size` bytes at `address` in a space, or 0 with the error recorded."""
    return resolve_aligned(w, space, address, size, size if size & (size - 1) == 0 else 1, write, iid, lane)


@helper
def resolve_aligned(w, space, address, size, align, write, iid, lane):
    """The same for an access that must be aligned to `align` bytes."""
    if address & (align - 1):
        fail(w, L.ERR_MISALIGNED, iid, lane, address, align, space & 3)
        return 0
    if space == SPACE_GENERIC:
        window = address & L.WINDOW_MASK
        if window == L.SHARED_WINDOW:
            return shared_host(w, address, size, iid, lane)
        if window == L.LOCAL_WINDOW:
            space = SPACE_LOCAL
            address &= ~L.WINDOW_MASK
        else:
            space = SPACE_GLOBAL
    if space == SPACE_OWN and not is_own(w, address, iid, lane):
        return 0
    if space & 3 == SPACE_SHARED:
        return shared_host(w, address, size, iid, lane)
    if space == SPACE_LOCAL:
        place = address & 0xFFFFFFFF
        if place + size > ld64(w + L.W_LOCAL_SIZE):
            fail(w, L.ERR_OUT_OF_BOUNDS, iid, lane, address, size, SPACE_LOCAL)
            return 0
        return ld64(w + L.W_LOCAL) + lane * ld64(w + L.W_LOCAL_SIZE) + place
    if global_ok(w, address, address + size, write, iid, lane):
        return address
    fail(w, L.ERR_OUT_OF_BOUNDS, iid, lane, address, size, SPACE_GLOBAL)
    return 0


@helper
def resolve_all(w, space, addresses, mask, size, write, iid):
    """Turn the active lanes' addresses into host addresses in place (other lanes get the first one). False on error."""
    return resolve_span(w, space, addresses, mask, size, size, write, iid)


@helper
def resolve_span(w, space, addresses, mask, size, align, write, iid):
    """The same for `size` bytes a lane, aligned to `align` (a power of two).

    The common cases are checked for the whole group at once: lowest and highest address in one allocation.
    """
    first = trailing_zeros(mask)
    base = ld64(addresses + 8 * first)
    settle(addresses, mask, base, 0xFFFFFFFF if space & 3 == SPACE_SHARED else -1)
    lo = least(addresses)
    hi = greatest(addresses)
    if all_bits(addresses) & (align - 1) == 0:
        if space == SPACE_GLOBAL or (space == SPACE_GENERIC and lo & L.WINDOW_MASK == 0 and hi & L.WINDOW_MASK == 0):
            if writable_window(w, lo, hi + size):
                return True
        else:
            own = ld64(w + L.W_SMEM_BASE)
            if space == SPACE_GENERIC:
                own += L.SHARED_WINDOW
            if space != SPACE_LOCAL and lo >= own + L.SHARED_RESERVED and hi + size <= own + ld64(w + L.W_SHARED_SIZE):
                add_lanes(addresses, ld64(w + L.W_SHARED) - own)
                return True
    for lane in range(L.LANES):
        if (mask >> lane) & 1:
            host = resolve_aligned(w, space, ld64(addresses + 8 * lane), size, align, write, iid, lane)
            if host == 0:
                return False
            st64(addresses + 8 * lane, host)
    base = ld64(addresses + 8 * first)
    for lane in range(L.LANES):
        if (mask >> lane) & 1 == 0:
            st64(addresses + 8 * lane, base)
    return True


@export
def tl_ld(w, space, addresses, mask, vectors, size, count, align, iid):
    """Load `count` elements of `size` bytes a lane. Inactive lanes get what the first active lane gets."""
    if mask == 0:
        return 0
    if not resolve_span(w, space, addresses, mask, size * count, align, 0, iid):
        return 0
    if size == 4:
        if count == 1:
            for lane in range(L.LANES):
                st32(vectors + 4 * lane, ld32(ld64(addresses + 8 * lane)))
        elif count == 2:
            for lane in range(L.LANES):
                a = ld64(addresses + 8 * lane)
                st32(vectors + 4 * lane, ld32(a))
                st32(vectors + 256 + 4 * lane, ld32(a + 4))
        else:
            whole = count & ~3
            for j in range(0, whole, 4):
                load_four_words(addresses, 4 * j, vectors + 256 * j)
            for j in range(whole, count):
                for lane in range(L.LANES):
                    st32(vectors + 256 * j + 4 * lane, ld32(ld64(addresses + 8 * lane) + 4 * j))
    elif size == 2:
        for j in range(count):
            for lane in range(L.LANES):
                st16(vectors + 256 * j + 2 * lane, ld16(ld64(addresses + 8 * lane) + 2 * j))
    elif size == 8:
        for j in range(count):
            for lane in range(L.LANES):
                st64(vectors + 256 * j + 8 * lane, ld64(ld64(addresses + 8 * lane) + 8 * j))
    else:
        for j in range(count):
            for lane in range(L.LANES):
                st8(vectors + 256 * j + lane, ld8(ld64(addresses + 8 * lane) + j))
    return 1


@helper
def same_already(addresses, mask, vectors, size, count):
    """Lanes that are to store what is there already."""
    same = 0
    for lane in range(L.LANES):
        if (mask >> lane) & 1:
            at = ld64(addresses + 8 * lane)
            differs = 0
            for j in range(count):
                for k in range(size):
                    differs |= ld8(at + size * j + k) ^ ld8(vectors + 256 * j + size * lane + k)
            if differs == 0:
                same |= 1 << lane
    return same


@export
def tl_st(w, space, addresses, mask, vectors, size, count, iid):
    """Store `count` elements of `size` bytes a lane, lanes in ascending order."""
    if mask == 0:
        return 0
    if not resolve_all(w, space, addresses, mask, size * count, 1, iid):
        return 0
    if ld64(ld64(w + L.W_LAUNCH) + L.L_CHECK) != 0:
        st64(w + L.W_STORED_SAME, same_already(addresses, mask, vectors, size, count))
        st64(w + L.W_STORED, vectors)
        st64(w + L.W_STORED_SIZE, size)
    for lane in range(L.LANES):
        if (mask >> lane) & 1:
            a = ld64(addresses + 8 * lane)
            for j in range(count):
                p = vectors + 256 * j + size * lane
                if size == 4:
                    st32(a + 4 * j, ld32(p))
                elif size == 2:
                    st16(a + 2 * j, ld16(p))
                elif size == 8:
                    st64(a + 8 * j, ld64(p))
                else:
                    st8(a + j, ld8(p))
    st64(w + L.W_PROGRESS, ld64(w + L.W_PROGRESS) + 1)
    return 1
