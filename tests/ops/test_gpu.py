"""The op on the GPU that is here (`pytest --on gpu`)."""

from __future__ import annotations

import pytest

from tests.ops import grouped_on_gpu, on_gpu

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("check", [*on_gpu.CHECKS, *grouped_on_gpu.CHECKS], ids=lambda check: check.__name__)
def test_on_a_gpu(check):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    torch.manual_seed(0)
    check()
