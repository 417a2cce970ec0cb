"""Products of tensor cores: the shared memory that WGMMA and tcgen05.mma read, by the chunks of their descriptors."""

from __future__ import annotations

from tensorladder.vgpu.check import layout as X
from tensorladder.vgpu.check.clocks import (
    clock_of,
    component,
    copy,
    epoch_of,
    known,
    meet,
    raise_to,
    record_of,
    site_of,
    visible,
)
from tensorladder.vgpu.check.shadow import at_place, found, part, plain_read, read_cell
from tensorladder.vgpu.check.values import clear_marks, mark, mark_chunk, product_of_registers, registers_undefined
from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.machine import operands as T
from tensorladder.vgpu.machine import wgmma as G
from tensorladder.vgpu.machine.native import helper
from tensorladder.vgpu.machine.raw import ld32, ld64, st32, st64, trailing_zeros
from tensorladder.vgpu.machine.wgmma import FORM_A, FORM_B, FORM_K, FORM_MN_A, FORM_MN_B, FORM_N, FORM_REGISTERS


@helper
def chunk(x, arena, cells, at, size, v, p, epoch, site):
    """A read of 16 bytes, which a descriptor's chunks always are aligned to."""
    if at < 0 or at + 16 > size:
        return
    cell = cells + X.CELL * (at >> 4)
    if ld64(x + X.X_ANY_LEFT) != 0:
        st64(x + X.X_LO, at)
        st64(x + X.X_HI, at + 16)
    if plain_read(x, cell, v, epoch, site):
        return
    if ld64(cell) < 0:
        part(x, arena, cell, 0, 16, 0, v, p, epoch, site, 1)
    else:
        read_cell(x, arena, cell, v, p, epoch, site, 1)


@helper
def see_chunk(x, y, marks, at, size, row, per):
    """Mark the rows of a chunk that has undefined bytes."""
    st64(x + X.X_UNDEFINED, 0)
    if at >= 0 and at + 16 <= size:
        mark_chunk(x, y, marks, at, row, per)


