"""Epilogue: C = act(alpha A B^T + beta R + bias), operands of either major, one compilation for all shapes.

Adds:
    A factor, a residual R, a bias a column and an activation while C is still in registers, rounded once. That alone is
    not faster: on an H200 it takes 61 us over c3's 207 at 4096 cubed, one elementwise kernel after c3 53 (262 and 150
    over 1619 at 8192; by hand): both warpgroups reach it together and wait for R, the tensor cores too. c7: 13, 58.
    - Which (m, n) an accumulator is, the MMA's layout says: R's and the bias's tiles are dealt to threads by the layout
      of the columns that are stored next, as pairs, straight from global memory.
    - WGMMA reads 16-bit operands with M or N contiguous just as well, by another descriptor and a bit. So a B stored
      (K, N), or a weight that is transposed for the backward pass, is not copied: only tensor map and swizzle differ.
    - C is fp16, bf16 or fp32: a chunk is always 128 bytes of columns, 64 or 32 of them, so that TMA and swizzle stay.
    - Extents and pitches are symbols, alpha and beta lie in memory: one compilation serves a model.

Warp roles:
    | warps    | role                                                                               |
    |----------|------------------------------------------------------------------------------------|
    | 0-3, 4-7 | consumers, a warpgroup each: multiply 64 x 256 of C, finish it, store it by TMA    |
    | 8        | producer: asks TMA for A and B of all tiles, as far ahead as stages are free       |
    | 9-11     | nothing, their registers go to the consumers                                       |

Budget:
    SMEM: as the parent, 225 KB of 227: C's chunks are 64 rows x 128 B whatever its type. Registers: 128 accumulators,
    32 of the chunk in work with up to 16 packed ones, and R's pairs, in at most 232 a consumer thread. No TMEM.

Run:
    tensorladder run c6-epilogue --shape 512,512,256
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup
from cutlass.memory import SmemAllocator
from cutlass.pipeline import Agent, CooperativeGroup, NamedBarrier, PipelineTmaAsync

from tensorladder.core import arch as archs
from tensorladder.core.program import Program
from tensorladder.frontends.cutedsl import compile_program
from tensorladder.rungs.parts import epilogue
from tensorladder.rungs.parts.form import Form
from tensorladder.rungs.parts.tensors import ELEMENT_TYPES, row_major
from tensorladder.rungs.rung import Rung


@dataclass(frozen=True)
class EpilogueGemmConfig:
    """tile: (M, N, K) of a CTA. warpgroups: of consumers, one below the other along M of the tile of C. stages: K tiles
    in shared memory.

    c_stages: buffers of 64 rows x 128 bytes of C a warpgroup. raster: rows of tiles before the next column, so that
    CTAs share A and B in L2. sm_count, ctas_per_sm: the grid is their product, or the number of tiles where that is
    less. producer_registers, consumer_registers: a thread, after setmaxnreg (multiples of 8).
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
    name="c6-epilogue",
    parent="c3-persistent",
    adds="alpha, beta R, bias and activation fused before C is stored; operands of either major; symbolic extents",
    aside="for operands of either major and extents known at run time; its epilogue pays under ping-pong, in c7",
    archs=("sm_90a",),
    problem="gemm_epilogue",
    dtypes=("fp16", "bf16"),
    config=EpilogueGemmConfig,
)

WARPGROUP = 128  # threads
WARPS = 4  # of a warpgroup
CHUNK = 64  # rows of C that a warpgroup stores at a time
SWIZZLE_BITS = 1024  # of a row of the swizzle: the columns of C that a warpgroup stores at a time


