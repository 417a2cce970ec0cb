"""Warp specialisation for WGMMA: a TMA producer warp keeps two consumer warpgroups fed through a ring of mbarriers.

Adds:
    Roles, as b7 has them for mma.sync. In the parent both warpgroups stop at a CTA barrier each K tile, so that the one
    that waits for data holds up the other, and a warp that multiplies also issues the loads. Here one warp only asks
    for tiles, up to a ring of stages ahead; each stage has a `full` mbarrier (TMA's bytes) and an `empty` one (an
    arrival of each consumer warp), and nobody waits for anything else.
    - A consumer may release a stage only when its WGMMAs have read it, and they are asynchronous: while a K tile is
      multiplied, wait_group(1) makes the tile before it complete, and that one's stage is released.
    - setmaxnreg gives consumers registers for 128 x 128 or 64 x 256 of C a warpgroup: 232 a thread of 168 at launch.
    - A CTA barrier inside one role would hang: the epilogue uses named barriers, of the consumers and of a warpgroup.
    - A tile's ends cost 4 us on an H200: C leaves (in chunks, each stored while the next is converted), a CTA starts
      and waits for loads, which the one before has brought to L2. Two CTAs an SM of 128 x 128, a warpgroup each, do
      that under each other's multiplications. But they drift apart; where L2 cannot hold what all of them read (K of
      8192) that costs 6 %. There one CTA an SM takes a large tile, 128 x 192 or 128 x 256 (`default_config`). 1.00
      times as fast as the parent at 4096 cubed, 1.01 at 8192, alone 0.99 and 1.04 (`benchmarks.steps`).

Warp roles:
    | warps    | role                                                                               |
    |----------|------------------------------------------------------------------------------------|
    | 0-3, 4-7 | consumers, a warpgroup each: multiply 64 x 256 of C; its first warp stores by TMA  |
    | 8        | producer: asks TMA for A and B, as far ahead as stages are free                    |
    | 9-11     | nothing, their registers go to the consumers                                       |

Budget:
    SMEM: (128 + 256) rows x 64 x 2 B = 48 KB a stage, 4 stages: 192 KB and 64 B of mbarriers, 1 CTA an SM; C (64 KB)
    reuses the stages. Registers: 128 accumulators in at most 232 a consumer thread; 128 x 40 + 256 x 232 = 63 Ki of an
    SM's 64 Ki. No TMEM.

Run:
    tensorladder run c2-warp-specialized --shape 256,256,256
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup
from cutlass.memory import SmemAllocator
from cutlass.pipeline import Agent, CooperativeGroup, NamedBarrier, PipelineConsumer, PipelineTmaAsync

from tensorladder.core import arch as archs
from tensorladder.core.probes import Plan
from tensorladder.core.program import Program
from tensorladder.frontends.cutedsl import compile_program
from tensorladder.rungs.parts import limits, probes, waves
from tensorladder.rungs.parts.tensors import row_major
from tensorladder.rungs.rung import Rung


@dataclass(frozen=True)
class WarpSpecializedGemmConfig:
    """tile: (M, N, K) of a CTA. warpgroups: of consumers, one below the other along M of the tile of C. stages: K tiles
    in shared memory.

    raster: rows of tiles that consecutive CTAs go down before the next column, so that they share A and B in L2.
    ahead: K tiles brought to L2 for the CTA sm_count * ctas_per_sm later. ctas_per_sm: what registers at launch have to
    allow. producer_registers, consumer_registers: a thread, after setmaxnreg (multiples of 8). probes: the variant that
    marks time, which `tensorladder trace` reads; warp 9 then watches the loads land.
    """

    tile: tuple[int, int, int] = (128, 256, 64)
    warpgroups: int = 2
    stages: int = 4
    raster: int = 16
    ahead: int = 3
    sm_count: int = 132
    ctas_per_sm: int = 1
    producer_registers: int = 40
    consumer_registers: int = 232
    probes: bool = False


RUNG = Rung(
    name="c2-warp-specialized",
    parent="c1-wgmma",
    adds="a TMA producer warp, consumer warpgroups that release a stage once its WGMMAs are complete, setmaxnreg",
    archs=("sm_90a",),
    problem="gemm",
    dtypes=("fp16", "bf16"),
    config=WarpSpecializedGemmConfig,
    probes={
        "tracks": (
            ("producer", ("wait: empty", "ask for A and B")),
            ("landing", ("",)),
            ("consumer 0", ("wait: full", "issue WGMMA", "wait: WGMMA before"), ("wait: last WGMMA", "store C")),
            ("consumer 1", ("wait: full", "issue WGMMA", "wait: WGMMA before"), ("wait: last WGMMA", "store C")),
        ),
        "in_flight": (
            ("TMA load", "load", ("producer", "ask for A and B"), ("landing", "")),
            ("WGMMA 0", "tensor", ("consumer 0", "issue WGMMA"), ("consumer 0", "wait: WGMMA before"), 1),
            ("WGMMA 1", "tensor", ("consumer 1", "issue WGMMA"), ("consumer 1", "wait: WGMMA before"), 1),
        ),
        "releases": (
            (("TMA load", "TMA load"), ("consumer 0", "wait: full")),
            (("TMA load", "TMA load"), ("consumer 1", "wait: full")),
            (("WGMMA 0", "WGMMA 0"), ("producer", "wait: empty"), "stages"),
            (("WGMMA 1", "WGMMA 1"), ("producer", "wait: empty"), "stages"),
        ),
    },
)

WARPGROUP = 128  # threads
WARPS = 4  # of a warpgroup
CHUNK = 64  # rows and columns of C that a warpgroup stores at a time: as wide as the swizzle
PRODUCER, LANDING, CONSUMER = range(3)  # tracks of the probes; a consumer warpgroup a track


class WarpSpecializedGemm:
    def __init__(self, config: WarpSpecializedGemmConfig):
        self.tile = config.tile
        self.warpgroups = config.warpgroups
        self.consumer_warps = WARPS * config.warpgroups
        self.producer_warp = self.consumer_warps
        self.threads = WARPGROUP * (config.warpgroups + 1)
        self.stages = config.stages
        self.raster = config.raster
        self.ahead = config.ahead
        self.resident = config.sm_count * config.ctas_per_sm
        self.ctas_per_sm = config.ctas_per_sm
        self.producer_registers = config.producer_registers
        self.consumer_registers = config.consumer_registers

    @cute.jit
    def __call__(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mP: cute.Tensor | None = None):
        bM, bN, bK = self.tile
        sA_layout = self.smem_layout(bM, bK, self.stages)
        sB_layout = self.smem_layout(bN, bK, self.stages)
        sC_layout = self.smem_layout(CHUNK, CHUNK, bM // CHUNK * (bN // CHUNK))

        # A descriptor and a tensor of coordinates for each matrix. TMA takes coordinates, not addresses.
        load, store = cpasync.CopyBulkTensorTileG2SOp(), cpasync.CopyBulkTensorTileS2GOp()
        tma_A, mA = cpasync.make_tiled_tma_atom(load, mA, cute.select(sA_layout, mode=[0, 1]), (bM, bK))
        tma_B, mB = cpasync.make_tiled_tma_atom(load, mB, cute.select(sB_layout, mode=[0, 1]), (bN, bK))
        element_type = mC.element_type
        tma_C, mC = cpasync.make_tiled_tma_atom(store, mC, cute.select(sC_layout, mode=[0, 1]), (CHUNK, CHUNK))

        # A warpgroup does 64 rows and all columns at once; both operands lie in shared memory with K contiguous.
        k_major, source = OperandMajorMode.K, warpgroup.OperandSource.SMEM
        mma_op = warpgroup.MmaF16BF16Op(element_type, cutlass.Float32, (64, bN, 16), source, k_major, k_major)
        tiled_mma = cute.make_tiled_mma(mma_op, cute.make_layout((self.warpgroups, 1, 1)))

        @cute.struct
        class SharedStorage:
            barriers: cute.struct.MemRange[cutlass.Int64, 2 * self.stages]
            sA: cute.struct.Align[cute.struct.MemRange[element_type, cute.cosize(sA_layout)], 1024]
            sB: cute.struct.Align[cute.struct.MemRange[element_type, cute.cosize(sB_layout)], 1024]

        self.shared_storage = SharedStorage
        tiles = cute.ceil_div(mC.shape, (bM, bN))
        self.kernel(tma_A, mA, tma_B, mB, tma_C, mC, sA_layout, sB_layout, sC_layout, tiled_mma, tiles, mP).launch(
            grid=(cute.size(tiles), 1, 1),
            block=(self.threads, 1, 1),
            min_blocks_per_mp=self.ctas_per_sm,
            preferred_smem_carveout=100,  # percent; given so that the DSL need not ask a GPU
        )

    @cute.kernel
    def kernel(
        self, tma_A: cute.CopyAtom, mA: cute.Tensor, tma_B: cute.CopyAtom, mB: cute.Tensor,
        tma_C: cute.CopyAtom, mC: cute.Tensor, sA_layout: cute.ComposedLayout, sB_layout: cute.ComposedLayout,
        sC_layout: cute.ComposedLayout, tiled_mma: cute.TiledMma, tiles: cutlass.Constexpr, mP: cute.Tensor | None,
    ):
        tidx, _, _ = cute.arch.thread_idx()
        bidx, _, _ = cute.arch.block_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        group = warp // WARPS
        m, n = self.raster_tile(bidx, tiles)
        if warp == self.producer_warp:  # before anything waits for it
            cpasync.prefetch_descriptor(tma_A)
            cpasync.prefetch_descriptor(tma_B)

        storage = SmemAllocator().allocate(self.shared_storage)
        sA = storage.sA.get_tensor(sA_layout.outer, swizzle=sA_layout.inner)
        sB = storage.sB.get_tensor(sB_layout.outer, swizzle=sB_layout.inner)
        # C takes the place of A's and B's stages once they are multiplied.
        sC = cute.make_tensor(cute.recast_ptr(sA.iterator, sC_layout.inner), sC_layout.outer)
        element_type = sA.element_type
        stage_bytes = cute.size_in_bytes(element_type, cute.select(sA_layout, mode=[0, 1]))
        stage_bytes += cute.size_in_bytes(element_type, cute.select(sB_layout, mode=[0, 1]))

        # (BM, BK, tiles m, k tiles), (BN, BK, tiles n, k tiles), (64, 64, chunks m, chunks n), as coordinates.
        gA = cute.local_tile(mA, tiler=self.tile, coord=(None, None, None), proj=(1, None, 1))
        gB = cute.local_tile(mB, tiler=self.tile, coord=(None, None, None), proj=(None, 1, 1))
        gC = cute.local_tile(mC, tiler=(CHUNK, CHUNK), coord=(None, None))

        # gmem -> smem and back: (TMA, stage), (TMA, tile, k tile); (TMA, chunk of the tile), (TMA, chunk m, chunk n)
        tAsA, tAgA = self.tma_partition(tma_A, sA, gA)
        tBsB, tBgB = self.tma_partition(tma_B, sB, gB)
        tCsC, tCgC = self.tma_partition(tma_C, sC, gC)

        # smem -> MMA: "fragments" of A and B are descriptors (MMA, MMA_M, MMA_K, stage), the same for all threads of a
        # warpgroup.
        thr_mma = tiled_mma.get_slice(cute.arch.make_warp_uniform(tidx // WARPGROUP) * WARPGROUP)
        tCrA = tiled_mma.make_fragment_A(thr_mma.partition_A(sA))
        tCrB = tiled_mma.make_fragment_B(thr_mma.partition_B(sB))
        tCrC = tiled_mma.make_fragment_C(thr_mma.partition_shape_C(self.tile[:2]))

        # The barriers of the ring: full completes with one arrival (the producer's) and the tile's bytes, empty with an
        # arrival a consumer warp. `create` initialises them, fences, and synchronises the CTA.
        pipeline = PipelineTmaAsync.create(
            num_stages=self.stages,
            producer_group=CooperativeGroup(Agent.Thread),
            consumer_group=CooperativeGroup(Agent.Thread, self.consumer_warps + (mP is not None)),
            tx_count=stage_bytes,
            barrier_storage=storage.barriers.data_ptr(),
            cta_layout_vmnk=cute.make_layout((1, 1, 1, 1)),
        )
        producer, consumer = pipeline.make_participants()
        consumers = NamedBarrier(barrier_id=1, num_threads=32 * self.consumer_warps)
        num_k_tiles = cute.size(gA, mode=[3])

        if warp >= self.producer_warp:
            cute.arch.setmaxregister_decrease(self.producer_registers)
            if warp == self.producer_warp:
                probes.start(mP, bidx, PRODUCER)
                for k_tile in range(num_k_tiles):
                    probes.mark(mP, bidx, PRODUCER, 2 * k_tile)
                    stage = producer.acquire_and_advance()
                    probes.mark(mP, bidx, PRODUCER, 2 * k_tile + 1)
                    cute.copy(tma_A, tAgA[None, m, k_tile], tAsA[None, stage.index], tma_bar_ptr=stage.barrier)
                    cute.copy(tma_B, tBgB[None, n, k_tile], tBsB[None, stage.index], tma_bar_ptr=stage.barrier)
                probes.mark(mP, bidx, PRODUCER, 2 * num_k_tiles)
                if bidx + self.resident < cute.size(tiles):
                    next_m, next_n = self.raster_tile(bidx + self.resident, tiles)
                    for k_tile in cutlass.range_constexpr(min(self.ahead, num_k_tiles)):
                        cute.prefetch(tma_A, tAgA[None, next_m, k_tile])
                        cute.prefetch(tma_B, tBgB[None, next_n, k_tile])
            if cutlass.const_expr(mP is not None):
                if warp == self.producer_warp + 1:
                    self.watch(consumer.clone(), mP, bidx, num_k_tiles)

        if warp < self.producer_warp:
            cute.arch.setmaxregister_increase(self.consumer_registers)
            track = CONSUMER + tidx // WARPGROUP
            probes.start(mP, bidx, track, WARPGROUP)
            released = consumer.clone()  # a K tile behind
            probes.mark(mP, bidx, track, 0, WARPGROUP)
            stage = consumer.wait_and_advance()
            probes.mark(mP, bidx, track, 1, WARPGROUP)
            self.multiply(tiled_mma, tCrA, tCrB, tCrC, stage.index, True)
            probes.mark(mP, bidx, track, 2, WARPGROUP)
            for k_tile in range(1, num_k_tiles):
                probes.mark(mP, bidx, track, 3 * k_tile, WARPGROUP)
                stage = consumer.wait_and_advance()
                probes.mark(mP, bidx, track, 3 * k_tile + 1, WARPGROUP)
                self.multiply(tiled_mma, tCrA, tCrB, tCrC, stage.index, False)
                probes.mark(mP, bidx, track, 3 * k_tile + 2, WARPGROUP)
                # All groups but the last are complete: the stage before this one has been read.
                warpgroup.wait_group(1)
                released.release()
                released.advance()

            # The accumulator is complete after the wait; the barrier frees the stages for C: every tile that was asked
            # for has been multiplied by all by then.
            probes.mark(mP, bidx, track, 3 * num_k_tiles, WARPGROUP)
            warpgroup.wait_group(0)
            probes.mark(mP, bidx, track, 3 * num_k_tiles + 1, WARPGROUP)
            consumers.arrive_and_wait()
            self.store(tma_C, tCsC, tCgC, sC, tCrC, m, n, tidx % WARPGROUP, warp % WARPS, group)
            # Shared memory belongs to the CTA only until it exits: wait until TMA has read it.
            if warp % WARPS == 0:
                cute.arch.cp_async_bulk_wait_group(0, read=True)
            probes.mark(mP, bidx, track, 3 * num_k_tiles + 2, WARPGROUP)

    @cute.jit
    def watch(self, consumer: PipelineConsumer, mP: cute.Tensor, cta: cutlass.Int32, num_k_tiles: cutlass.Constexpr):
        """Mark when each K tile has landed: one more consumer, which does nothing with it."""
        probes.start(mP, cta, LANDING)
        probes.mark(mP, cta, LANDING, 0)
        for k_tile in range(num_k_tiles):
            stage = consumer.wait_and_advance()
            probes.mark(mP, cta, LANDING, k_tile + 1)
            stage.release()

    @cute.jit
    def multiply(
        self, tiled_mma: cute.TiledMma, tCrA: cute.Tensor, tCrB: cute.Tensor, tCrC: cute.Tensor,
        stage: cutlass.Int32, first: cutlass.Constexpr,
    ):
        """Issue the WGMMAs of a K tile as one group. first: overwrite the accumulator."""
        warpgroup.fence()
        for k_block in cutlass.range_constexpr(cute.size(tCrA, mode=[2])):
            tiled_mma.set(warpgroup.Field.ACCUMULATE, not first or k_block > 0)
            cute.gemm(tiled_mma, tCrC, tCrA[None, None, k_block, stage], tCrB[None, None, k_block, stage], tCrC)
        warpgroup.commit_group()

    @cute.jit
    def store(
        self, tma_C: cute.CopyAtom, tCsC: cute.Tensor, tCgC: cute.Tensor, sC: cute.Tensor, tCrC: cute.Tensor,
        m: cutlass.Int32, n: cutlass.Int32, thread: cutlass.Int32, warp: cutlass.Int32, group: cutlass.Int32,
    ):
        """A warpgroup's part of the tile (m, n), 64 x 64 at a time: registers -> smem (stmatrix) -> gmem (TMA).

        thread, warp: in the warpgroup.
        """
        together = NamedBarrier(barrier_id=2 + group, num_threads=WARPGROUP)
        # The accumulator of a 64 x 64 WGMMA is laid out as any 64 columns of a wider one.
        k_major, source = OperandMajorMode.K, warpgroup.OperandSource.SMEM
        element_type = sC.element_type
        chunk_op = warpgroup.MmaF16BF16Op(element_type, cutlass.Float32, (64, CHUNK, 16), source, k_major, k_major)
        chunk_mma = cute.make_tiled_mma(chunk_op)
        atom_r2s = cute.make_copy_atom(cute.nvgpu.warp.StMatrix8x8x16bOp(False, 4), element_type)
        thr_r2s = cute.make_tiled_copy_C(atom_r2s, chunk_mma).get_slice(thread)
        tCrF = chunk_mma.make_fragment_C(chunk_mma.get_slice(0).partition_shape_C((CHUNK, CHUNK)))
        tCrD = cute.make_fragment_like(tCrF, element_type)

        rows, cols = self.tile[0] // CHUNK // self.warpgroups, self.tile[1] // CHUNK
        for row in cutlass.range_constexpr(rows):
            for col in cutlass.range_constexpr(cols):
                chunk = row * cols + col
                buffer = group * rows * cols + chunk
                for i in cutlass.range_constexpr(cute.size(tCrF)):
                    tCrF[i] = tCrC[chunk * cute.size(tCrF) + i]
                tCrD.store(tCrF.load().to(element_type))
                cute.copy(atom_r2s, thr_r2s.retile(tCrD), thr_r2s.partition_D(sC[None, None, buffer]))

                # Each writer's fence, then the barrier, then the store: the other way round TMA could read stale bytes.
                cute.arch.fence_proxy("async.shared", space="cta")
                together.arrive_and_wait()
                chunk_m, chunk_n = m * rows * self.warpgroups + row * self.warpgroups + group, n * cols + col
                if warp == 0:
                    # Chunks outside of C are left out: a mode of one chunk would take any number for its first.
                    if chunk_m < cute.size(tCgC, mode=[1]) and chunk_n < cute.size(tCgC, mode=[2]):
                        cute.copy(tma_C, tCsC[None, buffer], tCgC[None, chunk_m, chunk_n])
                    cute.arch.cp_async_bulk_commit_group()

    @cute.jit
    def tma_partition(self, atom: cute.CopyAtom, smem: cute.Tensor, gmem: cute.Tensor):
        """Both sides of a TMA copy with their first two modes (the box) as one."""
        return cpasync.tma_partition(
            atom, 0, cute.make_layout(1), cute.group_modes(smem, 0, 2), cute.group_modes(gmem, 0, 2)
        )

    @cute.jit
    def raster_tile(self, index: cutlass.Int32, tiles: cutlass.Constexpr):
        """(m, n) of a CTA's tile: down `raster` rows, then the next column, so that a wave is nearly square."""
        group = index // (self.raster * tiles[1])
        within = index % (self.raster * tiles[1])
        rows = min(tiles[0] - group * self.raster, self.raster)
        return group * self.raster + within % rows, within // rows

    def smem_layout(self, rows: int, cols: int, stages: int):
        """(rows, cols, stages), row-major in columns of 64 elements: 128 bytes, the swizzle of TMA and WGMMA."""
        atom = cute.make_composed_layout(cute.make_swizzle(3, 4, 3), 0, cute.make_layout((8, 64), stride=(64, 1)))
        return cute.tile_to_shape(atom, (rows, cols, stages), order=(0, 1, 2))


