"""DLPack for arrays in host memory: read any producer, and produce from any numpy array, ml_dtypes included.

numpy refuses to export bfloat16, the 8-bit floats and read-only arrays; front ends need all of them, and some need
the array to *say* that it lies on a CUDA device. `Producer` gives both. `view` reads any producer without a copy.

Layout of the structures: DLPack 1.1, dlpack.h (DLTensor, DLManagedTensor, DLManagedTensorVersioned).
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .errors import UsageError

CPU, CUDA, CUDA_HOST = 1, 2, 3
"""DLDeviceType values that front ends meet."""

_INT, _UINT, _FLOAT, _BFLOAT, _COMPLEX, _BOOL = 0, 1, 2, 4, 5, 6

#: numpy (or ml_dtypes) name -> (DLDataTypeCode, bits)
DTYPES: dict[str, tuple[int, int]] = {
    "int8": (_INT, 8), "int16": (_INT, 16), "int32": (_INT, 32), "int64": (_INT, 64),
    "uint8": (_UINT, 8), "uint16": (_UINT, 16), "uint32": (_UINT, 32), "uint64": (_UINT, 64),
    "float16": (_FLOAT, 16), "float32": (_FLOAT, 32), "float64": (_FLOAT, 64),
    "bfloat16": (_BFLOAT, 16), "bool": (_BOOL, 8), "complex64": (_COMPLEX, 64), "complex128": (_COMPLEX, 128),
    "float8_e3m4": (7, 8), "float8_e4m3": (8, 8), "float8_e4m3b11fnuz": (9, 8), "float8_e4m3fn": (10, 8),
    "float8_e4m3fnuz": (11, 8), "float8_e5m2": (12, 8), "float8_e5m2fnuz": (13, 8), "float8_e8m0fnu": (14, 8),
    "float4_e2m1fn_x2": (17, 4),
}  # fmt: skip
LANES = {"float4_e2m1fn_x2": 2}
"""Values an element, where these are more than one."""
_NAMES = {code_bits: name for name, code_bits in DTYPES.items()}


class _Device(ctypes.Structure):
    _fields_ = [("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32)]


class _DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class _ManagedVersioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


_capsule_new = ctypes.pythonapi.PyCapsule_New
_capsule_new.restype = ctypes.py_object
_capsule_new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_capsule_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_capsule_is_valid.restype = ctypes.c_int
_capsule_is_valid.argtypes = [ctypes.py_object, ctypes.c_char_p]
# The destructor gets a borrowed capsule that is being destroyed: as a plain address, so that nobody counts it again.
_raw_capsule_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_raw_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)

_alive: dict[int, tuple[Any, ...]] = {}
"""What an exported tensor points into, by the address of its DLManagedTensor, until its deleter runs."""


@ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
def _delete(managed: int) -> None:
    _alive.pop(managed, None)


@ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
def _destroy_capsule(capsule: int) -> None:
    """A consumer renames the capsule it took; one that still has its name was never consumed."""
    if _raw_capsule_is_valid(capsule, b"dltensor"):
        _alive.pop(_raw_capsule_pointer(capsule, b"dltensor"), None)


@dataclass(frozen=True)
class View:
    """A tensor in memory: address in bytes, extents and strides in elements, and what keeps it alive.

    dtype is the numpy/ml_dtypes name ("bfloat16"). device is (DLDeviceType, id).
    """

    data: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    device: tuple[int, int] = (CPU, 0)
    owner: Any = field(default=None, repr=False, compare=False)

    @property
    def itemsize(self) -> int:
        """Bytes an element."""
        return DTYPES[self.dtype][1] * LANES.get(self.dtype, 1) // 8

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **_: Any) -> Any:
        """A fresh `dltensor` capsule (the unversioned form, which every consumer takes)."""
        ndim = len(self.shape)
        extents = (ctypes.c_int64 * max(ndim, 1))(*self.shape)
        steps = (ctypes.c_int64 * max(ndim, 1))(*self.strides)
        code, bits = DTYPES[self.dtype]
        managed = _Managed()
        managed.tensor.data = self.data
        managed.tensor.device = _Device(*self.device)
        managed.tensor.ndim = ndim
        managed.tensor.dtype = _DataType(code, bits, LANES.get(self.dtype, 1))
        managed.tensor.shape = extents
        managed.tensor.strides = steps
        managed.deleter = ctypes.cast(_delete, ctypes.c_void_p)
        address = ctypes.addressof(managed)
        _alive[address] = (managed, extents, steps, self.owner)
        return _capsule_new(address, b"dltensor", ctypes.cast(_destroy_capsule, ctypes.c_void_p))


def of_numpy(array: np.ndarray, device: tuple[int, int] = (CPU, 0)) -> View:
    """View of a numpy array. `device` is what it claims to lie on. UsageError for a dtype or stride DLPack lacks."""
    name = array.dtype.name
    if name not in DTYPES or not array.dtype.isnative:
        raise UsageError(f"dtype {array.dtype} has no DLPack form: use one of {', '.join(DTYPES)}")
    size = array.dtype.itemsize
    if any(step % size for step in array.strides):
        raise UsageError(f"strides {array.strides} in bytes are no multiple of the element size {size}: copy the array")
    strides = tuple(step // size for step in array.strides)
    return View(array.ctypes.data, array.shape, strides, name, device, array)


def Producer(array: np.ndarray, device: tuple[int, int] = (CPU, 0)) -> View:
    """A DLPack producer over a numpy array's memory, for dtypes that numpy itself cannot export."""
    return of_numpy(array, device)


