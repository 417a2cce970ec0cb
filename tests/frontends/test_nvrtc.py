"""CUDA C++ through NVRTC: PTX with lines, cubin, what the cubin says of registers, and one line for errors."""

import pytest

from tensorladder.core import cubin
from tensorladder.core.errors import UsageError
from tensorladder.frontends import nvrtc
from tensorladder.frontends.ptxparams import entry

SOURCE = """
struct Pair { short a; double b; };
extern "C" __global__ void kernel(float* x, char c, Pair p, int n) {
    __shared__ float tile[1000];
    tile[threadIdx.x] = x[n] + c + p.a;
    __syncthreads();
    x[threadIdx.x] = tile[n] * (float)p.b;
}
"""


@pytest.fixture(scope="module", autouse=True)
def needs_nvrtc():
    try:
        nvrtc._library()
    except UsageError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
def test_ptx_cubin_and_parameters(arch):
    module = nvrtc.compile_cuda(SOURCE, arch)
    assert f".target {arch}" in module.ptx and ".loc" in module.ptx
    assert cubin.static_shared_bytes(module.cubin, "kernel") == 4000
    assert 6 <= cubin.registers(module.cubin, "kernel") <= 64
    head = entry(module.ptx, "kernel")
    assert [(p.offset, p.size) for p in head.params] == [(0, 8), (8, 1), (16, 16), (32, 4)]
    assert head.size == 36


def test_options_reach_the_compiler():
    source = 'extern "C" __global__ void f(int* x) { *x = VALUE; }'
    assert "1234" in nvrtc.compile_cuda(source, "sm_90a", ["-DVALUE=1234"]).ptx


@pytest.mark.parametrize(
    "source, words",
    [
        ("__global__ void f( { }", r"kernel.cu:1: "),
        ('extern "C" __global__ void f(int* x) { *x = y; }', 'kernel.cu:1: identifier "y" is undefined'),
        ("#include <no/such.h>\n", 'kernel.cu:1: cannot open source file "no/such.h".*-I'),
    ],
)
def test_first_error_in_one_line(source, words):
    with pytest.raises(UsageError, match=words) as caught:
        nvrtc.compile_cuda(source, "sm_90a")
    assert "\n" not in str(caught.value)


def test_bad_architecture_and_option():
    with pytest.raises(UsageError, match="no such architecture"):
        nvrtc.compile_cuda(SOURCE, "sm_12345")
    with pytest.raises(UsageError, match="--nope") as caught:
        nvrtc.compile_cuda(SOURCE, "sm_90a", ["--nope"])
    assert "\n" not in str(caught.value)


def test_where_there_are_no_headers_the_packages_are_named(monkeypatch):
    monkeypatch.setattr(nvrtc, "header_folders", lambda: ())
    with pytest.raises(UsageError, match=r'"cuda_fp16\.h".*pip install nvidia-cuda-runtime') as caught:
        nvrtc.compile_cuda("#include <cuda_fp16.h>\n", "sm_90a")
    assert "\n" not in str(caught.value)
