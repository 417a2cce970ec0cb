"""Column-wise scaling: a factor a column, applied to the accumulator in registers before C is stored.

Adds:
    A fused epilogue. C = (A B^T) * R needs R[n] for each accumulator, and which (m, n) a thread's register belongs to
    is what the MMA's thread-value layout says. So it is asked: R is viewed as an M x N matrix whose stride along M is
    zero and dealt to threads by the same layout as C. The register that meets accumulator i is then R's element of
    the same column, by construction and for any tiling, with no index arithmetic. It is faster than a second kernel
    because C is not read and written again (4 M N bytes in fp16): at 4096 cubed on an H200 as fast as b2 alone, which
    with such a kernel behind it takes 6 % more. It is more exact, because the product is rounded once.

Warp roles:
    | warps | role                                                                       |
    |-------|----------------------------------------------------------------------------|
    | all 4 | copy a quarter of each stage; multiply and scale 64 x 64 of C (2 x 2 warps) |

Budget:
    SMEM: (128 + 128) rows x 32 x 2 B = 16 KB a stage, 4 stages: 64 KB, 2 CTAs an SM on sm_80 and sm_90. Registers: as
    the parent (128 accumulators, 32 of fragments); the 16 factors of a thread's columns come after the fragments are
    dead, and the zero stride keeps them 16 instead of 128. No TMEM.

Run:
    tensorladder run b6-colwise-scaling --shape 256,256,256
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass.memory import SmemAllocator

from tensorladder.core import arch as archs
from tensorladder.core.program import Program
from tensorladder.frontends.cutedsl import compile_program
from tensorladder.rungs.parts.tensors import row_major
from tensorladder.rungs.rung import Rung


@dataclass(frozen=True)
class ColwiseScalingGemmConfig:
    """tile: (M, N, K) of a CTA. warps_m, warps_n: how they lie on the tile of C. stages: K tiles in shared memory.

    raster: rows of tiles that consecutive CTAs go down before the next column, so that they share A and B in L2.
    """

    tile: tuple[int, int, int] = (128, 128, 32)
    warps_m: int = 2
    warps_n: int = 2
    stages: int = 4
    raster: int = 8


RUNG = Rung(
    name="b6-colwise-scaling",
    parent="b2-warp-mma",
    adds="an epilogue fused through the accumulator's TV layout: C = (A B^T) * R[n], rounded once",
    aside="for products with a factor a column, which a kernel of its own would read and write C for",
    archs=("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"),
    problem="gemm_colwise_scale",
    dtypes=("fp16", "bf16"),
    config=ColwiseScalingGemmConfig,
)

COPY_BITS = 128


class ColwiseScalingGemm:
    def __init__(self, config: ColwiseScalingGemmConfig, whole: bool):
        self.tile = config.tile
        self.warps = (config.warps_m, config.warps_n, 1)
        self.threads = 32 * config.warps_m * config.warps_n
        self.stages = config.stages
        self.raster = config.raster
        self.whole = whole  # the tile divides the shape: nothing to mask

    @cute.jit
    def __call__(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mR: cute.Tensor):
        bM, bN, bK = self.tile
        sA_layout = self.smem_layout(bM)
        sB_layout = self.smem_layout(bN)

        # gmem -> smem: 16 bytes a thread, as many threads along K as a row of the tile is long.
        vector = COPY_BITS // mA.element_type.width
        atom_g2s = cute.make_copy_atom(
            cute.nvgpu.cpasync.CopyG2SOp(cache_mode=cute.nvgpu.LoadCacheMode.GLOBAL),
            mA.element_type,
            num_bits_per_copy=COPY_BITS,
        )
        threads_k = bK // vector
        thread_layout = cute.make_layout((self.threads // threads_k, threads_k), stride=(threads_k, 1))
        value_layout = cute.make_layout((1, vector))
        tiled_copy = cute.make_tiled_copy_tv(atom_g2s, thread_layout, value_layout)

        # Two MMAs side by side along N make the 16 x 16 block of B that one ldmatrix.x4 loads.
        mma_op = cute.nvgpu.warp.MmaF16BF16Op(mA.element_type, cutlass.Float32, (16, 8, 16))
        permutation_mnk = (self.warps[0] * 16, self.warps[1] * 16, 16)
        tiled_mma = cute.make_tiled_mma(mma_op, cute.make_layout(self.warps), permutation_mnk=permutation_mnk)

        # R as a matrix of C's shape: every row is R.
        mR = cute.make_tensor(mR.iterator, cute.make_layout(mC.shape, stride=(0, 1)))

        tiles = cute.ceil_div(mC.shape, (bM, bN))
        self.kernel(mA, mB, mC, mR, sA_layout, sB_layout, tiled_copy, tiled_mma, tiles).launch(
            grid=(cute.size(tiles), 1, 1), block=(self.threads, 1, 1)
        )

    @cute.kernel
    def kernel(
        self,
        mA: cute.Tensor,
        mB: cute.Tensor,
        mC: cute.Tensor,
        mR: cute.Tensor,
        sA_layout: cute.ComposedLayout,
        sB_layout: cute.ComposedLayout,
        tiled_copy: cute.TiledCopy,
        tiled_mma: cute.TiledMma,
        tiles: cutlass.Constexpr,
    ):
        tidx, _, _ = cute.arch.thread_idx()
        bidx, _, _ = cute.arch.block_idx()
        coord = (*self.raster_tile(bidx, tiles), None)

        smem = SmemAllocator()
        sA = smem.allocate_tensor(mA.element_type, sA_layout.outer, 1024, sA_layout.inner)
        sB = smem.allocate_tensor(mB.element_type, sB_layout.outer, 1024, sB_layout.inner)

        # (BM, BK, k tiles), (BN, BK, k tiles), (BM, BN): values, and coordinates for the masks.
        gA, cA = self.tiles_of(mA, coord, (1, None, 1))
        gB, cB = self.tiles_of(mB, coord, (None, 1, 1))
        gC, cC = self.tiles_of(mC, coord, (1, 1, None))
        gR, _ = self.tiles_of(mR, coord, (1, 1, None))

        # gmem -> smem
        thr_copy = tiled_copy.get_slice(tidx)
        tAgA, tAcA, tAsA = thr_copy.partition_S(gA), thr_copy.partition_S(cA), thr_copy.partition_D(sA)
        tBgB, tBcB, tBsB = thr_copy.partition_S(gB), thr_copy.partition_S(cB), thr_copy.partition_D(sB)

        # smem -> registers -> MMA
        thr_mma = tiled_mma.get_slice(tidx)
        tCrA = tiled_mma.make_fragment_A(thr_mma.partition_A(sA[None, None, 0]))
        tCrB = tiled_mma.make_fragment_B(thr_mma.partition_B(sB[None, None, 0]))
        tCgC, tCcC = thr_mma.partition_C(gC), thr_mma.partition_C(cC)
        tCrC = tiled_mma.make_fragment_C(tCgC)
        tCrC.fill(0.0)

        atom_s2r = cute.make_copy_atom(cute.nvgpu.warp.LdMatrix8x8x16bOp(False, 4), mA.element_type)
        tiled_s2r_A = cute.make_tiled_copy_A(atom_s2r, tiled_mma)
        tiled_s2r_B = cute.make_tiled_copy_B(atom_s2r, tiled_mma)
        thr_s2r_A, thr_s2r_B = tiled_s2r_A.get_slice(tidx), tiled_s2r_B.get_slice(tidx)
        tXsA, tXrA = thr_s2r_A.partition_S(sA), thr_s2r_A.retile(tCrA)
        tXsB, tXrB = thr_s2r_B.partition_S(sB), thr_s2r_B.retile(tCrB)

        # Prologue: all stages but one are on their way. A group is committed even when it is empty, so that "all but
        # the newest stages - 2" means the same stage in every iteration.
        num_k_tiles = cute.size(gA, mode=[2])
        for stage in cutlass.range_constexpr(self.stages - 1):
            if stage < num_k_tiles:
                self.load(tiled_copy, tAgA, tAcA, mA.shape, tAsA, stage, stage)
                self.load(tiled_copy, tBgB, tBcB, mB.shape, tBsB, stage, stage)
            cute.arch.cp_async_commit_group()

        read, write = 0, self.stages - 1
        for k_tile in range(num_k_tiles):
            # This thread's copies of the tile have landed; after the barrier everybody's have, and everybody is done
            # with the stage that is overwritten next.
            cute.arch.cp_async_wait_group(self.stages - 2)
            cute.arch.sync_threads()

            k_next = k_tile + self.stages - 1
            if k_next < num_k_tiles:
                self.load(tiled_copy, tAgA, tAcA, mA.shape, tAsA, k_next, write)
                self.load(tiled_copy, tBgB, tBcB, mB.shape, tBsB, k_next, write)
            cute.arch.cp_async_commit_group()

            for k_block in cutlass.range_constexpr(cute.size(tCrA, mode=[2])):
                cute.copy(tiled_s2r_A, tXsA[None, None, k_block, read], tXrA[None, None, k_block])
                cute.copy(tiled_s2r_B, tXsB[None, None, k_block, read], tXrB[None, None, k_block])
                cute.gemm(tiled_mma, tCrC, tCrA[None, None, k_block], tCrB[None, None, k_block], tCrC)

            write = read
            read = read + 1 if read + 1 < self.stages else 0

        # Only empty groups are left, but a thread should not exit with any pending.
        cute.arch.cp_async_wait_group(0)

        # Epilogue: registers * R -> gmem, a pair of columns a store.
        self.scale(tCrC, thr_mma.partition_C(gR), tCcC, mC.shape)
        tCrD = cute.make_fragment_like(tCrC, mC.element_type)
        tCrD.store(tCrC.load().to(mC.element_type))
        self.store(tCrD, tCgC, tCcC, mC.shape)

    @cute.jit
    def load(
        self,
        tiled_copy: cute.TiledCopy,
        src: cute.Tensor,
        coords: cute.Tensor,
        limit: cute.Shape,
        dst: cute.Tensor,
        k_tile: cutlass.Int32,
        stage: cutlass.Int32,
    ):
        """Start this thread's copies of a K tile into a stage. What lies outside the matrix becomes zero."""
        if cutlass.const_expr(self.whole):
            cute.copy(tiled_copy, src[None, None, None, k_tile], dst[None, None, None, stage])
        else:
            for i in cutlass.range_constexpr(cute.size(dst, mode=[1])):
                for k in cutlass.range_constexpr(cute.size(dst, mode=[2])):
                    # K is a multiple of a vector: its first element decides for all.
                    if cute.elem_less(coords[0, i, k, k_tile], limit):
                        cute.copy(tiled_copy, src[None, i, k, k_tile], dst[None, i, k, stage])
                    else:
                        dst[None, i, k, stage].fill(0)

    @cute.jit
    def scale(self, acc: cute.Tensor, src: cute.Tensor, coords: cute.Tensor, limit: cute.Shape):
        """Multiply each accumulator by its column's factor. Both are ((pair, two rows), MMA_M, MMA_N) a thread."""
        # One factor a column: along rows the stride is zero, in registers as in memory.
        columns_n = cute.size(acc, mode=[2])
        factors = cute.make_rmem_tensor(cute.make_layout((2, columns_n)), cutlass.Float32)
        rows_m = cute.size(acc, mode=[1])
        tCrR = cute.make_tensor(factors.iterator, cute.make_layout(((2, 2), rows_m, columns_n), stride=((1, 0), 0, 2)))
        for n in cutlass.range_constexpr(columns_n):
            if cutlass.const_expr(self.whole):
                factors[None, n].store(src[(None, 0), 0, n].load().to(cutlass.Float32))
            else:
                for i in cutlass.range_constexpr(2):
                    factors[i, n] = cutlass.Float32(0)
                    if coords[(i, 0), 0, n][1] < limit[1]:
                        factors[i, n] = src[(i, 0), 0, n].to(cutlass.Float32)
        acc.store(acc.load() * tCrR.load())

    @cute.jit
    def store(self, src: cute.Tensor, dst: cute.Tensor, coords: cute.Tensor, limit: cute.Shape):
        """Store this thread's part of C, the elements that lie inside the matrix."""
        if cutlass.const_expr(self.whole):
            cute.autovec_copy(src, dst)
        else:
            values, rows_m, columns_n = (cute.size(src, mode=[mode]) for mode in range(3))
            for m in cutlass.range_constexpr(rows_m):
                for n in cutlass.range_constexpr(columns_n):
                    for i in cutlass.range_constexpr(values):
                        if cute.elem_less(coords[i, m, n], limit):
                            dst[i, m, n] = src[i, m, n]

    @cute.jit
    def tiles_of(self, tensor: cute.Tensor, coord: cute.Coord, proj: cutlass.Constexpr):
        """The tiles of a tensor that this CTA works on, and the same tiles of its coordinates."""
        coords = cute.make_identity_tensor(tensor.shape)
        return (
            cute.local_tile(tensor, tiler=self.tile, coord=coord, proj=proj),
            cute.local_tile(coords, tiler=self.tile, coord=coord, proj=proj),
        )

    @cute.jit
    def raster_tile(self, index: cutlass.Int32, tiles: cutlass.Constexpr):
        """(m, n) of a CTA's tile: down `raster` rows, then the next column, so that a wave is nearly square."""
        group = index // (self.raster * tiles[1])
        within = index % (self.raster * tiles[1])
        rows = min(tiles[0] - group * self.raster, self.raster)
        return group * self.raster + within % rows, within // rows

    def smem_layout(self, rows: int):
        """(rows, BK, stages), K-major, with the XOR swizzle that fits rows of 64 or 128 bytes.

        The swizzle is one of byte addresses: the number of a 16-byte chunk (bits 4 and up) XOR bits 7 and up.
        """
        bK = self.tile[2]
        swizzle = cute.make_swizzle({32: 2, 64: 3}[bK], 4, 3)
        atom = cute.make_composed_layout(swizzle, 0, cute.make_layout((8, bK), stride=(bK, 1)))
        return cute.tile_to_shape(atom, (rows, bK, self.stages), order=(0, 1, 2))


