"""TMA both ways: one thread asks for tiles and for their storing, none copies.

Adds:
    Bulk copies by coordinates. In the parent each thread computes addresses, holds 16 bytes in registers and stores
    them again, swizzled; here a descriptor, made on the host, holds the matrix's extents, the box and the swizzle, and
    one instruction moves a tile. No registers, no addresses, no masks: boxes that stick out of the matrix are filled
    with zeros, and clipped when stored, so that M, N and K need not be multiples of the tile.
    - TMA counts the bytes that it has brought on an mbarrier, `full`, which a thread has told how many to expect. It
      writes through the async proxy, as MMAs read: no fence between them.
    - C goes back through shared memory: threads write their rows there, swizzled to keep clear of bank conflicts, and
      TMA stores whole lines, where rows a thread touch a line each.
    - Load and MMA wait for each other still, but both are asked for by one warp, and only that warp waits in the loop.
      A warp that merely looked on could sleep through two phases, and find a parity that means the wrong one: nothing
      in the loop holds the others up for it. All others stay at the CTA's barrier until the tile is done.

Warp roles:
    | warps | role                                                                        |
    |-------|-----------------------------------------------------------------------------|
    | 0     | allocates and frees TMEM; asks for loads, MMAs and stores, and waits for all |
    | 0-3   | tensor memory to shared memory, a row a thread                              |

Budget:
    SMEM: (128 + 128) rows x 64 x 2 B = 32 KB, C 128 x 128 x 2 B = 32 KB, and 20 B. TMEM: 128 columns of 512, fp32.
    Registers: 128 accumulators a thread in the epilogue, none before it: 3 CTAs an SM.

Run:
    tensorladder run v4-tma --shape 256,256,256
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, tcgen05
from cutlass.memory import SmemAllocator

from tensorladder.core.program import Program
from tensorladder.frontends.cutedsl import compile_program
from tensorladder.rungs.parts.tcgen05 import fence_after_thread_sync, fence_before_thread_sync
from tensorladder.rungs.parts.tensors import row_major
from tensorladder.rungs.rung import Rung


@dataclass(frozen=True)
class TmaGemmConfig:
    """tile: (M, N, K) of a step of a CTA."""

    tile: tuple[int, int, int] = (128, 128, 64)


RUNG = Rung(
    name="v4-tma",
    parent="v3-grid",
    adds="TMA loads and stores by one thread, ragged shapes",
    archs=("sm_100a",),
    problem="gemm",
    dtypes=("fp16", "bf16"),
    config=TmaGemmConfig,
)

THREADS = 128  # a thread a lane of TMEM
MMA_K = 16  # of an instruction: 32 bytes of each row


class TmaGemm:
    def __init__(self, config: TmaGemmConfig):
        self.tile = config.tile
        self.tmem_columns = max(32, config.tile[1])

    @cute.jit
    def __call__(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor):
        bM, bN, bK = self.tile
        sA_layout = self.smem_layout(bM, bK)
        sB_layout = self.smem_layout(bN, bK)
        sC_layout = self.smem_layout(bM, bN)

        # A descriptor and a tensor of coordinates for each matrix. TMA takes coordinates, not addresses.
        element_type = mC.element_type
        load, store = cpasync.CopyBulkTensorTileG2SOp(), cpasync.CopyBulkTensorTileS2GOp()
        tma_A, mA = cpasync.make_tiled_tma_atom(load, mA, sA_layout, (bM, bK))
        tma_B, mB = cpasync.make_tiled_tma_atom(load, mB, sB_layout, (bN, bK))
        tma_C, mC = cpasync.make_tiled_tma_atom(store, mC, sC_layout, (bM, bN))

        # One instruction covers the tile's rows and columns. Both operands lie along K and come from shared memory.
        k_major = OperandMajorMode.K
        one, smem = tcgen05.CtaGroup.ONE, tcgen05.OperandSource.SMEM
        mma_op = tcgen05.MmaF16BF16Op(element_type, cutlass.Float32, (bM, bN, MMA_K), one, smem, k_major, k_major)
        tiled_mma = cute.make_tiled_mma(mma_op)

        @cute.struct
        class SharedStorage:
            full: cutlass.Int64
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
        sC = storage.sC.get_tensor(sC_layout.outer, swizzle=sC_layout.inner)
        full, mma_done = storage.full.ptr, storage.mma_done.ptr
        tile_bytes = cute.size_in_bytes(sA.element_type, sA_layout) + cute.size_in_bytes(sB.element_type, sB_layout)

        # One warp allocates TMEM and lets other CTAs of the SM do so next; the address comes through shared memory.
        if warp == 0:
            cpasync.prefetch_descriptor(tma_A)
            cpasync.prefetch_descriptor(tma_B)
            cute.arch.alloc_tmem(self.tmem_columns, storage.tmem.ptr)
            cute.arch.relinquish_tmem_alloc_permit()
            with cute.arch.elect_one():
                cute.arch.mbarrier_init(full, 1)
                cute.arch.mbarrier_init(mma_done, 1)
                cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()
        tmem = cute.arch.retrieve_tmem_ptr(cutlass.Float32, 16, storage.tmem.ptr)

        # (BM, BK, k tiles), (BN, BK, k tiles), (BM, BN), as coordinates.
        gA = cute.local_tile(mA, tiler=self.tile, coord=coord, proj=(1, None, 1))
        gB = cute.local_tile(mB, tiler=self.tile, coord=coord, proj=(None, 1, 1))
        gC = cute.local_tile(mC, tiler=self.tile, coord=coord, proj=(1, 1, None))

        # gmem -> smem and back: (TMA,), (TMA, k tile)
        tAsA, tAgA = self.tma_partition(tma_A, sA, gA)
        tBsB, tBgB = self.tma_partition(tma_B, sB, gB)
        tCsC, tCgC = self.tma_partition(tma_C, sC, gC)

        # smem -> MMA -> tmem: fragments of A and B are descriptors, (MMA, M blocks, K blocks); that of C is an address.
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
            tiled_mma.set(tcgen05.Field.ACCUMULATE, False)
            phase = cutlass.Int32(0)
            for k_tile in range(cute.size(gA, mode=[2])):
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive_and_expect_tx(full, tile_bytes)
                cute.copy(tma_A, tAgA[None, k_tile], tAsA, tma_bar_ptr=full)
                cute.copy(tma_B, tBgB[None, k_tile], tBsB, tma_bar_ptr=full)
                cute.arch.mbarrier_wait(full, phase)

                for k_block in cutlass.range_constexpr(cute.size(tCrA, mode=[2])):
                    cute.gemm(tiled_mma, tCtC, tCrA[None, None, k_block], tCrB[None, None, k_block], tCtC)
                    tiled_mma.set(tcgen05.Field.ACCUMULATE, True)
                with cute.arch.elect_one():
                    tcgen05.commit(mma_done)
                # The MMAs have read the tile: it may be overwritten.
                cute.arch.mbarrier_wait(mma_done, phase)
                phase ^= 1
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

    def smem_layout(self, rows: int, cols: int):
        """(rows, cols), row-major in columns of 64 elements: 128 bytes, the width of the swizzle."""
        atom = cute.make_composed_layout(cute.make_swizzle(3, 4, 3), 0, cute.make_layout((8, 64), stride=(64, 1)))
        return cute.tile_to_shape(atom, (rows, cols), order=(0, 1))


def compile(arch: str, shape: tuple[int, ...], dtype: str, config: TmaGemmConfig | None = None) -> Program:
    """The rung for one architecture, shape (M, N, K) and element type. M from 2; N and K multiples of 8 (16 bytes)."""
    (m, n, k), dtype = RUNG.check(arch, shape, dtype)
    config = config or TmaGemmConfig()
    check_config(config)
    RUNG.require(m > 1, "M=1: the DSL makes a one-dimensional tensor map of a single row, pad M to 2")
    RUNG.require(n % 8 == 0, f"N={n}: TMA wants row pitches of 16 bytes, pad N to a multiple of 8")
    RUNG.require(k % 8 == 0, f"K={k}: TMA wants row pitches of 16 bytes, pad K to a multiple of 8")
    arrays = [row_major(dtype, extents) for extents in ((m, k), (n, k), (m, n))]
    return compile_program(TmaGemm(config), *arrays, arch=arch, name=RUNG.name)


def check_config(config: TmaGemmConfig) -> None:
    """UsageError unless one MMA covers the tile's rows and columns and one load of TMEM its columns."""
    bM, bN, bK = config.tile
    RUNG.require(bM == 128, f"tile={config.tile}: M must be 128, the lanes of TMEM")
    RUNG.require(bN in (64, 128), f"tile={config.tile}: N must be 64 or 128, the columns of one tcgen05.ld")
    RUNG.require(bK in (64, 128), f"tile={config.tile}: K must be 64 or 128, in rows of 128 bytes")
