"""The little of ELF64 that is read here: sections, symbol names, and the undefined symbols of an object.

Source: System V ABI, "ELF-64 Object File Format".
"""

from __future__ import annotations

import struct

_SYMTAB = 2


def read_sections(image: bytes) -> list[tuple[str, int, int, int, int, int]]:
    """(name, type, offset, size, link, entry size) of every section; [] where `image` is no 64-bit ELF file."""
    if image[:5] != b"\x7fELF\x02":
        return []
    (start,) = struct.unpack_from("<Q", image, 0x28)
    width, count, names = struct.unpack_from("<HHH", image, 0x3A)
    raw = []
    for i in range(count):
        name, kind, _, _, offset, size, link, _, _, entry = struct.unpack_from("<IIQQQQIIQQ", image, start + i * width)
        raw.append((name, kind, offset, size, link, entry))
    strings = raw[names][2] if names < count else 0
    return [(_text(image, strings + name), *rest) for name, *rest in raw]


def _text(image: bytes, at: int) -> str:
    return image[at : image.index(b"\0", at)].decode()


def undefined_symbols(image: bytes) -> set[str]:
    """Names that an object file expects from elsewhere."""
    sections = read_sections(image)
    found = set()
    for _, kind, offset, size, link, entry in sections:
        if kind != _SYMTAB:
            continue
        for at in range(offset, offset + size, entry):
            name, _, _, section = struct.unpack_from("<IBBH", image, at)
            if name and section == 0:
                found.add(_text(image, sections[link][2] + name))
    return found


def symbol_name(image: bytes, index: int) -> str:
    """Name of the symbol with this index; "" where there is none."""
    sections = read_sections(image)
    for _, kind, offset, size, link, entry in sections:
        if kind == _SYMTAB and index * entry < size:
            (name,) = struct.unpack_from("<I", image, offset + index * entry)
            return _text(image, sections[link][2] + name)
    return ""
