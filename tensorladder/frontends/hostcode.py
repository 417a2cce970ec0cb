"""Run a front end's own native host code with no GPU: an object file whose CUDA calls land here.

CuTe DSL compiles host code (grid computation, TMA descriptors, several launches) to native code that calls the CUDA
runtime through a thin layer (`_cudaLaunchKernelEx` and others). `HostCode` loads such an object with LLVM's MCJIT
and gives it those functions from Python: loading hands out handles, launching yields `core.program.Launch`.

The CUDA entry points are one table, `CUDA`. A function that is not in it ends the call with `Unsupported`; nothing
is answered by guess. Structures follow the CUDA 13 runtime API (driver_types.h).
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..core.arch import check_cooperative, check_launch, find, occupancy
from ..core.cubin import registers, static_shared_bytes
from ..core.devicefacts import device_attribute
from ..core.elf import undefined_symbols
from ..core.errors import MissingExtra, TensorladderError, Unsupported, UsageError
from ..core.program import Launch, Module, Stream
from ..core.tensormap import encode, from_driver_call
from .objectcode import ObjectCode
from .ptxparams import entry

_LOCK = threading.RLock()
"""Host code keeps kernel handles in static variables and finds its call through `_call`: one call at a time."""

_PROCESS = ctypes.CDLL(None)
"""The C library, for printf and its like: LLVM looks through the process only where it was told to."""

_SUCCESS, _INVALID_VALUE, _UNKNOWN = 0, 1, 999
_P, _I32, _U32, _U64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_uint32, ctypes.c_uint64


class _Attribute(ctypes.Structure):
    """cudaLaunchAttribute: an id, padding, and a 64-byte union."""

    _fields_ = [("id", _I32), ("pad", _I32), ("value", _U32 * 16)]


class _Config(ctypes.Structure):
    """cudaLaunchConfig_t."""

    _fields_ = [
        ("grid", _U32 * 3),
        ("block", _U32 * 3),
        ("smem", _U64),
        ("stream", _P),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", _U32),
    ]


#: cudaLaunchAttributeID -> (name in Launch.attributes, how its union is read). None: a hint without effect on results.
ATTRIBUTES: dict[int, tuple[str, Callable[[Any], Any]] | None] = {
    0: None,  # ignore
    1: None,  # access policy window (L2 residency)
    2: ("cooperative", lambda v: bool(v[0])),
    3: None,  # synchronisation policy of the waiting host thread
    4: ("cluster", lambda v: (v[0], v[1], v[2])),
    5: None,  # cluster scheduling policy
    6: ("programmatic_stream_serialization", lambda v: bool(v[0])),
    8: ("priority", lambda v: ctypes.c_int32(v[0]).value),
    # Events that a launch records while it runs. Here it has run when its host function returns, and who waits for such
    # an event starts after the whole launch, which both allow.
    7: ("programmatic_event", lambda v: v[0] | v[1] << 32),
    12: ("launch_completion_event", lambda v: v[0] | v[1] << 32),
    11: None,  # preferred cluster dimension: the hardware may keep to the cluster dimension
    14: None,  # preferred shared memory carve-out
}


@dataclass
class _Kernel:
    module: Module
    name: str
    max_dynamic_smem: int | None = None


@dataclass
class _Call:
    """What one entry into host code needs: where launches go, and the first thing that went wrong."""

    code: HostCode
    stream: Stream | None
    error: BaseException | None = None
    stream_handles: set[int] = field(default_factory=set)


_call: _Call | None = None
_handles: dict[int, Any] = {}
_next_handle = itertools.count(0x7E50_0000_0000, 0x100)


def _new_handle(thing: Any) -> int:
    handle = next(_next_handle)
    _handles[handle] = thing
    return handle


def _kernel(handle: int) -> _Kernel:
    found = _handles.get(handle)
    if not isinstance(found, _Kernel):
        raise UsageError(f"host code used {handle or 0:#x} as a kernel: it is no handle of a loaded kernel")
    return found


def _store(address: int, kind: Any, value: int) -> int:
    kind.from_address(address).value = value
    return _SUCCESS


def _current() -> _Call:
    assert _call is not None, "CUDA entry point called outside HostCode.call"
    return _call


def _library_load(out: int, *_: Any) -> int:
    return _store(out, _U64, _new_handle(_current().code))


def _library_get_kernel(out: int, library: int, name: bytes) -> int:
    code = _handles[library]
    entry(code.module.ptx, name.decode())  # UsageError when the PTX and the host part do not belong together
    return _store(out, _U64, _new_handle(_Kernel(code.module, name.decode())))


def _kernel_get_attribute(out: int, attribute: int, kernel: int, _device: int) -> int:
    """CUfunction_attribute: 1 static shared memory, 8 largest dynamic shared memory."""
    found = _kernel(kernel)
    static = static_shared_bytes(found.module.cubin, found.name)
    if attribute == 1:
        return _store(out, _I32, static)
    if attribute == 8:
        limit = found.max_dynamic_smem
        return _store(out, _I32, 49152 - static if limit is None else limit)
    raise Unsupported(f"cuKernelGetAttribute({attribute}) asked by the host code of {found.name} is not modelled")


def _set_kernel_attribute(kernel: int, attribute: int, value: int, *_: Any) -> int:
    """cudaFuncAttribute: 8 largest dynamic shared memory. Others (carve-out, non-portable cluster size) are hints."""
    if attribute == 8:
        _kernel(kernel).max_dynamic_smem = value
    return _SUCCESS


def _launch_ex(config: int, kernel: int, args: int) -> int:
    c = _Config.from_address(config)
    attributes: dict[str, Any] = {}
    for i in range(c.count):
        item = c.attributes[i]
        if item.id not in ATTRIBUTES:
            raise Unsupported(f"launch attribute {item.id} of kernel {_kernel(kernel).name} is not modelled")
        known = ATTRIBUTES[item.id]
        if known:
            attributes[known[0]] = known[1](item.value)
    return _enqueue(kernel, tuple(c.grid), tuple(c.block), args, c.smem, attributes, c.stream or 0)


def _launch_plain(kernel: int, *rest: int) -> int:
    """grid x y z, block x y z, arguments, dynamic shared memory, stream."""
    return _enqueue(kernel, rest[:3], rest[3:6], rest[6], rest[7], {}, rest[8] or 0)


def _enqueue(handle: int, grid: Any, block: Any, args: int, smem: int, attributes: dict[str, Any], on: int) -> int:
    kernel = _kernel(handle)
    head = entry(kernel.module.ptx, kernel.name)
    cluster = attributes.pop("cluster", None) or head.cluster or (1, 1, 1)
    check_launch(find(kernel.module.arch), grid, block, cluster, name=f"kernel {kernel.name}")
    params = bytearray(head.size)
    pointers = (_U64 * len(head.params)).from_address(args) if head.params else ()
    for param, address in zip(head.params, pointers):
        params[param.offset : param.offset + param.size] = ctypes.string_at(address, param.size)
    stream = _current().stream
    if stream is None:
        raise UsageError(f"kernel {kernel.name} was launched while its library was being loaded")
    attributes = {k: v for k, v in attributes.items() if v}
    if "cooperative" in attributes:
        _check_cooperative(kernel, grid, block, smem)
    stream.enqueue(Launch(kernel.module, kernel.name, grid, block, bytes(params), smem, cluster, attributes, on))
    return _SUCCESS


def _check_cooperative(kernel: Any, grid: Any, block: Any, smem: int) -> None:
    """All CTAs of a cooperative launch are resident at once, or the driver refuses it (CUDA error 720)."""
    smem += static_shared_bytes(kernel.module.cubin, kernel.name)
    used = registers(kernel.module.cubin, kernel.name) or 0
    check_cooperative(find(kernel.module.arch), grid, block, smem, used, name=f"kernel {kernel.name}")


def _device_get_attribute(out: int, attribute: int, _device: int) -> int:
    return _store(out, _I32, device_attribute(_current().code.module.arch, attribute))


def _occupancy(out: int, kernel: int, threads: int, smem: int) -> int:
    """cudaOccupancyMaxActiveBlocksPerMultiprocessor, from the cubin's registers and static shared memory."""
    found = _kernel(kernel)
    cubin = found.module.cubin
    smem += static_shared_bytes(cubin, found.name)
    fits = occupancy(find(found.module.arch), threads, registers(cubin, found.name) or 0, smem)
    return _store(out, _I32, fits.ctas)


