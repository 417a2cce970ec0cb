"""Epilogue: every form of the product that `matmul` offers, on every GPU with warp MMA, one compilation for all shapes.

Adds:
    What stands around a product in a model, and edges that cost no branch:
    - C = act(alpha p q A B^T + beta R + bias), p and q factors of rows and columns, or a gated product of two right
      operands. Accumulators go through shared memory once, in float32 and swizzled, where the stages have been: on the
      other side a thread has eight columns of a row. So R comes and C goes 16 bytes a thread in whole lines, where the
      parent's pairs of columns are 4 bytes; no factor depends on the MMA's layout. Not timed on an Ampere GPU.
    - A gated product is one tile of B beside one of U, half as wide each: a warp then holds a column of both.
    - cp.async takes a source size and fills the rest of its 16 bytes with zeros. What lies outside costs an address,
      no branch, and K need not be a multiple of anything (pitches are of 16 bytes; those of C and R are not even that).
    - A and B of either major: along M or N as well, ldmatrix then transposes.
    - Extents and pitches are symbols, alpha and beta lie in memory, batches are a third mode. From sm_90 on the launch
      is a dependent one: it starts while the kernel before it ends.

Warp roles:
    | warps | role                                                                          |
    |-------|-------------------------------------------------------------------------------|
    | all 4 | copy a quarter of each stage; multiply 64 x 64 of C (2 x 2 warps); finish rows |

Budget:
    SMEM: (128 + 128) rows x 32 x 2 B = 16 KB a stage, 4 stages: 64 KB, and as much for 128 x 128 accumulators after
    them: 2 CTAs an SM on sm_80 and sm_90, 1 on sm_120. Registers: 128 accumulators and 32 of fragments, up to 255 in
    all. No TMEM.

Run:
    tensorladder run b9-epilogue --shape 256,256,256
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import cutlass
import cutlass.cute as cute
from cutlass.memory import SmemAllocator

from tensorladder.core import arch as archs
from tensorladder.core.program import Program
from tensorladder.frontends.cutedsl import compile_program
from tensorladder.rungs.parts import epilogue, rows
from tensorladder.rungs.parts.arguments import arguments, matrix
from tensorladder.rungs.parts.cpasync import copy_16_bytes
from tensorladder.rungs.parts.form import Form
from tensorladder.rungs.parts.tensors import row_major
from tensorladder.rungs.rung import Rung


@dataclass(frozen=True)
class WarpEpilogueGemmConfig:
    """tile: (M, N, K) of a CTA; of a gated product N counts the columns of both. warps_m, warps_n: how warps lie on the
    tile of C. stages: K tiles in shared memory.

    raster: rows of tiles that consecutive CTAs go down before the next column, so that they share A and B in L2.
    """

    tile: tuple[int, int, int] = (128, 128, 32)
    warps_m: int = 2
    warps_n: int = 2
    stages: int = 4
    raster: int = 8


RUNG = Rung(
    name="b9-epilogue",
    parent="b6-colwise-scaling",
    adds="alpha, beta R, bias, activation, gates and scales on rows staged in shared memory; either major; any extents",
    aside="for products with all that stands around them: what `matmul` runs on sm_80 and sm_120",
    archs=("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120", "sm_120a"),
    problem="gemm_epilogue",
    dtypes=("fp16", "bf16"),
    config=WarpEpilogueGemmConfig,
)

VECTOR = 8  # elements of A and B that a thread copies at a time: 16 bytes


class WarpEpilogueGemm:
    def __init__(self, config: WarpEpilogueGemmConfig, form: Form, arch: str):
        self.tile = config.tile
        self.a_major, self.b_major = form.a_major, form.b_major
        self.activation = epilogue.ACTIVATIONS[form.activation]
        self.parts = 2 if form.gated else 1  # of a tile's columns: B's, and U's
        self.c_tile = (config.tile[0], config.tile[1] // self.parts)
        self.warps = (config.warps_m, config.warps_n, 1)
        self.threads = 32 * config.warps_m * config.warps_n
        self.stages = config.stages
        self.raster = config.raster
        self.overlap = "griddepcontrol" in archs.find(arch)  # starts beside the end of the kernel before

    @cute.jit
    def __call__(
        self, mA: cute.Tensor, mB: cute.Tensor, mU: cute.Tensor | None, mC: cute.Tensor, mR: cute.Tensor | None,
        mV: cute.Tensor | None, mS: cute.Tensor, mP: cute.Tensor | None, mQ: cute.Tensor | None,
    ):
        bM, bN, _ = self.tile
        sA_layout, sB_layout = self.smem_layout(self.a_major, bM), self.smem_layout(self.b_major, bN)

        # Two MMAs side by side along N make the 16 x 16 block of B that one ldmatrix.x4 loads.
        mma_op = cute.nvgpu.warp.MmaF16BF16Op(mA.element_type, cutlass.Float32, (16, 8, 16))
        permutation_mnk = (self.warps[0] * 16, self.warps[1] * 16, 16)
        tiled_mma = cute.make_tiled_mma(mma_op, cute.make_layout(self.warps), permutation_mnk=permutation_mnk)

        tiles = cute.ceil_div((mC.shape[0], mC.shape[1]), self.c_tile)
        self.kernel(mA, mB, mU, mC, mR, mV, mS, mP, mQ, sA_layout, sB_layout, tiled_mma, tiles).launch(
            grid=(cute.size(tiles) * mC.shape[2], 1, 1), block=(self.threads, 1, 1), use_pdl=self.overlap
        )

    @cute.kernel
    def kernel(
        self, mA: cute.Tensor, mB: cute.Tensor, mU: cute.Tensor | None, mC: cute.Tensor, mR: cute.Tensor | None,
        mV: cute.Tensor | None, mS: cute.Tensor, mP: cute.Tensor | None, mQ: cute.Tensor | None,
        sA_layout: cute.ComposedLayout, sB_layout: cute.ComposedLayout, tiled_mma: cute.TiledMma, tiles: cute.Shape,
    ):
        bM, bN, _ = self.tile
        tidx, _, _ = cute.arch.thread_idx()
        bidx, _, _ = cute.arch.block_idx()
        m, n = self.raster_tile(bidx % cute.size(tiles), tiles)
        batch = bidx // cute.size(tiles)

        # The stages, and after the last K tile the accumulators: the same memory.
        smem, element_type = SmemAllocator(), mA.element_type
        bytes_A, bytes_B = (cute.size_in_bytes(element_type, layout) for layout in (sA_layout, sB_layout))
        memory = smem.allocate(max(bytes_A + bytes_B, 4 * bM * bN), 1024)
        sA, sA_plain = self.stages_at(memory, element_type, sA_layout)
        sB, sB_plain = self.stages_at(memory + bytes_A, element_type, sB_layout)
        sC_pointer = cute.recast_ptr(memory, self.rows_swizzle(), cutlass.Float32)
        sC = cute.make_tensor(sC_pointer, cute.make_layout((bM, bN), stride=(bN, 1)))

        # gmem -> smem: this thread's vectors of a K tile in memory, their coordinates, and where they go.
        a_rows, b_rows = bM, bN // self.parts
        tAgA, tAcA, tAsA = self.partition(self.a_major, mA, (m, batch), sA_plain, (a_rows, 0), tidx)
        tBgB, tBcB, tBsB = self.partition(self.b_major, mB, (n, batch), sB_plain, (b_rows, 0), tidx)
        tUgU, tUsU = tBgB, tBsB
        if cutlass.const_expr(mU is not None):
            tUgU, _, tUsU = self.partition(self.b_major, mU, (n, batch), sB_plain, (b_rows, 1), tidx)

        # smem -> registers -> MMA
        thr_mma = tiled_mma.get_slice(tidx)
        tCrA = tiled_mma.make_fragment_A(thr_mma.partition_A(sA[None, None, 0]))
        tCrB = tiled_mma.make_fragment_B(thr_mma.partition_B(sB[None, None, 0]))
        tCsC = thr_mma.partition_C(sC)
        tCrC = tiled_mma.make_fragment_C(tCsC)
        tCrC.fill(0.0)

        transpose = {"k": False, "mn": True}
        atom_A = cute.make_copy_atom(cute.nvgpu.warp.LdMatrix8x8x16bOp(transpose[self.a_major], 4), element_type)
        atom_B = cute.make_copy_atom(cute.nvgpu.warp.LdMatrix8x8x16bOp(transpose[self.b_major], 4), element_type)
        tiled_s2r_A = cute.make_tiled_copy_A(atom_A, tiled_mma)
        tiled_s2r_B = cute.make_tiled_copy_B(atom_B, tiled_mma)
        thr_s2r_A, thr_s2r_B = tiled_s2r_A.get_slice(tidx), tiled_s2r_B.get_slice(tidx)
        tXsA, tXrA = thr_s2r_A.partition_S(sA), thr_s2r_A.retile(tCrA)
        tXsB, tXrB = thr_s2r_B.partition_S(sB), thr_s2r_B.retile(tCrB)

        # Nothing of global memory before the kernel before is through.
        if cutlass.const_expr(self.overlap):
            cute.arch.griddepcontrol_launch_dependents()
            cute.arch.griddepcontrol_wait()

        # Prologue: all stages but one are on their way. A group is committed even when it is empty, so that "all but
        # the newest stages - 2" means the same stage in every iteration. K tiles past the last one are zeros.
        num_k_tiles = cute.size(tAgA, mode=[3])
        for stage in cutlass.range_constexpr(self.stages - 1):
            self.load(self.a_major, tAgA, tAcA, mA.shape, tAsA, stage, stage)
            self.load(self.b_major, tBgB, tBcB, mB.shape, tBsB, stage, stage)
            if cutlass.const_expr(mU is not None):
                self.load(self.b_major, tUgU, tBcB, mB.shape, tUsU, stage, stage)
            cute.arch.cp_async_commit_group()

        read, write = 0, self.stages - 1
        for k_tile in range(num_k_tiles):
            # This thread's copies of the tile have landed; after the barrier everybody's have, and everybody is done
            # with the stage that is overwritten next.
            cute.arch.cp_async_wait_group(self.stages - 2)
            cute.arch.sync_threads()

            k_next = k_tile + self.stages - 1
            if k_next < num_k_tiles:
                self.load(self.a_major, tAgA, tAcA, mA.shape, tAsA, k_next, write)
                self.load(self.b_major, tBgB, tBcB, mB.shape, tBsB, k_next, write)
                if cutlass.const_expr(mU is not None):
                    self.load(self.b_major, tUgU, tBcB, mB.shape, tUsU, k_next, write)
            cute.arch.cp_async_commit_group()

            for k_block in cutlass.range_constexpr(cute.size(tCrA, mode=[2])):
                cute.copy(tiled_s2r_A, tXsA[None, None, k_block, read], tXrA[None, None, k_block])
                cute.copy(tiled_s2r_B, tXsB[None, None, k_block, read], tXrB[None, None, k_block])
                cute.gemm(tiled_mma, tCrC, tCrA[None, None, k_block], tCrB[None, None, k_block], tCrC)

            write = read
            read = read + 1 if read + 1 < self.stages else 0

        # Registers -> smem, once all warps are done with the stages and no copy is under way.
        cute.arch.cp_async_wait_group(0)
        cute.arch.sync_threads()
        cute.autovec_copy(tCrC, tCsC)
        cute.arch.sync_threads()

        # smem -> registers, finished -> gmem: by rows.
        mC = mC[None, None, batch]
        vectors = rows.aligned(mC)
        if cutlass.const_expr(mR is not None):
            mR = mR[None, None, batch]
            vectors = vectors and rows.aligned(mR)
        if cutlass.const_expr(mV is not None):
            vectors = vectors and mV.iterator.toint() % rows.ALIGN == 0
        alpha, beta = mS[0], mS[1]
        across = self.c_tile[1] // rows.COLUMNS
        for index in cutlass.range(tidx, bM * across, self.threads, unroll=1):
            row, col = index // across, index % across
            c_row, c_col = m * bM + row, n * self.c_tile[1] + col * rows.COLUMNS
            if c_row < mC.shape[0] and c_col < mC.shape[1]:
                whole, added = vectors and c_col + rows.COLUMNS <= mC.shape[1], None
                # beta = 0 leaves R unread, as BLAS does: it may hold NaN.
                if cutlass.const_expr(mR is not None):
                    added = cute.make_rmem_tensor(cute.make_layout(rows.COLUMNS), mR.element_type)
                    added.fill(0)
                    if beta != 0.0:
                        rows.read(added, mR[c_row, None], c_col, mC.shape[1], whole)
                acc, up = self.staged(sC, row, col), None
                if cutlass.const_expr(self.parts == 2):
                    up = self.staged(sC, row, col + across)
                factor = alpha
                if cutlass.const_expr(mP is not None):
                    factor = alpha * mP[c_row]
                rows.finish(acc, up, added, c_col, mC.shape[1], mV, mQ, factor, beta, self.activation, whole)
                rows.write(mC[c_row, None], c_col, mC.shape[1], acc, whole)

    @cute.jit
    def load(
        self, major: cutlass.Constexpr, src: cute.Tensor, coords: cute.Tensor, limit: cute.Shape, dst: cute.Tensor,
        k_tile: cutlass.Int32, stage: cutlass.Int32,
    ):
        """Start this thread's copies of a K tile into a stage. What lies outside the matrix becomes zero."""
        along, across = {"k": (1, 0), "mn": (0, 1)}[major]
        for i in cutlass.range_constexpr(cute.size(dst, mode=[1])):
            for k in cutlass.range_constexpr(cute.size(dst, mode=[2])):
                coord = coords[0, i, k, k_tile]
                count = cutlass.max(cutlass.min(limit[along] - coord[along], VECTOR), 0)
                count = count if coord[across] < limit[across] else 0
                copy_16_bytes(dst[None, i, k, stage], src[None, i, k, k_tile], count, self.swizzle_bits(major))

    @cute.jit
    def staged(self, sC: cute.Tensor, row: cutlass.Int32, col: cutlass.Int32):
        """A vector of staged accumulators, in registers."""
        acc = cute.make_rmem_tensor(cute.make_layout(rows.COLUMNS), cutlass.Float32)
        cute.autovec_copy(cute.local_tile(sC, (1, rows.COLUMNS), (row, col))[0, None], acc)
        return acc

    @cute.jit
    def partition(
        self, major: cutlass.Constexpr, matrix: cute.Tensor, coord: cute.Coord, smem: cute.Tensor,
        part: cutlass.Constexpr, thread: cutlass.Int32,
    ):
        """A thread's vectors of the K tiles of a matrix's tile, coord (tile, batch): in memory, their coordinates, and
        in the stages, where they are part (rows, number)."""
        extent, number = part
        tiler = (extent, self.tile[2])
        matrix = matrix[None, None, coord[1]]
        tiles = cute.local_tile(matrix, tiler, (coord[0], None))
        coords = cute.local_tile(cute.make_identity_tensor(matrix.shape), tiler, (coord[0], None))
        smem = cute.local_tile(smem, (*tiler, self.stages), (number, 0, 0))
        thr_copy = self.tiled_copy(matrix.element_type, major, extent).get_slice(thread)
        return thr_copy.partition_S(tiles), thr_copy.partition_S(coords), thr_copy.partition_D(smem)

    def tiled_copy(self, element_type: type[cutlass.Numeric], major: str, extent: int):
        """Which thread copies which vectors of `extent` rows: neighbours go along what is contiguous in memory."""
        atom = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), element_type, num_bits_per_copy=128)
        if major == "k":
            along = self.tile[2] // VECTOR
            threads = cute.make_layout((self.threads // along, along), stride=(along, 1))
            return cute.make_tiled_copy_tv(atom, threads, cute.make_layout((1, VECTOR)))
        along = min(extent // VECTOR, self.threads)
        threads = cute.make_layout((along, self.threads // along))
        return cute.make_tiled_copy_tv(atom, threads, cute.make_layout((VECTOR, 1)))

    @cute.jit
    def stages_at(self, memory: cute.Pointer, element_type: cutlass.Constexpr, layout: cute.ComposedLayout):
        """Stages as ldmatrix reads them, through the swizzle, and as plain memory."""
        swizzled = cute.recast_ptr(memory, layout.inner, element_type)
        plain = cute.recast_ptr(memory, dtype=element_type)
        return cute.make_tensor(swizzled, layout.outer), cute.make_tensor(plain, layout.outer)

    @cute.jit
    def raster_tile(self, index: cutlass.Int32, tiles: cute.Shape):
        """(m, n) of a CTA's tile: down `raster` rows, then the next column, so that a wave is nearly square."""
        group = index // (self.raster * tiles[1])
        within = index % (self.raster * tiles[1])
        count = cutlass.min(tiles[0] - group * self.raster, self.raster)
        return group * self.raster + within % count, within // count

    def smem_layout(self, major: str, extent: int):
        """(rows, BK, stages), with the XOR swizzle that fits 32 or 64 contiguous elements of K, or 64 of M or N.

        The swizzle is one of byte addresses: the number of a 16-byte chunk (bits 4 and up) XOR bits 7 and up.
        """
        bK, swizzle = self.tile[2], cute.make_swizzle(self.swizzle_bits(major), 4, 3)
        if major == "k":
            atom = cute.make_composed_layout(swizzle, 0, cute.make_layout((8, bK), stride=(bK, 1)))
            return cute.tile_to_shape(atom, (extent, bK, self.stages), order=(0, 1, 2))
        atom = cute.make_composed_layout(swizzle, 0, cute.make_layout((64, 8), stride=(1, 64)))
        return cute.tile_to_shape(atom, (extent, bK, self.stages), order=(1, 0, 2))

    def swizzle_bits(self, major: str) -> int:
        """How many bits of the number of a 16-byte chunk are changed."""
        return 2 if major == "k" and self.tile[2] == 32 else 3

    def rows_swizzle(self):
        """Of staged rows of float32: the number of a 32-byte chunk XOR the row's, so that 4 rows lie in 4 bank groups.

        The bits of the row stand where the largest power of two in the pitch is.
        """
        pitch = 4 * self.tile[1]
        return cute.make_swizzle(2, 5, (pitch & -pitch).bit_length() - 1 - 5)


class OneProduct(WarpEpilogueGemm):
    """The rung's problem: one product, of plain matrices. A third mode of extent 1 makes them a batch's."""

    @cute.jit
    def __call__(
        self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mR: cute.Tensor, mV: cute.Tensor, mS: cute.Tensor
    ):
        mA, mB, mC, mR = cute.append_ones(mA), cute.append_ones(mB), cute.append_ones(mC), cute.append_ones(mR)
        super().__call__(mA, mB, None, mC, mR, mV, mS, None, None)


def build(arch: str, form: Form, config: WarpEpilogueGemmConfig) -> Program:
    """The kernel of a form for any extents; it takes what `Form` says, A (M, K, L) first.

    Pitches and base addresses of A, B and U are multiples of 16 bytes; C and R are row-major with any pitch and address
    (`c_tma` says nothing here). No extent is 0; the tiles of C are fewer than 2^31.
    """
    check_config(config, arch, form)
    given = arguments(replace(form, c_tma=False))
    return compile_program(WarpEpilogueGemm(config, form, arch), *given, arch=arch, name=RUNG.name)


def compile(arch: str, shape: tuple[int, ...], dtype: str, config: WarpEpilogueGemmConfig | None = None) -> Program:
    """The rung for the problem's form: B stored (K, N), all of the epilogue, gelu. N and K multiples of 8."""
    (_, n, k), dtype = RUNG.check(arch, shape, dtype)
    RUNG.require(n % 8 == 0, f"N={n}: rows of B are copied 16 bytes at a time, pad N to a multiple of 8")
    RUNG.require(k % 8 == 0, f"K={k}: rows of A are copied 16 bytes at a time, pad K to a multiple of 8")
    form, config = Form(dtype, dtype, dtype, dtype, b_major="mn", activation="gelu"), config or WarpEpilogueGemmConfig()
    check_config(config, arch, form)
    m, n, k = (cute.sym_int() for _ in range(3))
    a, b, c, r = matrix(dtype, (m, k)), matrix(dtype, (n, k), "mn"), matrix(dtype, (m, n)), matrix(dtype, (m, n))
    others = row_major(dtype, (n,)), row_major("fp32", (2,), align=4)
    return compile_program(OneProduct(config, form, arch), a, b, c, r, *others, arch=arch, name=RUNG.name)


def check_config(config: WarpEpilogueGemmConfig, arch: str, form: Form) -> None:
    """UsageError unless the warps and their copies cover the tile evenly and the stages fit into shared memory."""
    bM, bN, bK = config.tile
    threads = 32 * config.warps_m * config.warps_n
    RUNG.require(form.dtype in RUNG.dtypes, f"dtype={form.dtype}: operands are {', '.join(RUNG.dtypes)}")
    RUNG.require(not (form.gated and form.bias), f"bias={form.bias}: a gated product has none")
    RUNG.require(0 < threads <= 1024, f"warps_m * warps_n: {threads} threads, a CTA has 32 to 1024")
    RUNG.require(bK in (32, 64), f"tile={config.tile}: K must be 32 or 64, a swizzled row of 64 or 128 bytes")
    halves = 2 if form.gated else 1
    extents = (("M", bM, config.warps_m, 1, form.a_major), ("N", bN, config.warps_n, halves, form.b_major))
    for name, extent, warps, parts, major in extents:
        step = math.lcm(16 * warps * parts, 64 * parts if major == "mn" else 32 if name == "N" else 1)
        fits = extent > 0 and extent % step == 0
        RUNG.require(fits, f"tile={config.tile}: {name} must be a multiple of {step}")
        fits = extent * bK // parts % (VECTOR * threads) == 0
        RUNG.require(fits, f"tile={config.tile}: {name} is too small for copies by {threads} threads")
    RUNG.require(config.raster > 0, f"raster={config.raster}: at least 1 row of tiles")
    RUNG.require(config.stages >= 2, f"stages={config.stages}: at least 2, one to fill and one to multiply")
    smem, limit = max(config.stages * (bM + bN) * bK * 2, 4 * bM * bN), archs.find(arch).smem_per_cta
    RUNG.require(smem <= limit, f"stages={config.stages}: {smem} bytes of shared memory, {arch} has {limit}")
