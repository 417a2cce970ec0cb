"""What a rung computes: `Problem` (the definition) and `Case` (its arrays, ready to run and to be judged).

A problem draws its inputs from a seed, poisons its outputs with NaN, knows the result in float64 and says how far a
right kernel may be from it. Two tests have to pass: the relative Frobenius norm of the whole output, and every
element against a bound of its own, so that one wrong element among a million cannot hide.

Tolerances are derived, not tuned. With `u` the unit roundoff of the output type and `v` = 2^-23 a step of a float32
accumulator that truncates (tensor cores do), a sum of K products differs from the exact one by about
sqrt(K) * v * sum|a||b| (Higham and Mary, "A new approach to probabilistic rounding error analysis", 2019, theorem
2.4); storing it adds u * |c|.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from tensorladder.core.errors import MissingExtra, UsageError

Shape = tuple[int, ...]
Arrays = dict[str, np.ndarray]

ACCUMULATE_STEP = 2.0**-23
CONFIDENCE = 8.0  # lambda in Higham and Mary's bound: fails with probability 2 exp(-lambda^2 / 2), about 1e-14

INTEGER_SCALE = 1000.0


@dataclass(frozen=True)
class Dtype:
    """An element type by its canonical name. unit: unit roundoff; tiny: half the smallest subnormal."""

    name: str
    bits: int
    unit: float
    tiny: float

    @property
    def numpy(self) -> np.dtype:
        """The numpy type of it; bfloat16 and fp8 come from ml_dtypes (MissingExtra where that is absent)."""
        if self.name in _ML_DTYPES:
            try:
                import ml_dtypes
            except ModuleNotFoundError as error:
                raise MissingExtra(f"ml-dtypes ({_ML_DTYPES[self.name]} for numpy)", "climb") from error
            return np.dtype(getattr(ml_dtypes, _ML_DTYPES[self.name]))
        return np.dtype({"fp16": "float16", "fp32": "float32", "int32": "int32", "uint8": "uint8"}[self.name])


DTYPES: dict[str, Dtype] = {
    "fp16": Dtype("fp16", 16, 2.0**-11, 2.0**-25),
    "bf16": Dtype("bf16", 16, 2.0**-8, 2.0**-134),
    "fp32": Dtype("fp32", 32, 2.0**-24, 2.0**-150),
    "int32": Dtype("int32", 32, 0.0, 0.0),
    "uint8": Dtype("uint8", 8, 0.0, 0.0),
    "e4m3": Dtype("e4m3", 8, 2.0**-4, 2.0**-10),
    "e5m2": Dtype("e5m2", 8, 2.0**-3, 2.0**-17),
    "mxfp8": Dtype("mxfp8", 8, 2.0**-4, 0.0),
    "nvfp4": Dtype("nvfp4", 4, 2.0**-2, 0.0),
}

_ML_DTYPES: dict[str, str] = {"bf16": "bfloat16", "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}

_ALIASES: dict[str, str] = {
    "f16": "fp16", "float16": "fp16", "half": "fp16", "bfloat16": "bf16",
    "f32": "fp32", "float32": "fp32", "float": "fp32", "s32": "int32", "i32": "int32",
    "fp8": "e4m3", "fp8_e4m3": "e4m3", "float8_e4m3fn": "e4m3",
}  # fmt: skip


def dtype_named(name: str) -> Dtype:
    """The element type of that name or alias ("fp16", "float16", "half"); UsageError for any other."""
    try:
        return DTYPES[_ALIASES.get(name.lower(), name.lower())]
    except KeyError:
        raise UsageError(f"dtype {name!r} is not known: use one of {', '.join(DTYPES)}") from None


class Empty(Protocol):
    """How arrays are allocated: `Device.memory.empty` of the virtual GPU, or `numpy_empty`."""

    def __call__(self, name: str, shape: Shape, dtype: Any, order: str = "C") -> np.ndarray: ...


def numpy_empty(name: str, shape: Shape, dtype: Any, order: str = "C") -> np.ndarray:
    """An uninitialised array in ordinary host memory, 256-byte aligned as device allocations are."""
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    raw = np.empty(size + 256, np.uint8)
    start = -raw.ctypes.data % 256
    return raw[start : start + size].view(dtype).reshape(shape, order="F" if order == "F" else "C")


@dataclass(frozen=True)
class Operand:
    """One array of a problem: an input (drawn from a standard normal; integers INTEGER_SCALE times that, cut off), an
    output or scratch memory (each byte is `poison`; scratch is what kernels of a rung pass to each other, and nobody
    judges it). values: what the input holds in place of drawn numbers, a table of sizes say.
    """

    name: str
    shape: Shape
    dtype: str
    output: bool = False
    order: str = "C"
    values: tuple[Any, ...] | None = None
    scratch: bool = False
    poison: int = 0xFF


@dataclass(frozen=True)
class Verdict:
    """What a problem says of outputs that no bound on single elements can judge. error: a relative norm, inf where
    there is none. wrong: by output, which elements are at fault."""

    error: float
    wrong: Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Problem:
    """What is computed, for any shape and element type it lists.

    axes: names of the numbers in a shape. default_shape: small enough for a laptop's virtual GPU. dtypes: the first
    is the default. operands(shape, dtype): the arrays in the order a rung's host code takes them. compute(inputs,
    shape, dtype): the exact outputs from float64 inputs. bound(inputs, reference, shape, dtype): the largest right
    absolute error of each element. tolerance(shape, dtype): the largest right relative norm. flops(shape): the
    useful floating-point operations. draw(shape, dtype, seed): the inputs, where they depend on each other.
    refuse(shape, dtype): why such a shape cannot be, in one line that says what can; None where it can.
    verify(outputs, inputs, shape, dtype): the judgement, where several outputs are right and `bound` cannot say which.
    may_be_zero: the axes that may.
    """

    name: str
    summary: str
    axes: tuple[str, ...]
    default_shape: Shape
    dtypes: tuple[str, ...]
    operands: Callable[[Shape, str], tuple[Operand, ...]]
    compute: Callable[[Arrays, Shape, Dtype], Arrays]
    bound: Callable[[Arrays, Arrays, Shape, Dtype], Arrays]
    tolerance: Callable[[Shape, Dtype], float]
    flops: Callable[[Shape], int]
    draw: Callable[[Shape, str, int], Arrays] | None = None
    refuse: Callable[[Shape, str], str | None] = lambda shape, dtype: None
    verify: Callable[[Arrays, Arrays, Shape, Dtype], Verdict] | None = None
    may_be_zero: tuple[str, ...] = ()

    def check(self, shape: Shape, dtype: str) -> tuple[Shape, str]:
        """The shape as integers and the dtype's canonical name; UsageError where they do not fit this problem."""
        axes = ",".join(self.axes)
        if len(shape) != len(self.axes):
            raise UsageError(f"shape has {len(shape)} extents: {self.name} takes --shape {axes}")
        for axis, extent in zip(self.axes, shape, strict=True):
            if int(extent) != extent or extent < (axis not in self.may_be_zero):
                raise UsageError(f"shape: {axis}={extent} must be a positive integer (--shape {axes})")
        name = dtype_named(dtype).name
        if name not in self.dtypes:
            raise UsageError(f"dtype {dtype!r} is not one of {self.name}'s: use {', '.join(self.dtypes)}")
        shape = tuple(int(extent) for extent in shape)
        refused = self.refuse(shape, name)
        if refused:
            raise UsageError(f"{self.name}: {refused}")
        return shape, name

    def inputs(self, shape: Shape, dtype: str, seed: int = 0) -> Arrays:
        """The input arrays for this seed: always the same, and independent of each other but for what `draw` ties."""
        if self.draw is not None:
            return self.draw(shape, dtype, seed)
        return {
            operand.name: _draw(operand, seed, index)
            for index, operand in enumerate(self.operands(shape, dtype))
            if not (operand.output or operand.scratch)
        }

    def make(self, shape: Shape, dtype: str, seed: int = 0, empty: Empty = numpy_empty) -> Case:
        """Allocate with `empty`, fill the inputs from `seed` and poison the outputs."""
        shape, dtype = self.check(shape, dtype)
        operands = self.operands(shape, dtype)
        drawn = self.inputs(shape, dtype, seed)
        arrays: Arrays = {}
        for operand in operands:
            array = empty(operand.name, operand.shape, DTYPES[operand.dtype].numpy, order=operand.order)
            if operand.output or operand.scratch:
                _poison(array, operand.poison)
            else:
                array[...] = drawn[operand.name]
            arrays[operand.name] = array
        outputs = tuple(operand.name for operand in operands if operand.output)
        return Case(self, shape, dtype, seed, arrays, outputs)


