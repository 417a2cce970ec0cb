"""A pair of CTAs on one tile, in TIRx: each loads half of both operands, one of them starts the MMAs for both.

Adds:
    cta_group=2. The tensor cores of two neighbouring SMs work on one instruction of 256 x 256 x 16: each multiplies
    128 rows of A by all 256 of B, half of which it reads from the other CTA's shared memory. A CTA so holds and loads
    128 + 128 rows a stage for 128 x 256 of C: twice the parent's arithmetic for the same bytes. `gemm_async` infers
    the instruction from what a CTA holds of each operand; its accumulator has all columns.
    - `T.cta_id_in_cluster([2])` declares the cluster and names the rank. The CTA of rank 0 leads. Its MMA warp issues
      for both, by descriptors that hold for either's shared memory; so it waits for both's: TMA of both CTAs counts
      its bytes on the leader's `full`, which expects all of them. A `remote_view(0)` of a barrier is the leader's, by
      an address that `mapa` made.
    - Commits go to both CTAs, by a mask of ranks: each TMA warp has an `empty` of its own to wait for, each write-back
      an `acc_full`. The way back is a remote arrival: write-back warps of both arrive at the leader's `acc_empty`.
      What the arrival releases and the wait acquires has to reach across the cluster; TIRx's own `arrive` and `wait`
      reach across the CTA, so both are spelt here.
    - Who signals another CTA's barrier has to know that it is initialised, and that its CTA is still there: the
      cluster meets after the setup and before the end. Tensor memory is allocated and freed by both CTAs, for the
      pair.

Warp roles:
    | warps | role, in each of the two CTAs                                                  |
    |-------|--------------------------------------------------------------------------------|
    | 0-3   | write-back of 128 x 256: tensor memory to shared memory, a row a thread, in    |
    |       | two halves; warp 0 stores C by TMA, and allocates and frees tensor memory      |
    | 4     | MMA, one elected lane in the leader; nothing in the other                      |
    | 5     | TMA, one elected lane: loads of its half of A and B, as far as stages are free |

Budget:
    A CTA. SMEM: (128 + 128) rows x 64 x 2 B = 32 KB a stage, 5 stages: 160 KB; C 128 x 128 x 2 B = 32 KB, and 100 B: 1
    CTA an SM. TMEM: 256 columns of 512, fp32. Registers: 128 accumulators a thread of the write-back warps.

Run:
    tensorladder run tirx-v8-two-cta --shape 512,512,256
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
class TwoCtaTirxConfig:
    """tile: (M, N, K) of a step of a pair. stages: K tiles in shared memory.

    sm_count: there are half as many pairs, or as many as tiles where that is less. raster: rows of tiles that the list
    goes down before the next column.
    """

    tile: tuple[int, int, int] = (256, 256, 64)
    stages: int = 5
    sm_count: int = 148
    raster: int = 8


RUNG = Rung(
    name="tirx-v8-two-cta",
    parent="tirx-v7-warp-specialized",
    adds="CTA pairs: MMAs of 256 x 256 that read both CTAs' shared memory, remote barriers, masks",
    archs=("sm_100a",),
    problem="gemm",
    dtypes=("fp16", "bf16"),
    config=TwoCtaTirxConfig,
    shape=(512, 512, 256),
)

WRITEBACK_WARPS = 4  # a thread a lane of TMEM
MMA_WARP = 4
TMA_WARP = 5
WARPS = 6
WRITEBACK = 1  # a named barrier
CTAS = 2  # of a pair; rank 0 leads
BOTH = 0b11  # a mask of ranks
CHUNK = 128  # columns of C in shared memory
BLOCK = 64  # columns of C in a box: 128 bytes, the width of the swizzle


def gemm(m: int, n: int, k: int, element: str, config: TwoCtaTirxConfig) -> PrimFunc:
    """The kernel, its extents and element type built in."""
    pair_M, pair_N, bK = config.tile
    bM, bN = pair_M // CTAS, pair_N // CTAS  # what a CTA loads
    stages, k_tiles = config.stages, ceil_div(k, bK)
    tiles = ceil_div(m, pair_M), ceil_div(n, pair_N)
    pairs = min(config.sm_count // CTAS, tiles[0] * tiles[1])
    tmem_columns = pair_N
    stage_bytes = CTAS * 2 * (bM + bN) * bK  # what both CTAs load for a stage

    @T.prim_func
    def kernel(A: T.Buffer((m, k), element), B: T.Buffer((n, k), element), C: T.Buffer((m, n), element)):
        T.device_entry()
        cta = T.cta_id([CTAS * pairs])
        rank = T.cta_id_in_cluster([CTAS])
        warp = T.warp_id([WARPS])
        thread = T.thread_id([32 * WARPS])

        smem = T.SMEMPool()
        sA = smem.alloc_tcgen05_mma_AB((stages, bM, bK), element)
        sB = smem.alloc_tcgen05_mma_AB((stages, bN, bK), element)
        sC = smem.alloc_tcgen05_mma_AB((CHUNK // BLOCK, bM, BLOCK), element)
        first = T.meta_var(thread == 0)
        ring = Pipeline(smem, stages, full="tma", empty="tcgen05", leader=first)
        acc_full, acc_empty = TCGen05Bar(smem, 1, leader=first), MBarrier(smem, 1, leader=first)
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
        layout = T.meta_var(tmem_layout(pair_N))
        tC = T.decl_buffer((bM, pair_N), "float32", scope="tmem", allocated_addr=tmem_base, layout=layout)
        full_of_leader, acc_empty_of_leader = ring.full.remote_view(0), acc_empty.remote_view(0)

        schedule = ClusterPersistentScheduler2D("tiles", *tiles, num_clusters=pairs, l2_group_size=config.raster)
        schedule.init(cta // CTAS)
        m_at = T.meta_var((schedule.m_idx * CTAS + rank) * bM)  # of A and C
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
                        Tx.copy_async(sA[load.stage, :, :], A[m_at : m_at + bM, k_at : k_at + bK], **landed)
                        Tx.copy_async(sB[load.stage, :, :], B[n_at : n_at + bN, k_at : k_at + bK], **landed)
                        load.advance()
                    schedule.next_tile()
                # The last commits have arrived: none is on its way to a barrier of a CTA that has exited.
                for _ in range(stages):
                    ring.empty.wait(load.stage, load.phase)
                    load.advance()

        if warp == MMA_WARP and rank == 0:
            # One lane issues the MMAs and the commits, which track those of its thread.
            if T.cuda.elect_sync():
                read, acc = PipelineState(stages, phase=0), PipelineState(1, phase=1)
                while schedule.valid():
                    T.cuda.mbarrier_wait_acquire_cluster(acc_empty.ptr_to([0]), acc.phase)
                    acc.advance()
                    T.ptx["tcgen05.fence::after_thread_sync"]()
                    for k_tile in range(k_tiles):
                        ring.full.wait(read.stage, read.phase)
                        tA, tB = T.meta_var(sA[read.stage, :, :]), T.meta_var(sB[read.stage, :, :])
                        Tx.gemm_async(tC[:, :], tA, tB, accum=k_tile > 0, dispatch="tcgen05", cta_group=2)
                        ring.empty.arrive(read.stage, cta_group=2, cta_mask=BOTH)
                        read.advance()
                    acc_full.arrive(0, cta_group=2, cta_mask=BOTH)
                    schedule.next_tile()

        if warp < WRITEBACK_WARPS:
            acc = PipelineState(1, phase=0)
            rC = T.alloc_local((CHUNK,), "float32")
            rD = T.alloc_local((CHUNK,), element)
            rows = rC.view(bM, CHUNK, layout=row_a_thread(CHUNK))
            while schedule.valid():
                acc_full.wait(0, acc.phase)
                acc.advance()

                # Epilogue: tmem -> registers -> smem -> gmem (TMA), in chunks of columns.
                T.ptx["tcgen05.fence::after_thread_sync"]()
                for chunk in T.unroll(pair_N // CHUNK):
                    Tx.wg.copy_async(rows[:, :], tC[:, chunk * CHUNK : (chunk + 1) * CHUNK])
                    T.ptx["tcgen05.wait::ld.sync.aligned"]()
                    # One lane arrives for the warp: all lanes' loads have to come before it.
                    if chunk == pair_N // CHUNK - 1:
                        T.ptx["tcgen05.fence::before_thread_sync"]()
                        T.cuda.warp_sync()
                        if T.cuda.elect_sync():
                            mbar = T.meta_var(acc_empty_of_leader.ptr_to([0]))
                            T.ptx["mbarrier.arrive.release.cluster.shared::cluster.b64"](mbar)
                    Tx.cast(rD[:], rC[:])

                    # TMA has read the chunk before: its place may be overwritten.
                    if warp == 0:
                        T.ptx["cp.async.bulk.wait_group.read"](0)
                    T.cuda.warpgroup_sync(WRITEBACK)
                    for block in T.unroll(CHUNK // BLOCK):
                        Tx.copy(sC[block, thread, :], rD[block * BLOCK : (block + 1) * BLOCK])

                    # Each writer's fence, then the barrier, then the store: the other way round TMA could read stale
                    # bytes.
                    T.ptx["fence.proxy.async.shared::cta"]()
                    T.cuda.warpgroup_sync(WRITEBACK)
                    if warp == 0:
                        if T.cuda.elect_sync():
                            for block in T.unroll(CHUNK // BLOCK):
                                c_at = T.meta_var(schedule.n_idx * pair_N + chunk * CHUNK + block * BLOCK)
                                tile = T.meta_var(C[m_at : m_at + bM, c_at : c_at + BLOCK])
                                Tx.copy_async(tile, sC[block, :, :], dispatch="tma_auto")
                            T.ptx["cp.async.bulk.commit_group"]()
                schedule.next_tile()

        # Give TMEM back once every warp of the pair has read its lanes, and exit when no other CTA signals this one any
        # more. Shared memory belongs to the CTA only until it exits: wait until TMA has read it.
        T.ptx["tcgen05.fence::before_thread_sync"]()
        T.cuda.cluster_sync()
        if warp == 0:
            T.ptx["tcgen05.fence::after_thread_sync"]()
            T.ptx["tcgen05.dealloc.cta_group::2.sync.aligned.b32"](tmem_base, T.uint32(tmem_columns))
            T.ptx["cp.async.bulk.wait_group.read"](0)

    return kernel


def compile(arch: str, shape: tuple[int, ...], dtype: str, config: TwoCtaTirxConfig | None = None) -> Program:
    """The rung for one architecture, shape (M, N, K) and element type. M from 2; N and K multiples of 8 (16 bytes)."""
    (m, n, k), dtype = RUNG.check(arch, shape, dtype)
    config = config or TwoCtaTirxConfig()
    check_config(config, arch)
    RUNG.require(m > 1, "M=1: the compiler takes a single row for a column and finds no TMA copy, pad M to 2")
    RUNG.require(n % 8 == 0, f"N={n}: TMA wants row pitches of 16 bytes, pad N to a multiple of 8")
    RUNG.require(k % 8 == 0, f"K={k}: TMA wants row pitches of 16 bytes, pad K to a multiple of 8")
    return compile_program(gemm, m, n, k, ELEMENTS[dtype], config, arch=arch, name=RUNG.name)


def check_config(config: TwoCtaTirxConfig, arch: str) -> None:
    """UsageError unless one MMA covers the tile, one load of TMEM its columns, and stages fit into shared memory."""
    bM, bN, bK = config.tile
    RUNG.require(bM == 256, f"tile={config.tile}: M must be 256, the lanes of two CTAs' TMEM")
    RUNG.require(bN in (128, 256), f"tile={config.tile}: N must be 128 or 256, in chunks of {CHUNK} columns")
    RUNG.require(bK == 64, f"tile={config.tile}: K must be 64, a swizzled row of 128 bytes")
    RUNG.require(config.raster > 0, f"raster={config.raster}: at least 1 row of tiles")
    RUNG.require(config.sm_count >= CTAS, f"sm_count={config.sm_count}: at least {CTAS}, a pair")
    RUNG.require(config.stages >= 2, f"stages={config.stages}: at least 2, one to fill and one to multiply")
    smem = 2 * (config.stages * (bM + bN) // CTAS * bK + bM // CTAS * CHUNK) + 1024
    limit = archs.find(arch).smem_per_cta
    RUNG.require(smem <= limit, f"stages={config.stages}: {smem} bytes of shared memory, {arch} has {limit}")
