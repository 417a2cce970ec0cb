"""What ways to compile a kernel cost: `python -m benchmarks.ways make DIR`, `run DIR` on a GPU; `here`; `table FILES`.

The same naive GEMM in float32, at 64 cubed so that the GPU keeps up with the host, called in every way that this
project knows: CuTe DSL through DLPack or TVM-FFI, CUDA C++ as a PyTorch extension or a TVM-FFI module, packs. `make`
builds what travels to the GPU (with the DSL and nvcc, for sm_90a), `run` times whole calls there, `here` what needs no
GPU: handing over the arguments, and compiling. `table` prints both as Markdown. `--results FILE` keeps what `run` or
`here` gave.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.overhead import measure
from tensorladder.core.errors import TensorladderError, UsageError
from tensorladder.core.pipes import piped
from tensorladder.measure import bench, extension
from tensorladder.measure import pack as packs
from tensorladder.measure.suites import Suite
from tensorladder.rungs.rung import find, load

ARCH, DTYPE, SIDE = "sm_90a", "fp32", 64
CUDA, DSL = "cuda-a1-naive", "a1-naive-tvm-ffi"
SUITE = Suite("ways", "", DTYPE, {(SIDE, SIDE, SIDE): ""})
ROUNDS = 200
CALLS = 1000

Row = dict[str, Any]
Call = Callable[[], Any]

#: way -> (what new extents cost, what of the arguments is checked, what the machine with the GPU needs)
FACTS = {
    "CuTe DSL, DLPack": ("another compilation", "nothing", "the DSL"),
    "CuTe DSL, DLPack, dynamic": ("nothing", "nothing", "the DSL"),
    "CuTe DSL, DLPack, tensors kept": ("another compilation", "nothing", "the DSL"),
    "CuTe DSL, TVM-FFI": ("another compilation", "type, rank, extents, strides, alignment, device", "apache-tvm-ffi"),
    "CuTe DSL, TVM-FFI, dynamic": ("nothing", "type, rank, what is fixed, alignment, device", "apache-tvm-ffi"),
    "CUDA C++, PyTorch extension": ("nothing", "what the binding says", "that build of torch"),
    "CUDA C++, TVM-FFI": ("nothing", "what the binding says", "apache-tvm-ffi"),
    "CUDA C++, NVRTC": ("nothing", "what the host part in Python says", "NVRTC"),
    "pack": ("shapes that were packed alone", "device, type, extents, strides, alignment", "nothing"),
    "pack, arguments bound": ("bound again", "when bound", "nothing"),
    "torch.mm": ("nothing", "all", "torch"),
    "three DLPack capsules alone": ("", "", ""),
}


# ------------------------------------------------------------------------------------------ what travels to the GPU

# The two functions that the DSL's archive of its runtime lacks.
_MISSING = """
#include <tvm/ffi/c_api.h>
extern "C" void CuteDSLRT_TVMFFISetRaisedCudaError(int code) {
    TVMFFIErrorSetRaisedFromCStr("RuntimeError", code == 2 ? "CUDA: out of memory" : "CUDA: a call failed");
}
extern "C" void CuteDSLRT_TVMFFISetRaisedCudaLaunchError(int code) { CuteDSLRT_TVMFFISetRaisedCudaError(code); }
"""


def make(folder: Path) -> None:
    """Build the libraries and the pack."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(extension.tvm_ffi_library(find(CUDA), ARCH, DTYPE), folder / "cuda.so")
    dsl_library(folder / "dsl.so")
    wanted = packs.wanted([CUDA], ARCH, SUITE)
    packs.write(folder / "pack", ARCH, list(packs.make_all(wanted, ARCH)))


