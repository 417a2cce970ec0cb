"""Where torch's C++ calls back into a script's Python: backward functions and kernels of custom operators.

Torch switches its function modes and subclasses off while it runs an operation, so that code which it calls from inside
one (the autograd engine, the dispatcher) would see plain host tensors and no device. Here both are switched on again,
and tensors that lie in device memory are handed over as `CudaTensor`. Kernels that a script registers for CUDA stand
under the CPU's key as well, since that is where the dispatcher finds the tensors.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.autograd import function as autograd_function
from torch.overrides import _get_current_function_mode_stack
from torch.utils import checkpoint
from torch.utils._pytree import tree_leaves, tree_map

from .session import Session
from .tensors import CudaTensor, OnHost, is_device_memory

Point = tuple[Any, str, Any]
"""An object, the name of its attribute, what stands there in a script."""

_NOT_KERNELS = ("Meta", "Autograd", "ADInplaceOrView", "BackendSelect")


@contextlib.contextmanager
def entered(mode: OnHost) -> Iterator[None]:
    """Torch functions of the script's code see `mode` and the subclass, whatever is switched off around it."""
    with torch._C._EnableTorchFunction():
        if mode in _get_current_function_mode_stack():
            yield
        else:
            with mode:
                yield


def points(session: Session, mode: OnHost) -> list[Point]:
    """What is replaced while a script runs."""
    return [*_backward(session, mode), (torch.library.Library, "impl", _impl(session, mode)), *_checkpoint()]


def _checkpoint() -> list[Point]:
    """What checkpointing compares of a tensor that it computes again: not the device, which saved tensors may lack."""
    name = "_allowed_determinism_checks_to_fns"
    known = getattr(checkpoint, name, None)
    if known is None or "default" not in known:  # another torch
        return []
    return [(checkpoint, name, {**known, "default": lambda x: {"shape": x.shape, "dtype": x.dtype}})]


def _on_device(session: Session, tree: Any) -> Any:
    """`tree` with the tensors in device memory as device tensors."""

    def on_device(x: Any) -> Any:
        return x.as_subclass(CudaTensor) if not isinstance(x, CudaTensor) and is_device_memory(session, x) else x

    return tree_map(on_device, tree)


def _backward(session: Session, mode: OnHost) -> list[Point]:
    backward = autograd_function.BackwardCFunction
    original_apply, original_engine = backward.apply, torch.autograd.graph._engine_run_backward
    saved = torch._C._FunctionBase.saved_tensors.__get__  # type: ignore[attr-defined]

    def saved_tensors(node: Any) -> Any:
        return _on_device(session, saved(node))

    def apply(node: Any, *gradients: Any) -> Any:
        """The engine's gradients are plain tensors; they belong to the GPU where what was saved lies there."""
        if _is_gpu_node(session, node, saved(node)):
            gradients = tuple(_claimed(mode, g) for g in gradients)
        with entered(mode):
            return original_apply(node, *gradients)

    def engine(*args: Any, **kwargs: Any) -> Any:
        """The engine runs each node on the stream of its forward operation and orders them by itself."""
        session.streams.barrier()
        with entered(mode):
            result = original_engine(*args, **kwargs)
        session.streams.barrier()
        return result

    return [
        (backward, "saved_tensors", property(saved_tensors)),
        (backward, "apply", apply),
        (torch.autograd.graph, "_engine_run_backward", engine),
        (torch.autograd, "_engine_run_backward", engine),
    ]


def _is_gpu_node(session: Session, node: Any, saved: tuple[Any, ...]) -> bool:
    """A node that holds no tensor at all is taken for one of the GPU's: that is what such scripts are about."""
    held = [x for x in (*saved, *vars(node).values()) if isinstance(x, torch.Tensor)]
    return not held or any(is_device_memory(session, x) for x in held)


def _claimed(mode: OnHost, gradient: Any) -> Any:
    return mode.claim(gradient) if isinstance(gradient, torch.Tensor) else gradient


def _impl(session: Session, mode: OnHost) -> Callable[..., None]:
    """torch.library.Library.impl: kernels are entered as a script's code, those for CUDA stand beside the CPU's."""
    original = torch.library.Library.impl
    by_device: dict[tuple[str, str], dict[str, Callable[..., Any]]] = {}

    def entering(fn: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(fn)
        def kernel(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = _on_device(session, (args, kwargs))
            with entered(mode):
                return fn(*args, **kwargs)

        return kernel

    def choosing(name: str, kernels: dict[str, Callable[..., Any]]) -> Callable[..., Any]:
        def kernel(*args: Any, **kwargs: Any) -> Any:
            tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
            wanted = "CPU" if tensors and not any(is_device_memory(session, x) for x in tensors) else "CUDA"
            if wanted not in kernels:
                raise NotImplementedError(f"Could not run {name!r} with arguments from the {wanted!r} backend")
            return kernels[wanted](*args, **kwargs)

        return kernel

    def impl(library: Any, op_name: Any, fn: Any, dispatch_key: str = "", **kwargs: Any) -> None:
        key = dispatch_key or library.dispatch_key
        if kwargs.get("with_keyset") or any(key.startswith(name) for name in _NOT_KERNELS):
            return original(library, op_name, fn, dispatch_key, **kwargs)
        if key not in ("CPU", "CUDA"):
            return original(library, op_name, entering(fn), dispatch_key, **kwargs)
        kernels = by_device.setdefault((library.ns, str(op_name)), {})
        known, kernels[key] = bool(kernels), entering(fn)
        if not known:
            for name in ("CPU", "CUDA"):
                original(library, op_name, choosing(str(op_name), kernels), name, **kwargs)
        return None

    return impl
