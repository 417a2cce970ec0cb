"""The code of a warm call, written out for its kind: which tensors there are, which words of the parameters get which
address, what is to be looked at. As `dataclasses` writes methods; loops over so few things cost more than the things.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

TENSORS = ("a", "b", "out", "bias", "residual", "scale_a", "scale_b")
ARGUMENTS = ", ".join((*TENSORS, "alpha", "beta", "out_dtype", "tune", "config"))
LOW = 15  # bits of an address that a launch may depend on


class Kind(NamedTuple):
    """What a warm call's code follows from.

    names: of the tensors that there are, but for `out`. out: whether it is given. low: the last bits of all their
    addresses, () where all are zero. places: for each launch (word, name of an address, what is added to it). spans:
    for each of `names` its bytes, and whether it may lie exactly where a given `out` does. reach: the bytes of that.
    several: there are other GPUs. wants: a tensor wants a gradient where there are gradients.
    """

    names: tuple[str, ...]
    out: bool
    low: tuple[int, ...]
    places: tuple[tuple[tuple[int, str, int], ...], ...]
    spans: tuple[tuple[int, bool], ...]
    reach: int
    several: bool
    wants: bool


def function(kind: Kind, **values: Any) -> Callable[..., Any]:
    """run(`ARGUMENTS`) -> the result, or None where the call is another one.

    values: asked, tuned, knobs: the call's out_dtype, tune and config. guard(*tensors), gradients(). index,
    current(index): the device and its current stream. device(), on(index): the current device. empty(shape, strides,
    dtype), shape, strides, dtype. written(out): tells autograd. known, unit, find: as `factors.Factors` has them.
    prepared: of each launch.
    """
    for number, one in enumerate(values.pop("prepared")):
        values |= {f"{name}_{number}": getattr(one, name) for name in ("free", "structures", "call", "again")}
    return _factory(source(kind, tuple(sorted(values))))(**values)


@functools.lru_cache(maxsize=256)
def _factory(text: str) -> Callable[..., Any]:
    found: dict[str, Any] = {}
    exec(compile(text, "<warm call>", "exec"), found)
    return found["made"]


def source(kind: Kind, values: tuple[str, ...]) -> str:
    """The text of a function of these values that gives the function of such a call."""
    body = "\n".join(f"        {line}" for line in _lines(kind))
    head = f"def made({', '.join(values)}):\n    def run({ARGUMENTS}):"
    return f"{head}\n{body}\n    return run\n"


def _lines(kind: Kind) -> Iterator[str]:
    given = [*kind.names, *["out"] * kind.out]
    others = [
        *(f"{name} is not None" for name in TENSORS if name not in given),
        "not beta" if "residual" in given else "beta",
        "out_dtype is not asked",
        "tune != tuned",
        "config is not knobs and config != knobs",
    ]
    yield f"if {' or '.join(others)}:"
    yield "    return None"
    yield f"if not guard({', '.join(given)}){' or gradients()' * kind.wants}:"
    yield "    return None"
    for name in given:
        yield f"at_{name} = {name}.data_ptr()"
    if kind.low:
        yield f"if ({', '.join(f'at_{name} & {LOW}' for name in given)},) != {kind.low}:"
    else:
        yield f"if ({' | '.join(f'at_{name}' for name in given)}) & {LOW}:"
    yield "    return None"
    if kind.several:
        yield "if device() != index:"
        yield "    with on(index):"
        yield f"        return run({ARGUMENTS})"
    yield from _result(kind)
    yield "at_factors = unit if alpha == 1.0 and beta == 0.0 else known.get((alpha, beta))"
    yield "if at_factors is None:"
    yield "    at_factors, kept = find(alpha, beta)"  # kept until the launch is queued
    yield "stream = current(index)"
    for number, places in enumerate(kind.places):
        yield from _launch(number, places)
    if kind.out:
        yield "written(out)"
    yield "return out"


def _result(kind: Kind) -> Iterator[str]:
    """Memory for it; or that what is given is no operand's."""
    if not kind.out:
        yield "out = empty(shape, strides, dtype)"
        yield "at_out = out.data_ptr()"
        return
    yield f"end = at_out + {kind.reach}"
    shared = [
        f"at_{name} < end and at_out < at_{name} + {span}" + f" and at_{name} != at_out" * same
        for name, (span, same) in zip(kind.names, kind.spans)
    ]
    yield f"if {' or '.join(shared)}:"
    yield "    return None"


def _launch(number: int, places: tuple[tuple[int, str, int], ...]) -> Iterator[str]:
    """As `silicon.driver.Prepared.launch` does."""
    yield "try:"
    yield f"    one = free_{number}.pop()"
    yield "except IndexError:"
    yield f"    one = structures_{number}()"
    yield "words, config, arguments = one"
    for word, name, more in places:
        yield f"words[{word}] = at_{name}" + f" + {more}" * bool(more)
    yield "config.stream = stream"
    yield f"code = call_{number}(*arguments)"
    yield "if code:"
    yield f"    again_{number}(code, arguments)"
    yield f"free_{number}.append(one)"
