"""Blackwell's tensor core on a single tile: every hand-off in the open, nothing overlapped.

Adds:
    tcgen05.mma. In the parent a warp multiplies what its lanes hold in registers, and holds the result there too. Here
    one thread starts the MMA for the whole CTA: operands are read from shared memory, by descriptors, and the result
    is written to tensor memory (TMEM), 128 lanes by 512 columns of 32 bits an SM. Neither takes a register, so that
    one instruction can be as large as 128 x 128 x 16.
    - TMEM is allocated in columns, by a warp, and has to be given back. Lane i of it is row i of the tile, and a warp
      reaches the 32 lanes of its own quarter alone: four warps load the tile, a row a thread.
    - Everything is asynchronous and says so. MMAs run in the order of their issue; `commit` makes an mbarrier arrive
      when those of its thread are done. `tcgen05.ld` is done after `tcgen05.wait::ld`.
    - Threads fill shared memory through the generic proxy, MMAs read it through the async proxy: each writer fences,
      then the CTA meets, then the MMA may start. The tile is swizzled by 128 bytes, as the descriptor says.
    - What threads know by a barrier does not order tensor memory: a fence stands before it on the side that lets go and
      behind it on the side that goes on (parts/tcgen05.py).

Warp roles:
    | warps | role                                                                        |
    |-------|-----------------------------------------------------------------------------|
    | 0     | allocates and frees TMEM; one elected lane starts the MMAs and commits them |
    | 0-3   | copy A and B to shared memory, 16 bytes a thread; write back a row a thread |

Budget:
    SMEM: (128 + 128) rows x 64 x 2 B = 32 KB, and 12 B. TMEM: 128 columns of 512, fp32. Registers: 128 accumulators a
    thread in the epilogue, none before it; 1 CTA of 128 threads.

Run:
    tensorladder run v1-one-tile --shape 128,128,64
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
class OneTileGemmConfig:
    """tile: (M, N, K) of the CTA, which is the whole problem."""

    tile: tuple[int, int, int] = (128, 128, 64)


RUNG = Rung(
    name="v1-one-tile",
    parent="b2-warp-mma",
    adds="tcgen05.mma of one tile: operands by descriptor, accumulators in tensor memory",
    archs=("sm_100a",),
    problem="gemm",
    dtypes=("fp16", "bf16"),
    config=OneTileGemmConfig,
    shape=(128, 128, 64),
)

THREADS = 128  # a thread a lane of TMEM
COPY_BITS = 128  # of a cooperative load and store
MMA_K = 16  # of an instruction: 32 bytes of each row


class OneTileGemm:
    def __init__(self, config: OneTileGemmConfig):
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

        # gmem -> smem
        thr_copy = tiled_copy.get_slice(tidx)
        tAgA, tAsA = thr_copy.partition_S(mA), thr_copy.partition_D(sA)
        tBgB, tBsB = thr_copy.partition_S(mB), thr_copy.partition_D(sB)

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

        # Each writer's fence, then the barrier, then the MMA: the other way round it could read stale bytes.
        cute.copy(tiled_copy, tAgA, tAsA)
        cute.copy(tiled_copy, tBgB, tBsB)
        cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.sync_threads()

        # One lane issues: the DSL elects it for each MMA, and we for the commit, which tracks the MMAs of its thread.
        if warp == 0:
            tiled_mma.set(tcgen05.Field.ACCUMULATE, False)
            for k_block in cutlass.range_constexpr(cute.size(tCrA, mode=[2])):
                cute.gemm(tiled_mma, tCtC, tCrA[None, None, k_block], tCrB[None, None, k_block], tCtC)
                tiled_mma.set(tcgen05.Field.ACCUMULATE, True)
            with cute.arch.elect_one():
                tcgen05.commit(mma_done)
        cute.arch.mbarrier_wait(mma_done, 0)

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


def compile(arch: str, shape: tuple[int, ...], dtype: str, config: OneTileGemmConfig | None = None) -> Program:
    """The rung for one architecture, shape (M, N, K) and element type. The shape is that of the tile."""
    (m, n, k), dtype = RUNG.check(arch, shape, dtype)
    config = config or OneTileGemmConfig()
    check_config(config)
    bM, bN, bK = config.tile
    RUNG.require(m == bM, f"M={m}: this rung computes one tile, M is {bM} (v3-grid takes more)")
    RUNG.require(n == bN, f"N={n}: this rung computes one tile, N is {bN} (v3-grid takes more)")
    RUNG.require(k == bK, f"K={k}: this rung computes one tile, K is {bK} (v2-k-loop takes more)")
    arrays = [row_major(dtype, extents) for extents in ((m, k), (n, k), (m, n))]
    return compile_program(OneTileGemm(config), *arrays, arch=arch, name=RUNG.name)


def check_config(config: OneTileGemmConfig) -> None:
    """UsageError unless one MMA covers the tile's rows and columns and one load of TMEM its columns."""
    bM, bN, bK = config.tile
    RUNG.require(bM == 128, f"tile={config.tile}: M must be 128, the lanes of TMEM")
    RUNG.require(bN in (32, 64, 128), f"tile={config.tile}: N must be 32, 64 or 128, the columns of one tcgen05.ld")
    RUNG.require(bK in (64, 128), f"tile={config.tile}: K must be 64 or 128, in rows of 128 bytes")
