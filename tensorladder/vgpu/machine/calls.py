"""What calls of system functions do: vprintf, __assertfail, and the dynamic stack of alloca.

Records of printf are laid out as `printf.py` says. The argument block of vprintf is a C struct of the promoted
arguments: 4 or 8 bytes each, aligned to their size.
"""

from __future__ import annotations

from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.machine.lanes import fail
from tensorladder.vgpu.machine.memory import SPACE_GENERIC, resolve
from tensorladder.vgpu.machine.native import export, helper
from tensorladder.vgpu.machine.raw import fetch_add, ld8, ld32, ld64, st8, st32, st64

_HEADER = 16
_LONGEST = 4096  # of a string, bytes
_PERCENT, _STAR, _NUL, _S = ord("%"), ord("*"), 0, ord("s")
#: what a conversion takes: nothing, 4 or 8 bytes as its length modifiers say, always 8, a string; MORE: it goes on
NONE, INTEGER, WIDE, STRING, MORE = range(5)


def _bits(characters: str) -> int:
    """Characters of one half of ASCII as a bit mask."""
    return sum(1 << (ord(c) & 63) for c in characters)


_INTEGERS, _WIDE = _bits("diouxXc"), _bits("eEfFgGaApn")
_MORE_LOW, _MORE_HIGH, _LONG = _bits(" #*+-.0123456789"), _bits("hljzt"), _bits("ljzt")


# ---------------------------------------------------------------- printf
@helper
def conversion(c):
    """Class of a conversion character; MORE for what may stand before it (flag, width, precision, length)."""
    if c < 64:
        return MORE if (_MORE_LOW >> c) & 1 else NONE
    if (_INTEGERS >> (c - 64)) & 1:
        return INTEGER
    if (_WIDE >> (c - 64)) & 1:
        return WIDE
    if (_MORE_HIGH >> (c - 64)) & 1:
        return MORE
    return STRING if c == _S else NONE


@helper
def string_length(w, address, iid, lane):
    """Bytes of the string at a generic address, without its end; -1 with the error recorded."""
    n = 0
    while n < _LONGEST:
        host = resolve(w, SPACE_GENERIC, address + n, 1, 0, iid, lane)
        if host == 0:
            return -1
        if ld8(host) == _NUL:
            return n
        n += 1
    return n


@helper
def put_word(out, value):
    """Write a word where there is room (`out` not 0)."""
    if out != 0:
        st64(out, value)


@helper
def put_string(w, out, address, length, iid, lane):
    """Write a string; gives its size in the record."""
    padded = (length + 7) & ~7
    if out != 0:
        st64(out, length)
        for n in range(length):
            st8(out + 8 + n, ld8(resolve(w, SPACE_GENERIC, address + n, 1, 0, iid, lane)))
    return 8 + padded


@helper
def put_record(w, out, text, block, iid, lane):
    """Write a record to `out`, or only measure it (0): bytes, negative with an error recorded."""
    length = string_length(w, text, iid, lane)
    if length < 0:
        return -1
    used = _HEADER + put_string(w, out + _HEADER if out != 0 else 0, text, length, iid, lane)
    offset = 0
    n = 0
    while n < length:
        c = ld8(resolve(w, SPACE_GENERIC, text + n, 1, 0, iid, lane))
        n += 1
        if c != _PERCENT:
            continue
        longs = 0
        kind = MORE
        while n < length and kind == MORE:
            c = ld8(resolve(w, SPACE_GENERIC, text + n, 1, 0, iid, lane))
            n += 1
            kind = conversion(c)
            if c > 64 and (_LONG >> (c - 64)) & 1:
                longs += 1
            if c == _STAR:
                host = resolve(w, SPACE_GENERIC, block + offset, 4, 0, iid, lane)
                if host == 0:
                    return -1
                put_word(out + used if out != 0 else 0, ld32(host))
                offset += 4
                used += 8
        if kind in (NONE, MORE):
            continue
        size = 4 if kind == INTEGER and longs == 0 else 8
        offset = (offset + size - 1) & ~(size - 1)
        host = resolve(w, SPACE_GENERIC, block + offset, size, 0, iid, lane)
        if host == 0:
            return -1
        offset += size
        value = ld32(host) if size == 4 else ld64(host)
        place = out + used if out != 0 else 0
        if kind == STRING:
            count = string_length(w, value, iid, lane)
            if count < 0:
                return -1
            used += put_string(w, place, value, count, iid, lane)
        else:
            put_word(place, value)
            used += 8
    return used


