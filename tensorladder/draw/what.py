"""What can be drawn: a table of kinds, and how a person writes one ("swizzle:128B,access=column")."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from tensorladder.core.errors import UsageError
from tensorladder.core.files import check_place, write_whole
from tensorladder.draw import descriptors, fragments, layouts, rasters, swizzles, tmem
from tensorladder.draw.grid import Picture


@dataclass(frozen=True)
class Kind:
    """One kind of picture. knobs: a dataclass of what it takes, whose first field needs no name; draws: in words."""

    name: str
    draws: str
    knobs: type
    build: Callable[[Any], Picture]
    examples: tuple[str, ...]

    @property
    def defaults(self) -> dict[str, Any]:
        """What each knob is where nothing is said; None: taken from the others."""
        return {field.name: field.default for field in fields(self.knobs)}

    @property
    def spelt(self) -> dict[str, str]:
        """The same as a person writes them, but for those that are None."""
        return {name: _spell(value) for name, value in self.defaults.items() if value is not None}


def _spell(value: Any) -> str:
    if isinstance(value, tuple):
        return "x".join(map(str, value))
    return ("no", "yes")[value] if isinstance(value, bool) else str(value)


KINDS = {
    kind.name: kind
    for kind in (
        Kind("layout", "a layout, swizzled or not: which index a coordinate maps to", layouts.Knobs, layouts.build,
             ("(4,(2,4)):(2,(1,8))", "S<2,3,3> o 0 o (8,32):(32,1)")),
        Kind("swizzle", "the bank of each word of a tile, and what a warp's access costs", swizzles.Knobs,
             swizzles.build,
             ("swizzle:128B", "swizzle:none,access=column", "swizzle:S<2,4,3>,tile=16x32,access=fragment")),
        Kind("mma", "fragments of mma.sync: who holds A, B and C", fragments.Mma, fragments.build_mma,
             ("mma:m16n8k16", "mma:m16n8k32,bits=8,operand=a")),
        Kind("wgmma", "fragments of wgmma: accumulators, or A in registers", fragments.Wgmma, fragments.build_wgmma,
             ("wgmma:32", "wgmma:operand=a,bits=8")),
        Kind("ldmatrix", "who gives a row's address, who receives an element", fragments.Ldmatrix,
             fragments.build_ldmatrix, ("ldmatrix:x4", "ldmatrix:x2,trans")),
        Kind("stmatrix", "who gives a row's address, who an element", fragments.Ldmatrix, fragments.build_stmatrix,
             ("stmatrix:x2",)),
        Kind("copy", "a tiled copy by its threads and values", fragments.Copy, fragments.build_copy,
             ("copy:(16,8):(8,1),values=(1,8):(8,1)",)),
        Kind("tv", "any atom's thread-value layout, as CuTe prints it", fragments.Tv, fragments.build_tv,
             ("tv:((4,8),(2,2)):((32,1),(16,8)),tile=16x8",)),
        Kind("descriptor", "which 16 bytes a matrix descriptor of WGMMA or tcgen05 names", descriptors.Knobs,
             descriptors.build, ("descriptor:128B", "descriptor:64B,major=mn", "descriptor:raw=0x4000004000010000")),
        Kind("tmem", "tcgen05.ld and st: thread and register of each cell of tensor memory", tmem.Load,
             tmem.build_load, ("tmem:16x256b.x1", "tmem:32x32b.x8")),
        Kind("accumulator", "where tcgen05.mma puts D, of one CTA or a pair", tmem.Accumulator, tmem.build_accumulator,
             ("accumulator:256x256", "accumulator:64x128,cta_group=1")),
        Kind("raster", "the order of a product's tiles, wave by wave", rasters.Knobs, rasters.build,
             ("raster:16x32,raster=8", "raster:16x16,ctas=128,cluster=2x1")),
    )
}  # fmt: skip


def draw(what: str) -> Picture:
    """The picture of `what`: a layout as it stands, or KIND[:VALUE][,KNOB=VALUE...]. UsageError says what is wrong."""
    kind, rest = _split_kind(what.strip())
    return kind.build(_knobs(kind, rest))


def find(what: str) -> Kind:
    """The kind that `what` is of."""
    return _split_kind(what.strip())[0]


def _split_kind(what: str) -> tuple[Kind, str]:
    if re.match(r"[\d(_]|S\w*\s*<", what):
        return KINDS["layout"], what
    name, _, rest = what.partition(":")
    if name not in KINDS:
        raise UsageError(f"nothing to draw called {name!r}: a layout such as (4,8):(8,1), or one of {', '.join(KINDS)}")
    return KINDS[name], rest


def _knobs(kind: Kind, text: str) -> Any:
    known = kind.defaults
    first = next(iter(known))
    if kind.name == "layout":  # its commas and colons are its own
        return kind.knobs(**({first: text.removeprefix("layout=")} if text else {}))
    given: dict[str, Any] = {}
    for part in _parts(text):
        name, equals, value = part.partition("=")
        if not equals:
            name, value = (part, "yes") if isinstance(known.get(part), bool) else (first, part)
        if name not in known:
            raise UsageError(f"{kind.name} has no knob {name!r}; its knobs: {', '.join(known)}")
        if name in given:
            raise UsageError(f"{kind.name}: {name} is given twice")
        given[name] = _value(kind.name, name, value, known[name])
    return kind.knobs(**given)


def _parts(text: str) -> list[str]:
    """Text between the commas that stand in no bracket."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "(<") - (letter in ")>")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def _value(kind: str, name: str, text: str, default: Any) -> Any:
    """A knob's text in the type of its default: a number (None: one that has no default), two as 16x8, yes or no."""
    if isinstance(default, bool):
        if text not in ("yes", "no"):
            raise UsageError(f"{kind}: {name}={text} must be yes or no")
        return text == "yes"
    if isinstance(default, tuple):
        if not re.fullmatch(r"\d{1,6}x\d{1,6}", text):
            raise UsageError(f"{kind}: {name}={text} must be two numbers, as in {default[0]}x{default[1]}")
        return tuple(map(int, text.split("x")))
    if isinstance(default, str):
        return text
    if not re.fullmatch(r"\d{1,9}|0x[0-9a-fA-F]{1,16}", text):
        raise UsageError(f"{kind}: {name}={text} must be a number")
    return int(text, 16 if text.startswith("0x") else 10)


def check_output(path: str) -> Path:
    """Where a picture goes. UsageError for a name of another format, or a folder that is not there."""
    place = Path(path)
    if place.suffix.lower() != ".svg":
        raise UsageError(f"-o {path}: pictures are SVG, name it {place.stem or 'picture'}.svg")
    return check_place(path, "-o")


def write(path: Path, text: str) -> None:
    """The picture into a file, whole or not at all; a file that cannot be written is a UsageError."""
    write_whole(path, text.encode(), "-o")