def _encode_tiled(out: int, data_type: int, rank: int, address: int, *rest: int) -> int:
    """cuTensorMapEncodeTiled: dims, strides, box and element strides as arrays, then four enums."""
    dims, strides, box, element_strides, *enums = rest
    if not 1 <= rank <= 5:
        raise UsageError(f"tensor map refused: rank {rank} must be 1 to 5")

    def array(kind: Any, at: int, count: int) -> list[int]:
        return list((kind * count).from_address(at)) if count else []

    made = from_driver_call(
        data_type,
        address,
        array(_U64, dims, rank),
        array(_U64, strides, rank - 1) if strides else None,
        array(_U32, box, rank),
        array(_U32, element_strides, rank),
        *enums,
        compute_capability=find(_current().code.module.arch).compute_capability,
    )
    ctypes.memmove(out, encode(made), 128)
    return _SUCCESS


def _init_library_once(state: int, init: int, load_to_device: int, _set_error: int) -> int:
    """The DSL's helper for TVM-FFI objects: `state` is a static variable, zero until the library is loaded."""
    if _U64.from_address(state).value:
        return _SUCCESS
    code = _current().code
    library = _U64(0)
    result = ctypes.CFUNCTYPE(_I32, _P)(init)(ctypes.addressof(library))
    result = result or ctypes.CFUNCTYPE(_I32, _P, _I32)(load_to_device)(ctypes.addressof(library), 0)
    if result == _SUCCESS:
        _store(state, _U64, library.value or _new_handle(code))
    return result


