"""Matrix products with block scales for `torch._scaled_mm`, which torch has on GPUs only.

Formats: nvfp4 (two e2m1 a byte, an e4m3 scale a block of 16 along K) and mxfp8 (e4m3 or e5m2, a power of two a block of
32). Scales come in the layout of cuBLAS ("1D Block Scaling Factors Layout"): tiles of 128 rows by 4 blocks, each of 32
x 4 x 4 bytes. The product is summed in float32.
"""

from __future__ import annotations

import torch

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_FP4 = getattr(torch, "float4_e2m1fn_x2", None)
_E8M0 = getattr(torch, "float8_e8m0fnu", None)


def takes(a: torch.Tensor, scale: torch.Tensor) -> bool:
    """Whether a product with this operand and scale is one with block scales (torch's CPU code has the others)."""
    return (a.dtype == _FP4 and scale.dtype == torch.float8_e4m3fn) or scale.dtype == _E8M0


def values(a: torch.Tensor) -> torch.Tensor:
    """A matrix (rows, K) of narrow floats as float32; of e2m1 the byte's low half comes first."""
    if a.dtype != _FP4:
        return a.float()
    codes = a.contiguous().view(torch.uint8)
    nibbles = torch.stack((codes & 15, codes >> 4), dim=-1).flatten(-2)
    table = torch.tensor(_E2M1 + tuple(-x for x in _E2M1))
    return table[nibbles.int()]


def scales(blocked: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Scales (rows, columns) from their tiles, float32."""
    high, wide = -(-rows // 128), -(-columns // 4)
    tiles = blocked.contiguous().view(torch.uint8).reshape(high, wide, 32, 4, 4)  # row within 32, which 32, column
    plain = tiles.permute(0, 3, 2, 1, 4).reshape(128 * high, 4 * wide)[:rows, :columns].contiguous()
    if blocked.dtype == _E8M0:
        return torch.where(plain == 255, torch.nan, torch.exp2(plain.double() - 127)).float()
    return plain.view(blocked.dtype).float()


def product(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """A (M x K) times B (K x N) as torch._scaled_mm takes them (B transposed: K lies side by side)."""
    block = 16 if a.dtype == _FP4 else 32
    sides = []
    for matrix, scale in ((a, scale_a), (b.t(), scale_b)):
        wide = values(matrix)
        each = scales(scale, wide.shape[0], -(-wide.shape[1] // block)).repeat_interleave(block, dim=1)
        sides.append(wide * each[:, : wide.shape[1]])
    result = sides[0] @ sides[1].t()
    if bias is not None:
        result = result + bias.float()
    return result.to(out_dtype or torch.bfloat16)
