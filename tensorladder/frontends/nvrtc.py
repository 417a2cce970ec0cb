"""CUDA C++ front end: source in, `Module` out, through NVRTC and so with no GPU, driver or nvcc.

libnvrtc comes from the package nvidia-cuda-nvrtc (extra `cuda`), a CUDA toolkit, or the loader's path. The few
functions needed are called through ctypes (nvrtc.h, "Compilation").
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any

from ..core.arch import find
from ..core.errors import MissingExtra, UsageError
from ..core.program import Module

_PACKAGES = ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu13", "nvidia-cuda-nvrtc-cu12")
_HEADER_PACKAGES = ("nvidia-cuda-runtime", "nvidia-cuda-cccl", "nvidia-cuda-runtime-cu12", "nvidia-cuda-cccl-cu12")
_ERROR_LINE = re.compile(r"^(?P<where>[^\s(]+)\((?P<line>\d+)\): (?:catastrophic )?error: (?P<what>.+)$", re.M)


def compile_cuda(
    source: str,
    arch: str,
    options: Sequence[str] = (),
    name: str = "kernel.cu",
    headers: Mapping[str, str] | None = None,
) -> Module:
    """Compile CUDA C++ text for `arch` ("sm_90a"): PTX with line information, and the cubin that belongs to it.

    options: further NVRTC options ("-std=c++20", "-I/path"). Kernels declared extern "C" keep their names. headers:
    texts by the name that they are included by. Those of a CUDA toolkit or of the packages nvidia-cuda-runtime and
    nvidia-cuda-cccl are found by themselves.
    UsageError with the first error line where the source does not compile.
    """
    return compile_named(source, arch, options, name, headers)[0]


def compile_named(
    source: str,
    arch: str,
    options: Sequence[str] = (),
    name: str = "kernel.cu",
    headers: Mapping[str, str] | None = None,
    expressions: Sequence[str] = (),
) -> tuple[Module, dict[str, str]]:
    """`compile_cuda`, and the names in the PTX of `expressions` ("scale<float>", "kernels::copy"), which it
    instantiates (NVRTC, "Accessing Lowered Names").

    UsageError, too, for an expression that names nothing.
    """
    arch = find(arch).name
    nvrtc = _library()
    program = ctypes.c_void_p()
    given = headers or {}
    texts, names = _strings(given.values()), _strings(given.keys())
    made = nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), name.encode(), len(given), texts, names)
    _check(nvrtc, made, arch)
    try:
        for expression in expressions:
            _check(nvrtc, nvrtc.nvrtcAddNameExpression(program, expression.encode()), f"the name {expression!r}")
        words = [f"-arch={arch}", "-lineinfo", *options, *(f"-I{folder}" for folder in header_folders())]
        code = nvrtc.nvrtcCompileProgram(program, len(words), _strings(words))
        if code:
            log = _text(nvrtc, program, "ProgramLog")
            raise UsageError(_first_error(log, name) or f"{name}: NVRTC: {_message(nvrtc, code)}{_tail(log)}")
        ptx = _text(nvrtc, program, "PTX")
        cubin = _bytes(nvrtc, program, "CUBIN")
        lowered = {expression: _lowered(nvrtc, program, expression) for expression in expressions}
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return Module(ptx, arch, cubin or None, name), lowered


def _lowered(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, expression: str) -> str:
    found = ctypes.c_char_p()
    code = nvrtc.nvrtcGetLoweredName(program, expression.encode(), ctypes.byref(found))
    _check(nvrtc, code, f"the name {expression!r}")
    assert found.value is not None
    return found.value.decode()


def _strings(texts: Collection[str]) -> Any:
    """A C array of strings."""
    return (ctypes.c_char_p * len(texts))(*(text.encode() for text in texts))


def header_folders() -> tuple[str, ...]:
    """Folders with CUDA headers on this machine: of packages first, then of the toolkit that nvcc belongs to."""
    found: list[str] = []
    for package in _HEADER_PACKAGES:
        for path in _package_files(package):
            if path.name in ("cuda_runtime.h", "version") and path.parent.name in ("include", "cuda"):
                found.append(str(path.parent if path.parent.name == "include" else path.parent.parent))
    nvcc = shutil.which("nvcc")
    homes = [os.environ.get("CUDA_HOME"), str(Path(nvcc).resolve().parents[1]) if nvcc else None, "/usr/local/cuda"]
    for home in homes:
        for include in (f"{home}/include", f"{home}/include/cccl") if home else ():
            if os.path.exists(f"{include}/cuda_runtime.h") or os.path.exists(f"{include}/cuda/version"):
                found.append(include)
    return tuple(dict.fromkeys(found))


def _package_files(package: str) -> Iterator[Path]:
    try:
        listed = files(package) or []
    except PackageNotFoundError:
        return
    yield from (Path(str(entry.locate())) for entry in listed)


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    candidates = [
        str(path) for package in _PACKAGES for path in _package_files(package) if re.match(r"libnvrtc\.so", path.name)
    ]
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    candidates += [f"{home}/lib64/libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"]
    for candidate in candidates:
        try:
            return ctypes.CDLL(candidate)
        except OSError:
            continue
    raise MissingExtra("NVRTC (package nvidia-cuda-nvrtc)", "cuda")


def _message(nvrtc: ctypes.CDLL, code: int) -> str:
    nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
    return nvrtc.nvrtcGetErrorString(code).decode()


def _check(nvrtc: ctypes.CDLL, code: int, what: str) -> None:
    if code:
        raise UsageError(f"NVRTC refuses {what}: {_message(nvrtc, code)}")


def _bytes(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    _check(nvrtc, getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)), what)
    buffer = ctypes.create_string_buffer(size.value)
    _check(nvrtc, getattr(nvrtc, f"nvrtcGet{what}")(program, buffer), what)
    return buffer.raw


def _text(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> str:
    return _bytes(nvrtc, program, what).rstrip(b"\0").decode(errors="replace")


def _first_error(log: str, name: str) -> str | None:
    found = _ERROR_LINE.search(log)
    if not found:
        return None
    header = re.search(r'(?:cannot|could not) open source file "([^"]+)"', found["what"])
    hint = "" if not header else _missing_header(header[1])
    return f"{found['where']}:{found['line']}: {found['what'].strip()}{hint}"


def _missing_header(header: str) -> str:
    if header_folders():
        return ": give its folder as the option -I"
    return ": no CUDA headers here: pip install nvidia-cuda-runtime nvidia-cuda-cccl, or give the option -I"


def _tail(log: str) -> str:
    first = next((line for line in log.splitlines() if line.strip()), "")
    return f": {first}" if first else ""
