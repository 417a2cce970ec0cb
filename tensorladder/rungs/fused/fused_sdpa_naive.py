"""Naive scaled dot-product attention: two products and the softmax between them in one kernel, a warp a query.

Adds:
    Fusion by the online softmax. S = Q K^T and P = softmax(S) have M x N elements each, and unfused they go to memory
    and back twice. Here a query's logits are used as they come, one key at a time: with the largest logit so far, m,
    the sum l of exp(s - m) and the output o are kept relative to it, and both are scaled by exp(m - m') when a larger
    one, m', comes. Nothing of S or P is stored, and N may be of any length.
    - A warp has one query, a lane D / 32 elements of it: its part of the dot product is added over the lanes by a
      butterfly of shuffles, which gives every lane the logit. The lane's elements of the output need no exchange.
    - log2(e) / sqrt(D) is multiplied into the query once, so that exp is the hardware's exp2.
    - Causal (knob `causal`, problem `attention_causal`): the loop ends with the query's own key.
    It is naive in that each warp reads all of K and V by itself, with one multiply-add for each element read.

Warp roles:
    | warps  | role                                                                                  |
    |--------|---------------------------------------------------------------------------------------|
    | all 8  | a query each: its logits, softmax and output, key after key                           |

Budget:
    SMEM 0 B. Registers: 2 x D / 32 values of query and output, 33 a thread with D = 128. Traffic: K and V once a
    query, from L1 for neighbours.

Run:
    tensorladder run fused-sdpa-naive --shape 1,2,128,128,64
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import cutlass
import cutlass.cute as cute

from tensorladder.core.program import Program
from tensorladder.frontends.cutedsl import compile_program
from tensorladder.rungs.parts.tensors import row_major
from tensorladder.rungs.rung import Rung


@dataclass(frozen=True)
class NaiveAttentionConfig:
    """warps: of a CTA, a query each. causal: query i sees the keys up to i. unroll: of the loop over keys."""

    warps: int = 8
    causal: bool = False
    unroll: int = 4


RUNG = Rung(
    name="fused-sdpa-naive",
    parent="a1-naive-batched",
    adds="attention in one kernel: the online softmax between two products, a warp a query",
    archs=("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"),
    problem="attention",
    dtypes=("fp16", "bf16", "fp32"),
    config=NaiveAttentionConfig,
)

LANES = 32
LOG2_E = math.log2(math.e)


class NaiveAttention:
    def __init__(self, config: NaiveAttentionConfig):
        self.warps = config.warps
        self.causal = config.causal
        self.unroll = config.unroll

    @cute.jit
    def __call__(self, mQ: cute.Tensor, mK: cute.Tensor, mV: cute.Tensor, mO: cute.Tensor):
        batches, heads, queries, _ = mO.shape
        self.kernel(mQ, mK, mV, mO).launch(
            grid=(cute.ceil_div(queries, self.warps), heads, batches), block=(LANES, self.warps, 1)
        )

    @cute.kernel
    def kernel(self, mQ: cute.Tensor, mK: cute.Tensor, mV: cute.Tensor, mO: cute.Tensor):
        lane, warp, _ = cute.arch.thread_idx()
        tile, head, batch = cute.arch.block_idx()
        query = tile * self.warps + warp
        depth = mO.shape[3]
        width = depth // LANES  # elements of a lane
        mQ, mK, mV, mO = (tensor[batch, head, None, None] for tensor in (mQ, mK, mV, mO))

        if query < mO.shape[0]:
            q = self.of_lane(mQ, query, lane, width) * (LOG2_E / math.sqrt(depth))
            out = cute.make_rmem_tensor(cute.make_layout(width), cutlass.Float32)
            out.fill(0.0)
            total = cutlass.Float32(0)
            most = -cutlass.Float32.inf
            keys = mK.shape[0]
            if cutlass.const_expr(self.causal):
                keys = min(query + 1, mK.shape[0])

            for key in cutlass.range(keys, unroll=self.unroll):
                products = q * self.of_lane(mK, key, lane, width)
                logit = self.over_lanes(products.reduce(cute.ReductionOp.ADD, cutlass.Float32(0), 0))
                # From here on everything is relative to the larger maximum; at the first key the old one is -inf.
                larger = cute.arch.fmax(most, logit)
                scale = cute.math.exp2(most - larger, fastmath=True)
                weight = cute.math.exp2(logit - larger, fastmath=True)
                most = larger
                total = total * scale + weight
                out.store(out.load() * scale + self.of_lane(mV, key, lane, width) * weight)

            part = cute.local_tile(mO[query, None], (width,), (lane,))
            part.store((out.load() / total).to(mO.element_type))

    @cute.jit
    def of_lane(self, matrix: cute.Tensor, row: cutlass.Int32, lane: cutlass.Int32, width: cutlass.Constexpr):
        """A lane's elements of a row, in float32."""
        return cute.local_tile(matrix[row, None], (width,), (lane,)).load().to(cutlass.Float32)

    @cute.jit
    def over_lanes(self, value: cutlass.Float32):
        """The sum of a value over the lanes of a warp, in all of them: a butterfly of five shuffles."""
        for step in cutlass.range_constexpr(5):
            value += cute.arch.shuffle_sync_bfly(value, offset=1 << step)
        return value


def compile(arch: str, shape: tuple[int, ...], dtype: str, config: NaiveAttentionConfig | None = None) -> Program:
    """The rung for one architecture, shape (B, H, M, N, D) and element type. D: 32, 64, 96 ... 256; any M and N."""
    (b, h, m, n, d), dtype = RUNG.check(arch, shape, dtype)
    config = config or NaiveAttentionConfig()
    RUNG.require(d % LANES == 0 and d <= 256, f"D={d}: a multiple of {LANES} up to 256, pad it with zeros")
    RUNG.require(b < 65536 and h < 65536, f"B={b}, H={h}: the grid's z and y, at most 65535 each")
    RUNG.require(1 <= config.warps <= 32, f"warps={config.warps}: 1 to 32, a CTA has at most 1024 threads")
    RUNG.require(config.unroll > 0, f"unroll={config.unroll}: at least 1")
    arrays = [row_major(dtype, (b, h, rows, d)) for rows in (m, n, n, m)]
    return compile_program(NaiveAttention(config), *arrays, arch=arch, name=RUNG.name)
