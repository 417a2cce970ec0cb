"""Modules that a script loads through `cuda.bindings`: PTX, or a cubin that NVRTC made in this process beside its PTX.

The virtual GPU runs PTX. A cubin alone cannot run: NVRTC's own calls are listened to, so that a cubin that a script got
from it is known with the PTX of the same program.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from ...core import arch as archs
from ...core import cubin
from ...core.errors import CooperativeTooLarge, UsageError
from ...core.program import Launch, Module
from .session import Session

_ELF = b"\x7fELF"
_STATIC, _REGISTERS, _MAX_THREADS, _MAX_DYNAMIC = 1, 4, 0, 8  # CUfunction_attribute
_CLUSTER = "CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION"
_FLAGS = {
    "CU_LAUNCH_ATTRIBUTE_COOPERATIVE": "cooperative",
    "CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION": "programmatic_stream_serialization",
}
# they choose among right executions
_HINTS = ("IGNORE", "PRIORITY", "ACCESS_POLICY_WINDOW", "CLUSTER_SCHEDULING_POLICY_PREFERENCE", "MEM_SYNC_DOMAIN",
          "PREFERRED_SHARED_MEMORY_CARVEOUT")  # fmt: skip


class DriverError(Exception):
    """What a call returns in place of success: a name of CUresult."""


@dataclass
class _Function:
    module: Module
    name: str
    max_dynamic_smem: int = archs.STATIC_SMEM_LIMIT


class Modules:
    """The loaded modules and functions of a script, by the handles it holds."""

    def __init__(self, session: Session):
        self._session = session
        self._handles: dict[int, Any] = {}
        self._next = itertools.count(1)
        self._ptx_of: dict[bytes, str] = {}

    def remember(self, binary: bytes, ptx: str) -> None:
        """The PTX that a cubin was made with."""
        self._ptx_of[binary.rstrip(b"\0")] = ptx

    def _handle(self, thing: Any) -> int:
        number = next(self._next)
        self._handles[number] = thing
        return number

    def _find(self, handle: Any, kind: type) -> Any:
        found = self._handles.get(int(handle))
        if not isinstance(found, kind):
            raise DriverError("CUDA_ERROR_INVALID_HANDLE")
        return found

    def load(self, image: Any, *_: Any) -> int:
        """A module's handle. Unsupported for a binary whose PTX is not known."""
        data = _image_bytes(image)
        binary = data if data.startswith(_ELF) else None
        text = self._ptx_of.get(data.rstrip(b"\0")) if binary else data.rstrip(b"\0").decode(errors="replace")
        if text is None:
            self._session.refuse("a cubin that did not come from NVRTC in this process (give its PTX)")
        target = text.partition(".target ")[2].partition("\n")[0].partition(",")[0].strip()
        if not target:
            raise DriverError("CUDA_ERROR_INVALID_IMAGE")
        arch = archs.find(target)
        if not archs.runs_on(arch, self._session.arch):
            raise UsageError(f"the module is for {arch.name}, which does not run on {self._session.arch.name}")
        return self._handle(Module(text, self._session.arch.name, binary))

    def load_file(self, path: Any) -> int:
        """A module from a file of PTX or of a cubin."""
        name = path.decode() if isinstance(path, bytes) else str(path)
        try:
            with open(name, "rb") as file:
                return self.load(file.read())
        except FileNotFoundError:
            raise DriverError("CUDA_ERROR_FILE_NOT_FOUND") from None

    def unload(self, handle: Any) -> None:
        self._find(handle, Module)
        del self._handles[int(handle)]

    def function(self, module: Any, name: Any) -> int:
        """A kernel's handle."""
        found = self._find(module, Module)
        text = name.decode() if isinstance(name, bytes) else str(name)
        if text not in _kernels(found.ptx):
            raise DriverError("CUDA_ERROR_NOT_FOUND")
        return self._handle(_Function(found, text))

    def attribute(self, attribute: Any, function: Any, *_: Any) -> int:
        """A CUfunction_attribute."""
        found = self._find(function, _Function)
        binary, number = found.module.cubin, int(attribute)
        if number == _MAX_THREADS:
            return archs.MAX_BLOCK_THREADS
        if number == _MAX_DYNAMIC:
            return found.max_dynamic_smem
        if number == _STATIC and binary:
            return cubin.static_shared_bytes(binary, found.name)
        if number == _REGISTERS and binary:
            return cubin.registers(binary, found.name) or 0
        self._session.refuse(f"cuFuncGetAttribute({number}) of {found.name}")

    def set_attribute(self, function: Any, attribute: Any, value: int) -> None:
        """Dynamic shared memory is kept; the others (carve-out, cluster sizes) are hints."""
        found = self._find(function, _Function)
        if int(attribute) == _MAX_DYNAMIC:
            if value > self._session.arch.smem_per_cta:
                raise DriverError("CUDA_ERROR_INVALID_VALUE")
            found.max_dynamic_smem = value

    def occupancy(self, function: Any, threads: int, smem: int, *_: Any) -> int:
        """CTAs an SM holds, by the cubin's registers and shared memory where there is one."""
        found = self._find(function, _Function)
        binary = found.module.cubin
        smem += cubin.static_shared_bytes(binary, found.name)
        registers = cubin.registers(binary, found.name) or 0
        return archs.occupancy(self._session.arch, threads, registers, smem).ctas

    def launch(self, function: Any, *rest: Any, cooperative: bool = False) -> None:
        """cuLaunchKernel: grid and block (three numbers each), dynamic shared memory, stream, parameters, extra."""
        sizes, smem = [int(n) for n in rest[:6]], int(rest[6])
        attributes = {"cooperative": True} if cooperative else {}
        extra = rest[9] if len(rest) > 9 else None
        self.start(function, sizes, smem, (1, 1, 1), attributes, rest[8], extra, int(rest[7] or 0))

    def launch_ex(self, config: Any, function: Any, params: Any, extra: Any = None) -> None:
        """cuLaunchKernelEx."""
        sizes = [int(getattr(config, f"{kind}Dim{axis}")) for kind in ("grid", "block") for axis in "XYZ"]
        cluster = (1, 1, 1)
        attributes: dict[str, bool] = {}
        for item in list(config.attrs or [])[: config.numAttrs]:
            name = item.id.name
            if name == _CLUSTER:
                dim = item.value.clusterDim
                cluster = (int(dim.x), int(dim.y), int(dim.z))
            elif name in _FLAGS:
                value = item.value.cooperative if "COOPERATIVE" in name else (
                    item.value.programmaticStreamSerializationAllowed
                )  # fmt: skip
                attributes |= {_FLAGS[name]: True} if value else {}
            elif name.removeprefix("CU_LAUNCH_ATTRIBUTE_") not in _HINTS:
                self._session.refuse(f"launch attribute {name}")
        stream = int(config.hStream)
        self.start(function, sizes, int(config.sharedMemBytes), cluster, attributes, params, extra, stream)

    def start(self, function: Any, sizes: Sequence[int], smem: int, cluster: tuple[int, int, int],
              attributes: dict[str, bool], params: Any, extra: Any = None, stream: int = 0) -> None:  # fmt: skip
        """Launch a function on a stream, by handle: grid and block in `sizes`; params as cuda.bindings takes them, or
        bytes for each."""
        found = self._find(function, _Function)
        if extra is not None and not (isinstance(extra, int) and extra == 0):
            self._session.refuse("cuLaunchKernel's extra")
        if smem > found.max_dynamic_smem:
            raise DriverError("CUDA_ERROR_INVALID_VALUE")
        block = _packed(_kernels(found.module.ptx)[found.name].params, params, found.name)
        grid, threads = (sizes[0], sizes[1], sizes[2]), (sizes[3], sizes[4], sizes[5])
        launch = Launch(found.module, found.name, grid, threads, block, smem, cluster, attributes, stream)
        try:
            self._session.launch(launch)
        except CooperativeTooLarge:
            raise DriverError("CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE") from None


