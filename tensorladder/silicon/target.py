"""A real GPU as the harness's place to run: device arrays by torch, launches by the driver, times by events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorladder.core.errors import MissingExtra, UsageError
from tensorladder.core.program import Program
from tensorladder.silicon import driver


def archs_for(archs: Sequence[str]) -> tuple[str, ...]:
    """Those of `archs` whose machine code the GPU here runs. UsageError where there is no GPU."""
    have = driver.capability()
    return tuple(arch for arch in archs if driver.runs_on(arch, have))


def arch_for(archs: Sequence[str]) -> str:
    """The first of `archs` whose machine code the GPU here runs. UsageError where there is none, or no GPU."""
    usable = archs_for(archs)
    if usable:
        return usable[0]
    major, minor = driver.capability()
    raise UsageError(f"the GPU here is sm_{major}{minor}, this compiles for {', '.join(archs)}: use --on vgpu")


class Target:
    """Arrays are made in host memory, copied to the GPU for the run, and the outputs copied back.

    Raises UsageError where there is no GPU or it cannot run `arch`, MissingExtra where torch is absent or has no CUDA.
    """

    def __init__(self, arch: str) -> None:
        arch_for((arch,))
        self.torch = cuda_torch()

    @property
    def allocate(self) -> Any:
        from tensorladder.problems import numpy_empty

        return numpy_empty

    def run(self, program: Program, case: Any) -> tuple[float, float]:
        """Launch on the case's arrays; (seconds of the launch alone by events, 0)."""
        torch = self.torch
        tensors = {name: upload(torch, array) for name, array in case.arrays.items()}
        stream = driver.Stream(torch.cuda.current_stream().cuda_stream)
        program(stream, *tensors.values())
        stream.prepare()
        return self._timed(stream.submit, tensors, case), 0.0

    def run_packed(self, kernel: Any, case: Any) -> tuple[float, float]:
        """The same with a kernel of a pack (`silicon.pack.Kernel`)."""
        tensors = {name: upload(self.torch, array) for name, array in case.arrays.items()}
        submit = kernel.bind(self.torch.cuda.current_stream().cuda_stream, *tensors.values())
        return self._timed(submit, tensors, case), 0.0

    def _timed(self, submit: Callable[[], None], tensors: dict[str, Any], case: Any) -> float:
        """Seconds of what `submit` launches, by events; the tensors are copied back into the case's arrays."""
        torch = self.torch
        torch.cuda.synchronize()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        submit()
        end.record()
        torch.cuda.synchronize()
        for name in case.arrays:
            download(torch, tensors[name], case.arrays[name])
        return start.elapsed_time(end) / 1e3


def upload(torch: Any, array: np.ndarray) -> Any:
    """A CUDA tensor of the array's type, shape, strides and bits."""
    dtype = _torch_dtype(torch, array.dtype)
    flat = torch.from_numpy(_bytes(array)).cuda().view(dtype)
    strides = [stride // array.itemsize for stride in array.strides]
    return flat.as_strided(array.shape, strides)


def download(torch: Any, tensor: Any, array: np.ndarray) -> None:
    """Copy the bits of a tensor made by `upload` back into its array."""
    flat = tensor.as_strided((tensor.numel(),), (1,))
    _bytes(array)[...] = flat.view(torch.uint8).cpu().numpy()


def _bytes(array: np.ndarray) -> np.ndarray:
    """The memory of a dense array (row- or column-major) as bytes, in memory order."""
    dense = array if array.flags.c_contiguous else array.T
    if not dense.flags.c_contiguous:
        raise UsageError(f"an array of strides {array.strides} is not dense: copy it first")
    return dense.reshape(-1).view(np.uint8)


def _torch_dtype(torch: Any, dtype: np.dtype) -> Any:
    """torch's type of the same name; ml_dtypes' fp8 names differ from torch's by nothing but underscores."""
    found = getattr(torch, dtype.name, None)
    if found is None:
        raise UsageError(f"dtype {dtype.name} has no counterpart in torch")
    return found


def cuda_torch() -> Any:
    """The module torch, with a GPU in it. MissingExtra without it, UsageError where it finds no GPU."""
    try:
        import torch
    except ModuleNotFoundError as error:
        raise MissingExtra("torch", "torch") from error
    if not torch.cuda.is_available():
        raise UsageError("torch here was built without CUDA or finds no GPU: use --on vgpu")
    return torch
