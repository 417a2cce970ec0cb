"""DeepGEMM's dense GEMMs, C = A B^T, compiled by nvcc from its headers and launched by their parameters.

What its host code hands a kernel is written here anew: template arguments as its heuristics choose them, tensor maps,
extents, bytes of shared memory.
"""

from __future__ import annotations

import re
import shutil
import struct
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import pytest

from benchmarks.deepgemm import compile_source
from tensorladder.core import dlpack, tensormap
from tensorladder.core.program import Launch, Module, Stream
from tensorladder.core.tensormap import TensorMap
from tensorladder.vgpu import Device

pytestmark = pytest.mark.peers

M, N, K = 200, 512, 448
BLOCK_M, BLOCK_N, SMS, STAGES = 128, 128, 4, 3
BF16, E4M3 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
MAJOR, NORMAL = "cute::UMMA::Major::K", "GemmType::Normal"


@dataclass(frozen=True)
class Kernel:
    """template: its arguments, where {cluster} CTAs share a tile of B (of A: {on_a})."""

    header: str
    arch: str
    template: str
    threads: int
    cluster: int
    on_a: bool = False

    @property
    def source(self) -> str:
        values = self.template.format(cluster=self.cluster, on_a=str(self.on_a).lower())
        return (
            f"#include <deep_gemm/impls/{self.header}.cuh>\nusing namespace deep_gemm;\n"
            f"static void instantiate() {{ auto kernel = reinterpret_cast<void*>(&{self.header}_impl<{values}>); }}\n"
        )


SM90_BF16 = (
    f"{MAJOR}, {MAJOR}, 0, 0, 0, 1, {BLOCK_M}, {BLOCK_N}, 64, 128, 128, 128, {STAGES}, 128, 256, "
    f"{{cluster}}, {{on_a}}, {SMS}, {NORMAL}, false, cutlass::bfloat16_t"
)
SM90_FP8 = (
    f"{MAJOR}, 0, 0, 0, 1, {BLOCK_M}, {BLOCK_N}, 128, 128, 128, 128, {STAGES}, 128, 256, "
    f"{{cluster}}, {{on_a}}, {SMS}, {NORMAL}, cutlass::bfloat16_t, epilogue::transform::EpilogueIdentity"
)
SM100_BF16 = (
    f"{MAJOR}, {MAJOR}, 0, 0, 0, {BLOCK_M}, {BLOCK_N}, 64, 1, 128, 128, 128, {STAGES}, 128, 128, "
    f"{{cluster}}, {{on_a}}, {SMS}, 64, false, false, {NORMAL}, false, cutlass::bfloat16_t, 100"
)
KERNELS = [
    Kernel("sm90_bf16_gemm", "sm_90a", SM90_BF16, 384, 1),
    Kernel("sm90_bf16_gemm", "sm_90a", SM90_BF16, 384, 2),
    Kernel("sm90_fp8_gemm_1d2d", "sm_90a", SM90_FP8, 384, 1),
    Kernel("sm90_fp8_gemm_1d2d", "sm_90a", SM90_FP8, 384, 2, on_a=True),
    Kernel("sm100_bf16_gemm", "sm_100a", SM100_BF16, 256, 1),
    Kernel("sm100_bf16_gemm", "sm_100a", SM100_BF16, 256, 2),
]


@pytest.fixture(scope="module")
def compiled(checkout):
    """compiled(kernel): its module, made once."""
    made: dict[Kernel, Module] = {}

    def compile_kernel(kernel: Kernel) -> Module:
        if shutil.which("nvcc") is None:
            pytest.skip("needs nvcc")
        headers = checkout("DeepGEMM", f"deep_gemm/include/deep_gemm/impls/{kernel.header}.cuh").parents[2]
        if kernel not in made:
            made[kernel] = compile_source(kernel.source, kernel.arch, (headers, checkout("cutlass", "include")))
        return made[kernel]

    return compile_kernel


def matrix_map(array: np.ndarray, box: tuple[int, int], kind: str, swizzle: int = 3) -> bytes:
    """The map of a matrix by rows, boxes of (columns, rows)."""
    view = dlpack.view(array)
    dims, strides = array.shape[::-1], (array.strides[0],)
    return tensormap.encode(
        tensormap.validate(TensorMap(view.data, kind, 2, dims, strides, box, (1, 1), swizzle=swizzle, l2_promotion=3))
    )


def launch(module: Module, kernel: Kernel, stream: Stream, head: bytes, maps: list[bytes], smem: int) -> None:
    (name,) = re.findall(r"\.entry (\w+)", module.ptx)
    # nvcc 13 aligns a map to 128 bytes
    params = head.ljust(128, b"\0") + b"".join(maps)
    options = {"cluster": (kernel.cluster, 1, 1)} if kernel.cluster > 1 else {}
    stream.enqueue(Launch(module, name, (SMS, 1, 1), (kernel.threads, 1, 1), params, smem, **options))


@pytest.mark.parametrize("policy", ["eager", "lazy", "random:1"])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: f"{kernel.header}-{kernel.cluster}")
def test_gemm(compiled, kernel, policy) -> None:
    module = compiled(kernel)
    device = Device(arch=kernel.arch, policy=policy)
    rng = np.random.default_rng(3)

    def empty(name: str, shape: tuple[int, ...], dtype: type) -> np.ndarray:
        return device.memory.empty(name, shape, np.dtype(dtype))

    fp8 = "fp8" in kernel.header
    dtype, kind, of_k = (E4M3, "u8", 128) if fp8 else (BF16, "bf16", 64)
    a, b, d = empty("a", (M, K), dtype), empty("b", (N, K), dtype), empty("d", (M, N), BF16)
    a[...], b[...], d[...] = rng.standard_normal(a.shape), rng.standard_normal(b.shape), np.nan
    x, y = a.astype(np.float64), b.astype(np.float64)
    # a pair of sm100 loads half a tile of B each
    of_b = BLOCK_N // kernel.cluster if kernel.arch == "sm_100a" else BLOCK_N
    boxes = (a, (of_k, BLOCK_M), kind), (b, (of_k, of_b), kind), (d, (64, BLOCK_M), "bf16")
    maps = [matrix_map(*box) for box in boxes]
    head, smem = struct.pack("<QIII", 0, M, N, K), 227 * 1024
    if fp8:
        steps = -(-K // 128)
        scale_a, scale_b = empty("sfa", (steps, M), np.float32), empty("sfb", (-(-N // 128), steps), np.float32)
        scale_a[...], scale_b[...] = rng.uniform(0.5, 2, scale_a.shape), rng.uniform(0.5, 2, scale_b.shape)
        x = x * np.repeat(scale_a.T, 128, axis=1)[:, :K]
        y = y * np.repeat(np.repeat(scale_b, 128, axis=0), 128, axis=1)[:N, :K]
        maps.append(matrix_map(scale_a, (BLOCK_M, 1), "f32", 0))
        head = struct.pack("<QQIII", dlpack.view(scale_b).data, 0, M, N, K)
    stream = device.stream()
    launch(module, kernel, stream, head, maps, smem)
    stream.synchronize()
    want = x @ y.T
    assert np.linalg.norm(d.astype(np.float64) - want) < 4e-3 * np.linalg.norm(want)
