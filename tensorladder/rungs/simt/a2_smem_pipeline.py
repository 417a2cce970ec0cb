"""PipelineAsync: producer warps fill a ring of stages while consumer warps multiply, with ordinary loads and stores.

Adds:
    Overlap by roles. In the parent all threads load, stop, multiply, stop; here four warps do nothing but copy and
    eight nothing but multiply, and a ring of four stages lies between them. Each stage has two mbarriers, on which
    every producer thread arrives when its part is written (full) and every consumer thread when it is done reading
    (empty). It is faster because loads of later tiles are under way during the arithmetic, and because nobody waits at
    a CTA barrier: on an H200 at 4096 cubed 1.06 times as fast as the parent in fp32, 1.02 in fp16. An arrival releases
    what the thread wrote, a wait acquires it; the phase bit tells this lap of the ring from the last. This is the
    protocol of every pipeline above, before TMA takes over the producer's part: PipelineAsync is the class for threads
    on both sides. (mbarrier.try_wait needs sm_90.)

Warp roles:
    | warps | role                                                            |
    |-------|-----------------------------------------------------------------|
    | 0-7   | consumers: 64 x 64 of C, 4 x 4 elements a thread                |
    | 8-11  | producers: copy both tiles of a stage, 8 x 16 bytes a thread    |

Budget:
    SMEM: 2 tiles x 64 rows x 128 B = 16 KB a stage, 4 stages: 64 KB and 64 B of mbarriers, 3 CTAs an SM on sm_90 by
    shared memory. Registers: 16 accumulators, 8 chunks of 4 registers, 74 a thread in fp32 (2 CTAs of 384 threads),
    122 in fp16 (1).

Run:
    tensorladder run a2-smem-pipeline --shape 256,256,256
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass.memory import SmemAllocator
from cutlass.pipeline import Agent, CooperativeGroup, PipelineAsync

from tensorladder.core import arch as archs
from tensorladder.core.probes import Plan
from tensorladder.core.program import Program
from tensorladder.frontends.cutedsl import compile_program
from tensorladder.problems import dtype_named
from tensorladder.rungs.parts import probes
from tensorladder.rungs.parts.tensors import row_major
from tensorladder.rungs.rung import Rung


@dataclass(frozen=True)
class PipelinedGemmConfig:
    """tile: (M, N) of a CTA; K is what fits into a row. threads_m, threads_n: how consumers lie on the tile of C.

    producers: threads that copy. stages: K tiles in shared memory. probes: the variant that marks time, which
    `tensorladder trace` reads.
    """

    tile: tuple[int, int] = (64, 64)
    threads_m: int = 16
    threads_n: int = 16
    producers: int = 128
    stages: int = 4
    probes: bool = False


RUNG = Rung(
    name="a2-smem-pipeline",
    parent="a2-smem-swizzled",
    adds="producer and consumer warps around a ring of stages, mbarriers through PipelineAsync",
    archs=("sm_90a", "sm_100a", "sm_120a"),
    problem="gemm",
    dtypes=("fp32", "fp16", "bf16"),
    config=PipelinedGemmConfig,
    probes={
        "tracks": (
            ("producers", ("wait: empty", "copy A and B")),
            ("consumers", ("wait: full", "multiply"), ("store C",)),
        ),
        "overlap": ("copy", "run"),
        "releases": (
            (("producers", "copy A and B"), ("consumers", "wait: full")),
            (("consumers", "multiply"), ("producers", "wait: empty"), "stages"),
        ),
    },
)
ROW_BYTES = 128
VECTOR_BYTES = 16
PRODUCERS, CONSUMERS = range(2)  # tracks of the probes


class PipelinedGemm:
    def __init__(self, config: PipelinedGemmConfig, tile: tuple[int, int, int], whole: bool):
        self.tile = tile
        self.threads_m, self.threads_n = config.threads_m, config.threads_n
        self.consumers = config.threads_m * config.threads_n
        self.producers = config.producers
        self.stages = config.stages
        self.whole = whole  # the tile divides the shape: nothing to mask

    @cute.jit
    def __call__(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mP: cute.Tensor | None = None):
        bM, bN, bK = self.tile
        sA_layout = cute.make_layout((bM, bK, self.stages), stride=(bK, 1, bM * bK))
        sB_layout = cute.make_layout((bN, bK, self.stages), stride=(bK, 1, bN * bK))

        # gmem -> smem: 16 bytes a thread, 8 threads a row.
        vector = VECTOR_BYTES * 8 // mA.element_type.width
        atom_g2s = cute.make_copy_atom(
            cute.nvgpu.CopyUniversalOp(), mA.element_type, num_bits_per_copy=8 * VECTOR_BYTES
        )
        threads_k = bK // vector
        thread_layout = cute.make_layout((self.producers // threads_k, threads_k), stride=(threads_k, 1))
        tiled_copy = cute.make_tiled_copy_tv(atom_g2s, thread_layout, cute.make_layout((1, vector)))

        # Neighbouring threads along N: their stores to C are contiguous, their loads of A one broadcast.
        atoms = cute.make_layout((self.threads_m, self.threads_n, 1), stride=(self.threads_n, 1, 0))
        tiled_mma = cute.make_tiled_mma(cute.nvgpu.MmaUniversalOp(cutlass.Float32), atoms)

        tiles_m, tiles_n = cute.ceil_div(mC.shape, self.tile[:2])
        self.kernel(mA, mB, mC, sA_layout, sB_layout, tiled_copy, tiled_mma, vector, mP).launch(
            grid=(tiles_n, tiles_m, 1), block=(self.consumers + self.producers, 1, 1)
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
        vector: cutlass.Constexpr,
        mP: cute.Tensor | None,
    ):
        tidx, _, _ = cute.arch.thread_idx()
        tile_n, tile_m, _ = cute.arch.block_idx()
        coord = (tile_m, tile_n, None)
        cta = tile_m * cute.arch.grid_dim()[0] + tile_n

        # Byte addresses: the number of the 16-byte chunk (bits 4 to 6) XOR that of the 128-byte row (bits 7 to 9).
        swizzle = cute.make_swizzle(3, 4, 3)
        smem = SmemAllocator()
        sA = smem.allocate_tensor(mA.element_type, sA_layout, 1024, swizzle)
        sB = smem.allocate_tensor(mB.element_type, sB_layout, 1024, swizzle)

        # (BM, BK, k tiles), (BN, BK, k tiles), (BM, BN): values, and coordinates for the masks.
        gA, cA = self.tiles_of(mA, coord, (1, None, 1))
        gB, cB = self.tiles_of(mB, coord, (None, 1, 1))
        gC, cC = self.tiles_of(mC, coord, (1, 1, None))

        # gmem -> smem, by the threads after the consumers
        thr_copy = tiled_copy.get_slice(tidx - self.consumers)
        tAgA, tAcA, tAsA = thr_copy.partition_S(gA), thr_copy.partition_S(cA), thr_copy.partition_D(sA)
        tBgB, tBcB, tBsB = thr_copy.partition_S(gB), thr_copy.partition_S(cB), thr_copy.partition_D(sB)

        # smem -> registers -> multiply-adds
        thr_mma = tiled_mma.get_slice(tidx)
        tCsA, tCsB = thr_mma.partition_A(sA), thr_mma.partition_B(sB)
        tCgC, tCcC = thr_mma.partition_C(gC), thr_mma.partition_C(cC)
        # (1, MMA_M, (vector, chunks), stage), so that a chunk can be taken out.
        chunked = (None, None, cute.make_layout(vector), None)
        tCsA, tCsB = cute.logical_divide(tCsA, chunked), cute.logical_divide(tCsB, chunked)
        tCrA = cute.make_fragment_like(tCsA[None, None, (None, 0), 0])
        tCrB = cute.make_fragment_like(tCsB[None, None, (None, 0), 0])
        tCrC = tiled_mma.make_fragment_C(tCgC)
        # The ring's mbarriers, all arrivals by threads. `create` initialises them, fences, and synchronises the CTA.
        pipeline = PipelineAsync.create(
            num_stages=self.stages,
            producer_group=CooperativeGroup(Agent.Thread, self.producers),
            consumer_group=CooperativeGroup(Agent.Thread, self.consumers),
            barrier_storage=smem.allocate_array(cutlass.Int64, 2 * self.stages),
        )
        producer, consumer = pipeline.make_participants()
        num_k_tiles = cute.size(gA, mode=[2])

        if tidx >= self.consumers:
            probes.start(mP, cta, PRODUCERS, self.consumers)
            for k_tile in range(num_k_tiles):
                probes.mark(mP, cta, PRODUCERS, 2 * k_tile, self.consumers)
                stage = producer.acquire_and_advance()  # wait until it is empty
                probes.mark(mP, cta, PRODUCERS, 2 * k_tile + 1, self.consumers)
                at = (None, None, None, stage.index)
                self.load(tAgA[None, None, None, k_tile], tAcA[None, None, None, k_tile], mA.shape, tAsA[at])
                self.load(tBgB[None, None, None, k_tile], tBcB[None, None, None, k_tile], mB.shape, tBsB[at])
                stage.commit()  # arrive: full
            probes.mark(mP, cta, PRODUCERS, 2 * num_k_tiles, self.consumers)

        if tidx < self.consumers:
            tCrC.fill(0.0)
            probes.start(mP, cta, CONSUMERS, self.consumers)
            for k_tile in range(num_k_tiles):
                probes.mark(mP, cta, CONSUMERS, 2 * k_tile, self.consumers)
                stage = consumer.wait_and_advance()  # wait until it is full
                probes.mark(mP, cta, CONSUMERS, 2 * k_tile + 1, self.consumers)
                for chunk in cutlass.range(self.tile[2] // vector, unroll=2):
                    cute.autovec_copy(tCsA[None, None, (None, chunk), stage.index], tCrA)
                    cute.autovec_copy(tCsB[None, None, (None, chunk), stage.index], tCrB)
                    self.multiply(tiled_mma, tCrA, tCrB, tCrC)
                stage.release()  # arrive: empty

            probes.mark(mP, cta, CONSUMERS, 2 * num_k_tiles, self.consumers)
            for i in cutlass.range_constexpr(cute.size(tCrC)):
                if self.whole or cute.elem_less(tCcC[i], mC.shape):
                    tCgC[i] = tCrC[i].to(mC.element_type)
            probes.mark(mP, cta, CONSUMERS, 2 * num_k_tiles + 1, self.consumers)

    @cute.jit
    def multiply(self, tiled_mma: cute.TiledMma, tCrA: cute.Tensor, tCrB: cute.Tensor, tCrC: cute.Tensor):
        """Multiply-add a chunk, step by step along K, in float32."""
        tCrA_k = cute.make_fragment_like(tCrA[None, None, 0], cutlass.Float32)
        tCrB_k = cute.make_fragment_like(tCrB[None, None, 0], cutlass.Float32)
        for k in cutlass.range_constexpr(cute.size(tCrA, mode=[2])):
            tCrA_k.store(tCrA[None, None, k].load().to(cutlass.Float32))
            tCrB_k.store(tCrB[None, None, k].load().to(cutlass.Float32))
            cute.gemm(tiled_mma, tCrC, tCrA_k, tCrB_k, tCrC)

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
        """Copy this thread's share of a tile, vector by vector. What lies outside the matrix becomes zero."""
        values = cute.make_fragment_like(src)
        for row in cutlass.range_constexpr(cute.size(src, mode=[1])):
            # K is a multiple of a vector: its first element decides for all.
            if self.whole or cute.elem_less(coords[0, row, 0], limit):
                cute.autovec_copy(src[None, row, 0], values[None, row, 0])
            else:
                values[None, row, 0].fill(0.0)
        cute.autovec_copy(values, dst)