@helper
def order_key(w):
    """Clusters that run side by side print in their order; under one scheduler time decides."""
    launch = ld64(w + L.W_LAUNCH)
    size = ld64(launch + L.L_CLUSTER) * ld64(launch + L.L_CLUSTER + 8) * ld64(launch + L.L_CLUSTER + 16)
    if ld64(ld64(w + L.W_UNIT) + L.U_NCTAS) > size:
        return 0
    return (ld64(ld64(w + L.W_CTA) + L.C_LINEAR) - ld64(w + L.W_RANK)) // size


@export
def tl_printf(w, formats, blocks, result, lanes, iid):
    """vprintf of each lane in turn: formats and argument blocks are generic addresses (i64).

    result: place in local memory for what it returns, -1 for nowhere. A record that finds the buffer full is lost.
    """
    launch = ld64(w + L.W_LAUNCH)
    for lane in range(L.LANES):
        if (lanes >> lane) & 1 == 0:
            continue
        text = ld64(formats + 8 * lane)
        block = ld64(blocks + 8 * lane)
        size = put_record(w, 0, text, block, iid, lane)
        if size < 0:
            return 0
        place = fetch_add(launch + L.L_PRINT_USED, size)
        if place + size <= ld64(launch + L.L_PRINT_SIZE):
            out = ld64(launch + L.L_PRINT) + place
            put_record(w, out, text, block, iid, lane)
            st64(out, size)
            st64(out + 8, order_key(w))
        if result >= 0:
            st32(ld64(w + L.W_LOCAL) + lane * ld64(w + L.W_LOCAL_SIZE) + result, 0)
    return 0


@export
def tl_assert(w, messages, files, line, lanes, iid):
    """__assertfail: addresses of the texts (i64), line numbers (i32)."""
    for lane in range(L.LANES):
        if (lanes >> lane) & 1:
            text = resolve(w, SPACE_GENERIC, ld64(messages + 8 * lane), 1, 0, iid, lane)
            file = resolve(w, SPACE_GENERIC, ld64(files + 8 * lane), 1, 0, iid, lane)
            if text != 0 and file != 0:
                fail(w, L.ERR_ASSERT, iid, lane, text, file, ld32(line + 4 * lane))
            return 0
    return 0


# ---------------------------------------------------------------- dynamic stack
@helper
def stack_pointer(w, base, room, lane):
    """Host address of a lane's stack pointer, at `base`, set up on first use. The stack comes down from base + room."""
    host = ld64(w + L.W_LOCAL) + lane * ld64(w + L.W_LOCAL_SIZE) + base
    if ld64(host) == -1:
        st64(host, base + room)
    return host


@export
def tl_alloca(w, base, room, sizes, align, lanes, iid):
    """alloca: sizes (i64) become local addresses in place. base: the stack's place in local memory; room: its bytes."""
    for lane in range(L.LANES):
        if (lanes >> lane) & 1:
            host = stack_pointer(w, base, room, lane)
            size = ld64(sizes + 8 * lane)
            start = (ld64(host) - size) & ~(align - 1)
            if size < 0 or start < base + 16:
                fail(w, L.ERR_STACK, iid, lane, 0, size, room - 16)
                return 0
            st64(host, start)
            st64(sizes + 8 * lane, start)
    return 0


@export
def tl_stack_save(w, base, room, values, lanes):
    """stacksave: the stack pointers (i64)."""
    for lane in range(L.LANES):
        if (lanes >> lane) & 1:
            st64(values + 8 * lane, ld64(stack_pointer(w, base, room, lane)))
    return 0


@export
def tl_stack_restore(w, base, room, values, lanes):
    """stackrestore."""
    for lane in range(L.LANES):
        if (lanes >> lane) & 1:
            st64(stack_pointer(w, base, room, lane), ld64(values + 8 * lane))
    return 0
