"""Tensors as callers hand them in: DLPack producers become torch's, what is no plain memory is refused by name."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tensorladder.core import attached, dlpack
from tensorladder.core.errors import UsageError
from tensorladder.ops.plan import Array

NAMES = {
    torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32",
    torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2",
}  # fmt: skip
TYPES = {name: dtype for dtype, name in NAMES.items()}


def name_of(dtype: torch.dtype) -> str:
    """An element type's name in a plan; torch's own where plans have none."""
    return NAMES.get(dtype, str(dtype).removeprefix("torch."))


def tensor(name: str, given: Any) -> Any:
    """A torch tensor of what was given: itself, or the memory of an array of numpy, cupy or jax. None stays None."""
    if isinstance(given, Tensor) and given.is_nested:
        raise UsageError(f"{name}: a nested tensor: it takes plain memory, pad it")
    if given is None or isinstance(given, Tensor):
        return given
    if not hasattr(given, "__dlpack__"):
        raise UsageError(f"{name}: {type(given).__name__}: it takes a torch tensor, or an array with __dlpack__")
    # torch ends the process at negative strides instead of raising.
    strides = getattr(given, "strides", None)
    if isinstance(strides, tuple) and any(step < 0 for step in strides):
        raise UsageError(f"{name}: strides {strides} in bytes: none may be negative, copy it")
    if name == "out" and isinstance(given, np.ndarray) and not given.flags.writeable:
        raise UsageError("out: a read-only array: give one that may be written")
    try:
        return torch.from_dlpack(dlpack.of_numpy(given) if isinstance(given, np.ndarray) else given)
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from error
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise UsageError(f"{name}: {type(given).__name__}: no DLPack: {str(error).splitlines()[0]}") from error


def number(name: str, given: Any) -> float:
    """A factor. UsageError unless it is one."""
    try:
        return float(given)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{name}: {given!r}: it takes a number") from error


def element_type(name: str, given: Any) -> None:
    """UsageError unless it is None or one of torch's types: an operator could not carry anything else."""
    if given is not None and not isinstance(given, torch.dtype):
        raise UsageError(f"{name}: {given!r}: it takes a torch.dtype, such as torch.float32")


def one_device(given: dict[str, Any]) -> None:
    """UsageError where tensors lie on different devices, the meta device among them: nothing would be computed."""
    there = {name: one.device for name, one in given.items() if one is not None}
    if any(place != there["a"] for place in there.values()):
        places = ", ".join(f"{name} on {place}" for name, place in there.items())
        raise UsageError(f"all tensors must lie on one device: {places}")


def in_memory(given: dict[str, Any]) -> None:
    """UsageError where a tensor has no memory: freed, or zeros that torch never made."""
    for name, one in given.items():
        if one is not None and one.numel() and not one.data_ptr():
            raise UsageError(f"{name}: has no memory of its own: copy it")


def ones(count: int, device: torch.device) -> Tensor:
    """Scales that are missing beside others that are given."""
    if attached.session is not None:  # memory of a script's device ends with it
        return torch.ones(count, dtype=torch.float32, device=device)
    return _kept_ones(count, device)


@functools.lru_cache(maxsize=64)
def _kept_ones(count: int, device: torch.device) -> Tensor:
    return torch.ones(count, dtype=torch.float32, device=device)


def maybe(name: str, given: Tensor | None) -> Array | None:
    """`array` of what may not be there."""
    return None if given is None else array(name, given)


def array(name: str, given: Tensor) -> Array:
    """A tensor as it is planned with. UsageError unless it is plain strided memory."""
    if given.layout is not torch.strided:
        raise UsageError(f"{name}: {given.layout}: it takes plain memory, {name}.to_dense()")
    if given.is_conj() or given.is_neg():
        raise UsageError(f"{name}: a conjugate or negative yet to be computed: {name}.resolve_conj().resolve_neg()")
    if type(given).__torch_dispatch__ is not PLAIN:
        raise UsageError(f"{name}: {type(given).__name__}: its memory is no plain tensor's, give it as one")
    return Array(tuple(given.shape), given.stride(), name_of(given.dtype), given.data_ptr())


PLAIN = Tensor.__torch_dispatch__
