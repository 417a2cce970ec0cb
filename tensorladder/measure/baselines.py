"""What kernels are measured against: cuBLAS through `torch.mm`, and QuACK where it is installed.

A baseline gets the very tensors that the kernel gets, by the problem's names (A (M, K), B (N, K), C (M, N), R (N)),
and returns a call that computes C.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import re
from collections.abc import Callable, Mapping
from typing import Any

Call = Callable[[], None]
Tensors = Mapping[str, Any]


def _cublas(problem: str, torch: Any, t: Tensors) -> Call | None:
    b = t["B"].t()
    if problem == "gemm" and t["A"].element_size() == 1:
        # cuBLASLt, by torch's one function for fp8: a scale is asked for, and fast accumulation is what kernels do too.
        one = torch.ones((), device="cuda")
        options = {"out_dtype": t["C"].dtype, "use_fast_accum": True, "out": t["C"]}
        return lambda: torch._scaled_mm(t["A"], b, one, one, **options)
    if problem == "gemm":
        return lambda: torch.mm(t["A"], b, out=t["C"])
    if problem == "gemm_colwise_scale":
        # torch has no such epilogue: a product, and a pass over C.
        def scaled() -> None:
            torch.mm(t["A"], b, out=t["C"])
            t["C"].mul_(t["R"])

        return scaled
    return None


def _quack(problem: str, torch: Any, t: Tensors) -> Call | None:
    if problem != "gemm" or importlib.util.find_spec("quack") is None:
        return None
    if t["A"].dtype not in (torch.float16, torch.bfloat16):
        return None
    from quack.gemm_interface import gemm

    b = t["B"].t()
    return lambda: gemm(t["A"], b, out=t["C"], tuned=True)


#: name -> how a call on these tensors is made (None: it does not do this problem, or is not installed); cuBLAS first
BASELINES: dict[str, Callable[[str, Any, Tensors], Call | None]] = {"cublas": _cublas, "quack": _quack}


def versions(torch: Any) -> dict[str, str | None]:
    """Versions of the baselines and what they stand on."""
    ours = {"cublas": _cublas_version(), "quack": _quack_version()}
    return {"torch": torch.__version__, "cuda": torch.version.cuda, **ours}


def _cublas_version() -> str | None:
    """Of the library that is loaded in this process (torch loads it at the first product)."""
    try:
        with open("/proc/self/maps", encoding="utf-8") as maps:
            found = re.search(r"/\S*libcublas\.so\S*", maps.read())
    except OSError:
        return None
    if not found:
        return None
    library, parts = ctypes.CDLL(found[0]), []
    for which in range(3):  # libraryPropertyType: major, minor, patch
        value = ctypes.c_int()
        if library.cublasGetProperty(which, ctypes.byref(value)):
            return None
        parts.append(str(value.value))
    return ".".join(parts)


def _quack_version() -> str | None:
    try:
        return importlib.metadata.version("quack-kernels")
    except importlib.metadata.PackageNotFoundError:
        return None
