"""Output of printf in device code, formatted on the host after the launch.

A record in the launch's print buffer is a header of 8-byte words (bytes of the record, order key), then the format as a
string, then the arguments in order: each an 8-byte word (integers as they were passed, floats as doubles) or, for %s, a
string. A string is its length, then its bytes padded to 8. `calls.tl_printf` writes them.
"""

from __future__ import annotations

import re

import numpy as np

_HEADER = 16
_SPEC = re.compile(
    r"%(?P<flags>[-+ #0]*)(?P<width>\*|\d*)(?:\.(?P<precision>\*|\d*))?(?P<length>[hljzt]*)(?P<conversion>.?)", re.S
)


class _Record:
    """Reads a record's words and strings in order."""

    def __init__(self, data: bytes):
        self.data, self.at = data, _HEADER

    def word(self) -> int:
        value = int.from_bytes(self.data[self.at : self.at + 8], "little")
        self.at += 8
        return value

    def string(self) -> str:
        length = self.word()
        text = self.data[self.at : self.at + length].decode("utf-8", "replace")
        self.at += (length + 7) & ~7
        return text


def render(buffer: np.ndarray) -> str:
    """What the records of a print buffer (uint8) print, by cluster."""
    data = buffer.tobytes()
    records, at = [], 0
    while at + _HEADER <= len(data):
        size = int.from_bytes(data[at : at + 8], "little")
        if size == 0:
            break
        key = int.from_bytes(data[at + 8 : at + 16], "little")
        records.append((key, data[at : at + size]))
        at += size
    lost = "printf: the buffer is full, the rest of the output is lost\n" if at < len(data) else ""
    records.sort(key=lambda r: r[0])
    return "".join(_format(_Record(record)) for _, record in records) + lost


def _format(record: _Record) -> str:
    return _SPEC.sub(lambda spec: _converted(spec, record), record.string())


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def _converted(spec: re.Match[str], record: _Record) -> str:
    """One conversion as C prints it."""
    flags, width, precision, length, kind = spec.group("flags", "width", "precision", "length", "conversion")
    if width == "*":
        number = _signed(record.word(), 32)
        width, flags = str(abs(number)), flags + "-" * (number < 0)
    if precision == "*":
        number = _signed(record.word(), 32)
        precision = str(number) if number >= 0 else None
    digits = "" if precision is None else f".{precision or 0}"
    if kind == "%":
        return "%"
    if kind == "s":
        return f"%{flags.replace('0', '')}{width}{digits}s" % record.string()
    if kind and kind in "diouxXc":
        return _integer(record.word(), flags, width, digits, length, kind)
    if kind and kind in "eEfFgGaA":
        return _float(float(np.uint64(record.word()).view(np.float64)), flags, width, digits, kind)
    if kind == "p":
        value = record.word()
        return f"%{flags.replace('0', '')}{width}s" % (hex(value) if value else "(nil)")
    if kind == "n":
        record.word()
        return ""
    return spec.group()


def _integer(word: int, flags: str, width: str, digits: str, length: str, kind: str) -> str:
    bits = 64 if set(length) & set("ljzt") else {"hh": 8, "h": 16}.get(length, 32)
    if kind == "c":
        return f"%{flags.replace('0', '')}{width}s" % chr(word & 0xFF)
    value = _signed(word, bits) if kind in "di" else word & ((1 << bits) - 1)
    if digits:
        flags = flags.replace("0", "")
    if kind == "o" and "#" in flags:
        text = f"0{value:o}" if value else "0"
        return f"%{flags.replace('#', '').replace('0', '')}{width}s" % text
    if value == 0:
        flags = flags.replace("#", "")
    return f"%{flags}{width}{digits}{kind}" % value


def _float(value: float, flags: str, width: str, digits: str, kind: str) -> str:
    if kind in "aA":
        mantissa, _, exponent = value.hex().partition("p")
        text = mantissa.rstrip("0").rstrip(".") + "p" + exponent if exponent else mantissa
        return f"%{flags.replace('0', '')}{width}s" % (text.upper() if kind == "A" else text)
    if not np.isfinite(value):
        flags = flags.replace("0", "")
    return f"%{flags}{width}{digits}{kind}" % value
