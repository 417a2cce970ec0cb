"""Everything that leans on CuTe DSL's inner parts, in one place.

What is leaned on, checked by tests/frontends/test_cutedsl_inner.py: the lowered MLIR module and the kept artifacts of
a compiled function, its runtime signature and argument packing (`execution_args`), the MLIR execution engine that
writes an object file, the DSL's environment record, the fields of real and fake tensors, and `__tvm_ffi_NAME`.

Memory layout of a tensor argument (read off the lowered MLIR, nvidia-cutlass-dsl 4.8): the data pointer, then the
dynamic extents, then the dynamic strides, each an i32 or i64 at its natural alignment; static ones take no space.
"""

from __future__ import annotations

import ctypes
import inspect
import os
import re
import struct
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..core import dlpack
from ..core.errors import MissingExtra, TensorladderError, Unsupported, UsageError

_LOCK = threading.RLock()
ABSENT = "absent"
"""The demand of an argument that was None at compile time: it takes no place among the packed ones."""
_STREAM_TYPES = {"_FakeStream", "CUstream", "cudaStream_t"}
_NAMES = {"Boolean": "bool", "TFloat32": "float32", "BFloat16": "bfloat16", "Float8E8M0FNU": "float8_e8m0fnu"}


def load() -> Any:
    """The module `cutlass`, imported now. MissingExtra without it."""
    try:
        import cutlass
        import cutlass.cute
    except ImportError as error:
        raise MissingExtra(f"nvidia-cutlass-dsl ({error})", "climb") from None
    return cutlass


# --------------------------------------------------------------------------------------------- tensors


@dataclass(frozen=True)
class Extent:
    """One extent or stride that a compiled function takes at run time: bits, divisor, and what it must equal."""

    bits: int = 32
    divisor: int = 1
    symbol: int | None = None


Dim = int | Extent


@dataclass(frozen=True)
class TensorSpec:
    """What a compiled function demands of a tensor argument. align in bytes, strides in elements."""

    dtype: str
    shape: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    align: int

    def __str__(self) -> str:
        dims = ", ".join("?" if isinstance(d, Extent) else str(d) for d in self.shape)
        return f"{self.dtype}[{dims}]"


def _numpy_name(dtype: Any) -> str:
    """Float8E4M3FN -> float8_e4m3fn, Uint8 -> uint8."""
    name = dtype.__name__
    return _NAMES.get(name) or re.sub(r"(?<=\d)(e\d)", r"_\1", name.lower())


_TOKEN = re.compile(r"\?(?:\{([^}]*)\})?|(\d+)")


def _dims(text: str) -> tuple[Dim, ...]:
    """Flat extents or strides as the DSL prints them: "(?,6,?{i64 div=4})"."""
    found: list[Dim] = []
    for m in _TOKEN.finditer(text):
        words = m[1] or ""
        divisor = re.search(r"div=(\d+)", words)
        found.append(int(m[2]) if m[2] else Extent(64 if "i64" in words else 32, int(divisor[1]) if divisor else 1))
    return tuple(found)


def _symbolic(dims: Any) -> tuple[Dim, ...]:
    return tuple(d if isinstance(d, int) else Extent(d.width, d.divisibility or 1, id(d)) for d in dims)


