"""Split-K in a cluster: few rows of A (the decode step of a language model), at the rate of global memory.

Adds:
    A product with few rows of A multiplies each element of B a few times only: its time is that of reading B once. The
    parents' tiles leave most rows of WGMMA's 64 empty and most SMs without a tile.
    - Operands change places: B's rows are the 64 rows of WGMMA, A's rows its columns, of which 8 are enough.
    - K is split over the CTAs of a cluster, so that a small C still occupies every SM. Each row of C has a CTA that
      finishes it: the others copy their partial sums in fp32 into its shared memory (cp.async.bulk onto its barrier)
      and it adds them in an order that never changes: the same bits every time, no workspace in global memory, no
      atomics, no second kernel. (Threads that store to a peer's memory 4 bytes at a time are several times slower, and
      a release at the scope of the cluster waits for all that was stored to global memory.)
    - The bytes in flight are what counts (4.8 TB/s x 1 us = 36 KB an SM at the least): all shared memory but the sums'
      is a ring. B's first tiles are asked for before the cluster has met, and brought to L2 while the kernel before
      this one still runs (programmatic dependent launch).
    - CTAs of a cluster that work on different rows of B can have A multicast (`share`).
    - C is finished from shared memory, where it lies by rows: any pitch and any N.
    On an H200 in turns with the parent, fp16: 1.34 times as fast at 8 x 28672 x 4096 (54.6 us, 4.3 TB/s;
    tile=64x8x128,stages=12), 3.4 at 16 x 4096 x 14336, 2.2 at 128 x 8192 x 8192
    (tile=128x128x64,warpgroups=2,passes=2,stages=5), by hand; as the op's choice at 1 to 64 rows 1.08 to 1.19 of
    cuBLAS's speed (`tensorladder bench --suite llm --op matmul`, bf16).

Warp roles:
    | warps              | role, in each CTA of a cluster                                               |
    |--------------------|------------------------------------------------------------------------------|
    | 4 a warpgroup      | consumers: multiply the CTA's part of K, pass sums on, finish their rows     |
    | the last one       | producer: asks TMA for B and A, as far ahead as stages are free              |

Budget:
    SMEM: (64 + 64) x 128 x 2 B = 32 KB a stage, 6 stages: 192 KB; sums: 3 x 32 rows of A x (64 + 4) x 4 B = 26 KB:
    218 KB of 227. Registers: 32 accumulators a thread of the default tile, at most 128. No TMEM.

Run:
    tensorladder run c8-split-k --shape 16,512,1024
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import cpasync, warpgroup
from cutlass.memory import SmemAllocator
from cutlass.pipeline import Agent, CooperativeGroup, NamedBarrier, PipelineTmaAsync

from tensorladder.core.program import Program
from tensorladder.frontends.cutedsl import compile_program
from tensorladder.problems import dtype_named
from tensorladder.problems.gemm import OUTPUTS
from tensorladder.rungs.parts import epilogue, limits, reduction, wgmma
from tensorladder.rungs.parts.arguments import arguments
from tensorladder.rungs.parts.form import Form
from tensorladder.rungs.parts.mbarrier import wait_cluster
from tensorladder.rungs.parts.tensors import ELEMENT_TYPES, row_major
from tensorladder.rungs.rung import Rung


@dataclass(frozen=True)
class SplitKGemmConfig:
    """tile: (N, M, K) of a CTA: rows of B, rows of A; K counts 16-bit elements (twice as many of fp8). split: CTAs that
    share a tile's K. share: tiles of other rows of B in a cluster, which read A once.

    warpgroups: of consumers, one below the other along N. stages: K tiles in shared memory. passes: parts of a tile of
    C, by rows of A, that are added up one after the other, in as much less shared memory. sm_count, ctas_per_sm: the
    grid is what fits at once on so many SMs, or the tiles' CTAs where those are fewer.
    """

    tile: tuple[int, int, int] = (64, 64, 128)
    split: int = 2
    share: int = 1
    warpgroups: int = 1
    stages: int = 6
    passes: int = 1
    sm_count: int = 132
    ctas_per_sm: int = 1


RUNG = Rung(
    name="c8-split-k",
    parent="c2-warp-specialized",
    adds="few rows of A: operands swapped, K split over a cluster, sums added through distributed shared memory",
    aside="for few rows of A (the decode step of a language model), where reading B takes all the time",
    archs=("sm_90a",),
    problem="gemm",
    dtypes=("fp16", "bf16", "e4m3"),
    config=SplitKGemmConfig,
)

WARPGROUP = 128  # threads
WARPS = 4  # of a warpgroup
ONCE, AGAIN = 0x12F0000000000000, 0x14F0000000000000  # L2's policies evict_first and evict_last, as CUTLASS has them


class SplitKGemm:
    def __init__(self, config: SplitKGemmConfig, form: Form):
        bits = ELEMENT_TYPES[form.dtype].width
        self.tile = (*config.tile[:2], config.tile[2] * 16 // bits)
        self.a_major, self.b_major = epilogue.MAJORS[form.a_major], epilogue.MAJORS[form.b_major]
        self.activation = epilogue.ACTIVATIONS[form.activation]
        self.products = 2 if form.gated else 1
        self.c_cols = config.tile[0] // self.products  # of a tile of C: half of the rows may be U's
        self.split, self.share = config.split, config.share
        self.ctas = config.split * config.share
        self.warpgroups = config.warpgroups
        self.consumers = WARPGROUP * config.warpgroups
        self.consumer_warps = WARPS * config.warpgroups
        self.producer_warp = self.consumer_warps
        self.threads = self.consumers + 32
        self.stages = config.stages
        self.passes = config.passes
        self.cols = config.tile[1] // config.passes  # of a pass: rows of A, columns of the accumulator
        self.own_cols = -(-self.cols // config.split)  # of a pass, that a CTA finishes
        self.max_clusters = limits.clusters_at_once(config.sm_count * config.ctas_per_sm, self.ctas)
        self.ctas_per_sm = config.ctas_per_sm

    @cute.jit
    def __call__(
        self, mA: cute.Tensor, mB: cute.Tensor, mU: cute.Tensor | None, mC: cute.Tensor, mR: cute.Tensor | None,
        mV: cute.Tensor | None, mS: cute.Tensor | None, mP: cute.Tensor | None, mQ: cute.Tensor | None,
    ):
        bN, bM, bK = self.tile
        element_type = mA.element_type
        sA_layout = wgmma.smem_layout(element_type, self.a_major, bM, bK, self.stages)
        sB_layout = wgmma.smem_layout(element_type, self.b_major, bN, bK, self.stages)
        part_layout = wgmma.smem_layout(element_type, self.b_major, self.c_cols, bK, self.stages)
        pitch = bN + limits.PAD
        slots = 2 * self.split - 1
        sums_layout = cute.make_layout((bN, self.own_cols, slots), stride=(1, pitch, pitch * self.own_cols))

        # A descriptor and a tensor of coordinates for each operand. The box of A is what one CTA asks for: its part of
        # a tile that it shares.
        load_A, parts = wgmma.load_op(self.share)
        tma_A, mA = cpasync.make_tiled_tma_atom(load_A, mA, cute.select(sA_layout, mode=[0, 1]), (bM, bK), parts)
        box = (cute.select(part_layout, mode=[0, 1]), (self.c_cols, bK))
        load = cpasync.CopyBulkTensorTileG2SOp()
        weights = tuple(cpasync.make_tiled_tma_atom(load, x, *box) for x in (mB, mU)[: self.products])
        op = wgmma.mma_op(element_type, bM, self.b_major, self.a_major)
        tiled_mma = cute.make_tiled_mma(op, cute.make_layout((self.warpgroups, 1, 1)))

        @cute.struct
        class SharedStorage:
            barriers: cute.struct.MemRange[cutlass.Int64, 2 * self.stages]
            sums_full: cutlass.Int64
            sums_empty: cutlass.Int64
            sA: cute.struct.Align[cute.struct.MemRange[element_type, cute.cosize(sA_layout)], 1024]
            sB: cute.struct.Align[cute.struct.MemRange[element_type, cute.cosize(sB_layout)], 1024]
            sums: cute.struct.Align[cute.struct.MemRange[cutlass.Float32, pitch * self.own_cols * slots], 128]

        self.shared_storage = SharedStorage
        m, n, batches = mC.shape
        tiles = (cute.ceil_div(m, bM), cute.ceil_div(n, self.c_cols * self.share), batches)
        self.kernel(
            tma_A, mA, weights, mC, mS, (mR, mV, mP, mQ), sA_layout, sB_layout, sums_layout, tiled_mma, tiles
        ).launch(
            grid=(cutlass.min(cute.size(tiles), self.max_clusters) * self.ctas, 1, 1),
            block=(self.threads, 1, 1),
            cluster=(self.ctas, 1, 1) if self.ctas > 1 else None,
            min_blocks_per_mp=self.ctas_per_sm,
            use_pdl=True,
            preferred_smem_carveout=100,  # percent; given so that the DSL need not ask a GPU
        )

    @cute.kernel
    def kernel(
        self, tma_A: cute.CopyAtom, mA: cute.Tensor, weights: tuple, mC: cute.Tensor, mS: cute.Tensor | None,
        extras: tuple, sA_layout: cute.ComposedLayout, sB_layout: cute.ComposedLayout, sums_layout: cute.Layout,
        tiled_mma: cute.TiledMma, tiles: cute.Shape,
    ):
        tidx, _, _ = cute.arch.thread_idx()
        cluster, _, _ = cute.arch.cluster_idx()
        clusters, _, _ = cute.arch.cluster_dim()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        if warp == self.producer_warp:
            for atom in (tma_A, *(atom for atom, _ in weights)):
                cpasync.prefetch_descriptor(atom)
        # The CTA's place in its cluster: its part of K, and its tile of those that share A.
        cta_layout = cute.make_layout((self.split, self.share))
        rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
        part, place = cta_layout.get_hier_coord(rank)
        share_A = cute.make_layout_image_mask(cta_layout, (part, place), mode=1)

        smem = SmemAllocator()
        storage = smem.allocate(self.shared_storage)
        sA = storage.sA.get_tensor(sA_layout.outer, swizzle=sA_layout.inner)
        sB = storage.sB.get_tensor(sB_layout.outer, swizzle=sB_layout.inner)
        sums = storage.sums.get_tensor(sums_layout)
        full, empty = storage.sums_full.ptr, storage.sums_empty.ptr
        element_type = sA.element_type
        stage_bytes = cute.size_in_bytes(element_type, cute.select(sA_layout, mode=[0, 1]))
        stage_bytes += cute.size_in_bytes(element_type, cute.select(sB_layout, mode=[0, 1]))

        # gmem -> smem: (TMA, stage), (TMA, tile, k tile, batch)
        bN, bM, bK = self.tile
        gA = cute.local_tile(mA, tiler=(bM, bK), coord=(None, None, None))
        tokens, loads = ((tma_A, *wgmma.tma_partition(tma_A, sA, gA, place, self.share)),), ()
        for product, (tma_B, mB) in enumerate(weights):
            sP = cute.local_tile(sB, tiler=(self.c_cols, bK), coord=(product, 0, None))
            gB = cute.local_tile(mB, tiler=(self.c_cols, bK), coord=(None, None, None))
            loads += ((tma_B, *wgmma.tma_partition(tma_B, sP, gB, 0, 1)),)

        # smem -> MMA: B's descriptors stand where WGMMA has A's.
        thr_mma = tiled_mma.get_slice(cute.arch.make_warp_uniform(tidx // WARPGROUP) * WARPGROUP)
        tCrB = tiled_mma.make_fragment_A(thr_mma.partition_A(sB))
        tCrA = tiled_mma.make_fragment_B(thr_mma.partition_B(sA))
        tCrC = tiled_mma.make_fragment_C(thr_mma.partition_shape_C((bN, bM)))
        tCcC = tiled_mma.get_slice(tidx).partition_C(cute.make_identity_tensor((bN, bM)))  # (row of B, row of A)

        # The barriers of the ring, as in the parents; `empty` counts the consumer warps of all that share A. Then those
        # of the sums: one counts the bytes that come, the other the consumer warps of the other parts of K.
        pipeline = PipelineTmaAsync.create(
            num_stages=self.stages,
            producer_group=CooperativeGroup(Agent.Thread),
            consumer_group=CooperativeGroup(Agent.Thread, self.consumer_warps * self.share),
            tx_count=stage_bytes,
            barrier_storage=storage.barriers.data_ptr(),
            cta_layout_vmnk=cute.make_layout((1, self.split, self.share, 1)),
            mcast_mode_mn=(1, 0),
            defer_sync=True,
        )
        producer, consumer = pipeline.make_participants()
        if tidx == 0:
            cute.arch.mbarrier_init(full, 1)
            cute.arch.mbarrier_init(empty, max(self.split - 1, 1) * self.consumer_warps)
        # Barriers are ready for this CTA after the one, for its peers after the other, which nobody waits for yet.
        cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()
        if cutlass.const_expr(self.ctas > 1):
            cute.arch.cluster_arrive_relaxed(aligned=True)
        # The next kernel may start; nobody touches global memory before the kernel before this one is through.
        cute.arch.griddepcontrol_launch_dependents()
        num_tiles = cute.size(tiles)
        # Every part has as many K tiles; those beyond K are zeros, by TMA.
        num_k_tiles = cute.ceil_div(cute.size(gA, mode=[3]), self.split)
        first = part * num_k_tiles

        if warp == self.producer_warp:
            # Of the first tile as many K tiles of B as there are stages; A may be sent to peers, and waits for them.
            ahead = cutlass.min(num_k_tiles, self.stages)
            m, n, batch = self.tile_coord(cluster, tiles, place)
            for k_tile in range(ahead):
                for tma_B, _, tBgB in loads:
                    cute.prefetch(tma_B, tBgB[None, n, first + k_tile, batch])
            cute.arch.griddepcontrol_wait()
            for k_tile in range(ahead):
                stage = producer.acquire_and_advance()
                self.load(loads, (n, first + k_tile, batch), stage.index, stage.barrier, None)
            if cutlass.const_expr(self.ctas > 1):
                cute.arch.cluster_wait()
            for k_tile in range(ahead):
                self.load(tokens, (m, first + k_tile, batch), k_tile, storage.barriers.data_ptr() + k_tile, share_A)
            for tile in cutlass.range(cluster, num_tiles, clusters):
                m, n, batch = self.tile_coord(tile, tiles, place)
                for k_tile in range(first + ahead, first + num_k_tiles):
                    stage = producer.acquire_and_advance()
                    self.load(loads, (n, k_tile, batch), stage.index, stage.barrier, None)
                    self.load(tokens, (m, k_tile, batch), stage.index, stage.barrier, share_A)
                ahead = cutlass.Int32(0)
            # Shared memory belongs to the CTA only until it exits: wait for the arrivals of those that share A.
            if cutlass.const_expr(self.share > 1):
                producer.tail()

        if warp < self.producer_warp:
            cute.arch.griddepcontrol_wait()
            alpha, beta = cutlass.Float32(1.0), cutlass.Float32(0.0)
            if cutlass.const_expr(mS is not None):
                alpha, beta = mS[0], mS[1]
            if cutlass.const_expr(self.ctas > 1):
                cute.arch.cluster_wait()
            phase = cutlass.Int32(0)
            together, lane = NamedBarrier(barrier_id=1, num_threads=self.consumers), tidx % 32
            peer, others = rank - part, reduction.received(sums)
            for tile in cutlass.range(cluster, num_tiles, clusters):
                released = consumer.clone()  # a K tile behind
                stage = consumer.wait_and_advance()
                self.multiply(tiled_mma, tCrB, tCrA, tCrC, stage.index, True)
                for _ in range(1, num_k_tiles):
                    stage = consumer.wait_and_advance()
                    self.multiply(tiled_mma, tCrB, tCrA, tCrC, stage.index, False)
                    # All groups but the last are complete: the stage before this one has been read.
                    warpgroup.wait_group(1)
                    released.release()
                    released.advance()
                # The accumulator is complete, and the tile's last stage read.
                warpgroup.wait_group(0)
                released.release()
                m, n, batch = self.tile_coord(tile, tiles, place)
                for number in cutlass.range_constexpr(self.passes):
                    # Buffers are free: the warps here have read theirs, and with K split the other parts what this CTA
                    # sent them.
                    if number > 0 or tile != cluster:
                        together.arrive_and_wait()
                    if cutlass.const_expr(self.split > 1):
                        cute.arch.mbarrier_wait(empty, phase ^ 1)
                    reduction.keep(sums, tCrC, tCcC, number, self.cols)
                    if cutlass.const_expr(self.split > 1):
                        cute.arch.fence_proxy("async.shared", space="cta")
                    together.arrive_and_wait()
                    at = (m * bM + number * self.cols + part * self.own_cols, n * self.c_cols, batch)
                    if cutlass.const_expr(self.split > 1):
                        if warp == 0:
                            used = cutlass.min(mC.shape[0] - m * bM - number * self.cols, self.cols)
                            reduction.send(sums, full, used, part, peer, lane)
                        wait_cluster(full, phase)
                        # What came last is never overwritten: the peers may exit while it is added up.
                        more = number + 1 < self.passes or tile + clusters < num_tiles
                        if not more:
                            reduction.pass_on(empty, part, peer, lane, self.split)
                    kept = cutlass.min(self.own_cols, self.cols - part * self.own_cols)
                    reduction.finish(
                        sums[None, None, part], others, self.products, kept, at, mC, extras, alpha, beta,
                        self.activation, tidx, self.consumers,
                    )
                    if cutlass.const_expr(self.split > 1):
                        if more:
                            reduction.pass_on(empty, part, peer, lane, self.split)
                    phase ^= 1
            # Shared memory belongs to the CTA only until it exits: wait until the peers have what they copy from it.
            if cutlass.const_expr(self.split > 1):
                cute.arch.mbarrier_wait(empty, phase ^ 1)

    @cute.jit
    def load(
        self, loads: tuple, at: cute.Coord, stage: cutlass.Int32, barrier: cute.Pointer, mask: cutlass.Int16 | None
    ):
        """Ask TMA for a K tile: of B, and of U below it where there is one, which nobody else reads, or of A."""
        policy = cutlass.Int64(ONCE if cutlass.const_expr(mask is None) else AGAIN)
        for atom, smem, gmem in loads:
            source, target = gmem[(None, *at)], smem[None, stage]
            cute.copy(atom, source, target, tma_bar_ptr=barrier, mcast_mask=mask, cache_policy=policy)

    @cute.jit
    def multiply(
        self, tiled_mma: cute.TiledMma, tCrB: cute.Tensor, tCrA: cute.Tensor, tCrC: cute.Tensor,
        stage: cutlass.Int32, first: cutlass.Constexpr,
    ):
        """Issue the WGMMAs of a K tile as one group. first: overwrite the accumulator."""
        warpgroup.fence()
        for k_block in cutlass.range_constexpr(cute.size(tCrB, mode=[2])):
            tiled_mma.set(warpgroup.Field.ACCUMULATE, not first or k_block > 0)
            cute.gemm(tiled_mma, tCrC, tCrB[None, None, k_block, stage], tCrA[None, None, k_block, stage], tCrC)
        warpgroup.commit_group()

    @cute.jit
    def tile_coord(self, index: cutlass.Int32, tiles: cute.Shape, place: cutlass.Int32):
        """(m, n, batch) of a CTA's tile by its cluster's number: all rows of A for the same of B first."""
        m, n = index % tiles[0], index // tiles[0] % tiles[1]
        return m, n * self.share + place, index // (tiles[0] * tiles[1])


class Plain(SplitKGemm):
    """The kernel as the ladder's problem calls it: two extents an array, nothing but the product."""

    @cute.jit
    def __call__(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor):
        one = cute.make_layout(1, stride=0)
        mA, mB, mC = (cute.make_tensor(x.iterator, cute.append(x.layout, one)) for x in (mA, mB, mC))
        SplitKGemm.__call__(self, mA, mB, None, mC, None, None, None, None, None)


