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


def entry(ptx: str, kernel: str) -> Entry:
    """The head of one kernel. UsageError when the text has none of that name."""
    found = entries(ptx)
    if kernel not in found:
        raise UsageError(f"kernel {kernel} is not in the PTX: it has {', '.join(found) or 'no .entry'}")
    return found[kernel]
