"""Warp specialisation: a TMA producer and MMA consumers that meet only at mbarriers.

Adds:
    Roles. In the parent all warps stop at a CTA barrier each K tile, only so that the one that issues the next load
    knows the stage to be free; the tensor cores idle meanwhile. Here a warp does nothing but ask for tiles, and each
    stage has two mbarriers: `full`, completed by TMA's bytes, and `empty`, completed by one arrival of each consumer
    warp. Consumers wait for data and nothing else, each at its own pace and up to a ring of stages apart, and the
    producer runs ahead until the ring is full. Who waits for whom is all in a PipelineTmaAsync: acquire (wait for
    empty, expect the bytes), wait (for full), release (arrive at empty).
    - setmaxnreg moves registers from the warpgroup that needs none to the one that holds the accumulators. A CTA
      starts with 128 a thread, so that two fit on an SM; producers keep 40, consumers get 216. It acts on whole
      warpgroups (four warps), which is why three warps of the producer's only lend their registers.
    - A CTA barrier inside one role would hang: the epilogue uses a named barrier of the consumers alone.
    On an H200 the tensor pipe is busy 85 % of the time in place of 81 (ncu, 4096 cubed): 1.05 times as fast as the
    parent at 4096 cubed, 1.04 at 8192, alone 1.03 and 1.04 (`benchmarks.steps`).

Warp roles:
    | warps | role                                                                      |
    |-------|---------------------------------------------------------------------------|
    | 0-3   | consumers: multiply 64 x 64 of C (2 x 2 warps); warp 0 stores C by TMA    |
    | 4     | producer: asks TMA for A and B, as far ahead as stages are free           |
    | 5-7   | nothing, their registers go to the consumers                              |

Budget:
    SMEM: (128 + 128) rows x 64 x 2 B = 32 KB a stage, 3 stages: 96 KB and 48 B of mbarriers, 2 CTAs an SM on sm_90; C
    (32 KB) reuses the stages. Registers: 128 accumulators and 32 of fragments in at most 216 a consumer thread; 128 x
    (216 + 40) = 32 Ki a CTA, half of an SM's 64 Ki. No TMEM.

Run:
    tensorladder run b7-warp-specialized --shape 256,256,256
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import cpasync
from cutlass.memory import SmemAllocator
from cutlass.pipeline import Agent, CooperativeGroup, NamedBarrier, PipelineTmaAsync

from tensorladder.core import arch as archs
from tensorladder.core.program import Program
from tensorladder.frontends.cutedsl import compile_program
from tensorladder.rungs.parts.tensors import row_major
from tensorladder.rungs.rung import Rung


@dataclass(frozen=True)
class WarpSpecializedGemmConfig:
    """tile: (M, N, K) of a CTA. warps_m, warps_n: how consumers lie on the tile of C. stages: K tiles in shared memory.

    raster: rows of tiles that consecutive CTAs go down before the next column, so that they share A and B in L2.
    ctas_per_sm: what the registers at launch have to allow. producer_registers, consumer_registers: a thread, after
    setmaxnreg (multiples of 8).
    """

    tile: tuple[int, int, int] = (128, 128, 64)
    warps_m: int = 2
    warps_n: int = 2
    stages: int = 3
    raster: int = 8
    ctas_per_sm: int = 2
    producer_registers: int = 40
    consumer_registers: int = 216


RUNG = Rung(
    name="b7-warp-specialized",
    parent="b5-tma",
    adds="a TMA producer warp, MMA consumer warps, full and empty mbarriers a stage, setmaxnreg",
    archs=("sm_90a", "sm_100a", "sm_120a"),
    problem="gemm",
    dtypes=("fp16", "bf16"),
    config=WarpSpecializedGemmConfig,
)

WARPGROUP = 4  # warps


class WarpSpecializedGemm:
    def __init__(self, config: WarpSpecializedGemmConfig):
        self.tile = config.tile
        self.warps = (config.warps_m, config.warps_n, 1)
        self.consumer_warps = config.warps_m * config.warps_n
        self.producer_warp = self.consumer_warps
        self.threads = 32 * (self.consumer_warps + WARPGROUP)
        self.stages = config.stages
        self.raster = config.raster
        self.ctas_per_sm = config.ctas_per_sm
        self.producer_registers = config.producer_registers
        self.consumer_registers = config.consumer_registers

    @cute.jit
    def __call__(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor):
        bM, bN, bK = self.tile
        sA_layout = self.smem_layout(bM, bK, self.stages)
        sB_layout = self.smem_layout(bN, bK, self.stages)
        sC_layout = self.smem_layout(bM, bN, 1)

        # A descriptor and a tensor of coordinates for each matrix. TMA takes coordinates, not addresses.
        load, store = cpasync.CopyBulkTensorTileG2SOp(), cpasync.CopyBulkTensorTileS2GOp()
        tma_A, mA = cpasync.make_tiled_tma_atom(load, mA, cute.select(sA_layout, mode=[0, 1]), (bM, bK))
        tma_B, mB = cpasync.make_tiled_tma_atom(load, mB, cute.select(sB_layout, mode=[0, 1]), (bN, bK))
        element_type = mC.element_type
        tma_C, mC = cpasync.make_tiled_tma_atom(store, mC, cute.select(sC_layout, mode=[0, 1]), (bM, bN))

        # Two MMAs side by side along N make the 16 x 16 block of B that one ldmatrix.x4 loads.
        mma_op = cute.nvgpu.warp.MmaF16BF16Op(element_type, cutlass.Float32, (16, 8, 16))
        permutation_mnk = (self.warps[0] * 16, self.warps[1] * 16, 16)
        tiled_mma = cute.make_tiled_mma(mma_op, cute.make_layout(self.warps), permutation_mnk=permutation_mnk)

        @cute.struct
        class SharedStorage:
            barriers: cute.struct.MemRange[cutlass.Int64, 2 * self.stages]
            sA: cute.struct.Align[cute.struct.MemRange[element_type, cute.cosize(sA_layout)], 1024]
            sB: cute.struct.Align[cute.struct.MemRange[element_type, cute.cosize(sB_layout)], 1024]

        self.shared_storage = SharedStorage
        tiles = cute.ceil_div(mC.shape, (bM, bN))
        self.kernel(tma_A, mA, tma_B, mB, tma_C, mC, sA_layout, sB_layout, sC_layout, tiled_mma, tiles).launch(
            grid=(cute.size(tiles), 1, 1),
            block=(self.threads, 1, 1),
            min_blocks_per_mp=self.ctas_per_sm,
            preferred_smem_carveout=100,  # percent; given so that the DSL need not ask a GPU
        )

    @cute.kernel
    def kernel(
        self,
        tma_A: cute.CopyAtom,
        mA: cute.Tensor,
        tma_B: cute.CopyAtom,
        mB: cute.Tensor,
        tma_C: cute.CopyAtom,
        mC: cute.Tensor,
        sA_layout: cute.ComposedLayout,
        sB_layout: cute.ComposedLayout,
        sC_layout: cute.ComposedLayout,
        tiled_mma: cute.TiledMma,
        tiles: cutlass.Constexpr,
    ):
        tidx, _, _ = cute.arch.thread_idx()
        bidx, _, _ = cute.arch.block_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        coord = (*self.raster_tile(bidx, tiles), None)

        smem = SmemAllocator()
        storage = smem.allocate(self.shared_storage)
        sA = storage.sA.get_tensor(sA_layout.outer, swizzle=sA_layout.inner)
        sB = storage.sB.get_tensor(sB_layout.outer, swizzle=sB_layout.inner)
        # C takes the place of A's and B's stages once they are multiplied.
        sC = cute.make_tensor(cute.recast_ptr(sA.iterator, sC_layout.inner), sC_layout.outer)[None, None, 0]
        element_type = sA.element_type
        stage_bytes = cute.size_in_bytes(element_type, cute.select(sA_layout, mode=[0, 1]))
        stage_bytes += cute.size_in_bytes(element_type, cute.select(sB_layout, mode=[0, 1]))

        # (BM, BK, k tiles), (BN, BK, k tiles), (BM, BN), as coordinates.
        gA = cute.local_tile(mA, tiler=self.tile, coord=coord, proj=(1, None, 1))
        gB = cute.local_tile(mB, tiler=self.tile, coord=coord, proj=(None, 1, 1))
        gC = cute.local_tile(mC, tiler=self.tile, coord=coord, proj=(1, 1, None))

        # gmem -> smem and back: (TMA, stage), (TMA, k tile)
        tAsA, tAgA = self.tma_partition(tma_A, sA, gA)
        tBsB, tBgB = self.tma_partition(tma_B, sB, gB)
        tCsC, tCgC = self.tma_partition(tma_C, sC, gC)

        # smem -> registers -> MMA
        thr_mma = tiled_mma.get_slice(tidx)
        tCrA = tiled_mma.make_fragment_A(thr_mma.partition_A(sA[None, None, 0]))
        tCrB = tiled_mma.make_fragment_B(thr_mma.partition_B(sB[None, None, 0]))
        tCrC = tiled_mma.make_fragment_C(thr_mma.partition_shape_C(self.tile[:2]))

        atom_s2r = cute.make_copy_atom(cute.nvgpu.warp.LdMatrix8x8x16bOp(False, 4), element_type)
        tiled_s2r_A = cute.make_tiled_copy_A(atom_s2r, tiled_mma)
        tiled_s2r_B = cute.make_tiled_copy_B(atom_s2r, tiled_mma)
        thr_s2r_A, thr_s2r_B = tiled_s2r_A.get_slice(tidx), tiled_s2r_B.get_slice(tidx)
        tXsA, tXrA = thr_s2r_A.partition_S(sA), thr_s2r_A.retile(tCrA)
        tXsB, tXrB = thr_s2r_B.partition_S(sB), thr_s2r_B.retile(tCrB)

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
        consumers = NamedBarrier(barrier_id=1, num_threads=32 * self.consumer_warps)
        num_k_tiles = cute.size(gA, mode=[2])

        if warp >= self.producer_warp:
            cute.arch.setmaxregister_decrease(self.producer_registers)
            if warp == self.producer_warp:
                cpasync.prefetch_descriptor(tma_A)
                cpasync.prefetch_descriptor(tma_B)
                for k_tile in range(num_k_tiles):
                    stage = producer.acquire_and_advance()
                    cute.copy(tma_A, tAgA[None, k_tile], tAsA[None, stage.index], tma_bar_ptr=stage.barrier)
                    cute.copy(tma_B, tBgB[None, k_tile], tBsB[None, stage.index], tma_bar_ptr=stage.barrier)

        if warp < self.producer_warp:
            cute.arch.setmaxregister_increase(self.consumer_registers)
            tCrC.fill(0.0)
            for _ in range(num_k_tiles):
                stage = consumer.wait_and_advance()
                for k_block in cutlass.range_constexpr(cute.size(tCrA, mode=[2])):
                    cute.copy(tiled_s2r_A, tXsA[None, None, k_block, stage.index], tXrA[None, None, k_block])
                    cute.copy(tiled_s2r_B, tXsB[None, None, k_block, stage.index], tXrB[None, None, k_block])
                    cute.gemm(tiled_mma, tCrC, tCrA[None, None, k_block], tCrB[None, None, k_block], tCrC)
                # One lane arrives for the warp: all lanes' reads have to come before it.
                cute.arch.sync_warp()
                stage.release()

            # Epilogue: registers -> smem (stmatrix) -> gmem (TMA). The first barrier frees the stages for C: every
            # tile that was asked for has been waited for by then, so no load is on its way either.
            consumers.arrive_and_wait()
            tCrD = cute.make_fragment_like(tCrC, element_type)
            tCrD.store(tCrC.load().to(element_type))
            atom_r2s = cute.make_copy_atom(cute.nvgpu.warp.StMatrix8x8x16bOp(False, 4), element_type)
            tiled_r2s = cute.make_tiled_copy_C(atom_r2s, tiled_mma)
            thr_r2s = tiled_r2s.get_slice(tidx)
            cute.copy(tiled_r2s, thr_r2s.retile(tCrD), thr_r2s.partition_D(sC))

            # Each writer's fence, then the barrier, then the store: the other way round TMA could read stale bytes.
            cute.arch.fence_proxy("async.shared", space="cta")
            consumers.arrive_and_wait()
            if warp == 0:
                cute.copy(tma_C, tCsC, tCgC)
                cute.arch.cp_async_bulk_commit_group()
                # Shared memory belongs to the CTA only until it exits: wait until TMA has read it.
                cute.arch.cp_async_bulk_wait_group(0, read=True)

    @cute.jit
    def tma_partition(self, atom: cute.CopyAtom, smem: cute.Tensor, gmem: cute.Tensor):
        """Both sides of a TMA copy with their first two modes (the box) as one."""
        return cpasync.tma_partition(
            atom, 0, cute.make_layout(1), cute.group_modes(smem, 0, 2), cute.group_modes(gmem, 0, 2)
        )

    @cute.jit
    def raster_tile(self, index: cutlass.Int32, tiles: cutlass.Constexpr):
        """(m, n) of a CTA's tile: down `raster` rows, then the next column, so that a wave is nearly square."""
        group = index // (self.raster * tiles[1])
        within = index % (self.raster * tiles[1])
        rows = min(tiles[0] - group * self.raster, self.raster)
        return group * self.raster + within % rows, within // rows

    def smem_layout(self, rows: int, cols: int, stages: int):
        """(rows, cols, stages), row-major in columns of 64 elements: 128 bytes, the width of the TMA swizzle."""
        atom = cute.make_composed_layout(cute.make_swizzle(3, 4, 3), 0, cute.make_layout((8, 64), stride=(64, 1)))
        return cute.tile_to_shape(atom, (rows, cols, stages), order=(0, 1, 2))


