"""The CUDA driver by its C interface (libcuda through ctypes): load a cubin, launch with attributes, synchronise.

Sources: CUDA driver API reference, "Module Management", "Execution Control" (cuLaunchKernelEx, CUlaunchConfig,
CUlaunchAttribute). Nothing is loaded before the first call.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterator, Sequence
from ctypes import POINTER, Structure, Union, byref, c_char, c_char_p, c_int, c_uint, c_void_p
from typing import Any

from tensorladder.core.errors import KernelError, UsageError
from tensorladder.core.program import Launch, Module

# CUresult values that a person can act on.
NO_DEVICE, INVALID_CONTEXT = 100, 201
DEVICE_ATTRIBUTE = {"major": 75, "minor": 76, "sms": 16, "memory_khz": 36, "bus_bits": 37, "l2": 38}
FUNCTION_ATTRIBUTE = {"max_dynamic_shared": 8, "non_portable_cluster": 14}
PORTABLE_CLUSTER = 8
RELAXED = 2  # CUstreamCaptureMode


class _Value(Union):
    _fields_ = [("pad", c_char * 64), ("dims", c_uint * 3), ("flag", c_int)]


class _Attribute(Structure):
    _fields_ = [("id", c_int), ("pad", c_char * 4), ("value", _Value)]


class _Config(Structure):
    _fields_ = [
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared", c_uint),
        ("stream", c_void_p),
        ("attributes", POINTER(_Attribute)),
        ("count", c_uint),
    ]


# Launch attributes by the names that `Launch.attributes` uses -> CUlaunchAttributeID; all are flags.
_FLAGS = {"cooperative": 2, "programmatic_stream_serialization": 6}
_CLUSTER = 4


@functools.cache
def library() -> ctypes.CDLL:
    """libcuda, initialised. UsageError (one line) where there is no driver or no GPU."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise UsageError("no NVIDIA GPU here (no libcuda.so.1): use --on vgpu") from error
    cuda.cuGetErrorString.argtypes = [c_int, POINTER(c_char_p)]
    code = cuda.cuInit(0)
    if code:
        raise UsageError(f"no usable NVIDIA GPU here (cuInit: {reason(cuda, code)}): use --on vgpu")
    return cuda


def reason(cuda: ctypes.CDLL, code: int) -> str:
    """The driver's own words for an error code."""
    text = c_char_p()
    cuda.cuGetErrorString(code, byref(text))
    return f"{text.value.decode()} ({code})" if text.value else f"error {code}"


def call(name: str, *arguments: Any) -> None:
    """Call a driver function; KernelError with the driver's words when it fails."""
    cuda = library()
    function: Callable[..., int] = getattr(cuda, name)
    code = function(*arguments)
    if code:
        raise KernelError(f"{name}: {reason(cuda, code)}")


def capability(device: int = 0) -> tuple[int, int]:
    """Compute capability of a device, (9, 0) for an H200. UsageError where there is no GPU."""
    library()
    return _device_attribute(device, "major"), _device_attribute(device, "minor")


def describe(device: int = 0) -> str:
    """Name, compute capability, SMs and driver in one line. UsageError where there is no GPU."""
    library()
    known = facts(device)
    major, minor = known["capability"]
    return f"{known['gpu']}, sm_{major}{minor}, {known['sms']} SMs, driver for CUDA {known['driver_cuda']}"


def facts(device: int = 0) -> dict[str, Any]:
    """Name, capability, SMs, L2 in bytes, memory bandwidth in bytes a second, and the driver's CUDA version."""
    library()
    name = ctypes.create_string_buffer(256)
    call("cuDeviceGetName", name, 256, _handle(device))
    version = c_int()
    call("cuDriverGetVersion", byref(version))
    clock, width = _device_attribute(device, "memory_khz"), _device_attribute(device, "bus_bits")
    return {
        "gpu": name.value.decode(),
        "capability": list(capability(device)),
        "sms": _device_attribute(device, "sms"),
        "l2_bytes": _device_attribute(device, "l2"),
        # Two transfers a clock on every kind of memory that tensor cores have been put beside.
        "memory_bytes_s": 2 * clock * 1000 * width // 8,
        "driver_cuda": f"{version.value // 1000}.{version.value % 1000 // 10}",
    }


