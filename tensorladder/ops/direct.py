"""Gradients for plain tensors without torch's operators, of which a call looks at no signature: it costs less."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def direct(
    compute: Callable[..., Tensor], save: Callable[[Any, tuple[Any, ...], Tensor], None], backward: Callable[..., Any]
) -> type[torch.autograd.Function]:
    """An autograd function of an operator's parts. save(ctx, arguments, result), backward(ctx, gradient)."""

    def forward(ctx: Any, *arguments: Any) -> Tensor:
        made = compute(*arguments)
        save(ctx, arguments, made)
        return made

    parts = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type("Direct", (torch.autograd.Function,), parts)
