"""What costs time and is not wrong: bank conflicts in shared memory, accesses to global memory that are not coalesced.

Counted by instruction: accesses, what they took and the least that their bytes need, in wavefronts of 128 bytes over 32
banks (shared) or sectors of 32 bytes (global), as the CUDA programming guide counts them.
"""

from __future__ import annotations

from tensorladder.vgpu.check import layout as X
from tensorladder.vgpu.check.shadow import shared_place
from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.machine.native import helper
from tensorladder.vgpu.machine.raw import ld64, popcount, st64, trailing_zeros

_BANKS = 32


@helper
def wavefronts(addresses, lanes, size):
    """Wavefronts of some lanes' accesses: the most different words that fall into one bank."""
    most = 0
    for bank in range(_BANKS):
        count = 0
        left = lanes
        while left != 0:
            lane = trailing_zeros(left)
            left &= left - 1
            for k in range(0, size, 4):
                word = (ld64(addresses + 8 * lane) + k) >> 2
                if word & (_BANKS - 1) != bank:
                    continue
                known = False
                before = lanes & ((1 << lane) - 1)
                while before != 0 and not known:
                    other = trailing_zeros(before)
                    before &= before - 1
                    at = ld64(addresses + 8 * other)
                    known = at >> 2 <= word and word <= (at + size - 1) >> 2
                count += 0 if known else 1
        most = max(most, count)
    return max(most, 1)


@helper
def sectors(addresses, lanes, size):
    """Sectors of 32 bytes that some lanes' accesses touch."""
    count = 0
    left = lanes
    while left != 0:
        lane = trailing_zeros(left)
        left &= left - 1
        sector = ld64(addresses + 8 * lane) >> 5
        known = False
        before = lanes & ((1 << lane) - 1)
        while before != 0 and not known:
            known = ld64(addresses + 8 * trailing_zeros(before)) >> 5 == sector
            before &= before - 1
        count += 0 if known else 1 + (size - 1) // 32
    return count


@helper
def distinct_bytes(addresses, lanes, size):
    """Bytes that the lanes ask for, those that several ask for once."""
    count = 0
    left = lanes
    while left != 0:
        lane = trailing_zeros(left)
        left &= left - 1
        known = False
        before = lanes & ((1 << lane) - 1)
        while before != 0 and not known:
            known = ld64(addresses + 8 * trailing_zeros(before)) == ld64(addresses + 8 * lane)
            before &= before - 1
        count += 0 if known else size
    return count


@helper
def count_cost(x, addresses, lanes, size, iid):
    """Add an access to its instruction's row (accesses, units taken, least units)."""
    at = ld64(x + X.X_ADVICE) + 24 * (iid & (X.ADVICE_ROWS - 1))
    asked = distinct_bytes(addresses, lanes, size)
    if shared_place(x, ld64(addresses + 8 * trailing_zeros(lanes))) >= 0:
        together = 32 * 4 // max(size, 4)  # lanes that one pass serves
        taken = 0
        for first in range(0, L.LANES, together):
            group = lanes & (((1 << together) - 1) << first)
            taken += wavefronts(addresses, group, size) if group != 0 else 0
        least = max((asked + 127) // 128, (popcount(lanes) * max(size, 4) + 127) // 128 if asked > 128 else 1)
    else:
        taken = sectors(addresses, lanes, size)
        least = (asked + 31) // 32
    st64(at, ld64(at) + 1)
    st64(at + 8, ld64(at + 8) + taken)
    st64(at + 16, ld64(at + 16) + least)
