"""Atomic operations on memory (PTX ISA, "atom", "red"): lanes one after the other, in ascending order.

Values are raw bits in int64. The arguments stand in the warp's scratch, a slot of 256 bytes each: the addresses, up to
eight elements of operand b, operand c, and the results. An element of 16 bytes takes two slots, low half first.
"""

from __future__ import annotations

from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.machine.memory import SPACE_GENERIC, SPACE_GLOBAL, resolve_all
from tensorladder.vgpu.machine.native import export, helper
from tensorladder.vgpu.machine.raw import (
    bits_f32,
    bits_f64,
    f16_to_f32,
    f32_bits,
    f32_to_f16,
    f64_bits,
    ld16,
    ld32,
    ld64,
    st16,
    st32,
    st64,
)

ADD, MIN, MAX, INC, DEC, AND, OR, XOR, EXCH, CAS = range(10)
BITS, SIGNED, F16, BF16, F16X2, BF16X2, F32, F64 = range(8)
#: slots of scratch
SLOT_B, SLOT_C, SLOT_RESULT = 1, 9, 17

#: cycles that a warp goes on for after an atomic operation that changed nothing
_PATIENCE = 512
_SIGN = -(1 << 63)
_NAN16, _NANBF16, _NAN32, _NAN64 = 0x7FFF, 0x7FFF, 0x7FFFFFFF, 0x7FFFFFFFFFFFFFFF


@helper
def load_bits(address, size):
    """`size` bytes (2, 4 or 8), zero-extended."""
    if size == 4:
        return ld32(address)
    if size == 8:
        return ld64(address)
    return ld16(address)


@helper
def store_bits(address, size, value):
    """The low `size` bytes of a value."""
    if size == 4:
        st32(address, value)
    elif size == 8:
        st64(address, value)
    else:
        st16(address, value)


@helper
def f32_of_bf16(bits):
    """bf16 bits as float32."""
    return bits_f32((bits & 0xFFFF) << 16)


@helper
def bf16_of_f32(value):
    """float32 to the nearest bf16 (ties to even), as bits; any NaN is the canonical one."""
    bits = f32_bits(value)
    if bits & 0x7FFFFFFF > 0x7F800000:
        return _NANBF16
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) & 0xFFFF


@helper
def flush(bits):
    """A float32's bits with a subnormal made zero, its sign kept."""
    return bits & 0x80000000 if bits & 0x7F800000 == 0 else bits


@helper
def pick_float(op, a, b, order_a, order_b, nan_a, nan_b, canonical):
    """Bits of the smaller (MIN) or larger of two floats; a NaN gives way to a number, -0 is below +0."""
    if nan_a and nan_b:
        return canonical
    if nan_a:
        return b
    if nan_b:
        return a
    if op == MIN:
        return a if order_a < order_b else b
    return a if order_a > order_b else b


@helper
def ordered(bits, sign):
    """Bits of a float whose sign bit is `sign` to an integer that compares as the float does."""
    return -(bits & (sign - 1)) - 1 if bits & sign else bits


@helper
def half(op, kind, old, b):
    """ADD, MIN or MAX of an f16 or bf16."""
    old &= 0xFFFF
    b &= 0xFFFF
    infinity = 0x7C00 if kind == F16 else 0x7F80
    if op != ADD:
        nan_a = old & 0x7FFF > infinity
        nan_b = b & 0x7FFF > infinity
        return pick_float(op, old, b, ordered(old, 0x8000), ordered(b, 0x8000), nan_a, nan_b, _NAN16)
    if kind == BF16:
        return bf16_of_f32(f32_of_bf16(old) + f32_of_bf16(b))
    total = f32_to_f16(f16_to_f32(old) + f16_to_f32(b))
    return _NAN16 if total & 0x7FFF > infinity else total


@helper
def single(op, old, b, ftz):
    """ADD, MIN or MAX of an f32; in global memory an addition flushes subnormals."""
    nan_a = old & 0x7FFFFFFF > 0x7F800000
    nan_b = b & 0x7FFFFFFF > 0x7F800000
    if op != ADD:
        return pick_float(op, old, b, ordered(old, 0x80000000), ordered(b, 0x80000000), nan_a, nan_b, _NAN32)
    if ftz:
        old = flush(old)
        b = flush(b)
    total = f32_bits(bits_f32(old) + bits_f32(b))
    if total & 0x7FFFFFFF > 0x7F800000:
        return _NAN32
    return flush(total) if ftz else total


