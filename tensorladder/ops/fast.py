"""The warm path: a call like one that has been here is one look-up, an empty result, and one call of the driver.

Nothing is planned again. What was launched is kept by extents and options, with a guard for all else of the tensors
that it depends on: strides, types, devices, subclasses, gradients, and torch's state in this thread (autograd, vmap and
tracing are part of a tensor's dispatch keys). That guard is torch's own, which compiled graphs are chosen with; where a
version of torch has another one, the same is asked in Python. What no guard sees is looked at in each call: modes, the
last bits of addresses, and whether `out` shares memory with an operand.

torch's dispatcher is left out where it has nothing to do (`eager`): it costs more than all else together.
"""

from __future__ import annotations

import functools
import math
import operator
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from tensorladder.ops.launch import NAMES, Launcher

MOST = 2048  # sets of extents and options that are remembered: at least so many of the last ones, at most twice as many
VARIANTS = 8  # of each: strides, types and so on, at most
LOW = 15  # bits of an address that kernels may depend on
OUT, RESIDUAL = NAMES.index("out"), NAMES.index("residual")
PLAIN = frozenset((Tensor, torch.nn.Parameter))

_recent: dict[Any, tuple[Warm, ...]] = {}
_older: dict[Any, tuple[Warm, ...]] = {}

# Looked up in every call.
_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
_device = getattr(torch._C, "_cuda_getDevice", None)
_dynamo = torch.compiler.is_dynamo_compiling
_function_modes, _dispatch_modes = torch._C._len_torch_function_stack, torch._C._len_torch_dispatch_stack
_gradients = torch.is_grad_enabled


def eager(*tensors: Any) -> bool:
    """Whether torch has nothing to do for a call but the call itself: no gradient, mode, transform, trace or subclass.

    None stands for a tensor that is not there.
    """
    return plain(*tensors) and not (_gradients() and any(one is not None and one.requires_grad for one in tensors))


def plain(*tensors: Any) -> bool:
    """Whether torch has nothing to do but to differentiate: there is memory, and nobody who listens."""
    if torch.compiler.is_compiling() or _function_modes() or _dispatch_modes() or forward_ad._current_level >= 0:
        return False
    if torch._C._are_functorch_transforms_active() or torch._C._get_tracing_state() is not None:
        return False
    return all(one is None or (type(one) in PLAIN and not one.is_meta) for one in tensors)


def key_of(
    a: Any, b: Any, out: Any, bias: Any, residual: Any, scale_a: Any, scale_b: Any, gated: str, activation: Any,
    beta: float, out_dtype: Any, tune: bool, config: Any,
) -> Any:  # fmt: skip
    """What a call is kept by. alpha and beta lie in memory: whether beta is zero is checked, its value is not."""
    return (
        a.shape, b.shape, out is None, bias is None, residual is None, scale_a is None, scale_b is None, gated,
        activation, not beta, out_dtype, tune, config,
    )  # fmt: skip


def call(
    a: Any, b: Any, out: Any, bias: Any, residual: Any, scale_a: Any, scale_b: Any, gated: str, activation: Any,
    alpha: float, beta: float, out_dtype: Any, tune: bool, config: Any, inside: bool = False,
) -> Tensor | None:  # fmt: skip
    """The result of a call that is known, or None, then nothing has been done.

    inside: below torch's dispatcher; otherwise None also where that must be asked.
    """
    if not inside and (_dynamo() or _function_modes() or _dispatch_modes() or forward_ad._current_level >= 0):
        return None
    try:
        key = (
            a.shape, b.shape, out is None, bias is None, residual is None, scale_a is None, scale_b is None, gated,
            activation, not beta, out_dtype, tune, config,
        )  # fmt: skip
        variants = _recent.get(key) or _again(key)
        for warm in variants:
            given = warm.pick((a, b, out, bias, residual, scale_a, scale_b))
            if warm.guard(*given) and not (warm.wants and _gradients()):
                break
        else:
            return None
    except (AttributeError, RuntimeError, TypeError):  # no tensor, none with extents, a config that is none
        return None
    return warm.run(alpha, beta, out, given)


def remember(
    key: Any, tensors: Sequence[Tensor | None], shape: Sequence[int], dtype: torch.dtype, launcher: Launcher
) -> None:
    """Keep what a call launched for calls like it. tensors: by `launch.NAMES`. shape, dtype: the result's."""
    variants = (Warm(tensors, tuple(shape), dtype, launcher), *(_recent.get(key) or _again(key)))
    _keep(key, variants[:VARIANTS])


def forget() -> None:
    """Drop all that is known, as where another choice would be made now."""
    _recent.clear()
    _older.clear()


def _keep(key: Any, variants: tuple[Warm, ...]) -> None:
    """Two generations: the older one is dropped when the recent one is full, but for what was asked for meanwhile."""
    global _recent, _older
    if len(_recent) >= MOST:
        _older, _recent = _recent, {}
    _recent[key] = variants


def _again(key: Any) -> tuple[Warm, ...]:
    found = _older.get(key, ())
    if found:
        _keep(key, found)
    return found