def dsl_library(path: Path) -> None:
    """The DSL's host object of a TVM-FFI function, linked so that `tvm_ffi.load_module` takes it: it exports gemm."""
    import nvidia_cutlass_dsl
    from tvm_ffi import libinfo

    from tensorladder.frontends.cutedsl import without_lines

    with without_lines():
        compiled = load(find(DSL)).compile(ARCH, (SIDE, SIDE, SIDE), DTYPE).host._compiled
    archive = next(Path(next(iter(nvidia_cutlass_dsl.__path__))).glob("cu13/lib/libcuda_dialect_runtime_static.a"))
    toolkit = extension._toolkit()
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        (work / "kernel.o").write_bytes(compiled.image)
        (work / "missing.cpp").write_text(_MISSING)
        command = [
            "g++", "-shared", "-fPIC", "-O2", f"-I{libinfo.find_include_path()}",
            f"-I{libinfo.find_dlpack_include_path()}", str(work / "missing.cpp"), str(work / "kernel.o"), str(archive),
            f"-Wl,--defsym,__tvm_ffi_gemm=__tvm_ffi_{compiled.name}", *extension._runtime(toolkit),
            f"-L{Path(libinfo.find_libtvm_ffi()).parent}", "-ltvm_ffi", "-o", str(path),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UsageError(f"{DSL}: it cannot be linked: {done.stderr.strip()[:500]}")


# ------------------------------------------------------------------------------------------------ whole calls, a GPU


def run(folder: Path) -> tuple[Row, list[Row]]:
    """(machine, a row a way): microseconds of the host for a whole warm call. Each result is checked first."""
    import tvm_ffi

    from tensorladder.silicon.target import cuda_torch

    torch = cuda_torch()
    a, b, c = (torch.randn(SIDE, SIDE, device="cuda") for _ in range(3))
    wanted = a.double() @ b.double().T
    timed: dict[str, Call] = {}
    opened = packs.open_current(folder / "pack")
    kernel, stream = opened.kernel(opened.entries[0]), torch.cuda.current_stream().cuda_stream
    bound, transposed = kernel.bind(stream, a, b, c), b.t()
    torchs = None
    try:
        torchs = extension.torch_extension(find(CUDA), ARCH, DTYPE)
    except TensorladderError as error:
        print(f"left out: {error}", file=sys.stderr)
    modules = {"CuTe DSL, TVM-FFI": "dsl.so", "CUDA C++, TVM-FFI": "cuda.so"}
    for way, name in modules.items():
        function = tvm_ffi.load_module(str(folder / name)).gemm
        timed[way] = lambda function=function: function(a, b, c)
    if torchs is not None:
        timed["CUDA C++, PyTorch extension"] = lambda: torchs.gemm(a, b, c)
    timed["pack"] = lambda: kernel(stream, a, b, c)
    timed["pack, arguments bound"] = bound
    timed["torch.mm"] = lambda: torch.mm(a, transposed, out=c)
    timed["three DLPack capsules alone"] = lambda: [x.__dlpack__() for x in (a, b, c)]
    for way, call in timed.items():
        c.fill_(float("nan"))
        call()
        torch.cuda.synchronize()
        if "alone" not in way and not torch.allclose(c.double(), wanted, rtol=1e-2, atol=1e-2):
            raise TensorladderError(f"{way}: a wrong result")
    rows = [_row(way, "call", rounds) for way, rounds in measure(torch, timed).items()]
    host = {**bench.machine(SUITE), "suite": "ways", "tvm_ffi": tvm_ffi.__version__}
    return host, rows


def _row(way: str, what: str, rounds: Sequence[float]) -> Row:
    low, *_, high = statistics.quantiles(rounds, n=10)
    return {"way": way, "what": what, "us": statistics.median(rounds), "p10": low, "p90": high}


# ------------------------------------------------------------------------------------------------ what needs no GPU


def here() -> tuple[Row, list[Row]]:
    """(machine, rows): microseconds to hand three arrays over, and seconds of CPU time to compile, each way."""
    rows = [_row(way, "arguments", rounds) for way, rounds in _in_turn(arguments()).items()]
    rows += [{"way": way, "what": "compile", "cpu_seconds": seconds} for way, seconds in compilations()]
    return {**bench.emulator(SUITE.name), "on": "host", "gpu": "none", "clock": "CPU time"}, rows


def arguments() -> dict[str, Call]:
    """Functions that take three arrays and do nothing with them, by way."""
    import cutlass.cute as cute
    import torch
    import tvm_ffi.cpp
    from cutlass.cute.runtime import from_dlpack
    from torch.utils import cpp_extension

    folder = extension.cache.cache_dir() / "extensions"
    (folder / "nothing_torch").mkdir(parents=True, exist_ok=True)
    arrays = [torch.zeros(SIDE, SIDE) for _ in range(3)]
    module = tvm_ffi.cpp.load_inline(
        "nothing", cpp_sources="void nothing(tvm::ffi::TensorView, tvm::ffi::TensorView, tvm::ffi::TensorView) {}",
        functions=["nothing"], build_directory=str(folder / "nothing_tvm_ffi"),
    )  # fmt: skip
    source = folder / "nothing.cpp"
    source.write_text(
        "#include <ATen/core/Tensor.h>\n#include <torch/csrc/utils/pybind.h>\n"
        "static void nothing(const at::Tensor&, const at::Tensor&, const at::Tensor&) {}\n"
        'PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) { module.def("nothing", &nothing); }\n'
    )
    torchs = cpp_extension.load("nothing_torch", [str(source)], build_directory=str(folder / "nothing_torch"))

    @cute.jit
    def nothing(x, y, z):
        pass

    def compiled(dynamic: bool, ffi: bool) -> Any:
        tensors = [from_dlpack(x, enable_tvm_ffi=ffi) for x in arrays]
        tensors = [tensor.mark_layout_dynamic() for tensor in tensors] if dynamic else tensors
        return cute.compile(nothing, *tensors, options="--enable-tvm-ffi" if ffi else "")

    static, dynamic, kept = compiled(False, False), compiled(True, False), [from_dlpack(x) for x in arrays]
    ffi_static, ffi_dynamic = compiled(False, True), compiled(True, True)
    ours, theirs = module.nothing, torchs.nothing
    return {
        "CuTe DSL, DLPack": lambda: static(*(from_dlpack(x) for x in arrays)),
        "CuTe DSL, DLPack, dynamic": lambda: dynamic(*(from_dlpack(x).mark_layout_dynamic() for x in arrays)),
        "CuTe DSL, DLPack, tensors kept": lambda: static(*kept),
        "CuTe DSL, TVM-FFI": lambda: ffi_static(*arrays),
        "CuTe DSL, TVM-FFI, dynamic": lambda: ffi_dynamic(*arrays),
        "CUDA C++, PyTorch extension": lambda: theirs(*arrays),
        "CUDA C++, TVM-FFI": lambda: ours(*arrays),
        "three DLPack capsules alone": lambda: [x.__dlpack__() for x in arrays],
    }


def _in_turn(timed: dict[str, Call]) -> dict[str, list[float]]:
    """Microseconds of CPU time a call, one number a round, the calls in turns."""
    found: dict[str, list[float]] = {name: [] for name in timed}
    for number in range(ROUNDS // 10 + 2):
        for name, call in timed.items():
            start = time.thread_time()
            for _ in range(CALLS):
                call()
            if number >= 2:
                found[name].append((time.thread_time() - start) / CALLS * 1e6)
    return found


def compilations() -> Iterator[tuple[str, float]]:
    """(way, seconds of CPU time of this process and what it starts), with empty caches; imports not counted."""
    shape = (SIDE, SIDE, SIDE)
    ways: dict[str, Call] = {
        "CuTe DSL, DLPack": lambda: load(find("a1-naive-cute")).compile(ARCH, shape, DTYPE),
        "CuTe DSL, TVM-FFI": lambda: load(find(DSL)).compile(ARCH, shape, DTYPE),
        "CUDA C++, NVRTC": lambda: load(find(CUDA)).compile(ARCH, shape, DTYPE),
        "CUDA C++, TVM-FFI": lambda: extension.tvm_ffi_library(find(CUDA), ARCH, DTYPE),
        "CUDA C++, PyTorch extension": lambda: extension.torch_extension(find(CUDA), ARCH, DTYPE),
    }
    load(find("a2-smem-swizzled")).compile(ARCH, shape, DTYPE)  # what a first compilation alone costs
    for way, compile_it in ways.items():
        with _empty_cache():
            before = _cpu()
            compile_it()
            yield way, round(_cpu() - before, 2)


@contextlib.contextmanager
def _empty_cache() -> Iterator[None]:
    kept = os.environ.get("TENSORLADDER_CACHE")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TENSORLADDER_CACHE"] = folder
        try:
            yield
        finally:
            del os.environ["TENSORLADDER_CACHE"]
            if kept is not None:
                os.environ["TENSORLADDER_CACHE"] = kept


def _cpu() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


# --------------------------------------------------------------------------------------------------------- the table


def table(files: Sequence[str]) -> str:
    """The kept results of `here` and `run` as Markdown: a row a way."""
    known: dict[tuple[str, str], Row] = {}
    where = {}
    for name in files:
        host, rows = bench.read(name)
        where |= {row["what"]: host["gpu"] if host["on"] == "gpu" else host["cpu"] for row in rows}
        known |= {(row["way"], row["what"]): row for row in rows}
    heads = ("way", "arguments, us", "whole call, us", "compile, CPU s", "new extents cost", "checked", "needs there")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for way in FACTS:
        cells = [_us(known.get((way, "arguments"))), _us(known.get((way, "call")))]
        compiled = known.get((way, "compile"))
        cells.append(f"{compiled['cpu_seconds']:.1f}" if compiled else "")
        lines.append(f"| {' | '.join([way, *cells, *FACTS[way]])} |")
    whole, alone = where.get("call", "no GPU yet"), where.get("arguments", "no machine yet")
    note = f"Whole calls: the host of an {whole}. Arguments and compilation: one core of an {alone}, CPU time."
    return "\n".join([*lines, "", note])


def _us(row: Row | None) -> str:
    return f"{row['us']:.1f}" if row else ""


def main() -> int:
    """The command; its exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ways", description=__doc__)
    parser.add_argument("verb", choices=("make", "run", "here", "table"))
    parser.add_argument("paths", nargs="*")
    parser.add_argument("--results", metavar="FILE", help="keep what `run` or `here` gave")
    asked = parser.parse_args()
    if asked.verb in ("make", "run") and len(asked.paths) != 1:
        parser.error(f"{asked.verb} takes the folder of what is built")
    try:
        if asked.verb == "make":
            make(Path(asked.paths[0]))
            return 0
        if asked.verb == "table":
            print(table(asked.paths))
            return 0
        host, rows = run(Path(asked.paths[0])) if asked.verb == "run" else here()
    except TensorladderError as error:
        print(f"ways: {error}", file=sys.stderr)
        return error.exit_code
    for row in rows:
        print(json.dumps(row))
    if asked.results:
        bench.keep(Path(asked.results), host, rows)
    return 0


if __name__ == "__main__":
    sys.exit(piped(main))
