"""A loop over K: the same tile of tensor memory takes one product after the other.

Adds:
    K of any length. Shared memory holds one K tile, so that its next contents have to wait until the MMAs have read the
    last: they do so long after the thread that started them went on.
    - Accumulating costs an operand of the instruction: the first MMA of the tile overwrites tensor memory, all others
      add to it. Nothing has to be cleared.
    - The mbarrier is used once a K tile, and completes a phase each time. A thread that waits names the phase by its
      parity, which it flips after each wait; a parity tells two neighbouring phases apart and no more. The CTA's
      barrier in each iteration is what keeps every thread within one phase of the others.

Warp roles:
    | warps | role                                                                        |
    |-------|-----------------------------------------------------------------------------|
    | 0     | allocates and frees TMEM; one elected lane starts the MMAs and commits them |
    | 0-3   | copy A and B to shared memory, 16 bytes a thread; write back a row a thread |

Budget:
    SMEM: (128 + 128) rows x 64 x 2 B = 32 KB, and 12 B. TMEM: 128 columns of 512, fp32. Registers: 128 accumulators a
    thread in the epilogue, none before it; 1 CTA of 128 threads.

Run:
    tensorladder run v2-k-loop --shape 128,128,256
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import OperandMajorMode, tcgen05
from cutlass.memory import SmemAllocator

from tensorladder.core.program import Program
from tensorladder.frontends.cutedsl import compile_program
from tensorladder.rungs.parts.tcgen05 import fence_after_thread_sync, fence_before_thread_sync
from tensorladder.rungs.parts.tensors import row_major
from tensorladder.rungs.rung import Rung


@dataclass(frozen=True)
class KLoopGemmConfig:
    """tile: (M, N, K) of a step of the CTA, whose M and N are the problem's."""

    tile: tuple[int, int, int] = (128, 128, 64)


RUNG = Rung(
    name="v2-k-loop",
    parent="v1-one-tile",
    adds="a loop over K: accumulation in tensor memory, mbarrier phases",
    archs=("sm_100a",),
    problem="gemm",
    dtypes=("fp16", "bf16"),
    config=KLoopGemmConfig,
    shape=(128, 128, 256),
)

THREADS = 128  # a thread a lane of TMEM
COPY_BITS = 128  # of a cooperative load and store
MMA_K = 16  # of an instruction: 32 bytes of each row


