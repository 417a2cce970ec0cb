"""The indexer of DeepSeek's sparse attention with WGMMA: scores of a paged fp8 cache, then an exact choice of the best.

Adds:
    A pipeline of two kernels around a product that is thin: all tokens by one query's 64 heads, where a ReLU and a
    weighted sum over the heads leave one number a token. What counts is that each byte of the cache is read once.
    - Pages instead of rows: the table says where a query's tokens lie. A page is one TMA box; the producer's lanes look
      up 32 pages at a time, so that no load waits for an entry of the table. A second box brings the page's scales.
    - Tokens are the rows of the product, heads its columns: q stays in shared memory, and a token's heads lie in one
      thread but for two shuffles.
    - The warpgroups take turns: while one adds heads up, the other multiplies. Each has stages of its own. Had they any
      in common, one could come to a stage of which it has not seen the last phase, the other's, end: by its parity the
      phase before that looks like the one that it waits for.
    - The choice (parts/radix_select.py) is a kernel of its own, as it needs all scores: a cluster of CTAs a query. It
      is launched as a dependent: its CTAs are there, their counters cleared, when the last score is written.

Warp roles:
    | warps    | role, in the kernel that scores                                                        |
    |----------|----------------------------------------------------------------------------------------|
    | 0-3, 4-7 | consumers, a warpgroup every other page: multiply, add up the heads, scale, store      |
    | 8        | producer: looks up pages and asks TMA for them, as far ahead as stages are free        |
    | all 16   | in the kernel that chooses: count digits of a run of scores, then store its tokens     |

Budget:
    SMEM: a page is 8 KB and 256 B of scales, 8 stages: 66 KB; q 8 KB: 2 CTAs an SM. The choice: 32 KB of counters, up
    to 37 KB that CTAs send each other, and its keys. Registers: 32 accumulators and 16 weights a thread, 64 in all.
    Traffic: 132 B a token from the cache, 4 B each way for its score, which stays in L2. No TMEM.

Run:
    tensorladder run fused-topk-indexer-wgmma --shape 3,40,2048
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup
from cutlass.memory import SmemAllocator
from cutlass.pipeline import Agent, CooperativeGroup, PipelineTmaAsync

from tensorladder.core import arch as archs
from tensorladder.core.program import Program
from tensorladder.frontends.cutedsl import compile_program
from tensorladder.problems.topk_indexer import DIM, HEADS, PAGE, PAGE_BYTES, TOPK_INDEXER, VALUES
from tensorladder.rungs.parts import radix_select
from tensorladder.rungs.parts.radix_select import RadixSelect
from tensorladder.rungs.parts.tensors import row_major
from tensorladder.rungs.parts.wgmma import mma_op, smem_layout
from tensorladder.rungs.rung import Rung


@dataclass(frozen=True)
class WgmmaIndexerConfig:
    """stages: pages in shared memory. ctas_per_sm: what registers and shared memory have to allow.

    pages_per_cta: of a query, that a CTA scores at the least; queries are cut into as many parts as there are CTAs for
    them. sm_count: with ctas_per_sm, how many CTAs there should be at the least. threads, cluster: of the kernel that
    chooses, CTAs a query (0: as many as serve).
    """

    stages: int = 8
    ctas_per_sm: int = 2
    pages_per_cta: int = 16
    sm_count: int = 132
    threads: int = 512
    cluster: int = 0


RUNG = Rung(
    name="fused-topk-indexer-wgmma",
    parent="c2-warp-specialized",
    adds="sparse attention's indexer: paged fp8 scores with ReLU and weights, then an exact top k by radix select",
    archs=("sm_90a",),
    problem="topk_indexer",
    dtypes=("e4m3",),
    config=WgmmaIndexerConfig,
)

WARPGROUP = 128  # threads
WARPS = 4  # of a warpgroup
GROUPS = 2  # consumer warpgroups
PRODUCER = WARPS * GROUPS  # warp
LANES = 32


class WgmmaIndexer:
    def __init__(self, config: WgmmaIndexerConfig, shape: tuple[int, ...], cluster: int):
        batch, pages, topk = shape
        self.stages, self.ctas_per_sm = config.stages, config.ctas_per_sm
        self.threads = WARPGROUP * GROUPS + LANES
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

        sV_layout = smem_layout(element_type, OperandMajorMode.K, PAGE, DIM, self.stages)
        sQ_layout = smem_layout(element_type, OperandMajorMode.K, HEADS, DIM, 1)
        sX_layout = cute.make_layout((PAGE, self.stages))
        load = cpasync.CopyBulkTensorTileG2SOp()
        tma_V, mV = cpasync.make_tiled_tma_atom(load, mV, cute.select(sV_layout, mode=[0, 1]), (PAGE, DIM))
        tma_Q, mQ = cpasync.make_tiled_tma_atom(load, mQ, cute.select(sQ_layout, mode=[0, 1]), (HEADS, DIM))
        tma_X, mX = cpasync.make_tiled_tma_atom(load, mX, cute.select(sX_layout, mode=[0]), (PAGE,))
        tiled_mma = cute.make_tiled_mma(mma_op(element_type, HEADS))

        @cute.struct
        class SharedStorage:
            barriers: cute.struct.MemRange[cutlass.Int64, 2 * self.stages]
            q_full: cutlass.Int64
            sX: cute.struct.Align[cute.struct.MemRange[cutlass.Float32, cute.cosize(sX_layout)], 128]
            sQ: cute.struct.Align[cute.struct.MemRange[element_type, cute.cosize(sQ_layout)], 1024]
            sV: cute.struct.Align[cute.struct.MemRange[element_type, cute.cosize(sV_layout)], 1024]

        self.shared_storage = SharedStorage
        self.kernel(
            tma_Q, mQ, tma_V, mV, tma_X, mX, mW, mL, mT, mS, sQ_layout, sV_layout, sX_layout, tiled_mma
        ).launch(
            grid=(self.parts, mL.shape[0], 1),
            block=(self.threads, 1, 1),
            min_blocks_per_mp=self.ctas_per_sm,
            preferred_smem_carveout=100,  # percent; given so that the DSL need not ask a GPU
        )  # fmt: skip
        self.select(mS, mL, mT, mI)

    @cute.kernel
    def kernel(
        self, tma_Q: cute.CopyAtom, mQ: cute.Tensor, tma_V: cute.CopyAtom, mV: cute.Tensor, tma_X: cute.CopyAtom,
        mX: cute.Tensor, mW: cute.Tensor, mL: cute.Tensor, mT: cute.Tensor, mS: cute.Tensor,
        sQ_layout: cute.ComposedLayout, sV_layout: cute.ComposedLayout, sX_layout: cute.Layout,
        tiled_mma: cute.TiledMma,
    ):  # fmt: skip
        tidx, _, _ = cute.arch.thread_idx()
        part, query, _ = cute.arch.block_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        lane, group = tidx % LANES, warp // WARPS
        length = mL[query]
        first, count = self.span(part, length)

        smem = SmemAllocator()
        storage = smem.allocate(self.shared_storage)
        sQ = storage.sQ.get_tensor(sQ_layout.outer, swizzle=sQ_layout.inner)
        sV = storage.sV.get_tensor(sV_layout.outer, swizzle=sV_layout.inner)
        sX = storage.sX.get_tensor(sX_layout)
        element_type = sV.element_type
        q_bytes = cute.size_in_bytes(element_type, cute.select(sQ_layout, mode=[0, 1]))
        page_bytes = cute.size_in_bytes(element_type, cute.select(sV_layout, mode=[0, 1])) + 4 * PAGE

        # gmem -> smem: (TMA, stage), (TMA, query or page)
        tQsQ, tQgQ = self.tma_partition(tma_Q, sQ, mQ, 2)
        tVsV, tVgV = self.tma_partition(tma_V, sV, mV, 2)
        tXsX, tXgX = self.tma_partition(tma_X, sX, mX, 1)

        # smem -> MMA: "fragments" of both operands are descriptors (MMA, MMA_M, MMA_K, stage). A warpgroup's product is
        # (64 tokens, 64 heads): ((2 heads, 2 tokens, 8), 1, 1) a thread.
        thr_mma = tiled_mma.get_slice(0)
        tCrV = tiled_mma.make_fragment_A(thr_mma.partition_A(sV))
        tCrQ = tiled_mma.make_fragment_B(thr_mma.partition_B(sQ))
        tCrC = tiled_mma.make_fragment_C(thr_mma.partition_shape_C((PAGE, HEADS)))

        # The barriers of the ring: full completes with one arrival (the producer's) and the page's bytes, empty with an
        # arrival of each warp of the warpgroup whose page it is. `create` initialises them, fences, and synchronises
        # the CTA.
        if warp == 0:
            with cute.arch.elect_one():
                cute.arch.mbarrier_init(storage.q_full.ptr, 1)
        pipeline = PipelineTmaAsync.create(
            num_stages=self.stages,
            producer_group=CooperativeGroup(Agent.Thread),
            consumer_group=CooperativeGroup(Agent.Thread, WARPS),
            tx_count=page_bytes,
            barrier_storage=storage.barriers.data_ptr(),
            cta_layout_vmnk=cute.make_layout((1, 1, 1, 1)),
        )
        producer, consumer = pipeline.make_participants()
        # Once all CTAs of this grid are here, those of the choice may come where there is room.
        cute.arch.griddepcontrol_launch_dependents()

        if warp == PRODUCER and count > 0:
            cpasync.prefetch_descriptor(tma_V)
            cpasync.prefetch_descriptor(tma_X)
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(storage.q_full.ptr, q_bytes)
            cute.copy(tma_Q, tQgQ[None, query], tQsQ[None, 0], tma_bar_ptr=storage.q_full.ptr)
            entries = cutlass.Int32(0)
            for i in range(count):
                # 32 entries of the table at a time, one a lane.
                if i % LANES == 0 and i + lane < count:
                    entries = mT[query, first + i + lane]
                page = cute.arch.shuffle_sync(entries, i % LANES)
                stage = producer.acquire_and_advance()
                cute.copy(tma_V, tVgV[None, page], tVsV[None, stage.index], tma_bar_ptr=stage.barrier)
                cute.copy(tma_X, tXgX[None, page], tXsX[None, stage.index], tma_bar_ptr=stage.barrier)

        if warp < PRODUCER and count > 0:
            # This thread's heads: columns of its accumulators. Two lanes of each four store: one its upper token, one
            # its lower.
            weights = self.load_weights(mW[query, None], lane)
            token = (warp % WARPS) * 16 + lane // 4 + 8 * (lane % 2)
            cute.arch.mbarrier_wait(storage.q_full.ptr, 0)
            if group > 0:
                consumer.advance()
            for i in range(group, count, GROUPS):
                stage = consumer.wait_and_advance()
                self.multiply(tiled_mma, tCrV, tCrQ, tCrC, stage.index)
                scale = sX[token, stage.index]
                warpgroup.wait_group(0)
                stage.release()
                consumer.advance()
                upper, lower = self.add_heads(tCrC, weights)
                at = (first + i) * PAGE + token
                if at < length and lane % 4 < 2:
                    mS[query, at] = scale * (upper if lane % 2 == 0 else lower)

    @cute.jit
    def span(self, part: cutlass.Int32, length: cutlass.Int32):
        """The first page of a CTA's part of a query, and how many it has: as many as the others', or one less."""
        pages = cute.ceil_div(length, PAGE)
        each, more = pages // self.parts, pages % self.parts
        first = part * each + cutlass.min(part, more)
        return first, each + (1 if part < more else 0)

    @cute.jit
    def load_weights(self, gW: cute.Tensor, lane: cutlass.Int32):
        """The weights of the heads that a thread's accumulators belong to: (2, 8)."""
        weights = cute.make_rmem_tensor((2, HEADS // 8), cutlass.Float32)
        for i in cutlass.range_constexpr(HEADS // 8):
            for j in cutlass.range_constexpr(2):
                weights[j, i] = gW[8 * i + 2 * (lane % 4) + j]
        return weights

    @cute.jit
    def multiply(
        self, tiled_mma: cute.TiledMma, tCrV: cute.Tensor, tCrQ: cute.Tensor, tCrC: cute.Tensor, stage: cutlass.Int32
    ):
        """Issue the WGMMAs of a page as one group."""
        warpgroup.fence()
        for k_block in cutlass.range_constexpr(cute.size(tCrV, mode=[2])):
            tiled_mma.set(warpgroup.Field.ACCUMULATE, k_block > 0)
            cute.gemm(tiled_mma, tCrC, tCrV[None, None, k_block, stage], tCrQ[None, None, k_block, 0], tCrC)
        warpgroup.commit_group()

    @cute.jit
    def add_heads(self, tCrC: cute.Tensor, weights: cute.Tensor):
        """The sum over all heads of weight times ReLU, for both tokens of a thread; four lanes have a token's heads."""
        sums = cute.make_rmem_tensor(2, cutlass.Float32)
        for row in cutlass.range_constexpr(2):
            total = cutlass.Float32(0)
            for i in cutlass.range_constexpr(HEADS // 8):
                for j in cutlass.range_constexpr(2):
                    total += weights[j, i] * cutlass.max(tCrC[(j, row, i), 0, 0], cutlass.Float32(0))
            total += cute.arch.shuffle_sync_bfly(total, offset=1)
            sums[row] = total + cute.arch.shuffle_sync_bfly(total, offset=2)
        return sums[0], sums[1]

    @cute.jit
    def tma_partition(self, atom: cute.CopyAtom, smem: cute.Tensor, gmem: cute.Tensor, box: cutlass.Constexpr):
        """Both sides of a TMA copy with the modes of the box, the first `box`, as one."""
        return cpasync.tma_partition(
            atom, 0, cute.make_layout(1), cute.group_modes(smem, 0, box), cute.group_modes(gmem, 0, box)
        )


def parts(config: WgmmaIndexerConfig, batch: int, pages: int) -> int:
    """Into how many parts a query of so many pages is cut: one for each CTA that there is room for, no smaller than
    pages_per_cta unless SMs would be left without."""
    room = -(-config.sm_count * config.ctas_per_sm // batch)
    return max(1, min(pages, max(room, pages // config.pages_per_cta)))


def compile(arch: str, shape: tuple[int, ...], dtype: str, config: WgmmaIndexerConfig | None = None) -> Program:
    """The rung for one architecture and shape (B, pages, topk). B up to 65535; arrays 16-byte aligned."""
    shape, dtype = RUNG.check(arch, shape, dtype)
    config = config or WgmmaIndexerConfig()
    check_config(config, arch)
    cluster = radix_select.check(RUNG, arch, shape, PAGE, config)
    arrays = [row_major(operand.dtype, operand.shape) for operand in TOPK_INDEXER.operands(shape, dtype)]
    return compile_program(WgmmaIndexer(config, shape, cluster), *arrays, arch=arch, name=RUNG.name)


def check_config(config: WgmmaIndexerConfig, arch: str) -> None:
    """UsageError unless the stages fit, and leave room for as many CTAs as are asked for."""
    fits = 1 <= config.ctas_per_sm <= 3
    RUNG.require(fits, f"ctas_per_sm={config.ctas_per_sm}: 1 to 3, more leave too few registers for the accumulators")
    for name in ("pages_per_cta", "sm_count"):
        RUNG.require(getattr(config, name) > 0, f"{name}={getattr(config, name)}: at least 1")
    # A parity cannot tell a stage's next phase from the last but one: each stage has to be one warpgroup's.
    fits = config.stages >= GROUPS and config.stages % GROUPS == 0
    RUNG.require(fits, f"stages={config.stages}: a multiple of {GROUPS}, as many for each warpgroup")
    smem = config.stages * PAGE_BYTES + HEADS * DIM + 2048
    limit = (archs.find(arch).smem_per_cta + 1024) // config.ctas_per_sm - 1024
    RUNG.require(smem <= limit, f"stages={config.stages}: {smem} bytes of shared memory, there are {limit}")