def compile(arch: str, shape: tuple[int, ...], dtype: str, config: PipelinedGemmConfig | None = None) -> Program:
    """The rung for one architecture, shape (M, N, K) and element type. Any M and N; rows of 16-byte vectors."""
    (m, n, k), dtype = RUNG.check(arch, shape, dtype)
    config = config or PipelinedGemmConfig()
    bits = dtype_named(dtype).bits
    tile = (*config.tile, ROW_BYTES * 8 // bits)
    check_config(config, arch)
    vector = VECTOR_BYTES * 8 // bits
    RUNG.require(k % vector == 0, f"K={k}: rows are copied 16 bytes at a time, pad K to a multiple of {vector}")
    whole = all(extent % size == 0 for extent, size in zip((m, n, k), tile))
    arrays = [row_major(dtype, extents) for extents in ((m, k), (n, k), (m, n))]
    if config.probes:
        arrays.append(probes.buffer(Plan.of(RUNG.probes), *marked((m, n, k), dtype, config)))
    return compile_program(PipelinedGemm(config, tile, whole), *arrays, arch=arch, name=RUNG.name)


def marked(shape: tuple[int, ...], dtype: str, config: PipelinedGemmConfig) -> tuple[int, int]:
    """(CTAs, K tiles of each), which the probes mark."""
    tile = (*config.tile, ROW_BYTES * 8 // dtype_named(dtype).bits)
    tiles = [-(-extent // size) for extent, size in zip(shape, tile)]
    return tiles[0] * tiles[1], tiles[2]


def check_config(config: PipelinedGemmConfig, arch: str) -> None:
    """UsageError unless both roles cover their tiles evenly and the stages fit into shared memory."""
    (bM, bN), consumers = config.tile, config.threads_m * config.threads_n
    threads = consumers + config.producers
    RUNG.require(0 < threads <= 1024, f"consumers and producers are {threads} threads: a CTA has at most 1024")
    whole_warps = consumers % 32 == 0 and config.producers % 32 == 0
    RUNG.require(whole_warps, f"producers={config.producers}: both roles must be whole warps of 32 threads")
    apart = consumers & (consumers - 1) == 0 and config.producers <= consumers
    RUNG.require(apart or not config.probes, f"{consumers} consumers: probes want a power of two, no more producers")
    RUNG.require(bM % config.threads_m == 0, f"tile={config.tile}: M must be a multiple of threads_m")
    RUNG.require(bN % config.threads_n == 0, f"tile={config.tile}: N must be a multiple of threads_n")
    rows = config.producers // (ROW_BYTES // VECTOR_BYTES)
    RUNG.require(bM % rows == 0 and bN % rows == 0, f"tile={config.tile}: M and N must be multiples of {rows} rows")
    RUNG.require(config.stages >= 1, f"stages={config.stages}: at least 1")
    smem, limit = config.stages * (bM + bN) * ROW_BYTES + 1024, archs.find(arch).smem_per_cta
    RUNG.require(smem <= limit, f"stages={config.stages}: {smem} bytes of shared memory, {arch} has {limit}")
