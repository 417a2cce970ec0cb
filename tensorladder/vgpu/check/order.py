"""Order that is found through memory itself: strong accesses, fences, scopes (PTX ISA, "Memory Consistency Model").

What a release pattern (st.release; a fence, then a strong write) hands on, an acquire pattern at that address learns
(ld.acquire; a strong read, then a fence), where the scope of each holds the other's thread. An address has clocks for
each level of scope: of the GPU, of a cluster, of a CTA. A writer raises those up to its own scope, a reader takes those
up to its own. What a relaxed or volatile read has seen waits for a fence. A barrier of the CTA or the warp is taken for
one: the ISA asks for the fence, but polling and then __syncthreads is what everyone writes.
"""

from __future__ import annotations

from tensorladder.vgpu.check import layout as X
from tensorladder.vgpu.check.clocks import (
    acquire_from,
    clear,
    copy,
    join,
    known,
    record_of,
    release_to,
    row,
    tick,
    visible,
)
from tensorladder.vgpu.check.widths import learn
from tensorladder.vgpu.machine.hooks import (
    ACCESS_ACQUIRE,
    ACCESS_RELEASE,
    ACCESS_SCOPE,
    ACCESS_WRITE,
    SCOPE_CLUSTER,
    SCOPE_CTA,
)
from tensorladder.vgpu.machine.native import helper
from tensorladder.vgpu.machine.raw import ld64, st64, trailing_zeros

LEVEL_CTA, LEVEL_CLUSTER, LEVEL_GPU = range(3)
#: scopes of a fence (codegen.modifiers.SCOPES, from 1 on; 0: none is named)
_FENCE_CTA, _FENCE_CLUSTER = 1, 2


@helper
def level_of(scope):
    """Level of an access's scope."""
    if scope == SCOPE_CTA:
        return LEVEL_CTA
    return LEVEL_CLUSTER if scope == SCOPE_CLUSTER else LEVEL_GPU


@helper
def fence_level(what):
    """Level of a fence (codegen.sync)."""
    scope = (what >> 8) & 15
    if scope == _FENCE_CTA:
        return LEVEL_CTA
    return LEVEL_CLUSTER if scope == _FENCE_CLUSTER else LEVEL_GPU


@helper
def lowest(x):
    """The narrowest level that the kernel's scopes tell apart."""
    return LEVEL_CTA if ld64(x + X.X_SCOPED) != 0 else LEVEL_GPU


@helper
def fenced_at(x, n, level):
    """V of warp n as of its last fence of this level or a wider one; P follows."""
    if level == LEVEL_GPU or ld64(x + X.X_SCOPED) == 0:
        return row(x, n, X.ROW_FENCED)
    return row(x, n, X.ROW_NARROW + 4 * (LEVEL_CLUSTER - level))


@helper
def pending_at(x, n, level):
    """V of what warp n has read that no fence follows yet; P follows."""
    return row(x, n, X.ROW_PENDING if level == LEVEL_GPU else X.ROW_NARROW + 4 * (LEVEL_CLUSTER - level) + 2)


