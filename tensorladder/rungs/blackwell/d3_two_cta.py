"""CTA pairs and multicast: two SMs work on one MMA, and clusters load what they share once.

Adds:
    The pair. tcgen05.mma.cta_group::2 multiplies 256 x 256: each CTA of a pair holds half of A's rows, half of B's rows
    (that is, of C's columns) and, in its own tensor memory, half of C's rows. The tensor cores fetch B's other half
    from the partner, so that a CTA loads 128 rows of B where the parent loads 256 for the same work, and the ring grows
    from 4 stages to 6. And the cluster: pairs in a row of C share A, pairs in a column share B; each CTA loads a part
    and multicasts it to all that need it.
    - The even CTA of a pair leads: its MMA warp alone issues, for both. Bytes of both CTAs are counted at the leader's
      full barrier (cta_group::2 loads signal there), so it expects both halves.
    - A commit goes to every CTA whose loads the MMAs have used up: to the empty barrier of all CTAs in the pair's row
      and column. So empty takes an arrival of each leader in its own row and column.
    - The accumulator's full goes to both CTAs of the pair; epilogue warps of both arrive at the leader's empty.
    - No CTA may touch another's barriers before they are initialised or after it has exited: a cluster barrier at
      either end. The second also says that the partner is done with tensor memory, which pairs give back together.

Warp roles:
    | warps | role                                                                              |
    |-------|-----------------------------------------------------------------------------------|
    | 0-3   | epilogue: read 32 rows of C each and store them; warp 0 allocates tensor memory   |
    | 4     | MMA, in the leader: issues tcgen05.mma for the pair, commits to the cluster       |
    | 5     | producer: asks TMA for its CTA's part of A and B, multicast                       |

Budget:
    SMEM: (128 + 128) rows x 64 x 2 B = 32 KB a stage, 6 stages: 192 KB and 116 B of mbarriers, 1 CTA an SM. TMEM: 128
    lanes x 256 columns = 128 KB of each SM's 256. Registers: 32 accumulators and 16 of results at a time, in all 40.

Run:
    tensorladder run d3-two-cta --shape 512,512,512
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
class TwoCtaGemmConfig:
    """tile: (M, N, K) of a pair of CTAs; M x N is one instruction. stages: K tiles in shared memory.

    subtile: columns of C that a thread holds at a time. cluster: CTAs along M (whole pairs) and N.
    raster: rows of clusters that consecutive ones go down before the next column, so that they share A and B in L2.
    """

    tile: tuple[int, int, int] = (256, 256, 64)
    stages: int = 6
    subtile: int = 32
    cluster: tuple[int, int] = (2, 2)
    raster: int = 8


RUNG = Rung(
    name="d3-two-cta",
    parent="d2-warp-specialized",
    adds="MMAs of CTA pairs (256 x 256 x 16), clusters that multicast A along N and B along M",
    archs=("sm_100a",),
    problem="gemm",
    dtypes=("fp16", "bf16"),
    config=TwoCtaGemmConfig,
    shape=(512, 512, 512),
)

EPILOGUE_WARPS = 4  # one for each 32 lanes of tensor memory
MMA_WARP, TMA_WARP = 4, 5
THREADS = 32 * 6
PAIR = 2  # CTAs


class TwoCtaGemm:
    def __init__(self, config: TwoCtaGemmConfig):
        self.tile = config.tile
        self.stages = config.stages
        self.subtile = (config.tile[0] // PAIR, config.subtile)
        self.cluster = (*config.cluster, 1)
        self.raster = config.raster
        self.tmem_columns = tmem_columns(config.tile[1])

    @cute.jit
    def __call__(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor):
        bM, bN = self.tile[:2]
        element_type = mC.element_type
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

        @cute.struct
        class SharedStorage:
            barriers: cute.struct.MemRange[cutlass.Int64, 2 * self.stages]
            accumulator: cute.struct.MemRange[cutlass.Int64, 2]
            tmem: cutlass.Int32
            sA: cute.struct.Align[cute.struct.MemRange[element_type, cute.cosize(sA_layout)], 1024]
            sB: cute.struct.Align[cute.struct.MemRange[element_type, cute.cosize(sB_layout)], 1024]

        self.shared_storage = SharedStorage
        # Clusters of tiles. A tile past the edge is multiplied with the others but not stored.
        pairs_m, pairs_n = self.cluster[0] // PAIR, self.cluster[1]
        clusters = cute.ceil_div(mC.shape, (bM * pairs_m, bN * pairs_n))
        self.kernel(tma_A, mA, tma_B, mB, mC, sA_layout, sB_layout, tiled_mma, ctas, clusters).launch(
            grid=(cute.size(clusters) * self.cluster[0], self.cluster[1], 1),
            block=(THREADS, 1, 1),
            cluster=self.cluster,
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
        ctas: cute.Layout,
        clusters: cutlass.Constexpr,
    ):
        tidx, _, _ = cute.arch.thread_idx()
        bidx, _, _ = cute.arch.block_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())

        # This CTA's place in its pair, the pair's in the cluster, the pair's tile.
        rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
        place = ctas.get_flat_coord(rank)
        leader = place[0] == 0
        cluster_m, cluster_n = self.raster_tile(bidx // self.cluster[0], clusters)
        pairs_m, pairs_n = self.cluster[0] // PAIR, self.cluster[1]
        coord = (cluster_m * pairs_m + place[1], cluster_n * pairs_n + place[2], None)

        smem = SmemAllocator()
        storage = smem.allocate(self.shared_storage)
        sA = storage.sA.get_tensor(sA_layout.outer, swizzle=sA_layout.inner)
        sB = storage.sB.get_tensor(sB_layout.outer, swizzle=sB_layout.inner)
        element_type = sA.element_type
        stages = (cute.select(layout, mode=[0, 1, 2]) for layout in (sA_layout, sB_layout))
        stage_bytes = PAIR * sum(cute.size_in_bytes(element_type, stage) for stage in stages)

        # (BM, BK, k tiles), (BN, BK, k tiles), as coordinates; (BM, BN) of C and of its coordinates.
        gA = cute.local_tile(mA, tiler=self.tile, coord=coord, proj=(1, None, 1))
        gB = cute.local_tile(mB, tiler=self.tile, coord=coord, proj=(None, 1, 1))
        gC = cute.local_tile(mC, tiler=self.tile, coord=coord, proj=(1, 1, None))
        # Coordinates of whole clusters: a tile past the edge has to see that it is.
        whole = (clusters[0] * pairs_m * self.tile[0], clusters[1] * pairs_n * self.tile[1])
        cC = cute.local_tile(cute.make_identity_tensor(whole), tiler=self.tile, coord=coord, proj=(1, 1, None))

        # gmem -> smem: (TMA, stage), (TMA, k tile). This CTA's half, and of that the part that it multicasts.
        thr_mma = tiled_mma.get_slice(place[0])
        tAsA, tAgA = self.tma_partition(tma_A, place[2], pairs_n, sA, thr_mma.partition_A(gA))
        tBsB, tBgB = self.tma_partition(tma_B, place[1], pairs_m, sB, thr_mma.partition_B(gB))
        mask_A = cpasync.create_tma_multicast_mask(ctas, place, mcast_mode=2) if pairs_n > 1 else None
        mask_B = cpasync.create_tma_multicast_mask(ctas, place, mcast_mode=1) if pairs_m > 1 else None

        # smem -> MMA: descriptors of the stages. MMA -> tmem: ((BM / 2, BN), 1, 1)
        tCrA = tiled_mma.make_fragment_A(sA)
        tCrB = tiled_mma.make_fragment_B(sB)
        tCtC_layout = tiled_mma.make_fragment_C(tiled_mma.partition_shape_C(self.tile[:2])).layout

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
            num_stages=1,
            producer_group=one,
            consumer_group=CooperativeGroup(Agent.Thread, PAIR * EPILOGUE_WARPS),
            barrier_storage=storage.accumulator.data_ptr(),
            cta_layout_vmnk=ctas,
            defer_sync=True,
        )

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

        # tmem -> registers -> gmem: thread t has row t of a subtile. (columns, 1, 1, subtile)
        atom_t2r = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition(self.subtile[1])), cutlass.Float32)
        tCtC_subtiles, gC_subtiles, cC_subtiles = (
            cute.flat_divide(tile[(None, None), 0, 0], self.subtile)[None, None, 0, None]
            for tile in (tCtC, thr_mma.partition_C(gC), thr_mma.partition_C(cC))
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
                cute.copy(tma_A, tAgA[None, k_tile], tAsA[None, fill.index], tma_bar_ptr=barrier, mcast_mask=mask_A)
                cute.copy(tma_B, tBgB[None, k_tile], tBsB[None, fill.index], tma_bar_ptr=barrier, mcast_mask=mask_B)
                fill.advance()
            for _ in cutlass.range_constexpr(self.stages):
                ring.sync_object_empty.wait(fill.index, fill.phase)
                fill.advance()

        if warp == MMA_WARP and leader:
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

        # Nobody in the cluster reads tensor memory or signals a barrier any more: the warps that allocated give back.
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()
        if warp == 0:
            fence_after_thread_sync()
            cute.arch.dealloc_tmem(tmem, self.tmem_columns, is_two_cta=True)

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
    def tma_partition(
        self, atom: cute.CopyAtom, part: cutlass.Int32, parts: cutlass.Constexpr, smem: cute.Tensor, gmem: cute.Tensor
    ):
        """Both sides of a TMA copy with their first three modes (a tile) as one; of it the part of `parts`."""
        smem, gmem = cute.group_modes(smem, 0, 3), cute.group_modes(gmem, 0, 3)
        return cpasync.tma_partition(atom, part, cute.make_layout(parts), smem, gmem)

    @cute.jit
    def raster_tile(self, index: cutlass.Int32, tiles: cutlass.Constexpr):
        """(m, n) of a cluster: down `raster` rows, then the next column, so that a wave is nearly square."""
        group = index // (self.raster * tiles[1])
        within = index % (self.raster * tiles[1])
        rows = min(tiles[0] - group * self.raster, self.raster)
        return group * self.raster + within % rows, within // rows


def compile(arch: str, shape: tuple[int, ...], dtype: str, config: TwoCtaGemmConfig | None = None) -> Program:
    """The rung for one architecture, shape (M, N, K) and element type. M and N from 2; K a multiple of 8 (16 bytes)."""
    (m, n, k), dtype = RUNG.check(arch, shape, dtype)
    config = config or TwoCtaGemmConfig()
    check_config(config, arch)
    RUNG.require(m > 1, "M=1: the DSL makes a one-dimensional tensor map of a single row, pad M to 2")
    RUNG.require(n > 1, "N=1: the DSL makes a one-dimensional tensor map of a single row, pad N to 2")
    RUNG.require(k % 8 == 0, f"K={k}: TMA wants row pitches of 16 bytes, pad K to a multiple of 8")
    arrays = [row_major(dtype, extents) for extents in ((m, k), (n, k), (m, n))]
    return compile_program(TwoCtaGemm(config), *arrays, arch=arch, name=RUNG.name)


def check_config(config: TwoCtaGemmConfig, arch: str) -> None:
    """UsageError unless a tile is one instruction, subtiles cover it, and the stages fit into shared memory."""
    bM, bN, bK = config.tile
    RUNG.require(config.raster > 0, f"raster={config.raster}: at least 1 row of tiles")
    RUNG.require(bM == 256, f"tile={config.tile}: M must be 256, the lanes of two tensor memories")
    RUNG.require(bN in range(32, 257, 32), f"tile={config.tile}: N must be a multiple of 32 up to 256")
    fits = config.subtile in (16, 32, 64, 128) and bN % config.subtile == 0
    RUNG.require(fits, f"subtile={config.subtile}: 16, 32, 64 or 128 columns, a divisor of the tile's {bN}")
    RUNG.require(bK in (64, 128, 192, 256), f"tile={config.tile}: K must be a multiple of 64 (128 bytes) up to 256")
    RUNG.require(config.stages >= 2, f"stages={config.stages}: at least 2, one to fill and one to multiply")
    cluster_m, cluster_n = config.cluster
    fits = cluster_m % PAIR == 0 and cluster_m > 0 < cluster_n and cluster_m * cluster_n <= 8
    RUNG.require(fits, f"cluster={config.cluster}: whole pairs along M, at most 8 CTAs")
    fits = 128 % (8 * cluster_n) == 0 and bN // PAIR % (8 * cluster_m // PAIR) == 0
    RUNG.require(fits, f"cluster={config.cluster}: {config.tile} does not split into parts of 8 rows")
    smem, limit = config.stages * (bM + bN) * bK + 1024, archs.find(arch).smem_per_cta
    RUNG.require(smem <= limit, f"stages={config.stages}: {smem} bytes of shared memory, {arch} has {limit}")