def view(obj: Any) -> View:
    """View of any array: numpy, or a DLPack producer (torch, cute, tvm_ffi). Memory is shared, nothing is copied.

    UsageError where `obj` is no such thing, or its dtype is unknown.
    """
    if isinstance(obj, View):
        return obj
    if isinstance(obj, np.ndarray):
        return of_numpy(obj)
    if not hasattr(obj, "__dlpack__"):
        raise UsageError(f"{type(obj).__name__} is no array: pass a numpy array or something with __dlpack__")
    if getattr(obj, "requires_grad", False):
        obj = obj.detach()
    try:
        capsule = obj.__dlpack__()
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise UsageError(f"{type(obj).__name__} cannot be exported by DLPack: {str(error).splitlines()[0]}") from error
    return _of_capsule(capsule, obj)


def _of_capsule(capsule: Any, owner: Any) -> View:
    if _capsule_is_valid(capsule, b"dltensor"):
        tensor = _Managed.from_address(_capsule_pointer(capsule, b"dltensor")).tensor
    elif _capsule_is_valid(capsule, b"dltensor_versioned"):
        tensor = _ManagedVersioned.from_address(_capsule_pointer(capsule, b"dltensor_versioned")).tensor
    else:
        raise UsageError("__dlpack__ did not return a DLPack capsule that is still unused")
    key = (tensor.dtype.code, tensor.dtype.bits)
    if key not in _NAMES or tensor.dtype.lanes != LANES.get(_NAMES[key], 1):
        code, lanes = tensor.dtype.code, tensor.dtype.lanes
        raise UsageError(f"DLPack dtype code {code}, {key[1]} bits, {lanes} lanes is not supported")
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    strides = tuple(tensor.strides[i] for i in range(tensor.ndim)) if tensor.strides else _compact(shape)
    device = (tensor.device.device_type, tensor.device.device_id)
    # The capsule itself owns the memory until it dies: keep it (unconsumed) beside the object it came from.
    return View((tensor.data or 0) + tensor.byte_offset, shape, strides, _NAMES[key], device, (capsule, owner))


def _compact(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides in elements, which DLPack means by a null pointer."""
    strides = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * shape[i + 1]
    return tuple(strides)