@helper
def double(old, b):
    """ADD of an f64."""
    total = f64_bits(bits_f64(old) + bits_f64(b))
    return _NAN64 if total & 0x7FFFFFFFFFFFFFFF > 0x7FF0000000000000 else total


@helper
def integer(op, kind, size, old, b):
    """All integer operations but CAS."""
    if op == ADD:
        return old + b
    if op == AND:
        return old & b
    if op == OR:
        return old | b
    if op == XOR:
        return old ^ b
    if op == EXCH:
        return b
    x = old
    y = b
    if size == 8 and kind == BITS:  # order of unsigned words
        x ^= _SIGN
        y ^= _SIGN
    elif size == 4 and kind == SIGNED:
        x = (old ^ 0x80000000) - 0x80000000
        y = (b ^ 0x80000000) - 0x80000000
    if op == MIN:
        return old if x < y else b
    if op == MAX:
        return old if x > y else b
    if op == INC:
        return 0 if x >= y else old + 1
    return b if old == 0 or x > y else old - 1


@helper
def combine(op, kind, size, old, b, ftz):
    """What memory holds after the operation."""
    if kind <= SIGNED or op == EXCH:
        return integer(op, kind, size, old, b)
    if kind == F32:
        return single(op, old, b, ftz)
    if kind == F64:
        return double(old, b)
    if kind <= BF16:
        return half(op, kind, old, b)
    part = F16 if kind == F16X2 else BF16
    return half(op, part, old, b) | half(op, part, old >> 16, b >> 16) << 16


@helper
def wide(w, op, address, args, lane):
    """EXCH or CAS of 16 bytes: true if memory changed."""
    low = ld64(address)
    high = ld64(address + 8)
    at = args + 8 * lane
    st64(at + 256 * SLOT_RESULT, low)
    st64(at + 256 * SLOT_RESULT + 256, high)
    new_low = ld64(at + 256 * SLOT_B)
    new_high = ld64(at + 256 * SLOT_B + 256)
    if op == CAS:
        if low != new_low or high != new_high:
            return False
        new_low = ld64(at + 256 * SLOT_C)
        new_high = ld64(at + 256 * SLOT_C + 256)
    st64(address, new_low)
    st64(address + 8, new_high)
    return low != new_low or high != new_high


@helper
def narrow(op, kind, size, address, args, slot, lane, ftz):
    """One element of up to 8 bytes: true if memory changed."""
    old = load_bits(address, size)
    at = args + size * lane
    b = load_bits(at + 256 * (SLOT_B + slot), size)
    if op == CAS:
        new = load_bits(at + 256 * SLOT_C, size) if old == b else old
    else:
        new = combine(op, kind, size, old, b, ftz)
    store_bits(at + 256 * (SLOT_RESULT + slot), size, old)
    store_bits(address, size, new)
    return load_bits(address, size) != old


@helper
def lanes_in_window(addresses, mask, window):
    """Lanes whose generic address lies in a window."""
    lanes = 0
    for lane in range(L.LANES):
        if (mask >> lane) & 1 and ld64(addresses + 8 * lane) & L.WINDOW_MASK == window:
            lanes |= 1 << lane
    return lanes


@export
def tl_atom(w, op, kind, space, args, mask, size, count, iid):
    """atom and red of `count` elements of `size` bytes a lane; the old values become the results.

    Counts as progress only where memory changed, so that a lock that spins is seen to spin.
    """
    if mask == 0:
        return 0
    flushing = mask if space == SPACE_GLOBAL else 0
    if space == SPACE_GENERIC:
        flushing = lanes_in_window(args, mask, 0)
    if not resolve_all(w, space, args, mask, size * count, 1, iid):
        return 0
    changed = False
    for lane in range(L.LANES):
        if (mask >> lane) & 1 == 0:
            continue
        address = ld64(args + 8 * lane)
        if size == 16:
            changed |= wide(w, op, address, args, lane)
            continue
        for slot in range(count):
            changed |= narrow(op, kind, size, address + size * slot, args, slot, lane, (flushing >> lane) & 1)
    if changed:
        st64(w + L.W_PROGRESS, ld64(w + L.W_PROGRESS) + 1)
    else:  # it may be a lock: let others run soon
        st64(w + L.W_LIMIT, min(ld64(w + L.W_LIMIT), ld64(w + L.W_CLOCK) + _PATIENCE))
    return 1
