"""Which kernel with which knobs for which product: of all that do it, what is fastest by the models, and by what was
learnt of how they err.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from tensorladder.core.errors import UsageError
from tensorladder.ops import learnt
from tensorladder.ops.kernels import Choice, Product, taking
from tensorladder.ops.models import MODELS, Work
from tensorladder.rungs.parts.form import Form

ARCH = "sm_90a"


def modelled(one: Choice, product: Product, sm_count: int) -> float:
    """Microseconds that a product takes, by the kernel's model."""
    return _us(_work(one, product, sm_count))


def _work(one: Choice, product: Product, sm_count: int) -> Work | float:
    return MODELS[one.kernel].work(dict(one.knobs), product, sm_count)


def _us(work: Work | float) -> float:
    return work.us if isinstance(work, Work) else work


def predicted(ones: Sequence[Choice], product: Product, sm_count: int) -> list[float]:
    """Microseconds that a product takes: by the kernels' models and, on a GPU like the one that was measured, by what
    was learnt there of how they err. What is slow by its model is taken to err as the one that errs most."""
    works = [_work(one, product, sm_count) for one in ones]
    us = [_us(work) for work in works]
    if not learnt.knows(product, sm_count):
        return us
    worth, trees = learnt.WORTH * min(us), learnt.trees()
    rows = {
        at: learnt.features(one.knobs, product, work)
        for at, (one, work) in enumerate(zip(ones, works))
        if isinstance(work, Work) and work.us <= worth
    }
    off = np.exp(learnt.answers(learnt.table(list(rows.values()), trees.asked), trees)).tolist() if rows else [1.0]
    errs = dict(zip(rows, off))
    return [took * errs.get(at, max(off)) for at, took in enumerate(us)]


@functools.lru_cache(maxsize=1024)
def rank(m: int, n: int, k: int, l: int, form: Form, sm_count: int, arch: str = ARCH) -> tuple[Choice, ...]:
    """Everything that does the product, the fastest first; of equals in the order of the kernels and their
    candidates. UsageError where nothing does it.
    """
    product = Product(m, n, k, l, form)
    found = [one for kernel in taking(product, arch) for one in fitting(kernel.name, form)]
    if not found:
        raise UsageError(f"no kernel has knobs for this form: {form}")
    us = predicted(found, product, sm_count)
    return tuple(found[at] for at in sorted(range(len(found)), key=us.__getitem__))


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
