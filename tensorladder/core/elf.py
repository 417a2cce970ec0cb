"""The little of ELF64 that is read here: undefined symbols of an object; shared memory and registers of a cubin.

Source: System V ABI, "ELF-64 Object File Format". A cubin is such a file. Its section `.nv.shared.KERNEL` is as large
as the kernel's static shared memory, with the KB that the system reserves where `.nv.shared.reserved.0` is there too
(sm_90 and later); `.nv.info` holds attributes (format, id, size, data), among them EIATTR_REGCOUNT
(0x2f: symbol index and registers a thread). Checked against what ptxas -v of
CUDA 13.0 reports for sm_80, sm_90a and sm_100a.
"""

from __future__ import annotations

import struct

_SYMTAB = 2
_RESERVED = 1024
_EIFMT_SVAL, _EIATTR_REGCOUNT = 4, 0x2F


def _sections(image: bytes) -> list[tuple[str, int, int, int, int, int]]:
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
    sections = _sections(image)
    found = set()
    for _, kind, offset, size, link, entry in sections:
        if kind != _SYMTAB:
            continue
        for at in range(offset, offset + size, entry):
            name, _, _, section = struct.unpack_from("<IBBH", image, at)
            if name and section == 0:
                found.add(_text(image, sections[link][2] + name))
    return found


def static_shared_bytes(cubin: bytes | None, kernel: str) -> int:
    """Static shared memory of `kernel` in bytes; 0 where the cubin has none or is absent."""
    sizes = {name: size for name, _, _, size, _, _ in _sections(cubin or b"")}
    reserved = _RESERVED if ".nv.shared.reserved.0" in sizes else 0
    return max(sizes.get(f".nv.shared.{kernel}", 0) - reserved, 0)


def registers(cubin: bytes | None, kernel: str) -> int:
    """Registers a thread of `kernel`; 0 where the cubin is absent or does not say."""
    image = cubin or b""
    sections = _sections(image)
    info = next(((offset, size) for name, _, offset, size, _, _ in sections if name == ".nv.info"), (0, 0))
    at, end = info[0], sum(info)
    while at < end:
        form, attribute, size = struct.unpack_from("<BBH", image, at)
        if form == _EIFMT_SVAL and attribute == _EIATTR_REGCOUNT:
            symbol, count = struct.unpack_from("<II", image, at + 4)
            if _symbol_name(image, sections, symbol) == kernel:
                return count
        at += 4 + (size if form == _EIFMT_SVAL else 0)
    return 0


def _symbol_name(image: bytes, sections: list[tuple[str, int, int, int, int, int]], index: int) -> str:
    for _, kind, offset, _, link, entry in sections:
        if kind == _SYMTAB:
            (name,) = struct.unpack_from("<I", image, offset + index * entry)
            return _text(image, sections[link][2] + name)
    return ""
