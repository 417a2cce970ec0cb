"""Torch's own operations on device tensors as accesses of a stream, where a checker looks for races among streams.

On a GPU each of them is a kernel on the current stream. Their schemas say which arguments they read and write; which
ones make the host wait is a table. Views, and what only makes memory, access nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .session import Session
from .streams import Extent
from .tensors import extents, is_device_memory

#: operations that copy a result, or its extent, to the host and wait for it
_SYNCHRONISES = {
    "aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal", "aten::_unique",
    "aten::_unique2", "aten::unique_dim", "aten::unique_consecutive", "aten::bincount",
}  # fmt: skip
_INDEXED = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}


class Accesses(TorchDispatchMode):
    """Tells a session's streams what torch's operations access."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """What torch asks about such a class. It would guard its method by torch._dynamo, whose import takes a second
        or two and which a script has no use for: torch.compile is left out."""
        return False

    def __init__(self, session: Session):
        super().__init__()
        self._session = session

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunction():
            result = func(*args, **kwargs)
        if not self._session.capturing:
            self._tell(func._schema, args, kwargs)
        return result

    def _tell(self, schema: Any, args: Any, kwargs: Any) -> None:
        streams, name = self._session.streams, schema.name.replace("::", ".")
        reads: list[Extent] = []
        writes: list[Extent] = []
        # a copy between host and device is its stream's on both sides
        crossing = name == "aten.copy_" and any(is_device_memory(self._session, tensor) for tensor in args[:2])
        made_alone = schema.name.endswith("_like") or ".new_" in name
        for argument, value in _bound(schema, args, kwargs):
            alias = argument.alias_info
            into = writes if alias is not None and alias.is_write else reads
            if (alias is not None and not alias.is_write) or (made_alone and into is reads):
                continue  # a view, or a tensor like this one
            for tensor in tree_leaves(value):
                if is_device_memory(self._session, tensor):
                    into += extents(tensor)
                elif streams.shared and isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided:
                    with torch._C.DisableTorchFunction():
                        owner = tensor.untyped_storage()
                    if not crossing:
                        streams.host_accesses(owner, name, **{"writes" if into is writes else "reads": extents(tensor)})
                    elif id(owner) in streams.shared:
                        into += extents(tensor)
        if not reads and not writes:
            return
        streams.accessed(streams.current, name, reads, writes)
        if schema.name in _SYNCHRONISES or (schema.name in _INDEXED and _by_mask(args, kwargs)):
            streams.synchronize(streams.current)


def _bound(schema: Any, args: Any, kwargs: Any) -> list[tuple[Any, Any]]:
    """(argument of the schema, what was given for it)."""
    places = [a for a in schema.arguments if not a.kwarg_only]
    named = {a.name: a for a in schema.arguments}
    return [*zip(places, args), *((named[name], value) for name, value in kwargs.items() if name in named)]


def _by_mask(args: Any, kwargs: Any) -> bool:
    """Whether a tensor is indexed by a mask, whose ones the host has to count."""
    indices = tree_leaves((args[1:2], kwargs.get("indices")))
    return any(isinstance(x, torch.Tensor) and x.dtype in (torch.bool, torch.uint8) for x in indices)
