"""CuTe's layout algebra in plain Python.

A layout is a function from coordinates to indices, given by a shape and a stride of the same nesting: (4,8):(8,1) maps
(i, j) to 8i + j. An integer is a coordinate too: it runs through the shape with the first mode fastest (colexicographic
order). Everything here is defined by what it does to that integer coordinate; the definitions are those of CUTLASS's
CuTe documentation ("CuTe Layout Algebra", media/docs/cpp/cute) and of its paper, the implementation is this project's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Union

import numpy as np
import numpy.typing as npt

from tensorladder.core.errors import UsageError
from tensorladder.core.swizzle import Swizzle

IntTuple = Union[int, tuple["IntTuple", ...]]


def _is_int(x: object) -> bool:
    return isinstance(x, (int, np.integer)) and not isinstance(x, bool)


def flatten(t: IntTuple) -> tuple[int, ...]:
    """The integers of a nested tuple, in order."""
    return tuple(v for part in t for v in flatten(part)) if isinstance(t, tuple) else (int(t),)


def product(t: IntTuple) -> int:
    """The product of all integers of a nested tuple."""
    return prod(flatten(t))


def _congruent(a: IntTuple, b: IntTuple) -> bool:
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(_congruent, a, b))
    return _is_int(a) and _is_int(b)


def _compact(shape: IntTuple, step: int = 1) -> IntTuple:
    """Strides of a dense layout of `shape`, first mode fastest, innermost stride `step`."""
    if not isinstance(shape, tuple):
        return step
    strides: list[IntTuple] = []
    for part in shape:
        strides.append(_compact(part, step))
        step *= product(part)
    return tuple(strides)


def compact_row_major(shape: IntTuple) -> Layout:
    """A dense layout of `shape` with the last mode fastest."""
    flat = flatten(shape)
    steps = [prod(flat[i + 1 :]) for i in range(len(flat))]
    return Layout(shape, _unflatten(steps, shape))


def _unflatten(values: Sequence[int], profile: IntTuple) -> IntTuple:
    rest = iter(values)

    def build(p: IntTuple) -> IntTuple:
        return tuple(build(q) for q in p) if isinstance(p, tuple) else next(rest)

    return build(profile)


def index_to_coordinate(index: int, shape: IntTuple) -> IntTuple:
    """The natural coordinate in `shape` that the integer coordinate `index` stands for."""
    if not isinstance(shape, tuple):
        return index
    out: list[IntTuple] = []
    for part in shape[:-1]:
        index, within = divmod(index, product(part))
        out.append(index_to_coordinate(within, part))
    # The last mode is not taken modulo its size: coordinates past the end stay past the end.
    return (*out, index_to_coordinate(index, shape[-1])) if shape else ()


def _evaluate(coordinate: IntTuple, shape: IntTuple, stride: IntTuple) -> int:
    if isinstance(coordinate, tuple):
        if not isinstance(shape, tuple) or not isinstance(stride, tuple) or len(coordinate) != len(shape):
            raise UsageError(f"coordinate {coordinate} does not fit the shape {_show(shape)}")
        return sum(map(_evaluate, coordinate, shape, stride))
    if isinstance(shape, tuple) and isinstance(stride, tuple):
        return sum(map(_evaluate, index_to_coordinate(coordinate, shape), shape, stride))  # type: ignore[arg-type]
    return int(coordinate) * int(stride)  # type: ignore[arg-type]


def _show(t: IntTuple) -> str:
    return f"({','.join(map(_show, t))})" if isinstance(t, tuple) else str(t)


@dataclass(frozen=True, init=False)
class Layout:
    """A shape and a stride of the same nesting. Without a stride the layout is dense, first mode fastest."""

    shape: IntTuple
    stride: IntTuple

    def __init__(self, shape: IntTuple, stride: IntTuple | None = None):
        stride = _compact(shape) if stride is None else stride
        if not _congruent(shape, stride):
            raise UsageError(f"shape {_show(shape)} and stride {_show(stride)} are not nested alike")
        if any(n < 1 for n in flatten(shape)):
            raise UsageError(f"shape {_show(shape)} has an extent below 1")
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "stride", stride)

    def __call__(self, *coordinate: IntTuple) -> int:
        """The index of a coordinate: one integer, one nested tuple, or one argument a mode."""
        if not coordinate:
            raise UsageError("a layout is called with a coordinate")
        return _evaluate(coordinate[0] if len(coordinate) == 1 else coordinate, self.shape, self.stride)

    @property
    def rank(self) -> int:
        """Modes at the top level."""
        return len(self.shape) if isinstance(self.shape, tuple) else 1

    @property
    def size(self) -> int:
        """How many coordinates there are."""
        return product(self.shape)

    @property
    def cosize(self) -> int:
        """One more than the largest index."""
        return 1 + sum((n - 1) * abs(d) for n, d in self.flat())

    def flat(self) -> list[tuple[int, int]]:
        """(extent, stride) of every innermost mode."""
        return list(zip(flatten(self.shape), flatten(self.stride)))

    def __getitem__(self, mode: int) -> Layout:
        """One mode of the top level."""
        if isinstance(self.shape, tuple) and isinstance(self.stride, tuple):
            return Layout(self.shape[mode], self.stride[mode])
        if mode not in (0, -1):
            raise IndexError(mode)
        return self

    def __iter__(self) -> Iterator[Layout]:
        return (self[i] for i in range(self.rank))

    def __len__(self) -> int:
        return self.rank

    def indices(self) -> npt.NDArray[np.int64]:
        """All indices as an array with one axis a mode: indices()[i, j] = layout(i, j)."""
        flat = self.flat()
        grids = np.zeros((1,), np.int64)
        for n, d in flat:  # first mode fastest: each further mode is an outer axis of the flat enumeration
            grids = (np.arange(n, dtype=np.int64)[:, None] * d + grids[None, :]).ravel()
        return grids.reshape([mode.size for mode in self], order="F")

    def __str__(self) -> str:
        return f"{_show(self.shape)}:{_show(self.stride)}"

    def __repr__(self) -> str:
        return f"Layout({self})"


@dataclass(frozen=True)
class ComposedLayout:
    """swizzle(offset + layout(coordinate)): how CuTe writes swizzled shared memory, in units of elements."""

    swizzle: Swizzle
    offset: int
    layout: Layout

    def __call__(self, *coordinate: IntTuple) -> int:
        return self.swizzle(self.offset + self.layout(*coordinate))

    def indices(self) -> npt.NDArray[np.int64]:
        return self.swizzle(self.offset + self.layout.indices())

    def __str__(self) -> str:
        return f"{self.swizzle} o {self.offset} o {self.layout}"


def parse(text: str) -> Layout:
    """A layout from CuTe's notation, "(4,(2,2)):(1,(16,8))"; static integers may have underscores ("_4")."""
    compacted = re.sub(r"[\s_]", "", text)
    parts = compacted.split(":")
    if len(parts) not in (1, 2) or not all(parts) or not re.fullmatch(r"[\d(),:-]+", compacted):
        raise UsageError(f"not a layout: {text!r}; write shape:stride, as in (4,8):(8,1)")
    tuples = [_parse_tuple(part, text) for part in parts]
    return Layout(*tuples)


