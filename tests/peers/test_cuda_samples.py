"""Kernels of NVIDIA's CUDA samples, compiled by NVRTC (device-only files) or nvcc (files with host code beside)."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tensorladder.vgpu import launch

pytestmark = pytest.mark.peers
ARCH = "sm_80"
I32, U32, F32 = np.int32, np.uint32, np.float32


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def nvrtc(path: Path, *options: str) -> str:
    from tensorladder.frontends.nvrtc import compile_cuda

    return compile_cuda(path.read_text(), ARCH, options=("-std=c++17", *options), name=path.name).ptx


def nvcc(path: Path, folder: Path) -> str:
    """PTX of a file with host code, for which the samples' own headers and nvcc are needed."""
    if shutil.which("nvcc") is None:
        pytest.skip("this sample has host code in the same file: needs nvcc")
    common = next(parent / "Common" for parent in path.parents if (parent / "Common").is_dir())
    out = folder / "sample.ptx"
    command = ["nvcc", "-ptx", "-lineinfo", f"-arch={ARCH}", "-std=c++17", f"-I{common}", f"-I{path.parent}"]
    subprocess.run([*command, "-o", str(out), str(path)], check=True, capture_output=True)
    return out.read_text()


def entry(ptx: str, part: str) -> str:
    """The mangled name of the kernel that has `part` in its name."""
    return next(name for name in re.findall(r"\.entry\s+([\w$]+)", ptx) if part in name)


