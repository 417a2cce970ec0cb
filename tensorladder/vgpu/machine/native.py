"""The native runtime, written in Python: numba compiles `@export`ed functions to one object file, kept on disk.

All parameters and results are 64-bit integers (addresses included). The object is loaded through llvmlite alone; once
it is in the cache, numba is not even imported. The cache key holds a hash of the engine's source, since numba's own
cache does not see edits in functions that a cached function calls.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import importlib.metadata
import platform
import re
import threading
from collections.abc import Callable
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

from tensorladder.core.cache import cached_bytes
from tensorladder.core.errors import MissingExtra

#: modules whose exports make up the runtime, in order
MODULES = ("memory", "atomics", "lanes", "warps", "barriers", "calls", "mbarrier", "matrices", "copies", "tma",
           "remote_issue", "tmem", "tcgen05_issue", "issue", "launches", "hooks", "registers", "shadows", "scheduler",
           "tcmma_issue", "wgmma_issue")  # fmt: skip
#: the same for the hazard checker, a library of its own that the runtime calls by address (hooks.observe)
CHECK_MODULES = ("events", "runs")

#: what compiled code may call besides: memset and friends, mathematical functions, conversions of half floats
_LIBRARIES = ("libc.so.6", "libm.so.6", "libgcc_s.so.1")

#: by folder of vgpu/: name -> (numba dispatcher, parameters)
_EXPORTS: dict[str, dict[str, tuple[Any, int]]] = {"machine": {}, "check": {}}


def export(fn: Callable) -> Callable:
    """Make an int64(int64, ...) function callable from generated code by its name. Nothing is compiled yet."""
    from numba import njit

    jitted = njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, error_model="numpy", boundscheck=False)(fn)
    _EXPORTS[fn.__module__.split(".")[-2]][fn.__name__] = (jitted, fn.__code__.co_argcount)
    return jitted


def helper(fn: Callable) -> Callable:
    """A function that exports call: one compilation for all calls, constants as arguments included."""
    from numba import njit, types

    jitted = njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, error_model="numpy", boundscheck=False)(fn)
    template = jitted.get_call_template
    jitted.get_call_template = lambda args, kws: template(tuple(types.unliteral(a) for a in args), kws)
    return jitted


@contextmanager
def _front_end_only():
    """numba types and lowers, and leaves optimisation and machine code of each function to our one module."""
    from unittest.mock import patch

    from numba.core import codegen, cpu
    from numba.core.compiler_lock import global_compiler_lock

    def nothing(*_: object) -> None:
        """What is skipped."""

    library = codegen.JITCodeLibrary
    with (
        global_compiler_lock,
        patch.object(library, "_optimize_functions", nothing),
        patch.object(library, "_optimize_final_module", nothing),
        patch.object(library, "_finalize_specific", nothing),
        # numba knows a compiled function by its entry point: any builtin object of its own, never called
        patch.object(cpu.CPUContext, "get_executable", lambda *_: [].append),
    ):
        yield


@cache
def source_hash(*folders: str) -> str:
    """Hash of everything that generated code (or what lies in some folders of vgpu/) depends on."""
    h = hashlib.sha256()
    root = Path(__file__).parent.parent
    for path in sorted(p for folder in folders or ("machine", "codegen", "ptx") for p in root.glob(f"{folder}/*.py")):
        h.update(path.read_bytes())
    for name in ("llvmlite", "numba"):
        h.update(importlib.metadata.version(name).encode())
    h.update(f"{platform.machine()} {_cpu()}".encode())
    return h.hexdigest()


def _cpu() -> str:
    import llvmlite.binding as llvm

    return f"{llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()}"


@cache
def target_machine(opt: int = 2):
    """LLVM target machine of this host."""
    try:
        import llvmlite.binding as llvm
    except ImportError:
        raise MissingExtra("llvmlite", "climb") from None

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=opt,
        reloc="pic",
        codemodel="jitdefault",
        jit=True,
    )


def _build(folder: str) -> bytes:
    """Object code of the exports of a folder of vgpu/, "machine" or "check"."""
    import llvmlite.binding as llvm
    from numba import types

    for name in MODULES if folder == "machine" else CHECK_MODULES:
        importlib.import_module(f"tensorladder.vgpu.{folder}.{name}")
    target_machine()
    merged: Any = None
    wrappers = []
    for name, (fn, count) in sorted(_EXPORTS[folder].items()):
        with _front_end_only():
            fn.compile((types.int64,) * count)
            (result,) = fn.overloads.values()
            module = llvm.parse_bitcode(result.library._get_module_for_linking().as_bitcode())
        inner = result.fndesc.llvm_func_name
        wrappers.append(_wrapper(name, inner, count))
        for f in module.functions:
            if not f.is_declaration:  # kept when linked; callees may stand in several modules
                f.linkage = "weak_odr"
        if merged is None:
            merged = module
        else:
            merged.link_in(module)
    merged.link_in(llvm.parse_assembly("\n".join(wrappers)))
    for text in _texts() if folder == "machine" else ():
        merged.link_in(llvm.parse_assembly(text))
    merged.link_in(llvm.parse_assembly(_COMPILER_SUPPORT))
    for f in merged.functions:
        if not f.is_declaration and not f.name.startswith(("tl_", "__trunc")):
            f.linkage = "internal"
    for g in merged.global_variables:
        if not g.is_declaration and "NumbaEnv" in g.name:
            g.linkage = "internal"
    _optimise(merged)
    return target_machine().emit_object(merged)


def _texts() -> tuple[str, ...]:
    """What of the runtime is written as LLVM IR."""
    import llvmlite.binding as llvm

    from tensorladder.vgpu.machine import fragments, matmul, operands, tensorcore

    features = llvm.get_host_cpu_features().flatten()
    return tensorcore.ir(), matmul.text(features), operands.text(), fragments.text()


#: f64 to f16 has no instruction and its library function comes with compilers, not with Python: to f32 rounded to odd
#: (toward zero, last bit set where inexact), then to f16, which is the correctly rounded result
_COMPILER_SUPPORT = """
define half @__truncdfhf2(double %d) {
  %f = fptrunc double %d to float
  %b = fpext float %f to double
  %i = bitcast float %f to i32
  %ab = call double @llvm.fabs.f64(double %b)
  %ad = call double @llvm.fabs.f64(double %d)
  %over = fcmp ogt double %ab, %ad
  %down = sext i1 %over to i32
  %j = add i32 %i, %down
  %inexact = fcmp une double %b, %d
  %odd = zext i1 %inexact to i32
  %k = or i32 %j, %odd
  %g = bitcast i32 %k to float
  %h = fptrunc float %g to half
  ret half %h
}
declare double @llvm.fabs.f64(double)
"""


def _optimise(module) -> None:
    import llvmlite.binding as llvm

    options = llvm.create_pipeline_tuning_options(speed_level=2)
    builder = llvm.create_pass_builder(target_machine(), options)
    manager = builder.getModulePassManager()
    manager.run(module, builder)


def _wrapper(name: str, inner: str, count: int) -> str:
    args = ", ".join(f"i64 %a{i}" for i in range(count))
    types = ", ".join(["ptr", "ptr", *["i64"] * count])
    passed = ", ".join(["ptr %r", "ptr %e", *[f"i64 %a{i}" for i in range(count)]])
    return f"""declare i32 @"{inner}"({types})
