"""Measured choices: the model's best candidates timed side by side once, the winner kept on disk for later calls.
That is the fastest, weighed by what it takes of power where a product is at its limit (`choose.order`).

A winner is kept a GPU, driver, version of the kernels and of this package, form, extents and layout, as JSON below
`tune/` in the cache folder. A file that is damaged, or names what there is no more, is a warning, and as if there were
none. Measuring runs one product at a time in a process, on results of its own: the caller's is never written.
"""

from __future__ import annotations

import functools
import hashlib
import json
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tensorladder import __version__
from tensorladder.core import cache
from tensorladder.core.errors import UsageError
from tensorladder.ops import kernels
from tensorladder.ops.choose import ordered, rank
from tensorladder.ops.kernels import Choice, Product, choice
from tensorladder.ops.plan import Matrix, Plan

FOLDER = "tune"
MOST = 10  # candidates in the model's order, and the best of each kernel that is not among them
COPIED = 2 << 30  # bytes of copies of the operands, at most
REMEMBERED = 1 << 14  # keys that a process knows without the disk, at most
L2_TIMES = 2  # inputs rotate through so many times the L2, where memory allows

Timer = Callable[[Sequence[Choice]], Mapping[Choice, float]]
"""Microseconds a launch of each candidate; those that the kernel refuses are left out."""


@dataclass(frozen=True)
class Place:
    """The GPU that times hold for. driver: its version."""

    gpu: str
    driver: str
    arch: str
    sm_count: int


@dataclass(frozen=True)
class Key:
    """What a winner is kept for. layout: which operands are dense, as `layout_of` says it. source: what the kernels
    that do the product are compiled from."""

    place: Place
    product: Product
    layout: str
    source: str
    version: str = __version__

    def record(self) -> dict[str, Any]:
        """As JSON."""
        product = {**self.product._asdict(), "form": asdict(self.product.form)}
        facts = {"layout": self.layout, "source": self.source, "version": self.version}
        return {"place": asdict(self.place), "product": product, **facts}

    @property
    def file(self) -> str:
        """Its name in the cache folder."""
        text = json.dumps(self.record(), sort_keys=True)
        return f"{FOLDER}/{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"


@functools.cache
def place(torch: Any, device: int, arch: str) -> Place:
    """Where a GPU's times hold."""
    from tensorladder.silicon.nvml import Meter

    found = torch.cuda.get_device_properties(device)
    return Place(found.name, Meter().driver() or "unknown", arch, found.multi_processor_count)


@functools.lru_cache(maxsize=4096)
def key(place: Place, plan: Plan) -> Key:
    """The key of a product in a place. UsageError where no kernel does it."""
    product = Product(plan.m, plan.n, plan.k, plan.l, plan.form)
    digests = [f"{one.name}:{kernels.source_digest(one.name)}" for one in kernels.taking(product, place.arch)]
    return Key(place, product, layout_of(plan), " ".join(digests))


def layout_of(plan: Plan) -> str:
    """How the matrices lie: a word each for A, B, C and R, as "dense dense padded -"."""
    return " ".join("-" if matrix is None else _lies(matrix) for matrix in (plan.a, plan.b, plan.c, plan.r))


def _lies(matrix: Matrix) -> str:
    rows, cols = matrix.shape if matrix.major == "k" else matrix.shape[::-1]
    if matrix.l > 1 and matrix.step == 0:
        return "shared"
    dense = matrix.pitch == cols and (matrix.l == 1 or matrix.step == rows * cols)
    return "dense" if dense else "padded"


_measuring = threading.RLock()
_known: dict[Key, Choice | None] = {}


def winner(of: Key) -> Choice | None:
    """The measured choice that is kept for a key, None where there is none. The disk is asked once."""
    try:
        return _known[of]
    except KeyError:
        if len(_known) >= REMEMBERED:
            _known.clear()
        return _known.setdefault(of, _load(of))


def chosen(place: Place, plan: Plan) -> Choice:
    """What to run: the kept winner where there is one, else the model's first. UsageError where nothing does it."""
    of = key(place, plan)
    return winner(of) or rank(*of.product, place.sm_count, place.arch)[0]


def ranked(place: Place, plan: Plan) -> tuple[Choice, ...]:
    """What to run, the best first: the kept winner where there is one, then by the model."""
    of = key(place, plan)
    found, model = winner(of), rank(*of.product, place.sm_count, place.arch)
    return model if found is None else (found, *(one for one in model if one != found))


def forget() -> None:
    """Drop what this process knows; the disk is asked again."""
    _known.clear()


def tune(of: Key, timer: Timer) -> Choice:
    """The kept winner, or else the fastest of the model's best candidates, which is kept.

    UsageError where no candidate runs.
    """
    with _measuring:
        found = winner(of)
        if found is not None:
            return found
        times = timer(contenders(of.product, of.place.sm_count, of.place.arch))
        if not times:
            raise UsageError("tune: no candidate runs here: leave tune out, or pack kernels for this form")
        best = ordered(times, of.product, of.place.sm_count, of.place.arch)[0]
        _known[of] = best
        _keep(of, best, times)
        return best


