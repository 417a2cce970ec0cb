"""The warm path: a call like one that has been here is one look-up, an empty result, and one call of the driver.

Nothing is planned again. What was launched is kept by extents, with a guard for all else of the tensors that it depends
on: strides, types, devices, subclasses, gradients, and torch's state in this thread (autograd, vmap and tracing are
part of a tensor's dispatch keys). That guard is torch's own, which compiled graphs are chosen with; where a version of
torch has another one, the same is asked in Python. What no guard sees is looked at in each call: modes, the last bits
of addresses, and whether `out` shares memory with an operand (`unrolled`).

torch's dispatcher is left out where it has nothing to do (`eager`): it costs more than all else together.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from tensorladder.core import attached
from tensorladder.ops.factors import UNIT
from tensorladder.ops.launch import NAMES, Launcher
from tensorladder.ops.unrolled import LOW, Kind, function

MOST = 2048  # extents that are remembered: at least so many of the last ones, at most twice as many
VARIANTS = 16  # of each: which tensors, their strides, types and so on, at most
PLAIN = frozenset((Tensor, torch.nn.Parameter))

Run = Callable[..., Any]
_recent: dict[Any, tuple[Run, ...]] = {}
_older: dict[Any, tuple[Run, ...]] = {}

# Looked up in every call.
_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
_device = getattr(torch._C, "_cuda_getDevice", None)
_dynamo = torch.compiler.is_dynamo_compiling
_function_modes, _dispatch_modes = torch._C._len_torch_function_stack, torch._C._len_torch_dispatch_stack
_gradients = torch.is_grad_enabled


written = torch.autograd.graph.increment_version
"""Says that a tensor was written to: autograd then refuses to go back through what had saved it."""


def eager(*tensors: Any) -> bool:
    """Whether torch has nothing to do for a call but the call itself: no gradient, mode, transform, trace or subclass.

    None stands for a tensor that is not there.
    """
    return plain(*tensors) and not (_gradients() and any(one is not None and one.requires_grad for one in tensors))


def plain(*tensors: Any) -> bool:
    """Whether torch has nothing to do but to differentiate: there is memory, and nobody who listens."""
    script = attached.session
    if script is None:
        kinds, modes = PLAIN, 0
    else:  # what stands in for a GPU does not count
        kinds, modes = PLAIN.union(script.tensor_types), script.modes
    if torch.compiler.is_compiling() or _function_modes() + _dispatch_modes() > modes or forward_ad._current_level >= 0:
        return False
    if torch._C._are_functorch_transforms_active() or torch._C._get_tracing_state() is not None:
        return False
    return all(one is None or (type(one) in kinds and not one.is_meta) for one in tensors)


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
        key = a.shape, b.shape, gated, activation, out is None, bias is None, residual is None
        variants = _recent.get(key) or _again(key)
    except (AttributeError, RuntimeError, TypeError):  # no tensors, or none with extents
        return None
    for run in variants:
        found = run(a, b, out, bias, residual, scale_a, scale_b, alpha, beta, out_dtype, tune, config)
        if found is not None:
            if run is not variants[0]:  # the next call is likely to be like this one
                _keep(key, (run, *(other for other in variants if other is not run)))
            return found
    return None


def remember(
    tensors: Sequence[Any], gated: str, activation: Any, options: tuple[Any, bool, Any], shape: Sequence[int],
    dtype: torch.dtype, launcher: Launcher,
) -> None:  # fmt: skip
    """Keep what a call launched for calls like it.

    tensors: by `launch.NAMES`. options: out_dtype, tune, config. shape, dtype: the result's.
    """
    a, b, out, bias, residual, *_ = tensors
    key = a.shape, b.shape, gated, activation, out is None, bias is None, residual is None
    made = _written(tensors, options, tuple(shape), dtype, launcher)
    _keep(key, (made, *(_recent.get(key) or _again(key)))[:VARIANTS])


def forget() -> None:
    """Drop all that is known, as where another choice would be made now."""
    _recent.clear()
    _older.clear()


def _keep(key: Any, variants: tuple[Run, ...]) -> None:
    """Two generations: the older one is dropped when the recent one is full, but for what was asked for meanwhile."""
    global _recent, _older
    if len(_recent) >= MOST:
        _older, _recent = _recent, {}
    _recent[key] = variants


def _again(key: Any) -> tuple[Run, ...]:
    found = _older.get(key, ())
    if found:
        _keep(key, found)
    return found


def _written(
    tensors: Sequence[Any], options: tuple[Any, bool, Any], shape: tuple[int, ...], dtype: torch.dtype,
    launcher: Launcher,
) -> Run:  # fmt: skip
    """The code of calls like one that has been here."""
    given = {name: one for name, one in zip(NAMES, tensors) if one is not None and name != "out"}
    out = tensors[NAMES.index("out")]
    every = [*given.values(), *[out] * (out is not None)]
    low = tuple(one.data_ptr() & LOW for one in every)
    numbered = [*given, "out", "factors"]
    kind = Kind(
        names=tuple(given),
        out=out is not None,
        low=low if any(low) else (),
        places=tuple(
            tuple((word, numbered[number], more) for word, number, more in one.places) for one in launcher.launches
        ),
        spans=tuple((_span(one), name == "residual" and _same(one, out)) for name, one in given.items()),
        reach=0 if out is None else _span(out),
        several=torch.cuda.device_count() > 1,
        wants=any(one.requires_grad for one in every),
    )
    asked, tuned, knobs = options
    return function(
        kind, asked=asked, tuned=tuned, knobs=knobs, guard=guard(every), gradients=_gradients,
        index=launcher.device, current=_stream, device=_device,
        on=torch.cuda.device, written=written, empty=_empty, shape=shape, dtype=dtype,
        strides=tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape))), known=launcher.factors.known,
        unit=launcher.factors.find(*UNIT)[0], find=launcher.factors.find, prepared=launcher.launches,
    )  # fmt: skip


def _span(one: Tensor) -> int:
    """Bytes from the first element of a tensor that has any to its last."""
    return (1 + sum((extent - 1) * step for extent, step in zip(one.shape, one.stride()))) * one.element_size()


def _same(one: Tensor, out: Tensor | None) -> bool:
    return out is not None and (one.shape, one.stride(), one.dtype) == (out.shape, out.stride(), out.dtype)


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
        except (AttributeError, RuntimeError, TypeError):  # no tensor, or one without strides
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
