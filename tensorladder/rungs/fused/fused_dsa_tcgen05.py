"""DeepSeek sparse attention on Blackwell's tensor cores: both products transposed, the output kept in tensor memory.

Adds:
    tcgen05.mma for both products of the parent. Which of their extents becomes M decides everything: M is the lanes of
    tensor memory, 128 of them, and there are 16 heads. So tokens and output elements are M, and heads are N:
    - S^T = K Q^T: 128 tokens by 16 heads, over 576 elements. O^T = V^T P^T: 4 blocks of 128 elements by 16 heads, over
      128 tokens. No lane is idle; with heads as M seven of eight would be.
    - K and V are the same bytes. A token is a row of shared memory, so K lies along its K, V^T along its M: one tile,
      two descriptors, one bit of the instruction.
    - Only A may come from tensor memory, and P^T is B: it goes through shared memory, O^T never leaves tensor memory.
    - Tokens are lanes, so a maximum runs across threads. tcgen05.ld.16x256b hands out values as an mma's accumulator: a
      thread has 4 heads of 4 tokens, so 3 shuffles a head are enough (a thread a lane would need 16 by 5), the thread
      needs the factors of 4 heads alone when it rescales O^T, and stmatrix.trans turns 16 tokens by 16 heads into rows
      of P^T in one instruction.
    - O^T is rescaled where it lies (ld, multiply, st), if the maximum of any head has moved.
    - Tokens are gathered by cp.async. It writes as threads do, and tensor cores read as TMA does: each thread waits
      for its copies and fences, before its warp arrives.
    A row with work enough for a CTA alone is finished there; else its parts are joined as the parent's are.
    Run on the virtual GPU, and its machine code looked at; not run on a GPU yet.

Warp roles:
    | warps | role                                                                                      |
    |-------|-------------------------------------------------------------------------------------------|
    | 0-3   | softmax: S from tensor memory, P to shared memory, rescale O; write it; warp 0 allocates  |
    | 4-7   | gather: queries once, then 128 tokens of 1152 B a tile, 8 threads to a line of 128 B      |
    | 8     | MMA: 36 for S, 4 x 8 for O, a tile                                                        |

Budget:
    SMEM: tokens 128 x 576 x 2 B = 144 KB, one tile; queries 16 x 576 x 2 B = 18 KB; P 4 KB; 1 CTA an SM. TMEM: S 16
    columns, O 4 x 16, so 128 of 512. Registers: 16 logits a thread, 64 of O at its end, 128 in all.

Run:
    tensorladder run fused-dsa-tcgen05 --shape 4,600,12
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
import cutlass.utils.blackwell_helpers as sm100
from cutlass.cute.nvgpu import OperandMajorMode, tcgen05
from cutlass.cute.nvgpu.warp import StMatrix8x8x16bOp
from cutlass.memory import SmemAllocator

from tensorladder.core.program import Program
from tensorladder.frontends.cutedsl import compile_program
from tensorladder.problems.sparse_attention import HEADS, LATENT, ROTARY, SM_SCALE
from tensorladder.rungs.parts import gathered_lines, heads, heads_tmem, sparse
from tensorladder.rungs.parts.gathered_lines import LINE
from tensorladder.rungs.parts.heads_tmem import LANES, MMA_K
from tensorladder.rungs.parts.tcgen05 import fence_after_thread_sync, fence_before_thread_sync, tmem_columns
from tensorladder.rungs.rung import Rung


@dataclass(frozen=True)
class TensorCoreAttentionConfig:
    """sm_count: rows are split until so many CTAs have work (B200: 148). least: tiles of a part, if there are."""

    sm_count: int = 148
    least: int = 2


RUNG = Rung(
    name="fused-dsa-tcgen05",
    parent="fused-dsa-split",
    adds="tcgen05 for both products, transposed: 16 heads are N; O in tensor memory; gather, MMA, softmax warps",
    archs=("sm_100a",),
    problem="sparse_attention",
    dtypes=("bf16",),
    config=TensorCoreAttentionConfig,
    shape=(4, 600, 12),
)

TOKENS = 128  # of a tile
KEY = LATENT + ROTARY
BLOCKS = LATENT // LANES  # of O^T
SOFTMAX_WARPS, GATHER_WARP, GATHER_WARPS, MMA_WARP = 4, 4, 4, 8
THREADS = 32 * (MMA_WARP + 1)


class TensorCoreAttention:
    def __init__(self, parts: int, tiles: int):
        self.parts, self.tiles = parts, tiles  # of a row, of a part
        self.scale = SM_SCALE * math.log2(math.e)  # so that exp is exp2
        self.tmem_columns = tmem_columns(HEADS + BLOCKS * HEADS)

    @cute.jit
    def __call__(
        self, mQ: cute.Tensor, mQ_pe: cute.Tensor, mC: cute.Tensor, mK_pe: cute.Tensor, mIndex: cute.Tensor,
        mO: cute.Tensor, mLse: cute.Tensor, mParts: cute.Tensor, mSums: cute.Tensor,
    ):
        # Along K lie Q, K and P^T; V^T lies along M.
        dtype, k_major, mn_major = mQ.element_type, OperandMajorMode.K, OperandMajorMode.MN
        mma_S, mma_O = (heads_tmem.tiled_mma(dtype, *of) for of in ((TOKENS, k_major), (LANES, mn_major)))
        sK_layout = sm100.make_smem_layout_a(mma_S, (TOKENS, HEADS, KEY), dtype, 1)
        sQ_layout = sm100.make_smem_layout_b(mma_S, (TOKENS, HEADS, KEY), dtype, 1)
        sV_layout = sm100.make_smem_layout_a(mma_O, (LATENT, HEADS, TOKENS), dtype, 1)
        sP_layout = sm100.make_smem_layout_b(mma_O, (LATENT, HEADS, TOKENS), dtype, 1)

        @cute.struct
        class SharedStorage:
            full: cutlass.Int64
            scores: cutlass.Int64
            weights: cutlass.Int64
            done: cutlass.Int64
            tmem: cutlass.Int32
            told: cute.struct.Align[cute.struct.MemRange[cutlass.Float32, HEADS * SOFTMAX_WARPS * 2], 16]
            sK: cute.struct.Align[cute.struct.MemRange[dtype, TOKENS * KEY], 1024]
            sQ: cute.struct.Align[cute.struct.MemRange[dtype, HEADS * KEY], 1024]
            sP: cute.struct.Align[cute.struct.MemRange[dtype, HEADS * TOKENS], 1024]

        self.shared_storage = SharedStorage
        rows = mO.shape[0]
        self.kernel(
            mQ, mQ_pe, mC, mK_pe, mIndex, mO, mLse, mParts, mSums, mma_S, mma_O, sK_layout, sQ_layout, sV_layout,
            sP_layout,
        ).launch(grid=(self.parts, rows, 1), block=(THREADS, 1, 1), min_blocks_per_mp=1)  # fmt: skip
        if cutlass.const_expr(self.parts > 1):
            sparse.join(mParts, mSums, mO, mLse, self.parts).launch(
                grid=(HEADS, rows, 1), block=(sparse.THREADS, 1, 1), use_pdl=True
            )

    @cute.kernel
    def kernel(
        self, mQ: cute.Tensor, mQ_pe: cute.Tensor, mC: cute.Tensor, mK_pe: cute.Tensor, mIndex: cute.Tensor,
        mO: cute.Tensor, mLse: cute.Tensor, mParts: cute.Tensor, mSums: cute.Tensor, mma_S: cute.TiledMma,
        mma_O: cute.TiledMma, sK_layout: cute.ComposedLayout, sQ_layout: cute.ComposedLayout,
        sV_layout: cute.ComposedLayout, sP_layout: cute.ComposedLayout,
    ):
        part, row, _ = cute.arch.block_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())

        storage = SmemAllocator().allocate(self.shared_storage)
        sK = storage.sK.get_tensor(sK_layout.outer, swizzle=sK_layout.inner)
        sV = storage.sK.get_tensor(sV_layout.outer, swizzle=sV_layout.inner)
        sQ = storage.sQ.get_tensor(sQ_layout.outer, swizzle=sQ_layout.inner)
        sP = storage.sP.get_tensor(sP_layout.outer, swizzle=sP_layout.inner)
        full, scores, weights, done = (getattr(storage, n).ptr for n in ("full", "scores", "weights", "done"))

        # full: a tile has been gathered. scores: S is complete. weights: S is read, P written, O rescaled. done: P and
        # the tile are read, O is complete.
        if warp == 0:
            cute.arch.alloc_tmem(self.tmem_columns, storage.tmem.ptr)
            cute.arch.relinquish_tmem_alloc_permit()
            with cute.arch.elect_one():
                cute.arch.mbarrier_init(full, GATHER_WARPS)
                cute.arch.mbarrier_init(scores, 1)
                cute.arch.mbarrier_init(weights, SOFTMAX_WARPS)
                cute.arch.mbarrier_init(done, 1)
                cute.arch.mbarrier_init_fence()
            fence_before_thread_sync()
        cute.arch.sync_threads()
        fence_after_thread_sync()
        tmem = cute.arch.retrieve_tmem_ptr(cutlass.Float32, 16, storage.tmem.ptr)
        # Whoever joins the parts may take its place now: it waits for the end of this grid.
        cute.arch.griddepcontrol_launch_dependents()

        # smem -> MMA -> tmem: descriptors (MMA, blocks, k, 1), addresses ((128, 16), blocks, 1)
        tSrK, tSrQ = mma_S.make_fragment_A(sK), mma_S.make_fragment_B(sQ)
        tOrV, tOrP = mma_O.make_fragment_A(sV), mma_O.make_fragment_B(sP)
        tStS_layout = mma_S.make_fragment_C(mma_S.partition_shape_C((TOKENS, HEADS))).layout
        tOtO_layout = mma_O.make_fragment_C(mma_O.partition_shape_C((LATENT, HEADS))).layout
        tStS, tOtO = cute.make_tensor(tmem, tStS_layout), cute.make_tensor(tmem + HEADS, tOtO_layout)

        first = part * self.tiles
        tiles = cutlass.min(self.tiles, cute.ceil_div(mIndex.shape[1], TOKENS) - first)
        if warp >= GATHER_WARP and warp < MMA_WARP:
            queries, caches = (sparse.flat(mQ), sparse.flat(mQ_pe)), (sparse.flat(mC), sparse.flat(mK_pe))
            self.gather(queries, caches, mIndex[row, None], storage, row, first, tiles)

        if warp == MMA_WARP:
            for tile in cutlass.range(tiles, unroll=1):
                cute.arch.mbarrier_wait(full, tile % 2)
                fence_after_thread_sync()
                for k in cutlass.range_constexpr(KEY // MMA_K):
                    mma_S.set(tcgen05.Field.ACCUMULATE, k > 0)
                    cute.gemm(mma_S, tStS, tSrK[None, None, k, 0], tSrQ[None, None, k, 0], tStS)
                with cute.arch.elect_one():
                    tcgen05.commit(scores)

                cute.arch.mbarrier_wait(weights, tile % 2)
                fence_after_thread_sync()
                for k in cutlass.range_constexpr(TOKENS // MMA_K):
                    mma_O.set(tcgen05.Field.ACCUMULATE, tile > 0 if k == 0 else True)
                    cute.gemm(mma_O, tOtO, tOrV[None, None, k, 0], tOrP[None, None, k, 0], tOtO)
                with cute.arch.elect_one():
                    tcgen05.commit(done)

        if warp < SOFTMAX_WARPS:
            tS = tStS[(None, None), 0, 0]
            tO = cute.make_tensor(tOtO.iterator, cute.make_layout((LANES, BLOCKS * HEADS), stride=tS.stride))
            most, total = self.softmax(mIndex[row, None], storage, sP_layout.inner, tS, tO, first, tiles)
            told, outputs = heads_tmem.exchange(storage.told), (mO, mLse, mParts, mSums)
            heads_tmem.finish(told, tiles, done, (tiles - 1) % 2, tO, most, total, *outputs, self.parts)

        # Give tensor memory back once every warp has read its lanes.
        fence_before_thread_sync()
        cute.arch.sync_threads()
        if warp == 0:
            fence_after_thread_sync()
            cute.arch.dealloc_tmem(tmem, self.tmem_columns)

    @cute.jit
    def gather(
        self, queries: tuple, caches: tuple, indices: cute.Tensor, storage: cutlass.Constexpr, row: cutlass.Int32,
        first: cutlass.Int32, tiles: cutlass.Int32,
    ):
        """Queries and tokens to shared memory, 16 rows at a time: a thread copies 16 bytes of each line of a row."""
        thread = cute.arch.thread_idx()[0] - 32 * GATHER_WARP
        sQ, sK = (getattr(storage, n).data_ptr() + gathered_lines.offset(thread) for n in ("sQ", "sK"))
        head = row * HEADS + thread // gathered_lines.VECTOR
        gathered_lines.copy_key(queries, [head], thread, sQ, HEADS * LINE)

        for tile in cutlass.range(tiles, unroll=1):
            # The MMAs have read the tile before. Of a fresh barrier the phase before the first counts as complete.
            cute.arch.mbarrier_wait(storage.done.ptr, (tile + 1) % 2)
            index = gathered_lines.tokens(indices, (first + tile) * TOKENS, TOKENS, thread)
            gathered_lines.copy_key(caches, index, thread, sK, TOKENS * LINE)
            # Each thread waits for its copies and fences, then its warp arrives.
            cute.arch.cp_async_commit_group()
            cute.arch.cp_async_wait_group(0)
            cute.arch.fence_proxy("async.shared", space="cta")
            cute.arch.sync_warp()
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive(storage.full.ptr)

    @cute.jit
    def softmax(
        self, indices: cute.Tensor, storage: cutlass.Constexpr, swizzle: cutlass.Constexpr, tS: cute.Tensor,
        tO: cute.Tensor, first: cutlass.Int32, tiles: cutlass.Int32,
    ):
        """S to P, tile by tile: (the maximum, the sum of the thread's weights relative to it) of the thread's heads."""
        thread, _, _ = cute.arch.thread_idx()
        told = heads_tmem.exchange(storage.told)

        # tmem -> registers -> smem: 16 lanes x 16 columns at a time
        load_S = heads_tmem.tmem_copy(tcgen05.Ld16x256bOp, 2, tS)
        thr_S = load_S.get_slice(thread)
        tStS, tSrS = thr_S.partition_S(tS), heads_tmem.registers(thr_S, tS)
        tSrP = cute.make_fragment_like(tSrS, storage.sP.data_ptr().dtype)
        columns = cute.make_layout(((LINE, TOKENS // LINE), HEADS), stride=((1, LINE * HEADS), LINE))
        sP = storage.sP.get_tensor(columns, swizzle=swizzle)  # of tokens and heads
        store_P = cute.make_tiled_copy_D(cute.make_copy_atom(StMatrix8x8x16bOp(True, 4), sP.element_type), load_S)
        tPrP, tPsP = store_P.retile(tSrP), store_P.get_slice(thread).partition_D(sP)
        rS, rP = heads.by_head(tSrS), heads.by_head(tSrP)

        most, total = (cute.make_rmem_tensor((heads_tmem.OWN,), cutlass.Float32) for _ in range(2))
        most.fill(-cutlass.Float32.inf)
        total.fill(0.0)
        for tile in cutlass.range(tiles, unroll=1):
            there = cute.make_rmem_tensor((rS.shape[1],), cutlass.Boolean)
            begin = (first + tile) * TOKENS + thread // 32 * 32 + thread % 32 // 4
            for t in cutlass.range_constexpr(cute.size(there)):
                there[t] = sparse.token(indices, begin + 8 * t) >= 0

            cute.arch.mbarrier_wait(storage.scores.ptr, tile % 2)
            fence_after_thread_sync()
            cute.copy(load_S, tStS, tSrS)
            cute.arch.fence_view_async_tmem_load()
            largest = heads_tmem.largest(rS, there, self.scale, most, told, tile)
            if heads_tmem.above(largest, most, 0.0):
                factor = heads_tmem.move(most, total, largest)
                if tile > 0:
                    heads_tmem.rescale(tO, factor)
            heads_tmem.weigh(rS, rP, most, total)
            cute.copy(store_P, tPrP, tPsP)
            # Each writer's fences, then one lane arrives for the warp.
            cute.arch.fence_proxy("async.shared", space="cta")
            fence_before_thread_sync()
            cute.arch.sync_warp()
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive(storage.weights.ptr)
        return most, total


def compile(arch: str, shape: tuple[int, ...], dtype: str, config: TensorCoreAttentionConfig | None = None) -> Program:
    """The rung for one architecture and shape (T, topk, pages): any topk, T up to 65535, pages up to 65535."""
    shape, dtype = RUNG.check(arch, shape, dtype)
    config = config or TensorCoreAttentionConfig()
    RUNG.require(config.sm_count > 0 < config.least, f"sm_count={config.sm_count}, least={config.least}: at least 1")
    parts = sparse.parts(shape, TOKENS, config.sm_count, config.least)
    arrays = sparse.arrays(RUNG, shape, dtype)
    return compile_program(TensorCoreAttention(*parts), *arrays, arch=arch, name=RUNG.name)
