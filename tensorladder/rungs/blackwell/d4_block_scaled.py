"""Block scales: fp8 and fp4 whose every 32 or 16 elements share a factor, applied inside the tensor core.

Adds:
    Operands of four and eight bits that keep their range: mxfp8 (e4m3, a power of two for 32 elements) and nvfp4 (e2m1,
    an e4m3 for 16), twice and four times the products of fp16. Scaling afterwards is not possible, as the factor
    changes along K; tcgen05.mma with .block_scale takes it from tensor memory, a factor a row of A or B and block. The
    way there:
    - In global memory factors lie in blocks of 128 rows x 4, 512 bytes, as the hardware reads them. TMA brings those of
      a K tile along with A and B; the same full barrier counts their bytes.
    - tcgen05.cp.32x128b.warpx4 copies them from shared to tensor memory, 32 lanes replicated to 128. The MMAs' thread
      issues it before them: cp and mma run in order, so no wait comes between, and the same commit frees the stage.
    - mma, then cp is no order that the ISA gives. So each stage of the ring has its own columns of tensor memory: a cp
      writes them again only after the commit of the MMAs that have read them.
    - A pair splits C's rows, not its columns: a CTA loads the factors of its half of A, and all factors of B.
    - Factors take columns, so the accumulators are 128 wide: 2 x 128, and 32 a stage.

Warp roles:
    | warps | role                                                                                     |
    |-------|------------------------------------------------------------------------------------------|
    | 0-3   | epilogue: 32 rows of C each to shared memory; warp 0 asks TMA to store, and allocates    |
    | 4     | MMA, in the leader: copies the factors to tensor memory, issues tcgen05.mma for the pair |
    | 5     | producer: asks TMA for its CTA's half of A and B and for the factors, tile after tile    |

Budget:
    SMEM: (128 + 64) rows x 128 B = 24 KB a stage and 4 KB of factors (nvfp4; mxfp8 1 KB), 6 stages: 168 KB; C: 128 rows
    x 64 x 2 B = 16 KB, 2 buffers: 32 KB; 132 B of mbarriers, 1 CTA an SM. TMEM: 2 x 128 columns of accumulators, 6 x 32
    of factors, 512 allocated, all of each SM's. Registers: 64 accumulators and 32 of results at a time, in all 75.

Run:
    tensorladder run d4-block-scaled --dtype nvfp4 --shape 512,512,512
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
import cutlass.utils.blackwell_helpers as sm100
import cutlass.utils.blockscaled_layout as scaled
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
from cutlass.tensor_utils import LayoutEnum

from tensorladder.core import arch as archs
from tensorladder.core.program import Program
from tensorladder.frontends.cutedsl import compile_program
from tensorladder.problems import find
from tensorladder.rungs.parts.block_scales import FORMATS, scale_columns, scale_tensor, scales_to_tmem
from tensorladder.rungs.parts.tcgen05 import fence_after_thread_sync, fence_before_thread_sync, tmem_columns
from tensorladder.rungs.parts.tensors import row_major
from tensorladder.rungs.rung import Rung


@dataclass(frozen=True)
class BlockScaledGemmConfig:
    """k_bytes: of a row in a K tile, 128 or 256. stages: K tiles in shared memory. sm_count: of the GPU (B200: 148).

    subtile: columns of C that a thread holds at a time, and of a buffer in shared memory; buffers: of these.
    raster: rows of tiles that consecutive ones go down before the next column, so that they share A and B in L2.
    """

    k_bytes: int = 128
    stages: int = 6
    subtile: int = 64
    buffers: int = 2
    sm_count: int = 148
    raster: int = 8


RUNG = Rung(
    name="d4-block-scaled",
    parent="d4-persistent",
    adds="mxfp8 and nvfp4: scale factors by TMA and tcgen05.cp to tensor memory, applied by block-scaled MMAs",
    aside="for mxfp8 and nvfp4, whose blocks of elements have factors",
    archs=("sm_100a",),
    problem="gemm_block_scaled",
    dtypes=("mxfp8", "nvfp4"),
    config=BlockScaledGemmConfig,
    shape=(512, 512, 512),
)

EPILOGUE_WARPS = 4  # one for each 32 lanes of tensor memory
MMA_WARP, TMA_WARP = 4, 5
THREADS = 32 * 6
PAIR = 2  # CTAs
TILE_MN = (256, 128)  # of a pair, one instruction; factors come for 128 rows at a time
ACCUMULATORS = 2


class BlockScaledGemm:
    def __init__(self, config: BlockScaledGemmConfig, dtype: str):
        self.element_type, self.scale_type, self.block = FORMATS[dtype]
        self.tile = (*TILE_MN, config.k_bytes * 8 // self.element_type.width)
        self.scale_columns = scale_columns(config.k_bytes)
        self.stages = config.stages
        self.subtile = (TILE_MN[0] // PAIR, config.subtile)
        self.buffers = config.buffers
        self.sm_count = config.sm_count
        self.raster = config.raster
        self.tmem_columns = tmem_columns(ACCUMULATORS * TILE_MN[1] + 2 * self.scale_columns * config.stages)

    @cute.jit
    def __call__(self, mA: cute.Tensor, mSA: cute.Tensor, mB: cute.Tensor, mSB: cute.Tensor, mC: cute.Tensor):
        bM, bN = self.tile[:2]
        element_type, scale_type, result_type = self.element_type, self.scale_type, mC.element_type
        types = (element_type, element_type, OperandMajorMode.K, OperandMajorMode.K, scale_type, self.block)
        tiled_mma = sm100.make_blockscaled_trivial_tiled_mma(*types, tcgen05.CtaGroup.TWO, (bM, bN))
        # How one CTA would hold B: all of its factors, where the pair's MMA holds half of its elements.
        tiled_mma_SB = sm100.make_blockscaled_trivial_tiled_mma(*types, tcgen05.CtaGroup.ONE, (bM // PAIR, bN))

        # Bytes are elements; factors lie in blocks of 128 rows x 4, and every element of a block along K has the same.
        mA, mB = cute.recast_tensor(mA, element_type), cute.recast_tensor(mB, element_type)
        mSA, mSB = (scale_tensor(s, m.shape, scale_type, self.block) for s, m in ((mSA, mA), (mSB, mB)))

        # (MMA, MMA_M, MMA_K, stage): K-major with the 128-byte swizzle, cut into what one instruction reads.
        sA_layout = sm100.make_smem_layout_a(tiled_mma, self.tile, element_type, self.stages)
        sB_layout = sm100.make_smem_layout_b(tiled_mma, self.tile, element_type, self.stages)
        sSA_layout = scaled.make_smem_layout_sfa(tiled_mma, self.tile, self.block, self.stages)
        sSB_layout = scaled.make_smem_layout_sfb(tiled_mma, self.tile, self.block, self.stages)

        # A descriptor and a tensor of coordinates for each matrix. TMA moves 16 bits at a time, whatever they mean.
        ctas = cute.tiled_divide(cute.make_layout((PAIR, 1, 1)), (tiled_mma.thr_id,))  # (pair, M, N, 1)
        load, store = cpasync.CopyBulkTensorTileG2SOp(tcgen05.CtaGroup.TWO), cpasync.CopyBulkTensorTileS2GOp()
        sA_stage, sB_stage, sSA_stage, sSB_stage = (
            cute.select(layout, mode=[0, 1, 2]) for layout in (sA_layout, sB_layout, sSA_layout, sSB_layout)
        )
        make_A, make_B = cute.nvgpu.make_tiled_tma_atom_A, cute.nvgpu.make_tiled_tma_atom_B
        tma_A, mA = make_A(load, mA, sA_stage, self.tile, tiled_mma, ctas.shape, internal_type=cutlass.Int16)
        tma_B, mB = make_B(load, mB, sB_stage, self.tile, tiled_mma, ctas.shape, internal_type=cutlass.Int16)
        tma_SA, mSA = make_A(load, mSA, sSA_stage, self.tile, tiled_mma, ctas.shape, internal_type=cutlass.Int16)
        tma_SB, mSB = make_B(load, mSB, sSB_stage, self.tile, tiled_mma_SB, (1, 1, 1, 1), internal_type=cutlass.Int16)

        # (BM / 2, columns, buffer) of C, row-major with the swizzle that its rows allow.
        sC_layout = sm100.make_smem_layout_epi(result_type, LayoutEnum.ROW_MAJOR, self.subtile, self.buffers)
        tma_C, mC = cpasync.make_tiled_tma_atom(store, mC, cute.select(sC_layout, mode=[0, 1]), self.subtile)

        @cute.struct
        class SharedStorage:
            barriers: cute.struct.MemRange[cutlass.Int64, 2 * self.stages]
            accumulator: cute.struct.MemRange[cutlass.Int64, 2 * ACCUMULATORS]
            tmem: cutlass.Int32

        self.shared_storage = SharedStorage
        tiles = cute.ceil_div(mC.shape, (bM, bN))
        resident = min(cute.size(tiles), self.sm_count // PAIR)
        copies = (tma_A, mA, tma_B, mB, tma_SA, mSA, tma_SB, mSB, tma_C, mC)
        layouts = (sA_layout, sB_layout, sSA_layout, sSB_layout, sC_layout)
        self.kernel(copies, layouts, tiled_mma, tiled_mma_SB, ctas, tiles, resident).launch(
            grid=(resident * PAIR, 1, 1), block=(THREADS, 1, 1), cluster=(PAIR, 1, 1)
        )

    @cute.kernel
    def kernel(
        self, copies: tuple, layouts: tuple, tiled_mma: cute.TiledMma, tiled_mma_SB: cute.TiledMma, ctas: cute.Layout,
        tiles: cutlass.Constexpr, resident: cutlass.Constexpr,
    ):  # fmt: skip
        tma_A, mA, tma_B, mB, tma_SA, mSA, tma_SB, mSB, tma_C, mC = copies
        sA_layout, sB_layout, sSA_layout, sSB_layout, sC_layout = layouts
        tidx, _, _ = cute.arch.thread_idx()
        bidx, _, _ = cute.arch.block_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        half = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
        first, num_tiles = bidx // PAIR, cute.size(tiles)
        element_type, scale_type, result_type = self.element_type, self.scale_type, cutlass.Float16

        smem = SmemAllocator()
        storage = smem.allocate(self.shared_storage)
        sA = smem.allocate_tensor(element_type, sA_layout.outer, 1024, swizzle=sA_layout.inner)
        sB = smem.allocate_tensor(element_type, sB_layout.outer, 1024, swizzle=sB_layout.inner)
        sC = smem.allocate_tensor(result_type, sC_layout.outer, 1024, swizzle=sC_layout.inner)
        sSA, sSB = (smem.allocate_tensor(scale_type, layout, 1024) for layout in (sSA_layout, sSB_layout))
        stages = ((smem.element_type, cute.select(smem.layout, mode=[0, 1, 2])) for smem in (sA, sB, sSA, sSB))
        stage_bytes = PAIR * sum(cute.size_in_bytes(*stage) for stage in stages)

        # (BM, BK, m tiles, k tiles), (BN, BK, n tiles, k tiles), (BM / 2, columns, m halves, subtiles), as coordinates.
        bM, bN, bK = self.tile
        gA, gSA = (cute.local_tile(tensor, (bM, bK), (None, None)) for tensor in (mA, mSA))
        gB, gSB = (cute.local_tile(tensor, (bN, bK), (None, None)) for tensor in (mB, mSB))
        gC = cute.local_tile(mC, self.subtile, (None, None))

        # gmem -> smem: (TMA, stage), (TMA, m or n tile, k tile). This CTA's half, but all factors of B.
        thr_mma, thr_mma_SB = tiled_mma.get_slice(half), tiled_mma_SB.get_slice(0)
        tAsA, tAgA = self.tma_partition(tma_A, sA, thr_mma.partition_A(gA))
        tBsB, tBgB = self.tma_partition(tma_B, sB, thr_mma.partition_B(gB))
        tAsSA, tAgSA = self.tma_partition(tma_SA, sSA, thr_mma.partition_A(gSA))
        tBsSB, tBgSB = self.tma_partition(tma_SB, sSB, thr_mma_SB.partition_B(gSB))

        # smem -> MMA: descriptors of the stages. MMA -> tmem: ((BM / 2, BN), 1, 1, accumulator)
        tCrA, tCrB = tiled_mma.make_fragment_A(sA), tiled_mma.make_fragment_B(sB)
        tile_shape = tiled_mma.partition_shape_C(self.tile[:2])
        tCtC_layout = tiled_mma.make_fragment_C(cute.append(tile_shape, ACCUMULATORS)).layout

        # The ring of stages: full completes with an arrival and both CTAs' bytes, empty with a commit. The accumulator:
        # full completes with a commit, empty with an arrival of each epilogue warp of the pair.
        one = CooperativeGroup(Agent.Thread)
        ring = PipelineTmaUmma.create(
            num_stages=self.stages,
            producer_group=one,
            consumer_group=one,
            tx_count=stage_bytes,
            barrier_storage=storage.barriers.data_ptr(),
            cta_layout_vmnk=ctas,
            defer_sync=True,
        )
        accumulator = PipelineUmmaAsync.create(
            num_stages=ACCUMULATORS,
            producer_group=one,
            consumer_group=CooperativeGroup(Agent.Thread, PAIR * EPILOGUE_WARPS),
            barrier_storage=storage.accumulator.data_ptr(),
            cta_layout_vmnk=ctas,
            defer_sync=True,
        )
        epilogue = NamedBarrier(barrier_id=1, num_threads=32 * EPILOGUE_WARPS)

        # The fence makes the initialised barriers visible to TMA and the tensor cores, the cluster barrier to all
        # threads of the cluster. Both CTAs of a pair allocate.
        if warp == 0:
            cute.arch.mbarrier_init_fence()
            cute.arch.alloc_tmem(self.tmem_columns, storage.tmem.ptr, is_two_cta=True)
            cute.arch.relinquish_tmem_alloc_permit(is_two_cta=True)
            fence_before_thread_sync()
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()
        fence_after_thread_sync()
        tmem = cute.arch.retrieve_tmem_ptr(cutlass.Float32, 16, storage.tmem.ptr)
        tCtC = cute.make_tensor(tmem, tCtC_layout)

        # smem -> tmem, behind the accumulators: each stage has columns for the factors of A and of B.
        tCtSA_layout, tCtSB_layout = (
            make(tiled_mma, self.tile, self.block, cute.select(layout, mode=[0, 1, 2]))
            for make, layout in ((scaled.make_tmem_layout_sfa, sSA_layout), (scaled.make_tmem_layout_sfb, sSB_layout))
        )

        # tmem -> registers -> smem: thread t has row t of a subtile. (columns, 1, 1, subtile, accumulator)
        atom_t2r = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition(self.subtile[1])), cutlass.Float32)
        tCtC_subtiles = cute.flat_divide(tCtC[(None, None), 0, 0, None], self.subtile)[None, None, 0, None, None]
        tiled_t2r = tcgen05.make_tmem_copy(atom_t2r, tCtC_subtiles[None, None, 0, 0])
        thr_t2r = tiled_t2r.get_slice(tidx % 128)
        tDtC = thr_t2r.partition_S(tCtC_subtiles)
        tDrC = cute.make_rmem_tensor(thr_t2r.partition_D(sC)[None, None, None, 0].shape, cutlass.Float32)
        tDrD = cute.make_fragment_like(tDrC, result_type)
        atom_r2s = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), result_type, num_bits_per_copy=128)
        tiled_r2s = cute.make_tiled_copy_D(atom_r2s, tiled_t2r)
        thr_r2s = tiled_r2s.get_slice(tidx % 128)
        tDsC, tDrD_r2s = thr_r2s.partition_D(sC), thr_r2s.retile(tDrD)

        # smem -> gmem: (TMA, buffer), (TMA, m half, subtile)
        boxes = (cute.group_modes(tile, 0, 2) for tile in (sC, gC))
        tCsC, tCgC = cpasync.tma_partition(tma_C, 0, cute.make_layout(1), *boxes)

        num_k_tiles = cute.size(gA, mode=[3])
        if warp == TMA_WARP:
            cpasync.prefetch_descriptor(tma_A)
            cpasync.prefetch_descriptor(tma_B)
            fill = make_pipeline_state(PipelineUserType.Producer, self.stages)
            for index in cutlass.range(first, num_tiles, resident, unroll=1):
                m, n = self.raster_tile(index, tiles)
                for k_tile in cutlass.range(num_k_tiles, unroll=1):
                    ring.producer_acquire(fill)
                    barrier = ring.producer_get_barrier(fill)
                    cute.copy(tma_A, tAgA[None, m, k_tile], tAsA[None, fill.index], tma_bar_ptr=barrier)
                    cute.copy(tma_B, tBgB[None, n, k_tile], tBsB[None, fill.index], tma_bar_ptr=barrier)
                    cute.copy(tma_SA, tAgSA[None, m, k_tile], tAsSA[None, fill.index], tma_bar_ptr=barrier)
                    cute.copy(tma_SB, tBgSB[None, n, k_tile], tBsSB[None, fill.index], tma_bar_ptr=barrier)
                    fill.advance()
            for _ in cutlass.range_constexpr(self.stages):
                ring.sync_object_empty.wait(fill.index, fill.phase)
                fill.advance()

        if warp == MMA_WARP and half == 0:
            read = make_pipeline_state(PipelineUserType.Consumer, self.stages)
            write = make_pipeline_state(PipelineUserType.Producer, ACCUMULATORS)
            for _ in cutlass.range(first, num_tiles, resident, unroll=1):
                # The epilogue has read what this accumulator held: two tiles ago.
                accumulator.producer_acquire(write)
                fence_after_thread_sync()
                tCtC_tile = tCtC[None, None, None, write.index]
                for k_tile in cutlass.range(num_k_tiles, unroll=1):
                    ring.consumer_wait(read)
                    fence_after_thread_sync()
                    # The stage's factors go to its columns; the MMAs follow them in order.
                    columns_A = tmem + ACCUMULATORS * bN + 2 * self.scale_columns * read.index
                    columns_B = columns_A + self.scale_columns
                    tCtSA = scales_to_tmem(sSA, read.index, columns_A, tCtSA_layout, tcgen05.CtaGroup.TWO)
                    tCtSB = scales_to_tmem(sSB, read.index, columns_B, tCtSB_layout, tcgen05.CtaGroup.TWO)
                    for k_block in cutlass.range_constexpr(cute.size(tCrA, mode=[2])):
                        # The first MMA overwrites what tensor memory held.
                        tiled_mma.set(tcgen05.Field.ACCUMULATE, k_tile > 0 if k_block == 0 else True)
                        k_coord, k_scale = (None, None, k_block, read.index), (None, None, k_block)
                        a, b = [tCrA[k_coord], tCtSA[k_scale]], [tCrB[k_coord], tCtSB[k_scale]]
                        cute.gemm(tiled_mma, tCtC_tile, a, b, tCtC_tile)
                    # A commit: the stage is free once these MMAs have read it.
                    ring.consumer_release(read)
                    read.advance()
                accumulator.producer_commit(write)
                write.advance()

        # Epilogue: a subtile after the other, through one buffer or the next.
        if warp < EPILOGUE_WARPS:
            drain = make_pipeline_state(PipelineUserType.Consumer, ACCUMULATORS)
            buffer = cutlass.Int32(0)
            for index in cutlass.range(first, num_tiles, resident, unroll=1):
                m, n = self.raster_tile(index, tiles)
                accumulator.consumer_wait(drain)
                fence_after_thread_sync()
                num_subtiles = cute.size(tDtC, mode=[3])
                for subtile in cutlass.range(num_subtiles, unroll=1):
                    cute.copy(tiled_t2r, tDtC[None, None, None, subtile, drain.index], tDrC)
                    # The registers hold the subtile only from here on.
                    cute.arch.fence_view_async_tmem_load()
                    if subtile == num_subtiles - 1:
                        # The accumulator is free. One lane arrives for the warp, after all lanes' reads.
                        fence_before_thread_sync()
                        cute.arch.sync_warp()
                        with cute.arch.elect_one():
                            accumulator.consumer_release(drain)
                    tDrD.store(tDrC.load().to(result_type))

                    # TMA has read what this buffer held; the barrier tells the other warps.
                    if warp == 0:
                        cute.arch.cp_async_bulk_wait_group(self.buffers - 1, read=True)
                    epilogue.arrive_and_wait()
                    cute.copy(tiled_r2s, tDrD_r2s, tDsC[None, None, None, buffer])
                    # Each writer's fence, then the barrier, then the store: else TMA could read stale bytes.
                    cute.arch.fence_proxy("async.shared", space="cta")
                    epilogue.arrive_and_wait()
                    if warp == 0:
                        m_half, n_subtile = PAIR * m + half, num_subtiles * n + subtile
                        if m_half < cute.size(gC, mode=[2]) and n_subtile < cute.size(gC, mode=[3]):
                            cute.copy(tma_C, tCsC[None, buffer], tCgC[None, m_half, n_subtile])
                        cute.arch.cp_async_bulk_commit_group()
                    buffer = buffer + 1 if buffer + 1 < self.buffers else 0
                drain.advance()
            # Shared memory belongs to the CTA only until it exits: wait until TMA has read it.
            if warp == 0:
                cute.arch.cp_async_bulk_wait_group(0, read=True)

        # Nobody in the cluster reads tensor memory or signals a barrier any more: the warps that allocated give back.
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()
        if warp == 0:
            fence_after_thread_sync()
            cute.arch.dealloc_tmem(tmem, self.tmem_columns, is_two_cta=True)

    @cute.jit
    def tma_partition(self, atom: cute.CopyAtom, smem: cute.Tensor, gmem: cute.Tensor):
        """Both sides of a TMA copy, their first three modes (a tile) as one; a factor once for all that share it."""
        smem, gmem = cute.group_modes(smem, 0, 3), cute.group_modes(gmem, 0, 3)
        sides = cpasync.tma_partition(atom, 0, cute.make_layout(1), smem, gmem)
        return cute.filter_zeros(sides[0]), cute.filter_zeros(sides[1])

    @cute.jit
    def raster_tile(self, index: cutlass.Int32, tiles: cutlass.Constexpr):
        """(m, n) of a pair's tile: down `raster` rows, then the next column, so that a wave is nearly square."""
        group = index // (self.raster * tiles[1])
        within = index % (self.raster * tiles[1])
        rows = min(tiles[0] - group * self.raster, self.raster)
        return group * self.raster + within % rows, within // rows


