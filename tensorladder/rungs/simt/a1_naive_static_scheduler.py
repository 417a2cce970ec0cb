"""Persistent naive GEMM, scheduled by CUTLASS: StaticPersistentTileScheduler deals the tiles.

Adds:
    A tile scheduler as an object. The parent's loop and its division are replaced by the scheduler that CUTLASS's
    persistent kernels use: its parameters (tiles in m, n, batch; cluster shape; how the raster turns) are made on the
    host, its divisions are multiplications by precomputed reciprocals, and the kernel asks for work until a tile is
    not valid. The tiles and their order are the parent's; what is won is the interface, behind which clusters,
    swizzled rasters and (with other schedulers) work stealing fit with no change of the kernel.

Warp roles:
    | warps | role                                                       |
    |-------|------------------------------------------------------------|
    | all 8 | 32 x 32 of C at a time: 2 x 2 elements a thread, 16 apart  |

Budget:
    SMEM 0 B. Registers: 4 accumulators, 2 * 2 * 8 operands of a K tile, 40 a thread in fp32, 62 in fp16: 4 CTAs an SM.
    Traffic: one element a multiply-add, by 16-byte loads where tiles are whole.

Run:
    tensorladder run a1-naive-static-scheduler --shape 256,256,256
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import utils

from tensorladder.core.program import Program
from tensorladder.frontends.cutedsl import compile_program
from tensorladder.rungs.parts.tensors import row_major
from tensorladder.rungs.rung import Rung


@dataclass(frozen=True)
class StaticSchedulerGemmConfig:
    """tile: (M, N, K) of a CTA. threads_m, threads_n: how its threads lie on the tile of C.

    sm_count, ctas_per_sm: the grid is their product, or the number of tiles where that is less.
    """

    tile: tuple[int, int, int] = (32, 32, 8)
    threads_m: int = 16
    threads_n: int = 16
    sm_count: int = 132
    ctas_per_sm: int = 4


RUNG = Rung(
    name="a1-naive-static-scheduler",
    parent="a1-naive-persistent",
    adds="tiles from CUTLASS's StaticPersistentTileScheduler",
    aside="for kernels that take their tiles from CUTLASS's schedulers",
    archs=("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"),
    problem="gemm",
    dtypes=("fp32", "fp16", "bf16"),
    config=StaticSchedulerGemmConfig,
)


class StaticSchedulerGemm:
    def __init__(self, config: StaticSchedulerGemmConfig, whole: bool):
        self.tile = config.tile
        self.threads_m, self.threads_n = config.threads_m, config.threads_n
        self.max_ctas = config.sm_count * config.ctas_per_sm
        self.whole = whole  # the tile divides the shape: nothing to mask

    @cute.jit
    def __call__(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor):
        # Neighbouring threads along N: their stores to C are contiguous, their loads of A one broadcast.
        atoms = cute.make_layout((self.threads_m, self.threads_n, 1), stride=(self.threads_n, 1, 0))
        tiled_mma = cute.make_tiled_mma(cute.nvgpu.MmaUniversalOp(cutlass.Float32), atoms)
        tiles = cute.ceil_div(mC.shape, self.tile[:2])
        schedule = utils.PersistentTileSchedulerParams((*tiles, 1), (1, 1, 1))
        grid = utils.StaticPersistentTileScheduler.get_grid_shape(schedule, self.max_ctas)
        self.kernel(mA, mB, mC, tiled_mma, schedule).launch(grid=grid, block=(self.threads_m * self.threads_n, 1, 1))

    @cute.kernel
    def kernel(
        self,
        mA: cute.Tensor,
        mB: cute.Tensor,
        mC: cute.Tensor,
        tiled_mma: cute.TiledMma,
        schedule: utils.PersistentTileSchedulerParams,
    ):
        scheduler = utils.StaticPersistentTileScheduler.create(schedule, cute.arch.block_idx(), cute.arch.grid_dim())
        work = scheduler.initial_work_tile_info()
        while work.is_valid_tile:
            tile_m, tile_n, _ = work.tile_idx
            self.compute_tile(mA, mB, mC, tiled_mma, tile_m, tile_n)
            scheduler.advance_to_next_work()
            work = scheduler.get_current_work()

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


def compile(arch: str, shape: tuple[int, ...], dtype: str, config: StaticSchedulerGemmConfig | None = None) -> Program:
    """The rung for one architecture, shape (M, N, K) and element type. Any shape."""
    (m, n, k), dtype = RUNG.check(arch, shape, dtype)
    config = config or StaticSchedulerGemmConfig()
    check_tile(config.tile, config.threads_m, config.threads_n)
    RUNG.require(config.sm_count > 0 and config.ctas_per_sm > 0, "sm_count and ctas_per_sm must be positive")
    whole = all(extent % size == 0 for extent, size in zip((m, n, k), config.tile))
    arrays = [row_major(dtype, extents) for extents in ((m, k), (n, k), (m, n))]
    return compile_program(StaticSchedulerGemm(config, whole), *arrays, arch=arch, name=RUNG.name)


def check_tile(tile: tuple[int, int, int], threads_m: int, threads_n: int) -> None:
    """UsageError unless the threads cover the tile of C evenly."""
    RUNG.require(0 < threads_m * threads_n <= 1024, f"{threads_m} x {threads_n} threads: a CTA has at most 1024")
    fits = tile[0] % threads_m == 0 and tile[1] % threads_n == 0
    RUNG.require(fits, f"tile={tile}: M and N must be multiples of {threads_m} and {threads_n} threads")
