"""The host part that the GEMMs in CUDA C++ share: arrays checked, extents read off them, knobs handed on as macros."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tensorladder.core.dlpack import View
from tensorladder.core.errors import UsageError
from tensorladder.core.program import Dim3, Program
from tensorladder.core.tensormap import encode, from_driver_call
from tensorladder.frontends.cudacpp import Call, Parameter, compile_file
from tensorladder.rungs.rung import Rung

NUMPY_NAMES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}
OPERANDS = (("A", "MK"), ("B", "NK"), ("C", "MN"))

Geometry = tuple[Dim3, Dim3, int]
"""Grid in CTAs, block in threads, dynamic shared memory in bytes."""


def ceil_div(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def addresses(a: View, b: View, c: View) -> tuple[Parameter, ...]:
    """The first three parameters of a kernel that takes pointers."""
    return a.data, b.data, c.data


_DRIVER_TYPES = {"float16": 6, "bfloat16": 9}  # CUtensorMapDataType
_SWIZZLE_128B, _L2_128B = 3, 2  # CUtensorMapSwizzle, CUtensorMapL2promotion


def tma_operand(matrix: View, box: tuple[int, int]) -> bytes:
    """The tensor map of a row-major matrix whose boxes (rows, columns of 128 bytes) lie swizzled in shared memory."""
    (rows, columns), size = matrix.shape, matrix.itemsize
    made = from_driver_call(
        _DRIVER_TYPES[matrix.dtype], matrix.data, (columns, rows), (columns * size,), box[::-1], (1, 1),
        swizzle=_SWIZZLE_128B, l2_promotion=_L2_128B,
    )  # fmt: skip
    return encode(made)


def compile_gemm(
    rung: Rung,
    file: str,
    arch: str,
    dtype: str,
    config: Any,
    geometry: Callable[[int, int, int], Geometry],
    operands: Callable[[View, View, View], tuple[Parameter, ...]] = addresses,
    k_multiple: int = 1,
    align: int = 1,
) -> Program:
    """The .cu beside the rung's `file`, for every (M, N, K) with K a multiple of k_multiple, arrays at multiples of
    `align` bytes.

    Its kernel takes what `operands` makes of A (M, K), B (N, K) and C (M, N), all row-major, and then the integers M,
    N and K. geometry(m, n, k): how it is launched.
    """

    def call(*arrays: View) -> Call:
        m, n, k = extents(rung.name, dtype, *arrays)
        rung.require(k % k_multiple == 0, f"K={k}: pad it to a multiple of {k_multiple}")
        for (operand, _), array in zip(OPERANDS, arrays):
            rung.require(array.data % align == 0, f"{operand} must start at a multiple of {align} bytes: copy it")
        grid, block, smem = geometry(m, n, k)
        return Call(grid, block, (*operands(*arrays), m, n, k), smem)

    defines = {"Element": dtype, **macros(config)}
    return compile_file(Path(file).with_suffix(".cu"), call, arch=arch, name=rung.name, defines=defines)


def macros(config: Any) -> dict[str, int]:
    """A config's knobs as macros: `stages` is STAGES, the three numbers of `tile` are TILE_M, TILE_N and TILE_K."""
    found: dict[str, int] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if isinstance(value, tuple):
            found.update({f"{field.name.upper()}_{axis}": part for axis, part in zip("MNK", value)})
        else:
            found[field.name.upper()] = value
    return found


def extents(name: str, dtype: str, *arrays: View) -> tuple[int, int, int]:
    """(M, N, K) of A, B and C; UsageError where one is not of that type, dense and row-major, or they do not agree."""
    if len(arrays) != len(OPERANDS):
        raise UsageError(f"{name}: takes A, B and C, {len(arrays)} arrays were given")
    found: dict[str, int] = {}
    for (operand, axes), array in zip(OPERANDS, arrays):
        if array.dtype != NUMPY_NAMES[dtype]:
            raise UsageError(f"{name}: {operand} is {array.dtype}: it was compiled for {NUMPY_NAMES[dtype]}")
        # an extent of 1 leaves its stride open
        dense = len(array.shape) == 2 and all(
            extent == 1 or stride == want
            for extent, stride, want in zip(array.shape, array.strides, (array.shape[1], 1))
        )
        if not dense:
            raise UsageError(f"{name}: {operand} must be ({axes[0]}, {axes[1]}), row-major and dense: copy it")
        for axis, extent in zip(axes, array.shape):
            if found.setdefault(axis, extent) != extent:
                raise UsageError(f"{name}: {operand} has {axis}={extent}, the arrays before it {axis}={found[axis]}")
    return found["M"], found["N"], found["K"]
