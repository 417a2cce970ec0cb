"""From accumulators to C: a warpgroup's part of a tile, finished and stored a chunk at a time."""

from __future__ import annotations

import math

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import cpasync
from cutlass.pipeline import NamedBarrier

from tensorladder.rungs.parts import epilogue, limits
from tensorladder.rungs.parts.form import Form
from tensorladder.rungs.parts.tensors import ELEMENT_TYPES
from tensorladder.rungs.parts.wgmma import SWIZZLE_BITS, SWIZZLES, mma_op, tma_partition

WARPGROUP = 128  # threads
LANES = 32
ALIGN = 16  # bytes, of addresses and pitches that TMA takes


def transposed(matrix: cute.Tensor) -> cute.Tensor:
    """The same memory with the first two modes the other way round."""
    modes = [1, 0, *range(2, cute.rank(matrix))]
    return cute.make_tensor(matrix.iterator, cute.select(matrix.layout, mode=modes))


def as_aligned(matrix: cute.Tensor) -> cute.Tensor:
    """The same matrices, said to lie as TMA wants them: base and pitches in multiples of 16 bytes."""
    step = ALIGN * 8 // matrix.element_type.width
    strides = tuple(x if isinstance(x, int) else cute.assume(x, divby=step) for x in matrix.stride)
    return cute.make_tensor(matrix.iterator.align(ALIGN), cute.make_layout(matrix.shape, stride=strides))


def lies_aligned(matrix: cute.Tensor) -> cutlass.Boolean:
    """Whether matrices (M, N, L) lie so."""
    last, size = matrix.iterator.toint(), matrix.element_type.width // 8
    for stride in matrix.stride:
        if not isinstance(stride, int):  # the columns', or with one matrix alone what is 0
            last = last | cutlass.Int64(stride) * size
    return last & (ALIGN - 1) == 0


