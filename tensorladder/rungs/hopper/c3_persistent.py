"""Persistent: one CTA an SM walks over the tiles of C, and stores one tile while it loads and multiplies the next.

Adds:
    A loop over tiles around the parent's kernel. With a CTA a tile, each tile begins with empty stages and ends with
    tensor cores that wait for C to be stored; a second CTA covers that, as long as L2 holds what both read. Here the
    producer walks on to the next tile as soon as a stage is free, so that its first stages are full before the epilogue
    is through; and C has staging buffers of its own, from which TMA stores while the next tile is multiplied. On an
    H200 the tensor pipe is busy 96 % of the time in place of 90 (ncu, 4096 cubed): 1.03 times as fast as the parent at
    4096 cubed, 1.03 at 8192, alone 1.08 and 1.03 (`benchmarks.steps`). The larger tiles at 4096 also read less of A and
    B: a product takes 151 mJ in place of 164, and alone the clock settles at 1410 MHz in place of 1350.
    - Tiles are numbered for L2: down `raster` rows, then the next column, and CTAs take every `grid`-th number, so that
      those at work at one time lie in a nearly square block of C and share its rows of A and B.
    - A warpgroup stores its 64 rows in chunks of 64 columns, from two buffers in turn: before a buffer is written the
      bulk group that read it must have (wait_group.read), a wait of the thread that issued it, which a named barrier
      makes known to the warpgroup. Warpgroups no longer wait for each other at all.
    - The producer and the consumers compute the same walk each for itself; the ring's state goes on from tile to tile.
    - The tile follows the shape (`default_config`): of 128 x 256 and 128 x 192, which leaves room for all of its C, the
      one whose last wave wastes less.
    fp8 (e4m3) with fp16 results is the same kernel, with twice as many elements in a tile's 128-byte rows. Hopper adds
    fp8 products to 13 fraction bits (NOTES.md): a long K loses a little.

Warp roles:
    | warps    | role                                                                               |
    |----------|------------------------------------------------------------------------------------|
    | 0-3, 4-7 | consumers, a warpgroup each: multiply 64 x 256 of C; its first warp stores by TMA  |
    | 8        | producer: asks TMA for A and B of all tiles, as far ahead as stages are free       |
    | 9-11     | nothing, their registers go to the consumers                                       |

Budget:
    SMEM: (128 + 256) rows x 64 x 2 B = 48 KB a stage, 4 stages: 192 KB; C: 2 warpgroups x 2 buffers x 64 x 64 x 2 B
    = 32 KB; 64 B of mbarriers: 225 KB of 227. Registers: 128 accumulators and 16 packed ones in at most 232 a consumer
    thread; 128 x 40 + 256 x 232 = 63 Ki of an SM's 64 Ki. No TMEM.

Run:
    tensorladder run c3-persistent --shape 512,512,256
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup
from cutlass.memory import SmemAllocator
from cutlass.pipeline import Agent, CooperativeGroup, NamedBarrier, PipelineTmaAsync

from tensorladder.core import arch as archs
from tensorladder.core.program import Program
from tensorladder.frontends.cutedsl import compile_program
from tensorladder.problems import dtype_named
from tensorladder.rungs.parts import limits, waves
from tensorladder.rungs.parts.tensors import row_major
from tensorladder.rungs.rung import Rung


@dataclass(frozen=True)
class PersistentGemmConfig:
    """tile: (M, N, K) of a CTA; K counts 16-bit elements (twice as many of fp8). warpgroups: of consumers, one below
    the other along M of the tile of C. stages: K tiles in shared memory.

    c_stages: buffers of 64 x 64 of C a warpgroup. raster: rows of tiles before the next column, so that CTAs share A
    and B in L2. sm_count, ctas_per_sm: the grid is their product, or the number of tiles where that is less.
    producer_registers, consumer_registers: a thread, after setmaxnreg (multiples of 8).
    """

    tile: tuple[int, int, int] = (128, 256, 64)
    warpgroups: int = 2
    stages: int = 4
    c_stages: int = 2
    raster: int = 8
    sm_count: int = 132
    ctas_per_sm: int = 1
    producer_registers: int = 40
    consumer_registers: int = 232


RUNG = Rung(
    name="c3-persistent",
    parent="c2-warp-specialized",
    adds="persistent CTAs, tiles grouped for L2; C leaves through buffers of its own while the next tile is multiplied",
    archs=("sm_90a",),
    problem="gemm",
    dtypes=("fp16", "bf16", "e4m3"),
    config=PersistentGemmConfig,
)

WARPGROUP = 128  # threads
WARPS = 4  # of a warpgroup
CHUNK = 64  # rows and columns of C that a warpgroup stores at a time: as wide as the swizzle


class PersistentGemm:
    def __init__(self, config: PersistentGemmConfig, element_bits: int):
        self.tile = (*config.tile[:2], config.tile[2] * 16 // element_bits)
        self.warpgroups = config.warpgroups
        self.consumer_warps = WARPS * config.warpgroups
        self.producer_warp = self.consumer_warps
        self.threads = WARPGROUP * (config.warpgroups + 1)
        self.stages = config.stages
        self.c_stages = config.c_stages
        self.raster = config.raster
        self.max_ctas = config.sm_count * config.ctas_per_sm
        self.ctas_per_sm = config.ctas_per_sm
        self.producer_registers = config.producer_registers
        self.consumer_registers = config.consumer_registers

    @cute.jit
    def __call__(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor):
        bM, bN, bK = self.tile
        element_type, result_type = mA.element_type, mC.element_type
        sA_layout = self.smem_layout(element_type, bM, bK, self.stages)
        sB_layout = self.smem_layout(element_type, bN, bK, self.stages)
        sC_layout = self.smem_layout(result_type, CHUNK, CHUNK, self.warpgroups * self.c_stages)

        # A descriptor and a tensor of coordinates for each matrix. TMA takes coordinates, not addresses.
        load, store = cpasync.CopyBulkTensorTileG2SOp(), cpasync.CopyBulkTensorTileS2GOp()
        tma_A, mA = cpasync.make_tiled_tma_atom(load, mA, cute.select(sA_layout, mode=[0, 1]), (bM, bK))
        tma_B, mB = cpasync.make_tiled_tma_atom(load, mB, cute.select(sB_layout, mode=[0, 1]), (bN, bK))
        tma_C, mC = cpasync.make_tiled_tma_atom(store, mC, cute.select(sC_layout, mode=[0, 1]), (CHUNK, CHUNK))

        # A warpgroup does 64 rows and all columns at once; both operands lie in shared memory with K contiguous.
        tiled_mma = cute.make_tiled_mma(self.mma_op(element_type, bN), cute.make_layout((self.warpgroups, 1, 1)))

        @cute.struct
        class SharedStorage:
            barriers: cute.struct.MemRange[cutlass.Int64, 2 * self.stages]
            sA: cute.struct.Align[cute.struct.MemRange[element_type, cute.cosize(sA_layout)], 1024]
            sB: cute.struct.Align[cute.struct.MemRange[element_type, cute.cosize(sB_layout)], 1024]
            sC: cute.struct.Align[cute.struct.MemRange[result_type, cute.cosize(sC_layout)], 1024]

        self.shared_storage = SharedStorage
        tiles = cute.ceil_div(mC.shape, (bM, bN))
        self.kernel(tma_A, mA, tma_B, mB, tma_C, mC, sA_layout, sB_layout, sC_layout, tiled_mma, tiles).launch(
            grid=(min(cute.size(tiles), self.max_ctas), 1, 1),
            block=(self.threads, 1, 1),
            min_blocks_per_mp=self.ctas_per_sm,
            preferred_smem_carveout=100,  # percent; given so that the DSL need not ask a GPU
        )

    @cute.kernel
    def kernel(
        self, tma_A: cute.CopyAtom, mA: cute.Tensor, tma_B: cute.CopyAtom, mB: cute.Tensor,
        tma_C: cute.CopyAtom, mC: cute.Tensor, sA_layout: cute.ComposedLayout, sB_layout: cute.ComposedLayout,
        sC_layout: cute.ComposedLayout, tiled_mma: cute.TiledMma, tiles: cutlass.Constexpr,
    ):
        tidx, _, _ = cute.arch.thread_idx()
        bidx, _, _ = cute.arch.block_idx()
        ctas, _, _ = cute.arch.grid_dim()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        group = warp // WARPS

        smem = SmemAllocator()
        storage = smem.allocate(self.shared_storage)
        sA = storage.sA.get_tensor(sA_layout.outer, swizzle=sA_layout.inner)
        sB = storage.sB.get_tensor(sB_layout.outer, swizzle=sB_layout.inner)
        sC = storage.sC.get_tensor(sC_layout.outer, swizzle=sC_layout.inner)
        element_type = sA.element_type
        stage_bytes = cute.size_in_bytes(element_type, cute.select(sA_layout, mode=[0, 1]))
        stage_bytes += cute.size_in_bytes(element_type, cute.select(sB_layout, mode=[0, 1]))

        # (BM, BK, tiles along M, k tiles), (BN, BK, tiles along N, k tiles), (64, 64, chunks along M, along N), as
        # coordinates.
        gA = cute.local_tile(mA, tiler=self.tile, coord=(None, None, None), proj=(1, None, 1))
        gB = cute.local_tile(mB, tiler=self.tile, coord=(None, None, None), proj=(None, 1, 1))
        gC = cute.local_tile(mC, tiler=(CHUNK, CHUNK), coord=(None, None))

        # gmem -> smem and back: (TMA, stage), (TMA, tile, k tile); (TMA, buffer), (TMA, chunk m, chunk n)
        tAsA, tAgA = self.tma_partition(tma_A, sA, gA)
        tBsB, tBgB = self.tma_partition(tma_B, sB, gB)
        tCsC, tCgC = self.tma_partition(tma_C, sC, gC)

        # smem -> MMA: "fragments" of A and B are descriptors (MMA, MMA_M, MMA_K, stage), the same for all threads of a
        # warpgroup.
        thr_mma = tiled_mma.get_slice(cute.arch.make_warp_uniform(tidx // WARPGROUP) * WARPGROUP)
        tCrA = tiled_mma.make_fragment_A(thr_mma.partition_A(sA))
        tCrB = tiled_mma.make_fragment_B(thr_mma.partition_B(sB))
        tCrC = tiled_mma.make_fragment_C(thr_mma.partition_shape_C(self.tile[:2]))

        # The barriers of the ring: full completes with one arrival (the producer's) and the tile's bytes, empty with an
        # arrival a consumer warp. `create` initialises them, fences, and synchronises the CTA.
        pipeline = PipelineTmaAsync.create(
            num_stages=self.stages,
            producer_group=CooperativeGroup(Agent.Thread),
            consumer_group=CooperativeGroup(Agent.Thread, self.consumer_warps),
            tx_count=stage_bytes,
            barrier_storage=storage.barriers.data_ptr(),
            cta_layout_vmnk=cute.make_layout((1, 1, 1, 1)),
        )
        producer, consumer = pipeline.make_participants()
        num_tiles = cute.size(tiles)
        num_k_tiles = cute.size(gA, mode=[3])

        if warp >= self.producer_warp:
            cute.arch.setmaxregister_decrease(self.producer_registers)
            if warp == self.producer_warp:
                cpasync.prefetch_descriptor(tma_A)
                cpasync.prefetch_descriptor(tma_B)
                for tile in cutlass.range(bidx, num_tiles, ctas):
                    m, n = self.raster_tile(tile, tiles)
                    for k_tile in range(num_k_tiles):
                        stage = producer.acquire_and_advance()
                        cute.copy(tma_A, tAgA[None, m, k_tile], tAsA[None, stage.index], tma_bar_ptr=stage.barrier)
                        cute.copy(tma_B, tBgB[None, n, k_tile], tBsB[None, stage.index], tma_bar_ptr=stage.barrier)

        if warp < self.producer_warp:
            cute.arch.setmaxregister_increase(self.consumer_registers)
            for tile in cutlass.range(bidx, num_tiles, ctas):
                released = consumer.clone()  # a K tile behind
                stage = consumer.wait_and_advance()
                self.multiply(tiled_mma, tCrA, tCrB, tCrC, stage.index, True)
                for _ in range(1, num_k_tiles):
                    stage = consumer.wait_and_advance()
                    self.multiply(tiled_mma, tCrA, tCrB, tCrC, stage.index, False)
                    # All groups but the last are complete: the stage before this one has been read.
                    warpgroup.wait_group(1)
                    released.release()
                    released.advance()
                # The accumulator is complete, and the tile's last stage read.
                warpgroup.wait_group(0)
                released.release()
                m, n = self.raster_tile(tile, tiles)
                self.store(tma_C, tCsC, tCgC, sC, tCrC, m, n, tidx % WARPGROUP, warp % WARPS, group)
            # Shared memory belongs to the CTA only until it exits: wait until TMA has read it.
            if warp % WARPS == 0:
                cute.arch.cp_async_bulk_wait_group(0, read=True)

    @cute.jit
    def multiply(
        self, tiled_mma: cute.TiledMma, tCrA: cute.Tensor, tCrB: cute.Tensor, tCrC: cute.Tensor,
        stage: cutlass.Int32, first: cutlass.Constexpr,
    ):
        """Issue the WGMMAs of a K tile as one group. first: overwrite the accumulator."""
        warpgroup.fence()
        for k_block in cutlass.range_constexpr(cute.size(tCrA, mode=[2])):
            tiled_mma.set(warpgroup.Field.ACCUMULATE, not first or k_block > 0)
            cute.gemm(tiled_mma, tCrC, tCrA[None, None, k_block, stage], tCrB[None, None, k_block, stage], tCrC)
        warpgroup.commit_group()

    @cute.jit
    def store(
        self, tma_C: cute.CopyAtom, tCsC: cute.Tensor, tCgC: cute.Tensor, sC: cute.Tensor, tCrC: cute.Tensor,
        m: cutlass.Int32, n: cutlass.Int32, thread: cutlass.Int32, warp: cutlass.Int32, group: cutlass.Int32,
    ):
        """A warpgroup's part of the tile (m, n), 64 x 64 at a time: registers -> smem (stmatrix) -> gmem (TMA).

        thread, warp: in the warpgroup.
        """
        together = NamedBarrier(barrier_id=1 + group, num_threads=WARPGROUP)
        # The accumulator of a 64 x 64 WGMMA is laid out as any 64 columns of a wider one.
        element_type = sC.element_type
        chunk_mma = cute.make_tiled_mma(self.mma_op(element_type, CHUNK))
        atom_r2s = cute.make_copy_atom(cute.nvgpu.warp.StMatrix8x8x16bOp(False, 4), element_type)
        thr_r2s = cute.make_tiled_copy_C(atom_r2s, chunk_mma).get_slice(thread)
        tCrF = chunk_mma.make_fragment_C(chunk_mma.get_slice(0).partition_shape_C((CHUNK, CHUNK)))
        tCrD = cute.make_fragment_like(tCrF, element_type)

        rows, cols = self.tile[0] // CHUNK // self.warpgroups, self.tile[1] // CHUNK
        for row in cutlass.range_constexpr(rows):
            for col in cutlass.range_constexpr(cols):
                chunk = row * cols + col
                buffer = group * self.c_stages + chunk % self.c_stages
                for i in cutlass.range_constexpr(cute.size(tCrF)):
                    tCrF[i] = tCrC[chunk * cute.size(tCrF) + i]
                tCrD.store(tCrF.load().to(element_type))

                # The buffer is free once the store from it, c_stages chunks ago, has read it.
                if warp == 0:
                    cute.arch.cp_async_bulk_wait_group(self.c_stages - 1, read=True)
                together.arrive_and_wait()
                cute.copy(atom_r2s, thr_r2s.retile(tCrD), thr_r2s.partition_D(sC[None, None, buffer]))

                # Each writer's fence, then the barrier, then the store: the other way round TMA could read stale bytes.
                cute.arch.fence_proxy("async.shared", space="cta")
                together.arrive_and_wait()
                chunk_m, chunk_n = m * rows * self.warpgroups + row * self.warpgroups + group, n * cols + col
                if warp == 0:
                    # Chunks outside of C are left out: a mode of one chunk would take any number for its first.
                    if chunk_m < cute.size(tCgC, mode=[1]) and chunk_n < cute.size(tCgC, mode=[2]):
                        cute.copy(tma_C, tCsC[None, buffer], tCgC[None, chunk_m, chunk_n])
                    cute.arch.cp_async_bulk_commit_group()

    @cute.jit
    def tma_partition(self, atom: cute.CopyAtom, smem: cute.Tensor, gmem: cute.Tensor):
        """Both sides of a TMA copy with their first two modes (the box) as one."""
        return cpasync.tma_partition(
            atom, 0, cute.make_layout(1), cute.group_modes(smem, 0, 2), cute.group_modes(gmem, 0, 2)
        )

    @cute.jit
    def raster_tile(self, index: cutlass.Int32, tiles: cutlass.Constexpr):
        """(m, n) of a tile by its number: down `raster` rows, then the next column, so that a wave is nearly square."""
        group = index // (self.raster * tiles[1])
        within = index % (self.raster * tiles[1])
        rows = min(tiles[0] - group * self.raster, self.raster)
        return group * self.raster + within % rows, within // rows

    def mma_op(self, element_type: type[cutlass.Numeric], n: int):
        """WGMMA of 64 x n and 32 bytes of K, both operands from shared memory with K contiguous."""
        k_major, shape = OperandMajorMode.K, (64, n, 256 // element_type.width)
        where = (warpgroup.OperandSource.SMEM, k_major, k_major)
        if element_type.width == 8:
            return warpgroup.MmaF8Op(element_type, element_type, cutlass.Float32, shape, *where)
        return warpgroup.MmaF16BF16Op(element_type, cutlass.Float32, shape, *where)

    def smem_layout(self, element_type: type[cutlass.Numeric], rows: int, cols: int, stages: int):
        """(rows, cols, stages), row-major in columns of 128 bytes, the swizzle of TMA and WGMMA."""
        width = 1024 // element_type.width
        plain = cute.make_layout((8, width), stride=(width, 1))
        atom = cute.make_composed_layout(cute.make_swizzle(3, 4, 3), 0, plain)
        return cute.tile_to_shape(atom, (rows, cols, stages), order=(0, 1, 2))


WIDE = PersistentGemmConfig(tile=(128, 192, 64), stages=4, c_stages=3)


def default_config(shape: tuple[int, ...]) -> PersistentGemmConfig:
    """Knobs for (M, N, K): the tile that wastes least of the last wave."""
    return waves.fitting(shape, PersistentGemmConfig(), WIDE)


def compile(arch: str, shape: tuple[int, ...], dtype: str, config: PersistentGemmConfig | None = None) -> Program:
    """The rung for one architecture, shape (M, N, K) and element type. M from 2; N a multiple of 8, K of 16 bytes."""
    (m, n, k), dtype = RUNG.check(arch, shape, dtype)
    config = config or default_config((m, n, k))
    check_config(config, arch)
    RUNG.require(m > 1, "M=1: the DSL makes a one-dimensional tensor map of a single row, pad M to 2")
    RUNG.require(n % 8 == 0, f"N={n}: TMA wants row pitches of 16 bytes, pad N to a multiple of 8")
    bits = dtype_named(dtype).bits
    RUNG.require(k * bits % 128 == 0, f"K={k}: TMA wants row pitches of 16 bytes, pad K to a multiple of {128 // bits}")
    arrays = [row_major(dtype, (m, k)), row_major(dtype, (n, k)), row_major("fp16" if bits == 8 else dtype, (m, n))]
    return compile_program(PersistentGemm(config, bits), *arrays, arch=arch, name=RUNG.name)


def check_config(config: PersistentGemmConfig, arch: str) -> None:
    """UsageError unless the warpgroups cover the tile evenly and the stages fit into shared memory."""
    bM, bN, bK = config.tile
    groups = config.warpgroups
    RUNG.require(1 <= groups <= 4, f"warpgroups={groups}: 1 to 4, more have no room for accumulators")
    RUNG.require(config.raster > 0, f"raster={config.raster}: at least 1 row of tiles")
    RUNG.require(min(config.tile) > 0, f"tile={config.tile}: extents are positive")
    RUNG.require(bM % (64 * groups) == 0, f"tile={config.tile}: M must be a multiple of {64 * groups}")
    RUNG.require(bK % 64 == 0 and bN % 64 == 0, f"tile={config.tile}: N and K must be multiples of 64 (128 bytes)")
    RUNG.require(max(config.tile) <= 256, f"tile={config.tile}: a TMA box and WGMMA have at most 256 rows")
    RUNG.require(config.stages >= 2, f"stages={config.stages}: at least 2, one to fill and one to multiply")
    chunks = (bM // CHUNK // groups) * (bN // CHUNK)
    fits = config.c_stages > 0 and chunks % config.c_stages == 0
    RUNG.require(fits, f"c_stages={config.c_stages}: must divide the {chunks} chunks of a warpgroup's tile")
    RUNG.require(config.sm_count > 0, f"sm_count={config.sm_count}: at least 1")
    limits.check_registers(RUNG, config, groups, bM * bN // (WARPGROUP * groups))
    smem = 2 * (config.stages * (bM + bN) * bK + groups * config.c_stages * CHUNK * CHUNK) + 1024
    limit = archs.find(arch).smem_per_cta
    stages = f"stages={config.stages}, c_stages={config.c_stages}"
    RUNG.require(smem <= limit, f"{stages}: {smem} bytes of shared memory, {arch} has {limit}")
