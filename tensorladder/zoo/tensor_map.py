"""Tensor maps that the kernel changes: a change is released to the tensor map proxy, and acquired before the copy."""

from __future__ import annotations

from tensorladder.zoo.case import Case

CASES = [
    Case(
        name="tensor-map-not-acquired",
        wrong="a published map is used with no fence.proxy.tensormap::generic.acquire of its address",
        kind="missing-proxy-fence",
        language="cuda",
    ),
    Case(
        name="tensor-map-not-released",
        wrong="threads copy a map to global memory with plain stores and do not release it to the tensor map proxy",
        kind="missing-proxy-fence",
        language="cuda",
    ),
]
