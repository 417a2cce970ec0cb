"""A grid of CTAs in TIRx: each computes its tile of C, any number of them.

Adds:
    Coordinates. `T.cta_id([m tiles, n tiles])` declares the grid as well as naming the CTA's place in it, and tiles
    are slices of the matrices from there: nothing else changes.
    - The CTAs run in any order, and up to three lie on an SM (registers allow three, tensor memory four, shared memory
      six). That is what the permit is for that a CTA gives back right after allocating: until then no other of the SM
      may allocate. And it is why the kernel has to go by the address that it was given: the second CTA's is not column
      0.
    - CTAs of a row of tiles read the same rows of A, those of a column the same rows of B: from L2, it is hoped.

Warp roles:
    | warps | role                                                                        |
    |-------|-----------------------------------------------------------------------------|
    | 0     | allocates and frees TMEM; one elected lane starts the MMAs and commits them |
    | 0-3   | copy A and B to shared memory, 16 bytes a thread; write back a row a thread |

Budget:
    SMEM: (128 + 128) rows x 64 x 2 B = 32 KB, and 12 B. TMEM: 128 columns of 512, fp32. Registers: 128 accumulators a
    thread in the epilogue, none before it: 3 CTAs an SM.

Run:
    tensorladder run tirx-v3-grid --shape 256,256,256
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm.script import tirx as T
from tvm.script.tirx import tile as Tx
from tvm.tirx import PrimFunc

from tensorladder.core.program import Program
from tensorladder.frontends.tirx import compile_program
from tensorladder.rungs.rung import Rung
from tensorladder.rungs.tirx.tiles import ELEMENTS, row_a_thread, tmem_layout


@dataclass(frozen=True)
class GridTirxConfig:
    """tile: (M, N, K) of a step of a CTA."""

    tile: tuple[int, int, int] = (128, 128, 64)


RUNG = Rung(
    name="tirx-v3-grid",
    parent="tirx-v2-k-loop",
    adds="a grid of CTAs, a tile of C each",
    archs=("sm_100a",),
    problem="gemm",
    dtypes=("fp16", "bf16"),
    config=GridTirxConfig,
    shape=(256, 256, 256),
)

THREADS = 128  # a thread a lane of TMEM


def gemm(m: int, n: int, k: int, element: str, config: GridTirxConfig) -> PrimFunc:
    """The kernel, its extents and element type built in."""
    bM, bN, bK = config.tile
    tmem_columns = max(32, bN)

    @T.prim_func
    def kernel(A: T.Buffer((m, k), element), B: T.Buffer((n, k), element), C: T.Buffer((m, n), element)):
        T.device_entry()
        m_tile, n_tile = T.cta_id([m // bM, n // bN])
        warp = T.warp_id([THREADS // 32])
        thread = T.thread_id([THREADS])

        smem = T.SMEMPool()
        sA = smem.alloc_tcgen05_mma_AB((bM, bK), element)
        sB = smem.alloc_tcgen05_mma_AB((bN, bK), element)
        mma_done = smem.alloc((1,), "uint64", align=8)
        tmem = smem.alloc((1,), "uint32", align=4)
        smem.commit()

        # One warp allocates TMEM and lets other CTAs of the SM do so next; the address comes through shared memory.
        if warp == 0:
            T.ptx["tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32"](tmem.ptr_to([0]), T.uint32(tmem_columns))
            T.ptx["tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned"]()
            if T.cuda.elect_sync():
                T.ptx["mbarrier.init.shared.b64"](mma_done.ptr_to([0]), T.uint32(1))
                T.ptx["fence.mbarrier_init.release.cluster"]()
        T.cuda.cta_sync()
        tmem_base: T.let = tmem[0]
        tC = T.decl_buffer((bM, bN), "float32", scope="tmem", allocated_addr=tmem_base, layout=tmem_layout(bN))

        m_at, n_at = T.meta_var(m_tile * bM), T.meta_var(n_tile * bN)
        for k_tile in range(k // bK):
            # Each writer's fence, then the barrier, then the MMA: the other way round it could read stale bytes.
            k_at = T.meta_var(k_tile * bK)
            Tx.cta.copy(sA[:, :], A[m_at : m_at + bM, k_at : k_at + bK])
            Tx.cta.copy(sB[:, :], B[n_at : n_at + bN, k_at : k_at + bK])
            T.ptx["fence.proxy.async.shared::cta"]()
            T.cuda.cta_sync()

            # One lane issues the MMAs and the commit, which tracks those of its thread.
            if warp == 0:
                if T.cuda.elect_sync():
                    Tx.gemm_async(tC[:, :], sA[:, :], sB[:, :], accum=k_tile > 0, dispatch="tcgen05", cta_group=1)
                    T.ptx["tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64"](mma_done.ptr_to([0]))
            # The MMAs have read the tile: it may be overwritten.
            T.cuda.mbarrier_wait(mma_done.ptr_to([0]), k_tile % 2)

        # Epilogue: tmem -> registers -> gmem. A thread loads its lane, a row of the tile.
        T.ptx["tcgen05.fence::after_thread_sync"]()
        rC = T.alloc_local((bN,), "float32")
        rD = T.alloc_local((bN,), element)
        rows = rC.view(bM, bN, layout=row_a_thread(bN))
        Tx.wg.copy_async(rows[:, :], tC[:, :])
        T.ptx["tcgen05.wait::ld.sync.aligned"]()
        Tx.cast(rD[:], rC[:])
        Tx.copy(C[m_at + thread, n_at : n_at + bN], rD[:])

        # Give TMEM back once every warp has read its lanes.
        T.ptx["tcgen05.fence::before_thread_sync"]()
        T.cuda.cta_sync()
        if warp == 0:
            T.ptx["tcgen05.fence::after_thread_sync"]()
            T.ptx["tcgen05.dealloc.cta_group::1.sync.aligned.b32"](tmem_base, T.uint32(tmem_columns))

    return kernel


def compile(arch: str, shape: tuple[int, ...], dtype: str, config: GridTirxConfig | None = None) -> Program:
    """The rung for one architecture, shape (M, N, K) and element type. All three tile by the tile."""
    (m, n, k), dtype = RUNG.check(arch, shape, dtype)
    config = config or GridTirxConfig()
    check_config(config)
    bM, bN, bK = config.tile
    RUNG.require(m % bM == 0, f"M={m}: copies are unmasked, pad M to a multiple of {bM}")
    RUNG.require(n % bN == 0, f"N={n}: copies are unmasked, pad N to a multiple of {bN}")
    RUNG.require(k % bK == 0, f"K={k}: copies are unmasked, pad K to a multiple of {bK}")
    return compile_program(gemm, m, n, k, ELEMENTS[dtype], config, arch=arch, name=RUNG.name)


def check_config(config: GridTirxConfig) -> None:
    """UsageError unless one MMA covers the tile's rows and columns and one load of TMEM its columns."""
    bM, bN, bK = config.tile
    RUNG.require(bM == 128, f"tile={config.tile}: M must be 128, the lanes of TMEM")
    RUNG.require(bN in (32, 64, 128), f"tile={config.tile}: N must be 32, 64 or 128, the columns of one tcgen05.ld")
    RUNG.require(bK in (64, 128), f"tile={config.tile}: K must be 64 or 128, in rows of 128 bytes")
