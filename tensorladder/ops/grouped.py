"""`grouped_matmul` for PyTorch: products of groups in one kernel, differentiable, whole for torch.compile.

The semantics are those of torch.nn.functional.grouped_mm, but for what it leaves open: rows of the result that are in
no group hold what memory held there in torch (its result is `empty`), and 0 here.
"""

# No `from __future__ import annotations`: torch reads the operators' schemas from the annotations.
# ruff: noqa: UP045
import functools
from dataclasses import replace
from typing import Any, Optional

import numpy as np
import torch
from torch import Tensor

from tensorladder.core import attached
from tensorladder.core.errors import UsageError, importing_engine
from tensorladder.measure.dynamic import templates
from tensorladder.ops import architecture, execute, fast, kernels, launch, on_virtual
from tensorladder.ops.direct import direct, transformed
from tensorladder.ops.grouped_plan import GroupedPlan, choose, plan, rank
from tensorladder.ops.inputs import TYPES, array, element_type, in_memory, maybe, name_of, one_device, ones, tensor
from tensorladder.ops.launch import Compiled, Launcher
from tensorladder.ops.operator import SLOPES, VALUES
from tensorladder.ops.plan import ALIGN
from tensorladder.ops.product import matmul
from tensorladder.problems import DTYPES
from tensorladder.silicon import driver
from tensorladder.silicon.pack import Array

ARCH = "sm_90a"  # the only one with a kernel for groups
# Among the calls that `fast` knows these are of a kind of their own: the ends stand where a residual would, whose
# factor must not be zero then; no launch reads it.
KIND, FACTORS = "groups", (1.0, 1.0)
_SLOTS = {"offs": "residual"}


def grouped_matmul(
    a: Tensor,
    b: Tensor,
    offs: Tensor | None = None,
    *,
    bias: Tensor | None = None,
    activation: str | None = None,
    scale_a: Tensor | None = None,
    scale_b: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    config: Any = None,
) -> Tensor:
    """act(scale_a scale_b a_g @ b_g + bias_g) for each group g, summed in float32 and rounded once.

    offs: (G,) int32 on the tensors' device, where each group ends along the extent T that is cut into groups; the first
    begins at 0. It is read by the kernel alone: no call waits for it, and a graph may capture one. Groups may be empty
    and of any size. Ends must not fall; what lies past the last one is of no group.

    - a (T, K) by b (G, K, N): groups of rows. (T, N), zero past the last end. What a mixture of experts does.
    - a (M, T) by b (T, N): groups of the sum. (G, M, N), zero for an empty group. The gradient of that b.
    - a (G, M, K) by b (K, T): groups of columns. (M, T), with M contiguous.
    - a (G, M, K) by b (G, K, N): a batch, with no offs. As `matmul` does it.

    a, b: fp16 or bf16, either extent contiguous, or fp8 (float8_e4m3fn, float8_e5m2) with K contiguous; the other
    strides and addresses are multiples of 16 bytes. The last extent of what the kernel stores (N; M for groups of
    columns) is a multiple of 8. bias: (N,), or (G, N) with a row a group; not for groups of columns. activation: None,
    "relu", "gelu" (by erf) or "silu". scale_a: fp32, one factor or one a row of a, (T,), scale_b: one a column of b,
    (N,) or (G, N); for groups of rows, with any type of a; either may be left out. out_dtype: a's where it is not
    given, bf16 for fp8. config: the kernel's knobs (`rungs.hopper.c9_grouped`). Devices, gradients and errors: as
    `matmul`.
    """
    activation = activation or "none"
    known = fast.call(a, b, None, bias, offs, scale_a, scale_b, KIND, activation, *FACTORS, out_dtype, False, config)
    if known is not None:
        return known
    named = {"a": a, "b": b, "offs": offs, "bias": bias, "scale_a": scale_a, "scale_b": scale_b}
    inputs: list[Any] = [tensor(name, one) for name, one in named.items()]
    a, b, offs, bias, scale_a, scale_b = inputs
    for name, one in (("a", a), ("b", b)):
        if one is None or one.dim() not in (2, 3):
            given = "None" if one is None else f"shape {tuple(one.shape)}"
            raise UsageError(f"{name}: {given}: it takes 2 extents, or 3 with the groups first")
    element_type("out_dtype", out_dtype)
    one_device(dict(zip(named, inputs)))
    if a.dim() == b.dim() == 3:
        if offs is not None:
            raise UsageError("offs: a and b have 3 extents, nothing is ragged: leave it out")
        scales = {"scale_a": scale_a, "scale_b": scale_b}
        return matmul(a, b, bias=bias, activation=activation, out_dtype=out_dtype, config=config, **scales)
    if offs is None:
        raise UsageError("offs: None: it says where each group ends, int32 (G,)")
    if a.dim() == 3:
        for name, one in (("bias", bias), ("scale_a", scale_a), ("scale_b", scale_b)):
            if one is not None:
                raise UsageError(f"{name}: columns of the result are ragged, a group has none of its own")
        try:
            return grouped_matmul(b.mT, a.mT, offs, activation=activation, out_dtype=out_dtype, config=config).mT
        except UsageError as error:
            raise UsageError(f"groups of columns are rows of the transpose, a = b.mT by b = a.mT: {error}") from error
    rest: list[Any] = [*inputs, activation, out_dtype]
    everything: list[Any] = [*rest, config]
    if fast.eager(*inputs):  # torch's dispatcher has nothing to do
        return compute(*everything)
    if torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in inputs):
        for name, one in (("config", config), ("scale_a", scale_a), ("scale_b", scale_b)):
            if one is not None:
                raise UsageError(f"{name}: has no gradients: leave it out, or call under torch.no_grad()")
    if config is not None:
        return compute(*everything)
    if fast.plain(*inputs):
        return Direct.apply(*rest)
    return Transformed.apply(*rest) if torch._C._are_functorch_transforms_active() else operator(*rest)


