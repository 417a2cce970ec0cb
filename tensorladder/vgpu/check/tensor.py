"""tcgen05: tensor memory to the column of 16 lanes, its products and copies, commits, loads and stores.

Operations of one thread (mma, cp, shift) are done in order of issue, so they are not judged against each other. Anyone
else has to wait for an mbarrier that the thread committed to. Products that go into one accumulator one after the other
are kept as one open region, whose cells are stamped when something else comes.
"""

from __future__ import annotations

from tensorladder.vgpu.check import layout as X
from tensorladder.vgpu.check.barriers import async_arrival, barrier_at, phase_clocks
from tensorladder.vgpu.check.clocks import (
    before,
    clock_of,
    component,
    epoch_of,
    fenced_tensor,
    known,
    raise_to,
    record_of,
    site_of,
    slot_of,
    visible,
    warp_of,
    window_of,
)
from tensorladder.vgpu.check.copies import window_host
from tensorladder.vgpu.check.executed import executed, known_to_tensor
from tensorladder.vgpu.check.matrix import chunk, read_descriptor
from tensorladder.vgpu.check.shadow import at_place, exempt, found, read_cell, touch_shared, write_cell
from tensorladder.vgpu.check.values import (
    clear_marks,
    mark_scales,
    mark_tensor_rows,
    product_of_tensors,
    set_tensor,
    tensor_shadow,
    undefined_at,
)
from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.machine import tcmma as M
from tensorladder.vgpu.machine import tcmma_check as C
from tensorladder.vgpu.machine.native import helper
from tensorladder.vgpu.machine.raw import fill_bytes, ld32, ld64, st32, st64, trailing_zeros
from tensorladder.vgpu.machine.tcgen05 import (
    CP_4X256B,
    CP_B4,
    CP_B6,
    CP_PLAIN,
    SHIFT_COLUMNS,
    chunk_at,
    copy_step,
    cp_chunks,
    cp_rows,
    first_lane,
)
from tensorladder.vgpu.machine.tmem import SCRATCH_HOST, SHAPE_16X32BX2, SHAPE_32X32B, columns_of

_ALL_BLOCKS = 0xFF


# ---------------------------------------------------------------- cells
@helper
def memory_cells(x, slot):
    """Shadow of the tensor memory of a slot's SM; its open region's record follows the cells."""
    return ld64(ld64(x + X.X_Y) + slot * X.Y_BYTES + X.Y_TMEM)


@helper
def arena_of(x, slot):
    """Blocks for the cells of a CTA."""
    return ld64(x + X.X_Y) + slot * X.Y_BYTES + X.Y_ARENA


@helper
def close_region(t):
    """Stamp the cells of the open region with the last of its products."""
    r = t + X.CELL * X.TMEM_CELLS
    if ld64(r + X.R_COUNT) == 0:
        return
    epoch = ld64(r + X.R_EPOCH)
    site = ld64(r + X.R_SITE)
    blocks = ld64(r + X.R_BLOCKS)
    for block in range(X.TMEM_BLOCKS):
        if (blocks >> block) & 1:
            cell = t + X.CELL * (block * L.TMEM_COLUMNS + ld64(r + X.R_COLUMN))
            for _ in range(ld64(r + X.R_COUNT)):
                st64(cell, epoch)
                st32(cell + X.CELL_SITES, site)
                cell += X.CELL
    st64(r + X.R_COUNT, 0)


@helper
def close_at(t, column, count):
    """Close the open region where it has columns of these."""
    r = t + X.CELL * X.TMEM_CELLS
    first = ld64(r + X.R_COLUMN)
    if ld64(r + X.R_COUNT) != 0 and column < first + ld64(r + X.R_COUNT) and first < column + count:
        close_region(t)


