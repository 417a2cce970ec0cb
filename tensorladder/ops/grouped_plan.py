"""What a call of `grouped_matmul` means, from shapes, strides, types and addresses alone: no torch, no DSL, no GPU.

Two of torch's four combinations are kernels: groups of rows (2-D by 3-D) and groups of K (2-D by 2-D). Groups of
columns (3-D by 2-D) are groups of rows of the transposed product, and 3-D by 3-D is a batch, `matmul`'s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from tensorladder.core.errors import UsageError
from tensorladder.ops.kernels import Choice, choice
from tensorladder.ops.plan import (
    ACTIVATIONS,
    ALIGN,
    DEFAULT_OUTPUT,
    FP8,
    MOST,
    OUTPUTS,
    PITCH,
    Array,
    Matrix,
    Operand,
    _matrix,
)
from tensorladder.rungs.parts.form import Form

INPUTS = ("fp16", "bf16", *FP8)
GROUPS = 1 << 16  # more make sums of tiles that 32 bits may not hold


@dataclass(frozen=True)
class GroupedPlan:
    """A grouped product. form.ragged: "m", C (m, n) of A (m, k) and a B (n, k) a group, m cut into groups; "k", a C
    (m, n) a group of A (m, k) and B (n, k), k cut.

    shape: the result's. operands: what the kernel is called with, by name and in order, None for what the form lacks;
    empty where there is nothing for a kernel to do.
    """

    form: Form
    groups: int
    m: int
    n: int
    k: int
    shape: tuple[int, ...]
    operands: tuple[tuple[str, Operand | None], ...] = ()

    @property
    def ragged(self) -> str:
        """Which extent is cut into groups."""
        return self.form.ragged


def plan(
    a: Array, b: Array, offs: Array, *, bias: Array | None = None, scale_a: Array | None = None,
    scale_b: Array | None = None, activation: str = "none", out_dtype: str | None = None,
) -> GroupedPlan:  # fmt: skip
    """Analyse a call: a (T, K) by b (G, K, N), or a (M, T) by b (T, N); offs (G,). bias: (N,), (1, N) or (G, N).
    scale_a: one factor or (T,), scale_b: as a bias; both or none, for groups of rows.

    UsageError for what is not supported, with the argument's name and what would do instead.
    """
    ragged = _ragged(a, b)
    stored_as = out_dtype or DEFAULT_OUTPUT.get(a.dtype, a.dtype)
    _check_types(a, b, offs, bias, activation, stored_as)
    (m, k), n, groups = a.shape, b.shape[-1], offs.shape[0]
    if b.shape[-2] != k:
        raise UsageError(f"b: shape {b.shape}, but a is {a.shape}: b takes {'(G, ' if ragged == 'm' else '('}{k}, N)")
    if ragged == "m" and b.shape[0] != groups:
        raise UsageError(f"offs: {groups} ends, but b has {b.shape[0]} matrices: give as many")
    for name, extent, most in (("a: rows", m, MOST), ("a: K", k, MOST), ("b: N", n, MOST), ("offs", groups, GROUPS)):
        if extent > most:
            raise UsageError(f"{name}={extent}: at most {most}")
    pitch, factors = _row_a_group("bias", bias, groups, n), _scales(scale_a, scale_b, m, groups, n, ragged)
    form = Form(
        a.dtype, stored_as, bias=bias.dtype if bias else "", activation=activation, scaled=bool(factors), ragged=ragged
    )
    shape = (m, n) if ragged == "m" else (groups, m, n)
    if 0 in (m, n, k, groups):
        return GroupedPlan(form, groups, m, n, k, shape)
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
        "up": None,
        "out": _operand(stored, form.out, ragged == "k"),
        "bias": Operand((groups, n), (pitch, 1), form.bias) if bias else None,
        "scale_a": factors and Operand((m,), factors[:1], "fp32"),
        "scale_b": factors and Operand((groups, n), (factors[1], 1), "fp32"),
        "offs": Operand((groups,), (1,), "int32"),
    }
    return GroupedPlan(form, groups, m, n, k, shape, tuple(made.items()))


def _ragged(a: Array, b: Array) -> str:
    """Along which extent of the kernel's the groups lie."""
    if len(a.shape) == 2 and len(b.shape) in (2, 3):
        return "m" if len(b.shape) == 3 else "k"
    raise UsageError(f"a: shape {a.shape} by {b.shape}: each takes 2 or 3 extents")


def _check_types(a: Array, b: Array, offs: Array, bias: Array | None, activation: str, stored: str) -> None:
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


