"""The kernels that the ops are made of: which rung, its knobs' class, and the products that it takes. Imports no DSL.

A kernel and its knobs by name (`Choice`) say what to run where the DSL is not installed too: packs are looked up by
them. `config` and `build` import the rung, and with it the DSL. A new kernel is a line in `KERNELS` and a model in
`models.MODELS`.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from tensorladder.core.errors import MissingExtra, UsageError
from tensorladder.core.program import Program
from tensorladder.rungs import sources
from tensorladder.rungs.parts.form import Form

Knobs = tuple[tuple[str, Any], ...]


class Product(NamedTuple):
    """A product's extents and what it computes: l independent ones of C (m, n), summed over k. All extents >= 1."""

    m: int
    n: int
    k: int
    l: int
    form: Form


class Choice(NamedTuple):
    """A kernel of `KERNELS` by name, with those of its knobs that depend on the product: (name, value), sorted."""

    kernel: str
    knobs: Knobs


def choice(kernel: str, **knobs: Any) -> Choice:
    """A choice, in the one order that makes equal ones equal."""
    return Choice(kernel, tuple(sorted(knobs.items())))


@dataclass(frozen=True)
class Kernel:
    """A rung that ops use. module: below `rungs`. config: the name of its knobs' class there. archs: that it is chosen
    for. takes: whether it does a product. flat: it takes A (M, K), B (N, K), C (M, N), R (M, N), bias and S, no more;
    others take what `Form` says. also: architectures that it compiles for, for those who ask for it.
    """

    name: str
    module: str
    config: str
    archs: tuple[str, ...]
    takes: Callable[[Product], bool]
    flat: bool = False
    also: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        """Of the rung's module."""
        return f"tensorladder.rungs.{self.module}"

    def rung(self) -> Any:
        """The rung's module. MissingExtra without the DSL."""
        try:
            return importlib.import_module(self.path)
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("tensorladder"):
                raise
            raise MissingExtra("nvidia-cutlass-dsl (compiles the kernel)", "climb") from error


def _plain(product: Product) -> bool:
    form = product.form
    return product.l == 1 and form.c_tma and form.dtype in ("fp16", "bf16") and not (form.scaled or form.gated)


def _halves(product: Product) -> bool:
    return product.form.dtype in ("fp16", "bf16")


WARP_MMA = ("sm_80", "sm_120")  # have no other tensor core instructions that a kernel here uses

KERNELS: dict[str, Kernel] = {
    kernel.name: kernel
    for kernel in (
        Kernel("c6", "hopper.c6_epilogue", "EpilogueGemmConfig", ("sm_90a",), _plain, flat=True),
        Kernel("c7", "hopper.c7_fused_ping_pong", "FusedGemmConfig", ("sm_90a",), lambda _: True),
        Kernel("c8", "hopper.c8_split_k", "SplitKGemmConfig", ("sm_90a",), lambda _: True),
        Kernel("b9", "ampere.b9_epilogue", "WarpEpilogueGemmConfig", WARP_MMA, _halves, also=("sm_90a", "sm_100a")),
        Kernel("d5", "blackwell.d5_epilogue", "PairEpilogueGemmConfig", ("sm_100a",), lambda _: True),
        Kernel("c9", "hopper.c9_grouped", "GroupedGemmConfig", ("sm_90a",), lambda product: bool(product.form.ragged)),
    )
}


def find(name: str) -> Kernel:
    """The kernel of that name; UsageError with the names there are for any other."""
    try:
        return KERNELS[name]
    except KeyError:
        raise UsageError(f"kernel {name!r} is not known: use one of {', '.join(KERNELS)}") from None


def taking(product: Product, arch: str) -> tuple[Kernel, ...]:
    """The kernels that do a product on an architecture. UsageError where there is none."""
    fitting = tuple(one for one in KERNELS.values() if arch in one.archs and one.takes(product))
    if fitting:
        return fitting
    raise UsageError(f"no kernel for {arch} does this: {_described(product)}")


def _described(product: Product) -> str:
    form, parts = product.form, []
    if product.l > 1:
        parts.append(f"{product.l} products at once")
    parts += [word for word, there in (("scales", form.scaled), ("a gated product", form.gated)) if there]
    return f"{form.dtype} to {form.out}" + (f" with {' and '.join(parts)}" if parts else "")


def config(made: Choice, sm_count: int) -> Any:
    """The knobs of a choice as the rung's own class has them. MissingExtra without the DSL."""
    kernel = find(made.kernel)
    knobs = getattr(kernel.rung(), kernel.config)
    of_gpu = {"sm_count": sm_count} if any(field.name == "sm_count" for field in fields(knobs)) else {}
    return knobs(**dict(made.knobs), **of_gpu)


def of(config: Any) -> Kernel:
    """The kernel whose knobs these are. UsageError where there is none."""
    for kernel in KERNELS.values():
        if type(config).__name__ == kernel.config and type(config).__module__ == kernel.path:
            return kernel
    classes = ", ".join(kernel.config for kernel in KERNELS.values())
    raise UsageError(f"config: {type(config).__name__}: it takes {classes}")


@functools.cache
def can_build() -> bool:
    """Whether the DSL is installed."""
    return importlib.util.find_spec("cutlass") is not None


def check(config: Any, product: Product) -> None:
    """UsageError unless the kernel whose knobs these are computes all of a product: one that is flat would leave out
    what it has no argument for."""
    kernel, form = of(config), product.form
    if bool(form.ragged) != (kernel.name == "c9"):
        takes = "grouped_matmul alone" if kernel.name == "c9" else "matmul and swiglu: give a GroupedGemmConfig"
        raise UsageError(f"config: {kernel.config} is for {takes}")
    if kernel.flat and not _plain(product):
        raise UsageError(
            f"config: {kernel.config} is for one product of fp16 or bf16 whose rows are multiples of 16 bytes, with no "
            f"scales and not gated, this is {_described(product)}: FusedGemmConfig takes all"
        )


def build(arch: str, form: Form, config: Any) -> Program:
    """The compiled kernel for all extents of a form. MissingExtra without the DSL; UsageError for impossible knobs."""
    kernel = of(config)
    if arch not in (*kernel.archs, *kernel.also):
        raise UsageError(f"config: {kernel.config} is for {', '.join((*kernel.archs, *kernel.also))}, not for {arch}")
    return kernel.rung().build(arch, form, config)


@functools.cache
def source_digest(name: str) -> str:
    """Of what the kernel is compiled from: its rung, and the device code that rungs share."""
    return sources.digest([Path(sources.__file__).parent / f"{find(name).module.replace('.', '/')}.py"])
