"""CUDA C++ from a file: macros and headers beside it reach the compiler, parameters lie as the kernel says."""

from __future__ import annotations

import numpy as np
import pytest

from tensorladder.core.errors import UsageError
from tensorladder.frontends import nvrtc
from tensorladder.frontends.cudacpp import Call, compile_file

SOURCE = """
#include "factor.cuh"
extern "C" __global__ void scale(const float* x, char shift, float by, long long n, float* y) {
    const int i = blockIdx.x * SPAN + threadIdx.x;
    if (i < n) y[i] = factor() * by * x[i] + shift;
}
"""


@pytest.fixture
def source(tmp_path):
    try:
        nvrtc._library()
    except UsageError as error:
        pytest.skip(str(error))
    (tmp_path / "factor.cuh").write_text("__device__ inline float factor() { return 3; }\n")
    path = tmp_path / "scale.cu"
    path.write_text(SOURCE)
    return path


def call(x, y):
    (n,) = x.shape
    return Call((-(-n // 64), 1, 1), (64, 1, 1), (x.data, -2, 0.5, n, y.data))


def compiled(source, call=call, **asked):
    asked = {"arch": "sm_80", "name": "scale", "defines": {"SPAN": 64}, "kernel": "scale", **asked}
    return compile_file(source, call, **asked)


def test_parameters_lie_where_the_kernel_reads_them(source):
    x, y = np.zeros(100, np.float32), np.zeros(100, np.float32)
    (launch,) = compiled(source).launches(x, y)
    assert (launch.grid, launch.block, len(launch.params)) == ((2, 1, 1), (64, 1, 1), 32)
    assert launch.params[8] == 0xFE and launch.params[12:16] == np.float32(0.5).tobytes()
    words = [int.from_bytes(launch.params[at : at + 8], "little") for at in (0, 16, 24)]
    assert words == [x.ctypes.data, 100, y.ctypes.data]
    assert str(source) in compiled(source).modules[0].ptx  # so that findings can name its lines


def test_it_runs(source):
    vgpu = pytest.importorskip("tensorladder.vgpu")
    device = vgpu.Device(arch="sm_80")
    x, y = (device.memory.empty(name, (100,), np.float32) for name in "xy")
    x[:], y[:] = np.arange(100), np.nan
    stream = device.stream()
    compiled(source)(stream, x, y)
    stream.synchronize()
    assert np.array_equal(y, 1.5 * np.arange(100, dtype=np.float32) - 2)


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ((0, 1, 1.0, 5), "5 parameters, 4 were given"),
        ((0, 300, 1.0, 5, 0), "parameter 1 has 1 bytes, 300 does not fit"),
        ((0, 1.0, 1.0, 5, 0), "parameter 1 has 1 bytes"),
        ((b"abc", 1, 1.0, 5, 0), "parameter 0 has 8 bytes"),
    ],
)
def test_parameters_that_do_not_fit(source, params, words):
    program = compiled(source, lambda: Call((1, 1, 1), (64, 1, 1), params))
    with pytest.raises(UsageError, match=words):
        program.launches()


def test_other_refusals_are_one_line(source):
    with pytest.raises(UsageError, match=r"cannot read .*nothing\.cu"):
        compiled(source.with_name("nothing.cu"))
    with pytest.raises(UsageError, match=r'scale\.cu:4: identifier "SPAN" is undefined'):
        compiled(source, defines={})
    with pytest.raises(UsageError, match="kernel other is not in the PTX: it has scale"):
        compiled(source, kernel="other")
    with pytest.raises(UsageError, match="scale"):
        compiled(source, lambda: Call((1, 1, 1), (2000, 1, 1), (0, 1, 1.0, 5, 0))).launches()
