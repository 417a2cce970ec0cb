"""Grouped: a product for each group of rows, or of K, in one launch; where groups end is read on the device.

Adds:
    A mixture of experts as it runs: rows of A (tokens), sorted by expert, each group times a matrix of its own; and for
    the gradient of those matrices, sums over the rows of each group (ragged K). How many rows a group has is known only
    on the GPU: nothing waits for the host, and a launch can be captured in a graph.
    - Tiles of all groups are one sequence that persistent CTAs stride over. Every warp finds its tile by itself: its
      lanes read the ends of 32 groups, count tiles and add them up by shuffles; a vote says which lane's group it is.
    - One tensor map serves all groups: TMA takes any row as a box's first. What a box has of the next group is
      multiplied too and not stored: chunks of C that lie inside of their group go by TMA, others row by row, 16 bytes a
      thread, read back from shared memory.
    - Ragged K: what a stage has of the next group would be added, so consumers clear it (both operands: it may hold
      NaN) before they multiply, with a proxy fence, as WGMMA reads shared memory through another proxy.

Warp roles:
    | warps    | role                                                                               |
    |----------|------------------------------------------------------------------------------------|
    | 0-3, 4-7 | consumers, a warpgroup each: multiply 64 x 256 of C, finish it, store it           |
    | 8        | producer: asks TMA for A and B of all tiles, as far ahead as stages are free       |
    | 9-11     | nothing, their registers go to the consumers                                       |

Budget:
    SMEM: as the parent, 225 KB of 227; a window of 32 groups is 4 registers a thread of every role. Registers: 128
    accumulators and 32 of the chunk in work, in at most 232 a consumer thread. No TMEM.

Run:
    tensorladder run c9-grouped --shape 4,512,256,128
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
from tensorladder.rungs.parts import epilogue, groups, pieces
from tensorladder.rungs.parts.form import Form
from tensorladder.rungs.parts.tensors import ELEMENT_TYPES, row_major
from tensorladder.rungs.rung import Rung


@dataclass(frozen=True)
class GroupedGemmConfig:
    """tile: (M, N, K) of a CTA. warpgroups: of consumers, one below the other along M of the tile of C. stages: K tiles
    in shared memory.

    c_stages: buffers of 64 rows x 128 bytes of C a warpgroup. raster: rows of tiles before the next column, so that
    CTAs share A and B in L2. sm_count, ctas_per_sm: the grid is their product, or the most tiles that there can be
    where that is less.
    """

    tile: tuple[int, int, int] = (128, 256, 64)
    warpgroups: int = 2
    stages: int = 4
    c_stages: int = 2
    raster: int = 8
    sm_count: int = 132
    ctas_per_sm: int = 1


RUNG = Rung(
    name="c9-grouped",
    parent="c6-epilogue",
    adds="groups of rows, or of K, whose ends are read on the device: a mixture of experts and its gradients",
    archs=("sm_90a",),
    problem="ragged_gemm",
    dtypes=("bf16", "fp16"),
    config=GroupedGemmConfig,
)

WARPGROUP = 128  # threads
WARPS = 4  # of a warpgroup
CHUNK = 64  # rows of C that a warpgroup stores at a time
SWIZZLE_BITS = 1024  # of a row of the swizzle: the columns of C that a warpgroup stores at a time
PRODUCER_REGISTERS = 40  # a thread, after setmaxnreg: what is left goes to the consumers
PITCH = 8  # elements, 16 bytes of the 16-bit types: what TMA wants coordinates of the contiguous extent to be of


class GroupedGemm:
    def __init__(self, config: GroupedGemmConfig, form: Form, ragged: str):
        self.tile = config.tile
        self.ragged_k = ragged == "k"
        self.a_major, self.b_major = epilogue.MAJORS[form.a_major], epilogue.MAJORS[form.b_major]
        # Boxes begin anywhere along the ragged extent, unless it is the contiguous one: at multiples of 16 bytes then.
        contiguous = form.a_major == "mn" if ragged == "m" else "k" in (form.a_major, form.b_major)
        self.tiles = groups.Tiles(config.tile, config.raster, PITCH if contiguous else 1, self.ragged_k)
        self.activation, self.c_type = epilogue.ACTIVATIONS[form.activation], ELEMENT_TYPES[form.out]
        self.c_cols = SWIZZLE_BITS // self.c_type.width
        self.warpgroups, self.stages, self.c_stages = config.warpgroups, config.stages, config.c_stages
        self.producer_warp = WARPS * config.warpgroups  # the first that is no consumer
        self.threads = WARPGROUP * (config.warpgroups + 1)
        self.ctas_per_sm, self.max_ctas = config.ctas_per_sm, config.sm_count * config.ctas_per_sm
        self.consumer_registers = consumer_registers(config)

    @cute.jit
    def __call__(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mV: cute.Tensor | None, mO: cute.Tensor):
        bM, bN, bK = self.tile
        element_type, chunk, gmem_C = mA.element_type, (CHUNK, self.c_cols), mC
        sA_layout = pieces.layout(element_type, self.a_major, bM, bK, self.stages)
        sB_layout = pieces.layout(element_type, self.b_major, bN, bK, self.stages)
        sC_layout = pieces.layout(self.c_type, OperandMajorMode.K, *chunk, self.warpgroups * self.c_stages)

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
        self.kernel(tma_A, mA, tma_B, mB, tma_C, mC, gmem_C, mV, mO, sA_layout, sB_layout, sC_layout, tiled_mma).launch(
            grid=(cutlass.min(self.tiles.most(mO, mC.shape), self.max_ctas), 1, 1),
            block=(self.threads, 1, 1),
            min_blocks_per_mp=self.ctas_per_sm,
            preferred_smem_carveout=100,  # percent; given so that the DSL need not ask a GPU
        )

    @cute.kernel
    def kernel(
        self, tma_A: cute.CopyAtom, mA: cute.Tensor, tma_B: cute.CopyAtom, mB: cute.Tensor,
        tma_C: cute.CopyAtom, mC: cute.Tensor, gmem_C: cute.Tensor, mV: cute.Tensor | None, mO: cute.Tensor,
        sA_layout: cute.ComposedLayout, sB_layout: cute.ComposedLayout, sC_layout: cute.ComposedLayout,
        tiled_mma: cute.TiledMma,
    ):
        tidx, _, _ = cute.arch.thread_idx()
        bidx, _, _ = cute.arch.block_idx()
        ctas, _, _ = cute.arch.grid_dim()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        group = warp // WARPS
        bM, bN, bK = self.tile

        smem = SmemAllocator()
        storage = smem.allocate(self.shared_storage)
        sA = storage.sA.get_tensor(sA_layout.outer, swizzle=sA_layout.inner)
        sB = storage.sB.get_tensor(sB_layout.outer, swizzle=sB_layout.inner)
        sC = storage.sC.get_tensor(sC_layout.outer, swizzle=sC_layout.inner)
        # The same memory as (element, piece of 16 bytes, stage or buffer), as it lies there.
        memory_A = pieces.view(storage.sA.data_ptr(), bM * bK, self.stages)
        memory_B = pieces.view(storage.sB.data_ptr(), bN * bK, self.stages)
        memory_C = pieces.view(storage.sC.data_ptr(), CHUNK * self.c_cols, self.warpgroups * self.c_stages)
        element_type = sA.element_type
        stage_bytes = cute.size_in_bytes(element_type, cute.select(sA_layout, mode=[0, 1]))
        stage_bytes += cute.size_in_bytes(element_type, cute.select(sB_layout, mode=[0, 1]))

        # smem -> MMA: "fragments" of A and B are descriptors (MMA, MMA_M, MMA_K, stage), a warpgroup's.
        thr_mma = tiled_mma.get_slice(cute.arch.make_warp_uniform(tidx // WARPGROUP) * WARPGROUP)
        tCrA = tiled_mma.make_fragment_A(thr_mma.partition_A(sA))
        tCrB = tiled_mma.make_fragment_B(thr_mma.partition_B(sB))
        tCrC = tiled_mma.make_fragment_C(thr_mma.partition_shape_C(self.tile[:2]))

        # The barriers of the ring: full completes with one arrival (the producer's) and the tile's bytes, empty with an
        # arrival a consumer warp. `create` initialises them, fences, and synchronises the CTA.
        pipeline = PipelineTmaAsync.create(
            num_stages=self.stages,
            producer_group=CooperativeGroup(Agent.Thread),
            consumer_group=CooperativeGroup(Agent.Thread, self.producer_warp),
            tx_count=stage_bytes,
            barrier_storage=storage.barriers.data_ptr(),
            cta_layout_vmnk=cute.make_layout((1, 1, 1, 1)),
        )
        producer, consumer = pipeline.make_participants()

        # A window of 32 groups, and how many tiles there are up to its end: a tile from `total` on does not exist.
        tile = bidx
        window, total = self.tiles.start(mO, tile, mA.shape, mC.shape)

        if warp >= self.producer_warp:
            cute.arch.setmaxregister_decrease(PRODUCER_REGISTERS)
            if warp == self.producer_warp:
                cpasync.prefetch_descriptor(tma_A)
                cpasync.prefetch_descriptor(tma_B)
                while tile < total:
                    of, row, n, k, k_tiles, _, _ = self.tiles.place(mO, tile, window, mA.shape, mC.shape)
                    tAsA, tAgA = self.operand(tma_A, sA, mA, (bM, bK), of, (row, k), 0)
                    tBsB, tBgB = self.operand(tma_B, sB, mB, (bN, bK), of, (0, k), n)
                    for k_tile in range(k_tiles):
                        stage = producer.acquire_and_advance()
                        cute.copy(tma_A, tAgA[None, k_tile], tAsA[None, stage.index], tma_bar_ptr=stage.barrier)
                        cute.copy(tma_B, tBgB[None, k_tile], tBsB[None, stage.index], tma_bar_ptr=stage.barrier)
                    tile += ctas
                    window, total = self.tiles.next(mO, tile, window, total, mA.shape, mC.shape)

        if warp < self.producer_warp:
            cute.arch.setmaxregister_increase(self.consumer_registers)
            while tile < total:
                place = self.tiles.place(mO, tile, window, mA.shape, mC.shape)
                _, _, _, k, k_tiles, low, high = place
                # Zero where there is nothing to add: an empty group of K, rows outside of all groups.
                tCrC.fill(0.0)
                released = consumer.clone()  # a K tile behind
                for k_tile in range(k_tiles):
                    stage = consumer.wait_and_advance()
                    if cutlass.const_expr(self.ragged_k):
                        at = k + k_tile * bK
                        self.clear(memory_A, memory_B, stage.index, low - at, high - at, tidx)
                    self.multiply(tiled_mma, tCrA, tCrB, tCrC, stage.index)
                    # All groups but the last are complete: the stage before this one has been read.
                    warpgroup.wait_group(1)
                    if k_tile > 0:
                        released.release()
                        released.advance()
                # The accumulator is complete, and the tile's last stage read.
                warpgroup.wait_group(0)
                if k_tiles > 0:
                    released.release()
                self.store(tma_C, sC, mC, gmem_C, memory_C, tCrC, mV, place, tidx % WARPGROUP, group)
                tile += ctas
                window, total = self.tiles.next(mO, tile, window, total, mA.shape, mC.shape)
            # Shared memory belongs to the CTA only until it exits: wait until TMA has read it.
            if warp % WARPS == 0:
                cute.arch.cp_async_bulk_wait_group(0, read=True)

    @cute.jit
    def clear(
        self, memory_A: cute.Tensor, memory_B: cute.Tensor, stage: cutlass.Int32, low: cutlass.Int32,
        high: cutlass.Int32, thread: cutlass.Int32,
    ):
        """Zero what a stage has of k below `low` or from `high` on; by all consumers, who then go on together."""
        bK, consumers = self.tile[2], WARPGROUP * self.warpgroups
        if low > 0 or high < bK:
            pieces.clear(memory_A[None, None, stage], self.a_major, bK, low, high, thread, consumers)
            pieces.clear(memory_B[None, None, stage], self.b_major, bK, low, high, thread, consumers)
            cute.arch.fence_proxy("async.shared", space="cta")
            NamedBarrier(barrier_id=1 + self.warpgroups, num_threads=consumers).arrive_and_wait()

    @cute.jit
    def multiply(
        self, tiled_mma: cute.TiledMma, tCrA: cute.Tensor, tCrB: cute.Tensor, tCrC: cute.Tensor, stage: cutlass.Int32,
    ):
        """Issue the WGMMAs of a K tile as one group."""
        warpgroup.fence()
        tiled_mma.set(warpgroup.Field.ACCUMULATE, True)
        for k_block in cutlass.range_constexpr(cute.size(tCrA, mode=[2])):
            cute.gemm(tiled_mma, tCrC, tCrA[None, None, k_block, stage], tCrB[None, None, k_block, stage], tCrC)
        warpgroup.commit_group()

    @cute.jit
    def store(
        self, tma_C: cute.CopyAtom, sC: cute.Tensor, mC: cute.Tensor, gmem_C: cute.Tensor, memory_C: cute.Tensor,
        tCrC: cute.Tensor, mV: cute.Tensor | None, place: tuple, thread: cutlass.Int32, group: cutlass.Int32,
    ):
        """A warpgroup's part of a tile, a chunk at a time: registers, finished -> smem -> gmem (TMA, or by threads)."""
        of, tile_row, n, _, _, low, high = place
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx()) % WARPS
        together = NamedBarrier(barrier_id=1 + group, num_threads=WARPGROUP)
        # The accumulator of a narrow WGMMA is laid out as any of a wider one's columns, as many.
        shape, source, k_major = (64, self.c_cols, 16), warpgroup.OperandSource.SMEM, OperandMajorMode.K
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

        rows, cols = self.tile[0] // CHUNK // self.warpgroups, self.tile[1] // self.c_cols
        for r in cutlass.range_constexpr(rows):
            for c in cutlass.range_constexpr(cols):
                number = r * cols + c
                buffer = group * self.c_stages + number % self.c_stages
                for i in cutlass.range_constexpr(cute.size(tCrF)):
                    tCrF[i] = tCrC[number * cute.size(tCrF) + i]
                row, col = tile_row + (r * self.warpgroups + group) * CHUNK, n * self.tile[1] + c * self.c_cols
                groups.finish(tCrF, thr_mma, mV, of, col, self.activation)
                tCrD.store(tCrF.load().to(self.c_type))

                # The buffer is free once the store from it, c_stages chunks ago, has read it.
                if warp == 0:
                    cute.arch.cp_async_bulk_wait_group(self.c_stages - 1, read=True)
                together.arrive_and_wait()
                cute.copy(atom_r2s, thr_r2s.retile(tCrD), thr_r2s.partition_D(sC[None, None, buffer]))

                # Each writer's fence, then the barrier, then the store: the other way round TMA could read stale bytes.
                cute.arch.fence_proxy("async.shared", space="cta")
                together.arrive_and_wait()
                whole = row < mC.shape[0]
                if cutlass.const_expr(not self.ragged_k):
                    whole = row >= low and row + CHUNK <= high
                if warp == 0:
                    if whole and col < mC.shape[1]:
                        tCsC, tCgC = self.operand(tma_C, sC, mC, (CHUNK, self.c_cols), of, (row, col), 0)
                        cute.copy(tma_C, tCsC[None, buffer], tCgC[None, 0])
                    cute.arch.cp_async_bulk_commit_group()
                if cutlass.const_expr(not self.ragged_k):
                    if not whole and col < mC.shape[1]:
                        memory = memory_C[None, None, buffer]
                        pieces.store_rows(memory, gmem_C, row, col, low, high, thread, WARPGROUP)

    @cute.jit
    def operand(
        self, atom: cute.CopyAtom, smem: cute.Tensor, mX: cute.Tensor, box: cutlass.Constexpr, of: cutlass.Int32,
        at: cute.Coord, tile: cutlass.Int32,
    ):
        """Both sides of the TMA copies of a group's row of boxes: (TMA, stage), (TMA, box along the second extent).

        at: the element where boxes begin; tile: whose row of boxes, counted from there.
        """
        if cutlass.const_expr(cute.rank(mX) == 3):
            mX = mX[None, None, of]
        boxes = cute.local_tile(cute.domain_offset(at, mX), tiler=box, coord=(tile, None))
        smem, gmem = cute.group_modes(smem, 0, 2), cute.group_modes(boxes, 0, 2)
        return cpasync.tma_partition(atom, 0, cute.make_layout(1), smem, gmem)

