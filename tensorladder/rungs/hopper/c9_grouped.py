"""Grouped: a product for each group of rows, or of K, in one launch; where groups end is read on the device.

Adds:
    A mixture of experts as it runs: rows of A (tokens), sorted by expert, each group times a matrix of its own; and for
    the gradient of those matrices, sums over the rows of each group (ragged K). How many rows a group has is known only
    on the GPU: nothing waits for the host, and a launch can be captured in a graph.
    - Tiles of all groups are one sequence that persistent clusters stride over. Every warp finds its tile by itself:
      its lanes read the ends of 32 groups, count tiles and add them up by shuffles; a vote says which lane's group it
      is.
    - One tensor map serves all groups: TMA takes any row as a box's first. What a box has of the next group is
      multiplied too and not stored: chunks of C that lie inside of their group go by TMA, others row by row, 16 bytes a
      thread, read back from shared memory.
    - Ragged K: what a stage has of the next group would be added, so consumers clear it (both operands: it may hold
      NaN) before they multiply, with a proxy fence, as WGMMA reads shared memory through another proxy.
    - How many K tiles the other warpgroup's tile has, ping-pong asks for each: groups of K differ.
    On an H200 1.27 to 1.37 times as fast as torch._grouped_mm in the mean of five layers, with 8, 32 and 128 experts
    (`benchmarks/results/grouped-h200.jsonl`).

Warp roles:
    | warps    | role, in each CTA                                                                      |
    |----------|----------------------------------------------------------------------------------------|
    | 0-3, 4-7 | consumers, a warpgroup a tile: multiply, finish and store 128 x 128 of C               |
    | 8        | producer: asks TMA for its parts of A and B, as far ahead as stages are free           |
    | 9-11     | nothing, their registers go to the consumers                                           |

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

from tensorladder.core.program import Program
from tensorladder.frontends.cutedsl import compile_program
from tensorladder.rungs.parts import groups, limits, pieces
from tensorladder.rungs.parts.arguments import factors, matrix
from tensorladder.rungs.parts.epilogue import MAJORS
from tensorladder.rungs.parts.form import Form
from tensorladder.rungs.parts.group_store import GroupStore
from tensorladder.rungs.parts.tensors import ELEMENT_TYPES, row_major
from tensorladder.rungs.parts.wgmma import load_op, mma_op, smem_layout, tma_partition
from tensorladder.rungs.rung import Rung


@dataclass(frozen=True)
class GroupedGemmConfig:
    """tile: (M, N, K); K counts 16-bit elements (twice as many of fp8); N counts columns of B, and of U where there is
    one. split: what of it is a warpgroup's: all, and they take turns (""), or a half, below ("m") or beside ("n") the
    other's. cluster_m, cluster_n: CTAs of a cluster along M and N. stages: K tiles in shared memory.

    c_stages: buffers of a chunk of C a warpgroup. raster: rows of clusters' tiles before the next column, so that CTAs
    share A and B in L2. sm_count, ctas_per_sm: the grid is their product, or the most tiles there can be where that is
    less. producer_registers, consumer_registers: a thread, after setmaxnreg (multiples of 8).
    """

    tile: tuple[int, int, int] = (128, 128, 64)
    split: str = ""
    cluster_m: int = 1
    cluster_n: int = 2
    stages: int = 6
    c_stages: int = 2
    raster: int = 8
    sm_count: int = 132
    ctas_per_sm: int = 1
    producer_registers: int = 40
    consumer_registers: int = 232


RUNG = Rung(
    name="c9-grouped",
    parent="c7-fused-ping-pong",
    adds="groups of rows, or of K, whose ends are read on the device: a mixture of experts and its gradients",
    aside="for groups of rows or of K whose ends are known on the device alone (a mixture of experts)",
    archs=("sm_90a",),
    problem="ragged_gemm",
    dtypes=("bf16", "fp16"),
    config=GroupedGemmConfig,
)

WARPGROUP = 128  # threads
WARPS = 4  # of a warpgroup
GROUPS = 2  # consumer warpgroups
HALVES = {"": (1, 1), "m": (2, 1), "n": (1, 2)}  # into how many parts they cut a tile, along M and N


class GroupedGemm:
    def __init__(self, config: GroupedGemmConfig, form: Form):
        self.tile = (*config.tile[:2], config.tile[2] * 16 // ELEMENT_TYPES[form.dtype].width)
        # A tile of C is as wide as its part of one right operand.
        self.part = self.tile[1] // (2 if form.gated else 1)
        # Under ping-pong each warpgroup has all of a tile; else they have its halves, one below or beside the other.
        self.turns, self.halves = config.split == "", HALVES[config.split]
        self.ragged_k = form.ragged == "k"
        self.store = GroupStore(form, (self.tile[0], self.part), self.halves, config.c_stages, self.ragged_k)
        self.a_major, self.b_major = MAJORS[form.a_major], MAJORS[form.b_major]
        self.cluster = (config.cluster_m, config.cluster_n)
        self.ctas = config.cluster_m * config.cluster_n
        self.launch_cluster = (self.ctas, 1, 1) if self.ctas > 1 else None
        # Boxes begin anywhere along the ragged extent, unless it is the contiguous one: at multiples of 16 bytes then.
        contiguous = form.a_major == "mn" if form.ragged == "m" else "k" in (form.a_major, form.b_major)
        align = 128 // ELEMENT_TYPES[form.dtype].width if contiguous else 1
        c_tile = (self.tile[0], self.part, self.tile[2])
        self.tiles = groups.Tiles(c_tile, self.cluster, config.raster, align, self.ragged_k)
        self.producer_warp, self.threads, self.stages = WARPS * GROUPS, WARPGROUP * (GROUPS + 1), config.stages
        self.max_clusters = config.sm_count * config.ctas_per_sm // self.ctas
        self.ctas_per_sm = config.ctas_per_sm
        self.producer_registers, self.consumer_registers = config.producer_registers, config.consumer_registers

    @cute.jit
    def __call__(
        self, mA: cute.Tensor, mB: cute.Tensor, mU: cute.Tensor | None, mC: cute.Tensor, mV: cute.Tensor | None,
        mP: cute.Tensor | None, mQ: cute.Tensor | None, mO: cute.Tensor,
    ):
        (bM, bN, bK), part, store, gmem_C = self.tile, self.part, self.store, mC
        element_type = mA.element_type
        sA_layout = smem_layout(element_type, self.a_major, bM, bK, self.stages)
        sB_layout = smem_layout(element_type, self.b_major, bN, bK, self.stages)
        sC_layout = smem_layout(store.dtype, OperandMajorMode.K, *store.chunk, GROUPS * store.stages)

        # A descriptor and a tensor of coordinates for each matrix. TMA takes coordinates, not addresses. The box is
        # what one CTA asks for: its part of a tile that it shares with those of its row (A) or column (B).
        (load_A, share_A), (load_B, share_B) = load_op(self.cluster[1]), load_op(self.cluster[0])
        box_A, box_C = (cute.select(layout, mode=[0, 1]) for layout in (sA_layout, sC_layout))
        box_B = cute.select(smem_layout(element_type, self.b_major, part, bK, self.stages), mode=[0, 1])
        tma_A, mA = cpasync.make_tiled_tma_atom(load_A, mA, box_A, (bM, bK), share_A)
        tma_B, mB = cpasync.make_tiled_tma_atom(load_B, mB, box_B, (part, bK), share_B)
        tma_U = None
        if cutlass.const_expr(mU is not None):
            tma_U, mU = cpasync.make_tiled_tma_atom(load_B, mU, box_B, (part, bK), share_B)
        tma_C, mC = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileS2GOp(), mC, box_C, store.chunk)

        # A warpgroup does 64 rows and all of its columns at a time; both operands lie in shared memory.
        op = mma_op(element_type, bN // self.halves[1], self.a_major, self.b_major)
        tiled_mma = cute.make_tiled_mma(op, cute.make_layout((*self.halves, 1)))

        @cute.struct
        class SharedStorage:
            barriers: cute.struct.MemRange[cutlass.Int64, 2 * self.stages]
            sA: cute.struct.Align[cute.struct.MemRange[element_type, cute.cosize(sA_layout)], 1024]
            sB: cute.struct.Align[cute.struct.MemRange[element_type, cute.cosize(sB_layout)], 1024]
            sC: cute.struct.Align[cute.struct.MemRange[store.dtype, cute.cosize(sC_layout)], 1024]

        self.shared_storage = SharedStorage
        self.kernel(
            tma_A, mA, tma_B, mB, tma_U, mU, tma_C, mC, gmem_C, mV, mP, mQ, mO, sA_layout, sB_layout, sC_layout,
            tiled_mma,
        ).launch(
            grid=(cutlass.min(self.tiles.most(mO, mC.shape), self.max_clusters) * self.ctas, 1, 1),
            block=(self.threads, 1, 1),
            cluster=self.launch_cluster,
            use_pdl=True,
            min_blocks_per_mp=self.ctas_per_sm,
            preferred_smem_carveout=100,  # percent; given so that the DSL need not ask a GPU
        )  # fmt: skip

    @cute.kernel
    def kernel(
        self, tma_A: cute.CopyAtom, mA: cute.Tensor, tma_B: cute.CopyAtom, mB: cute.Tensor,
        tma_U: cute.CopyAtom | None, mU: cute.Tensor | None, tma_C: cute.CopyAtom, mC: cute.Tensor,
        gmem_C: cute.Tensor, mV: cute.Tensor | None, mP: cute.Tensor | None, mQ: cute.Tensor | None, mO: cute.Tensor,
        sA_layout: cute.ComposedLayout, sB_layout: cute.ComposedLayout, sC_layout: cute.ComposedLayout,
        tiled_mma: cute.TiledMma,
    ):
        tidx, _, _ = cute.arch.thread_idx()
        cluster, _, _ = cute.arch.cluster_idx()
        clusters, _, _ = cute.arch.cluster_dim()
        rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        group = warp // WARPS

        smem = SmemAllocator()
        storage = smem.allocate(self.shared_storage)
        sA = storage.sA.get_tensor(sA_layout.outer, swizzle=sA_layout.inner)
        sB = storage.sB.get_tensor(sB_layout.outer, swizzle=sB_layout.inner)
        sC = storage.sC.get_tensor(sC_layout.outer, swizzle=sC_layout.inner)
        # The same memory as (element, piece of 16 bytes, stage or buffer), as it lies there.
        (bM, bN, bK), part = self.tile, self.part
        memory_A = pieces.view(storage.sA.data_ptr(), bM * bK, self.stages)
        memory_B = pieces.view(storage.sB.data_ptr(), bN * bK, self.stages)
        chunk_rows, chunk_cols = self.store.chunk
        memory_C = pieces.view(storage.sC.data_ptr(), chunk_rows * chunk_cols, GROUPS * self.store.stages)
        element_type = sA.element_type
        stage_bytes = cute.size_in_bytes(element_type, cute.select(sA_layout, mode=[0, 1]))
        stage_bytes += cute.size_in_bytes(element_type, cute.select(sB_layout, mode=[0, 1]))

        # The CTA's place in its cluster, and with whom it shares: A with its row, B with its column.
        cta_layout = cute.make_layout(self.cluster)
        cta_m, cta_n = cta_layout.get_hier_coord(rank)
        share_A = cute.make_layout_image_mask(cta_layout, (cta_m, cta_n), mode=1)
        share_B = cute.make_layout_image_mask(cta_layout, (cta_m, cta_n), mode=0)
        # A stage of B in parts: (part of BN, BK, part, 1, stage).
        sB_parts = cute.local_tile(sB, (part, bK), (None, None, None))

        # smem -> MMA: "fragments" of A and B are descriptors (MMA, MMA_M, MMA_K, stage), a warpgroup's.
        thr_mma = tiled_mma.get_slice(0 if self.turns else group * WARPGROUP)
        tCrA = tiled_mma.make_fragment_A(thr_mma.partition_A(sA))
        tCrB = tiled_mma.make_fragment_B(thr_mma.partition_B(sB))
        tCrC = tiled_mma.make_fragment_C(thr_mma.partition_shape_C(self.tile[:2]))

        # The barriers of the ring: full completes with one arrival (the producer's) and the tile's bytes, whoever asked
        # for them; empty with an arrival of each warp of the warpgroups whose tile it is, in each CTA of the row and
        # column. `create` initialises them, fences, and synchronises the cluster.
        readers = WARPS * (1 if self.turns else GROUPS) * (sum(self.cluster) - 1)
        pipeline = PipelineTmaAsync.create(
            num_stages=self.stages,
            producer_group=CooperativeGroup(Agent.Thread),
            consumer_group=CooperativeGroup(Agent.Thread, readers),
            tx_count=stage_bytes,
            barrier_storage=storage.barriers.data_ptr(),
            cta_layout_vmnk=cute.make_layout((1, *self.cluster, 1)),
        )
        producer, consumer = pipeline.make_participants()
        # The next launch's CTAs may come where there is room; what launches before this one wrote is there now.
        cute.arch.griddepcontrol_launch_dependents()
        cute.arch.griddepcontrol_wait()

        # A window of 32 groups, and how many tiles there are up to its end: a tile from `total` on does not exist.
        tile, shapes = cluster, (mA.shape, mC.shape)
        window, total = self.tiles.start(mO, tile, *shapes)

        if warp >= self.producer_warp:
            cute.arch.setmaxregister_decrease(self.producer_registers)
            if warp == self.producer_warp:
                cpasync.prefetch_descriptor(tma_A)
                cpasync.prefetch_descriptor(tma_B)
                while tile < total:
                    of, row, n, k, k_tiles, _, _ = self.tiles.place(mO, tile, window, *shapes, (cta_m, cta_n))
                    # gmem -> smem: (TMA, stage), (TMA, k tile), for each part of B
                    gA, gB = groups.boxes(mA, (bM, bK), of, (row, k)), groups.boxes(mB, (part, bK), of, (n, k))
                    tAsA, tAgA = tma_partition(tma_A, sA, gA, cta_n, self.cluster[1])
                    tBsB, tBgB = tma_partition(tma_B, sB_parts[None, None, 0, 0, None], gB, cta_m, self.cluster[0])
                    if cutlass.const_expr(mU is not None):
                        gU = groups.boxes(mU, (part, bK), of, (n, k))
                        tUsU, tUgU = tma_partition(tma_U, sB_parts[None, None, 1, 0, None], gU, cta_m, self.cluster[0])
                    for k_tile in range(k_tiles):
                        stage = producer.acquire_and_advance()
                        full, i = stage.barrier, stage.index
                        cute.copy(tma_A, tAgA[None, k_tile], tAsA[None, i], tma_bar_ptr=full, mcast_mask=share_A)
                        cute.copy(tma_B, tBgB[None, k_tile], tBsB[None, i], tma_bar_ptr=full, mcast_mask=share_B)
                        if cutlass.const_expr(mU is not None):
                            cute.copy(tma_U, tUgU[None, k_tile], tUsU[None, i], tma_bar_ptr=full, mcast_mask=share_B)
                    tile += clusters
                    window, total = self.tiles.next(mO, tile, window, total, *shapes)
                # Shared memory belongs to the CTA only until it exits: wait for the peers' last arrivals.
                producer.tail()

        if warp < self.producer_warp:
            cute.arch.setmaxregister_increase(self.consumer_registers)
            # Turns: barrier 3 lets warpgroup 0 go on, barrier 4 warpgroup 1; 1 and 2 are their own.
            turn = NamedBarrier(barrier_id=3 + group, num_threads=GROUPS * WARPGROUP)
            other_turn = NamedBarrier(barrier_id=4 - group, num_threads=GROUPS * WARPGROUP)
            if cutlass.const_expr(self.turns):
                if group == 1 and tile < total:
                    consumer.advance(self.tiles.place(mO, tile, window, *shapes)[4])
                    tile += clusters
                    window, total = self.tiles.next(mO, tile, window, total, *shapes)
            while tile < total:
                place = self.tiles.place(mO, tile, window, *shapes, (cta_m, cta_n))
                _, _, _, k, k_tiles, low, high = place
                # Zero where there is nothing to add: an empty group of K, rows outside of all groups.
                tCrC.fill(0.0)
                if cutlass.const_expr(self.turns):
                    if tile != cluster:
                        turn.arrive_and_wait()
                released = consumer.clone()  # a K tile behind
                for k_tile in range(k_tiles):
                    stage = consumer.wait_and_advance()
                    if cutlass.const_expr(self.ragged_k):
                        at = k + k_tile * bK
                        self.clear(memory_A, memory_B, stage.index, low - at, high - at, tidx, group)
                    self.multiply(tiled_mma, tCrA, tCrB, tCrC, stage.index)
                    # All groups but the last are complete: the stage before this one has been read.
                    warpgroup.wait_group(1)
                    if k_tile > 0:
                        released.release()
                        released.advance()
                tile += clusters
                window, total = self.tiles.next(mO, tile, window, total, *shapes)
                if cutlass.const_expr(self.turns):
                    if tile < total:
                        other_turn.arrive()
                        consumer.advance(self.tiles.place(mO, tile, window, *shapes)[4])
                    tile += clusters
                    window, total = self.tiles.next(mO, tile, window, total, *shapes)
                # The accumulator is complete, and the tile's last stage read.
                warpgroup.wait_group(0)
                if k_tiles > 0:
                    released.release()
                memories, where = (gmem_C, sC, memory_C), (place, tidx % WARPGROUP, warp % WARPS, group)
                self.store(tma_C, mC, *memories, tCrC, mV, mP, mQ, mO.shape[0], *where)
            # Shared memory belongs to the CTA only until it exits: wait until TMA has read it.
            if warp % WARPS == 0:
                cute.arch.cp_async_bulk_wait_group(0, read=True)

    @cute.jit
    def clear(
        self, memory_A: cute.Tensor, memory_B: cute.Tensor, stage: cutlass.Int32, low: cutlass.Int32,
        high: cutlass.Int32, thread: cutlass.Int32, group: cutlass.Int32,
    ):
        """Zero what a stage has of k below `low` or from `high` on, by those who multiply it; they go on together."""
        readers, barrier = WARPGROUP * (1 if self.turns else GROUPS), 1 + group if self.turns else 3
        if low > 0 or high < self.tile[2]:
            pieces.clear(memory_A[None, None, stage], self.a_major, self.tile[2], low, high, thread % readers, readers)
            pieces.clear(memory_B[None, None, stage], self.b_major, self.tile[2], low, high, thread % readers, readers)
            cute.arch.fence_proxy("async.shared", space="cta")
            NamedBarrier(barrier_id=barrier, num_threads=readers).arrive_and_wait()

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


def build(arch: str, form: Form, config: GroupedGemmConfig) -> Program:
    """The kernel for any extents of a form; None for what the form lacks.

    ragged "m": it takes A (T, K), B (N, K, G), U (as B), C (T, N), bias (G, N), p (T,), q (G, N) and offs (G,). "k": A
    (M, T), B (N, T), None, C (M, N, G), bias, None, None and offs. offs: int32, where each group ends along T; ends
    that fall, or are past T, are cut. Rows of C past the last end become zero. bias and q may have a pitch of 0. C is
    row-major; pitches and addresses are multiples of 16 bytes, N of 8, the pitches of bias and q of 2; no extent is 0.
    """
    check_config(config, arch, form)
    g, t, rest = (cute.sym_int() for _ in range(3))
    n = cute.sym_int(divisibility=8)
    rows = (t, rest), (n, rest, g), (t, n)
    a, b, c = rows if form.ragged == "m" else ((rest, t), (n, t), (rest, n, g))

    def row_a_group(dtype: str, align: int) -> Any:
        strides = cute.sym_int64(divisibility=2), 1
        return cute.runtime.make_fake_tensor(ELEMENT_TYPES[dtype], (g, n), strides, assumed_align=align)

    return compile_program(
        GroupedGemm(config, form),
        matrix(form.dtype, a, form.a_major),
        matrix(form.dtype, b, form.b_major),
        matrix(form.dtype, b, form.b_major) if form.gated else None,
        matrix(form.out, c),
        row_a_group(form.bias, 16) if form.bias else None,
        factors(t) if form.scaled else None,
        row_a_group("fp32", 4) if form.scaled else None,
        row_major("int32", (g,), align=4),
        arch=arch, name=RUNG.name,
    )  # fmt: skip


class Experts(GroupedGemm):
    """The rung's problem: ragged rows, no scales, no gate."""

    @cute.jit
    def __call__(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mV: cute.Tensor, mO: cute.Tensor):
        super().__call__(mA, mB, None, mC, mV, None, None, mO)


