"""Tensors that say they lie on a CUDA device and lie in host memory.

`CudaTensor` is a subclass of torch.Tensor; torch's own subclass protocol makes every result of an operation on one
another. `OnHost` is the function mode that turns device="cuda" into one. Matrix products and normalisations of 16-bit
tensors, with their gradients, run in float32 and are rounded once, as on a GPU; torch's own CPU code rounds between.
"""

from __future__ import annotations

import ctypes
import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from . import scaled
from .session import HostRange, Session
from .streams import Extent, pieces

_ALIGN = 256
_GAP = 4096
_UNWRITTEN = {"empty", "empty_like", "empty_strided", "new_empty"}
_GRADIENT = torch.Tensor.grad.__get__  # type: ignore[attr-defined]
_HALF = (torch.float16, torch.bfloat16)
_IN_FLOAT32 = {
    torch.matmul, torch.mm, torch.bmm, torch.mv, torch.dot, torch.addmm, torch.baddbmm, torch.einsum,
    torch.nn.functional.linear, torch.Tensor.matmul, torch.Tensor.mm, torch.Tensor.bmm, torch.Tensor.__matmul__,
    torch.Tensor.__rmatmul__, torch.Tensor.addmm,
    torch.nn.functional.layer_norm, torch.nn.functional.group_norm, torch.layer_norm, torch.group_norm,
}  # fmt: skip
#: what may be done with device tensors while a graph is captured: nothing is launched for it
_NO_LAUNCH = {
    "__get__", "__dlpack__", "__dlpack_device__", "data_ptr", "size", "stride", "dim", "numel", "element_size",
    "storage_offset", "is_contiguous", "untyped_storage", "view", "permute", "transpose", "t", "unsqueeze", "squeeze",
    "detach", "empty", "empty_like", "empty_strided", "new_empty", "as_strided", "expand", "get_device",
    "is_floating_point",
    "__hash__", "__len__", "__format__", "__repr__", "as_subclass", "requires_grad_", "nelement", "_is_view",
}  # fmt: skip
#: what the host waits for, which CUDA refuses while a graph is captured
_WAITS = {
    "__bool__", "__int__", "__float__", "__index__", "__contains__", "item", "tolist", "cpu", "nonzero", "equal",
    "is_nonzero",
}  # fmt: skip


class CudaTensor(torch.Tensor):
    """A tensor of "cuda:0" whose memory is the host's."""

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True

    @property
    def is_cpu(self) -> bool:  # type: ignore[override]
        return False

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda", 0)

    def get_device(self) -> int:
        return 0

    def cuda(self, *_: Any, **__: Any) -> CudaTensor:
        return self

    def cpu(self, *_: Any, **__: Any) -> torch.Tensor:
        """A copy: on a GPU the host's tensor does not see what later kernels write."""
        copy = plain(self).clone()
        for mode in _get_current_function_mode_stack():
            if isinstance(mode, OnHost):
                mode.host_waits()
        return copy

    def record_stream(self, stream: Any) -> None:
        """Memory is given back when nobody holds it any more and what the stream has to do by then is done."""
        for mode in _get_current_function_mode_stack():
            if isinstance(mode, OnHost):
                mode.used_on(self, stream)

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")

    def __deepcopy__(self, memo: dict[int, Any]) -> CudaTensor:
        return memo.setdefault(id(self), self.detach().clone().requires_grad_(self.requires_grad))

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Saved as a tensor of the host: a file means the same without this class."""
        return plain(self).__reduce_ex__(protocol)

    def __repr__(self, **_: Any) -> str:
        return repr(plain(self))[:-1] + ", device='cuda:0')"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch._scaled_mm:
            bound = dict(zip(("a", "b", "scale_a", "scale_b"), args), **kwargs)
            if scaled.takes(bound["a"], bound["scale_a"]):
                return _block_scaled(*args, **kwargs)
        if func in _IN_FLOAT32:
            inputs = {name: value for name, value in kwargs.items() if name not in ("out", "out_dtype")}
            (args, inputs), dtype = _widened((args, inputs))
            if dtype is not None or "out_dtype" in kwargs:  # torch has the latter on GPUs alone
                result = super().__torch_function__(func, types, args, inputs)
                result = result.to(kwargs.get("out_dtype") or dtype or result.dtype)
                return result if kwargs.get("out") is None else kwargs["out"].copy_(result)
        result = super().__torch_function__(func, types, args, kwargs)
        # what the host copies to is the host's, whatever it comes from
        return args[0] if func == torch.Tensor.copy_ and not isinstance(args[0], cls) else result


def _block_scaled(*args: Any, use_fast_accum: bool = False, **kwargs: Any) -> CudaTensor:
    """torch._scaled_mm with block scales."""
    with torch._C.DisableTorchFunctionSubclass():
        return scaled.product(*args, **kwargs).as_subclass(CudaTensor)


def _widened(tree: Any) -> tuple[Any, torch.dtype | None]:
    """`tree` with its 16-bit tensors in float32, and what they were; (tree, None) where another dtype is among them."""
    leaves, shape = tree_flatten(tree)
    dtypes = {leaf.dtype for leaf in leaves if isinstance(leaf, torch.Tensor)}
    if len(dtypes) != 1 or not dtypes <= set(_HALF):
        return tree, None
    with torch._C.DisableTorchFunctionSubclass():
        wide = [leaf.float().as_subclass(type(leaf)) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    return tree_unflatten(wide, shape), dtypes.pop()


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as an ordinary CPU tensor."""
    return tensor.as_subclass(torch.Tensor)


