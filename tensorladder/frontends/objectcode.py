"""Load a relocatable ELF object into this process with no linker and no compiler: for the host part of a pack.

An object's sections are copied into memory of our own, its relocations are applied, and its undefined symbols get the
addresses that the caller names. Only what compilers emit for position-independent or large-model code is known
(System V ABI, AMD64 and AArch64 supplements, "Relocation Types"); any other kind of relocation is refused by number.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import struct
from collections.abc import Callable
from dataclasses import dataclass

from ..core.errors import Unsupported, UsageError

_SYMBOLS, _RELA, _NOBITS = 2, 4, 8
_ALLOCATED = 2
_PAGE = mmap.PAGESIZE
#: ELF machine number -> platform.machine()
MACHINES = {62: "x86_64", 183: "aarch64"}


def _absolute(value: int, place: int) -> int:
    return value


def _relative(value: int, place: int) -> int:
    return value - place


#: (machine, relocation type) -> (bytes, signed, how the stored number follows from symbol + addend and place)
RELOCATIONS: dict[tuple[int, int], tuple[int, bool, Callable[[int, int], int]]] = {
    (62, 1): (8, False, _absolute),  # R_X86_64_64
    (62, 24): (8, True, _relative),  # R_X86_64_PC64
    (62, 10): (4, False, _absolute),  # R_X86_64_32
    (62, 11): (4, True, _absolute),  # R_X86_64_32S
    (62, 2): (4, True, _relative),  # R_X86_64_PC32
    (62, 4): (4, True, _relative),  # R_X86_64_PLT32: directly, there is no table
    (183, 257): (8, False, _absolute),  # R_AARCH64_ABS64
    (183, 260): (8, True, _relative),  # R_AARCH64_PREL64
    (183, 261): (4, True, _relative),  # R_AARCH64_PREL32
}


@dataclass(frozen=True)
class _Section:
    name: int
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    align: int


class ObjectCode:
    """A loaded object. resolve: the address of an undefined symbol by name, or None where it is not known.

    UsageError where `image` is no whole object for this machine, Unsupported for an unknown symbol or relocation.
    """

    def __init__(self, image: bytes, resolve: Callable[[str], int | None], name: str = "object") -> None:
        self._name = name
        try:
            self._machine, self._sections = _read(image, name)
            self._load(image, resolve)
        except (struct.error, IndexError, ValueError) as error:
            raise UsageError(f"{name} is cut short or damaged: {error}") from error

    def address(self, symbol: str) -> int:
        """Address of a symbol that the object defines; 0 where it has none of that name."""
        return self._defined.get(symbol, 0)

    def _load(self, image: bytes, resolve: Callable[[str], int | None]) -> None:
        places, end = {}, 0
        for i, section in enumerate(self._sections):
            if section.flags & _ALLOCATED:
                at = -(-end // max(section.align, 1)) * max(section.align, 1)
                places[i], end = at, at + section.size
        # Pages of its own: what is next to them must stay as it is when they become executable.
        self._memory = mmap.mmap(-1, max(end, 1))
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        for i, at in places.items():
            section = self._sections[i]
            if section.kind != _NOBITS:
                self._memory[at : at + section.size] = image[section.offset : section.offset + section.size]
        self._places = {i: base + at for i, at in places.items()}
        self._defined: dict[str, int] = {}
        for section in self._sections:
            if section.kind == _RELA and section.info in places:
                self._relocate(image, section, resolve, base)
        for section in self._sections:
            if section.kind == _SYMBOLS:
                self._define(image, section)
        _make_executable(base, max(end, 1))

    def _define(self, image: bytes, table: _Section) -> None:
        for at in range(table.offset, table.offset + table.size, 24):
            name, _, _, home, value, _ = struct.unpack_from("<IBBHQQ", image, at)
            if name and home in self._places:
                self._defined[_text(image, self._sections[table.link].offset + name)] = self._places[home] + value

    def _relocate(self, image: bytes, section: _Section, resolve: Callable[[str], int | None], base: int) -> None:
        table = self._sections[section.link]
        for at in range(section.offset, section.offset + section.size, 24):
            offset, kind, symbol, addend = struct.unpack_from("<QIIq", image, at)
            known = RELOCATIONS.get((self._machine, kind))
            if known is None:
                raise Unsupported(f"{self._name}: relocation {kind} of machine {self._machine} is not known")
            size, signed, form = known
            value = self._symbol(image, table, symbol, resolve) + addend
            place = self._places[section.info] + offset
            number = form(value, place)
            low, high = (-(1 << 8 * size - 1), (1 << 8 * size - 1) - 1) if signed else (0, (1 << 8 * size) - 1)
            if not low <= number <= high:
                raise Unsupported(f"{self._name}: relocation {kind} does not reach that far (no large-model code)")
            self._memory[place - base : place - base + size] = number.to_bytes(size, "little", signed=signed)

    def _symbol(self, image: bytes, table: _Section, index: int, resolve: Callable[[str], int | None]) -> int:
        name, _, _, home, value, _ = struct.unpack_from("<IBBHQQ", image, table.offset + 24 * index)
        if home in self._places:
            return self._places[home] + value
        words = _text(image, self._sections[table.link].offset + name)
        found = resolve(words) if home == 0 else None
        if found is None:
            raise Unsupported(f"{self._name}: symbol {words or home} is not known here")
        return found


def _read(image: bytes, name: str) -> tuple[int, list[_Section]]:
    """Machine and sections of an object for this computer."""
    if image[:5] != b"\x7fELF\x02":
        raise UsageError(f"{name} is no 64-bit ELF object")
    machine = struct.unpack_from("<H", image, 18)[0]
    if MACHINES.get(machine) != platform.machine():
        theirs = MACHINES.get(machine, f"machine {machine}")
        raise UsageError(f"{name} is native code for {theirs}, this is {platform.machine()}")
    (start,) = struct.unpack_from("<Q", image, 0x28)
    width, count = struct.unpack_from("<HH", image, 0x3A)
    sections = []
    for i in range(count):
        fields = struct.unpack_from("<IIQQQQIIQQ", image, start + i * width)
        head, kind, flags, _, offset, size, link, info, align, _ = fields
        if kind != _NOBITS and offset + size > len(image):
            raise UsageError(f"{name} is cut short: it has {len(image)} bytes of at least {offset + size}")
        sections.append(_Section(head, kind, flags, offset, size, link, info, align))
    return machine, sections


def _text(image: bytes, at: int) -> str:
    return image[at : image.index(b"\0", at)].decode()


def _make_executable(address: int, size: int) -> None:
    """Host code keeps variables beside its instructions' page: readable, writable and executable."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    pages = -(-size // _PAGE) * _PAGE
    if libc.mprotect(address, pages, mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC):
        raise UsageError(f"this system does not allow loaded code to run (mprotect: error {ctypes.get_errno()})")
    # AArch64 has an instruction cache of its own; compilers' runtime clears it. x86-64 keeps itself coherent.
    clear = getattr(libc, "__clear_cache", None)
    if clear is not None:
        clear(ctypes.c_void_p(address), ctypes.c_void_p(address + pages))