def compile(arch: str, shape: tuple[int, ...], dtype: str, config: WarpSpecializedGemmConfig | None = None) -> Program:
    """The rung for one architecture, shape (M, N, K) and element type. M from 2; N and K multiples of 8 (16 bytes)."""
    (m, n, k), dtype = RUNG.check(arch, shape, dtype)
    config = config or WarpSpecializedGemmConfig()
    check_config(config, arch)
    RUNG.require(m > 1, "M=1: the DSL makes a one-dimensional tensor map of a single row, pad M to 2")
    RUNG.require(n % 8 == 0, f"N={n}: TMA wants row pitches of 16 bytes, pad N to a multiple of 8")
    RUNG.require(k % 8 == 0, f"K={k}: TMA wants row pitches of 16 bytes, pad K to a multiple of 8")
    arrays = [row_major(dtype, extents) for extents in ((m, k), (n, k), (m, n))]
    return compile_program(WarpSpecializedGemm(config), *arrays, arch=arch, name=RUNG.name)


def check_config(config: WarpSpecializedGemmConfig, arch: str) -> None:
    """UsageError unless the warps cover the tile evenly and the stages fit into shared memory."""
    bM, bN, bK = config.tile
    warps = config.warps_m * config.warps_n
    RUNG.require(0 < warps <= 28, f"warps_m * warps_n: {warps} warps, a CTA has room for 28")
    RUNG.require(config.raster > 0, f"raster={config.raster}: at least 1 row of tiles")
    RUNG.require(bM % (16 * config.warps_m) == 0, f"tile={config.tile}: M must be a multiple of {16 * config.warps_m}")
    RUNG.require(bN % (16 * config.warps_n) == 0, f"tile={config.tile}: N must be a multiple of {16 * config.warps_n}")
    RUNG.require(bK % 64 == 0 and bN % 64 == 0, f"tile={config.tile}: N and K must be multiples of 64 (128 bytes)")
    RUNG.require(max(config.tile) <= 256, f"tile={config.tile}: a TMA box has at most 256 rows")
    RUNG.require(config.stages >= 2, f"stages={config.stages}: at least 2, one to fill and one to multiply")
    stages = config.stages * (bM + bN) * bK
    RUNG.require(stages >= bM * bN, f"stages={config.stages}: C ({bM} x {bN}) must fit into the stages")
    RUNG.require(warps % WARPGROUP == 0, f"warps_m * warps_n: {warps} warps, consumers are whole warpgroups of 4")
    check_registers(config)
    smem, limit = 2 * stages + 1024, archs.find(arch).smem_per_cta
    RUNG.require(smem <= limit, f"stages={config.stages}: {smem} bytes of shared memory, {arch} has {limit}")


def check_registers(config: WarpSpecializedGemmConfig) -> None:
    """UsageError unless what consumers gain by setmaxnreg is at most what the producers give back: else it hangs."""
    consumers, producers = 32 * config.warps_m * config.warps_n, 32 * WARPGROUP
    RUNG.require(1 <= config.ctas_per_sm <= 8, f"ctas_per_sm={config.ctas_per_sm}: 1 to 8")
    for name in ("producer_registers", "consumer_registers"):
        count = getattr(config, name)
        RUNG.require(count in range(24, 257, 8), f"{name}={count}: setmaxnreg takes multiples of 8 from 24 to 256")
    at_launch = min(65536 // config.ctas_per_sm // (consumers + producers) // 8 * 8, 255)
    used = consumers * config.consumer_registers + producers * config.producer_registers
    fits = used <= at_launch * (consumers + producers)
    RUNG.require(fits, f"consumer_registers={config.consumer_registers}: a CTA starts with {at_launch} a thread")
