"""Operands of WGMMA: where TMA puts their tiles, and how a cluster's CTAs share them."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup

SWIZZLE_BITS = 1024  # of a row of the widest swizzle
SWIZZLES = {1024: (3, 4, 3), 512: (2, 4, 3)}  # by the bits of a row


def smem_layout(dtype: type[cutlass.Numeric], major: OperandMajorMode, rows: int, cols: int, stages: int):
    """(rows, cols, stages) under the swizzle of TMA and WGMMA; rows run along M or N, cols along K (or C's N).

    K-major: row-major in columns of 128 bytes, or of 64 where a row is that short. MN-major: 128 bytes of M or N by K,
    one such block after the other.
    """
    most = SWIZZLE_BITS // dtype.width
    if major == OperandMajorMode.K:
        width = min(most, cols)
        swizzle = cute.make_swizzle(*SWIZZLES[width * dtype.width])
        atom = cute.make_composed_layout(swizzle, 0, cute.make_layout((8, width), stride=(width, 1)))
        return cute.tile_to_shape(atom, (rows, cols, stages), order=(0, 1, 2))
    swizzle = cute.make_swizzle(*SWIZZLES[SWIZZLE_BITS])
    atom = cute.make_composed_layout(swizzle, 0, cute.make_layout((most, 8), stride=(1, most)))
    return cute.tile_to_shape(atom, (rows, cols, stages), order=(1, 0, 2))


def mma_op(
    dtype: type[cutlass.Numeric],
    n: int,
    a_major: OperandMajorMode = OperandMajorMode.K,
    b_major: OperandMajorMode = OperandMajorMode.K,
):
    """WGMMA of 64 x n and 32 bytes of K into float32, both operands from shared memory."""
    shape = (64, n, 256 // dtype.width)
    where = (warpgroup.OperandSource.SMEM, a_major, b_major)
    if dtype.width == 8:
        return warpgroup.MmaF8Op(dtype, dtype, cutlass.Float32, shape, *where)
    return warpgroup.MmaF16BF16Op(dtype, cutlass.Float32, shape, *where)


def load_op(share: int):
    """The TMA load of a tile that `share` CTAs need, and into how many boxes it is cut."""
    return (cpasync.CopyBulkTensorTileG2SMulticastOp() if share > 1 else cpasync.CopyBulkTensorTileG2SOp()), share


@cute.jit
def tma_partition(
    atom: cute.CopyAtom, smem: cute.Tensor, gmem: cute.Tensor, part: cutlass.Int32, parts: cutlass.Constexpr
):
    """Both sides of a TMA copy with their first two modes (the box) as one; part: the CTA's, of a shared tile."""
    return cpasync.tma_partition(
        atom, part, cute.make_layout(parts), cute.group_modes(smem, 0, 2), cute.group_modes(gmem, 0, 2)
    )