def compute(
    a: Tensor, b: Tensor, offs: Tensor, bias: Tensor | None, scale_a: Tensor | None, scale_b: Tensor | None,
    activation: str, out_dtype: torch.dtype | None, config: Any = None,
) -> Tensor:  # fmt: skip
    """Plan, check and run a product of groups of rows or of K, or do again what one like it did; without gradients."""
    if (scale_a is None) != (scale_b is None):
        scale_a = ones(1, a.device) if scale_a is None else scale_a
        scale_b = ones(b.shape[-1], a.device) if scale_b is None else scale_b
    slots = (a, b, None, bias, offs, scale_a, scale_b)
    known = fast.call(*slots, KIND, activation, *FACTORS, out_dtype, False, config, inside=True)
    if known is not None:
        return known
    planned = plan(
        array("a", a), array("b", b), array("offs", offs), bias=maybe("bias", bias), scale_a=maybe("scale_a", scale_a),
        scale_b=maybe("scale_b", scale_b), activation=activation,
        out_dtype=None if out_dtype is None else name_of(out_dtype),
    )  # fmt: skip
    out = torch.empty(planned.shape, dtype=TYPES[planned.form.out], device=a.device)
    if not planned.operands:
        return _without_product(planned, out, offs, bias)
    every = {"a": a, "b": b, "out": out, "offs": offs, "bias": bias, "scale_a": scale_a, "scale_b": scale_b}
    launcher = _run(planned, {name: one for name, one in every.items() if one is not None}, config)
    if launcher is not None:
        fast.remember(slots, KIND, activation, (out_dtype, False, config), out.shape, out.dtype, launcher)
    return out


def _without_product(planned: GroupedPlan, out: Tensor, offs: Tensor, bias: Tensor | None) -> Tensor:
    """The result where an extent is 0: what is in a group is act(bias)."""
    out.zero_()
    if bias is None or not out.numel():
        return out
    finished = VALUES[planned.form.activation](bias.float()).expand(planned.groups, planned.n)
    if planned.ragged == "k":
        return out.copy_(finished[:, None, :])
    rows = torch.arange(planned.m, device=offs.device, dtype=offs.dtype)
    group = torch.searchsorted(offs, rows, right=True)
    inside = (group < planned.groups)[:, None]
    return out.copy_(torch.where(inside, finished[group.clamp(max=planned.groups - 1)], 0))


