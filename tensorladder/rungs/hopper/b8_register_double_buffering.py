"""Register double buffering: ldmatrix one k block ahead of the MMAs, stages handed back by a named barrier.

Adds:
    A second pipeline, from shared memory to registers. In the parent each k block of 16 loads its fragments and then
    multiplies them, so that the MMAs wait for ldmatrix each time, and all of them at the start of a stage, where they
    wait for the mbarrier too. Here a warp keeps two sets of fragments: while it multiplies k block i, the loads of i
    + 1 are on their way into the other set, across the border of a stage as well. The wait for the next stage and its
    first loads are thus hidden behind the last MMAs of this one.
    - A stage is free as soon as its last fragments are in registers, a whole k block of MMAs before the parent
      releases it. The consumers say so with bar.arrive, which does not stop them, on a named barrier of that stage;
      only the producer warp waits there (bar.sync). 160 of the CTA's 256 threads take part: a CTA barrier would hang,
      because the idle warps have gone and the roles never meet. PTX orders what a thread read before its arrival
      before the barrier completes, so TMA overwrites nothing that is still being read.
    - It replaces the `empty` mbarriers: a warp arrives with one instruction, no lane is elected, no phase is kept.
    On an H200 the tensor pipe is busy 89 % of the time in place of 85 (ncu, 4096 cubed): 1.05 times as fast as the
    parent at 4096 cubed, 1.05 at 8192, alone 1.04 and 1.04 (`benchmarks.steps`).

Warp roles:
    | warps | role                                                                           |
    |-------|--------------------------------------------------------------------------------|
    | 0-3   | consumers: ldmatrix of k block i + 1, MMAs of i, 64 x 64 of C; warp 0 stores C |
    | 4     | producer: asks TMA for A and B, as far ahead as stages are free                |
    | 5-7   | nothing, their registers go to the consumers                                   |

Budget:
    SMEM: (128 + 128) rows x 64 x 2 B = 32 KB a stage, 3 stages: 96 KB and 24 B of mbarriers, 2 CTAs an SM on sm_90; C
    (32 KB) reuses the stages. Registers: 128 accumulators and 2 x 32 of fragments in at most 216 a consumer thread;
    128 x (216 + 40) = 32 Ki a CTA, half of an SM's 64 Ki. Named barriers: 3 of stages, 1 of the epilogue. No TMEM.

Run:
    tensorladder run b8-register-double-buffering --shape 256,256,256
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import cpasync
from cutlass.memory import SmemAllocator
from cutlass.pipeline import NamedBarrier

from tensorladder.core import arch as archs
from tensorladder.core.program import Program
from tensorladder.frontends.cutedsl import compile_program
from tensorladder.rungs.parts.tensors import row_major
from tensorladder.rungs.rung import Rung


@dataclass(frozen=True)
class DoubleBufferedGemmConfig:
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
    name="b8-register-double-buffering",
    parent="b7-warp-specialized",
    adds="fragments of the next k block loaded during the MMAs; stages freed early behind a partial-CTA named barrier",
    archs=("sm_90a", "sm_100a", "sm_120a"),
    problem="gemm",
    dtypes=("fp16", "bf16"),
    config=DoubleBufferedGemmConfig,
)

WARPGROUP = 4  # warps


class DoubleBufferedGemm:
    def __init__(self, config: DoubleBufferedGemmConfig):
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
            full: cute.struct.MemRange[cutlass.Int64, self.stages]
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
        full = storage.full.data_ptr()
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
        # Fragments of two k blocks, whatever the tile's K: (MMA, MMA_M, 2), (MMA, MMA_N, 2).
        k_blocks = cute.size(thr_mma.partition_A(sA[None, None, 0]), mode=[2])
        tCrA = tiled_mma.make_fragment_A(tiled_mma.partition_shape_A((self.tile[0], 32)))
        tCrB = tiled_mma.make_fragment_B(tiled_mma.partition_shape_B((self.tile[1], 32)))
        tCrC = tiled_mma.make_fragment_C(thr_mma.partition_shape_C(self.tile[:2]))

        atom_s2r = cute.make_copy_atom(cute.nvgpu.warp.LdMatrix8x8x16bOp(False, 4), element_type)
        tiled_s2r_A = cute.make_tiled_copy_A(atom_s2r, tiled_mma)
        tiled_s2r_B = cute.make_tiled_copy_B(atom_s2r, tiled_mma)
        thr_s2r_A, thr_s2r_B = tiled_s2r_A.get_slice(tidx), tiled_s2r_B.get_slice(tidx)
        tXsA, tXrA = thr_s2r_A.partition_S(sA), thr_s2r_A.retile(tCrA)
        tXsB, tXrB = thr_s2r_B.partition_S(sB), thr_s2r_B.retile(tCrB)

        # A stage's mbarrier is full with one arrival (the producer's) and the tile's bytes. The fence makes initialised
        # barriers visible to TMA, the CTA barrier to all threads.
        if warp == 0:
            with cute.arch.elect_one():
                for stage in cutlass.range_constexpr(self.stages):
                    cute.arch.mbarrier_init(full + stage, 1)
            cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()

        # Named barrier 1 + i: stage i is empty. Consumers arrive, the producer warp waits.
        handover = 32 * self.consumer_warps + 32
        consumers = NamedBarrier(barrier_id=1 + self.stages, num_threads=32 * self.consumer_warps)
        num_k_tiles = cute.size(gA, mode=[2])
        read, phase = 0, 0

        if warp >= self.producer_warp:
            cute.arch.setmaxregister_decrease(self.producer_registers)
            if warp == self.producer_warp:
                cpasync.prefetch_descriptor(tma_A)
                cpasync.prefetch_descriptor(tma_B)
                write = 0
                for k_tile in range(num_k_tiles):
                    if k_tile >= self.stages:
                        cute.arch.barrier(barrier_id=1 + write, number_of_threads=handover)
                    with cute.arch.elect_one():
                        cute.arch.mbarrier_arrive_and_expect_tx(full + write, stage_bytes)
                    cute.copy(tma_A, tAgA[None, k_tile], tAsA[None, write], tma_bar_ptr=full + write)
                    cute.copy(tma_B, tBgB[None, k_tile], tBsB[None, write], tma_bar_ptr=full + write)
                    write = write + 1 if write + 1 < self.stages else 0

        if warp < self.producer_warp:
            cute.arch.setmaxregister_increase(self.consumer_registers)
            tCrC.fill(0.0)
            cute.arch.mbarrier_wait(full, 0)
            cute.copy(tiled_s2r_A, tXsA[None, None, 0, 0], tXrA[None, None, 0])
            cute.copy(tiled_s2r_B, tXsB[None, None, 0, 0], tXrB[None, None, 0])
            for k_tile in range(num_k_tiles):
                for k_block in cutlass.range_constexpr(k_blocks - 1):
                    # Load the next k block into the other fragments, multiply this one.
                    this, that = k_block % 2, (k_block + 1) % 2
                    cute.copy(tiled_s2r_A, tXsA[None, None, k_block + 1, read], tXrA[None, None, that])
                    cute.copy(tiled_s2r_B, tXsB[None, None, k_block + 1, read], tXrB[None, None, that])
                    cute.gemm(tiled_mma, tCrC, tCrA[None, None, this], tCrB[None, None, this], tCrC)

                # The stage's last fragments are in registers: hand it back, if it will be filled again (a barrier
                # should not be left with arrivals that nobody waits for), and turn to the next.
                if k_tile + self.stages < num_k_tiles:
                    cute.arch.barrier_arrive(barrier_id=1 + read, number_of_threads=handover)
                read = read + 1
                if read == self.stages:
                    read, phase = 0, phase ^ 1
                if k_tile + 1 < num_k_tiles:
                    cute.arch.mbarrier_wait(full + read, phase)
                    cute.copy(tiled_s2r_A, tXsA[None, None, 0, read], tXrA[None, None, 0])
                    cute.copy(tiled_s2r_B, tXsB[None, None, 0, read], tXrB[None, None, 0])
                # k_blocks is even: the last one's fragments are the second set.
                cute.gemm(tiled_mma, tCrC, tCrA[None, None, 1], tCrB[None, None, 1], tCrC)

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


def compile(arch: str, shape: tuple[int, ...], dtype: str, config: DoubleBufferedGemmConfig | None = None) -> Program:
    """The rung for one architecture, shape (M, N, K) and element type. M from 2; N and K multiples of 8 (16 bytes)."""
    (m, n, k), dtype = RUNG.check(arch, shape, dtype)
    config = config or DoubleBufferedGemmConfig()
    check_config(config, arch)
    RUNG.require(m > 1, "M=1: the DSL makes a one-dimensional tensor map of a single row, pad M to 2")
    RUNG.require(n % 8 == 0, f"N={n}: TMA wants row pitches of 16 bytes, pad N to a multiple of 8")
    RUNG.require(k % 8 == 0, f"K={k}: TMA wants row pitches of 16 bytes, pad K to a multiple of 8")
    arrays = [row_major(dtype, extents) for extents in ((m, k), (n, k), (m, n))]
    return compile_program(DoubleBufferedGemm(config), *arrays, arch=arch, name=RUNG.name)


def check_config(config: DoubleBufferedGemmConfig, arch: str) -> None:
    """UsageError unless the warps cover the tile evenly and the stages fit into shared memory."""
    bM, bN, bK = config.tile
    warps = config.warps_m * config.warps_n
    RUNG.require(0 < warps <= 28, f"warps_m * warps_n: {warps} warps, a CTA has room for 28")
    RUNG.require(config.raster > 0, f"raster={config.raster}: at least 1 row of tiles")
    RUNG.require(bM % (16 * config.warps_m) == 0, f"tile={config.tile}: M must be a multiple of {16 * config.warps_m}")
    RUNG.require(bN % (16 * config.warps_n) == 0, f"tile={config.tile}: N must be a multiple of {16 * config.warps_n}")
    RUNG.require(bK % 64 == 0 and bN % 64 == 0, f"tile={config.tile}: N and K must be multiples of 64 (128 bytes)")
    RUNG.require(max(config.tile) <= 256, f"tile={config.tile}: a TMA box has at most 256 rows")
    RUNG.require(2 <= config.stages <= 14, f"stages={config.stages}: 2 to 14, a named barrier each")
    stages = config.stages * (bM + bN) * bK
    RUNG.require(stages >= bM * bN, f"stages={config.stages}: C ({bM} x {bN}) must fit into the stages")
    RUNG.require(warps % WARPGROUP == 0, f"warps_m * warps_n: {warps} warps, consumers are whole warpgroups of 4")
    check_registers(config)
    smem, limit = 2 * stages + 1024, archs.find(arch).smem_per_cta
    RUNG.require(smem <= limit, f"stages={config.stages}: {smem} bytes of shared memory, {arch} has {limit}")


def check_registers(config: DoubleBufferedGemmConfig) -> None:
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
