"""The warm path: a call like one that has been here is one look-up, an empty result, and one call of the driver.

Nothing is planned again: extents, strides, types, devices and options are the key, and with them the addresses' last
bits, where they are not zero. What does not follow from the key is looked at in each call: that `out` shares no memory
with an operand, and that no tensor is a lazily negated one. torch's dispatcher is left out where it has nothing to do
(`eager`): that costs more than all else together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from tensorladder.ops.launch import SLOTS, Launcher

MOST = 2048  # calls that are remembered: at least so many of the last ones, at most twice as many
LOW = 15  # bits of an address that kernels may depend on
OUT = SLOTS.index("out")
PLAIN = frozenset((Tensor, torch.nn.Parameter))

_recent: dict[Any, Warm] = {}
_older: dict[Any, Warm] = {}

# As globals: each is looked up in every call.
_stream = torch._C._cuda_getCurrentRawStream if hasattr(torch._C, "_cuda_getCurrentRawStream") else None
_device = getattr(torch._C, "_cuda_getDevice", None)
_compiling = torch.compiler.is_compiling
_function_modes, _dispatch_modes = torch._C._len_torch_function_stack, torch._C._len_torch_dispatch_stack
_transforms, _traced = torch._C._are_functorch_transforms_active, torch._C._get_tracing_state
_grad_mode = torch.is_grad_enabled


def eager(*tensors: Any) -> bool:
    """Whether torch has nothing to do for a call but the call itself: no gradient, mode, transform, trace or subclass.

    None stands for a tensor that is not there.
    """
    if _compiling() or _function_modes() or _dispatch_modes() or _transforms() or forward_ad._current_level >= 0:
        return False
    if _traced() is not None:
        return False
    grads = _grad_mode()
    for one in tensors:
        if one is not None and (type(one) not in PLAIN or (grads and one.requires_grad)):
            return False
    return True


def look(options: Any, tensors: Sequence[Tensor | None]) -> tuple[Any, list[int]]:
    """The key of a call, and its addresses by `launch.SLOTS`, 0 for what is not there. RuntimeError for a tensor that
    has no memory of its own."""
    key: list[Any] = [options]
    addresses = []
    low = 0
    for one in tensors:
        if one is None:
            key.append(None)
            addresses.append(0)
        else:
            at = one.data_ptr()
            key += (one.shape, one.stride(), one.dtype, one.get_device())
            addresses.append(at)
            low |= at
    if low & LOW:
        key.append(tuple(at & LOW for at in addresses))
    return tuple(key), addresses


def call(options: Any, alpha: float, beta: float, tensors: Sequence[Tensor | None]) -> Tensor | None:
    """The result of a call that is known, or None, then nothing has been done. tensors: by `launch.SLOTS`.

    options: all else that the launch depends on; of alpha and beta whether they are zero.
    """
    if not _recent and not _older:
        return None
    try:
        key, addresses = look(options, tensors)
    except RuntimeError:  # sparse ones, and others without strides
        return None
    found = _recent.get(key) or _again(key)
    return None if found is None else found(alpha, beta, tensors, addresses)


def remember(
    options: Any, tensors: Sequence[Tensor | None], shape: Sequence[int], dtype: torch.dtype, launcher: Launcher
) -> None:
    """Keep what a call launched for calls like it. shape, dtype: the result's."""
    key, _ = look(options, tensors)
    _keep(key, Warm(tensors, tuple(shape), dtype, launcher))


def forget() -> None:
    """Drop all that is known, as where another choice would be made now."""
    _recent.clear()
    _older.clear()


def _keep(key: Any, warm: Warm) -> None:
    """Two generations: the older one is dropped when the recent one is full, but for what was asked for meanwhile."""
    global _recent, _older
    if len(_recent) >= MOST:
        _older, _recent = _recent, {}
    _recent[key] = warm


def _again(key: Any) -> Warm | None:
    found = _older.get(key)
    if found is not None:
        _keep(key, found)
    return found


class Warm:
    """What a call like one that has been here does."""

    def __init__(
        self, tensors: Sequence[Tensor | None], shape: tuple[int, ...], dtype: torch.dtype, launcher: Launcher
    ) -> None:
        self._launch, self._device = launcher.launch, launcher.device
        self._known, self._factors = launcher.factors.known, launcher.factors
        self._shape, self._dtype = shape, dtype
        self._strides = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
        self._several = torch.cuda.device_count() > 1
        given = [(slot, one) for slot, one in enumerate(tensors) if one is not None]
        # bfloat16 and 8-bit floats have no complex type whose parts could be lazily negated
        self._signed = tuple(slot for slot, one in given if one.dtype in (torch.float16, torch.float32))
        out = tensors[OUT]
        self._spans = [] if out is None else [(slot, _span(one), _same(one, out)) for slot, one in given if slot != OUT]
        self._reach = 0 if out is None else _span(out)

    def __call__(
        self, alpha: float, beta: float, tensors: Sequence[Tensor | None], addresses: list[int]
    ) -> Tensor | None:
        """The result, or None where the call is to be looked at more closely; then nothing has been done."""
        if self._several and _device() != self._device:
            with torch.cuda.device(self._device):
                return self(alpha, beta, tensors, addresses)
        for slot in self._signed:
            if tensors[slot].is_neg():  # type: ignore[union-attr]
                return None
        out = tensors[OUT]
        if out is None:
            out = _empty(self._shape, self._strides, self._dtype)
            addresses[OUT] = out.data_ptr()
        elif self._shares_memory(addresses):
            return None
        where = self._known.get((alpha, beta))
        kept = None
        if where is None:
            where, kept = self._factors.find(alpha, beta)
        addresses.append(where)
        self._launch(_stream(self._device), addresses)
        del kept  # its memory is in use until here
        return out

    def _shares_memory(self, addresses: Sequence[int]) -> bool:
        """Whether `out` does, with anything but an operand that lies exactly where the result goes."""
        begin = addresses[OUT]
        end = begin + self._reach
        return any(
            addresses[slot] < end and begin < addresses[slot] + span and not (same and addresses[slot] == begin)
            for slot, span, same in self._spans
        )


def _span(one: Tensor) -> int:
    """Bytes from a tensor's first element to its last, which is no 0."""
    return (1 + sum((extent - 1) * step for extent, step in zip(one.shape, one.stride()))) * one.element_size()


def _same(one: Tensor, out: Tensor) -> bool:
    return (one.shape, one.stride(), one.dtype) == (out.shape, out.stride(), out.dtype)


def _empty_on_current(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.empty_strided(shape, strides, dtype=dtype, device="cuda")


# What torch's own compiled code allocates with: it does not go through the dispatcher.
_empty = getattr(torch._C._dynamo.guards, "_empty_strided_cuda", _empty_on_current)
