"""What an H200 took, near the shapes that were measured: there it corrects the models' times.

choice_h200.jsonl: facts; a line a candidate; then a line a shape (m, n, k), with microseconds of torch.mm and of the
candidates by their number (those that took 1.8 times the fastest or less): bf16, both operands with K contiguous,
medians of interleaved batches of launches on inputs that rotate through twice the L2 (`benchmarks.choice`).

How far a model errs depends on N and K much more than on M: whether tiles lie well on the SMs that there are. So a
shape speaks for those of nearly its own N and K, and of M up to twice or half of its own.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from importlib.resources import files
from math import ceil, exp, log, log2
from typing import Any

from tensorladder.ops.kernels import Choice, Product, choice
from tensorladder.ops.models import bytes_of
from tensorladder.rungs.parts.form import Form

FILE = "choice_h200.jsonl"
SMS = 132
PLAIN = Form("bf16", "bf16")  # of what was measured
#: powers of two between M (in steps of 8), N and K of shapes that speak for each other with a weight of exp(-1/2)
NEAR = (0.25, 0.05, 0.6)
FARTHEST = 8.0  # the square of a distance in these units from which on a shape says nothing
DOUBT = 0.2  # the weight of the model's own word, that it errs not at all
UNTIMED = log(2.0)  # as if it took so many times as long: what was left out, as nobody thought it fast, at a shape
SURE = 0.9  # of such a weight or more


Extents = tuple[int, int, int]  # M, N, K


def alike(one: Choice) -> Choice:
    """Without what no time was kept for: a second buffer of C is there where it costs no stage."""
    return choice(one.kernel, **{knob: value for knob, value in one.knobs if knob != "c_stages"})


@functools.cache
def times() -> dict[Extents, dict[Choice, float]]:
    """Microseconds of candidates (`alike`) by extents."""
    lines = [json.loads(line) for line in files(__package__).joinpath(FILE).read_text().splitlines()]
    made = [alike(choice(one["kernel"], **_knobs(one["knobs"]))) for one in lines if "kernel" in one]
    found = {}
    for one in lines:
        if "shape" in one:
            m, n, k = one["shape"]
            found[m, n, k] = {made[int(number)]: us for number, us in one["us"].items()}
    return found


@functools.cache
def timed() -> tuple[Choice, ...]:
    """All candidates that were timed somewhere."""
    return tuple(dict.fromkeys(one for us in times().values() for one in us))


def _knobs(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}


def _place(m: int, n: float, k: float) -> tuple[float, float, float]:
    """Where extents lie among others."""
    return log2(ceil(m / 8)) / NEAR[0], log2(n) / NEAR[1], log2(k) / NEAR[2]


@functools.cache
def _places() -> tuple[tuple[Extents, tuple[float, float, float]], ...]:
    return tuple((there, _place(*there)) for there in times())


def near(product: Product, without: Extents | None = None) -> list[tuple[Extents, float]]:
    """The shapes that speak for a product, and their weights. without: leave this one out."""
    form = product.form
    if product.l != 1 or (form.a_major, form.b_major) != ("k", "k"):
        return []
    n, k = product.n * (2 if form.gated else 1), product.k * bytes_of(form.dtype) / bytes_of(PLAIN.dtype)
    rows, cols, steps = _place(product.m, n, k)
    found = []
    for there, (a, b, c) in _places():
        far = (rows - a) ** 2 + (cols - b) ** 2 + (steps - c) ** 2
        if far <= FARTHEST and there != without:
            found.append((there, exp(-far / 2)))
    return found


Us = Callable[[Choice, Product], float]


@functools.lru_cache(maxsize=4096)
def _errors(there: Extents, model: Us) -> dict[Choice, float]:
    """Logarithms of the times as long that candidates took, than a model says."""
    product = Product(*there, 1, PLAIN)
    return {one: log(us / model(one, product)) for one, us in times()[there].items()}


def corrections(product: Product, model: Us, without: Extents | None = None) -> dict[Choice, float]:
    """Times as long that candidates (`alike`) take, than a model says; nothing where no shape is near.

    model: microseconds that it says. The product is on a GPU of `SMS`.
    """
    found = [(_errors(there, model), weight) for there, weight in near(product, without)]
    if not found:
        return {}
    made = {}
    for one in timed():
        total = weights = 0.0
        for errors, weight in found:
            if one in errors or weight >= SURE:
                total += weight * errors.get(one, UNTIMED)
                weights += weight
        made[one] = exp(total / (weights + DOUBT))
    return made
