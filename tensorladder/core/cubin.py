"""What a cubin says of its kernels: registers a thread and static shared memory.

A cubin is an ELF file. Its section `.nv.shared.KERNEL` is as large as the kernel's static shared memory, with the KB
that the system reserves where `.nv.shared.reserved.0` is there too (sm_90 and later); `.nv.info` holds attributes
(format, id, size, data), among them EIATTR_REGCOUNT (0x2f: symbol index and registers a thread). Checked against what
ptxas -v of CUDA 13.0 reports for sm_80, sm_90a and sm_100a.
"""

from __future__ import annotations

import struct

from .elf import read_sections, symbol_name

_RESERVED = 1024
_EIFMT_SVAL, _EIATTR_REGCOUNT = 4, 0x2F


def static_shared_bytes(cubin: bytes | None, kernel: str) -> int:
    """Static shared memory of `kernel` in bytes; 0 where the cubin has none or is absent."""
    sizes = {name: size for name, _, _, size, _, _ in read_sections(cubin or b"")}
    reserved = _RESERVED if ".nv.shared.reserved.0" in sizes else 0
    return max(sizes.get(f".nv.shared.{kernel}", 0) - reserved, 0)


def registers(cubin: bytes | None, kernel: str) -> int | None:
    """Registers a thread of `kernel`; None where the cubin is absent or does not say."""
    image = cubin or b""
    info = next(((offset, size) for name, _, offset, size, _, _ in read_sections(image) if name == ".nv.info"), (0, 0))
    at, end = info[0], sum(info)
    while at < end:
        form, attribute, size = struct.unpack_from("<BBH", image, at)
        if form == _EIFMT_SVAL and attribute == _EIATTR_REGCOUNT:
            symbol, count = struct.unpack_from("<II", image, at + 4)
            if symbol_name(image, symbol) == kernel:
                return count
        at += 4 + (size if form == _EIFMT_SVAL else 0)
    return None
