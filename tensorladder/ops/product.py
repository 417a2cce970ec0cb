"""`matmul` and `swiglu` for PyTorch: products with their epilogue in one kernel, differentiable, whole for
torch.compile."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tensorladder.core.errors import UsageError
from tensorladder.ops import fast, operator
from tensorladder.ops.inputs import element_type, name_of, number, one_device, tensor


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
    scale_a: Tensor | None = None,
    scale_b: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    config: Any = None,
    tune: bool = False,
) -> Tensor:
    """act(alpha scale_a scale_b a @ b + beta residual + bias), summed in float32 and rounded once.

    a: (..., M, K), fp16, bf16, float8_e4m3fn or float8_e5m2. b: (K, N), or (..., K, N) for products, of the same type;
    leading extents are the same, or 1 or missing in one of them. Of both either extent may be the contiguous one, of
    fp8 only K; the other strides are multiples of 16 bytes, and so are addresses. bias: (N,). residual, out:
    (..., M, N) with N contiguous; these three fp16, bf16 or fp32. activation: None, "relu", "gelu" (by erf) or "silu".
    scale_a: fp32, one factor, or one a row of a: (..., M) or (..., M, 1), with one product only. scale_b: fp32, one
    factor or one a column of b: (N,) or (1, N). Either may be left out (1), with any type of a.
    out_dtype: a's where it is not given, bf16 for fp8. config: knobs of one of the kernels (`ops.kernels`); a model of
    the GPU chooses otherwise. tune: measures once on a GPU what is best for these extents, and keeps it on disk.

    It runs on the current stream of the GPU that holds the tensors, or for CPU tensors on the virtual GPU where
    TENSORLADDER_DEVICE=vgpu is set (vgpu@sm_100a: as another GPU, `ops.architecture`). Anything with __dlpack__ (numpy,
    cupy, jax) is taken for a tensor. Gradients are made by the same kernels; with `out`, `config`, scales or fp8 there
    are none. UsageError for what is not supported, naming the argument.
    """
    known = fast.call(
        a, b, out, bias, residual, scale_a, scale_b, "", activation or "none", alpha, beta, out_dtype, tune, config
    )  # fmt: skip
    if known is not None:
        return known
    given = {"a": a, "b": b, "bias": bias, "residual": residual, "scale_a": scale_a, "scale_b": scale_b}
    return _call(given, "", activation or "none", alpha, beta, out, out_dtype, config, tune)


def swiglu(
    a: Tensor,
    b: Tensor,
    *,
    layout: str = "halves",
    activation: str = "silu",
    out: Tensor | None = None,
    residual: Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    scale_a: Tensor | None = None,
    scale_b: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    config: Any = None,
    tune: bool = False,
) -> Tensor:
    """act(z gate) * (z up) + beta residual, where z = alpha scale_a scale_b a and b holds gate's and up's columns.

    b: (K, N) or (..., K, N). layout: "halves", gate's columns first, or "interleaved", gate's and up's in turns from
    gate's first on, which wants K contiguous (a weight stored (N, K) and passed as w.t()). The result, residual and
    out are (..., M, N / 2). activation: of the gate, "silu"; "gelu" makes it a GeGLU, "relu" a ReGLU, "none" a
    bilinear one. scale_b: one factor. All else as for `matmul`.
    """
    known = fast.call(
        a, b, out, None, residual, scale_a, scale_b, layout, activation, alpha, beta, out_dtype, tune, config
    )  # fmt: skip
    if known is not None:
        return known
    if layout not in operator.LAYOUTS:
        raise UsageError(f"layout: {layout!r}: it takes {' or '.join(operator.LAYOUTS)}")
    given = {"a": a, "b": b, "residual": residual, "scale_a": scale_a, "scale_b": scale_b}
    return _call(given, layout, activation, alpha, beta, out, out_dtype, config, tune)


def _call(
    given: dict[str, Any], gated: str, activation: str, alpha: float, beta: float, out: Any,
    out_dtype: torch.dtype | None, config: Any, tune: bool,
) -> Tensor:  # fmt: skip
    """Through torch's operators where torch has to know; not with a config, which these cannot carry."""
    given = {name: tensor(name, one) for name, one in given.items()}
    out = tensor("out", out)
    inputs: list[Any] = [given.get(name) for name in ("a", "b", "bias", "residual", "scale_a", "scale_b")]
    a, b = inputs[:2]
    if a is None or b is None:
        raise UsageError(f"{'a' if a is None else 'b'}: None: it takes a torch tensor")
    element_type("out_dtype", out_dtype)
    one_device({**given, "out": out})
    _check_gradients(given, out, config)
    rest: list[Any] = [gated, activation, number("alpha", alpha), number("beta", beta)]
    if config is not None or fast.eager(*inputs, out):
        everything: list[Any] = [*inputs, *rest, out_dtype, tune, config, out]
        return (_outside_of_graphs if torch.compiler.is_compiling() else operator.compute)(*everything)
    if out is None:
        return operator.call(*inputs, *rest, out_dtype, tune)
    if out_dtype is not None and out_dtype != out.dtype:
        raise UsageError(f"out_dtype: {name_of(out_dtype)}, but out is {name_of(out.dtype)}: leave one of them out")
    operator.matmul_out(*inputs[:2], out, *inputs[2:], *rest, tune)
    return out


@torch.compiler.disable
def _outside_of_graphs(*everything: Any) -> Tensor:
    """A call with a config, which no operator can carry: a compiled graph ends before it, and fullgraph says so."""
    return operator.compute(*everything)


def _check_gradients(given: dict[str, Any], out: Tensor | None, config: Any) -> None:
    """UsageError where a gradient is asked for that there is none of."""
    wanting = [name for name, one in {**given, "out": out}.items() if one is not None and one.requires_grad]
    if not wanting or not torch.is_grad_enabled():
        return
    for name, one in (("out", out), ("config", config), ("scale_a", given["scale_a"]), ("scale_b", given["scale_b"])):
        if one is not None:
            raise UsageError(f"{name}: has no gradients: leave it out, or call under torch.no_grad()")
    if given["a"].dtype.itemsize == 1:
        raise UsageError(f"{wanting[0]}: products of 8-bit operands have no gradients: call under torch.no_grad()")