class EpilogueGemm:
    def __init__(self, config: EpilogueGemmConfig, form: Form):
        self.tile = config.tile
        self.a_major, self.b_major = epilogue.MAJORS[form.a_major], epilogue.MAJORS[form.b_major]
        self.activation = epilogue.ACTIVATIONS[form.activation]
        self.c_type = ELEMENT_TYPES[form.out]
        self.c_cols = SWIZZLE_BITS // self.c_type.width
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
    def __call__(
        self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mR: cute.Tensor | None, mV: cute.Tensor | None,
        mS: cute.Tensor,
    ):
        bM, bN, bK = self.tile
        element_type, chunk = mA.element_type, (CHUNK, self.c_cols)
        sA_layout = self.smem_layout(element_type, self.a_major, bM, bK, self.stages)
        sB_layout = self.smem_layout(element_type, self.b_major, bN, bK, self.stages)
        sC_layout = self.smem_layout(self.c_type, OperandMajorMode.K, *chunk, self.warpgroups * self.c_stages)
        if cutlass.const_expr(mV is not None):
            # As a matrix of C's shape: every row is the bias.
            mV = cute.make_tensor(mV.iterator, cute.make_layout(mC.shape, stride=(0, 1)))

        # A descriptor and a tensor of coordinates for each matrix. TMA takes coordinates, not addresses.
        load, store = cpasync.CopyBulkTensorTileG2SOp(), cpasync.CopyBulkTensorTileS2GOp()
        tma_A, mA = cpasync.make_tiled_tma_atom(load, mA, cute.select(sA_layout, mode=[0, 1]), (bM, bK))
        tma_B, mB = cpasync.make_tiled_tma_atom(load, mB, cute.select(sB_layout, mode=[0, 1]), (bN, bK))
        tma_C, mC = cpasync.make_tiled_tma_atom(store, mC, cute.select(sC_layout, mode=[0, 1]), chunk)

        # A warpgroup does 64 rows and all columns at once; both operands lie in shared memory.
        source, majors = warpgroup.OperandSource.SMEM, (self.a_major, self.b_major)
        mma_op = warpgroup.MmaF16BF16Op(element_type, cutlass.Float32, (64, bN, 16), source, *majors)
        tiled_mma = cute.make_tiled_mma(mma_op, cute.make_layout((self.warpgroups, 1, 1)))

        @cute.struct
        class SharedStorage:
            barriers: cute.struct.MemRange[cutlass.Int64, 2 * self.stages]
            sA: cute.struct.Align[cute.struct.MemRange[element_type, cute.cosize(sA_layout)], 1024]
            sB: cute.struct.Align[cute.struct.MemRange[element_type, cute.cosize(sB_layout)], 1024]
            sC: cute.struct.Align[cute.struct.MemRange[self.c_type, cute.cosize(sC_layout)], 1024]

        self.shared_storage = SharedStorage
        tiles = cute.ceil_div(mC.shape, (bM, bN))
        self.kernel(
            tma_A, mA, tma_B, mB, tma_C, mC, mR, mV, mS, sA_layout, sB_layout, sC_layout, tiled_mma, tiles
        ).launch(
            grid=(cutlass.min(cute.size(tiles), self.max_ctas), 1, 1),
            block=(self.threads, 1, 1),
            min_blocks_per_mp=self.ctas_per_sm,
            preferred_smem_carveout=100,  # percent; given so that the DSL need not ask a GPU
        )

    @cute.kernel
    def kernel(
        self, tma_A: cute.CopyAtom, mA: cute.Tensor, tma_B: cute.CopyAtom, mB: cute.Tensor,
        tma_C: cute.CopyAtom, mC: cute.Tensor, mR: cute.Tensor | None, mV: cute.Tensor | None, mS: cute.Tensor,
        sA_layout: cute.ComposedLayout, sB_layout: cute.ComposedLayout, sC_layout: cute.ComposedLayout,
        tiled_mma: cute.TiledMma, tiles: cute.Shape,
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

        # (BM, BK, tiles along M, k tiles), (BN, BK, tiles along N, k tiles), (64, columns, chunks along M,
        # along N), as coordinates.
        gA = cute.local_tile(mA, tiler=self.tile, coord=(None, None, None), proj=(1, None, 1))
        gB = cute.local_tile(mB, tiler=self.tile, coord=(None, None, None), proj=(None, 1, 1))
        gC = cute.local_tile(mC, tiler=(CHUNK, self.c_cols), coord=(None, None))

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
            alpha, beta = mS[0], mS[1]
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
                thread = tidx % WARPGROUP
                self.store(tma_C, tCsC, tCgC, sC, tCrC, mC.shape, mR, mV, alpha, beta, m, n, thread, group)
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
        limit: cute.Shape, mR: cute.Tensor | None, mV: cute.Tensor | None, alpha: cutlass.Float32,
        beta: cutlass.Float32, m: cutlass.Int32, n: cutlass.Int32, thread: cutlass.Int32, group: cutlass.Int32,
    ):
        """A warpgroup's part of the tile (m, n), a chunk at a time: registers, finished -> smem -> gmem (TMA)."""
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx()) % WARPS
        together = NamedBarrier(barrier_id=1 + group, num_threads=WARPGROUP)
        # The accumulator of a narrow WGMMA is laid out as any of a wider one's columns, as many.
        k_major, source = OperandMajorMode.K, warpgroup.OperandSource.SMEM
        shape = (64, self.c_cols, 16)
        chunk_mma = cute.make_tiled_mma(
            warpgroup.MmaF16BF16Op(cutlass.Float16, cutlass.Float32, shape, source, k_major, k_major)
        )
        if cutlass.const_expr(self.c_type.width == 16):
            atom_r2s = cute.make_copy_atom(cute.nvgpu.warp.StMatrix8x8x16bOp(False, 4), self.c_type)
        else:
            atom_r2s = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), self.c_type, num_bits_per_copy=64)
        thr_r2s = cute.make_tiled_copy_C(atom_r2s, chunk_mma).get_slice(thread)
        thr_mma = chunk_mma.get_slice(thread)
        tCrF = chunk_mma.make_fragment_C(thr_mma.partition_shape_C((CHUNK, self.c_cols)))
        tCrD = cute.make_fragment_like(tCrF, self.c_type)

        chunk = (CHUNK, self.c_cols)
        rows, cols = self.tile[0] // CHUNK // self.warpgroups, self.tile[1] // self.c_cols
        for row in cutlass.range_constexpr(rows):
            for col in cutlass.range_constexpr(cols):
                number = row * cols + col
                buffer = group * self.c_stages + number % self.c_stages
                for i in cutlass.range_constexpr(cute.size(tCrF)):
                    tCrF[i] = tCrC[number * cute.size(tCrF) + i]
                chunk_m, chunk_n = m * rows * self.warpgroups + row * self.warpgroups + group, n * cols + col
                epilogue.finish(tCrF, thr_mma, chunk, (chunk_m, chunk_n), limit, mR, mV, alpha, beta, self.activation)
                tCrD.store(tCrF.load().to(self.c_type))

                # The buffer is free once the store from it, c_stages chunks ago, has read it.
                if warp == 0:
                    cute.arch.cp_async_bulk_wait_group(self.c_stages - 1, read=True)
                together.arrive_and_wait()
                cute.copy(atom_r2s, thr_r2s.retile(tCrD), thr_r2s.partition_D(sC[None, None, buffer]))

                # Each writer's fence, then the barrier, then the store: the other way round TMA could read stale bytes.
                cute.arch.fence_proxy("async.shared", space="cta")
                together.arrive_and_wait()
                if warp == 0:
                    # Chunks outside of C are left out: a mode of one chunk would take any number for its first.
                    if chunk_m < cute.size(tCgC, mode=[1]) and chunk_n < cute.size(tCgC, mode=[2]):
                        cute.copy(tma_C, tCsC[None, buffer], tCgC[None, chunk_m, chunk_n])
                    cute.arch.cp_async_bulk_commit_group()

    @cute.jit
    def tma_partition(self, atom: cute.CopyAtom, smem: cute.Tensor, gmem: cute.Tensor):
        """Both sides of a TMA copy with their first two modes (the box) as one."""
        smem, gmem = cute.group_modes(smem, 0, 2), cute.group_modes(gmem, 0, 2)
        return cpasync.tma_partition(atom, 0, cute.make_layout(1), smem, gmem)

    @cute.jit
    def raster_tile(self, index: cutlass.Int32, tiles: cute.Shape):
        """(m, n) of a tile by its number: down `raster` rows, then the next column, so that a wave is nearly square."""
        group = index // (self.raster * tiles[1])
        within = index % (self.raster * tiles[1])
        rows = cutlass.min(tiles[0] - group * self.raster, self.raster)
        return group * self.raster + within % rows, within // rows

    def smem_layout(self, dtype: type[cutlass.Numeric], major: OperandMajorMode, rows: int, cols: int, stages: int):
        """(rows, cols, stages) under the 128-byte swizzle of TMA and WGMMA; rows run along M or N, cols along K.

        K-major: row-major in columns of 128 bytes. MN-major: 128 bytes of M or N by K, one such block after the other.
        """
        width, swizzle = SWIZZLE_BITS // dtype.width, cute.make_swizzle(3, 4, 3)
        if major == OperandMajorMode.K:
            atom = cute.make_composed_layout(swizzle, 0, cute.make_layout((8, width), stride=(width, 1)))
            return cute.tile_to_shape(atom, (rows, cols, stages), order=(0, 1, 2))
        atom = cute.make_composed_layout(swizzle, 0, cute.make_layout((width, 8), stride=(1, width)))
        return cute.tile_to_shape(atom, (rows, cols, stages), order=(1, 0, 2))


