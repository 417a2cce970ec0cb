"""Fused ping-pong: the parent with an epilogue for every form of a product, and tiles of many widths.

Adds:
    What a model's products need, in the fastest kernel: c6's factors, residual, bias and activation, operands of either
    major and symbolic extents, under ping-pong, where an epilogue costs nothing as long as it takes less time than the
    other warpgroup's multiplications; and besides these the products of a batch, fp8 with scales, a gated product. On
    an H200 with bias and gelu 1.13 times as fast as torch.compile, 1.03 as cuBLASLt (7 shapes of `--suite fused`).
    - A third mode of every tensor and tensor map numbers independent products; the tiles of one follow another's.
    - Gated: half of a tile's rows of B come from B, half from U. The gate and the other factor of a column of C are
      accumulators of one thread then, and nothing is exchanged. C's tile is half as wide.
    - A tile is a multiple of 8 columns wide, as WGMMA has them, so that tiles can be found that fill the last wave. C
      goes out in chunks of 64 columns or of 32, which have a narrower swizzle. Where these do not divide the tile its
      last chunk reaches past it, and TMA cuts it off: there a tile's columns are a mode of C's tensor map.
    - What an epilogue reads it reads early: a tile's residual is sent for to L2 when the tile begins, and the operands
      of a chunk of C go to registers while the chunk before is finished. Only a launch's last tiles show an epilogue.
    - Rows of C that TMA cannot store (an odd pitch, or the end of an odd N) leave shared memory by plain stores.
    - A and B can change places (`swap`): the kernel computes C^T = B A^T, and stmatrix turns C's tiles round on their
      way to shared memory. So tiles come in steps of 32 rows, too: 777 x 6400 x 1600 is 1.9 waves of 160 x 128.
    - Both warpgroups can also share a tile, as in c4: tiles of 256 x 128 read less of A and B for each multiplication,
      which counts where L2 is what limits (pitches that are no multiple of 128 bytes: 5000 cubed, 408 x 7416 x 3576).
    - A cluster of one CTA is a kernel without clusters, for what is too small to share.
    - Launches overlap (programmatic dependent launch): barriers are initialised and descriptors fetched while the
      kernel before is still at work, 1.5 us of every launch on an H200 (by hand), where 1024 cubed takes 6.

Warp roles:
    | warps    | role, in each CTA                                                                      |
    |----------|----------------------------------------------------------------------------------------|
    | 0-3, 4-7 | consumers, a tile or a half each: multiply, finish and store 128 x 128 of C            |
    | 8        | producer: asks TMA for its parts of A and B, as far ahead as stages are free           |
    | 9-11     | nothing, their registers go to the consumers                                           |

Budget:
    SMEM: as the parent, 225 KB of 227. Registers: 128 accumulators, 32 of the chunk in work with up to 16 packed ones,
    and twice what it reads, in at most 232 a consumer thread. No TMEM.

Run:
    tensorladder run c7-fused-ping-pong --shape 512,512,256
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import cpasync, warpgroup
from cutlass.memory import SmemAllocator
from cutlass.pipeline import Agent, CooperativeGroup, NamedBarrier, PipelineTmaAsync

from tensorladder.core.program import Program
from tensorladder.frontends.cutedsl import compile_program
from tensorladder.rungs.parts import limits
from tensorladder.rungs.parts.arguments import arguments, matrix
from tensorladder.rungs.parts.epilogue import MAJORS
from tensorladder.rungs.parts.form import Form
from tensorladder.rungs.parts.store import TileStore, transposed
from tensorladder.rungs.parts.tensors import ELEMENT_TYPES, row_major
from tensorladder.rungs.parts.tiles import cluster_tile
from tensorladder.rungs.parts.wgmma import load_op, mma_op, smem_layout, tma_partition
from tensorladder.rungs.rung import Rung


@dataclass(frozen=True)
class FusedGemmConfig:
    """tile: (M, N, K); K counts 16-bit elements (twice as many of fp8); N counts columns of B, and of U where there is
    one. split: what of it is a warpgroup's: all, and they take turns (""), or a half, below ("m") or beside ("n") the
    other's. swap: A and B change places, and M and N in all knobs with them: tile is (N, M, K) then. cluster_m,
    cluster_n: CTAs of a cluster along M and N. stages: K tiles in shared memory.

    c_stages: buffers of a chunk of C a warpgroup. raster: rows of clusters' tiles before the next column, so that CTAs
    share A and B in L2. sm_count, ctas_per_sm: the grid is their product, or the number of tiles where that is less.
    producer_registers, consumer_registers: a thread, after setmaxnreg (multiples of 8).
    """

    tile: tuple[int, int, int] = (128, 128, 64)
    split: str = ""
    swap: bool = False
    cluster_m: int = 2
    cluster_n: int = 1
    stages: int = 6
    c_stages: int = 2
    raster: int = 8
    sm_count: int = 132
    ctas_per_sm: int = 1
    producer_registers: int = 40
    consumer_registers: int = 232


RUNG = Rung(
    name="c7-fused-ping-pong",
    parent="c5-ping-pong",
    adds="every form of a product: c6's epilogue, batches, fp8 with scales, gated; tiles of many widths",
    aside="for products with all that stands around them, fp8 with scales, batches: what `matmul` runs on sm_90a",
    archs=("sm_90a",),
    problem="gemm_epilogue",
    dtypes=("fp16", "bf16"),
    config=FusedGemmConfig,
)

WARPGROUP = 128  # threads
WARPS = 4  # of a warpgroup
GROUPS = 2  # consumer warpgroups
HALVES = {"": (1, 1), "m": (2, 1), "n": (1, 2)}  # into how many parts they cut a tile, along M and N


class FusedGemm:
    def __init__(self, config: FusedGemmConfig, form: Form):
        self.tile = (*config.tile[:2], config.tile[2] * 16 // ELEMENT_TYPES[form.dtype].width)
        # Of a gated product's tile one half is B's and one U's: of its columns, or with operands swapped of its rows.
        self.rows = self.tile[0] // (2 if form.gated and config.swap else 1)
        self.part = self.tile[1] // (2 if form.gated and not config.swap else 1)
        # Under ping-pong each warpgroup has all of a tile; else they have its halves, one below or beside the other.
        self.turns = config.split == ""
        self.halves = HALVES[config.split]
        self.swap = config.swap
        self.store = TileStore(form, (self.rows, self.part), self.halves, config.c_stages, config.swap)
        self.a_major, self.b_major = MAJORS[form.a_major], MAJORS[form.b_major]
        self.cluster = (config.cluster_m, config.cluster_n)
        self.ctas = config.cluster_m * config.cluster_n
        # Into how many boxes the CTAs of a column cut B's tile; where these would not be whole rows of the swizzle each
        # asks for all of it in its turn, K tile by K tile.
        self.boxes_B = config.cluster_m if self.part % (8 * config.cluster_m) == 0 else 1
        self.turns_B = config.cluster_m // self.boxes_B
        self.launch_cluster = (self.ctas, 1, 1) if self.ctas > 1 else None
        self.producer_warp = WARPS * GROUPS
        self.threads = WARPGROUP * (GROUPS + 1)
        self.stages = config.stages
        self.raster = config.raster
        self.max_clusters = limits.clusters_at_once(config.sm_count * config.ctas_per_sm, self.ctas)
        self.ctas_per_sm = config.ctas_per_sm
        self.producer_registers = config.producer_registers
        self.consumer_registers = config.consumer_registers

    @cute.jit
    def __call__(
        self, mA: cute.Tensor, mB: cute.Tensor, mU: cute.Tensor | None, mC: cute.Tensor, mR: cute.Tensor | None,
        mV: cute.Tensor | None, mS: cute.Tensor, mP: cute.Tensor | None, mQ: cute.Tensor | None,
    ):
        if cutlass.const_expr(self.swap):  # C^T = B A^T
            mA, mB, mP, mQ, mC = mB, mA, mQ, mP, transposed(mC)
            mR = transposed(mR) if cutlass.const_expr(mR is not None) else None
        (bM, bN, bK), rows, part, store = self.tile, self.rows, self.part, self.store
        element_type = mA.element_type
        sA_layout = smem_layout(element_type, self.a_major, bM, bK, self.stages)
        sB_layout = smem_layout(element_type, self.b_major, bN, bK, self.stages)
        sC_layout = smem_layout(store.dtype, MAJORS["mn" if self.swap else "k"], *store.chunk, GROUPS * store.stages)

        # A descriptor and a tensor of coordinates for each matrix. TMA takes coordinates, not addresses. The box is
        # what one CTA asks for: its part of a tile that it shares with those of its row (A) or column (B).
        (load_A, share_A), (load_B, _) = load_op(self.cluster[1]), load_op(self.cluster[0])
        sA_part = smem_layout(element_type, self.a_major, rows, bK, self.stages)
        sB_part = smem_layout(element_type, self.b_major, part, bK, self.stages)
        box_A = (cute.select(sA_part, mode=[0, 1]), (rows, bK), share_A)
        box_B = (cute.select(sB_part, mode=[0, 1]), (part, bK), self.boxes_B)
        tma_A, mA = cpasync.make_tiled_tma_atom(load_A, mA, *box_A)
        tma_B, mB = cpasync.make_tiled_tma_atom(load_B, mB, *box_B)
        tma_U = None
        if cutlass.const_expr(mU is not None):
            load_U, box_U = (load_A, box_A) if self.swap else (load_B, box_B)
            tma_U, mU = cpasync.make_tiled_tma_atom(load_U, mU, *box_U)
        atoms, extents = store.atoms(mC, cute.select(sC_layout, mode=[0, 1])), mC.shape
        if cutlass.const_expr(store.tma):
            mC = None  # a parameter less

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
        # Tiles of clusters: a CTA whose own lies outside of C reads zeros and stores nothing.
        tiles = cute.ceil_div(extents, (rows * self.cluster[0], part * self.cluster[1], 1))
        self.kernel(
            tma_A, mA, tma_B, mB, tma_U, mU, atoms, mC, mR, mV, mS, mP, mQ, sA_layout, sB_layout, sC_layout,
            tiled_mma, tiles,
        ).launch(
            grid=(cutlass.min(cute.size(tiles), self.max_clusters) * self.ctas, 1, 1),
            block=(self.threads, 1, 1),
            cluster=self.launch_cluster,
            min_blocks_per_mp=self.ctas_per_sm,
            use_pdl=True,
            preferred_smem_carveout=100,  # percent; given so that the DSL need not ask a GPU
        )  # fmt: skip

    @cute.kernel
    def kernel(
        self, tma_A: cute.CopyAtom, mA: cute.Tensor, tma_B: cute.CopyAtom, mB: cute.Tensor,
        tma_U: cute.CopyAtom | None, mU: cute.Tensor | None, atoms: tuple, mC: cute.Tensor | None,
        mR: cute.Tensor | None, mV: cute.Tensor | None, mS: cute.Tensor, mP: cute.Tensor | None,
        mQ: cute.Tensor | None, sA_layout: cute.ComposedLayout, sB_layout: cute.ComposedLayout,
        sC_layout: cute.ComposedLayout, tiled_mma: cute.TiledMma, tiles: cute.Shape,
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
        element_type = sA.element_type
        stage_bytes = cute.size_in_bytes(element_type, cute.select(sA_layout, mode=[0, 1]))
        stage_bytes += cute.size_in_bytes(element_type, cute.select(sB_layout, mode=[0, 1]))

        # (part of BM, BK, tiles along M, k tiles, products) and (part of BN, BK, tiles along N, k tiles, products), as
        # coordinates; a stage in parts: (part of BN, BK, part, 1, stage).
        bK, rows, part = self.tile[2], self.rows, self.part
        gA = cute.local_tile(mA, (rows, bK), (None, None, None))
        gB = cute.local_tile(mB, (part, bK), (None, None, None))
        sA_parts = cute.local_tile(sA, (rows, bK), (None, None, None))
        sB_parts = cute.local_tile(sB, (part, bK), (None, None, None))

        # The CTA's place in its cluster, and with whom it shares: A with its row, B with its column.
        cta_layout = cute.make_layout(self.cluster)
        cta_m, cta_n = cta_layout.get_hier_coord(rank)
        share_A = cute.make_layout_image_mask(cta_layout, (cta_m, cta_n), mode=1)
        share_B = cute.make_layout_image_mask(cta_layout, (cta_m, cta_n), mode=0)

        # gmem -> smem: (TMA, stage), (TMA, tile, k tile, product), for each part
        box_A, box_B = (cta_n, self.cluster[1]), (cta_m % self.boxes_B, self.boxes_B)
        loads_A = ((tma_A, *tma_partition(tma_A, sA_parts[None, None, 0, 0, None], gA, *box_A)),)
        loads_B = ((tma_B, *tma_partition(tma_B, sB_parts[None, None, 0, 0, None], gB, *box_B)),)
        if cutlass.const_expr(mU is not None):
            gU = cute.local_tile(mU, (rows if self.swap else part, bK), (None, None, None))
            if cutlass.const_expr(self.swap):
                loads_A += ((tma_U, *tma_partition(tma_U, sA_parts[None, None, 1, 0, None], gU, *box_A)),)
            else:
                loads_B += ((tma_U, *tma_partition(tma_U, sB_parts[None, None, 1, 0, None], gU, *box_B)),)

        # smem -> MMA: "fragments" of A and B are descriptors (MMA, MMA_M, MMA_K, stage), the same for all threads of a
        # warpgroup.
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
        num_tiles = cute.size(tiles)
        num_k_tiles = cute.size(gA, mode=[3])

        # The next kernel may start; nobody touches global memory before the kernel before this one is through.
        cute.arch.griddepcontrol_launch_dependents()
        if warp >= self.producer_warp:
            cute.arch.setmaxregister_decrease(self.producer_registers)
            if warp == self.producer_warp:
                cpasync.prefetch_descriptor(tma_A)
                cpasync.prefetch_descriptor(tma_B)
                cute.arch.griddepcontrol_wait()
                for tile in cutlass.range(cluster, num_tiles, clusters):
                    m, n, l = cluster_tile(tile, tiles, self.raster, self.cluster, (cta_m, cta_n))
                    for k in range(num_k_tiles):
                        stage = producer.acquire_and_advance()
                        self.load(loads_A, (m, k, l), stage.index, stage.barrier, share_A)
                        if self.turns_B == 1 or k % self.turns_B == cta_m:
                            self.load(loads_B, (n, k, l), stage.index, stage.barrier, share_B)
                # Shared memory belongs to the CTA only until it exits: wait for the peers' last arrivals.
                producer.tail()

        if warp < self.producer_warp:
            cute.arch.setmaxregister_increase(self.consumer_registers)
            cute.arch.griddepcontrol_wait()
            alpha, beta = mS[0], mS[1]
            # Turns: barrier 3 lets warpgroup 0 go on, barrier 4 warpgroup 1; 1 and 2 are their own.
            turn = NamedBarrier(barrier_id=3 + group, num_threads=GROUPS * WARPGROUP)
            other_turn = NamedBarrier(barrier_id=4 - group, num_threads=GROUPS * WARPGROUP)
            first, step = cluster, clusters
            if cutlass.const_expr(self.turns):
                first, step = cluster + group * clusters, GROUPS * clusters
                if group == 1:
                    consumer.advance(num_k_tiles)
            for tile in cutlass.range(first, num_tiles, step):
                # Uniform, so that the compiler divides here and not behind the multiplications, before C is stored.
                coord = cluster_tile(tile, tiles, self.raster, self.cluster, (cta_m, cta_n))
                coord = tuple(cute.arch.make_warp_uniform(x) for x in coord)
                self.store.prefetch(mR, beta, coord, tidx % self.store.threads)
                if cutlass.const_expr(self.turns):
                    if tile != cluster:
                        turn.arrive_and_wait()
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
                if cutlass.const_expr(self.turns):
                    if tile + clusters < num_tiles:
                        other_turn.arrive()
                    consumer.advance(num_k_tiles)
                operands, place = (mR, mV, mP, mQ), (coord, tidx % WARPGROUP, group)
                ahead = None
                if cutlass.const_expr(self.store.early):
                    ahead = self.store.fetch(0, atoms[0][1].shape[:2], *operands, beta, *place)
                # The accumulator is complete, and the tile's last stage read.
                warpgroup.wait_group(0)
                released.release()
                self.store(atoms, mC, sC, tCrC, ahead, *operands, alpha, beta, *place)
            # Shared memory belongs to the CTA only until it exits: wait until TMA has read it.
            if warp % WARPS == 0:
                cute.arch.cp_async_bulk_wait_group(0, read=True)

    @cute.jit
    def load(self, loads: tuple, at: cute.Coord, stage: cutlass.Int32, barrier: cute.Pointer, mask: cutlass.Int16):
        """Ask TMA for a K tile of A or of B, and of U with it where there is one."""
        for atom, smem, gmem in loads:
            cute.copy(atom, gmem[(None, *at)], smem[None, stage], tma_bar_ptr=barrier, mcast_mask=mask)

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


class OneProduct(FusedGemm):
    """The rung's problem: one product, of plain matrices. A third mode of extent 1 makes them a batch's."""

    @cute.jit
    def __call__(
        self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mR: cute.Tensor, mV: cute.Tensor, mS: cute.Tensor
    ):
        mA, mB, mC, mR = cute.append_ones(mA), cute.append_ones(mB), cute.append_ones(mC), cute.append_ones(mR)
        super().__call__(mA, mB, None, mC, mR, mV, mS, None, None)


def build(arch: str, form: Form, config: FusedGemmConfig) -> Program:
    """The kernel of a form for any extents; it takes what `Form` says, aligned as `arguments` says."""
    check_config(config, arch, form)
    seen = swapped(form) if config.swap else form
    return compile_program(FusedGemm(config, seen), *arguments(form), arch=arch, name=RUNG.name)


def swapped(form: Form) -> Form:
    """A form's operands the other way round."""
    return replace(form, a_major=form.b_major, b_major=form.a_major)


