"""Small CuTe DSL kernels that the front end's tests compile (the DSL reads their source: they must lie in a file)."""

from dataclasses import dataclass

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute


@cute.kernel
def add_kernel(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, n: cutlass.Int32):
    block, _, _ = cute.arch.block_idx()
    thread, _, _ = cute.arch.thread_idx()
    i = block * 256 + thread
    if i < n:
        c[i] = a[i] + b[i]


@cute.jit
def add(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
    n = a.shape[0]
    add_kernel(a, b, c, n).launch(grid=[(n + 255) // 256, 1, 1], block=[256, 1, 1])


@cute.jit
def add_plain(a, b, c):
    """Without annotations: takes arrays that are no DSL tensors."""
    n = a.shape[0]
    add_kernel(a, b, c, n).launch(grid=[(n + 255) // 256, 1, 1], block=[256, 1, 1])


@cute.kernel
def scale_kernel(x: cute.Tensor, factor: cutlass.Float32, k: cutlass.Constexpr):
    thread, _, _ = cute.arch.thread_idx()
    x[thread, 0] = (x[thread, 0].to(cutlass.Float32) * factor * k).to(x.element_type)


@cute.jit
def scale(x: cute.Tensor, factor: cutlass.Float32, stream: cuda.CUstream, k: cutlass.Constexpr):
    rows = x.shape[0]
    scale_kernel(x, factor, k).launch(grid=[rows // 32, 2, 1], block=[32, 1, 1], smem=128, stream=stream)


@cute.jit
def many(x: cute.Tensor, rounds: cutlass.Constexpr, times: cutlass.Int32):
    for _ in cutlass.range_constexpr(rounds):
        scale_kernel(x, 2.0, 1).launch(grid=[1, 1, 1], block=[32, 1, 1])
    for i in range(times):
        scale_kernel(x, 3.0, 1).launch(
            grid=[4, i + 1, 1], block=[32, 1, 1], cluster=[2, 1, 1], use_pdl=True, smem=60000
        )


@cute.jit
def cooperative(x: cute.Tensor, ctas: cutlass.Int32):
    scale_kernel(x, 2.0, 1).launch(grid=[ctas, 1, 1], block=[32, 1, 1], cooperative=True)


@cute.jit
def wrong(x: cute.Tensor):
    x.no_such_method()


@cute.jit
def no_kernel(x: cute.Tensor):
    pass


@dataclass(frozen=True)
class Config:
    """Knobs, as rungs have them."""

    tile: tuple[int, int] = (1, 2)
    stages: int = 3


class Scale:
    """A jitted __call__ of an object, with a nested argument."""

    def __init__(self, factor):
        self.factor = factor

    @cute.jit
    def __call__(self, pair: tuple[cute.Tensor, cute.Tensor], factor: cutlass.Float32):
        scale_kernel(pair[0], factor, self.factor).launch(grid=[1, 1, 1], block=[32, 1, 1])
        scale_kernel(pair[1], factor, self.factor).launch(grid=[1, 1, 1], block=[32, 1, 1])