def _raise_cuda_error(_name: Any, *codes: Any) -> None:
    call = _current()
    code = codes[0] if codes else "?"
    call.error = call.error or UsageError(f"{call.code.name}: host code reports CUDA error {code}")
    _set_ffi_error(str(call.error))


def _set_ffi_error(text: str) -> None:
    """TVM-FFI callers take -1 as "an error is set"; set one, so that the reader finds it."""
    import tvm_ffi.libinfo as libinfo

    library = ctypes.CDLL(libinfo.find_libtvm_ffi())
    library.TVMFFIErrorSetRaisedFromCStr.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
    library.TVMFFIErrorSetRaisedFromCStr(b"RuntimeError", text.encode())


#: symbol -> (result type, argument types, implementation): every CUDA entry point that host code may call.
CUDA: dict[str, tuple[Any, tuple[Any, ...], Callable[..., Any]]] = {
    "_cudaLibraryLoadData": (_I32, (_P, _P, _P, _P, _U32, _P, _P, _U32), _library_load),
    "_cudaLibraryUnload": (_I32, (_P,), lambda library: _SUCCESS),
    "_cudaLibraryGetKernel": (_I32, (_P, _P, ctypes.c_char_p), _library_get_kernel),
    "_cuKernelGetAttribute": (_I32, (_P, _I32, _P, _I32), _kernel_get_attribute),
    "_cudaDeviceGetAttribute": (_I32, (_P, _I32, _I32), _device_get_attribute),
    "_cudaGetDevice": (_I32, (_P,), lambda out: _store(out, _I32, 0)),
    "_cudaGetDeviceCount": (_I32, (_P,), lambda out: _store(out, _I32, 1)),
    "_cudaSetDevice": (_I32, (_I32,), lambda device: _SUCCESS if device == 0 else _INVALID_VALUE),
    "_cudaKernelSetAttributeForDevice": (_I32, (_P, _I32, _I32, _I32), _set_kernel_attribute),
    "_cudaFuncSetAttribute": (_I32, (_P, _I32, _I32), _set_kernel_attribute),
    "_cudaLaunchKernelEx": (_I32, (_P, _P, _P), _launch_ex),
    "_cudaLaunchKernel": (_I32, (_P, _I32, _I32, _I32, _I32, _I32, _I32, _P, _U64, _P), _launch_plain),
    "_cudaOccupancyMaxActiveBlocksPerMultiprocessor": (_I32, (_P, _P, _I32, _U64), _occupancy),
    "_cuTensorMapEncodeTiled": (_I32, (_P, _I32, _U32, _P, _P, _P, _P, _P, _I32, _I32, _I32, _I32), _encode_tiled),
    "cuda_dialect_init_library_once": (_I32, (_P, _P, _P, _P), _init_library_once),
    "cuda_dialect_unload_library_once": (None, (_P,), lambda state: None),
    "CuteDSLRT_TVMFFISetRaisedCudaError": (None, (_P, _I32), _raise_cuda_error),
    "CuteDSLRT_TVMFFISetRaisedCudaLaunchError": (None, (_P, _I32), _raise_cuda_error),
}

_registered: dict[str, Any] = {}
"""Symbol -> ctypes callback given to LLVM; they must outlive every loaded object."""


def _guard(symbol: str, result: Any, body: Callable[..., Any]) -> Callable[..., Any]:
    """ctypes prints and drops exceptions of callbacks: keep the first one in the call, answer with an error code."""

    def guarded(*args: Any) -> Any:
        try:
            return body(*args)
        except BaseException as error:
            if _call is None:
                raise
            _call.error = _call.error or error
            return None if result is None else _UNKNOWN

    guarded.__name__ = symbol
    return guarded


