"""DeepSeek sparse attention on CUDA cores: a row's tokens split over CTAs, their parts joined by a dependent kernel.

Adds:
    Gathering, heads that share their keys, and a split of the softmax over CTAs.
    - Each row names its tokens, up to 2048 anywhere in a paged cache. A page and its place in it are one number, page
      * 64 + place, the row of a flat cache: so a key is 1024 + 128 bytes at an address of its own, copied by cp.async
      with 16 bytes a thread. The copy's source size is 0 where the index is -1: zeros then, nothing is read.
    - All 16 heads use the same keys, and the first 512 elements of a key are its value. So a tile of 32 tokens is
      gathered once into shared memory and used 32 times: a lane has a token's logits of 4 heads, then 16 elements of
      those heads' outputs. Rows are padded by 16 bytes, so that lanes of different tokens read different banks.
    - One row is not work enough for a GPU, so its tokens are split over CTAs. Each leaves m, l (see the parent) and its
      output relative to m in memory. A second kernel (`parts.sparse.join`) weighs the parts by exp(m - largest m) and
      adds them up, in one order. It is launched as a dependent (a1-dependent-launch): its CTAs are there when the last
      part is.
    - A part with no token at all has m = -inf, l = 0. Nothing may be relative to -inf, as inf - inf is no number.

Warp roles:
    | warps             | role                                                                        |
    |-------------------|-----------------------------------------------------------------------------|
    | all 4, attention  | gather 32 tokens, then 4 heads each: logits, softmax, output                |
    | all 4, joining    | a row's head: 4 elements of the output a thread, part after part            |

Budget:
    SMEM: queries in float32, 16 x 576 x 4 B = 36 KB; a tile of 32 x (576 + 8) x 2 B = 36.5 KB: 3 CTAs an SM. Registers:
    4 x 16 outputs, 4 x 8 products, 112 a thread. Traffic: a tile once from L2, a CTA.

Run:
    tensorladder run fused-dsa-split --shape 5,128,4
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass.memory import SmemAllocator

from tensorladder.core.program import Program
from tensorladder.frontends.cutedsl import compile_program
from tensorladder.problems.sparse_attention import HEADS, LATENT, ROTARY, SM_SCALE, max_splits
from tensorladder.rungs.parts import sparse
from tensorladder.rungs.parts.cpasync import start_copy
from tensorladder.rungs.rung import Rung


@dataclass(frozen=True)
class SplitSparseAttentionConfig:
    """warps: of a CTA; they share the 16 heads evenly. sm_count, ctas_per_sm: rows are split until so many CTAs have
    work, as far as the scratch memory has room. overlap: launch the joining as a dependent, or (False) strictly after.
    """

    warps: int = 4
    sm_count: int = 132
    ctas_per_sm: int = 3
    overlap: bool = True


RUNG = Rung(
    name="fused-dsa-split",
    parent="fused-sdpa-naive",
    adds="sparse attention: tokens gathered by index for all heads, split over CTAs, joined by a second kernel",
    archs=("sm_90a", "sm_100a", "sm_120a"),
    problem="sparse_attention",
    dtypes=("bf16",),
    config=SplitSparseAttentionConfig,
)

LANES = 32
TILE = LANES  # tokens, a lane each
VECTOR = 8  # elements of 16 bytes
KEY = LATENT + ROTARY
PITCH = KEY + VECTOR


class SplitSparseAttention:
    def __init__(self, config: SplitSparseAttentionConfig, splits: int, tokens: int):
        self.warps = config.warps
        self.threads = LANES * config.warps
        self.heads = HEADS // config.warps  # of a warp
        self.ctas_per_sm = config.ctas_per_sm
        self.overlap = config.overlap
        self.splits, self.tokens = splits, tokens  # of a row, of a split

    @cute.jit
    def __call__(
        self, mQ: cute.Tensor, mQ_pe: cute.Tensor, mC: cute.Tensor, mK_pe: cute.Tensor, mIndex: cute.Tensor,
        mO: cute.Tensor, mLse: cute.Tensor, mParts: cute.Tensor, mSums: cute.Tensor,
    ):
        rows = mO.shape[0]
        latent, rotary = sparse.flat(mC), sparse.flat(mK_pe)
        self.kernel(mQ, mQ_pe, latent, rotary, mIndex, mParts, mSums).launch(
            grid=(self.splits, rows, 1),
            block=(self.threads, 1, 1),
            min_blocks_per_mp=self.ctas_per_sm,
            preferred_smem_carveout=100,  # percent; given so that the DSL need not ask a GPU
        )
        sparse.join(mParts, mSums, mO, mLse, self.splits).launch(
            grid=(HEADS, rows, 1), block=(sparse.THREADS, 1, 1), use_pdl=self.overlap
        )

    @cute.kernel
    def kernel(
        self, mQ: cute.Tensor, mQ_pe: cute.Tensor, latent: cute.Tensor, rotary: cute.Tensor, mIndex: cute.Tensor,
        mParts: cute.Tensor, mSums: cute.Tensor,
    ):
        tidx, _, _ = cute.arch.thread_idx()
        split, row, _ = cute.arch.block_idx()
        lane, warp = tidx % LANES, tidx // LANES
        # Whoever joins the parts may take its place now: it waits for the end of this grid.
        cute.arch.griddepcontrol_launch_dependents()

        smem = SmemAllocator()
        sQ = smem.allocate_tensor(cutlass.Float32, cute.make_layout((HEADS, KEY), stride=(KEY, 1)), 16)
        sK = smem.allocate_tensor(mQ.element_type, cute.make_layout((TILE, KEY), stride=(PITCH, 1)), 16)
        self.load_queries(mQ[row, None, None], sQ, 0, tidx)
        self.load_queries(mQ_pe[row, None, None], sQ, LATENT, tidx)

        indices = mIndex[row, None]
        first_head = warp * self.heads
        most = cute.make_rmem_tensor(cute.make_layout(self.heads), cutlass.Float32)
        total = cute.make_rmem_tensor(cute.make_layout(self.heads), cutlass.Float32)
        out = cute.make_rmem_tensor(cute.make_layout((VECTOR, 2, self.heads)), cutlass.Float32)
        most.fill(-cutlass.Float32.inf)
        total.fill(0.0)
        out.fill(0.0)

        for tile in range(self.tokens // TILE):
            first = split * self.tokens + tile * TILE
            self.gather(latent, indices, first, sK, 0, tidx)
            self.gather(rotary, indices, first, sK, LATENT, tidx)
            cute.arch.cp_async_commit_group()
            cute.arch.cp_async_wait_group(0)
            cute.arch.sync_threads()

            logits = self.logits(sQ, sK, first_head, lane)
            there = sparse.token(indices, first + lane) >= 0
            for h in cutlass.range_constexpr(self.heads):
                logit = logits[h] if there else -cutlass.Float32.inf
                larger = cute.arch.fmax(most[h], sparse.over_lanes(logit, cute.arch.fmax))
                # Before the first token all is -inf; then 0 takes its place, and every exp below is 0.
                base = sparse.finite(larger)
                scale, weight = sparse.exp2(most[h] - base), sparse.exp2(logit - base)
                most[h] = larger
                total[h] = total[h] * scale + sparse.over_lanes(weight, operator.add)
                logits[h] = weight
                out[None, None, h].store(out[None, None, h].load() * scale)
            self.add_values(sK, logits, out, lane)
            cute.arch.sync_threads()  # before the next tile takes its place

        for h in cutlass.range_constexpr(self.heads):
            head = first_head + h
            for half in cutlass.range_constexpr(2):
                part = cute.local_tile(mParts[split, row, head, None], (VECTOR,), (half * LANES + lane,))
                part.store(out[None, half, h].load())
            if lane == 0:
                mSums[split, row, head, 0] = most[h]
                mSums[split, row, head, 1] = total[h]

    @cute.jit
    def load_queries(self, queries: cute.Tensor, sQ: cute.Tensor, begin: cutlass.Constexpr, thread: cutlass.Int32):
        """Elements of all heads to shared memory from column `begin` on, scaled so that exp is exp2."""
        vectors = queries.shape[1] // VECTOR
        for i in cutlass.range_constexpr(HEADS * vectors // self.threads):
            head, place = (i * self.threads + thread) // vectors, (i * self.threads + thread) % vectors
            values = cute.local_tile(queries[head, None], (VECTOR,), (place,)).load().to(cutlass.Float32)
            part = cute.local_tile(sQ[head, None], (VECTOR,), (begin // VECTOR + place,))
            part.store(values * (SM_SCALE * math.log2(math.e)))

    @cute.jit
    def gather(
        self, cache: cute.Tensor, indices: cute.Tensor, first: cutlass.Int32, sK: cute.Tensor, begin: cutlass.Constexpr,
        thread: cutlass.Int32,
    ):
        """Start copies of a tile's tokens to shared memory, from column `begin` on; zeros for those that are none."""
        vectors = cache.shape[1] // VECTOR
        for i in cutlass.range_constexpr(TILE * vectors // self.threads):
            slot, place = (i * self.threads + thread) // vectors, (i * self.threads + thread) % vectors
            token = sparse.token(indices, first + slot)
            src = cute.local_tile(cache[max(token, 0), None], (VECTOR,), (place,))
            dst = cute.local_tile(sK[slot, None], (VECTOR,), (begin // VECTOR + place,))
            start_copy(dst.iterator, src.iterator, 16 if token >= 0 else 0)

    @cute.jit
    def logits(self, sQ: cute.Tensor, sK: cute.Tensor, first_head: cutlass.Int32, lane: cutlass.Int32):
        """The lane's token against the warp's heads."""
        products = cute.make_rmem_tensor(cute.make_layout((VECTOR, self.heads)), cutlass.Float32)
        products.fill(0.0)
        for i in cutlass.range(KEY // VECTOR, unroll=4):
            key = cute.local_tile(sK[lane, None], (VECTOR,), (i,)).load().to(cutlass.Float32)
            for h in cutlass.range_constexpr(self.heads):
                query = cute.local_tile(sQ[first_head + h, None], (VECTOR,), (i,)).load()
                products[None, h].store(products[None, h].load() + key * query)
        logits = cute.make_rmem_tensor(cute.make_layout(self.heads), cutlass.Float32)
        for h in cutlass.range_constexpr(self.heads):
            logits[h] = products[None, h].load().reduce(cute.ReductionOp.ADD, cutlass.Float32(0), 0)
        return logits

    @cute.jit
    def add_values(self, sK: cute.Tensor, weights: cute.Tensor, out: cute.Tensor, lane: cutlass.Int32):
        """out += the tile's values, each times its weight, which its lane has."""
        for slot in cutlass.range(TILE, unroll=2):
            for half in cutlass.range_constexpr(2):
                value = cute.local_tile(sK[slot, None], (VECTOR,), (half * LANES + lane,)).load().to(cutlass.Float32)
                for h in cutlass.range_constexpr(self.heads):
                    weight = cute.arch.shuffle_sync(weights[h], slot)
                    out[None, half, h].store(out[None, half, h].load() + value * weight)


def compile(arch: str, shape: tuple[int, ...], dtype: str, config: SplitSparseAttentionConfig | None = None) -> Program:
    """The rung for one architecture and shape (T, topk, pages): any topk, T up to 65535, pages up to 65535."""
    (rows, topk, _), dtype = RUNG.check(arch, shape, dtype)
    config = config or SplitSparseAttentionConfig()
    RUNG.require(config.warps in (1, 2, 4), f"warps={config.warps}: 1, 2 or 4, which share 16 heads and 128 vectors")
    wanted = config.sm_count * config.ctas_per_sm
    RUNG.require(wanted > 0, f"sm_count={config.sm_count}, ctas_per_sm={config.ctas_per_sm}: at least 1")
    tiles = math.ceil(topk / TILE)
    splits = min(tiles, max_splits(shape), math.ceil(wanted / rows))
    tiles = math.ceil(tiles / splits)  # of a split
    attention = SplitSparseAttention(config, math.ceil(topk / (tiles * TILE)), tiles * TILE)
    arrays = sparse.arrays(RUNG, shape, dtype)
    return compile_program(attention, *arrays, arch=arch, name=RUNG.name)
