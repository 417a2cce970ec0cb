"""What a call of `matmul` means, from shapes, strides, types and addresses alone: no torch, no DSL, no GPU.

Whatever the kernels cannot take is refused here, naming the argument: they read a and b by TMA, which wants one unit
stride, pitches of 16 bytes and bases aligned to as much. All else may lie anywhere (`Form.c_tma`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tensorladder.core.errors import UsageError
from tensorladder.rungs.parts.form import Form

ACTIVATIONS = ("none", "relu", "gelu", "silu")
FP8 = ("e4m3", "e5m2")
INPUTS = ("fp16", "bf16", *FP8)
OUTPUTS = ("fp16", "bf16", "fp32")
DEFAULT_OUTPUT = dict.fromkeys(FP8, "bf16")  # the others: as the inputs
BYTES = {"fp16": 2, "bf16": 2, "fp32": 4, "e4m3": 1, "e5m2": 1}
PITCH = {"fp16": 8, "bf16": 8, "fp32": 8, "e4m3": 16, "e5m2": 16}  # elements that pitches are multiples of: 16 bytes
ALIGN = 16  # bytes
MOST = 2**31 - 2**9  # the largest extent: coordinates are 32 bits wide, and a last tile reaches beyond it
REACH = 2**40  # bytes: strides of tensor maps are below it


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
    """`l` matrices of two extents that a kernel takes: which one is contiguous ("k": the second, "mn": the first), the
    distance of the other's elements, and `step`, that of one matrix to the next (0: the same one for all products)."""

    shape: tuple[int, int]
    major: str
    pitch: int
    l: int = 1
    step: int = 0

    @property
    def strides(self) -> tuple[int, int]:
        """In elements, of one matrix."""
        return (self.pitch, 1) if self.major == "k" else (1, self.pitch)

    @property
    def stack(self) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """Extents (rows, columns, l) and their strides; a single matrix's last one is no 0: it is not broadcast."""
        lines = self.shape[self.major != "k"]
        return (*self.shape, self.l), (*self.strides, self.step if self.l > 1 else lines * self.pitch)


@dataclass(frozen=True)
class Plan:
    """l products: C (m, n) of A (m, k) and B (n, k); `shape` is the result's as the caller sees it.

    c: where the result goes, as it will be allocated where there is no `out`. r: the residual. b: of both right
    operands of a gated product. p, q: strides of the scales, 0 for one factor, None without. empty: nothing to do.
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
    l: int = 1
    p: int | None = None
    q: int | None = None

    @property
    def empty(self) -> bool:
        """Whether there is nothing for a kernel to do: an extent is 0."""
        return 0 in (self.m, self.n, self.k, self.l)


@dataclass(frozen=True)
class Operand:
    """A kernel's argument: extents and strides in elements, of which an address makes an array."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str

    @property
    def elements(self) -> int:
        """From the first to the last."""
        return 1 + sum((extent - 1) * step for extent, step in zip(self.shape, self.strides))


def operands(plan: Plan, flat: bool = False) -> dict[str, Operand | None]:
    """What a kernel is called with, by name and in order (`Form`); None for what the form lacks.

    flat: for a kernel of one product of matrices, that has no place for `up` nor for scales.
    """
    form = plan.form

    def stack(matrix: Matrix | None, dtype: str) -> Operand | None:
        if matrix is None or not dtype:
            return None
        shape, strides = matrix.stack
        return Operand(shape[:2], strides[:2], dtype) if flat else Operand(shape, strides, dtype)

    def vector(extent: int, stride: int | None, dtype: str) -> Operand | None:
        return None if stride is None or not dtype else Operand((extent,), (stride,), dtype)

    made = {
        "a": stack(plan.a, form.dtype),
        "b": stack(plan.b, form.dtype),
        "up": stack(plan.b, form.dtype) if form.gated else None,
        "out": stack(plan.c, form.out),
        "residual": stack(plan.r, form.residual),
        "bias": vector(plan.n, 1, form.bias),
        "factors": vector(2, 1, "fp32"),
        "scale_a": vector(plan.m, plan.p, "fp32"),
        "scale_b": vector(plan.n, plan.q, "fp32"),
    }
    return {name: made[name] for name in FLAT} if flat else made


FLAT = ("a", "b", "out", "residual", "bias", "factors")


