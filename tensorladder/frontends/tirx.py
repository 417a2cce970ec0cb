"""TIRx front end: a function in TVM's tile language in, a `Program` out, for any architecture and with no GPU.

    program = compile_program(kernel, arch="sm_100a", name="copy")     # kernel: a @T.prim_func
    program = compile_program(make, 128, "float16", arch="sm_100a")    # or make(128, "float16") gives it
    program(stream, x, y)

TVM lowers the function to a host and a device module. The device module becomes CUDA C++, which NVRTC compiles
(package nvidia-cuda-nvrtc, with headers of nvidia-cuda-runtime); the host module is evaluated as it stands
(`tirx_host`). TVM's code generators for hosts take no part, nor does nvcc. Tracing and lowering take a second; where a
function makes the kernel, they and NVRTC are left out the next time (`tirx_cache`).
"""

from __future__ import annotations

import re
import time
import types
from dataclasses import replace
from typing import Any

from ..core.arch import find
from ..core.errors import MissingExtra, TensorladderError, UsageError
from ..core.program import Module, Program
from . import nvrtc, tirx_cache
from .tirx_host import HostPart, Plan, plan

_OPTIONS = ("-std=c++17",)
# NVRTC sees no cuda.h: kernels need nothing of it but this type (CUDA driver API: 128 bytes, 64-byte aligned). The tag
# is that of cuda.h, as headers of CCCL declare it too.
_TENSOR_MAP = "typedef struct alignas(64) CUtensorMap_st { unsigned long long opaque[16]; } CUtensorMap;\n"
# All that the sources want of these two headers. The packages' own take NVRTC a second to read, more than the kernel.
_STANDARD = {
    "cuda/std/cstdint": """
namespace cuda { namespace std {
typedef signed char int8_t; typedef short int16_t; typedef int int32_t; typedef long long int64_t;
typedef unsigned char uint8_t; typedef unsigned short uint16_t; typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
} }
""",
    "cuda/std/type_traits": """
namespace cuda { namespace std {
template <bool V> struct bool_constant { static constexpr bool value = V; };
template <class T, class U> struct is_same : bool_constant<false> {};
template <class T> struct is_same<T, T> : bool_constant<true> {};
template <class T, class U> inline constexpr bool is_same_v = is_same<T, U>::value;
template <class T, class... Us> inline constexpr bool is_one_of = (is_same_v<T, Us> || ...);
template <class T> struct is_floating_point : bool_constant<is_one_of<T, float, double>> {};
template <class T> struct is_integral : bool_constant<is_one_of<T, bool, char, signed char, unsigned char, short,
    unsigned short, int, unsigned int, long, unsigned long, long long, unsigned long long>> {};
template <class T> struct is_signed : bool_constant<is_one_of<T, float, double, signed char, short, int, long,
    long long> || (is_same_v<T, char> && char(-1) < char(0))> {};
template <class T> struct is_unsigned : bool_constant<is_integral<T>::value && !is_signed<T>::value> {};
template <bool V, class T = void> struct enable_if {};
template <class T> struct enable_if<true, T> { typedef T type; };
template <bool V, class T, class F> struct conditional { typedef T type; };
template <class T, class F> struct conditional<false, T, F> { typedef F type; };
} }
""",
}
_INCLUDE = re.compile(r"^\s*#\s*include\s*<(cuda/[^>]+)>", re.M)


def compile_program(function: Any, *args: Any, arch: str, name: str | None = None) -> Program:
    """Compile a TIRx function (`tvm.tirx.PrimFunc` with a device entry) for `arch`, e.g. "sm_100a".

    function: it, or a Python function that returns it for `args`; that alone is cached, as its source says what a
    trace sees. The program takes what the kernel's own host part takes, in its order: arrays for buffers, numbers for
    scalars. Lines in the PTX are those of the CUDA C++ that `cuda_source` shows. UsageError, in one line, for what TVM
    or NVRTC refuses; MissingExtra without TVM; Unsupported for host code that is not modelled.
    """
    start = time.perf_counter()
    arch = find(arch).name
    makes = isinstance(function, types.FunctionType)
    kept = tirx_cache.key(function, args, arch, name or "", *_OPTIONS) if makes else None
    found = tirx_cache.load(kept, arch) if kept else None
    made, module = found or _compiled(function(*args) if makes else function, arch, name)
    if kept and not found:
        tirx_cache.store(kept, made, module)
    return Program(module.name, arch, (module,), HostPart(made, module, module.name), time.perf_counter() - start)