def build(arch: str, form: Form, config: EpilogueGemmConfig) -> Program:
    """The kernel for any M, N and K of a form. It takes A (M, K), B (N, K), C (M, N), R (M, N), bias (N,) and S (2,).

    R and bias are None where the form has none. S is (alpha, beta) in fp32. C and R are row-major; all pitches are
    multiples of 16 bytes (of 8 elements, R's too), all base addresses of 16; N a multiple of 8; no extent 0.
    """
    check_config(config, arch)
    m, n, k = cute.sym_int(), cute.sym_int(divisibility=8), cute.sym_int()

    def matrix(dtype: str, rows: Any, cols: Any, cols_contiguous: bool = True) -> Any:
        pitch = cute.sym_int64(divisibility=8)
        stride = (pitch, 1) if cols_contiguous else (1, pitch)
        return cute.runtime.make_fake_tensor(ELEMENT_TYPES[dtype], (rows, cols), stride, assumed_align=16)

    return compile_program(
        EpilogueGemm(config, form),
        matrix(form.dtype, m, k, form.a_major == "k"),
        matrix(form.dtype, n, k, form.b_major == "k"),
        matrix(form.out, m, n),
        matrix(form.residual, m, n) if form.residual else None,
        row_major(form.bias, (n,)) if form.bias else None,
        row_major("fp32", (2,), align=4),
        arch=arch, name=RUNG.name,
    )  # fmt: skip


