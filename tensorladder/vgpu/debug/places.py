"""What a person asks of `--break` and `--dump`, as text, turned into values."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from tensorladder.core.errors import UsageError
from tensorladder.vgpu.codegen.points import Place
from tensorladder.vgpu.debug.values import ELEMENTS

HANG = "hang"
_HOW = (
    "write ptx:LINE, FILE:LINE, KERNEL+LINES or hang, and conditions behind an @, such as "
    "kernel.py:120@cta=0,1,warp=4,hit=3"
)
_CONDITIONS = ("cta", "warp", "lane", "hit", "launch", "kernel")


@dataclass(frozen=True)
class Breakpoint:
    """One breakpoint: as it was asked for, where it is (None: at a hang), and when it counts.

    cta: %ctaid, x y z. warps, lanes: any of them. hit: the how many-th time that a warp comes there; None: every time.
    launch: the how many-th launch of the device. kernel: a part of the kernel's name.
    """

    text: str
    place: Place | None
    cta: tuple[int, int, int] | None = None
    warps: tuple[int, ...] = ()
    lanes: int = 0
    hit: int | None = None
    launch: int | None = None
    kernel: str = ""

    def holds(self, kernel: str, launch: int, cta: tuple[int, int, int], warp: int | None, lanes: int) -> bool:
        """Whether all conditions but `hit` hold. warp: None for all warps of the CTA."""
        return (
            self.kernel in kernel
            and self.launch in (None, launch)
            and self.cta in (None, cta)
            and (warp is None or not self.warps or warp in self.warps)
            and (not self.lanes or bool(lanes & self.lanes))
        )


def parse(text: str) -> Breakpoint:
    """A breakpoint from "ptx:123", "FILE.py:45", "KERNEL+12" or "hang", with conditions behind an @; UsageError."""
    where, at, conditions = text.partition("@")
    place = None if where == HANG else _place(text, where)
    found = _conditions(text, conditions) if at else {}
    cta = found.get("cta")
    if cta is not None and len(cta) > 3:
        raise _refused(text, "cta has at most three numbers")
    if place is None and "hit" in found:
        raise _refused(text, "a launch hangs once: no hit")
    lanes = found.get("lane", [])
    if any(lane > 31 for lane in lanes):
        raise _refused(text, "lanes are 0 to 31")
    return Breakpoint(
        text, place,
        None if cta is None else (*cta, *(0,) * (3 - len(cta))),
        tuple(found.get("warp", ())), sum(1 << lane for lane in set(lanes)),
        _one(text, "hit", found), _one(text, "launch", found), found.get("kernel", ""),
    )  # fmt: skip


def _refused(text: str, why: str) -> UsageError:
    return UsageError(f"--break {text}: {why}; {_HOW}")


def _place(text: str, where: str) -> Place:
    if match := re.fullmatch(r"ptx:(\d{1,9})", where):
        return Place("ptx", "", int(match[1]))
    if match := re.fullmatch(r"(.+\.\w+):(\d{1,9})", where):
        return Place("file", match[1], int(match[2]))
    if match := re.fullmatch(r"([\w$]+)\+(\d{1,9})", where):
        return Place("kernel", match[1], int(match[2]))
    raise _refused(text, "no place")


def _conditions(text: str, conditions: str) -> dict:
    """{name: numbers} of "cta=0,1,warp=4"; the kernel's name is text."""
    found: dict = {}
    name = ""
    for word in conditions.split(","):
        key, equals, value = word.strip().rpartition("=")
        if equals:
            name = key
            if name not in _CONDITIONS or name in found:
                raise _refused(text, f"{name!r} {'twice' if name in found else 'is no condition'}")
            if name == "kernel":
                found[name] = value
                name = ""
                continue
            found[name] = []
        if not name or not value.isdecimal():
            raise _refused(text, f"{word!r} is no condition of {', '.join(_CONDITIONS)}")
        found[name].append(int(value))
    return found


def _one(text: str, name: str, found: dict) -> int | None:
    numbers = found.get(name)
    if numbers is None:
        return None
    if len(numbers) != 1 or numbers[0] < 1:
        raise _refused(text, f"{name} is one number from 1 on")
    return numbers[0]


@dataclass(frozen=True)
class Region:
    """Memory to show: `space` smem or tmem, from an address (or column), or a register that holds one, on."""

    text: str
    space: str
    start: int | str
    count: int
    type: str = field(default="u32")


def parse_region(text: str) -> Region:
    """Memory from "smem:ADDRESS:BYTES[:TYPE]" or "tmem:COLUMN:COLUMNS[:TYPE]", or a register in place of ADDRESS."""
    how = "write --dump smem:0x400:256, smem:%r12:64:f16 or tmem:0:16:f32"
    match = re.fullmatch(r"(smem|tmem):(0x[0-9a-fA-F]+|\d+|%[\w$.]+):(0x[0-9a-fA-F]+|\d+)(?::(\w+))?", text)
    if not match:
        raise UsageError(f"--dump {text}: {how}")
    space, start, count = match[1], match[2], int(match[3], 0)
    kind = match[4] or ("f32" if space == "tmem" else "u32")
    size = ELEMENTS[kind]().itemsize if kind in ELEMENTS else 0
    if not size or (space == "tmem" and size != 4):
        known = [name for name in ELEMENTS if space == "smem" or ELEMENTS[name]().itemsize == 4]
        raise UsageError(f"--dump {text}: no elements {kind}: {', '.join(known)}")
    if not 0 < count <= (1 << 18 if space == "smem" else 512) or (space == "smem" and count % size):
        raise UsageError(f"--dump {text}: {count} {'bytes' if space == 'smem' else 'columns'}; {how}")
    return Region(text, space, start if start.startswith("%") else int(start, 0), count, kind)
