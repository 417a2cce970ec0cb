"""First latency and rate tables of the `timed` policy, one an architecture.

Cycles from issue to effect, and bytes a cycle and SM once it flows. Starting points, not a model of time: global
memory's latency is that of pointer chasing on the A100 (466), RTX 4090 (542) and H100 (479) in Luo et al.,
"Benchmarking and Dissecting the Nvidia Hopper GPU Architecture via Microbenchmarking", arXiv:2402.13499; TMA adds the
time of its unit; rates are the L2's bandwidth over SMs and clock. Tensor cores (WGMMA, tcgen05): dense f16
multiply-adds an SM and cycle by the parts' peak figures. Clocks are the parts' boost clocks.
"""

from __future__ import annotations

from dataclasses import dataclass

from tensorladder.core.arch import Arch


@dataclass(frozen=True)
class Timing:
    """clock_khz: SM clock. Each row is (cycles, bytes a cycle); `tensor` (cycles, f16 multiply-adds a cycle).

    tmem: a warp's store to tensor memory (a guess).
    """

    clock_khz: int
    cp_async: tuple[int, int]
    tma_load: tuple[int, int]
    tma_store: tuple[int, int]
    bulk: tuple[int, int]
    tensor: tuple[int, int] = (32, 1024)
    tmem: tuple[int, int] = (20, 512)

    @property
    def rows(self) -> list[tuple[int, int]]:
        """In the order of queue.LAT_*."""
        return [self.cp_async, self.tma_load, self.tma_store, self.bulk, self.tensor, self.tmem]


_TIMINGS = {
    8: Timing(1_410_000, (470, 40), (470, 40), (470, 40), (470, 40)),
    9: Timing(1_980_000, (480, 40), (650, 40), (500, 40), (600, 40), (40, 2048)),
    10: Timing(1_965_000, (500, 50), (700, 50), (550, 50), (650, 50), (60, 4096)),
    12: Timing(2_407_000, (540, 24), (700, 24), (560, 24), (660, 24)),
}


def timing(arch: Arch) -> Timing:
    """The table of an architecture, by its compute capability's major number (the nearest one below)."""
    major = arch.limits.compute_capability[0]
    return _TIMINGS[max((m for m in _TIMINGS if m <= major), default=8)]
