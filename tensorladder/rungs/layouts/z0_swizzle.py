"""Swizzle: what lies where in shared memory when a tile is written through an XOR swizzle.

Adds:
    A look at the mechanism alone. A tile is written to shared memory through a swizzled pointer, as every GEMM here
    does it, and read back through a plain one, 16 bytes after 16 bytes: the output is the image that the hardware
    holds. Line i of 128 bytes keeps its bytes, but its 16-byte chunk c lies at c ^ (i % 8): a column of chunks, which
    8 threads read at once in ldmatrix or in a 16-byte load, is spread over all 32 banks, where it would lie in 4. The
    same function for a person: `tensorladder.core.swizzle.Swizzle(3, 4, 3)` maps byte addresses, `bank_conflicts`
    counts what it saves.

Warp roles:
    | warps | role                                                                   |
    |-------|------------------------------------------------------------------------|
    | all 8 | write 32 rows of the tile through the swizzle; read 32 rows of its image |

Budget:
    SMEM: 32 rows x 128 B = 4 KB (fp16, 64 columns). Registers: a chunk of 4 a line, 14 a thread.

Run:
    tensorladder run z0-swizzle --shape 64,64
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass.cute as cute
from cutlass.memory import SmemAllocator

from tensorladder.core.program import Program
from tensorladder.frontends.cutedsl import compile_program
from tensorladder.problems import dtype_named
from tensorladder.rungs.parts.tensors import row_major
from tensorladder.rungs.rung import Rung


@dataclass(frozen=True)
class SwizzleConfig:
    """rows: of the tile that a CTA writes, a multiple of 8 (the swizzle's period). 8 threads a row."""

    rows: int = 32


RUNG = Rung(
    name="z0-swizzle",
    parent=None,
    adds="the 128-byte XOR swizzle by itself: written swizzled, read back plain",
    archs=("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"),
    problem="swizzle",
    dtypes=("fp16", "bf16", "fp32"),
    config=SwizzleConfig,
)

LINE_BYTES = 128
VECTOR_BYTES = 16


class SwizzleImage:
    def __init__(self, config: SwizzleConfig):
        self.rows = config.rows

    @cute.jit
    def __call__(self, mX: cute.Tensor, mY: cute.Tensor):
        vector = VECTOR_BYTES * 8 // mX.element_type.width
        atom = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), mX.element_type, num_bits_per_copy=8 * VECTOR_BYTES)
        thread_layout = cute.make_layout((self.rows, 8), stride=(8, 1))
        tiled_copy = cute.make_tiled_copy_tv(atom, thread_layout, cute.make_layout((1, vector)))
        tiles = cute.ceil_div(mX.shape[0], self.rows)
        self.kernel(mX, mY, tiled_copy).launch(grid=(tiles, 1, 1), block=(8 * self.rows, 1, 1))

    @cute.kernel
    def kernel(self, mX: cute.Tensor, mY: cute.Tensor, tiled_copy: cute.TiledCopy):
        tidx, _, _ = cute.arch.thread_idx()
        bidx, _, _ = cute.arch.block_idx()
        tiler = (self.rows, mX.shape[1])
        gX = cute.local_tile(mX, tiler, (bidx, 0))
        gY = cute.local_tile(mY, tiler, (bidx, 0))
        cX = cute.local_tile(cute.make_identity_tensor(mX.shape), tiler, (bidx, 0))

        # The same bytes through two pointers: one swizzles addresses, the other does not.
        smem = SmemAllocator()
        layout = cute.make_layout(tiler, stride=(tiler[1], 1))
        plain = smem.allocate_tensor(mX.element_type, layout, 1024)
        swizzled = cute.make_tensor(cute.recast_ptr(plain.iterator, cute.make_swizzle(3, 4, 3)), layout)

        thr_copy = tiled_copy.get_slice(tidx)
        inside = cute.elem_less(thr_copy.partition_S(cX)[0], mX.shape)
        if inside:
            cute.copy(tiled_copy, thr_copy.partition_S(gX), thr_copy.partition_D(swizzled))
        cute.arch.sync_threads()
        if inside:
            cute.copy(tiled_copy, thr_copy.partition_S(plain), thr_copy.partition_D(gY))


def compile(arch: str, shape: tuple[int, ...], dtype: str, config: SwizzleConfig | None = None) -> Program:
    """The rung for one architecture, shape (rows, cols) and element type. Rows are whole lines; any number of them."""
    (rows, cols), dtype = RUNG.check(arch, shape, dtype)
    config = config or SwizzleConfig()
    line = LINE_BYTES * 8 // dtype_named(dtype).bits
    RUNG.require(cols % line == 0 and cols <= 8 * line, f"cols={cols}: rows are 1 to 8 lines of {line} {dtype}")
    RUNG.require(config.rows in range(8, 129, 8), f"rows={config.rows}: a multiple of 8 up to 128 (8 threads a row)")
    arrays = [row_major(dtype, (rows, cols)) for _ in range(2)]
    return compile_program(SwizzleImage(config), *arrays, arch=arch, name=RUNG.name)
