"""A row-major tile in shared memory under a swizzle: the bank of each word, and what a warp's access costs.

Tiles begin at address 0 (aligned to every pattern). Banks and conflicts are core.swizzle's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tensorladder.core import swizzle as core
from tensorladder.core.errors import UsageError
from tensorladder.core.swizzle import BANK_BYTES, BANKS, Conflicts, Swizzle, bank_conflicts, ldmatrix_conflicts
from tensorladder.draw.grid import Cell, Panel, Picture, check_size, heads
from tensorladder.draw.layouts import parse_swizzle

LANES = 32
LEGEND = tuple((i, str(i)) for i in range(BANKS))
LDMATRIX_BYTES = 16
Lanes = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Knobs:
    """mode: a hardware swizzle (none, 32B, 64B, 128B, ...) or S<B,M,S> of byte addresses. tile: rows x elements.

    bits: of an element. pad: bytes after each row. access: column, row, fragment, ldmatrix or none; at: the element of
    its row (of access=row: the row) where it begins. width: bytes a lane takes (0: the access's own).
    """

    mode: str = "128B"
    tile: tuple[int, int] = (8, 64)
    bits: int = 16
    pad: int = 0
    access: str = "ldmatrix"
    at: int = 0
    width: int = 0


@dataclass(frozen=True)
class _Tile:
    """Sizes in bytes."""

    rows: int
    row: int
    pitch: int
    element: int
    swizzle: Swizzle


def _column(tile: _Tile, at: int, width: int) -> tuple[Lanes, int]:
    """One lane a row."""
    rows = np.arange(min(LANES, tile.rows))
    return rows * tile.pitch + at * tile.element, width or tile.element


def _row(tile: _Tile, at: int, width: int) -> tuple[Lanes, int]:
    """Lanes side by side, into the next rows where one is full."""
    width = width or BANK_BYTES
    lane = np.arange(min(LANES, (tile.rows - at) * tile.row // width)) * width
    return (at + lane // tile.row) * tile.pitch + lane % tile.row, width


def _fragment(tile: _Tile, at: int, width: int) -> tuple[Lanes, int]:
    """Four lanes a row, as a register of mma.sync's A and B."""
    width = width or BANK_BYTES
    lane = np.arange(min(LANES, 4 * tile.rows))
    return lane // 4 * tile.pitch + at * tile.element + lane % 4 * width, width


def _ldmatrix(tile: _Tile, at: int, width: int) -> tuple[Lanes, int]:
    """16 bytes of each row, 8 rows a matrix: x1, x2 or x4, down the tile."""
    if tile.rows < 8 or width not in (0, LDMATRIX_BYTES):
        raise UsageError("swizzle: access=ldmatrix takes 16 bytes (width=16) of at least 8 rows (tile=8x64)")
    count = next(count for count in (32, 16, 8) if count <= tile.rows)
    return np.arange(count) * tile.pitch + at * tile.element, LDMATRIX_BYTES


ACCESSES: dict[str, Callable[[_Tile, int, int], tuple[Lanes, int]]] = {
    "column": _column, "row": _row, "fragment": _fragment, "ldmatrix": _ldmatrix,
}  # fmt: skip


def build(knobs: Knobs) -> Picture:
    """Words of the tile with their banks; under it, how many words of each bank are asked for at a time."""
    tile = _tile(knobs)
    words = tile.row // BANK_BYTES
    lanes, width = _lanes(knobs, tile)
    takers: dict[int, list[int]] = {}
    for lane, first in enumerate(lanes):
        for byte in range(int(first) // BANK_BYTES * BANK_BYTES, int(first) + width, BANK_BYTES):
            takers.setdefault(byte, []).append(lane)
    cells = []
    for i, j in np.ndindex(tile.rows, words):
        plain = i * tile.pitch + j * BANK_BYTES
        address = int(tile.swizzle(plain))
        bank, who = address // BANK_BYTES % BANKS, takers.get(plain, [])
        reads = f", lane{'s' * (len(who) > 1)} {', '.join(map(str, who))}" if who else ""
        data = {"bank": bank, "address": address, "lanes": who}
        note = f"row {i}, byte {BANK_BYTES * j}: address {address}{reads}"
        cells.append(Cell(i, j, (str(bank),), bank, note, bool(who), data))
    panel = Panel("row-major tile, 4 bytes a cell: the bank it lies in", tile.rows, words, tuple(cells),
                  heads(tile.rows), heads(words))  # fmt: skip
    title = f"swizzle {knobs.mode} on {knobs.tile[0]} x {knobs.tile[1]} elements of {knobs.bits} bits"
    title += f", rows padded by {knobs.pad} bytes" if knobs.pad else ""
    panels: tuple[Panel, ...] = (panel,)
    notes: tuple[str, ...] = (f"{tile.swizzle} of byte addresses",)
    facts = {"lanes": 0}
    if len(lanes):
        cost, plain_cost = _cost(knobs, tile.swizzle(lanes), width), _cost(knobs, lanes, width)
        panels = (panel, _service(tile.swizzle(lanes), width))
        without = (f"{tile.swizzle} of byte addresses; without it: {_say(plain_cost)}",) if tile.swizzle.bits else ()
        notes = (f"{knobs.access} by {len(lanes)} lanes of {width} bytes (bold): {_say(cost)}", *without)
        facts = {"wavefronts": cost.wavefronts, "ideal": cost.ideal, "plain_wavefronts": plain_cost.wavefronts,
                 "lanes": len(lanes), "width": width}  # fmt: skip
    description = f"The tile's rows down, their 4-byte words across, coloured by bank. {'; '.join(notes)}."
    return Picture("swizzle", title, description, panels, BANKS, LEGEND, "colour: bank", notes, facts)


def _tile(knobs: Knobs) -> _Tile:
    rows, columns = knobs.tile
    swizzle = core.mode(knobs.mode) if knobs.mode in core.MODES else _parse(knobs.mode)
    if knobs.bits not in (8, 16, 32, 64):
        raise UsageError(f"swizzle: bits={knobs.bits} must be 8, 16, 32 or 64")
    row = columns * knobs.bits // 8
    if min(rows, row) < 1 or row % BANK_BYTES or knobs.pad % BANK_BYTES:
        raise UsageError(f"swizzle: rows of {row} and pad={knobs.pad} bytes must be words of {BANK_BYTES} bytes")
    check_size("the tile", rows * row // BANK_BYTES)
    return _Tile(rows, row, row + knobs.pad, knobs.bits // 8, swizzle)


def _parse(mode: str) -> Swizzle:
    if "<" not in mode:
        raise UsageError(f"swizzle: mode={mode} must be one of {', '.join(core.MODES)}, or S<B,M,S> of byte addresses")
    swizzle = parse_swizzle(mode)
    if swizzle.bits and swizzle.base < 2:
        raise UsageError(f"swizzle: {mode} moves less than a bank's 4 bytes: give M for byte addresses, 2 or more")
    return swizzle


def _lanes(knobs: Knobs, tile: _Tile) -> tuple[Lanes, int]:
    """Each lane's address before the swizzle, and the bytes that it takes."""
    if knobs.access == "none":
        return np.zeros(0, np.int64), 0
    if knobs.access not in ACCESSES:
        raise UsageError(f"swizzle: access={knobs.access} must be one of {', '.join(ACCESSES)}, none")
    if knobs.width not in (0, 1, 2, 4, 8, 16):
        raise UsageError(f"swizzle: width={knobs.width}: a lane accesses 1, 2, 4, 8 or 16 bytes of shared memory")
    lanes, width = ACCESSES[knobs.access](tile, knobs.at, knobs.width)
    inside = lanes.size and lanes.max() < tile.rows * tile.pitch and int((lanes % tile.pitch).max()) + width <= tile.row
    if not inside:
        raise UsageError(f"swizzle: access={knobs.access}, at={knobs.at} reaches outside the tile: give a lower at")
    if tile.swizzle.bits and width > 1 << tile.swizzle.base:
        raise UsageError(f"swizzle: {tile.swizzle} parts an access of width={width} bytes")
    bank_conflicts(lanes, width)  # refuses an alignment that no load has
    return lanes, width


def _cost(knobs: Knobs, addresses: Lanes, width: int) -> Conflicts:
    return ldmatrix_conflicts(addresses) if knobs.access == "ldmatrix" else bank_conflicts(addresses, width)


def _say(cost: Conflicts) -> str:
    if not cost.extra:
        return f"{cost.wavefronts} wavefront{'s' * (cost.wavefronts > 1)}, no conflict"
    return f"{cost.wavefronts} wavefronts where {cost.ideal} would do"


def _service(addresses: Lanes, width: int) -> Panel:
    """Words that each bank has to give, a row for lanes that are served together."""
    together = LANES // max(1, width // BANK_BYTES)
    rows = []
    for first in range(0, len(addresses), together):
        chosen = addresses[first : first + together, None] + np.arange(0, width, BANK_BYTES)
        words = np.unique(chosen // BANK_BYTES)
        rows.append((first, np.bincount(words % BANKS, minlength=BANKS)))
    cells = []
    for number, (_, counts) in enumerate(rows):
        for bank, count in enumerate(counts.tolist()):
            note = f"bank {bank}: {count} word{'s' * (count != 1)}"
            colour = bank if count else None
            cells.append(Cell(number, bank, (str(count) if count else "",), colour, note, count > 1, {"words": count}))
    last = len(addresses) - 1
    names = tuple(f"T{first}-{min(first + together - 1, last)}" for first, _ in rows)
    title = "words asked of each bank by lanes that are served together; more than one: a conflict"
    return Panel(title, len(rows), BANKS, tuple(cells), names, heads(BANKS), (1, 0))
