"""A software pipeline in TIRx: while one stage is multiplied, the next one is on its way.

Adds:
    Loads that run ahead. Shared memory is a ring of stages, one more dimension of the buffers: `sA[stage, :, :]` is a
    tile wherever the stage is a number of the kernel's run. A prologue asks for as many K tiles as there are stages;
    the loop then waits for one, multiplies it, and asks for the tile that comes a ring later in its place. A load has
    all the time in between, where the parent stood still for each.
    - A barrier a stage. One barrier could not say which of two loads has landed, as its phases only count. K tile k is
      in stage k % stages, and completes phase k // stages of that stage's barrier.
    - What a thread asks for twice is a function that the compiler inlines (`@T.inline`): the load of a K tile.
    - One lane still does it all, one thing after the other: it waits for the MMAs before it asks for the next load,
      and the tensor core waits meanwhile. (tirx-v7 takes that apart.)

Warp roles:
    | warps | role                                                                          |
    |-------|-------------------------------------------------------------------------------|
    | 0     | allocates and frees TMEM; one elected lane asks for loads, MMAs and stores    |
    | 0-3   | tensor memory to shared memory, a row a thread                                |

Budget:
    SMEM: (128 + 128) rows x 64 x 2 B = 32 KB a stage, 2 stages: 64 KB; C 128 x 128 x 2 B = 32 KB, and 28 B. TMEM: 128
    columns of 512, fp32. Registers: 128 accumulators a thread in the epilogue, none before it: 2 CTAs an SM, by SMEM.

Run:
    tensorladder run tirx-v5-pipeline --shape 256,256,256
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm.script import tirx as T
from tvm.script.tirx import tile as Tx
from tvm.tirx import PrimFunc

from tensorladder.core import arch as archs
from tensorladder.core.program import Program
from tensorladder.frontends.tirx import compile_program
from tensorladder.rungs.rung import Rung
from tensorladder.rungs.tirx.tiles import ELEMENTS, ceil_div, row_a_thread, tmem_layout


@dataclass(frozen=True)
class PipelineTirxConfig:
    """tile: (M, N, K) of a step of a CTA. stages: K tiles in shared memory."""

    tile: tuple[int, int, int] = (128, 128, 64)
    stages: int = 2


RUNG = Rung(
    name="tirx-v5-pipeline",
    parent="tirx-v4-tma",
    adds="a software pipeline of two stages, a barrier each",
    archs=("sm_100a",),
    problem="gemm",
    dtypes=("fp16", "bf16"),
    config=PipelineTirxConfig,
)

THREADS = 128  # a thread a lane of TMEM
BLOCK = 64  # columns of C in a box: 128 bytes, the width of the swizzle


def gemm(m: int, n: int, k: int, element: str, config: PipelineTirxConfig) -> PrimFunc:
    """The kernel, its extents and element type built in."""
    bM, bN, bK = config.tile
    stages, k_tiles = config.stages, ceil_div(k, bK)
    tmem_columns = max(32, bN)
    stage_bytes = 2 * (bM + bN) * bK

    @T.prim_func
    def kernel(A: T.Buffer((m, k), element), B: T.Buffer((n, k), element), C: T.Buffer((m, n), element)):
        T.device_entry()
        m_tile, n_tile = T.cta_id([ceil_div(m, bM), ceil_div(n, bN)])
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
        m_at, n_at = T.meta_var(m_tile * bM), T.meta_var(n_tile * bN)

        @T.inline
        def load(k_tile):
            stage = T.meta_var(k_tile % stages)
            k_at = T.meta_var(k_tile * bK)
            landed = T.meta_var({"dispatch": "tma_auto", "mbar": full.ptr_to([stage])})
            T.ptx["mbarrier.arrive.expect_tx.shared.b64"](full.ptr_to([stage]), T.uint32(stage_bytes))
            Tx.copy_async(sA[stage, :, :], A[m_at : m_at + bM, k_at : k_at + bK], **landed)
            Tx.copy_async(sB[stage, :, :], B[n_at : n_at + bN, k_at : k_at + bK], **landed)

        # One lane issues loads, MMAs and the commit, which tracks those of its thread.
        if warp == 0:
            if T.cuda.elect_sync():
                # Prologue: all stages are on their way.
                for k_tile in T.unroll(min(stages, k_tiles)):
                    load(k_tile)

                for k_tile in range(k_tiles):
                    stage = T.meta_var(k_tile % stages)
                    T.cuda.mbarrier_wait(full.ptr_to([stage]), k_tile // stages % 2)
                    tA, tB = T.meta_var(sA[stage, :, :]), T.meta_var(sB[stage, :, :])
                    Tx.gemm_async(tC[:, :], tA, tB, accum=k_tile > 0, dispatch="tcgen05", cta_group=1)
                    T.ptx["tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64"](mma_done.ptr_to([0]))
                    # The MMAs have read the stage: it may be filled with what comes a ring later.
                    T.cuda.mbarrier_wait(mma_done.ptr_to([0]), k_tile % 2)
                    if k_tile + stages < k_tiles:
                        load(k_tile + stages)
                # What this lane has seen done, the barrier tells the others.
                T.ptx["tcgen05.fence::after_thread_sync"]()
                T.ptx["tcgen05.fence::before_thread_sync"]()
        T.cuda.cta_sync()

        # Epilogue: tmem -> registers -> smem -> gmem (TMA). A thread loads its lane, a row of the tile.
        T.ptx["tcgen05.fence::after_thread_sync"]()
        rC = T.alloc_local((bN,), "float32")
        rD = T.alloc_local((bN,), element)
        rows = rC.view(bM, bN, layout=row_a_thread(bN))
        Tx.wg.copy_async(rows[:, :], tC[:, :])
        T.ptx["tcgen05.wait::ld.sync.aligned"]()
        Tx.cast(rD[:], rC[:])
        for block in T.unroll(bN // BLOCK):
            Tx.copy(sC[block, thread, :], rD[block * BLOCK : (block + 1) * BLOCK])

        # Each writer's fence, then the barrier, then the store: the other way round TMA could read stale bytes. Behind
        # the same barrier every warp has read its lanes, and TMEM may be given back.
        T.ptx["fence.proxy.async.shared::cta"]()
        T.ptx["tcgen05.fence::before_thread_sync"]()
        T.cuda.cta_sync()
        if warp == 0:
            if T.cuda.elect_sync():
                for block in T.unroll(bN // BLOCK):
                    c_at = T.meta_var(n_at + block * BLOCK)
                    Tx.copy_async(C[m_at : m_at + bM, c_at : c_at + BLOCK], sC[block, :, :], dispatch="tma_auto")
                T.ptx["cp.async.bulk.commit_group"]()
                # Shared memory belongs to the CTA only until it exits: wait until TMA has read it.
                T.ptx["cp.async.bulk.wait_group.read"](0)
            T.ptx["tcgen05.fence::after_thread_sync"]()
            T.ptx["tcgen05.dealloc.cta_group::1.sync.aligned.b32"](tmem_base, T.uint32(tmem_columns))

    return kernel


def compile(arch: str, shape: tuple[int, ...], dtype: str, config: PipelineTirxConfig | None = None) -> Program:
    """The rung for one architecture, shape (M, N, K) and element type. M from 2; N and K multiples of 8 (16 bytes)."""
    (m, n, k), dtype = RUNG.check(arch, shape, dtype)
    config = config or PipelineTirxConfig()
    check_config(config, arch)
    RUNG.require(m > 1, "M=1: the compiler takes a single row for a column and finds no TMA copy, pad M to 2")
    RUNG.require(n % 8 == 0, f"N={n}: TMA wants row pitches of 16 bytes, pad N to a multiple of 8")
    RUNG.require(k % 8 == 0, f"K={k}: TMA wants row pitches of 16 bytes, pad K to a multiple of 8")
    return compile_program(gemm, m, n, k, ELEMENTS[dtype], config, arch=arch, name=RUNG.name)


def check_config(config: PipelineTirxConfig, arch: str) -> None:
    """UsageError unless one MMA covers the tile, one load of TMEM its columns, and stages fit into shared memory."""
    bM, bN, bK = config.tile
    RUNG.require(bM == 128, f"tile={config.tile}: M must be 128, the lanes of TMEM")
    RUNG.require(bN in (64, 128), f"tile={config.tile}: N must be 64 or 128, the columns of one tcgen05.ld")
    RUNG.require(bK == 64, f"tile={config.tile}: K must be 64, a swizzled row of 128 bytes")
    RUNG.require(config.stages >= 2, f"stages={config.stages}: at least 2, one to fill and one to multiply")
    smem, limit = 2 * (config.stages * (bM + bN) * bK + bM * bN) + 1024, archs.find(arch).smem_per_cta
    RUNG.require(smem <= limit, f"stages={config.stages}: {smem} bytes of shared memory, {arch} has {limit}")
