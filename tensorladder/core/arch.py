"""GPU architectures: what each can do, what a launch may ask for, and how many CTAs fit on an SM.

Limits are those of the CUDA programming guide, "Compute Capabilities" (features and technical specifications per
compute capability); occupancy follows the rules of the toolkit's cuda_occupancy.h; launch refusals were checked against
an H200 (tests/data/launch_h200.json). Which targets have which instructions is the PTX ISA's "Target ISA Notes".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from tensorladder.core.errors import CooperativeTooLarge, KernelError, UsageError

Dim3 = Sequence[int]

WARP_SIZE = 32
SUB_PARTITIONS = 4  # warp schedulers of an SM, each with a quarter of the registers
MAX_BLOCK = (1024, 1024, 64)
MAX_BLOCK_THREADS = 1024
MAX_GRID = ((1 << 31) - 1, 65535, 65535)
REGISTERS_PER_SM = 65536
MAX_REGISTERS_PER_THREAD = 255
REGISTER_GRANULARITY = 256  # registers, allocated a warp
STATIC_SMEM_LIMIT = 48 * 1024  # bytes of .shared variables; more must be dynamic, after opting in
PORTABLE_CLUSTER = 8
NAMED_BARRIERS = 16  # bar.sync 0 to 15, a CTA


@dataclass(frozen=True)
class Limits:
    """What all parts of one compute capability share. Shared memory in bytes, as on the SM (228 KB = 233472)."""

    compute_capability: tuple[int, int]
    max_threads: int  # resident an SM
    max_ctas: int  # resident an SM
    smem_per_sm: int
    smem_granularity: int
    reserved_smem: int  # of each CTA, at the bottom of its window
    max_cluster: int  # CTAs, non-portable size allowed; 1 where there are no clusters
    chip: str  # the reference part
    sm_count: int  # of the reference part


def _limits(cc: tuple[int, int], threads: int, ctas: int, smem_kb: int, cluster: int, chip: str, sms: int) -> Limits:
    ampere = cc >= (8, 0)
    return Limits(cc, threads, ctas, smem_kb * 1024, 128 if ampere else 256, 1024 if ampere else 0, cluster, chip, sms)


_LIMITS: dict[tuple[int, int], Limits] = {
    row[0]: _limits(*row)
    for row in (
        # capability, threads, CTAs, KB of shared memory an SM, largest cluster, reference part, its SMs
        ((7, 5), 1024, 16, 64, 1, "T4", 40),
        ((8, 0), 2048, 32, 164, 1, "A100", 108),
        ((8, 6), 1536, 16, 100, 1, "RTX 3090", 82),
        ((8, 7), 1536, 16, 164, 1, "Orin", 16),
        ((8, 9), 1536, 24, 100, 1, "RTX 4090", 128),
        ((9, 0), 2048, 32, 228, 16, "H200", 132),
        ((10, 0), 2048, 32, 228, 16, "B200", 148),
        ((10, 3), 2048, 32, 228, 16, "B300", 148),
        ((11, 0), 1536, 24, 228, 16, "Thor", 20),
        ((12, 0), 1536, 24, 100, 8, "RTX 5090", 170),
        ((12, 1), 1536, 24, 100, 8, "GB10", 48),
    )
}

# feature -> first compute capability that has it, on every target
_SINCE: dict[str, tuple[int, int]] = {
    "ldmatrix": (7, 5),
    "cp_async": (8, 0),
    "mbarrier": (8, 0),
    "bf16": (8, 0),
    "redux": (8, 0),
    "fp8": (8, 9),
    "clusters": (9, 0),
    "tma": (9, 0),
    "stmatrix": (9, 0),
    "elect": (9, 0),
    "griddepcontrol": (9, 0),
    "clusterlaunchcontrol": (10, 0),
}
# feature -> capabilities whose architecture-specific target ("a", or "f" from 10.0 on) has it
_DATACENTER = {(10, 0), (10, 3), (11, 0)}
_SPECIFIC: dict[str, set[tuple[int, int]]] = {
    "wgmma": {(9, 0)},
    "setmaxnreg": {(9, 0), (12, 0), (12, 1)} | _DATACENTER,
    "tcgen05": _DATACENTER,
    "redux_f32": _DATACENTER,
    "fp4": {(12, 0), (12, 1)} | _DATACENTER,
    "mma_block_scale": {(12, 0), (12, 1)},
}


@dataclass(frozen=True)
class Arch:
    """One target ("sm_90a") and the limits of the parts it runs on.

    suffix: "" (runs on later parts too), "a" (that compute capability alone), "f" (its family).
    """

    name: str
    suffix: str
    limits: Limits
    features: frozenset[str]

    @property
    def compute_capability(self) -> tuple[int, int]:
        return self.limits.compute_capability

    @property
    def sm_count(self) -> int:
        """SMs of the reference part."""
        return self.limits.sm_count

    @property
    def max_threads_per_sm(self) -> int:
        return self.limits.max_threads

    @property
    def max_warps_per_sm(self) -> int:
        return self.limits.max_threads // WARP_SIZE

    @property
    def max_ctas_per_sm(self) -> int:
        return self.limits.max_ctas

    @property
    def smem_per_sm(self) -> int:
        """Bytes, the reserved part of each CTA included."""
        return self.limits.smem_per_sm

    @property
    def reserved_smem(self) -> int:
        """Bytes that the system takes of each CTA's shared memory."""
        return self.limits.reserved_smem

    @cached_property
    def smem_per_cta(self) -> int:
        """Most shared memory of a CTA, static and dynamic, in bytes (the opt-in maximum)."""
        return self.limits.smem_per_sm - self.limits.reserved_smem

    @property
    def max_cluster(self) -> int:
        """Most CTAs of a cluster; more than 8 need the non-portable cluster size attribute."""
        return self.limits.max_cluster

    def __contains__(self, feature: str) -> bool:
        return feature in self.features

    def __str__(self) -> str:
        return self.name


