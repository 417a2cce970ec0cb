"""Tensor memory: allocated, written, read and given back, with no GEMM around it.

Adds:
    The memory that Blackwell's tensor cores accumulate in: 128 lanes x 512 columns of 32 bits an SM, which no
    instruction addresses but tcgen05's. A tile of X goes in by tcgen05.st from one warpgroup and comes out, doubled,
    by tcgen05.ld to another: memory that two groups of warps share without shared memory. Its life:
    - alloc: one warp asks for columns (a power of two from 32; all 128 lanes come with them) and waits while other CTAs
      of the SM hold them. The address comes back through shared memory. Who has all it needs gives up the permit to
      allocate, so that the next CTA need not wait for this one's end.
    - access: a warp reaches only lanes 32 (w % 4) to +31. So warp w + 4 reads what warp w wrote, never another.
    - order: st and ld are asynchronous. wait::st and wait::ld complete a thread's own; a barrier does not order them
      between threads unless fences stand before and after it.
    - dealloc: by a warp, once everyone is done; columns that a CTA keeps are lost to the SM.

Warp roles:
    | warps | role                                                                    |
    |-------|-------------------------------------------------------------------------|
    | 0-3   | write 32 rows of X each to tensor memory; warp 0 allocates and frees it |
    | 4-7   | read 32 rows each, double them, store them to Y                         |

Budget:
    TMEM: 128 lanes x 64 columns = 32 KB, an eighth of the SM's. SMEM 4 B, the address. Registers: a row of 64 values,
    78 a thread.

Run:
    tensorladder run z2-tmem-lifecycle --shape 200,100
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import tcgen05
from cutlass.memory import SmemAllocator

from tensorladder.core.program import Program
from tensorladder.frontends.cutedsl import compile_program
from tensorladder.rungs.parts.tcgen05 import fence_after_thread_sync, fence_before_thread_sync
from tensorladder.rungs.parts.tensors import row_major
from tensorladder.rungs.rung import Rung


@dataclass(frozen=True)
class TmemLifecycleConfig:
    """columns: of a CTA's tile of X and of tensor memory, a power of two from 32 (what alloc takes) to 128.

    repeat: columns that one tcgen05.st or ld moves (x1, x2, .. x128), so columns / repeat instructions a warp.
    """

    columns: int = 64
    repeat: int = 32


RUNG = Rung(
    name="z2-tmem-lifecycle",
    parent="z1-tv-to-mn",
    adds="tensor memory by itself: alloc, st, ld and dealloc between two warpgroups, with every wait and fence",
    archs=("sm_100a",),
    problem="doubled",
    dtypes=("fp32",),
    config=TmemLifecycleConfig,
)

LANES = 128
VECTOR = 4  # elements of a 16-byte access to global memory


class TmemLifecycle:
    def __init__(self, config: TmemLifecycleConfig):
        self.tile = (LANES, config.columns)
        self.columns = config.columns
        self.repeat = config.repeat
        self.threads = 2 * LANES

    @cute.jit
    def __call__(self, mX: cute.Tensor, mY: cute.Tensor):
        tiles = cute.ceil_div(mX.shape, self.tile)
        self.kernel(mX, mY).launch(grid=(*tiles, 1), block=(self.threads, 1, 1))

    @cute.kernel
    def kernel(self, mX: cute.Tensor, mY: cute.Tensor):
        tidx, _, _ = cute.arch.thread_idx()
        bidx, bidy, _ = cute.arch.block_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        gX = cute.local_tile(mX, self.tile, (bidx, bidy))
        gY = cute.local_tile(mY, self.tile, (bidx, bidy))
        cX = cute.local_tile(cute.make_identity_tensor(mX.shape), self.tile, (bidx, bidy))

        smem = SmemAllocator()
        address = smem.allocate_array(cutlass.Int32, 1)

        # One warp allocates. The barrier hands the address on to all.
        if warp == 0:
            cute.arch.alloc_tmem(self.columns, address)
            cute.arch.relinquish_tmem_alloc_permit()
            fence_before_thread_sync()
        cute.arch.sync_threads()
        fence_after_thread_sync()
        tmem = cute.arch.retrieve_tmem_ptr(cutlass.Float32, 16, address)

        # An address is lane << 16 | column. Thread t of either warpgroup works on lane t % 128.
        tT = cute.make_tensor(tmem, cute.make_layout(self.tile, stride=(1 << 16, 1)))
        repeat = tcgen05.Repetition(self.repeat)
        store_atom = cute.make_copy_atom(tcgen05.St32x32bOp(repeat), cutlass.Float32)
        load_atom = cute.make_copy_atom(tcgen05.Ld32x32bOp(repeat), cutlass.Float32)
        tiled_store = tcgen05.make_tmem_copy(store_atom, tT)
        tiled_load = tcgen05.make_tmem_copy(load_atom, tT)
        thr_store, thr_load = tiled_store.get_slice(tidx % LANES), tiled_load.get_slice(tidx % LANES)
        tSgX, tScX, tStT = thr_store.partition_S(gX), thr_store.partition_S(cX), thr_store.partition_D(tT)
        tLtT, tLgY, tLcX = thr_load.partition_S(tT), thr_load.partition_D(gY), thr_load.partition_D(cX)

        if warp < 4:
            tSrX = cute.make_rmem_tensor(tScX.shape, cutlass.Float32)
            tSrX.fill(0.0)
            self.copy_inside(tSgX, tSrX, tScX, mX.shape)
            cute.copy(tiled_store, tSrX, tStT)
            # This thread's stores are done; the fence orders them before the barrier.
            cute.arch.fence_view_async_tmem_store()
            fence_before_thread_sync()
        cute.arch.sync_threads()

        if warp >= 4:
            fence_after_thread_sync()
            tLrY = cute.make_rmem_tensor(tLcX.shape, cutlass.Float32)
            cute.copy(tiled_load, tLtT, tLrY)
            # The registers hold what was read only from here on.
            cute.arch.fence_view_async_tmem_load()
            fence_before_thread_sync()
            tLrY.store(tLrY.load() * 2.0)
            self.copy_inside(tLrY, tLgY, tLcX, mX.shape)

        # Nobody reads any more: the warp that allocated gives the columns back.
        cute.arch.sync_threads()
        if warp == 0:
            fence_after_thread_sync()
            cute.arch.dealloc_tmem(tmem, self.columns)

    @cute.jit
    def copy_inside(self, src: cute.Tensor, dst: cute.Tensor, coords: cute.Tensor, limit: cute.Shape):
        """Copy what lies inside the matrix, 16 bytes at a time: columns are a multiple of that."""
        src, dst, coords = (
            cute.logical_divide(cute.group_modes(t, 0, cute.rank(t)), cute.make_layout(VECTOR))
            for t in (src, dst, coords)
        )
        for i in cutlass.range_constexpr(cute.size(coords, mode=[1])):
            if cute.elem_less(coords[0, i], limit):
                cute.autovec_copy(src[None, i], dst[None, i])


def compile(arch: str, shape: tuple[int, ...], dtype: str, config: TmemLifecycleConfig | None = None) -> Program:
    """The rung for one architecture and shape (rows, cols). Any number of rows; cols a multiple of 4 (16 bytes)."""
    (rows, cols), dtype = RUNG.check(arch, shape, dtype)
    config = config or TmemLifecycleConfig()
    RUNG.require(cols % VECTOR == 0, f"cols={cols}: rows are copied 16 bytes at a time, pad cols to a multiple of 4")
    fits = config.columns in (32, 64, 128)
    RUNG.require(fits, f"columns={config.columns}: 32, 64 or 128 (tensor memory comes in powers of two from 32)")
    fits = config.repeat in (1, 2, 4, 8, 16, 32, 64, 128) and config.repeat <= config.columns
    RUNG.require(fits, f"repeat={config.repeat}: a power of two up to columns ({config.columns})")
    arrays = [row_major(dtype, (rows, cols)) for _ in range(2)]
    return compile_program(TmemLifecycle(config), *arrays, arch=arch, name=RUNG.name)