def compile(arch: str, shape: tuple[int, ...], dtype: str, config: GroupedGemmConfig | None = None) -> Program:
    """The rung for the problem's form: ragged rows, B stored (G, K, N), a bias a group. N and K multiples of 8."""
    (_, _, n, k), dtype = RUNG.check(arch, shape, dtype)
    RUNG.require(n % 8 == 0, f"N={n}: TMA wants row pitches of 16 bytes, pad N to a multiple of 8")
    RUNG.require(k % 8 == 0, f"K={k}: TMA wants row pitches of 16 bytes, pad K to a multiple of 8")
    form, config = Form(dtype, dtype, bias=dtype, b_major="mn", ragged="m"), config or GroupedGemmConfig()
    check_config(config, arch, form)
    g, t, n, k = cute.sym_int(), cute.sym_int(), cute.sym_int(divisibility=8), cute.sym_int()
    a, b, c = matrix(dtype, (t, k)), matrix(dtype, (n, k, g), "mn"), matrix(dtype, (t, n))
    others = row_major(dtype, (g, n)), row_major("int32", (g,), align=4)
    return compile_program(Experts(config, form), a, b, c, *others, arch=arch, name=RUNG.name)


def check_config(config: GroupedGemmConfig, arch: str, form: Form) -> None:
    """UsageError unless the form can be done so, and the tile, its stages and buffers fit."""
    RUNG.require(form.ragged in ("m", "k"), f"ragged={form.ragged!r}: it takes 'm' or 'k'")
    RUNG.require(config.split in HALVES, f"split={config.split!r}: it takes {', '.join(map(repr, HALVES))}")
    limits.check_form(RUNG, form)
    RUNG.require(form.c_tma and not form.residual, f"residual={form.residual}, c_tma={form.c_tma}: not here")
    RUNG.require(form.ragged == "m" or not (form.gated or form.scaled), "ragged='k': there are no scales and no gate")
    halves, (bM, bN, _) = HALVES[config.split], config.tile
    limits.check_tile(RUNG, form, config.tile, halves)
    columns, whole = bN // halves[1] // (2 if form.gated else 1), 1024 // ELEMENT_TYPES[form.out].width
    RUNG.require(columns % whole == 0, f"tile={config.tile}: C's columns, a warpgroup's, must be a multiple of {whole}")
    limits.check_cluster(RUNG, form, config)
    limits.check_registers(RUNG, config, GROUPS, bM * bN // (WARPGROUP * halves[0] * halves[1]))
    limits.check_smem(RUNG, arch, form, config, GROUPS, columns)
