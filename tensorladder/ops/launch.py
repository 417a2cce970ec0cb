"""Launches of planned products on a GPU, made once for what they depend on but addresses.

A kernel for all extents comes with host code, the DSL's own or a packed one, which computes grids and tensor maps.
It is asked once for each product (`measure.dynamic.templates`); from then on a launch is its parameters with the
addresses of a call, and one call of the driver.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from tensorladder.core.program import Launch, Module, Program
from tensorladder.measure.dynamic import digest_of, templates
from tensorladder.ops import factors
from tensorladder.ops.plan import ALIGN, Plan, operands
from tensorladder.silicon import driver
from tensorladder.silicon.pack import Array, Template

SLOTS = ("a", "b", "out", "bias", "residual", "scale_a", "scale_b")
"""The order in which a launcher takes addresses; the factors' follows."""
FACTORS = len(SLOTS)
_SLOT = {**{name: number for number, name in enumerate(SLOTS)}, "up": SLOTS.index("b"), "factors": FACTORS}
_DTYPES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "e4m3": "float8_e4m3fn"}


class Compiled(NamedTuple):
    """A kernel for all extents of a form. flat: as `ops.kernels` has it. unread: as `templates` takes it."""

    program: Program
    flat: bool
    unread: Mapping[str, Any] | None = None


class Launcher:
    """One product's launches on one GPU, wherever its tensors lie.

    launch(stream, addresses): hands them to the driver. addresses: by `SLOTS`, 0 for what is not there, and the
    factors' last; alignment must be that of the addresses which it was made for, nothing is checked.
    """

    def __init__(self, device: int, launches: Sequence[driver.Prepared]) -> None:
        self.device = device
        self.factors = factors.of(device)
        self._launches = tuple(launches)
        self.launch = launches[0].launch if len(launches) == 1 else self._all

    def _all(self, stream: int, addresses: Sequence[int]) -> None:
        for one in self._launches:
            one.launch(stream, addresses)

    def __call__(self, addresses: Sequence[int], alpha: float, beta: float) -> None:
        """Launch on the current stream of the GPU, which is the current one. addresses: by `SLOTS`."""
        where, _kept = self.factors.find(alpha, beta)
        self.launch(torch.cuda.current_stream(self.device).cuda_stream, [*addresses, where])


def make(
    plan: Plan, kernel: Compiled, tensors: Mapping[str, torch.Tensor | None], addresses: Sequence[int], device: int
) -> Launcher:
    """Ask a kernel's host code what it launches for a product, and load that on the current GPU, which is `device`.

    tensors: what the kernel takes, by the names of `operands`, "factors" left out. addresses: those of a call by
    `SLOTS`, from which the tensors' follow: "up" from b's, one that stands for a missing scale from 0.
    """
    made = relative(plan, kernel, tensors, addresses)
    return Launcher(device, [_prepared(kernel.program, one, device) for one in made])


def relative(
    plan: Plan, kernel: Compiled, tensors: Mapping[str, torch.Tensor | None], addresses: Sequence[int]
) -> list[Template]:
    """The templates of a product's launches, whose `addresses` name slots."""
    given = operands(plan, kernel.flat)
    arrays = [
        None if operand is None else Array(name, operand.shape, operand.strides, _DTYPES[operand.dtype], name == "out")
        for name, operand in given.items()
    ]
    here = [_address(tensors.get(name)) for name in given]
    made = templates(kernel.program, arrays, kernel.unread, [address % ALIGN for address in here])
    slots = [_SLOT[name] for name in given]
    base = [*addresses, 0]
    more = [address - base[slot] for address, slot in zip(here, slots)]
    return [
        replace(one, addresses=tuple((at, slots[number], more[number] + add) for at, number, add in one.addresses))
        for one in made
    ]


def _address(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _prepared(program: Program, one: Template, device: int) -> driver.Prepared:
    module = next(found for found in program.modules if digest_of(found) == one.code)
    launch = Launch(module, one.kernel, one.grid, one.block, one.params, one.smem, one.cluster, one.attributes)
    return driver.Prepared(launch, one.offsets, _function(module, one, device), one.addresses, device)


_functions: dict[tuple[int, str, str], Any] = {}
_loading = threading.Lock()


def _function(module: Module, one: Template, device: int) -> Any:
    """A kernel on a GPU, loaded once and never unloaded: launches that are queued, and graphs, hold it."""
    key = (device, one.code, one.kernel)
    with _loading:
        if key not in _functions:
            _functions[key] = driver.load(module.cubin or b"", one.kernel)
        return _functions[key]
