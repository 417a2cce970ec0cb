"""The small matrix product and the operand tiles behind WGMMA and tcgen05.mma, called directly."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba")
ml_dtypes = pytest.importorskip("ml_dtypes")

from tensorladder.vgpu.machine import matmul, operands  # noqa: E402
from tensorladder.vgpu.machine.native import runtime  # noqa: E402


def aligned(shape, dtype):
    """An array at a 64-byte boundary."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + 64, np.uint8)
    at = -raw.ctypes.data % 64
    return raw[at : at + size].view(dtype).reshape(shape)


def gemm(kind, d, a, b):
    runtime().call(
        f"tl_gemm_{kind}", d.ctypes.data, d.strides[0], a.ctypes.data, *a.strides, b.ctypes.data, b.strides[0],
        *d.shape, a.shape[1],
    )  # fmt: skip


def fused(d, a, b):
    """D += A B with one float32 rounding a step: float64 holds a product of float32 with short mantissas exactly."""
    for p in range(a.shape[1]):
        d = (d.astype(np.float64) + a[:, p, None].astype(np.float64) * b[None, p].astype(np.float64)).astype(np.float32)
    return d


@pytest.mark.parametrize("shape", [(8, 8, 1), (64, 8, 16), (64, 72, 16), (128, 256, 16), (16, 56, 24), (64, 24, 8)])
@pytest.mark.parametrize("transposed", [False, True])
def test_gemm_is_fused_and_in_order(shape, transposed):
    m, n, k = shape
    rng = np.random.default_rng(m + n + k)
    a = rng.standard_normal((k, m) if transposed else (m, k)).astype(np.float16).astype(np.float32)
    a = a.T if transposed else a
    b = rng.standard_normal((k, n)).astype(np.float16).astype(np.float32)
    whole = np.full((m, n + 8), 7, np.float32)
    whole[:, :n] = rng.standard_normal((m, n))
    want = fused(whole[:, :n], a, b)
    gemm("f32", whole[:, :n], a, b)
    assert np.array_equal(whole[:, :n], want)
    assert (whole[:, n:] == 7).all()


def test_gemm_f64_rounds_once():
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((64, 16)).astype(np.float32), rng.standard_normal((16, 24)).astype(np.float32)
    d = rng.standard_normal((64, 24)).astype(np.float32)
    want = d.astype(np.float64) + a.astype(np.float64) @ b.astype(np.float64)
    gemm("f64", d, a, b)
    assert np.abs(d - want).max() <= np.abs(want).max() * 2**-24


def test_gemm_s32_wraps():
    rng = np.random.default_rng(4)
    a, b = rng.integers(-128, 128, (64, 32), np.int32), rng.integers(0, 256, (32, 40), np.int32)
    d = rng.integers(-(2**31), 2**31, (64, 40)).astype(np.int32)
    want = (d.astype(np.int64) + a.astype(np.int64) @ b.astype(np.int64)).astype(np.int32)
    gemm("s32", d, a, b)
    assert np.array_equal(d, want)


@pytest.mark.parametrize("shape", [(8, 8), (256, 16), (24, 64)])
def test_transpose(shape):
    src = np.arange(shape[0] * shape[1], dtype=np.float32).reshape(shape)
    dst = np.zeros((shape[1], shape[0] + 8), np.float32)
    runtime().call("tl_transpose32", dst.ctypes.data, dst.strides[0], src.ctypes.data, src.strides[0], *shape)
    assert np.array_equal(dst[:, : shape[0]], src.T) and not dst[:, shape[0] :].any()


def unpack(name, chunk):
    out = np.zeros(32, np.float32)
    runtime().call(f"tl_unpack_{name}", out.ctypes.data, chunk.ctypes.data)
    return out


FLOATS = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", "f16": None, "bf16": "bfloat16"}


@pytest.mark.parametrize("name", FLOATS)
def test_unpacks_every_value(name):
    dtype = np.dtype(getattr(ml_dtypes, FLOATS[name])) if FLOATS[name] else np.dtype(np.float16)
    bits = np.arange(1 << (8 * dtype.itemsize), dtype=f"u{dtype.itemsize}")
    per = 16 // dtype.itemsize
    for chunk in bits.reshape(-1, per)[:: 1 if per == 16 else 7]:
        got, want = unpack(name, np.ascontiguousarray(chunk))[:per], chunk.view(dtype).astype(np.float32)
        assert np.array_equal(got, want, equal_nan=True), (got, want)


NARROW = [("e2m3", "float6_e2m3fn", 6), ("e3m2", "float6_e3m2fn", 6), ("e2m1", "float4_e2m1fn", 4),
          ("mxf4", "float4_e2m1fn", 4)]  # fmt: skip


@pytest.mark.parametrize(("name", "dtype", "bits"), NARROW)
def test_unpacks_values_below_a_byte(name, dtype, bits):
    count = 32 if name == "mxf4" else 16
    for start in range(0, 1 << bits, count):
        codes = (start + np.arange(count)) % (1 << bits)
        packed = sum(int(c) << (bits * k) for k, c in enumerate(codes)).to_bytes(16, "little")
        want = codes.astype(np.uint8).view(getattr(ml_dtypes, dtype)).astype(np.float32)
        got = unpack(name, np.frombuffer(packed, np.uint8))[:count]
        assert np.array_equal(got, want) and np.array_equal(np.signbit(got), np.signbit(want))


def test_tf32_is_cut_and_integers_widen():
    x = np.array([1.9999999, -3.1415927, 1e-40, np.inf], np.float32)
    assert np.array_equal(unpack("tf32", x)[:4].view(np.uint32), x.view(np.uint32) & 0xFFFFE000)
    codes = np.arange(248, 264).astype(np.uint8)
    assert np.array_equal(unpack("s8", codes).view(np.int32)[:16], codes.view(np.int8))
    assert np.array_equal(unpack("u8", codes).view(np.int32)[:16], codes)


def test_blocks_fit_the_registers():
    assert matmul.block_shape("+avx512f") == (8, 32) and matmul.block_shape("+avx2") == (4, 16)
    assert operands.SW_NONE == 0
