"""What a matrix descriptor of WGMMA or tcgen05.mma names: which 16 bytes of shared memory hold which elements."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tensorladder.core import matrixdesc
from tensorladder.core.errors import UsageError
from tensorladder.core.matrixdesc import CHUNK, SPANS, MatrixDescriptor
from tensorladder.core.swizzle import mode
from tensorladder.draw.grid import Cell, Panel, Picture, check_size

LINE, COLOURS = 128, 8  # bytes of a row of the picture


@dataclass(frozen=True)
class Knobs:
    """swizzle: none, 32B, 64B, 128B or 128B_atom_32B. major: k or mn. tile: along M or N x along K, in elements.

    bits: of an element. start, lbo, sbo (bytes) and base: fields; lbo and sbo are else those of a dense tile. raw: the
    64 bits in place of all fields.
    """

    swizzle: str = "128B"
    major: str = "k"
    tile: tuple[int, int] = (64, 16)
    bits: int = 16
    start: int = 0
    lbo: int | None = None
    sbo: int | None = None
    base: int = 0
    raw: int | None = None


def build(knobs: Knobs) -> Picture:
    """128 bytes of shared memory a row, with what lies in each 16 of them."""
    mn_major = _check(knobs)
    named = _descriptor(knobs, mn_major)
    extent, depth = knobs.tile
    at = named.chunks(extent, depth, knobs.bits, mn_major)
    low, high = int(at.min()) // LINE * LINE, int(at.max()) // LINE * LINE + LINE
    check_size(f"the tile from {low:#x} to {high:#x}", (high - low) // CHUNK)
    holders: dict[int, list[tuple[int, int]]] = {}
    for i, j in np.ndindex(at.shape):
        holders.setdefault(int(at[i, j]), []).append((i, j))
    cells = [_cell(knobs, mn_major, address, low, holders.get(address, [])) for address in range(low, high, CHUNK)]
    rows = (high - low) // LINE
    panel = Panel(f"shared memory, {LINE} bytes a row", rows, LINE // CHUNK, tuple(cells),
                  tuple(f"{low + LINE * i:#06x}" for i in range(rows)),
                  tuple(f"+{CHUNK * j}" for j in range(LINE // CHUNK)))  # fmt: skip
    by = "k" if mn_major else "row"
    title = f"matrix descriptor: {'MN' if mn_major else 'K'}-major, swizzle {named.swizzle}, "
    title += f"{extent} x {depth} elements of {knobs.bits} bits"
    overlaps = sum(len(who) > 1 for who in holders.values())
    notes = _notes(named, knobs, overlaps)
    words = f"Shared memory, {LINE} bytes a row, {CHUNK} a cell, with the elements that the descriptor places there. "
    words += "; ".join(notes) + "."
    facts = {"start": named.start, "lbo": named.lbo, "sbo": named.sbo, "swizzle": named.swizzle, "base": named.base,
             "encoded": _encoded(named), "overlaps": overlaps}  # fmt: skip
    legend = tuple((i, f"{by} {i}") for i in range(COLOURS))
    return Picture("descriptor", title, words, (panel,), COLOURS, legend, f"colour: {by} modulo 8", notes, facts)


def _check(knobs: Knobs) -> bool:
    """Whether the tile is MN-major; UsageError for what no descriptor is for."""
    if knobs.major not in ("k", "mn"):
        raise UsageError(f"descriptor: major={knobs.major} must be k or mn")
    mn_major = knobs.major == "mn"
    if knobs.bits not in (4, 8, 16, 32) or (mn_major and knobs.bits == 4):
        raise UsageError(f"descriptor: bits={knobs.bits} must be 4 (major=k alone), 8, 16 or 32")
    along = knobs.tile[0] if mn_major else knobs.tile[1]
    if min(knobs.tile) < 1 or along * knobs.bits % (8 * CHUNK):
        extents = f"tile={knobs.tile[0]}x{knobs.tile[1]}"
        raise UsageError(f"descriptor: {extents} must hold whole 16 bytes along {'M or N' if mn_major else 'K'}")
    check_size("the tile", knobs.tile[0] * knobs.tile[1] * knobs.bits // (8 * CHUNK))
    return mn_major


def _descriptor(knobs: Knobs, mn_major: bool) -> MatrixDescriptor:
    if knobs.raw is not None:
        named = matrixdesc.decode(knobs.raw)[1]
    else:
        extent, depth = knobs.tile
        named = matrixdesc.packed(knobs.swizzle, extent, depth, knobs.bits, mn_major, knobs.start)
        lbo = named.lbo if knobs.lbo is None else knobs.lbo
        named = replace(named, lbo=lbo, sbo=named.sbo if knobs.sbo is None else knobs.sbo, base=knobs.base)
    width = knobs.tile[1] * knobs.bits // 8
    if not mn_major and named.swizzle != "none" and width > SPANS[named.swizzle]:
        raise UsageError(
            f"descriptor: {width} bytes of K are more than a row of swizzle {named.swizzle}: an instruction reads 32"
        )
    return named


def _cell(knobs: Knobs, mn_major: bool, address: int, low: int, who: list[tuple[int, int]]) -> Cell:
    row, column = divmod((address - low) // CHUNK, LINE // CHUNK)
    if not who:
        return Cell(row, column, ("",), note=f"{address:#x}: not read", data={"address": address, "elements": []})
    each = CHUNK * 8 // knobs.bits
    (i, j) = who[0]
    first, k = (i * each, j) if mn_major else (i, j * each)
    lines = (f"m{first}-{first + each - 1}", f"k{k}") if mn_major else (f"r{i}", f"k{k}-{k + each - 1}")
    note = f"{address:#x}: {lines[0]}, {lines[1]}" + (f", and {len(who) - 1} more" if len(who) > 1 else "")
    data = {"address": address, "elements": [first, k]}
    return Cell(row, column, lines, (j if mn_major else i) % COLOURS, note, len(who) > 1, data)


def _encoded(named: MatrixDescriptor) -> dict[str, str]:
    units = [unit for unit, (codes, _, _) in matrixdesc.CODES.items() if named.swizzle in codes]
    return {unit: f"{named.encode(unit):#018x}" for unit in units}


def _notes(named: MatrixDescriptor, knobs: Knobs, overlaps: int) -> tuple[str, ...]:
    fields = f"start {named.start:#x}, LBO {named.lbo}, SBO {named.sbo} bytes, base offset {named.base}"
    lines = [fields, ", ".join(f"{unit} {bits}" for unit, bits in _encoded(named).items())]
    pattern = mode(named.swizzle).period
    if named.swizzle != "none" and (named.start - LINE * named.base) % pattern:
        lines.append(f"start is not aligned to the pattern's {pattern} bytes: the tile begins inside it")
    if overlaps:
        lines.append(f"{overlaps} places hold more than one part of the tile (bold): LBO or SBO is too small")
    return tuple(lines)
