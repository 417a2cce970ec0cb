"""Operands of WGMMA and tcgen05.mma: tiles in shared memory that matrix descriptors name, unpacked to 32-bit elements.

Canonical layouts (PTX ISA, "Shared Memory Matrix Layout" and "Strides"; CUTLASS, mma_sm100_desc.hpp): 16-byte chunks
that lie along K (K-major) or along M or N (MN-major), placed by the start address and two byte offsets, then the
swizzle's exclusive-or on bits of the shared-memory address.
"""

from __future__ import annotations

from collections.abc import Callable

from numba import types
from numba.extending import intrinsic

from tensorladder.vgpu.machine.elements import ELEMENTS, Writer, extern, mask, small_float, widen
from tensorladder.vgpu.machine.layout import SHARED_RESERVED
from tensorladder.vgpu.machine.native import helper

SW_NONE, SW_32, SW_64, SW_128, SW_128_ATOM32 = range(5)
#: element types: F16 to TF32 and integers as they are; narrow floats one a byte (E4M3, E5M2) or, below a byte, 16 in
#: the low bytes of a 16-byte chunk (E2M3, E3M2, E2M1); MXF4 is e2m1 packed two a byte
F16, BF16, TF32, E4M3, E5M2, E2M3, E3M2, E2M1, S8, U8, MXF4 = range(11)


def _converter(name: str):
    @intrinsic
    def convert(typing, dst, src):
        """16 bytes at src to 32-bit elements at dst."""
        return types.void(types.int64, types.int64), extern(name, 2)

    return convert


_NAMES = ("f16", "bf16", "tf32", "e4m3", "e5m2", "e2m3", "e3m2", "e2m1", "s8", "u8", "mxf4")
_f16, _bf16, _tf32, _e4m3, _e5m2, _e2m3, _e3m2, _e2m1, _s8, _u8, _mxf4 = (_converter(f"tl_unpack_{n}") for n in _NAMES)


@helper
def unpack_chunk(ty, dst, src):
    """The elements of a 16-byte chunk as float32 (integers: int32), one after the other at dst."""
    if ty == F16:
        _f16(dst, src)
    elif ty == BF16:
        _bf16(dst, src)
    elif ty == E4M3:
        _e4m3(dst, src)
    elif ty == E5M2:
        _e5m2(dst, src)
    elif ty == TF32:
        _tf32(dst, src)
    elif ty == S8:
        _s8(dst, src)
    elif ty == U8:
        _u8(dst, src)
    elif ty == MXF4:
        _mxf4(dst, src)
    elif ty == E2M3:
        _e2m3(dst, src)
    elif ty == E3M2:
        _e3m2(dst, src)
    else:
        _e2m1(dst, src)


@helper
def chunk_elements(ty):
    """Elements in a 16-byte chunk."""
    if ty in (F16, BF16):
        return 8
    if ty == TF32:
        return 4
    return 32 if ty == MXF4 else 16


@helper
def swizzled(address, swizzle, phase):
    """Where the 16-byte chunk at `address` lies; `phase` is what the pattern's rows are counted from, in bytes."""
    row = address - phase
    if swizzle == SW_128:
        return address ^ ((row >> 3) & 0x70)
    if swizzle == SW_64:
        return address ^ ((row >> 3) & 0x30)
    if swizzle == SW_32:
        return address ^ ((row >> 3) & 0x10)
    if swizzle == SW_128_ATOM32:
        return address ^ ((row >> 2) & 0x60)
    return address


@helper
def span_bytes(swizzle):
    """Width of a swizzled row."""
    if swizzle == SW_32:
        return 32
    return 64 if swizzle == SW_64 else 128


@helper
def pitch_of(rows, k, mn_major):
    """Elements from one line to the next of an unpacked tile: lines are of k (K-major) or of rows, whole chunks."""
    return (rows + 31) // 32 * 32 if mn_major != 0 else k


