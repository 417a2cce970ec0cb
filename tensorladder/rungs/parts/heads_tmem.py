"""Attention by tcgen05 with tokens or output elements as lanes and 16 heads as columns of tensor memory.

tcgen05.ld.16x256b hands 16 lanes of 16 columns to a warp as WGMMA's accumulators lie (PTX ISA, "tcgen05 Data Movement
Shape": 16x256b), so what `parts.heads` says of rows holds for lanes.
"""

from __future__ import annotations

import operator
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import OperandMajorMode, tcgen05
from cutlass.pipeline import NamedBarrier

from tensorladder.problems.sparse_attention import HEADS
from tensorladder.rungs.parts import heads, sparse
from tensorladder.rungs.parts.tcgen05 import fence_after_thread_sync

WARPS = 4  # that reach all lanes
LANES = 128
OWN = 4  # heads of a thread
MMA_K = 16


def tiled_mma(element_type: type[cutlass.Numeric], rows: int, a_major: OperandMajorMode) -> cute.TiledMma:
    """rows x 16 heads, from 16-bit operands in shared memory; those of the heads lie along K."""
    shape, one, smem = (rows, HEADS, MMA_K), tcgen05.CtaGroup.ONE, tcgen05.OperandSource.SMEM
    op = tcgen05.MmaF16BF16Op(element_type, cutlass.Float32, shape, one, smem, a_major, OperandMajorMode.K)
    return cute.make_tiled_mma(op)


def tmem_copy(op: Any, repeat: int, tensor: cute.Tensor) -> cute.TiledCopy:
    """tcgen05.ld or st of a shape, `repeat` times along the columns."""
    return tcgen05.make_tmem_copy(cute.make_copy_atom(op(tcgen05.Repetition(repeat)), cutlass.Float32), tensor)


def registers(thr_copy: Any, tensor: cute.Tensor) -> cute.Tensor:
    """For what a thread loads of a tensor in tensor memory."""
    shape = thr_copy.partition_D(cute.make_identity_tensor(tensor.shape)).shape
    return cute.make_rmem_tensor(shape, cutlass.Float32)


def exchange(memory: Any) -> cute.Tensor:
    """(head, warp, turn) in shared memory, for `tell`. memory: of a struct, as many floats."""
    return memory.get_tensor(cute.make_layout((HEADS, WARPS, 2)))


@cute.jit
def tell(told: cute.Tensor, turn: cutlass.Int32, values: cute.Tensor):
    """A thread's value for each of its heads to all warps; gives the turn's (head, warp). Named barrier 1 is theirs.

    Two buffers in turn: who writes one again has passed the barrier after which all have read it.
    """
    of_warps = told[None, None, turn % 2]
    heads.to_warps(values, of_warps, cute.arch.thread_idx()[0])
    NamedBarrier(barrier_id=1, num_threads=32 * WARPS).arrive_and_wait()
    return of_warps


@cute.jit
def largest(
    rS: cute.Tensor, there: cute.Tensor, scale: cutlass.Constexpr, most: cute.Tensor, told: cute.Tensor,
    turn: cutlass.Int32,
):
    """A tile's products to logits in place (-inf of no token), and the largest of each head so far, over all warps.

    rS: (own head, token). there: of each token. most: the largest before. told, turn: of `tell`.
    """
    result = cute.make_fragment_like(most)
    for own in cutlass.range_constexpr(OWN):
        result[own] = -cutlass.Float32.inf
        for t in cutlass.range_constexpr(cute.size(there)):
            rS[own, t] = rS[own, t] * scale if there[t] else -cutlass.Float32.inf
            result[own] = cute.arch.fmax(result[own], rS[own, t])
        result[own] = heads.over_rows(result[own], cute.arch.fmax)
    of_warps = tell(told, turn, result)
    for own in cutlass.range_constexpr(OWN):
        head = heads.number(own, cute.arch.thread_idx()[0])
        result[own] = heads.over_warps(of_warps, head, most[own], cute.arch.fmax)
    return result


@cute.jit
def above(values: cute.Tensor, limits: cute.Tensor, by: cutlass.Constexpr):
    """Whether a value of any head is above its limit by more than `by`. A warp has all heads: all warps say alike."""
    found = cutlass.Boolean(False)
    for own in cutlass.range_constexpr(OWN):
        found = found or values[own] > limits[own] + by
    return cute.arch.vote_any_sync(found)


