"""Tensor copies: random maps against a numpy model, fills, conversions, reductions, and what is refused."""

from __future__ import annotations

import numpy as np

from tensorladder.core.tensormap import TensorMap
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
    from tensorladder.core.tensormap import encode

    words = np.frombuffer(encode(made), np.uint64).copy()
    words[8:] = 0  # the driver's own additions
    return np.concatenate([words, np.zeros(16, np.uint64)])


CASES = [*_moves(), *_values(), *_reductions(), *_replacements()]
test_cases = cases_test(CASES)
