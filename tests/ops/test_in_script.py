"""The op in a script that has the virtual GPU for its CUDA device (`tensorladder exec`, `pytest --vgpu`)."""

from __future__ import annotations

import textwrap

import pytest

pytest.importorskip("cutlass")
pytest.importorskip("llvmlite")
pytest.importorskip("torch")

import tensorladder.ops  # noqa: F401  (before any script)
from tensorladder.core.errors import UsageError
from tensorladder.measure.scripts import run_script, unchecked
from tensorladder.vgpu.check import Checker

HEAD = """
import tensorladder as tl
import torch

def close(found, expected):
    assert found.is_cuda and (found.float() - expected).norm() < 2e-3 * expected.norm()

a, b = torch.randn(40, 72, device="cuda").half(), torch.randn(72, 136, device="cuda").half()
product = a.float() @ b.float()
"""
PRODUCTS = """
out = torch.empty(40, 136, device="cuda", dtype=torch.half)
assert tl.matmul(a, b, out=out, alpha=0.5) is out
close(out, 0.5 * product)

side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    found = tl.matmul(a, b) + 1
torch.cuda.current_stream().wait_stream(side)
close(found, product + 1)

graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    found = tl.matmul(a, b, alpha=2.0)
b.mul_(2)
graph.replay()
close(found, 4 * product)

a.requires_grad_()
tl.matmul(a, b).sum().backward()
close(a.grad, b.float().sum(1).expand(40, 72))

ends = torch.tensor([10, 40], dtype=torch.int32, device="cuda")
found = tl.grouped_matmul(a.detach(), torch.stack((b, -b)), ends)
close(found, 2 * torch.cat((product[:10], -product[10:])))
"""
RACE = """
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    tl.matmul(a, b)
torch.cuda.synchronize()
"""


def run(tmp_path, text: str, **options) -> int:
    script = tmp_path / "script.py"
    script.write_text(HEAD + textwrap.dedent(text))
    return run_script(script, **options)


def test_products_of_device_tensors(tmp_path) -> None:
    """On the current stream, into a graph, with gradients; all of it is seen by the checker."""
    checker = Checker()
    with unchecked() as unseen:
        assert run(tmp_path, PRODUCTS, checker=checker) == 0
    assert checker.report("script").findings == () and unseen.launches == 0


def test_a_stream_that_waits_for_nothing(tmp_path) -> None:
    """The operands may not be there yet: the product is on the stream that is current."""
    checker = Checker()
    assert run(tmp_path, RACE, checker=checker) == 0
    assert {finding.kind for finding in checker.report("script").findings} == {"race"}


def test_what_a_gpu_has_no_kernel_for(tmp_path) -> None:
    with pytest.raises(UsageError, match=r"the GPU here has compute capability 10\.3"):
        run(tmp_path, "tl.matmul(a, b)", arch="sm_103a")