def compile(arch: str, shape: tuple[int, ...], dtype: str, config: EpilogueGemmConfig | None = None) -> Program:
    """The rung for the problem's form: B stored (K, N), all of the epilogue, gelu. N and K multiples of 8."""
    (_, n, k), dtype = RUNG.check(arch, shape, dtype)
    RUNG.require(n % 8 == 0, f"N={n}: TMA wants row pitches of 16 bytes, pad N to a multiple of 8")
    RUNG.require(k % 8 == 0, f"K={k}: TMA wants row pitches of 16 bytes, pad K to a multiple of 8")
    form = Form(dtype, dtype, dtype, dtype, b_major="mn", activation="gelu")
    return build(arch, form, config or EpilogueGemmConfig())


def check_config(config: EpilogueGemmConfig, arch: str) -> None:
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
    chunks = (bM // CHUNK // groups) * (bN // CHUNK)  # of 16-bit C, twice as many of fp32
    fits = config.c_stages > 0 and chunks % config.c_stages == 0
    RUNG.require(fits, f"c_stages={config.c_stages}: must divide the {chunks} chunks of a warpgroup's tile")
    RUNG.require(config.sm_count > 0, f"sm_count={config.sm_count}: at least 1")
    check_registers(config)
    smem = 2 * (config.stages * (bM + bN) * bK + groups * config.c_stages * CHUNK * CHUNK) + 1024
    limit = archs.find(arch).smem_per_cta
    stages = f"stages={config.stages}, c_stages={config.c_stages}"
    RUNG.require(smem <= limit, f"{stages}: {smem} bytes of shared memory, {arch} has {limit}")


def check_registers(config: EpilogueGemmConfig) -> None:
    """UsageError unless the accumulators fit, and what consumers gain by setmaxnreg producers give: else it hangs."""
    consumers, producers = WARPGROUP * config.warpgroups, WARPGROUP
    RUNG.require(1 <= config.ctas_per_sm <= 8, f"ctas_per_sm={config.ctas_per_sm}: 1 to 8")
    for name in ("producer_registers", "consumer_registers"):
        count = getattr(config, name)
        RUNG.require(count in range(24, 257, 8), f"{name}={count}: setmaxnreg takes multiples of 8 from 24 to 256")
    accumulators, registers = config.tile[0] * config.tile[1] // consumers, min(config.consumer_registers, 255)
    fits = accumulators + 40 <= registers
    RUNG.require(fits, f"tile={config.tile}: {accumulators} accumulators a thread, which has {registers} registers")
    at_launch = min(65536 // config.ctas_per_sm // (consumers + producers) // 8 * 8, 255)
    used = consumers * config.consumer_registers + producers * config.producer_registers
    fits = used <= at_launch * (consumers + producers)
    RUNG.require(fits, f"consumer_registers={config.consumer_registers}: a CTA starts with {at_launch} a thread")