def plan(
    a: Array,
    b: Array,
    *,
    up: Array | None = None,
    out: Array | None = None,
    bias: Array | None = None,
    residual: Array | None = None,
    scale_a: Array | None = None,
    scale_b: Array | None = None,
    activation: str | None = None,
    beta: float = 0.0,
    out_dtype: str | None = None,
) -> Plan:
    """Analyse a call: a (..., M, K), b (K, N) or (..., K, N), out and residual (..., M, N), bias (N,), scale_a one
    factor or one a row of a, scale_b one or (N,). up: as b, the second right operand of a gated product.

    Leading extents of a are rows of one product where b has none (or only 1s) and memory allows; products of their own
    otherwise, then extents of 1, or that are missing, are broadcast.
    UsageError for what is not supported, with the argument's name and what would do instead.
    """
    lead, m, n, k = _extents(a, b)
    if up is not None and (up.shape, up.strides, up.dtype) != (b.shape, b.strides, b.dtype):
        raise UsageError(f"up: shape {up.shape} with strides {up.strides}: it takes b's, {b.shape} with {b.strides}")
    activation = activation or "none"
    if activation not in ACTIVATIONS:
        hint = ", swiglu is a function of its own" if "glu" in str(activation) else ""
        raise UsageError(f"activation: {activation!r}: it takes {', '.join(ACTIVATIONS)}{hint}")
    shape = (*lead, m, n)
    stored = _out_dtype(a, out, out_dtype)
    _check_epilogue(shape, out, bias, residual, beta)
    folded = _as_rows(a, b, out, residual) or _as_products(lead, a, b, out, residual)
    l, rows = folded["a"].shape[:2]
    for name, extent in (("a: M", rows), ("b: N", n), ("a: K", k), ("b: products", l)):
        if extent > MOST:
            raise UsageError(f"{name}={extent}: at most {MOST}" + (", leading extents are rows" if l == 1 else ""))
    p, q = _scale_a(scale_a, a, l), _scale_b(scale_b, n, up)
    scaled = p is not None or q is not None
    form = Form(
        a.dtype, stored, residual.dtype if residual else "", bias.dtype if bias else "", activation=activation,
        scaled=scaled, gated=up is not None,
    )  # fmt: skip
    strides = {"p": p or 0, "q": q or 0} if scaled else {}
    if 0 in (rows, n, k, l):
        return Plan(rows, n, k, form, shape, None, None, None, None, l, **strides)
    left, right = _matrix("a", folded["a"]), _right(folded["b"], up)
    target = _target(folded.get("out"), l, rows, n)
    added = _rows("residual", folded["residual"]) if residual else None
    if out is not None:
        others = {"a": a, "b": b, "up": up, "bias": bias, "residual": residual, "scale_a": scale_a, "scale_b": scale_b}
        _no_overlap(out, others)
    by_tma = _stored_by_tma(target, added, out, bias, residual)
    form = replace(form, a_major=left.major, b_major=right.major, c_tma=by_tma)
    return Plan(rows, n, k, form, shape, left, right, target, added, l, **strides)


def _extents(a: Array, b: Array) -> tuple[tuple[int, ...], int, int, int]:
    """Leading extents of the result, M, N and K."""
    if len(a.shape) < 2:
        raise UsageError(f"a: shape {a.shape}: it takes (..., M, K), a.unsqueeze(0) makes a row of a vector")
    if len(b.shape) < 2:
        raise UsageError(f"b: shape {b.shape}: it takes (K, N) or (..., K, N), b.unsqueeze(1) makes a column")
    if a.dtype not in INPUTS:
        raise UsageError(f"a: {a.dtype}: it takes {', '.join(INPUTS)}")
    if b.dtype != a.dtype:
        raise UsageError(f"b: {b.dtype}, but a is {a.dtype}: give both the same type")
    (*lead, m, k), (*other, depth, n) = a.shape, b.shape
    if depth != k:
        raise UsageError(f"b: shape {b.shape}, but a is (..., {m}, {k}): b takes (..., {k}, N)")
    rank = max(len(lead), len(other))
    lead, other = [1] * (rank - len(lead)) + lead, [1] * (rank - len(other)) + other
    if any(x != y and 1 not in (x, y) for x, y in zip(lead, other)):
        raise UsageError(f"b: shape {b.shape}, but a is {a.shape}: leading extents are the same, or 1")
    return tuple(y if x == 1 else x for x, y in zip(lead, other)), m, n, k


def _out_dtype(a: Array, out: Array | None, asked: str | None) -> str:
    if out is not None and asked not in (None, out.dtype):
        raise UsageError(f"out_dtype: {asked}, but out is {out.dtype}: leave one of them out")
    stored = out.dtype if out is not None else asked or DEFAULT_OUTPUT.get(a.dtype, a.dtype)
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
    for name, one in (("bias", bias), ("residual", residual)):
        if one is not None and one.dtype not in OUTPUTS:
            raise UsageError(f"{name}: {one.dtype}: it takes {', '.join(OUTPUTS)}")


