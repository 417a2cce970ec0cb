"""Naive GEMM behind TVM-FFI: called with plain arrays, which the compiled function checks itself.

Adds:
    A calling convention. Compiled with `--enable-tvm-ffi`, the host part is a TVM-FFI function: it takes any DLPack
    array (torch, numpy, jax) with no wrapping in Python and checks what the fake tensors promised: rank, dtype,
    device, the static N and K, that the M of A and of C are the same symbol, alignment. A call is then a fraction of
    a microsecond instead of tens, which counts where a kernel takes ten. It also ends the choice between static and
    dynamic: each extent is one or the other on its own. Here M, the tokens of a batch, stays free; N and K, the
    weights, are known, so that loads are 16 bytes wide and only rows are masked.

Warp roles:
    | warps | role                                                       |
    |-------|------------------------------------------------------------|
    | all 8 | 32 x 32 of C: 2 x 2 elements a thread, 16 apart            |

Budget:
    SMEM 0 B. Registers: 4 accumulators, 2 * 2 * 8 operands of a K tile, about 48 a thread (fp32). Traffic: one
    element a multiply-add.

Run:
    tensorladder run a1-naive-tvm-ffi --shape 200,256,256
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute

from tensorladder.core.program import Program
from tensorladder.frontends.cutedsl import compile_program
from tensorladder.rungs.parts.tensors import row_major
from tensorladder.rungs.rung import Rung


@dataclass(frozen=True)
class TvmFfiGemmConfig:
    """tile: (M, N, K) of a CTA. threads_m, threads_n: how its threads lie on the tile of C."""

    tile: tuple[int, int, int] = (32, 32, 8)
    threads_m: int = 16
    threads_n: int = 16


RUNG = Rung(
    name="a1-naive-tvm-ffi",
    parent="a1-naive-batched",
    adds="a TVM-FFI host part that checks plain arrays; M symbolic, N and K static",
    aside="for callers that have plain arrays and TVM-FFI",
    archs=("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"),
    problem="gemm",
    dtypes=("fp32", "fp16", "bf16"),
    config=TvmFfiGemmConfig,
)


class TvmFfiGemm:
    def __init__(self, config: TvmFfiGemmConfig, whole: bool):
        self.tile = config.tile
        self.threads_m, self.threads_n = config.threads_m, config.threads_n
        self.whole = whole  # the tile divides N and K: only rows are masked

    @cute.jit
    def __call__(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor):
        # Neighbouring threads along N: their stores to C are contiguous, their loads of A one broadcast.
        atoms = cute.make_layout((self.threads_m, self.threads_n, 1), stride=(self.threads_n, 1, 0))
        tiled_mma = cute.make_tiled_mma(cute.nvgpu.MmaUniversalOp(cutlass.Float32), atoms)
        tiles_m, tiles_n = cute.ceil_div(mC.shape, self.tile[:2])
        self.kernel(mA, mB, mC, tiled_mma).launch(
            grid=(tiles_n, tiles_m, 1), block=(self.threads_m * self.threads_n, 1, 1)
        )

    @cute.kernel
    def kernel(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, tiled_mma: cute.TiledMma):
        tidx, _, _ = cute.arch.thread_idx()
        tile_n, tile_m, _ = cute.arch.block_idx()
        thr_mma = tiled_mma.get_slice(tidx)

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
        """dst = float32 of src where its coordinates are inside `limit`, else 0: row by row where columns are whole."""
        if cutlass.const_expr(self.whole):
            for i in cutlass.range_constexpr(cute.size(dst, mode=[1])):
                dst[None, i, None].fill(0.0)
                if cute.elem_less(coords[0, i, 0], limit):
                    dst[None, i, None].store(src[None, i, None].load().to(cutlass.Float32))
        else:
            for i in cutlass.range_constexpr(cute.size(dst)):
                dst[i] = cutlass.Float32(0)
                if cute.elem_less(coords[i], limit):
                    dst[i] = src[i].to(cutlass.Float32)


def compile(arch: str, shape: tuple[int, ...], dtype: str, config: TvmFfiGemmConfig | None = None) -> Program:
    """The rung for one architecture, N, K and element type. The program takes any M, not only that of `shape`."""
    (_, n, k), dtype = RUNG.check(arch, shape, dtype)
    config = config or TvmFfiGemmConfig()
    check_tile(config.tile, config.threads_m, config.threads_n)
    whole = all(extent % size == 0 for extent, size in zip((n, k), config.tile[1:]))
    m = cute.sym_int()
    arrays = [row_major(dtype, extents) for extents in ((m, k), (n, k), (m, n))]
    return compile_program(TvmFfiGemm(config, whole), *arrays, arch=arch, name=RUNG.name, options="--enable-tvm-ffi")


def check_tile(tile: tuple[int, int, int], threads_m: int, threads_n: int) -> None:
    """UsageError unless the threads cover the tile of C evenly."""
    RUNG.require(0 < threads_m * threads_n <= 1024, f"{threads_m} x {threads_n} threads: a CTA has at most 1024")
    fits = tile[0] % threads_m == 0 and tile[1] % threads_n == 0
    RUNG.require(fits, f"tile={tile}: M and N must be multiples of {threads_m} and {threads_n} threads")
