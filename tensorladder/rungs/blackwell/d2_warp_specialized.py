"""Warp specialisation on Blackwell: TMA, MMA and epilogue are roles that meet only at mbarriers.

Adds:
    Roles, as c2 has them with WGMMA, now three: one warp asks for tiles, one issues MMAs, four bring C out. In the
    parent one warp does the first two in turn, and a wait for one delays the other. Here each waits for what it needs:
    - full (TMA's bytes) lets the MMA warp go on, empty (a commit of its MMAs) the TMA warp: PipelineTmaUmma. The
      commit comes from the tensor core itself, so the MMA warp never waits for its own work.
    - accumulator full (a commit after the last K tile) lets the epilogue go on: PipelineUmmaAsync. Its other half,
      empty, has an arrival of each epilogue warp; a persistent kernel (d4) lives on it, here the first wait passes.
    - The last K tile may be ragged: TMA fills up with zeros, so the loop runs over ceil(K / 64) tiles.
    - The producer drains the ring before it exits: a commit that arrives later would hit shared memory that is no
      longer the CTA's.

Warp roles:
    | warps | role                                                                              |
    |-------|-----------------------------------------------------------------------------------|
    | 0-3   | epilogue: read 32 rows of C each and store them; warp 0 allocates tensor memory   |
    | 4     | MMA: issues tcgen05.mma as tiles arrive, commits stages and the accumulator       |
    | 5     | producer: asks TMA for A and B, as far ahead as stages are free                   |

Budget:
    SMEM: (128 + 256) rows x 64 x 2 B = 48 KB a stage, 4 stages: 192 KB and 84 B of mbarriers, 1 CTA an SM. TMEM: 128
    lanes x 256 columns = 128 KB of the SM's 256. Registers: 32 accumulators and 16 of results at a time, in all 40.

Run:
    tensorladder run d2-warp-specialized --shape 256,512,512
"""

from __future__ import annotations

import math
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
from tensorladder.rungs.parts.tcgen05 import fence_after_thread_sync, fence_before_thread_sync, tmem_columns
from tensorladder.rungs.parts.tensors import row_major
from tensorladder.rungs.rung import Rung


@dataclass(frozen=True)
class WarpSpecializedGemmConfig:
    """tile: (M, N, K) of a CTA; M x N is one instruction. stages: K tiles in shared memory.

    subtile: columns of C that a thread holds at a time.
    raster: rows of tiles that consecutive CTAs go down before the next column, so that they share A and B in L2.
    """

    tile: tuple[int, int, int] = (128, 256, 64)
    stages: int = 4
    subtile: int = 32
    raster: int = 8


RUNG = Rung(
    name="d2-warp-specialized",
    parent="d1-tcgen05-subtiles",
    adds="a TMA warp, an MMA warp and four epilogue warps around tcgen05, that meet only at mbarriers",
    archs=("sm_100a",),
    problem="gemm",
    dtypes=("fp16", "bf16"),
    config=WarpSpecializedGemmConfig,
    shape=(256, 512, 512),
)

EPILOGUE_WARPS = 4  # one for each 32 lanes of tensor memory
MMA_WARP, TMA_WARP = 4, 5
THREADS = 32 * 6


