"""DeepSeek sparse attention by WGMMA: tokens are the rows of both products, a producer warpgroup gathers them.

Adds:
    Tensor cores, for 16 heads that fill a quarter of WGMMA's 64 rows. So the operands change places: both products are
    computed transposed, tokens or the output's 512 elements are the rows, heads the 16 columns, and nothing is wasted:
        S^T (64 tokens x 16) = K (64 x 576) Q^T          O^T (512 x 16) += V^T (512 x 64 tokens) P^T
    K is read from shared memory as it lies, row after row; V^T is the same bytes, read by WGMMA as an operand that is
    contiguous along M. O^T takes 64 registers a thread.
    - TMA puts rows from anywhere into the 128-byte swizzle only one by one. Two pairs of producer warps do so with
      cp.async, 16 bytes a thread, swizzled by hand, a tile in flight each. cp.async writes through the generic proxy,
      WGMMA reads through the async one: each thread waits for its copies, fences, and only then the warp arrives.
    - Tokens are rows, so the softmax goes over the lanes and warps of a warpgroup: maxima by shuffles and through
      shared memory. The weights go there by stmatrix, transposed, where the tile's rotary part was.
    - Two consumer warpgroups take every other tile, each with a maximum, sum and output of its own: while one is at its
      softmax, the other multiplies. In the end they exchange half of their outputs and join them. A stage has an
      mbarrier for each of the two: of one they would see every other phase, and parity names no more than that.
    - A row is split over CTAs where rows are too few, as in the parent, with both kernels launched as dependents.
    On an H200, for 1 to 1024 rows of 2048 tokens, 2.3 to 8.9 times as fast as the parent, and 1.20 to 2.16 times as the
    fastest of FlashInfer, FlashMLA and torch.compile (`benchmarks/results/README.md`, sparse-attention).

Warp roles:
    | warps      | role                                                                               |
    |------------|------------------------------------------------------------------------------------|
    | 0-3, 4-7   | consumers, a warpgroup each: products and softmax of every other tile, half of O   |
    | 8-9, 10-11 | producers: gather 64 tokens a stage, every other tile, as far ahead as they can    |
    | all 4      | of the second kernel: a row's head, part after part                                |

Budget:
    SMEM: queries 18 KB; 3 stages of 64 x 512 x 2 B = 64 KB, 2 of the rotary part, 8 KB each: 226 KB and 1 KB of
    barriers and maxima, 1 CTA an SM. Registers: 64 accumulators of O^T, 8 of S^T, 118 a thread. No TMEM.

Run:
    tensorladder run fused-dsa-wgmma --shape 5,128,4
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import OperandMajorMode, warpgroup
from cutlass.memory import SmemAllocator

from tensorladder.core.program import Program
from tensorladder.frontends.cutedsl import compile_program
from tensorladder.problems.sparse_attention import HEADS, LATENT, ROTARY, SM_SCALE, max_splits
from tensorladder.rungs.parts import heads, pieces, sparse, wgmma
from tensorladder.rungs.parts.cpasync import hand_over, start_copy
from tensorladder.rungs.rung import Rung


@dataclass(frozen=True)
class WgmmaSparseAttentionConfig:
    """stages: tiles of 64 tokens in shared memory, 2 or 3. sm_count: rows are split so that the CTAs fill so many SMs
    evenly. overlap: launch both kernels as dependents of what comes before, or (False) strictly after.
    """

    stages: int = 3
    sm_count: int = 132
    overlap: bool = True


RUNG = Rung(
    name="fused-dsa-wgmma",
    parent="fused-dsa-split",
    adds="WGMMA with tokens as rows and heads as columns, a gathering warpgroup, two consumers in turn",
    archs=("sm_90a",),
    problem="sparse_attention",
    dtypes=("bf16",),
    config=WgmmaSparseAttentionConfig,
)

LANES = 32
WARPGROUP = 128  # threads
WARPS = 4  # of a warpgroup
CONSUMERS = 2  # warpgroups
PAIR = 2  # warps that gather a tile
TILE = 64  # tokens, the rows of a WGMMA
VECTOR = 8  # elements of 16 bytes
BLOCKS = LATENT // 64  # of O^T's rows


class WgmmaSparseAttention:
    def __init__(self, config: WgmmaSparseAttentionConfig, splits: int, tiles: int):
        self.stages = config.stages
        self.turns = math.lcm(config.stages, CONSUMERS)  # mbarriers: each seen in all its phases by one consumer
        self.overlap = config.overlap
        self.splits, self.tiles = splits, tiles  # of a row, of a split

    @cute.jit
    def __call__(
        self, mQ: cute.Tensor, mQ_pe: cute.Tensor, mC: cute.Tensor, mK_pe: cute.Tensor, mIndex: cute.Tensor,
        mO: cute.Tensor, mLse: cute.Tensor, mParts: cute.Tensor, mSums: cute.Tensor,
    ):
        rows = mO.shape[0]
        dtype = mQ.element_type
        layouts = self.smem_layouts(dtype)

        @cute.struct
        class SharedStorage:
            latent_full: cute.struct.MemRange[cutlass.Int64, self.turns]
            latent_empty: cute.struct.MemRange[cutlass.Int64, self.turns]
            rotary_full: cute.struct.MemRange[cutlass.Int64, CONSUMERS]
            rotary_empty: cute.struct.MemRange[cutlass.Int64, CONSUMERS]
            there: cute.struct.MemRange[cutlass.Int32, CONSUMERS * PAIR]
            of_warps: cute.struct.MemRange[cutlass.Float32, CONSUMERS * WARPS * HEADS]
            sQ: cute.struct.Align[cute.struct.MemRange[dtype, cute.cosize(layouts[0])], 1024]
            sQ_pe: cute.struct.Align[cute.struct.MemRange[dtype, cute.cosize(layouts[1])], 1024]
            sC: cute.struct.Align[cute.struct.MemRange[dtype, cute.cosize(layouts[2])], 1024]
            sK_pe: cute.struct.Align[cute.struct.MemRange[dtype, cute.cosize(layouts[3])], 1024]

        self.shared_storage = SharedStorage
        self.op_S = wgmma.mma_op(dtype, HEADS)
        self.op_O = wgmma.mma_op(dtype, HEADS, a_major=OperandMajorMode.MN)
        self.kernel(mQ, mQ_pe, sparse.flat(mC), sparse.flat(mK_pe), mIndex, mO, mLse, mParts, mSums).launch(
            grid=(self.splits, rows, 1),
            block=(WARPGROUP * (CONSUMERS + 1), 1, 1),
            min_blocks_per_mp=1,
            use_pdl=self.overlap,
            preferred_smem_carveout=100,  # percent; given so that the DSL need not ask a GPU
        )
        if cutlass.const_expr(self.splits > 1):
            sparse.join(mParts, mSums, mO, mLse, self.splits).launch(
                grid=(HEADS, rows, 1), block=(sparse.THREADS, 1, 1), use_pdl=self.overlap
            )

    @cute.kernel
    def kernel(
        self, mQ: cute.Tensor, mQ_pe: cute.Tensor, latent: cute.Tensor, rotary: cute.Tensor, mIndex: cute.Tensor,
        mO: cute.Tensor, mLse: cute.Tensor, mParts: cute.Tensor, mSums: cute.Tensor,
    ):
        tidx, _, _ = cute.arch.thread_idx()
        split, row, _ = cute.arch.block_idx()
        thread, lane = tidx % WARPGROUP, tidx % LANES
        group = cute.arch.make_warp_uniform(tidx // WARPGROUP)
        # What comes next, the joining of the parts or the following call, may take its place as soon as there is room:
        # it waits for the end of this grid, as this one does for that of the one before.
        cute.arch.griddepcontrol_launch_dependents()

        storage = SmemAllocator().allocate(self.shared_storage)
        layouts = self.smem_layouts(mQ.element_type)
        parts = (storage.sQ, storage.sQ_pe, storage.sC, storage.sK_pe)
        sQ, sQ_pe, sC, sK_pe = (
            part.get_tensor(layout.outer, swizzle=layout.inner) for part, layout in zip(parts, layouts)
        )
        full, empty = storage.latent_full.data_ptr(), storage.latent_empty.data_ptr()
        rotary_full, rotary_empty = storage.rotary_full.data_ptr(), storage.rotary_empty.data_ptr()
        if tidx == 0:
            for turn in cutlass.range_constexpr(self.turns):
                cute.arch.mbarrier_init(full + turn, PAIR)
                cute.arch.mbarrier_init(empty + turn, WARPS)
            for stage in cutlass.range_constexpr(CONSUMERS):
                cute.arch.mbarrier_init(rotary_full + stage, PAIR)
                cute.arch.mbarrier_init(rotary_empty + stage, WARPS)
            cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()
        cute.arch.griddepcontrol_wait()

        there = cute.make_tensor(storage.there.data_ptr(), cute.make_layout((PAIR, CONSUMERS)))  # bits: is it a token?
        if group == CONSUMERS:
            indices = mIndex[row, None]
            pair, warp = cute.arch.make_warp_uniform(thread // (PAIR * LANES)), thread // LANES % PAIR
            place = (split * self.tiles + pair) * TILE + lane * PAIR + warp
            token = sparse.token(indices, place)
            for tile in range(pair, self.tiles, CONSUMERS):
                stage, turn = tile % self.stages, tile % self.turns
                place += CONSUMERS * TILE
                following = sparse.token(indices, place)
                # Of the stage's last tile. What nobody has completed yet counts as having completed its odd phase.
                before = tile + self.turns - self.stages
                cute.arch.mbarrier_wait(empty + before % self.turns, (before // self.turns + 1) % 2)
                self.gather(latent, token, storage.sC.data_ptr() + stage * (TILE * LATENT), thread)
                cute.arch.mbarrier_wait(rotary_empty + pair, (tile // CONSUMERS + 1) % 2)
                self.gather(rotary, token, storage.sK_pe.data_ptr() + pair * (TILE * ROTARY), thread)
                tokens = cute.arch.vote_ballot_sync(token >= 0)
                if lane == 0:  # which hands the tile over, too
                    there[warp, pair] = tokens
                hand_over(1, full + turn, lane)
                hand_over(0, rotary_full + pair, lane)
                token = following

        if group < CONSUMERS:
            self.load_queries(mQ[row, None, None], storage.sQ.data_ptr(), tidx)
            self.load_queries(mQ_pe[row, None, None], storage.sQ_pe.data_ptr(), tidx)
            cute.arch.cp_async_commit_group()
            cute.arch.cp_async_wait_group(0)
            cute.arch.fence_proxy("async.shared", space="cta")
            self.all_consumers()

            # Operands as descriptors: (MMA, MMA_M or MMA_N, MMA_K, stage). V^T is the tile with its modes swapped, P^T
            # the first 16 lines of the rotary part.
            sV = cute.make_tensor(sC.iterator, cute.select(layouts[2].outer, mode=[1, 0, 2]))
            sP = cute.local_tile(sK_pe, (HEADS, TILE), (0, 0, None))
            mma_S, mma_O = cute.make_tiled_mma(self.op_S), cute.make_tiled_mma(self.op_O)
            thr_S, thr_O = mma_S.get_slice(0), mma_O.get_slice(0)
            tSrK, tSrK_pe = (mma_S.make_fragment_A(thr_S.partition_A(x)) for x in (sC, sK_pe))
            tSrQ, tSrQ_pe = (mma_S.make_fragment_B(thr_S.partition_B(x[None, None, 0])) for x in (sQ, sQ_pe))
            tOrV = mma_O.make_fragment_A(thr_O.partition_A(sV))
            tOrP = mma_O.make_fragment_B(thr_O.partition_B(sP))
            tSrS = cute.make_rmem_tensor(thr_S.partition_shape_C((TILE, HEADS)), cutlass.Float32)
            tOrO = cute.make_rmem_tensor(thr_O.partition_shape_C((LATENT, HEADS)), cutlass.Float32)
            # The same by head: a thread has 4 of them, and of each 2 tokens in S^T, 2 rows in each 64 of O^T.
            logits, out = heads.by_head(tSrS), heads.by_head(tOrO)
            of_warps = cute.make_tensor(storage.of_warps.data_ptr(), cute.make_layout((HEADS, WARPS, CONSUMERS)))
            most = cute.make_rmem_tensor(cute.make_layout(4), cutlass.Float32)
            total = cute.make_fragment_like(most)
            tOrO.fill(0.0)
            most.fill(-cutlass.Float32.inf)
            total.fill(0.0)

            for step in range((self.tiles + 1 - group) // CONSUMERS):
                tile = step * CONSUMERS + group
                stage, turn = tile % self.stages, tile % self.turns
                cute.arch.mbarrier_wait(full + turn, tile // self.turns % 2)
                warpgroup.fence()
                self.multiply(self.op_S, tSrS, tSrK[None, None, None, stage], tSrQ, True)
                cute.arch.mbarrier_wait(rotary_full + group, step % 2)
                self.multiply(self.op_S, tSrS, tSrK_pe[None, None, None, group], tSrQ_pe, False)
                warpgroup.commit_group()
                warpgroup.wait_group(0)

                mask = self.mask(there[None, group], thread)
                self.softmax(logits, out, most, total, mask, of_warps[None, None, group], group, thread)
                heads.store(tSrS, storage.sK_pe.data_ptr() + group * (TILE * ROTARY), thread)
                cute.arch.fence_proxy("async.shared", space="cta")
                cute.arch.barrier(barrier_id=1 + group, number_of_threads=WARPGROUP)
                warpgroup.fence()
                self.multiply(self.op_O, tOrO, tOrV[None, None, None, stage], tOrP[None, None, None, group], False)
                warpgroup.commit_group()
                warpgroup.wait_group(0)
                if lane == 0:
                    cute.arch.mbarrier_arrive(empty + turn)
                    cute.arch.mbarrier_arrive(rotary_empty + group)

            for i in cutlass.range_constexpr(4):
                total[i] = heads.over_rows(total[i], operator.add)
            heads.to_warps(total, of_warps[None, None, group], thread)
            # Both warpgroups are through: the stages are free for what they exchange.
            self.all_consumers()
            partial = mParts[split, row, None, None], mSums[split, row, None, None]
            outside = mO[row, None, None], mLse[row, None], *partial
            # The other warpgroup's same thread has the same elements: they pass each other vectors of 4, by thread.
            exchange = cute.recast_ptr(storage.sC.data_ptr(), dtype=cutlass.Float32)
            maxima = cute.make_tensor(exchange, cute.make_layout((4, WARPGROUP, CONSUMERS)))
            outputs = heads.halves(exchange + cute.size(maxima), BLOCKS, WARPGROUP)
            cute.autovec_copy(most, maxima[None, thread, group])
            if group == 0:
                cute.autovec_copy(heads.half(tOrO, 1), outputs[None, None, thread, 0])
            else:
                cute.autovec_copy(heads.half(tOrO, 0), outputs[None, None, thread, 1])
            self.all_consumers()
            given = most, of_warps, maxima, outputs
            if group == 0:
                self.finish(tOrO, given, outside, thread, 0)
            else:
                self.finish(tOrO, given, outside, thread, 1)

    def smem_layouts(self, dtype: type[cutlass.Numeric]):
        """Of queries and tiles, latent and rotary: (rows, elements, stages)."""
        sizes = (HEADS, LATENT, 1), (HEADS, ROTARY, 1), (TILE, LATENT, self.stages), (TILE, ROTARY, CONSUMERS)
        return [wgmma.smem_layout(dtype, OperandMajorMode.K, *size) for size in sizes]

    @cute.jit
    def load_queries(self, queries: cute.Tensor, base: cute.Pointer, thread: cutlass.Int32):
        """Start copies of all heads to shared memory, swizzled, by the consumers."""
        vectors, threads = queries.shape[1] // VECTOR, CONSUMERS * WARPGROUP
        for i in cutlass.range_constexpr(cute.ceil_div(HEADS * vectors, threads)):
            head, place = (i * threads + thread) // vectors, (i * threads + thread) % vectors
            if head < HEADS:
                src = cute.local_tile(queries[head, None], (VECTOR,), (place,))
                start_copy(pieces.place(base, HEADS, head, place), src.iterator, 16)

    @cute.jit
    def gather(self, cache: cute.Tensor, token: cutlass.Int32, base: cute.Pointer, thread: cutlass.Int32):
        """Start copies of a tile's tokens to shared memory, as a group; zeros for those that are none.

        token: each lane's, of the every other row of the tile that is the warp's.
        """
        warp, lane = thread // LANES % PAIR, thread % LANES
        vectors = cache.shape[1] // VECTOR
        lanes = min(vectors, LANES)  # on a row
        for i in cutlass.range_constexpr(TILE // PAIR * lanes // LANES):
            number = i * (LANES // lanes) + lane // lanes
            its = cute.arch.shuffle_sync(token, number)
            for j in cutlass.range_constexpr(vectors // lanes):
                place = j * lanes + lane % lanes
                src = cute.local_tile(cache[max(its, 0), None], (VECTOR,), (place,))
                dst = pieces.place(base, TILE, number * PAIR + warp, place)
                start_copy(dst, src.iterator, 16 if its >= 0 else 0)
        cute.arch.cp_async_commit_group()

    @cute.jit
    def multiply(
        self, op: cutlass.Constexpr, acc: cute.Tensor, a: cute.Tensor, b: cute.Tensor, first: cutlass.Constexpr
    ):
        """Issue the WGMMAs of a product. first: overwrite the accumulators."""
        mma = cute.make_tiled_mma(op)
        for k_block in cutlass.range_constexpr(cute.size(a, mode=[2])):
            mma.set(warpgroup.Field.ACCUMULATE, not first or k_block > 0)
            cute.gemm(mma, acc, a[None, None, k_block], b[None, None, k_block], acc)

    @cute.jit
    def softmax(
        self, logits: cute.Tensor, out: cute.Tensor, most: cute.Tensor, total: cute.Tensor, mask: cute.Tensor,
        of_warps: cute.Tensor, group: cutlass.Int32, thread: cutlass.Int32,
    ):
        """Products become weights; the sum and the output so far become relative to the new maximum."""
        here = cute.make_fragment_like(most)
        for i in cutlass.range_constexpr(4):
            masked = logits[i, None].load() * (SM_SCALE * math.log2(math.e)) + mask.load()
            logits[i, None].store(masked)
            here[i] = heads.over_rows(cute.arch.fmax(masked[0], masked[1]), cute.arch.fmax)
        heads.to_warps(here, of_warps, thread)
        # Also: all four warps' WGMMAs have read the rotary part, whose place the weights take.
        cute.arch.barrier(barrier_id=1 + group, number_of_threads=WARPGROUP)

        for i in cutlass.range_constexpr(4):
            larger = heads.over_warps(of_warps, heads.number(i, thread), most[i], cute.arch.fmax)
            base = sparse.finite(larger)
            scale = sparse.exp2(most[i] - base)
            most[i] = larger
            weights = sparse.exp2(logits[i, None].load() - base)
            logits[i, None].store(weights)
            total[i] = total[i] * scale + (weights[0] + weights[1])
            out[i, None].store(out[i, None].load() * scale)

    @cute.jit
    def mask(self, there: cute.Tensor, thread: cutlass.Int32):
        """What is added to the logits of a thread's two tokens: 0, or -inf where there is none."""
        mask = cute.make_rmem_tensor(cute.make_layout(((2, 1),)), cutlass.Float32)
        row = thread // LANES * 16 + thread % LANES // 4
        for i in cutlass.range_constexpr(2):
            bit = there[row % PAIR] >> (row // PAIR + 8 // PAIR * i) & 1
            mask[i] = cutlass.Float32(0) if bit == 1 else -cutlass.Float32.inf
        return mask

    @cute.jit
    def finish(
        self, tOrO: cute.Tensor, given: tuple, outside: tuple, thread: cutlass.Int32, group: cutlass.Constexpr
    ):
        """Join one's own half of the output with what the other warpgroup has given, and store it."""
        most, of_warps, maxima, outputs = given
        mO, mLse, mParts, mSums = outside
        own = heads.half(tOrO, group)
        theirs, received = cute.make_fragment_like(most), cute.make_fragment_like(own)
        cute.autovec_copy(maxima[None, thread, 1 - group], theirs)
        cute.autovec_copy(outputs[None, None, thread, 1 - group], received)

        own, received = heads.by_head(own), heads.by_head(received)
        for i in cutlass.range_constexpr(4):
            head = heads.number(i, thread)
            larger = cute.arch.fmax(most[i], theirs[i])
            base = sparse.finite(larger)
            scale, their_scale = sparse.exp2(most[i] - base), sparse.exp2(theirs[i] - base)
            of_own, of_other = (
                heads.over_warps(of_warps[None, None, one], head, cutlass.Float32(0), operator.add)
                for one in (group, 1 - group)
            )
            total = of_own * scale + of_other * their_scale
            if thread < 4 and cutlass.const_expr(group == 0):
                if cutlass.const_expr(self.splits == 1):
                    mLse[head] = base + cute.math.log2(total, fastmath=True)
                else:
                    mSums[head, 0] = larger
                    mSums[head, 1] = total
            if cutlass.const_expr(self.splits == 1):
                inverse = 1.0 / total if total > 0.0 else cutlass.Float32(0)
                scale, their_scale = scale * inverse, their_scale * inverse
            own[i, None].store(own[i, None].load() * scale + received[i, None].load() * their_scale)

        # A thread's pairs of heads, rows of O^T, 8 heads further, blocks of 64 rows.
        target = mO if cutlass.const_expr(self.splits == 1) else mParts
        row = group * (LATENT // 2) + thread // LANES * 16 + thread % LANES // 4
        place = target.iterator + thread % 4 * (2 * LATENT) + row
        layout = cute.make_layout((2, 2, 2, BLOCKS // 2), stride=(LATENT, 8, 8 * LATENT, 64))
        stored = cute.make_rmem_tensor(layout.shape, target.element_type)
        flat = cute.make_tensor(own.iterator, layout.shape)
        stored.store(flat.load().to(target.element_type))
        cute.autovec_copy(stored, cute.make_tensor(place, layout))

    def all_consumers(self):
        cute.arch.barrier(barrier_id=1 + CONSUMERS, number_of_threads=CONSUMERS * WARPGROUP)


def compile(arch: str, shape: tuple[int, ...], dtype: str, config: WgmmaSparseAttentionConfig | None = None) -> Program:
    """The rung for sm_90a and shape (T, topk, pages): any topk, T up to 65535, pages up to 65535."""
    (rows, topk, _), dtype = RUNG.check(arch, shape, dtype)
    config = config or WgmmaSparseAttentionConfig()
    RUNG.require(config.stages in (2, 3), f"stages={config.stages}: 2 or 3, more do not fit into shared memory")
    RUNG.require(config.sm_count > 0, f"sm_count={config.sm_count}: at least 1")
    most, tiles = max_splits(shape), math.ceil(topk / TILE)
    of_split = math.ceil(tiles / sparse.splits_for(rows, tiles, most, config.sm_count, CONSUMERS))
    attention = WgmmaSparseAttention(config, math.ceil(tiles / of_split), of_split)
    arrays = sparse.arrays(RUNG, shape, dtype)
    return compile_program(attention, *arrays, arch=arch, name=RUNG.name)
