"""Epilogue: every form of the product that `matmul` offers, by CTA pairs, one compilation for all shapes.

Adds:
    What stands around a product in a model, done by the epilogue warps while the next tile is multiplied into the other
    accumulator: it costs nothing as long as it takes no longer than the MMAs of a tile.
    - C = act(alpha p q A B^T + beta R + bias), p and q factors of rows and columns. A thread has a row of tensor
      memory, it reads R and the bias eight columns at a time, R before the wait for MMAs (`parts/tmem_rows.py`).
    - A gated product takes no more memory and no more MMAs: of the right operand CTAs of a pair hold half of the rows
      each, so one loads a tile of B and the other the same tile of U. Gate and gated then lie side by side.
    - A and B of either major (8-bit elements along K alone): another tensor map, and a bit of the MMA's descriptor.
    - Extents and pitches are symbols, alpha and beta lie in memory, batches are a third mode of the tensor maps.
    - A dependent launch: barriers and tensor memory are made ready while the kernel before ends.
    - C goes by TMA, or from registers where its rows are not whole pieces of 16 bytes.
    Run on the virtual GPU, and its machine code looked at; not run on a GPU yet.

Warp roles:
    | warps | role                                                                                     |
    |-------|------------------------------------------------------------------------------------------|
    | 0-3   | epilogue: finish 32 rows of C each; warp 0 asks TMA to store, and allocates              |
    | 4     | MMA, in the leader: issues tcgen05.mma for the pair, into one accumulator or the other   |
    | 5     | producer: asks TMA for its CTA's part of A and B, tile after tile                        |

Budget:
    SMEM: as the parent: 32 KB a stage, 6 stages; C: 128 rows x 32 x 2 B = 8 KB, 4 buffers; in all 225 KB of 227, 1 CTA
    an SM. TMEM: 2 x 128 lanes x 256 columns = 256 KB, all of each SM's. Registers: 32 accumulators at a time (64 if
    gated), 16 of R and 16 of results.

Run:
    tensorladder run d5-epilogue --shape 512,512,512
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
import cutlass.utils.blackwell_helpers as sm100
from cutlass.cute.nvgpu import cpasync, tcgen05
from cutlass.memory import SmemAllocator
from cutlass.pipeline import (
    Agent,
    CooperativeGroup,
    PipelineTmaUmma,
    PipelineUmmaAsync,
    PipelineUserType,
    make_pipeline_state,
)
from cutlass.tensor_utils import LayoutEnum

from tensorladder.core import arch as archs
from tensorladder.core.program import Program
from tensorladder.frontends.cutedsl import compile_program
from tensorladder.rungs.parts import epilogue, tmem_rows
from tensorladder.rungs.parts.arguments import arguments, matrix
from tensorladder.rungs.parts.form import Form
from tensorladder.rungs.parts.tcgen05 import fence_after_thread_sync, fence_before_thread_sync, tmem_columns
from tensorladder.rungs.parts.tensors import ELEMENT_TYPES, row_major
from tensorladder.rungs.parts.tmem_rows import RowEpilogue
from tensorladder.rungs.rung import Rung


@dataclass(frozen=True)
class PairEpilogueGemmConfig:
    """tile: (M, N, K) of a pair of CTAs; M x N is one instruction (of a gated product N counts the columns of both), K
    counts 16-bit elements (twice as many of fp8). stages: K tiles in shared memory.

    buffers: of 128 rows x 32 columns of C (half as many of fp32). cluster: CTAs along M (whole pairs) and N. sm_count:
    of the GPU, one CTA each (B200: 148). raster: rows of clusters that consecutive ones go down before the next column,
    so that they share A and B in L2.
    """

    tile: tuple[int, int, int] = (256, 256, 64)
    stages: int = 6
    buffers: int = 4
    cluster: tuple[int, int] = (2, 1)
    sm_count: int = 148
    raster: int = 8


RUNG = Rung(
    name="d5-epilogue",
    parent="d4-persistent",
    adds="alpha, beta R, bias, activation, gates, scales beside the next tile's MMAs; either major; symbolic extents",
    aside="for products with all that stands around them: what `matmul` runs on sm_100a",
    archs=("sm_100a",),
    problem="gemm_epilogue",
    dtypes=("fp16", "bf16"),
    config=PairEpilogueGemmConfig,
    shape=(512, 512, 512),
)

INPUTS = ("fp16", "bf16", "e4m3", "e5m2")
MMA_WARP, TMA_WARP = 4, 5  # the warps before them are the epilogue's
THREADS = 32 * 6
PAIR = 2  # CTAs
ACCUMULATORS = 2


class PairEpilogueGemm:
    def __init__(self, config: PairEpilogueGemmConfig, form: Form):
        self.tile = (*config.tile[:2], config.tile[2] * 16 // ELEMENT_TYPES[form.dtype].width)
        self.majors = (epilogue.MAJORS[form.a_major], epilogue.MAJORS[form.b_major])
        self.c_cols = config.tile[1] // (2 if form.gated else 1)
        self.rows = RowEpilogue(form, self.c_cols, config.buffers, barrier=1)
        self.stages = config.stages
        self.cluster = (*config.cluster, 1)
        self.sm_count = config.sm_count
        self.raster = config.raster
        self.tmem_columns = tmem_columns(ACCUMULATORS * config.tile[1])

    @cute.jit
    def __call__(
        self, mA: cute.Tensor, mB: cute.Tensor, mU: cute.Tensor | None, mC: cute.Tensor, mR: cute.Tensor | None,
        mV: cute.Tensor | None, mS: cute.Tensor, mP: cute.Tensor | None, mQ: cute.Tensor | None,
    ):
        bM, bN = self.tile[:2]
        element_type, group = mA.element_type, tcgen05.CtaGroup.TWO
        tiled_mma = sm100.make_trivial_tiled_mma(
            *[element_type] * 2, *self.majors, cutlass.Float32, group, (bM, bN)
        )

        # (MMA, MMA_M, MMA_K, stage): with the 128-byte swizzle, cut into what one instruction reads.
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
        tma_U = tma_B
        if cutlass.const_expr(mU is not None):
            tma_U, mU = cute.nvgpu.make_tiled_tma_atom_B(load_B, mU, sB_stage, self.tile, tiled_mma, ctas.shape)

        # (128, columns, buffer) of C, row-major with the swizzle that its rows allow.
        c_type, subtile, buffers = self.rows.c_type, self.rows.subtile, self.rows.buffers
        sC_layout = sm100.make_smem_layout_epi(c_type, LayoutEnum.ROW_MAJOR, subtile, buffers)
        tma_C, extents = None, mC.shape
        if cutlass.const_expr(self.rows.c_tma):
            store = cpasync.CopyBulkTensorTileS2GOp()
            tma_C, mC = cpasync.make_tiled_tma_atom(store, mC, cute.select(sC_layout, mode=[0, 1]), subtile)

        @cute.struct
        class SharedStorage:
            barriers: cute.struct.MemRange[cutlass.Int64, 2 * self.stages]
            accumulator: cute.struct.MemRange[cutlass.Int64, 2 * ACCUMULATORS]
            tmem: cutlass.Int32
            sA: cute.struct.Align[cute.struct.MemRange[element_type, cute.cosize(sA_layout)], 1024]
            sB: cute.struct.Align[cute.struct.MemRange[element_type, cute.cosize(sB_layout)], 1024]
            sC: cute.struct.Align[cute.struct.MemRange[c_type, cute.cosize(sC_layout)], 1024]

        self.shared_storage = SharedStorage
        # Clusters of tiles, as many at a time as there is room for. A tile past the edge is multiplied but not stored.
        pairs_m, pairs_n = self.cluster[0] // PAIR, self.cluster[1]
        clusters = (*cute.ceil_div(extents[:2], (bM * pairs_m, self.c_cols * pairs_n)), extents[2])
        resident = cutlass.min(cute.size(clusters), self.sm_count // (self.cluster[0] * self.cluster[1]))
        self.kernel(
            tma_A, mA, tma_B, mB, tma_U, mU, tma_C, mC, mR, mV, mS, mP, mQ, extents, sA_layout, sB_layout, sC_layout,
            tiled_mma, ctas, clusters, resident,
        ).launch(
            grid=(resident * self.cluster[0], self.cluster[1], 1), block=(THREADS, 1, 1), cluster=self.cluster,
            min_blocks_per_mp=1, use_pdl=True,
        )  # fmt: skip

    @cute.kernel
    def kernel(
        self, tma_A: cute.CopyAtom, mA: cute.Tensor, tma_B: cute.CopyAtom, mB: cute.Tensor, tma_U: cute.CopyAtom,
        mU: cute.Tensor | None, tma_C: cute.CopyAtom | None, mC: cute.Tensor, mR: cute.Tensor | None,
        mV: cute.Tensor | None, mS: cute.Tensor, mP: cute.Tensor | None, mQ: cute.Tensor | None, extents: cute.Shape,
        sA_layout: cute.ComposedLayout, sB_layout: cute.ComposedLayout, sC_layout: cute.ComposedLayout,
        tiled_mma: cute.TiledMma, ctas: cute.Layout, clusters: cute.Shape, resident: cutlass.Int32,
    ):
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
        element_type = sA.element_type
        stages = (cute.select(layout, mode=[0, 1, 2]) for layout in (sA_layout, sB_layout))
        stage_bytes = PAIR * sum(cute.size_in_bytes(element_type, stage) for stage in stages)

        # gmem -> smem: (TMA, stage), (TMA, m or n tile, k tile, product). This CTA's half, of that the part that it
        # multicasts. Of a gated product the leader's half is B's tile, the other's U's.
        thr_mma = tiled_mma.get_slice(place[0])
        gA = cute.local_tile(mA, (self.tile[0], self.tile[2]), (None, None, None))
        tAsA, tAgA = self.tma_partition(tma_A, place[2], pairs_n, sA, thr_mma.partition_A(gA), 3)
        if cutlass.const_expr(mU is None):
            gB = cute.local_tile(mB, (self.tile[1], self.tile[2]), (None, None, None))
            tBsB, tBgB = self.tma_partition(tma_B, place[1], pairs_m, sB, thr_mma.partition_B(gB), 3)
            tUgU = tBgB
        else:
            gB, gU = (cute.local_tile(x, (self.c_cols, self.tile[2]), (None, None, None)) for x in (mB, mU))
            tBsB, tBgB = self.tma_partition(tma_B, place[1], pairs_m, sB, gB, 2)
            _, tUgU = self.tma_partition(tma_U, place[1], pairs_m, sB, gU, 2)
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
            consumer_group=CooperativeGroup(Agent.Thread, PAIR * tmem_rows.WARPS),
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

        # All of this ran beside the end of the kernel before. Who touches global memory waits until that is through.
        cute.arch.griddepcontrol_launch_dependents()
        num_k_tiles = cute.size(gA, mode=[3])
        if warp == TMA_WARP:
            cpasync.prefetch_descriptor(tma_A)
            cpasync.prefetch_descriptor(tma_B)
            cute.arch.griddepcontrol_wait()
            fill = make_pipeline_state(PipelineUserType.Producer, self.stages)
            for index in cutlass.range(first, num_tiles, resident, unroll=1):
                m, n, l = self.raster_tile(index, clusters, place)
                for k_tile in cutlass.range(num_k_tiles, unroll=1):
                    ring.producer_acquire(fill)
                    barrier = ring.producer_get_barrier(fill)
                    to_A, to_B = tAsA[None, fill.index], tBsB[None, fill.index]
                    cute.copy(tma_A, tAgA[None, m, k_tile, l], to_A, tma_bar_ptr=barrier, mcast_mask=mask_A)
                    if cutlass.const_expr(mU is None) or leader:
                        cute.copy(tma_B, tBgB[None, n, k_tile, l], to_B, tma_bar_ptr=barrier, mcast_mask=mask_B)
                    else:
                        cute.copy(tma_U, tUgU[None, n, k_tile, l], to_B, tma_bar_ptr=barrier, mcast_mask=mask_B)
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

        if warp < tmem_rows.WARPS:
            cute.arch.griddepcontrol_wait()
            drain = make_pipeline_state(PipelineUserType.Consumer, ACCUMULATORS)
            buffer = cutlass.Int32(0)
            for index in cutlass.range(first, num_tiles, resident, unroll=1):
                m, n, l = self.raster_tile(index, clusters, place)
                coord = (PAIR * m + place[0], n, l)
                buffer = self.rows.store(
                    accumulator, drain, tCtC, sC, buffer, tma_C, mC, mR, mV, mS, mP, mQ, extents, coord
                )
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
        self, atom: cute.CopyAtom, part: cutlass.Int32, parts: cutlass.Constexpr, smem: cute.Tensor, gmem: cute.Tensor,
        modes: cutlass.Constexpr,
    ):
        """Both sides of a TMA copy with the modes of a tile as one, `modes` of gmem; of it the part of `parts`."""
        smem, gmem = cute.group_modes(smem, 0, 3), cute.group_modes(gmem, 0, modes)
        return cpasync.tma_partition(atom, part, cute.make_layout(parts), smem, gmem)

    @cute.jit
    def raster_tile(self, index: cutlass.Int32, tiles: cute.Shape, place: cute.Coord):
        """(m, n, product) of a pair's tile. Clusters go down `raster` rows, then to the next column."""
        l, index = index // (tiles[0] * tiles[1]), index % (tiles[0] * tiles[1])
        group = index // (self.raster * tiles[1])
        within = index % (self.raster * tiles[1])
        count = cutlass.min(tiles[0] - group * self.raster, self.raster)
        m, n = group * self.raster + within % count, within // count
        return m * (self.cluster[0] // PAIR) + place[1], n * self.cluster[1] + place[2], l


class OneProduct(PairEpilogueGemm):
    """The rung's problem: one product, of plain matrices. A third mode of extent 1 makes them a batch's."""

    @cute.jit
    def __call__(
        self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mR: cute.Tensor, mV: cute.Tensor, mS: cute.Tensor
    ):
        mA, mB, mC, mR = cute.append_ones(mA), cute.append_ones(mB), cute.append_ones(mC), cute.append_ones(mR)
        super().__call__(mA, mB, None, mC, mR, mV, mS, None, None)


def build(arch: str, form: Form, config: PairEpilogueGemmConfig) -> Program:
    """The kernel of a form for any extents; it takes what `Form` says, aligned as `arguments` says."""
    check_config(config, arch, form)
    return compile_program(PairEpilogueGemm(config, form), *arguments(form), arch=arch, name=RUNG.name)


def compile(arch: str, shape: tuple[int, ...], dtype: str, config: PairEpilogueGemmConfig | None = None) -> Program:
    """The rung for the problem's form: B stored (K, N), all of the epilogue, gelu. N and K multiples of 8."""
    (_, n, k), dtype = RUNG.check(arch, shape, dtype)
    RUNG.require(n % 8 == 0, f"N={n}: TMA wants row pitches of 16 bytes, pad N to a multiple of 8")
    RUNG.require(k % 8 == 0, f"K={k}: TMA wants row pitches of 16 bytes, pad K to a multiple of 8")
    form, config = Form(dtype, dtype, dtype, dtype, b_major="mn", activation="gelu"), config or PairEpilogueGemmConfig()
    check_config(config, arch, form)
    m, n, k = cute.sym_int(), cute.sym_int(divisibility=8), cute.sym_int()
    a, b, c, r = matrix(dtype, (m, k)), matrix(dtype, (n, k), "mn"), matrix(dtype, (m, n)), matrix(dtype, (m, n))
    others = row_major(dtype, (n,)), row_major("fp32", (2,), align=4)
    return compile_program(OneProduct(config, form), a, b, c, r, *others, arch=arch, name=RUNG.name)


def check_config(config: PairEpilogueGemmConfig, arch: str, form: Form) -> None:
    """UsageError unless a tile is one instruction, subtiles cover it, and the stages fit into shared memory."""
    bM, bN, bK = config.tile
    halves, majors = 2 if form.gated else 1, (form.a_major, form.b_major)
    RUNG.require(form.dtype in INPUTS, f"dtype={form.dtype}: operands are {', '.join(INPUTS)}")
    fits = majors == ("k", "k") or form.dtype in RUNG.dtypes
    RUNG.require(fits, f"a_major={majors[0]}, b_major={majors[1]}: {form.dtype} is read along K alone")
    RUNG.require(not (form.gated and form.bias), f"bias={form.bias}: a gated product has none")
    RUNG.require(config.raster > 0, f"raster={config.raster}: at least 1 row of tiles")
    RUNG.require(bM == 256, f"tile={config.tile}: M must be 256, the lanes of two tensor memories")
    step = 128 if form.b_major == "mn" else tmem_rows.COLUMNS * halves
    RUNG.require(bN in range(step, 257, step), f"tile={config.tile}: N must be a multiple of {step} up to 256")
    RUNG.require(config.buffers >= 1, f"buffers={config.buffers}: at least 1")
    RUNG.require(bK in (64, 128, 192, 256), f"tile={config.tile}: K must be a multiple of 64 (128 bytes) up to 256")
    RUNG.require(config.stages >= 2, f"stages={config.stages}: at least 2, one to fill and one to multiply")
    cluster_m, cluster_n = config.cluster
    fits = cluster_m % PAIR == 0 and cluster_m > 0 < cluster_n and cluster_m * cluster_n <= 8
    RUNG.require(fits, f"cluster={config.cluster}: whole pairs along M, at most 8 CTAs")
    for major, extent, parts in ((form.a_major, 128, cluster_n), (form.b_major, bN // PAIR, cluster_m // PAIR)):
        fits = extent % (parts * (64 if major == "mn" else 8)) == 0
        RUNG.require(fits, f"cluster={config.cluster}: {config.tile} does not split into parts of whole swizzles")
    ctas = cluster_m * cluster_n
    RUNG.require(config.sm_count >= ctas, f"sm_count={config.sm_count}: at least a cluster, {ctas} CTAs")
    smem = config.stages * (bM + bN) * bK + config.buffers * bM * tmem_rows.COLUMNS
    smem, limit = smem + 1024, archs.find(arch).smem_per_cta
    RUNG.require(smem <= limit, f"stages={config.stages}: {smem} bytes of shared memory, {arch} has {limit}")
