"""Kernels around tensor copies, and a numpy model of what they move.

One launch does many copies of one rank: the maps come as a table whose addresses are offsets into the global buffer;
the kernel adds the buffer's address in an aligned work area, fences the tensor map proxy, and copies one by one.
Runs on silicon too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from tensorladder.core.swizzle import tma_swizzle
from tensorladder.core.tensormap import SWIZZLE_SPANS, TensorMap, encode
from tests.vgpu.ptx_kernels import Case

ROOM = 8192  # bytes of shared memory that a copy may fill, 1024 more lie behind them
WINDOW = ROOM + 1024
POISON = 0xEE
SIZES = {"u8": 1, "u16": 2, "u32": 4, "s32": 4, "u64": 8, "s64": 8, "f16": 2, "bf16": 2, "f32": 4, "f64": 8,
         "f32_ftz": 4, "tf32": 4, "tf32_ftz": 4}  # fmt: skip


@dataclass(frozen=True)
class Copy:
    """One copy: a map whose address is an offset, signed coordinates, and where the box lies in shared memory."""

    map: TensorMap
    coords: tuple[int, ...]
    shared: int = 0


def random_copy(
    rng: np.random.Generator, rank: int, dtype: str, swizzle: int, room: int,
    steps: bool = False, narrow: bool = False, store: bool = False,
) -> Copy:  # fmt: skip
    """A map that the driver would take over at most `room` bytes of global memory, and a box that may stick out.

    steps: element strides above 1. narrow: inner boxes below the swizzle's span. store: no negative coordinates. The
    innermost coordinate is always at a 16-byte boundary.
    """
    size = SIZES[dtype]
    span = SWIZZLE_SPANS[swizzle] if swizzle else 256
    inner = int(rng.choice([n for n in (16, 32, 48, 64, 128, 256) if n <= span]))
    if swizzle and not narrow:
        inner = span
    box, dims, strides, element_strides = [inner // size], [int(rng.integers(1, 3 * inner // size))], [], [1]
    total, reach = max(inner, span if swizzle else 0), -(-dims[0] * size // 16) * 16
    for _ in range(1, rank):
        step = int(rng.integers(1, 4)) if steps else 1
        most = max(1, min(256, ROOM // total * step))
        box.append(int(rng.integers(1, min(most, 40) + 1)))
        total *= -(-box[-1] // step)
        pitch = reach + 16 * int(rng.integers(0, 3))
        extent = max(1, min(int(rng.integers(1, 30)), room // pitch))
        dims.append(extent)
        strides.append(pitch)
        element_strides.append(step)
        reach = pitch * extent
    far = rng.random() < 0.25  # anywhere around the tensor; else the box mostly overlaps it
    coords = [int(rng.integers(-b, d + 2) if far else rng.integers(-(b // 3), d)) for b, d in zip(box, dims)]
    coords[0] -= coords[0] % (16 // size)
    coords = [max(c, 0) for c in coords] if store else coords
    offset = 16 * int(rng.integers(0, (room - min(reach, room)) // 16 + 1))
    fields = (tuple(values) for values in (dims, strides, box, element_strides))
    return Copy(TensorMap(offset, dtype, rank, *fields, swizzle=swizzle), tuple(coords), 128 * int(rng.integers(0, 8)))


# ---------------------------------------------------------------- the model
def places(copy: Copy, store: bool = False) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of every byte of the box, dense order: its global offset, its shared offset, and whether it is in the tensor.

    Rows of a swizzled box start at multiples of the span. A store writes whole pieces of 16 bytes, also where the last
    one of a row sticks out of the tensor. (Both seen on an H200.)
    """
    m, size = copy.map, copy.map.element_size
    shape = m.box_shape
    at, inside = np.full((1,) * m.rank, m.address, np.int64), np.ones((1,) * m.rank, bool)
    for i, n in enumerate(shape):
        step = m.element_strides[i] if i else 1
        x = copy.coords[i] + step * np.arange(n, dtype=np.int64)
        x = x.reshape((-1,) + (1,) * i)  # dimension 0 is the last axis
        at = at + x * (size if i == 0 else m.strides[i - 1])
        extent = -(-m.dims[0] * size // 16) * 16 // size if store and i == 0 else m.dims[i]
        inside = inside & (x >= 0) & (x < extent)
    at = (np.broadcast_to(at, shape[::-1]).reshape(-1, 1) + np.arange(size)).ravel()
    inside = np.repeat(np.broadcast_to(inside, shape[::-1]).ravel(), size)
    inner = shape[0] * size
    pitch = SWIZZLE_SPANS[m.swizzle] if m.swizzle else inner
    row, column = np.divmod(np.arange(at.size), inner)
    return at, tma_swizzle(m.swizzle, m.swizzle_atomicity)(copy.shared + row * pitch + column), inside


def loaded(source: np.ndarray, copy: Copy) -> np.ndarray:
    """WINDOW bytes of shared memory after a load of `source` (bytes)."""
    at, shared, inside = places(copy)
    window = np.full(WINDOW, POISON, np.uint8)
    window[shared] = np.where(inside, source[np.where(inside, at, 0)], 0)
    return window


def stored(target: np.ndarray, window: np.ndarray, copy: Copy) -> np.ndarray:
    """`target` (bytes) after a store of the box in `window`."""
    at, shared, inside = places(copy, store=True)
    target = target.copy()
    target[at[inside]] = window[shared[inside]]
    return target


# ---------------------------------------------------------------- kernels
_PROLOGUE = """
  .reg .b64 %map, %row, %base, %x, %y, %maps; .reg .b32 %i, %c<5>, %bytes, %place, %bar, %win, %t, %u, %parity;
  .reg .pred %one, %p, %more;
  .shared .align 8 .b8 barrier[8];
  .shared .align 1024 .b8 window[{window}];
  mov.u32 %bar, barrier; mov.u32 %win, window;
  setp.eq.u32 %one, %idx, 0;
  add.u64 %maps, %work, 127; and.b64 %maps, %maps, -128;
  mov.u32 %t, %idx;
COPY_MAPS:                              // word t of the table to the work area; word 0 of a map is its address
  setp.ge.u32 %p, %t, {words};
  @%p bra MAPS_READY;
  cvt.u64.u32 %x, %t; shl.b64 %x, %x, 3;
  add.u64 %y, %table, %x; ld.global.b64 %row, [%y];
  and.b32 %u, %t, 15; setp.eq.u32 %p, %u, 0;
  @%p add.u64 %row, %row, %memory;
  add.u64 %y, %maps, %x; st.global.b64 [%y], %row;
  add.u32 %t, %t, 128;
  bra COPY_MAPS;
MAPS_READY:
  fence.proxy.tensormap::generic.release.gpu;
  @%one mbarrier.init.shared.b64 [%bar], 1;
  @%one fence.mbarrier_init.release.cluster;
  bar.sync 0;
  mov.u32 %i, 0;
EACH:
  cvt.u64.u32 %x, %i; shl.b64 %x, %x, 7; add.u64 %map, %maps, %x;
  fence.proxy.tensormap::generic.acquire.gpu [%map], 128;
  cvt.u64.u32 %x, %i; shl.b64 %x, %x, 5; add.u64 %row, %coords, %x;
  ld.global.b32 %c0, [%row]; ld.global.b32 %c1, [%row+4]; ld.global.b32 %c2, [%row+8]; ld.global.b32 %c3, [%row+12];
  ld.global.b32 %c4, [%row+16]; ld.global.b32 %bytes, [%row+20]; ld.global.b32 %place, [%row+24];
  add.u32 %place, %place, %win;
  mul.wide.u32 %x, %i, {window}; add.u64 %base, %windows, %x;
  and.b32 %parity, %i, 1;
"""
_EPILOGUE = """
  bar.sync 0;
  add.u32 %i, %i, 1; setp.lt.u32 %more, %i, {count};
  @%more bra EACH;
  mov.u32 %t, %idx;                     // nothing that depends on addresses stays behind
CLEAR:
  setp.ge.u32 %p, %t, {words};
  @%p bra CLEARED;
  cvt.u64.u32 %x, %t; shl.b64 %x, %x, 3; add.u64 %y, %maps, %x;
  st.global.b64 [%y], 0;
  add.u32 %t, %t, 128;
  bra CLEAR;
CLEARED:
"""
#: every thread moves words of the window: %t is the byte offset, %x the global address, %u the shared one
_SWEEP = """
  shl.b32 %t, %idx, 2;
{label}:
  cvt.u64.u32 %x, %t; add.u64 %x, %base, %x; add.u32 %u, %win, %t;
  {action}
  add.u32 %t, %t, 512; setp.lt.u32 %p, %t, {window};
  @%p bra {label};
"""
_POISON = _SWEEP.replace("{label}", "FILL").replace("{action}", f"st.shared.b32 [%u], {POISON * 0x01010101:#x};")
_TO_GLOBAL = _SWEEP.replace("{label}", "OUT").replace("{action}", "ld.shared.b32 %c0, [%u]; st.global.b32 [%x], %c0;")
_FROM_GLOBAL = _SWEEP.replace("{label}", "IN").replace(
    "{action}", "ld.global.b32 %bytes, [%x]; st.shared.b32 [%u], %bytes;"
)
_FENCE = "  fence.proxy.async;\n  bar.sync 0;\n"


def _kernel(middle: str, rank: int, count: int) -> str:
    coords = ", ".join(f"%c{k}" for k in range(rank))
    text = (_PROLOGUE + middle + _EPILOGUE).replace("{coords}", coords).replace("{rank}", str(rank))
    return text.replace("{window}", str(WINDOW)).replace("{words}", str(16 * count)).replace("{count}", str(count))


_LOAD = _POISON + _FENCE + """
  @!%one bra WAIT;
  mbarrier.arrive.expect_tx.shared.b64 _, [%bar], %bytes;
  cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
    [%place], [%map, {{coords}}], [%bar];
WAIT:
  mbarrier.try_wait.parity.shared.b64 %p, [%bar], %parity;
  @!%p bra WAIT;
""" + _TO_GLOBAL  # fmt: skip
_STORE = _FROM_GLOBAL + _FENCE + """
  @!%one bra STORED;
  cp.{reduce}async.bulk.tensor.{rank}d.global.shared::cta{op}.tile.bulk_group [%map, {{coords}}], [%place];
  cp.async.bulk.commit_group;
  cp.async.bulk.wait_group 0;
STORED:
"""  # fmt: skip


def _tables(copies: list[Copy]) -> dict[str, np.ndarray]:
    table = np.frombuffer(b"".join(encode(c.map) for c in copies), np.uint8).copy()
    coords = np.zeros((len(copies), 8), np.int32)
    for row, c in zip(coords, copies, strict=True):
        row[: len(c.coords)] = c.coords
        row[5], row[6] = c.map.box_bytes, c.shared
    return {"table": table, "coords": coords, "work": np.zeros(table.size + 128, np.uint8)}


def load_case(name: str, copies: list[Copy], memory: np.ndarray, model: Callable = loaded, **options) -> Case:
    """Loads of `copies` from the bytes `memory`; `windows` is shared memory after each. model=None: no reference."""
    windows = np.zeros((len(copies), WINDOW), np.uint8)

    def reference(memory: np.ndarray, **_: np.ndarray) -> dict[str, np.ndarray]:
        return {"windows": np.stack([model(memory, c) for c in copies])}

    return Case(
        name, _kernel(_LOAD, copies[0].map.rank, len(copies)), {}, {}, reference if model else None,
        buffers={**_tables(copies), "memory": memory, "windows": windows}, n=128, **options,
    )  # fmt: skip


def store_case(
    name: str, copies: list[Copy], memory: np.ndarray, windows: np.ndarray, op: str = "",
    model: Callable = stored, **options,
) -> Case:  # fmt: skip
    """Stores (or reductions `op`) of `copies` from `windows` (count, WINDOW), one after the other, into `memory`."""

    def reference(memory: np.ndarray, windows: np.ndarray, **_: np.ndarray) -> dict[str, np.ndarray]:
        for c, w in zip(copies, windows, strict=True):
            memory = model(memory, w, c)
        return {"memory": memory}

    text = _STORE.replace("{reduce}", "reduce." if op else "").replace("{op}", f".{op}" if op else "")
    return Case(
        name, _kernel(text, copies[0].map.rank, len(copies)), {}, {}, reference if model else None,
        buffers={**_tables(copies), "memory": memory, "windows": windows}, n=128, **options,
    )  # fmt: skip


def with_map(copy: Copy, **changes: object) -> Copy:
    """The copy with other fields of its map."""
    return replace(copy, map=replace(copy.map, **changes))
