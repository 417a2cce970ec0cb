"""Run a planned product: on the GPU, on torch's current stream, or on the virtual GPU where that is asked for.

TENSORLADDER_DEVICE=vgpu runs calls with CPU tensors on the virtual GPU; vgpu:lazy, vgpu:timed and vgpu:random:N say
when its asynchronous effects happen.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch

from tensorladder.core.dlpack import View
from tensorladder.core.errors import UsageError
from tensorladder.core.program import Program
from tensorladder.measure.request import parse_policy
from tensorladder.ops import kernels, on_virtual
from tensorladder.ops import tune as tuning
from tensorladder.ops.choose import choose
from tensorladder.ops.kernels import Choice
from tensorladder.ops.plan import Plan, operands
from tensorladder.rungs.parts.form import Form

ARCH, CAPABILITY = "sm_90a", (9, 0)
CUDA = 2  # DLPack's number

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
def config_for(plan: Plan, sm_count: int) -> Any:
    """The knobs of the kernel that the model chooses for a product. MissingExtra without the DSL."""
    return kernels.config(choose(plan.m, plan.n, plan.k, plan.l, plan.form, sm_count), sm_count)


knobs = functools.lru_cache(maxsize=1024)(kernels.config)


def run(
    plan: Plan, tensors: dict[str, torch.Tensor | None], alpha: float, beta: float, config: Any = None,
    tune: bool = False,
) -> None:
    """Multiply. `plan` is not empty. tune: measure what is fastest, unless that is known (`ops.tune`).

    tensors, on one device: a, b, out, and what there is of residual, bias, up (the second right operand of a gated
    product), scale_a and scale_b (both or none).
    """
    policy = virtual()
    given = [tensor for tensor in tensors.values() if tensor is not None]
    devices = {tensor.device for tensor in given}
    if len(devices) > 1:
        places = ", ".join(f"{name} on {tensor.device}" for name, tensor in tensors.items() if tensor is not None)
        raise UsageError(f"all tensors must lie on one device: {places}")
    (device,) = devices
    if policy is not None and device.type == "cpu":
        if tune:
            tuning.on_the_virtual_gpu()
        on_virtual.run(plan, tensors, (alpha, beta), config or config_for(plan, on_virtual.SMS), program, policy)
    elif device.type == "cuda":
        _on_gpu(plan, tensors, _factors(alpha, beta, device.index), config, tune)
    elif torch.cuda.is_available():
        raise UsageError(f"a: lies on {device}: move it to the GPU, or set TENSORLADDER_DEVICE=vgpu")
    else:
        raise UsageError("there is no GPU here: TENSORLADDER_DEVICE=vgpu runs small products on the virtual one")


def _on_gpu(
    plan: Plan, tensors: Mapping[str, torch.Tensor | None], factors: torch.Tensor, config: Any, tune: bool
) -> None:
    device = factors.device
    have, sms = _properties(device.index)
    if have != CAPABILITY:
        raise UsageError(f"the GPU here is sm_{have[0]}{have[1]}: matmul is for sm_90 so far")
    with torch.cuda.device(device):
        if config is None:
            place = tuning.place(torch, device.index, ARCH)
            if tune:

                def bind(choice: Choice, on: Mapping[str, torch.Tensor | None]) -> Callable[[], None]:
                    return lambda: _launch(plan, on, factors, knobs(choice, sms))

                tuning.tune(tuning.key(place, plan), tuning.timer(torch, tensors, bind))
            config = knobs(tuning.chosen(place, plan), sms)
        _launch(plan, tensors, factors, config)


def _launch(plan: Plan, tensors: Mapping[str, torch.Tensor | None], factors: torch.Tensor, config: Any) -> None:
    """On the current device's current stream."""
    from tensorladder.silicon import driver

    arguments = views(plan, tensors, factors, kernels.of(config).flat)
    handle = torch.cuda.current_stream().cuda_stream
    streams = _local.__dict__.setdefault("streams", {})
    stream = streams.setdefault((factors.device.index, handle), driver.Stream(handle))
    program(plan.form, config)(stream, *arguments)
    stream.submit()


def views(
    plan: Plan, tensors: Mapping[str, torch.Tensor | None], factors: torch.Tensor, flat: bool
) -> list[View | None]:
    """The kernel's arguments: tensors as the matrices that it sees.

    Not through torch's DLPack, which changes the strides of single rows: no tensor map has a pitch of 2 bytes.
    """

    where = (CUDA, tensors["a"].device.index or 0)  # type: ignore[union-attr]
    made: list[View | None] = []
    for name, operand in operands(plan, flat).items():
        tensor = factors if name == "factors" else tensors.get(name)
        if operand is None or tensor is None:
            made.append(None)
        else:
            dtype = str(tensor.dtype).removeprefix("torch.")
            made.append(View(tensor.data_ptr(), operand.shape, operand.strides, dtype, where, tensor))
    return made


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
