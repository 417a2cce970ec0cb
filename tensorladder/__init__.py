"""tensorladder: learn, write, test and use tensor-core kernels from Python, with or without a GPU."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from tensorladder.ops import Linear, grouped_matmul, matmul, swiglu

__all__ = ["__version__", "Linear", "grouped_matmul", "matmul", "swiglu"]


def __getattr__(name: str) -> Any:
    """Operations on first use: torch is no part of the base install, and slow to import."""
    if name in __all__:
        from tensorladder import ops

        found = globals()[name] = getattr(ops, name)  # later calls do not come here
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
