"""What cudaDeviceGetAttribute answers for an architecture when host code asks and no GPU is there.

CUdevice_attribute (cuda.h) and cudaDeviceAttr (driver_types.h) share their numbers.
"""

from __future__ import annotations

from . import arch as archs
from .errors import Unsupported


def device_attribute(arch: str, attribute: int) -> int:
    """Value of a cudaDeviceAttr (driver_types.h) by number; Unsupported for one that is not known here."""
    found = archs.find(arch)
    major, minor = found.compute_capability
    known = {
        1: archs.MAX_BLOCK_THREADS,
        **dict(zip((2, 3, 4), archs.MAX_BLOCK)),
        **dict(zip((5, 6, 7), archs.MAX_GRID)),
        8: archs.STATIC_SMEM_LIMIT,  # shared memory a block without opting in
        10: archs.WARP_SIZE,
        12: archs.REGISTERS_PER_SM,  # registers a block
        9: 64 << 10,  # constant memory
        15: 1,  # copies while kernels run
        16: found.sm_count,
        17: 0,  # no limit on a kernel's time
        18: 0,  # not integrated
        19: 1,  # maps host memory
        20: 0,  # compute mode: default
        31: 1,  # kernels at the same time
        33: 0,  # PCI bus and device
        34: 0,
        41: 1,  # unified addressing
        50: 0,  # PCI domain
        83: 1,  # managed memory
        88: 0,  # no access to pageable host memory
        13: 1_755_000,  # clock, kHz
        38: 50 << 20,  # L2 cache
        39: found.max_threads_per_sm,
        75: major,
        76: minor,
        81: found.smem_per_sm,
        82: archs.REGISTERS_PER_SM,
        95: 1,  # cooperative launch
        97: found.smem_per_cta,  # shared memory a block, opted in
        106: found.max_ctas_per_sm,
        111: found.reserved_smem,
        115: 1,  # memory pools
        120: int((major, minor) >= (9, 0)),  # clusters
    }
    if attribute not in known:
        raise Unsupported(f"cudaDeviceGetAttribute({attribute}) is not modelled")
    return known[attribute]
