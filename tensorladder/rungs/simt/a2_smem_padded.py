"""Shared memory: a CTA's tiles of A and B are loaded once and read by all its threads; rows are padded.

Adds:
    Data reuse under the programmer's control. The 256 threads fetch a 64 x 16 tile of A and of B together, each
    element once and neighbouring threads neighbouring elements, into memory on the SM; then all multiply from there:
    every element is used 64 times. Global traffic falls from one element a multiply-add to one in 32, and the 4 x 4
    accumulators a thread make one load from shared memory serve two multiply-adds. Two things to get right:
    - Barriers. One before reading (the tile is complete), one before overwriting (everybody has read it).
    - Banks. Shared memory has 32 banks of 4 bytes, and 16 threads read 16 rows of B at the same k. With rows of 64
      bytes they would meet in 2 banks, eight deep; rows one word longer spread them over 16.

Warp roles:
    | warps | role                                                               |
    |-------|--------------------------------------------------------------------|
    | all 8 | load an eighth of both tiles; 64 x 64 of C: 4 x 4 elements a thread |

Budget:
    SMEM: 2 tiles x 64 rows x (16 x 4 + 4) B = 8.5 KB (fp32). Registers: 16 accumulators, 8 operands, the elements in
    flight, 40 a thread in fp32 (6 CTAs an SM), 64 in fp16 (4).

Run:
    tensorladder run a2-smem-padded --shape 256,256,256
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
class PaddedGemmConfig:
    """tile: (M, N, K) of a CTA. threads_m, threads_n: how its threads lie on the tile of C. pad_bytes: of each row."""

    tile: tuple[int, int, int] = (64, 64, 16)
    threads_m: int = 16
    threads_n: int = 16
    pad_bytes: int = 4


RUNG = Rung(
    name="a2-smem-padded",
    parent="a1-naive-cute",
    adds="tiles in shared memory between two barriers, rows padded against bank conflicts",
    archs=("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"),
    problem="gemm",
    dtypes=("fp32", "fp16", "bf16"),
    config=PaddedGemmConfig,
)


class PaddedGemm:
    def __init__(self, config: PaddedGemmConfig, whole: bool):
        self.tile = config.tile
        self.threads_m, self.threads_n = config.threads_m, config.threads_n
        self.threads = config.threads_m * config.threads_n
        self.pad_bytes = config.pad_bytes
        self.whole = whole  # the tile divides the shape: nothing to mask

    @cute.jit
    def __call__(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor):
        bM, bN, bK = self.tile
        pitch = bK + self.pad_bytes * 8 // mA.element_type.width
        sA_layout = cute.make_layout((bM, bK), stride=(pitch, 1))
        sB_layout = cute.make_layout((bN, bK), stride=(pitch, 1))

        # gmem -> smem: an element a thread, neighbours along K.
        atom_g2s = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), mA.element_type)
        thread_layout = cute.make_layout((self.threads // bK, bK), stride=(bK, 1))
        tiled_copy = cute.make_tiled_copy_tv(atom_g2s, thread_layout, cute.make_layout((1, 1)))

        # Neighbouring threads along N: their stores to C are contiguous, their loads of A one broadcast.
        atoms = cute.make_layout((self.threads_m, self.threads_n, 1), stride=(self.threads_n, 1, 0))
        tiled_mma = cute.make_tiled_mma(cute.nvgpu.MmaUniversalOp(cutlass.Float32), atoms)

        tiles_m, tiles_n = cute.ceil_div(mC.shape, self.tile[:2])
        self.kernel(mA, mB, mC, sA_layout, sB_layout, tiled_copy, tiled_mma).launch(
            grid=(tiles_n, tiles_m, 1), block=(self.threads, 1, 1)
        )

    @cute.kernel
    def kernel(
        self,
        mA: cute.Tensor,
        mB: cute.Tensor,
        mC: cute.Tensor,
        sA_layout: cute.Layout,
        sB_layout: cute.Layout,
        tiled_copy: cute.TiledCopy,
        tiled_mma: cute.TiledMma,
    ):
        tidx, _, _ = cute.arch.thread_idx()
        tile_n, tile_m, _ = cute.arch.block_idx()
        coord = (tile_m, tile_n, None)

        smem = SmemAllocator()
        sA = smem.allocate_tensor(mA.element_type, sA_layout, 16)
        sB = smem.allocate_tensor(mB.element_type, sB_layout, 16)

        # (BM, BK, k tiles), (BN, BK, k tiles), (BM, BN): values, and coordinates for the masks.
        gA, cA = self.tiles_of(mA, coord, (1, None, 1))
        gB, cB = self.tiles_of(mB, coord, (None, 1, 1))
        gC, cC = self.tiles_of(mC, coord, (1, 1, None))

        # gmem -> smem
        thr_copy = tiled_copy.get_slice(tidx)
        tAgA, tAcA, tAsA = thr_copy.partition_S(gA), thr_copy.partition_S(cA), thr_copy.partition_D(sA)
        tBgB, tBcB, tBsB = thr_copy.partition_S(gB), thr_copy.partition_S(cB), thr_copy.partition_D(sB)

        # smem -> registers -> multiply-adds
        thr_mma = tiled_mma.get_slice(tidx)
        tCsA, tCsB = thr_mma.partition_A(sA), thr_mma.partition_B(sB)
        tCgC, tCcC = thr_mma.partition_C(gC), thr_mma.partition_C(cC)
        tCrA = tiled_mma.make_fragment_A(tCsA[None, None, 0])
        tCrB = tiled_mma.make_fragment_B(tCsB[None, None, 0])
        tCrC = tiled_mma.make_fragment_C(tCgC)
        tCrC.fill(0.0)

        for k_tile in range(cute.size(gA, mode=[2])):
            self.load(tAgA[None, None, None, k_tile], tAcA[None, None, None, k_tile], mA.shape, tAsA)
            self.load(tBgB[None, None, None, k_tile], tBcB[None, None, None, k_tile], mB.shape, tBsB)
            cute.arch.sync_threads()  # the tile is complete

            for k in cutlass.range_constexpr(self.tile[2]):
                tCrA.store(tCsA[None, None, k].load().to(cutlass.Float32))
                tCrB.store(tCsB[None, None, k].load().to(cutlass.Float32))
                cute.gemm(tiled_mma, tCrC, tCrA, tCrB, tCrC)
            cute.arch.sync_threads()  # everybody has read it

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
        """Copy this thread's share of a tile. What lies outside the matrix becomes zero."""
        values = cute.make_fragment_like(src)
        if cutlass.const_expr(self.whole):
            values.store(src.load())
        else:
            values.fill(0.0)
            for i in cutlass.range_constexpr(cute.size(src)):
                if cute.elem_less(coords[i], limit):
                    values[i] = src[i]
        dst.store(values.load())


