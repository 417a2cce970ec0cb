"""Errors that a person can act on: each is one line that names what is wrong, where, and the fix.

The exit codes are the command line's contract: 0 good, 1 wrong result or hazard, 2 asked wrongly, 3 not modelled.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class TensorladderError(Exception):
    """Base of every error that is shown to a person as one line. `exit_code` is what the command line returns."""

    exit_code = 1


class UsageError(TensorladderError):
    """Bad input: shape, stride, dtype, alignment, architecture, file, missing extra, corrupt PTX."""

    exit_code = 2


class MissingExtra(UsageError):
    """An optional dependency is absent. The message names the extra that brings it."""

    def __init__(self, what: str, extra: str):
        super().__init__(f"{what} is not installed: pip install 'tensorladder[{extra}]'")
        self.extra = extra


#: top-level modules of optional dependencies, and the extra that brings each
EXTRAS = {
    **dict.fromkeys(("cutlass", "tvm_ffi", "cuda", "llvmlite", "numba", "ml_dtypes"), "climb"),
    **{name: name for name in ("torch", "triton", "ray", "modal")}, "tvm": "tirx",
}  # fmt: skip


def missing_extra(error: ModuleNotFoundError) -> MissingExtra | None:
    """What to say of a module that is not there; None where no extra brings it."""
    package = (error.name or "").partition(".")[0]
    return MissingExtra(package, EXTRAS[package]) if package in EXTRAS else None


#: what the virtual GPU is built on, beyond the base install
ENGINE = ("llvmlite", "numba", "ml_dtypes")


@contextmanager
def importing_engine() -> Iterator[None]:
    """MissingExtra in place of ModuleNotFoundError where a part of the virtual GPU's engine is not there."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in ENGINE:
            raise
        raise MissingExtra(f"{error.name} (the virtual GPU's engine)", EXTRAS[error.name]) from error


class Unsupported(TensorladderError):
    """Something that is not modelled (an instruction, a modifier, an attribute): verdict `incomplete`."""

    exit_code = 3


def no_memory(error: MemoryError, what: str = "this run") -> Unsupported:
    """What to say where the process gets no more memory. error: numpy's says how much was asked for."""
    asked = str(error).rstrip(".") or "no more can be allocated"
    return Unsupported(
        f"{what} wants more memory than this process may have ({asked}): run a smaller shape, or without checks, or "
        "raise the limit (ulimit -v)"
    )


@contextmanager
def memory_for(what: str) -> Iterator[None]:
    """MemoryError as what cannot be done here: `no_memory` of `what`."""
    try:
        yield
    except MemoryError as error:
        raise no_memory(error, what) from error


class KernelError(TensorladderError):
    """A kernel did what the hardware would fault on, or hung. `finding` carries the details where there are any."""

    exit_code = 1

    def __init__(self, message: str, finding: object | None = None):
        super().__init__(message)
        self.finding = finding


class Stopped(TensorladderError):
    """A launch was stopped on purpose, at a breakpoint: nothing is wrong, and nothing that it left behind is whole."""

    exit_code = 0


class CooperativeTooLarge(KernelError):
    """The CTAs of a cooperative launch are not all resident at once: the driver's error 720."""
