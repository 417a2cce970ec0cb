"""A pair of CTAs on one tile: each loads half of both operands, one of them starts the MMAs for both.

Adds:
    cta_group::2. The tensor cores of two neighbouring SMs work on one instruction of 256 x 256 x 16: each multiplies
    128 rows of A by all 256 of B, half of which it reads from the other CTA's shared memory. A CTA so holds and loads
    128 + 128 rows a stage for 128 x 256 of C: twice the parent's arithmetic for the same bytes.
    - The CTA of rank 0 leads. Its MMA warp issues for both, by descriptors that hold for either's shared memory; so it
      waits for both's: TMA of both CTAs counts its bytes on the leader's `full`, which expects all of them. The peer's
      copies name their own barrier's address with the peer bit cleared, the leader's view of it (the DSL does that for
      copies of this group).
    - Commits go to both CTAs, by a mask of ranks: each TMA warp has an `empty` of its own to wait for, each write-back
      an `acc_full`. The way back is a remote arrival: write-back warps of both arrive at the leader's `acc_empty`.
    - Who signals another CTA's barrier has to know that it is initialised, and that its CTA is still there: the cluster
      meets after the setup and before the end. Tensor memory is allocated and freed by both CTAs, for the pair.

Warp roles:
    | warps | role, in each of the two CTAs                                                  |
    |-------|--------------------------------------------------------------------------------|
    | 0-3   | write-back of 128 x 256: tensor memory to shared memory, a row a thread, in    |
    |       | two halves; warp 0 stores C by TMA, and allocates and frees tensor memory      |
    | 4     | MMA, in the leader; nothing in the other                                       |
    | 5     | TMA: loads of its half of A and B, as far ahead as stages are free             |

Budget:
    A CTA. SMEM: (128 + 128) rows x 64 x 2 B = 32 KB a stage, 5 stages: 160 KB; C 128 x 128 x 2 B = 32 KB, and 100 B: 1
    CTA an SM. TMEM: 256 columns of 512, fp32. Registers: 128 accumulators a thread of the write-back warps.

Run:
    tensorladder run v8-two-cta --shape 512,512,256
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, tcgen05
from cutlass.memory import SmemAllocator
from cutlass.pipeline import NamedBarrier, PipelineState

from tensorladder.core import arch as archs
from tensorladder.core.program import Program
from tensorladder.frontends.cutedsl import compile_program
from tensorladder.rungs.parts.mbarrier import CLUSTER, wait_cluster
from tensorladder.rungs.parts.tcgen05 import fence_after_thread_sync, fence_before_thread_sync
from tensorladder.rungs.parts.tensors import row_major
from tensorladder.rungs.rung import Rung


@dataclass(frozen=True)
class TwoCtaGemmConfig:
    """tile: (M, N, K) of a step of a pair. stages: K tiles in shared memory.

    sm_count: there are half as many pairs, or as many as tiles where that is less. raster: rows of tiles that the list
    goes down before the next column.
    """

    tile: tuple[int, int, int] = (256, 256, 64)
    stages: int = 5
    sm_count: int = 148
    raster: int = 8


RUNG = Rung(
    name="v8-two-cta",
    parent="v7-warp-specialized",
    adds="CTA pairs: MMAs of 256 x 256 that read both CTAs' shared memory, remote barriers, masks",
    archs=("sm_100a",),
    problem="gemm",
    dtypes=("fp16", "bf16"),
    config=TwoCtaGemmConfig,
    shape=(512, 512, 256),
)

WRITEBACK_WARPS = 4  # a thread a lane of TMEM
MMA_WARP = 4
TMA_WARP = 5
THREADS = 32 * 6
CTAS = 2  # of a pair; rank 0 leads
BOTH = 0b11  # a mask of ranks
CHUNK = 128  # columns of C in shared memory
MMA_K = 16  # of an instruction: 32 bytes of each row


class TwoCtaGemm:
    def __init__(self, config: TwoCtaGemmConfig):
        self.tile = config.tile
        self.stages = config.stages
        self.pairs = config.sm_count // CTAS
        self.raster = config.raster
        self.cta_tile = (config.tile[0] // CTAS, config.tile[1] // CTAS, config.tile[2])  # what a CTA loads
        self.tmem_columns = config.tile[1]

    @cute.jit
    def __call__(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor):
        bM, bN, bK = self.cta_tile
        sA_layout = self.smem_layout(bM, bK, self.stages)
        sB_layout = self.smem_layout(bN, bK, self.stages)
        sC_layout = self.smem_layout(bM, CHUNK, 1)

        # A descriptor and a tensor of coordinates for each matrix. TMA takes coordinates, not addresses.
        element_type = mC.element_type
        load, store = cpasync.CopyBulkTensorTileG2SOp(tcgen05.CtaGroup.TWO), cpasync.CopyBulkTensorTileS2GOp()
        tma_A, mA = cpasync.make_tiled_tma_atom(load, mA, cute.select(sA_layout, mode=[0, 1]), (bM, bK))
        tma_B, mB = cpasync.make_tiled_tma_atom(load, mB, cute.select(sB_layout, mode=[0, 1]), (bN, bK))
        tma_C, mC = cpasync.make_tiled_tma_atom(store, mC, cute.select(sC_layout, mode=[0, 1]), (bM, CHUNK))

        # One instruction covers the pair's rows and columns. Both operands lie along K and come from shared memory.
        k_major = OperandMajorMode.K
        two, smem = tcgen05.CtaGroup.TWO, tcgen05.OperandSource.SMEM
        shape_mnk = (*self.tile[:2], MMA_K)
        mma_op = tcgen05.MmaF16BF16Op(element_type, cutlass.Float32, shape_mnk, two, smem, k_major, k_major)
        tiled_mma = cute.make_tiled_mma(mma_op)

        @cute.struct
        class SharedStorage:
            full: cute.struct.MemRange[cutlass.Int64, self.stages]
            empty: cute.struct.MemRange[cutlass.Int64, self.stages]
            acc_full: cutlass.Int64
            acc_empty: cutlass.Int64
            tmem: cutlass.Int32
            sA: cute.struct.Align[cute.struct.MemRange[element_type, cute.cosize(sA_layout)], 1024]
            sB: cute.struct.Align[cute.struct.MemRange[element_type, cute.cosize(sB_layout)], 1024]
            sC: cute.struct.Align[cute.struct.MemRange[element_type, cute.cosize(sC_layout)], 1024]

        self.shared_storage = SharedStorage
        tiles = cute.ceil_div(mC.shape, self.tile[:2])
        pairs = min(self.pairs, cute.size(tiles))
        self.kernel(tma_A, mA, tma_B, mB, tma_C, mC, sA_layout, sB_layout, sC_layout, tiled_mma, tiles).launch(
            grid=(CTAS * pairs, 1, 1), block=(THREADS, 1, 1), cluster=(CTAS, 1, 1)
        )

    @cute.kernel
    def kernel(
        self,
        tma_A: cute.CopyAtom,
        mA: cute.Tensor,
        tma_B: cute.CopyAtom,
        mB: cute.Tensor,
        tma_C: cute.CopyAtom,
        mC: cute.Tensor,
        sA_layout: cute.ComposedLayout,
        sB_layout: cute.ComposedLayout,
        sC_layout: cute.ComposedLayout,
        tiled_mma: cute.TiledMma,
        tiles: cutlass.Constexpr,
    ):
        tidx, _, _ = cute.arch.thread_idx()
        pair, _, _ = cute.arch.cluster_idx()
        pairs, _, _ = cute.arch.cluster_dim()
        rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())

        smem = SmemAllocator()
        storage = smem.allocate(self.shared_storage)
        sA = storage.sA.get_tensor(sA_layout.outer, swizzle=sA_layout.inner)
        sB = storage.sB.get_tensor(sB_layout.outer, swizzle=sB_layout.inner)
        sC = storage.sC.get_tensor(sC_layout.outer, swizzle=sC_layout.inner)[None, None, 0]
        full, empty = storage.full.data_ptr(), storage.empty.data_ptr()
        acc_full, acc_empty = storage.acc_full.ptr, storage.acc_empty.ptr
        # What both CTAs load for a stage.
        stage_bytes = cute.size_in_bytes(sA.element_type, cute.select(sA_layout, mode=[0, 1]))
        stage_bytes += cute.size_in_bytes(sB.element_type, cute.select(sB_layout, mode=[0, 1]))
        stage_bytes *= CTAS

        # One warp allocates TMEM and lets other CTAs of the SM do so next; the address comes through shared memory.
        if warp == 0:
            cute.arch.alloc_tmem(self.tmem_columns, storage.tmem.ptr, is_two_cta=True)
            cute.arch.relinquish_tmem_alloc_permit(is_two_cta=True)
            with cute.arch.elect_one():
                for stage in cutlass.range_constexpr(self.stages):
                    cute.arch.mbarrier_init(full + stage, 1)
                    cute.arch.mbarrier_init(empty + stage, 1)
                cute.arch.mbarrier_init(acc_full, 1)
                cute.arch.mbarrier_init(acc_empty, CTAS * WRITEBACK_WARPS)
                cute.arch.mbarrier_init_fence()
        writeback = NamedBarrier(barrier_id=1, num_threads=32 * WRITEBACK_WARPS)
        # Both CTAs' barriers are initialised and their tensor memory allocated before either touches the other's.
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()
        tmem = cute.arch.retrieve_tmem_ptr(cutlass.Float32, 16, storage.tmem.ptr)

        # (2 BM, BK, m tiles, k tiles), (2 BN, BK, n tiles, k tiles), (2 BM, 2 BN, m tiles, n tiles), as coordinates,
        # and those by what a CTA loads or stores at a time: (BM, BK, 2, 1, ...), (BN, BK, 2, 1, ...), (BM, CHUNK, 2,
        # chunks, ...).
        gA = cute.local_tile(mA, tiler=self.tile, coord=(None, None, None), proj=(1, None, 1))
        gB = cute.local_tile(mB, tiler=self.tile, coord=(None, None, None), proj=(None, 1, 1))
        gC = cute.local_tile(mC, tiler=self.tile, coord=(None, None, None), proj=(1, 1, None))
        num_k_tiles = cute.size(gA, mode=[3])
        bM, bN, bK = self.cta_tile
        gA, gB, gC = cute.flat_divide(gA, (bM, bK)), cute.flat_divide(gB, (bN, bK)), cute.flat_divide(gC, (bM, CHUNK))

        # gmem -> smem and back: (TMA, stage), (TMA, half, 1, m or n tile, k tile)
        tAsA, tAgA = self.tma_partition(tma_A, sA, gA)
        tBsB, tBgB = self.tma_partition(tma_B, sB, gB)
        tCsC, tCgC = self.tma_partition(tma_C, sC, gC)

        # smem -> MMA -> tmem: fragments of A and B are descriptors, (MMA, M blocks, K blocks, stage); C's an address.
        tCrA = tiled_mma.make_fragment_A(cute.tiled_divide(sA, (bM, MMA_K)))
        tCrB = tiled_mma.make_fragment_B(cute.tiled_divide(sB, (bN, MMA_K)))
        tCtC = tiled_mma.make_fragment_C(tiled_mma.partition_shape_C(self.tile[:2]))
        tCtC = cute.make_tensor(tmem, tCtC.layout)

        # tmem -> registers -> smem: a thread loads its lane, a row of the tile, in chunks of columns.
        atom_t2r = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition(CHUNK)), cutlass.Float32)
        tC = cute.flat_divide(tCtC[(None, None), 0, 0], (bM, CHUNK))[None, None, 0, None]
        tiled_t2r = tcgen05.make_tmem_copy(atom_t2r, tC[None, None, 0])
        thr_t2r = tiled_t2r.get_slice(tidx)
        tDtC, tDsC = thr_t2r.partition_S(tC), thr_t2r.partition_D(sC)
        tDrC = cute.make_rmem_tensor(tDsC.shape, cutlass.Float32)

        # One lane issues: the DSL elects it for each load, store and MMA, and we for the commit, which tracks the MMAs
        # of its thread.
        if warp == TMA_WARP:
            cpasync.prefetch_descriptor(tma_A)
            cpasync.prefetch_descriptor(tma_B)
            load = PipelineState(self.stages, cutlass.Int32(0), index=cutlass.Int32(0), phase=cutlass.Int32(1))
            for tile in range(pair, cute.size(tiles), pairs):
                m, n = self.raster_tile(tile, tiles)
                for k_tile in range(num_k_tiles):
                    stage = load.index
                    cute.arch.mbarrier_wait(empty + stage, load.phase)
                    if rank == 0:
                        with cute.arch.elect_one():
                            cute.arch.mbarrier_arrive_and_expect_tx(full + stage, stage_bytes)
                    cute.copy(tma_A, tAgA[None, rank, 0, m, k_tile], tAsA[None, stage], tma_bar_ptr=full + stage)
                    cute.copy(tma_B, tBgB[None, rank, 0, n, k_tile], tBsB[None, stage], tma_bar_ptr=full + stage)
                    load.advance()
            # The last commits have arrived: none is on its way to a barrier of a CTA that has exited.
            for _ in range(self.stages):
                cute.arch.mbarrier_wait(empty + load.index, load.phase)
                load.advance()

        if warp == MMA_WARP and rank == 0:
            read = PipelineState(self.stages, cutlass.Int32(0), index=cutlass.Int32(0), phase=cutlass.Int32(0))
            acc = PipelineState(1, cutlass.Int32(0), index=cutlass.Int32(0), phase=cutlass.Int32(1))
            for _ in range(pair, cute.size(tiles), pairs):
                wait_cluster(acc_empty, acc.phase)
                acc.advance()
                fence_after_thread_sync()
                tiled_mma.set(tcgen05.Field.ACCUMULATE, False)
                for _ in range(num_k_tiles):
                    stage = read.index
                    cute.arch.mbarrier_wait(full + stage, read.phase)
                    for k_block in cutlass.range_constexpr(cute.size(tCrA, mode=[2])):
                        tCrA_k, tCrB_k = tCrA[None, None, k_block, stage], tCrB[None, None, k_block, stage]
                        cute.gemm(tiled_mma, tCtC, tCrA_k, tCrB_k, tCtC)
                        tiled_mma.set(tcgen05.Field.ACCUMULATE, True)
                    with cute.arch.elect_one():
                        tcgen05.commit(empty + stage, BOTH, tcgen05.CtaGroup.TWO)
                    read.advance()
                with cute.arch.elect_one():
                    tcgen05.commit(acc_full, BOTH, tcgen05.CtaGroup.TWO)

        if warp < WRITEBACK_WARPS:
            acc = PipelineState(1, cutlass.Int32(0), index=cutlass.Int32(0), phase=cutlass.Int32(0))
            for tile in range(pair, cute.size(tiles), pairs):
                m, n = self.raster_tile(tile, tiles)
                cute.arch.mbarrier_wait(acc_full, acc.phase)
                acc.advance()

                # Epilogue: tmem -> registers -> smem -> gmem (TMA)
                fence_after_thread_sync()
                for chunk in cutlass.range_constexpr(self.tile[1] // CHUNK):
                    cute.copy(tiled_t2r, tDtC[None, None, None, chunk], tDrC)
                    cute.arch.fence_view_async_tmem_load()
                    # One lane arrives for the warp: all lanes' loads have to come before it.
                    if cutlass.const_expr(chunk == self.tile[1] // CHUNK - 1):
                        fence_before_thread_sync()
                        cute.arch.sync_warp()
                        with cute.arch.elect_one():
                            cute.arch.mbarrier_arrive(acc_empty, 0, scope=CLUSTER)
                    tDrD = cute.make_fragment_like(tDrC, sC.element_type)
                    tDrD.store(tDrC.load().to(sC.element_type))

                    # TMA has read the chunk before: its place may be overwritten.
                    if warp == 0:
                        cute.arch.cp_async_bulk_wait_group(0, read=True)
                    writeback.arrive_and_wait()
                    cute.autovec_copy(tDrD, tDsC)

                    # Each writer's fence, then the barrier, then the store: the other way round TMA could read stale
                    # bytes.
                    cute.arch.fence_proxy("async.shared", space="cta")
                    writeback.arrive_and_wait()
                    if warp == 0:
                        cute.copy(tma_C, tCsC, tCgC[None, rank, chunk, m, n])
                        cute.arch.cp_async_bulk_commit_group()

        # Give TMEM back once every warp of the pair has read its lanes, and exit when no other CTA signals this one any
        # more. Shared memory belongs to the CTA only until it exits: wait until TMA has read it.
        fence_before_thread_sync()
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()
        if warp == 0:
            fence_after_thread_sync()
            cute.arch.dealloc_tmem(tmem, self.tmem_columns, is_two_cta=True)
            cute.arch.cp_async_bulk_wait_group(0, read=True)

    @cute.jit
    def tma_partition(self, atom: cute.CopyAtom, smem: cute.Tensor, gmem: cute.Tensor):
        """Both sides of a TMA copy with their first two modes (the box) as one."""
        return cpasync.tma_partition(
            atom, 0, cute.make_layout(1), cute.group_modes(smem, 0, 2), cute.group_modes(gmem, 0, 2)
        )

    @cute.jit
    def raster_tile(self, index: cutlass.Int32, tiles: cutlass.Constexpr):
        """(m, n) of the list's tile: down `raster` rows, then the next column, so that a wave is nearly square."""
        group = index // (self.raster * tiles[1])
        within = index % (self.raster * tiles[1])
        rows = min(tiles[0] - group * self.raster, self.raster)
        return group * self.raster + within % rows, within // rows

    def smem_layout(self, rows: int, cols: int, stages: int):
        """(rows, cols, stages), row-major in columns of 64 elements: 128 bytes, the width of the swizzle."""
        atom = cute.make_composed_layout(cute.make_swizzle(3, 4, 3), 0, cute.make_layout((8, 64), stride=(64, 1)))
        return cute.tile_to_shape(atom, (rows, cols, stages), order=(0, 1, 2))