def _parse_tuple(part: str, text: str) -> IntTuple:
    tokens = re.findall(r"-?\d+|[(),]", part)
    position = 0

    def fail() -> UsageError:
        return UsageError(f"not a layout: {text!r}; write shape:stride, as in (4,8):(8,1)")

    def value() -> IntTuple:
        nonlocal position
        if position >= len(tokens):
            raise fail()
        token = tokens[position]
        position += 1
        if token != "(":
            if token in "),":
                raise fail()
            return int(token)
        items = [value()]
        while position < len(tokens) and tokens[position] == ",":
            position += 1
            if position < len(tokens) and tokens[position] == ")":
                break
            items.append(value())
        if position >= len(tokens) or tokens[position] != ")":
            raise fail()
        position += 1
        return tuple(items)

    out = value()
    if position != len(tokens) or "".join(tokens) != part:
        raise fail()
    return out


def make_layout(*layouts: Layout) -> Layout:
    """One layout with the given ones as modes."""
    return Layout(tuple(a.shape for a in layouts), tuple(a.stride for a in layouts))


def _from_modes(modes: Sequence[tuple[int, int]]) -> Layout:
    if not modes:
        return Layout(1, 0)
    if len(modes) == 1:
        return Layout(*modes[0])
    return Layout(tuple(n for n, _ in modes), tuple(d for _, d in modes))


def coalesce(layout: Layout) -> Layout:
    """The flattest layout that is the same function of the integer coordinate."""
    merged: list[tuple[int, int]] = []
    for n, d in layout.flat():
        if n == 1:
            continue
        if merged and merged[-1][0] * merged[-1][1] == d:
            merged[-1] = (merged[-1][0] * n, merged[-1][1])
        else:
            merged.append((n, d))
    return _from_modes(merged)


Tiler = Union[int, Layout, Sequence["Tiler"]]


