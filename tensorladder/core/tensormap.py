"""The TMA tensor map: the hardware's 128-byte descriptor, its codec, and the driver's rules for making one.

A tensor map (`CUtensorMap`) describes a global tensor of rank 1 to 5 and the box that one TMA copy moves. The CUDA
driver fills it in `cuTensorMapEncodeTiled` (CUDA driver API, "Tensor Map Object Management"); CuTe DSL's host code
fills it by itself. The layout of the bits is not documented. The table below was read off about 900 calls of the
driver's encoders on an H200 (driver 580), kept in tests/data; what no call has shown is marked "not observed".

The machine reads words 0 to 7 alone. The driver also writes the box's bytes into word 8 and the period of the swizzle
pattern into word 9; compilers that build maps leave garbage there.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from tensorladder.core.errors import Unsupported, UsageError

BYTES = 128
WORDS = 16
MAX_RANK = 5


class Field(NamedTuple):
    """A bit field of the map: `width` bits of 64-bit word `word`, lowest at bit `low`."""

    name: str
    word: int
    low: int
    width: int

    def get(self, words: Sequence[int]) -> int:
        return (words[self.word] >> self.low) & ((1 << self.width) - 1)

    def put(self, words: list[int], value: int) -> None:
        words[self.word] |= (value & ((1 << self.width) - 1)) << self.low


# Extents, boxes and element strides are stored minus one, strides in units of 16 bytes (36 bits: 32 low, 4 high).
DESCRIPTOR_FIELDS: tuple[Field, ...] = (
    Field("address", 0, 0, 64),
    Field("im2col", 1, 0, 1),  # 1: made by cuTensorMapEncodeIm2col; word 7 then holds corners and pixels
    Field("rank", 1, 4, 3),  # minus 1
    Field("type", 1, 7, 4),
    Field("interleave", 1, 11, 2),
    Field("swizzle", 1, 13, 2),
    Field("oob_nan", 1, 15, 1),
    Field("tf32", 1, 16, 1),
    Field("l2_promotion", 1, 17, 2),
    Field("swizzle_atomicity", 1, 19, 2),  # 1 in maps that compilers build for 32-byte atoms; 2, 3 not observed
    Field("stride1", 1, 32, 32),
    Field("stride2", 2, 0, 32),
    Field("stride3", 2, 32, 32),
    Field("stride4", 3, 0, 32),
    Field("stride1_high", 3, 32, 4),
    Field("stride2_high", 3, 36, 4),
    Field("stride3_high", 3, 40, 4),
    Field("stride4_high", 3, 44, 4),
    Field("dim0", 4, 0, 32),
    Field("dim1", 4, 32, 32),
    Field("dim2", 5, 0, 32),
    Field("dim3", 5, 32, 32),
    Field("dim4", 6, 0, 32),
    Field("element_stride0", 6, 32, 3),
    Field("element_stride1", 6, 35, 3),
    Field("element_stride2", 6, 38, 3),
    Field("element_stride3", 6, 41, 3),
    Field("element_stride4", 6, 44, 3),
    Field("box0", 6, 56, 8),
    Field("box1", 7, 0, 8),
    Field("box2", 7, 8, 8),
    Field("box3", 7, 16, 8),
    Field("box4", 7, 24, 8),
)
FIELDS: dict[str, Field] = {f.name: f for f in DESCRIPTOR_FIELDS}

# Bits of words 0 to 7 that a map may carry though no field has them. Word 1: bit 1 is set in every map that CuTe DSL
# builds, bit 21 where the tensor's footprint is at least 128 KiB (CUTLASS, copy_traits_sm90_tma).
TOLERATED_BITS: dict[int, int] = {1: 1 << 1 | 1 << 21}


class ElementType(NamedTuple):
    """An element type of a map. driver: CUtensorMapDataType; code, tf32: fields of the map; size in bytes.

    Packed types (PTX ISA, "Packing and Unpacking of tensor elements"; from compute capability 10.0 on) have size 0, and
    `bits` an element in global memory and `shared_bits` in shared memory: more where gaps follow 16 elements.
    """

    name: str
    driver: int
    code: int
    tf32: int
    size: int
    floating: bool
    packed_bits: tuple[int, int] = (0, 0)

    @property
    def bits(self) -> int:
        return self.packed_bits[0] or 8 * self.size

    @property
    def shared_bits(self) -> int:
        return self.packed_bits[1] or 8 * self.size


ELEMENT_TYPES: tuple[ElementType, ...] = (
    ElementType("u8", 0, 0, 0, 1, False),
    ElementType("u16", 1, 1, 0, 2, False),
    ElementType("u32", 2, 2, 0, 4, False),
    ElementType("s32", 3, 3, 0, 4, False),
    ElementType("u64", 4, 4, 0, 8, False),
    ElementType("s64", 5, 5, 0, 8, False),
    ElementType("f16", 6, 6, 0, 2, True),
    ElementType("f32", 7, 7, 0, 4, True),
    ElementType("f64", 8, 9, 0, 8, True),
    ElementType("bf16", 9, 10, 0, 2, True),
    ElementType("f32_ftz", 10, 8, 0, 4, True),
    ElementType("tf32", 11, 7, 1, 4, True),
    ElementType("tf32_ftz", 12, 8, 1, 4, True),
    # The codes of the packed types are those of maps that CuTe DSL builds; a chunk of 16 elements is 8 or 12 bytes in
    # global memory, and in shared memory as many, or as many with a gap up to 16.
    ElementType("b4x16", 13, 11, 0, 0, False, (4, 4)),
    ElementType("b4x16_p64", 14, 12, 0, 0, False, (4, 8)),
    ElementType("b6x16_p32", 15, 13, 0, 0, False, (6, 8)),
)
_BY_NAME = {t.name: t for t in ELEMENT_TYPES}
_BY_DRIVER = {t.driver: t for t in ELEMENT_TYPES}
_BY_CODE = {(t.code, t.tf32): t for t in ELEMENT_TYPES}
_PACKED = {13: "16U4_ALIGN8B", 14: "16U4_ALIGN16B", 15: "16U6_ALIGN16B"}  # CUtensorMapDataType; not before sm_100
GAP_CHUNK = 128
"""Elements: extents, boxes and coordinates of a packed type with gaps are multiples of it (CUDA driver API)."""

INTERLEAVE_NONE, INTERLEAVE_16B, INTERLEAVE_32B = 0, 1, 2
SWIZZLE_SPANS = (16, 32, 64, 128)  # bytes, by the swizzle field
SWIZZLE_PERIODS = (16, 256, 512, 1024)  # bytes after which the pattern repeats, by the swizzle field
# CUtensorMapSwizzle -> (swizzle, swizzle_atomicity); the atomicity is PTX's .swizzle_atomicity (tensormap.replace).
_DRIVER_SWIZZLES = {0: (0, 0), 1: (1, 0), 2: (2, 0), 3: (3, 0), 4: (3, 1), 5: (3, 2), 6: (3, 3)}
_ATOMICITIES = ("16B", "32B", "32B_FLIP_8B", "64B")

MAX_ADDRESS_BITS = 57  # the driver refuses 2**57, takes 2**56
# The driver took boxes of 211,200 bytes and refused 262,144; in between, what a CTA can have at most is assumed.
MAX_BOX_BYTES = 232448


@dataclass(frozen=True)
class TensorMap:
    """A tiled tensor map, in plain units.

    address: of element 0, in bytes. dtype: a name of ELEMENT_TYPES. dims, box, element_strides: `rank` numbers of
    elements, dimension 0 (contiguous) first. strides: `rank - 1` byte strides, of dimensions 1 and up.
    interleave: 0 none, 1 16 bytes, 2 32 bytes. swizzle: 0 none, 1 32B, 2 64B, 3 128B. swizzle_atomicity: 0 16B,
    1 32B, 2 32B with 8-byte flip, 3 64B. l2_promotion: 0 none, 1 64B, 2 128B, 3 256B. oob_nan: elements outside
    the tensor read as NaN instead of zero.
    """

    address: int
    dtype: str
    rank: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    interleave: int = 0
    swizzle: int = 0
    swizzle_atomicity: int = 0
    l2_promotion: int = 0
    oob_nan: bool = False

    @property
    def element_size(self) -> int:
        """Bytes an element; 0 for packed types."""
        return _BY_NAME[self.dtype].size

    @property
    def box_shape(self) -> tuple[int, ...]:
        """Elements that one copy moves along each dimension: ceil(box / element stride), as PTX defines it.

        Without interleave, dimension 0 has no traversal stride (CUDA driver API): its element stride is ignored.
        """
        steps = list(self.element_strides)
        if self.interleave == INTERLEAVE_NONE:
            steps[0] = 1
        return tuple(-(-b // e) for b, e in zip(self.box, steps))

    @property
    def box_bytes(self) -> int:
        """Bytes that one copy adds to an mbarrier's transaction count.

        Elements out of bounds count, gaps do not: so CUTLASS's kernels expect it (TmaTransactionBytes).
        """
        return prod(self.box_shape) * _BY_NAME[self.dtype].bits // 8


def decode(data: bytes | bytearray | memoryview) -> TensorMap:
    """The map in `data` (128 bytes, little endian).

    Raises Unsupported for im2col maps, UsageError where the bytes are no tensor map.
    """
    if len(data) != BYTES:
        raise UsageError(f"a tensor map has {BYTES} bytes, not {len(data)}")
    words = struct.unpack("<16Q", bytes(data))
    raw = {f.name: f.get(words) for f in DESCRIPTOR_FIELDS}
    if raw["im2col"]:
        raise Unsupported("tensor map: im2col mode (cuTensorMapEncodeIm2col) is not modelled, only tiled maps are")
    rank = raw["rank"] + 1
    kind = _BY_CODE.get((raw["type"], raw["tf32"]))
    _check_bits(words, rank)
    if kind is None or raw["interleave"] > INTERLEAVE_32B:
        raise UsageError(f"not a tensor map: type code {raw['type']}, interleave {raw['interleave']}")
    each = range(rank)
    return TensorMap(
        address=raw["address"],
        dtype=kind.name,
        rank=rank,
        dims=tuple(raw[f"dim{i}"] + 1 for i in each),
        strides=tuple((raw[f"stride{i}"] | raw[f"stride{i}_high"] << 32) * 16 for i in range(1, rank)),
        box=tuple(raw[f"box{i}"] + 1 for i in each),
        element_strides=tuple(raw[f"element_stride{i}"] + 1 for i in each),
        interleave=raw["interleave"],
        swizzle=raw["swizzle"],
        swizzle_atomicity=raw["swizzle_atomicity"],
        l2_promotion=raw["l2_promotion"],
        oob_nan=bool(raw["oob_nan"]),
    )


def _known_bits(rank: int) -> list[int]:
    """For each of words 0 to 7, the bits that a map of this rank may have set."""
    beyond = {f"{kind}{i}" for i in range(rank, MAX_RANK) for kind in ("dim", "box", "element_stride")}
    beyond |= {f"stride{i}{part}" for i in range(rank, MAX_RANK) for part in ("", "_high")}
    masks = [TOLERATED_BITS.get(w, 0) for w in range(8)]
    for f in DESCRIPTOR_FIELDS:
        if f.name not in beyond:
            masks[f.word] |= ((1 << f.width) - 1) << f.low
    return masks


_KNOWN_BITS = {rank: _known_bits(rank) for rank in range(1, MAX_RANK + 1)}


def _check_bits(words: Sequence[int], rank: int) -> None:
    """Refuse bits that no map of this rank has: they mean that these are other bytes, or a mode nobody has seen."""
    if rank > MAX_RANK:
        raise UsageError(f"not a tensor map: rank {rank} (1 to {MAX_RANK}); was the right parameter's address taken?")
    for w, (word, known) in enumerate(zip(words, _KNOWN_BITS[rank])):
        if word & ~known:
            raise UsageError(f"not a tiled tensor map: unknown bits {word & ~known:#x} in word {w} (rank {rank})")


def encode(tensor_map: TensorMap) -> bytes:
    """The 128 bytes the driver writes for this map. No rule is checked but that every number fits its field."""
    kind = _element_type(tensor_map.dtype)
    raw = {
        "address": tensor_map.address,
        "rank": tensor_map.rank - 1,
        "type": kind.code,
        "tf32": kind.tf32,
        "interleave": tensor_map.interleave,
        "swizzle": tensor_map.swizzle,
        "swizzle_atomicity": tensor_map.swizzle_atomicity,
        "l2_promotion": tensor_map.l2_promotion,
        "oob_nan": int(tensor_map.oob_nan),
    }
    for i in range(tensor_map.rank):
        raw[f"dim{i}"] = tensor_map.dims[i] - 1
        raw[f"box{i}"] = tensor_map.box[i] - 1
        raw[f"element_stride{i}"] = tensor_map.element_strides[i] - 1
    for i, stride in enumerate(tensor_map.strides, 1):
        raw[f"stride{i}"] = stride // 16 & 0xFFFFFFFF
        raw[f"stride{i}_high"] = stride // 16 >> 32
    words = [0] * WORDS
    for name, value in raw.items():
        if not 0 <= value < 1 << FIELDS[name].width:
            raise UsageError(f"tensor map: {name} does not fit its {FIELDS[name].width}-bit field")
        FIELDS[name].put(words, value)
    # The driver's own count takes the floor, and counts dimension 0's element stride, though the copy does neither.
    words[8] = prod(b // e for b, e in zip(tensor_map.box, tensor_map.element_strides)) * kind.shared_bits // 8
    words[9] = SWIZZLE_PERIODS[tensor_map.swizzle]
    return struct.pack("<16Q", *words)


def _element_type(name: str) -> ElementType:
    try:
        return _BY_NAME[name]
    except KeyError:
        raise UsageError(f"tensor map: no element type {name!r}; one of {', '.join(_BY_NAME)}") from None


def broken_rules(tensor_map: TensorMap, compute_capability: tuple[int, int] = (9, 0)) -> Iterator[str]:
    """Why the driver would refuse this map on a device of `compute_capability`, one sentence a rule.

    The rules are those of cuTensorMapEncodeTiled's documentation where the H200's driver keeps them. It does not hold
    callers to three of them: strides may be smaller than the extent they step over, 32-byte interleave may go with any
    swizzle, and its inner box may be a multiple of 16 bytes.
    """
    kind = _element_type(tensor_map.dtype)
    lengths = {
        "dims": (tensor_map.dims, 0),
        "strides": (tensor_map.strides, -1),
        "box": (tensor_map.box, 0),
        "element_strides": (tensor_map.element_strides, 0),
    }
    if compute_capability < (9, 0):
        yield "tensor maps need compute capability 9.0 or higher"
    if not 1 <= tensor_map.rank <= MAX_RANK:
        yield f"rank {tensor_map.rank} must be 1 to {MAX_RANK}"
        return
    for name, (values, extra) in lengths.items():
        if len(values) != tensor_map.rank + extra:
            yield f"{name} must have {tensor_map.rank + extra} entries for rank {tensor_map.rank}, has {len(values)}"
            return
    yield from _broken_modes(tensor_map, kind, compute_capability)
    yield from _broken_tensor(tensor_map, kind)
    yield from _broken_box(tensor_map, kind)


def _broken_modes(m: TensorMap, kind: ElementType, compute_capability: tuple[int, int]) -> Iterator[str]:
    for name, top in (("interleave", 2), ("swizzle", 3), ("swizzle_atomicity", 3), ("l2_promotion", 3)):
        if not 0 <= getattr(m, name) <= top:
            yield f"{name} {getattr(m, name)} must be 0 to {top}"
            return
    if m.interleave != INTERLEAVE_NONE and m.rank < 3:
        yield f"interleave needs rank 3 or more, not {m.rank}"
    if m.swizzle_atomicity and m.swizzle != 3:
        yield f"a swizzle atom of {_ATOMICITIES[m.swizzle_atomicity]} needs the 128B swizzle"
    if m.swizzle_atomicity and compute_capability < (10, 0):
        yield f"a swizzle atom of {_ATOMICITIES[m.swizzle_atomicity]} needs compute capability 10.0 or higher"
    if not kind.size and compute_capability < (10, 0):
        yield f"{m.dtype} needs compute capability 10.0 or higher"
    if m.oob_nan and not kind.floating:
        yield f"NaN fill needs a floating-point element type, not {m.dtype}"


def _broken_tensor(m: TensorMap, kind: ElementType) -> Iterator[str]:
    gaps = kind.bits != kind.shared_bits
    align = 32 if m.interleave == INTERLEAVE_32B or gaps else 16
    chunk = GAP_CHUNK if gaps else 1 if kind.size else 2
    if m.dims[0] % chunk:
        yield f"dims[0] = {m.dims[0]} must be a multiple of {chunk} for {m.dtype}"
    if gaps and m.box[0] != GAP_CHUNK:
        yield f"box[0] = {m.box[0]} must be {GAP_CHUNK} for {m.dtype}"
    if m.address % align:
        yield f"address {m.address:#x} must be a multiple of {align}"
    if not 0 <= m.address < 1 << MAX_ADDRESS_BITS:
        yield f"address {m.address:#x} must be below 2**{MAX_ADDRESS_BITS}"
    for i, dim in enumerate(m.dims):
        if not 1 <= dim <= 1 << 32:
            yield f"dims[{i}] = {dim} must be 1 to 2**32"
    for i, stride in enumerate(m.strides):
        if stride % align:
            yield f"strides[{i}] = {stride} bytes must be a multiple of {align}"
        if not 0 <= stride < 1 << 40:
            yield f"strides[{i}] = {stride} bytes must be below 2**40"


def _broken_box(m: TensorMap, kind: ElementType) -> Iterator[str]:
    for i, (box, step) in enumerate(zip(m.box, m.element_strides)):
        if not 1 <= box <= 256:
            yield f"box[{i}] = {box} must be 1 to 256"
            return
        if not 1 <= step <= 8:
            yield f"element_strides[{i}] = {step} must be 1 to 8"
            return
    inner = m.box[0] * kind.shared_bits // 8
    if inner % 16:
        yield f"box[0] = {m.box[0]} {m.dtype} = {inner} bytes must be a multiple of 16"
    span = SWIZZLE_SPANS[m.swizzle]
    if m.interleave == INTERLEAVE_NONE and m.swizzle and inner > span:
        yield f"box[0] = {m.box[0]} {m.dtype} = {inner} bytes exceeds the {span}-byte swizzle span"
    total = prod(b // e for b, e in zip(m.box, m.element_strides)) * kind.shared_bits // 8
    if total > MAX_BOX_BYTES:
        yield f"box {m.box} of {m.dtype} = {total} bytes exceeds shared memory ({MAX_BOX_BYTES})"


def validate(tensor_map: TensorMap, compute_capability: tuple[int, int] = (9, 0)) -> TensorMap:
    """The map itself, or UsageError naming the first rule that the driver would refuse it for."""
    for rule in broken_rules(tensor_map, compute_capability):
        raise UsageError(f"tensor map refused: {rule}")
    return tensor_map


def from_driver_call(
    data_type: int,
    address: int,
    dims: Sequence[int],
    strides: Sequence[int] | None,
    box: Sequence[int],
    element_strides: Sequence[int],
    interleave: int = 0,
    swizzle: int = 0,
    l2_promotion: int = 0,
    oob_fill: int = 0,
    *,
    compute_capability: tuple[int, int] = (9, 0),
) -> TensorMap:
    """The map that cuTensorMapEncodeTiled would make of these arguments (enums as integers, rank = len(dims)).

    strides=None stands for a null pointer, which the driver refuses even at rank 1, where it reads no stride. Raises
    UsageError where the driver returns CUDA_ERROR_INVALID_VALUE.
    """
    kind = _BY_DRIVER.get(data_type)
    if data_type in _PACKED and compute_capability < (10, 0):
        why = f"{_PACKED[data_type]} needs compute capability 10.0"
        raise UsageError(f"tensor map refused: tensorDataType {data_type} must be 0 to 12 ({why})")
    if kind is None:
        raise UsageError(f"tensor map refused: tensorDataType {data_type} must be 0 to 15")
    if strides is None:
        raise UsageError("tensor map refused: globalStrides is a null pointer; pass an array, also at rank 1")
    if swizzle not in _DRIVER_SWIZZLES:
        raise UsageError(f"tensor map refused: swizzle {swizzle} must be 0 to {max(_DRIVER_SWIZZLES)}")
    if oob_fill not in (0, 1):
        raise UsageError(f"tensor map refused: oobFill {oob_fill} must be 0 or 1")
    span, atom = _DRIVER_SWIZZLES[swizzle]
    made = TensorMap(
        address=address,
        dtype=kind.name,
        rank=len(dims),
        dims=tuple(dims),
        strides=tuple(strides),
        box=tuple(box),
        element_strides=tuple(element_strides),
        interleave=interleave,
        swizzle=span,
        swizzle_atomicity=atom,
        l2_promotion=l2_promotion,
        oob_nan=bool(oob_fill),
    )
    return validate(made, compute_capability)


def describe(tensor_map: TensorMap) -> dict[str, Any]:
    """The map as a JSON-ready dict, with modes by name."""
    m = tensor_map
    return {
        "address": m.address,
        "dtype": m.dtype,
        "dims": list(m.dims),
        "strides": list(m.strides),
        "box": list(m.box),
        "element_strides": list(m.element_strides),
        "interleave": ("none", "16B", "32B")[m.interleave],
        "swizzle": ("none", "32B", "64B", "128B")[m.swizzle],
        "swizzle_atomicity": _ATOMICITIES[m.swizzle_atomicity],
        "l2_promotion": ("none", "64B", "128B", "256B")[m.l2_promotion],
        "oob_fill": "nan" if m.oob_nan else "zero",
    }
