"""What a call of `grouped_matmul` means, from shapes, strides, types and addresses alone: no torch, no DSL, no GPU.

Two of torch's four combinations are kernels: groups of rows (2-D by 3-D) and groups of K (2-D by 2-D). Groups of
columns (3-D by 2-D) are groups of rows of the transposed product, and 3-D by 3-D is a batch, `matmul`'s.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tensorladder.core.errors import UsageError
from tensorladder.ops.plan import ACTIVATIONS, ALIGN, MOST, OUTPUTS, PITCH, Array, Matrix, Operand, _matrix
from tensorladder.rungs.parts.form import Form

INPUTS = ("fp16", "bf16")
GROUPS = 1 << 16  # more make sums of tiles that 32 bits may not hold


@dataclass(frozen=True)
class GroupedPlan:
    """A grouped product. ragged: "m", C (t, n) of A (t, k) and a B (n, k) a group; "k", a C (m, n) a group of A (m, t)
    and B (n, t).

    shape: the result's. operands: what the kernel is called with, by name and in order, None for what the form lacks;
    empty where there is nothing for a kernel to do.
    """

    ragged: str
    form: Form
    groups: int
    m: int
    n: int
    k: int
    shape: tuple[int, ...]
    operands: tuple[tuple[str, Operand | None], ...] = ()


def plan(
    a: Array, b: Array, offs: Array, *, bias: Array | None = None, activation: str = "none",
    out_dtype: str | None = None,
) -> GroupedPlan:
    """Analyse a call: a (T, K) by b (G, K, N), or a (M, T) by b (T, N); offs (G,). bias: (N,), (1, N) or (G, N).

    UsageError for what is not supported, with the argument's name and what would do instead.
    """
    ragged = _ragged(a, b)
    _check_types(a, b, offs, bias, activation, out_dtype or a.dtype)
    (m, k), n, groups = a.shape, b.shape[-1], offs.shape[0]
    if b.shape[-2] != k:
        raise UsageError(f"b: shape {b.shape}, but a is {a.shape}: b takes {'(G, ' if ragged == 'm' else '('}{k}, N)")
    if ragged == "m" and b.shape[0] != groups:
        raise UsageError(f"offs: {groups} ends, but b has {b.shape[0]} matrices: give as many")
    for name, extent, most in (("a: rows", m, MOST), ("a: K", k, MOST), ("b: N", n, MOST), ("offs", groups, GROUPS)):
        if extent > most:
            raise UsageError(f"{name}={extent}: at most {most}")
    pitch = _bias_pitch(bias, groups, n)
    form = Form(a.dtype, out_dtype or a.dtype, bias=bias.dtype if bias else "", activation=activation)
    shape = (m, n) if ragged == "m" else (groups, m, n)
    if 0 in (m, n, k, groups):
        return GroupedPlan(ragged, form, groups, m, n, k, shape)
    if n % PITCH["fp16"]:
        raise UsageError(f"b: N={n}: rows of the result are stored 16 bytes at a time, pad N to a multiple of 8")
    left = _matrix("a", _stack(a))
    right = _matrix("b", _transposed(_stack(b)))
    if right.l > 1 and right.step == 0:
        raise UsageError("b: the same matrix for all groups: matmul(a, b[0]) does that")
    form = replace(form, a_major=left.major, b_major=right.major)
    stored = Matrix((m, n), "k", n, groups if ragged == "k" else 1, m * n if ragged == "k" else 0)
    made = {
        "a": Operand(left.shape, left.strides, form.dtype),
        "b": _operand(right, form.dtype, ragged == "m"),
        "out": _operand(stored, form.out, ragged == "k"),
        "bias": Operand((groups, n), (pitch, 1), form.bias) if bias else None,
        "offs": Operand((groups,), (1,), "int32"),
    }
    return GroupedPlan(ragged, form, groups, m, n, k, shape, tuple(made.items()))


def _ragged(a: Array, b: Array) -> str:
    """Along which extent of the kernel's the groups lie."""
    if len(a.shape) == 2 and len(b.shape) in (2, 3):
        return "m" if len(b.shape) == 3 else "k"
    raise UsageError(f"a: shape {a.shape} by {b.shape}: each takes 2 or 3 extents")


def _check_types(
    a: Array, b: Array, offs: Array, bias: Array | None, activation: str, stored: str
) -> None:
    if a.dtype not in INPUTS:
        raise UsageError(f"a: {a.dtype}: it takes {', '.join(INPUTS)}")
    if b.dtype != a.dtype:
        raise UsageError(f"b: {b.dtype}, but a is {a.dtype}: give both the same type")
    if offs.dtype != "int32" or len(offs.shape) != 1:
        raise UsageError(f"offs: {offs.dtype} of shape {offs.shape}: it takes int32 (G,), where each group ends")
    if offs.shape[0] > 1 and offs.strides != (1,):
        raise UsageError(f"offs: stride {offs.strides[0]}: it takes contiguous memory, copy it")
    if offs.address % 4:
        raise UsageError(f"offs: address {offs.address:#x} is no multiple of 4 bytes: copy it")
    if activation not in ACTIVATIONS:
        raise UsageError(f"activation: {activation!r}: it takes {', '.join(ACTIVATIONS)}")
    for name, dtype in (("out_dtype", stored), ("bias", bias.dtype if bias else stored)):
        if dtype not in OUTPUTS:
            raise UsageError(f"{name}: {dtype}: it takes {', '.join(OUTPUTS)}")


def _bias_pitch(bias: Array | None, groups: int, n: int) -> int:
    """Elements from a group's bias to the next one's: 0 where all have the same."""
    if bias is None:
        return 0
    if bias.shape not in ((n,), (1, n), (groups, n)):
        raise UsageError(f"bias: shape {bias.shape}: it takes ({n},), or ({groups}, {n}) with a row a group")
    if n > 1 and bias.strides[-1] != 1:
        raise UsageError(f"bias: strides {bias.strides}: its last extent must be the contiguous one")
    if bias.address % ALIGN:
        raise UsageError(f"bias: address {bias.address:#x} is no multiple of {ALIGN} bytes: copy it")
    pitch = bias.strides[0] if len(bias.shape) == 2 and bias.shape[0] > 1 else 0
    if n and pitch % 2:
        raise UsageError(f"bias: strides {bias.strides}: its rows must lie an even number of elements apart: copy it")
    return pitch


def _stack(array: Array) -> Array:
    """With an extent of matrices in front."""
    if len(array.shape) == 3:
        return array
    return replace(array, shape=(1, *array.shape), strides=(0, *array.strides))


def _transposed(array: Array) -> Array:
    (l, rows, cols), (step, down, along) = array.shape, array.strides
    return replace(array, shape=(l, cols, rows), strides=(step, along, down))


def _operand(matrix: Matrix, dtype: str, stacked: bool) -> Operand:
    shape, strides = matrix.stack
    return Operand(shape, strides, dtype) if stacked else Operand(shape[:2], strides[:2], dtype)


def tile(plan: GroupedPlan) -> tuple[tuple[int, int, int], int, int, int]:
    """The kernel's tile, consumer warpgroups, stages and buffers of C, by the rows that a group has on average."""
    rows = -(-plan.m // plan.groups) if plan.ragged == "m" else plan.m
    if rows <= 64:
        return ((64, 256, 64), 1, 5, 2) if plan.n > 128 else ((64, 128, 64), 1, 8, 2)
    return ((128, 256, 64), 2, 4, 2) if plan.n > 128 else ((128, 128, 64), 2, 6, 2)
