"""Swizzles of shared memory, and the bank conflicts they are there to avoid.

A swizzle XORs some address bits with others, so that rows of a tile start in different banks. CuTe writes it
Swizzle<B, M, S>; TMA, WGMMA and tcgen05 have it built in as modes (PTX ISA, "Swizzling Modes" of the asynchronous
tensor copies; "Shared Memory Matrix Layout" of wgmma and tcgen05). The hardware's modes act on the bits of the
absolute shared memory address, not on offsets in a buffer: a tile that is not aligned to the pattern starts in its
middle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from tensorladder.core.errors import Unsupported, UsageError

Address = TypeVar("Address", int, npt.NDArray[np.int64])

BANKS = 32
BANK_BYTES = 4


@dataclass(frozen=True)
class Swizzle:
    """CuTe's Swizzle<bits, base, shift>: XOR `bits` bits from `base` up with the `bits` bits that lie `shift` above.

    A negative shift takes the lower bits into the upper ones. Applied twice it is the identity. `base` counts bits of
    the index that it is applied to: byte addresses here, elements after `recast`.
    """

    bits: int
    base: int
    shift: int

    def __post_init__(self) -> None:
        if self.bits < 0 or self.base < 0 or abs(self.shift) < self.bits:
            raise UsageError(f"no such swizzle: {self} (bits and base are not negative, |shift| >= bits)")

    @property
    def source_mask(self) -> int:
        """The bits that are read."""
        return ((1 << self.bits) - 1) << (self.base + max(0, self.shift))

    @property
    def target_mask(self) -> int:
        """The bits that change."""
        return ((1 << self.bits) - 1) << (self.base + max(0, -self.shift))

    @property
    def period(self) -> int:
        """The pattern repeats after this many units of the index; tiles aligned to it start at its beginning."""
        return 1 << (self.base + self.bits + abs(self.shift)) if self.bits else 1 << self.base

    def __call__(self, index: Address) -> Address:
        """The swizzled index; works on ints and on arrays of ints."""
        source = index & self.source_mask
        return index ^ (source >> self.shift if self.shift >= 0 else source << -self.shift)

    def recast(self, old_bytes: int, new_bytes: int) -> Swizzle:
        """The same swizzle for indices in units of `new_bytes` instead of `old_bytes` (powers of two)."""
        move = new_bytes.bit_length() - old_bytes.bit_length()
        if self.base - move < 0:
            raise UsageError(f"{self} moves parts smaller than {new_bytes} bytes: it has no form in that unit")
        return Swizzle(self.bits, self.base - move, self.shift)

    def __str__(self) -> str:
        return f"S<{self.bits},{self.base},{self.shift}>"


NONE = Swizzle(0, 4, 3)
# Byte-address swizzles of TMA, WGMMA and tcgen05 by (swizzle, atomicity) as a tensor map stores them. The 16-byte atoms
# and the 32-byte one agree with compiled kernels' own address arithmetic; the 64-byte one is by PTX's text alone.
TMA_SWIZZLES: dict[tuple[int, int], Swizzle] = {
    (0, 0): NONE,
    (1, 0): Swizzle(1, 4, 3),
    (2, 0): Swizzle(2, 4, 3),
    (3, 0): Swizzle(3, 4, 3),
    (3, 1): Swizzle(2, 5, 2),
    (3, 3): Swizzle(1, 6, 1),
}
MODES: dict[str, tuple[int, int]] = {
    "none": (0, 0), "32B": (1, 0), "64B": (2, 0), "128B": (3, 0), "128B_atom_32B": (3, 1), "128B_atom_64B": (3, 3),
}  # fmt: skip


def tma_swizzle(swizzle: int, atomicity: int = 0) -> Swizzle:
    """The swizzle of absolute shared memory byte addresses for a tensor map's swizzle and swizzle_atomicity fields."""
    try:
        return TMA_SWIZZLES[swizzle, atomicity]
    except KeyError:
        raise Unsupported(f"TMA swizzle mode {swizzle} with atomicity {atomicity} is not modelled") from None


def mode(name: str) -> Swizzle:
    """The hardware mode called `name`: "none", "32B", "64B", "128B", "128B_atom_32B", "128B_atom_64B"."""
    if name not in MODES:
        raise UsageError(f"no such swizzle mode: {name!r}; one of {', '.join(MODES)}")
    return TMA_SWIZZLES[MODES[name]]


@dataclass(frozen=True)
class Conflicts:
    """What one warp-wide shared memory access costs.

    wavefronts: passes that it takes. ideal: passes that the same number of bytes takes without conflicts.
    """

    wavefronts: int
    ideal: int

    @property
    def extra(self) -> int:
        """Wavefronts lost to bank conflicts (Nsight Compute counts the same)."""
        return self.wavefronts - self.ideal

    @property
    def degree(self) -> float:
        """1.0 without conflicts; n for an n-way conflict."""
        return self.wavefronts / self.ideal if self.ideal else 1.0


def _phase_wavefronts(words: npt.NDArray[np.int64]) -> int:
    """Passes for words accessed together: lanes that want one word share it, a bank serves one word a pass."""
    if not words.size:
        return 0
    distinct = np.unique(words)
    return int(np.bincount(distinct % BANKS, minlength=BANKS).max())


def bank_conflicts(addresses: npt.ArrayLike, width: int = 4, active: Sequence[bool] | None = None) -> Conflicts:
    """Bank conflicts of one load or store by a warp.

    addresses: the byte address of each lane (up to 32). width: bytes a lane accesses, 1 to 16. active: which lanes take
    part. Accesses of 8 bytes are served half a warp at a time, of 16 bytes a quarter: lanes of different groups never
    conflict (CUDA programming guide, "Shared Memory" of the compute capabilities).
    """
    lanes = np.asarray(addresses, np.int64).ravel()
    if lanes.size > 32:
        raise UsageError(f"a warp has 32 lanes, not {lanes.size}")
    if width not in (1, 2, 4, 8, 16):
        raise UsageError(f"a lane accesses 1, 2, 4, 8 or 16 bytes of shared memory, not {width}")
    if np.any(lanes % width):
        raise UsageError(f"address {int(lanes[lanes % width != 0][0])} is not aligned to the access of {width} bytes")
    taking_part = np.ones(lanes.size, bool) if active is None else np.asarray(active, bool)
    words_a_lane = max(1, width // BANK_BYTES)
    group = 32 // words_a_lane
    wavefronts = ideal = 0
    for start in range(0, lanes.size, group):
        chosen = lanes[start : start + group][taking_part[start : start + group]]
        words = (chosen[:, None] // BANK_BYTES + np.arange(words_a_lane)).ravel()
        wavefronts += _phase_wavefronts(words)
        ideal += -(-np.unique(words).size // BANKS)
    return Conflicts(wavefronts, ideal)


def ldmatrix_conflicts(row_addresses: npt.ArrayLike) -> Conflicts:
    """Bank conflicts of ldmatrix or stmatrix: the byte addresses of 8, 16 or 32 rows of 16 bytes, 8 rows a matrix.

    Each 8x8 matrix of 16-bit elements is 128 bytes and is served in one wavefront when its rows lie in distinct banks.
    """
    rows = np.asarray(row_addresses, np.int64).ravel()
    if rows.size not in (8, 16, 32):
        raise UsageError(f"ldmatrix takes 8, 16 or 32 row addresses, not {rows.size}")
    return bank_conflicts(rows, 16)
