"""From accumulators to C: a warpgroup's part of a tile, finished and stored a chunk at a time."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass.pipeline import NamedBarrier

from tensorladder.rungs.parts import epilogue, limits
from tensorladder.rungs.parts.form import Form
from tensorladder.rungs.parts.tensors import ELEMENT_TYPES
from tensorladder.rungs.parts.wgmma import mma_op, tma_partition

WARPGROUP = 128  # threads


class TileStore:
    """How consumer warpgroups store tiles of C: `tile` (M, N), of which each has one of `halves` (along M, along N).

    Halves along M alternate by 64 rows, as a TiledMma deals them; along N they lie side by side. stages: buffers of a
    chunk a warpgroup. Named barriers 1 and 2 are the warpgroups' own.
    """

    def __init__(self, form: Form, tile: tuple[int, int], halves: tuple[int, int], stages: int):
        self.dtype = ELEMENT_TYPES[form.out]
        self.tma = form.c_tma
        self.activation = epilogue.ACTIVATIONS[form.activation]
        self.parts = 2 if form.gated else 1
        self.halves = halves
        self.stages = stages
        columns = tile[1] // halves[1]
        self.chunk = (limits.CHUNK_ROWS, limits.chunk_bytes(form, columns) * 8 // self.dtype.width)
        # of a warpgroup's part
        self.chunks = (tile[0] // halves[0] // self.chunk[0], columns // self.chunk[1])

    @cute.jit
    def __call__(
        self, tma_C: cute.CopyAtom | None, mC: cute.Tensor, sC: cute.Tensor, tCrC: cute.Tensor, mR: cute.Tensor | None,
        mV: cute.Tensor | None, mP: cute.Tensor | None, mQ: cute.Tensor | None, alpha: cutlass.Float32,
        beta: cutlass.Float32, coord: cute.Coord, thread: cutlass.Int32, warp: cutlass.Int32, group: cutlass.Int32,
    ):
        """The tile at `coord` (m, n, l): registers, finished -> smem -> gmem. thread, warp: in the warpgroup."""
        together = NamedBarrier(barrier_id=1 + group, num_threads=WARPGROUP)
        limit, (rows, cols), (m, n, l) = mC.shape[:2], self.chunks, coord
        if cutlass.const_expr(mR is not None):
            mR = mR[None, None, l]
        if cutlass.const_expr(self.tma):
            tCsC, tCgC = tma_partition(tma_C, sC, cute.local_tile(mC, self.chunk, (None, None, None)), 0, 1)
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
        for row in cutlass.range_constexpr(rows):
            for col in cutlass.range_constexpr(cols):
                number = row * cols + col
                buffer = group * self.stages + number % self.stages
                for i in cutlass.range_constexpr(size):
                    tCrF[i] = tCrC[(row * self.parts * cols + col) * size + i]
                    if cutlass.const_expr(self.parts == 2):
                        tCrG[i] = tCrC[((row * self.parts + 1) * cols + col) * size + i]
                chunk_m = (m * rows + row) * self.halves[0] + below
                chunk_n = (n * self.halves[1] + beside) * cols + col
                plane = cute.local_tile(cute.make_identity_tensor(limit), self.chunk, (chunk_m, chunk_n))
                factors, how = (mP, mQ, alpha, beta), (self.activation, self.tma)
                epilogue.complete(tCrF, tCrG, thr_mma.partition_C(plane), limit, mR, mV, *factors, *how)
                tCrD.store(tCrF.load().to(self.dtype))

                # The buffer is free once the store from it, `stages` chunks ago, has read it; the first chunk of a tile
                # waits for all of the tile before, whose buffers it takes in another order.
                if warp == 0:
                    cute.arch.cp_async_bulk_wait_group(self.stages - 1 if number else 0, read=True)
                together.arrive_and_wait()
                cute.copy(atom_r2s, thr_r2s.retile(tCrD), thr_r2s.partition_D(sC[None, None, buffer]))

                # Each writer's fence, then the barrier, then the store: the other way round TMA could read stale bytes.
                if cutlass.const_expr(self.tma):
                    cute.arch.fence_proxy("async.shared", space="cta")
                together.arrive_and_wait()
                if cutlass.const_expr(self.tma):
                    if warp == 0:
                        # Chunks outside of C are left out: a mode of one chunk would take any number for its first.
                        if chunk_m < cute.size(tCgC, mode=[1]) and chunk_n < cute.size(tCgC, mode=[2]):
                            cute.copy(tma_C, tCsC[None, buffer], tCgC[None, chunk_m, chunk_n, l])
                        cute.arch.cp_async_bulk_commit_group()
                else:
                    first = chunk_m * self.chunk[0], chunk_n * self.chunk[1]
                    epilogue.store_plain(sC[None, None, buffer], mC[None, None, l], first, thread, WARPGROUP)