def _as_layout(tiler: int | Layout) -> Layout:
    return tiler if isinstance(tiler, Layout) else Layout(int(tiler))


def composition(a: Layout, b: Tiler) -> Layout:
    """R with R(c) = a(b(c)), in the shape of `b`. A tuple of layouts or integers composes with a's modes one by one.

    UsageError where no layout is that function (an extent or a stride of `b` does not divide a's modes).
    """
    if isinstance(b, (int, Layout)):
        b = _as_layout(b)
        if isinstance(b.shape, tuple):
            result = make_layout(*(composition(a, mode) for mode in b))
            _check_sum(a, b, result)
            return result
        return _compose_mode(coalesce(a).flat(), b.shape, b.stride, a, b)  # type: ignore[arg-type]
    return _by_mode(composition, a, b)


def _by_mode(operation, a: Layout, tiler: Sequence[Tiler]) -> Layout:  # type: ignore[no-untyped-def]
    if len(tiler) > a.rank:
        raise UsageError(f"{len(tiler)} tile modes for a layout of rank {a.rank}: {a}")
    return make_layout(*(operation(a[i], tiler[i]) if i < len(tiler) else a[i] for i in range(a.rank)))


def _check_sum(a: Layout, b: Layout, result: Layout) -> None:
    """Composing mode by mode is right where b's modes add without a carry in a; look where their ranges overlap."""
    reached = 0
    for d, n in sorted((d, n) for n, d in b.flat() if n > 1 and d):
        if d <= reached:
            if not np.array_equal(_apply(a, b.indices()), result.indices()):
                raise UsageError(f"the composition of {a} with {b} is no layout: its modes overlap")
            return
        reached += (n - 1) * d


