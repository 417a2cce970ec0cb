"""Shadow memory: who accessed each byte last, and whether that is ordered before the access that comes.

A cell stands for 16 bytes (in tensor memory: for a column of 16 lanes): the last write and up to three reads since,
more in a block. A cell that is accessed in part is split into cells of a word or of a byte. Accesses are judged when
they are issued, so what is found does not hang on when asynchronous effects happen.
"""

from __future__ import annotations

from tensorladder.vgpu.check import layout as X
from tensorladder.vgpu.check.clocks import before, clock_of, fenced_proxy, record_of, warp_of
from tensorladder.vgpu.check.elected import was_left
from tensorladder.vgpu.check.fences import fence_between
from tensorladder.vgpu.check.widths import in_doubt, known_for_sure
from tensorladder.vgpu.machine.native import helper
from tensorladder.vgpu.machine.raw import allocate, copy_bytes, fill_bytes, ld32, ld64, st32, st64

_SAME = ~0xFF00  # an epoch without its lane
_ASYNC, _STRONG, _TENSOR = X.EPOCH_ASYNC, X.EPOCH_STRONG, X.EPOCH_TENSOR
_NARROW = X.EPOCH_CTA | X.EPOCH_CLUSTER
_HANDED = X.LANES_HANDED


# ---------------------------------------------------------------- findings
@helper
def found(x, code, site, epoch, other_site, other, a, b):
    """Record a finding once for each pair of instructions; the place of the access is in the unit's record."""
    iid = site & 0xFFFFF
    key = (code * 1000003 + iid) * 1000003 + (other_site & 0xFFFFF)
    slot = key & (X.HASH_SLOTS - 1)
    table = ld64(x + X.X_HASH)
    records = ld64(x + X.X_FINDINGS)
    while ld64(table + 8 * slot) != 0:
        f = records + (ld64(table + 8 * slot) - 1) * X.F_BYTES
        if ld64(f + X.F_CODE) == code and ld64(f + X.F_IID) == iid:  # noqa: SIM102
            if ld64(f + X.F_OTHER_SITE) & 0xFFFFF == other_site & 0xFFFFF:
                st64(f + X.F_COUNT, ld64(f + X.F_COUNT) + 1)
                return
        slot = (slot + 1) & (X.HASH_SLOTS - 1)
    n = ld64(x + X.X_NFINDINGS)
    if n >= X.FINDINGS:
        st64(x + X.X_OVERFLOW, 1)
        return
    st64(x + X.X_NFINDINGS, n + 1)
    st64(table + 8 * slot, n + 1)
    f = records + n * X.F_BYTES
    warp = ld64(x + X.X_WARP)
    st64(f + X.F_CODE, code)
    st64(f + X.F_IID, iid)
    st64(f + X.F_SITE, site | (ld64(x + X.X_LANES) << 32))
    st64(f + X.F_EPOCH, epoch)
    st64(f + X.F_OTHER_SITE, other_site)
    st64(f + X.F_OTHER_EPOCH, other)
    st64(f + X.F_SPACE, ld64(x + X.X_SPACE))
    st64(f + X.F_PLACE, ld64(x + X.X_PLACE))
    st64(f + X.F_LO, ld64(x + X.X_LO))
    st64(f + X.F_HI, ld64(x + X.X_HI))
    st64(f + X.F_A, a)
    st64(f + X.F_B, b)
    st64(f + X.F_COUNT, 1)
    y = ld64(x + X.X_Y)
    warps = ld64(x + X.X_WARPS)
    if code == X.RACE_WW or code == X.RACE_WR or code == X.RACE_RW or code == X.RACE_SAME:
        theirs = (other_site >> 20) % (warps * ld64(x + X.X_SLOTS)) // warps
        st64(f + X.F_A, narrow_between(x, theirs, warp // warps, other))
    st64(f + X.F_LINEAR, ld64(y + warp // warps * X.Y_BYTES + X.Y_LINEAR))
    st64(
        f + X.F_OTHER_LINEAR,
        ld64(y + (other_site >> 20) % (warps * ld64(x + X.X_SLOTS)) // warps * X.Y_BYTES + X.Y_LINEAR),
    )


@helper
def narrow_between(x, a, b, epoch):
    """Instruction + 1 that would have ordered an access of slot a's CTA before slot b's, but for its scope; 0: none."""
    count = ld64(x + X.X_NEDGES)
    for k in range(min(count, X.EDGES)):
        at = ld64(x + X.X_EDGES) + 24 * k
        clock = ld64(x + X.X_EDGE_CLOCKS) + k * ld64(x + X.X_CLOCK_BYTES)
        if ld64(at) == a and ld64(at + 8) == b and clock_of(clock, (epoch >> 48) - 1) >= (epoch >> 16) & 0xFFFFFFFF:
            return ld64(at + 16) + 1
    return 0


@helper
def at_place(x, warp, lanes, space, place, lo, hi):
    """Note what is accessed next, for findings."""
    st64(x + X.X_WARP, warp)
    st64(x + X.X_LANES, lanes)
    st64(x + X.X_SPACE, space)
    st64(x + X.X_PLACE, place)
    st64(x + X.X_LO, lo)
    st64(x + X.X_HI, hi)


# ---------------------------------------------------------------- blocks
@helper
def take_block(arena):
    """A block of an arena."""
    free = ld64(arena + X.E_FREE)
    if free != 0:
        st64(arena + X.E_FREE, ld64(free))
        return free
    chunk = ld64(arena + X.E_CHUNK)
    at = ld64(arena + X.E_AT)
    if chunk == 0 or at == X.CHUNK_BLOCKS:
        after = ld64(chunk) if chunk != 0 else ld64(arena + X.E_FIRST)
        if after == 0:
            after = allocate(X.BLOCK * (X.CHUNK_BLOCKS + 1))
            st64(after, 0)
            st64(chunk if chunk != 0 else arena + X.E_FIRST, after)
        chunk = after
        at = 0
        st64(arena + X.E_CHUNK, chunk)
    st64(arena + X.E_AT, at + 1)
    return chunk + X.BLOCK * (at + 1)


@helper
def give_block(arena, block):
    """Give a block back."""
    st64(block, ld64(arena + X.E_FREE))
    st64(arena + X.E_FREE, block)


@helper
def reset_arena(arena):
    """All blocks are free again."""
    st64(arena + X.E_FREE, 0)
    st64(arena + X.E_CHUNK, 0)
    st64(arena + X.E_AT, 0)


# ---------------------------------------------------------------- one cell
@helper
def drop_reads(arena, cell):
    """Forget the reads of a cell."""
    more = ld64(cell + X.CELL_SET)
    if more != 0:
        give_block(arena, more)
        st64(cell + X.CELL_SET, 0)
    st64(cell + X.CELL_READ, 0)
    st64(cell + X.CELL_READ + 8, 0)
    st64(cell + X.CELL_READ + 16, 0)


@helper
def same(a, b):
    """Whether two epochs are one but for the lane."""
    return (a ^ b) & _SAME == 0


@helper
def exempt(x, a, b):
    """Whether two unordered accesses are no race: morally strong, or tcgen05 operations of one thread, in order."""
    if a & b & _STRONG != 0:
        return (a | b) & _NARROW == 0 or in_scope(x, a, b)
    return a & b & _TENSOR != 0 and (a ^ b) >> 48 == 0


@helper
def in_scope(x, a, b):
    """Whether the scopes of two strong accesses hold each other's threads."""
    table = ld64(x + X.X_COMPONENTS)
    one = ld64(table + ((a >> 48) - 1) * X.K_BYTES + X.K_SLOT)
    two = ld64(table + ((b >> 48) - 1) * X.K_BYTES + X.K_SLOT)
    size = ld64(x + X.X_SIZE)
    return one == two or (one // size == two // size and (a | b) & X.EPOCH_CTA == 0)


@helper
def repeated(cell, w, epoch, site):
    """Whether an asynchronous write is what another lane of the warp has issued too: the same bytes, twice."""
    if w & epoch & _ASYNC == 0 or ld32(cell + X.CELL_SITES) != site & 0xFFFFFFFF:
        return False
    return (w ^ epoch) & 0xFF00 != 0


@helper
def other_proxy(x, v, p, w, shared):
    """Whether the async proxy may not see what was written through the generic one."""
    if shared == 1:
        return not before(x, p, w, shared)
    return shared == 0 and not fence_between(x, X.FENCED_ASYNC, v, w, 0)


@helper
def handed_on_by_some(x, v, epoch, site, other, other_site, code):
    """Whether a warp's release of some lanes alone orders the other access, which is of other lanes: a finding."""
    release = was_left(x, v, other)
    if release == 0 or other & epoch & _STRONG:
        return False
    found(x, code, site, epoch, other_site, other, release - 1, 0)
    return True


@helper
def after_write(x, cell, v, p, epoch, site, shared):
    """Judge a read after the cell's last write."""
    w = ld64(cell)
    if w == 0:
        if shared != 0 and ld64(x + X.X_CARRIES) == 0:
            found(x, X.UNINITIALISED, site, epoch, 0, 0, 0, 0)
        return
    if not before(x, v, w, shared):
        if not exempt(x, w, epoch):
            found(x, X.RACE_WR, site, epoch, ld32(cell + X.CELL_SITES), w, 0, 0)
    elif epoch & _ASYNC and w & _ASYNC == 0 and other_proxy(x, v, p, w, shared):
        found(x, late_fence(x, w) if shared != 0 else X.PROXY_GLOBAL, site, epoch, ld32(cell + X.CELL_SITES), w, 0, 0)
    elif ld64(x + X.X_ANY_LEFT) != 0 and handed_on_by_some(x, v, epoch, site, w, ld32(cell + X.CELL_SITES), _HANDED):
        return
    elif ld64(x + X.X_DOUBT) != 0 and not known_for_sure(x, w, epoch, ld32(cell + X.CELL_SITES), shared):
        found(x, X.WAIT_NARROW, site, epoch, ld32(cell + X.CELL_SITES), w, in_doubt(x, ld64(x + X.X_WARP)) - 1, 0)


@helper
def late_fence(x, w):
    """How a write is judged that its own threads have not fenced: by the reader, after it learned of the write?"""
    if ld64(ld64(x + X.X_COMPONENTS) + ((w >> 48) - 1) * X.K_BYTES + X.K_KIND) == X.K_IS_CP:
        return X.PROXY_COPIED
    return X.PROXY_LATE if before(x, fenced_proxy(x, ld64(x + X.X_WARP)), w, 1) else X.PROXY


@helper
def keep_more(x, arena, cell, v, epoch, site, shared):
    """Keep a read beside three that are not ordered before it."""
    if shared == 0:  # two of them are other CTAs' anyway, which any write will collide with
        return
    block = ld64(cell + X.CELL_SET)
    if block == 0:
        block = take_block(arena)
        st64(block, 0)
        st64(cell + X.CELL_SET, block)
    count = ld64(block)
    for k in range(count):
        at = block + 16 * (k + 1)
        if (ld64(at) ^ epoch) >> 48 == 0 or before(x, v, ld64(at), shared):
            st64(at, epoch)
            st64(at + 8, site)
            return
    if count >= X.SET_MOST:
        count = X.SET_MOST - 1
    st64(block, count + 1)
    st64(block + 16 * (count + 1), epoch)
    st64(block + 16 * (count + 1) + 8, site)


@helper
def read_cell(x, arena, cell, v, p, epoch, site, shared):
    """A read of what a whole cell stands for."""
    if shared != 0 and ld64(cell) == 0:
        st64(x + X.X_UNDEFINED, 1)
    a = ld64(cell + X.CELL_READ)
    b = ld64(cell + X.CELL_READ + 8)
    c = ld64(cell + X.CELL_READ + 16)
    if same(a, epoch) or same(b, epoch) or same(c, epoch):
        return
    after_write(x, cell, v, p, epoch, site, shared)
    k = 3
    if a == 0 or (a ^ epoch) >> 48 == 0 or before(x, v, a, shared):
        k = 0
    elif b == 0 or (b ^ epoch) >> 48 == 0 or before(x, v, b, shared):
        k = 1
    elif c == 0 or (c ^ epoch) >> 48 == 0 or before(x, v, c, shared):
        k = 2
    if k == 3:
        keep_more(x, arena, cell, v, epoch, site, shared)
        return
    st64(cell + X.CELL_READ + 8 * k, epoch)
    st32(cell + X.CELL_SITES + 4 + 4 * k, site)


@helper
def after_read(x, v, epoch, site, r, read_site, shared):
    """Judge a write after a read."""
    if r == 0 or exempt(x, r, epoch):
        return
    if before(x, v, r, shared):
        if ld64(x + X.X_ANY_LEFT) != 0:
            handed_on_by_some(x, v, epoch, site, r, read_site, X.LANES_FREED)
        return
    found(x, X.RACE_RW, site, epoch, read_site, r, 0, 0)


@helper
def same_value(x, w):
    """Whether a store wrote what an earlier one by another warp of its CTA had left, or in global memory of any CTA:
    compilers of tiles let all warps that hold a value store it."""
    warps = ld64(x + X.X_WARPS)
    k = (w >> 48) - 1
    alike = ld64(x + X.X_LANES) & ~ld64(x + X.X_STORED_SAME) == 0
    if not alike or k >= warps * ld64(x + X.X_SLOTS):
        return False
    if ld64(x + X.X_SPACE) == X.SPACE_GLOBAL:
        return True
    return k // warps == ld64(x + X.X_WARP) // warps and (w >> 16) & 0xFFFFFFFF > ld32(ld64(x + X.X_STARTS) + 4 * k)


@helper
def same_store(x, cell, v, w, epoch, site):
    """Whether a bulk store is the last that another warp of its CTA has issued, too: kernels leave out the warp's test.

    Where that one is not known to have read, nobody has changed the source since without a race of its own.
    """
    if w & epoch & _ASYNC == 0 or (ld32(cell + X.CELL_SITES) ^ site) & 0xFFFFF != 0:
        return False
    k = (w >> 48) - 1
    table = ld64(x + X.X_COMPONENTS)
    one, other = table + k * X.K_BYTES, table + ((epoch >> 48) - 1) * X.K_BYTES
    if ld64(one + X.K_KIND) != X.K_IS_BULK or ld64(other + X.K_KIND) != X.K_IS_BULK:
        return False
    clock = (w >> 16) & 0xFFFFFFFF
    z = record_of(x, warp_of(x, k))
    last = ld32(z + X.Z_BULK_SEQ + 4 * ld64(one + X.K_LANE)) == clock
    same_cta = ld64(one + X.K_SLOT) == ld64(other + X.K_SLOT) and clock > ld32(ld64(x + X.X_STARTS) + 4 * k)
    alike = ld64(z + X.Z_STORE) == ld64(record_of(x, ld64(x + X.X_WARP)) + X.Z_STORE)
    return last and same_cta and alike and clock_of(v, k - 1) < clock


@helper
def write_cell(x, arena, cell, v, p, epoch, site, shared):
    """A write of what a whole cell stands for."""
    w = ld64(cell)
    a = ld64(cell + X.CELL_READ)
    if shared == 0:
        st64(cell + X.CELL_VALUE, 0)
    if a == 0 and epoch & _ASYNC == 0 and same(w, epoch):
        return
    if w != 0:
        if not before(x, v, w, shared):
            if not exempt(x, w, epoch) and not repeated(cell, w, epoch, site):
                alike = same_value(x, w) or same_store(x, cell, v, w, epoch, site)
                code = X.RACE_SAME if alike else X.RACE_WW
                found(x, code, site, epoch, ld32(cell + X.CELL_SITES), w, 0, 0)
        elif epoch & _ASYNC and w & _ASYNC == 0 and other_proxy(x, v, p, w, shared):
            reduces = shared == 0 and epoch & _STRONG
            found(x, X.PROXY_GLOBAL if reduces else X.PROXY_WRITE, site, epoch, ld32(cell + X.CELL_SITES), w, 0, 0)
        elif ld64(x + X.X_ANY_LEFT) != 0:
            handed_on_by_some(x, v, epoch, site, w, ld32(cell + X.CELL_SITES), _HANDED)
    if a != 0:
        after_read(x, v, epoch, site, a, ld32(cell + X.CELL_SITES + 4), shared)
        after_read(x, v, epoch, site, ld64(cell + X.CELL_READ + 8), ld32(cell + X.CELL_SITES + 8), shared)
        after_read(x, v, epoch, site, ld64(cell + X.CELL_READ + 16), ld32(cell + X.CELL_SITES + 12), shared)
        more = ld64(cell + X.CELL_SET)
        if more != 0:
            for k in range(ld64(more)):
                after_read(x, v, epoch, site, ld64(more + 16 * (k + 1)), ld64(more + 16 * (k + 1) + 8), shared)
        drop_reads(arena, cell)
    st64(cell, epoch)
    st32(cell + X.CELL_SITES, site)


# ---------------------------------------------------------------- what most of them come to, in shared memory
@helper
def passed(v, epoch):
    """Whether a clock knows of an access in shared memory."""
    return ld32(v + 4 * ((epoch >> 48) - 1)) >= (epoch >> 16) & 0xFFFFFFFF


@helper
def plain_read(x, cell, v, epoch, site):
    """A read by the async proxy of what a copy wrote, with no other reader since: False where it is not that."""
    w = ld64(cell)
    a = ld64(cell + X.CELL_READ)
    if w <= 0 or w & _ASYNC == 0 or (a != 0 and (a ^ epoch) >> 48 != 0) or not passed(v, w):
        return False
    st64(cell + X.CELL_READ, epoch)
    st32(cell + X.CELL_SITES + 4, site)
    return True


@helper
def plain_write(x, cell, v, epoch, site):
    """A copy over what a copy has written and one reader has read, both over: False where it is not that."""
    w = ld64(cell)
    a = ld64(cell + X.CELL_READ)
    if w <= 0 or w & _ASYNC == 0 or ld64(cell + X.CELL_READ + 8) != 0 or not passed(v, w):
        return False
    if a != 0 and (ld64(x + X.X_ANY_LEFT) != 0 or not passed(v, a)):
        return False
    st64(cell, epoch)
    st32(cell + X.CELL_SITES, site)
    st64(cell + X.CELL_READ, 0)
    return True


# ---------------------------------------------------------------- split cells
@helper
def copy_cell(arena, dst, src):
    """Copy a cell with a set of its own."""
    copy_bytes(dst, src, X.CELL)
    more = ld64(src + X.CELL_SET)
    if more != 0:
        block = take_block(arena)
        copy_bytes(block, more, X.BLOCK)
        st64(dst + X.CELL_SET, block)


@helper
def split(arena, cell, level):
    """Split a whole cell into cells of a word (LEVEL_WORDS) or a byte each; gives their block."""
    block = take_block(arena)
    step = 4 if level == X.LEVEL_WORDS else 1
    for k in range(0, 16, step):
        copy_cell(arena, block + X.CELL * k, cell)
    drop_reads(arena, cell)
    st64(cell, -1)
    st64(cell + X.CELL_READ, block)
    st64(cell + X.CELL_READ + 8, level)
    return block


@helper
def refine(arena, cell, block):
    """From words to bytes."""
    for word in range(0, 16, 4):
        for k in range(1, 4):
            copy_cell(arena, block + X.CELL * (word + k), block + X.CELL * word)
    st64(cell + X.CELL_READ + 8, X.LEVEL_BYTES)


@helper
def unite(arena, cell, block, step):
    """After a write of all of it a cell is whole again."""
    for k in range(0, 16, step):
        drop_reads(arena, block + X.CELL * k)
    fill_bytes(cell, 0, X.CELL)
    give_block(arena, block)


@helper
def part(x, arena, cell, a, b, write, v, p, epoch, site, shared):
    """An access of bytes [a, b) of a cell."""
    whole = a == 0 and b == 16
    if ld64(cell) >= 0:
        block = split(arena, cell, X.LEVEL_WORDS if (a | b) & 3 == 0 else X.LEVEL_BYTES)
    else:
        block = ld64(cell + X.CELL_READ)
    if ld64(cell + X.CELL_READ + 8) == X.LEVEL_WORDS and (a | b) & 3 != 0:
        refine(arena, cell, block)
    step = 4 if ld64(cell + X.CELL_READ + 8) == X.LEVEL_WORDS else 1
    for k in range(a, b, step):
        if write != 0:
            write_cell(x, arena, block + X.CELL * k, v, p, epoch, site, shared)
        else:
            read_cell(x, arena, block + X.CELL * k, v, p, epoch, site, shared)
    if whole and write != 0:
        unite(arena, cell, block, step)
        st64(cell, epoch)
        st32(cell + X.CELL_SITES, site)


@helper
def touch(x, arena, cells, lo, hi, write, v, p, epoch, site, shared):
    """An access of bytes [lo, hi) of a place whose cells begin at `cells`; shared: 1 shared, 0 global memory."""
    g = lo >> 4
    last = (hi - 1) >> 4
    while g <= last:
        cell = cells + X.CELL * g
        a = lo - 16 * g if lo > 16 * g else 0
        b = hi - 16 * g if hi < 16 * g + 16 else 16
        if b - a < 16 or ld64(cell) < 0:
            part(x, arena, cell, a, b, write, v, p, epoch, site, shared)
        elif write != 0:
            if shared != 1 or epoch & _ASYNC == 0 or not plain_write(x, cell, v, epoch, site):
                write_cell(x, arena, cell, v, p, epoch, site, shared)
        else:
            read_cell(x, arena, cell, v, p, epoch, site, shared)
        g += 1


# ---------------------------------------------------------------- places
@helper
def shared_place(x, host):
    """(slot, offset) of a host address in a window, as slot << 32 | offset; -1 elsewhere."""
    from_start = host - ld64(x + X.X_SHARED)
    if from_start < 0:
        return -1
    slot = from_start // ld64(x + X.X_STRIDE)
    if slot >= ld64(x + X.X_SLOTS):
        return -1
    return (slot << 32) | (from_start - slot * ld64(x + X.X_STRIDE))


@helper
def touch_shared(x, n, lanes, slot, lo, hi, write, v, p, epoch, site):
    """An access of a window; the machine stops one that leaves it."""
    lo = max(lo, 0)
    hi = min(hi, ld64(x + X.X_WINDOW))
    if lo >= hi:
        return
    y = ld64(x + X.X_Y) + slot * X.Y_BYTES
    at_place(x, n, lanes, X.SPACE_SHARED, slot, lo, hi)
    if write != 0 and ld64(x + X.X_TAINTED) != 0 and ld64(x + X.X_CARRIES) == 0:
        fill_bytes(ld64(y + X.Y_UNDEFINED) + lo, 0, hi - lo)
    touch(x, y + X.Y_ARENA, ld64(y + X.Y_CELLS), lo, hi, write, v, p, epoch, site, 1)


@helper
def range_row(x, address):
    """Row of the table of global allocations that an address lies in, 0 for none."""
    row = ld64(x + X.X_RANGE)
    if row != 0 and address >= ld64(row) and address < ld64(row + 8):
        return row
    table = ld64(x + X.X_RANGES)
    a = 0
    b = ld64(x + X.X_NRANGES)
    while a < b:
        mid = (a + b) >> 1
        if ld64(table + X.RANGE_BYTES * mid) <= address:
            a = mid + 1
        else:
            b = mid
    if a == 0:
        return 0
    row = table + X.RANGE_BYTES * (a - 1)
    if address >= ld64(row + 8):
        return 0
    st64(x + X.X_RANGE, row)
    return row


@helper
def touch_global(x, n, lanes, address, size, write, v, p, epoch, site):
    """An access of global memory; what is read-only, or not global after all (local memory), is left alone."""
    row = range_row(x, address)
    if row == 0 or ld64(row + 16) == 0:
        return
    size = min(size, ld64(row + 8) - address)  # the machine stops an access that goes past the end
    # cells stand for 16 bytes of the address, whatever the allocation's alignment
    start = ld64(row) & ~15
    at_place(x, n, lanes, X.SPACE_GLOBAL, ld64(row), address - ld64(row), address + size - ld64(row))
    lo = address - start
    if lo < ld64(row + 32):
        st64(row + 32, lo)
    if lo + size > ld64(row + 40):
        st64(row + 40, lo + size)
    touch(x, x + X.X_ARENA, ld64(row + 16), lo, lo + size, write, v, p, epoch, site, 0)
    grid = ld64(x + X.X_GRID)
    if grid != 0 and clock_of(v, grid) == 0:
        touch(x, x + X.X_ARENA, ld64(row + 24), lo, lo + size, write, v, p, epoch, site, 0)