def compile(arch: str, shape: tuple[int, ...], dtype: str, config: ColwiseScalingGemmConfig | None = None) -> Program:
    """The rung for one architecture, shape (M, N, K) and element type. Any M and N; K a multiple of 8 (16 bytes)."""
    (m, n, k), dtype = RUNG.check(arch, shape, dtype)
    config = config or ColwiseScalingGemmConfig()
    check_config(config, arch)
    RUNG.require(k % 8 == 0, f"K={k}: rows are copied 16 bytes at a time, pad K to a multiple of 8")
    whole = all(extent % size == 0 for extent, size in zip((m, n, k), config.tile))
    arrays = [row_major(dtype, extents) for extents in ((m, k), (n, k), (m, n), (n,))]
    return compile_program(ColwiseScalingGemm(config, whole), *arrays, arch=arch, name=RUNG.name)


def check_config(config: ColwiseScalingGemmConfig, arch: str) -> None:
    """UsageError unless the warps and their copies cover the tile evenly and the stages fit into shared memory."""
    bM, bN, bK = config.tile
    threads = 32 * config.warps_m * config.warps_n
    RUNG.require(0 < threads <= 1024, f"warps_m * warps_n: {threads} threads, a CTA has 32 to 1024")
    RUNG.require(bK in (32, 64), f"tile={config.tile}: K must be 32 or 64, a swizzled row of 64 or 128 bytes")
    rows = threads // (bK * 2 // 16)  # rows of a tile that one round of copies fills
    RUNG.require(bM % (16 * config.warps_m) == 0 and bM % rows == 0, f"tile={config.tile}: M does not fit the warps")
    RUNG.require(bN % (16 * config.warps_n) == 0 and bN % rows == 0, f"tile={config.tile}: N does not fit the warps")
    RUNG.require(config.raster > 0, f"raster={config.raster}: at least 1 row of tiles")
    RUNG.require(config.stages >= 2, f"stages={config.stages}: at least 2, one to fill and one to multiply")
    smem, limit = config.stages * (bM + bN) * bK * 2, archs.find(arch).smem_per_cta
    RUNG.require(smem <= limit, f"stages={config.stages}: {smem} bytes of shared memory, {arch} has {limit}")
