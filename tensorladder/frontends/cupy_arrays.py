"""CuPy's arrays over memory of the virtual GPU, which lies in the host: what scripts do around kernels of their own.

An array wraps a numpy array whose memory a launch may touch. Operations are numpy's, on the host; results are fresh
arrays, or views where numpy gives a view. As in CuPy, nothing becomes a numpy array by itself (`get` and `asnumpy`
copy), and a numpy array is no operand.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..vgpu.driver.session import HostRange, Session
from ..vgpu.driver.streams import pieces
from .standins import Refusing

_ALIGN = 256
#: functions of numpy that mean the same on these arrays
_FUNCTIONS = """abs absolute add all allclose amax amin angle any append arange argmax argmin argsort argwhere
array_equal array_split atleast_1d atleast_2d atleast_3d average bincount bitwise_and bitwise_or bitwise_xor
broadcast_arrays broadcast_to cbrt ceil clip column_stack concatenate conj copysign cos cosh count_nonzero cross cumprod
cumsum deg2rad diag diagonal diff divide divmod dot dstack einsum empty_like equal exp exp2 expand_dims expm1 eye fabs
flip fliplr flipud floor floor_divide fmax fmin fmod full full_like greater greater_equal histogram hstack hypot
identity imag inner interp invert isclose isfinite isin isinf isnan kron less less_equal linspace log log10 log1p log2
logical_and logical_not logical_or logical_xor logspace matmul max maximum mean median meshgrid min minimum mod moveaxis
multiply nan_to_num negative nonzero not_equal ones ones_like outer pad percentile positive power prod ptp quantile
rad2deg ravel real reciprocal remainder repeat reshape rint roll rollaxis rot90 round searchsorted sign sin sinh sort
split sqrt square squeeze stack std subtract sum swapaxes take tan tanh tensordot tile trace transpose tri tril triu
true_divide trunc unique var vdot vsplit vstack where zeros zeros_like"""
#: methods of its arrays
_METHODS = """all any argmax argmin argsort astype clip conj copy cumprod cumsum diagonal dot flatten max mean min
nonzero prod ravel repeat reshape round squeeze std sum swapaxes take trace transpose var view"""
FUNCTIONS = tuple(_FUNCTIONS.split())
_OF_HOST = ("dtype", "ndim", "size", "nbytes", "itemsize", "strides", "flags")
_VIEWS = ("T", "real", "imag")


class UnownedMemory:
    """Memory that somebody else allocated, `owner` (cupy.cuda.UnownedMemory)."""

    def __init__(self, ptr: int, size: int, owner: Any, device_id: int = 0):
        self.ptr, self.size, self.owner, self.device_id = int(ptr), int(size), owner, 0


class MemoryPointer:
    """A place in memory (cupy.cuda.MemoryPointer)."""

    def __init__(self, mem: UnownedMemory, offset: int = 0):
        self.mem, self.ptr, self.device_id = mem, mem.ptr + offset, 0

    def __int__(self) -> int:
        return self.ptr


class Arrays:
    """Makes and unwraps the arrays of a session. kind: their class."""

    def __init__(self, session: Session):
        self.session = session
        self.kind: type[DeviceArray] = type(
            "ndarray", (DeviceArray,), {"_arrays": self, "_session": session, "_label": "cupy.ndarray",
                                        "__module__": "cupy"},
        )  # fmt: skip

    def empty(self, shape: Any, dtype: Any = float, order: str = "C") -> np.ndarray:
        """Host memory at a 256-byte boundary, poisoned, that launches may touch while it is alive."""
        kind = np.dtype(dtype)
        extents = (shape,) if isinstance(shape, int | np.integer) else tuple(shape)
        size = int(np.prod(extents, dtype=np.int64)) * kind.itemsize
        raw = np.full(size + _ALIGN, 0xFF, np.uint8)
        skip = -raw.ctypes.data % _ALIGN
        made = raw[skip : skip + size].view(kind).reshape(extents, order="F" if order == "F" else "C")
        name = f"{kind} array of {'x'.join(map(str, extents)) or 'one element'}"
        self.session.track(
            raw, HostRange(name, made.ctypes.data, size, made.shape, made.strides, kind.itemsize)
        )  # fmt: skip
        return made

    def wrap(self, value: Any, *sources: Any) -> Any:
        """What numpy gave, as arrays of the device: a view of one of the sources as it is, all else copied there."""
        if isinstance(value, tuple):
            made = [self.wrap(one, *sources) for one in value]
            return type(value)(*made) if hasattr(value, "_fields") else tuple(made)
        if isinstance(value, list):
            return [self.wrap(one, *sources) for one in value]
        if isinstance(value, np.bool_ | np.number | bool | np.ndarray):
            given = np.asarray(value)
            known = any(isinstance(one, DeviceArray) and np.may_share_memory(one._array, given) for one in sources)
            return self.kind._of(given if known else self.copy(given))
        return value

    def copy(self, given: np.ndarray, order: str = "C") -> np.ndarray:
        """A copy in device memory."""
        if given.dtype.hasobject:
            raise ValueError(f"Unsupported dtype {given.dtype}")
        made = self.empty(given.shape, given.dtype, order)
        made[...] = given
        self.accessed("a copy", (), [made])
        return made

    def accessed(self, name: str, reads: Sequence[Any], writes: Sequence[Any], stream: Any = None) -> None:
        """Tell the streams what an operation reads and writes, on the current stream unless another is given."""
        streams = self.session.streams
        if streams.order is None:
            return
        on = streams.current if stream is None else stream.ptr
        streams.accessed(on, name, *([piece for one in side for piece in _pieces(one)] for side in (reads, writes)))

    def told(self, name: str, args: Any, result: Any, out: Any = None) -> None:
        """Tell the streams what a function of numpy's reads, and what of `out` it writes; a view accesses nothing."""
        inputs = [one for one in _flat(args) if isinstance(one, DeviceArray)]
        views = isinstance(result, np.ndarray) and any(np.may_share_memory(result, one._array) for one in inputs)
        self.accessed(name, () if views and out is None else inputs, [out] if isinstance(out, DeviceArray) else ())

    def waits(self, stream: Any = None) -> None:
        """The host waits for a stream."""
        streams = self.session.streams
        streams.synchronize(streams.current if stream is None else stream.ptr)

    def plain(self, value: Any) -> Any:
        """Arrays of the device as numpy's, for numpy to work on."""
        if isinstance(value, DeviceArray):
            return value._array
        if isinstance(value, np.ndarray) and value.ndim:
            raise TypeError(f"Unsupported type {type(value)}")
        if isinstance(value, tuple | list):
            return type(value)(self.plain(one) for one in value)
        return value

    def array(self, obj: Any, dtype: Any = None, copy: bool = True, order: str = "K", ndmin: int = 0) -> Any:
        """cupy.array: of numbers, of a numpy array, of an array that is there, or of what exports one."""
        if isinstance(obj, DeviceArray):
            found = obj._array
            if not copy and (dtype is None or np.dtype(dtype) == found.dtype) and found.ndim >= ndmin:
                return obj
        elif not isinstance(obj, np.ndarray) and hasattr(obj, "__cuda_array_interface__"):
            found = exported(obj)
            if not copy and (dtype is None or np.dtype(dtype) == found.dtype) and found.ndim >= ndmin:
                return self.kind._of(found)
        elif isinstance(obj, list | tuple):
            found = np.array([one.get() if isinstance(one, DeviceArray) else one for one in obj], dtype)
        else:
            found = np.asarray(obj)
        return self.kind._of(self.copy(np.array(found, dtype, copy=None, ndmin=ndmin, order="K"), order))

    def at(self, pointer: MemoryPointer, shape: Any, dtype: Any, order: str = "C") -> np.ndarray:
        """An array on memory that a script has by its address."""
        kind = np.dtype(dtype)
        given = (int(shape),) if isinstance(shape, int | np.integer) else tuple(map(int, shape))
        size = int(np.prod(given, dtype=np.int64)) * kind.itemsize
        raw = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(pointer.ptr))
        return raw.view(kind).reshape(given, order="F" if order == "F" else "C")

    def comparison(self, called: Callable[..., Any]) -> Callable[..., Any]:
        """A function that, as CuPy's own, takes numpy arrays as well."""
        ours = self.function(called)
        return lambda a, b, *rest, **how: ours(self.array(a, copy=False), self.array(b, copy=False), *rest, **how)

    def function(self, called: Callable[..., Any]) -> Callable[..., Any]:
        """A function of numpy on these arrays."""

        def call(*args: Any, **options: Any) -> Any:
            out = options.get("out")
            result = called(*self.plain(args), **{name: self.plain(value) for name, value in options.items()})
            if call.__name__ == "empty_like":
                return self.kind._of(self.empty(result.shape, result.dtype))
            if not call.__name__.endswith("_like"):
                self.told(call.__name__, args, result, out)
            return out if isinstance(out, DeviceArray) else self.wrap(result, *_flat(args))

        call.__name__ = getattr(called, "__name__", "call")
        return call