define i64 @{name}({args}) {{
  %r = alloca i64
  %e = alloca ptr
  %s = call i32 @"{inner}"({passed})
  %v = load i64, ptr %r
  ret i64 %v
}}"""


class Runtime:
    """A loaded library: symbols for generated code, and entry points for Python (which release the GIL)."""

    def __init__(self, folder: str, name: str, label: str) -> None:
        import llvmlite.binding as llvm

        obj = cached_bytes(name, partial(_build, folder), label=label)
        for library in _LIBRARIES:
            llvm.load_library_permanently(library)
        # an engine owns its target machine and frees it, so the cached one must not be given to it
        self.engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target_machine.__wrapped__())
        self.engine.add_object_file(llvm.ObjectFileRef.from_data(obj))
        self.engine.finalize_object()
        self._functions: dict[str, Callable] = {}
        self.symbols = {}
        for section in _defined_symbols(obj):
            self.symbols[section] = self.engine.get_function_address(section)
            llvm.add_symbol(section, self.symbols[section])

    def call(self, name: str, *args: int) -> int:
        """Call a runtime function."""
        fn = self._functions.get(name)
        if fn is None:
            fn = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * len(args))(self.symbols[name])
            self._functions[name] = fn
        return fn(*args)


def _defined_symbols(obj: bytes) -> list[str]:
    """Names in the object's string table that are ours: exports start with `tl_`, compiler support with `__trunc`."""
    return sorted({name.decode() for name in re.findall(rb"\0((?:tl_|__trunc)\w*)(?=\0)", obj)})


#: host threads that launch at a time must not load a library twice: the one that is dropped takes its code along, whose
#: addresses the other has published
_LOADING = threading.RLock()


def runtime() -> Runtime:
    """The runtime of this process, built on first use."""
    with _LOADING:
        return _runtime()


def checker() -> Runtime:
    """The hazard checker's library, built on first use."""
    with _LOADING:
        return _checker()


@cache
def _runtime() -> Runtime:
    # the code generator calls the runtime, never the other way round
    name = f"runtime-{source_hash('machine')[:24]}.o"
    return Runtime("machine", name, "building the virtual GPU's runtime (once)")


@cache
def _checker() -> Runtime:
    name = f"checker-{source_hash('machine', 'check')[:24]}.o"
    return Runtime("check", name, "building the hazard checker (once)")