def _run(planned: GroupedPlan, given: dict[str, Tensor], config: Any) -> Optional[Launcher]:
    """Multiply; on a GPU, gives what does so again."""
    one_device(given)
    in_memory(given)
    if config is not None:
        kernels.check(config, kernels.Product(planned.m, planned.n, planned.k, 1, planned.form))
    device, asked = given["a"].device, architecture.virtual()
    if asked is not None and device.type == "cpu":
        if asked.arch != ARCH:
            raise UsageError(f"TENSORLADDER_DEVICE: grouped_matmul has a kernel for {ARCH} alone, not for {asked.arch}")
        _on_virtual(planned, given, config, asked.policy)
        return None
    if attached.session is not None and execute._is_gpu(device):
        _in_script(planned, given, config, attached.session)
        return None
    if execute._is_gpu(device):
        return _on_gpu(planned, given, config)
    if torch.cuda.is_available():
        raise UsageError(f"a: lies on {device}: move it to the GPU, or set TENSORLADDER_DEVICE=vgpu")
    raise UsageError("there is no GPU here: TENSORLADDER_DEVICE=vgpu runs small products on the virtual one")


@functools.lru_cache(maxsize=4096)
def config_for(planned: GroupedPlan, sm_count: int) -> Any:
    """The kernel's knobs for a product. MissingExtra without the DSL."""
    return execute.knobs(choose(planned, sm_count), sm_count)


def _on_gpu(planned: GroupedPlan, given: dict[str, Tensor], config: Any) -> Launcher:
    """On torch's current stream; what launches such products again."""
    device = given["a"].get_device()
    have, sms = execute._properties(device)
    if architecture.of_gpu(have) != ARCH:
        raise UsageError(f"the GPU here is sm_{have[0]}{have[1]}: grouped_matmul is for sm_90 so far")
    with torch.cuda.device(device):
        driver.use_context(device)
        if config is None:
            kernel = execute.kernel(planned, rank(planned, sms), sms, ARCH)
        else:
            kernel = execute.compiled(planned.form, config)
        launcher = _launcher(planned, kernel, given, device)
        launcher(_call(given), *FACTORS)
    return launcher


def _in_script(planned: GroupedPlan, given: dict[str, Tensor], config: Any, session: Any) -> None:
    """Device tensors of a script that runs on the virtual GPU."""
    if architecture.of_gpu(session.arch.compute_capability) != ARCH:
        raise UsageError(f"the GPU here is {session.arch.name}: grouped_matmul is for sm_90 so far")
    config = config or config_for(planned, session.arch.sm_count)
    arguments = [(given.get(name), operand) for name, operand in planned.operands]
    on_virtual.enqueue(arguments, execute.program(planned.form, config), session)


def _launcher(planned: GroupedPlan, kernel: Compiled, given: dict[str, Tensor], device: int) -> Launcher:
    """Such products' launch on the current GPU, which is `device`. given: with the result."""
    names = [name for name, _ in planned.operands]
    low = [given[name].data_ptr() % ALIGN if name in given else 0 for name in names]
    (made,) = templates(kernel.program, arrays(planned), kernel.unread, low)
    numbers = {name: number for number, name in enumerate(launch.order(_call(given)))}
    places = tuple((at, numbers[_SLOTS.get(names[which], names[which])], more) for at, which, more in made.addresses)
    return Launcher(device, [launch.prepared(kernel.program, replace(made, addresses=places), device)])


def _call(given: dict[str, Tensor]) -> dict[str, Tensor]:
    """A call's tensors by the names that launchers know."""
    return {_SLOTS.get(name, name): one for name, one in given.items()}


def arrays(planned: GroupedPlan) -> list[Array | None]:
    """The kernel's arguments, wherever they lie."""
    return [
        None if one is None else Array(name, one.shape, one.strides, DTYPES[one.dtype].numpy.name, name == "out")
        for name, one in planned.operands
    ]


