"""Persistent CTAs in TIRx: as many as there are SMs, each walks a list of tiles.

Adds:
    A tile scheduler. The grid is the machine, not the problem: a CTA sets up its barriers and tensor memory once, and
    then takes every sm_count-th tile of a list.
    - The list decides what L2 holds: CTAs of a wave take neighbouring tiles. It goes down 8 rows of tiles, then to the
      next column: 16 tiles that way read 8 rows of A and 2 of B, where 16 of one row read 1 and 16.
    - A scheduler is an object of the compiler's run whose state is the kernel's: `m_idx` and `n_idx` are registers,
      `init`, `valid` and `next_tile` code that is inlined. TIRx brings this one (ClusterPersistentScheduler2D).
    - Barriers go on counting from tile to tile, and so does the lane that waits for them: the number of K tiles that
      it has seen names stage and phase.
    - What a tile leaves behind is in use by the next: C's place in shared memory once TMA has read it, tensor memory
      once all warps have loaded their lanes. The CTA's two barriers a tile order both, as warp 0 comes to them last.

Warp roles:
    | warps | role                                                                          |
    |-------|-------------------------------------------------------------------------------|
    | 0     | allocates and frees TMEM; one elected lane asks for loads, MMAs and stores    |
    | 0-3   | tensor memory to shared memory, a row a thread                                |

Budget:
    SMEM: (128 + 128) rows x 64 x 2 B = 32 KB a stage, 2 stages: 64 KB; C 128 x 128 x 2 B = 32 KB, and 28 B. TMEM: 128
    columns of 512, fp32. Registers: 128 accumulators a thread in the epilogue, none before it: 2 CTAs an SM, by SMEM.

Run:
    tensorladder run tirx-v6-persistent --shape 512,384,256
"""

from __future__ import annotations

from dataclasses import dataclass

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
class PersistentTirxConfig:
    """tile: (M, N, K) of a step of a CTA. stages: K tiles in shared memory.

    sm_count, ctas_per_sm: the grid is their product, or the number of tiles where that is less. raster: rows of tiles
    that the list goes down before the next column.
    """

    tile: tuple[int, int, int] = (128, 128, 64)
    stages: int = 2
    sm_count: int = 148
    ctas_per_sm: int = 1
    raster: int = 8


RUNG = Rung(
    name="tirx-v6-persistent",
    parent="tirx-v5-pipeline",
    adds="persistent CTAs, a tile scheduler that groups tiles for L2",
    archs=("sm_100a",),
    problem="gemm",
    dtypes=("fp16", "bf16"),
    config=PersistentTirxConfig,
)

THREADS = 128  # a thread a lane of TMEM
BLOCK = 64  # columns of C in a box: 128 bytes, the width of the swizzle