LARGE = (WarpSpecializedGemmConfig(), WarpSpecializedGemmConfig(tile=(128, 192, 64), stages=5))
PAIR = WarpSpecializedGemmConfig((128, 128, 64), warpgroups=1, stages=3, ahead=2, ctas_per_sm=2, consumer_registers=216)
LONG_K = 6144  # 264 CTAs of 128 x 128 in a square read 4096 rows of A and B, 50 MB of such a length


def default_config(shape: tuple[int, ...]) -> WarpSpecializedGemmConfig:
    """Knobs for (M, N, K): two CTAs an SM where the L2 holds all that they read, else what wastes least of a wave."""
    large = waves.fitting(shape, *LARGE)
    alone = waves.tiles(shape, large.tile) <= large.sm_count or shape[2] > LONG_K
    return large if alone else min((PAIR, large), key=lambda config: waves.most_work(shape, config))


def compile(arch: str, shape: tuple[int, ...], dtype: str, config: WarpSpecializedGemmConfig | None = None) -> Program:
    """The rung for one architecture, shape (M, N, K) and element type. M from 2; N and K multiples of 8 (16 bytes)."""
    (m, n, k), dtype = RUNG.check(arch, shape, dtype)
    config = config or default_config((m, n, k))
    check_config(config, arch)
    RUNG.require(m > 1, "M=1: the DSL makes a one-dimensional tensor map of a single row, pad M to 2")
    for name, size in (("N", n), ("K", k)):
        RUNG.require(size % 8 == 0, f"{name}={size}: TMA wants row pitches of 16 bytes, pad {name} to a multiple of 8")
    arrays = [row_major(dtype, extents) for extents in ((m, k), (n, k), (m, n))]
    if config.probes:
        arrays.append(probes.buffer(Plan.of(RUNG.probes), *marked((m, n, k), dtype, config)))
    return compile_program(WarpSpecializedGemm(config), *arrays, arch=arch, name=RUNG.name)


