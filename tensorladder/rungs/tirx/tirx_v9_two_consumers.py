"""Two consumers in TIRx: a second MMA warp with rows of its own, so that each B tile in shared memory is used twice.

Adds:
    A second consumer. Per stage a CTA loads two blocks of A and one of B; each of two MMA warps multiplies its block
    of A by the same B, into its own half of tensor memory, and four write-back warps each bring that home. A pair so
    computes 512 x 256 with one and a half times the parent's bytes a stage.
    - A stage is read when both MMA warps have: `empty` counts two commits. `acc_full` and `acc_empty` are two barriers
      each, one a consumer, as either goes on alone.
    - All of tensor memory is in use: 2 x 256 columns. What overlaps now is the epilogue of one consumer with the MMAs
      of the other.
    - A slice takes numbers of the kernel's run: `sA[stage, consumer, :, :]` and the columns from `consumer * 256` on,
      for code that both consumers' warps share.
    - C is written back in chunks of 64 columns, as shared memory is short; a named barrier a consumer.

Warp roles:
    | warps    | role, in each of the two CTAs                                               |
    |----------|-----------------------------------------------------------------------------|
    | 0-3, 4-7 | write-back of a consumer's 128 x 256: tensor memory to shared memory, a row |
    |          | a thread, in four chunks; warps 0 and 4 store C by TMA; warp 0 allocates    |
    | 8, 9     | MMA, one elected lane each in the leader; nothing in the other              |
    | 10       | TMA, one elected lane: loads of two blocks of A and one of B                |

Budget:
    A CTA. SMEM: (2 x 128 + 128) rows x 64 x 2 B = 48 KB a stage, 4 stages: 192 KB; C 2 x 128 x 64 x 2 B = 32 KB, and
    100 B: 1 CTA an SM. TMEM: all 512 columns, fp32. Registers: 64 accumulators a thread of the write-back warps.

Run:
    tensorladder run tirx-v9-two-consumers --shape 512,512,256
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm.backend.cuda.lang.pipeline import MBarrier, Pipeline, PipelineState, TCGen05Bar
from tvm.backend.cuda.lang.tile_scheduler import ClusterPersistentScheduler2D
from tvm.script import tirx as T
from tvm.script.tirx import tile as Tx
from tvm.tirx import PrimFunc

from tensorladder.core import arch as archs
from tensorladder.core.program import Program
from tensorladder.frontends.tirx import compile_program
from tensorladder.rungs.rung import Rung
from tensorladder.rungs.tirx.tiles import ELEMENTS, ceil_div, row_a_thread, tmem_layout


@dataclass(frozen=True)
class TwoConsumersTirxConfig:
    """tile: (M, N, K) of a step of a pair. stages: K tiles in shared memory.

    sm_count: there are half as many pairs, or as many as tiles where that is less. raster: rows of tiles that the list
    goes down before the next column.
    """

    tile: tuple[int, int, int] = (512, 256, 64)
    stages: int = 4
    sm_count: int = 148
    raster: int = 8


RUNG = Rung(
    name="tirx-v9-two-consumers",
    parent="tirx-v8-two-cta",
    adds="two MMA consumers that share each tile of B, all of tensor memory",
    archs=("sm_100a",),
    problem="gemm",
    dtypes=("fp16", "bf16"),
    config=TwoConsumersTirxConfig,
    shape=(512, 512, 256),
)

CONSUMERS = 2
WRITEBACK_WARPS = 4  # of a consumer: a thread a lane of TMEM
MMA_WARP = 8  # and the next, one a consumer
TMA_WARP = 10
WARPS = 11
WRITEBACK = 1  # a named barrier, and the next, one a consumer
CTAS = 2  # of a pair; rank 0 leads
BOTH = 0b11  # a mask of ranks
CHUNK = 64  # columns of C in shared memory, a box: 128 bytes, the width of the swizzle


def gemm(m: int, n: int, k: int, element: str, config: TwoConsumersTirxConfig) -> PrimFunc:
    """The kernel, its extents and element type built in."""
    pair_M, pair_N, bK = config.tile
    bM, bN = pair_M // CONSUMERS // CTAS, pair_N // CTAS  # blocks that a CTA loads, one of A a consumer
    stages, k_tiles = config.stages, ceil_div(k, bK)
    tiles = ceil_div(m, pair_M), ceil_div(n, pair_N)
    pairs = min(config.sm_count // CTAS, tiles[0] * tiles[1])
    tmem_columns = CONSUMERS * pair_N
    stage_bytes = CTAS * 2 * (CONSUMERS * bM + bN) * bK  # what both CTAs load for a stage

    @T.prim_func
    def kernel(A: T.Buffer((m, k), element), B: T.Buffer((n, k), element), C: T.Buffer((m, n), element)):
        T.device_entry()
        cta = T.cta_id([CTAS * pairs])
        rank = T.cta_id_in_cluster([CTAS])
        warp = T.warp_id([WARPS])
        thread = T.thread_id([32 * WARPS])

        smem = T.SMEMPool()
        sA = smem.alloc_tcgen05_mma_AB((stages, CONSUMERS, bM, bK), element)
        sB = smem.alloc_tcgen05_mma_AB((stages, bN, bK), element)
        sC = smem.alloc_tcgen05_mma_AB((CONSUMERS, bM, CHUNK), element)
        first = T.meta_var(thread == 0)
        ring = Pipeline(smem, stages, full="tma", empty="tcgen05", init_empty=CONSUMERS, leader=first)
        acc_full, acc_empty = TCGen05Bar(smem, CONSUMERS, leader=first), MBarrier(smem, CONSUMERS, leader=first)
        acc_full.init(1)
        acc_empty.init(CTAS * WRITEBACK_WARPS)
        tmem = smem.alloc((1,), "uint32", align=4)
        smem.commit()

        # One warp allocates TMEM and lets other CTAs of the SM do so next; the address comes through shared memory. Its
        # first thread has initialised the barriers.
        if warp == 0:
            T.ptx["fence.mbarrier_init.release.cluster"]()
            T.ptx["tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32"](tmem.ptr_to([0]), T.uint32(tmem_columns))
            T.ptx["tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned"]()
        # Both CTAs' barriers are initialised and their tensor memory allocated before either touches the other's.
        T.cuda.cluster_sync()
        tmem_base: T.let = tmem[0]
        layout = T.meta_var(tmem_layout(tmem_columns))
        tC = T.decl_buffer((bM, tmem_columns), "float32", scope="tmem", allocated_addr=tmem_base, layout=layout)
        full_of_leader, acc_empty_of_leader = ring.full.remote_view(0), acc_empty.remote_view(0)

        schedule = ClusterPersistentScheduler2D("tiles", *tiles, num_clusters=pairs, l2_group_size=config.raster)
        schedule.init(cta // CTAS)
        # A consumer's rows of A and C lie below the other's, the second CTA's below the first's.
        m_at = T.meta_var(schedule.m_idx * pair_M + rank * bM)
        n_at = T.meta_var((schedule.n_idx * CTAS + rank) * bN)  # of B

        if warp == TMA_WARP:
            if T.cuda.elect_sync():
                load = PipelineState(stages, phase=1)
                while schedule.valid():
                    for k_tile in range(k_tiles):
                        k_at = T.meta_var(k_tile * bK)
                        ring.empty.wait(load.stage, load.phase)
                        if rank == 0:
                            ring.full.arrive(load.stage, stage_bytes)
                        mbar = T.meta_var(full_of_leader.ptr_to([load.stage]))
                        landed = T.meta_var({"dispatch": "tma_auto", "cta_group": 2, "mbar": mbar})
                        for consumer in T.unroll(CONSUMERS):
                            a_at = T.meta_var(m_at + consumer * CTAS * bM)
                            tile = T.meta_var(A[a_at : a_at + bM, k_at : k_at + bK])
                            Tx.copy_async(sA[load.stage, consumer, :, :], tile, **landed)
                        Tx.copy_async(sB[load.stage, :, :], B[n_at : n_at + bN, k_at : k_at + bK], **landed)
                        load.advance()
                    schedule.next_tile()
                # The last commits have arrived: none is on its way to a barrier of a CTA that has exited.
                for _ in range(stages):
                    ring.empty.wait(load.stage, load.phase)
                    load.advance()

        if warp >= MMA_WARP and warp < MMA_WARP + CONSUMERS and rank == 0:
            consumer = T.meta_var(warp - MMA_WARP)
            # One lane issues the MMAs and the commits, which track those of its thread.
            if T.cuda.elect_sync():
                read, acc = PipelineState(stages, phase=0), PipelineState(1, phase=1)
                while schedule.valid():
                    T.cuda.mbarrier_wait_acquire_cluster(acc_empty.ptr_to([consumer]), acc.phase)
                    acc.advance()
                    T.ptx["tcgen05.fence::after_thread_sync"]()
                    for k_tile in range(k_tiles):
                        ring.full.wait(read.stage, read.phase)
                        tA, tB = T.meta_var(sA[read.stage, consumer, :, :]), T.meta_var(sB[read.stage, :, :])
                        tile = T.meta_var(tC[:, consumer * pair_N : (consumer + 1) * pair_N])
                        Tx.gemm_async(tile, tA, tB, accum=k_tile > 0, dispatch="tcgen05", cta_group=2)
                        ring.empty.arrive(read.stage, cta_group=2, cta_mask=BOTH)
                        read.advance()
                    acc_full.arrive(consumer, cta_group=2, cta_mask=BOTH)
                    schedule.next_tile()

        if warp < CONSUMERS * WRITEBACK_WARPS:
            consumer, row = T.meta_var(warp // WRITEBACK_WARPS), T.meta_var(thread % bM)
            acc = PipelineState(1, phase=0)
            rC = T.alloc_local((CHUNK,), "float32")
            rD = T.alloc_local((CHUNK,), element)
            rows = rC.view(bM, CHUNK, layout=row_a_thread(CHUNK))
            while schedule.valid():
                acc_full.wait(consumer, acc.phase)
                acc.advance()

                # Epilogue: tmem -> registers -> smem -> gmem (TMA), in chunks of columns.
                T.ptx["tcgen05.fence::after_thread_sync"]()
                for chunk in T.unroll(pair_N // CHUNK):
                    column = T.meta_var(consumer * pair_N + chunk * CHUNK)
                    Tx.wg.copy_async(rows[:, :], tC[:, column : column + CHUNK])
                    T.ptx["tcgen05.wait::ld.sync.aligned"]()
                    # One lane arrives for the warp: all lanes' loads have to come before it.
                    if chunk == pair_N // CHUNK - 1:
                        T.ptx["tcgen05.fence::before_thread_sync"]()
                        T.cuda.warp_sync()
                        if T.cuda.elect_sync():
                            mbar = T.meta_var(acc_empty_of_leader.ptr_to([consumer]))
                            T.ptx["mbarrier.arrive.release.cluster.shared::cluster.b64"](mbar)
                    Tx.cast(rD[:], rC[:])

                    # TMA has read the chunk before: its place may be overwritten.
                    if warp % WRITEBACK_WARPS == 0:
                        T.ptx["cp.async.bulk.wait_group.read"](0)
                    T.cuda.warpgroup_sync(WRITEBACK + consumer)
                    Tx.copy(sC[consumer, row, :], rD[:])

                    # Each writer's fence, then the barrier, then the store: the other way round TMA could read stale
                    # bytes.
                    T.ptx["fence.proxy.async.shared::cta"]()
                    T.cuda.warpgroup_sync(WRITEBACK + consumer)
                    if warp % WRITEBACK_WARPS == 0:
                        if T.cuda.elect_sync():
                            c_at = T.meta_var(schedule.n_idx * pair_N + chunk * CHUNK)
                            r_at = T.meta_var(m_at + consumer * CTAS * bM)
                            tile = T.meta_var(C[r_at : r_at + bM, c_at : c_at + CHUNK])
                            Tx.copy_async(tile, sC[consumer, :, :], dispatch="tma_auto")
                            T.ptx["cp.async.bulk.commit_group"]()
                schedule.next_tile()

        # Give TMEM back once every warp of the pair has read its lanes, and exit when no other CTA signals this one any
        # more. Shared memory belongs to the CTA only until it exits: wait until TMA has read it.
        T.ptx["tcgen05.fence::before_thread_sync"]()
        T.cuda.cluster_sync()
        if warp == 0:
            T.ptx["tcgen05.fence::after_thread_sync"]()
            T.ptx["tcgen05.dealloc.cta_group::2.sync.aligned.b32"](tmem_base, T.uint32(tmem_columns))
        if warp % WRITEBACK_WARPS == 0:
            T.ptx["cp.async.bulk.wait_group.read"](0)

    return kernel


def compile(arch: str, shape: tuple[int, ...], dtype: str, config: TwoConsumersTirxConfig | None = None) -> Program:
    """The rung for one architecture, shape (M, N, K) and element type. M from 2; N and K multiples of 8 (16 bytes)."""
    (m, n, k), dtype = RUNG.check(arch, shape, dtype)
    config = config or TwoConsumersTirxConfig()
    check_config(config, arch)
    RUNG.require(m > 1, "M=1: the compiler takes a single row for a column and finds no TMA copy, pad M to 2")
    RUNG.require(n % 8 == 0, f"N={n}: TMA wants row pitches of 16 bytes, pad N to a multiple of 8")
    RUNG.require(k % 8 == 0, f"K={k}: TMA wants row pitches of 16 bytes, pad K to a multiple of 8")
    return compile_program(gemm, m, n, k, ELEMENTS[dtype], config, arch=arch, name=RUNG.name)


def check_config(config: TwoConsumersTirxConfig, arch: str) -> None:
    """UsageError unless one MMA covers the tile, one load of TMEM its columns, and stages fit into shared memory."""
    bM, bN, bK = config.tile
    RUNG.require(bM == 512, f"tile={config.tile}: M must be 512, twice the lanes of two CTAs' TMEM")
    RUNG.require(bN in (64, 128, 256), f"tile={config.tile}: N must be 64, 128 or 256, in chunks of {CHUNK} columns")
    RUNG.require(bK == 64, f"tile={config.tile}: K must be 64, a swizzled row of 128 bytes")
    RUNG.require(config.raster > 0, f"raster={config.raster}: at least 1 row of tiles")
    RUNG.require(config.sm_count >= CTAS, f"sm_count={config.sm_count}: at least {CTAS}, a pair")
    RUNG.require(config.stages >= 2, f"stages={config.stages}: at least 2, one to fill and one to multiply")
    smem = 2 * (config.stages * (bM + bN) // CTAS * bK + bM // CTAS * CHUNK) + 1024
    limit = archs.find(arch).smem_per_cta
    RUNG.require(smem <= limit, f"stages={config.stages}: {smem} bytes of shared memory, {arch} has {limit}")
