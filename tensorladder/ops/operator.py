"""The torch operators `tensorladder::matmul` and `tensorladder::matmul_out`: their kernels, shapes for the compiler,
gradients and batching. `product` is what people call.
"""

# No `from __future__ import annotations`: torch reads the operators' schemas from the annotations.
# ruff: noqa: UP045
import math
from typing import Any, Optional

import torch
from torch import Tensor

from tensorladder.core.errors import UsageError
from tensorladder.ops import execute, fast, launch
from tensorladder.ops.direct import direct, transformed
from tensorladder.ops.inputs import TYPES, array, maybe, name_of, ones
from tensorladder.ops.plan import INPUTS, Plan, plan

TENSORS = 6  # of the operator's arguments, the first
LAYOUTS = ("halves", "interleaved")
VALUES = {
    "none": lambda x: x,
    "relu": torch.relu,
    "gelu": torch.nn.functional.gelu,
    "silu": torch.nn.functional.silu,
}


def split(b: Tensor, layout: str) -> tuple[Tensor, Tensor]:
    """Gate and up columns of a (..., N): views of (..., N / 2)."""
    if layout not in LAYOUTS:
        raise UsageError(f"layout: {layout!r}: it takes {' or '.join(LAYOUTS)}")
    if not b.dim():
        raise UsageError("b: shape (): it takes (K, N) or (..., K, N)")
    columns = b.shape[-1]
    if columns % 2:
        raise UsageError(f"b: N={columns}: gate and up columns come in pairs, N must be even")
    if layout == "halves":
        return b.narrow(-1, 0, columns // 2), b.narrow(-1, columns // 2, columns // 2)
    return b[..., 0::2], b[..., 1::2]


def join(gate: Tensor, up: Tensor, layout: str) -> Tensor:
    """The inverse of `split`, copied."""
    return torch.cat((gate, up), -1) if layout == "halves" else torch.stack((gate, up), -1).flatten(-2)


def compute(
    a: Tensor, b: Tensor, bias: Tensor | None = None, residual: Tensor | None = None, scale_a: Tensor | None = None,
    scale_b: Tensor | None = None, gated: str = "", activation: str = "none", alpha: float = 1.0, beta: float = 0.0,
    out_dtype: torch.dtype | None = None, tune: bool = False, config: Any = None, out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Plan, check and run a product of plain tensors; without gradients. gated: "", or the layout of b's columns."""
    given = (a, b, out, bias, residual, scale_a, scale_b)
    known = fast.call(*given, gated, activation, alpha, beta, out_dtype, tune, config, inside=True)
    if known is not None:
        return known
    gate, up = split(b, gated) if gated else (b, None)
    planned = plan(
        array("a", a), array("b", gate), up=maybe("b", up), out=maybe("out", out), bias=maybe("bias", bias),
        residual=maybe("residual", residual), scale_a=maybe("scale_a", scale_a), scale_b=maybe("scale_b", scale_b),
        activation=activation, beta=beta, out_dtype=None if out_dtype is None else name_of(out_dtype),
    )  # fmt: skip
    if out is None:
        out = torch.empty(planned.shape, dtype=TYPES[planned.form.out], device=a.device)
    if planned.empty:
        return _without_product(planned, out, bias, residual, beta)
    if planned.form.scaled:
        scale_a, scale_b = (ones(1, a.device) if scale is None else scale for scale in (scale_a, scale_b))
    tensors = {
        "a": a, "b": gate, "up": up, "out": out, "residual": residual, "bias": bias, "scale_a": scale_a,
        "scale_b": scale_b,
    }  # fmt: skip
    call = {**dict(zip(launch.NAMES, given)), "out": out}
    launcher = execute.run(planned, tensors, call, alpha, beta, config, tune)
    if given[2] is not None:
        fast.written(out)
    if launcher is not None:
        fast.remember(given, gated, activation, (out_dtype, tune, config), out.shape, out.dtype, launcher)
    return out


def _without_product(planned: Plan, out: Tensor, bias: Tensor | None, residual: Tensor | None, beta: float) -> Tensor:
    """The result where an extent is 0: K = 0 leaves the epilogue alone."""
    total = torch.zeros(planned.shape, dtype=torch.float32, device=out.device)
    if bias is not None:
        total += bias.float()
    if planned.form.gated:  # act(0) times 0, before the residual
        return out.copy_(total if residual is None else beta * residual.float())
    if residual is not None:
        total += beta * residual.float()
    return out.copy_(VALUES[planned.form.activation](total))


def _computed(
    a: Tensor, b: Tensor, bias: Optional[Tensor], residual: Optional[Tensor], scale_a: Optional[Tensor],
    scale_b: Optional[Tensor], gated: str, activation: str, alpha: float, beta: float,
    out_dtype: Optional[torch.dtype], tune: bool,
) -> Tensor:  # fmt: skip
    """`compute` as an operator: traced, differentiated and batched by torch."""
    return compute(a, b, bias, residual, scale_a, scale_b, gated, activation, alpha, beta, out_dtype, tune)


matmul = torch.library.custom_op("tensorladder::matmul", mutates_args=())(_computed)

# Where no gradients are wanted, as in a compiled model at inference: torch calls nothing of ours for them.
_library = torch.library.Library("tensorladder", "FRAGMENT")
_schema = torch.library.infer_schema(_computed, mutates_args=())
_library.define(f"product{_schema}", tags=tuple(torch.ops.tensorladder.matmul.default.tags))
_library.impl("product", _computed, "CompositeExplicitAutograd")


@torch.library.custom_op("tensorladder::matmul_out", mutates_args={"out"})
def matmul_out(
    a: Tensor, b: Tensor, out: Tensor, bias: Optional[Tensor], residual: Optional[Tensor], scale_a: Optional[Tensor],
    scale_b: Optional[Tensor], gated: str, activation: str, alpha: float, beta: float, tune: bool,
) -> None:  # fmt: skip
    """`matmul` into memory that is there. It has no gradients."""
    compute(a, b, bias, residual, scale_a, scale_b, gated, activation, alpha, beta, None, tune, out=out)


@matmul.register_fake
def _fake(a, b, bias, residual, scale_a, scale_b, gated, activation, alpha, beta, out_dtype, tune):  # type: ignore[no-untyped-def]
    _check_extents(a, b, bias, gated)
    lead = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    columns = b.shape[-1] // 2 if gated else b.shape[-1]
    default = torch.bfloat16 if a.dtype.itemsize == 1 else a.dtype
    return a.new_empty((*lead, a.shape[-2], columns), dtype=out_dtype or default)


def _check_extents(a: Tensor, b: Tensor, bias: Tensor | None, gated: str) -> None:
    """What a call without memory is checked for: its result would have a shape even where no product has."""
    for name, one, takes in (("a", a, "(..., M, K)"), ("b", b, "(K, N) or (..., K, N)")):
        if one.dim() < 2:
            raise UsageError(f"{name}: shape {tuple(one.shape)}: it takes {takes}")
    if name_of(a.dtype) not in INPUTS:
        raise UsageError(f"a: {name_of(a.dtype)}: it takes {', '.join(INPUTS)}")
    if b.dtype != a.dtype:
        raise UsageError(f"b: {name_of(b.dtype)}, but a is {name_of(a.dtype)}: give both the same type")
    (m, k), (depth, n) = a.shape[-2:], b.shape[-2:]
    _require(depth == k, lambda: f"b: {depth} rows, but a is (..., {m}, {k}): b takes (..., {k}, N)")
    if gated:
        _require(n % 2 == 0, lambda: f"b: N={n}: gate and up columns come in pairs, N must be even")
    if bias is not None:
        fits = bias.dim() == 1 and bias.shape[0] == n
        _require(fits, lambda: f"bias: shape {tuple(bias.shape)}: it takes ({n},), a number a column")


def _require(condition: Any, message: Any) -> None:
    """UsageError unless a condition holds, which may be one of symbols: then it is a guard, or checked as it runs."""
    torch._check_with(UsageError, condition, message)


torch.library.register_fake("tensorladder::product", _fake, lib=_library)


@matmul_out.register_fake
def _fake_out(a, b, out, bias, residual, scale_a, scale_b, gated, activation, alpha, beta, tune):  # type: ignore[no-untyped-def]
    return None


def _gelu_slope(x: Tensor) -> Tensor:
    density = torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    return 0.5 * (1 + torch.erf(x * math.sqrt(0.5))) + x * density


def _silu_slope(x: Tensor) -> Tensor:
    s = torch.sigmoid(x)
    return s * (1 + x * (1 - s))


SLOPES = {
    "none": torch.ones_like,
    "relu": lambda x: (x > 0).float(),
    "gelu": _gelu_slope,
    "silu": _silu_slope,
}


def _save(ctx, inputs, output):  # type: ignore[no-untyped-def]
    a, b, bias, residual, scale_a, scale_b, ctx.gated, ctx.activation, ctx.alpha, ctx.beta, _, _ = inputs
    ctx.scaled = scale_a is not None or scale_b is not None or a.dtype.itemsize == 1
    # relu's slope is seen from its result
    seen = output if ctx.activation == "relu" and not ctx.gated else None
    ctx.save_for_backward(a, b, bias, residual, seen)


def _backward(ctx, grad):  # type: ignore[no-untyped-def]
    """Through the epilogue at the sum before the activation, which is computed again; then two products."""
    if ctx.scaled:
        raise UsageError("scale_a: products with scales, or of 8-bit operands, have no gradients")
    a, b, bias, residual, _ = ctx.saved_tensors
    at, before = _through_epilogue(ctx, grad)
    wants_a, wants_b, wants_bias, wants_residual = ctx.needs_input_grad[:4]
    narrow = padded(before.to(a.dtype).contiguous())
    grads = [None] * 12
    if wants_a:
        grads[0] = _of_a(narrow, a, b, ctx.alpha)
    if wants_b:
        grads[1] = _of_b(narrow, a, b, ctx.alpha)
    if wants_bias:
        grads[2] = before.flatten(0, -2).sum(0, dtype=torch.float32).to(bias.dtype)
    if wants_residual:
        grads[3] = (ctx.beta * at).to(residual.dtype)
    return tuple(grads)


def _through_epilogue(ctx, grad: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[no-untyped-def]
    """The gradient where beta residual is added, and at alpha a @ b, of all of b's columns: as it came where nothing
    stands between, else in float32."""
    a, b, bias, residual, seen = ctx.saved_tensors
    if ctx.activation == "none" and not ctx.gated:
        return grad, grad
    grad, slope = grad.float(), SLOPES[ctx.activation]
    if ctx.gated:
        gate, up = split(product(a, b, alpha=ctx.alpha, out_dtype=torch.float32), ctx.gated)
        return grad, join(grad * up * slope(gate), grad * VALUES[ctx.activation](gate), ctx.gated)
    if seen is None:
        seen = product(a, b, bias, residual, alpha=ctx.alpha, beta=ctx.beta, out_dtype=torch.float32)
    grad = grad * slope(seen)
    return grad, grad


def product(
    a: Tensor, b: Tensor, bias: Tensor | None = None, residual: Tensor | None = None, *, alpha: float,
    beta: float = 0.0, out_dtype: torch.dtype | None = None,
) -> Tensor:  # fmt: skip
    """The operator for a gradient's products."""
    return call(a, b, bias, residual, None, None, "", "none", alpha, beta, out_dtype, False)


def padded(tensor: Tensor) -> Tensor:
    """(..., M, N) as it is, or a copy in rows of a multiple of 16 bytes, where N contiguous has another pitch."""
    unit, columns = 16 // tensor.element_size(), tensor.shape[-1]
    if tensor.stride(-1) != 1 or tensor.stride(-2) % unit == 0:
        return tensor
    return torch.nn.functional.pad(tensor, (0, -columns % unit))[..., :columns]


def _of_a(grad: Tensor, a: Tensor, b: Tensor, alpha: float) -> Tensor:
    """grad @ b^T, summed over the products that share a."""
    if a.shape[:-2] == grad.shape[:-2]:
        return product(grad, b.mT, alpha=alpha)
    return product(grad, b.mT, alpha=alpha, out_dtype=torch.float32).sum_to_size(a.shape).to(a.dtype)


def _of_b(grad: Tensor, a: Tensor, b: Tensor, alpha: float) -> Tensor:
    """a^T @ grad, summed over the products that share b, laid out as b is: what accumulates it then copies nothing."""
    if math.prod(b.shape[:-2]) == 1:  # the rows of all products are summed by one
        a = padded(a.expand(*grad.shape[:-1], a.shape[-1]).flatten(0, -2))
        grad = padded(grad.flatten(0, -2))
    shared = grad.shape[:-2] != b.shape[:-2] and math.prod(b.shape[:-2]) != 1
    stored = torch.float32 if shared else None
    if b.stride(-2) == 1:
        found = product(grad.mT, a, alpha=alpha, out_dtype=stored).mT
    else:
        found = product(a.mT, grad, alpha=alpha, out_dtype=stored)
    return (found.sum_to_size(b.shape) if shared else found.reshape(b.shape)).to(b.dtype)


matmul.register_autograd(_backward, setup_context=_save)


def _batched(info, in_dims, *arguments):  # type: ignore[no-untyped-def]
    """One more leading extent: of b, products; of the others alone, rows."""
    a, b, bias, residual, scale_a, scale_b, *rest = arguments
    for name, dim in zip(("bias", "scale_a", "scale_b"), (in_dims[2], in_dims[4], in_dims[5])):
        if dim is not None:
            raise UsageError(f"{name}: vmap over it is not supported: it is one for all products")
    rank = max(_rank(a, in_dims[0]), _rank(b, in_dims[1]))
    a, b = _leading(a, in_dims[0], rank), _leading(b, in_dims[1], rank)
    if residual is not None:
        residual = _leading(residual, in_dims[3], rank)
        residual = residual.expand(info.batch_size, *residual.shape[1:])
    if in_dims[0] is None and in_dims[1] is None:
        a = a.expand(info.batch_size, *a.shape[1:])
    return call(a, b, bias, residual, scale_a, scale_b, *rest), 0


matmul.register_vmap(_batched)


def _rank(tensor: Tensor, dim: int | None) -> int:
    return tensor.dim() - (dim is not None)


def _leading(tensor: Tensor, dim: int | None, rank: int) -> Tensor:
    """With vmap's extent first (1 where it has none), then `rank` extents."""
    tensor = tensor.unsqueeze(0) if dim is None else tensor.movedim(dim, 0)
    return tensor.reshape(tensor.shape[0], *[1] * (rank + 1 - tensor.dim()), *tensor.shape[1:])


def call(*arguments: Any) -> Tensor:
    """`matmul`, in whatever way torch differentiates it here."""
    tensors = arguments[:TENSORS]
    wanted = torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in tensors)
    if fast.plain(*tensors):
        return Direct.apply(*arguments) if wanted else compute(*arguments)
    if torch._C._are_functorch_transforms_active():
        return Transformed.apply(*arguments)
    if torch.compiler.is_compiling() and not wanted:
        return torch.ops.tensorladder.product(*arguments)
    return matmul(*arguments)


Direct = direct(compute, _save, _backward)
Transformed = transformed(matmul, setup_context=_save, backward=_backward, vmap=_batched)
