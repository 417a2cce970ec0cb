"""Operations for PyTorch, made of the ladder's kernels. `plan` and `choose` need no torch."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensorladder.ops.grouped import grouped_matmul
    from tensorladder.ops.linear import Linear
    from tensorladder.ops.product import matmul, swiglu

MODULES = {"matmul": "product", "swiglu": "product", "Linear": "linear", "grouped_matmul": "grouped"}
__all__ = ["Linear", "grouped_matmul", "matmul", "swiglu"]


def __getattr__(name: str) -> Any:
    """An operation, on first use: it imports torch."""
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"tensorladder.ops.{MODULES[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from tensorladder.core.errors import MissingExtra

        raise MissingExtra("torch", "torch") from error
