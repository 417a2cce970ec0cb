"""The host part that the GEMMs in CUDA C++ share: arrays checked, extents read off them, knobs handed on as macros."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Geometry:
    """How a kernel is launched, and what it demands of its arrays.

    tile: rows and columns of C that a CTA computes. block: its threads. smem: its dynamic shared memory in bytes.
    flat: CTAs are numbered along x, else columns of tiles along x and rows along y. box_k: where the kernel takes A and
    B as tensor maps, the columns of a box (its rows are the tile's); 0: pointers. K is a multiple of k_multiple, arrays
    start at multiples of `align` bytes.
    """

    tile: tuple[int, int]
    block: Dim3
    smem: int = 0
    flat: bool = False
    box_k: int = 0
    k_multiple: int = 1
    align: int = 1

    def grid(self, m: int, n: int) -> Dim3:
        """CTAs for C (m, n)."""
        rows, columns = ceil_div(m, self.tile[0]), ceil_div(n, self.tile[1])
        return (rows * columns, 1, 1) if self.flat else (columns, rows, 1)

    def macros(self) -> dict[str, int]:
        """For the same host part in C++ (`bindings/launch.cu`)."""
        rows, columns = self.tile
        return {
            "GRID_M": rows, "GRID_N": columns, "GRID_FLAT": int(self.flat), "BLOCK_X": self.block[0],
            "BLOCK_Y": self.block[1], "DYNAMIC_SMEM": self.smem, "BOX_K": self.box_k, "K_MULTIPLE": self.k_multiple,
            "ALIGN": self.align,
        }  # fmt: skip

    def operands(self, a: View, b: View, c: View) -> tuple[Parameter, ...]:
        """The first three parameters of the kernel."""
        if not self.box_k:
            return a.data, b.data, c.data
        return tma_operand(a, (self.tile[0], self.box_k)), tma_operand(b, (self.tile[1], self.box_k)), c.data


def ceil_div(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


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


def compile_gemm(rung: Rung, file: str, arch: str, dtype: str, config: Any, geometry: Geometry) -> Program:
    """The .cu beside the rung's `file`, for every (M, N, K) that its geometry allows.

    Its kernel takes A (M, K), B (N, K) and C (M, N), all row-major, and then the integers M, N and K.
    """

    def call(*arrays: View) -> Call:
        m, n, k = extents(rung.name, dtype, *arrays)
        rung.require(k % geometry.k_multiple == 0, f"K={k}: pad it to a multiple of {geometry.k_multiple}")
        for (operand, _), array in zip(OPERANDS, arrays):
            aligned = array.data % geometry.align == 0
            rung.require(aligned, f"{operand} must start at a multiple of {geometry.align} bytes: copy it")
        parameters = (*geometry.operands(*arrays), m, n, k)
        return Call(geometry.grid(m, n), geometry.block, parameters, geometry.smem)

    return compile_file(
        Path(file).with_suffix(".cu"), call, arch=arch, name=rung.name, defines=kernel_macros(dtype, config)
    )


def kernel_macros(dtype: str, config: Any) -> dict[str, Any]:
    """What a rung's .cu is compiled with."""
    return {"Element": dtype, **macros(config)}


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