def _apply(layout: Layout, index: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The layout of many integer coordinates at once."""
    flat = layout.flat()
    out = np.zeros_like(index)
    for n, d in flat[:-1]:
        out += index % n * d
        index = index // n
    return out + index * flat[-1][1]


def _compose_mode(modes: list[tuple[int, int]], count: int, step: int, a: Layout, b: Layout) -> Layout:
    """Every `step`-th of the numbers that `modes` enumerate, `count` of them."""
    undefined = UsageError(f"the composition of {a} with {b} is no layout: its extents do not divide")
    if step == 0 or count == 1:
        return Layout(count, 0)
    if step < 0:
        raise undefined
    taken: list[tuple[int, int]] = []
    for n, d in modes[:-1]:
        if count == 1:
            break
        if step % n == 0:
            step //= n
            continue
        if n % step:
            raise undefined
        take = min(n // step, count)
        if count % take:
            raise undefined
        taken.append((take, d * step))
        count, step = count // take, 1
    if count > 1:
        taken.append((count, modes[-1][1] * step))
    return _from_modes(taken)


def complement(layout: Layout, size: int | None = None) -> Layout:
    """The layout of what `layout` leaves out of 0..size-1: both together number every index once.

    size: defaults to the layout's cosize. The layout must be injective; modes of stride 0 or extent 1 count for
    nothing.
    """
    size = layout.cosize if size is None else size
    gaps: list[tuple[int, int]] = []
    covered = 1
    for d, n in sorted((d, n) for n, d in layout.flat() if n > 1 and d != 0):
        if d < covered or d % covered:
            raise UsageError(f"no complement of {layout}: its modes overlap or do not divide each other")
        gaps.append((d // covered, covered))
        covered = n * d
    gaps.append((-(-size // covered), covered))
    return coalesce(_from_modes(gaps))


def logical_divide(layout: Layout, tiler: Tiler) -> Layout:
    """(tile, rest): the elements that `tiler` picks, and how the tiles repeat. A tuple divides mode by mode."""
    if isinstance(tiler, (int, Layout)):
        tile = _as_layout(tiler)
        if layout.size % tile.size:
            raise UsageError(f"a tile of {tile.size} does not divide the {layout.size} elements of {layout}")
        return composition(layout, make_layout(tile, complement(tile, layout.size)))
    return _by_mode(logical_divide, layout, tiler)


def zipped_divide(layout: Layout, tiler: Tiler) -> Layout:
    """logical_divide with the modes gathered: ((tile0, tile1, ...), (rest0, rest1, ...))."""
    divided = logical_divide(layout, tiler)
    if isinstance(tiler, (int, Layout)):
        return divided
    split = [divided[i] for i in range(len(tiler))]
    untouched = [divided[i] for i in range(len(tiler), divided.rank)]
    return make_layout(make_layout(*(m[0] for m in split)), make_layout(*(m[1] for m in split), *untouched))


def logical_product(a: Layout, b: Layout) -> Layout:
    """(a, copies): `a` repeated in the order that `b` gives, each copy where `a` leaves room."""
    return make_layout(a, composition(complement(a, a.size * b.cosize), b))


def _zip_product(first: Layout, second: Layout, inner_first: bool) -> Layout:
    rank = max(first.rank, second.rank)
    a, b = (_pad_rank(x, rank) for x in (first, second))
    pairs = logical_product(a, b)
    modes = []
    for i in range(rank):
        tile, copy = pairs[0][i], pairs[1][i]
        modes.append(make_layout(*((tile, copy) if inner_first else (copy, tile))))
    return make_layout(*modes)


def _pad_rank(layout: Layout, rank: int) -> Layout:
    modes = list(layout) if isinstance(layout.shape, tuple) else [layout]
    return make_layout(*modes, *(Layout(1, 0) for _ in range(rank - len(modes))))


def blocked_product(block: Layout, copies: Layout) -> Layout:
    """Mode by mode (block, copies): each copy of the block is contiguous in coordinates."""
    return _zip_product(block, copies, True)


def raked_product(block: Layout, copies: Layout) -> Layout:
    """Mode by mode (copies, block): the copies are interleaved in coordinates."""
    return _zip_product(block, copies, False)


def right_inverse(layout: Layout) -> Layout:
    """The longest R with layout(R(i)) = i for i below R's size."""
    flat = coalesce(layout).flat()
    starts = [prod(n for n, _ in flat[:i]) for i in range(len(flat))]
    chain: list[tuple[int, int]] = []
    reached = 1
    for d, n, start in sorted((d, n, s) for (n, d), s in zip(flat, starts)):
        if d == reached:
            chain.append((n, start))
            reached *= n
    return coalesce(_from_modes(chain))


def left_inverse(layout: Layout) -> Layout:
    """L with L(layout(i)) = i for all i, for an injective layout."""
    return right_inverse(make_layout(layout, complement(layout)))


def tv_to_mn(tv: Layout, tile: tuple[int, int]) -> npt.NDArray[np.int64]:
    """Where each thread's values lie in a tile: shape (threads, values, 2), the last axis being (m, n).

    tv: (thread, value) to the index m + M * n in an M x N tile, as CuTe's TV layouts are written.
    """
    rows, columns = tile
    index = tv.indices()
    if index.ndim != 2:
        raise UsageError(f"a TV layout has two modes, (thread, value): {tv}")
    reach = int(index.min() if index.min() < 0 else index.max())
    if not 0 <= reach < rows * columns:
        raise UsageError(f"{tv} reaches index {reach}, outside a {rows}x{columns} tile")
    return np.stack([index % rows, index // rows], -1)


def mn_to_tv(tv: Layout, tile: tuple[int, int]) -> npt.NDArray[np.int64]:
    """Who holds each element of a tile: shape (M, N, 2), the last axis being (thread, value); -1 where nobody does.

    Where several hold it, the first in (thread, value) order is named.
    """
    where = tv_to_mn(tv, tile)
    owner = np.full((*tile, 2), -1, np.int64)
    threads, values = where.shape[:2]
    for t in range(threads - 1, -1, -1):
        for v in range(values - 1, -1, -1):
            owner[where[t, v, 0], where[t, v, 1]] = (t, v)
    return owner


def make_tv_layout(threads: Layout, values: Layout) -> tuple[tuple[int, int], Layout]:
    """(tile, TV layout) of `threads` (a 2-D arrangement of thread indices) that each hold a block `values`.

    The counterpart of the DSL's make_layout_tv: thread (i, j) holds the block at (i, j) of the tile; `values` numbers
    the elements inside a block.
    """
    arranged = raked_product(threads, values)
    tile = (arranged[0].size, arranged[1].size)
    inverse = right_inverse(arranged)
    return tile, composition(inverse, Layout((threads.size, values.size)))


def table(layout: Layout | ComposedLayout) -> str:
    """A rank-2 layout as text, rows by the first mode: what CuTe's print_layout shows."""
    index = layout.indices()
    if index.ndim != 2:
        raise UsageError(f"a table needs a layout of rank 2: {layout}")
    width = len(str(index.max())) + 2
    rows, columns = index.shape
    side = len(str(rows - 1)) + 1
    head = " " * side + "".join(f"{j:>{width}}" for j in range(columns))
    lines = [f"{i:>{side - 1}} " + "".join(f"{v:>{width}}" for v in row) for i, row in enumerate(index)]
    return "\n".join([str(layout), head, *lines])