@dataclass
class Case:
    """One instance of a problem. `arrays` are in the order a rung's host code takes them."""

    problem: Problem
    shape: Shape
    dtype: str
    seed: int
    arrays: Arrays
    outputs: tuple[str, ...]
    _exact: Arrays | None = field(default=None, repr=False)

    @property
    def tolerance(self) -> float:
        """The largest relative Frobenius norm of the error that a right kernel can have."""
        return self.problem.tolerance(self.shape, DTYPES[self.dtype])

    @property
    def flops(self) -> int:
        """Useful floating-point operations."""
        return self.problem.flops(self.shape)

    @property
    def bytes(self) -> int:
        """Compulsory traffic with global memory: every input and output once."""
        scratch = {one.name for one in self.problem.operands(self.shape, self.dtype) if one.scratch}
        return sum(array.nbytes for name, array in self.arrays.items() if name not in scratch)

    def reference(self) -> Arrays:
        """The exact outputs in float64, from inputs drawn anew (a kernel may have spoilt those in `arrays`)."""
        if self._exact is None:
            self._exact = self.problem.compute(self._inputs64(), self.shape, DTYPES[self.dtype])
        return self._exact

    def bounds(self) -> Arrays:
        """For each output, the largest absolute error that each element of a right kernel can have."""
        return self.problem.bound(self._inputs64(), self.reference(), self.shape, DTYPES[self.dtype])

    def judge(self) -> tuple[bool, float]:
        """See `judge`."""
        return judge(self)

    def _inputs64(self) -> Arrays:
        drawn = self.problem.inputs(self.shape, self.dtype, self.seed)
        return {name: array.astype(np.float64) for name, array in drawn.items()}