def gemm(m: int, n: int, k: int, element: str, config: PersistentTirxConfig) -> PrimFunc:
    """The kernel, its extents and element type built in."""
    bM, bN, bK = config.tile
    stages, k_tiles = config.stages, ceil_div(k, bK)
    tiles = ceil_div(m, bM), ceil_div(n, bN)
    ctas = min(config.sm_count * config.ctas_per_sm, tiles[0] * tiles[1])
    tmem_columns = max(32, bN)
    stage_bytes = 2 * (bM + bN) * bK

    @T.prim_func
    def kernel(A: T.Buffer((m, k), element), B: T.Buffer((n, k), element), C: T.Buffer((m, n), element)):
        T.device_entry()
        cta = T.cta_id([ctas])
        warp = T.warp_id([THREADS // 32])
        thread = T.thread_id([THREADS])

        smem = T.SMEMPool()
        sA = smem.alloc_tcgen05_mma_AB((stages, bM, bK), element)
        sB = smem.alloc_tcgen05_mma_AB((stages, bN, bK), element)
        sC = smem.alloc_tcgen05_mma_AB((bN // BLOCK, bM, BLOCK), element)
        full = smem.alloc((stages,), "uint64", align=8)
        mma_done = smem.alloc((1,), "uint64", align=8)
        tmem = smem.alloc((1,), "uint32", align=4)
        smem.commit()

        # One warp allocates TMEM and lets other CTAs of the SM do so next; the address comes through shared memory.
        if warp == 0:
            T.ptx["tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32"](tmem.ptr_to([0]), T.uint32(tmem_columns))
            T.ptx["tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned"]()
            if T.cuda.elect_sync():
                for stage in T.unroll(stages):
                    T.ptx["mbarrier.init.shared.b64"](full.ptr_to([stage]), T.uint32(1))
                T.ptx["mbarrier.init.shared.b64"](mma_done.ptr_to([0]), T.uint32(1))
                T.ptx["fence.mbarrier_init.release.cluster"]()
        T.cuda.cta_sync()
        tmem_base: T.let = tmem[0]
        tC = T.decl_buffer((bM, bN), "float32", scope="tmem", allocated_addr=tmem_base, layout=tmem_layout(bN))
        schedule = ClusterPersistentScheduler2D("tiles", *tiles, num_clusters=ctas, l2_group_size=config.raster)
        schedule.init(cta)
        m_at, n_at = T.meta_var(schedule.m_idx * bM), T.meta_var(schedule.n_idx * bN)
        k_count: T.int32 = 0  # K tiles before this tile of C

        @T.inline
        def load(k_tile):
            stage = T.meta_var((k_count + k_tile) % stages)
            k_at = T.meta_var(k_tile * bK)
            landed = T.meta_var({"dispatch": "tma_auto", "mbar": full.ptr_to([stage])})
            T.ptx["mbarrier.arrive.expect_tx.shared.b64"](full.ptr_to([stage]), T.uint32(stage_bytes))
            Tx.copy_async(sA[stage, :, :], A[m_at : m_at + bM, k_at : k_at + bK], **landed)
            Tx.copy_async(sB[stage, :, :], B[n_at : n_at + bN, k_at : k_at + bK], **landed)

        rC = T.alloc_local((bN,), "float32")
        rD = T.alloc_local((bN,), element)
        rows = rC.view(bM, bN, layout=row_a_thread(bN))
        while schedule.valid():
            # One lane issues loads, MMAs and the commit, which tracks those of its thread.
            if warp == 0:
                if T.cuda.elect_sync():
                    # Prologue: all stages are on their way.
                    for k_tile in T.unroll(min(stages, k_tiles)):
                        load(k_tile)

                    for k_tile in range(k_tiles):
                        count = T.meta_var(k_count + k_tile)
                        stage = T.meta_var(count % stages)
                        T.cuda.mbarrier_wait(full.ptr_to([stage]), count // stages % 2)
                        tA, tB = T.meta_var(sA[stage, :, :]), T.meta_var(sB[stage, :, :])
                        Tx.gemm_async(tC[:, :], tA, tB, accum=k_tile > 0, dispatch="tcgen05", cta_group=1)
                        T.ptx["tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64"](
                            mma_done.ptr_to([0])
                        )
                        # The MMAs have read the stage: it may be filled with what comes a ring later.
                        T.cuda.mbarrier_wait(mma_done.ptr_to([0]), count % 2)
                        if k_tile + stages < k_tiles:
                            load(k_tile + stages)
                    # What this lane has seen done, the barrier tells the others.
                    T.ptx["tcgen05.fence::after_thread_sync"]()
                    T.ptx["tcgen05.fence::before_thread_sync"]()
            T.cuda.cta_sync()
            k_count += k_tiles

            # Epilogue: tmem -> registers -> smem -> gmem (TMA). A thread loads its lane, a row of the tile.
            T.ptx["tcgen05.fence::after_thread_sync"]()
            Tx.wg.copy_async(rows[:, :], tC[:, :])
            T.ptx["tcgen05.wait::ld.sync.aligned"]()
            Tx.cast(rD[:], rC[:])
            for block in T.unroll(bN // BLOCK):
                Tx.copy(sC[block, thread, :], rD[block * BLOCK : (block + 1) * BLOCK])

            # Each writer's fence, then the barrier, then the store: the other way round TMA could read stale bytes.
            # Behind the same barrier every warp has read its lanes, and TMEM may be overwritten.
            T.ptx["fence.proxy.async.shared::cta"]()
            T.ptx["tcgen05.fence::before_thread_sync"]()
            T.cuda.cta_sync()
            if warp == 0:
                T.ptx["tcgen05.fence::after_thread_sync"]()
                if T.cuda.elect_sync():
                    for block in T.unroll(bN // BLOCK):
                        c_at = T.meta_var(n_at + block * BLOCK)
                        Tx.copy_async(C[m_at : m_at + bM, c_at : c_at + BLOCK], sC[block, :, :], dispatch="tma_auto")
                    T.ptx["cp.async.bulk.commit_group"]()
                    # TMA has read C: its place may be overwritten, and the CTA may exit.
                    T.ptx["cp.async.bulk.wait_group.read"](0)
            schedule.next_tile()

        if warp == 0:
            T.ptx["tcgen05.dealloc.cta_group::1.sync.aligned.b32"](tmem_base, T.uint32(tmem_columns))

    return kernel


def compile(arch: str, shape: tuple[int, ...], dtype: str, config: PersistentTirxConfig | None = None) -> Program:
    """The rung for one architecture, shape (M, N, K) and element type. M from 2; N and K multiples of 8 (16 bytes)."""
    (m, n, k), dtype = RUNG.check(arch, shape, dtype)
    config = config or PersistentTirxConfig()
    check_config(config, arch)
    RUNG.require(m > 1, "M=1: the compiler takes a single row for a column and finds no TMA copy, pad M to 2")
    RUNG.require(n % 8 == 0, f"N={n}: TMA wants row pitches of 16 bytes, pad N to a multiple of 8")
    RUNG.require(k % 8 == 0, f"K={k}: TMA wants row pitches of 16 bytes, pad K to a multiple of 8")
    return compile_program(gemm, m, n, k, ELEMENTS[dtype], config, arch=arch, name=RUNG.name)


def check_config(config: PersistentTirxConfig, arch: str) -> None:
    """UsageError unless one MMA covers the tile, one load of TMEM its columns, and stages fit into shared memory."""
    bM, bN, bK = config.tile
    RUNG.require(bM == 128, f"tile={config.tile}: M must be 128, the lanes of TMEM")
    RUNG.require(bN in (64, 128), f"tile={config.tile}: N must be 64 or 128, the columns of one tcgen05.ld")
    RUNG.require(bK == 64, f"tile={config.tile}: K must be 64, a swizzled row of 128 bytes")
    RUNG.require(config.raster > 0, f"raster={config.raster}: at least 1 row of tiles")
    RUNG.require(config.sm_count > 0, f"sm_count={config.sm_count}: at least 1")
    RUNG.require(config.ctas_per_sm > 0, f"ctas_per_sm={config.ctas_per_sm}: at least 1")
    RUNG.require(config.stages >= 2, f"stages={config.stages}: at least 2, one to fill and one to multiply")
    smem, limit = 2 * (config.stages * (bM + bN) * bK + bM * bN) + 1024, archs.find(arch).smem_per_cta
    RUNG.require(smem <= limit, f"stages={config.stages}: {smem} bytes of shared memory, {arch} has {limit}")
