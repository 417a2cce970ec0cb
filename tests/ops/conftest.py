"""Calls of the ops run on the virtual GPU, and are compared with float64."""

from __future__ import annotations

import pytest

ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-22}


@pytest.fixture
def vgpu(monkeypatch):
    """Sets the policy of the virtual GPU that calls run on; "random:1" until it is called."""
    torch = pytest.importorskip("torch")
    for module in ("cutlass", "llvmlite", "ml_dtypes"):
        pytest.importorskip(module)
    torch.manual_seed(0)

    def policy(name):
        monkeypatch.setenv("TENSORLADDER_DEVICE", f"vgpu:{name}")

    policy("random:1")
    return policy


@pytest.fixture
def close():
    """Whether all elements lie within a rounding of the result's type and the slack of float32 sums of such length."""

    def check(got, exact, scale=1.0):
        unit = ROUNDING[str(got.dtype).removeprefix("torch.")]
        limit = unit * exact.abs() + 2.0**-18 * scale * (1 + exact.abs().max())
        return got.shape == exact.shape and bool(((got.double() - exact).abs() <= limit).all())

    return check