def contenders(product: Product, sm_count: int, arch: str) -> tuple[Choice, ...]:
    """What is measured: the model's first, and the first of every kernel that is not among them."""
    ranked = rank(*product, sm_count, arch)
    first = ranked[:MOST]
    present = {one.kernel for one in first}
    others: dict[str, Choice] = {}
    for one in ranked[MOST:]:
        if one.kernel not in present:
            others.setdefault(one.kernel, one)
    return (*first, *others.values())


# ----------------------------------------------------------------------------------------------------------- on disk


def _keep(of: Key, best: Choice, times: Mapping[Choice, float]) -> None:
    measured = [{"kernel": one.kernel, "knobs": dict(one.knobs), "us": round(us, 3)} for one, us in times.items()]
    text = json.dumps({"for": of.record(), "best": list(times).index(best), "measured": measured}, indent=1)
    cache.write(of.file, text.encode())


def _load(of: Key) -> Choice | None:
    data = cache.read(of.file)
    if data is None:
        if (cache.cache_dir() / of.file).exists():
            _ignored(of, "cut short or damaged")
        return None
    try:
        record = json.loads(data)
        one = record["measured"][record["best"]]
        found = choice(one["kernel"], **{name: _tuples(value) for name, value in one["knobs"].items()})
        if record["for"] != json.loads(json.dumps(of.record())):
            raise ValueError("it is for another product")
        if found not in rank(*of.product, of.place.sm_count, of.place.arch):
            raise ValueError("there is no such candidate any more")
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        _ignored(of, str(error))
        return None
    return found


def _tuples(value: Any) -> Any:
    return tuple(_tuples(part) for part in value) if isinstance(value, list) else value


def _ignored(of: Key, why: str) -> None:
    warnings.warn(
        f"the measured choice {cache.cache_dir() / of.file} is ignored ({why}): the model chooses; tune=True measures "
        "again",
        stacklevel=4,
    )


# ---------------------------------------------------------------------------------------------------------- on a GPU


def on_the_virtual_gpu() -> None:
    """Say that `tune` does nothing there: its time is the emulation's."""
    warnings.warn("tune: the virtual GPU measures nothing, the model chooses", stacklevel=3)


def refuse_capture(torch: Any) -> None:
    """UsageError while a CUDA graph is being captured: measuring waits for the GPU, which would end the capture."""
    if torch.cuda.is_current_stream_capturing():
        raise UsageError("tune: nothing can be measured during a CUDA graph's capture: call once with tune=True before")


def timer(torch: Any, tensors: Mapping[str, Any], bind: Callable[[Choice, Mapping[str, Any]], Any]) -> Timer:
    """How candidates are timed on a GPU: interleaved, on copies of the operands and results of their own.

    tensors: the call's, by name, None where there is no such operand; "out" is not touched. bind: makes a call that
    launches a choice on such tensors; it may raise UsageError for what the kernel does not take.
    """
    from tensorladder.silicon.nvml import Meter
    from tensorladder.silicon.timing import Options, compare

    def measure(candidates: Sequence[Choice]) -> dict[Choice, float]:
        refuse_capture(torch)
        sets = operands(torch, tensors)
        calls: dict[str, list[Any]] = {}
        names: dict[str, Choice] = {}
        refused = None
        for one in candidates:
            try:
                bound = [bind(one, each) for each in sets]
                bound[0]()
            except UsageError as error:
                refused = error
                continue
            calls[str(one)], names[str(one)] = bound, one
        if not calls and refused is not None:
            raise refused
        options = Options(batch_us=500.0, most_launches=32, settle=0.3, seconds=0.3, rounds=5)
        times = compare(torch, calls, Meter(), options).times
        torch.cuda.current_stream().synchronize()
        return {names[name]: found.median for name, found in times.items()}

    return measure


def operands(torch: Any, tensors: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Sets of operands to rotate through: the caller's own with another result, and copies until L2 holds few of them.

    UsageError where not even another result fits into memory.
    """
    given = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    l2 = torch.cuda.get_device_properties(given["a"].device).L2_cache_size
    size = sum(_span(tensor) * tensor.element_size() for tensor in given.values())
    sets = 1 + min(L2_TIMES * l2 // size, COPIED // size)
    made: list[dict[str, Any]] = []
    try:
        made.append({**tensors, "out": _copy(given["out"])})
        for _ in range(sets - 1):
            made.append({name: None if tensor is None else _copy(tensor) for name, tensor in tensors.items()})
    except torch.cuda.OutOfMemoryError:
        if not made:
            raise UsageError("tune: no memory for a result to measure on: call it where more is free") from None
    return made


def _span(tensor: Any) -> int:
    """Elements from its first to its last."""
    return 1 + sum((extent - 1) * step for extent, step in zip(tensor.shape, tensor.stride()))


def _copy(tensor: Any) -> Any:
    """Other memory with the same bits, gaps included, and the same strides (0 too)."""
    flat = tensor.detach().as_strided((_span(tensor),), (1,))
    return flat.clone().as_strided(tensor.shape, tensor.stride())
