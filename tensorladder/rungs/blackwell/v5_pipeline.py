"""A software pipeline: while one stage is multiplied, the next one is on its way.

Adds:
    Loads that run ahead. Shared memory is a ring of stages. A prologue asks for as many K tiles as there are stages;
    the loop then waits for one, multiplies it, and asks for the tile that comes a ring later in its place. A load has
    all the time in between, where the parent stood still for each.
    - A barrier a stage. One barrier could not say which of two loads has landed, as its phases only count. K tile k is
      in stage k % stages, and completes phase k // stages of that stage's barrier.
    - One warp still does it all, one thing after the other: it waits for the MMAs before it asks for the next load, and
      the tensor core waits meanwhile. (v7 takes that apart.)

Warp roles:
    | warps | role                                                                        |
    |-------|-----------------------------------------------------------------------------|
    | 0     | allocates and frees TMEM; asks for loads, MMAs and stores, and waits for all |
    | 0-3   | tensor memory to shared memory, a row a thread                              |

Budget:
    SMEM: (128 + 128) rows x 64 x 2 B = 32 KB a stage, 2 stages: 64 KB; C 128 x 128 x 2 B = 32 KB, and 28 B. TMEM: 128
    columns of 512, fp32. Registers: 128 accumulators a thread in the epilogue, none before it: 2 CTAs an SM, by SMEM.

Run:
    tensorladder run v5-pipeline --shape 256,256,256
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, tcgen05
from cutlass.memory import SmemAllocator

from tensorladder.core import arch as archs
from tensorladder.core.program import Program
from tensorladder.frontends.cutedsl import compile_program
from tensorladder.rungs.parts.tcgen05 import fence_after_thread_sync, fence_before_thread_sync
from tensorladder.rungs.parts.tensors import row_major
from tensorladder.rungs.rung import Rung


@dataclass(frozen=True)
class PipelineGemmConfig:
    """tile: (M, N, K) of a step of a CTA. stages: K tiles in shared memory."""

    tile: tuple[int, int, int] = (128, 128, 64)
    stages: int = 2


RUNG = Rung(
    name="v5-pipeline",
    parent="v4-tma",
    adds="a software pipeline of two stages, a barrier each",
    archs=("sm_100a",),
    problem="gemm",
    dtypes=("fp16", "bf16"),
    config=PipelineGemmConfig,
)

THREADS = 128  # a thread a lane of TMEM
MMA_K = 16  # of an instruction: 32 bytes of each row


class PipelineGemm:
    def __init__(self, config: PipelineGemmConfig):
        self.tile = config.tile
        self.stages = config.stages
        self.tmem_columns = max(32, config.tile[1])

    @cute.jit
    def __call__(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor):
        bM, bN, bK = self.tile
        sA_layout = self.smem_layout(bM, bK, self.stages)
        sB_layout = self.smem_layout(bN, bK, self.stages)
        sC_layout = self.smem_layout(bM, bN, 1)

        # A descriptor and a tensor of coordinates for each matrix. TMA takes coordinates, not addresses.
        element_type = mC.element_type
        load, store = cpasync.CopyBulkTensorTileG2SOp(), cpasync.CopyBulkTensorTileS2GOp()
        tma_A, mA = cpasync.make_tiled_tma_atom(load, mA, cute.select(sA_layout, mode=[0, 1]), (bM, bK))
        tma_B, mB = cpasync.make_tiled_tma_atom(load, mB, cute.select(sB_layout, mode=[0, 1]), (bN, bK))
        tma_C, mC = cpasync.make_tiled_tma_atom(store, mC, cute.select(sC_layout, mode=[0, 1]), (bM, bN))

        # One instruction covers the tile's rows and columns. Both operands lie along K and come from shared memory.
        k_major = OperandMajorMode.K
        one, smem = tcgen05.CtaGroup.ONE, tcgen05.OperandSource.SMEM
        mma_op = tcgen05.MmaF16BF16Op(element_type, cutlass.Float32, (bM, bN, MMA_K), one, smem, k_major, k_major)
        tiled_mma = cute.make_tiled_mma(mma_op)

        @cute.struct
        class SharedStorage:
            full: cute.struct.MemRange[cutlass.Int64, self.stages]
            mma_done: cutlass.Int64
            tmem: cutlass.Int32
            sA: cute.struct.Align[cute.struct.MemRange[element_type, cute.cosize(sA_layout)], 1024]
            sB: cute.struct.Align[cute.struct.MemRange[element_type, cute.cosize(sB_layout)], 1024]
            sC: cute.struct.Align[cute.struct.MemRange[element_type, cute.cosize(sC_layout)], 1024]

        self.shared_storage = SharedStorage
        self.kernel(tma_A, mA, tma_B, mB, tma_C, mC, sA_layout, sB_layout, sC_layout, tiled_mma).launch(
            grid=cute.ceil_div(mC.shape, (bM, bN)), block=(THREADS, 1, 1)
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
    ):
        tidx, _, _ = cute.arch.thread_idx()
        bidx, bidy, _ = cute.arch.block_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        coord = (bidx, bidy, None)

        smem = SmemAllocator()
        storage = smem.allocate(self.shared_storage)
        sA = storage.sA.get_tensor(sA_layout.outer, swizzle=sA_layout.inner)
        sB = storage.sB.get_tensor(sB_layout.outer, swizzle=sB_layout.inner)
        sC = storage.sC.get_tensor(sC_layout.outer, swizzle=sC_layout.inner)[None, None, 0]
        full, mma_done = storage.full.data_ptr(), storage.mma_done.ptr
        stage_bytes = cute.size_in_bytes(sA.element_type, cute.select(sA_layout, mode=[0, 1]))
        stage_bytes += cute.size_in_bytes(sB.element_type, cute.select(sB_layout, mode=[0, 1]))

        # One warp allocates TMEM and lets other CTAs of the SM do so next; the address comes through shared memory.
        if warp == 0:
            cpasync.prefetch_descriptor(tma_A)
            cpasync.prefetch_descriptor(tma_B)
            cute.arch.alloc_tmem(self.tmem_columns, storage.tmem.ptr)
            cute.arch.relinquish_tmem_alloc_permit()
            with cute.arch.elect_one():
                for stage in cutlass.range_constexpr(self.stages):
                    cute.arch.mbarrier_init(full + stage, 1)
                cute.arch.mbarrier_init(mma_done, 1)
                cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()
        tmem = cute.arch.retrieve_tmem_ptr(cutlass.Float32, 16, storage.tmem.ptr)

        # (BM, BK, k tiles), (BN, BK, k tiles), (BM, BN), as coordinates.
        gA = cute.local_tile(mA, tiler=self.tile, coord=coord, proj=(1, None, 1))
        gB = cute.local_tile(mB, tiler=self.tile, coord=coord, proj=(None, 1, 1))
        gC = cute.local_tile(mC, tiler=self.tile, coord=coord, proj=(1, 1, None))

        # gmem -> smem and back: (TMA, stage), (TMA, k tile)
        tAsA, tAgA = self.tma_partition(tma_A, sA, gA)
        tBsB, tBgB = self.tma_partition(tma_B, sB, gB)
        tCsC, tCgC = self.tma_partition(tma_C, sC, gC)

        # smem -> MMA -> tmem: fragments of A and B are descriptors, (MMA, M blocks, K blocks, stage); C's an address.
        thr_mma = tiled_mma.get_slice(0)
        tCrA = tiled_mma.make_fragment_A(thr_mma.partition_A(sA))
        tCrB = tiled_mma.make_fragment_B(thr_mma.partition_B(sB))
        tCtC = tiled_mma.make_fragment_C(thr_mma.partition_shape_C(self.tile[:2]))
        tCtC = cute.make_tensor(tmem, tCtC.layout)

        # tmem -> registers -> smem: a thread loads its lane, a row of the tile.
        atom_t2r = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition(self.tile[1])), cutlass.Float32)
        tiled_t2r = tcgen05.make_tmem_copy(atom_t2r, tCtC[(None, None), 0, 0])
        thr_t2r = tiled_t2r.get_slice(tidx)
        tDtC, tDsC = thr_t2r.partition_S(tCtC[(None, None), 0, 0]), thr_t2r.partition_D(sC)
        tDrC = cute.make_rmem_tensor(tDsC.shape, cutlass.Float32)

        # One lane issues: the DSL elects it for each load, store and MMA, and we for the commit, which tracks the MMAs
        # of its thread.
        if warp == 0:
            num_k_tiles = cute.size(gA, mode=[2])
            # Prologue: all stages are on their way.
            for stage in cutlass.range_constexpr(min(self.stages, num_k_tiles)):
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive_and_expect_tx(full + stage, stage_bytes)
                cute.copy(tma_A, tAgA[None, stage], tAsA[None, stage], tma_bar_ptr=full + stage)
                cute.copy(tma_B, tBgB[None, stage], tBsB[None, stage], tma_bar_ptr=full + stage)

            tiled_mma.set(tcgen05.Field.ACCUMULATE, False)
            for k_tile in range(num_k_tiles):
                stage = k_tile % self.stages
                cute.arch.mbarrier_wait(full + stage, k_tile // self.stages % 2)

                for k_block in cutlass.range_constexpr(cute.size(tCrA, mode=[2])):
                    cute.gemm(tiled_mma, tCtC, tCrA[None, None, k_block, stage], tCrB[None, None, k_block, stage], tCtC)
                    tiled_mma.set(tcgen05.Field.ACCUMULATE, True)
                with cute.arch.elect_one():
                    tcgen05.commit(mma_done)
                # The MMAs have read the stage: it may be filled with what comes a ring later.
                cute.arch.mbarrier_wait(mma_done, k_tile % 2)

                k_next = k_tile + self.stages
                if k_next < num_k_tiles:
                    with cute.arch.elect_one():
                        cute.arch.mbarrier_arrive_and_expect_tx(full + stage, stage_bytes)
                    cute.copy(tma_A, tAgA[None, k_next], tAsA[None, stage], tma_bar_ptr=full + stage)
                    cute.copy(tma_B, tBgB[None, k_next], tBsB[None, stage], tma_bar_ptr=full + stage)
            # What warp 0 has seen done, the barrier tells the others.
            fence_after_thread_sync()
            fence_before_thread_sync()
        cute.arch.sync_threads()

        # Epilogue: tmem -> registers -> smem -> gmem (TMA)
        fence_after_thread_sync()
        cute.copy(tiled_t2r, tDtC, tDrC)
        cute.arch.fence_view_async_tmem_load()
        tDrD = cute.make_fragment_like(tDrC, sC.element_type)
        tDrD.store(tDrC.load().to(sC.element_type))
        cute.autovec_copy(tDrD, tDsC)

        # Each writer's fence, then the barrier, then the store: the other way round TMA could read stale bytes. Behind
        # the same barrier every warp has read its lanes, and TMEM may be given back.
        cute.arch.fence_proxy("async.shared", space="cta")
        fence_before_thread_sync()
        cute.arch.sync_threads()
        if warp == 0:
            cute.copy(tma_C, tCsC, tCgC)
            cute.arch.cp_async_bulk_commit_group()
            fence_after_thread_sync()
            cute.arch.dealloc_tmem(tmem, self.tmem_columns)
            # Shared memory belongs to the CTA only until it exits: wait until TMA has read it.
            cute.arch.cp_async_bulk_wait_group(0, read=True)

    @cute.jit
    def tma_partition(self, atom: cute.CopyAtom, smem: cute.Tensor, gmem: cute.Tensor):
        """Both sides of a TMA copy with their first two modes (the box) as one."""
        return cpasync.tma_partition(
            atom, 0, cute.make_layout(1), cute.group_modes(smem, 0, 2), cute.group_modes(gmem, 0, 2)
        )

    def smem_layout(self, rows: int, cols: int, stages: int):
        """(rows, cols, stages), row-major in columns of 64 elements: 128 bytes, the width of the swizzle."""
        atom = cute.make_composed_layout(cute.make_swizzle(3, 4, 3), 0, cute.make_layout((8, 64), stride=(64, 1)))
        return cute.tile_to_shape(atom, (rows, cols, stages), order=(0, 1, 2))


def compile(arch: str, shape: tuple[int, ...], dtype: str, config: PipelineGemmConfig | None = None) -> Program:
    """The rung for one architecture, shape (M, N, K) and element type. M from 2; N and K multiples of 8 (16 bytes)."""
    (m, n, k), dtype = RUNG.check(arch, shape, dtype)
    config = config or PipelineGemmConfig()
    check_config(config, arch)
    RUNG.require(m > 1, "M=1: the DSL makes a one-dimensional tensor map of a single row, pad M to 2")
    RUNG.require(n % 8 == 0, f"N={n}: TMA wants row pitches of 16 bytes, pad N to a multiple of 8")
    RUNG.require(k % 8 == 0, f"K={k}: TMA wants row pitches of 16 bytes, pad K to a multiple of 8")
    arrays = [row_major(dtype, extents) for extents in ((m, k), (n, k), (m, n))]
    return compile_program(PipelineGemm(config), *arrays, arch=arch, name=RUNG.name)


def check_config(config: PipelineGemmConfig, arch: str) -> None:
    """UsageError unless one MMA covers the tile, one load of TMEM its columns, and stages fit into shared memory."""
    bM, bN, bK = config.tile
    RUNG.require(bM == 128, f"tile={config.tile}: M must be 128, the lanes of TMEM")
    RUNG.require(bN in (64, 128), f"tile={config.tile}: N must be 64 or 128, the columns of one tcgen05.ld")
    RUNG.require(bK in (64, 128), f"tile={config.tile}: K must be 64 or 128, in rows of 128 bytes")
    RUNG.require(config.stages >= 2, f"stages={config.stages}: at least 2, one to fill and one to multiply")
    smem, limit = 2 * (config.stages * (bM + bN) * bK + bM * bN) + 1024, archs.find(arch).smem_per_cta
    RUNG.require(smem <= limit, f"stages={config.stages}: {smem} bytes of shared memory, {arch} has {limit}")
