"""Packed 4- and 6-bit elements in tensor maps: what TMA moves, and what a barrier counts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tensorladder.core.errors import KernelError, UsageError
from tensorladder.core.swizzle import tma_swizzle
from tensorladder.core.tensormap import TensorMap, decode, encode, from_driver_call, validate
from tests.vgpu.ptx_kernels import cases_test, run
from tests.vgpu.tma_kernels import POISON, WINDOW, Copy, load_case, loaded, random_copy, store_case, stored

MEMORY = 1 << 15
OPTIONS = {"silicon": False, "target": "sm_100a", "version": "9.0"}


def _nibbles(copy: Copy) -> Copy:
    """The copy of the same bytes whose elements are half as large."""
    m = copy.map
    twice = {name: (2 * getattr(m, name)[0], *getattr(m, name)[1:]) for name in ("dims", "box")}
    return replace(copy, map=replace(m, dtype="b4x16", **twice), coords=(2 * copy.coords[0], *copy.coords[1:]))


def _bytes_of(copy: Copy) -> Copy:
    m = copy.map
    half = {name: (getattr(m, name)[0] // 2, *getattr(m, name)[1:]) for name in ("dims", "box")}
    return replace(copy, map=replace(m, dtype="u8", **half), coords=(copy.coords[0] // 2, *copy.coords[1:]))


def _dense(seed: int, rank: int, count: int, **options: bool) -> list[Copy]:
    rng, found = np.random.default_rng(seed), []
    while len(found) < count:
        copy = random_copy(rng, rank, "u8", int(rng.integers(0, 4)) if rank > 1 else 0, MEMORY, **options)
        if copy.map.box[0] <= 128:
            found.append(_nibbles(copy))
    return found


def _gapped(seed: int, rank: int, count: int, dtype: str, bits: int) -> list[Copy]:
    """Boxes of 128 elements (64 or 96 bytes, 128 in shared memory) by rows, also where they stick out."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(count):
        dims = [128 * int(rng.integers(1, 5)), *(int(n) for n in rng.integers(1, 9, rank - 1))]
        pitches = [dims[0] * bits // 8 + 32 * int(rng.integers(0, 3))]
        for extent in dims[1:-1]:
            pitches.append(pitches[-1] * extent)
        box = [128, *(int(n) for n in rng.integers(1, 5, rank - 1))]
        coords = [int(rng.integers(-1, dims[0] // 128 + 1)) * 128]
        coords += [int(rng.integers(-2, d + 1)) for d in dims[1:]]
        m = TensorMap(
            32 * int(rng.integers(0, 64)), dtype, rank, tuple(dims), tuple(pitches[: rank - 1]), tuple(box),
            (1,) * rank, swizzle=int(rng.choice((0, 3))),
        )  # fmt: skip
        found.append(Copy(m, tuple(coords), 128 * int(rng.integers(0, 8))))
    return found


def _loaded_with_gaps(memory: np.ndarray, copy: Copy) -> np.ndarray:
    """Chunks of 16 elements: 8 or 12 bytes of data, then a gap up to 16 that the copy leaves alone.

    Outside of the tensor: zeros.
    """
    size = 12 if copy.map.dtype == "b6x16_p32" else 8
    m, window = copy.map, np.full(WINDOW, POISON, np.uint8)
    at = tma_swizzle(m.swizzle, m.swizzle_atomicity)
    for row, index in enumerate(np.ndindex(*m.box[:0:-1])):
        outer = [c + k for c, k in zip(copy.coords[1:], index[::-1], strict=True)]
        inside = all(0 <= x < d for x, d in zip(outer, m.dims[1:], strict=True))
        line = m.address + sum(x * s for x, s in zip(outer, m.strides, strict=True))
        for chunk in range(8):
            x = copy.coords[0] + 16 * chunk
            take = inside and 0 <= x < m.dims[0]
            start = line + x // 16 * size
            data = memory[start : start + size] if take else 0
            window[at(np.array(copy.shared + 128 * row + 16 * chunk)) + np.arange(size)] = data
    return window


def _cases() -> list:
    memory = np.random.default_rng(1).integers(0, 256, MEMORY, np.uint8)
    windows = np.random.default_rng(2).integers(0, 256, (8, WINDOW), np.uint8)

    def load(memory: np.ndarray, copy: Copy) -> np.ndarray:
        return loaded(memory, _bytes_of(copy))

    def store(memory: np.ndarray, window: np.ndarray, copy: Copy) -> np.ndarray:
        return stored(memory, window, _bytes_of(copy))

    cases = []
    for rank in (1, 2, 3, 5):
        cases.append(load_case(f"b4x16.load.{rank}d", _dense(rank, rank, 12), memory, load, **OPTIONS))
        copies = _dense(10 + rank, rank, 8, store=True)
        cases.append(store_case(f"b4x16.store.{rank}d", copies, memory, windows, model=store, **OPTIONS))
    for rank in (2, 3):
        for dtype, bits in (("b4x16_p64", 4), ("b6x16_p32", 6)):
            copies = _gapped(20 + rank, rank, 24, dtype, bits)
            cases.append(load_case(f"{dtype}.load.{rank}d", copies, memory, _loaded_with_gaps, **OPTIONS))
    return cases


CASES = _cases()
test_packed = cases_test(CASES)


def _p64(**changes: object) -> TensorMap:
    base = TensorMap(0, "b4x16_p64", 2, (256, 4), (128,), (128, 4), (1, 1), swizzle=3)
    return replace(base, **changes)


@pytest.mark.parametrize(("change", "coords", "rule"), [
    ({"dims": (192, 4)}, (0, 0), "whole 128 elements"),
    ({"address": 16}, (0, 0), "multiple of 32"),
    ({"box": (64, 4)}, (0, 0), "whole 128 elements"),
    ({}, (64, 0), "innermost coordinate"),
])  # fmt: skip
def test_gaps_need_whole_pieces(change, coords, rule) -> None:
    copy = Copy(_p64(**change), coords)
    with pytest.raises(KernelError, match=rule):
        run(load_case("broken", [copy], np.zeros(MEMORY, np.uint8), None, **OPTIONS))


def test_stores_with_gaps_are_refused() -> None:
    memory, windows = np.zeros(MEMORY, np.uint8), np.zeros((1, WINDOW), np.uint8)
    case = store_case("p64", [Copy(_p64(), (0, 0))], memory, windows, **OPTIONS)
    with pytest.raises(KernelError, match="stores of packed types with gaps"):
        run(case)


def test_the_driver_takes_packed_types_from_blackwell_on() -> None:
    call = ((256, 4), (128,), (128, 4), (1, 1))
    made = from_driver_call(14, 0, *call, swizzle=3, compute_capability=(10, 0))
    assert made == _p64() == decode(encode(made)) and made.box_bytes == 256, "gaps do not count"
    assert from_driver_call(13, 0, *call, swizzle=3, compute_capability=(10, 0)).box_bytes == 256
    with pytest.raises(UsageError, match="16U4_ALIGN16B needs compute capability"):
        from_driver_call(14, 0, *call, swizzle=3)
    six = from_driver_call(15, 0, (256, 4), (192,), (128, 4), (1, 1), swizzle=3, compute_capability=(10, 0))
    assert six.dtype == "b6x16_p32" and six.box_bytes == 384 and decode(encode(six)) == six
    for broken in ({"dims": (192, 4)}, {"address": 16}, {"box": (64, 4)}, {"strides": (144,)}):
        with pytest.raises(UsageError, match="must be"):
            validate(_p64(**broken), (10, 0))
