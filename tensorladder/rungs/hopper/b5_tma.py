"""TMA: the copy unit fetches and stores whole tiles, one thread asks for them, an mbarrier counts the bytes.

Adds:
    The Tensor Memory Accelerator in place of cp.async and of the stores of C. A descriptor made by the host holds the
    matrix's address, extents, strides, box and swizzle; one thread then moves a 16 KB tile with one instruction,
    where the parent spent 1024 cp.async and their address arithmetic on it. It is faster because those issue slots
    and registers go to the MMAs, because C leaves through shared memory in full 128-byte lines, and because ragged
    edges are the hardware's business: what lies outside is read as zero and not written. On an H200 the tensor pipe is
    busy 81 % of the time in place of 60 (ncu, 4096 cubed): 1.33 times as fast as the parent at 4096 cubed, 1.29 at
    8192, alone 1.21 and 1.18 (`benchmarks.steps`). Two new obligations come with it:
    - A TMA load is complete when its bytes have been counted by an mbarrier: the issuing thread arrives and expects
      32 KB, all threads wait for the phase, which flips each time the ring comes round.
    - TMA is another proxy. Before it may read what threads wrote to shared memory, every writer fences
      (fence.proxy.async), and only then comes the barrier after which one thread issues the store.

Warp roles:
    | warps | role                                                                        |
    |-------|-----------------------------------------------------------------------------|
    | all 4 | multiply 64 x 64 of C (2 x 2 warps); stage it through shared memory         |
    | 0     | besides: one elected lane issues the TMA loads and stores                   |

Budget:
    SMEM: (128 + 128) rows x 64 x 2 B = 32 KB a stage, 3 stages: 96 KB and 24 B of mbarriers, 2 CTAs an SM on sm_90; C
    (32 KB) reuses the stages. Registers: 128 accumulators and 32 of fragments, 166 a thread. No TMEM.

Run:
    tensorladder run b5-tma --shape 256,256,256
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import cpasync
from cutlass.memory import SmemAllocator

from tensorladder.core import arch as archs
from tensorladder.core.program import Program
from tensorladder.frontends.cutedsl import compile_program
from tensorladder.rungs.parts.tensors import row_major
from tensorladder.rungs.rung import Rung


@dataclass(frozen=True)
class TmaGemmConfig:
    """tile: (M, N, K) of a CTA. warps_m, warps_n: how they lie on the tile of C. stages: K tiles in shared memory.

    raster: rows of tiles that consecutive CTAs go down before the next column, so that they share A and B in L2.
    """

    tile: tuple[int, int, int] = (128, 128, 64)
    warps_m: int = 2
    warps_n: int = 2
    stages: int = 3
    raster: int = 8


RUNG = Rung(
    name="b5-tma",
    parent="b2-warp-mma",
    adds="TMA loads counted by mbarriers, TMA store of C behind a proxy fence; edges done by the hardware",
    archs=("sm_90a", "sm_100a", "sm_120a"),
    problem="gemm",
    dtypes=("fp16", "bf16"),
    config=TmaGemmConfig,
)


class TmaGemm:
    def __init__(self, config: TmaGemmConfig):
        self.tile = config.tile
        self.warps = (config.warps_m, config.warps_n, 1)
        self.threads = 32 * config.warps_m * config.warps_n
        self.stages = config.stages
        self.raster = config.raster

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

        # Two MMAs side by side along N make the 16 x 16 block of B that one ldmatrix.x4 loads.
        mma_op = cute.nvgpu.warp.MmaF16BF16Op(element_type, cutlass.Float32, (16, 8, 16))
        permutation_mnk = (self.warps[0] * 16, self.warps[1] * 16, 16)
        tiled_mma = cute.make_tiled_mma(mma_op, cute.make_layout(self.warps), permutation_mnk=permutation_mnk)

        @cute.struct
        class SharedStorage:
            full: cute.struct.MemRange[cutlass.Int64, self.stages]
            sA: cute.struct.Align[cute.struct.MemRange[element_type, cute.cosize(sA_layout)], 1024]
            sB: cute.struct.Align[cute.struct.MemRange[element_type, cute.cosize(sB_layout)], 1024]

        self.shared_storage = SharedStorage
        tiles = cute.ceil_div(mC.shape, (bM, bN))
        self.kernel(tma_A, mA, tma_B, mB, tma_C, mC, sA_layout, sB_layout, sC_layout, tiled_mma, tiles).launch(
            grid=(cute.size(tiles), 1, 1), block=(self.threads, 1, 1)
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

        # smem -> registers -> MMA
        thr_mma = tiled_mma.get_slice(tidx)
        tCrA = tiled_mma.make_fragment_A(thr_mma.partition_A(sA[None, None, 0]))
        tCrB = tiled_mma.make_fragment_B(thr_mma.partition_B(sB[None, None, 0]))
        tCrC = tiled_mma.make_fragment_C(thr_mma.partition_shape_C(self.tile[:2]))
        tCrC.fill(0.0)

        atom_s2r = cute.make_copy_atom(cute.nvgpu.warp.LdMatrix8x8x16bOp(False, 4), element_type)
        tiled_s2r_A = cute.make_tiled_copy_A(atom_s2r, tiled_mma)
        tiled_s2r_B = cute.make_tiled_copy_B(atom_s2r, tiled_mma)
        thr_s2r_A, thr_s2r_B = tiled_s2r_A.get_slice(tidx), tiled_s2r_B.get_slice(tidx)
        tXsA, tXrA = thr_s2r_A.partition_S(sA), thr_s2r_A.retile(tCrA)
        tXsB, tXrB = thr_s2r_B.partition_S(sB), thr_s2r_B.retile(tCrB)

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
        for k_tile in range(num_k_tiles):
            # The tile's bytes have landed, for whoever waits; after the barrier everybody is done with the stage that
            # is overwritten next.
            cute.arch.mbarrier_wait(full + read, phase)
            cute.arch.sync_threads()

            k_next = k_tile + self.stages - 1
            if warp == 0 and k_next < num_k_tiles:
                self.load(tma_A, tAgA, tAsA, tma_B, tBgB, tBsB, full, stage_bytes, k_next, write)

            for k_block in cutlass.range_constexpr(cute.size(tCrA, mode=[2])):
                cute.copy(tiled_s2r_A, tXsA[None, None, k_block, read], tXrA[None, None, k_block])
                cute.copy(tiled_s2r_B, tXsB[None, None, k_block, read], tXrB[None, None, k_block])
                cute.gemm(tiled_mma, tCrC, tCrA[None, None, k_block], tCrB[None, None, k_block], tCrC)

            write = read
            read = read + 1
            if read == self.stages:
                read, phase = 0, phase ^ 1

        # Epilogue: registers -> smem (stmatrix) -> gmem (TMA). The first barrier frees the stages for C.
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
        """(rows, cols, stages), row-major in columns of 64 elements: 128 bytes, the width of the TMA swizzle."""
        atom = cute.make_composed_layout(cute.make_swizzle(3, 4, 3), 0, cute.make_layout((8, 64), stride=(64, 1)))
        return cute.tile_to_shape(atom, (rows, cols, stages), order=(0, 1, 2))


def compile(arch: str, shape: tuple[int, ...], dtype: str, config: TmaGemmConfig | None = None) -> Program:
    """The rung for one architecture, shape (M, N, K) and element type. M from 2; N and K multiples of 8 (16 bytes)."""
    (m, n, k), dtype = RUNG.check(arch, shape, dtype)
    config = config or TmaGemmConfig()
    check_config(config, arch)
    RUNG.require(m > 1, "M=1: the DSL makes a one-dimensional tensor map of a single row, pad M to 2")
    RUNG.require(n % 8 == 0, f"N={n}: TMA wants row pitches of 16 bytes, pad N to a multiple of 8")
    RUNG.require(k % 8 == 0, f"K={k}: TMA wants row pitches of 16 bytes, pad K to a multiple of 8")
    arrays = [row_major(dtype, extents) for extents in ((m, k), (n, k), (m, n))]
    return compile_program(TmaGemm(config), *arrays, arch=arch, name=RUNG.name)


def check_config(config: TmaGemmConfig, arch: str) -> None:
    """UsageError unless the warps cover the tile evenly and the stages fit into shared memory."""
    bM, bN, bK = config.tile
    warps = config.warps_m * config.warps_n
    RUNG.require(0 < warps <= 32, f"warps_m * warps_n: {warps} warps, a CTA has room for 32")
    RUNG.require(config.raster > 0, f"raster={config.raster}: at least 1 row of tiles")
    RUNG.require(bM % (16 * config.warps_m) == 0, f"tile={config.tile}: M must be a multiple of {16 * config.warps_m}")
    RUNG.require(bN % (16 * config.warps_n) == 0, f"tile={config.tile}: N must be a multiple of {16 * config.warps_n}")
    RUNG.require(bK % 64 == 0 and bN % 64 == 0, f"tile={config.tile}: N and K must be multiples of 64 (128 bytes)")
    RUNG.require(max(config.tile) <= 256, f"tile={config.tile}: a TMA box has at most 256 rows")
    RUNG.require(config.stages >= 2, f"stages={config.stages}: at least 2, one to fill and one to multiply")
    stages = config.stages * (bM + bN) * bK
    RUNG.require(stages >= bM * bN, f"stages={config.stages}: C ({bM} x {bN}) must fit into the stages")
    smem, limit = 2 * stages + 1024, archs.find(arch).smem_per_cta
    RUNG.require(smem <= limit, f"stages={config.stages}: {smem} bytes of shared memory, {arch} has {limit}")