# ---------------------------------------------------------------- addresses that synchronise
@helper
def key_of(x, n, address, level):
    """An address, with whose level it is."""
    slot = n // ld64(x + X.X_WARPS)
    if level == LEVEL_CTA:
        return address | (0x4000 + (slot & 0x1FFF)) << 48
    if level == LEVEL_CLUSTER:
        return address | (0x2000 + (slot // ld64(x + X.X_SIZE) & 0x1FFF)) << 48
    return address


@helper
def entry_at(x, key, makes):
    """Row of the table (SYNC_SLOTS) of a key, 0 where there is none; makes: then make one.

    When there are too many, the rest shares the first one's clocks.
    """
    table = ld64(x + X.X_SYNC)
    slot = ((key & 0x3FFFFFFF) * 0x9E3779B1 >> 4 ^ key >> 30 ^ key >> 48) & (X.SYNC_SLOTS - 1)  # in 63 bits
    while ld64(table + X.SYNC_BYTES * slot) != 0 and ld64(table + X.SYNC_BYTES * slot) != key:
        slot = (slot + 1) & (X.SYNC_SLOTS - 1)
    entry = table + X.SYNC_BYTES * slot
    if ld64(entry) != 0:
        return entry
    used = ld64(x + X.X_SYNC_USED)
    if used >= X.SYNC_MOST:
        return ld64(x + X.X_SYNC_FIRST)
    if makes == 0:
        return 0
    if used == 0:
        st64(x + X.X_SYNC_FIRST, entry)
    st64(x + X.X_SYNC_USED, used + 1)
    st64(entry, key)
    st64(entry + 8, used)
    st64(entry + 16, 0)
    clocks = entry_clocks(x, entry)
    clear(x, clocks)
    clear(x, clocks + ld64(x + X.X_CLOCK_BYTES))
    return entry


@helper
def entry_clocks(x, entry):
    """Clocks (V, P) of a row."""
    return ld64(x + X.X_SYNC_CLOCKS) + ld64(entry + 8) * 2 * ld64(x + X.X_CLOCK_BYTES)


# ---------------------------------------------------------------- orderings that are too narrow, for findings
@helper
def too_narrow(x, releaser, acquirer, iid, clock):
    """Note that an instruction's scope leaves out the other CTA's threads (slots), who look at what it publishes: V."""
    count = ld64(x + X.X_NEDGES)
    at = ld64(x + X.X_EDGES) + 24 * (count % X.EDGES)
    st64(at, releaser)
    st64(at + 8, acquirer)
    st64(at + 16, iid)
    copy(x, ld64(x + X.X_EDGE_CLOCKS) + count % X.EDGES * ld64(x + X.X_CLOCK_BYTES), clock)
    st64(x + X.X_NEDGES, count + 1)


@helper
def level_between(x, a, b):
    """The narrowest level whose threads the CTAs in two slots both are."""
    if a == b:
        return LEVEL_CTA
    size = ld64(x + X.X_SIZE)
    return LEVEL_CLUSTER if a // size == b // size else LEVEL_GPU


@helper
def look_for_narrow(x, n, address, level, iid):
    """A warp reads a flag: does the scope of the last one who wrote it hold this thread, and the other way round?"""
    entry = entry_at(x, address, 0)
    wrote = ld64(entry + 16) if entry != 0 else 0
    if wrote == 0:
        return
    mine = n // ld64(x + X.X_WARPS)
    its = wrote >> 40
    need = level_between(x, its, mine)
    published = entry_clocks(x, entry_at(x, key_of(x, its * ld64(x + X.X_WARPS), address, LEVEL_CTA), 1))
    if (wrote >> 32) & 3 < need:
        too_narrow(x, its, mine, wrote & 0xFFFFFFFF, published)
    elif level < need:
        too_narrow(x, its, mine, iid, published)
    else:
        st64(record_of(x, n) + X.Z_SAW, its + 1)


# ---------------------------------------------------------------- reads and writes
@helper
def read_flag(x, n, address, level, acquires, iid):
    """What was published at an address, for a read of this level."""
    z = record_of(x, n)
    if ld64(x + X.X_SCOPED) != 0:
        look_for_narrow(x, n, address, level, iid)
    for k in range(lowest(x), level + 1):
        entry = entry_at(x, key_of(x, n, address, k), 0)
        if entry == 0:
            continue
        clocks = entry_clocks(x, entry)
        if acquires:
            learn(x, n, clocks)
            acquire_from(x, n, clocks)
            continue
        pending = pending_at(x, n, k)
        size = ld64(x + X.X_CLOCK_BYTES)
        if (ld64(z + X.Z_PENDING) >> k) & 1:
            join(x, pending, clocks)
            join(x, pending + size, clocks + size)
        else:
            st64(z + X.Z_PENDING, ld64(z + X.Z_PENDING) | 1 << k)
            copy(x, pending, clocks)
            copy(x, pending + size, clocks + size)


@helper
def write_flag(x, n, address, level, releases, iid):
    """Publish at an address what a release, or the last fence before a relaxed write, covers; whether there is any."""
    fence = ld64(record_of(x, n) + X.Z_FENCE)
    if not releases and fence == 0:
        return False
    size = ld64(x + X.X_CLOCK_BYTES)
    for k in range(lowest(x), level + 1):
        clocks = entry_clocks(x, entry_at(x, key_of(x, n, address, k), 1))
        if releases:
            release_to(x, n, clocks)
        else:
            join(x, clocks, fenced_at(x, n, k))
            join(x, clocks + size, fenced_at(x, n, k) + size)
    if ld64(x + X.X_SCOPED) != 0:
        by = iid
        if not releases and (fence >> 32) & 3 < level:
            by = fence & 0xFFFFFFFF
            level = (fence >> 32) & 3
        slot = n // ld64(x + X.X_WARPS)
        st64(entry_at(x, address, 1) + 16, by | level << 32 | slot << 40)
    return True


@helper
def synchronise(x, n, addresses, lanes, what, iid):
    """A strong access of a few lanes publishes (ACCESS_WRITE) or learns, by its ordering and scope."""
    last = 0
    published = False
    level = level_of(what >> ACCESS_SCOPE & 3)
    while lanes != 0:
        lane = trailing_zeros(lanes)
        lanes &= lanes - 1
        address = ld64(addresses + 8 * lane)
        if address == last:
            continue
        last = address
        if what & 15 == ACCESS_WRITE:
            published = write_flag(x, n, address, level, what & ACCESS_RELEASE != 0, iid) or published
        else:
            read_flag(x, n, address, level, what & ACCESS_ACQUIRE != 0, iid)
    if published:
        tick(x, n)


# ---------------------------------------------------------------- fences
@helper
def take_pending(x, n, level):
    """What relaxed reads have seen is known now, up to a level."""
    z = record_of(x, n)
    bits = ld64(z + X.Z_PENDING)
    if bits == 0:
        return
    for k in range(level + 1):
        if (bits >> k) & 1:
            learn(x, n, pending_at(x, n, k))
            acquire_from(x, n, pending_at(x, n, k))
    st64(z + X.Z_PENDING, bits & ~((2 << level) - 1))


@helper
def memory_fence(x, n, what, iid):
    """A memory fence of a warp, or fence.mbarrier_init, which no scope is told apart for."""
    level = fence_level(what) if ld64(x + X.X_SCOPED) != 0 else LEVEL_GPU
    z = record_of(x, n)
    if level < LEVEL_GPU and (ld64(z + X.Z_PENDING) >> LEVEL_GPU) & 1 and ld64(z + X.Z_SAW) != 0:
        mine = n // ld64(x + X.X_WARPS)
        its = ld64(z + X.Z_SAW) - 1
        if level < level_between(x, its, mine):
            too_narrow(x, its, mine, iid, pending_at(x, n, LEVEL_GPU))
    take_pending(x, n, level)
    st64(z + X.Z_FENCE, iid | level << 32 | 1 << 40)
    size = ld64(x + X.X_CLOCK_BYTES)
    for k in range(lowest(x), level + 1):
        copy(x, fenced_at(x, n, k), known(x, n))
        copy(x, fenced_at(x, n, k) + size, visible(x, n))
