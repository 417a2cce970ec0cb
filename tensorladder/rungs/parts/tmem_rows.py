"""The end of a tile that lies in tensor memory: epilogue warps finish it by rows and store it, subtile by subtile."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import cpasync, tcgen05
from cutlass.pipeline import NamedBarrier, PipelineUmmaAsync

from tensorladder.rungs.parts import epilogue, rows
from tensorladder.rungs.parts.form import Form
from tensorladder.rungs.parts.tcgen05 import fence_after_thread_sync, fence_before_thread_sync
from tensorladder.rungs.parts.tensors import ELEMENT_TYPES

WARPS = 4  # one for each 32 lanes of tensor memory
LANES = 128  # of a tensor memory: rows of C of a CTA
COLUMNS = 32  # of C that a thread holds at a time


class RowEpilogue:
    """cols: columns of C of a tile; a gated product's accumulator has as many more, of U. buffers: of 128 rows x 32
    columns of C in shared memory, half as many of fp32, where TMA stores it. barrier: the number of the warps' own."""

    def __init__(self, form: Form, cols: int, buffers: int, barrier: int):
        self.c_type, self.c_tma, self.gated = ELEMENT_TYPES[form.out], form.c_tma, form.gated
        self.activation = epilogue.ACTIVATIONS[form.activation]
        self.subtile = (LANES, COLUMNS)
        self.count = cols // COLUMNS
        self.buffers = max(1, buffers * 16 // self.c_type.width)
        self.barrier = barrier

    @cute.jit
    def store(
        self, accumulator: PipelineUmmaAsync, drain: Any, tCtC: cute.Tensor, sC: cute.Tensor, buffer: cutlass.Int32,
        tma_C: cute.CopyAtom | None, mC: cute.Tensor, mR: cute.Tensor | None, mV: cute.Tensor | None, mS: cute.Tensor,
        mP: cute.Tensor | None, mQ: cute.Tensor | None, extents: cute.Shape, coord: cute.Coord,
    ):
        """A CTA's 128 rows of a tile: tmem -> registers, finished -> smem -> gmem. Returns the next buffer.

        tCtC: ((128, columns), 1, 1, accumulator), of which that of `drain` is waited for and released. sC: (128,
        COLUMNS, buffer). coord: (number of 128 rows, tile along N, product). The others are the arguments of a form's
        kernel, mC as coordinates where C is stored by TMA; extents: C's.
        """
        tidx, _, _ = cute.arch.thread_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        together = NamedBarrier(barrier_id=self.barrier, num_threads=32 * WARPS)
        m_half, n_tile, l = coord

        # tmem -> registers: thread t has row t of a subtile. (columns, 1, 1, subtile, accumulator)
        atom_t2r = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition(COLUMNS)), cutlass.Float32)
        tCtC_subtiles = cute.flat_divide(tCtC[(None, None), 0, 0, None], self.subtile)[None, None, 0, None, None]
        tiled_t2r = tcgen05.make_tmem_copy(atom_t2r, tCtC_subtiles[None, None, 0, 0])
        thr_t2r = tiled_t2r.get_slice(tidx)
        tDtC = thr_t2r.partition_S(tCtC_subtiles)
        shape = thr_t2r.partition_D(sC)[None, None, None, 0].shape
        tDrC, tDrU = (cute.make_rmem_tensor(shape, cutlass.Float32) for _ in range(2))

        # registers -> smem
        tDrD = cute.make_fragment_like(tDrC, self.c_type)
        atom_r2s = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), self.c_type, num_bits_per_copy=128)
        tiled_r2s = cute.make_tiled_copy_D(atom_r2s, tiled_t2r)
        thr_r2s = tiled_r2s.get_slice(tidx)
        tDsC, tDrD_r2s = thr_r2s.partition_D(sC), thr_r2s.retile(tDrD)

        # This thread's row, which has no columns if it is not one of C's; whether its vectors are aligned.
        m = m_half * LANES + tidx
        cols = extents[1] if m < extents[0] else 0
        aligned = cutlass.Boolean(True)
        if cutlass.const_expr(not self.c_tma):
            aligned = rows.aligned(mC[None, None, l])
            if cutlass.const_expr(mR is not None):
                aligned = aligned and rows.aligned(mR[None, None, l])
            if cutlass.const_expr(mV is not None):
                aligned = aligned and mV.iterator.toint() % rows.ALIGN == 0
        alpha, beta = mS[0], mS[1]
        if cutlass.const_expr(mP is not None):
            alpha = alpha * mP[cutlass.min(m, extents[0] - 1)]
        vectors = COLUMNS // rows.COLUMNS
        added = None
        if cutlass.const_expr(mR is not None):
            added = cute.make_rmem_tensor(cute.make_layout((rows.COLUMNS, vectors)), mR.element_type)

        for subtile in cutlass.range(self.count, unroll=1):
            n = (n_tile * self.count + subtile) * COLUMNS
            # R is on its way before the wait. beta = 0 leaves it unread, as BLAS does: it may hold NaN.
            if cutlass.const_expr(mR is not None):
                added.fill(0)
                if beta != 0.0:
                    for j in cutlass.range_constexpr(vectors):
                        at = n + j * rows.COLUMNS
                        whole = aligned and at + rows.COLUMNS <= cols
                        rows.read(added[None, j], mR[m, None, l], at, cols, whole)

            # Of a tile's waits all but the first return at once.
            accumulator.consumer_wait(drain)
            fence_after_thread_sync()
            cute.copy(tiled_t2r, tDtC[None, None, None, subtile, drain.index], tDrC)
            if cutlass.const_expr(self.gated):
                cute.copy(tiled_t2r, tDtC[None, None, None, subtile + self.count, drain.index], tDrU)
            # The registers hold the subtile only from here on.
            cute.arch.fence_view_async_tmem_load()
            if subtile == self.count - 1:
                # The accumulator is free. One lane arrives for the warp, after all lanes' reads.
                fence_before_thread_sync()
                cute.arch.sync_warp()
                with cute.arch.elect_one():
                    accumulator.consumer_release(drain)

            for j in cutlass.range_constexpr(vectors):
                at = n + j * rows.COLUMNS
                whole = aligned and at + rows.COLUMNS <= cols
                acc, up, more = self.piece(tDrC, j), None, None
                if cutlass.const_expr(self.gated):
                    up = self.piece(tDrU, j)
                if cutlass.const_expr(mR is not None):
                    more = added[None, j]
                rows.finish(acc, up, more, at, cols, mV, mQ, alpha, beta, self.activation, whole)
                if cutlass.const_expr(not self.c_tma):
                    rows.write(mC[m, None, l], at, cols, acc, whole)

            if cutlass.const_expr(self.c_tma):
                tDrD.store(tDrC.load().to(self.c_type))
                # TMA has read what this buffer held; the barrier tells the other warps.
                if warp == 0:
                    cute.arch.cp_async_bulk_wait_group(self.buffers - 1, read=True)
                together.arrive_and_wait()
                cute.copy(tiled_r2s, tDrD_r2s, tDsC[None, None, None, buffer])
                # Each writer's fence, then the barrier, then the store: else TMA could read stale bytes.
                cute.arch.fence_proxy("async.shared", space="cta")
                together.arrive_and_wait()
                if warp == 0:
                    self.store_box(tma_C, sC, buffer, mC, (m_half, n_tile * self.count + subtile, l))
                    cute.arch.cp_async_bulk_commit_group()
                buffer = buffer + 1 if buffer + 1 < self.buffers else 0
        return buffer

    @cute.jit
    def store_box(
        self, tma_C: cute.CopyAtom, sC: cute.Tensor, buffer: cutlass.Int32, mC: cute.Tensor, coord: cute.Coord
    ):
        """Ask TMA to store a buffer as the subtile (m half, n, product) of C, unless that lies outside."""
        gC = cute.local_tile(mC, self.subtile, (None, None, None))
        boxes = (cute.group_modes(tile, 0, 2) for tile in (sC, gC))
        tCsC, tCgC = cpasync.tma_partition(tma_C, 0, cute.make_layout(1), *boxes)
        # A mode of one subtile would take any number for its first.
        if coord[0] < cute.size(gC, mode=[2]) and coord[1] < cute.size(gC, mode=[3]):
            cute.copy(tma_C, tCsC[None, buffer], tCgC[(None, *coord)])

    @cute.jit
    def piece(self, registers: cute.Tensor, j: cutlass.Constexpr):
        """The columns of vector j of a thread's row."""
        return cute.make_tensor(registers.iterator + j * rows.COLUMNS, cute.make_layout(rows.COLUMNS))
