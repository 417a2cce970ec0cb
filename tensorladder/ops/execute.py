"""Run a planned product: on the GPU, on torch's current stream, or on the virtual GPU where that is asked for.

TENSORLADDER_DEVICE=vgpu runs calls with CPU tensors on the virtual GPU; vgpu:lazy, vgpu:timed and vgpu:random:N say
when its asynchronous effects happen.
"""

from __future__ import annotations

import functools
import os
import threading
from typing import Any

import numpy as np
import torch

from tensorladder.core.dlpack import View
from tensorladder.core.errors import MissingExtra, UsageError
from tensorladder.core.program import Program
from tensorladder.measure.request import parse_policy
from tensorladder.ops import kernels
from tensorladder.ops.choose import choose
from tensorladder.ops.plan import Matrix, Plan
from tensorladder.problems import DTYPES
from tensorladder.rungs.parts.form import Form

ARCH, CAPABILITY = "sm_90a", (9, 0)
VIRTUAL_SMS = 132
CUDA = 2  # DLPack's number
BITS = {"fp16": torch.int16, "bf16": torch.int16, "fp32": torch.int32}

_local = threading.local()


def virtual() -> str | None:
    """The policy of the virtual GPU that TENSORLADDER_DEVICE asks for; None where it does not."""
    place, _, policy = os.environ.get("TENSORLADDER_DEVICE", "").strip().lower().partition(":")
    if place in ("", "cuda", "gpu"):
        return None
    if place != "vgpu":
        raise UsageError(f"TENSORLADDER_DEVICE={place!r}: it takes vgpu (or vgpu:lazy, vgpu:random:7), or cuda")
    return parse_policy(policy or "eager")


@functools.lru_cache(maxsize=256)
def program(form: Form, config: Any) -> Program:
    """The compiled kernel of a form, for all extents. MissingExtra without the DSL."""
    return kernels.build(ARCH, form, config)


@functools.lru_cache(maxsize=4096)
def config_for(m: int, n: int, k: int, form: Form, sm_count: int) -> Any:
    """The knobs of the kernel that the model chooses for a product. MissingExtra without the DSL."""
    return kernels.config(choose(m, n, k, 1, form, sm_count), sm_count)


def run(plan: Plan, tensors: dict[str, torch.Tensor | None], alpha: float, beta: float, config: Any = None) -> None:
    """Multiply. tensors: a, b, out, residual, bias, on one device; `plan` is not empty."""
    if plan.l > 1 or plan.form.scaled or plan.form.gated:
        raise UsageError("b: several products, scales and gated products have no kernel yet")
    policy = virtual()
    given = [tensor for tensor in tensors.values() if tensor is not None]
    devices = {tensor.device for tensor in given}
    if len(devices) > 1:
        places = ", ".join(f"{name} on {tensor.device}" for name, tensor in tensors.items() if tensor is not None)
        raise UsageError(f"all tensors must lie on one device: {places}")
    (device,) = devices
    if policy is not None and device.type == "cpu":
        _on_virtual(plan, tensors, alpha, beta, config, policy)
    elif device.type == "cuda":
        _on_gpu(plan, tensors, alpha, beta, config)
    elif torch.cuda.is_available():
        raise UsageError(f"a: lies on {device}: move it to the GPU, or set TENSORLADDER_DEVICE=vgpu")
    else:
        raise UsageError("there is no GPU here: TENSORLADDER_DEVICE=vgpu runs small products on the virtual one")


def _matrices(plan: Plan) -> dict[str, Matrix | None]:
    dense = Matrix((plan.m, plan.n), "k", plan.n)
    return {"a": plan.a, "b": plan.b, "out": plan.c or dense, "residual": plan.r}


def _on_gpu(
    plan: Plan, tensors: dict[str, torch.Tensor | None], alpha: float, beta: float, config: Any
) -> None:
    from tensorladder.silicon import driver

    device = tensors["a"].device  # type: ignore[union-attr]
    have, sms = _properties(device.index)
    if have != CAPABILITY:
        raise UsageError(f"the GPU here is sm_{have[0]}{have[1]}: matmul is for sm_90 so far")
    config = config or config_for(plan.m, plan.n, plan.k, plan.form, sms)
    arguments = views(plan, tensors, _factors(alpha, beta, device.index))
    with torch.cuda.device(device):
        handle = torch.cuda.current_stream().cuda_stream
        streams = _local.__dict__.setdefault("streams", {})
        stream = streams.setdefault((device.index, handle), driver.Stream(handle))
        program(plan.form, config)(stream, *arguments)
        stream.submit()


