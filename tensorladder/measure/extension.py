"""Rungs in CUDA C++ as libraries that other programs call: a PyTorch extension, or a TVM-FFI module.

    module = torch_extension(rungs.find("cuda-b2"), "sm_90a", "fp16")
    module.gemm(a, b, c)                # tensors on a GPU; queued on torch's current stream

nvcc compiles the kernel with its host part (`rungs/cuda/bindings/launch.cu`) to an object, which knows neither torch
nor TVM-FFI. A binding of 40 lines is compiled beside it by the framework's own build (both use ninja) and linked with
it. No GPU is needed to build. The CUDA runtime is linked in: the machine with the GPU needs its driver alone.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorladder.core import cache
from tensorladder.core.errors import MissingExtra, UsageError
from tensorladder.rungs import rung as rungs
from tensorladder.rungs.rung import RungInfo

BINDINGS = Path(rungs.__file__).parent / "cuda" / "bindings"
#: an element type as torch has it; as DLPack has it (code, bits)
TORCH_DTYPES = {"fp16": "at::kHalf", "bf16": "at::kBFloat16", "fp32": "at::kFloat"}
DLPACK_DTYPES = {"fp16": (2, 16), "bf16": (4, 16), "fp32": (2, 32)}

_ERROR = re.compile(r"^.*\berror\b.*$", re.M)


@dataclass(frozen=True)
class Unit:
    """What is built: a rung for an architecture and element type, its kernel's and host part's macros, and where."""

    info: RungInfo
    arch: str
    dtype: str
    macros: Mapping[str, Any]
    folder: Path

    @property
    def name(self) -> str:
        """Of the library, a Python identifier."""
        return f"{self.info.path.stem}_{self.dtype}_{self.arch}"


def unit(
    info: RungInfo, arch: str, dtype: str | None = None, config: Any = None, folder: str | Path | None = None
) -> Unit:
    """What `torch_extension` and `tvm_ffi_library` build. UsageError for a rung of another series, or bad knobs.

    config: the knobs. folder: where the build goes; None: into the cache, by what it is made of.
    """
    if info.series != "cuda":
        raise UsageError(f"{info.name} has no host part in C++: take one of `tensorladder list --series cuda`")
    module = rungs.load(info)
    from tensorladder.rungs.cuda.gemm import kernel_macros

    config = config or module.RUNG.config()
    _, dtype = info.rung.check(arch, info.default_shape, dtype or info.dtypes[0])
    module.check_config(config, arch)
    macros = {"KERNEL_SOURCE": info.files[1].name, **kernel_macros(dtype, config), **module.geometry(config).macros()}
    place = Path(folder) if folder else cache.cache_dir() / "extensions" / _digest(info, arch, macros)
    return Unit(info, arch, dtype, macros, place)


def torch_extension(*asked: Any, **more: Any) -> Any:
    """Build a rung as a PyTorch extension and import it; arguments as `unit` takes them. It has gemm(A, B, C).

    With a torch for the CPU alone it is built and imported all the same, and refuses every tensor such a torch has.
    MissingExtra without torch; UsageError without nvcc or ninja, or where something does not compile.
    """
    try:
        import torch
        from torch.utils import cpp_extension
    except ModuleNotFoundError as error:
        raise MissingExtra("torch", "torch") from error
    what = unit(*asked, **more)
    with_gpu = torch.version.cuda is not None
    options = [f"-DTORCH_DTYPE={TORCH_DTYPES[what.dtype]}", "-O2", *(["-DTORCH_WITH_CUDA"] if with_gpu else [])]
    kernel, toolkit = compile_launch(what), _toolkit()
    libraries = [str(kernel), *_runtime(toolkit), *(["-lc10_cuda"] if with_gpu else [])]
    folder = what.folder / "torch"
    folder.mkdir(exist_ok=True)
    try:
        return cpp_extension.load(
            what.name, [str(BINDINGS / "torch_binding.cpp")], extra_cflags=options, extra_ldflags=libraries,
            extra_include_paths=[str(toolkit / "include")], build_directory=str(folder), with_cuda=False,
        )  # fmt: skip
    except (RuntimeError, OSError) as error:
        raise UsageError(f"{what.name}: torch cannot build it: {_first_error(str(error))}") from error


def tvm_ffi_library(*asked: Any, **more: Any) -> Path:
    """Build a rung as a library for `tvm_ffi.load_module`; arguments as `unit` takes them. It exports gemm(A, B, C).

    MissingExtra without apache-tvm-ffi; UsageError without nvcc or ninja, or where something does not compile.
    """
    try:
        import tvm_ffi.cpp
    except ModuleNotFoundError as error:
        raise MissingExtra("apache-tvm-ffi", "climb") from error
    what = unit(*asked, **more)
    code, bits = DLPACK_DTYPES[what.dtype]
    kernel = compile_launch(what)
    folder = what.folder / "tvm_ffi"
    try:
        built = tvm_ffi.cpp.build(
            what.name, cpp_files=[str(BINDINGS / "tvm_ffi_binding.cpp")],
            extra_cflags=[f"-DELEMENT_CODE={code}", f"-DELEMENT_BITS={bits}"],
            extra_ldflags=[str(kernel), *_runtime(_toolkit())], build_directory=str(folder),
        )  # fmt: skip
    except (RuntimeError, OSError) as error:
        raise UsageError(f"{what.name}: it cannot be built: {_first_error(str(error))}") from error
    return Path(built)


def compile_launch(what: Unit) -> Path:
    """The kernel with its host part, as an object with one function (`bindings/launch.h`)."""
    for tool in ("nvcc", "ninja"):
        if shutil.which(tool) is None:
            raise UsageError(f"no {tool} on the path: install it, or let NVRTC compile the rung (`tensorladder run`)")
    words = [f"-D{key}={value}" for key, value in what.macros.items()]
    built = what.folder / "launch.o"
    what.folder.mkdir(parents=True, exist_ok=True)
    target = f"arch={what.arch.replace('sm', 'compute')},code={what.arch}"  # -arch=sm_100a adds PTX for plain 100
    _run(
        [
            "nvcc", "-std=c++17", "-O3", "-c", "-gencode", target, "-Xcompiler", "-fPIC,-fvisibility=hidden", *words,
            f"-I{BINDINGS.parent}", f"-I{BINDINGS}", str(BINDINGS / "launch.cu"), "-o", str(built),
        ],
        what.name,
    )  # fmt: skip
    return built


def _toolkit() -> Path:
    """The folder of the toolkit that nvcc belongs to, with its headers and libraries."""
    said = _run(["nvcc", "--dryrun", "-c", "none.cu"], "nvcc")
    found = re.search(r"TOP=(\S+)", said)
    if found is None:
        raise UsageError("nvcc --dryrun does not say where its toolkit is: reinstall the CUDA toolkit")
    return Path(found[1]).resolve()


def _runtime(toolkit: Path) -> list[str]:
    """Options that link the CUDA runtime in."""
    folders = [f"-L{path}" for name in ("lib64", "lib") if (path := toolkit / name).is_dir()]
    return [*folders, "-lcudart_static", "-lrt", "-lpthread", "-ldl"]


def _run(command: Sequence[str], what: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UsageError(f"{what}: nvcc: {_first_error(done.stderr or done.stdout)}")
    return done.stdout + done.stderr


def _first_error(log: str) -> str:
    """A compiler's first error line, or the first line."""
    found = _ERROR.search(log)
    return (found[0] if found else log.strip().partition("\n")[0]).strip()[:300]


def _digest(info: RungInfo, arch: str, macros: Mapping[str, Any]) -> str:
    seen = hashlib.sha256(json.dumps([arch, dict(macros), platform.machine()]).encode())
    for path in (*sorted(BINDINGS.iterdir()), *sorted(info.path.parent.glob("*.cu*"))):
        seen.update(path.read_bytes())
    return seen.hexdigest()[:16]