def _scale_a(scale: Array | None, a: Array, l: int) -> int | None:
    """The stride of A's factors: a row's, of one product."""
    if scale is None:
        return None
    per_row = (a.shape[:-1], (*a.shape[:-1], 1))
    stride = _scale("scale_a", scale, per_row, f"one factor, or one a row of a: {per_row[0]} or {per_row[1]}")
    if stride and l > 1:
        raise UsageError("scale_a: a factor a row, but b has several products: give one factor for all of them")
    return stride


def _scale_b(scale: Array | None, n: int, up: Array | None) -> int | None:
    if scale is None:
        return None
    if up is not None and math.prod(scale.shape) != 1:
        raise UsageError(f"scale_b: shape {scale.shape}: a gated product takes one factor for all of b")
    return _scale("scale_b", scale, ((n,), (1, n)), f"one factor, or one a column of b: ({n},) or (1, {n})")


def _scale(name: str, scale: Array, shapes: tuple[tuple[int, ...], ...], takes: str) -> int:
    if scale.dtype != "fp32":
        raise UsageError(f"{name}: {scale.dtype}: it takes fp32")
    if math.prod(scale.shape) == 1:
        return 0
    if scale.shape not in shapes:
        raise UsageError(f"{name}: shape {scale.shape}: it takes {takes}")
    folded = _sequence(scale.shape, scale.strides)
    if folded is None:
        raise UsageError(f"{name}: shape {scale.shape} with strides {scale.strides}: it is no sequence, copy it")
    return folded[1]


def _sequence(extents: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, int] | None:
    """Extents as one, and the stride of it. None where memory does not lie so that this is possible."""
    count, step = 1, 0
    for extent, stride in reversed(list(zip(extents, strides))):
        if extent == 1:
            continue
        if count > 1 and stride != step * count:
            return None
        count, step = count * extent, step if count > 1 else stride
    return math.prod(extents), step


def fold(name: str, array: Array) -> Array:
    """All extents but the last as one. UsageError where memory does not lie so that this is possible."""
    found = _sequence(array.shape[:-1], array.strides[:-1])
    if found is None:
        raise UsageError(
            f"{name}: shape {array.shape} with strides {array.strides}: its leading extents are not one sequence of "
            f"rows in memory, copy it ({name}.contiguous())"
        )
    return replace(array, shape=(found[0], array.shape[-1]), strides=(found[1], array.strides[-1]))


def _as_rows(a: Array, b: Array, out: Array | None, residual: Array | None) -> dict[str, Array] | None:
    """One product of (1, rows, columns) each: a's leading extents are rows of it. None where b or memory forbids it."""
    if math.prod(b.shape[:-2]) != 1:
        return None
    found = {"b": replace(b, shape=(1, *b.shape[-2:]), strides=(0, *b.strides[-2:]))}
    for name, one in (("a", a), ("out", out), ("residual", residual)):
        if one is not None:
            rows = _sequence(one.shape[:-1], one.strides[:-1])
            if rows is None:
                return None
            found[name] = replace(one, shape=(1, rows[0], one.shape[-1]), strides=(0, rows[1], one.strides[-1]))
    return found


def _as_products(
    lead: tuple[int, ...], a: Array, b: Array, out: Array | None, residual: Array | None
) -> dict[str, Array]:
    """All as (products, rows, columns); an operand's stride is 0 where it is broadcast."""
    found = {}
    for name, one in (("a", a), ("b", b), ("out", out), ("residual", residual)):
        if one is not None:
            missing = len(lead) - (len(one.shape) - 2)
            own = [1] * missing + list(one.shape[:-2])
            strides = [0] * missing + list(one.strides[:-2])
            steps = tuple(0 if extent == 1 else stride for extent, stride in zip(own, strides))
            products = _sequence(lead, steps)
            if products is None:
                raise UsageError(
                    f"{name}: shape {one.shape} with strides {one.strides}: its leading extents, as the result's "
                    f"{lead}, are not one sequence of matrices in memory: expand and copy it"
                )
            found[name] = replace(one, shape=(products[0], *one.shape[-2:]), strides=(products[1], *one.strides[-2:]))
    return found


def _right(b: Array, up: Array | None) -> Matrix:
    """B, (N, K) as kernels see it; `up` lies beside it in the same way."""
    l, k, n = b.shape
    step, down, along = b.strides
    seen = replace(b, shape=(l, n, k), strides=(step, along, down))
    if up is None:
        return _matrix("b", seen)
    if along == 2 and down != 1 and n > 1:
        raise UsageError("b: interleaved columns want K contiguous: b.t().contiguous().t(), or a layout of halves")
    if up.address % ALIGN:
        raise UsageError(f"b: its second half is at {up.address:#x}, no multiple of {ALIGN} bytes: pad it")
    return _matrix("b", seen)