class Warm:
    """What a call like one that has been here does.

    pick: the tensors that are there, of all of them, `out` last. guard: whether such are like those. wants: one of them
    wants a gradient where there are gradients.
    """

    __slots__ = (
        "_device", "_dtype", "_factors", "_known", "_launch", "_low", "_reach", "_several", "_shape", "_spans",
        "_strides", "guard", "pick", "wants",
    )  # fmt: skip

    def __init__(
        self, tensors: Sequence[Tensor | None], shape: tuple[int, ...], dtype: torch.dtype, launcher: Launcher
    ) -> None:
        self._launch, self._device = launcher.launch, launcher.device
        self._known, self._factors = launcher.factors.known, launcher.factors
        self._shape, self._dtype = shape, dtype
        self._strides = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
        self._several = torch.cuda.device_count() > 1
        places = [slot for slot, one in enumerate(tensors) if one is not None and slot != OUT]
        out = tensors[OUT]
        self.pick = operator.itemgetter(*places, *[OUT] * (out is not None))
        given = self.pick(tensors)
        self.guard = guard(given)
        self.wants = any(one.requires_grad for one in given)
        self._low = _low([one.data_ptr() for one in given])
        self._reach = 0 if out is None else _span(out)
        self._spans = [
            (_span(tensors[slot]), slot == RESIDUAL and _same(tensors[slot], out)) for slot in places if out is not None
        ]

    def run(self, alpha: float, beta: float, out: Tensor | None, given: Sequence[Tensor]) -> Tensor | None:
        """The result, or None where the call is to be looked at more closely; then nothing has been done."""
        if self._several and _device() != self._device:
            with torch.cuda.device(self._device):
                return self.run(alpha, beta, out, given)
        addresses, low = [], 0
        for one in given:
            at = one.data_ptr()
            low |= at
            addresses.append(at)
        if (low & LOW or self._low) and _low(addresses) != self._low:
            return None
        if out is None:
            out = _empty(self._shape, self._strides, self._dtype)
            addresses.append(out.data_ptr())
        elif self._shares_memory(addresses):
            return None
        where, kept = self._known.get((alpha, beta)), None
        if where is None:
            where, kept = self._factors.find(alpha, beta)
        addresses.append(where)
        self._launch(_stream(self._device), addresses)
        del kept  # its memory is in use until here
        return out

    def _shares_memory(self, addresses: Sequence[int]) -> bool:
        """Whether `out` does, with anything but a residual that lies exactly where the result goes."""
        begin = addresses[-1]
        end = begin + self._reach
        return any(
            at < end and begin < at + span and not (same and at == begin)
            for at, (span, same) in zip(addresses, self._spans)
        )


def _low(addresses: Sequence[int]) -> tuple[int, ...]:
    """The last bits of addresses, which a launch may depend on; () where all are zero."""
    low = tuple(at & LOW for at in addresses)
    return low if any(low) else ()


def _span(one: Tensor) -> int:
    """Bytes from the first element of a tensor that has any to its last."""
    return (1 + sum((extent - 1) * step for extent, step in zip(one.shape, one.stride()))) * one.element_size()


def _same(one: Tensor, out: Tensor) -> bool:
    return (one.shape, one.stride(), one.dtype) == (out.shape, out.stride(), out.dtype)


def _empty_on_current(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.empty_strided(shape, strides, dtype=dtype, device="cuda")


# What torch's own compiled code allocates with: it does not go through the dispatcher.
_empty = getattr(torch._C._dynamo.guards, "_empty_strided_cuda", _empty_on_current)


# ------------------------------------------------------------------------------------------------------------- guards


def guard(tensors: Sequence[Tensor]) -> Any:
    """A function that says whether as many tensors are like these, in this thread's state, but for their memory."""
    return (_native if _native_is_right() else Guard)(*tensors).check


def _native(*tensors: Tensor) -> Any:
    """The guard that torch.compile uses."""
    return torch._C._dynamo.guards.TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)


class Guard:
    """The same in Python."""

    def __init__(self, *tensors: Tensor) -> None:
        self._wanted = [_facts(one) for one in tensors]

    def check(self, *tensors: Tensor) -> bool:
        """Whether these are like those that it was made of."""
        try:
            return [_facts(one) for one in tensors] == self._wanted
        except RuntimeError:  # no strides
            return False


def _facts(one: Tensor) -> tuple[Any, ...]:
    state = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    keys = torch._C._dispatch_keys(one).raw_repr(), *(found.raw_repr() for found in state)
    return type(one), one.shape, one.stride(), one.dtype, one.device, one.requires_grad, keys


@functools.cache
def _native_is_right() -> bool:
    """Whether torch's guard is there, takes what it takes here, and tells apart what must be told apart."""
    try:
        one = torch.zeros(2, 3)
        made = _native(one, one).check
        others = [
            one.half(), torch.zeros(3, 2), torch.zeros(3, 2).t(), torch.zeros(2, 3).requires_grad_(),
            torch._neg_view(one), torch._efficientzerotensor(2, 3), one.to_sparse(), torch.nn.Parameter(one, False),
        ]  # fmt: skip
        seen: list[bool] = [made(one, other) for other in others]

        def look(inside: Tensor) -> Tensor:
            seen.extend((made(one, one), made(inside, inside)))
            return inside.clone()

        torch.func.vmap(look)(torch.zeros(2, 2, 3))
        with torch.inference_mode():
            look(one)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.jit.trace(look, one, check_trace=False)
        return made(one, torch.zeros(2, 3)) and not any(seen)
    except Exception:
        return False
