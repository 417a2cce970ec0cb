"""CUDA C++ kernels in files of their own: a .cu and how to launch it in, a `Program` out.

    program = compile_file("scale.cu", call, arch="sm_90a", name="scale", defines={"ROWS": 4})
    program(stream, x, y)               # call(x, y) says grid, block and parameters; the launch is enqueued

Extents are ordinary kernel parameters, so that one compilation serves every shape. Nothing of torch is needed, nor a
CUDA header, unless the source includes one.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core import dlpack
from ..core.arch import check_launch, find
from ..core.errors import UsageError
from ..core.program import Dim3, Launch, Module, Program, Stream
from . import nvrtc
from .ptxparams import Entry, entry

Parameter = int | float | bytes
"""Of a kernel: an address or an integer, a float, or bytes as they are (a tensor map, a struct)."""


@dataclass(frozen=True)
class Call:
    """What one call launches: extents in CTAs and threads, the kernel's parameters in order, dynamic shared memory in
    bytes, the cluster."""

    grid: Dim3
    block: Dim3
    params: tuple[Parameter, ...]
    smem: int = 0
    cluster: Dim3 = (1, 1, 1)


def compile_file(
    source: str | Path,
    call: Callable[..., Call],
    *,
    arch: str,
    name: str,
    defines: Mapping[str, Any] | None = None,
    kernel: str = "kernel",
) -> Program:
    """Compile a .cu file for `arch`; `call` gets `dlpack.View`s of the arrays that the program is called with.

    defines: macros, TILE=64 as {"TILE": 64}. kernel: the extern "C" __global__ function that is launched. Headers
    beside the file are found. UsageError where the file cannot be read or does not compile, MissingExtra without NVRTC.
    """
    path = Path(source)
    arch = find(arch).name
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    start = time.perf_counter()
    options = ["-std=c++17", f"-I{path.parent}", *(f"-D{key}={value}" for key, value in (defines or {}).items())]
    module = nvrtc.compile_cuda(text, arch, options, str(path))
    host = _Host(module, kernel, entry(module.ptx, kernel), call, name)
    return Program(name, arch, (module,), host, time.perf_counter() - start)


@dataclass(frozen=True)
class _Host:
    """A program's host part: one launch a call."""

    module: Module
    kernel: str
    head: Entry
    call: Callable[..., Call]
    name: str

    def __call__(self, stream: Stream, *arrays: Any) -> None:
        asked = self.call(*(dlpack.view(array) for array in arrays))
        check_launch(find(self.module.arch), asked.grid, asked.block, asked.cluster, asked.smem, name=self.name)
        params = pack(self.head, asked.params, self.name)
        stream.enqueue(Launch(self.module, self.kernel, asked.grid, asked.block, params, asked.smem, asked.cluster))


def pack(head: Entry, params: tuple[Parameter, ...], name: str) -> bytes:
    """A parameter block: each value at the offset and in the size that the kernel's head says.

    UsageError where their number, or a size, is not the kernel's.
    """
    if len(params) != len(head.params):
        raise UsageError(f"{name}: the kernel has {len(head.params)} parameters, {len(params)} were given")
    block = bytearray(head.size)
    for index, (param, value) in enumerate(zip(head.params, params)):
        data = _bytes(value, param.size)
        if data is None:
            raise UsageError(f"{name}: parameter {index} has {param.size} bytes, {value!r:.40} does not fit")
        block[param.offset : param.offset + param.size] = data
    return bytes(block)


_FLOATS = {2: "<e", 4: "<f", 8: "<d"}


def _bytes(value: Parameter, size: int) -> bytes | None:
    """A value in `size` bytes, or None where it does not fit."""
    if isinstance(value, bytes):
        return value if len(value) == size else None
    if isinstance(value, float):
        return struct.pack(_FLOATS[size], value) if size in _FLOATS else None
    try:
        return int(value).to_bytes(size, "little", signed=value < 0)
    except OverflowError:
        return None
