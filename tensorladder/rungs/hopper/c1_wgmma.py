"""WGMMA: four warps multiply as one, asynchronously, and read both operands straight from shared memory.

Adds:
    Hopper's warpgroup MMA in place of ldmatrix and mma.sync. One instruction multiplies 64 x N x 16, N up to 256; A and
    B are named by descriptors (address and swizzle of a tile in shared memory), so that fragments take no registers
    and no instructions load them, and it runs beside the warps that issued it. That is why it is faster: on an H200
    1.69 times as fast as the parent at 4096 cubed, 1.71 at 8192, alone 1.48 and 1.51 (`benchmarks.steps`); a product
    takes 162 mJ in place of 239. With mma.sync the ladder ends at 0.64 of cuBLAS's speed (b8), WGMMA begins with 0.98
    of it (4096 cubed, fp16, `tensorladder bench --suite ladder`). What the asynchrony asks for:
    - wgmma.fence before the first one, which orders the registers of the accumulator; commit_group after the last one
      of a K tile; wait_group before the accumulator is read or a stage is overwritten. One group stays in flight: while
      a K tile is multiplied, the wait is for the tile before it.
    - That wait covers this warpgroup's reads. The stage belongs to all warpgroups, so a CTA barrier comes between
      their waits and the TMA load that overwrites it. Without the barrier (a published version of this kernel has
      none) the faster warpgroup's thread loads over what the slower one is still multiplying.

Warp roles:
    | warps          | role                                                                                 |
    |----------------|--------------------------------------------------------------------------------------|
    | 0-3, 4-7       | a warpgroup each: multiply 64 x 128 of C (2 x 1 warpgroups); stage it through shared  |
    |                | memory                                                                               |
    | 0              | besides: one elected lane issues the TMA loads and stores                            |

Budget:
    SMEM: (128 + 128) rows x 64 x 2 B = 32 KB a stage, 3 stages: 96 KB and 24 B of mbarriers, 2 CTAs an SM on sm_90; C
    (32 KB) reuses the stages. Registers: 64 accumulators a thread, no fragments, 128 at most. No TMEM.

Run:
    tensorladder run c1-wgmma --shape 256,256,256
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup
from cutlass.memory import SmemAllocator

from tensorladder.core import arch as archs
from tensorladder.core.program import Program
from tensorladder.frontends.cutedsl import compile_program
from tensorladder.rungs.parts.tensors import row_major
from tensorladder.rungs.rung import Rung


@dataclass(frozen=True)
class WgmmaGemmConfig:
    """tile: (M, N, K) of a CTA. warpgroups: one below the other along M of the tile of C. stages: K tiles in shared
    memory.

    raster: rows of tiles that consecutive CTAs go down before the next column, so that they share A and B in L2.
    ctas_per_sm: what the registers at launch have to allow.
    """

    tile: tuple[int, int, int] = (128, 128, 64)
    warpgroups: int = 2
    stages: int = 3
    raster: int = 8
    ctas_per_sm: int = 2


RUNG = Rung(
    name="c1-wgmma",
    parent="b5-tma",
    adds="WGMMA: 64 x N x 16 by a warpgroup, asynchronous, operands by descriptor from swizzled shared memory",
    archs=("sm_90a",),
    problem="gemm",
    dtypes=("fp16", "bf16"),
    config=WgmmaGemmConfig,
)

WARPGROUP = 128  # threads


class WgmmaGemm:
    def __init__(self, config: WgmmaGemmConfig):
        self.tile = config.tile
        self.warpgroups = config.warpgroups
        self.threads = WARPGROUP * config.warpgroups
        self.stages = config.stages
        self.raster = config.raster
        self.ctas_per_sm = config.ctas_per_sm

    @cute.jit
    def __call__(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor):
        bM, bN, bK = self.tile
        sA_layout = self.smem_layout(bM, bK, self.stages)
        sB_layout = self.smem_layout(bN, bK, self.stages)
        sC_layout = self.smem_layout(bM, bN, 1)

        # A descriptor and a tensor of coordinates for each matrix. TMA takes coordinates, not addresses.
        load, store = cpasync.CopyBulkTensorTileG2SOp(), cpasync.CopyBulkTensorTileS2GOp()
        tma_A, mA = cpasync.make_tiled_tma_atom(load, mA, cute.select(sA_layout, mode=[0, 1]), (bM, bK))
        tma_B, mB = cpasync.make_tiled_tma_atom(load, mB, cute.select(sB_layout, mode=[0, 1]), (bN, bK))
        element_type = mC.element_type
        tma_C, mC = cpasync.make_tiled_tma_atom(store, mC, cute.select(sC_layout, mode=[0, 1]), (bM, bN))

        # A warpgroup does 64 rows and all columns at once; both operands lie in shared memory with K contiguous.
        k_major, source = OperandMajorMode.K, warpgroup.OperandSource.SMEM
        mma_op = warpgroup.MmaF16BF16Op(element_type, cutlass.Float32, (64, bN, 16), source, k_major, k_major)
        tiled_mma = cute.make_tiled_mma(mma_op, cute.make_layout((self.warpgroups, 1, 1)))

        @cute.struct
        class SharedStorage:
            full: cute.struct.MemRange[cutlass.Int64, self.stages]
            sA: cute.struct.Align[cute.struct.MemRange[element_type, cute.cosize(sA_layout)], 1024]
            sB: cute.struct.Align[cute.struct.MemRange[element_type, cute.cosize(sB_layout)], 1024]

        self.shared_storage = SharedStorage
        tiles = cute.ceil_div(mC.shape, (bM, bN))
        self.kernel(tma_A, mA, tma_B, mB, tma_C, mC, sA_layout, sB_layout, sC_layout, tiled_mma, tiles).launch(
            grid=(cute.size(tiles), 1, 1),
            block=(self.threads, 1, 1),
            min_blocks_per_mp=self.ctas_per_sm,
            preferred_smem_carveout=100,  # percent; given so that the DSL need not ask a GPU
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
        tiles: cutlass.Constexpr,
    ):
        tidx, _, _ = cute.arch.thread_idx()
        bidx, _, _ = cute.arch.block_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        coord = (*self.raster_tile(bidx, tiles), None)

        smem = SmemAllocator()
        storage = smem.allocate(self.shared_storage)
        full = storage.full.data_ptr()
        sA = storage.sA.get_tensor(sA_layout.outer, swizzle=sA_layout.inner)
        sB = storage.sB.get_tensor(sB_layout.outer, swizzle=sB_layout.inner)
        # C takes the place of A's and B's stages once they are multiplied.
        sC = cute.make_tensor(cute.recast_ptr(sA.iterator, sC_layout.inner), sC_layout.outer)[None, None, 0]
        element_type = sA.element_type
        stage_bytes = cute.size_in_bytes(element_type, cute.select(sA_layout, mode=[0, 1]))
        stage_bytes += cute.size_in_bytes(element_type, cute.select(sB_layout, mode=[0, 1]))

        # (BM, BK, k tiles), (BN, BK, k tiles), (BM, BN), as coordinates.
        gA = cute.local_tile(mA, tiler=self.tile, coord=coord, proj=(1, None, 1))
        gB = cute.local_tile(mB, tiler=self.tile, coord=coord, proj=(None, 1, 1))
        gC = cute.local_tile(mC, tiler=self.tile, coord=coord, proj=(1, 1, None))

        # gmem -> smem and back: (TMA, stage), (TMA, k tile)
        tAsA, tAgA = self.tma_partition(tma_A, sA, gA)
        tBsB, tBgB = self.tma_partition(tma_B, sB, gB)
        tCsC, tCgC = self.tma_partition(tma_C, sC, gC)

        # smem -> MMA: "fragments" of A and B are descriptors (MMA, MMA_M, MMA_K, stage), the same for all threads of a
        # warpgroup.
        thr_mma = tiled_mma.get_slice(cute.arch.make_warp_uniform(tidx // WARPGROUP) * WARPGROUP)
        tCrA = tiled_mma.make_fragment_A(thr_mma.partition_A(sA))
        tCrB = tiled_mma.make_fragment_B(thr_mma.partition_B(sB))
        tCrC = tiled_mma.make_fragment_C(thr_mma.partition_shape_C(self.tile[:2]))

        # One arrival (of the thread that asks for a tile) and the tile's bytes complete a phase. The fence makes the
        # initialised barriers visible to TMA, the CTA barrier to all threads.
        if warp == 0:
            cpasync.prefetch_descriptor(tma_A)
            cpasync.prefetch_descriptor(tma_B)
            cpasync.prefetch_descriptor(tma_C)
            with cute.arch.elect_one():
                for stage in cutlass.range_constexpr(self.stages):
                    cute.arch.mbarrier_init(full + stage, 1)
            cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()

        # Prologue: all stages but one are on their way.
        num_k_tiles = cute.size(gA, mode=[2])
        if warp == 0:
            for stage in cutlass.range_constexpr(self.stages - 1):
                if stage < num_k_tiles:
                    self.load(tma_A, tAgA, tAsA, tma_B, tBgB, tBsB, full, stage_bytes, stage, stage)

        read, write, phase = 0, self.stages - 1, 0
        tCrC.fill(0.0)
        tiled_mma.set(warpgroup.Field.ACCUMULATE, True)
        for k_tile in range(num_k_tiles):
            cute.arch.mbarrier_wait(full + read, phase)
            warpgroup.fence()
            for k_block in cutlass.range_constexpr(cute.size(tCrA, mode=[2])):
                cute.gemm(
                    tiled_mma, tCrC, tCrA[None, None, k_block, read], tCrB[None, None, k_block, read], tCrC
                )
            warpgroup.commit_group()

            # All groups but the last are complete: this warpgroup has read the stage that is overwritten next. After
            # the barrier they all have.
            warpgroup.wait_group(1)
            cute.arch.sync_threads()
            k_next = k_tile + self.stages - 1
            if warp == 0 and k_next < num_k_tiles:
                self.load(tma_A, tAgA, tAsA, tma_B, tBgB, tBsB, full, stage_bytes, k_next, write)

            write = read
            read = read + 1
            if read == self.stages:
                read, phase = 0, phase ^ 1

        # Epilogue: registers -> smem (stmatrix) -> gmem (TMA). The accumulator is complete after the wait, the stages
        # are free for C after the barrier.
        warpgroup.wait_group(0)
        cute.arch.sync_threads()
        tCrD = cute.make_fragment_like(tCrC, element_type)
        tCrD.store(tCrC.load().to(element_type))
        atom_r2s = cute.make_copy_atom(cute.nvgpu.warp.StMatrix8x8x16bOp(False, 4), element_type)
        tiled_r2s = cute.make_tiled_copy_C(atom_r2s, tiled_mma)
        thr_r2s = tiled_r2s.get_slice(tidx)
        cute.copy(tiled_r2s, thr_r2s.retile(tCrD), thr_r2s.partition_D(sC))

        # Each writer's fence, then the barrier, then the store: the other way round TMA could read stale bytes.
        cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.sync_threads()
        if warp == 0:
            cute.copy(tma_C, tCsC, tCgC)
            cute.arch.cp_async_bulk_commit_group()
            # Shared memory belongs to the CTA only until it exits: wait until TMA has read it.
            cute.arch.cp_async_bulk_wait_group(0, read=True)

    @cute.jit
    def load(
        self,
        tma_A: cute.CopyAtom,
        tAgA: cute.Tensor,
        tAsA: cute.Tensor,
        tma_B: cute.CopyAtom,
        tBgB: cute.Tensor,
        tBsB: cute.Tensor,
        full: cute.Pointer,
        stage_bytes: cutlass.Constexpr,
        k_tile: cutlass.Int32,
        stage: cutlass.Int32,
    ):
        """Ask for a K tile of A and B. Called by one whole warp; one elected lane does it."""
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(full + stage, stage_bytes)
        cute.copy(tma_A, tAgA[None, k_tile], tAsA[None, stage], tma_bar_ptr=full + stage)
        cute.copy(tma_B, tBgB[None, k_tile], tBsB[None, stage], tma_bar_ptr=full + stage)

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


def compile(arch: str, shape: tuple[int, ...], dtype: str, config: WgmmaGemmConfig | None = None) -> Program:
    """The rung for one architecture, shape (M, N, K) and element type. M from 2; N and K multiples of 8 (16 bytes)."""
    (m, n, k), dtype = RUNG.check(arch, shape, dtype)
    config = config or WgmmaGemmConfig()
    check_config(config, arch)
    RUNG.require(m > 1, "M=1: the DSL makes a one-dimensional tensor map of a single row, pad M to 2")
    RUNG.require(n % 8 == 0, f"N={n}: TMA wants row pitches of 16 bytes, pad N to a multiple of 8")
    RUNG.require(k % 8 == 0, f"K={k}: TMA wants row pitches of 16 bytes, pad K to a multiple of 8")
    arrays = [row_major(dtype, extents) for extents in ((m, k), (n, k), (m, n))]
    return compile_program(WgmmaGemm(config), *arrays, arch=arch, name=RUNG.name)


def check_config(config: WgmmaGemmConfig, arch: str) -> None:
    """UsageError unless the warpgroups cover the tile evenly and the stages fit into shared memory."""
    bM, bN, bK = config.tile
    groups = config.warpgroups
    RUNG.require(1 <= groups <= 4, f"warpgroups={groups}: 1 to 4, more have no room for accumulators")
    RUNG.require(config.raster > 0, f"raster={config.raster}: at least 1 row of tiles")
    RUNG.require(1 <= config.ctas_per_sm <= 8, f"ctas_per_sm={config.ctas_per_sm}: 1 to 8")
    RUNG.require(min(config.tile) > 0, f"tile={config.tile}: extents are positive")
    RUNG.require(bM % (64 * groups) == 0, f"tile={config.tile}: M must be a multiple of {64 * groups}")
    RUNG.require(bK % 64 == 0 and bN % 64 == 0, f"tile={config.tile}: N and K must be multiples of 64 (128 bytes)")
    RUNG.require(max(config.tile) <= 256, f"tile={config.tile}: a TMA box and WGMMA have at most 256 rows")
    accumulators, registers = bM * bN // (WARPGROUP * groups), 65536 // config.ctas_per_sm // (WARPGROUP * groups)
    RUNG.require(
        accumulators + 40 <= min(registers, 255),
        f"tile={config.tile}: {accumulators} accumulators a thread, which has {min(registers, 255)} registers",
    )
    RUNG.require(config.stages >= 2, f"stages={config.stages}: at least 2, one to fill and one to multiply")
    stages = config.stages * (bM + bN) * bK
    RUNG.require(stages >= bM * bN, f"stages={config.stages}: C ({bM} x {bN}) must fit into the stages")
    smem, limit = 2 * stages + 1024, archs.find(arch).smem_per_cta
    RUNG.require(smem <= limit, f"stages={config.stages}: {smem} bytes of shared memory, {arch} has {limit}")
