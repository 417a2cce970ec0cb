"""Tensor copies: random maps against a numpy model, fills, conversions, reductions, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from tensorladder.core.swizzle import tma_swizzle
from tensorladder.core.tensormap import TensorMap, encode
from tests.vgpu.ptx_kernels import Case, cases_test
from tests.vgpu.tma_kernels import POISON, WINDOW, Copy, load_case, places, random_copy, store_case, with_map

MEMORY = 1 << 16
DTYPES = ("u8", "u16", "u32", "s32", "u64", "s64", "f16", "bf16", "f32", "f64")
NUMPY = {"u32": np.uint32, "s32": np.int32, "u64": np.uint64, "s64": np.int64, "f16": np.float16, "f32": np.float32,
         "f64": np.float64}  # fmt: skip
NAN = {2: 0x7FF7, 4: 0x7FF77FF7, 8: 0x7FF77FF77FF77FF7}  # what fills, by element size (seen on an H200)


def _bytes(seed: int, shape: int | tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def _copies(seed: int, rank: int, count: int, dtypes: tuple[str, ...] = DTYPES, **options: bool) -> list[Copy]:
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        swizzle = int(rng.integers(int(options.get("narrow", False)), 4)) if rank > 1 else 0
        found.append(random_copy(rng, rank, str(rng.choice(dtypes)), swizzle, MEMORY, **options))
    return found


def _moves() -> list[Case]:
    cases = []
    for rank in range(1, 6):
        cases.append(load_case(f"load.{rank}d", _copies(rank, rank, 24), _bytes(100 + rank, MEMORY)))
        windows = _bytes(140 + rank, (16, WINDOW))
        copies = _copies(20 + rank, rank, 16, store=True)
        cases.append(store_case(f"store.{rank}d", copies, _bytes(120 + rank, MEMORY), windows))
    cases.append(load_case("load.3d.element_strides", _copies(11, 3, 24, steps=True), _bytes(111, MEMORY)))
    windows = _bytes(112, (16, WINDOW))
    steps = _copies(12, 3, 16, steps=True, store=True)
    cases.append(store_case("store.3d.element_strides", steps, _bytes(113, MEMORY), windows))
    cases.append(load_case("load.2d.narrow", _copies(15, 2, 24, narrow=True), _bytes(115, MEMORY)))
    narrow = _copies(16, 2, 16, narrow=True, store=True)
    cases.append(store_case("store.2d.narrow", narrow, _bytes(116, MEMORY), windows))
    inner = [with_map(c, element_strides=(2, *c.map.element_strides[1:])) for c in _copies(13, 2, 8)]
    cases.append(load_case("load.2d.inner_element_stride", inner, _bytes(114, MEMORY)))
    return cases


# ---------------------------------------------------------------- values that a copy makes
def _loaded_as(convert, fill=lambda size: 0):
    """A model of loads that change values: convert(elements, dtype) on what lies inside, fill(size) outside."""

    def model(memory: np.ndarray, copy: Copy) -> np.ndarray:
        at, shared, inside = places(copy)
        size = copy.map.element_size
        window = np.full(WINDOW, POISON, np.uint8)
        raw = np.where(inside, memory[np.where(inside, at, 0)], 0).view(f"u{size}")
        values = np.where(inside[::size], convert(raw, copy.map.dtype), np.array(fill(size), raw.dtype))
        window[shared] = values.view(np.uint8)
        return window

    return model


def _rounded(bits: np.ndarray, dtype: str) -> np.ndarray:
    """.tf32 rounds to 10 bits of mantissa, to nearest even, subnormals too; NaNs become one. .ftz changes nothing."""
    if not dtype.startswith("tf32"):
        return bits
    nan = bits & 0x7FFFFFFF > 0x7F800000
    return np.where(nan, 0x7FFFE000, (bits + 0xFFF + ((bits >> 13) & 1)) & ~np.uint32(0x1FFF)).astype(np.uint32)


def _special_words(seed: int) -> np.ndarray:
    """Float32 bits with many subnormals, ties of the rounding to tf32, infinities and NaNs."""
    rng = np.random.default_rng(seed)
    words = rng.integers(0, 1 << 32, MEMORY // 4, np.uint64).astype(np.uint32)
    words[::5] &= 0x807FFFFF
    words[1::5] = words[1::5] & 0xFFFFE000 | 0x1000
    words[2::35] = 0x7F800000
    words[3::35] |= 0x7F800000
    return words.view(np.uint8)


def _values() -> list[Case]:
    cases = []
    for dtype in ("f16", "bf16", "f32", "f64"):
        copies = [with_map(c, oob_nan=True) for c in _copies(30, 2, 6, dtypes=(dtype,))]
        model = _loaded_as(lambda bits, _: bits, NAN.__getitem__)
        cases.append(load_case(f"load.2d.nan.{dtype}", copies, _bytes(130, MEMORY), model))
    for dtype in ("f32", "f32_ftz", "tf32", "tf32_ftz"):
        copies = _copies(31, 2, 6, dtypes=(dtype,))
        cases.append(load_case(f"load.2d.{dtype}", copies, _special_words(131), _loaded_as(_rounded)))
        windows = np.stack([_special_words(132 + k)[:WINDOW] for k in range(4)])
        copies = _copies(32, 2, 4, dtypes=(dtype,), store=True)
        cases.append(store_case(f"store.2d.{dtype}", copies, _bytes(133, MEMORY), windows))
    return cases


# ---------------------------------------------------------------- reductions
def _bf16_sum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    x, y = ((bits.astype(np.uint32) << 16).view(np.float32) for bits in (a, b))
    total = (x + y).view(np.uint32)
    rounded = ((total + 0x7FFF + ((total >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(total & 0x7FFFFFFF > 0x7F800000, np.uint16(0x7FFF), rounded)


def _reduced(op: str):
    """A model of cp.reduce: element by element, in the map's type."""
    integer = {
        "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "add": np.add, "min": np.minimum,
        "max": np.maximum, "inc": lambda a, b: np.where(a >= b, 0, a + 1).astype(a.dtype),
        "dec": lambda a, b: np.where((a == 0) | (a > b), b, a - 1).astype(a.dtype),
    }[op]  # fmt: skip
    floating = {"min": np.fmin, "max": np.fmax, "add": np.add}.get(op)

    def model(memory: np.ndarray, window: np.ndarray, copy: Copy) -> np.ndarray:
        at, shared, inside = places(copy, store=True)
        memory, dtype, size = memory.copy(), copy.map.dtype, copy.map.element_size
        a, b = memory[at[inside]].view(f"u{size}"), window[shared[inside]].view(f"u{size}")
        with np.errstate(all="ignore"):
            if dtype == "bf16":
                wide = [(x.astype(np.uint32) << 16).view(np.float32) for x in (a, b)]
                result = _bf16_sum(a, b) if op == "add" else (floating(*wide).view(np.uint32) >> 16).astype(np.uint16)
            elif dtype.startswith("f"):
                result = floating(a.view(NUMPY[dtype]), b.view(NUMPY[dtype]))
            else:
                result = integer(a.view(NUMPY[dtype]), b.view(NUMPY[dtype]))
        memory[at[inside]] = np.ascontiguousarray(result).view(np.uint8)
        return memory

    return model


