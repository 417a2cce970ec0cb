"""Scale factors of block-scaled MMAs: how they lie in global memory, and the way from shared to tensor memory."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
import cutlass.utils.blockscaled_layout as scaled
from cutlass.cute.nvgpu import tcgen05

FORMATS: dict[str, tuple[Any, Any, int]] = {
    "mxfp8": (cutlass.Float8E4M3FN, cutlass.Float8E8M0FNU, 32),
    "nvfp4": (cutlass.Float4E2M1FN, cutlass.Float8E4M3FN, 16),
}
"""Types of the elements and of their factors, and how many elements along K share one."""



def scale_columns(k_bytes: int) -> int:
    """Columns of tensor memory for the factors of 128 rows and so many bytes of K, in either format."""
    return 16 * k_bytes // 128


@cute.jit
def scale_tensor(
    stored: cute.Tensor, extents: cutlass.Constexpr, scale_type: cutlass.Constexpr, block: cutlass.Constexpr
):
    """Bytes in blocks of 128 rows x 4 factors as a tensor (rows, K) whose elements of a block are one and the same."""
    chunk = scaled.BlockScaledBasicChunk(block).layout
    pointer = cute.recast_ptr(stored.iterator, dtype=scale_type)
    return cute.make_tensor(pointer, cute.tile_to_shape(chunk, extents, (2, 1)))


@cute.jit
def scales_to_tmem(
    smem: cute.Tensor, stage: cutlass.Int32, tmem: cute.Pointer, layout: cute.Layout, group: cutlass.Constexpr
):
    """Issue the copy of a stage's factors to tensor memory at `tmem`; the tensor there, as an operand of the MMA.

    By the warp that issues the MMAs: the tensor core does both in order.
    """
    scales = cute.make_tensor(cute.recast_ptr(tmem, dtype=smem.element_type), layout)
    compact = cute.filter_zeros(scales)
    tiled_copy = tcgen05.make_s2t_copy(cute.make_copy_atom(tcgen05.Cp4x32x128bOp(group), smem.element_type), compact)
    thr_copy = tiled_copy.get_slice(0)
    source = tcgen05.get_s2t_smem_desc_tensor(tiled_copy, thr_copy.partition_S(cute.filter_zeros(smem)))
    cute.copy(tiled_copy, source[None, None, None, None, stage], thr_copy.partition_D(compact))
    return scales
