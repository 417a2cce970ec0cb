"""`matmul` for PyTorch: a product with its epilogue in one kernel, differentiable, whole for torch.compile."""

# No `from __future__ import annotations`: torch reads the operator's schema from the annotations.
import math
from typing import Any, Optional

import torch
from torch import Tensor

from tensorladder.core.errors import UsageError
from tensorladder.ops import execute
from tensorladder.ops.plan import Array, Plan, plan

NAMES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}
TYPES = {name: dtype for dtype, name in NAMES.items()}


def matmul(
    a: Tensor,
    b: Tensor,
    *,
    out: Tensor | None = None,
    bias: Tensor | None = None,
    activation: str | None = None,
    residual: Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out_dtype: torch.dtype | None = None,
    config: Any = None,
) -> Tensor:
    """act(alpha a @ b + beta residual + bias), summed in float32 and rounded once.

    a: (..., M, K), fp16 or bf16. b: (K, N) of the same type. Either extent of both may be the contiguous one; the other
    stride is a multiple of 8, addresses are of 16 bytes, N is a multiple of 8. bias: (N,). residual, out: (..., M, N)
    with N contiguous; these three fp16, bf16 or fp32. activation: None, "relu", "gelu" (by erf) or "silu". out_dtype:
    a's where it is not given. config: the kernel's knobs (`EpilogueGemmConfig`); a model of the GPU chooses otherwise.

    It runs on the current stream of an sm_90 GPU (no other yet), or of CPU tensors on the virtual GPU where
    TENSORLADDER_DEVICE=vgpu is set. Gradients are made by the same kernel; with `out` or `config` there are none.
    UsageError for what is not supported, naming the argument.
    """
    if out is None and config is None:
        return _matmul(a, b, bias, residual, activation or "none", alpha, beta, out_dtype)
    needed = [x for x in (a, b, bias, residual, out) if x is not None and x.requires_grad]
    if needed and torch.is_grad_enabled():
        which = "out" if out is not None else "config"
        raise UsageError(f"{which}: has no gradients: leave it out, or call under torch.no_grad()")
    return _run(a, b, out, bias, residual, activation, alpha, beta, out_dtype, config)


def _run(
    a: Tensor, b: Tensor, out: Tensor | None, bias: Tensor | None, residual: Tensor | None, activation: str | None,
    alpha: float, beta: float, out_dtype: torch.dtype | None, config: Any = None,
) -> Tensor:
    planned = plan(
        _array("a", a), _array("b", b),
        out=_array("out", out), bias=_array("bias", bias), residual=_array("residual", residual),
        activation=activation, beta=beta,
        out_dtype=None if out_dtype is None else NAMES.get(out_dtype, str(out_dtype)),
    )  # fmt: skip
    if out is None:
        out = torch.empty(planned.shape, dtype=TYPES[planned.form.out], device=a.device)
    if planned.empty:
        return _without_product(planned, out, bias, residual, beta)
    tensors = {"a": a, "b": b, "out": out, "residual": residual, "bias": bias}
    execute.run(planned, tensors, alpha, beta, config)
    return out


def _array(name: str, tensor: Tensor | None) -> Any:
    if tensor is None:
        return None
    if not isinstance(tensor, Tensor):
        raise UsageError(f"{name}: {type(tensor).__name__}: it takes a torch tensor")
    if tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg():
        raise UsageError(f"{name}: it takes a plain strided tensor")
    dtype = NAMES.get(tensor.dtype, str(tensor.dtype).removeprefix("torch."))
    return Array(tuple(tensor.shape), tensor.stride(), dtype, tensor.data_ptr())


def _without_product(
    planned: Plan, out: Tensor, bias: Tensor | None, residual: Tensor | None, beta: float
) -> Tensor:
    """The result where an extent is 0: K = 0 leaves the epilogue alone."""
    total = torch.zeros(planned.shape, dtype=torch.float32, device=out.device)
    if residual is not None:
        total += beta * residual.float()
    if bias is not None:
        total += bias.float()
    return out.copy_(VALUES[planned.form.activation](total))


VALUES = {
    "none": lambda x: x,
    "relu": torch.relu,
    "gelu": torch.nn.functional.gelu,
    "silu": torch.nn.functional.silu,
}


def _gelu_slope(x: Tensor) -> Tensor:
    density = torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    return 0.5 * (1 + torch.erf(x * math.sqrt(0.5))) + x * density


def _silu_slope(x: Tensor) -> Tensor:
    s = torch.sigmoid(x)
    return s * (1 + x * (1 - s))


SLOPES = {"relu": lambda x: (x > 0).float(), "gelu": _gelu_slope, "silu": _silu_slope}


@torch.library.custom_op("tensorladder::matmul", mutates_args=())
def _matmul(
    a: Tensor, b: Tensor, bias: Optional[Tensor], residual: Optional[Tensor], activation: str, alpha: float,  # noqa: UP045
    beta: float, out_dtype: Optional[torch.dtype],  # noqa: UP045
) -> Tensor:
    return _run(a, b, None, bias, residual, activation, alpha, beta, out_dtype)


@_matmul.register_fake
def _fake(a, b, bias, residual, activation, alpha, beta, out_dtype):  # type: ignore[no-untyped-def]
    return a.new_empty((*a.shape[:-1], b.shape[1]), dtype=out_dtype or a.dtype)


def _save(ctx, inputs, output):  # type: ignore[no-untyped-def]
    a, b, bias, residual, ctx.activation, ctx.alpha, ctx.beta, _ = inputs
    ctx.save_for_backward(a, b, bias, residual)


def _backward(ctx, grad):  # type: ignore[no-untyped-def]
    """Through the activation at the sum before it, which is computed again; then two products."""
    a, b, bias, residual = ctx.saved_tensors
    at = grad.float()
    if ctx.activation != "none":
        z = _matmul(a, b, bias, residual, "none", ctx.alpha, ctx.beta, torch.float32)
        at = at * SLOPES[ctx.activation](z)
    narrow = at.to(a.dtype).contiguous()
    wants_a, wants_b, wants_bias, wants_residual = ctx.needs_input_grad[:4]
    rows = math.prod(a.shape[:-1])
    grad_a = grad_b = grad_bias = grad_residual = None
    if wants_a:
        grad_a = _matmul(narrow, b.t(), None, None, "none", ctx.alpha, 0.0, None)
    if wants_b:
        left, right = a.reshape(rows, a.shape[-1]).t(), narrow.reshape(rows, narrow.shape[-1])
        grad_b = _matmul(left, right, None, None, "none", ctx.alpha, 0.0, None)
    if wants_bias:
        grad_bias = at.reshape(rows, at.shape[-1]).sum(0).to(bias.dtype)
    if wants_residual:
        grad_residual = (ctx.beta * at).to(residual.dtype)
    return grad_a, grad_b, grad_bias, grad_residual, None, None, None, None


_matmul.register_autograd(_backward, setup_context=_save)
