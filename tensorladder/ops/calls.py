"""Calls of `tensorladder.matmul` that benchmarks time: their operands, the call, and what it must give.

The weight is stored (N, K), as `torch.nn.Linear` keeps it: b is its transpose. Results are compared with float64, every
element against a bound of its own that is derived as those of `problems` are; an activation passes an error on with its
steepest slope, a gated product with the other factor.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tensorladder.core.errors import TensorladderError, UsageError
from tensorladder.measure.bench import judged, sets_for
from tensorladder.ops import grouped_plan, tune
from tensorladder.ops.choose import ARCH
from tensorladder.ops.grouped_plan import GroupedPlan
from tensorladder.ops.kernels import Choice
from tensorladder.ops.plan import Array, Plan, plan
from tensorladder.problems import DTYPES
from tensorladder.problems.gemm import NARROW_K, NARROW_STEP, narrow_sum
from tensorladder.problems.gemm_epilogue import EPILOGUE_STEPS
from tensorladder.problems.problem import ACCUMULATE_STEP, CONFIDENCE
from tensorladder.rungs.parts.form import Form

Shape = tuple[int, int, int]
Tensors = dict[str, Any]

APART = 1 << 42  # bytes between the addresses that calls are planned with
PITCH = 8  # rows of C begin at multiples of it, whatever N is
TORCH = {"fp16": "float16", "bf16": "bfloat16", "e4m3": "float8_e4m3fn"}
#: the steepest slopes of the activations
SLOPES = {"none": 1.0, "relu": 1.0, "gelu": 1.13, "silu": 1.1}


@dataclass(frozen=True)
class Call:
    """A way to call the op. scales: "" for none, "tensor" for a factor an operand, "row" for one a row of A and of the
    weight. gated: the weight's first half of rows is the gate's, and C has N / 2 columns. groups: rows of A belong
    to so many groups of uneven sizes, each with a weight of its own. tune: it may measure what is best first. dtypes:
    the first is timed.
    """

    name: str
    bias: bool = False
    residual: bool = False
    activation: str = "none"
    gated: bool = False
    scales: str = ""
    groups: int = 0
    tune: bool = False
    dtypes: tuple[str, ...] = ("bf16", "fp16")

    @property
    def label(self) -> str:
        """What its records are called."""
        words = "matmul" if self.name == "matmul" else f"matmul {self.name}"
        return f"{words}, tuned" if self.tune else words

    def output(self, dtype: str) -> str:
        """Element type of C."""
        return dtype if DTYPES[dtype].bits > 8 else "bf16"


CALLS: dict[str, Call] = {
    call.name: call
    for call in (
        Call("matmul"),
        Call("bias-gelu", bias=True, activation="gelu"),
        Call("bias-silu", bias=True, activation="silu"),
        Call("bias-residual", bias=True, residual=True),
        Call("swiglu", activation="silu", gated=True),
        *(Call(f"grouped-{groups}", groups=groups) for groups in (8, 32, 128)),
        Call("fp8", scales="tensor", dtypes=("e4m3",)),
        Call("fp8-rows", scales="row", dtypes=("e4m3",)),
    )
}


def find(name: str) -> Call:
    """The call of that name; UsageError with the names there are for any other."""
    try:
        return CALLS[name]
    except KeyError:
        raise UsageError(f"--op {name!r} is not known: use one of {', '.join(CALLS)}") from None


def dtype_of(call: Call, asked: str | None) -> str:
    """The element type to time a call in. UsageError for one that it does not take."""
    if asked not in (None, *call.dtypes):
        raise UsageError(f"--dtype {asked}: --op {call.name} takes {', '.join(call.dtypes)}")
    return asked or call.dtypes[0]


def ours(call: Call, t: Mapping[str, Any]) -> Callable[[], Any]:
    """The op on these tensors, with its own choice of a kernel."""
    from tensorladder.ops import grouped_matmul, matmul, swiglu

    if call.groups:
        right = t["B"].mT
        return lambda: grouped_matmul(t["A"], right, t["ends"])
    options: dict[str, Any] = {"out": t["C"]}
    if call.bias:
        options["bias"] = t["bias"]
    if call.residual:
        options |= {"residual": t["R"], "beta": 1.0}
    if call.activation != "none":
        options["activation"] = call.activation
    if call.scales:
        options |= {"scale_a": t["p"], "scale_b": t["q"]}
    if call.tune:
        options["tune"] = True
    function = swiglu if call.gated else matmul
    a, b = t["A"], t["B"].t()
    return lambda: function(a, b, **options)


def planned(call: Call, shape: Shape, dtype: str) -> Plan:
    """What the op makes of a call on tensors laid out as those of `Work`. UsageError where it does not take it."""
    m, n, k = shape
    columns, stored = n // 2 if call.gated else n, call.output(dtype)
    addresses = itertools.count(APART, APART)

    def lies(extents: tuple[int, ...], strides: tuple[int, ...], element: str = stored) -> Array:
        return Array(extents, strides, element, next(addresses))

    pitch = -(-columns // PITCH) * PITCH
    b = lies((k, columns), (1, k), dtype)
    more: dict[str, Array] = {"out": lies((m, columns), (pitch, 1))}
    if call.gated:
        more["up"] = replace(b, address=b.address + columns * k * DTYPES[dtype].bits // 8)
    if call.bias:
        more["bias"] = lies((n,), (1,))
    if call.residual:
        more["residual"] = lies((m, columns), (columns, 1))
    if call.scales:
        row = call.scales == "row"
        more["scale_a"] = lies((m, 1), (1, 1), "fp32") if row else lies((), (), "fp32")
        more["scale_b"] = lies((1, n), (n, 1), "fp32") if row else lies((), (), "fp32")
    given: dict[str, Any] = {**more, "activation": call.activation, "beta": float(call.residual)}
    return plan(lies((m, k), (k, 1), dtype), b, **given)


def grouped(call: Call, shape: Shape, dtype: str) -> GroupedPlan:
    """`planned` for a call with groups."""
    m, n, k = shape
    a, b = Array((m, k), (k, 1), dtype, APART), Array((call.groups, k, n), (n * k, 1, k), dtype, 2 * APART)
    return grouped_plan.plan(a, b, Array((call.groups,), (1,), "int32", 3 * APART))


def pick(call: Call, shape: Shape, dtype: str, sm_count: int, torch: Any = None) -> tuple[Form, Choice]:
    """The form of a call's product, and the kernel that the op takes. torch: with the GPU, whose measured choices count
    then. UsageError where the op does not take the call.
    """
    if call.groups:
        ragged = grouped(call, shape, dtype)
        return ragged.form, grouped_plan.choose(ragged, sm_count)
    made = planned(call, shape, dtype)
    where = tune.Place("", "", ARCH, sm_count) if torch is None else tune.place(torch, 0, ARCH)
    return made.form, tune.chosen(where, made)


def chosen(call: Call, shape: Shape, dtype: str, sm_count: int, torch: Any = None) -> dict[str, Any]:
    """`pick` as a record has it; nothing where there is no kernel."""
    try:
        _, found = pick(call, shape, dtype, sm_count, torch)
    except TensorladderError:
        return {}
    return {"kernel": found.kernel, "config": {knob: _plain(value) for knob, value in found.knobs}}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


class Work:
    """Sets of operands for a call, enough of them to fill twice the L2, and the judgement of a result.

    A (M, K), B (N, K), C (M, N or N / 2), bias (N), R as C, p (M, 1) and q (1, N), or one factor each. With groups, B
    is (groups, N, K), and `ends` (groups,) says where the rows of each end.
    """

    def __init__(self, torch: Any, call: Call, shape: Shape, dtype: str, l2: int, device: str = "cuda") -> None:
        self.torch, self.call, self.shape, self.dtype, self.device = torch, call, shape, dtype, device
        first = self._draw(0)
        self.bytes = sum(tensor.numel() * tensor.element_size() for tensor in first.values())
        self.sets = [first, *(self._draw(seed) for seed in range(1, sets_for(self.bytes, l2)))]

    @property
    def flops(self) -> int:
        """Multiplications and additions of the product."""
        return 2 * math.prod(self.shape)

    @property
    def tolerance(self) -> float:
        """What the result's relative norm may be off."""
        dtype, k = DTYPES[self.dtype], self.shape[-1]
        steps = CONFIDENCE * math.sqrt(k) + EPILOGUE_STEPS
        stored = DTYPES[self.call.output(self.dtype)].unit
        return stored + 4 * SLOPES[self.call.activation] * steps * ACCUMULATE_STEP + 2 * narrow_sum(self.shape, dtype)

    def _draw(self, seed: int) -> Tensors:
        torch, call, (m, n, k) = self.torch, self.call, self.shape
        generator = torch.Generator(self.device).manual_seed(seed)
        element, out = (getattr(torch, TORCH[name]) for name in (self.dtype, call.output(self.dtype)))

        def normal(*extents: int, to: Any = None, scale: float = 1.0) -> Any:
            drawn = torch.randn(extents, generator=generator, device=self.device, dtype=torch.float32)
            return (drawn * scale).to(to or element)

        # An activation is there for sums of about 1.
        narrow = 1.0 if call.activation == "none" else k**-0.5
        weights = (call.groups, n, k) if call.groups else (n, k)
        made = {"A": normal(m, k), "B": normal(*weights, scale=narrow)}
        columns = n // 2 if call.gated else n
        rows = torch.empty((m, -(-columns // PITCH) * PITCH), device=self.device, dtype=out)
        made["C"] = rows[:, :columns]
        if call.bias:
            made["bias"] = normal(n, to=out)
        if call.residual:
            made["R"] = normal(m, columns, to=out)
        if call.groups:
            cuts = torch.randint(0, m + 1, (call.groups - 1,), generator=generator, device=self.device)
            last = torch.full((1,), m, device=self.device)
            made["ends"] = torch.cat((cuts.sort().values, last)).to(torch.int32)
        if call.scales:
            for name, extents in (("p", (m, 1)), ("q", (1, n))):
                factors = torch.rand(extents if call.scales == "row" else (), generator=generator, device=self.device)
                made[name] = factors + 0.5
        return made

    def check(self, run: Callable[[], Any]) -> tuple[bool, float]:
        """Run once on the first set and compare C with float64: (every element within its bound, relative norm).

        A result that is given back goes into C first.
        """
        tensors = self.sets[0]
        tensors["C"].fill_(math.nan)
        given = run()
        if isinstance(given, self.torch.Tensor) and given is not tensors["C"]:
            tensors["C"].copy_(given)
        return judged(tensors["C"], functools.partial(self.reference, tensors))

    def reference(self, t: Tensors, rows: slice) -> tuple[Any, Any]:
        """(C in float64, what every element may be off) for some rows."""
        call, torch = self.call, self.torch
        sums, errors = self._accumulated(t, rows)
        if call.bias:
            sums, errors = self._added(sums, errors, t["bias"].double())
        if call.residual:
            sums, errors = self._added(sums, errors, t["R"][rows].double())
        activate = ACTIVATIONS[call.activation]
        if call.gated:
            half = self.shape[1] // 2
            gate, up = activate(torch, sums[:, :half]), sums[:, half:]
            gates, ups = SLOPES[call.activation] * errors[:, :half], errors[:, half:]
            value, error = gate * up, gates * up.abs() + gate.abs() * ups + gates * ups
        else:
            value, error = activate(torch, sums), SLOPES[call.activation] * errors
        stored = DTYPES[call.output(self.dtype)]
        return value, stored.unit * (value.abs() + error) + error + stored.tiny

    def _accumulated(self, t: Tensors, rows: slice) -> tuple[Any, Any]:
        """The scaled sums of products, and how far those of float32 accumulators may be from them."""
        a = t["A"][rows].double()
        if self.call.groups:
            ends = [min(max(end - rows.start, 0), a.shape[0]) for end in t["ends"].tolist()]
            parts = [self._sums(a[begin:end], b.double()) for begin, end, b in zip([0, *ends], ends, t["B"])]
            sums, errors = (self.torch.cat(part) for part in zip(*parts))
        else:
            sums, errors = self._sums(a, t["B"].double())
        if self.call.scales:
            p = t["p"].double()
            factors = (p if p.ndim == 0 else p[rows]) * t["q"].double()
            sums, errors = sums * factors, errors * factors
        return sums, errors

    def _sums(self, a: Any, b: Any) -> tuple[Any, Any]:
        k = self.shape[-1]
        sums = a @ b.t()
        steps = CONFIDENCE * math.sqrt(k) + EPILOGUE_STEPS
        errors = steps * ACCUMULATE_STEP * (a.abs() @ b.abs().t())
        if narrow := narrow_sum(self.shape, DTYPES[self.dtype]):
            squares = (a**2) @ (b**2).t()
            errors = errors + CONFIDENCE * narrow * squares**0.5 + k / NARROW_K * NARROW_STEP * sums.abs()
        return sums, errors

    @staticmethod
    def _added(sums: Any, errors: Any, addend: Any) -> tuple[Any, Any]:
        return sums + addend, errors + EPILOGUE_STEPS * ACCUMULATE_STEP * addend.abs()


#: the activations, by torch
ACTIVATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "none": lambda torch, x: x,
    "relu": lambda torch, x: torch.relu(x),
    "gelu": lambda torch, x: torch.nn.functional.gelu(x),
    "silu": lambda torch, x: torch.nn.functional.silu(x),
}
