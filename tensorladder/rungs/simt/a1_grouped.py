"""Grouped GEMM: many matrix products of different sizes in one launch, their tiles dealt out as one sequence.

Adds:
    A tile scheduler over groups. A mixture of experts, say, needs many small products of different M, N and K; launched
    one by one, each fills the GPU badly and ends with a wave that is nearly empty. Here the tiles of all products form
    one sequence, and the parent's persistent CTAs stride over that: only the very last wave is ragged. The sizes are
    data: a table in global memory, a row a group, says how large its matrices are and where they begin, so that one
    compiled kernel does any mixture. A CTA finds the group of a tile by walking along the table and counting tiles,
    always forward, since its tiles' numbers rise.

Warp roles:
    | warps | role                                                       |
    |-------|------------------------------------------------------------|
    | all 8 | 32 x 32 of C at a time: 2 x 2 elements a thread, 16 apart  |

Budget:
    SMEM 0 B. Registers: as in the parent, plus a row of the table, about 64 a thread. Strides are known only at run
    time and rows need not be aligned, so loads are of single elements and masked.

Run:
    tensorladder run a1-grouped --shape 4,128,128,64
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute

from tensorladder.core.program import Program
from tensorladder.frontends.cutedsl import compile_program
from tensorladder.problems.grouped_gemm import groups
from tensorladder.rungs.parts.tensors import row_major
from tensorladder.rungs.rung import Rung


@dataclass(frozen=True)
class GroupedGemmConfig:
    """tile: (M, N, K) of a CTA. threads_m, threads_n: how its threads lie on the tile of C.

    sm_count, ctas_per_sm: the grid is their product, or the number of tiles where that is less.
    """

    tile: tuple[int, int, int] = (32, 32, 8)
    threads_m: int = 16
    threads_n: int = 16
    sm_count: int = 132
    ctas_per_sm: int = 4


RUNG = Rung(
    name="a1-grouped",
    parent="a1-naive-persistent",
    adds="a group tile scheduler: products of different M, N, K as one sequence of tiles, sizes read from a table",
    aside="for products of different extents in one launch",
    archs=("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"),
    problem="grouped_gemm",
    dtypes=("fp32", "fp16", "bf16"),
    config=GroupedGemmConfig,
)


class GroupedGemm:
    def __init__(self, config: GroupedGemmConfig, tiles: int):
        self.tile = config.tile
        self.threads_m, self.threads_n = config.threads_m, config.threads_n
        self.ctas = min(tiles, config.sm_count * config.ctas_per_sm)

    @cute.jit
    def __call__(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mT: cute.Tensor):
        # Neighbouring threads along N: their stores to C are contiguous, their loads of A one broadcast.
        atoms = cute.make_layout((self.threads_m, self.threads_n, 1), stride=(self.threads_n, 1, 0))
        tiled_mma = cute.make_tiled_mma(cute.nvgpu.MmaUniversalOp(cutlass.Float32), atoms)
        block = (self.threads_m * self.threads_n, 1, 1)
        self.kernel(mA, mB, mC, mT, tiled_mma).launch(grid=(self.ctas, 1, 1), block=block)

    @cute.kernel
    def kernel(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mT: cute.Tensor, tiled_mma: cute.TiledMma):
        bidx, _, _ = cute.arch.block_idx()
        gdim, _, _ = cute.arch.grid_dim()
        bM, bN, _ = self.tile

        # The group looked at, and how many tiles there are before it and in it.
        tile, group, before = bidx, cutlass.Int32(0), cutlass.Int32(0)
        while group < mT.shape[0]:
            m, n, k = mT[group, 0], mT[group, 1], mT[group, 2]
            tiles_m, tiles_n = cute.ceil_div(m, bM), cute.ceil_div(n, bN)
            gA = cute.make_tensor(mA.iterator + mT[group, 3], cute.make_layout((m, k), stride=(k, 1)))
            gB = cute.make_tensor(mB.iterator + mT[group, 4], cute.make_layout((n, k), stride=(k, 1)))
            gC = cute.make_tensor(mC.iterator + mT[group, 5], cute.make_layout((m, n), stride=(n, 1)))
            after = before + tiles_m * tiles_n
            while tile < after:
                tile_n, tile_m = (tile - before) // tiles_m, (tile - before) % tiles_m
                self.compute_tile(gA, gB, gC, tiled_mma, tile_m, tile_n)
                tile += gdim
            before = after
            group += 1

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


def compile(arch: str, shape: tuple[int, ...], dtype: str, config: GroupedGemmConfig | None = None) -> Program:
    """The rung for one architecture, shape (G, M, N, K) and element type. Any shape below 2**31 elements a matrix."""
    shape, dtype = RUNG.check(arch, shape, dtype)
    config = config or GroupedGemmConfig()
    check_tile(config.tile, config.threads_m, config.threads_n)
    RUNG.require(config.sm_count > 0 and config.ctas_per_sm > 0, "sm_count and ctas_per_sm must be positive")
    sizes = groups(shape)
    packed = [sum(m * k for m, n, k in sizes), sum(n * k for m, n, k in sizes), sum(m * n for m, n, k in sizes)]
    RUNG.require(max(packed) < 2**31, f"shape={shape}: {max(packed)} elements, the table holds 32-bit places")
    bM, bN, _ = config.tile
    tiles = sum(-(-m // bM) * -(-n // bN) for m, n, k in sizes)
    arrays = [*(row_major(dtype, (size,)) for size in packed), row_major("int32", (len(sizes), 6))]
    return compile_program(GroupedGemm(config, tiles), *arrays, arch=arch, name=RUNG.name)


def check_tile(tile: tuple[int, int, int], threads_m: int, threads_n: int) -> None:
    """UsageError unless the threads cover the tile of C evenly."""
    RUNG.require(0 < threads_m * threads_n <= 1024, f"{threads_m} x {threads_n} threads: a CTA has at most 1024")
    fits = tile[0] % threads_m == 0 and tile[1] % threads_n == 0
    RUNG.require(fits, f"tile={tile}: M and N must be multiples of {threads_m} and {threads_n} threads")