def _pieces(array: Any) -> list[tuple[int, int]]:
    """The memory of an array's elements."""
    plain = array._array if isinstance(array, DeviceArray) else array
    return pieces(plain.ctypes.data, plain.shape, plain.strides, plain.itemsize)


def _flat(args: Any) -> Iterator[Any]:
    for arg in args:
        if isinstance(arg, tuple | list):
            yield from _flat(arg)
        else:
            yield arg


def exported(obj: Any) -> np.ndarray:
    """An array on what exports the CUDA array interface (version 3), whose memory is the host's here."""
    interface = obj.__cuda_array_interface__

    class Exporter:
        owner = obj
        __array_interface__ = {
            key: interface[key] for key in ("shape", "typestr", "data", "strides", "version") if key in interface
        }  # fmt: skip

    return np.asarray(Exporter())


class DeviceArray(np.lib.mixins.NDArrayOperatorsMixin, Refusing):
    """An array of the device; see the module."""

    _arrays: Arrays
    _array: np.ndarray
    __array_priority__ = 100

    def __init__(self, shape: Any, dtype: Any = float, memptr: Any = None, strides: Any = None, order: str = "C"):
        if strides is not None:
            self._session.refuse("cupy.ndarray(strides=...)")
        self._owner = memptr
        arrays = self._arrays
        self._array = arrays.empty(shape, dtype, order) if memptr is None else arrays.at(memptr, shape, dtype, order)

    @classmethod
    def _of(cls, array: np.ndarray) -> Any:
        made = cls.__new__(cls)
        made._array = array
        return made

    # ------------------------------------------------------------ what numpy asks
    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **options: Any) -> Any:
        arrays = self._arrays
        if out is not None:
            options["out"] = tuple(arrays.plain(one) for one in out)
        result = getattr(ufunc, method)(*arrays.plain(inputs), **options)
        arrays.accessed(ufunc.__name__, [one for one in inputs if isinstance(one, DeviceArray)], out or ())
        if out is not None:
            return out[0] if len(out) == 1 else out
        return arrays.wrap(result, *inputs)

    def __array_function__(self, called: Any, types: Any, args: Any, options: Any) -> Any:
        return self._arrays.function(called)(*args, **options)

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. Please use `.get()` to construct a NumPy array "
            "explicitly."
        )

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        array = self._array
        strides = None if array.flags.c_contiguous else array.strides
        return {
            "shape": array.shape, "typestr": array.dtype.str, "data": (array.ctypes.data, False), "version": 3,
            "strides": strides, "stream": 1, "descr": array.dtype.descr,
        }  # fmt: skip

    def __dlpack__(self, **_: Any) -> Any:
        self._session.refuse("DLPack of a cupy.ndarray (hand over cupy.asnumpy of it, or data.ptr)")

    # ------------------------------------------------------------ host and device
    def get(self, stream: Any = None, order: str = "C", out: np.ndarray | None = None, blocking: bool = True) -> Any:
        """A copy as a numpy array."""
        self._arrays.accessed("get", [self], (), stream)
        if blocking:
            self._arrays.waits(stream)
        if out is not None:
            out[...] = self._array
            return out
        return np.array(self._array, order="F" if order == "F" else "C")

    def set(self, arr: Any, stream: Any = None) -> None:
        """Take the values of a numpy array of this shape."""
        if not isinstance(arr, np.ndarray) or arr.shape != self._array.shape:
            raise ValueError(f"Shape mismatch. Old shape: {self._array.shape}, new shape: {np.shape(arr)}")
        self._array[...] = arr
        self._arrays.accessed("set", (), [self], stream)

    def fill(self, value: Any) -> None:
        self._array.fill(self._arrays.plain(value))
        self._arrays.accessed("fill", (), [self])

    def sort(self, axis: int = -1) -> None:
        self._array.sort(axis)
        self._arrays.accessed("sort", (), [self])

    def item(self, *place: Any) -> Any:
        return self.get().item(*place)

    def tolist(self) -> Any:
        return self.get().tolist()

    @property
    def data(self) -> MemoryPointer:
        return MemoryPointer(UnownedMemory(self._array.ctypes.data, self._array.nbytes, self))

    @property
    def device(self) -> Any:
        from cupy import cuda  # the stand-in's own

        return cuda.Device(0)

    @property
    def shape(self) -> tuple[int, ...]:
        return self._array.shape

    @shape.setter
    def shape(self, extents: Any) -> None:
        made = self._array.reshape(extents)
        if not np.shares_memory(made, self._array):
            raise AttributeError("incompatible shape")
        self._array = made

    # ------------------------------------------------------------ as a sequence and a number
    def __getitem__(self, place: Any) -> Any:
        return self._arrays.wrap(self._array[self._arrays.plain(place)], self)

    def __setitem__(self, place: Any, value: Any) -> None:
        where = self._arrays.plain(place)
        self._array[where] = self._arrays.plain(value)
        if self._session.order is not None:
            values = [value] if isinstance(value, DeviceArray) else ()
            part = self._array[where]  # a view, unless the place is one element or an array of places
            self._arrays.accessed("setitem", values, [part] if np.may_share_memory(part, self._array) else ())

    def __len__(self) -> int:
        return len(self._array)

    def __iter__(self) -> Any:
        return (self[n] for n in range(len(self._array)))

    def __bool__(self) -> bool:
        return bool(self.get())

    def __int__(self) -> int:
        return int(self.get())

    def __float__(self) -> float:
        return float(self.get())

    def __complex__(self) -> complex:
        return complex(self._array)

    def __index__(self) -> int:
        return self._array.__index__()

    def __repr__(self) -> str:
        return repr(self._array)

    def __str__(self) -> str:
        return str(self._array)

    def __format__(self, form: str) -> str:
        return format(self._array[()] if not self._array.ndim else self._array, form)

    __hash__ = None  # type: ignore[assignment]