@helper
def load_tile(shared, size, start, lbo, sbo, swizzle, mn_major, rows, ty, k, dst, base_offset):
    """Unpack the `rows` x `k` tile of a descriptor to 32-bit elements at dst: False when it leaves the shared memory.

    shared, size: a CTA's window, of which the first SHARED_RESERVED bytes are the system's; start, lbo, sbo: bytes,
    from the descriptor; base_offset: its field (PTX ISA, "Matrix Descriptor Format": the pattern starts that many
    128-byte rows away from its alignment). dst has a line of k elements a row (K-major), or a line of rows a k
    (MN-major) with `pitch_of` elements from line to line.
    """
    per = chunk_elements(ty)
    phase = base_offset << 7
    if mn_major == 0:
        width = span_bytes(swizzle)
        for r in range(rows):
            for c in range(k // per):
                if swizzle == SW_NONE:
                    at = start + (r >> 3) * sbo + (r & 7) * 16 + c * lbo
                else:
                    at = swizzled(start + (r >> 3) * sbo + (r & 7) * width + c * 16, swizzle, phase)
                if at < SHARED_RESERVED or at + 16 > size:
                    return False
                unpack_chunk(ty, dst + 4 * (r * k + c * per), shared + at)
        return True
    pitch = 4 * pitch_of(rows, k, mn_major)
    chunks = (rows + per - 1) // per
    width = span_bytes(swizzle)
    group = 4 if swizzle == SW_128_ATOM32 else 8  # values of k in one repetition of the pattern
    for p in range(k):
        for c in range(chunks):
            if swizzle == SW_NONE:
                at = start + c * sbo + (p & 7) * 16 + (p >> 3) * lbo
            else:
                inner = c * 16 % width
                outer = c * 16 // width
                at = start + inner + outer * lbo + (p % group) * width + (p // group) * sbo
                at = swizzled(at, swizzle, phase)
            if at < SHARED_RESERVED or at + 16 > size:
                return False
            unpack_chunk(ty, dst + p * pitch + 4 * c * per, shared + at)
    return True


# ---------------------------------------------------------------- IR of the conversions
def _six(w: Writer, exponent: int, mantissa: int) -> str:
    """16 six-bit floats in the first 12 bytes of a chunk."""
    chunk = w.op(f"zext i96 {w.op('load i96, ptr %s, align 1')} to i128")
    value = "poison"
    for k in range(16):
        one = w.op(f"trunc i128 {w.op(f'lshr i128 {chunk}, {6 * k}')} to i32")
        value = w.op(f"insertelement <16 x i32> {value}, i32 {one}, i64 {k}")
    bits = w.op(f"and <16 x i32> {value}, splat (i32 63)")
    return small_float(w, exponent, mantissa, bits, 16)


def _four(w: Writer, n: int) -> str:
    """`n` four-bit floats, two a byte, the low half first."""
    half = n // 2
    low = w.op(f"load <{half} x i8>, ptr %s, align 1")
    high = w.op(f"lshr <{half} x i8> {low}, splat (i8 4)")
    order = mask([k // 2 + half * (k % 2) for k in range(n)])
    both = w.op(f"shufflevector <{half} x i8> {low}, <{half} x i8> {high}, {order}")
    bits = w.op(f"zext <{n} x i8> {w.op(f'and <{n} x i8> {both}, splat (i8 15)')} to <{n} x i32>")
    return small_float(w, 2, 1, bits, n)


def _whole(w: Writer, ty: str) -> str:
    """Elements of whole bytes."""
    bits = ELEMENTS[ty][1]
    n = 128 // bits
    value = widen(w, ty, n, w.op(f"load <{n} x i{bits}>, ptr %s, align 1"), "float")
    if ty != "e4m3":
        return value
    number = w.op(f"fcmp ord <{n} x float> {value}, {value}")  # one NaN for both
    return w.op(f"select <{n} x i1> {number}, <{n} x float> {value}, <{n} x float> splat (float 0x7FF8000000000000)")


_PACKED: dict[str, tuple[int, Callable[[Writer], str]]] = {
    "e2m3": (16, lambda w: _six(w, 2, 3)),
    "e3m2": (16, lambda w: _six(w, 3, 2)),
    "e2m1": (16, lambda w: _four(w, 16)),
    "mxf4": (32, lambda w: _four(w, 32)),
}  # type -> elements of a chunk, its conversion


def _conversion(name: str) -> str:
    w = Writer()
    if name in _PACKED:
        n, convert = _PACKED[name]
        value = convert(w)
    else:
        n, value = 128 // ELEMENTS[name][1], _whole(w, name)
    ty = "i32" if name in ("s8", "u8") else "float"
    w.line(f"store <{n} x {ty}> {value}, ptr %d, align 4")
    body = "\n".join(w.lines)
    return (
        f"define void @tl_unpack_{name}(i64 %di, i64 %si) {{\n  %d = inttoptr i64 %di to ptr\n"
        f"  %s = inttoptr i64 %si to ptr\n{body}\n  ret void\n}}"
    )


def text() -> str:
    """LLVM IR of the conversions: void tl_unpack_<type>(i64 dst, i64 src)."""
    return "\n".join(_conversion(name) for name in _NAMES)
