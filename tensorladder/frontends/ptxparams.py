"""Parameter blocks: where each `.param` of a kernel lies, read from the `.entry` head of PTX text.

PTX ISA, "Kernel function parameters": parameters lie one after the other, each at its own alignment; a `.b8` array
carries `.align`, a scalar is aligned to its size.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from ..core.errors import UsageError

_ENTRY = re.compile(r"\.entry\s+([\w$%]+)\s*(?:\(([^)]*)\))?([^{;]*)[{;]")
_PARAM = re.compile(
    r"\.param\s+(?:\.align\s+(?P<align>\d+)\s+)?\.(?P<type>[a-z]\w*)\s+(?P<attrs>(?:\.\w+\s+(?:\d+\s+)?)*)"
    r"[\w$%]+\s*(?:\[(?P<count>\d*)\])?"
)
_NAME = re.compile(r"([\w$%]+)\s*(?:\[\d*\])?\s*(?:,|$)")
_LOAD = r"ld\.param(?:\.v([248]))?\.[busf](\d+)\s+[^;\[]*\["
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_CLUSTER = re.compile(r"\.reqnctapercluster\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?")


@dataclass(frozen=True)
class Param:
    """One kernel parameter: bytes from the block's start, size in bytes, alignment in bytes."""

    offset: int
    size: int
    align: int


@dataclass(frozen=True)
class Entry:
    """A kernel's head: parameters, size of the block, and the cluster shape that `.reqnctapercluster` demands."""

    params: tuple[Param, ...]
    size: int
    cluster: tuple[int, int, int] | None


@lru_cache(maxsize=64)
def entries(ptx: str) -> dict[str, Entry]:
    """The kernels of a PTX text by name."""
    return {m[1]: _entry(m[2] or "", m[3] or "") for m in _ENTRY.finditer(_COMMENT.sub("", ptx))}


def _entry(params: str, directives: str) -> Entry:
    found: list[Param] = []
    at = 0
    for m in _PARAM.finditer(params):
        width = int(re.sub(r"\D", "", m["type"]) or 1) // 8
        size = width * int(m["count"] or 1)
        align = int(m["align"] or width)
        at = -(-at // align) * align
        found.append(Param(at, size, align))
        at += size
    cluster = _CLUSTER.search(directives)
    shape = (int(cluster[1]), int(cluster[2] or 1), int(cluster[3] or 1)) if cluster else None
    return Entry(tuple(found), at, shape)


def heads(ptx: str) -> str:
    """The text cut down to what `entries` reads: the `.entry` heads alone, as declarations."""
    return "\n".join(m[0][:-1].rstrip() + ";" for m in _ENTRY.finditer(_COMMENT.sub("", ptx)))


@lru_cache(maxsize=64)
def unread(ptx: str, kernel: str) -> tuple[tuple[int, int], ...]:
    """(first byte, bytes) of each part of a kernel's parameter block that no instruction of it can read.

    Host code leaves padding as it lay on its stack. A parameter whose address is taken counts as read whole.
    """
    head = entry(ptx, kernel)
    text = _COMMENT.sub("", ptx)
    starts = list(_ENTRY.finditer(text))
    at = next(i for i, m in enumerate(starts) if m[1] == kernel)
    body = text[starts[at].end() : starts[at + 1].start() if at + 1 < len(starts) else None]
    names = [m[1] for m in _NAME.finditer(starts[at][2] or "")]
    read = bytearray(head.size)
    for param, name in zip(head.params, names):
        for use in re.finditer(rf"(?:{_LOAD}\s*)?(?<![\w$%]){re.escape(name)}(?![\w$])(?:\s*\+\s*(\d+))?", body):
            first, size = (int(use[3] or 0), int(use[1] or 1) * int(use[2]) // 8) if use[2] else (0, param.size)
            for byte in range(param.offset + first, min(param.offset + first + size, head.size)):
                read[byte] = 1
    return tuple((m.start(), len(m[0])) for m in re.finditer(rb"\0+", bytes(read)))


def entry(ptx: str, kernel: str) -> Entry:
    """The head of one kernel. UsageError when the text has none of that name."""
    found = entries(ptx)
    if kernel not in found:
        raise UsageError(f"kernel {kernel} is not in the PTX: it has {', '.join(found) or 'no .entry'}")
    return found[kernel]