def _arch(capability: tuple[int, int], suffix: str) -> Arch:
    features = {name for name, first in _SINCE.items() if capability >= first}
    if suffix:
        features |= {name for name, capabilities in _SPECIFIC.items() if capability in capabilities}
    name = f"sm_{capability[0]}{capability[1]}{suffix}"
    return Arch(name, suffix, _LIMITS[capability], frozenset(features))


def _suffixes(capability: tuple[int, int]) -> tuple[str, ...]:
    if capability < (9, 0):
        return ("",)
    return ("", "a") if capability < (10, 0) else ("", "a", "f")


ARCHS: dict[str, Arch] = {a.name: a for cc in _LIMITS for a in (_arch(cc, s) for s in _suffixes(cc))}
# Toolkits before CUDA 13 call compute capability 11.0 10.1.
_RENAMED = {"sm_101": "sm_110", "sm_101a": "sm_110a", "sm_101f": "sm_110f"}


def find(name: str) -> Arch:
    """The architecture called `name` ("sm_90a"; "compute_90a", "90a" and "9.0a" mean the same)."""
    match = re.fullmatch(r"(?:sm_|compute_)?(\d+)(?:\.(\d))?([af]?)", str(name).strip().lower())
    if match:
        number = match[1] + (match[2] or "")
        canonical = f"sm_{number}{match[3]}"
        found = ARCHS.get(_RENAMED.get(canonical, canonical))
        if found:
            return found
    raise UsageError(f"no such architecture: {str(name)!r}; one of {', '.join(ARCHS)}")


def runs_on(target: Arch, device: Arch) -> bool:
    """Whether a part with `device`'s compute capability runs PTX whose .target is `target` (PTX ISA, .target)."""
    if target.suffix == "a":
        return target.compute_capability == device.compute_capability
    if target.suffix == "f":
        same = target.compute_capability[0] == device.compute_capability[0]
        return same and device.compute_capability >= target.compute_capability
    return device.compute_capability >= target.compute_capability


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def warps_by_registers(registers_per_thread: int) -> int:
    """Warps that an SM's registers hold: each warp's share is rounded up, and each sub-partition holds whole warps."""
    if registers_per_thread <= 0:
        return REGISTERS_PER_SM
    a_warp = _round_up(registers_per_thread * WARP_SIZE, REGISTER_GRANULARITY)
    return REGISTERS_PER_SM // SUB_PARTITIONS // a_warp * SUB_PARTITIONS


@dataclass(frozen=True)
class Occupancy:
    """CTAs resident on an SM and what limits them; a limit that does not apply is the hardware's own maximum."""

    ctas: int
    by_ctas: int
    by_threads: int
    by_registers: int
    by_smem: int

    @property
    def limited_by(self) -> str:
        limits = {"shared memory": self.by_smem, "registers": self.by_registers, "threads": self.by_threads}
        return next((name for name, n in limits.items() if n == self.ctas), "CTAs per SM")


