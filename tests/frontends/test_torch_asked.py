"""What scripts ask of torch's CUDA side besides tensors and streams: answered, or refused by name."""

from __future__ import annotations

import textwrap

import pytest

pytest.importorskip("llvmlite")
pytest.importorskip("torch")

from tensorladder.core.errors import Unsupported
from tensorladder.measure.scripts import run_script

ANSWERED = """
import torch

x = torch.rand(8, device="cuda")
torch.cuda.manual_seed(3)
state = torch.cuda.get_rng_state()
first = torch.rand(4, device="cuda")
torch.cuda.set_rng_state(state)
with torch.random.fork_rng(devices=[0]):
    assert (torch.rand(4, device="cuda") == first).all()
assert (torch.rand(4, device="cuda") == first).all() and torch.cuda.initial_seed() == 3

for made in (torch.from_dlpack(x), torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x))):
    assert made.is_cuda and made.data_ptr() == x.data_ptr()
assert not torch.from_dlpack(torch.ones(2)).is_cuda

if hasattr(torch, "accelerator"):
    assert torch.accelerator.is_available() and torch.accelerator.device_count() == 1
    torch.accelerator.synchronize()
    torch.accelerator.set_device_index("cuda:0")
    assert torch.accelerator.current_device_index() == 0
    assert torch.accelerator.current_stream() == torch.cuda.current_stream()
with torch.cuda.device_of(x), torch.cuda.stream(torch.cuda.Stream()) as _:
    assert torch._C._cuda_getCurrentRawStream(0) == torch.cuda.current_stream().cuda_stream != 0
assert torch.cuda.Stream.priority_range()[0] == 0
torch.cuda.profiler.start(), torch.cuda.profiler.stop(), torch.cuda.cudart().cudaProfilerStart()
assert torch.cuda.get_device_properties(0).clock_rate > 0
assert torch.cuda.get_device_name("cuda") == torch.cuda.get_device_name(0)

accelerator = [lambda: torch.accelerator.set_device_index(1)] if hasattr(torch, "accelerator") else []
for asked in (
    lambda: torch.ones(2, device="cuda:1"), lambda: torch.ones(2).cuda(1), lambda: torch.ones(2).to("cuda:3"),
    lambda: torch.cuda.set_device(1), lambda: torch.cuda.get_device_name(2), lambda: torch.cuda.device(1),
    lambda: torch._C._cuda_setDevice(1), lambda: torch.cuda.synchronize(1), lambda: torch.cuda.current_stream("cuda:1"),
    lambda: torch.cuda.memory_allocated(1), *accelerator,
):
    try:
        asked()
    except RuntimeError as error:
        assert "invalid device ordinal" in str(error)
    else:
        raise AssertionError(asked)
"""
REFUSED = {
    "torch.cuda.memory_summary()": r"torch\.cuda\.memory_summary is not modelled",
    "torch.cuda.cudart().cudaHostRegister(0, 0, 0)": r"cudart\(\)\.cudaHostRegister is not modelled",
    "torch.cuda.get_device_properties(0).uuid": r"get_device_properties\(\)\.uuid is not modelled",
    "torch.Stream(device='cuda')": "a part of torch.cuda that is not stood in for",
}


def run(tmp_path, text: str) -> int:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(text))
    return run_script(script)


def test_what_is_answered(tmp_path) -> None:
    import torch

    before = hasattr(torch._C, "_cuda_getCurrentRawStream")
    assert run(tmp_path, ANSWERED) == 0
    assert hasattr(torch._C, "_cuda_getCurrentRawStream") == before


@pytest.mark.parametrize("asked", REFUSED)
def test_what_is_refused(tmp_path, asked: str) -> None:
    with pytest.raises(Unsupported, match=REFUSED[asked]):
        run(tmp_path, f"import torch\n{asked}\n")
