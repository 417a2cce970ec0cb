"""Batched naive GEMM with dynamic shapes: C[l] = A[l] B[l]^T, compiled once for all L, M, N and K.

Adds:
    A batch and symbols. The extents are `cute.sym_int()` at compile time, so that layouts carry registers instead of
    constants, and the host code makes grid and strides from the arrays it is called with: one compilation serves
    every shape. The batch is the grid's third dimension, one more coordinate to slice with. What it costs is what the
    compiler no longer knows: all tiles are masked, strides are multiplied at run time, and loads are as wide as one
    element, because nothing says that a row starts on 16 bytes.

Warp roles:
    | warps | role                                                               |
    |-------|--------------------------------------------------------------------|
    | all 8 | 32 x 32 of one matrix's C: 2 x 2 elements a thread, 16 apart       |

Budget:
    SMEM 0 B. Registers: 4 accumulators, 2 * 2 * 8 operands of a K tile, about 64 a thread. Traffic: one element a
    multiply-add.

Run:
    tensorladder run a1-naive-batched --shape 2,128,128,64
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute

from tensorladder.core.program import Program
from tensorladder.frontends.cutedsl import compile_program
from tensorladder.problems import dtype_named
from tensorladder.rungs.parts.tensors import row_major
from tensorladder.rungs.rung import Rung


@dataclass(frozen=True)
class BatchedGemmConfig:
    """tile: (M, N, K) of a CTA. threads_m, threads_n: how its threads lie on the tile of C."""

    tile: tuple[int, int, int] = (32, 32, 8)
    threads_m: int = 16
    threads_n: int = 16


RUNG = Rung(
    name="a1-naive-batched",
    parent="a1-naive-cute",
    adds="a batch as the grid's z, and symbolic extents: one compilation for all shapes",
    aside="for batches, and where one compilation has to serve all shapes",
    archs=("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"),
    problem="gemm_batched",
    dtypes=("fp32", "fp16", "bf16"),
    config=BatchedGemmConfig,
)


class BatchedGemm:
    def __init__(self, config: BatchedGemmConfig):
        self.tile = config.tile
        self.threads_m, self.threads_n = config.threads_m, config.threads_n

    @cute.jit
    def __call__(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor):
        # Neighbouring threads along N: their stores to C are contiguous, their loads of A one broadcast.
        atoms = cute.make_layout((self.threads_m, self.threads_n, 1), stride=(self.threads_n, 1, 0))
        tiled_mma = cute.make_tiled_mma(cute.nvgpu.MmaUniversalOp(cutlass.Float32), atoms)
        tiles_m, tiles_n = cute.ceil_div(mC.shape[1:], self.tile[:2])
        self.kernel(mA, mB, mC, tiled_mma).launch(
            grid=(tiles_n, tiles_m, mC.shape[0]), block=(self.threads_m * self.threads_n, 1, 1)
        )

    @cute.kernel
    def kernel(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, tiled_mma: cute.TiledMma):
        tidx, _, _ = cute.arch.thread_idx()
        tile_n, tile_m, batch = cute.arch.block_idx()
        thr_mma = tiled_mma.get_slice(tidx)

        # This CTA's matrices.
        mA, mB, mC = mA[batch, None, None], mB[batch, None, None], mC[batch, None, None]

        # This CTA's tiles, of values and of coordinates: (BM, BK, k tiles), (BN, BK, k tiles), (BM, BN).
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
            if cute.elem_less(tCcC[i], mC.shape):
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
        """dst = float32 of src where its coordinates are inside `limit`, else 0."""
        for i in cutlass.range_constexpr(cute.size(dst)):
            dst[i] = cutlass.Float32(0)
            if cute.elem_less(coords[i], limit):
                dst[i] = src[i].to(cutlass.Float32)


def compile(arch: str, shape: tuple[int, ...], dtype: str, config: BatchedGemmConfig | None = None) -> Program:
    """The rung for one architecture and element type. The program takes any (L, M, N, K), not only `shape`."""
    (batch, _, _, _), dtype = RUNG.check(arch, shape, dtype)
    config = config or BatchedGemmConfig()
    check_tile(config.tile, config.threads_m, config.threads_n)
    RUNG.require(batch <= 65535, f"L={batch}: the grid's z has at most 65535 CTAs")
    l, m, n, k = (cute.sym_int() for _ in range(4))
    align = dtype_named(dtype).bits // 8
    arrays = [row_major(dtype, extents, align) for extents in ((l, m, k), (l, n, k), (l, m, n))]
    return compile_program(BatchedGemm(config), *arrays, arch=arch, name=RUNG.name)


def check_tile(tile: tuple[int, int, int], threads_m: int, threads_n: int) -> None:
    """UsageError unless the threads cover the tile of C evenly."""
    RUNG.require(0 < threads_m * threads_n <= 1024, f"{threads_m} x {threads_n} threads: a CTA has at most 1024")
    fits = tile[0] % threads_m == 0 and tile[1] % threads_n == 0
    RUNG.require(fits, f"tile={tile}: M and N must be multiples of {threads_m} and {threads_n} threads")