def _row_a_group(name: str, row: Array | None, groups: int, n: int) -> int:
    """Elements from a group's row to the next one's: 0 where all have the same."""
    if row is None:
        return 0
    if row.shape not in ((n,), (1, n), (groups, n)):
        raise UsageError(f"{name}: shape {row.shape}: it takes ({n},), or ({groups}, {n}) with a row a group")
    if n > 1 and row.strides[-1] != 1:
        raise UsageError(f"{name}: strides {row.strides}: its last extent must be the contiguous one")
    if row.address % ALIGN:
        raise UsageError(f"{name}: address {row.address:#x} is no multiple of {ALIGN} bytes: copy it")
    pitch = row.strides[0] if len(row.shape) == 2 and row.shape[0] > 1 else 0
    if n and pitch % 2:
        raise UsageError(f"{name}: strides {row.strides}: its rows must lie an even number of elements apart: copy it")
    return pitch


def _scales(
    scale_a: Array | None, scale_b: Array | None, m: int, groups: int, n: int, ragged: str
) -> tuple[int, int] | None:
    """The stride of A's factors, and from a group's factors of columns to the next one's."""
    for name, one in (("scale_a", scale_a), ("scale_b", scale_b)):
        if one is not None and one.dtype != "fp32":
            raise UsageError(f"{name}: {one.dtype}: it takes fp32")
        if one is not None and ragged == "k":
            raise UsageError(f"{name}: groups of K have no scales: multiply the result")
    if scale_a is None or scale_b is None:
        return None
    if scale_a.shape not in ((), (1,), (m,), (m, 1)):
        raise UsageError(f"scale_a: shape {scale_a.shape}: it takes one factor, or one a row of a, ({m},)")
    if scale_a.address % 4:
        raise UsageError(f"scale_a: address {scale_a.address:#x} is no multiple of 4 bytes: copy it")
    stride = scale_a.strides[0] if scale_a.shape and scale_a.shape[0] > 1 else 0
    return stride, _row_a_group("scale_b", scale_b, groups, n)


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


# (tile, stages, buffers of C, how fast beside the others), from times of mixtures of experts on an H200.
TILES = (
    ((128, 192, 64), 5, 1, 1.0),
    ((128, 128, 64), 6, 2, 0.98),
    ((64, 256, 64), 5, 1, 0.9),
    ((64, 128, 64), 8, 2, 0.75),
)
FEW_ROWS = 48  # a group, up to which B's way from memory is all that counts: many small boxes on their way
MANY_ROWS = 512  # a group of K, from which sharing A pays


def choices(form: Form) -> tuple[Choice, ...]:
    """All that `choose` may choose."""
    own = [_choice(one, 1) for one in _tiles(form)]
    few = TILES[-1:] if form.ragged == "m" else _tiles(form)
    return (*own, *(_choice(one, 2) for one in few if _can_share(one, form)))


def choose(plan: GroupedPlan, sm_count: int) -> Choice:
    """The kernel and its knobs: the tile of the least work of the busiest SM.

    How many rows groups have is not known here: on average a group's last tile is half empty.
    """
    form, rows = plan.form, plan.m / plan.groups

    def work(option: tuple[Any, ...]) -> float:
        (tile_m, tile_n, _), _, _, speed = option
        down = max(1.0, rows / tile_m + 0.5) if form.ragged == "m" else -(-plan.m // tile_m)
        count = plan.groups * down * -(-plan.n // tile_n)
        return math.ceil(count / sm_count) * tile_m * tile_n / speed

    few = form.ragged == "m" and rows <= FEW_ROWS
    best = TILES[-1] if few else min(_tiles(form), key=work)
    share = few or (form.ragged == "k" and plan.k / plan.groups >= MANY_ROWS)
    return _choice(best, 2 if share and _can_share(best, form) else 1)


def rank(plan: GroupedPlan, sm_count: int) -> tuple[Choice, ...]:
    """The choice, and then all others."""
    best = choose(plan, sm_count)
    return (best, *(one for one in choices(plan.form) if one != best))


def _tiles(form: Form) -> tuple[tuple[Any, ...], ...]:
    """Of groups of K the tiles of 128 columns alone, as no others were measured."""
    return TILES if form.ragged == "m" else TILES[1::2]


def _can_share(option: tuple[Any, ...], form: Form) -> bool:
    """Whether two CTAs can each load half of A's rows: whole 64 where these are contiguous."""
    return form.a_major == "k" or option[0][0] >= 128


def _choice(option: tuple[Any, ...], share: int) -> Choice:
    tile, stages, c_stages, _ = option
    return choice("c9", tile=tile, stages=stages, c_stages=c_stages, cluster_n=share)
