"""Which kernel with which knobs for which product: of all that do it, what is fastest by the models, and by what was
learnt of how they err. Where power limits, what it takes counts besides.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import numpy as np

from tensorladder.core.errors import UsageError
from tensorladder.ops import learnt
from tensorladder.ops.kernels import Choice, Product, taking
from tensorladder.ops.models import MODELS, Work, bytes_of, shared_traffic
from tensorladder.rungs.parts.form import Form

ARCH = "sm_90a"
WEIGHT = 0.07  # of traffic: the time of a kernel alone over its time in turns goes by its 0.27th power
BUSY = 320e6  # multiplications of 16-bit elements a microsecond, of 2.1 to 2.3 pJ: 700 W, the limit of an H200


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
    """Everything that does the product, in the `order` of what it is expected to take; of equals in that of the kernels
    and their candidates. UsageError where nothing does it.
    """
    product = Product(m, n, k, l, form)
    found = [one for kernel in taking(product, arch) for one in fitting(kernel.name, form)]
    if not found:
        raise UsageError(f"no kernel has knobs for this form: {form}")
    return tuple(ordered(dict(zip(found, predicted(found, product, sm_count))), product, sm_count, arch))


def energy_counts(product: Product, sm_count: int, arch: str = ARCH) -> bool:
    """Whether it was measured what such products take in energy, on such a GPU: of 16-bit elements, one at a time."""
    return arch == ARCH and bytes_of(product.form.dtype) == 2 and learnt.knows(product, sm_count)


def ordered(us: Mapping[Choice, float], product: Product, sm_count: int, arch: str) -> list[Choice]:
    """Candidates in the `order` of the microseconds that they take, predicted or measured."""
    m, n, k, _, form = product
    rate = m * n * (1 + form.gated) * k / min(us.values()) if energy_counts(product, sm_count, arch) else 0.0
    ones = list(us)
    return [ones[at] for at in order(list(us.values()), [shared_traffic(dict(one.knobs)) for one in ones], rate)]


def order(us: Sequence[float], traffic: Sequence[float], rate: float) -> list[int]:
    """Numbers of candidates, the first to be taken first. us: that each takes, timed in turns with others; traffic:
    through shared memory (`shared_traffic`). rate: multiplications of 16-bit elements a microsecond, by the fastest.

    That is the fastest, but at the limit of power: there the clock follows from what launches cost in energy, and that
    is, besides the multiplications, which all do, shared memory's. In turns all have one clock and it does not show; a
    kernel that runs on and on has its own. Both count: 1 % in turns is given for 3 % of the time alone.
    """
    weight = WEIGHT if rate > BUSY else 0.0
    cost = [took * rows**weight for took, rows in zip(us, traffic)]
    return sorted(range(len(us)), key=cost.__getitem__)


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