def build(arch: str, form: Form, config: SplitKGemmConfig) -> Program:
    """The kernel of a form for any extents; it takes what `Form` says, aligned as `arguments` says."""
    check_config(config, arch, form)
    return compile_program(SplitKGemm(config, form), *arguments(form), arch=arch, name=RUNG.name)


def compile(arch: str, shape: tuple[int, ...], dtype: str, config: SplitKGemmConfig | None = None) -> Program:
    """The rung for one architecture and element type, and any M and N; K of whole 16 bytes."""
    (_, _, k), dtype = RUNG.check(arch, shape, dtype)
    config, whole = config or SplitKGemmConfig(), 128 // dtype_named(dtype).bits
    RUNG.require(k % whole == 0, f"K={k}: TMA wants row pitches of 16 bytes, pad K to a multiple of {whole}")
    form = Form(dtype, OUTPUTS.get(dtype, dtype), c_tma=False)
    check_config(config, arch, form)
    m, n, k = cute.sym_int(), cute.sym_int(), cute.sym_int(divisibility=whole)
    arrays = row_major(dtype, (m, k)), row_major(dtype, (n, k)), row_major(form.out, (m, n), align=2)
    return compile_program(Plain(config, form), *arrays, arch=arch, name=RUNG.name)


def check_config(config: SplitKGemmConfig, arch: str, form: Form) -> None:
    """UsageError unless WGMMA, TMA and the cluster cut the tile evenly, and it and the stages fit into a CTA."""
    limits.check_form(RUNG, form)
    limits.check_split(RUNG, arch, form, config)
