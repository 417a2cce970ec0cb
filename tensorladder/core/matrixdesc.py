"""Matrix descriptors: how WGMMA and tcgen05.mma name a tile in shared memory, and which bytes a descriptor means.

A tile is made of 16-byte chunks along K (K-major) or along M or N (MN-major). The start address and two byte offsets
place them, then a swizzle mixes address bits. Sources: PTX ISA, "Matrix Descriptor Format" and "Shared Memory Matrix
Layout" of wgmma, "Shared memory descriptor" and "Canonical Layouts" of tcgen05; CUTLASS, mma_sm90_desc.hpp and
mma_sm100_desc.hpp.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tensorladder.core import swizzle
from tensorladder.core.errors import UsageError

CHUNK = 16  # bytes
#: swizzle -> bytes of a row of its pattern; "none" has no pattern
SPANS = {"none": CHUNK, "32B": 32, "64B": 64, "128B": 128, "128B_atom_32B": 128}
#: unit -> (swizzle -> code, bit of the code, fixed bits)
CODES: dict[str, tuple[dict[str, int], int, int]] = {
    "wgmma": ({"none": 0, "128B": 1, "64B": 2, "32B": 3}, 62, 0),
    "tcgen05": ({"none": 0, "128B_atom_32B": 1, "128B": 2, "64B": 4, "32B": 6}, 61, 1 << 46),
}
_FIELD = 0x3FFF
_LIMIT = (_FIELD + 1) << 4


@dataclass(frozen=True)
class MatrixDescriptor:
    """The fields, in bytes: start address, leading and stride offset; base: the pattern's phase in 128-byte rows."""

    start: int
    lbo: int
    sbo: int
    swizzle: str
    base: int = 0

    def __post_init__(self) -> None:
        if self.swizzle not in SPANS:
            raise UsageError(f"swizzle {self.swizzle!r}: a matrix descriptor has one of {', '.join(SPANS)}")
        for name in ("start", "lbo", "sbo"):
            value = getattr(self, name)
            if value % CHUNK or not 0 <= value < _LIMIT:
                raise UsageError(f"{name}={value}: a multiple of {CHUNK} bytes below {_LIMIT}")
        if not 0 <= self.base < 8:
            raise UsageError(f"base={self.base}: 0 to 7 rows of 128 bytes")

    def encode(self, unit: str) -> int:
        """The 64 bits for "wgmma" or "tcgen05"."""
        codes, bit, fixed = CODES[unit]
        if self.swizzle not in codes:
            raise UsageError(f"{unit} has no swizzle {self.swizzle}; one of {', '.join(codes)}")
        fields = self.start >> 4 | (self.lbo >> 4) << 16 | (self.sbo >> 4) << 32 | self.base << 49
        return fields | fixed | codes[self.swizzle] << bit

    def chunks(self, extent: int, depth: int, bits: int, mn_major: bool) -> npt.NDArray[np.int64]:
        """Shared-memory addresses of the tile's chunks, extent x depth elements of `bits` bits (extent along M or N).

        K-major: [row, chunk along K]; MN-major: [chunk along M or N, k].
        """
        span, each = SPANS[self.swizzle], CHUNK * 8 // bits
        outer, inner = (-(-extent // each), depth) if mn_major else (extent, -(-depth // each))
        i, j = np.indices((outer, inner), dtype=np.int64)
        if self.swizzle == "none":
            groups = (i * self.sbo, j) if mn_major else (j * self.lbo, i)
            other = self.lbo if mn_major else self.sbo
            return self.start + groups[0] + groups[1] % 8 * CHUNK + groups[1] // 8 * other
        if mn_major:
            lines = 4 if self.swizzle == "128B_atom_32B" else 8
            at = i * CHUNK % span + i * CHUNK // span * self.lbo + j % lines * span + j // lines * self.sbo
        else:
            at = i % 8 * span + i // 8 * self.sbo + j * CHUNK
        at = at + self.start
        # The pattern is counted from `base` rows above the address's own zero.
        phase = self.base << 7
        return at ^ (swizzle.mode(self.swizzle)(at - phase) ^ (at - phase))


def decode(bits: int) -> tuple[str, MatrixDescriptor]:
    """("wgmma" or "tcgen05", the fields): tcgen05's has a one in bits 46 to 48, wgmma's a zero."""
    version = bits >> 46 & 7
    if not 0 <= bits < 1 << 64 or version > 1:
        raise UsageError(f"{bits:#x} is no matrix descriptor: bits 46 to 48 are 0 (wgmma) or 1 (tcgen05)")
    unit = "tcgen05" if version else "wgmma"
    codes, bit, _ = CODES[unit]
    names = {code: name for name, code in codes.items()}
    code = bits >> bit
    if code not in names:
        raise UsageError(f"{bits:#x} is no matrix descriptor: {unit} has no swizzle of code {code}")
    start, lbo, sbo = ((bits >> low & _FIELD) << 4 for low in (0, 16, 32))
    return unit, MatrixDescriptor(start, lbo, sbo, names[code], bits >> 49 & 7)


def packed(swizzle_name: str, extent: int, depth: int, bits: int, mn_major: bool, start: int = 0) -> MatrixDescriptor:
    """The descriptor of a tile whose repeats of the pattern lie one after the other: those along K first.

    K-major with a swizzle: rows of the pattern's width, so K beyond it is another tile (LBO means nothing there).
    """
    if swizzle_name not in SPANS:
        raise UsageError(f"swizzle {swizzle_name!r}: a matrix descriptor has one of {', '.join(SPANS)}")
    span, each = SPANS[swizzle_name], CHUNK * 8 // bits
    if not mn_major:
        chunks = -(-depth // each)
        none = swizzle_name == "none"
        return MatrixDescriptor(start, 8 * CHUNK if none else 0, 8 * span * (chunks if none else 1), swizzle_name)
    lines = 4 if swizzle_name == "128B_atom_32B" else 8
    pattern, along_k = lines * span, -(-depth // lines)
    if swizzle_name == "none":
        return MatrixDescriptor(start, pattern, pattern * along_k, swizzle_name)
    return MatrixDescriptor(start, pattern * along_k, pattern, swizzle_name)