def compile(arch: str, shape: tuple[int, ...], dtype: str, config: FusedGemmConfig | None = None) -> Program:
    """The rung for the problem's form: B stored (K, N), all of the epilogue, gelu. N and K multiples of 8."""
    (_, n, k), dtype = RUNG.check(arch, shape, dtype)
    RUNG.require(n % 8 == 0, f"N={n}: TMA wants row pitches of 16 bytes, pad N to a multiple of 8")
    RUNG.require(k % 8 == 0, f"K={k}: TMA wants row pitches of 16 bytes, pad K to a multiple of 8")
    form, config = Form(dtype, dtype, dtype, dtype, b_major="mn", activation="gelu"), config or FusedGemmConfig()
    check_config(config, arch, form)
    seen = swapped(form) if config.swap else form
    m, n, k = cute.sym_int(), cute.sym_int(divisibility=8), cute.sym_int()
    a, b, c, r = matrix(dtype, (m, k)), matrix(dtype, (n, k), "mn"), matrix(dtype, (m, n)), matrix(dtype, (m, n))
    others = row_major(dtype, (n,)), row_major("fp32", (2,), align=4)
    return compile_program(OneProduct(config, seen), a, b, c, r, *others, arch=arch, name=RUNG.name)


def check_config(config: FusedGemmConfig, arch: str, form: Form) -> None:
    """UsageError unless WGMMA covers the tile evenly and the stages fit into shared memory."""
    RUNG.require(config.split in HALVES, f"split={config.split!r}: {', '.join(map(repr, HALVES))}")
    halves, (bM, bN, bK) = HALVES[config.split], config.tile
    limits.check_form(RUNG, form)
    part = config
    if config.swap:
        if form.gated:
            fits = bM % (128 * halves[0]) == 0 and bK == 64
            RUNG.require(fits, f"tile={config.tile}: half of its rows are U's: M a multiple of {128 * halves[0]}, K 64")
            part = replace(config, tile=(bM // 2, bN, bK))
        form = replace(swapped(form), gated=False)
    limits.check_tile(RUNG, form, config.tile, halves)
    limits.check_cluster(RUNG, form, part, whole=True)
    limits.check_registers(RUNG, config, GROUPS, bM * bN // math.prod(halves) // WARPGROUP)
    limits.check_smem(RUNG, arch, form, config, GROUPS, bN // halves[1] // (2 if form.gated else 1))