class TileStore:
    """How consumer warpgroups store tiles of C: `tile` (M, N), of which each has one of `halves` (along M, along N).

    Halves along M alternate by 64 rows, as a TiledMma deals them; along N they lie side by side. stages: buffers of a
    chunk a warpgroup. swapped: C and R are handed over transposed, so M is contiguous and the bias is along it. Named
    barriers 1 and 2 are the warpgroups' own.
    """

    def __init__(
        self, form: Form, tile: tuple[int, int], halves: tuple[int, int], stages: int, swapped: bool = False
    ):
        self.dtype = ELEMENT_TYPES[form.out]
        self.tma = form.c_tma
        self.activation = epilogue.ACTIVATIONS[form.activation]
        self.parts = 2 if form.gated else 1
        self.tile, self.halves, self.swapped = tile, halves, swapped
        self.threads = WARPGROUP * halves[0] * halves[1]
        # With more accumulators a thread has no registers left for what the next chunk needs.
        self.early = tile[0] * tile[1] * self.parts // self.threads <= 160
        self.stages = stages
        self.columns = tile[1] // halves[1]  # of a warpgroup's part of the tile
        self.chunk = (limits.CHUNK_ROWS, limits.chunk_bytes(form, self.columns) * 8 // self.dtype.width)
        # of that part; of the last column of chunks so much lies in it
        self.chunks = (tile[0] // halves[0] // self.chunk[0], -(-self.columns // self.chunk[1]))
        self.last = self.columns - (self.chunks[1] - 1) * self.chunk[1]

    @cute.jit
    def prefetch(self, mR: cute.Tensor | None, beta: cutlass.Float32, coord: cute.Coord, thread: cutlass.Int32):
        """Ask for the residual of the tile at `coord` (m, n, l). thread: of all that have the tile."""
        if cutlass.const_expr(mR is not None):
            m, n, l = coord
            residual, tile, place = mR[None, None, l], self.tile, (m, n)
            if cutlass.const_expr(self.swapped):
                residual, tile, place = transposed(residual), tile[::-1], (n, m)
            if beta != 0.0:
                epilogue.prefetch(residual, tile, place, thread, self.threads)

    @cute.jit
    def place(self, number: cutlass.Constexpr, coord: cute.Coord, group: cutlass.Int32):
        """(m, n) of a chunk's first element by its number in a warpgroup's part of the tile at `coord`."""
        row, col = divmod(number, self.chunks[1])
        below, beside = (group if half == 2 else 0 for half in self.halves)
        m = ((coord[0] * self.chunks[0] + row) * self.halves[0] + below) * self.chunk[0]
        return m, cute.assume((coord[1] * self.halves[1] + beside) * self.columns + col * self.chunk[1], divby=8)

    def width(self, number: int) -> int:
        """Of a chunk, what lies in the tile."""
        return self.chunk[1] if (number + 1) % self.chunks[1] else self.last

    @cute.jit
    def limit(self, number: cutlass.Constexpr, limit: cute.Shape, first: cute.Coord):
        """C's (M, N), of a chunk that reaches past its tile as if C ended with it."""
        if cutlass.const_expr(self.width(number) < self.chunk[1]):
            return limit[0], cutlass.min(limit[1], first[1] + self.last)
        return limit

    @cute.jit
    def fetch(
        self, number: cutlass.Constexpr, limit: cute.Shape, mR: cute.Tensor | None, mV: cute.Tensor | None,
        mP: cute.Tensor | None, mQ: cute.Tensor | None, beta: cutlass.Float32, coord: cute.Coord,
        thread: cutlass.Int32, group: cutlass.Int32,
    ):
        """What `complete` needs for a chunk besides accumulators, on its way to registers. limit: C's (M, N)."""
        thr_mma, first, pairs = self.chunk_mma().get_slice(thread), self.place(number, coord, group), self.chunk[1] // 8
        if cutlass.const_expr(mR is not None):
            mR = mR[None, None, coord[2]]
        # As matrices of C's shape: every row is the bias or q, every column p (and the bias, where C is transposed).
        along, biases = ((1, 0), (1, 2, 1)) if self.swapped else ((0, 1), (2, 1, pairs))
        if cutlass.const_expr(mV is not None):
            mV = cute.make_tensor(mV.iterator, cute.make_layout(limit, stride=along))
        if cutlass.const_expr(mP is not None):
            mP = cute.make_tensor(mP.iterator, cute.make_layout(limit, stride=(mP.stride[0], 0)))
            mQ = cute.make_tensor(mQ.iterator, cute.make_layout(limit, stride=(0, mQ.stride[0])))
        mR, mV, mP, mQ = (None if x is None else cute.domain_offset(first, x) for x in (mR, mV, mP, mQ))
        limit = self.limit(number, limit, first)
        rest = limit[0] - first[0], limit[1] - first[1]
        always, where = cutlass.Boolean(True), (thr_mma, self.chunk, (0, 0), rest)
        paired = self.tma and not self.swapped
        return (
            # beta = 0 leaves R unread, as BLAS does: it may hold NaN.
            epilogue.fetch(mR, (2, 2, pairs), *where, beta != 0.0, paired),
            epilogue.fetch(mV, biases, *where, always, paired),
            epilogue.fetch(mP, (1, 2, 1), *where, always, False),
            epilogue.fetch(mQ, (2, 1, pairs), *where, always, False),
        )

    @cute.jit
    def atoms(self, mC: cute.Tensor, box: cute.Layout):
        """TMA's stores of a chunk, each with C's coordinates. box: of a buffer, (rows, columns).

        The second one, where the tile is no multiple of the chunk, stores those that reach past it: there the columns
        of a tile are a mode of their own, at whose end TMA cuts them off.
        """
        mC = mC if cutlass.const_expr(self.tma) else as_aligned(mC)
        store = cpasync.CopyBulkTensorTileS2GOp()
        whole = cpasync.make_tiled_tma_atom(store, mC, box, self.chunk)
        if cutlass.const_expr(self.last == self.chunk[1]):
            return whole, None
        (m, n, l), (down, along, step) = mC.shape, mC.stride
        shape, stride = (m, self.columns, cute.ceil_div(n, self.columns), l), (down, along, along * self.columns, step)
        by_tiles = cute.make_tensor(mC.iterator, cute.make_layout(shape, stride=stride))
        return whole, cpasync.make_tiled_tma_atom(store, by_tiles, box, self.chunk)

    @cute.jit
    def __call__(
        self, atoms: tuple, mC: cute.Tensor | None, sC: cute.Tensor, tCrC: cute.Tensor, ahead: tuple | None,
        mR: cute.Tensor | None, mV: cute.Tensor | None, mP: cute.Tensor | None, mQ: cute.Tensor | None,
        alpha: cutlass.Float32, beta: cutlass.Float32, coord: cute.Coord, thread: cutlass.Int32, group: cutlass.Int32,
    ):
        """The tile at `coord` (m, n, l): registers, finished -> smem -> gmem. thread: in the warpgroup.

        atoms: `atoms`'s. TMA stores all chunks, or without `Form.c_tma` those that lie whole inside a C that is
        aligned; others leave by plain stores to mC, which is None where there are none. ahead: what `fetch` gave for
        chunk 0, if `early`; the next chunk's is on its way while one is finished, then.
        """
        l, limit, warp = coord[2], atoms[0][1].shape[:2], cute.arch.make_warp_uniform(thread // LANES)
        together = NamedBarrier(barrier_id=1 + group, num_threads=WARPGROUP)
        aligned = cutlass.Boolean(True) if cutlass.const_expr(self.tma) else lies_aligned(mC)
        if cutlass.const_expr(self.dtype.width == 16):
            atom_r2s = cute.make_copy_atom(cute.nvgpu.warp.StMatrix8x8x16bOp(self.swapped, 4), self.dtype)
        else:
            bits = 32 if self.swapped else 64  # pairs of columns are apart where rows are contiguous
            atom_r2s = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), self.dtype, num_bits_per_copy=bits)
        chunk_mma = self.chunk_mma()
        thr_r2s = cute.make_tiled_copy_C(atom_r2s, chunk_mma).get_slice(thread)
        tCrF = chunk_mma.make_fragment_C(chunk_mma.get_slice(thread).partition_shape_C(self.chunk))
        tCrG = cute.make_fragment_like(tCrF) if self.parts == 2 else None
        tCrD = cute.make_fragment_like(tCrF, self.dtype)

        count, size, of_row = math.prod(self.chunks), cute.size(tCrF), self.columns // 2  # accumulators a thread
        # Of a gated product the other factor lies half of a row of accumulators on, or half of the tile's rows.
        a_row, other = (of_row, self.chunks[0] * of_row) if self.swapped else (self.parts * of_row, of_row)
        for number in cutlass.range_constexpr(count):
            row, col = divmod(number, self.chunks[1])
            given, operands = ahead, (limit, mR, mV, mP, mQ, beta, coord, thread, group)
            if cutlass.const_expr(not self.early):
                given = self.fetch(number, *operands)
            elif cutlass.const_expr(number + 1 < count):
                ahead = self.fetch(number + 1, *operands)
            for i in cutlass.range_constexpr(self.width(number) // 2):
                tCrF[i] = tCrC[row * a_row + col * size + i]
                if cutlass.const_expr(self.parts == 2):
                    tCrG[i] = tCrC[row * a_row + other + col * size + i]
            epilogue.complete(tCrF, tCrG, *given, alpha, beta, self.activation)
            tCrD.store(tCrF.load().to(self.dtype))

            # Known before the barriers, behind which a constant's way to a register would count.
            first = self.place(number, coord, group)
            end = self.limit(number, limit, first)
            # Chunks outside of C are left out: a mode of one chunk would take any number for its first.
            by_tma = first[0] < end[0] and first[1] < end[1]
            if cutlass.const_expr(not self.tma):
                # Rows past the end are cut off; of one that ends amid 16 bytes TMA would write these whole.
                along = 0 if self.swapped else 1
                reach = self.chunk[0] if self.swapped else self.width(number)
                by_tma = aligned and by_tma and first[along] + reach <= limit[along]
            asks = by_tma and warp == 0

            # A buffer is free once the store from it, `stages` chunks ago, has read it; the first chunk of a tile waits
            # for all of the tile before, whose buffers it takes in another order, and with it all that have one.
            buffer = group * self.stages + number % self.stages
            if cutlass.const_expr(number == 0 or number >= self.stages):
                if warp == 0:
                    cute.arch.cp_async_bulk_wait_group(self.stages - 1 if number else 0, read=True)
                together.arrive_and_wait()
            cute.copy(atom_r2s, thr_r2s.retile(tCrD), thr_r2s.partition_D(sC[None, None, buffer]))

            # Each writer's fence, then the barrier, then the store: the other way round TMA could read stale bytes.
            cute.arch.fence_proxy("async.shared", space="cta")
            together.arrive_and_wait()
            if asks:
                self.store(atoms, number, sC[None, None, buffer], first, coord, group, limit)
            if warp == 0:
                cute.arch.cp_async_bulk_commit_group()
            if cutlass.const_expr(not self.tma):
                if not by_tma:
                    target = cute.make_tensor(mC.iterator, cute.make_layout((*end, mC.shape[2]), stride=mC.stride))
                    words, target = self.words(sC[None, None, buffer]), target[None, None, l]
                    if cutlass.const_expr(self.swapped):
                        words, target, first = transposed(words), transposed(target), first[::-1]
                    epilogue.store_plain(words, target, first, thread, WARPGROUP)

    @cute.jit
    def store(
        self, atoms: tuple, number: cutlass.Constexpr, buffer: cute.Tensor, first: cute.Coord, coord: cute.Coord,
        group: cutlass.Int32, limit: cute.Shape,
    ):
        """A chunk from its buffer to its `first` element of C, by TMA. coord: the tile's."""
        (tma_C, mC), by_tiles = atoms
        if cutlass.const_expr(self.width(number) == self.chunk[1]):
            self.copy(tma_C, buffer, cute.domain_offset((*first, 0), mC)[None, None, coord[2]])
        else:
            # C's last columns are cut off by its own end, which may come before the tile's.
            if first[1] + self.last <= limit[1]:
                tma_T, mT = by_tiles
                beside = group if self.halves[1] == 2 else 0
                place = (first[0], self.columns - self.last, coord[1] * self.halves[1] + beside, coord[2])
                self.copy(tma_T, buffer, cute.domain_offset(place, mT)[None, None, 0, 0])
            else:
                self.copy(tma_C, buffer, cute.domain_offset((*first, 0), mC)[None, None, coord[2]])

    @cute.jit
    def copy(self, atom: cute.CopyAtom, buffer: cute.Tensor, mC: cute.Tensor):
        """A buffer to the first chunk of C."""
        source, target = tma_partition(atom, buffer, cute.local_tile(mC, self.chunk, (0, 0)), 0, 1)
        cute.copy(atom, source, target)

    def words(self, chunk: cute.Tensor) -> cute.Tensor:
        """A chunk in shared memory as words of 32 bits, under the same swizzle, which a recast alone drops."""
        bits = SWIZZLE_BITS if self.swapped else self.chunk[1] * self.dtype.width
        pointer = cute.recast_ptr(chunk.iterator, cute.make_swizzle(*SWIZZLES[bits]), cutlass.Uint32)
        return cute.make_tensor(pointer, cute.recast_layout(32, self.dtype.width, chunk.layout))

    def chunk_mma(self):
        """How a chunk lies in registers: as the accumulator of a WGMMA as narrow, and any of a wider one's columns."""
        return cute.make_tiled_mma(mma_op(cutlass.Float16, self.chunk[1]))