def _not_modelled(symbol: str) -> Callable[..., Any]:
    def refuse(*_: Any) -> int:
        raise Unsupported(f"host code of {_current().code.name} calls {symbol.lstrip('_')}, which is not modelled")

    return refuse


def _binding() -> Any:
    try:
        import llvmlite.binding as binding
    except ImportError:
        raise MissingExtra("llvmlite", "climb") from None
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding


def _provide(binding: Any, symbol: str, libraries: tuple[Any, ...]) -> None:
    """Make one undefined symbol known to LLVM, which ends the process on one that stays unknown."""
    if symbol in _registered or symbol == "_GLOBAL_OFFSET_TABLE_":
        return
    if symbol not in CUDA:
        for library in (*libraries, _PROCESS):
            try:
                address = ctypes.cast(getattr(library, symbol), _P).value
            except AttributeError:
                continue
            binding.add_symbol(symbol, address)
            _registered[symbol] = library
            return
        if binding.address_of_symbol(symbol):
            return
    result, types, body = CUDA.get(symbol, (_I32, (), _not_modelled(symbol)))
    callback = ctypes.CFUNCTYPE(result, *types)(_guard(symbol, result, body))
    binding.add_symbol(symbol, ctypes.cast(callback, _P).value)
    _registered[symbol] = callback


def _address_of(symbol: str, libraries: tuple[Any, ...]) -> int | None:
    """Address of what stands for an undefined symbol, with no LLVM; None where there is nothing of that name."""
    if symbol not in CUDA:
        for library in (*libraries, _PROCESS):
            with contextlib.suppress(AttributeError):
                return ctypes.cast(getattr(library, symbol), _P).value
        return None
    if symbol not in _callbacks:
        result, types, body = CUDA[symbol]
        _callbacks[symbol] = ctypes.CFUNCTYPE(result, *types)(_guard(symbol, result, body))
    return ctypes.cast(_callbacks[symbol], _P).value


_callbacks: dict[str, Any] = {}
"""Symbol -> ctypes callback given to loaded objects, which may outlive any of us."""


class HostCode:
    """One loaded host object and the device module that belongs to it.

    image: a relocatable ELF object for this machine. module: what its kernels are. libraries: ctypes libraries in
    which to look for further symbols. llvm: load it by MCJIT; False: by `ObjectCode`, where there is no LLVM. A call is
    `call(stream, function)`, with `function` entering native code.
    """

    def __init__(self, image: bytes, module: Module, name: str, libraries: tuple[Any, ...] = (), llvm: bool = True):
        self.module = module
        self.name = name
        if not llvm:
            self._engine: Any = ObjectCode(image, lambda symbol: _address_of(symbol, libraries), name)
            return
        with _LOCK:
            binding = _binding()
            for symbol in sorted(undefined_symbols(image)):
                _provide(binding, symbol, libraries)
            machine = binding.Target.from_default_triple().create_target_machine(opt=0, jit=True)
            self._engine = binding.create_mcjit_compiler(binding.parse_assembly(""), machine)
            self._engine.add_object_file(binding.ObjectFileRef.from_data(image))
            self._engine.finalize_object()

    def address(self, symbol: str) -> int:
        """Address of a function in the object; 0 where it has none."""
        if isinstance(self._engine, ObjectCode):
            return self._engine.address(symbol)
        return self._engine.get_function_address(symbol)

    def function(self, symbol: str) -> Callable[..., int]:
        """A packed function of the object: takes an address of an array of argument addresses."""
        address = self.address(symbol)
        if not address:
            raise Unsupported(f"host code of {self.name} has no function {symbol}: unknown layout of a host object")
        return ctypes.CFUNCTYPE(None, _P)(address)

    def call(self, stream: Stream | None, function: Callable[[], Any]) -> Any:
        """Run `function` with launches going to `stream`; raises what a CUDA entry point raised meanwhile."""
        global _call
        with _LOCK:
            outer, _call = _call, _Call(self, stream)
            try:
                result = function()
            except TensorladderError:
                raise
            except Exception as error:
                if _call.error is not None:
                    raise _call.error from error
                raise
            finally:
                mine, _call = _call, outer
            if mine.error is not None:
                raise mine.error
            return result


def packed(*addresses: int) -> Any:
    """A C array of pointers, as packed functions take it."""
    return (_P * len(addresses))(*addresses)