def _on_virtual(planned: GroupedPlan, given: dict[str, Tensor], config: Any, policy: str) -> None:
    """CPU tensors, copied to the virtual GPU's memory as they lie in ours."""
    with importing_engine():
        from tensorladder.vgpu import Device
    device = Device(arch=ARCH, policy=policy)
    made: dict[str, np.ndarray | None] = {}
    for name, operand in planned.operands:
        made[name] = None
        if operand is not None:
            memory = device.memory.empty(name, (operand.elements,), DTYPES[operand.dtype].numpy)
            made[name] = array = on_virtual.strided(memory, operand)
            if name != "out":
                array[...] = on_virtual.seen(given[name], operand)
    stream = device.stream()
    execute.program(planned.form, config or config_for(planned, on_virtual.SMS))(stream, *made.values())
    stream.synchronize()
    stored = dict(planned.operands)["out"]
    assert stored is not None
    on_virtual.seen(given["out"], stored)[...] = made["out"]


@torch.library.custom_op("tensorladder::grouped_matmul", mutates_args=())
def operator(
    a: Tensor, b: Tensor, offs: Tensor, bias: Optional[Tensor], scale_a: Optional[Tensor], scale_b: Optional[Tensor],
    activation: str, out_dtype: Optional[torch.dtype],
) -> Tensor:  # fmt: skip
    """`compute` as an operator: traced and differentiated by torch."""
    return compute(a, b, offs, bias, scale_a, scale_b, activation, out_dtype)


@operator.register_fake
def _fake(a, b, offs, bias, scale_a, scale_b, activation, out_dtype):  # type: ignore[no-untyped-def]
    shape = (a.shape[0], b.shape[-1]) if b.dim() == 3 else (offs.shape[0], a.shape[0], b.shape[-1])
    default = torch.bfloat16 if a.dtype.itemsize == 1 else a.dtype
    return a.new_empty(shape, dtype=out_dtype or default)


def _save(ctx, inputs, output):  # type: ignore[no-untyped-def]
    a, b, offs, bias, _, _, ctx.activation, _ = inputs
    ctx.save_for_backward(a, b, offs, bias)


def _backward(ctx, grad):  # type: ignore[no-untyped-def]
    """Through the activation at the sum before it, which is computed again; then a product an operand."""
    a, b, offs, bias = ctx.saved_tensors
    if ctx.activation != "none":
        sums = grouped_matmul(a, b, offs, bias=bias, out_dtype=torch.float32)
        grad = grad.float() * SLOPES[ctx.activation](sums)
    at = grad.to(a.dtype).contiguous()
    wants_a, wants_b, _, wants_bias, *_ = ctx.needs_input_grad  # scales have none, and none beside them
    grad_a = grouped_matmul(at, b.mT, offs) if wants_a else None
    grad_b = _of_b(a, at, b, offs) if wants_b else None
    grad_bias = _bias_gradient(at, offs, bias) if wants_bias else None
    return grad_a, grad_b, None, grad_bias, None, None, None, None


def _of_b(a: Tensor, at: Tensor, b: Tensor, offs: Tensor) -> Tensor:
    """a^T @ at of each group, laid out as b is: what accumulates it then copies nothing."""
    if b.dim() == 3 and b.stride(-2) == 1:
        return grouped_matmul(at.mT, a, offs).mT
    return grouped_matmul(a.mT, at, offs)


def _bias_gradient(at: Tensor, offs: Tensor, bias: Tensor) -> Tensor:
    """Sums over each group's rows: a product with ones, as no call may wait for where groups end."""
    if at.dim() == 2:
        at = grouped_matmul(at.new_ones(1, at.shape[0]), at, offs, out_dtype=torch.float32)
    return at.sum(1, dtype=torch.float32).sum_to_size(*_rows(bias)).reshape(bias.shape).to(bias.dtype)


def _rows(bias: Tensor) -> tuple[int, int]:
    return (bias.shape[0] if bias.dim() == 2 else 1), bias.shape[-1]


operator.register_autograd(_backward, setup_context=_save)


Direct = direct(compute, _save, _backward)
Transformed = transformed(operator, setup_context=_save, backward=_backward)