@dataclass(frozen=True)
class Judgement:
    """What `examine` found. error: the worst relative norm of the outputs (inf with NaN or spoilt inputs).

    wrong: outputs and inputs at fault, each with how many elements and the first index.
    """

    ok: bool
    error: float
    wrong: Mapping[str, tuple[int, Shape]]


def examine(case: Case, arrays: Mapping[str, np.ndarray] | None = None) -> Judgement:
    """Compare the outputs with the reference by norm and element by element, and the inputs with what was drawn.

    arrays: results to judge instead of the case's own (copies from a GPU, say), by the same names.
    """
    arrays = case.arrays if arrays is None else arrays
    verdict = _verdict(case, {name: np.asarray(arrays[name]) for name in case.outputs})
    error = verdict.error
    wrong: dict[str, tuple[int, Shape]] = {}
    for name, bad in verdict.wrong.items():
        _record(wrong, name, bad)
    for name, drawn in case.problem.inputs(case.shape, case.dtype, case.seed).items():
        if name in arrays:
            _record(wrong, name, np.asarray(arrays[name]) != drawn)
    spoilt = any(name not in case.outputs for name in wrong)
    error = math.inf if spoilt else error
    return Judgement(not wrong and error <= case.tolerance, error, wrong)


def _verdict(case: Case, outputs: Arrays) -> Verdict:
    """The problem's own, or each element against the reference and its bound."""
    if case.problem.verify is not None:
        return case.problem.verify(outputs, case._inputs64(), case.shape, DTYPES[case.dtype])
    reference, bounds = case.reference(), case.bounds()
    got = {name: array.astype(np.float64) for name, array in outputs.items()}
    # Not `>`: a NaN has to count as wrong.
    wrong = {name: ~(np.abs(_difference(got[name], reference[name])) <= bounds[name]) for name in got}
    return Verdict(max((relative_norm(got[name], reference[name]) for name in got), default=0.0), wrong)


def judge(case: Case) -> tuple[bool, float]:
    """(right or not, relative norm of the error). See `examine` for where it is wrong."""
    verdict = examine(case)
    return verdict.ok, verdict.error


def relative_norm(got: np.ndarray, reference: np.ndarray) -> float:
    """||got - reference|| / ||reference|| in the Frobenius norm; inf where `got` is not finite.

    An infinity of the reference (the logarithm of an empty sum) is right where `got` has the same, and counts as 0.
    """
    difference = float(np.linalg.norm(_difference(got, reference).ravel()))
    scale = float(np.linalg.norm(reference[np.isfinite(reference)]))
    if not math.isfinite(difference):
        return math.inf
    return difference / scale if scale else difference


def _difference(got: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """got - reference; 0 where both are the same infinity."""
    return np.subtract(got, reference, out=np.zeros(reference.shape), where=got != reference)


def _record(wrong: dict[str, tuple[int, Shape]], name: str, bad: np.ndarray) -> None:
    if bad.any():
        first = np.unravel_index(int(np.argmax(bad)), bad.shape)
        wrong[name] = (int(bad.sum()), tuple(int(i) for i in first))


def _draw(operand: Operand, seed: int, index: int) -> np.ndarray:
    if operand.values is not None:
        return np.array(operand.values, DTYPES[operand.dtype].numpy).reshape(operand.shape)
    generator = np.random.default_rng([seed, index])
    drawn = generator.standard_normal(operand.shape, dtype=np.float32)
    if not DTYPES[operand.dtype].unit:
        drawn = drawn * INTEGER_SCALE
    return drawn.astype(DTYPES[operand.dtype].numpy)


def _poison(array: np.ndarray, byte: int) -> None:
    """Every byte the same; 0xff is a NaN in all floating types, -1 in the integers."""
    array.fill(np.frombuffer(bytes([byte]) * array.itemsize, array.dtype)[0])