def occupancy(arch: Arch, threads: int, registers: int = 0, smem: int = 0) -> Occupancy:
    """How many CTAs of `threads` threads, `registers` a thread and `smem` bytes (static and dynamic) fit on an SM.

    The L1 carve-out is taken at its largest, as the driver does by default. Named barriers are not counted.
    """
    limits = arch.limits
    warps = -(-threads // WARP_SIZE)
    if not 1 <= threads <= MAX_BLOCK_THREADS:
        raise UsageError(f"a CTA has 1 to {MAX_BLOCK_THREADS} threads, not {threads}")
    by_threads = limits.max_threads // WARP_SIZE // warps
    by_registers = limits.max_ctas
    if registers > 0:
        held = warps_by_registers(registers)
        # The launch check assumes that a CTA takes warps of all sub-partitions alike.
        fits = registers <= MAX_REGISTERS_PER_THREAD and _round_up(warps, SUB_PARTITIONS) <= held
        by_registers = held // warps if fits else 0
    by_smem = limits.max_ctas
    if smem > arch.smem_per_cta:
        by_smem = 0
    elif smem + limits.reserved_smem > 0:
        by_smem = limits.smem_per_sm // _round_up(smem + limits.reserved_smem, limits.smem_granularity)
    ctas = min(limits.max_ctas, by_threads, by_registers, by_smem)
    return Occupancy(ctas, limits.max_ctas, by_threads, by_registers, by_smem)


@dataclass(frozen=True)
class KernelLimits:
    """What a kernel's PTX directives and its machine code say about launches (PTX ISA, Performance-Tuning and Cluster
    Dimension Directives). registers: a thread's, from the cubin; None where only PTX is known. static_smem in bytes.
    """

    static_smem: int = 0
    registers: int | None = None
    reqntid: tuple[int, ...] | None = None
    maxntid: tuple[int, ...] | None = None
    reqnctapercluster: tuple[int, ...] | None = None
    maxclusterrank: int | None = None
    explicitcluster: bool = False
    barriers: int | None = None


def check_launch(
    arch: Arch,
    grid: Dim3,
    block: Dim3,
    cluster: Dim3 | None = None,
    dynamic_smem: int = 0,
    kernel: KernelLimits | None = None,
    *,
    nonportable_cluster: bool = True,
    name: str = "kernel",
) -> tuple[int, int, int]:
    """The cluster shape of the launch; raises where the hardware or the driver would refuse it, naming the rule.

    cluster: None or (1, 1, 1) where the launch has no cluster attribute. nonportable_cluster: the kernel opted in to
    more than 8 CTAs. Dynamic shared memory above 48 KB is taken as opted in to.
    UsageError: a grid, block or cluster that no kernel could have on `arch`. KernelError: one that this kernel cannot.
    """
    kernel = kernel or KernelLimits()
    for what, shape, most in (("grid", grid, MAX_GRID), ("block", block, MAX_BLOCK)):
        _check_shape(name, what, shape, most)
    if prod(block) > MAX_BLOCK_THREADS:
        raise UsageError(f"{name}: block {_show(block)} has {prod(block)} threads; at most {MAX_BLOCK_THREADS}")
    shape = _check_cluster(arch, name, grid, cluster, kernel, nonportable_cluster)
    _check_threads(name, block, kernel)
    _check_smem(arch, name, kernel.static_smem, dynamic_smem)
    return shape


def check_cooperative(
    arch: Arch,
    grid: Dim3,
    block: Dim3,
    smem: int,
    registers: int = 0,
    *,
    sm_count: int | None = None,
    name: str = "kernel",
) -> None:
    """CooperativeTooLarge where the CTAs of a cooperative launch are not all resident at once (the driver's error 720).

    smem: static and dynamic bytes a CTA. registers: a thread's. sm_count: SMs, where not the reference part's.
    """
    fits = occupancy(arch, prod(block), registers, smem)
    resident = fits.ctas * (sm_count or arch.sm_count)
    if prod(grid) > resident:
        raise CooperativeTooLarge(
            f"{name}: cooperative launch of {prod(grid)} CTAs, and {arch.name} holds {resident} at once"
            f" ({fits.ctas} per SM, limited by {fits.limited_by})"
        )


def _show(shape: Dim3) -> str:
    return "x".join(map(str, shape))


def _pad(shape: Sequence[int]) -> tuple[int, int, int]:
    x, y, z = (*shape, 1, 1, 1)[:3]
    return (x, y, z)


def _check_shape(name: str, what: str, shape: Dim3, most: tuple[int, int, int]) -> None:
    if len(shape) != 3:
        raise UsageError(f"{name}: {what} must have three numbers, not {tuple(shape)}")
    for axis, n, limit in zip("xyz", shape, most):
        if not 1 <= n <= limit:
            raise UsageError(f"{name}: {what}.{axis} = {n} must be 1 to {limit}")


def _check_cluster(
    arch: Arch, name: str, grid: Dim3, cluster: Dim3 | None, kernel: KernelLimits, nonportable: bool
) -> tuple[int, int, int]:
    given = _pad(cluster) if cluster is not None else (1, 1, 1)
    required = _pad(kernel.reqnctapercluster) if kernel.reqnctapercluster else None
    if min(given) < 1:
        raise UsageError(f"{name}: cluster {_show(given)} must be 1 or more along each axis")
    if required and given not in (required, (1, 1, 1)):
        raise KernelError(f"{name}: cluster {_show(given)} but the kernel has .reqnctapercluster {_show(required)}")
    if kernel.explicitcluster and required is None and (cluster is None or given == (1, 1, 1)):
        raise KernelError(f"{name}: the kernel has .explicitcluster; launch it with a cluster shape")
    shape = required or given
    size = prod(shape)
    if size > 1 and "clusters" not in arch:
        raise UsageError(f"{name}: {arch} has no clusters (cluster {_show(shape)}); they need sm_90 or later")
    if kernel.maxclusterrank and size > kernel.maxclusterrank:
        raise KernelError(
            f"{name}: cluster {_show(shape)} exceeds the kernel's .maxclusterrank {kernel.maxclusterrank}"
        )
    most = arch.max_cluster if nonportable else min(arch.max_cluster, PORTABLE_CLUSTER)
    if size > most:
        hint = "" if nonportable or size > arch.max_cluster else " without the non-portable cluster size attribute"
        raise UsageError(f"{name}: cluster {_show(shape)} has {size} CTAs; {arch} takes {most}{hint}")
    if any(g % c for g, c in zip(grid, shape)):
        raise UsageError(f"{name}: grid {_show(grid)} is no multiple of the cluster {_show(shape)}")
    return shape


def _check_threads(name: str, block: Dim3, kernel: KernelLimits) -> None:
    threads = prod(block)
    if kernel.reqntid and _pad(kernel.reqntid) != tuple(block):
        raise KernelError(f"{name}: block {_show(block)} but the kernel has .reqntid {_show(_pad(kernel.reqntid))}")
    if kernel.maxntid and threads > prod(kernel.maxntid):
        raise KernelError(f"{name}: block {_show(block)} exceeds the kernel's .maxntid {_show(_pad(kernel.maxntid))}")
    if kernel.registers is None:
        return
    if kernel.registers > MAX_REGISTERS_PER_THREAD:
        raise KernelError(f"{name}: {kernel.registers} registers a thread; at most {MAX_REGISTERS_PER_THREAD}")
    held = warps_by_registers(kernel.registers) * WARP_SIZE
    if _round_up(threads, WARP_SIZE * SUB_PARTITIONS) > held:
        raise KernelError(
            f"{name}: {threads} threads of {kernel.registers} registers exceed the SM's {REGISTERS_PER_SM}: "
            f"at most {held} threads (.maxnreg or a smaller block)"
        )


def _check_smem(arch: Arch, name: str, static: int, dynamic: int) -> None:
    if dynamic < 0:
        raise UsageError(f"{name}: dynamic shared memory of {dynamic} bytes")
    if static > STATIC_SMEM_LIMIT:
        raise KernelError(
            f"{name}: {static} bytes of static shared memory; at most {STATIC_SMEM_LIMIT}, make it dynamic"
        )
    total = static + dynamic
    if total > arch.smem_per_cta:
        raise KernelError(
            f"{name}: {total} bytes of shared memory ({static} static + {dynamic} dynamic); "
            f"{arch} has {arch.smem_per_cta} a CTA: fewer stages or a smaller tile"
        )
