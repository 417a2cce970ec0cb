"""Rungs in CUDA C++ as a PyTorch extension and as a TVM-FFI module, built with no GPU.

Their host part in C++ launches what the one in Python launches.
"""

from __future__ import annotations

import ctypes
import dataclasses
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ml_dtypes")

from tensorladder.core.errors import UsageError
from tensorladder.core.tensormap import encode, from_driver_call
from tensorladder.frontends.ptxparams import entry
from tensorladder.measure import extension
from tensorladder.problems.problem import DTYPES, numpy_empty
from tensorladder.rungs.rung import catalog, find, load

CUDA = [info for info in catalog() if info.series == "cuda"]
SHAPES = ((200, 40, 136), (1, 8, 8), (1000, 904, 520))
FAKE = Path(__file__).with_name("fake_cudart.cpp")

needs_nvcc = pytest.mark.skipif(
    shutil.which("nvcc") is None or shutil.which("ninja") is None, reason="no nvcc or no ninja here"
)


class Encoded(ctypes.Structure):
    """As fake_cudart.cpp has it."""

    _fields_ = [
        *((name, ctypes.c_int) for name in ("type", "rank", "interleave", "swizzle", "promotion", "fill")),
        ("address", ctypes.c_uint64), ("extents", ctypes.c_uint64 * 2), ("pitch", ctypes.c_uint64),
        ("box", ctypes.c_uint * 2), ("steps", ctypes.c_uint * 2),
    ]  # fmt: skip


def looking(what: extension.Unit) -> ctypes.CDLL:
    """The rung's host part in C++ over a CUDA runtime that only looks."""
    kernel, library = extension.compile_launch(what), what.folder / "looking.so"
    include = [f"-I{folder}" for folder in (extension._toolkit() / "include", extension.BINDINGS)]
    subprocess.run(["g++", "-shared", "-fPIC", *include, str(FAKE), str(kernel), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))


@needs_nvcc
@pytest.mark.parametrize("info", CUDA, ids=lambda info: info.name)
def test_both_host_parts_launch_the_same(info, tmp_path):
    what = extension.unit(info, info.archs[0], folder=tmp_path)
    try:
        library = looking(what)
    except UsageError as error:
        if "Unsupported gpu architecture" in str(error) or "not defined for option" in str(error):
            pytest.skip("this nvcc is older than the architecture")
        raise
    library.try_launch.restype = ctypes.c_char_p
    program = load(info).compile(what.arch, info.default_shape, what.dtype)
    head = entry(program.modules[0].ptx, "kernel")
    (ctypes.c_int * 6).in_dll(library, "sizes")[:] = [param.size for param in head.params]
    for m, n, k in SHAPES:
        numpy = DTYPES[what.dtype].numpy
        arrays = [numpy_empty(name, shape, numpy) for name, shape in (("A", (m, k)), ("B", (n, k)), ("C", (m, n)))]
        (launch,) = program.launches(*arrays)
        addresses = [ctypes.c_void_p(array.ctypes.data) for array in arrays]
        assert library.try_launch(*addresses, m, n, k) is None
        seen = list((ctypes.c_uint * 7).in_dll(library, "geometry"))
        assert seen == [*launch.grid, *launch.block, launch.smem]
        told, at = bytes((ctypes.c_ubyte * 512).in_dll(library, "parameters")), 0
        for param in head.params:
            mine, at = told[at : at + param.size], at + param.size
            if param.size == 128:
                mine = map_of(Encoded.from_buffer_copy(mine))
            assert mine == launch.params[param.offset : param.offset + param.size]


def map_of(seen: Encoded) -> bytes:
    assert (seen.rank, seen.interleave, seen.fill) == (2, 0, 0)
    return encode(
        from_driver_call(
            seen.type, seen.address, tuple(seen.extents), (seen.pitch,), tuple(seen.box), tuple(seen.steps),
            swizzle=seen.swizzle, l2_promotion=seen.promotion,
        )
    )  # fmt: skip


