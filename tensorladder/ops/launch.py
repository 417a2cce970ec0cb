"""Launches of planned products on a GPU, made once for what they depend on but addresses.

A kernel for all extents comes with host code, the DSL's own or a packed one, which computes grids and tensor maps.
It is asked once for each product (`measure.dynamic.templates`); from then on a launch is its parameters with the
addresses of a call, and one call of the driver.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from tensorladder.core.program import Module, Program
from tensorladder.measure.dynamic import digest_of, templates
from tensorladder.ops import factors
from tensorladder.ops.inputs import TYPES
from tensorladder.ops.plan import ALIGN, Plan, operands
from tensorladder.silicon import driver
from tensorladder.silicon.pack import Array, Template

NAMES = ("a", "b", "out", "bias", "residual", "scale_a", "scale_b")
"""The tensors of a call, in this order."""
_DTYPES = {name: str(dtype).removeprefix("torch.") for name, dtype in TYPES.items()}


class Compiled(NamedTuple):
    """A kernel for all extents of a form. flat: as `ops.kernels` has it. unread: as `templates` takes it."""

    program: Program
    flat: bool
    unread: Mapping[str, Any] | None = None


class Launcher:
    """One product's launches on one GPU, wherever its tensors lie.

    Their places number the addresses of the call's tensors that there are, in `order`, and the factors' last. The last
    bits must be those of the addresses that it was made for; nothing is checked.
    """

    def __init__(self, device: int, launches: Sequence[driver.Prepared]) -> None:
        self.device = device
        self.factors = factors.of(device)
        self.launches = tuple(launches)

    def __call__(self, call: Mapping[str, torch.Tensor | None], alpha: float, beta: float) -> None:
        """Launch on the current stream of the GPU, which is the current one. call: the tensors by name."""
        where, _kept = self.factors.find(alpha, beta)
        stream = torch.cuda.current_stream(self.device).cuda_stream
        addresses = [*(_address(call[name]) for name in order(call)), where]
        for one in self.launches:
            one.launch(stream, addresses)


def order(call: Mapping[str, torch.Tensor | None]) -> list[str]:
    """The names of a call's tensors in the order in which a launcher takes their addresses."""
    return [*(name for name in NAMES if name != "out" and call.get(name) is not None), "out"]


def make(
    plan: Plan, kernel: Compiled, tensors: Mapping[str, torch.Tensor | None],
    call: Mapping[str, torch.Tensor | None], device: int,
) -> Launcher:  # fmt: skip
    """Ask a kernel's host code what it launches for a product, and load that on the current GPU, which is `device`.

    tensors: what the kernel takes, by the names of `operands`, "factors" left out. call: the call's own by `NAMES`,
    with the result: their addresses are what a launcher takes. "up" lies in the call's b; what is in `tensors` alone
    stays where it is (a scale that stands for a missing one).
    """
    made = relative(plan, kernel, tensors, call)
    return Launcher(device, [prepared(kernel.program, one, device) for one in made])


def relative(
    plan: Plan, kernel: Compiled, tensors: Mapping[str, torch.Tensor | None], call: Mapping[str, torch.Tensor | None]
) -> list[Template]:
    """The templates of a product's launches, whose `addresses` number those that a launcher takes."""
    given = operands(plan, kernel.flat)
    arrays = [
        None if operand is None else Array(name, operand.shape, operand.strides, _DTYPES[operand.dtype], name == "out")
        for name, operand in given.items()
    ]
    here = {name: _address(tensors.get(name)) for name in given}
    low = [address % ALIGN for address in here.values()]
    numbers = {name: number for number, name in enumerate([*order(call), "factors"])}
    bases = {name: _address(call.get(name)) for name in numbers}
    return [
        _moved(one, list(here.items()), numbers, bases) for one in templates(kernel.program, arrays, kernel.unread, low)
    ]


def _moved(
    one: Template, here: Sequence[tuple[str, int]], numbers: Mapping[str, int], bases: Mapping[str, int]
) -> Template:
    """A template of a kernel's arguments as one of a call's tensors."""
    params, places = bytearray(one.params), []
    for at, argument, more in one.addresses:
        name, address = here[argument]
        base = "b" if name == "up" else name
        if base in numbers:
            places.append((at, numbers[base], address - bases[base] + more))
        else:
            struct.pack_into("<Q", params, at, address + more)
    return replace(one, params=bytes(params), addresses=tuple(places))


def _address(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def prepared(program: Program, one: Template, device: int) -> driver.Prepared:
    """A program's launch, its code loaded on the current GPU, which is `device`."""
    module = next(found for found in program.modules if digest_of(found) == one.code)
    return driver.Prepared(one.launch(module), one.offsets, _function(module, one, device), one.addresses, device)


_functions: dict[tuple[int, str, str], Any] = {}
_loading = threading.Lock()


def _function(module: Module, one: Template, device: int) -> Any:
    """A kernel on a GPU, loaded once and never unloaded: launches that are queued, and graphs, hold it."""
    key = (device, one.code, one.kernel)
    with _loading:
        if key not in _functions:
            _functions[key] = driver.load(module.cubin or b"", one.kernel)
        return _functions[key]