class WarpSpecializedGemm:
    def __init__(self, config: WarpSpecializedGemmConfig):
        self.tile = config.tile
        self.stages = config.stages
        self.subtile = (config.tile[0], config.subtile)
        self.raster = config.raster
        self.tmem_columns = tmem_columns(config.tile[1])

    @cute.jit
    def __call__(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor):
        bM, bN = self.tile[:2]
        element_type = mC.element_type
        majors, group = (OperandMajorMode.K, OperandMajorMode.K), tcgen05.CtaGroup.ONE
        tiled_mma = sm100.make_trivial_tiled_mma(*[element_type] * 2, *majors, cutlass.Float32, group, (bM, bN))

        # (MMA, MMA_M, MMA_K, stage): K-major with the 128-byte swizzle, cut into what one instruction reads.
        sA_layout = sm100.make_smem_layout_a(tiled_mma, self.tile, element_type, self.stages)
        sB_layout = sm100.make_smem_layout_b(tiled_mma, self.tile, element_type, self.stages)

        # A descriptor and a tensor of coordinates for each matrix. TMA takes coordinates, not addresses.
        load = cpasync.CopyBulkTensorTileG2SOp(tcgen05.CtaGroup.ONE)
        sA_stage, sB_stage = (cute.select(layout, mode=[0, 1, 2]) for layout in (sA_layout, sB_layout))
        tma_A, mA = cute.nvgpu.make_tiled_tma_atom_A(load, mA, sA_stage, self.tile, tiled_mma)
        tma_B, mB = cute.nvgpu.make_tiled_tma_atom_B(load, mB, sB_stage, self.tile, tiled_mma)

        @cute.struct
        class SharedStorage:
            barriers: cute.struct.MemRange[cutlass.Int64, 2 * self.stages]
            accumulator: cute.struct.MemRange[cutlass.Int64, 2]
            tmem: cutlass.Int32
            sA: cute.struct.Align[cute.struct.MemRange[element_type, cute.cosize(sA_layout)], 1024]
            sB: cute.struct.Align[cute.struct.MemRange[element_type, cute.cosize(sB_layout)], 1024]

        self.shared_storage = SharedStorage
        tiles = cute.ceil_div(mC.shape, (bM, bN))
        self.kernel(tma_A, mA, tma_B, mB, mC, sA_layout, sB_layout, tiled_mma, tiles).launch(
            grid=(cute.size(tiles), 1, 1), block=(THREADS, 1, 1)
        )

    @cute.kernel
    def kernel(
        self,
        tma_A: cute.CopyAtom,
        mA: cute.Tensor,
        tma_B: cute.CopyAtom,
        mB: cute.Tensor,
        mC: cute.Tensor,
        sA_layout: cute.ComposedLayout,
        sB_layout: cute.ComposedLayout,
        tiled_mma: cute.TiledMma,
        tiles: cutlass.Constexpr,
    ):
        tidx, _, _ = cute.arch.thread_idx()
        bidx, _, _ = cute.arch.block_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        coord = (*self.raster_tile(bidx, tiles), None)

        smem = SmemAllocator()
        storage = smem.allocate(self.shared_storage)
        sA = storage.sA.get_tensor(sA_layout.outer, swizzle=sA_layout.inner)
        sB = storage.sB.get_tensor(sB_layout.outer, swizzle=sB_layout.inner)
        element_type = sA.element_type
        stages = (cute.select(layout, mode=[0, 1, 2]) for layout in (sA_layout, sB_layout))
        stage_bytes = sum(cute.size_in_bytes(element_type, stage) for stage in stages)

        # (BM, BK, k tiles), (BN, BK, k tiles), as coordinates; (BM, BN) of C and of its coordinates.
        gA = cute.local_tile(mA, tiler=self.tile, coord=coord, proj=(1, None, 1))
        gB = cute.local_tile(mB, tiler=self.tile, coord=coord, proj=(None, 1, 1))
        gC = cute.local_tile(mC, tiler=self.tile, coord=coord, proj=(1, 1, None))
        cC = cute.local_tile(cute.make_identity_tensor(mC.shape), tiler=self.tile, coord=coord, proj=(1, 1, None))

        # gmem -> smem: (TMA, stage), (TMA, k tile)
        thr_mma = tiled_mma.get_slice(0)
        tAsA, tAgA = self.tma_partition(tma_A, sA, thr_mma.partition_A(gA))
        tBsB, tBgB = self.tma_partition(tma_B, sB, thr_mma.partition_B(gB))

        # smem -> MMA: descriptors of the stages. MMA -> tmem: ((BM, BN), 1, 1)
        tCrA = tiled_mma.make_fragment_A(sA)
        tCrB = tiled_mma.make_fragment_B(sB)
        tCtC_layout = tiled_mma.make_fragment_C(tiled_mma.partition_shape_C(self.tile[:2])).layout

        # The ring of stages: full completes with an arrival and the tile's bytes, empty with a commit. The accumulator:
        # full completes with a commit, empty with an arrival of each epilogue warp.
        one = CooperativeGroup(Agent.Thread)
        cluster = cute.make_layout((1, 1, 1, 1))
        ring = PipelineTmaUmma.create(
            num_stages=self.stages,
            producer_group=one,
            consumer_group=one,
            tx_count=stage_bytes,
            barrier_storage=storage.barriers.data_ptr(),
            cta_layout_vmnk=cluster,
            defer_sync=True,
        )
        accumulator = PipelineUmmaAsync.create(
            num_stages=1,
            producer_group=one,
            consumer_group=CooperativeGroup(Agent.Thread, EPILOGUE_WARPS),
            barrier_storage=storage.accumulator.data_ptr(),
            cta_layout_vmnk=cluster,
            defer_sync=True,
        )
        epilogue = NamedBarrier(barrier_id=1, num_threads=32 * EPILOGUE_WARPS)

        # The fence makes the initialised barriers visible to TMA and the tensor core, the CTA barrier to all threads.
        if warp == 0:
            cute.arch.mbarrier_init_fence()
            cute.arch.alloc_tmem(self.tmem_columns, storage.tmem.ptr)
            cute.arch.relinquish_tmem_alloc_permit()
            fence_before_thread_sync()
        cute.arch.sync_threads()
        fence_after_thread_sync()
        tmem = cute.arch.retrieve_tmem_ptr(cutlass.Float32, 16, storage.tmem.ptr)
        tCtC = cute.make_tensor(tmem, tCtC_layout)

        # tmem -> registers -> gmem: thread t has row t of a subtile. (columns, 1, 1, subtile)
        atom_t2r = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition(self.subtile[1])), cutlass.Float32)
        tCtC_subtiles, gC_subtiles, cC_subtiles = (
            cute.flat_divide(tile, self.subtile)[None, None, 0, None] for tile in (tCtC[(None, None), 0, 0], gC, cC)
        )
        tiled_t2r = tcgen05.make_tmem_copy(atom_t2r, tCtC_subtiles[None, None, 0])
        thr_t2r = tiled_t2r.get_slice(tidx % 128)
        tDtC = thr_t2r.partition_S(tCtC_subtiles)
        tDgC, tDcC = thr_t2r.partition_D(gC_subtiles), thr_t2r.partition_D(cC_subtiles)
        tDrC = cute.make_rmem_tensor(tDgC[None, None, None, 0].shape, cutlass.Float32)
        tDrD = cute.make_fragment_like(tDrC, element_type)

        num_k_tiles = cute.size(gA, mode=[2])

        if warp == TMA_WARP:
            cpasync.prefetch_descriptor(tma_A)
            cpasync.prefetch_descriptor(tma_B)
            fill = make_pipeline_state(PipelineUserType.Producer, self.stages)
            for k_tile in range(num_k_tiles):
                ring.producer_acquire(fill)
                barrier = ring.producer_get_barrier(fill)
                cute.copy(tma_A, tAgA[None, k_tile], tAsA[None, fill.index], tma_bar_ptr=barrier)
                cute.copy(tma_B, tBgB[None, k_tile], tBsB[None, fill.index], tma_bar_ptr=barrier)
                fill.advance()
            for _ in cutlass.range_constexpr(self.stages):
                ring.sync_object_empty.wait(fill.index, fill.phase)
                fill.advance()

        if warp == MMA_WARP:
            read = make_pipeline_state(PipelineUserType.Consumer, self.stages)
            write = make_pipeline_state(PipelineUserType.Producer, 1)
            accumulator.producer_acquire(write)
            for k_tile in range(num_k_tiles):
                ring.consumer_wait(read)
                fence_after_thread_sync()
                for k_block in cutlass.range_constexpr(cute.size(tCrA, mode=[2])):
                    # The first MMA overwrites what tensor memory held.
                    tiled_mma.set(tcgen05.Field.ACCUMULATE, k_tile > 0 if k_block == 0 else True)
                    k_coord = (None, None, k_block, read.index)
                    cute.gemm(tiled_mma, tCtC, tCrA[k_coord], tCrB[k_coord], tCtC)
                # A commit: the stage is free once these MMAs have read it.
                ring.consumer_release(read)
                read.advance()
            accumulator.producer_commit(write)

        # Epilogue: a subtile after the other.
        if warp < EPILOGUE_WARPS:
            drain = make_pipeline_state(PipelineUserType.Consumer, 1)
            accumulator.consumer_wait(drain)
            fence_after_thread_sync()
            for subtile in cutlass.range(cute.size(tDtC, mode=[3]), unroll=1):
                cute.copy(tiled_t2r, tDtC[None, None, None, subtile], tDrC)
                # The registers hold the subtile only from here on.
                cute.arch.fence_view_async_tmem_load()
                tDrD.store(tDrC.load().to(element_type))
                self.store(tDrD, tDgC[None, None, None, subtile], tDcC[None, None, None, subtile], mC.shape)

            # One lane arrives for the warp, so all lanes' reads have to come before it.
            fence_before_thread_sync()
            cute.arch.sync_warp()
            with cute.arch.elect_one():
                accumulator.consumer_release(drain)

            # Nobody reads tensor memory any more: the warp that allocated it gives it back.
            epilogue.arrive_and_wait()
            if warp == 0:
                fence_after_thread_sync()
                cute.arch.dealloc_tmem(tmem, self.tmem_columns)

    @cute.jit
    def store(self, src: cute.Tensor, dst: cute.Tensor, coords: cute.Tensor, limit: cute.Shape):
        """Store this thread's part of C, as much as lies inside the matrix, up to 16 bytes at a time."""
        vector = cute.make_layout(math.gcd(8, limit[1]))
        src, dst, coords = (
            cute.logical_divide(cute.group_modes(t, 0, cute.rank(t)), vector) for t in (src, dst, coords)
        )
        for i in cutlass.range_constexpr(cute.size(coords, mode=[1])):
            # N is a multiple of a vector: its first element decides for all.
            if cute.elem_less(coords[0, i], limit):
                cute.autovec_copy(src[None, i], dst[None, i])

    @cute.jit
    def tma_partition(self, atom: cute.CopyAtom, smem: cute.Tensor, gmem: cute.Tensor):
        """Both sides of a TMA copy with their first three modes (a tile) as one."""
        return cpasync.tma_partition(
            atom, 0, cute.make_layout(1), cute.group_modes(smem, 0, 3), cute.group_modes(gmem, 0, 3)
        )

    @cute.jit
    def raster_tile(self, index: cutlass.Int32, tiles: cutlass.Constexpr):
        """(m, n) of a CTA's tile: down `raster` rows, then the next column, so that a wave is nearly square."""
        group = index // (self.raster * tiles[1])
        within = index % (self.raster * tiles[1])
        rows = min(tiles[0] - group * self.raster, self.raster)
        return group * self.raster + within % rows, within // rows


