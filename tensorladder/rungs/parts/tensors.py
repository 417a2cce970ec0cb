"""Stand-ins for the arrays of a problem, as `cute.compile` takes them: types, extents and strides, no memory."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

ELEMENT_TYPES = {
    "fp16": cutlass.Float16,
    "bf16": cutlass.BFloat16,
    "fp32": cutlass.Float32,
    "int32": cutlass.Int32,
    "uint8": cutlass.Uint8,
    "e4m3": cutlass.Float8E4M3FN,
    "e5m2": cutlass.Float8E5M2,
}


def row_major(dtype: str, shape: tuple[Any, ...], align: int = 16) -> cute.Tensor:
    """A compact row-major tensor. Extents may be numbers or `cute.sym_int()`; align: of the base address in bytes."""
    order = tuple(reversed(range(len(shape))))
    return cute.runtime.make_fake_compact_tensor(ELEMENT_TYPES[dtype], shape, stride_order=order, assumed_align=align)
