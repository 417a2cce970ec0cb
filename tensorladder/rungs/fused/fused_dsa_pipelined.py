"""DeepSeek sparse attention, pipelined: gather, both products and softmax work on neighbouring tiles at a time.

Adds:
    Overlap. In the parent one tile is in flight, and each role waits for the one before. A kernel that reads 1152 B a
    token for 16 x 1088 multiply-adds lives on copies in flight, so they must never stop:
    - Stages of 64 tokens x 128 elements (16 KB), 11 of them: 2.75 tiles. A stage comes back as soon as its own MMAs are
      done, not with its tile: the first quarter of O^T frees the first quarter of V. The rotary 64 elements, read for S
      alone, have a short ring of their own.
    - Tiles of 64 tokens, as two of 128 do not fit. S^T then has 16 of each warp's 32 lanes: tensor cores have time.
    - No thread waits for its own copies: cp.async.mbarrier.arrive makes an arrival of them when they are there, while
      the thread is several stages ahead. The proxy fence moves to the reader, the MMA warp, after its wait.
    - S and P have two buffers. The MMA warp asks for S of a tile before it waits for the weights of the one before:
      QK^T of tile i + 1 runs under the softmax of i, the next softmax under PV of i. P's need no barrier: a commit
      tracks all that its thread has issued, so scores of tile i say also that PV of tile i - 2 is done.
    - O is rescaled only if a maximum has moved by more than 2^`rise`: until then weights are up to 2^8 instead of 1,
      which neither bf16 nor the f32 sums mind. So softmax seldom waits for PV.
    Run on the virtual GPU, and its machine code looked at; not run on a GPU yet.

Warp roles:
    | warps | role                                                                                      |
    |-------|-------------------------------------------------------------------------------------------|
    | 0-3   | softmax: S from tensor memory, P to shared memory, rescale O; write it; warp 0 allocates  |
    | 4-7   | gather: as far ahead as stages are free, 8 threads to a line of 128 B                     |
    | 8     | MMA: S of the next tile, then O of this one                                               |

Budget:
    SMEM: 11 stages of 16 KB, 2 rotary ones of 8 KB: 192 KB; queries 18 KB; P 2 x 2 KB; in all 215 KB of 227, 1 CTA an
    SM. TMEM: S 2 x 16 columns, O 4 x 16: 128 of 512. Registers: 8 logits a thread, 64 of O at its end, 126 in all.

Run:
    tensorladder run fused-dsa-pipelined --shape 4,600,12
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
from cutlass.pipeline import PipelineUserType, make_pipeline_state

from tensorladder.core import arch as archs
from tensorladder.core.probes import Plan
from tensorladder.core.program import Program
from tensorladder.frontends.cutedsl import compile_program
from tensorladder.problems.sparse_attention import HEADS, LATENT, ROTARY, SM_SCALE
from tensorladder.rungs.parts import gathered_lines, heads, heads_tmem, probes, sparse
from tensorladder.rungs.parts.gathered_lines import LINE
from tensorladder.rungs.parts.heads_tmem import LANES, MMA_K
from tensorladder.rungs.parts.tcgen05 import fence_after_thread_sync, fence_before_thread_sync, tmem_columns
from tensorladder.rungs.rung import Rung


@dataclass(frozen=True)
class PipelinedAttentionConfig:
    """stages: of 64 tokens x 128 elements. rise: powers of 2 that a maximum moves by before O is rescaled.

    sm_count: rows are split until so many CTAs have work (B200: 148). least: tiles of a part, as one has no other to
    overlap with. probes: the variant that marks time, which `tensorladder trace` reads.
    """

    stages: int = 11
    rise: float = 8.0
    sm_count: int = 148
    least: int = 2
    probes: bool = False


RUNG = Rung(
    name="fused-dsa-pipelined",
    parent="fused-dsa-tcgen05",
    adds="a ring of stages that come back one by one, two buffers of S and P: gather, QK, softmax and PV overlap",
    archs=("sm_100a",),
    problem="sparse_attention",
    dtypes=("bf16",),
    config=PipelinedAttentionConfig,
    shape=(4, 600, 12),
    probes={
        "tracks": (
            ("gather", ("wait: rotary ring", "copy rotary", "copy stages as they come back")),
            ("MMA", ("wait: keys, QK", "wait: weights", "PV"), ("", "wait: last weights", "last PV")),
            ("softmax", ("wait: scores", "maxima", "weights"), ("wait: last PV, store O",)),
        ),
        "in_flight": (
            ("gather", "load", ("gather", "copy rotary"), ("MMA", "wait: keys, QK")),
            ("QK", "tensor", ("MMA", "wait: keys, QK"), ("softmax", "wait: scores")),
        ),
        "releases": (
            (("QK", "QK"), ("softmax", "wait: scores")),
            (("softmax", "weights"), ("MMA", "wait: weights"), 1),
        ),
    },
)

GATHER, MMA, SOFTMAX = range(3)  # tracks of the probes
TOKENS = 64  # of a tile
KEY = LATENT + ROTARY
BLOCKS = LATENT // LANES  # of O^T, and stages of a tile
BUFFERS = 2  # of S, P and rotary elements
SOFTMAX_WARPS, GATHER_WARP, MMA_WARP = 4, 4, 8
GROUP = 128  # threads that gather, and of the softmax
THREADS = 32 * (MMA_WARP + 1)


class PipelinedAttention:
    def __init__(self, config: PipelinedAttentionConfig, parts: int, tiles: int):
        self.parts, self.tiles = parts, tiles  # of a row, of a part
        self.stages, self.rise = config.stages, config.rise
        self.scale = SM_SCALE * math.log2(math.e)  # so that exp is exp2
        self.tmem_columns = tmem_columns(BUFFERS * HEADS + BLOCKS * HEADS)

    @cute.jit
    def __call__(
        self, mQ: cute.Tensor, mQ_pe: cute.Tensor, mC: cute.Tensor, mK_pe: cute.Tensor, mIndex: cute.Tensor,
        mO: cute.Tensor, mLse: cute.Tensor, mParts: cute.Tensor, mSums: cute.Tensor, mP: cute.Tensor | None = None,
    ):
        # Along K lie Q, K and P^T; V^T lies along M.
        dtype, k_major, mn_major = mQ.element_type, OperandMajorMode.K, OperandMajorMode.MN
        mma_S, mma_O = (heads_tmem.tiled_mma(dtype, *of) for of in ((TOKENS, k_major), (LANES, mn_major)))
        sK_layout = sm100.make_smem_layout_a(mma_S, (TOKENS, HEADS, LANES), dtype, self.stages)
        sR_layout = sm100.make_smem_layout_a(mma_S, (TOKENS, HEADS, ROTARY), dtype, BUFFERS)
        sQ_layout = sm100.make_smem_layout_b(mma_S, (TOKENS, HEADS, KEY), dtype, 1)
        sV_layout = sm100.make_smem_layout_a(mma_O, (LANES, HEADS, TOKENS), dtype, self.stages)
        sP_layout = sm100.make_smem_layout_b(mma_O, (LANES, HEADS, TOKENS), dtype, BUFFERS)

        @cute.struct
        class SharedStorage:
            full: cute.struct.MemRange[cutlass.Int64, self.stages]
            empty: cute.struct.MemRange[cutlass.Int64, self.stages]
            rotary_full: cute.struct.MemRange[cutlass.Int64, BUFFERS]
            rotary_empty: cute.struct.MemRange[cutlass.Int64, BUFFERS]
            scores: cute.struct.MemRange[cutlass.Int64, BUFFERS]
            weights: cute.struct.MemRange[cutlass.Int64, BUFFERS]
            done: cute.struct.MemRange[cutlass.Int64, BUFFERS]
            tmem: cutlass.Int32
            told: cute.struct.Align[cute.struct.MemRange[cutlass.Float32, HEADS * SOFTMAX_WARPS * 2], 16]
            sK: cute.struct.Align[cute.struct.MemRange[dtype, self.stages * TOKENS * LANES], 1024]
            sR: cute.struct.Align[cute.struct.MemRange[dtype, BUFFERS * TOKENS * ROTARY], 1024]
            sQ: cute.struct.Align[cute.struct.MemRange[dtype, HEADS * KEY], 1024]
            sP: cute.struct.Align[cute.struct.MemRange[dtype, BUFFERS * HEADS * TOKENS], 1024]

        self.shared_storage = SharedStorage
        self.kernel(
            mQ, mQ_pe, mC, mK_pe, mIndex, mO, mLse, mParts, mSums, mma_S, mma_O, sK_layout, sR_layout, sQ_layout,
            sV_layout, sP_layout, mP,
        ).launch(grid=(self.parts, mO.shape[0], 1), block=(THREADS, 1, 1), min_blocks_per_mp=1)  # fmt: skip
        if cutlass.const_expr(self.parts > 1):
            sparse.join(mParts, mSums, mO, mLse, self.parts).launch(
                grid=(HEADS, mO.shape[0], 1), block=(sparse.THREADS, 1, 1), use_pdl=True
            )

    @cute.kernel
    def kernel(
        self, mQ: cute.Tensor, mQ_pe: cute.Tensor, mC: cute.Tensor, mK_pe: cute.Tensor, mIndex: cute.Tensor,
        mO: cute.Tensor, mLse: cute.Tensor, mParts: cute.Tensor, mSums: cute.Tensor, mma_S: cute.TiledMma,
        mma_O: cute.TiledMma, sK_layout: cute.ComposedLayout, sR_layout: cute.ComposedLayout,
        sQ_layout: cute.ComposedLayout, sV_layout: cute.ComposedLayout, sP_layout: cute.ComposedLayout,
        mP: cute.Tensor | None,
    ):
        part, row, _ = cute.arch.block_idx()
        cta = row * self.parts + part
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())

        storage = SmemAllocator().allocate(self.shared_storage)
        sK = storage.sK.get_tensor(sK_layout.outer, swizzle=sK_layout.inner)
        sV = storage.sK.get_tensor(sV_layout.outer, swizzle=sV_layout.inner)
        sR = storage.sR.get_tensor(sR_layout.outer, swizzle=sR_layout.inner)
        sQ = storage.sQ.get_tensor(sQ_layout.outer, swizzle=sQ_layout.inner)
        sP = storage.sP.get_tensor(sP_layout.outer, swizzle=sP_layout.inner)
        full, empty = storage.full.data_ptr(), storage.empty.data_ptr()
        rotary_full, rotary_empty = storage.rotary_full.data_ptr(), storage.rotary_empty.data_ptr()
        scores, weights, done = (getattr(storage, n).data_ptr() for n in ("scores", "weights", "done"))

        # full, empty: a stage has been gathered, the MMAs of S and O have read it. scores: S is complete. weights: S is
        # read, P written, O rescaled. done: P is read, O complete. All but the ring's alternate from tile to tile.
        if warp == 0:
            cute.arch.alloc_tmem(self.tmem_columns, storage.tmem.ptr)
            cute.arch.relinquish_tmem_alloc_permit()
            with cute.arch.elect_one():
                for stage in cutlass.range_constexpr(self.stages):
                    cute.arch.mbarrier_init(full + stage, GROUP)
                    cute.arch.mbarrier_init(empty + stage, 1)
                for buffer in cutlass.range_constexpr(BUFFERS):
                    cute.arch.mbarrier_init(rotary_full + buffer, GROUP)
                    cute.arch.mbarrier_init(rotary_empty + buffer, 1)
                    cute.arch.mbarrier_init(scores + buffer, 1)
                    cute.arch.mbarrier_init(weights + buffer, SOFTMAX_WARPS)
                    cute.arch.mbarrier_init(done + buffer, 1)
                cute.arch.mbarrier_init_fence()
            fence_before_thread_sync()
        cute.arch.sync_threads()
        fence_after_thread_sync()
        tmem = cute.arch.retrieve_tmem_ptr(cutlass.Float32, 16, storage.tmem.ptr)
        # Whoever joins the parts may take its place now: it waits for the end of this grid.
        cute.arch.griddepcontrol_launch_dependents()

        # smem -> MMA -> tmem: descriptors (MMA, 1, k, stage or buffer), addresses ((lanes, 16), 1, 1, buffer or block)
        tSrK, tSrR, tSrQ = mma_S.make_fragment_A(sK), mma_S.make_fragment_A(sR), mma_S.make_fragment_B(sQ)
        tOrV, tOrP = mma_O.make_fragment_A(sV), mma_O.make_fragment_B(sP)
        tStS_shape = cute.append(mma_S.partition_shape_C((TOKENS, HEADS)), BUFFERS)
        tOtO_shape = cute.append(mma_O.partition_shape_C((LANES, HEADS)), BLOCKS)
        tStS = cute.make_tensor(tmem, mma_S.make_fragment_C(tStS_shape).layout)
        tOtO = cute.make_tensor(tmem + BUFFERS * HEADS, mma_O.make_fragment_C(tOtO_shape).layout)

        first = part * self.tiles
        tiles = cutlass.min(self.tiles, cute.ceil_div(mIndex.shape[1], TOKENS) - first)
        if warp >= GATHER_WARP and warp < MMA_WARP:
            queries, caches = (sparse.flat(mQ), sparse.flat(mQ_pe)), (sparse.flat(mC), sparse.flat(mK_pe))
            self.gather(queries, caches, mIndex[row, None], storage, row, first, tiles, mP, cta)

        if warp == MMA_WARP:
            read, again = (make_pipeline_state(PipelineUserType.Consumer, self.stages) for _ in range(2))
            probes.start(mP, cta, MMA)
            for step in cutlass.range(tiles + 1, unroll=1):
                probes.mark(mP, cta, MMA, 3 * step)
                # S of tile `step`: its buffer has been read, as the weights of two tiles before say.
                if step < tiles:
                    buffer, phase = step % BUFFERS, step // BUFFERS % 2
                    tStS_tile = tStS[None, None, None, buffer]
                    cute.arch.mbarrier_wait(rotary_full + buffer, phase)
                    # What cp.async has written as threads do, tensor cores may read from here on.
                    cute.arch.fence_proxy("async.shared", space="cta")
                    fence_after_thread_sync()
                    for k in cutlass.range_constexpr(ROTARY // MMA_K):
                        mma_S.set(tcgen05.Field.ACCUMULATE, k > 0)
                        of_Q = tSrQ[None, None, LATENT // MMA_K + k, 0]
                        cute.gemm(mma_S, tStS_tile, tSrR[None, None, k, buffer], of_Q, tStS_tile)
                    with cute.arch.elect_one():
                        tcgen05.commit(rotary_empty + buffer)
                    for block in cutlass.range_constexpr(BLOCKS):
                        cute.arch.mbarrier_wait(full + read.index, read.phase)
                        cute.arch.fence_proxy("async.shared", space="cta")
                        for k in cutlass.range_constexpr(LANES // MMA_K):
                            of_Q = tSrQ[None, None, block * LANES // MMA_K + k, 0]
                            cute.gemm(mma_S, tStS_tile, tSrK[None, None, k, read.index], of_Q, tStS_tile)
                        read.advance()
                    with cute.arch.elect_one():
                        tcgen05.commit(scores + buffer)

                # O of the tile before: its stages are there, and come back one by one.
                probes.mark(mP, cta, MMA, 3 * step + 1)
                probes.mark(mP, cta, MMA, 3 * step + 2)
                if step > 0:
                    tile = step - 1
                    buffer, phase = tile % BUFFERS, tile // BUFFERS % 2
                    cute.arch.mbarrier_wait(weights + buffer, phase)
                    probes.mark(mP, cta, MMA, 3 * step + 2)
                    fence_after_thread_sync()
                    for block in cutlass.range_constexpr(BLOCKS):
                        tOtO_block = tOtO[None, None, None, block]
                        for k in cutlass.range_constexpr(TOKENS // MMA_K):
                            mma_O.set(tcgen05.Field.ACCUMULATE, tile > 0 if k == 0 else True)
                            of_P = tOrP[None, None, k, buffer]
                            cute.gemm(mma_O, tOtO_block, tOrV[None, None, k, again.index], of_P, tOtO_block)
                        with cute.arch.elect_one():
                            tcgen05.commit(empty + again.index)
                        again.advance()
                    with cute.arch.elect_one():
                        tcgen05.commit(done + buffer)
            probes.mark(mP, cta, MMA, 3 * tiles + 3)

        if warp < SOFTMAX_WARPS:
            tS = tStS[(None, None), 0, 0, None]
            tO = cute.make_tensor(tOtO.iterator, cute.make_layout((LANES, BLOCKS * HEADS), stride=(1 << 16, 1)))
            most, total = self.softmax(mIndex[row, None], storage, sP_layout.inner, tS, tO, first, tiles, mP, cta)
            told = heads_tmem.exchange(storage.told)
            last, phase = done + (tiles - 1) % BUFFERS, (tiles - 1) // BUFFERS % 2
            probes.mark(mP, cta, SOFTMAX, 3 * tiles, GROUP)
            heads_tmem.finish(told, tiles, last, phase, tO, most, total, mO, mLse, mParts, mSums, self.parts)
            probes.mark(mP, cta, SOFTMAX, 3 * tiles + 1, GROUP)

        # Give tensor memory back once every warp has read its lanes.
        fence_before_thread_sync()
        cute.arch.sync_threads()
        if warp == 0:
            fence_after_thread_sync()
            cute.arch.dealloc_tmem(tmem, self.tmem_columns)

    @cute.jit
    def gather(
        self, queries: tuple, caches: tuple, indices: cute.Tensor, storage: cutlass.Constexpr, row: cutlass.Int32,
        first: cutlass.Int32, tiles: cutlass.Int32, mP: cute.Tensor | None, cta: cutlass.Int32,
    ):
        """Queries and tokens to shared memory, 16 rows at a time: a thread copies 16 bytes of each line of a row."""
        thread = cute.arch.thread_idx()[0] - 32 * GATHER_WARP
        full, empty = storage.full.data_ptr(), storage.empty.data_ptr()
        rotary_full, rotary_empty = storage.rotary_full.data_ptr(), storage.rotary_empty.data_ptr()
        sK, sR, sQ = (getattr(storage, n).data_ptr() + gathered_lines.offset(thread) for n in ("sK", "sR", "sQ"))
        probes.start(mP, cta, GATHER, GROUP)
        # The first arrival of all is also that of the queries.
        head = row * HEADS + thread // gathered_lines.VECTOR
        gathered_lines.copy_key(queries, [head], thread, sQ, HEADS * LINE)

        # Of a fresh barrier the phase before the first counts as complete.
        fill = make_pipeline_state(PipelineUserType.Producer, self.stages)
        ahead = gathered_lines.tokens(indices, first * TOKENS, TOKENS, thread)
        for tile in cutlass.range(tiles, unroll=1):
            index, ahead = ahead, gathered_lines.tokens(indices, (first + tile + 1) * TOKENS, TOKENS, thread)
            buffer = tile % BUFFERS
            probes.mark(mP, cta, GATHER, 3 * tile, GROUP)
            cute.arch.mbarrier_wait(rotary_empty + buffer, (tile // BUFFERS + 1) % 2)
            probes.mark(mP, cta, GATHER, 3 * tile + 1, GROUP)
            gathered_lines.copy_line(caches[1], 0, index, thread, sR + buffer * TOKENS * ROTARY)
            # An arrival of this thread once its copies up to here are there.
            cute.arch.cp_async_mbarrier_arrive_noinc(rotary_full + buffer)
            probes.mark(mP, cta, GATHER, 3 * tile + 2, GROUP)
            for block in cutlass.range_constexpr(BLOCKS):
                cute.arch.mbarrier_wait(empty + fill.index, fill.phase)
                for half in cutlass.range_constexpr(LANES // LINE):
                    to = sK + (fill.index * LANES + half * LINE) * TOKENS
                    gathered_lines.copy_line(caches[0], block * LANES // LINE + half, index, thread, to)
                cute.arch.cp_async_mbarrier_arrive_noinc(full + fill.index)
                fill.advance()
        probes.mark(mP, cta, GATHER, 3 * tiles, GROUP)

    @cute.jit
    def softmax(
        self, indices: cute.Tensor, storage: cutlass.Constexpr, swizzle: cutlass.Constexpr, tS: cute.Tensor,
        tO: cute.Tensor, first: cutlass.Int32, tiles: cutlass.Int32, mP: cute.Tensor | None, cta: cutlass.Int32,
    ):
        """S to P, tile by tile: (what weights are relative to, the sum of the thread's own) of the thread's heads."""
        thread, told = cute.arch.thread_idx()[0], heads_tmem.exchange(storage.told)
        scores, weights, done = (getattr(storage, n).data_ptr() for n in ("scores", "weights", "done"))

        # tmem -> registers -> smem: 16 lanes x 16 columns at a time
        load_S = heads_tmem.tmem_copy(tcgen05.Ld16x256bOp, 2, tS[None, None, 0])
        thr_S = load_S.get_slice(thread)
        tStS, tSrS = thr_S.partition_S(tS), heads_tmem.registers(thr_S, tS[None, None, 0])
        tSrP = cute.make_fragment_like(tSrS, storage.sP.data_ptr().dtype)
        columns = cute.make_layout((TOKENS, HEADS, BUFFERS), stride=(1, LINE, LINE * HEADS))
        sP = storage.sP.get_tensor(columns, swizzle=swizzle)  # of tokens and heads
        store_P = cute.make_tiled_copy_D(cute.make_copy_atom(StMatrix8x8x16bOp(True, 4), sP.element_type), load_S)
        tPrP, tPsP = store_P.retile(tSrP), store_P.get_slice(thread).partition_D(sP)
        rS, rP = heads.by_head(tSrS), heads.by_head(tSrP)

        most, total = (cute.make_rmem_tensor((heads_tmem.OWN,), cutlass.Float32) for _ in range(2))
        most.fill(-cutlass.Float32.inf)
        total.fill(0.0)
        probes.start(mP, cta, SOFTMAX, GROUP)
        for tile in cutlass.range(tiles, unroll=1):
            buffer, phase = tile % BUFFERS, tile // BUFFERS % 2
            there = cute.make_rmem_tensor((rS.shape[1],), cutlass.Boolean)
            begin = (first + tile) * TOKENS + thread // 32 * 16 + thread % 32 // 4
            for t in cutlass.range_constexpr(cute.size(there)):
                there[t] = sparse.token(indices, begin + 8 * t) >= 0

            probes.mark(mP, cta, SOFTMAX, 3 * tile, GROUP)
            cute.arch.mbarrier_wait(scores + buffer, phase)
            probes.mark(mP, cta, SOFTMAX, 3 * tile + 1, GROUP)
            fence_after_thread_sync()
            cute.copy(load_S, tStS[None, None, None, buffer], tSrS)
            cute.arch.fence_view_async_tmem_load()
            largest = heads_tmem.largest(rS, there, self.scale, most, told, tile)
            probes.mark(mP, cta, SOFTMAX, 3 * tile + 2, GROUP)
            if heads_tmem.above(largest, most, self.rise):
                factor = heads_tmem.move(most, total, largest)
                if tile > 0:
                    # O is that of the tile before.
                    cute.arch.mbarrier_wait(done + (tile - 1) % BUFFERS, (tile - 1) // BUFFERS % 2)
                    fence_after_thread_sync()
                    heads_tmem.rescale(tO, factor)
            heads_tmem.weigh(rS, rP, most, total)
            cute.copy(store_P, tPrP, tPsP[None, None, None, buffer])
            # Each writer's fences, then one lane arrives for the warp.
            cute.arch.fence_proxy("async.shared", space="cta")
            fence_before_thread_sync()
            cute.arch.sync_warp()
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive(weights + buffer)
        return most, total


def compile(arch: str, shape: tuple[int, ...], dtype: str, config: PipelinedAttentionConfig | None = None) -> Program:
    """The rung for one architecture and shape (T, topk, pages): any topk, T up to 65535, pages up to 65535."""
    shape, dtype = RUNG.check(arch, shape, dtype)
    config = config or PipelinedAttentionConfig()
    RUNG.require(config.sm_count > 0 < config.least, f"sm_count={config.sm_count}, least={config.least}: at least 1")
    RUNG.require(config.rise >= 0, f"rise={config.rise}: at least 0")
    two = 2 * BLOCKS  # S of a tile is asked for before the stages of the one before come back
    RUNG.require(config.stages >= two, f"stages={config.stages}: at least {two}, two tiles")
    smem = 2 * (config.stages * TOKENS * LANES + BUFFERS * TOKENS * (ROTARY + HEADS) + HEADS * KEY) + 2048
    limit = archs.find(arch).smem_per_cta
    RUNG.require(smem <= limit, f"stages={config.stages}: {smem} bytes of shared memory, {arch} has {limit}")
    arrays = sparse.arrays(RUNG, shape, dtype)
    if config.probes:
        arrays.append(probes.buffer(Plan.of(RUNG.probes), *marked(shape, dtype, config)))
    parts = sparse.parts(shape, TOKENS, config.sm_count, config.least)
    return compile_program(PipelinedAttention(config, *parts), *arrays, arch=arch, name=RUNG.name)


def marked(shape: tuple[int, ...], dtype: str, config: PipelinedAttentionConfig) -> tuple[int, int]:
    """(CTAs, tiles of each), which the probes mark."""
    parts, tiles = sparse.parts(shape, TOKENS, config.sm_count, config.least)
    return shape[0] * parts, tiles