def build(arch: str, form: Form, config: GroupedGemmConfig, ragged: str = "m") -> Program:
    """The kernel for any extents of a form. ragged "m": it takes A (T, K), B (N, K, G), C (T, N), bias and offs (G,).

    ragged "k": A (M, T), B (N, T), C (M, N, G), bias and offs. bias: (G, N), its pitch even (0: the same for all), None
    where the form has none. offs: int32, where each group ends along T; ends that fall, or are past T, are cut. Rows of
    C past the last end become zero. Form: no residual, gate or scales. C is row-major; pitches are multiples of 8
    elements, base addresses of 16 bytes, N of 8; no extent is 0.
    """
    check_config(config, arch)
    RUNG.require(ragged in ("m", "k"), f"ragged={ragged!r}: it takes 'm' or 'k'")
    RUNG.require(not (form.residual or form.gated or form.scaled), "form: no residual, gate or scales here")
    groups_, n, t, rest = cute.sym_int(), cute.sym_int(divisibility=8), cute.sym_int(), cute.sym_int()

    def matrix(dtype: str, extents: tuple[Any, ...], contiguous: int = 1, unit: int = 8) -> Any:
        pitches = [cute.sym_int64(divisibility=unit) for _ in extents]
        pitches[contiguous] = 1
        return cute.runtime.make_fake_tensor(ELEMENT_TYPES[dtype], extents, tuple(pitches), assumed_align=16)

    rows = (t, rest), (n, rest, groups_), (t, n)
    a, b, c = rows if ragged == "m" else ((rest, t), (n, t), (rest, n, groups_))
    return compile_program(
        GroupedGemm(config, form, ragged),
        matrix(form.dtype, a, int(form.a_major == "k")),
        matrix(form.dtype, b, int(form.b_major == "k")),
        matrix(form.out, c),
        matrix(form.bias, (groups_, n), unit=2) if form.bias else None,
        row_major("int32", (groups_,), align=4),
        arch=arch, name=RUNG.name,
    )  # fmt: skip


