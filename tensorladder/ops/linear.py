"""`Linear` for PyTorch: a layer whose forward and backward passes are `matmul`'s kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tensorladder.core.errors import UsageError
from tensorladder.ops.plan import ACTIVATIONS
from tensorladder.ops.product import matmul

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
MULTIPLE = 8  # 16 bytes of two: what TMA wants the weight's pitch to be a multiple of


class Linear(torch.nn.Linear):
    """act(x @ weight^T + bias): `torch.nn.Linear` with its parameters, names and initial values, and an activation.

    in_features: a multiple of 8. weight: (out_features, in_features), used as it lies, in both passes. activation:
    None, "relu", "gelu" (by erf) or "silu", in the same kernel. dtype: fp16 or bf16; fp32 under torch.autocast, which
    casts the weight in each call.
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, activation: str | None = None,
        device: Any = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        for name, extent in (("in_features", in_features), ("out_features", out_features)):
            if not isinstance(extent, int) or isinstance(extent, bool) or extent < 0:
                raise UsageError(f"{name}: {extent!r}: it takes a whole number, 0 or more")
        if in_features % MULTIPLE:
            raise UsageError(f"in_features: {in_features}: TMA wants rows of 16 bytes, pad it to a multiple of 8")
        if activation not in (None, *ACTIVATIONS):
            raise UsageError(f"activation: {activation!r}: it takes {', '.join(ACTIVATIONS)}")
        if not isinstance(bias, bool):
            raise UsageError(f"bias: {type(bias).__name__}: it takes True or False")
        if dtype not in (None, *DTYPES):
            raise UsageError(f"dtype: {dtype}: it takes {', '.join(map(str, DTYPES))}")
        if device is not None:
            try:
                torch.device(device)
            except (RuntimeError, TypeError):
                raise UsageError(f"device: {device!r}: it takes what torch.device takes, 'cuda' for one") from None
        super().__init__(in_features, out_features, bias, device, dtype)
        self.activation = activation

    def forward(self, input: Tensor) -> Tensor:
        """input: (..., in_features), a vector too. Gives (..., out_features)."""
        weight, place = self.weight, input.device.type
        if not input.dim() or input.shape[-1] != self.in_features:
            raise UsageError(f"input: shape {tuple(input.shape)}: it takes (..., {self.in_features})")
        if torch.amp.is_autocast_available(place) and torch.is_autocast_enabled(place):
            dtype = torch.get_autocast_dtype(place)
            input, weight = input.to(dtype), weight.to(dtype)
        rows = input.unsqueeze(0) if input.dim() == 1 else input
        made = matmul(rows, weight.t(), bias=self.bias, activation=self.activation)
        return made.squeeze(0) if input.dim() == 1 else made

    def extra_repr(self) -> str:
        """As torch's, with the activation."""
        return super().extra_repr() + (f", activation={self.activation}" if self.activation else "")