def compile(arch: str, shape: tuple[int, ...], dtype: str, config: WarpSpecializedGemmConfig | None = None) -> Program:
    """The rung for one architecture, shape (M, N, K) and element type. M and N from 2; K a multiple of 8 (16 bytes)."""
    (m, n, k), dtype = RUNG.check(arch, shape, dtype)
    config = config or WarpSpecializedGemmConfig()
    check_config(config, arch)
    RUNG.require(m > 1, "M=1: the DSL makes a one-dimensional tensor map of a single row, pad M to 2")
    RUNG.require(n > 1, "N=1: the DSL makes a one-dimensional tensor map of a single row, pad N to 2")
    RUNG.require(k % 8 == 0, f"K={k}: TMA wants row pitches of 16 bytes, pad K to a multiple of 8")
    arrays = [row_major(dtype, extents) for extents in ((m, k), (n, k), (m, n))]
    return compile_program(WarpSpecializedGemm(config), *arrays, arch=arch, name=RUNG.name)


def check_config(config: WarpSpecializedGemmConfig, arch: str) -> None:
    """UsageError unless a tile is one instruction, subtiles cover it, and the stages fit into shared memory."""
    bM, bN, bK = config.tile
    RUNG.require(config.raster > 0, f"raster={config.raster}: at least 1 row of tiles")
    RUNG.require(bM == 128, f"tile={config.tile}: M must be 128, the lanes of tensor memory")
    RUNG.require(bN in range(16, 257, 16), f"tile={config.tile}: N must be a multiple of 16 up to 256")
    fits = config.subtile in (16, 32, 64, 128) and bN % config.subtile == 0
    RUNG.require(fits, f"subtile={config.subtile}: 16, 32, 64 or 128 columns, a divisor of the tile's {bN}")
    RUNG.require(bK in (64, 128, 192, 256), f"tile={config.tile}: K must be a multiple of 64 (128 bytes) up to 256")
    RUNG.require(config.stages >= 2, f"stages={config.stages}: at least 2, one to fill and one to multiply")
    smem, limit = 2 * config.stages * (bM + bN) * bK + 1024, archs.find(arch).smem_per_cta
    RUNG.require(smem <= limit, f"stages={config.stages}: {smem} bytes of shared memory, {arch} has {limit}")