def marked(shape: tuple[int, ...], dtype: str, config: WarpSpecializedGemmConfig) -> tuple[int, int]:
    """(CTAs, K tiles of each), which the probes mark."""
    return waves.tiles(shape, config.tile), -(-shape[2] // config.tile[2])


def check_config(config: WarpSpecializedGemmConfig, arch: str) -> None:
    """UsageError unless the warpgroups cover the tile evenly and the stages fit into shared memory."""
    bM, bN, bK = config.tile
    groups = config.warpgroups
    RUNG.require(1 <= groups <= 4, f"warpgroups={groups}: 1 to 4, more have no room for accumulators")
    RUNG.require(not config.probes or groups == 2, f"warpgroups={groups}: the variant with probes marks two")
    RUNG.require(config.raster > 0, f"raster={config.raster}: at least 1 row of tiles")
    RUNG.require(config.ahead >= 0, f"ahead={config.ahead}: at least 0 K tiles")
    RUNG.require(min(config.tile) > 0, f"tile={config.tile}: extents are positive")
    RUNG.require(bM % (64 * groups) == 0, f"tile={config.tile}: M must be a multiple of {64 * groups}")
    RUNG.require(bK % 64 == 0 and bN % 64 == 0, f"tile={config.tile}: N and K must be multiples of 64 (128 bytes)")
    RUNG.require(max(config.tile) <= 256, f"tile={config.tile}: a TMA box and WGMMA have at most 256 rows")
    RUNG.require(config.stages >= 2, f"stages={config.stages}: at least 2, one to fill and one to multiply")
    stages = config.stages * (bM + bN) * bK
    RUNG.require(stages >= bM * bN, f"stages={config.stages}: C ({bM} x {bN}) must fit into the stages")
    limits.check_registers(RUNG, config, groups, bM * bN // (WARPGROUP * groups))
    smem, limit = 2 * stages + 1024, archs.find(arch).smem_per_cta
    RUNG.require(smem <= limit, f"stages={config.stages}: {smem} bytes of shared memory, {arch} has {limit}")
