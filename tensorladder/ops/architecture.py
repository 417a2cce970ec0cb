"""The architecture that a call's kernels are compiled for: its GPU's, or that of the virtual GPU that is asked for.

TENSORLADDER_DEVICE=vgpu runs calls with CPU tensors on the virtual GPU; vgpu:lazy, vgpu:timed and vgpu:random:N say
when its asynchronous effects happen, vgpu@sm_100a (and vgpu@sm_100a:lazy) which GPU it is. TENSORLADDER_ARCH says the
latter too, for all that do not. Only kernels for sm_90a have been timed on a GPU.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from tensorladder.core import arch as archs
from tensorladder.core.errors import UsageError
from tensorladder.measure.request import parse_policy

DEFAULT = "sm_90a"  # of the virtual GPU
MEASURED = ("sm_90a",)

#: What runs on which compute capability (None: any minor one). Code for "sm_90a" and "sm_100a" runs on that one alone.
GPUS: dict[tuple[int, int | None], str] = {
    (8, None): "sm_80",
    (9, 0): "sm_90a",
    (10, 0): "sm_100a",
    (12, None): "sm_120",
}
SUPPORTED = tuple(GPUS.values())


class Virtual(NamedTuple):
    """A virtual GPU: its architecture, and the policy of its asynchronous effects."""

    arch: str
    policy: str

    @property
    def sm_count(self) -> int:
        """SMs of the architecture's reference part."""
        return archs.find(self.arch).sm_count


def of_gpu(capability: tuple[int, int]) -> str:
    """What to compile for on a GPU. UsageError where no kernels run on it."""
    major, minor = capability
    found = GPUS.get((major, minor)) or GPUS.get((major, None))
    if found is None:
        known = ", ".join(f"{x}.{'x' if y is None else y}" for x, y in GPUS)
        raise UsageError(f"the GPU here has compute capability {major}.{minor}: there are kernels for {known}")
    return found


def virtual() -> Virtual | None:
    """The virtual GPU that TENSORLADDER_DEVICE asks for; None where it does not."""
    place, _, policy = os.environ.get("TENSORLADDER_DEVICE", "").strip().lower().partition(":")
    place, at, arch = place.partition("@")
    if place in ("", "cuda", "gpu") and not at:
        return None
    if place != "vgpu":
        raise UsageError(
            f"TENSORLADDER_DEVICE={place + at + arch!r}: it takes vgpu (or vgpu:lazy, vgpu@sm_100a:random:7), or cuda"
        )
    name = "TENSORLADDER_DEVICE" if at else "TENSORLADDER_ARCH"
    asked = arch if at else os.environ.get(name, "").strip().lower() or DEFAULT
    policy = parse_policy(policy or "eager", f"TENSORLADDER_DEVICE={f'vgpu:{policy}'!r}", "vgpu:")
    return Virtual(_supported(name, asked), policy)


def _supported(name: str, asked: str) -> str:
    """The name of what is compiled for an architecture. UsageError where there are no kernels for it."""
    takes = f"it takes {', '.join(SUPPORTED)}"
    try:
        found = archs.find(asked)
    except UsageError:
        raise UsageError(f"{name}: no architecture is called {asked!r}: {takes}") from None
    of = GPUS.get(found.compute_capability) or GPUS.get((found.compute_capability[0], None))
    if of is None:
        raise UsageError(f"{name}: there are no kernels for {asked}: {takes}")
    return of
