"""Implicit GEMM: a convolution as a matrix product whose left matrix, im2col, exists only as addresses.

Adds:
    Addresses in place of a matrix. A row of the left matrix is a pixel of Y (n, p, q), a column a tap and a channel
    (r, s, c), its element X[n, p u - o + r d, q u - o + s d, c]: R S times as much memory as X, were it written down.
    Here each copy of a K tile works out where it begins:
    - A thread's rows stay the same for all K tiles. Each is taken apart into n, p and q once, and keeps the address and
      the place (top, left) of its first tap.
    - A thread's column is taken apart once a K tile, into a tap and a channel: two divisions by constants. What they
      add to an address is the same for all its rows.
    - So a copy costs two additions, two comparisons with the image's borders, and a cp.async whose source size is 0
      outside: padding, rows past the last pixel and columns past the last tap are zeros that nobody stored.
    Channels are contiguous (NHWC, KRSC): eight are a 16-byte copy. Where their number is no multiple of eight, a copy
    takes the most that divides it, 4 or 2, and an odd number of channels goes element by element through registers.

Warp roles:
    | warps | role                                                               |
    |-------|--------------------------------------------------------------------|
    | all 4 | copy a quarter of each stage; multiply 64 x 64 of Y (2 x 2 warps)  |

Budget:
    SMEM: (128 + 128) rows x 32 x 2 B = 16 KB a stage, 4 stages: 64 KB, 2 CTAs an SM on sm_80 and sm_90. Registers:
    128 accumulators, 32 of fragments, 12 of rows, up to 255 in all. No TMEM. Traffic: a K tile's rows are read from X
    R S times, from L1 or L2 all but the first.

Run:
    tensorladder run b10-implicit-gemm --shape 2,14,14,64,64,3,3,1,1,1
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass._mlir.dialects import nvvm
from cutlass.cute.typing import AddressSpace
from cutlass.cutlass_dsl import dsl_user_op
from cutlass.memory import SmemAllocator

from tensorladder.core import arch as archs
from tensorladder.core.program import Program
from tensorladder.frontends.cutedsl import compile_program
from tensorladder.problems.convolution import CONVOLUTION, output_extents
from tensorladder.rungs.parts.tensors import row_major
from tensorladder.rungs.rung import Rung


@dataclass(frozen=True)
class ImplicitGemmConfig:
    """tile: pixels of Y, filters, and taps times channels of a CTA. warps_m, warps_n: how they lie on the tile of Y.
    stages: K tiles in shared memory.

    raster: rows of tiles that consecutive CTAs go down before the next column, so that they share X and F in L2.
    """

    tile: tuple[int, int, int] = (128, 128, 32)
    warps_m: int = 2
    warps_n: int = 2
    stages: int = 4
    raster: int = 8


RUNG = Rung(
    name="b10-implicit-gemm",
    parent="b2-warp-mma",
    adds="convolution: im2col addresses worked out tile by tile, borders as zero-size cp.async, any channels",
    aside="for convolutions",
    archs=("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"),
    problem="convolution",
    dtypes=("fp16", "bf16"),
    config=ImplicitGemmConfig,
)

VECTOR = 8  # elements in 16 bytes, of one row: what a thread copies of it in a K tile
OUTSIDE = -(1 << 29)  # a place outside every image, even with a tap's distance added


class ImplicitGemm:
    def __init__(self, config: ImplicitGemmConfig, shape: tuple[int, ...]):
        self.tile = config.tile
        self.warps = (config.warps_m, config.warps_n, 1)
        self.threads = 32 * config.warps_m * config.warps_n
        self.stages = config.stages
        self.raster = config.raster
        _, self.h, self.w, self.c, self.filters, self.r, self.s, self.stride, self.padding, self.dilation = shape
        self.p, self.q = output_extents(shape)
        self.mnk = (shape[0] * self.p * self.q, self.filters, self.r * self.s * self.c)
        self.piece = math.gcd(self.c, VECTOR)  # elements that are contiguous and aligned wherever they begin
        self.whole = self.mnk[0] % self.tile[0] == 0 and self.mnk[1] % self.tile[1] == 0  # nothing to mask in Y
        # gmem -> smem: as many threads along K as a row of the tile is long; a round of copies fills so many rows.
        self.threads_k = self.tile[2] // VECTOR
        self.rows = self.threads // self.threads_k

    @cute.jit
    def __call__(self, mX: cute.Tensor, mF: cute.Tensor, mY: cute.Tensor):
        (M, N, K), (bM, bN, _) = self.mnk, self.tile
        sA_layout = self.smem_layout(bM)
        sB_layout = self.smem_layout(bN)

        # The right matrix and the product are F and Y as they lie in memory.
        mB = cute.make_tensor(mF.iterator, cute.make_layout((N, K), stride=(K, 1)))
        mC = cute.make_tensor(mY.iterator, cute.make_layout((M, N), stride=(N, 1)))

        # Two MMAs side by side along N make the 16 x 16 block of B that one ldmatrix.x4 loads.
        mma_op = cute.nvgpu.warp.MmaF16BF16Op(mX.element_type, cutlass.Float32, (16, 8, 16))
        permutation_mnk = (self.warps[0] * 16, self.warps[1] * 16, 16)
        tiled_mma = cute.make_tiled_mma(mma_op, cute.make_layout(self.warps), permutation_mnk=permutation_mnk)

        tiles = cute.ceil_div(mC.shape, (bM, bN))
        self.kernel(mX, mB, mC, sA_layout, sB_layout, tiled_mma, tiles).launch(
            grid=(cute.size(tiles), 1, 1), block=(self.threads, 1, 1)
        )

    @cute.kernel
    def kernel(
        self,
        mX: cute.Tensor,
        mB: cute.Tensor,
        mC: cute.Tensor,
        sA_layout: cute.ComposedLayout,
        sB_layout: cute.ComposedLayout,
        tiled_mma: cute.TiledMma,
        tiles: cutlass.Constexpr,
    ):
        bM, bN, bK = self.tile
        tidx, _, _ = cute.arch.thread_idx()
        bidx, _, _ = cute.arch.block_idx()
        m, n = self.raster_tile(bidx, tiles)

        smem = SmemAllocator()
        sA = smem.allocate_tensor(mX.element_type, sA_layout.outer, 1024, sA_layout.inner)
        sB = smem.allocate_tensor(mX.element_type, sB_layout.outer, 1024, sB_layout.inner)
        cC = cute.make_identity_tensor(mC.shape)
        gC, cC = (cute.local_tile(tensor, (bM, bN), (m, n)) for tensor in (mC, cC))

        # gmem -> smem: what this thread copies, its rows and where in a row.
        row, vector = tidx // self.threads_k, tidx % self.threads_k
        origins, tops, lefts = self.pixels(m * bM + row)
        to_A, to_B = self.place(sA, row, vector), self.place(sB, row, vector)

        # smem -> registers -> MMA
        thr_mma = tiled_mma.get_slice(tidx)
        tCrA = tiled_mma.make_fragment_A(thr_mma.partition_A(sA[None, None, 0]))
        tCrB = tiled_mma.make_fragment_B(thr_mma.partition_B(sB[None, None, 0]))
        tCgC, tCcC = thr_mma.partition_C(gC), thr_mma.partition_C(cC)
        tCrC = tiled_mma.make_fragment_C(tCgC)
        tCrC.fill(0.0)

        atom_s2r = cute.make_copy_atom(cute.nvgpu.warp.LdMatrix8x8x16bOp(False, 4), mX.element_type)
        tiled_s2r_A = cute.make_tiled_copy_A(atom_s2r, tiled_mma)
        tiled_s2r_B = cute.make_tiled_copy_B(atom_s2r, tiled_mma)
        thr_s2r_A, thr_s2r_B = tiled_s2r_A.get_slice(tidx), tiled_s2r_B.get_slice(tidx)
        tXsA, tXrA = thr_s2r_A.partition_S(sA), thr_s2r_A.retile(tCrA)
        tXsB, tXrB = thr_s2r_B.partition_S(sB), thr_s2r_B.retile(tCrB)

        # Prologue: all stages but one are on their way. A group is committed even when it is empty, so that "all but
        # the newest stages - 2" means the same stage in every iteration.
        num_k_tiles = cute.ceil_div(self.mnk[2], bK)
        for stage in cutlass.range_constexpr(self.stages - 1):
            if cutlass.const_expr(stage < num_k_tiles):
                k = stage * bK + vector * VECTOR
                self.load_pixels(mX, origins, tops, lefts, k, to_A + stage * self.stage_bytes(bM))
                self.load_filters(mB, n * bN + row, k, to_B + stage * self.stage_bytes(bN))
            cute.arch.cp_async_commit_group()

        read, write = 0, self.stages - 1
        for k_tile in range(num_k_tiles):
            # This thread's copies of the tile have landed; after the barrier everybody's have, and everybody is done
            # with the stage that is overwritten next.
            cute.arch.cp_async_wait_group(self.stages - 2)
            cute.arch.sync_threads()

            k_next = k_tile + self.stages - 1
            if k_next < num_k_tiles:
                k = k_next * bK + vector * VECTOR
                self.load_pixels(mX, origins, tops, lefts, k, to_A + write * self.stage_bytes(bM))
                self.load_filters(mB, n * bN + row, k, to_B + write * self.stage_bytes(bN))
            cute.arch.cp_async_commit_group()

            for k_block in cutlass.range_constexpr(cute.size(tCrA, mode=[2])):
                cute.copy(tiled_s2r_A, tXsA[None, None, k_block, read], tXrA[None, None, k_block])
                cute.copy(tiled_s2r_B, tXsB[None, None, k_block, read], tXrB[None, None, k_block])
                cute.gemm(tiled_mma, tCrC, tCrA[None, None, k_block], tCrB[None, None, k_block], tCrC)

            write = read
            read = read + 1 if read + 1 < self.stages else 0

        # Only empty groups are left, but a thread should not exit with any pending.
        cute.arch.cp_async_wait_group(0)

        # Epilogue: registers -> gmem, a pair of columns a store.
        tCrD = cute.make_fragment_like(tCrC, mC.element_type)
        tCrD.store(tCrC.load().to(mC.element_type))
        self.store(tCrD, tCgC, tCcC, mC.shape)

    @cute.jit
    def pixels(self, first: cutlass.Int32):
        """Of this thread's rows, pixels of Y from `first` on: where in X the first tap begins (element, row, column).

        Rows of the image are OUTSIDE for what lies past the last pixel.
        """
        rounds = cute.make_layout(self.tile[0] // self.rows)
        origins, tops, lefts = (cute.make_rmem_tensor(rounds, cutlass.Int32) for _ in range(3))
        for i in cutlass.range_constexpr(cute.size(rounds)):
            pixel = cutlass.Uint32(first + i * self.rows)  # unsigned divisions by constants are shorter
            line, q = pixel // self.q, pixel % self.q
            image, p = line // self.p, line % self.p
            top = cutlass.Int32(p) * self.stride - self.padding
            left = cutlass.Int32(q) * self.stride - self.padding
            origins[i] = ((cutlass.Int32(image) * self.h + top) * self.w + left) * self.c
            tops[i], lefts[i] = top if pixel < self.mnk[0] else OUTSIDE, left
        return origins, tops, lefts

    @cute.jit
    def load_pixels(
        self, mX: cute.Tensor, origins: cute.Tensor, tops: cute.Tensor, lefts: cute.Tensor, first: cutlass.Int32,
        to: cutlass.Int32,
    ):
        """Start this thread's copies of columns `first` to first + VECTOR of the left matrix to shared memory at `to`.

        What lies outside the images becomes zero, and what lies past the last tap.
        """
        for j in cutlass.range_constexpr(VECTOR // self.piece):
            column = cutlass.Uint32(first + j * self.piece)
            tap, channel = column // self.c, cutlass.Int32(column % self.c)
            down = cutlass.Int32(tap // self.s) * self.dilation
            right = cutlass.Int32(tap % self.s) * self.dilation
            distance = (down * self.w + right) * self.c + channel
            down = down if column < self.mnk[2] else OUTSIDE
            for i in cutlass.range_constexpr(cute.size(tops)):
                # Unsigned, what is above or left of the image is as far away as what is below or right of it.
                inside = cutlass.Uint32(tops[i] + down) < self.h and cutlass.Uint32(lefts[i] + right) < self.w
                self.load(mX, origins[i] + distance, inside, to, i, j)

    @cute.jit
    def load_filters(self, mB: cute.Tensor, row: cutlass.Int32, first: cutlass.Int32, to: cutlass.Int32):
        """Start this thread's copies of columns `first` to first + VECTOR of its filters, from `row` on."""
        for j in cutlass.range_constexpr(VECTOR // self.piece):
            column = first + j * self.piece
            for i in cutlass.range_constexpr(self.tile[1] // self.rows):
                at = row + i * self.rows
                inside = at < self.mnk[1] and column < self.mnk[2]
                self.load(mB, at * self.mnk[2] + column, inside, to, i, j)

    @cute.jit
    def load(
        self, src: cute.Tensor, offset: cutlass.Int32, inside: cutlass.Boolean, to: cutlass.Int32,
        i: cutlass.Constexpr, j: cutlass.Constexpr,
    ):
        """Start to copy a piece, number j of this thread's vector in round i, or zeros."""
        size = src.element_type.width // 8
        to = to + i * self.rows * self.tile[2] * size + j * self.piece * size
        dst = cute.make_ptr(src.element_type, to, AddressSpace.smem, assumed_align=self.piece * size)
        if cutlass.const_expr(self.piece > 1):
            start_copy(dst, src.iterator + offset, self.piece * size, inside)
        else:
            # cp.async moves 4 bytes at least. The barrier before the stage is read orders this store, too.
            value = src.element_type(0)
            if inside:
                value = (src.iterator + offset).load()
            dst.store(value)

    @cute.jit
    def place(self, smem: cute.Tensor, row: cutlass.Int32, vector: cutlass.Int32):
        """The shared-memory address of a vector in stage 0, swizzled; 8 rows or a stage further, it is as far away."""
        address = cute.recast_ptr(smem.iterator, dtype=cutlass.Uint8).toint()
        address = address + (row * self.tile[2] + vector * VECTOR) * (smem.element_type.width // 8)
        return address ^ ((address >> 3) & (((1 << self.swizzle_bits()) - 1) << 4))

    @cute.jit
    def store(self, src: cute.Tensor, dst: cute.Tensor, coords: cute.Tensor, limit: cute.Shape):
        """Store this thread's part of Y, the elements that lie inside the matrix."""
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
        swizzle = cute.make_swizzle(self.swizzle_bits(), 4, 3)
        atom = cute.make_composed_layout(swizzle, 0, cute.make_layout((8, bK), stride=(bK, 1)))
        return cute.tile_to_shape(atom, (rows, bK, self.stages), order=(0, 1, 2))

    def swizzle_bits(self) -> int:
        """How many bits of the number of a 16-byte chunk are changed."""
        return {32: 2, 64: 3}[self.tile[2]]

    def stage_bytes(self, rows: int) -> int:
        """Of a tile of so many rows."""
        return rows * self.tile[2] * 2


@dsl_user_op
def start_copy(
    dst: cute.Pointer, src: cute.Pointer, size: int, inside: Any, *, loc: Any = None, ip: Any = None
) -> None:
    """cp.async of 4, 8 or 16 bytes, which are zeros where not `inside`: nothing is read then."""
    kind = nvvm.LoadCacheModifierKind.CG if size == 16 else nvvm.LoadCacheModifierKind.CA  # .cg takes 16 bytes alone
    read = cutlass.Int32(size) * cutlass.Int32(inside)
    nvvm.cp_async_shared_global(
        dst.to_llvm_ptr(loc=loc, ip=ip), src.to_llvm_ptr(loc=loc, ip=ip), size, kind,
        cp_size=read.ir_value(loc=loc, ip=ip), loc=loc, ip=ip,
    )  # fmt: skip


def compile(arch: str, shape: tuple[int, ...], dtype: str, config: ImplicitGemmConfig | None = None) -> Program:
    """The rung for one architecture, shape (N, H, W, C, K, R, S, stride, padding, dilation) and element type."""
    shape, dtype = RUNG.check(arch, shape, dtype)
    config = config or ImplicitGemmConfig()
    check_config(config, arch)
    operands = CONVOLUTION.operands(shape, dtype)
    for operand in operands:
        fits = math.prod(operand.shape) < 1 << 31
        RUNG.require(fits, f"{operand.name} has 2^31 elements or more, offsets have 32 bits: split N or K")
    arrays = [row_major(dtype, operand.shape) for operand in operands]
    return compile_program(ImplicitGemm(config, shape), *arrays, arch=arch, name=RUNG.name)


def check_config(config: ImplicitGemmConfig, arch: str) -> None:
    """UsageError unless the warps and their copies cover the tile evenly and the stages fit into shared memory."""
    bM, bN, bK = config.tile
    threads = 32 * config.warps_m * config.warps_n
    RUNG.require(0 < threads <= 1024, f"warps_m * warps_n: {threads} threads, a CTA has 32 to 1024")
    RUNG.require(bK in (32, 64), f"tile={config.tile}: K must be 32 or 64, a swizzled row of 64 or 128 bytes")
    rows = threads * VECTOR // bK  # of a tile, that one round of copies fills
    RUNG.require(rows % 8 == 0, f"tile={config.tile}: {threads} threads copy {rows} rows at a time, no multiple of 8")
    RUNG.require(bM % (16 * config.warps_m) == 0 and bM % rows == 0, f"tile={config.tile}: M does not fit the warps")
    RUNG.require(bN % (16 * config.warps_n) == 0 and bN % rows == 0, f"tile={config.tile}: N does not fit the warps")
    RUNG.require(config.raster > 0, f"raster={config.raster}: at least 1 row of tiles")
    RUNG.require(config.stages >= 2, f"stages={config.stages}: at least 2, one to fill and one to multiply")
    smem, limit = config.stages * (bM + bN) * bK * 2, archs.find(arch).smem_per_cta
    RUNG.require(smem <= limit, f"stages={config.stages}: {smem} bytes of shared memory, {arch} has {limit}")