def compile(arch: str, shape: tuple[int, ...], dtype: str, config: GroupedGemmConfig | None = None) -> Program:
    """The rung for the problem's form: ragged rows, B stored (G, K, N), a bias a group. N and K multiples of 8."""
    (_, _, n, k), dtype = RUNG.check(arch, shape, dtype)
    RUNG.require(n % 8 == 0, f"N={n}: TMA wants row pitches of 16 bytes, pad N to a multiple of 8")
    RUNG.require(k % 8 == 0, f"K={k}: TMA wants row pitches of 16 bytes, pad K to a multiple of 8")
    return build(arch, Form(dtype, dtype, bias=dtype, b_major="mn"), config or GroupedGemmConfig())


def check_config(config: GroupedGemmConfig, arch: str) -> None:
    """UsageError unless the warpgroups cover the tile evenly and the stages fit into shared memory."""
    (bM, bN, bK), groups = config.tile, config.warpgroups
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
    grid = f"sm_count={config.sm_count}, ctas_per_sm={config.ctas_per_sm}: at least 1, and at most 8 CTAs an SM"
    RUNG.require(config.sm_count > 0 and 1 <= config.ctas_per_sm <= 8, grid)
    accumulators, registers = bM * bN // (WARPGROUP * groups), consumer_registers(config)
    fits = accumulators + 40 <= registers
    RUNG.require(fits, f"tile={config.tile}: {accumulators} accumulators a thread, which has {registers} registers")
    smem = 2 * (config.stages * (bM + bN) * bK + groups * config.c_stages * CHUNK * CHUNK) + 1024
    limit = min(archs.find(arch).smem_per_cta, archs.find(arch).smem_per_sm // config.ctas_per_sm - 1024)
    stages = f"stages={config.stages}, c_stages={config.c_stages}"
    RUNG.require(smem <= limit, f"{stages}: {smem} bytes of shared memory, {arch} has {limit}")


def consumer_registers(config: GroupedGemmConfig) -> int:
    """What a consumer thread can have once producers have given theirs: of 8, as setmaxnreg takes them."""
    consumers, producers = WARPGROUP * config.warpgroups, WARPGROUP
    at_launch = min(65536 // config.ctas_per_sm // (consumers + producers) // 8 * 8, 255)
    left = at_launch * (consumers + producers) - PRODUCER_REGISTERS * producers
    return min(left // consumers // 8 * 8, 232)
