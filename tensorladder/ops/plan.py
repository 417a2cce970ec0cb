"""What a call of `matmul` means, from shapes, strides, types and addresses alone: no torch, no DSL, no GPU.

Whatever the kernel cannot take is refused here, naming the argument: the kernel reads its operands by TMA, which wants
one unit stride, pitches of 16 bytes and bases aligned to as much, and it writes C in pairs of whole rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tensorladder.core.errors import UsageError
from tensorladder.rungs.parts.form import Form

ACTIVATIONS = ("none", "relu", "gelu", "silu")
INPUTS = ("fp16", "bf16")
OUTPUTS = ("fp16", "bf16", "fp32")
BYTES = {"fp16": 2, "bf16": 2, "fp32": 4}
PITCH = 8  # elements that a pitch is a multiple of: 16 bytes of the narrowest type
ALIGN = 16  # bytes
MOST = 2**31 - 1  # the largest extent: coordinates are 32 bits wide


@dataclass(frozen=True)
class Array:
    """A tensor as it is planned with: extents and strides in elements, an element type by name, an address."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    address: int = 0

    def span(self) -> tuple[int, int]:
        """The bytes from its first element to its last: [begin, end)."""
        reach = sum((extent - 1) * step for extent, step in zip(self.shape, self.strides))
        return self.address, self.address + (reach + 1) * BYTES[self.dtype] * (0 not in self.shape)


@dataclass(frozen=True)
class Matrix:
    """Two extents of memory that a kernel takes: which one is contiguous ("k": the second, "mn": the first), and the
    distance of the other's elements."""

    shape: tuple[int, int]
    major: str
    pitch: int

    @property
    def strides(self) -> tuple[int, int]:
        """In elements."""
        return (self.pitch, 1) if self.major == "k" else (1, self.pitch)


@dataclass(frozen=True)
class Plan:
    """A product: C (m, n) of A (m, k) and B (n, k); `shape` is the result's as the caller sees it.

    c is None where the result is to be allocated: dense then. r: the residual. empty: nothing to multiply.
    """

    m: int
    n: int
    k: int
    form: Form
    shape: tuple[int, ...]
    a: Matrix | None
    b: Matrix | None
    c: Matrix | None
    r: Matrix | None

    @property
    def empty(self) -> bool:
        """Whether there is nothing for a kernel to do: an extent is 0."""
        return 0 in (self.m, self.n, self.k)


def plan(
    a: Array,
    b: Array,
    *,
    out: Array | None = None,
    bias: Array | None = None,
    residual: Array | None = None,
    activation: str | None = None,
    beta: float = 0.0,
    out_dtype: str | None = None,
) -> Plan:
    """Analyse a call: a (..., M, K), b (K, N), out and residual (..., M, N), bias (N,).

    UsageError for what is not supported, with the argument's name and what would do instead.
    """
    if len(a.shape) < 2:
        raise UsageError(f"a: shape {a.shape}: it takes (..., M, K), a.unsqueeze(0) makes a row of a vector")
    if len(b.shape) != 2:
        raise UsageError(f"b: shape {b.shape}: it takes (K, N), batches of b are not supported")
    if a.dtype not in INPUTS:
        raise UsageError(f"a: {a.dtype}: it takes {' or '.join(INPUTS)}")
    if b.dtype != a.dtype:
        raise UsageError(f"b: {b.dtype}, but a is {a.dtype}: give both the same type")
    *lead, m, k = a.shape
    n, rows = b.shape[1], math.prod((*lead, m))
    if b.shape[0] != k:
        raise UsageError(f"b: shape {b.shape}, but a is (..., {m}, {k}): b takes ({k}, N)")
    for name, extent in (("a: M", rows), ("b: N", n), ("a: K", k)):
        if extent > MOST:
            raise UsageError(f"{name}={extent} (batches are rows): at most {MOST}")
    activation = activation or "none"
    if activation not in ACTIVATIONS:
        raise UsageError(f"activation: {activation!r}: it takes {', '.join(ACTIVATIONS)}")
    shape = (*lead, m, n)
    stored = _out_dtype(a, out, out_dtype)
    _check_epilogue(shape, out, bias, residual, beta)
    if 0 in (rows, n, k):
        form = Form(a.dtype, stored, activation=activation)
        return Plan(rows, n, k, form, shape, None, None, None, None)
    if n % PITCH:
        raise UsageError(f"b: N={n}: rows of the result are stored 16 bytes at a time, pad N to a multiple of {PITCH}")
    left, right = _matrix("a", fold("a", a)), _matrix("b", Array((n, k), b.strides[::-1], b.dtype, b.address))
    target = None if out is None else _row_major("out", fold("out", out))
    added = None if residual is None else _row_major("residual", fold("residual", residual))
    if out is not None:
        _no_overlap(out, a, b, bias, residual)
    form = Form(
        a.dtype, stored, residual.dtype if residual else "", bias.dtype if bias else "", left.major, right.major,
        activation,
    )  # fmt: skip
    return Plan(rows, n, k, form, shape, left, right, target, added)


