"""Cluster launch control: a running CTA takes over the tile of a CTA that has not been launched yet.

Adds:
    Blackwell's dynamic scheduling in place of the parent's static stride. The grid has a CTA a tile, as if nothing were
    persistent; a CTA that is nearly through asks the hardware to cancel one that still waits (try_cancel), and does
    its tile. So the set-up of a CTA is paid once an SM, as with a persistent grid, but tiles go to whoever is free: no
    SM idles because its fixed share took longer, and other kernels may come in between.
    - The answer, 16 bytes, arrives like a TMA load: written to shared memory by the asynchronous proxy, its bytes
      counted by an mbarrier. It is asked for before a tile is computed and read after it, which hides its latency.
    - Before the next answer may overwrite it, everybody has read this one: a proxy fence, then a CTA barrier.
    - After a refusal there is nothing left, and one must not ask again.

Warp roles:
    | warps | role                                                                   |
    |-------|------------------------------------------------------------------------|
    | all 8 | compute tiles of C, 2 x 2 elements a thread                            |
    | 0     | besides: its first thread asks for the next tile                       |

Budget:
    SMEM: 16 B of answer and 8 B of mbarrier. Registers: as in the parent, about 48 a thread.

Run:
    tensorladder run a1-cluster-launch-control --shape 256,256,256
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass.memory import SmemAllocator

from tensorladder.core.program import Program
from tensorladder.frontends.cutedsl import compile_program
from tensorladder.rungs.parts.tensors import row_major
from tensorladder.rungs.rung import Rung


@dataclass(frozen=True)
class DynamicGemmConfig:
    """tile: (M, N, K) of a CTA. threads_m, threads_n: how its threads lie on the tile of C."""

    tile: tuple[int, int, int] = (32, 32, 8)
    threads_m: int = 16
    threads_n: int = 16


RUNG = Rung(
    name="a1-cluster-launch-control",
    parent="a1-naive-persistent",
    adds="dynamic persistence: a running CTA cancels one not yet launched and does its tile",
    aside="where tiles take unequal time or other kernels hold some of the SMs, on Blackwell",
    archs=("sm_100a", "sm_120a"),
    problem="gemm",
    dtypes=("fp32", "fp16", "bf16"),
    config=DynamicGemmConfig,
)


class DynamicGemm:
    def __init__(self, config: DynamicGemmConfig, whole: bool):
        self.tile = config.tile
        self.threads_m, self.threads_n = config.threads_m, config.threads_n
        self.whole = whole  # the tile divides the shape: nothing to mask

    @cute.jit
    def __call__(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor):
        # Neighbouring threads along N: their stores to C are contiguous, their loads of A one broadcast.
        atoms = cute.make_layout((self.threads_m, self.threads_n, 1), stride=(self.threads_n, 1, 0))
        tiled_mma = cute.make_tiled_mma(cute.nvgpu.MmaUniversalOp(cutlass.Float32), atoms)
        tiles = cute.ceil_div(mC.shape, self.tile[:2])
        grid = (cute.size(tiles), 1, 1)
        self.kernel(mA, mB, mC, tiled_mma, tiles).launch(grid=grid, block=(self.threads_m * self.threads_n, 1, 1))

    @cute.kernel
    def kernel(
        self,
        mA: cute.Tensor,
        mB: cute.Tensor,
        mC: cute.Tensor,
        tiled_mma: cute.TiledMma,
        tiles: cutlass.Constexpr,
    ):
        tidx, _, _ = cute.arch.thread_idx()
        smem = SmemAllocator()
        answer = smem.allocate_array(cutlass.Int32, 4, byte_alignment=16)
        answered = smem.allocate_array(cutlass.Int64)
        if tidx == 0:
            cute.arch.mbarrier_init(answered, 1)
            cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()

        tile, _, _ = cute.arch.block_idx()
        phase, more = cutlass.Int32(0), cutlass.Int32(1)
        while more != 0:
            if tidx == 0:
                cute.arch.mbarrier_arrive_and_expect_tx(answered, 16)
                cute.arch.issue_clc_query(answered, answer, multicast=False)
            tile_n, tile_m = tile // tiles[0], tile % tiles[0]
            self.compute_tile(mA, mB, mC, tiled_mma, tile_m, tile_n)

            # Whether a CTA was cancelled, and which: its index is the next tile. All have read the answer before the
            # asynchronous proxy may write the next one.
            cute.arch.mbarrier_wait(answered, phase)
            tile, _, _, more = cute.arch.clc_response(answer)
            cute.arch.fence_proxy("async.shared", space="cta")
            cute.arch.sync_threads()
            phase ^= 1

    @cute.jit
    def compute_tile(
        self,
        mA: cute.Tensor,
        mB: cute.Tensor,
        mC: cute.Tensor,
        tiled_mma: cute.TiledMma,
        tile_m: cutlass.Int32,
        tile_n: cutlass.Int32,
    ):
        """One tile of C, from its accumulators' zero to its store."""
        tidx, _, _ = cute.arch.thread_idx()
        thr_mma = tiled_mma.get_slice(tidx)

        # The tile's operands, of values and of coordinates: (BM, BK, k tiles), (BN, BK, k tiles), (BM, BN).
        coord = (tile_m, tile_n, None)
        gA, cA = self.tiles_of(mA, coord, (1, None, 1))
        gB, cB = self.tiles_of(mB, coord, (None, 1, 1))
        gC, cC = self.tiles_of(mC, coord, (1, 1, None))

        # This thread's share of them.
        tCgA, tCcA = thr_mma.partition_A(gA), thr_mma.partition_A(cA)
        tCgB, tCcB = thr_mma.partition_B(gB), thr_mma.partition_B(cB)
        tCgC, tCcC = thr_mma.partition_C(gC), thr_mma.partition_C(cC)
        tCrA = tiled_mma.make_fragment_A(tCgA[None, None, None, 0])
        tCrB = tiled_mma.make_fragment_B(tCgB[None, None, None, 0])
        tCrC = tiled_mma.make_fragment_C(tCgC)
        tCrC.fill(0.0)

        for k in range(cute.size(gA, mode=[2])):
            self.load(tCgA[None, None, None, k], tCcA[None, None, None, k], mA.shape, tCrA)
            self.load(tCgB[None, None, None, k], tCcB[None, None, None, k], mB.shape, tCrB)
            cute.gemm(tiled_mma, tCrC, tCrA, tCrB, tCrC)

        for i in cutlass.range_constexpr(cute.size(tCrC)):
            if self.whole or cute.elem_less(tCcC[i], mC.shape):
                tCgC[i] = tCrC[i].to(mC.element_type)

    @cute.jit
    def tiles_of(self, tensor: cute.Tensor, coord: cute.Coord, proj: cutlass.Constexpr):
        """The tiles of a tensor that this CTA works on, and the same tiles of its coordinates."""
        coords = cute.make_identity_tensor(tensor.shape)
        return (
            cute.local_tile(tensor, tiler=self.tile, coord=coord, proj=proj),
            cute.local_tile(coords, tiler=self.tile, coord=coord, proj=proj),
        )

    @cute.jit
    def load(self, src: cute.Tensor, coords: cute.Tensor, limit: cute.Shape, dst: cute.Tensor):
        """dst = float32 of src where its coordinates are inside `limit`, else 0. No masks where all tiles are whole."""
        if cutlass.const_expr(self.whole):
            dst.store(src.load().to(cutlass.Float32))
        else:
            for i in cutlass.range_constexpr(cute.size(dst)):
                dst[i] = cutlass.Float32(0)
                if cute.elem_less(coords[i], limit):
                    dst[i] = src[i].to(cutlass.Float32)


def compile(arch: str, shape: tuple[int, ...], dtype: str, config: DynamicGemmConfig | None = None) -> Program:
    """The rung for one architecture, shape (M, N, K) and element type. Any shape."""
    (m, n, k), dtype = RUNG.check(arch, shape, dtype)
    config = config or DynamicGemmConfig()
    check_tile(config.tile, config.threads_m, config.threads_n)
    whole = all(extent % size == 0 for extent, size in zip((m, n, k), config.tile))
    arrays = [row_major(dtype, extents) for extents in ((m, k), (n, k), (m, n))]
    return compile_program(DynamicGemm(config, whole), *arrays, arch=arch, name=RUNG.name)


def check_tile(tile: tuple[int, int, int], threads_m: int, threads_n: int) -> None:
    """UsageError unless the threads cover the tile of C evenly."""
    RUNG.require(0 < threads_m * threads_n <= 1024, f"{threads_m} x {threads_n} threads: a CTA has at most 1024")
    fits = tile[0] % threads_m == 0 and tile[1] % threads_n == 0
    RUNG.require(fits, f"tile={tile}: M and N must be multiples of {threads_m} and {threads_n} threads")
