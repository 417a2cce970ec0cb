"""TIRx with no GPU: CUDA C++ through NVRTC, launches and tensor maps from the host function's TIR, its checks kept."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from tensorladder.core import tensormap
from tensorladder.core.errors import MissingExtra, Unsupported, UsageError
from tensorladder.frontends import nvrtc, tirx, tirx_cache

pytest.importorskip("tvm")
kernels = pytest.importorskip("tirx_kernels")


@pytest.fixture(scope="module", autouse=True)
def needs_nvrtc():
    try:
        nvrtc._library()
    except UsageError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def scale():
    return tirx.compile_program(kernels.scale, arch="sm_80")


def test_it_runs_at_any_extent(scale):
    vgpu = pytest.importorskip("tensorladder.vgpu")
    for n in (1, 128, 1000):
        device = vgpu.Device(arch="sm_80")
        x, y = (device.memory.empty(name, (n,), np.float32) for name in "xy")
        x[:], y[:] = np.arange(n), np.nan
        stream = device.stream()
        scale(stream, x, y, 3)  # a number is converted as the signature says
        stream.synchronize()
        assert np.array_equal(y, 3 * np.arange(n, dtype=np.float32))


def test_launches_are_those_of_the_host_function(scale):
    x, y = np.zeros(300, np.float32), np.zeros(300, np.float32)
    (launch,) = scale.launches(x, y, 0.5)
    assert (launch.grid, launch.block, launch.smem, launch.cluster) == ((3, 1, 1), (128, 1, 1), 0, (1, 1, 1))
    assert {x.ctypes.data, y.ctypes.data} <= set(np.frombuffer(launch.params[:16], np.uint64).tolist())
    assert np.float32(0.5).tobytes() in launch.params and launch.module.cubin[:4] == b"\x7fELF"
    (launch,) = tirx.compile_program(kernels.ranks, arch="sm_90a").launches(np.zeros(64, np.int32))
    assert (launch.grid, launch.block, launch.cluster) == ((4, 1, 1), (16, 1, 1), (2, 1, 1))


@pytest.mark.parametrize("shape", [(32, 128), (37, 72)])
def test_tensor_maps(shape):
    vgpu = pytest.importorskip("tensorladder.vgpu")
    program = tirx.compile_program(kernels.tma_copy(*shape, "float16"), arch="sm_90a", name="copy")
    device = vgpu.Device(arch="sm_90a")
    x, y = (device.memory.empty(name, shape, np.float16) for name in "xy")
    x[:], y[:] = np.random.default_rng(0).standard_normal(shape), np.nan
    (launch,) = program.launches(x, y)
    maps = [tensormap.decode(launch.params[at : at + 128]) for at in (0, 128)]
    assert [one.address for one in maps] == [x.ctypes.data, y.ctypes.data]  # both of one name in the TIR
    assert {(one.dims, one.strides, one.box, one.swizzle) for one in maps} == {
        (shape[::-1], (2 * shape[1],), (64, 16), 3)
    }
    stream = device.stream()
    program(stream, x, y)
    stream.synchronize()
    assert np.array_equal(x, y)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((np.zeros(3, np.float32),), "scale: Expected 3 arguments"),
        ((np.zeros(3, np.float32), np.zeros(4, np.float32), 1.0), r"y.shape.0. on argument #1.*to match x.shape"),
        ((np.zeros(3), np.zeros(3), 1.0), "x.dtype on argument #0.*expected float32"),
        ((np.zeros((3, 2), np.float32)[:, 0], np.zeros(3, np.float32), 1.0), "x.strides on argument #0.*compact"),
        ((np.zeros((3, 3), np.float32), np.zeros(3, np.float32), 1.0), "x.ndim on argument #0"),
        ((1, np.zeros(3, np.float32), 1.0), "argument #0.*expected Tensor"),
        ((np.zeros(3, np.float32), np.zeros(3, np.float32), np.zeros(1)), "argument #2.*expected float"),
    ],
)
def test_the_host_functions_checks_hold(scale, given, words):
    with pytest.raises(UsageError, match=words) as caught:
        scale.launches(*given)
    assert "\n" not in str(caught.value)


def test_an_array_that_tma_cannot_take_is_refused():
    program = tirx.compile_program(kernels.tma_copy(32, 128, "float16"), arch="sm_90a", name="copy")
    whole = np.zeros(32 * 128 + 1, np.float16)
    at = 0 if whole.ctypes.data % 16 else 1
    with pytest.raises(UsageError, match="multiple of 16"):
        program.launches(whole[at:][: 32 * 128].reshape(32, 128), np.zeros((32, 128), np.float16))


def test_what_tvm_refuses_is_one_line():
    with pytest.raises(UsageError, match=r"TIRx: .*multiple of 16B") as caught:
        tirx.compile_program(kernels.unaligned(), arch="sm_90a")
    assert "\n" not in str(caught.value)
    with pytest.raises(UsageError, match="no such architecture"):
        tirx.compile_program(kernels.scale, arch="sm_12345")


def test_host_code_that_is_not_modelled_is_said():
    with pytest.raises(Unsupported, match=r"host code: a call of something\.else"):
        tirx.compile_program(kernels.calls_the_host, arch="sm_90a")


def test_the_second_time_comes_from_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("TENSORLADDER_CACHE", str(tmp_path))
    monkeypatch.setattr(kernels, "FACTOR", 2)
    first = tirx.compile_program(kernels.make, 64, arch="sm_80", name="made")
    x = np.zeros(64, np.float32)
    monkeypatch.setattr(tirx, "_compiled", None)  # nothing is compiled again
    again = tirx.compile_program(kernels.make, 64, arch="sm_80", name="made")
    assert again.modules == first.modules and again.launches(x) == first.launches(x)
    monkeypatch.setattr(kernels, "FACTOR", 3)
    for asked in (
        {"arch": "sm_90a", "name": "made"},
        {"arch": "sm_80", "name": "other"},
        {"arch": "sm_80", "name": "made"},
    ):
        with pytest.raises(TypeError):
            tirx.compile_program(kernels.make, 64, **asked)


def test_what_the_cache_does_not_understand_is_compiled_anew():
    def inside(n):
        return kernels.make(n)

    assert tirx_cache.key(kernels.make, (64,), "sm_80")
    assert tirx_cache.key(kernels.make, (object(),), "sm_80") is None
    assert tirx_cache.key(lambda: inside(64), (), "sm_80") is None  # a closure


def test_the_generated_source_can_be_seen():
    text = tirx.cuda_source(kernels.scale, "sm_80")
    assert "__global__" in text and "y_ptr" in text


def test_a_missing_extra_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "tvm", None)
    with pytest.raises(MissingExtra, match=r"pip install 'tensorladder\[tirx\]'"):
        tirx.compile_program(object(), arch="sm_90a")