def compile(arch: str, shape: tuple[int, ...], dtype: str, config: PaddedGemmConfig | None = None) -> Program:
    """The rung for one architecture, shape (M, N, K) and element type. Any shape."""
    (m, n, k), dtype = RUNG.check(arch, shape, dtype)
    config = config or PaddedGemmConfig()
    check_config(config)
    whole = all(extent % size == 0 for extent, size in zip((m, n, k), config.tile))
    arrays = [row_major(dtype, extents) for extents in ((m, k), (n, k), (m, n))]
    return compile_program(PaddedGemm(config, whole), *arrays, arch=arch, name=RUNG.name)


def check_config(config: PaddedGemmConfig) -> None:
    """UsageError unless the threads cover both the tile of C and the tiles that they load evenly."""
    (bM, bN, bK), threads = config.tile, config.threads_m * config.threads_n
    RUNG.require(0 < threads <= 1024, f"threads_m * threads_n = {threads}: a CTA has at most 1024 threads")
    RUNG.require(bM % config.threads_m == 0, f"tile={config.tile}: M must be a multiple of threads_m")
    RUNG.require(bN % config.threads_n == 0, f"tile={config.tile}: N must be a multiple of threads_n")
    rows = threads // bK
    covered = threads % bK == 0 and bM % rows == 0 and bN % rows == 0
    RUNG.require(covered, f"tile={config.tile}: {threads} threads must load whole rows of {bK} elements")
    RUNG.require(config.pad_bytes % 4 == 0, f"pad_bytes={config.pad_bytes}: a multiple of 4, a bank")