def views(plan: Plan, tensors: dict[str, torch.Tensor | None], factors: torch.Tensor) -> list[View | None]:
    """The kernel's arguments: tensors as the matrices that it sees.

    Not through torch's DLPack, which changes the strides of single rows: no tensor map has a pitch of 2 bytes.
    """

    def view(tensor: torch.Tensor | None, shape: tuple[int, ...], strides: tuple[int, ...]) -> View | None:
        if tensor is None:
            return None
        name, where = str(tensor.dtype).removeprefix("torch."), (CUDA, tensor.device.index or 0)
        return View(tensor.data_ptr(), shape, strides, name, where, tensor)

    matrices = [(tensors[name], matrix) for name, matrix in _matrices(plan).items()]
    seen = [None if matrix is None else view(tensor, matrix.shape, matrix.strides) for tensor, matrix in matrices]
    return [*seen, view(tensors["bias"], (plan.n,), (1,)), view(factors, (2,), (1,))]


@functools.cache
def _properties(index: int) -> tuple[tuple[int, int], int]:
    found = torch.cuda.get_device_properties(index)
    return (found.major, found.minor), found.multi_processor_count


@functools.lru_cache(maxsize=1024)
def _factors(alpha: float, beta: float, index: int) -> torch.Tensor:
    """(alpha, beta) on a GPU: made by the first call, so that later ones copy nothing and can be captured."""
    made = torch.tensor([alpha, beta], dtype=torch.float32, device=f"cuda:{index}")
    torch.cuda.synchronize(index)  # any stream may read it from now on
    return made


def _on_virtual(
    plan: Plan, tensors: dict[str, torch.Tensor | None], alpha: float, beta: float, config: Any, policy: str
) -> None:
    try:
        from tensorladder.vgpu import Device
    except ModuleNotFoundError as error:
        raise MissingExtra(f"{error.name} (the virtual GPU's engine)", "climb") from error
    device = Device(arch=ARCH, policy=policy)
    types = {
        "a": plan.form.dtype, "b": plan.form.dtype, "out": plan.form.out, "residual": plan.form.residual,
    }  # fmt: skip
    arrays: dict[str, np.ndarray | None] = {}
    for name, matrix in _matrices(plan).items():
        arrays[name] = None
        tensor = tensors[name]
        if tensor is not None and matrix is not None:
            lines, extent = matrix.shape if matrix.major == "k" else matrix.shape[::-1]
            array = device.memory.empty(name, (lines, matrix.pitch), DTYPES[types[name]].numpy)[:, :extent]
            array = array if matrix.major == "k" else array.T
            if name != "out":
                array[...] = _seen(tensor, types[name], matrix)
            arrays[name] = array
    bias = tensors["bias"]
    if bias is not None:
        array = device.memory.empty("bias", (plan.n,), DTYPES[plan.form.bias].numpy)
        array[...] = _seen(bias, plan.form.bias, None)
        arrays["bias"] = array
    factors = device.memory.empty("factors", (2,), np.dtype(np.float32))
    factors[...] = (alpha, beta)
    stream = device.stream()
    compiled = program(plan.form, config or config_for(plan.m, plan.n, plan.k, plan.form, VIRTUAL_SMS))
    compiled(stream, *(arrays.get(name) for name in ("a", "b", "out", "residual", "bias")), factors)
    stream.synchronize()
    _seen(tensors["out"], plan.form.out, _matrices(plan)["out"])[...] = arrays["out"]


def _seen(tensor: torch.Tensor | None, dtype: str, matrix: Matrix | None) -> np.ndarray:
    """A CPU tensor's memory as an array: as the matrix that the kernel sees, or as it is."""
    assert tensor is not None
    tensor = tensor.detach()
    if matrix is not None:
        tensor = tensor.as_strided(matrix.shape, matrix.strides)
    return tensor.view(BITS[dtype]).numpy().view(DTYPES[dtype].numpy)