class KLoopGemm:
    def __init__(self, config: KLoopGemmConfig):
        self.tile = config.tile
        self.tmem_columns = max(32, config.tile[1])

    @cute.jit
    def __call__(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor):
        bM, bN, bK = self.tile
        sA_layout = self.smem_layout(bM, bK)
        sB_layout = self.smem_layout(bN, bK)

        # gmem -> smem: 16 bytes a thread, as many threads along K as a row of the tile is long.
        element_type = mC.element_type
        vector = COPY_BITS // element_type.width
        atom_g2s = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), element_type, num_bits_per_copy=COPY_BITS)
        threads_k = bK // vector
        thread_layout = cute.make_layout((THREADS // threads_k, threads_k), stride=(threads_k, 1))
        tiled_copy = cute.make_tiled_copy_tv(atom_g2s, thread_layout, cute.make_layout((1, vector)))

        # One instruction covers the tile's rows and columns. Both operands lie along K and come from shared memory.
        k_major = OperandMajorMode.K
        one, smem = tcgen05.CtaGroup.ONE, tcgen05.OperandSource.SMEM
        mma_op = tcgen05.MmaF16BF16Op(element_type, cutlass.Float32, (bM, bN, MMA_K), one, smem, k_major, k_major)
        tiled_mma = cute.make_tiled_mma(mma_op)

        @cute.struct
        class SharedStorage:
            mma_done: cutlass.Int64
            tmem: cutlass.Int32
            sA: cute.struct.Align[cute.struct.MemRange[element_type, cute.cosize(sA_layout)], 1024]
            sB: cute.struct.Align[cute.struct.MemRange[element_type, cute.cosize(sB_layout)], 1024]

        self.shared_storage = SharedStorage
        self.kernel(mA, mB, mC, sA_layout, sB_layout, tiled_copy, tiled_mma).launch(
            grid=(1, 1, 1), block=(THREADS, 1, 1)
        )

    @cute.kernel
    def kernel(
        self,
        mA: cute.Tensor,
        mB: cute.Tensor,
        mC: cute.Tensor,
        sA_layout: cute.ComposedLayout,
        sB_layout: cute.ComposedLayout,
        tiled_copy: cute.TiledCopy,
        tiled_mma: cute.TiledMma,
    ):
        tidx, _, _ = cute.arch.thread_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())

        smem = SmemAllocator()
        storage = smem.allocate(self.shared_storage)
        sA = storage.sA.get_tensor(sA_layout.outer, swizzle=sA_layout.inner)
        sB = storage.sB.get_tensor(sB_layout.outer, swizzle=sB_layout.inner)
        mma_done = storage.mma_done.ptr

        # One warp allocates TMEM and lets other CTAs of the SM do so next; the address comes through shared memory.
        if warp == 0:
            cute.arch.alloc_tmem(self.tmem_columns, storage.tmem.ptr)
            cute.arch.relinquish_tmem_alloc_permit()
            with cute.arch.elect_one():
                cute.arch.mbarrier_init(mma_done, 1)
                cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()
        tmem = cute.arch.retrieve_tmem_ptr(cutlass.Float32, 16, storage.tmem.ptr)

        # (BM, BK, k tiles), (BN, BK, k tiles)
        gA = cute.local_tile(mA, tiler=self.tile, coord=(0, 0, None), proj=(1, None, 1))
        gB = cute.local_tile(mB, tiler=self.tile, coord=(0, 0, None), proj=(None, 1, 1))

        # gmem -> smem
        thr_copy = tiled_copy.get_slice(tidx)
        tAgA, tAsA = thr_copy.partition_S(gA), thr_copy.partition_D(sA)
        tBgB, tBsB = thr_copy.partition_S(gB), thr_copy.partition_D(sB)

        # smem -> MMA -> tmem: fragments of A and B are descriptors, (MMA, M blocks, K blocks); that of C is an address.
        thr_mma = tiled_mma.get_slice(0)
        tCrA = tiled_mma.make_fragment_A(thr_mma.partition_A(sA))
        tCrB = tiled_mma.make_fragment_B(thr_mma.partition_B(sB))
        tCtC = tiled_mma.make_fragment_C(thr_mma.partition_shape_C(self.tile[:2]))
        tCtC = cute.make_tensor(tmem, tCtC.layout)

        # tmem -> registers -> gmem: a thread loads its lane, a row of the tile.
        atom_t2r = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition(self.tile[1])), cutlass.Float32)
        tiled_t2r = tcgen05.make_tmem_copy(atom_t2r, tCtC[(None, None), 0, 0])
        thr_t2r = tiled_t2r.get_slice(tidx)
        tDtC, tDgC = thr_t2r.partition_S(tCtC[(None, None), 0, 0]), thr_t2r.partition_D(mC)
        tDrC = cute.make_rmem_tensor(tDgC.shape, cutlass.Float32)

        tiled_mma.set(tcgen05.Field.ACCUMULATE, False)
        phase = cutlass.Int32(0)
        for k_tile in range(cute.size(gA, mode=[2])):
            # Each writer's fence, then the barrier, then the MMA: the other way round it could read stale bytes.
            cute.copy(tiled_copy, tAgA[None, None, None, k_tile], tAsA)
            cute.copy(tiled_copy, tBgB[None, None, None, k_tile], tBsB)
            cute.arch.fence_proxy("async.shared", space="cta")
            cute.arch.sync_threads()

            # One lane issues: the DSL elects it for each MMA, and we for the commit, which tracks those of its thread.
            if warp == 0:
                for k_block in cutlass.range_constexpr(cute.size(tCrA, mode=[2])):
                    cute.gemm(tiled_mma, tCtC, tCrA[None, None, k_block], tCrB[None, None, k_block], tCtC)
                    tiled_mma.set(tcgen05.Field.ACCUMULATE, True)
                with cute.arch.elect_one():
                    tcgen05.commit(mma_done)
            # The MMAs have read the tile: it may be overwritten.
            cute.arch.mbarrier_wait(mma_done, phase)
            phase ^= 1

        # Epilogue: tmem -> registers -> gmem
        fence_after_thread_sync()
        cute.copy(tiled_t2r, tDtC, tDrC)
        cute.arch.fence_view_async_tmem_load()
        tDrD = cute.make_fragment_like(tDrC, mC.element_type)
        tDrD.store(tDrC.load().to(mC.element_type))
        cute.autovec_copy(tDrD, tDgC)

        # Give TMEM back once every warp has read its lanes.
        fence_before_thread_sync()
        cute.arch.sync_threads()
        if warp == 0:
            fence_after_thread_sync()
            cute.arch.dealloc_tmem(tmem, self.tmem_columns)

    def smem_layout(self, rows: int, cols: int):
        """(rows, cols), row-major in columns of 64 elements: 128 bytes, the width of the swizzle."""
        atom = cute.make_composed_layout(cute.make_swizzle(3, 4, 3), 0, cute.make_layout((8, 64), stride=(64, 1)))
        return cute.tile_to_shape(atom, (rows, cols), order=(0, 1))


def compile(arch: str, shape: tuple[int, ...], dtype: str, config: KLoopGemmConfig | None = None) -> Program:
    """The rung for one architecture, shape (M, N, K) and element type. M and N are the tile's, K tiles by it."""
    (m, n, k), dtype = RUNG.check(arch, shape, dtype)
    config = config or KLoopGemmConfig()
    check_config(config)
    bM, bN, bK = config.tile
    RUNG.require(m == bM, f"M={m}: this rung computes one tile, M is {bM} (v3-grid takes more)")
    RUNG.require(n == bN, f"N={n}: this rung computes one tile, N is {bN} (v3-grid takes more)")
    RUNG.require(k % bK == 0, f"K={k}: copies are unmasked, pad K to a multiple of {bK}")
    arrays = [row_major(dtype, extents) for extents in ((m, k), (n, k), (m, n))]
    return compile_program(KLoopGemm(config), *arrays, arch=arch, name=RUNG.name)


def check_config(config: KLoopGemmConfig) -> None:
    """UsageError unless one MMA covers the tile's rows and columns and one load of TMEM its columns."""
    bM, bN, bK = config.tile
    RUNG.require(bM == 128, f"tile={config.tile}: M must be 128, the lanes of TMEM")
    RUNG.require(bN in (32, 64, 128), f"tile={config.tile}: N must be 32, 64 or 128, the columns of one tcgen05.ld")
    RUNG.require(bK in (64, 128), f"tile={config.tile}: K must be 64 or 128, in rows of 128 bytes")