def runs_on(arch: str, have: tuple[int, int]) -> bool:
    """Whether machine code for `arch` runs on a device of compute capability `have`.

    "sm_90a" runs on 9.0 alone, "sm_100f" on its family's same major from 10.0 up, "sm_80" on 8.0 and later 8.x
    (CUDA C++ programming guide, "Binary Compatibility").
    """
    digits = arch.removeprefix("sm_").rstrip("af")
    major, minor = int(digits[:-1]), int(digits[-1])
    if arch.endswith("a"):
        return have == (major, minor)
    return have[0] == major and have[1] >= minor


def use_context(device: int = 0) -> None:
    """Make a context current in this thread where none is: the device's primary one, which torch uses too."""
    library()
    current = c_void_p()
    call("cuCtxGetCurrent", byref(current))
    if not current.value:
        call("cuDevicePrimaryCtxRetain", byref(current), _handle(device))
        call("cuCtxSetCurrent", current)


class Prepared:
    """A launch with the driver's structures made once, so that launching it again costs one call.

    places: (byte of the parameter block, number of an address, what is added to it), for what differs from launch to
    launch; the bytes lie at multiples of 8. device: the one that `function` was loaded on.

    Threads may launch at the same time: each takes structures that are `free`, and leaves them behind for the next. The
    driver copies parameters while it is called. `ops.fast` does what `launch` does in code of its own.
    """

    def __init__(
        self,
        launch: Launch,
        offsets: Sequence[int],
        function: c_void_p,
        places: Sequence[tuple[int, int, int]] = (),
        device: int = 0,
    ) -> None:
        # Raised only: another launch of the same kernel may have asked for more.
        if launch.smem > _get(function, "max_dynamic_shared"):
            _set(function, "max_dynamic_shared", launch.smem)
        if launch.cluster[0] * launch.cluster[1] * launch.cluster[2] > PORTABLE_CLUSTER:
            _set(function, "non_portable_cluster", 1)
        self._launch, self._offsets, self._function, self._device = launch, tuple(offsets), function, device
        self.places = tuple((at // 8, number, more) for at, number, more in places)
        self.call = library().cuLaunchKernelEx
        self.free = [self.structures()]

    def structures(self) -> tuple[Any, ...]:
        """The parameter block as 8-byte words, the configuration, and what the driver's function is called with."""
        launch = self._launch
        attributes = launch_attributes(launch)
        grid, threads = (c_uint * 3)(*launch.grid), (c_uint * 3)(*launch.block)
        config = _Config(grid, threads, launch.smem, None, attributes, len(attributes))
        size = -(-max(1, len(launch.params)) // 8) * 8
        block = ctypes.create_string_buffer(launch.params, size)
        # One pointer a parameter: a kernel with 64-byte-aligned parameters (tensor maps) has its block at another
        # place of the constant bank, which the driver knows from the cubin and a whole block (`extra`) would miss.
        start = ctypes.addressof(block)
        pointers = (c_void_p * max(1, len(self._offsets)))(*(start + offset for offset in self._offsets))
        words = memoryview(block).cast("B").cast("Q")
        return words, config, (byref(config), self._function, pointers, None)

    def launch(self, stream: int, addresses: Sequence[int] = ()) -> None:
        """Launch on the stream with this handle. KernelError when the driver refuses."""
        try:
            one = self.free.pop()
        except IndexError:
            one = self.structures()
        words, config, arguments = one
        for at, number, more in self.places:
            words[at] = addresses[number] + more
        config.stream = stream
        code = self.call(*arguments)
        if code:
            self.again(code, arguments)
        self.free.append(one)

    def again(self, code: int, arguments: tuple[Any, ...]) -> None:
        """After an error: a thread that never called CUDA has no context yet, with one it launches. KernelError."""
        if code == INVALID_CONTEXT:
            use_context(self._device)
            code = self.call(*arguments)
        if code:
            raise KernelError(f"cuLaunchKernelEx: {reason(library(), code)}")


class Stream:
    """A stream of the real GPU as `core.program.Stream`: launches run in order at `synchronize`.

    handle: a CUstream as an integer (torch's `stream.cuda_stream`); its context must be current.
    """

    def __init__(self, handle: int = 0) -> None:
        self.handle = handle
        self.pending: list[Launch] = []
        self._functions: dict[tuple[int, str], tuple[Module, c_void_p]] = {}

    def enqueue(self, launch: Launch) -> None:
        self.pending.append(launch)

    def prepare(self) -> None:
        """Load the machine code of what was enqueued and read its parameters, so that the launch alone can be timed."""
        for launch in self.pending:
            self._function(launch)
            _parameters(launch.module.ptx, launch.kernel)

    def submit(self) -> None:
        """Hand over what was enqueued without waiting for it."""
        pending, self.pending = self.pending, []
        for launch in pending:
            self._launch(launch)

    def synchronize(self) -> None:
        self.submit()
        call("cuStreamSynchronize", c_void_p(self.handle))

    def _function(self, launch: Launch) -> c_void_p:
        key = (id(launch.module), launch.kernel)
        if key not in self._functions:
            # The module is kept beside the function: its id may not be reused while the entry lives.
            self._functions[key] = (launch.module, _load(launch.module, launch.kernel))
        return self._functions[key][1]

    def _launch(self, launch: Launch) -> None:
        offsets = _parameters(launch.module.ptx, launch.kernel)
        Prepared(launch, offsets, self._function(launch)).launch(self.handle)


@functools.lru_cache(maxsize=64)
def _parameters(ptx: str, kernel: str) -> tuple[int, ...]:
    """Offsets of a kernel's parameters in its block."""
    # Not at the top: it brings the virtual GPU's engine along, which a machine that only launches need not have.
    from tensorladder.vgpu.ptx import parse

    return tuple(p.offset for p in parse(ptx).kernels[kernel].params)


def launch_attributes(launch: Launch) -> ctypes.Array:
    """The launch's attributes as the driver takes them. UsageError for one that has no counterpart there."""
    unknown = [name for name, value in launch.attributes.items() if value and name not in _FLAGS]
    if unknown:
        raise UsageError(f"launch attribute {unknown[0]!r} is not known to the driver interface here")
    made = []
    if launch.cluster != (1, 1, 1):
        made.append(_Attribute(_CLUSTER, b"", _Value(dims=(c_uint * 3)(*launch.cluster))))
    made += [_Attribute(_FLAGS[name], b"", _Value(flag=1)) for name, value in launch.attributes.items() if value]
    return (_Attribute * len(made))(*made)


def _load(module: Module, kernel: str) -> c_void_p:
    # A cubin where there is one: the PTX of a front end is often newer than the driver accepts.
    return load(module.cubin if module.cubin else module.ptx.encode() + b"\0", kernel)


def load(image: bytes, kernel: str) -> c_void_p:
    """A kernel of a cubin, or of PTX text that ends in a zero byte, in the current context."""
    loaded, function = c_void_p(), c_void_p()
    with while_capturing():
        call("cuModuleLoadData", byref(loaded), image)
        call("cuModuleGetFunction", byref(function), loaded, kernel.encode())
    return function


@contextlib.contextmanager
def while_capturing() -> Iterator[None]:
    """Allow this thread what is not part of a CUDA graph that is being captured: to load code, allocate, copy.

    The driver refuses such calls during a capture unless a thread says that they do not belong to it
    (cuThreadExchangeStreamCaptureMode, "Stream Management").
    """
    mode = c_int(RELAXED)
    call("cuThreadExchangeStreamCaptureMode", byref(mode))
    try:
        yield
    finally:
        call("cuThreadExchangeStreamCaptureMode", byref(mode))


def _set(function: c_void_p, attribute: str, value: int) -> None:
    call("cuFuncSetAttribute", function, FUNCTION_ATTRIBUTE[attribute], value)


def _get(function: c_void_p, attribute: str) -> int:
    value = c_int()
    call("cuFuncGetAttribute", byref(value), FUNCTION_ATTRIBUTE[attribute], function)
    return value.value


def _handle(device: int) -> int:
    handle = c_int()
    call("cuDeviceGet", byref(handle), device)
    return handle.value


def _device_attribute(device: int, name: str) -> int:
    value = c_int()
    call("cuDeviceGetAttribute", byref(value), DEVICE_ATTRIBUTE[name], _handle(device))
    return value.value