def is_device_memory(session: Session, thing: Any) -> bool:
    """Whether this is a tensor in the memory of a device tensor, though perhaps a plain one."""
    if not isinstance(thing, torch.Tensor) or thing.layout != torch.strided:
        return False
    with torch._C.DisableTorchFunction():
        return session.tracks(thing.untyped_storage())


def claims_cuda(device: Any) -> bool:
    """Whether a device argument means the GPU: "cuda", "cuda:0", torch.device, or an index; RuntimeError as of
    `require_device`."""
    require_device(device)
    return _index(device) is not None


def require_device(device: Any) -> None:
    """Torch's own RuntimeError where a device argument means a GPU other than cuda:0, the only one."""
    index = _index(device)
    if index not in (None, -1, 0):  # -1: the current one
        raise RuntimeError(f"CUDA error: invalid device ordinal: {index}, and cuda:0 is the only device")


def _index(device: Any) -> int | None:
    """Which GPU a device argument means; None where it means none."""
    if isinstance(device, str | torch.device):
        device = torch.device(device)
        return (device.index or 0) if device.type == "cuda" else None
    return device if isinstance(device, int) and not isinstance(device, bool) else None


class OnHost(TorchFunctionMode):
    """Factories and moves with device="cuda" yield `CudaTensor`; "cpu" yields plain tensors."""

    def __init__(self, session: Session):
        super().__init__()
        self._session = session
        self.default_is_cuda = False
        self._moves = {torch.Tensor.to: self._to, torch.Tensor.cuda: self._cuda, torch.Tensor.pin_memory: self._pin}
        self._pinned: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None:
            return func(*args, **kwargs)  # shapes alone: such tensors may claim any device
        if self._session.capturing and CudaTensor in types and func.__name__ not in _NO_LAUNCH:
            return self._recorded(func, args, kwargs)
        return self._answered(func, args, kwargs)

    def _recorded(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """An operation on device tensors in a graph that is captured: its result is there, filled at each replay.

        It runs once here, for the shape of what it gives, and what it changed is put back.
        """
        if func.__name__ in _WAITS:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        stream = self._session.streams.current
        inputs = [plain(x) for x in tree_leaves((args, kwargs)) if isinstance(x, CudaTensor)]
        homes = {id(x.untyped_storage()): x.untyped_storage() for x in inputs}
        before = [(home, home.clone()) for home in homes.values()]
        result = self._answered(func, args, kwargs)
        for home, content in before:
            home.copy_(content)
        outputs = [plain(x).detach() for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
        fresh = [id(x.untyped_storage()) not in homes for x in outputs]

        def again() -> None:
            with torch.no_grad(), self._session.streams.using(stream):
                given = [plain(x) for x in tree_leaves(func(*args, **kwargs)) if isinstance(x, torch.Tensor)]
                for output, new, made in zip(outputs, given, fresh):
                    if made:
                        output.copy_(new)

        self._session.record(again)
        return result

    def _answered(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if func in self._moves:
            with self._session.streams.moving():
                moved = self._seen(self._moves[func](*args, **kwargs))
            if isinstance(moved, CudaTensor) != isinstance(args[0], CudaTensor):
                given = _of_to(args[1:], kwargs) if func == torch.Tensor.to else kwargs
                self._moved(args[0], moved, _not_blocking(args if func == torch.Tensor.cuda else (), given))
            return moved
        if func == torch.Tensor.is_pinned:
            return not isinstance(args[0], CudaTensor) and self._is_pinned(args[0])
        pinned = kwargs.pop("pin_memory", None)
        named = "device" in kwargs
        wanted = claims_cuda(kwargs["device"]) if named else None
        if named:
            kwargs["device"] = "cpu" if wanted else kwargs["device"]
        name = getattr(func, "__name__", "")
        if name == "copy_" and self._session.order is not None and _not_blocking(args, kwargs):
            sides = _crossing(name, args, kwargs)
            if sides is not None and self._goes_on(*sides):
                self._share(sides[isinstance(sides[0], CudaTensor)])
        result = func(*args, **kwargs)
        if func == _GRADIENT and isinstance(args[0], CudaTensor):  # torch leaves the subclass off here
            return _as_cuda(result)
        if name in _HOST_READS and args and not isinstance(args[0], CudaTensor):
            self._session.streams.host_accesses(args[0].untyped_storage(), name, extents(args[0]))
        if pinned and not wanted and not isinstance(result, CudaTensor):
            self._pinned.add(result.untyped_storage())
        if wanted:
            result = _as_cuda(result)
        elif named and kwargs["device"] is not None and isinstance(result, CudaTensor):
            result = plain(result)
        elif self.default_is_cuda and not named and name in _FACTORIES:
            result = _as_cuda(result)
        if isinstance(result, CudaTensor) and name in _UNWRITTEN:
            _poison(result)
        result = self._seen(result, name)
        if self._session.order is not None and self._is_waited_for(name, args, kwargs, result):
            self.host_waits()
        return result

    def _is_waited_for(self, name: str, args: Any, kwargs: dict[str, Any], result: Any) -> bool:
        """Whether the host waits for an operation, since it copies between host and device."""
        if name in _FROM_HOST:
            return isinstance(result, CudaTensor)
        if name in ("copy_", "__setitem__"):
            sides = _crossing(name, args, kwargs)
            if sides is None or name == "__setitem__" or not _not_blocking(args, kwargs):
                return sides is not None
            return not isinstance(sides[0], CudaTensor) and not self._goes_on(*sides)
        if name == "tolist" and isinstance(args[0], CudaTensor):
            streams = self._session.streams
            streams.accessed(streams.current, "tolist", [_extent(args[0])])
            return True
        return False

    def _is_pinned(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage() in self._pinned

    def _share(self, host: torch.Tensor) -> bool:
        """What the host does with a tensor of its own counts from now on. False where nothing is checked."""
        whole = _memory_of(host)
        return self._session.streams.share(host.untyped_storage(), replace(whole, name=f"pinned {whole.name}"))

    def _goes_on(self, target: torch.Tensor, source: torch.Tensor) -> bool:
        """Whether the host goes on while a copy that is not blocking accesses its memory: that is pinned, and torch
        copies it with no buffer between.

        A copy to other memory is over when the call returns, and one from it has read it by then ("API synchronization
        behavior" of the runtime's reference).
        """
        to_device = isinstance(target, CudaTensor)
        host = source if to_device else target
        return self._is_pinned(host) and host.is_contiguous() and (not to_device or source.dtype == target.dtype)

    def _moved(self, tensor: torch.Tensor, moved: torch.Tensor, not_blocking: bool) -> None:
        """A tensor was copied from host to device, or back, to memory that was made for it: pinned where that is the
        host's and nobody waits for it."""
        if not not_blocking:
            self.host_waits()
            return
        streams, to_device = self._session.streams, isinstance(moved, CudaTensor)
        host = tensor if to_device else moved
        if not to_device:
            self._pinned.add(host.untyped_storage())
        if self._goes_on(moved, tensor) and self._share(host):
            what, accesses = ("device", "reads") if to_device else ("host", "writes")
            streams.accessed(streams.current, f"a copy to the {what}", **{accesses: extents(host)})

    def used_on(self, tensor: CudaTensor, stream: Any) -> None:
        """Tensor.record_stream."""
        self._session.used_on(plain(tensor).untyped_storage(), stream.cuda_stream)

    def host_waits(self) -> None:
        """The host waits for the current stream."""
        streams = self._session.streams
        streams.synchronize(streams.current)

    def claim(self, tensor: torch.Tensor) -> Any:
        """A plain tensor that torch made of device tensors, as one of the device."""
        return tensor if isinstance(tensor, CudaTensor) else self._seen(_as_cuda(tensor))

    def _seen(self, result: Any, name: str = "") -> Any:
        """Remember the memory of device tensors: launches may touch it while it lives. name: what made it, if known."""
        if isinstance(result, CudaTensor):
            fresh = not self._session.tracks(plain(result).untyped_storage())
            if fresh:
                _settle(result)
            self._track(result)
            if fresh:
                self._written(result, name)
        elif isinstance(result, tuple | list):
            for item in result:
                if isinstance(item, CudaTensor):
                    fresh = not self._session.tracks(plain(item).untyped_storage())
                    self._track(item)
                    if fresh:
                        self._written(item, name)
        return result

    def _written(self, fresh: CudaTensor, name: str) -> None:
        """What made a tensor wrote it, on the current stream."""
        if self._session.order is not None and name not in _UNWRITTEN:
            streams = self._session.streams
            streams.accessed(streams.current, name or "a copy", writes=[_extent(fresh)])

    def _track(self, tensor: CudaTensor) -> None:
        streams = self._session.streams
        home = None if self._session.capturing else streams.at(streams.current)  # a graph's memory is its own
        self._session.track(plain(tensor).untyped_storage(), replace(_memory_of(plain(tensor)), home=home))

    def _cuda(self, tensor: torch.Tensor, device: Any = None, *_: Any, **__: Any) -> torch.Tensor:
        require_device(device)
        return tensor if isinstance(tensor, CudaTensor) else _as_cuda(tensor.clone())

    def _pin(self, tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        """Tensor.pin_memory: a copy, but of what is pinned already."""
        if isinstance(tensor, CudaTensor):
            raise RuntimeError("cannot pin 'torch.cuda' tensors: only dense CPU tensors can be pinned")
        if self._is_pinned(tensor):
            return tensor
        copy = tensor.clone()
        self._pinned.add(copy.untyped_storage())
        return copy

    def _to(self, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Tensor.to(device), .to(device, dtype), .to(dtype), .to(other): the device part is answered here."""
        given = _of_to(args, kwargs)
        device, rest = given.pop("device", None), {k: v for k, v in given.items() if v is not None and v is not False}
        moved = tensor.to(**rest) if rest else tensor
        if device is None or claims_cuda(device) == isinstance(tensor, CudaTensor):
            return moved
        fresh = moved.clone() if moved is tensor else moved
        return _as_cuda(fresh) if claims_cuda(device) else plain(fresh)


def _of_to(args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments of Tensor.to by name; of another tensor its device and dtype."""
    first = args[0] if args else None
    names: tuple[str, ...] = ("device", "dtype", "non_blocking", "copy")
    if isinstance(first, torch.Tensor | torch.dtype):
        names = ("other" if isinstance(first, torch.Tensor) else "dtype", *names[2:])
    given = {**dict(zip(names, args)), **kwargs}
    other = given.pop("other", None)
    return given if other is None else {**given, "device": other.device, "dtype": other.dtype}


def _settle(tensor: CudaTensor) -> None:
    """Move a fresh tensor to memory as a GPU would give it: at a 256-byte boundary, with a gap after it."""
    storage = plain(tensor).untyped_storage()
    if not storage.nbytes() or storage.data_ptr() % _ALIGN == 0 or tensor.requires_grad:
        return
    try:
        raw = np.empty(storage.nbytes() + _ALIGN + _GAP, np.uint8)
    except MemoryError as error:  # scripts know how to go on with this one
        raise torch.OutOfMemoryError(f"CUDA out of memory: {error}") from None
    start = -raw.ctypes.data % _ALIGN
    home = torch.frombuffer(raw[start : start + storage.nbytes()], dtype=torch.uint8).untyped_storage()
    home.copy_(storage)
    with torch._C.DisableTorchFunctionSubclass():
        tensor.set_(home, tensor.storage_offset(), tensor.size(), tensor.stride())


def _poison(tensor: CudaTensor) -> None:
    """Memory that nobody wrote is all ones, a NaN in every float format: what reads it shows."""
    storage = plain(tensor).untyped_storage()
    ctypes.memset(storage.data_ptr(), 0xFF, storage.nbytes())


def _memory_of(tensor: torch.Tensor) -> HostRange:
    storage = tensor.untyped_storage()
    whole = tensor.is_contiguous() and tensor.nbytes == storage.nbytes()
    name = f"{str(tensor.dtype).removeprefix('torch.')} tensor"
    if not whole:
        return HostRange(name, storage.data_ptr(), storage.nbytes())
    size = tensor.element_size()
    strides = tuple(size * step for step in tensor.stride())
    return HostRange(name, storage.data_ptr(), storage.nbytes(), tuple(tensor.shape), strides, size)


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """Address and size of a tensor's memory."""
    storage = plain(tensor).untyped_storage()
    return storage.data_ptr(), storage.nbytes()


def extents(tensor: torch.Tensor) -> list[Extent]:
    """The memory of a tensor's elements."""
    with torch._C.DisableTorchFunction():
        size = tensor.element_size()
        return pieces(tensor.data_ptr(), tensor.shape, [size * step for step in tensor.stride()], size)


def _crossing(name: str, args: Any, kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
    """(target, source) of Tensor.copy_ and Tensor.__setitem__, where one is the host's and one the device's."""
    source = args[2] if name == "__setitem__" else args[1] if len(args) > 1 else kwargs.get("src")
    tensors = isinstance(args[0], torch.Tensor) and isinstance(source, torch.Tensor)
    return (args[0], source) if tensors and isinstance(args[0], CudaTensor) != isinstance(source, CudaTensor) else None


def _not_blocking(args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether a copy between host and device is one that the host does not wait for."""
    return bool(kwargs.get("non_blocking")) or any(arg is True for arg in args[1:])


#: what reads a tensor of the host and is no operation of torch's
_HOST_READS = {"numpy", "tolist", "__array__", "__repr__"}
#: what makes a tensor from the host's values, by a copy that the host waits for
_FROM_HOST = {"tensor", "as_tensor", "asarray"}
_FACTORIES = {
    "empty", "zeros", "ones", "full", "rand", "randn", "randint", "randperm", "arange", "linspace", "eye", "tensor",
    "empty_strided",
}  # fmt: skip


def _as_cuda(result: Any) -> Any:
    if not isinstance(result, torch.Tensor):
        return result
    if result.requires_grad and result.is_leaf:  # as_subclass alone would make it the result of an operation
        return result.detach().as_subclass(CudaTensor).requires_grad_()
    return result.as_subclass(CudaTensor)