@helper
def touch_tensor(x, n, lanes, slot, blocks, column, count, write, v, epoch, site):
    """An access of columns of some blocks of 16 lanes; write: 0 a read, 1 a write, 2 one that adds to what is there."""
    t = memory_cells(x, slot)
    if t == 0 or column < 0 or column + count > L.TMEM_COLUMNS:
        return
    close_at(t, column, count)
    if write == 1:
        set_tensor(x, slot, blocks, column, count, 0)
    arena = arena_of(x, slot)
    for block in range(X.TMEM_BLOCKS):
        if (blocks >> block) & 1 == 0:
            continue
        at_place(x, n, lanes, X.SPACE_TMEM, slot, column, column + count)
        cell = t + X.CELL * (block * L.TMEM_COLUMNS + column)
        for _ in range(count):
            if write != 0:
                write_cell(x, arena, cell, v, v, epoch, site, 2)
            else:
                read_cell(x, arena, cell, v, v, epoch, site, 2)
            cell += X.CELL


# ---------------------------------------------------------------- threads' operations
@helper
def thread_of(x, n, lane):
    """Component of a thread's tcgen05 operations, 0: it has issued none."""
    return ld32(record_of(x, n) + X.Z_TC + 4 * lane)


@helper
def next_epoch(x, n, lane):
    """Epoch of the next operation of a thread."""
    z = record_of(x, n)
    k = ld32(z + X.Z_TC + 4 * lane)
    if k == 0:
        warps = ld64(x + X.X_WARPS)
        k = component(x, X.K_IS_TC, n // warps, n % warps, lane)
        st32(z + X.Z_TC + 4 * lane, k)
    seq = ld32(z + X.Z_TC_SEQ + 4 * lane) + 1
    st32(z + X.Z_TC_SEQ + 4 * lane, seq)
    return epoch_of(k, seq, lane, X.EPOCH_ASYNC | X.EPOCH_TENSOR)


@helper
def accumulate(x, n, lane, slot, blocks, column, count, adds, v, epoch, site):
    """A product into columns of tensor memory."""
    t = memory_cells(x, slot)
    if t == 0 or column + count > L.TMEM_COLUMNS:
        return
    r = t + X.CELL * X.TMEM_CELLS
    open_ = ld64(r + X.R_COUNT) == count and ld64(r + X.R_COLUMN) == column and ld64(r + X.R_BLOCKS) == blocks
    if not (open_ and (ld64(r + X.R_EPOCH) ^ epoch) >> 48 == 0):
        close_region(t)
        if adds != 0 and ld64(t + X.CELL * (trailing_zeros(blocks) * L.TMEM_COLUMNS + column)) == 0:
            at_place(x, n, 1 << lane, X.SPACE_TMEM, slot, column, column + count)
            found(x, X.UNINITIALISED, site, epoch, 0, 0, 0, 0)
            set_tensor(x, slot, blocks, column, count, 0xFF)
        touch_tensor(x, n, 1 << lane, slot, blocks, column, count, 2 if adds != 0 else 1, v, epoch, site)
        st64(r + X.R_COLUMN, column)
        st64(r + X.R_COUNT, count)
        st64(r + X.R_BLOCKS, blocks)
    elif adds == 0:
        set_tensor(x, slot, blocks, column, count, 0)
    st64(r + X.R_EPOCH, epoch)
    st64(r + X.R_SITE, site)


@helper
def blocks_of(spread, lane0):
    """Blocks of 16 lanes that a matrix's rows take: M = 64 (spread) has 16 rows in each partition."""
    return (0x55 << ((lane0 >> 4) & 1)) if spread else _ALL_BLOCKS


@helper
def on_product(x, op, n, lane, iid):
    """tcgen05.mma (machine.tcmma.run_mma says what it reads and writes)."""
    flags = ld64(op + L.A_FLAGS)
    kind = flags & 0xFF
    idesc = ld64(op + M.A_IDESC)
    group = 2 if flags & M.FLAG_PAIR else 1
    m = C.shape_m(kind, idesc) // group
    width = C.shape_n(idesc)
    k = C.shape_k(kind)
    first = slot_of(x, ld64(op + L.A_QUEUE))
    two = group == 2 and m == 64
    columns = width // 2 if two else width
    spread = m == 64 and group == 1
    v = known(x, n)
    t = known_to_tensor(x, n)
    p = visible(x, n)
    epoch = next_epoch(x, n, lane)
    site = site_of(n, iid)
    d = ld64(op + L.A_DST)
    a = ld64(op + L.A_SRC)
    b = ld64(op + M.A_B)
    lanes = 1 << lane
    after_sync(x, n, lane, first, d & 0xFFFF, 0, site)
    rows, sides = x + X.X_MARKS_A, x + X.X_MARKS_B
    for c in range(2):
        clear_marks(rows + X.MARKS * c)
        clear_marks(sides + X.MARKS * c)
    for c in range(group):
        slot = first + c
        if flags & M.FLAG_A_TMEM:
            blocks = blocks_of(spread, (a >> 16) & 0x7F)
            after_sync(x, n, lane, slot, a & 0xFFFF, 0, site)
            st64(x + X.X_UNDEFINED, 0)
            touch_tensor(x, n, lanes, slot, blocks, a & 0xFFFF, 8, 0, t, epoch, site)
            if ld64(x + X.X_UNDEFINED) | ld64(x + X.X_TMEM_TAINTED):
                mark_tensor_rows(x, slot, a & 0xFFFF, 8, (a >> 16) & 0x7F, spread, m, rows + X.MARKS * c)
        else:
            ty = C.a_type(kind, idesc)
            read_descriptor(
                x, n, lanes, slot, a, C.swizzle_of(a), (idesc >> 15) & 1, m, ty, k, v, p, epoch, site,
                rows + X.MARKS * c,
            )  # fmt: skip
        ty = C.b_type(kind, idesc)
        read_descriptor(
            x, n, lanes, slot, b, C.swizzle_of(b), (idesc >> 16) & 1, width // group, ty, k, v, p, epoch, site,
            sides + X.MARKS * c,
        )  # fmt: skip
        if kind >= C.MXF8F6F4:
            sfa = ld64(op + M.A_SFA) & 0xFFFF
            sfb = ld64(op + M.A_SFB) & 0xFFFF
            st64(x + X.X_UNDEFINED, 0)
            touch_tensor(x, n, lanes, slot, _ALL_BLOCKS, sfa, (m + 31) >> 5, 0, t, epoch, site)
            touch_tensor(x, n, lanes, slot, _ALL_BLOCKS, sfb, (width + 31) >> 5, 0, t, epoch, site)
            if ld64(x + X.X_UNDEFINED) | ld64(x + X.X_TMEM_TAINTED):
                vector = flags >> M.FLAG_VECTOR
                mark_scales(x, slot, sfa, 0, m, (idesc >> 29) & 3, vector, 0, rows + X.MARKS * c)
                for half in range(group):
                    at = 0 if two else half * (width // group)
                    place = 2 * half if two else 0
                    columns_of_half = sides + X.MARKS * half
                    mark_scales(x, slot, sfb, at, width // group, (idesc >> 4) & 3, vector, place, columns_of_half)
        blocks = blocks_of(spread, (d >> 16) & 0x7F)
        adds = flags & M.FLAG_ACCUMULATE
        accumulate(x, n, lane, slot, blocks, d & 0xFFFF, columns, adds, t, epoch, site)
    for c in range(group):
        product_of_tensors(x, first + c, d, m, width, width // group, spread, two, rows + X.MARKS * c, sides)


@helper
def on_copy(x, op, n, lane, iid):
    """tcgen05.cp."""
    desc = ld64(op + L.A_SRC)
    shape = ld64(op + L.A_OP) & 0xFF
    address = ld64(op + L.A_DST)
    v = known(x, n)
    p = visible(x, n)
    epoch = next_epoch(x, n, lane)
    site = site_of(n, iid)
    first = slot_of(x, ld64(op + L.A_CTA))
    size = ld64(x + X.X_WINDOW)
    blocks = blocks_of(shape == CP_4X256B, address >> 16)
    st64(x + X.X_UNDEFINED, 0)
    st64(x + X.X_CARRIES, 1)
    for c in range(2 if ld64(op + L.A_FLAGS) != 0 else 1):
        slot = first ^ c if ld64(x + X.X_SIZE) > 1 else first
        y = ld64(x + X.X_Y) + slot * X.Y_BYTES
        at_place(x, n, 1 << lane, X.SPACE_SHARED, slot, (desc & 0x3FFF) << 4, ((desc & 0x3FFF) << 4) + 16)
        for row in range(cp_rows(shape)):
            for i in range(cp_chunks(shape)):
                at = chunk_at(desc, C.swizzle_of(desc), row, i)
                chunk(x, y + X.Y_ARENA, ld64(y + X.Y_CELLS), at, size, v, p, epoch, site)
        touch_tensor(
            x, n, 1 << lane, slot, blocks, address & 0xFFFF, 4 * cp_chunks(shape), 1, known_to_tensor(x, n), epoch, site
        )  # fmt: skip
        if ld64(x + X.X_UNDEFINED) | ld64(x + X.X_TAINTED):
            copy_undefined(x, y, slot, desc, shape, ld64(op + L.A_OP) >> 8, address, size)
    st64(x + X.X_CARRIES, 0)


@helper
def copy_undefined(x, y, slot, desc, shape, packing, address, size):
    """Shadows of what tcgen05.cp brings into tensor memory (machine.tcgen05.copy_to_cta)."""
    step = copy_step(shape)
    for row in range(cp_rows(shape)):
        first = first_lane(shape, address >> 16, row)
        for i in range(cp_chunks(shape)):
            at = chunk_at(desc, C.swizzle_of(desc), row, i)
            if at < 0 or at + 16 > size:
                continue
            for word in range(4):
                bits = 0
                for b in range(4):
                    k = 4 * word + b
                    low = k if packing == CP_PLAIN else k >> 1 if packing == CP_B4 else 6 * k >> 3
                    high = 6 * k + 5 >> 3 if packing == CP_B6 else low
                    if undefined_at(x, y, at + low) or undefined_at(x, y, at + high):
                        bits |= 0xFF << (8 * b)
                for k in range(step >> 8):
                    if bits != 0:
                        st64(x + X.X_TMEM_TAINTED, 1)
                        lane = first + k * (step & 0xFF)
                        st32(tensor_shadow(x, slot, lane, (address & 0xFFFF) + 4 * i + word), bits)


@helper
def on_shift(x, op, n, lane, iid):
    """tcgen05.shift."""
    address = ld64(op + L.A_DST)
    epoch = next_epoch(x, n, lane)
    slot = slot_of(x, ld64(op + L.A_CTA))
    blocks = 3 << ((address >> 20) & 6)
    v = known_to_tensor(x, n)
    touch_tensor(x, n, 1 << lane, slot, blocks, address & 0xFFFF, SHIFT_COLUMNS, 1, v, epoch, site_of(n, iid))


@helper
def commit_to(x, n, lane, address, k, seq, iid):
    """A commit's arrival at one mbarrier: the phase holds what the thread has issued so far."""
    b = barrier_at(x, window_host(x, n, address))
    if b != 0:
        async_arrival(x, n, b, 1 << lane, True, iid)
        if k != 0:
            raise_to(phase_clocks(x, b), k, seq)


@helper
def others_issued(x, n, lane):
    """A lane + 1 of the warp, other than this one, that has issued operations; 0 for none."""
    for other in range(L.LANES):
        if other != lane and thread_of(x, n, other) != 0:
            return other + 1
    return 0


@helper
def on_tc_commit(x, op, n, lane, iid):
    """tcgen05.commit: of what its own thread has issued, and of nothing else."""
    k = thread_of(x, n, lane)
    seq = ld32(record_of(x, n) + X.Z_TC_SEQ + 4 * lane)
    address = ld64(op + L.A_MBAR)
    mask = ld64(op + L.A_OP)
    if k == 0:
        other = others_issued(x, n, lane)
        if other != 0:
            at_place(x, n, 1 << lane, X.SPACE_TMEM, n // ld64(x + X.X_WARPS), 0, 0)
            found(x, X.COMMIT_OTHER_LANE, site_of(n, iid), 0, 0, 0, lane, other - 1)
    if mask < 0:
        commit_to(x, n, lane, address, k, seq, iid)
        return
    while mask != 0:
        rank = trailing_zeros(mask)
        mask &= mask - 1
        commit_to(x, n, lane, (rank << L.RANK_SHIFT) | (address & 0xFFFFFF), k, seq, iid)


# ---------------------------------------------------------------- loads and stores of a warp
@helper
def after_sync(x, n, lane, slot, column, block, site):
    """tcgen05.fence::after_thread_sync belongs between a wait and an operation on what another thread's work left."""
    t = memory_cells(x, slot)
    if t == 0 or column < 0 or column >= L.TMEM_COLUMNS:
        return
    cell = t + X.CELL * (block * L.TMEM_COLUMNS + column)
    w = ld64(cell)
    r = t + X.CELL * X.TMEM_CELLS
    if ld64(r + X.R_COUNT) != 0 and ld64(r + X.R_COLUMN) <= column < ld64(r + X.R_COLUMN) + ld64(r + X.R_COUNT):
        w = ld64(r + X.R_EPOCH)
    k = (w >> 48) - 1
    if w & X.EPOCH_TENSOR == 0 and (w == 0 or not stored_by_other(x, n, k)):
        return
    if k == thread_of(x, n, lane) or not before(x, known(x, n), w, 1):  # not even ordered: that is another finding
        return
    at_place(x, n, 0xFFFFFFFF, X.SPACE_TMEM, slot, column, column + 1)
    if not before(x, fenced_tensor(x, n), w, 1):
        found(x, X.AFTER_SYNC, site, 0, ld32(cell + X.CELL_SITES), w, 0, 0)
    if w & X.EPOCH_TENSOR == 0 and not fenced_before(x, n, w):
        found(x, X.ST_NOT_FENCED, site, 0, ld32(cell + X.CELL_SITES), w, 0, 0)


@helper
def stored_by_other(x, n, k):
    """Whether a component is of another warp's tcgen05.st."""
    return ld64(ld64(x + X.X_COMPONENTS) + k * X.K_BYTES + X.K_KIND) == X.K_IS_ST and warp_of(x, k) != n


@helper
def fenced_before(x, n, w):
    """Whether tcgen05.fence::before_thread_sync follows a tcgen05.st in its warp, before what warp n knows of it."""
    owner = warp_of(x, (w >> 48) - 1)
    fenced = record_of(x, owner) + X.Z_ST_FENCED
    seq = (w >> 16) & 0xFFFFFFFF
    if seq <= ld64(fenced + 16):
        return True
    return seq <= ld64(fenced) and clock_of(known(x, n), owner) >= ld64(fenced + 8)


@helper
def warp_columns(x, w, n, form, count, step, write, v, epoch, site):
    """The cells of a warp's tcgen05.ld or .st; form: shape | half << 8."""
    shape = form & 0xFF
    half = form >> 8
    cta = ld64(w + L.W_CTA)
    from_start = ld64(w + L.W_SCRATCH + 256 * SCRATCH_HOST) - ld64(cta + L.C_TMEM) - L.T_DATA
    row = from_start // L.TMEM_ROW
    column = from_start % L.TMEM_ROW // 4
    blocks = (3 if shape == SHAPE_32X32B else 1) << (row >> 4)
    slot = n // ld64(x + X.X_WARPS)
    width = columns_of(shape, count) * step
    if write == 0:
        after_sync(x, n, 0, slot, column, row >> 4, site)
    touch_tensor(x, n, 0xFFFFFFFF, slot, blocks, column, width, write, v, epoch, site)
    if shape == SHAPE_16X32BX2:
        touch_tensor(x, n, 0xFFFFFFFF, slot, blocks, column + half, width, write, v, epoch, site)


@helper
def on_tensor_load(x, w, n, form, count, step, iid):
    """CHECK_TMEM_LD."""
    v = known_to_tensor(x, n)
    warp_columns(x, w, n, form, count, step, 0, v, epoch_of(n, clock_of(v, n), 0, 0), site_of(n, iid))
    st64(record_of(x, n) + X.Z_LD_OPEN, iid + 1)
    st64(record_of(x, n) + X.Z_BEFORE, iid + 1)


@helper
def on_tensor_store(x, w, n, form, count, step, iid):
    """CHECK_TMEM_ST: there after tcgen05.wait::st."""
    z = record_of(x, n)
    k = ld64(z + X.Z_ST)
    if k == 0:
        warps = ld64(x + X.X_WARPS)
        k = component(x, X.K_IS_ST, n // warps, n % warps, 0)
        st64(z + X.Z_ST, k)
    seq = ld64(z + X.Z_ST_SEQ) + 1
    st64(z + X.Z_ST_SEQ, seq)
    st64(z + X.Z_BEFORE, iid + 1)
    # a warp's own stores are done in order
    v = known_to_tensor(x, n)
    had = clock_of(v, k)
    st32(v + 4 * k, seq)
    warp_columns(x, w, n, form, count, step, 1, v, epoch_of(k, seq, 0, 0), site_of(n, iid))
    st32(v + 4 * k, had)


# ---------------------------------------------------------------- allocation
@helper
def on_alloc(x, n, host, column, columns, lanes, iid):
    """CHECK_TMEM_ALLOC: columns with nothing in them, and their address in shared memory."""
    slot = n // ld64(x + X.X_WARPS)
    t = memory_cells(x, slot)
    if t != 0:
        close_region(t)
        for block in range(X.TMEM_BLOCKS):
            fill_bytes(t + X.CELL * (block * L.TMEM_COLUMNS + column), 0, X.CELL * columns)
    v = known(x, n)
    lo = host - window_of(x, slot)
    epoch = epoch_of(n, clock_of(v, n), 0, 0)
    touch_shared(x, n, 1, slot, lo, lo + 4, 1, v, visible(x, n), epoch, site_of(n, iid))


@helper
def freed_in_use(x, n, v, epoch, site, other, other_site):
    """Judge an access that comes before columns are freed."""
    if other == 0 or before(x, v, other, 1) or exempt(x, other, epoch):
        return
    found(x, X.TMEM_FREED, site, epoch, other_site, other, 0, 0)


@helper
def on_dealloc(x, n, column, columns, have, lanes, iid):
    """CHECK_TMEM_DEALLOC: all that was done with the columns must be over."""
    slot = n // ld64(x + X.X_WARPS)
    site = site_of(n, iid)
    at_place(x, n, lanes, X.SPACE_TMEM, slot, column, column + columns)
    if have == 0:
        found(x, X.TWICE_FREED, site, 0, 0, 0, columns, 0)
        return
    t = memory_cells(x, slot)
    if t == 0:
        return
    close_region(t)
    v = executed(x, n)
    for block in range(X.TMEM_BLOCKS):
        cell = t + X.CELL * (block * L.TMEM_COLUMNS + column)
        for _ in range(columns):
            freed_in_use(x, n, v, 0, site, ld64(cell), ld32(cell + X.CELL_SITES))
            for k in range(3):
                read = ld64(cell + X.CELL_READ + 8 * k)
                freed_in_use(x, n, v, 0, site, read, ld32(cell + X.CELL_SITES + 4 + 4 * k))
            cell += X.CELL