def test_vector_add(checkout, rng) -> None:
    ptx = nvrtc(checkout("cuda-samples", "Samples/0_Introduction/vectorAdd_nvrtc/vectorAdd_kernel.cu"))
    n = 50_000
    a, b, c = rng.random(n, F32), rng.random(n, F32), np.zeros(n, F32)
    launch(ptx, "vectorAdd", ((n + 255) // 256, 1, 1), (256, 1, 1), [a, b, c, I32(n)], arch=ARCH)
    np.testing.assert_array_equal(c, a + b)


@pytest.mark.parametrize("block", [16, 32])
def test_matrix_mul(checkout, rng, block) -> None:
    ptx = nvrtc(checkout("cuda-samples", "Samples/0_Introduction/matrixMul_nvrtc/matrixMul_kernel.cu"))
    m, n, k = 160, 320, 160
    a, b, c = rng.random((m, k), F32), rng.random((k, n), F32), np.zeros((m, n), F32)
    grid = (n // block, m // block, 1)
    launch(ptx, f"matrixMulCUDA_block{block}", grid, (block, block, 1), [c, a, b, I32(k), I32(n)], arch=ARCH)
    np.testing.assert_allclose(c, a.astype(np.float64) @ b, rtol=1e-5)


def test_black_scholes(checkout, rng) -> None:
    ptx = nvrtc(checkout("cuda-samples", "Samples/5_Domain_Specific/BlackScholes/BlackScholes_kernel.cuh"))
    n, r, v = 4096, 0.02, 0.30
    stock, strike, years = rng.uniform(5, 30, n), rng.uniform(1, 100, n), rng.uniform(0.25, 10, n)
    s, x, t = (array.astype(F32) for array in (stock, strike, years))
    call, put = np.zeros(n, F32), np.zeros(n, F32)
    args = [call, put, s, x, t, F32(r), F32(v), I32(n)]
    launch(ptx, entry(ptx, "BlackScholesGPU"), (n // 256, 1, 1), (128, 1, 1), args, arch=ARCH)

    def cnd(d: np.ndarray) -> np.ndarray:
        k = 1 / (1 + 0.2316419 * np.abs(d))
        poly = ((((1.330274429 * k - 1.821255978) * k + 1.781477937) * k - 0.356563782) * k + 0.31938153) * k
        tail = np.exp(-0.5 * d * d) * poly / np.sqrt(2 * np.pi)
        return np.where(d > 0, 1 - tail, tail)

    s, x, t = (array.astype(np.float64) for array in (s, x, t))
    d1 = (np.log(s / x) + (r + v * v / 2) * t) / (v * np.sqrt(t))
    d2 = d1 - v * np.sqrt(t)
    want = s * cnd(d1) - x * np.exp(-r * t) * cnd(d2)
    np.testing.assert_allclose(call, want, atol=2e-4)
    np.testing.assert_allclose(put, want - s + x * np.exp(-r * t), atol=2e-4)


def test_scalar_prod(checkout, rng) -> None:
    ptx = nvrtc(checkout("cuda-samples", "Samples/2_Concepts_and_Techniques/scalarProd/scalarProd_kernel.cuh"))
    vectors, length = 24, 4096
    a, b, c = rng.random((vectors, length), F32), rng.random((vectors, length), F32), np.zeros(vectors, F32)
    args = [c, a, b, I32(vectors), I32(length)]
    launch(ptx, entry(ptx, "scalarProdGPU"), (16, 1, 1), (256, 1, 1), args, arch=ARCH)
    np.testing.assert_allclose(c, (a.astype(np.float64) * b).sum(1), rtol=1e-5)


def test_haar_wavelet(checkout, rng) -> None:
    path = checkout("cuda-samples", "Samples/5_Domain_Specific/dwtHaar1D/dwtHaar1D_kernel.cuh")
    ptx = nvrtc(path, "-DINV_SQRT_2=0.70710678118654752440f", "-DLOG_NUM_BANKS=4")
    n, levels = 1024, 10  # one block of 512 threads transforms 1024 samples down to one approximation
    signal, out, approx = rng.random(n, F32), np.zeros(n, F32), np.zeros(1, F32)
    smem = 4 * (n + n // 16)
    args = [signal, out, approx, U32(levels), U32(n // 2), I32(n // 2)]
    launch(ptx, entry(ptx, "dwtHaar1D"), (1, 1, 1), (n // 2, 1, 1), args, smem=smem, arch=ARCH)
    want, a = np.zeros(n), signal.astype(np.float64)
    while len(a) > 1:
        half = len(a) // 2
        want[half : 2 * half], a = (a[::2] - a[1::2]) / np.sqrt(2), (a[::2] + a[1::2]) / np.sqrt(2)
    np.testing.assert_allclose(out[1:], want[1:], atol=1e-4)
    np.testing.assert_allclose(approx[0], a[0], rtol=1e-5)


def test_atomics(checkout) -> None:
    path = "Samples/0_Introduction/simpleAtomicIntrinsics_nvrtc/simpleAtomicIntrinsics_kernel.cuh"
    ptx = nvrtc(checkout("cuda-samples", path))
    threads = 64 * 256
    data = np.zeros(11, I32)
    data[[8, 10]] = 0xFF
    launch(ptx, "testKernel", (64, 1, 1), (256, 1, 1), [data], arch=ARCH)
    tid = np.arange(threads)
    assert data[0] == 10 * threads
    assert data[1] == -10 * threads
    assert 0 <= data[2] < threads
    assert data[3] == threads - 1
    assert data[4] == 0
    assert data[5] == threads % 18
    assert data[6] == (0 - threads) % 138
    assert 0 <= data[7] < threads
    assert data[8] == np.bitwise_and.reduce(2 * tid + 7) & 0xFF
    assert data[9] == -1
    assert data[10] == np.bitwise_xor.reduce(tid) ^ 0xFF


def test_votes(checkout) -> None:
    ptx = nvrtc(checkout("cuda-samples", "Samples/0_Introduction/simpleVoteIntrinsics/simpleVote_kernel.cuh"))
    n = 128
    data = np.zeros(n, U32)
    data[[70, *range(96, 128)]] = 1  # warp 2: one lane, warp 3: every lane
    any_lane, every_lane = np.zeros(n, U32), np.zeros(n, U32)
    launch(ptx, entry(ptx, "VoteAnyKernel1"), (1, 1, 1), (n, 1, 1), [data, any_lane, I32(n)], arch=ARCH)
    launch(ptx, entry(ptx, "VoteAllKernel2"), (1, 1, 1), (n, 1, 1), [data, every_lane, I32(n)], arch=ARCH)
    warps = data.reshape(-1, 32)
    np.testing.assert_array_equal(any_lane.reshape(-1, 32) != 0, np.repeat(warps.any(1), 32).reshape(-1, 32))
    np.testing.assert_array_equal(every_lane.reshape(-1, 32) != 0, np.repeat(warps.all(1), 32).reshape(-1, 32))


def test_inline_ptx(checkout) -> None:
    ptx = nvrtc(checkout("cuda-samples", "Samples/2_Concepts_and_Techniques/inlinePTX_nvrtc/inlinePTX_kernel.cu"))
    out = np.zeros(1000, I32)
    launch(ptx, "sequence_gpu", (4, 1, 1), (256, 1, 1), [out, I32(len(out))], arch=ARCH)
    np.testing.assert_array_equal(out, np.arange(len(out)) % 32)


def test_bitonic_sort(checkout, rng, tmp_path) -> None:
    ptx = nvcc(checkout("cuda-samples", "Samples/2_Concepts_and_Techniques/sortingNetworks/bitonicSort.cu"), tmp_path)
    n = 1024
    keys, values = rng.integers(0, 1 << 32, 2 * n, U32), np.arange(2 * n, dtype=U32)
    out_keys, out_values = np.zeros_like(keys), np.zeros_like(values)
    args = [out_keys, out_values, keys, values, U32(n), U32(1)]
    launch(ptx, entry(ptx, "bitonicSortSharedPj"), (2, 1, 1), (n // 2, 1, 1), args, arch=ARCH)
    np.testing.assert_array_equal(out_keys.reshape(2, n), np.sort(keys.reshape(2, n), axis=1))
    np.testing.assert_array_equal(keys[out_values], out_keys)


def test_merge_sort(checkout, rng, tmp_path) -> None:
    ptx = nvcc(checkout("cuda-samples", "Samples/0_Introduction/mergeSort/mergeSort.cu"), tmp_path)
    n = 1024
    keys, values = rng.integers(0, 1000, n, U32), np.arange(n, dtype=U32)
    out_keys, out_values = np.zeros_like(keys), np.zeros_like(values)
    args = [out_keys, out_values, keys, values, U32(n)]
    launch(ptx, entry(ptx, "mergeSortSharedKernelILj1E"), (1, 1, 1), (n // 2, 1, 1), args, arch=ARCH)
    np.testing.assert_array_equal(out_keys, np.sort(keys))
    np.testing.assert_array_equal(out_values, np.argsort(keys, kind="stable"))


#: kernel, and whether it multiplies any two matrices. The others load B by A's index, or have one stage more in flight
#: than buffers, which the sample's own constant matrices do not show: they get those.
ASYNC_COPY = [
    ("SingleStage", True),
    ("MultiStageSharedState", True),
    ("MultiStageI", False),
    ("MultiStageLargeChunk", False),
    ("LargeChunkI", False),
    ("LargeChunkAWBarrier", False),
]


@pytest.mark.parametrize(("kind", "general"), ASYNC_COPY)
@pytest.mark.parametrize("policy", ["eager", "lazy"])
def test_async_copy(checkout, rng, tmp_path, kind, general, policy) -> None:
    """cp.async with groups, with mbarriers, and with a producer warp apart (cuda::pipeline, cuda::barrier)."""
    path = "Samples/3_CUDA_Features/globalToShmemAsyncCopy/globalToShmemAsyncCopy.cu"
    ptx = nvcc(checkout("cuda-samples", path), tmp_path)
    m, n, k, block = 64, 96, 128, 16
    a, b, c = np.ones((m, k), F32), np.full((k, n), 2.1, F32), np.zeros((m, n), F32)
    if general:
        a, b = rng.random((m, k), F32), rng.random((k, n), F32)
    rows = block + 2 if kind == "MultiStageSharedState" else block
    grid, name = (n // block, m // block, 1), entry(ptx, f"MatrixMulAsyncCopy{kind}")
    launch(ptx, name, grid, (block, rows, 1), [c, a, b, I32(k), I32(n)], arch=ARCH, policy=policy)
    np.testing.assert_allclose(c, a.astype(np.float64) @ b, rtol=1e-5)


@pytest.mark.parametrize("kind", ["Naive", "Coalesced", "NoBankConflicts", "Diagonal"])
def test_transpose(checkout, rng, tmp_path, kind) -> None:
    ptx = nvcc(checkout("cuda-samples", "Samples/6_Performance/transpose/transpose.cu"), tmp_path)
    tile, rows = 32, 16
    width, height = 128, 64
    a, out = rng.random((height, width), F32), np.zeros((width, height), F32)
    grid = (width // tile, height // tile, 1)
    args = [out, a, I32(width), I32(height)]
    launch(ptx, entry(ptx, f"transpose{kind}Pf"), grid, (tile, rows, 1), args, arch=ARCH)
    np.testing.assert_array_equal(out, a.T)


def test_histogram(checkout, rng, tmp_path) -> None:
    ptx = nvcc(checkout("cuda-samples", "Samples/2_Concepts_and_Techniques/histogram/histogram256.cu"), tmp_path)
    blocks, data = 4, rng.integers(0, 256, 1 << 16).astype(np.uint8)
    partial, out = np.zeros((blocks, 256), U32), np.zeros(256, U32)
    words = U32(data.size // 4)
    launch(ptx, entry(ptx, "histogram256Kernel"), (blocks, 1, 1), (192, 1, 1), [partial, data, words], arch=ARCH)
    args = [out, partial, U32(blocks)]
    launch(ptx, entry(ptx, "mergeHistogram256Kernel"), (256, 1, 1), (256, 1, 1), args, arch=ARCH)
    np.testing.assert_array_equal(out, np.bincount(data, minlength=256))


def test_shuffle_scan(checkout, rng, tmp_path) -> None:
    ptx = nvcc(checkout("cuda-samples", "Samples/2_Concepts_and_Techniques/shfl_scan/shfl_scan.cu"), tmp_path)
    data = rng.integers(0, 100, 1024).astype(I32)
    want = np.cumsum(data.reshape(4, 256), axis=1)
    sums = np.zeros(4, I32)
    args = [data, I32(32), sums]
    launch(ptx, entry(ptx, "shfl_scan_test"), (4, 1, 1), (256, 1, 1), args, smem=8 * 4, arch=ARCH)
    np.testing.assert_array_equal(data.reshape(4, 256), want)
    np.testing.assert_array_equal(sums, want[:, -1])


def test_single_pass_reduction(checkout, rng, tmp_path) -> None:
    """The last block to finish, found by an atomic ticket after a fence, adds up what the others left."""
    path = "Samples/2_Concepts_and_Techniques/threadFenceReduction/threadFenceReduction.cu"
    ptx = nvcc(checkout("cuda-samples", path), tmp_path)
    data, out = rng.random(1 << 14, F32), np.zeros(16, F32)
    name = entry(ptx, "reduceSinglePassILj128ELb1E")
    launch(ptx, name, (16, 1, 1), (128, 1, 1), [data, out, U32(data.size)], smem=128 * 4, arch=ARCH)
    np.testing.assert_allclose(out[0], data.astype(np.float64).sum(), rtol=1e-5)


@pytest.mark.parametrize(
    ("sample", "kernel", "operand", "result", "tile"),
    [
        ("cudaTensorCoreGemm", "simple_wmma_gemm", np.float16, F32, (16, 16)),
        ("tf32TensorCoreGemm", "simple_wmma_tf32gemm", F32, F32, (16, 16)),
        ("immaTensorCoreGemm", "simple_wmma_gemm_imma", np.uint8, I32, (16, 16)),
        ("dmmaTensorCoreGemm", "simple_wmma_gemm", np.float64, np.float64, (8, 8)),
    ],
)
def test_tensor_core_gemm(checkout, rng, tmp_path, sample, kernel, operand, result, tile) -> None:
    """nvcuda::wmma; a block of four by four warps, a tile a warp. Square: the int8 sample takes M for a row's pitch."""
    ptx = nvcc(checkout("cuda-samples", f"Samples/3_CUDA_Features/{sample}/{sample}.cu"), tmp_path)
    m = n = k = 64
    a, b, c = (rng.integers(0, 4, size) for size in ((m, k), (n, k), (m, n)))  # b by columns
    arrays = [a.astype(operand), b.astype(operand), c.astype(result), np.zeros((m, n), result)]
    grid = (m // (4 * tile[0]), n // (4 * tile[1]), 1)
    args = [*arrays, I32(m), I32(n), I32(k), result(2), result(3)]
    launch(ptx, entry(ptx, kernel), grid, (128, 4, 1), args, arch=ARCH)
    np.testing.assert_array_equal(arrays[3].astype(np.int64), 2 * (a @ b.T) + 3 * c)