def _out_dtype(a: Array, out: Array | None, asked: str | None) -> str:
    if out is not None and asked not in (None, out.dtype):
        raise UsageError(f"out_dtype: {asked}, but out is {out.dtype}: leave one of them out")
    stored = out.dtype if out is not None else asked or a.dtype
    if stored not in OUTPUTS:
        raise UsageError(f"{'out' if out is not None else 'out_dtype'}: {stored}: it takes {', '.join(OUTPUTS)}")
    return stored


def _check_epilogue(
    shape: tuple[int, ...], out: Array | None, bias: Array | None, residual: Array | None, beta: float
) -> None:
    if out is not None and out.shape != shape:
        raise UsageError(f"out: shape {out.shape}: the result's is {shape}")
    if residual is not None and residual.shape != shape:
        raise UsageError(f"residual: shape {residual.shape}: it takes the result's, {shape} (nothing is broadcast)")
    if residual is None and beta:
        raise UsageError(f"beta: {beta}, but there is no residual that it could be a factor of")
    if residual is not None and not beta:
        raise UsageError("residual: its factor beta is 0, it would be ignored: give beta=1.0, or no residual")
    if bias is not None:
        if bias.shape != shape[-1:]:
            raise UsageError(f"bias: shape {bias.shape}: it takes {shape[-1:]}, a number a column")
        if bias.strides != (1,) and bias.shape != (1,):
            raise UsageError(f"bias: stride {bias.strides[0]}: it takes contiguous memory, copy it")
        _aligned("bias", bias)
    for name, one in (("bias", bias), ("residual", residual)):
        if one is not None and one.dtype not in OUTPUTS:
            raise UsageError(f"{name}: {one.dtype}: it takes {', '.join(OUTPUTS)}")


def fold(name: str, array: Array) -> Array:
    """All extents but the last as one. UsageError where memory does not lie so that this is possible."""
    *lead, cols = array.shape
    rows, step = 1, 0
    for extent, stride in reversed(list(zip(lead, array.strides[:-1]))):
        if extent == 1:
            continue
        if rows > 1 and stride != step * rows:
            raise UsageError(
                f"{name}: shape {array.shape} with strides {array.strides}: its leading extents are not one sequence "
                f"of rows in memory, copy it ({name}.contiguous())"
            )
        rows, step = rows * extent, step if rows > 1 else stride
    return Array((math.prod(lead), cols), (step, array.strides[-1]), array.dtype, array.address)


def _matrix(name: str, array: Array) -> Matrix:
    (rows, cols), (down, along) = array.shape, array.strides
    _aligned(name, array)
    for major, step, other, extent, lines in (("k", along, down, cols, rows), ("mn", down, along, rows, cols)):
        # the stride of a single element means nothing, nor does the pitch of a single line
        pitch = other if lines > 1 else -(-extent // PITCH) * PITCH
        if (step == 1 or extent == 1) and pitch >= extent and pitch % PITCH == 0:
            return Matrix((rows, cols), major, pitch)
    raise UsageError(
        f"{name}: strides {array.strides} of a matrix {array.shape} (as the kernel sees it): one must be 1, the other "
        f"a multiple of {PITCH} (16 bytes) that no two rows share: copy or pad it"
    )


def _row_major(name: str, array: Array) -> Matrix:
    found = _matrix(name, array)
    if found.major == "k":
        return found
    raise UsageError(f"{name}: strides {array.strides}: its last extent must be the contiguous one")


def _aligned(name: str, array: Array) -> None:
    if array.address % ALIGN:
        raise UsageError(f"{name}: address {array.address:#x} is no multiple of {ALIGN} bytes: copy it")


def _no_overlap(out: Array, a: Array, b: Array, bias: Array | None, residual: Array | None) -> None:
    """Tiles are stored while others are still to be read: only the residual may lie where the result goes, exactly."""
    begin, end = out.span()
    for name, one in (("a", a), ("b", b), ("bias", bias), ("residual", residual)):
        if one is None or (name == "residual" and one == out):
            continue
        first, last = one.span()
        if first < end and begin < last:
            raise UsageError(f"out: shares memory with {name}: give another tensor")
