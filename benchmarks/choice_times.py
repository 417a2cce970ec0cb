"""Times of the candidates that the ops choose from, on a GPU: what `benchmarks.choice` records.

At a shape all candidates that are expected to take up to `WORTH` times the best are looked at, three short batches
each; those that took up to `NEAR` times the best then are timed in turns, `THEN.rounds` rounds. Inputs rotate through
twice the L2, all in one buffer of random numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from tensorladder.ops import execute, launch, tune
from tensorladder.ops.architecture import DEFAULT
from tensorladder.ops.inputs import TYPES, array
from tensorladder.ops.kernels import Choice, Product
from tensorladder.ops.learnt import SMS
from tensorladder.ops.models import bytes_of
from tensorladder.ops.plan import Plan, plan
from tensorladder.silicon.nvml import Meter
from tensorladder.silicon.timing import Options, compare, quick

NEAR, MOST = 1.2, 12  # times the best, and how many candidates: what is timed well
FIRST = Options(batch_us=150.0, most_launches=16, settle=0.0, seconds=0.0, rounds=3)
THEN = Options(batch_us=400.0, most_launches=32, settle=0.02, seconds=0.0, rounds=9)
ROOM = 3 << 29  # elements of the buffers: what operands, and results, rotate through
SETS = 1024  # at most
LINE = 512  # elements: each matrix begins at a multiple

Tensors = dict[str, torch.Tensor | None]


def _buffers() -> Callable[[str], torch.Tensor]:
    made: dict[str, torch.Tensor] = {}

    def of(dtype: str) -> torch.Tensor:
        if dtype not in made:
            found = torch.empty(ROOM, device="cuda", dtype=torch.bfloat16)
            for part in found.split(ROOM // 8):
                part.normal_()
            made[dtype] = found.to(TYPES[dtype])
        return made[dtype]

    return of


buffer = _buffers()
results = _buffers()


def _whole(elements: int) -> int:
    return -(-elements // LINE) * LINE


def operands(product: Product) -> list[Tensors]:
    """Sets of a call's tensors. product.n: of a gated one, columns of C."""
    m, n, k, _, form = product
    columns = n * (1 + form.gated)
    source, stored = buffer(form.dtype), results(form.out)
    left, right, result = _whole(m * k), _whole(columns * k), _whole(m * n)
    size = (left + right) * bytes_of(form.dtype) + result * bytes_of(form.out)
    l2 = torch.cuda.get_device_properties(0).L2_cache_size
    made = []
    for number in range(max(1, min(1 + 2 * l2 // size, ROOM // (left + right), ROOM // result, SETS))):
        at = number * (left + right)
        a, b = source[at : at + m * k], source[at + left : at + left + columns * k]
        b = b.view(k, columns) if form.b_major == "mn" else b.view(columns, k).t()
        one: Tensors = dict.fromkeys((*launch.NAMES, "up"))
        one |= {"a": a.view(m, k), "b": b[:, :n], "out": stored[number * result :][: m * n].view(m, n)}
        one["up"] = b[:, n:] if form.gated else None
        one["bias"] = source[:n] if form.bias else None
        if form.scaled:
            one["scale_a"] = one["scale_b"] = torch.ones((), device="cuda", dtype=torch.float32)
        made.append(one)
    return made


def planned(tensors: Tensors, activation: str) -> Plan:
    """The plan of a call on these."""
    given = {name: array(name, one) for name, one in tensors.items() if one is not None}
    return plan(given.pop("a"), given.pop("b"), activation=activation, **given)


def calls(of: Plan, sets: Sequence[Tensors], one: Choice) -> list[Callable[[], None]]:
    """Launches of a candidate, a set each."""
    kernel = execute.kernel(of, (one,), SMS, DEFAULT)
    launcher = launch.make(of, kernel, sets[0], {name: sets[0][name] for name in launch.NAMES}, 0)
    return [lambda each=each: launcher(each, 1.0, 0.0) for each in sets]  # type: ignore[misc]


def times(
    product: Product, candidates: Sequence[Choice], sure: Sequence[Choice] = ()
) -> tuple[dict[Choice, float], dict[Choice, float]]:
    """Microseconds of candidates by a first look, and of others in turns. sure: time these in turns."""
    sets = operands(product)
    of = planned(sets[0], product.form.activation)
    made = {one: calls(of, sets, one) for one in candidates}
    first = {one: quick(torch, each, FIRST) for one, each in made.items()}
    best = min(first.values())
    near = [one for one in sorted(first, key=first.__getitem__) if first[one] <= NEAR * best][:MOST]
    near = list(dict.fromkeys([*near, *sure]))
    again = {str(number): made[one] for number, one in enumerate(near)}
    found = compare(torch, again, Meter(), THEN).times
    took = {one: found[str(number)].median for number, one in enumerate(near)}
    return {one: us for one, us in first.items() if one not in took}, took


def tuned(product: Product) -> Choice:
    """What tune=True takes; it measures first."""
    call = operands(product)[0]
    of = planned(call, product.form.activation)

    def bind(one: Choice, on: Mapping[str, torch.Tensor | None]) -> Callable[[], None]:
        return calls(of, [dict(on)], one)[0]

    where = tune.place(torch, 0, DEFAULT)
    return tune.tune(tune.key(where, of), tune.timer(torch, call, bind))
