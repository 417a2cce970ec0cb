"""Where the stand-in for a GPU's host side ends: what torch and others say there, and what it means to a person."""

from __future__ import annotations

import re
import traceback

_GAPS = (
    (
        r"Torch not compiled with CUDA enabled|'torch\._C' has no attribute '_(cuda|nccl)|dummy base class"
        r"|PyTorch (is not linked with|was compiled without) (support for cuda|CUDA)|without ATen_cuda",
        "a part of torch.cuda that is not stood in for",
    ),
    (
        r"Found no NVIDIA driver|NVIDIA driver library|libcuda\.so|CUDA_ERROR_NO_DEVICE",
        "native code that calls the driver past its Python interface (as numba-cuda and PyCUDA do)",
    ),
    (r"out of memory|can't allocate memory", "more memory than there is here"),
    (r"from the 'CUDA' backend", "an operator that torch has for CUDA alone"),
    (r"not implemented for '(Half|BFloat16|Float8\w*|Float4\w*)'", "an operator torch lacks on the CPU"),
)


def gap_of(error: BaseException) -> str | None:
    """What `error` says is not stood in for, with its own first line; None for any other error."""
    text = str(error).strip().partition("\n")[0]
    return next((f"{meaning}: {text}" for said, meaning in _GAPS if re.search(said, text)), None)


def line_in(error: BaseException, script: str) -> str:
    """`script:line` of the innermost place in a script that an error came through; "" where there is none."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == script]
    return f"{script}:{lines[-1]}" if lines else ""
