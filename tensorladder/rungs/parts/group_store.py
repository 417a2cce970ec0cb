"""From accumulators to C of a group: a warpgroup's part of a tile, finished and stored a chunk at a time."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass.pipeline import NamedBarrier

from tensorladder.rungs.parts import epilogue, limits, pieces
from tensorladder.rungs.parts.form import Form
from tensorladder.rungs.parts.tensors import ELEMENT_TYPES
from tensorladder.rungs.parts.wgmma import mma_op, tma_partition

WARPGROUP = 128  # threads


class GroupStore:
    """How consumer warpgroups store tiles of C: `tile` (M, N), of which each has one of `halves` (along M, along N).

    Halves along M alternate by 64 rows, as a TiledMma deals them; along N they lie side by side. stages: buffers of a
    chunk a warpgroup. ragged_k: C (M, N, groups), all of a tile belongs to its group; else C (T, N), where a chunk may
    reach beyond its group's rows. Named barriers 1 and 2 are the warpgroups' own.
    """

    def __init__(self, form: Form, tile: tuple[int, int], halves: tuple[int, int], stages: int, ragged_k: bool):
        self.dtype = ELEMENT_TYPES[form.out]
        self.activation = epilogue.ACTIVATIONS[form.activation]
        self.parts = 2 if form.gated else 1
        self.halves, self.stages, self.ragged_k = halves, stages, ragged_k
        self.chunk = (limits.CHUNK_ROWS, 1024 // self.dtype.width)  # rows of 128 bytes, as `pieces` takes them
        # of a warpgroup's part
        self.chunks = (tile[0] // halves[0] // self.chunk[0], tile[1] // halves[1] // self.chunk[1])

    @cute.jit
    def fetch(
        self, mV: cute.Tensor | None, mP: cute.Tensor | None, mQ: cute.Tensor | None, thr_mma: cute.TiledMma,
        row: cutlass.Int32, col: cutlass.Int32, limit: cute.Shape,
    ):
        """What `complete` needs for the chunk at (row, col) besides accumulators. mV, mQ: (N,), of the group.

        As matrices of the chunk's shape that begin there: every row is the bias or q, every column p.
        """
        where = (thr_mma, self.chunk, (0, 0), (limit[0] - row, limit[1] - col), cutlass.Boolean(True))
        if cutlass.const_expr(mV is not None):
            mV = self.along_n(mV, col)
        if cutlass.const_expr(mQ is not None):
            mQ = self.along_n(mQ, col)
        if cutlass.const_expr(mP is not None):
            layout = cute.make_layout(self.chunk, stride=(mP.stride[0], 0))
            mP = cute.make_tensor(mP.iterator + cute.crd2idx(row, mP.layout), layout)
        pairs = self.chunk[1] // 8
        return (
            epilogue.fetch(mV, (2, 1, pairs), *where, True),
            epilogue.fetch(mP, (1, 2, 1), *where, False),
            epilogue.fetch(mQ, (2, 1, pairs), *where, False),
        )

    @cute.jit
    def along_n(self, vector: cute.Tensor, col: cutlass.Int32):
        """The part of a vector (N,) that belongs to a chunk from `col` on, as a matrix whose rows are all the same."""
        layout = cute.make_layout((self.chunk[0], vector.shape[0]), stride=(0, 1))
        return cute.local_tile(cute.make_tensor(vector.iterator, layout), self.chunk, (0, col // self.chunk[1]))

    @cute.jit
    def __call__(
        self, tma_C: cute.CopyAtom, mC: cute.Tensor, gmem_C: cute.Tensor, sC: cute.Tensor, memory_C: cute.Tensor,
        tCrC: cute.Tensor, mV: cute.Tensor | None, mP: cute.Tensor | None, mQ: cute.Tensor | None,
        count: cutlass.Int32, place: tuple, thread: cutlass.Int32, warp: cutlass.Int32, group: cutlass.Int32,
    ):
        """The tile at `place` (group, first row, first column, .., low, high): registers, finished -> smem -> gmem.

        mC: coordinates for TMA, gmem_C the same in memory; memory_C: sC as it lies (`pieces`). mV, mQ: (groups, N);
        mP: (M,). count: groups. thread, warp: in the warpgroup.
        """
        of, tile_row, tile_col, _, _, low, high = place
        together = NamedBarrier(barrier_id=1 + group, num_threads=WARPGROUP)
        limit, (rows, cols), inside = mC.shape[:2], self.chunks, cutlass.min(of, count - 1)
        mV, mQ = (None if row is None else row[inside, None] for row in (mV, mQ))
        # The accumulator of a narrow WGMMA is laid out as any of a wider one's columns, as many.
        chunk_mma = cute.make_tiled_mma(mma_op(cutlass.Float16, self.chunk[1]))
        if cutlass.const_expr(self.dtype.width == 16):
            atom_r2s = cute.make_copy_atom(cute.nvgpu.warp.StMatrix8x8x16bOp(False, 4), self.dtype)
        else:
            atom_r2s = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), self.dtype, num_bits_per_copy=64)
        thr_r2s = cute.make_tiled_copy_C(atom_r2s, chunk_mma).get_slice(thread)
        thr_mma = chunk_mma.get_slice(thread)
        tCrF = chunk_mma.make_fragment_C(thr_mma.partition_shape_C(self.chunk))
        tCrG = cute.make_fragment_like(tCrF) if self.parts == 2 else None
        tCrD = cute.make_fragment_like(tCrF, self.dtype)

        size = cute.size(tCrF)
        below, beside = (group if half == 2 else 0 for half in self.halves)
        for r in cutlass.range_constexpr(rows):
            for c in cutlass.range_constexpr(cols):
                number = r * cols + c
                buffer = group * self.stages + number % self.stages
                for i in cutlass.range_constexpr(size):
                    tCrF[i] = tCrC[(r * self.parts * cols + c) * size + i]
                    if cutlass.const_expr(self.parts == 2):
                        tCrG[i] = tCrC[((r * self.parts + 1) * cols + c) * size + i]
                row = tile_row + (r * self.halves[0] + below) * self.chunk[0]
                col = tile_col + (beside * cols + c) * self.chunk[1]
                given = self.fetch(mV, mP, mQ, thr_mma, row, col, limit)
                one, zero = cutlass.Float32(1.0), cutlass.Float32(0.0)
                epilogue.complete(tCrF, tCrG, None, *given, one, zero, self.activation)
                if of == count:  # rows of no group
                    tCrF.fill(0.0)
                tCrD.store(tCrF.load().to(self.dtype))

                # The buffer is free once the store from it, `stages` chunks ago, has read it; the first chunk of a tile
                # waits for all of the tile before, whose buffers it takes in another order.
                if warp == 0:
                    cute.arch.cp_async_bulk_wait_group(self.stages - 1 if number else 0, read=True)
                together.arrive_and_wait()
                cute.copy(atom_r2s, thr_r2s.retile(tCrD), thr_r2s.partition_D(sC[None, None, buffer]))

                # Each writer's fence, then the barrier, then the store: the other way round TMA could read stale bytes.
                cute.arch.fence_proxy("async.shared", space="cta")
                together.arrive_and_wait()
                whole = row < limit[0]
                if cutlass.const_expr(not self.ragged_k):
                    whole = row >= low and row + self.chunk[0] <= high
                if warp == 0:
                    if whole and col < limit[1]:
                        plane = mC[None, None, of] if self.ragged_k else mC
                        box = cute.local_tile(cute.domain_offset((row, col), plane), self.chunk, (0, None))
                        tCsC, tCgC = tma_partition(tma_C, sC, box, 0, 1)
                        cute.copy(tma_C, tCsC[None, buffer], tCgC[None, 0])
                    cute.arch.cp_async_bulk_commit_group()
                if cutlass.const_expr(not self.ragged_k):
                    if not whole and col < limit[1]:
                        memory = memory_C[None, None, buffer]
                        pieces.store_rows(memory, gmem_C, row, col, low, high, thread, WARPGROUP)
