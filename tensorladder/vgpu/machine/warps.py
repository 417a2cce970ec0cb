"""What lanes of one warp do together, where it takes more than a vector operation: shfl, match, redux.

Operands stand in the warp's scratch, 256 bytes each: `args` is the first, results follow the last operand.
"""

from __future__ import annotations

from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.machine.native import export, helper
from tensorladder.vgpu.machine.raw import ld32, ld64, lds32, st32, trailing_zeros

_CANONICAL_NAN = 0x7FFFFFFF


@export
def tl_shfl(w, mode, args, lanes):
    """shfl.sync (0 up, 1 down, 2 bfly, 3 idx): args value, b, c -> result; gives the bits of the lanes in range."""
    bits = 0
    for lane in range(L.LANES):
        b = ld32(args + 256 + 4 * lane) & 31
        c = ld32(args + 512 + 4 * lane)
        segment = (c >> 8) & 31
        low = lane & segment
        limit = low | (c & 31 & ~segment)
        j = low | (b & ~segment)
        if mode == 0:
            j = lane - b
        elif mode == 1:
            j = lane + b
        elif mode == 2:
            j = lane ^ b
        ok = j >= limit if mode == 0 else j <= limit
        if ok:
            bits |= 1 << lane
        else:
            j = lane
        value = ld32(args + 4 * j) if (lanes >> j) & 1 else 0xFFFFFFFF
        st32(args + 768 + 4 * lane, value)
    return bits


@export
def tl_match(w, every, args, lanes):
    """match.sync: args members (i32), values (i64) -> mask of the equal ones; gives the lanes where all are equal."""
    bits = 0
    for lane in range(L.LANES):
        if (lanes >> lane) & 1 == 0:
            continue
        members = ld32(args + 4 * lane)
        value = ld64(args + 256 + 8 * lane)
        same = 0
        for other in range(L.LANES):
            if (members >> other) & 1 and ld64(args + 256 + 8 * other) == value:
                same |= 1 << other
        if same == members:
            bits |= 1 << lane
        elif every != 0:
            same = 0
        st32(args + 512 + 4 * lane, same)
    return bits


@helper
def _order(bits):
    """A float's bits to an integer that compares like it, with -0 below +0."""
    signed = bits - 0x100000000 if bits & 0x80000000 else bits
    return signed ^ 0x7FFFFFFF if signed < 0 else signed


@helper
def _float_extreme(args, members, largest, nan):
    """Bits of the smallest or largest of the members' floats: NaN if there is one (`nan`), or nothing else."""
    best = _CANONICAL_NAN
    found = False
    for lane in range(L.LANES):
        if (members >> lane) & 1 == 0:
            continue
        bits = ld32(args + 256 + 4 * lane)
        if bits & 0x7FFFFFFF > 0x7F800000:
            if nan:
                return _CANONICAL_NAN
            continue
        if not found or (_order(bits) > _order(best) if largest else _order(bits) < _order(best)):
            best = bits
            found = True
    return best


@helper
def _reduce(op, args, members):
    first = trailing_zeros(members)
    signed = op == 3 or op == 4
    total = lds32(args + 256 + 4 * first) if signed else ld32(args + 256 + 4 * first)
    for lane in range(first + 1, L.LANES):
        if (members >> lane) & 1 == 0:
            continue
        value = lds32(args + 256 + 4 * lane) if signed else ld32(args + 256 + 4 * lane)
        if op == 0:
            total += value
        elif op == 1 or op == 3:
            total = min(total, value)
        elif op == 2 or op == 4:
            total = max(total, value)
        elif op == 5:
            total &= value
        elif op == 6:
            total |= value
        else:
            total ^= value
    return total


@export
def tl_redux(w, op, args, lanes):
    """redux.sync (codegen.warp numbers the operations): args members, values -> the reduction over a lane's members."""
    last = 0
    total = 0
    for lane in range(L.LANES):
        if (lanes >> lane) & 1 == 0:
            continue
        members = ld32(args + 4 * lane)
        if members != last:
            last = members
            if op & 15 >= 8:
                total = _float_extreme(args, members, op & 15 == 9, op >= 16)
            else:
                total = _reduce(op, args, members)
        st32(args + 512 + 4 * lane, total)
    return 0
