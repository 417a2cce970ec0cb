"""Operations for PyTorch, made of the ladder's kernels: `matmul`. `plan` and `choose` need no torch."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensorladder.ops.product import matmul

__all__ = ["matmul"]


def __getattr__(name: str) -> Any:
    """`matmul` on first use: it imports torch."""
    if name != "matmul":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from tensorladder.ops.product import matmul
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from tensorladder.core.errors import MissingExtra

        raise MissingExtra("torch", "torch") from error
    return matmul
