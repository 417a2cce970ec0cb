"""Warp specialisation in TIRx: loads, MMAs and write-back each in a warp of its own, and four barriers between them.

Adds:
    Roles. In the parent one lane asks for everything, and while it waits for one thing asks for nothing else; the
    tensor core idles through each epilogue. Here each role runs a loop of its own over the same list of tiles (the
    schedule's state is registers, so that each thread has one), and waits for nothing but what it needs:
    - `ring.full`, a stage: TMA's bytes have landed, the MMA warp may multiply.
    - `ring.empty`, a stage: the MMAs have read it (a commit), the TMA warp may fill it again, for the next tile of C
      too.
    - `acc_full`: the tile's last MMA is done (a commit), the write-back warps may load tensor memory.
    - `acc_empty`: they have loaded it (an arrival a warp), the MMA warp may start the next tile. They convert and
      store while it does.
    - TIRx brings the barriers by who arrives: TMA, tcgen05 or threads. What `wait` and `arrive` do follows from that.
      A PipelineState is a role's place in a ring: stage, and the parity of the phase to wait for. Consumers start with
      parity 0, which completes with the first fill. Producers start with 1: of a fresh barrier that counts as
      complete, so that the first round finds everything empty.
    - A CTA barrier inside one role would hang: write-back has a named barrier of its four warps alone.

Warp roles:
    | warps | role                                                                           |
    |-------|--------------------------------------------------------------------------------|
    | 0-3   | write-back: tensor memory to shared memory, a row a thread; warp 0 stores C by |
    |       | TMA, and allocates and frees tensor memory                                     |
    | 4     | MMA, one elected lane                                                          |
    | 5     | TMA, one elected lane: loads of A and B, as far ahead as stages are free       |

Budget:
    SMEM: (128 + 128) rows x 64 x 2 B = 32 KB a stage, 4 stages: 128 KB; C 128 x 128 x 2 B = 32 KB, and 84 B: 1 CTA an
    SM. TMEM: 128 columns of 512, fp32. Registers: 128 accumulators a thread of the write-back warps, none elsewhere.

Run:
    tensorladder run tirx-v7-warp-specialized --shape 512,384,256
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
class WarpSpecializedTirxConfig:
    """tile: (M, N, K) of a step of a CTA. stages: K tiles in shared memory.

    sm_count, ctas_per_sm: the grid is their product, or the number of tiles where that is less. raster: rows of tiles
    that the list goes down before the next column.
    """

    tile: tuple[int, int, int] = (128, 128, 64)
    stages: int = 4
    sm_count: int = 148
    ctas_per_sm: int = 1
    raster: int = 8


RUNG = Rung(
    name="tirx-v7-warp-specialized",
    parent="tirx-v6-persistent",
    adds="TMA, MMA and write-back warps, four barriers between them, pipeline states",
    archs=("sm_100a",),
    problem="gemm",
    dtypes=("fp16", "bf16"),
    config=WarpSpecializedTirxConfig,
)

WRITEBACK_WARPS = 4  # a thread a lane of TMEM
MMA_WARP = 4
TMA_WARP = 5
WARPS = 6
WRITEBACK = 1  # a named barrier
BLOCK = 64  # columns of C in a box: 128 bytes, the width of the swizzle


def gemm(m: int, n: int, k: int, element: str, config: WarpSpecializedTirxConfig) -> PrimFunc:
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
        warp = T.warp_id([WARPS])
        thread = T.thread_id([32 * WARPS])

        smem = T.SMEMPool()
        sA = smem.alloc_tcgen05_mma_AB((stages, bM, bK), element)
        sB = smem.alloc_tcgen05_mma_AB((stages, bN, bK), element)
        sC = smem.alloc_tcgen05_mma_AB((bN // BLOCK, bM, BLOCK), element)
        first = T.meta_var(thread == 0)
        ring = Pipeline(smem, stages, full="tma", empty="tcgen05", leader=first)
        acc_full, acc_empty = TCGen05Bar(smem, 1, leader=first), MBarrier(smem, 1, leader=first)
        acc_full.init(1)
        acc_empty.init(WRITEBACK_WARPS)
        tmem = smem.alloc((1,), "uint32", align=4)
        smem.commit()

        # One warp allocates TMEM and lets other CTAs of the SM do so next; the address comes through shared memory. Its
        # first thread has initialised the barriers.
        if warp == 0:
            T.ptx["fence.mbarrier_init.release.cluster"]()
            T.ptx["tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32"](tmem.ptr_to([0]), T.uint32(tmem_columns))
            T.ptx["tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned"]()
        T.cuda.cta_sync()
        tmem_base: T.let = tmem[0]
        tC = T.decl_buffer((bM, bN), "float32", scope="tmem", allocated_addr=tmem_base, layout=tmem_layout(bN))

        schedule = ClusterPersistentScheduler2D("tiles", *tiles, num_clusters=ctas, l2_group_size=config.raster)
        schedule.init(cta)
        m_at, n_at = T.meta_var(schedule.m_idx * bM), T.meta_var(schedule.n_idx * bN)

        if warp == TMA_WARP:
            if T.cuda.elect_sync():
                load = PipelineState(stages, phase=1)
                while schedule.valid():
                    for k_tile in range(k_tiles):
                        k_at = T.meta_var(k_tile * bK)
                        ring.empty.wait(load.stage, load.phase)
                        ring.full.arrive(load.stage, stage_bytes)
                        landed = T.meta_var({"dispatch": "tma_auto", "mbar": ring.full.ptr_to([load.stage])})
                        Tx.copy_async(sA[load.stage, :, :], A[m_at : m_at + bM, k_at : k_at + bK], **landed)
                        Tx.copy_async(sB[load.stage, :, :], B[n_at : n_at + bN, k_at : k_at + bK], **landed)
                        load.advance()
                    schedule.next_tile()
                # The last commits have arrived: none is on its way to a barrier of a CTA that has exited.
                for _ in range(stages):
                    ring.empty.wait(load.stage, load.phase)
                    load.advance()

        if warp == MMA_WARP:
            # One lane issues the MMAs and the commits, which track those of its thread.
            if T.cuda.elect_sync():
                read, acc = PipelineState(stages, phase=0), PipelineState(1, phase=1)
                while schedule.valid():
                    acc_empty.wait(0, acc.phase)
                    acc.advance()
                    T.ptx["tcgen05.fence::after_thread_sync"]()
                    for k_tile in range(k_tiles):
                        ring.full.wait(read.stage, read.phase)
                        tA, tB = T.meta_var(sA[read.stage, :, :]), T.meta_var(sB[read.stage, :, :])
                        Tx.gemm_async(tC[:, :], tA, tB, accum=k_tile > 0, dispatch="tcgen05", cta_group=1)
                        ring.empty.arrive(read.stage)
                        read.advance()
                    acc_full.arrive(0)
                    schedule.next_tile()

        if warp < WRITEBACK_WARPS:
            acc = PipelineState(1, phase=0)
            rC = T.alloc_local((bN,), "float32")
            rD = T.alloc_local((bN,), element)
            rows = rC.view(bM, bN, layout=row_a_thread(bN))
            while schedule.valid():
                acc_full.wait(0, acc.phase)
                acc.advance()

                # Epilogue: tmem -> registers -> smem -> gmem (TMA). One lane arrives for the warp: all lanes' loads
                # have to come before it.
                T.ptx["tcgen05.fence::after_thread_sync"]()
                Tx.wg.copy_async(rows[:, :], tC[:, :])
                T.ptx["tcgen05.wait::ld.sync.aligned"]()
                T.ptx["tcgen05.fence::before_thread_sync"]()
                T.cuda.warp_sync()
                if T.cuda.elect_sync():
                    acc_empty.arrive(0)
                Tx.cast(rD[:], rC[:])

                # TMA has read the tile before: its place may be overwritten.
                if warp == 0:
                    T.ptx["cp.async.bulk.wait_group.read"](0)
                T.cuda.warpgroup_sync(WRITEBACK)
                for block in T.unroll(bN // BLOCK):
                    Tx.copy(sC[block, thread, :], rD[block * BLOCK : (block + 1) * BLOCK])

                # Each writer's fence, then the barrier, then the store: the other way round TMA could read stale bytes.
                T.ptx["fence.proxy.async.shared::cta"]()
                T.cuda.warpgroup_sync(WRITEBACK)
                if warp == 0:
                    if T.cuda.elect_sync():
                        for block in T.unroll(bN // BLOCK):
                            c_at = T.meta_var(n_at + block * BLOCK)
                            tile = T.meta_var(C[m_at : m_at + bM, c_at : c_at + BLOCK])
                            Tx.copy_async(tile, sC[block, :, :], dispatch="tma_auto")
                        T.ptx["cp.async.bulk.commit_group"]()
                schedule.next_tile()

        # Give TMEM back once every warp has read its lanes. Shared memory belongs to the CTA only until it exits: wait
        # until TMA has read it.
        T.ptx["tcgen05.fence::before_thread_sync"]()
        T.cuda.cta_sync()
        if warp == 0:
            T.ptx["tcgen05.fence::after_thread_sync"]()
            T.ptx["tcgen05.dealloc.cta_group::1.sync.aligned.b32"](tmem_base, T.uint32(tmem_columns))
            T.ptx["cp.async.bulk.wait_group.read"](0)

    return kernel


def compile(arch: str, shape: tuple[int, ...], dtype: str, config: WarpSpecializedTirxConfig | None = None) -> Program:
    """The rung for one architecture, shape (M, N, K) and element type. M from 2; N and K multiples of 8 (16 bytes)."""
    (m, n, k), dtype = RUNG.check(arch, shape, dtype)
    config = config or WarpSpecializedTirxConfig()
    check_config(config, arch)
    RUNG.require(m > 1, "M=1: the compiler takes a single row for a column and finds no TMA copy, pad M to 2")
    RUNG.require(n % 8 == 0, f"N={n}: TMA wants row pitches of 16 bytes, pad N to a multiple of 8")
    RUNG.require(k % 8 == 0, f"K={k}: TMA wants row pitches of 16 bytes, pad K to a multiple of 8")
    return compile_program(gemm, m, n, k, ELEMENTS[dtype], config, arch=arch, name=RUNG.name)


def check_config(config: WarpSpecializedTirxConfig, arch: str) -> None:
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
