"""Persistent pairs: one tile's epilogue runs beside the next tile's MMAs, and C leaves through shared memory by TMA.

Adds:
    Time that the parent's tensor cores spend waiting. There a pair multiplies, then stores, then exits, and the next
    starts with an empty ring. Here as many pairs start as fit (larger clusters leave SMs idle), for tile after tile:
    - Two accumulators. 2 x 256 columns fill tensor memory: the MMA warp goes on with the next tile in one while the
      epilogue reads the other. The accumulator's empty barrier, which no one waited for so far, now holds it back: it
      completes when the epilogue warps of both CTAs have read all of a tile, before they have stored it.
    - The ring does not drain between tiles: the producer asks for the next tile while this one is multiplied.
    - C by TMA. A thread has a row of C, so 32 lanes would store to 32 rows, 16 bytes each. Instead a subtile goes to
      shared memory (through the swizzle: no bank conflicts) and from there in whole lines; edges are the hardware's.
      Two buffers take turns: a buffer is written again when TMA has read it.
    - fp8 (e4m3) with fp16 results is the same kernel: kind::f8f6f4, twice as many elements in a tile's 128-byte rows.

Warp roles:
    | warps | role                                                                                     |
    |-------|------------------------------------------------------------------------------------------|
    | 0-3   | epilogue: 32 rows of C each to shared memory; warp 0 asks TMA to store, and allocates    |
    | 4     | MMA, in the leader: issues tcgen05.mma for the pair, into one accumulator or the other   |
    | 5     | producer: asks TMA for its CTA's part of A and B, tile after tile                        |

Budget:
    SMEM: (128 + 128) rows x 64 x 2 B = 32 KB a stage, 6 stages: 192 KB; C: 128 rows x 64 x 2 B = 16 KB, 2 buffers: 32
    KB; 132 B of mbarriers, in all 225 KB of 227, 1 CTA an SM. TMEM: 2 x 128 lanes x 256 columns = 256 KB, all of each
    SM's. Registers: 64 accumulators and 32 of results at a time, in all 74.

Run:
    tensorladder run d4-persistent --shape 512,512,512
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
from cutlass.tensor_utils import LayoutEnum

from tensorladder.core import arch as archs
from tensorladder.core.program import Program
from tensorladder.frontends.cutedsl import compile_program
from tensorladder.problems import dtype_named
from tensorladder.rungs.parts.tcgen05 import fence_after_thread_sync, fence_before_thread_sync, tmem_columns
from tensorladder.rungs.parts.tensors import row_major
from tensorladder.rungs.rung import Rung


@dataclass(frozen=True)
class PersistentGemmConfig:
    """tile: (M, N, K) of a pair of CTAs; M x N is one instruction, K counts 16-bit elements (twice as many of fp8).
    stages: K tiles in shared memory.

    subtile: columns of C that a thread holds at a time, and of a buffer in shared memory; buffers: of these.
    cluster: CTAs along M (whole pairs) and N. sm_count: of the GPU, one CTA each (B200: 148).
    raster: rows of clusters that consecutive ones go down before the next column, so that they share A and B in L2.
    """

    tile: tuple[int, int, int] = (256, 256, 64)
    stages: int = 6
    subtile: int = 64
    buffers: int = 2
    cluster: tuple[int, int] = (2, 1)
    sm_count: int = 148
    raster: int = 8


RUNG = Rung(
    name="d4-persistent",
    parent="d3-two-cta",
    adds="persistent clusters, two accumulators in tensor memory, C through shared memory with TMA stores",
    archs=("sm_100a",),
    problem="gemm",
    dtypes=("fp16", "bf16", "e4m3"),
    config=PersistentGemmConfig,
    shape=(512, 512, 512),
)

EPILOGUE_WARPS = 4  # one for each 32 lanes of tensor memory
MMA_WARP, TMA_WARP = 4, 5
THREADS = 32 * 6
PAIR = 2  # CTAs
ACCUMULATORS = 2


class PersistentGemm:
    def __init__(self, config: PersistentGemmConfig, element_bits: int):
        self.tile = (*config.tile[:2], config.tile[2] * 16 // element_bits)
        self.stages = config.stages
        self.subtile = (config.tile[0] // PAIR, config.subtile)
        self.buffers = config.buffers
        self.cluster = (*config.cluster, 1)
        self.sm_count = config.sm_count
        self.raster = config.raster
        self.tmem_columns = tmem_columns(ACCUMULATORS * config.tile[1])

    @cute.jit
    def __call__(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor):
        bM, bN = self.tile[:2]
        element_type, result_type = mA.element_type, mC.element_type
        majors, group = (OperandMajorMode.K, OperandMajorMode.K), tcgen05.CtaGroup.TWO
        tiled_mma = sm100.make_trivial_tiled_mma(*[element_type] * 2, *majors, cutlass.Float32, group, (bM, bN))

        # (MMA, MMA_M, MMA_K, stage): K-major with the 128-byte swizzle, cut into what one instruction reads.
        sA_layout = sm100.make_smem_layout_a(tiled_mma, self.tile, element_type, self.stages)
        sB_layout = sm100.make_smem_layout_b(tiled_mma, self.tile, element_type, self.stages)

        # A descriptor and a tensor of coordinates for each matrix. TMA takes coordinates, not addresses.
        # Where a cluster has several pairs along N (M), each loads a part of A (B) and multicasts it to all of them.
        ctas = cute.tiled_divide(cute.make_layout(self.cluster), (tiled_mma.thr_id,))  # (pair, M, N, 1)
        load_A = sm100.cluster_shape_to_tma_atom_A(self.cluster, tiled_mma.thr_id)
        load_B = sm100.cluster_shape_to_tma_atom_B(self.cluster, tiled_mma.thr_id)
        sA_stage, sB_stage = (cute.select(layout, mode=[0, 1, 2]) for layout in (sA_layout, sB_layout))
        tma_A, mA = cute.nvgpu.make_tiled_tma_atom_A(load_A, mA, sA_stage, self.tile, tiled_mma, ctas.shape)
        tma_B, mB = cute.nvgpu.make_tiled_tma_atom_B(load_B, mB, sB_stage, self.tile, tiled_mma, ctas.shape)

        # (BM / 2, columns, buffer) of C, row-major with the swizzle that its rows allow.
        sC_layout = sm100.make_smem_layout_epi(result_type, LayoutEnum.ROW_MAJOR, self.subtile, self.buffers)
        store = cpasync.CopyBulkTensorTileS2GOp()
        tma_C, mC = cpasync.make_tiled_tma_atom(store, mC, cute.select(sC_layout, mode=[0, 1]), self.subtile)

        @cute.struct
        class SharedStorage:
            barriers: cute.struct.MemRange[cutlass.Int64, 2 * self.stages]
            accumulator: cute.struct.MemRange[cutlass.Int64, 2 * ACCUMULATORS]
            tmem: cutlass.Int32
            sA: cute.struct.Align[cute.struct.MemRange[element_type, cute.cosize(sA_layout)], 1024]
            sB: cute.struct.Align[cute.struct.MemRange[element_type, cute.cosize(sB_layout)], 1024]
            sC: cute.struct.Align[cute.struct.MemRange[result_type, cute.cosize(sC_layout)], 1024]

        self.shared_storage = SharedStorage
        # Clusters of tiles, as many at a time as there is room for. A tile past the edge is multiplied but not stored.
        pairs_m, pairs_n = self.cluster[0] // PAIR, self.cluster[1]
        clusters = cute.ceil_div(mC.shape, (bM * pairs_m, bN * pairs_n))
        resident = min(cute.size(clusters), self.sm_count // (self.cluster[0] * self.cluster[1]))
        self.kernel(
            tma_A, mA, tma_B, mB, tma_C, mC, sA_layout, sB_layout, sC_layout, tiled_mma, ctas, clusters, resident
        ).launch(
            grid=(resident * self.cluster[0], self.cluster[1], 1), block=(THREADS, 1, 1), cluster=self.cluster
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
        ctas: cute.Layout,
        clusters: cutlass.Constexpr,
        resident: cutlass.Constexpr,
    ):
        tidx, _, _ = cute.arch.thread_idx()
        bidx, _, _ = cute.arch.block_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())

        # This CTA's place in its pair, the pair's in the cluster.
        place = ctas.get_flat_coord(cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster()))
        leader = place[0] == 0
        first, num_tiles = bidx // self.cluster[0], cute.size(clusters)
        pairs_m, pairs_n = self.cluster[0] // PAIR, self.cluster[1]

        smem = SmemAllocator()
        storage = smem.allocate(self.shared_storage)
        sA = storage.sA.get_tensor(sA_layout.outer, swizzle=sA_layout.inner)
        sB = storage.sB.get_tensor(sB_layout.outer, swizzle=sB_layout.inner)
        sC = storage.sC.get_tensor(sC_layout.outer, swizzle=sC_layout.inner)
        element_type, result_type = sA.element_type, sC.element_type
        stages = (cute.select(layout, mode=[0, 1, 2]) for layout in (sA_layout, sB_layout))
        stage_bytes = PAIR * sum(cute.size_in_bytes(element_type, stage) for stage in stages)

        # (BM, BK, m tiles, k tiles), (BN, BK, n tiles, k tiles), (BM / 2, columns, m halves, subtiles), as coordinates.
        gA = cute.local_tile(mA, (self.tile[0], self.tile[2]), (None, None))
        gB = cute.local_tile(mB, (self.tile[1], self.tile[2]), (None, None))
        gC = cute.local_tile(mC, self.subtile, (None, None))

        # gmem -> smem: (TMA, stage), (TMA, m or n tile, k tile). This CTA's half, of that the part that it multicasts.
        thr_mma = tiled_mma.get_slice(place[0])
        tAsA, tAgA = self.tma_partition(tma_A, place[2], pairs_n, sA, thr_mma.partition_A(gA))
        tBsB, tBgB = self.tma_partition(tma_B, place[1], pairs_m, sB, thr_mma.partition_B(gB))
        mask_A = cpasync.create_tma_multicast_mask(ctas, place, mcast_mode=2) if pairs_n > 1 else None
        mask_B = cpasync.create_tma_multicast_mask(ctas, place, mcast_mode=1) if pairs_m > 1 else None

        # smem -> MMA: descriptors of the stages. MMA -> tmem: ((BM / 2, BN), 1, 1, accumulator)
        tCrA = tiled_mma.make_fragment_A(sA)
        tCrB = tiled_mma.make_fragment_B(sB)
        tCtC_layout = tiled_mma.make_fragment_C(
            cute.append(tiled_mma.partition_shape_C(self.tile[:2]), ACCUMULATORS)
        ).layout

        # The ring of stages: full completes with an arrival and both CTAs' bytes, empty with a commit of each leader in
        # this CTA's row and column. The accumulator: full completes with a commit, empty with an arrival of each
        # epilogue warp of the pair.
        one = CooperativeGroup(Agent.Thread)
        ring = PipelineTmaUmma.create(
            num_stages=self.stages,
            producer_group=one,
            consumer_group=CooperativeGroup(Agent.Thread, pairs_m + pairs_n - 1),
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
                m, n = self.raster_tile(index, clusters, place)
                for k_tile in cutlass.range(num_k_tiles, unroll=1):
                    ring.producer_acquire(fill)
                    barrier = ring.producer_get_barrier(fill)
                    tma_A_from, tma_B_from = tAgA[None, m, k_tile], tBgB[None, n, k_tile]
                    cute.copy(tma_A, tma_A_from, tAsA[None, fill.index], tma_bar_ptr=barrier, mcast_mask=mask_A)
                    cute.copy(tma_B, tma_B_from, tBsB[None, fill.index], tma_bar_ptr=barrier, mcast_mask=mask_B)
                    fill.advance()
            for _ in cutlass.range_constexpr(self.stages):
                ring.sync_object_empty.wait(fill.index, fill.phase)
                fill.advance()

        if warp == MMA_WARP and leader:
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
                    for k_block in cutlass.range_constexpr(cute.size(tCrA, mode=[2])):
                        # The first MMA overwrites what tensor memory held.
                        tiled_mma.set(tcgen05.Field.ACCUMULATE, k_tile > 0 if k_block == 0 else True)
                        k_coord = (None, None, k_block, read.index)
                        cute.gemm(tiled_mma, tCtC_tile, tCrA[k_coord], tCrB[k_coord], tCtC_tile)
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
                m, n = self.raster_tile(index, clusters, place)
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
                        m_half, n_subtile = PAIR * m + place[0], num_subtiles * n + subtile
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
    def tma_partition(
        self, atom: cute.CopyAtom, part: cutlass.Int32, parts: cutlass.Constexpr, smem: cute.Tensor, gmem: cute.Tensor
    ):
        """Both sides of a TMA copy with their first three modes (a tile) as one; of it the part of `parts`."""
        smem, gmem = cute.group_modes(smem, 0, 3), cute.group_modes(gmem, 0, 3)
        return cpasync.tma_partition(atom, part, cute.make_layout(parts), smem, gmem)

    @cute.jit
    def raster_tile(self, index: cutlass.Int32, tiles: cutlass.Constexpr, place: cute.Coord):
        """(m, n) of a pair's tile. Clusters go down `raster` rows, then to the next column: a wave is nearly square."""
        group = index // (self.raster * tiles[1])
        within = index % (self.raster * tiles[1])
        rows = min(tiles[0] - group * self.raster, self.raster)
        m, n = group * self.raster + within % rows, within // rows
        return m * (self.cluster[0] // PAIR) + place[1], n * self.cluster[1] + place[2]


def compile(arch: str, shape: tuple[int, ...], dtype: str, config: PersistentGemmConfig | None = None) -> Program:
    """The rung for one architecture, shape (M, N, K) and element type. M from 2; N a multiple of 8, K of 16 bytes."""
    (m, n, k), dtype = RUNG.check(arch, shape, dtype)
    config = config or PersistentGemmConfig()
    check_config(config, arch)
    RUNG.require(m > 1, "M=1: the DSL makes a one-dimensional tensor map of a single row, pad M to 2")
    RUNG.require(n % 8 == 0, f"N={n}: TMA wants row pitches of 16 bytes, pad N to a multiple of 8")
    bits = dtype_named(dtype).bits
    RUNG.require(k * bits % 128 == 0, f"K={k}: TMA wants row pitches of 16 bytes, pad K to a multiple of {128 // bits}")
    arrays = [row_major(dtype, (m, k)), row_major(dtype, (n, k)), row_major("fp16" if bits == 8 else dtype, (m, n))]
    return compile_program(PersistentGemm(config, bits), *arrays, arch=arch, name=RUNG.name)


def check_config(config: PersistentGemmConfig, arch: str) -> None:
    """UsageError unless a tile is one instruction, subtiles cover it, and the stages fit into shared memory."""
    bM, bN, bK = config.tile
    RUNG.require(config.raster > 0, f"raster={config.raster}: at least 1 row of tiles")
    RUNG.require(bM == 256, f"tile={config.tile}: M must be 256, the lanes of two tensor memories")
    RUNG.require(bN in range(32, 257, 32), f"tile={config.tile}: N must be a multiple of 32 up to 256")
    fits = config.subtile in (32, 64, 128) and bN % config.subtile == 0
    RUNG.require(fits, f"subtile={config.subtile}: 32, 64 or 128 columns, a divisor of the tile's {bN}")
    RUNG.require(config.buffers >= 1, f"buffers={config.buffers}: at least 1")
    RUNG.require(bK in (64, 128, 192, 256), f"tile={config.tile}: K must be a multiple of 64 (128 bytes) up to 256")
    RUNG.require(config.stages >= 2, f"stages={config.stages}: at least 2, one to fill and one to multiply")
    cluster_m, cluster_n = config.cluster
    fits = cluster_m % PAIR == 0 and cluster_m > 0 < cluster_n and cluster_m * cluster_n <= 8
    RUNG.require(fits, f"cluster={config.cluster}: whole pairs along M, at most 8 CTAs")
    fits = 128 % (8 * cluster_n) == 0 and bN // PAIR % (8 * cluster_m // PAIR) == 0
    RUNG.require(fits, f"cluster={config.cluster}: {config.tile} does not split into parts of 8 rows")
    ctas = cluster_m * cluster_n
    RUNG.require(config.sm_count >= ctas, f"sm_count={config.sm_count}: at least a cluster, {ctas} CTAs")
    smem = config.stages * (bM + bN) * bK + config.buffers * bM * config.subtile
    smem, limit = smem + 1024, archs.find(arch).smem_per_cta
    RUNG.require(smem <= limit, f"stages={config.stages}: {smem} bytes of shared memory, {arch} has {limit}")