def compile(arch: str, shape: tuple[int, ...], dtype: str, config: BlockScaledGemmConfig | None = None) -> Program:
    """The rung for one architecture, shape (M, N, K) and format. M from 2; N a multiple of 8, K of 32."""
    (m, n, k), dtype = RUNG.check(arch, shape, dtype)
    config = config or BlockScaledGemmConfig()
    check_config(config, arch)
    RUNG.require(m > 1, "M=1: the DSL makes a one-dimensional tensor map of a single row, pad M to 2")
    RUNG.require(n % 8 == 0, f"N={n}: TMA wants row pitches of 16 bytes, pad N to a multiple of 8")
    one_block = min(m, n) <= 128 and k <= 4 * FORMATS[dtype][2]
    RUNG.require(not one_block, f"K={k}: a single block of factors makes a one-dimensional tensor map, pad K beyond")
    operands = find(RUNG.problem).operands((m, n, k), dtype)
    arrays = [row_major(operand.dtype, operand.shape) for operand in operands]
    return compile_program(BlockScaledGemm(config, dtype), *arrays, arch=arch, name=RUNG.name)


def check_config(config: BlockScaledGemmConfig, arch: str) -> None:
    """UsageError unless a tile is one instruction, subtiles cover it, and stages fit into shared and tensor memory."""
    bM, bN = TILE_MN
    RUNG.require(config.raster > 0, f"raster={config.raster}: at least 1 row of tiles")
    RUNG.require(config.k_bytes in (128, 256), f"k_bytes={config.k_bytes}: 128 or 256")
    RUNG.require(config.subtile in (32, 64, 128), f"subtile={config.subtile}: 32, 64 or 128 columns")
    RUNG.require(config.buffers >= 1, f"buffers={config.buffers}: at least 1")
    RUNG.require(config.stages >= 2, f"stages={config.stages}: at least 2, one to fill and one to multiply")
    RUNG.require(config.sm_count >= PAIR, f"sm_count={config.sm_count}: at least a pair, 2 CTAs")
    factors = 2 * scale_columns(config.k_bytes)
    columns = ACCUMULATORS * bN + config.stages * factors
    RUNG.require(columns <= 512, f"stages={config.stages}: {columns} columns of tensor memory, an SM has 512")
    stage = (bM + bN) // PAIR * config.k_bytes + 128 * factors
    smem, limit = config.stages * stage + config.buffers * bM * config.subtile + 1024, archs.find(arch).smem_per_cta
    RUNG.require(smem <= limit, f"stages={config.stages}: {smem} bytes of shared memory, {arch} has {limit}")
