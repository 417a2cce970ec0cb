"""Partial sums of a tile of C, by the CTAs of a cluster that have a part of K each: passed on, added up, stored.

Each CTA finishes some columns of the accumulator, which are rows of C. Its shared memory has 2 P - 1 slots of so many
columns for P parts: its own sums by their owner, then what it receives, the part after its own first. They are added in
that order, so that a sum has the same bits every time.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute

from tensorladder.rungs.parts import dsmem, rows


@cute.jit
def keep(
    sums: cute.Tensor, tCrC: cute.Tensor, tCcC: cute.Tensor, number: cutlass.Constexpr, columns: cutlass.Constexpr
):
    """The columns of an accumulator, `columns` of them from the `number`th so many on, to shared memory.

    There neighbouring rows of the accumulator lie side by side: (rows, columns of an owner, owners). tCcC: their (row,
    column) in the tile.
    """
    blocks, eights, owned = cute.size(tCrC, mode=[1]), columns // 8, sums.shape[1]
    of_block, step = cute.size(tCrC) // blocks, sums.shape[0] // blocks
    # Eight columns are 2 neighbours in 2 rows a thread, 8 rows apart.
    for eight in cutlass.range_constexpr(eights):
        for i in cutlass.range_constexpr(2):
            row, col = tCcC[eight * 4 + i]
            start = sums.iterator + sums.layout((row, col % owned, col // owned))
            line = cute.make_tensor(start, cute.make_layout(sums.shape[0]))
            for block in cutlass.range_constexpr(blocks):
                for half in cutlass.range_constexpr(2):
                    acc = tCrC[block * of_block + (number * eights + eight) * 4 + half * 2 + i]
                    line[block * step + half * 8] = acc


@cute.jit
def received(sums: cute.Tensor):
    """The slots of what the other parts send; None where there are none."""
    rows_of, owned, slots = sums.shape
    if cutlass.const_expr(slots == 1):
        return None
    layout = cute.make_layout((rows_of, owned, slots // 2), stride=sums.stride)
    return cute.make_tensor(sums.iterator + sums.layout((0, 0, slots // 2 + 1)), layout)


@cute.jit
def send(
    sums: cute.Tensor, full: cute.Pointer, used: cutlass.Int32, part: cutlass.Int32, first: cutlass.Int32,
    lane: cutlass.Int32,
):
    """Copy sums to the CTAs that finish them, by a warp, a lane each; and say how much comes to this CTA's barrier.

    used: columns that C has. part: of K, this CTA's. first: the rank of the first part's CTA. full: the barrier of one
    arrival that counts bytes, at the same place in all. Writers have fenced, and the warp has met them.
    """
    parts, owned = (sums.shape[2] + 1) // 2, sums.shape[1]
    owner = (part + lane) % parts
    # One column at the least: who has no rows of C waits for the others all the same, and so does not pass on twice
    # before they have once.
    size = cutlass.max(cutlass.min(used - owner * owned, owned), 1) * (sums.stride[1] * 4)
    if lane == 0:
        cute.arch.mbarrier_arrive_and_expect_tx(full, size * (parts - 1))
    elif lane < parts:
        # This part comes `parts - lane` after the owner.
        target = sums.iterator + sums.layout((0, 0, 2 * parts - 1 - lane))
        source = sums.iterator + sums.layout((0, 0, owner))
        at = first + owner
        dsmem.copy_bulk(cute.arch.map_dsmem_ptr(target, at), source, size, cute.arch.map_dsmem_ptr(full, at))


@cute.jit
def pass_on(
    empty: cute.Pointer, part: cutlass.Int32, first: cutlass.Int32, lane: cutlass.Int32, parts: cutlass.Constexpr
):
    """Tell the other parts' CTAs, a lane each, that this warp has, or is through with, what they sent.

    part, first: as in `send`. empty: the barrier of an arrival of each warp of the others, at the same place in all.
    """
    cute.arch.sync_warp()
    if lane < parts - 1:
        cute.arch.mbarrier_arrive(empty, first + (part + 1 + lane) % parts)


@cute.jit
def finish(
    mine: cute.Tensor, others: cute.Tensor | None, products: cutlass.Constexpr, kept: cutlass.Int32, at: cute.Coord,
    mC: cute.Tensor, extras: tuple, alpha: cutlass.Float32, beta: cutlass.Float32, activation: cutlass.Constexpr,
    thread: cutlass.Int32, threads: cutlass.Constexpr,
):
    """What `parts.form.Form` says of a block of C whose first element is `at` = (row, column, product).

    mine: (columns of C, rows of C) in fp32, columns contiguous and 16-byte aligned; with two products the second one's
    columns follow the first's. others: (columns, rows, parts) of the same, to be added, or None. kept: rows of them.
    extras: residual (M, N, L), bias (N), scales (M) and (N), each a tensor or None. The threads take eight columns of a
    row a turn.
    """
    (first_row, first_col, batch), (mR, mV, mP, mQ) = at, extras
    mC = mC[None, None, batch]
    whole = rows.aligned(mC)
    if cutlass.const_expr(mR is not None):
        mR = mR[None, None, batch]
        whole = whole and rows.aligned(mR)
    if cutlass.const_expr(mV is not None):
        whole = whole and mV.iterator.toint() % rows.ALIGN == 0
    width = mine.shape[0] // products
    pieces = width // rows.COLUMNS
    for index in cutlass.range(thread, kept * pieces, threads):
        slot, piece = index // pieces, index % pieces * rows.COLUMNS
        row, col = first_row + slot, first_col + piece
        if row < mC.shape[0] and col < mC.shape[1]:
            acc, up = add(mine, others, piece, slot), None
            if cutlass.const_expr(products > 1):
                up = add(mine, others, piece + width, slot)
            fast = whole and col + rows.COLUMNS <= mC.shape[1]
            added, factor = None, alpha
            if cutlass.const_expr(mR is not None):
                added = residual(mR[row, None], col, beta, fast)
            if cutlass.const_expr(mP is not None):
                factor = alpha * mP[row]
            rows.finish(acc, up, added, col, mC.shape[1], mV, mQ, factor, beta, activation, fast)
            rows.write(mC[row, None], col, mC.shape[1], acc, fast)


@cute.jit
def residual(row: cute.Tensor, col: cutlass.Int32, beta: cutlass.Float32, whole: cutlass.Boolean):
    """Eight elements of a row of R. beta = 0 leaves it unread, as BLAS does: it may hold NaN."""
    values = cute.make_rmem_tensor(cute.make_layout(rows.COLUMNS), row.element_type)
    values.fill(0.0)
    if beta != 0.0:
        rows.read(values, row, col, row.shape[0], whole)
    return values


@cute.jit
def add(mine: cute.Tensor, others: cute.Tensor | None, col: cutlass.Int32, row: cutlass.Int32):
    """Eight neighbouring sums of a row, and to them the others' in their order."""
    acc = cute.make_rmem_tensor(cute.make_layout(rows.COLUMNS), cutlass.Float32)
    acc.store(eight(mine.iterator + mine.layout((col, row))))
    if cutlass.const_expr(others is not None):
        for part in cutlass.range_constexpr(others.shape[2]):
            acc.store(acc.load() + eight(others.iterator + others.layout((col, row, part))))
    return acc


@cute.jit
def eight(start: cute.Pointer):
    """Eight numbers in a row of shared memory."""
    return cute.make_tensor(start.align(rows.ALIGN), cute.make_layout(rows.COLUMNS)).load()