def cuda_source(function: Any, arch: str) -> str:
    """The CUDA C++ that TVM makes of the function's device part; errors as `compile_program`."""
    return _lowered(function, find(arch).name)[2]


def lower(function: Any, arch: str) -> tuple[str, Plan, str]:
    """The name of a TIRx function, its host part as a plan, and its device part as CUDA C++; errors as
    `compile_program`."""
    host, kernels, source = _lowered(function, arch)
    return str(host.attrs["global_symbol"]).removeprefix("__tvm_ffi_"), plan(host, kernels), source


def _lowered(function: Any, arch: str) -> tuple[Any, dict[str, list[str]], str]:
    """The host function, the launch parameters of its kernels, and the device module as CUDA C++."""
    try:
        import tvm
        from tvm.tirx.build import codegen_build, split_host_device_mods
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "tvm":
            raise
        raise MissingExtra("apache-tvm", "tirx") from error
    target = tvm.target.Target({"kind": "cuda", "arch": arch}).with_host("llvm")
    try:
        module = tvm.tirx.transform.BindTarget(target)(tvm.IRModule({"main": function}))
        pipeline, _, finalize_device = tvm.tirx.get_tir_pipeline("tirx")
        host, devices = split_host_device_mods(pipeline(module))
        parts = {on: finalize_device()(part) for on, part in devices.items()}
        sources = [codegen_build(part, on).inspect_source() for on, part in parts.items()]
    except TensorladderError:
        raise
    except Exception as error:  # TVM raises its own classes and Python's alike
        raise UsageError(f"TIRx: {_one_line(error)}") from error
    functions = list(host.functions.values())
    if len(functions) != 1 or len(sources) != 1:
        raise UsageError(
            f"TIRx: {len(functions)} host functions and {len(sources)} device modules: one function with "
            "T.device_entry() makes one of each"
        )
    (part,) = parts.values()
    launched = [(name.name_hint, one.attrs["tirx.kernel_launch_params"]) for name, one in part.functions.items()]
    return functions[0], {name: [str(tag) for tag in tags] for name, tags in launched}, sources[0]


_NOISE = ("File ", "Traceback", "[", "at ", "^", "|")
_DECLINED = re.compile(r"declined\s*\W\s*([^|]+)")


def _one_line(error: Exception) -> str:
    """What a message of TVM says first, and why it says so, without its traces and tables."""
    text = str(error)
    lines = [line.strip() for line in text.splitlines()]
    told = [line for line in lines if line and not line.startswith(_NOISE)] or [type(error).__name__]
    declined = _DECLINED.search(text)
    return f"{told[0]}: {' '.join(declined[1].split())}" if declined else told[0]


def _compiled(function: Any, arch: str, name: str | None) -> tuple[Plan, Module]:
    """The host's plan, and the device code."""
    own_name, made, source = lower(function, arch)
    return made, compiled_source(source, arch, name or own_name)


def compiled_source(source: str, arch: str, name: str) -> Module:
    """What NVRTC makes of CUDA C++ that TVM made. UsageError for what it refuses."""
    text = _TENSOR_MAP + source if "CUtensorMap" in source else source
    # Another header of the same library would want the library's own.
    headers = _STANDARD if set(_INCLUDE.findall(text)) <= set(_STANDARD) else {}
    return replace(nvrtc.compile_cuda(text, arch, _OPTIONS, f"{name}.cu", headers), name=name)