def compile(arch: str, shape: tuple[int, ...], dtype: str, config: TwoCtaGemmConfig | None = None) -> Program:
    """The rung for one architecture, shape (M, N, K) and element type. M from 2; N and K multiples of 8 (16 bytes)."""
    (m, n, k), dtype = RUNG.check(arch, shape, dtype)
    config = config or TwoCtaGemmConfig()
    check_config(config, arch)
    RUNG.require(m > 1, "M=1: the DSL makes a one-dimensional tensor map of a single row, pad M to 2")
    RUNG.require(n % 8 == 0, f"N={n}: TMA wants row pitches of 16 bytes, pad N to a multiple of 8")
    RUNG.require(k % 8 == 0, f"K={k}: TMA wants row pitches of 16 bytes, pad K to a multiple of 8")
    arrays = [row_major(dtype, extents) for extents in ((m, k), (n, k), (m, n))]
    return compile_program(TwoCtaGemm(config), *arrays, arch=arch, name=RUNG.name)


def check_config(config: TwoCtaGemmConfig, arch: str) -> None:
    """UsageError unless one MMA covers the tile, one load of TMEM its columns, and stages fit into shared memory."""
    bM, bN, bK = config.tile
    RUNG.require(bM == 256, f"tile={config.tile}: M must be 256, the lanes of two CTAs' TMEM")
    RUNG.require(bN in (128, 256), f"tile={config.tile}: N must be 128 or 256, in chunks of {CHUNK} columns")
    RUNG.require(bK in (64, 128), f"tile={config.tile}: K must be 64 or 128, in rows of 128 bytes")
    RUNG.require(config.raster > 0, f"raster={config.raster}: at least 1 row of tiles")
    RUNG.require(config.sm_count >= CTAS, f"sm_count={config.sm_count}: at least {CTAS}, a pair")
    RUNG.require(config.stages >= 2, f"stages={config.stages}: at least 2, one to fill and one to multiply")
    smem = 2 * (config.stages * (bM + bN) // CTAS * bK + bM // CTAS * CHUNK) + 1024
    limit = archs.find(arch).smem_per_cta
    RUNG.require(smem <= limit, f"stages={config.stages}: {smem} bytes of shared memory, {arch} has {limit}")