def _numbers(seed: int, shape: int | tuple[int, ...], dtype: str) -> np.ndarray:
    """Bytes that hold ordinary numbers of a type (no NaN: which one comes out is not the point here)."""
    rng = np.random.default_rng(seed)
    size = {"bf16": 2}.get(dtype) or np.dtype(NUMPY[dtype]).itemsize
    count = int(np.prod(shape)) // size
    if dtype == "bf16":
        values = (rng.standard_normal(count).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    elif dtype.startswith("f"):
        values = (rng.standard_normal(count) * 10.0 ** rng.integers(-3, 4, count)).astype(NUMPY[dtype])
    else:
        values = rng.integers(0, 1 << 64, count, np.uint64).astype(f"u{size}")
        values[::3] %= 7
    return values.view(np.uint8).reshape(shape)


_REDUCTIONS = {
    "add": ("u32", "s32", "u64", "f16", "bf16", "f32", "f64"),
    "min": ("u32", "s32", "u64", "s64", "f16", "bf16"),
    "max": ("u32", "s32", "u64", "s64", "f16", "bf16"), "inc": ("u32",), "dec": ("u32",),
    "and": ("u32", "u64"), "or": ("u32", "u64"), "xor": ("u32", "u64"),
}  # fmt: skip


def _reductions() -> list[Case]:
    cases = []
    for n, (op, dtypes) in enumerate(_REDUCTIONS.items()):
        for dtype in dtypes:
            copies = _copies(50 + n, 2, 4, dtypes=(dtype,), store=True)
            memory, windows = _numbers(60 + n, MEMORY, dtype), _numbers(70 + n, (4, WINDOW), dtype)
            cases.append(store_case(f"reduce.{op}.{dtype}", copies, memory, windows, op, _reduced(op)))
    return cases


# ---------------------------------------------------------------- tensormap.replace
_EDITS = """
  .reg .b64 %m, %v; .reg .b32 %n;
  .shared .align 128 .b8 map[128];
  add.u64 %m, %work, 127; and.b64 %m, %m, -128;
  cvt.u64.u32 %v, %idx; shl.b64 %v, %v, 3; add.u64 %m, %m, %v; st.global.b64 [%m], 0;
  bar.warp.sync -1;
  add.u64 %m, %work, 127; and.b64 %m, %m, -128;
  .reg .pred %one; setp.eq.u32 %one, %idx, 0;
  @!%one bra DONE;
  mov.b64 %v, 0x123456789a0;
  tensormap.replace.tile.global_address.global.b1024.b64 [%m], %v;
  tensormap.replace.tile.rank.global.b1024.b32 [%m], 4;
  tensormap.replace.tile.elemtype.global.b1024.b32 [%m], {type};
  tensormap.replace.tile.interleave_layout.global.b1024.b32 [%m], 0;
  tensormap.replace.tile.swizzle_mode.global.b1024.b32 [%m], 2;
  tensormap.replace.tile.fill_mode.global.b1024.b32 [%m], 1;
{lists}
DONE:
  bar.warp.sync -1;
  cvt.u64.u32 %v, %idx; shl.b64 %v, %v, 3; add.u64 %m, %m, %v; ld.global.b64 %word, [%m]; st.global.b64 [%m], 0;
"""
_EDITED = {"box_dim": (16, 5, 7, 2, 256), "global_dim": (1000, 2000, 3, 0xFFFFFFFF, 5),
           "element_stride": (1, 2, 3, 8, 4), "global_stride": (4096, 1 << 38, 48, 1 << 20)}  # fmt: skip


def _replacements() -> list[Case]:
    """The 16 words of a map that tensormap.replace built out of zeros, a word a thread."""
    lists = []
    for field, values in _EDITED.items():
        bits, reg = (64, "v") if field == "global_stride" else (32, "n")
        for ordinal, value in enumerate(values):
            lists.append(f"  mov.b{bits} %{reg}, {value};")
            lists.append(f"  tensormap.replace.tile.{field}.global.b1024.b{bits} [%m], {ordinal}, %{reg};")
    cases = []
    for number, dtype in ((6, "f16"), (10, "bf16"), (11, "tf32"), (12, "tf32_ftz")):
        made = TensorMap(
            0x123456789A0, dtype, 5, _EDITED["global_dim"], _EDITED["global_stride"], _EDITED["box_dim"],
            _EDITED["element_stride"], swizzle=2, oob_nan=True,
        )  # fmt: skip
        body = _EDITS.replace("{type}", str(number)).replace("{lists}", "\n".join(lists))
        words = _map_words(made)
        work = {"work": np.zeros(256 + 128, np.uint8)}
        case = Case(
            f"replace.{dtype}", body, {}, {"word": "b64"}, lambda words=words, **_: words, work, n=32, block=32
        )  # fmt: skip
        cases.append(case)
    return cases


def _map_words(made: TensorMap) -> np.ndarray:
    words = np.frombuffer(encode(made), np.uint64).copy()
    words[8:] = 0  # the driver's own additions
    return np.concatenate([words, np.zeros(16, np.uint64)])


CASES = [*_moves(), *_values(), *_reductions(), *_replacements()]


# ---------------------------------------------------------------- clusters
_MULTICAST = """
  .reg .b64 %map, %x, %y; .reg .b32 %rank, %t, %bar, %win, %u, %c0, %c1; .reg .pred %one, %p; .reg .b16 %mask;
  .shared .align 8 .b8 barrier[8];
  .shared .align 1024 .b8 window[8192];
  mov.u32 %rank, %cluster_ctarank; mov.u32 %t, %tid.x; setp.eq.u32 %one, %t, 0;
  mov.u32 %bar, barrier; mov.u32 %win, window;
  add.u64 %map, %work, 127; and.b64 %map, %map, -128; mul.wide.u32 %x, %rank, 128; add.u64 %map, %map, %x;
  setp.lt.u32 %p, %t, 16;
  @!%p bra COPIED;
  mul.wide.u32 %x, %t, 8; add.u64 %y, %table, %x; ld.global.b64 %x, [%y];
  @%one add.u64 %x, %x, %memory;
  mul.wide.u32 %y, %t, 8; add.u64 %y, %map, %y; st.global.b64 [%y], %x;
COPIED:
  fence.proxy.tensormap::generic.release.gpu;
  @%one mbarrier.init.shared.b64 [%bar], 1;
  fence.mbarrier_init.release.cluster;
  bar.sync 0;
  fence.proxy.tensormap::generic.acquire.gpu [%map], 128;
  @%one mbarrier.arrive.expect_tx.shared.b64 _, [%bar], 8192;
  barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
  @!%one bra WAIT;
  mov.b16 %mask, 3; mov.u32 %c0, 0; shl.b32 %c1, %rank, 5; shl.b32 %u, %rank, 12; add.u32 %u, %win, %u;
  cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster
    [%u], [%map, {%c0, %c1}], [%bar], %mask;
WAIT:
  mbarrier.try_wait.parity.shared.b64 %p, [%bar], 0;
  @!%p bra WAIT;
  shl.b32 %t, %t, 2; mul.wide.u32 %x, %rank, 8192; add.u64 %y, %windows, %x;
OUT:
  add.u32 %u, %win, %t; ld.shared.b32 %c0, [%u]; cvt.u64.u32 %x, %t; add.u64 %x, %y, %x; st.global.b32 [%x], %c0;
  add.u32 %t, %t, 512; setp.lt.u32 %p, %t, 8192;
  @%p bra OUT;
  barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
  mov.u32 %t, %tid.x; mul.wide.u32 %y, %t, 8; add.u64 %y, %map, %y; setp.lt.u32 %p, %t, 16;
  @%p st.global.b64 [%y], 0;
"""


_HALF = TensorMap(0, "f16", 2, (64, 64), (128,), (64, 32), (1, 1), swizzle=3)


def _both(memory: np.ndarray, **_: np.ndarray) -> dict[str, np.ndarray]:
    halves = [_swizzled(memory[4096 * k : 4096 * (k + 1)]) for k in range(2)]
    return {"windows": np.tile(np.concatenate(halves), (2, 1))}


def _swizzled(tile: np.ndarray) -> np.ndarray:
    out = np.empty_like(tile)
    out[tma_swizzle(3)(np.arange(4096))] = tile
    return out


CASES.append(
    Case(
        "load.multicast", _MULTICAST, {}, {}, _both,
        {"table": np.frombuffer(encode(_HALF), np.uint8),
         "work": np.zeros(512, np.uint8), "memory": _bytes(200, 8192), "windows": np.zeros((2, 8192), np.uint8)},
        n=256, cluster=2,
    )
)  # fmt: skip
test_cases = cases_test(CASES)


# ---------------------------------------------------------------- errors
_TRY = """.version 8.3
.target sm_90a
.address_size 64
.visible .entry kernel(.param .align 64 .b8 map[192], .param .u64 memory)
{
  .reg .b32 %win, %bar, %x, %y; .reg .b64 %m, %g; .reg .pred %p;
  .shared .align 1024 .b8 window[4096];
  .shared .align 8 .b8 barrier[8];
  mov.u32 %win, window; mov.u32 %bar, barrier; mov.b64 %m, map; cvta.param.u64 %m, %m; ld.param.u64 %g, [memory];
  mov.u32 %x, 0; mov.u32 %y, 0;
  mbarrier.init.shared.b64 [%bar], 1;
  mbarrier.arrive.expect_tx.shared.b64 _, [%bar], 1024;
{body}
LOOP:
  mbarrier.try_wait.parity.shared.b64 %p, [%bar], 0;
  @!%p bra LOOP;
  ret;
}
"""
_GET = (
    "  cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes\n"
    "    [%win], [%m, {%x, %y}], [%bar];"
)
_PUT = (
    "  cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%m, {%x, %y}], [%win];\n"
    "  cp.async.bulk.commit_group;\n  cp.async.bulk.wait_group 0;\n  ret;"
)
_ADD = _PUT.replace("cp.async", "cp.reduce.async", 1).replace("cta.tile", "cta.add.tile")


def _attempt(body: str, policy: str = "eager", raw: bytes | None = None, **changes: object) -> str:
    """What is said of one copy of a 32 x 16 box of f16 of a 64 x 16 tensor called A."""
    from tensorladder.core.errors import TensorladderError
    from tensorladder.vgpu import Device, launch

    device = Device("sm_90a", policy, timeout=30)
    a = device.memory.empty("A", (16, 64), np.float16)
    fields = {"address": a.ctypes.data, "dims": (64, 16), "strides": (128,), "box": (32, 16), "dtype": "f16"} | changes
    made = encode(TensorMap(rank=2, element_strides=(1, 1), **fields)) if raw is None else raw
    with pytest.raises(TensorladderError) as caught:
        launch(_TRY.replace("{body}", body), "kernel", 1, 1, [made + bytes(64), a.ctypes.data], device=device)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("policy", ["eager", "lazy"])
@pytest.mark.parametrize(
    ("body", "changes", "words"),
    [
        ("  mov.u32 %y, 8;\n" + _GET, {"dims": (64, 40)}, "out of bounds: 2 bytes at 960 bytes past the end of A of"),
        (_PUT, {"strides": (256,)}, "past the end of A of shape (16, 64)"),
        (_GET.replace("[%win]", "[%win+64]"), {}, "shared address 0x440 of a bulk copy is not aligned to 128 bytes"),
        (_GET.replace("[%win]", "[%win+4096]"), {}, "out of bounds"),
        (_GET.replace("[%bar]", "[%win]"), {}, "is used before mbarrier.init"),
        ("  mov.u32 %x, 4;\n" + _GET, {}, "the innermost coordinate is not at a multiple of 16 bytes"),
        ("  mov.u32 %y, -1;\n" + _PUT, {}, "may not start at a negative coordinate"),
        ("  add.u64 %m, %m, 32;\n" + _GET, {}, "its address is not a multiple of 64"),
        ("  mov.u64 %m, 64;\n" + _GET, {}, "out of bounds: 64 bytes"),
        (_GET.replace("2d", "3d").replace("%y}", "%y, %y}"), {}, "its rank is not the instruction's, 3"),
        (_GET, {"swizzle": 1}, "the inner box exceeds the swizzle span"),
        (_GET, {"box": (4, 16)}, "the inner box is not a multiple of 16 bytes"),
        (_GET, {"interleave": 1}, "interleaved layouts are not modelled"),
        (_GET, {"swizzle": 3, "swizzle_atomicity": 2}, "its swizzle mode is not modelled"),
        (_GET, {"dtype": "s32", "box": (16, 16), "oob_nan": True}, "NaN fill needs a floating-point element type"),
        (_GET, {"raw": b"\xff" * 128}, "its rank is not 1 to 5"),
        (_GET, {"raw": bytes(8) + b"\x11" + bytes(119)}, "it is an im2col map, which is not modelled"),
        (_ADD, {"dtype": "u16"}, "its element type has no such reduction"),
        (_GET.replace("tile", "tile::gather4"), {}, "(.tile::gather4)"),
        (_GET.replace("tile", "im2col"), {}, "(.im2col)"),
    ],
)  # fmt: skip
def test_misuse_is_named(body: str, changes: dict, words: str, policy: str) -> None:
    text = _attempt(body, policy, **changes)
    assert words in text and "PTX line" in text, text