@helper
def read_tile(x, n, lanes, slot, start, lbo, sbo, swizzle, mn_major, rows, ty, k, base, v, p, epoch, site, marks):
    """The chunks of a tile (machine.operands.load_tile) are read; marks: of rows that are undefined (values.py)."""
    y = ld64(x + X.X_Y) + slot * X.Y_BYTES
    cells = ld64(y + X.Y_CELLS)
    arena = y + X.Y_ARENA
    size = ld64(x + X.X_WINDOW)
    per = T.chunk_elements(ty)
    phase = base << 7
    width = T.span_bytes(swizzle)
    st64(x + X.X_UNDEFINED, 0)
    tainted = ld64(x + X.X_TAINTED)
    at_place(x, n, lanes, X.SPACE_SHARED, slot, start, start + 16)
    if mn_major == 0:
        for r in range(rows):
            for c in range(k // per):
                if swizzle == T.SW_NONE:
                    at = start + (r >> 3) * sbo + (r & 7) * 16 + c * lbo
                else:
                    at = T.swizzled(start + (r >> 3) * sbo + (r & 7) * width + c * 16, swizzle, phase)
                chunk(x, arena, cells, at, size, v, p, epoch, site)
                if ld64(x + X.X_UNDEFINED) | tainted:
                    see_chunk(x, y, marks, at, size, r, 0)
        return
    group = 4 if swizzle == T.SW_128_ATOM32 else 8
    for i in range(k):
        for c in range((rows + per - 1) // per):
            if swizzle == T.SW_NONE:
                at = start + c * sbo + (i & 7) * 16 + (i >> 3) * lbo
            else:
                at = start + c * 16 % width + c * 16 // width * lbo + (i % group) * width + (i // group) * sbo
                at = T.swizzled(at, swizzle, phase)
            chunk(x, arena, cells, at, size, v, p, epoch, site)
            if ld64(x + X.X_UNDEFINED) | tainted:
                see_chunk(x, y, marks, at, size, c * per, per)


@helper
def read_descriptor(x, n, lanes, slot, desc, swizzle, mn_major, rows, ty, k, v, p, epoch, site, marks):
    """The tile that a matrix descriptor names is read."""
    start = (desc & 0x3FFF) << 4
    lbo = ((desc >> 16) & 0x3FFF) << 4
    sbo = ((desc >> 32) & 0x3FFF) << 4
    base = (desc >> 49) & 7
    read_tile(x, n, lanes, slot, start, lbo, sbo, swizzle, mn_major, rows, ty, k, base, v, p, epoch, site, marks)


# ---------------------------------------------------------------- WGMMA
@helper
def warpgroup(x, n):
    """Number of the first warp of a warp's warpgroup."""
    in_cta = n % ld64(x + X.X_WARPS)
    return n - (in_cta & 3)


@helper
def products_of(x, n):
    """Component of a warpgroup's wgmma operations."""
    first = warpgroup(x, n)
    z = record_of(x, first)
    k = ld64(z + X.Z_WGMMA)
    if k == 0:
        warps = ld64(x + X.X_WARPS)
        k = component(x, X.K_IS_WGMMA, first // warps, first % warps, 0)
        st64(z + X.Z_WGMMA, k)
    return k


@helper
def meeting_clocks(x, n, seq):
    """Clocks (V, P) that the four warps of an operation share: what all of them know."""
    index = (n // ld64(x + X.X_WARPS)) * ((ld64(x + X.X_WARPS) + 3) // 4) + (n % ld64(x + X.X_WARPS)) // 4
    return ld64(x + X.X_MEET) + (X.MEETS * index + seq % X.MEETS) * 2 * ld64(x + X.X_CLOCK_BYTES)


@helper
def register_at(z, offset):
    """Where the last operation that uses a register is kept; registers take 64 bytes of the frame or more."""
    return z + X.Z_REGISTERS + 8 * ((offset >> 6) & (X.REGISTERS - 1))


@helper
def keep_registers(z, op, seq, iid):
    """An operation uses registers until it is waited for: accumulators, and A where it is in registers."""
    table = ld64(op + G.G_TABLE)
    form = ld64(op + G.G_FORM)
    for r in range(G.accumulator_registers(form) + (4 if (form >> FORM_REGISTERS) & 1 else 0)):
        at = register_at(z, ld32(table + 4 * r))
        st32(at, seq)
        st32(at + 4, iid)


@helper
def on_registers(x, n, table, count, write, lanes, iid):
    """CHECK_REGISTERS: an access of registers; those of an operation that was not waited for are not to be touched."""
    z = record_of(x, n)
    k = ld64(record_of(x, warpgroup(x, n)) + X.Z_WGMMA)
    if k == 0:
        return
    done = clock_of(known(x, n), k)
    for i in range(count):
        at = register_at(z, ld32(table + 4 * i))
        if ld32(at) > done:
            at_place(x, n, lanes, X.SPACE_REGISTERS, 0, 0, 0)
            code = X.REGISTERS_WRITTEN if write != 0 else X.REGISTERS_IN_FLIGHT
            found(x, code, site_of(n, iid), 0, site_of(n, ld32(at + 4)), 0, 0, 0)
            return


@helper
def on_settle(x, n, table, count):
    """CHECK_WGMMA_SETTLE: the assembler makes operations complete before these registers are written or moved."""
    z = record_of(x, n)
    k = ld64(record_of(x, warpgroup(x, n)) + X.Z_WGMMA)
    if k == 0:
        return
    for i in range(count):
        raise_to(known(x, n), k, ld32(register_at(z, ld32(table + 4 * i))))


@helper
def rows_in_registers(op, form, marks):
    """Rows of an A in registers that are undefined: registers 2 i of a lane are of row lane / 4, 2 i + 1 of 8 more."""
    accumulators = G.accumulator_registers(form)
    shadows = ld64(op + G.G_TABLE) + 4 * (accumulators + 4 + accumulators)
    for warp in range(4):
        for r in range(4):
            lanes = registers_undefined(shadows + 4 * r, ld64(op + G.G_FRAMES + 8 * warp), 1)
            while lanes != 0:
                lane = trailing_zeros(lanes)
                lanes &= lanes - 1
                mark(marks, 16 * warp + 8 * (r & 1) + (lane >> 2))


@helper
def on_wgmma(x, op, seq, n, lanes, iid):
    """CHECK_WGMMA: one of the four warps has issued its part; with the fourth, the operands are read."""
    k = products_of(x, n)
    z = record_of(x, n)
    # clocks of an SM's earlier CTAs go on: operations are counted by the component
    base = ld64(record_of(x, warpgroup(x, n)) + X.Z_WGMMA_BASE)
    st64(z + X.Z_WGMMA_SEQ, base + seq + 1)
    keep_registers(z, op, base + seq + 1, iid)
    if ld64(z + X.Z_WGMMA_FENCE) == 0:
        at_place(x, n, lanes, X.SPACE_REGISTERS, 0, 0, 0)
        changed = ld64(z + X.Z_CHANGED)
        found(x, X.WGMMA_NO_FENCE, site_of(n, iid), 0, site_of(n, changed - 1) if changed != 0 else 0, 0, 0, 0)
    clocks = meeting_clocks(x, n, seq)
    size = ld64(x + X.X_CLOCK_BYTES)
    issued = ld64(op + G.G_ISSUED)
    if issued & (issued - 1) == 0:
        copy(x, clocks, known(x, n))
        copy(x, clocks + size, visible(x, n))
    else:
        meet(x, clocks, known(x, n))
        meet(x, clocks + size, visible(x, n))
    if issued != 15:
        return
    form = ld64(op + G.G_FORM)
    epoch = epoch_of(k, base + seq + 1, 0, X.EPOCH_ASYNC)
    site = site_of(n, iid)
    slot = n // ld64(x + X.X_WARPS)
    depth = (form >> FORM_K) & 0x3F
    rows = x + X.X_MARKS_A
    columns = x + X.X_MARKS_B
    clear_marks(rows)
    clear_marks(columns)
    if (form >> FORM_REGISTERS) & 1 == 0:
        desc = ld64(op + G.G_DESC_A)
        read_descriptor(
            x, n, lanes, slot, desc, G.swizzle_of(desc), (form >> FORM_MN_A) & 1, 64, (form >> FORM_A) & 0xF, depth,
            clocks, clocks + size, epoch, site, rows,
        )  # fmt: skip
    else:
        rows_in_registers(op, form, rows)
    desc = ld64(op + G.G_DESC_B)
    read_descriptor(
        x, n, lanes, slot, desc, G.swizzle_of(desc), (form >> FORM_MN_B) & 1, (form >> FORM_N) & 0x1FF,
        (form >> FORM_B) & 0xF, depth, clocks, clocks + size, epoch, site, columns,
    )  # fmt: skip
    count = G.accumulator_registers(form) + (4 if (form >> FORM_REGISTERS) & 1 else 0)
    product_of_registers(x, op, form, count, rows, columns)


@helper
def on_wgmma_commit(x, w, n):
    """CHECK_WGMMA_COMMIT, before the group is closed."""
    z = record_of(x, n)
    group = ld64(w + L.W_WGMMA_GROUP)
    st32(z + X.Z_WGMMA_RING + 4 * (group % X.RING), ld64(z + X.Z_WGMMA_SEQ))


@helper
def on_wgmma_wait(x, n, group):
    """CHECK_WGMMA_WAIT: what was committed up to a group is done."""
    k = ld64(record_of(x, warpgroup(x, n)) + X.Z_WGMMA)
    if k != 0 and group >= 0:
        seq = ld32(record_of(x, n) + X.Z_WGMMA_RING + 4 * (group % X.RING))
        raise_to(known(x, n), k, seq)
