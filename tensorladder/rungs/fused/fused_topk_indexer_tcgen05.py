"""The indexer of DeepSeek's sparse attention with tcgen05: two pages a product, the heads of a token in one thread.

Adds:
    Tensor memory to the parent's scores. An instruction multiplies 128 tokens, two pages, by the 64 heads; its sums go
    to tensor memory, of which an epilogue thread reads a lane: all heads of one token. So the sum over the heads needs
    no shuffles, and one group of four warps keeps up with the cache.
    - Roles as in d2: a warp asks TMA for pages, one issues MMAs, four add heads up. Sums have buffers of their own, so
      that the tensor core goes on with the next pages while those before are added up.
    - A stage holds keys, which the tensor core reads, and scales, which the epilogue reads: it is free with the commit
      of its MMAs and an arrival of each epilogue warp, five in all.
    - Pages of a stage are two TMA boxes, wherever the table says. Where a part has an odd number of them the last is
      loaded twice, and what comes of the second is not stored.
    The choice and its dependent launch are the parent's.

Warp roles:
    | warps  | role, in the kernel that scores                                                          |
    |--------|------------------------------------------------------------------------------------------|
    | 0-3    | epilogue: ReLU, weights, sum and scale of 32 tokens each; warp 0 allocates tensor memory |
    | 4      | MMA: issues tcgen05.mma as pages arrive, commits stages and sums                         |
    | 5      | producer: looks up pages and asks TMA for them, as far ahead as stages are free          |
    | all 16 | in the kernel that chooses: count digits of a run of scores, then store its tokens       |

Budget:
    SMEM: two pages are 16 KB and 512 B of scales, 6 stages: 99 KB; q 8 KB: 2 CTAs an SM. TMEM: 4 buffers of 64 columns,
    256 of the SM's 512. Registers: 64 sums and 64 weights a thread, 150 in all. Traffic: as the parent.

Run:
    tensorladder run fused-topk-indexer-tcgen05 --shape 3,40,2048
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
import cutlass.utils.blackwell_helpers as sm100
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, tcgen05
from cutlass.memory import SmemAllocator
from cutlass.pipeline import (
    Agent,
    CooperativeGroup,
    NamedBarrier,
    PipelineTmaUmma,
    PipelineUmmaAsync,
    PipelineUserType,
    make_pipeline_state,
)

from tensorladder.core import arch as archs
from tensorladder.core.program import Program
from tensorladder.frontends.cutedsl import compile_program
from tensorladder.problems.topk_indexer import DIM, HEADS, PAGE, PAGE_BYTES, TOPK_INDEXER, VALUES
from tensorladder.rungs.parts import radix_select
from tensorladder.rungs.parts.radix_select import RadixSelect
from tensorladder.rungs.parts.tcgen05 import fence_after_thread_sync, fence_before_thread_sync, tmem_columns
from tensorladder.rungs.parts.tensors import row_major
from tensorladder.rungs.parts.wgmma import smem_layout
from tensorladder.rungs.rung import Rung


@dataclass(frozen=True)
class Tcgen05IndexerConfig:
    """stages: pairs of pages in shared memory. accumulators: buffers of sums in tensor memory. ctas_per_sm: what
    registers, shared and tensor memory have to allow.

    pages_per_cta: of a query, that a CTA scores at the least; queries are cut into as many parts as there are CTAs for
    them. sm_count: with ctas_per_sm, how many CTAs there should be at the least. threads, cluster: of the kernel that
    chooses, CTAs a query (0: as many as serve).
    """

    stages: int = 6
    accumulators: int = 4
    ctas_per_sm: int = 2
    pages_per_cta: int = 16
    sm_count: int = 148
    threads: int = 512
    cluster: int = 0


RUNG = Rung(
    name="fused-topk-indexer-tcgen05",
    parent="fused-topk-indexer-wgmma",
    adds="scores by tcgen05, two pages a product; all heads of a token in one thread, out of tensor memory",
    archs=("sm_100a",),
    problem="topk_indexer",
    dtypes=("e4m3",),
    config=Tcgen05IndexerConfig,
)

EPILOGUE_WARPS = 4  # one for each 32 lanes of tensor memory
MMA_WARP, TMA_WARP = 4, 5
THREADS = 32 * 6
LANES = 32
PAIR = 2  # pages of a tile
TILE = (PAIR * PAGE, HEADS, DIM)


class Tcgen05Indexer:
    def __init__(self, config: Tcgen05IndexerConfig, shape: tuple[int, ...], cluster: int):
        batch, pages, topk = shape
        self.stages, self.ctas_per_sm = config.stages, config.ctas_per_sm
        self.accumulators, self.tmem_columns = config.accumulators, tmem_columns(config.accumulators * HEADS)
        self.parts = parts(config, batch, pages)
        self.select = RadixSelect(topk, PAGE, config.threads, cluster)

    @cute.jit
    def __call__(
        self, mQ: cute.Tensor, mK: cute.Tensor, mW: cute.Tensor, mL: cute.Tensor, mT: cute.Tensor, mI: cute.Tensor,
        mS: cute.Tensor,
    ):
        # The cache as its values (token, element, page) and its scales (token, page); q as (head, element, query).
        element_type, pages = mQ.element_type, mK.shape[0]
        values = cute.recast_ptr(mK.iterator, dtype=element_type)
        mV = cute.make_tensor(values, cute.make_layout((PAGE, DIM, pages), stride=(DIM, 1, PAGE_BYTES)))
        scales = cute.recast_ptr(mK.iterator + VALUES, dtype=cutlass.Float32)
        mX = cute.make_tensor(scales, cute.make_layout((PAGE, pages), stride=(1, PAGE_BYTES // 4)))
        mQ = cute.make_tensor(mQ.iterator, cute.select(mQ.layout, mode=[1, 2, 0]))

        majors, group = (OperandMajorMode.K, OperandMajorMode.K), tcgen05.CtaGroup.ONE
        tiled_mma = sm100.make_trivial_tiled_mma(*[element_type] * 2, *majors, cutlass.Float32, group, TILE[:2])

        # The same memory twice: as the MMAs read it, (MMA, MMA_M, MMA_K, stage), and as pages, two a stage.
        sV_layout = sm100.make_smem_layout_a(tiled_mma, TILE, element_type, self.stages)
        sQ_layout = sm100.make_smem_layout_b(tiled_mma, TILE, element_type, 1)
        pages_V = smem_layout(element_type, OperandMajorMode.K, PAGE, DIM, PAIR * self.stages)
        heads_Q = smem_layout(element_type, OperandMajorMode.K, HEADS, DIM, 1)
        pages_X = cute.make_layout((PAGE, PAIR * self.stages))
        load = cpasync.CopyBulkTensorTileG2SOp()
        tma_V, mV = cpasync.make_tiled_tma_atom(load, mV, cute.select(pages_V, mode=[0, 1]), (PAGE, DIM))
        tma_Q, mQ = cpasync.make_tiled_tma_atom(load, mQ, cute.select(heads_Q, mode=[0, 1]), (HEADS, DIM))
        tma_X, mX = cpasync.make_tiled_tma_atom(load, mX, cute.select(pages_X, mode=[0]), (PAGE,))

        @cute.struct
        class SharedStorage:
            barriers: cute.struct.MemRange[cutlass.Int64, 2 * self.stages]
            sums: cute.struct.MemRange[cutlass.Int64, 2 * self.accumulators]
            q_full: cutlass.Int64
            tmem: cutlass.Int32
            sX: cute.struct.Align[cute.struct.MemRange[cutlass.Float32, cute.cosize(pages_X)], 128]
            sQ: cute.struct.Align[cute.struct.MemRange[element_type, cute.cosize(sQ_layout)], 1024]
            sV: cute.struct.Align[cute.struct.MemRange[element_type, cute.cosize(sV_layout)], 1024]

        self.shared_storage = SharedStorage
        self.kernel(
            tma_Q, mQ, tma_V, mV, tma_X, mX, mW, mL, mT, mS, sQ_layout, heads_Q, sV_layout, pages_V, pages_X, tiled_mma
        ).launch(
            grid=(self.parts, mL.shape[0], 1),
            block=(THREADS, 1, 1),
            min_blocks_per_mp=self.ctas_per_sm,
            preferred_smem_carveout=100,  # percent; given so that the DSL need not ask a GPU
        )  # fmt: skip
        self.select(mS, mL, mT, mI)

    @cute.kernel
    def kernel(
        self, tma_Q: cute.CopyAtom, mQ: cute.Tensor, tma_V: cute.CopyAtom, mV: cute.Tensor, tma_X: cute.CopyAtom,
        mX: cute.Tensor, mW: cute.Tensor, mL: cute.Tensor, mT: cute.Tensor, mS: cute.Tensor,
        sQ_layout: cute.ComposedLayout, heads_Q: cute.ComposedLayout, sV_layout: cute.ComposedLayout,
        pages_V: cute.ComposedLayout, pages_X: cute.Layout, tiled_mma: cute.TiledMma,
    ):  # fmt: skip
        tidx, _, _ = cute.arch.thread_idx()
        part, query, _ = cute.arch.block_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        lane = tidx % LANES
        length = mL[query]
        first, count = self.span(part, length)
        tiles = cute.ceil_div(count, PAIR)

        smem = SmemAllocator()
        storage = smem.allocate(self.shared_storage)
        sQ = storage.sQ.get_tensor(sQ_layout.outer, swizzle=sQ_layout.inner)
        sV = storage.sV.get_tensor(sV_layout.outer, swizzle=sV_layout.inner)
        sX = storage.sX.get_tensor(pages_X)
        element_type = sV.element_type
        q_bytes = cute.size_in_bytes(element_type, cute.select(heads_Q, mode=[0, 1]))
        page_bytes = cute.size_in_bytes(element_type, cute.select(pages_V, mode=[0, 1])) + 4 * PAGE

        # gmem -> smem: (TMA, page of a stage), (TMA, query or page)
        tQsQ, tQgQ = self.tma_partition(tma_Q, storage.sQ.get_tensor(heads_Q.outer, swizzle=heads_Q.inner), mQ, 2)
        tVsV, tVgV = self.tma_partition(tma_V, storage.sV.get_tensor(pages_V.outer, swizzle=pages_V.inner), mV, 2)
        tXsX, tXgX = self.tma_partition(tma_X, sX, mX, 1)

        # smem -> MMA: descriptors (MMA, MMA_M, MMA_K, stage). MMA -> tmem: ((128 tokens, 64 heads), 1, 1, buffer)
        tCrV = tiled_mma.make_fragment_A(sV)
        tCrQ = tiled_mma.make_fragment_B(sQ)
        shape = cute.append(tiled_mma.partition_shape_C(TILE[:2]), self.accumulators)
        tCtC_layout = tiled_mma.make_fragment_C(shape).layout

        # The ring of stages: full completes with an arrival and the pages' bytes, empty with a commit, when the keys
        # have been read, and an arrival of each epilogue warp, when the scales have. The sums: full completes with a
        # commit, empty with an arrival of each epilogue warp.
        one = CooperativeGroup(Agent.Thread)
        cluster = cute.make_layout((1, 1, 1, 1))
        ring = PipelineTmaUmma.create(
            num_stages=self.stages,
            producer_group=one,
            consumer_group=CooperativeGroup(Agent.Thread, 1 + EPILOGUE_WARPS),
            tx_count=PAIR * page_bytes,
            barrier_storage=storage.barriers.data_ptr(),
            cta_layout_vmnk=cluster,
            defer_sync=True,
        )
        sums = PipelineUmmaAsync.create(
            num_stages=self.accumulators,
            producer_group=one,
            consumer_group=CooperativeGroup(Agent.Thread, EPILOGUE_WARPS),
            barrier_storage=storage.sums.data_ptr(),
            cta_layout_vmnk=cluster,
            defer_sync=True,
        )
        epilogue = NamedBarrier(barrier_id=1, num_threads=LANES * EPILOGUE_WARPS)

        # The fence makes the initialised barriers visible to TMA and the tensor core, the CTA barrier to all threads.
        if warp == 0:
            with cute.arch.elect_one():
                cute.arch.mbarrier_init(storage.q_full.ptr, 1)
            cute.arch.mbarrier_init_fence()
            cute.arch.alloc_tmem(self.tmem_columns, storage.tmem.ptr)
            cute.arch.relinquish_tmem_alloc_permit()
            fence_before_thread_sync()
        cute.arch.sync_threads()
        fence_after_thread_sync()
        tmem = cute.arch.retrieve_tmem_ptr(cutlass.Float32, 16, storage.tmem.ptr)
        tCtC = cute.make_tensor(tmem, tCtC_layout)
        # Once all CTAs of this grid are here, those of the choice may come where there is room.
        cute.arch.griddepcontrol_launch_dependents()

        if warp == TMA_WARP and count > 0:
            cpasync.prefetch_descriptor(tma_V)
            cpasync.prefetch_descriptor(tma_X)
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(storage.q_full.ptr, q_bytes)
            cute.copy(tma_Q, tQgQ[None, query], tQsQ[None, 0], tma_bar_ptr=storage.q_full.ptr)
            fill = make_pipeline_state(PipelineUserType.Producer, self.stages)
            entries = cutlass.Int32(0)
            for i in range(tiles):
                # 32 entries of the table at a time, one a lane; from the end on the last one again.
                if PAIR * i % LANES == 0:
                    entries = mT[query, first + cutlass.min(PAIR * i + lane, count - 1)]
                ring.producer_acquire(fill)
                barrier = ring.producer_get_barrier(fill)
                for j in cutlass.range_constexpr(PAIR):
                    page = cute.arch.shuffle_sync(entries, PAIR * i % LANES + j)
                    at = PAIR * fill.index + j
                    cute.copy(tma_V, tVgV[None, page], tVsV[None, at], tma_bar_ptr=barrier)
                    cute.copy(tma_X, tXgX[None, page], tXsX[None, at], tma_bar_ptr=barrier)
                fill.advance()
            # What is committed or arrives later would hit shared memory that is no longer the CTA's.
            for _ in cutlass.range_constexpr(self.stages):
                ring.sync_object_empty.wait(fill.index, fill.phase)
                fill.advance()

        if warp == MMA_WARP and count > 0:
            read = make_pipeline_state(PipelineUserType.Consumer, self.stages)
            write = make_pipeline_state(PipelineUserType.Producer, self.accumulators)
            cute.arch.mbarrier_wait(storage.q_full.ptr, 0)
            for i in range(tiles):
                sums.producer_acquire(write)
                ring.consumer_wait(read)
                fence_after_thread_sync()
                tCtS = tCtC[None, None, None, write.index]
                for k_block in cutlass.range_constexpr(cute.size(tCrV, mode=[2])):
                    # The first MMA overwrites what tensor memory held.
                    tiled_mma.set(tcgen05.Field.ACCUMULATE, k_block > 0)
                    keys, heads = tCrV[None, None, k_block, read.index], tCrQ[None, None, k_block, 0]
                    cute.gemm(tiled_mma, tCtS, keys, heads, tCtS)
                # Commits: the keys have been read, the sums are there.
                ring.consumer_release(read)
                sums.producer_commit(write)
                read.advance()
                write.advance()

        if warp < EPILOGUE_WARPS:
            # tmem -> registers: thread t has token t, all heads. (heads, 1, 1, buffer)
            atom_t2r = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition(HEADS)), cutlass.Float32)
            tCtS = tCtC[(None, None), 0, 0, None]
            tiled_t2r = tcgen05.make_tmem_copy(atom_t2r, tCtS[None, None, 0])
            thr_t2r = tiled_t2r.get_slice(tidx % 128)
            tDtC = thr_t2r.partition_S(tCtS)
            cC = cute.make_identity_tensor(TILE[:2])
            tDrC = cute.make_rmem_tensor(thr_t2r.partition_D(cC).shape, cutlass.Float32)
            weights = cute.make_rmem_tensor(HEADS, cutlass.Float32)
            cute.autovec_copy(mW[query, None], weights)
            read = make_pipeline_state(PipelineUserType.Consumer, self.stages)
            drain = make_pipeline_state(PipelineUserType.Consumer, self.accumulators)
            end = cutlass.min(length, (first + count) * PAGE)
            for i in range(tiles):
                # The scales came with the keys, but only who waits for the bytes may read them.
                ring.consumer_wait(read)
                scale = sX[PAIR * PAGE * read.index + tidx]
                cute.arch.sync_warp()
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive(ring.sync_object_empty.get_barrier(read.index))
                read.advance()
                sums.consumer_wait(drain)
                fence_after_thread_sync()
                cute.copy(tiled_t2r, tDtC[None, None, None, drain.index], tDrC)
                # The registers hold the sums only from here on.
                cute.arch.fence_view_async_tmem_load()
                # One lane arrives for the warp, so all lanes' reads have to come before it.
                fence_before_thread_sync()
                cute.arch.sync_warp()
                with cute.arch.elect_one():
                    sums.consumer_release(drain)
                drain.advance()
                at = (first + PAIR * i) * PAGE + tidx
                score = scale * self.add_heads(tDrC, weights)
                if at < end:
                    mS[query, at] = score

            # Nobody reads tensor memory any more: the warp that allocated it gives it back.
            epilogue.arrive_and_wait()
            if warp == 0:
                fence_after_thread_sync()
                cute.arch.dealloc_tmem(tmem, self.tmem_columns)

    @cute.jit
    def span(self, part: cutlass.Int32, length: cutlass.Int32):
        """The first page of a CTA's part of a query, and how many it has: as many as the others', or one less."""
        pages = cute.ceil_div(length, PAGE)
        each, more = pages // self.parts, pages % self.parts
        first = part * each + cutlass.min(part, more)
        return first, each + (1 if part < more else 0)

    @cute.jit
    def add_heads(self, tDrC: cute.Tensor, weights: cute.Tensor):
        """The sum over all heads of weight times ReLU, in four parts: additions of one would wait for each other."""
        sums = cute.make_rmem_tensor(4, cutlass.Float32)
        sums.fill(0.0)
        for i in cutlass.range_constexpr(HEADS // 4):
            for j in cutlass.range_constexpr(4):
                sums[j] += weights[4 * i + j] * cutlass.max(tDrC[4 * i + j], cutlass.Float32(0))
        return (sums[0] + sums[1]) + (sums[2] + sums[3])

    @cute.jit
    def tma_partition(self, atom: cute.CopyAtom, smem: cute.Tensor, gmem: cute.Tensor, box: cutlass.Constexpr):
        """Both sides of a TMA copy with the modes of the box, the first `box`, as one."""
        return cpasync.tma_partition(
            atom, 0, cute.make_layout(1), cute.group_modes(smem, 0, box), cute.group_modes(gmem, 0, box)
        )


def parts(config: Tcgen05IndexerConfig, batch: int, pages: int) -> int:
    """Into how many parts a query of so many pages is cut: one for each CTA that there is room for, no smaller than
    pages_per_cta unless SMs would be left without."""
    room = -(-config.sm_count * config.ctas_per_sm // batch)
    return max(1, min(pages, max(room, pages // config.pages_per_cta)))


def compile(arch: str, shape: tuple[int, ...], dtype: str, config: Tcgen05IndexerConfig | None = None) -> Program:
    """The rung for one architecture and shape (B, pages, topk). B up to 65535; arrays 16-byte aligned."""
    shape, dtype = RUNG.check(arch, shape, dtype)
    config = config or Tcgen05IndexerConfig()
    check_config(config, arch)
    cluster = radix_select.check(RUNG, arch, shape, PAGE, config)
    arrays = [row_major(operand.dtype, operand.shape) for operand in TOPK_INDEXER.operands(shape, dtype)]
    return compile_program(Tcgen05Indexer(config, shape, cluster), *arrays, arch=arch, name=RUNG.name)


def check_config(config: Tcgen05IndexerConfig, arch: str) -> None:
    """UsageError unless stages and sums fit, and leave room for as many CTAs as are asked for."""
    fits = 1 <= config.ctas_per_sm <= 2
    RUNG.require(fits, f"ctas_per_sm={config.ctas_per_sm}: 1 or 2, more leave too few registers for sums and weights")
    for name in ("pages_per_cta", "sm_count"):
        RUNG.require(getattr(config, name) > 0, f"{name}={getattr(config, name)}: at least 1")
    RUNG.require(config.stages >= 2, f"stages={config.stages}: at least 2, one to fill and one to multiply")
    smem = config.stages * PAIR * PAGE_BYTES + HEADS * DIM + 2048
    limit = (archs.find(arch).smem_per_cta + 1024) // config.ctas_per_sm - 1024
    RUNG.require(smem <= limit, f"stages={config.stages}: {smem} bytes of shared memory, there are {limit}")
    columns = 512 // config.ctas_per_sm
    fits = config.accumulators > 0 and tmem_columns(config.accumulators * HEADS) <= columns
    RUNG.require(fits, f"accumulators={config.accumulators}: {HEADS} columns each, a CTA has {columns}")