@cute.jit
def move(most: cute.Tensor, total: cute.Tensor, new: cute.Tensor):
    """`most` becomes `new`, `total` relative to it; gives the factors of what else was relative to `most`."""
    factor = cute.make_fragment_like(most)
    for own in cutlass.range_constexpr(OWN):
        factor[own] = sparse.exp2(most[own] - sparse.finite(new[own]))
        most[own], total[own] = new[own], total[own] * factor[own]
    return factor


@cute.jit
def weigh(rS: cute.Tensor, rP: cute.Tensor, most: cute.Tensor, total: cute.Tensor):
    """Weights of logits, relative to `most`: as rP's type, and added to `total` as they are."""
    for own in cutlass.range_constexpr(OWN):
        for t in cutlass.range_constexpr(cute.size(rS, mode=[1])):
            weight = sparse.exp2(rS[own, t] - sparse.finite(most[own]))
            total[own], rP[own, t] = total[own] + weight, weight.to(rP.element_type)


@cute.jit
def rescale(tO: cute.Tensor, factor: cute.Tensor):
    """O times the factors of its heads, where it lies: tmem -> registers -> tmem, 16 lanes of all columns at a time."""
    thread, _, _ = cute.arch.thread_idx()
    load, save = (tmem_copy(op, tO.shape[1] // 8, tO) for op in (tcgen05.Ld16x256bOp, tcgen05.St16x256bOp))
    thr_load = load.get_slice(thread)
    tOrO = registers(thr_load, tO)
    rO = heads.by_head(tOrO)
    cute.copy(load, thr_load.partition_S(tO), tOrO)
    cute.arch.fence_view_async_tmem_load()
    for own in cutlass.range_constexpr(OWN):
        rO[own, None].store(rO[own, None].load() * factor[own])
    cute.copy(save, tOrO, save.get_slice(thread).partition_D(tO))
    cute.arch.fence_view_async_tmem_store()


@cute.jit
def finish(
    told: cute.Tensor, turn: cutlass.Int32, done: cute.Pointer, phase: cutlass.Int32, tO: cute.Tensor,
    most: cute.Tensor, total: cute.Tensor, mO: cute.Tensor, mLse: cute.Tensor, mParts: cute.Tensor,
    mSums: cute.Tensor, parts: cutlass.Constexpr,
):
    """A row's output and log-sum-exp from tensor memory to gmem; of one of several parts, what `sparse.join` wants.

    told, turn: of `tell`, the next turn. done, phase: the barrier of the last MMA. tO: (lanes, blocks of 16 heads),
    elements of a block as lanes; a thread has one now. most, total: what the weights of a thread's heads are relative
    to, and the sums of its own.
    """
    thread, _, _ = cute.arch.thread_idx()
    part, row, _ = cute.arch.block_idx()
    for own in cutlass.range_constexpr(OWN):
        total[own] = heads.over_rows(total[own], operator.add)
    of_warps = tell(told, turn, total)
    if thread < OWN:
        for own in cutlass.range_constexpr(OWN):
            head = heads.number(own, thread)
            weight = heads.over_warps(of_warps, head, cutlass.Float32(0), operator.add)
            if cutlass.const_expr(parts > 1):
                mSums[part, row, head, 0], mSums[part, row, head, 1] = most[own], weight
            else:
                # Of no token the sum is 0, its logarithm -inf.
                mLse[row, head] = sparse.finite(most[own]) + cute.math.log2(weight, fastmath=True)

    cute.arch.mbarrier_wait(done, phase)
    fence_after_thread_sync()
    load = tmem_copy(tcgen05.Ld32x32bOp, tO.shape[1], tO)
    thr_load = load.get_slice(thread)
    tOrO = registers(thr_load, tO)
    cute.copy(load, thr_load.partition_S(tO), tOrO)
    cute.arch.fence_view_async_tmem_load()
    for head in cutlass.range_constexpr(HEADS):
        weight = heads.over_warps(of_warps, head, cutlass.Float32(0), operator.add)
        inverse = cute.arch.rcp_approx(weight) if weight > 0.0 else cutlass.Float32(0)
        for block in cutlass.range_constexpr(tO.shape[1] // HEADS):
            value, element = tOrO[block * HEADS + head], block * LANES + thread
            if cutlass.const_expr(parts > 1):
                mParts[part, row, head, element] = value
            else:
                mO[row, head, element] = (value * inverse).to(mO.element_type)
