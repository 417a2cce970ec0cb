"""Where the addresses of arrays stand in the parameters of a launch: found by asking host code twice.

Host code gets stand-ins for its arrays at two made-up places. What differs between the two parameter blocks is where
addresses stand; a difference that is no array's address plus a constant is refused, so nothing is guessed.

Compilers leave the padding of parameters as it lay on the stack: bytes that no kernel reads become zero, so that the
same kernel always gives the same pack.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tensorladder.core import tensormap
from tensorladder.core.dlpack import View
from tensorladder.core.errors import Unsupported, UsageError
from tensorladder.core.program import Launch
from tensorladder.silicon.pack import Array, Template

# Arrays lie 64 GiB apart so that no offset leads from one to another, and below 2^47 as real addresses do.
PLACES = (0x1000_0000_0000, 0x2A55_0000_0000)
_APART = 1 << 36
Ranges = Sequence[Sequence[int]]
"""(first byte, bytes) each."""

_FIXED = ("kernel", "grid", "block", "smem", "cluster", "attributes")


def stand_ins(arrays: Sequence[Array | None], place: int, low: Sequence[int] = ()) -> list[View | None]:
    """Arrays of these types and extents where none is: host code computes with addresses and never follows them.

    low: the last bits of each one's address.
    """
    bases = [PLACES[place] + i * _APART + more for i, more in enumerate(low or [0] * len(arrays))]
    return [None if a is None else View(base, a.shape, a.strides, a.dtype) for base, a in zip(bases, arrays)]


def templates(
    label: str,
    host: Callable[[list[View | None]], list[Launch]],
    arrays: Sequence[Array | None],
    about: Callable[[Launch], tuple[Sequence[Any], Ranges]],
    digests: Mapping[int, str],
    low: Sequence[int] = (),
) -> tuple[Template, ...]:
    """What host code launches on such arrays, as templates.

    host(arrays): its launches, None for an argument that is absent. about(launch): the kernel's parameters (offset,
    size, align), and the parts of their block that it does not read. digests: of the machine code by the module's id.
    low: each address's last bits, which what is added to it in `addresses` leaves out.
    Unsupported where launches depend on addresses in other ways than by holding them.
    """
    first, second = (host(stand_ins(arrays, place, low)) for place in range(2))
    if len(first) != len(second):
        raise Unsupported(f"{label}: which kernels it launches depends on the arrays' addresses")
    return tuple(
        _template(label, a, b, *about(a), low or [0] * len(arrays), digests[id(a.module)])
        for a, b in zip(first, second)
    )


def _template(
    label: str, first: Launch, second: Launch, params: Sequence[Any], unread: Ranges, low: Sequence[int], code: str
) -> Template:
    if any(getattr(first, name) != getattr(second, name) for name in _FIXED):
        raise Unsupported(f"{label}: how {first.kernel} is launched depends on the arrays' addresses")
    block, other = bytearray(first.params), bytearray(second.params)
    for data in (block, other):
        for start, size in unread:
            data[start : start + size] = bytes(size)
        for param in params:
            _finish_map(data, param)
    addresses = []
    # Addresses are 8-byte numbers at their natural alignment, in tensor maps too.
    for at in range(0, len(block) - 7, 8):
        here, there = (struct.unpack_from("<Q", data, at)[0] for data in (block, other))
        if here == there:
            continue
        number, offset = divmod(here - PLACES[0], _APART)
        if not 0 <= number < len(low) or there - PLACES[1] != here - PLACES[0]:
            raise Unsupported(f"{label}: byte {at} of {first.kernel}'s parameters depends on an address in another way")
        addresses.append((at, number, offset - low[number]))
        struct.pack_into("<Q", block, at, 0)
        struct.pack_into("<Q", other, at, 0)
    if block != other:
        raise Unsupported(f"{label}: the last bytes of {first.kernel}'s parameters depend on an address")
    return Template(
        first.kernel, code, first.grid, first.block, bytes(block), tuple(p.offset for p in params), tuple(addresses),
        first.smem, first.cluster, dict(first.attributes),
    )  # fmt: skip


def _finish_map(params: bytearray, param: Any) -> None:
    """Words 8 and up of a tensor map as the driver writes them: compilers leave there what lay on their stack."""
    if param.size != tensormap.BYTES or param.align < 64:
        return
    block = bytes(params[param.offset : param.offset + param.size])
    try:
        tail = tensormap.encode(tensormap.decode(block))[64:]
    except Unsupported:
        tail = bytes(64)  # packed types: the machine reads words 0 to 7 alone
    except UsageError:
        return  # another parameter of that size
    params[param.offset + 64 : param.offset + param.size] = tail
