"""Which kernel with which knobs for which product: of all that do it, what is fastest by the models, and by what was
measured where that is near.
"""

from __future__ import annotations

import functools

from tensorladder.core.errors import UsageError
from tensorladder.ops import measured
from tensorladder.ops.kernels import Choice, Product, taking
from tensorladder.ops.models import MODELS
from tensorladder.rungs.parts.form import Form

ARCH = "sm_90a"


def modelled(one: Choice, product: Product, sm_count: int) -> float:
    """Microseconds that a product takes, by the kernel's model."""
    return MODELS[one.kernel].us(dict(one.knobs), product, sm_count)


def predicted(one: Choice, product: Product, sm_count: int) -> float:
    """Microseconds that a product takes, by the kernel's model and what was measured near by."""
    return modelled(one, product, sm_count) * _corrections(product, sm_count).get(measured.alike(one), 1.0)


@functools.lru_cache(maxsize=256)
def _corrections(product: Product, sm_count: int) -> dict[Choice, float]:
    return measured.corrections(product, _measured_model) if sm_count == measured.SMS else {}


def _measured_model(one: Choice, product: Product) -> float:
    return modelled(one, product, measured.SMS)


@functools.lru_cache(maxsize=1024)
def rank(m: int, n: int, k: int, l: int, form: Form, sm_count: int, arch: str = ARCH) -> tuple[Choice, ...]:
    """Everything that does the product, the fastest first; of equals in the order of the kernels and their
    candidates. UsageError where nothing does it.
    """
    product = Product(m, n, k, l, form)
    found = [one for kernel in taking(product, arch) for one in fitting(kernel.name, form)]
    if not found:
        raise UsageError(f"no kernel has knobs for this form: {form}")
    return tuple(sorted(found, key=lambda one: predicted(one, product, sm_count)))


@functools.lru_cache(maxsize=256)
def fitting(kernel: str, form: Form) -> tuple[Choice, ...]:
    """A kernel's candidates for a form."""
    if kernel not in MODELS:  # for those who ask for it
        return ()
    model = MODELS[kernel]
    return tuple(one for one in model.candidates if model.fits(dict(one.knobs), form))


def choose(m: int, n: int, k: int, l: int, form: Form, sm_count: int, arch: str = ARCH) -> Choice:
    """The first of `rank`: l products of (m, n, k), extents >= 1, on a GPU of so many SMs."""
    return rank(m, n, k, l, form, sm_count, arch)[0]
