"""What cudaDeviceGetAttribute answers for an architecture when host code asks and no GPU is there.

Values: CUDA C++ Programming Guide, "Compute Capabilities"; SM counts are those of a full product of the architecture
(A100, RTX 3090, RTX 4090, H100 SXM, B200, RTX 5090).
"""

from __future__ import annotations

import re

from ..core.errors import Unsupported, UsageError

#: compute capability -> (SMs, shared memory a block can opt in to, a SM has [bytes], threads a SM, blocks a SM)
_FACTS: dict[int, tuple[int, int, int, int, int]] = {
    75: (68, 65536, 65536, 1024, 16),
    80: (108, 166912, 167936, 2048, 32),
    86: (82, 101376, 102400, 1536, 16),
    87: (16, 166912, 167936, 1536, 16),
    89: (128, 101376, 102400, 1536, 24),
    90: (132, 232448, 233472, 2048, 32),
    100: (148, 232448, 233472, 2048, 32),
    103: (148, 232448, 233472, 2048, 32),
    110: (20, 232448, 233472, 1536, 24),
    120: (170, 101376, 102400, 1536, 24),
    121: (48, 101376, 102400, 1536, 24),
}
_ARCH = re.compile(r"sm_(\d{2,3})([af]?)")


def capability(arch: str) -> int:
    """Compute capability times ten ("sm_90a" -> 90). UsageError for an architecture nobody described here."""
    m = _ARCH.fullmatch(arch)
    if not m or int(m[1]) not in _FACTS:
        raise UsageError(f"no architecture {arch!r}: one of {', '.join(f'sm_{c}' for c in _FACTS)}, with a or f")
    return int(m[1])


def sm_count(arch: str) -> int:
    """Streaming multiprocessors of the product that stands for `arch`."""
    return _FACTS[capability(arch)][0]


def device_attribute(arch: str, attribute: int) -> int:
    """cudaDeviceAttr by number. Unsupported for one that no host code here has asked before."""
    cc = capability(arch)
    sms, optin, per_sm, threads, blocks = _FACTS[cc]
    known = {
        1: 1024,  # threads a block
        2: 1024, 3: 1024, 4: 64,  # block dimensions
        5: 2**31 - 1, 6: 65535, 7: 65535,  # grid dimensions
        8: 49152,  # shared memory a block without opting in
        10: 32,  # warp size
        12: 65536,  # registers a block
        16: sms,
        39: threads,
        75: cc // 10, 76: cc % 10,
        81: per_sm,
        82: 65536,  # registers a SM
        95: 1,  # cooperative launch
        97: optin,
        106: blocks,
        111: 1024 if cc >= 80 else 0,  # shared memory reserved a block
    }  # fmt: skip
    if attribute not in known:
        raise Unsupported(f"cudaDeviceGetAttribute({attribute}) is not modelled")
    return known[attribute]
