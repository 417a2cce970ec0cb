"""tcgen05: the MMA as an asynchronous operation of one thread, with its accumulator in tensor memory.

Adds:
    Blackwell's tensor core. WGMMA, the parent's, is issued by four warps together, which hold the accumulator in their
    registers. Here one thread names two tiles in shared memory by descriptors and a place in tensor memory, and the
    tensor core does the rest: no registers, one instruction for 128 x 128 x 16. It runs on its own, so:
    - tcgen05.commit makes an mbarrier complete once all MMAs that this thread issued are done. A commit a stage says
      that the stage may be overwritten, a last one that C is complete. Commit and MMA have to come from the same
      thread: elect.sync elects the same lane each time.
    - One warp both asks TMA for tiles and issues MMAs. It refills the stage of the MMA before the one in flight, so
      that the tensor core always has work. The other warps wait for one barrier that completes once: a warp that only
      looks on at a ring could miss two phases of it and hang.
    - tcgen05.ld brings C to registers, 32 lanes (rows of C) a warp: why the epilogue takes four warps. wait::ld says
      when the registers are there.

Warp roles:
    | warps | role                                                                          |
    |-------|-------------------------------------------------------------------------------|
    | 0     | allocates tensor memory, asks TMA for A and B, issues the MMAs, then as 1-3   |
    | 0-3   | read 32 rows of C each from tensor memory and store them, a row a lane        |

Budget:
    SMEM: (128 + 128) rows x 64 x 2 B = 32 KB a stage, 4 stages: 128 KB and 72 B of mbarriers, 1 CTA an SM. TMEM: 128
    lanes x 128 columns = 64 KB of the SM's 256. Registers: a row of C is 128 a thread, in all 137.

Run:
    tensorladder run d1-tcgen05 --shape 256,256,512
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
import cutlass.utils.blackwell_helpers as sm100
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, tcgen05
from cutlass.memory import SmemAllocator

from tensorladder.core import arch as archs
from tensorladder.core.program import Program
from tensorladder.frontends.cutedsl import compile_program
from tensorladder.rungs.parts.tcgen05 import fence_after_thread_sync, fence_before_thread_sync, tmem_columns
from tensorladder.rungs.parts.tensors import row_major
from tensorladder.rungs.rung import Rung


@dataclass(frozen=True)
class Tcgen05GemmConfig:
    """tile: (M, N, K) of a CTA; M x N is one instruction. stages: K tiles in shared memory.

    raster: rows of tiles that consecutive CTAs go down before the next column, so that they share A and B in L2.
    """

    tile: tuple[int, int, int] = (128, 128, 64)
    stages: int = 4
    raster: int = 8


RUNG = Rung(
    name="d1-tcgen05",
    parent="c1-wgmma",
    adds="tcgen05 MMAs that one thread issues, the accumulator in tensor memory, commits to mbarriers",
    archs=("sm_100a",),
    problem="gemm",
    dtypes=("fp16", "bf16"),
    config=Tcgen05GemmConfig,
    shape=(256, 256, 512),
)

THREADS = 128  # a warp for each 32 lanes of tensor memory


class Tcgen05Gemm:
    def __init__(self, config: Tcgen05GemmConfig):
        self.tile = config.tile
        self.stages = config.stages
        self.raster = config.raster
        self.tmem_columns = tmem_columns(config.tile[1])

    @cute.jit
    def __call__(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor):
        bM, bN = self.tile[:2]
        element_type = mC.element_type
        majors, group = (OperandMajorMode.K, OperandMajorMode.K), tcgen05.CtaGroup.ONE
        tiled_mma = sm100.make_trivial_tiled_mma(*[element_type] * 2, *majors, cutlass.Float32, group, (bM, bN))

        # (MMA, MMA_M, MMA_K, stage): K-major with the 128-byte swizzle, cut into what one instruction reads.
        sA_layout = sm100.make_smem_layout_a(tiled_mma, self.tile, element_type, self.stages)
        sB_layout = sm100.make_smem_layout_b(tiled_mma, self.tile, element_type, self.stages)

        # A descriptor and a tensor of coordinates for each matrix. TMA takes coordinates, not addresses.
        load = cpasync.CopyBulkTensorTileG2SOp(tcgen05.CtaGroup.ONE)
        sA_stage, sB_stage = (cute.select(layout, mode=[0, 1, 2]) for layout in (sA_layout, sB_layout))
        tma_A, mA = cute.nvgpu.make_tiled_tma_atom_A(load, mA, sA_stage, self.tile, tiled_mma)
        tma_B, mB = cute.nvgpu.make_tiled_tma_atom_B(load, mB, sB_stage, self.tile, tiled_mma)

        @cute.struct
        class SharedStorage:
            full: cute.struct.MemRange[cutlass.Int64, self.stages]
            empty: cute.struct.MemRange[cutlass.Int64, self.stages]
            done: cutlass.Int64
            tmem: cutlass.Int32
            sA: cute.struct.Align[cute.struct.MemRange[element_type, cute.cosize(sA_layout)], 1024]
            sB: cute.struct.Align[cute.struct.MemRange[element_type, cute.cosize(sB_layout)], 1024]

        self.shared_storage = SharedStorage
        tiles = cute.ceil_div(mC.shape, (bM, bN))
        self.kernel(tma_A, mA, tma_B, mB, mC, sA_layout, sB_layout, tiled_mma, tiles).launch(
            grid=(cute.size(tiles), 1, 1), block=(THREADS, 1, 1)
        )

    @cute.kernel
    def kernel(
        self,
        tma_A: cute.CopyAtom,
        mA: cute.Tensor,
        tma_B: cute.CopyAtom,
        mB: cute.Tensor,
        mC: cute.Tensor,
        sA_layout: cute.ComposedLayout,
        sB_layout: cute.ComposedLayout,
        tiled_mma: cute.TiledMma,
        tiles: cutlass.Constexpr,
    ):
        tidx, _, _ = cute.arch.thread_idx()
        bidx, _, _ = cute.arch.block_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        coord = (*self.raster_tile(bidx, tiles), None)

        smem = SmemAllocator()
        storage = smem.allocate(self.shared_storage)
        full, empty, done = storage.full.data_ptr(), storage.empty.data_ptr(), storage.done.ptr
        sA = storage.sA.get_tensor(sA_layout.outer, swizzle=sA_layout.inner)
        sB = storage.sB.get_tensor(sB_layout.outer, swizzle=sB_layout.inner)
        element_type = sA.element_type
        stages = (cute.select(layout, mode=[0, 1, 2]) for layout in (sA_layout, sB_layout))
        stage_bytes = sum(cute.size_in_bytes(element_type, stage) for stage in stages)

        # (BM, BK, k tiles), (BN, BK, k tiles), as coordinates; (BM, BN) of C and of its coordinates.
        gA = cute.local_tile(mA, tiler=self.tile, coord=coord, proj=(1, None, 1))
        gB = cute.local_tile(mB, tiler=self.tile, coord=coord, proj=(None, 1, 1))
        gC = cute.local_tile(mC, tiler=self.tile, coord=coord, proj=(1, 1, None))
        cC = cute.local_tile(cute.make_identity_tensor(mC.shape), tiler=self.tile, coord=coord, proj=(1, 1, None))

        # gmem -> smem: (TMA, stage), (TMA, k tile)
        thr_mma = tiled_mma.get_slice(0)
        tAsA, tAgA = self.tma_partition(tma_A, sA, thr_mma.partition_A(gA))
        tBsB, tBgB = self.tma_partition(tma_B, sB, thr_mma.partition_B(gB))

        # smem -> MMA: descriptors of the stages. MMA -> tmem: ((BM, BN), 1, 1)
        tCrA = tiled_mma.make_fragment_A(sA)
        tCrB = tiled_mma.make_fragment_B(sB)
        tCtC_layout = tiled_mma.make_fragment_C(tiled_mma.partition_shape_C(self.tile[:2])).layout

        # full: one arrival (of the thread that asks for a tile) and the tile's bytes. empty and done: a commit. The
        # fence makes the initialised barriers visible to TMA and the tensor core, the CTA barrier to all threads.
        if warp == 0:
            cpasync.prefetch_descriptor(tma_A)
            cpasync.prefetch_descriptor(tma_B)
            with cute.arch.elect_one():
                for stage in cutlass.range_constexpr(self.stages):
                    cute.arch.mbarrier_init(full + stage, 1)
                    cute.arch.mbarrier_init(empty + stage, 1)
                cute.arch.mbarrier_init(done, 1)
            cute.arch.mbarrier_init_fence()
            cute.arch.alloc_tmem(self.tmem_columns, storage.tmem.ptr)
            cute.arch.relinquish_tmem_alloc_permit()
            fence_before_thread_sync()
        cute.arch.sync_threads()
        fence_after_thread_sync()
        tmem = cute.arch.retrieve_tmem_ptr(cutlass.Float32, 16, storage.tmem.ptr)
        tCtC = cute.make_tensor(tmem, tCtC_layout)

        if warp == 0:
            # Prologue: all stages but one are on their way.
            num_k_tiles = cute.size(gA, mode=[2])
            for stage in cutlass.range_constexpr(self.stages - 1):
                if stage < num_k_tiles:
                    self.load(tma_A, tAgA, tAsA, tma_B, tBgB, tBsB, full, stage_bytes, stage, stage)

            read, phase, write, write_phase = 0, 0, self.stages - 1, 1
            for k_tile in range(num_k_tiles):
                cute.arch.mbarrier_wait(full + read, phase)
                fence_after_thread_sync()
                for k_block in cutlass.range_constexpr(cute.size(tCrA, mode=[2])):
                    # The first MMA overwrites what tensor memory held.
                    tiled_mma.set(tcgen05.Field.ACCUMULATE, k_tile > 0 if k_block == 0 else True)
                    k_coord = (None, None, k_block, read)
                    cute.gemm(tiled_mma, tCtC, tCrA[k_coord], tCrB[k_coord], tCtC)
                # Who will refill the stage waits for its MMAs. No commit without a waiter: it could arrive at a barrier
                # in shared memory that the CTA has left.
                if k_tile + self.stages < num_k_tiles:
                    with cute.arch.elect_one():
                        tcgen05.commit(empty + read)

                # The stage of the MMAs before these: done with, or never used (a fresh barrier lets parity 1 pass).
                k_next = k_tile + self.stages - 1
                if k_next < num_k_tiles:
                    cute.arch.mbarrier_wait(empty + write, write_phase)
                    self.load(tma_A, tAgA, tAsA, tma_B, tBgB, tBsB, full, stage_bytes, k_next, write)

                write, write_phase = read, phase
                read = read + 1
                if read == self.stages:
                    read, phase = 0, phase ^ 1
            with cute.arch.elect_one():
                tcgen05.commit(done)

        # Epilogue: tmem -> registers -> gmem. Thread t holds row t of the tile.
        cute.arch.mbarrier_wait(done, 0)
        fence_after_thread_sync()
        atom_t2r = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition(self.tile[1])), cutlass.Float32)
        tiled_t2r = tcgen05.make_tmem_copy(atom_t2r, tCtC[(None, None), 0, 0])
        thr_t2r = tiled_t2r.get_slice(tidx)
        tDtC = thr_t2r.partition_S(tCtC[(None, None), 0, 0])
        tDgC, tDcC = thr_t2r.partition_D(gC), thr_t2r.partition_D(cC)
        tDrC = cute.make_rmem_tensor(tDgC.shape, cutlass.Float32)
        cute.copy(tiled_t2r, tDtC, tDrC)
        # The registers hold C only from here on.
        cute.arch.fence_view_async_tmem_load()
        fence_before_thread_sync()
        tDrD = cute.make_rmem_tensor(tDgC.shape, element_type)
        tDrD.store(tDrC.load().to(element_type))
        self.store(tDrD, tDgC, tDcC, mC.shape)

        # Nobody reads tensor memory any more: the warp that allocated it gives it back.
        cute.arch.sync_threads()
        if warp == 0:
            fence_after_thread_sync()
            cute.arch.dealloc_tmem(tmem, self.tmem_columns)

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
    def store(self, src: cute.Tensor, dst: cute.Tensor, coords: cute.Tensor, limit: cute.Shape):
        """Store this thread's part of C, as much as lies inside the matrix, up to 16 bytes at a time."""
        vector = cute.make_layout(math.gcd(8, limit[1]))
        src, dst, coords = (
            cute.logical_divide(cute.group_modes(t, 0, cute.rank(t)), vector) for t in (src, dst, coords)
        )
        for i in cutlass.range_constexpr(cute.size(coords, mode=[1])):
            # N is a multiple of a vector: its first element decides for all.
            if cute.elem_less(coords[0, i], limit):
                cute.autovec_copy(src[None, i], dst[None, i])

    @cute.jit
    def tma_partition(self, atom: cute.CopyAtom, smem: cute.Tensor, gmem: cute.Tensor):
        """Both sides of a TMA copy with their first three modes (a tile) as one."""
        return cpasync.tma_partition(
            atom, 0, cute.make_layout(1), cute.group_modes(smem, 0, 3), cute.group_modes(gmem, 0, 3)
        )

    @cute.jit
    def raster_tile(self, index: cutlass.Int32, tiles: cutlass.Constexpr):
        """(m, n) of a CTA's tile: down `raster` rows, then the next column, so that a wave is nearly square."""
        group = index // (self.raster * tiles[1])
        within = index % (self.raster * tiles[1])
        rows = min(tiles[0] - group * self.raster, self.raster)
        return group * self.raster + within % rows, within // rows


