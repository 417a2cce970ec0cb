"""Run a planned product: on the GPU, on torch's current stream, or on the virtual GPU where that is asked for
(`architecture`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tensorladder.core import attached
from tensorladder.core.errors import UsageError
from tensorladder.core.program import Program
from tensorladder.ops import fast, inputs, kernels, launch, on_virtual, packs
from tensorladder.ops import tune as tuning
from tensorladder.ops.architecture import DEFAULT, of_gpu, virtual
from tensorladder.ops.choose import choose
from tensorladder.ops.grouped_plan import GroupedPlan
from tensorladder.ops.kernels import Choice
from tensorladder.ops.launch import Compiled, Launcher
from tensorladder.ops.plan import Plan
from tensorladder.rungs.parts.form import Form
from tensorladder.silicon import driver


@functools.lru_cache(maxsize=256)
def program(form: Form, config: Any, arch: str = DEFAULT) -> Program:
    """The compiled kernel of a form, for all extents. MissingExtra without the DSL."""
    return kernels.build(arch, form, config)


@functools.lru_cache(maxsize=4096)
def config_for(plan: Plan, sm_count: int, arch: str = DEFAULT) -> Any:
    """The knobs of the kernel that the model chooses for a product. MissingExtra without the DSL."""
    return kernels.config(choose(plan.m, plan.n, plan.k, plan.l, plan.form, sm_count, arch), sm_count)


knobs = functools.lru_cache(maxsize=1024)(kernels.config)


def run(
    plan: Plan, tensors: dict[str, torch.Tensor | None], call: dict[str, torch.Tensor | None], alpha: float,
    beta: float, config: Any = None, tune: bool = False,
) -> Launcher | None:  # fmt: skip
    """Multiply. `plan` is not empty. tune: measure what is fastest, unless that is known (`ops.tune`).

    Gives what launches such products again, on a GPU; None on the virtual one. call: as `launch.make` takes it.

    tensors, on one device: a, b, out, and what there is of residual, bias, up (the second right operand of a gated
    product), scale_a and scale_b (both or none).
    """
    asked = virtual()
    if config is not None:
        kernels.check(config, kernels.Product(plan.m, plan.n, plan.k, plan.l, plan.form))
    inputs.one_device(tensors)
    inputs.in_memory(tensors)
    device = tensors["a"].device  # type: ignore[union-attr]
    if asked is not None and device.type == "cpu":
        if tune:
            tuning.on_the_virtual_gpu()
        config = config or config_for(plan, asked.sm_count, asked.arch)
        on_virtual.run(plan, tensors, (alpha, beta), config, program, asked)
        return None
    if attached.session is not None and _is_gpu(device):
        if tune:
            tuning.on_the_virtual_gpu()
        arch = of_gpu(attached.session.arch.compute_capability)
        config = config or config_for(plan, attached.session.arch.sm_count, arch)
        on_virtual.launch(plan, tensors, (alpha, beta), config, program(plan.form, config, arch), attached.session)
        return None
    if _is_gpu(device):
        return _on_gpu(plan, tensors, call, (alpha, beta), config, tune)
    if torch.cuda.is_available():
        raise UsageError(f"a: lies on {device}: move it to the GPU, or set TENSORLADDER_DEVICE=vgpu")
    raise UsageError("there is no GPU here: TENSORLADDER_DEVICE=vgpu runs small products on the virtual one")


def _is_gpu(device: torch.device) -> bool:
    return device.type == "cuda"


def _on_gpu(
    plan: Plan, tensors: Mapping[str, torch.Tensor | None], call: Mapping[str, torch.Tensor | None],
    factors: tuple[float, float], config: Any, tune: bool,
) -> Launcher:  # fmt: skip
    device = tensors["a"].get_device()  # type: ignore[union-attr]
    have, sms = _properties(device)
    arch = of_gpu(have)
    with torch.cuda.device(device):
        driver.use_context(device)
        if config is None:
            place = tuning.place(torch, device, arch)
            if tune:

                def bind(choice: Choice, on: Mapping[str, torch.Tensor | None]) -> Callable[[], None]:
                    launcher = launch.make(plan, kernel(plan, (choice,), sms, arch), on, on, device)
                    return lambda: launcher(on, *factors)

                before = tuning.chosen(place, plan)
                if tuning.tune(tuning.key(place, plan), tuning.timer(torch, tensors, bind)) != before:
                    fast.forget()
            found = kernel(plan, tuning.ranked(place, plan), sms, arch)
        else:
            found = compiled(plan.form, config, arch)
        launcher = launch.make(plan, found, tensors, call, device)
        launcher(call, *factors)
    return launcher


def kernel(plan: Plan | GroupedPlan, ranked: Sequence[Choice], sm_count: int, arch: str) -> Compiled:
    """The kernel of the first choice, packed or compiled; without the DSL of the first one that is packed.

    UsageError where none is, MissingExtra without a pack too.
    """
    found = packs.kernel(plan, ranked, sm_count, nearest=not kernels.can_build())
    return found or compiled(plan.form, knobs(ranked[0], sm_count), arch)


def compiled(form: Form, config: Any, arch: str = DEFAULT) -> Compiled:
    """The kernel of a form for all extents. MissingExtra without the DSL."""
    return Compiled(program(form, config, arch), kernels.of(config).flat)


@functools.cache
def _properties(index: int) -> tuple[tuple[int, int], int]:
    found = torch.cuda.get_device_properties(index)
    return (found.major, found.minor), found.multi_processor_count