def _matrix(name: str, array: Array) -> Matrix:
    """A stack of matrices (products, rows, columns) as kernels take them."""
    (l, rows, cols), (step, down, along) = array.shape, array.strides
    unit, size = PITCH[array.dtype], BYTES[array.dtype]
    _aligned(name, array)
    if l > 1 and step % unit:
        raise UsageError(f"{name}: its matrices lie {step} elements apart, no multiple of {unit} (16 bytes): pad it")
    for major, near, other, extent, lines in (("k", along, down, cols, rows), ("mn", down, along, rows, cols)):
        # the stride of a single element means nothing, nor does the pitch of a single line
        pitch = other if lines > 1 else -(-extent // unit) * unit
        if (near == 1 or extent == 1) and pitch >= extent and pitch % unit == 0:
            if max(pitch, step if l > 1 else 0) * size >= REACH:
                raise UsageError(f"{name}: strides {array.strides}: tensor maps have none of 2^40 bytes")
            if major == "mn" and array.dtype in FP8:
                break
            return Matrix((rows, cols), major, pitch, l, step if l > 1 else 0)
    if array.dtype in FP8:
        raise UsageError(
            f"{name}: {array.dtype} with strides {array.strides[1:]} (as the kernel sees it): 8-bit operands are read "
            f"along K, whose stride must be 1, the other a multiple of {unit}: {_ALONG_K[name]}"
        )
    raise UsageError(
        f"{name}: strides {array.strides[1:]} of a matrix {array.shape[1:]} (as the kernel sees it): one must be 1, "
        f"the other a multiple of {unit} (16 bytes) that no two rows share: copy or pad it"
    )


_ALONG_K = {"a": "a.contiguous()", "b": "b.mT.contiguous().mT"}


def _rows(name: str, array: Array) -> Matrix:
    """A stack of matrices with columns contiguous, of any pitch."""
    (l, rows, cols), (step, down, along) = array.shape, array.strides
    unit, size = PITCH[array.dtype], BYTES[array.dtype]
    if along != 1 and cols > 1:
        raise UsageError(f"{name}: strides {array.strides[1:]}: its last extent must be the contiguous one")
    if array.address % size:
        raise UsageError(f"{name}: address {array.address:#x} is no multiple of its elements' {size} bytes: copy it")
    return Matrix((rows, cols), "k", down if rows > 1 else -(-cols // unit) * unit, l, step if l > 1 else 0)


def _stored_by_tma(c: Matrix, r: Matrix | None, out: Array | None, bias: Array | None, residual: Array | None) -> bool:
    """Whether all that the epilogue reads and writes lies as `Form.c_tma` wants it."""
    steps = [c.shape[1], c.pitch, c.step, *((r.pitch, r.step) if r else ())]
    fits = all(step % PITCH["fp32"] == 0 and step * BYTES["fp32"] < REACH for step in steps)
    return fits and not any(one.address % ALIGN for one in (out, bias, residual) if one)


def _target(out: Array | None, l: int, rows: int, n: int) -> Matrix:
    """Where the result goes: `out`, or memory that is allocated dense."""
    if out is None:
        return Matrix((rows, n), "k", n, l, rows * n if l > 1 else 0)
    found = _rows("out", out)
    if found.pitch < n:
        raise UsageError(f"out: strides {out.strides[1:]}: its rows share memory, give another tensor")
    apart = found.step >= (rows - 1) * found.pitch + n  # one after the other
    between = found.step >= n and found.pitch >= (l - 1) * found.step + n  # rows of one between those of another
    if l > 1 and not (apart or between):
        raise UsageError(f"out: its matrices lie {found.step} elements apart and share memory: give another tensor")
    return found


def _aligned(name: str, array: Array) -> None:
    if array.address % ALIGN:
        raise UsageError(f"{name}: address {array.address:#x} is no multiple of {ALIGN} bytes: copy it")


def _no_overlap(out: Array, others: dict[str, Array | None]) -> None:
    """Tiles are stored while others are still to be read: only the residual may lie where the result goes, exactly."""
    begin, end = out.span()
    for name, one in others.items():
        if one is None or (name == "residual" and one == out):
            continue
        first, last = one.span()
        if first < end and begin < last:
            raise UsageError(f"out: shares memory with {'b' if name == 'up' else name}: give another tensor")
