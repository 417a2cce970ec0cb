"""torch._scaled_mm with block scales, as scripts on the virtual GPU see it, against the formats' definitions."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("ml_dtypes")
if not hasattr(torch, "float4_e2m1fn_x2"):
    pytest.skip("this torch has no 4-bit floats", allow_module_level=True)

import ml_dtypes  # noqa: E402

from tensorladder.vgpu.driver import scaled  # noqa: E402


def tiles(plain: np.ndarray) -> np.ndarray:
    """Scales (rows, blocks) in cuBLAS's tiles, one by one."""
    rows, blocks = plain.shape
    high, wide = -(-rows // 128), -(-blocks // 4)
    out = np.zeros(high * wide * 512, plain.dtype)
    for r in range(rows):
        for c in range(blocks):
            tile = (r // 128 * wide + c // 4) * 512
            out[tile + r % 32 * 16 + r % 128 // 32 * 4 + c % 4] = plain[r, c]
    return out


def blown_up(scale: np.ndarray, block: int, k: int) -> np.ndarray:
    return np.repeat(scale.astype(np.float64), block, axis=1)[:, :k]


def test_nvfp4() -> None:
    rng, (m, n, k) = np.random.default_rng(1), (160, 40, 96)
    codes = [rng.integers(0, 16, (rows, k), np.uint8) for rows in (m, n)]
    scale = [rng.integers(0, 120, (rows, k // 16), np.uint8).view(ml_dtypes.float8_e4m3fn) for rows in (m, n)]
    wide = [c.view(ml_dtypes.float4_e2m1fn).astype(np.float64) * blown_up(s, 16, k) for c, s in zip(codes, scale)]
    packed = [torch.from_numpy(c[:, ::2] | c[:, 1::2] << 4).view(torch.float4_e2m1fn_x2) for c in codes]
    blocked = [torch.from_numpy(tiles(s.view(np.uint8))).view(torch.float8_e4m3fn) for s in scale]
    assert scaled.takes(packed[0], blocked[0])
    got = scaled.product(packed[0], packed[1].t(), *blocked, out_dtype=torch.float32)
    np.testing.assert_allclose(got.numpy(), wide[0] @ wide[1].T, rtol=1e-5, atol=1e-2)


def test_mxfp8() -> None:
    rng, (m, n, k) = np.random.default_rng(2), (40, 130, 160)
    data = [rng.standard_normal((rows, k)).astype(ml_dtypes.float8_e4m3fn) for rows in (m, n)]
    scale = [rng.integers(120, 134, (rows, k // 32), np.uint8) for rows in (m, n)]
    wide = [d.astype(np.float64) * blown_up(2.0 ** (s.astype(np.float64) - 127), 32, k) for d, s in zip(data, scale)]
    a, b = (torch.from_numpy(d.view(np.uint8)).view(torch.float8_e4m3fn) for d in data)
    blocked = [torch.from_numpy(tiles(s)).view(torch.float8_e8m0fnu) for s in scale]
    got = scaled.product(a, b.t(), *blocked, bias=torch.ones(n), out_dtype=torch.bfloat16)
    assert got.dtype == torch.bfloat16
    np.testing.assert_allclose(got.float().numpy(), wide[0] @ wide[1].T + 1, rtol=1e-2, atol=1e-2)
