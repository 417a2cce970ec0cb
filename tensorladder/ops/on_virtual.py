"""A planned product on the virtual GPU. Of CPU tensors: operands copied to its memory as they lie in ours, the result
copied back. In a script that has it for its CUDA device: on the memory of the script's device tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tensorladder.core.errors import importing_engine
from tensorladder.core.program import Program
from tensorladder.ops import kernels
from tensorladder.ops.architecture import Virtual
from tensorladder.ops.plan import Operand, Plan, operands
from tensorladder.problems import DTYPES

if TYPE_CHECKING:
    from tensorladder.vgpu.driver import Session

SMS = 132  # of the virtual GPU that is an sm_90a
ALIGN = 16
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}  # numpy has no bfloat16 and takes none from torch


def run(
    plan: Plan, tensors: dict[str, torch.Tensor | None], factors: tuple[float, float], config: Any,
    program: Callable[[Any, Any, str], Any], where: Virtual,
) -> None:  # fmt: skip
    """Multiply CPU tensors. factors: alpha and beta. program: compiles a kernel of a form, a config and an
    architecture."""
    with importing_engine():
        from tensorladder.vgpu import Device
    device = Device(arch=where.arch, policy=where.policy)
    given = {**tensors, "factors": torch.tensor(factors, dtype=torch.float32)}
    arrays: dict[str, np.ndarray | None] = {}
    for name, operand in operands(plan, kernels.of(config).flat).items():
        tensor = given.get(name)
        arrays[name] = None
        if operand is not None and tensor is not None:
            size = DTYPES[operand.dtype].numpy.itemsize
            before = tensor.data_ptr() % ALIGN // size  # unaligned as in our memory
            memory = device.memory.empty(name, (before + operand.elements,), DTYPES[operand.dtype].numpy)
            arrays[name] = array = strided(memory[before:], operand)
            if name != "out":
                array[...] = seen(tensor, operand)
    stream = device.stream()
    program(plan.form, config, where.arch)(stream, *arrays.values())
    stream.synchronize()
    out = operands(plan, kernels.of(config).flat)["out"]
    assert out is not None and given["out"] is not None
    seen(given["out"], out)[...] = arrays["out"]


def launch(
    plan: Plan, tensors: dict[str, torch.Tensor | None], factors: tuple[float, float], config: Any, program: Program,
    session: Session,
) -> None:  # fmt: skip
    """Multiply device tensors of a script that runs on the virtual GPU, where they lie. program: of plan and config."""
    given = {**tensors, "factors": torch.tensor(factors, dtype=torch.float32, device="cuda")}
    enqueue([(given.get(name), one) for name, one in operands(plan, kernels.of(config).flat).items()], program, session)


def enqueue(given: Sequence[tuple[torch.Tensor | None, Operand | None]], program: Program, session: Session) -> None:
    """Launch a program on a script's current stream. given: its tensors, each with what it is for the kernel; None for
    what is not there."""
    with torch._C.DisableTorchFunction():  # as the host's memory that they are
        plain = [None if one is None else one.as_subclass(torch.Tensor) for one, _ in given]
        arrays = [
            None if one is None or operand is None else seen(one, operand) for one, (_, operand) in zip(plain, given)
        ]
    session.keep(plain)
    stream = session.streams.current
    session.run_all([replace(one, stream=stream) for one in program.launches(*arrays)])


def seen(tensor: torch.Tensor, operand: Operand) -> np.ndarray:
    """A CPU tensor's memory as the array that a kernel sees."""
    tensor = tensor.detach().as_strided(operand.shape, operand.strides)
    return tensor.view(BITS[tensor.element_size()]).numpy().view(DTYPES[operand.dtype].numpy)


def strided(memory: np.ndarray, operand: Operand) -> np.ndarray:
    """Elements of a vector as an operand. Of those that are the same for all products any may be written."""
    steps = [step * memory.itemsize for step in operand.strides]
    bits = memory.view(f"u{memory.itemsize}")  # numpy's strides are not for float8_e5m2
    return np.lib.stride_tricks.as_strided(bits, operand.shape, steps).view(memory.dtype)