@needs_nvcc
def test_the_host_part_in_cpp_refuses_what_the_one_in_python_does(tmp_path):
    library = looking(extension.unit(find("cuda-b2"), "sm_80", folder=tmp_path))
    library.try_launch.restype = ctypes.c_char_p
    memory = numpy_empty("X", (1024,), np.uint8).ctypes.data
    good = [ctypes.c_void_p(memory)] * 3
    assert library.try_launch(*good, 16, 16, 15) == b"K must be a multiple of 8: pad it"
    assert library.try_launch(*good, 0, 16, 16) == b"M, N and K must be 1 at least"
    odd = [*good[:2], ctypes.c_void_p(memory + 8)]
    assert library.try_launch(*odd, 16, 16, 16) == b"A, B and C must start at multiples of 16 bytes: copy them"


def refused(gemm, torch):
    """What a built gemm says of tensors that it cannot take."""
    a, b, c = torch.zeros(4, 8), torch.zeros(6, 8), torch.zeros(4, 6)
    for given, words in (
        ((a, b, c), "A is (on cpu|elsewhere): all must be on one GPU"),
        ((a.half(), b, c), "A is (Half|float16), built for (Float|float32)"),
        ((a.t(), b, c), "A must be a row-major matrix: copy it"),
        ((a[0], b, c), "A must be a row-major matrix: copy it"),
    ):
        with pytest.raises(ValueError, match=words):
            gemm(*given)


@needs_nvcc
def test_tvm_ffi_module(tmp_path):
    torch, tvm_ffi = pytest.importorskip("torch"), pytest.importorskip("tvm_ffi")
    library = extension.tvm_ffi_library(find("cuda-a1"), "sm_80", "fp32", folder=tmp_path)
    refused(tvm_ffi.load_module(library).gemm, torch)


@needs_nvcc
def test_torch_extension(tmp_path):
    torch = pytest.importorskip("torch")
    refused(extension.torch_extension(find("cuda-a1"), "sm_80", "fp32", folder=tmp_path).gemm, torch)


@pytest.mark.gpu
@needs_nvcc
@pytest.mark.parametrize("info", CUDA, ids=lambda info: info.name)
def test_both_are_right_on_the_gpu_here(info):
    torch, tvm_ffi = pytest.importorskip("torch"), pytest.importorskip("tvm_ffi")
    from tensorladder.silicon.target import arch_for

    try:
        arch = arch_for(info.archs)
    except UsageError as error:
        pytest.skip(str(error))
    kinds = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
    a, b = (torch.randn(extent, 136, device="cuda").to(kinds[info.dtypes[0]]) for extent in (200, 40))
    wanted = a.double() @ b.double().T
    modules = extension.torch_extension(info, arch), tvm_ffi.load_module(extension.tvm_ffi_library(info, arch))
    for module in modules:
        c = torch.full((200, 40), float("nan"), device="cuda", dtype=a.dtype)
        module.gemm(a, b, c)
        assert (c.double() - wanted).norm() <= 1e-2 * wanted.norm()


def test_other_rungs_have_no_such_library():
    with pytest.raises(UsageError, match="b2-warp-mma has no host part in C"):
        extension.unit(find("b2-warp-mma"), "sm_80")
    with pytest.raises(UsageError, match="cuda-c1-wgmma compiles for sm_90a"):
        extension.unit(find("cuda-c1"), "sm_80")
    few = load(find("cuda-b2")).RUNG.config(stages=1)
    with pytest.raises(UsageError, match="stages=1: at least 2"):
        extension.unit(find("cuda-b2"), "sm_80", config=few)


def test_what_is_missing_is_said_in_a_line(tmp_path, monkeypatch):
    what = extension.unit(find("cuda-a1"), "sm_80", folder=tmp_path)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(UsageError, match="no nvcc on the path: install it, or let NVRTC compile the rung"):
        extension.compile_launch(what)


@needs_nvcc
def test_an_error_of_nvcc_is_said_in_a_line(tmp_path):
    what = extension.unit(find("cuda-a1"), "sm_80", folder=tmp_path)
    with pytest.raises(UsageError, match=r"cuda_a1_naive_fp32_sm_80: nvcc: .*error") as caught:
        extension.compile_launch(dataclasses.replace(what, macros={**what.macros, "UNROLL": "x"}))
    assert "\n" not in str(caught.value)