def compile(arch: str, shape: tuple[int, ...], dtype: str, config: Tcgen05GemmConfig | None = None) -> Program:
    """The rung for one architecture, shape (M, N, K) and element type. M and N from 2; K a multiple of 8 (16 bytes)."""
    (m, n, k), dtype = RUNG.check(arch, shape, dtype)
    config = config or Tcgen05GemmConfig()
    check_config(config, arch)
    RUNG.require(m > 1, "M=1: the DSL makes a one-dimensional tensor map of a single row, pad M to 2")
    RUNG.require(n > 1, "N=1: the DSL makes a one-dimensional tensor map of a single row, pad N to 2")
    RUNG.require(k % 8 == 0, f"K={k}: TMA wants row pitches of 16 bytes, pad K to a multiple of 8")
    arrays = [row_major(dtype, extents) for extents in ((m, k), (n, k), (m, n))]
    return compile_program(Tcgen05Gemm(config), *arrays, arch=arch, name=RUNG.name)


def check_config(config: Tcgen05GemmConfig, arch: str) -> None:
    """UsageError unless a tile is one instruction, one load of tensor memory, and the stages fit into shared memory."""
    bM, bN, bK = config.tile
    RUNG.require(config.raster > 0, f"raster={config.raster}: at least 1 row of tiles")
    RUNG.require(bM == 128, f"tile={config.tile}: M must be 128, the lanes of tensor memory")
    RUNG.require(bN in (16, 32, 64, 128), f"tile={config.tile}: N must be 16, 32, 64 or 128, what one tcgen05.ld takes")
    RUNG.require(bK in (64, 128, 192, 256), f"tile={config.tile}: K must be a multiple of 64 (128 bytes) up to 256")
    RUNG.require(config.stages >= 2, f"stages={config.stages}: at least 2, one to fill and one to multiply")
    smem, limit = 2 * config.stages * (bM + bN) * bK + 1024, archs.find(arch).smem_per_cta
    RUNG.require(smem <= limit, f"stages={config.stages}: {smem} bytes of shared memory, {arch} has {limit}")