@functools.lru_cache(maxsize=32)
def _kernels(ptx: str) -> Any:
    from ..ptx import parse

    return parse(ptx).kernels


def _image_bytes(image: Any) -> bytes:
    """A module's image from bytes, a buffer, or the address of NUL-terminated text or of an ELF file."""
    if isinstance(image, bytes | bytearray):
        return bytes(image)
    if isinstance(image, np.ndarray):
        return image.tobytes()
    try:
        address = int(image)
    except (TypeError, ValueError):
        return bytes(memoryview(image))
    if ctypes.string_at(address, 4) != _ELF:
        return ctypes.string_at(address)
    head = ctypes.string_at(address, 64)  # a 64-bit ELF header: the section headers come last
    (sections,) = struct.unpack_from("<Q", head, 40)
    size, count = struct.unpack_from("<HH", head, 58)
    return ctypes.string_at(address, sections + size * count)


def _packed(params: Sequence[Any], given: Any, kernel: str) -> bytes:
    """A parameter block from what cuda.bindings takes: (values, ctypes types), or an array of pointers."""
    block = bytearray(max((p.offset + p.size for p in params), default=0))
    if not params:
        return bytes(block)
    pieces = _pieces(params, given, kernel)
    if len(pieces) != len(params):
        raise UsageError(f"kernel {kernel} takes {len(params)} arguments, {len(pieces)} given")
    for p, piece in zip(params, pieces):
        if len(piece) < p.size:
            raise UsageError(f"kernel {kernel}: parameter {p.name} has {p.size} bytes, the argument {len(piece)}")
        block[p.offset : p.offset + p.size] = piece[: p.size]
    return bytes(block)