def _method(name: str) -> Callable[..., Any]:
    def call(self: DeviceArray, *args: Any, **options: Any) -> Any:
        return self._arrays.function(getattr(np.ndarray, name))(self, *args, **options)

    call.__name__ = name
    return call


def _attribute(name: str, wrapped: bool) -> property:
    def get(self: DeviceArray) -> Any:
        found = getattr(self._array, name)
        return self._arrays.wrap(found, self) if wrapped else found

    return property(get)


for _name in _METHODS.split():
    setattr(DeviceArray, _name, _method(_name))
for _name in (*_OF_HOST, *_VIEWS):
    setattr(DeviceArray, _name, _attribute(_name, _name in _VIEWS))


class _Generator(Refusing):
    """cupy.random.Generator or RandomState, from numpy's."""

    def __init__(self, arrays: Arrays, generator: Any, label: str = "cupy.random.Generator"):
        self._session, self._arrays, self._generator, self._label = arrays.session, arrays, generator, label

    def __getattr__(self, name: str) -> Any:
        drawn = None if name.startswith("_") else getattr(self._generator, name, None)
        return self._arrays.function(drawn) if callable(drawn) else super().__getattr__(name)


def random_functions(arrays: Arrays) -> dict[str, Callable[..., Any]]:
    """cupy.random's functions, from numpy's generator: other numbers than cuRAND's."""
    state = np.random.RandomState()  # the legacy interface is what CuPy has
    names = ("rand", "randn", "random", "random_sample", "uniform", "normal", "standard_normal", "randint",
             "permutation", "choice", "exponential", "poisson", "binomial")  # fmt: skip

    def drawn(name: str) -> Callable[..., Any]:
        def draw(*args: Any, dtype: Any = None, **options: Any) -> Any:
            found = getattr(state, name)(*arrays.plain(args), **options)
            return arrays.wrap(np.asarray(found if dtype is None else np.asarray(found).astype(dtype)))

        return draw

    made = {name: drawn(name) for name in names}
    made["default_rng"] = lambda seed=None: _Generator(arrays, np.random.default_rng(seed))
    made["RandomState"] = lambda seed=None: _Generator(arrays, np.random.RandomState(seed), "cupy.random.RandomState")
    made["seed"] = lambda seed=None: state.seed(seed)
    made["shuffle"] = lambda given: state.shuffle(given._array)
    return made
