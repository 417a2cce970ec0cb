"""Gradients of an operator's parts where torch's operators do not serve: for plain tensors, where a call of one costs
more as it looks at its signature, and for transforms of torch.func, which know none of ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def direct(
    compute: Callable[..., Tensor], save: Callable[[Any, tuple[Any, ...], Tensor], None], backward: Callable[..., Any]
) -> type[torch.autograd.Function]:
    """For plain tensors. save(ctx, arguments, result), backward(ctx, gradient)."""

    def forward(ctx: Any, *arguments: Any) -> Tensor:
        made = compute(*arguments)
        save(ctx, arguments, made)
        return made

    parts = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type("Direct", (torch.autograd.Function,), parts)


def transformed(operator: Callable[..., Tensor], **parts: Callable[..., Any]) -> type[torch.autograd.Function]:
    """For transforms. parts: setup_context, backward, and vmap where there is one."""
    parts = {"forward": operator, **parts}
    return type("Transformed", (torch.autograd.Function,), {name: staticmethod(one) for name, one in parts.items()})