def _pieces(params: Sequence[Any], given: Any, kernel: str) -> list[bytes]:
    if isinstance(given, list) and all(isinstance(piece, bytes) for piece in given):
        return given
    if isinstance(given, tuple | list):
        values, kinds = given
        return [_typed(value, kind) for value, kind in zip(values, kinds)]
    if given is None:
        raise UsageError(f"kernel {kernel} takes {len(params)} arguments, none given")
    address = int(given) if isinstance(given, int | np.integer) else _address_of(given)
    pointers = (ctypes.c_uint64 * len(params)).from_address(address)
    return [ctypes.string_at(pointer, p.size) for p, pointer in zip(params, pointers)]


def _address_of(buffer: Any) -> int:
    return np.frombuffer(buffer, np.uint8).ctypes.data


def _typed(value: Any, kind: Any) -> bytes:
    """One argument. Without a type it is a handle, a device pointer or a ctypes object."""
    if kind is None:
        if isinstance(value, ctypes.Structure | ctypes.Array | ctypes._SimpleCData):
            return bytes(value)
        if hasattr(value, "getPtr") and not hasattr(value, "__int__"):
            return ctypes.string_at(value.getPtr(), 128)  # a tensor map
        return struct.pack("<Q", int(value))
    if kind is ctypes.c_void_p:
        return struct.pack("<Q", int(value or 0))
    return bytes(kind(value))


def listen_to_nvrtc(nvrtc: ModuleType, modules: Modules) -> list[tuple[Any, str, Any]]:
    """What stands for NVRTC's calls: source lines are kept, and each cubin is remembered with its PTX."""
    compile_program, get_cubin = nvrtc.nvrtcCompileProgram, nvrtc.nvrtcGetCUBIN

    def compiling(program: Any, count: int, options: Any) -> Any:
        options = list(options or [])[:count]
        if not any(b"lineinfo" in bytes(o) or b"line-info" in bytes(o) for o in options):
            options.append(b"-lineinfo")
        return compile_program(program, len(options), options)

    def getting(program: Any, target: Any) -> Any:
        result = get_cubin(program, target)
        error, size = nvrtc.nvrtcGetPTXSize(program)
        if int(result[0]) == 0 and int(error) == 0:
            text = b" " * size  # the call writes into it
            nvrtc.nvrtcGetPTX(program, text)
            modules.remember(bytes(target), text.rstrip(b"\0").decode())
        return result

    return [(nvrtc, "nvrtcCompileProgram", compiling), (nvrtc, "nvrtcGetCUBIN", getting)]