def tensor_spec(arg: Any) -> TensorSpec | None:
    """The demand that a compile-time argument sets up; None where it is no flat tensor."""
    kind = type(arg).__name__
    if kind == "_FakeTensor":
        shape, strides = _symbolic(arg.shape), _symbolic(arg.stride)
    elif kind == "_Tensor":
        printed = str(arg).rpartition(" o ")[2].rstrip(">")
        shape_text, _, stride_text = printed.partition("):(") if "):(" in printed else printed.partition(":")
        shape, strides = _dims(shape_text), _dims(stride_text)
    else:
        return None
    bits = arg.element_type.width
    return TensorSpec(_numpy_name(arg.element_type), shape, strides, arg._assumed_align or max(bits // 8, 1))


def view(arg: Any) -> dlpack.View | None:
    """A runtime argument as a tensor in memory; None where it is none (numbers, pointers, streams)."""
    if type(arg).__name__ == "_Tensor":
        seen = dlpack.view(_Exported(arg))
        return dlpack.View(seen.data, seen.shape, seen.strides, seen.dtype, seen.device, arg)
    if hasattr(arg, "__dlpack__"):
        return dlpack.view(arg)
    return None


class _Exported:
    """A DSL tensor holds the unconsumed capsule it was made from: show that one."""

    def __init__(self, tensor: Any):
        self._capsule = tensor._dlpack_data

    def __dlpack__(self) -> Any:
        return self._capsule


def _check_dim(what: str, i: int, got: int, want: Dim, symbols: dict[int, int], relevant: bool = True) -> None:
    if isinstance(want, int):
        if got != want and relevant:
            raise UsageError(f"{what}[{i}] is {got}, compiled for {want}")
        return
    if got % want.divisor and relevant:
        raise UsageError(f"{what}[{i}] is {got}, must be a multiple of {want.divisor}")
    if want.symbol is not None and symbols.setdefault(want.symbol, got) != got:
        raise UsageError(f"{what}[{i}] is {got}, but the same extent is {symbols[want.symbol]} in another argument")


def check(name: str, seen: dlpack.View, spec: TensorSpec, symbols: dict[int, int]) -> None:
    """UsageError (one line) where `seen` is not what was compiled for. `symbols` collects symbolic extents."""
    same_storage = spec.dtype.startswith("float8") and seen.dtype in ("uint8", "int8")
    narrow = not any(spec.dtype == known for known in dlpack.DTYPES) and seen.itemsize == 1
    if seen.dtype != spec.dtype and not same_storage and not narrow:
        raise UsageError(f"{name}: dtype {seen.dtype}, compiled for {spec.dtype}")
    if len(seen.shape) != len(spec.shape):
        raise UsageError(f"{name}: {len(seen.shape)} dimensions {seen.shape}, compiled for {spec}")
    for i, (got, want) in enumerate(zip(seen.shape, spec.shape)):
        _check_dim(f"{name}: shape", i, got, want, symbols)
    for i, (got, want) in enumerate(zip(seen.strides, spec.strides)):
        _check_dim(f"{name}: stride", i, got, want, symbols, relevant=seen.shape[i] > 1)
    if seen.data % spec.align:
        raise UsageError(f"{name}: address {seen.data:#x} is not aligned to the {spec.align} bytes compiled for")


class TensorArgument:
    """A tensor argument in the memory layout that the compiled host code reads (see the module's docstring)."""

    def __init__(self, seen: dlpack.View, spec: TensorSpec):
        dynamic = [(g, w.bits) for g, w in zip(seen.shape, spec.shape) if isinstance(w, Extent)]
        dynamic += [(g, w.bits) for g, w in zip(seen.strides, spec.strides) if isinstance(w, Extent)]
        layout = "@Q" + "".join("i" if bits == 32 else "q" for _, bits in dynamic)
        data = struct.pack(layout, seen.data, *(value for value, _ in dynamic))
        self._owner = seen.owner
        self._buffer = ctypes.create_string_buffer(data, len(data) + 8)
        self._address = ctypes.addressof(self._buffer)

    def __c_pointers__(self) -> list[int]:
        return [self._address]


# --------------------------------------------------------------------------------------------- compiling


@dataclass(frozen=True)
class Compiled:
    """What one compilation left: device code, host object, and how runtime arguments are named and packed."""

    name: str
    ptx: str
    cubin: bytes
    mlir: str | None
    image: bytes
    ffi: bool
    names: tuple[str, ...]
    specs: dict[str, Any]
    execution_args: Any

    @property
    def label(self) -> str:
        """How to call the function in a message."""
        return short_name(self.name)


def compile_function(
    fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], arch: str, options: str, keep_mlir: bool,
    lines: bool = True,
) -> Compiled:  # fmt: skip
    """Run the DSL's compiler for `arch`. lines: with source lines. UsageError (one line) for whatever it refuses."""
    cutlass = load()
    with _LOCK, tempfile.TemporaryDirectory(prefix="tensorladder-") as folder:
        kept = {"keep_ir": True, "dump_dir": folder} if keep_mlir else {}
        ours = f"--gpu-arch {arch} --keep-ptx --keep-cubin --dump-dir {folder}{' --generate-line-info' * lines}"
        with _refusals_in_one_line(fn, arch), environment(cutlass, kept):
            raw = cutlass.cute.compile(fn, *args, options=f"{ours} {options}", **kwargs)
        if not isinstance(raw.__ptx__, str) or not isinstance(raw.__cubin__, bytes) or "\n" not in raw.__ptx__:
            raise UsageError(f"{function_name(fn)}: compiled, but there is no device code: it launches no kernel")
        image = host_object(raw)
    ffi = hasattr(raw, "_create_tvm_ffi_function")
    facts = (raw.function_name, raw.__ptx__, raw.__cubin__, raw.__mlir__, image, ffi, raw.execution_args)
    return completed(fn, args, kwargs, *facts)


def completed(
    fn: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    name: str,
    ptx: str,
    cubin: bytes,
    mlir: str | None,
    image: bytes,
    ffi: bool,
    execution_args: Any,
) -> Compiled:
    """A result with the demands that the compile-time arguments set up."""
    names = tuple(execution_args.signature.parameters)
    bound = _bind(fn, args, kwargs)
    specs = {n: _spec(bound[n]) for n in names if n in bound}
    return Compiled(name, ptx, cubin, mlir, image, ffi, names, specs, execution_args)


def rebuilt_execution_args(fn: Any, name: str) -> Any:
    """The DSL's argument packing for `fn`, without compiling it."""
    from cutlass.base_dsl.jit_executor import ExecutionArgs
    from cutlass.cutlass_dsl.cuda_jit_executor import CudaDialectJitCompiledFunction

    scope = CudaDialectJitCompiledFunction._jit_arg_adapter_scope
    return ExecutionArgs(inspect.signature(fn, eval_str=True), name, adapter_scope=scope)


def can_be_rebuilt(compiled: Compiled, fn: Any) -> bool:
    """Whether `rebuilt_execution_args` packs as the compiled function's own does: no pointers, the same parameters."""
    own = compiled.execution_args
    again = rebuilt_execution_args(fn, compiled.name)
    same = list(own.signature.parameters.items()) == list(again.signature.parameters.items())
    return same and not own.has_pointer_address_arg_specs


def short_name(mangled: str) -> str:
    """The function's own name in the DSL's mangled one, which spells out every argument."""
    m = re.match(r"cutlass_(?:__)?(\w+?)_(?:Fake)?Tensor", mangled)
    return m[1].rstrip("_") if m else mangled.removeprefix("cutlass_")[:40]


def function_name(fn: Any) -> str:
    """How to call `fn` in a message."""
    return getattr(fn, "__qualname__", None) or type(fn).__name__


def host_object(raw: Any) -> bytes:
    """The host part of a compiled function as a relocatable object for this machine."""
    try:
        if hasattr(raw, "_create_tvm_ffi_function"):
            from cutlass._mlir._mlir_libs._cutlass_ir import _aot_support

            return _aot_support.export_module_to_bytes(raw.ir_module, format="o", opt_level=2, enable_pic=True)
        from cutlass._mlir.execution_engine import ExecutionEngine
        from cutlass.base_dsl.env_manager import get_prefix_dsl_libs

        libraries = (get_prefix_dsl_libs("CUTE_DSL") or "").split(os.pathsep)
        engine = ExecutionEngine(raw.ir_module, opt_level=2, shared_libs=[p for p in libraries if p])
        with tempfile.TemporaryDirectory(prefix="tensorladder-") as folder:
            path = os.path.join(folder, "host.o")
            engine.dump_to_object_file(path)
            return Path(path).read_bytes()
    except (ImportError, AttributeError, TypeError, RuntimeError) as error:
        raise Unsupported(f"this nvidia-cutlass-dsl hides its host object ({error}): 4.8 is known") from error


@contextmanager
def environment(cutlass: Any, settings: dict[str, Any]) -> Iterator[None]:
    """The DSL's records of its environment variables with these settings: some have no compile option.

    There are two: `cute.experimental` is a DSL of its own.
    """
    kinds = [getattr(cutlass.cutlass_dsl, name, None) for name in ("CuTeDSL", "CuteExperimentalDSL")]
    records = [kind._get_dsl().envar for kind in kinds if kind is not None]
    before = [(record, key, getattr(record, key)) for record in records for key in settings]
    for record, key, _ in before:
        setattr(record, key, settings[key])
    try:
        yield
    finally:
        for record, key, value in before:
            setattr(record, key, value)


def accept_as_tensor(kind: type) -> None:
    """Let compiled functions take arrays of this type directly; the DSL looks array types up by their exact name."""
    from cutlass.base_dsl.runtime.jit_arg_adapters import JitArgAdapterRegistry
    from cutlass.cute.runtime import TensorAdapter

    if kind not in JitArgAdapterRegistry.jit_arg_adapter_registry:
        JitArgAdapterRegistry.register_jit_arg_adapter(kind)(TensorAdapter)


def exec_points() -> dict[str, tuple[Any, str]]:
    """Where a script's use of the DSL meets a GPU: our name -> (owner, attribute) that is replaced for `exec`."""
    import cutlass.cute.testing as cute_testing
    import cutlass.testing as testing
    from cutlass.cute.runtime import _Tensor
    from cutlass.cutlass_dsl.cuda_jit_executor import CudaDialectJitCompiledFunction
    from cutlass.utils import HardwareInfo

    points: dict[str, tuple[Any, str]] = {
        "to": (CudaDialectJitCompiledFunction, "to"),
        "tensor_init": (_Tensor, "__init__"),
        "benchmark": (testing, "benchmark"),
        "cute_benchmark": (cute_testing, "benchmark"),
        "autotune": (testing, "_benchmark_for_autotune"),
        "hardware_init": (HardwareInfo, "__init__"),
        "hardware_clusters": (HardwareInfo, "get_max_active_clusters"),
        "hardware_l2": (HardwareInfo, "get_l2_cache_size_in_bytes"),
        "hardware_sms": (HardwareInfo, "get_device_multiprocessor_count"),
    }
    try:
        from cutlass.cutlass_dsl.tvm_ffi_provider import TVMFFIJitCompiledFunctionBase
    except ImportError:
        return points
    return points | {"create_ffi": (TVMFFIJitCompiledFunctionBase, "_create_tvm_ffi_function")}


_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_HEADLINE = re.compile(r"error(?:\[\w+\])?:\s*(.+)")


def cooperative_too_large() -> Exception:
    """What the DSL raises where the runtime refuses a cooperative launch of more CTAs than are resident at once."""
    from cuda.bindings.runtime import cudaError_t
    from cutlass.cutlass_dsl import DSLCudaRuntimeError

    code = cudaError_t.cudaErrorCooperativeLaunchTooLarge
    return DSLCudaRuntimeError(code, code.name)


def one_line(error: BaseException) -> str:
    """The cause that a DSL error names, without colours, source frames and suggestions."""
    text = _COLOUR.sub("", str(getattr(error, "message", "") or error)).strip()
    headline = _HEADLINE.search(text)
    line = headline[1] if headline else next((x.strip() for x in text.splitlines() if x.strip()), type(error).__name__)
    if isinstance(error, KeyError):
        line = f"no such key {line}"
    file, number = _location(error)
    where = f" ({Path(file).name}:{number})" if file else ""
    cause = getattr(error, "cause", None) or error.__cause__
    if isinstance(cause, BaseException):
        because = one_line(cause)
    else:
        because = str(cause or "").strip().partition("\n")[0]
    return line + where + (f": {because}" if because and because not in line else "")


def _location(error: BaseException) -> tuple[str, int]:
    """File and line in the user's source: what the DSL says, else the innermost frame outside DSL and front end."""
    if getattr(error, "filename", None):
        return str(error.filename), getattr(error, "line", None) or 0  # type: ignore[attr-defined]
    found = ("", 0)
    for frame in traceback.extract_tb(error.__traceback__):
        path = Path(frame.filename)
        if "nvidia_cutlass_dsl" not in path.parts and path.parent != Path(__file__).parent:
            found = (frame.filename, frame.lineno or 0)
    return found


@contextmanager
def _refusals_in_one_line(fn: Any, arch: str) -> Iterator[None]:
    try:
        yield
    except TensorladderError:
        raise
    except (Exception, SystemExit) as error:
        raise UsageError(f"{function_name(fn)} does not compile for {arch}: {one_line(error)}") from error


def _bind(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    bound = inspect.signature(fn).bind(*args, **kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


def is_stream(arg: Any) -> bool:
    """A CUDA stream, or what stands for one at compile time."""
    return type(arg).__name__ in _STREAM_TYPES


def _spec(arg: Any) -> Any:
    """TensorSpec, "stream", ABSENT, a tuple of specs, or None for what is passed through."""
    if arg is None:
        return ABSENT
    if is_stream(arg):
        return "env" if getattr(arg, "use_tvm_ffi_env_stream", False) else "stream"
    if isinstance(arg, list | tuple):
        return tuple(_spec(a) for a in arg)
    return tensor_spec(arg)


# --------------------------------------------------------------------------------------------- calling


def bind_arguments(compiled: Compiled, args: tuple[Any, ...], kwargs: dict[str, Any], stream: Any) -> list[Any]:
    """Runtime arguments in signature order, tensors checked and wrapped. A stream that is left out is filled in."""
    parameters = compiled.execution_args.signature.parameters
    missing = len(parameters) - len(args) - len(kwargs)
    values = list(args)
    ordered: list[tuple[str, Any]] = []
    for name, parameter in parameters.items():
        spec = compiled.specs.get(name)
        if spec == "env" or (spec == "stream" and name not in kwargs and missing > 0):
            ordered.append((name, stream))
            missing -= spec == "stream"
        elif name in kwargs:
            ordered.append((name, kwargs[name]))
        elif values:
            ordered.append((name, values.pop(0)))
        elif parameter.default is not inspect.Parameter.empty:
            ordered.append((name, parameter.default))
        else:
            raise UsageError(f"{compiled.label}: argument {name} is missing: it takes {', '.join(parameters)}")
    unknown = sorted(set(kwargs) - set(parameters))
    if values or unknown:
        extra = f"no argument {unknown[0]}" if unknown else f"{len(args)} arguments given"
        raise UsageError(f"{compiled.label}: {extra}: it takes {', '.join(parameters)}")
    symbols: dict[int, int] = {}
    wrap = _as_ffi if compiled.ffi else TensorArgument
    return [_wrap(n, v, compiled.specs.get(n), symbols, wrap) for n, v in ordered]


def _wrap(name: str, value: Any, spec: Any, symbols: dict[int, int], wrap: Callable[..., Any]) -> Any:
    if isinstance(spec, tuple) and isinstance(value, list | tuple) and len(spec) == len(value):
        return type(value)(_wrap(f"{name}[{i}]", v, s, symbols, wrap) for i, (v, s) in enumerate(zip(value, spec)))
    if spec == ABSENT and value is not None:
        raise UsageError(f"{name}: {type(value).__name__} given, compiled for None")
    if not isinstance(spec, TensorSpec):
        return value
    seen = view(value)
    if seen is None:
        raise UsageError(f"{name}: {type(value).__name__} given, compiled for the tensor {spec}")
    check(name, seen, spec, symbols)
    return wrap(seen, spec)


def _as_ffi(seen: dlpack.View, spec: TensorSpec) -> Any:
    """A TVM-FFI tensor that claims to lie on CUDA device 0, which compiled functions ask for."""
    import tvm_ffi

    return tvm_ffi.from_dlpack(on_cuda(seen))


def on_cuda(seen: dlpack.View) -> dlpack.View:
    """The same tensor, claiming CUDA device 0."""
    return replace(seen, device=(dlpack.CUDA, 0))


def argument_addresses(compiled: Compiled, values: list[Any]) -> tuple[list[int], Any]:
    """Addresses of the packed arguments, and what must stay alive meanwhile."""
    try:
        addresses, adapted = compiled.execution_args.generate_execution_args(tuple(values), {})
    except TensorladderError:
        raise
    except Exception as error:
        raise UsageError(f"{compiled.label}: {one_line(error)}") from error
    return plain_addresses(addresses), (values, adapted, addresses)


def plain_addresses(pointers: list[Any]) -> list[int]:
    """Packed argument addresses as integers; the DSL mixes integers and ctypes pointers."""
    return [p if isinstance(p, int) else ctypes.cast(p, ctypes.c_void_p).value or 0 for p in pointers]
