"""The CuTe DSL front end: launches, parameters and refusals, from the DSL's own host code, with no GPU."""

import os
import struct

import numpy as np
import pytest

pytest.importorskip("cutlass")
ml_dtypes = pytest.importorskip("ml_dtypes")

import cutedsl_kernels as kernels  # noqa: E402
import cutlass  # noqa: E402
import cutlass.cute as cute  # noqa: E402
from cuda.bindings.driver import CUstream  # noqa: E402

from tensorladder.core.errors import KernelError, UsageError  # noqa: E402
from tensorladder.frontends.cutedsl import compile_program  # noqa: E402
from tensorladder.frontends.ptxparams import entry  # noqa: E402

FFI = ["", "--enable-tvm-ffi"]


def fake(dtype, shape, align=16):
    order = tuple(reversed(range(len(shape))))
    return cute.runtime.make_fake_compact_tensor(dtype, shape, stride_order=order, assumed_align=align)


def aligned(shape, dtype, align=16):
    """An array whose address is a multiple of `align` and of no larger power of two."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + 4 * align, np.uint8)
    start = -raw.ctypes.data % (2 * align) + align
    return raw[start : start + size].view(dtype).reshape(shape)


@pytest.fixture(scope="module")
def add_any():
    """add() for float32 of any one length, ordinary and TVM-FFI."""

    def compiled(options):
        n = cute.sym_int()
        return compile_program(
            kernels.add, *[fake(cutlass.Float32, (n,)) for _ in range(3)], arch="sm_90a", options=options
        )

    return {options: compiled(options) for options in FFI}


@pytest.mark.parametrize("options", FFI)
def test_one_launch_with_its_parameters(add_any, options):
    program = add_any[options]
    arrays = [aligned(1000, np.float32) for _ in range(3)]
    (launch,) = program.launches(*arrays)
    assert (launch.grid, launch.block, launch.cluster, launch.smem) == ((4, 1, 1), (256, 1, 1), (1, 1, 1), 0)
    head = entry(launch.module.ptx, launch.kernel)
    assert len(launch.params) == head.size and len(head.params) == 4
    for array, param in zip(arrays, head.params):
        assert struct.unpack_from("<Qi", launch.params, param.offset) == (array.ctypes.data, 1000)
    assert struct.unpack_from("<i", launch.params, head.params[3].offset) == (1000,)


def test_module_has_ptx_with_lines_and_a_cubin(add_any):
    (module,) = add_any[""].modules
    assert ".target sm_90a" in module.ptx and ".loc" in module.ptx and "cutedsl_kernels.py" in module.ptx
    assert module.cubin[:4] == b"\x7fELF"
    assert add_any[""].compile_seconds > 0 and add_any[""].mlir is None


def test_mlir_on_demand_and_nothing_in_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    program = compile_program(kernels.add, *[np.zeros(8, np.float32)] * 3, arch="sm_80", keep_mlir=True)
    assert "cute.kernel" in program.mlir or "cuda.kernel" in program.mlir
    assert ".target sm_80" in program.modules[0].ptx
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("options", FFI)
@pytest.mark.parametrize(
    "arrays, words",
    [
        (lambda: [aligned(8, np.float16)] * 3, "a: dtype float16, compiled for float32"),
        (lambda: [aligned((8, 8), np.float32)] * 3, "a: 2 dimensions"),
        (lambda: [aligned(8, np.float32), aligned(9, np.float32), aligned(8, np.float32)], r"b: shape\[0\] is 9"),
        (lambda: [aligned(32, np.float32)[::2]] * 3, r"a: stride\[0\] is 2, compiled for 1"),
        (lambda: [aligned(8, np.float32)[1:]] * 3, "a: address .* is not aligned to the 16 bytes"),
        (lambda: [aligned(8, np.float32)] * 2, "argument c is missing"),
        (lambda: [aligned(8, np.float32)] * 4, "4 arguments given"),
        (lambda: [aligned(8, np.float32), 3, aligned(8, np.float32)], "b: int given, compiled for the tensor"),
        (lambda: [aligned(0, np.float32)] * 3, r"grid.x = 0"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(add_any, options, arrays, words):
    with pytest.raises(UsageError, match=words) as caught:
        add_any[options].launches(*arrays())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("options", FFI)
@pytest.mark.parametrize("name", ["BFloat16", "Float8E4M3FN", "Float16"])
def test_scalars_constants_streams_and_small_floats(name, options):
    dtype = {"BFloat16": ml_dtypes.bfloat16, "Float8E4M3FN": ml_dtypes.float8_e4m3fn, "Float16": np.float16}[name]
    x = fake(getattr(cutlass, name), (cute.sym_int(divisibility=32), 4))
    program = compile_program(kernels.scale, x, 1.0, CUstream(0), 7, arch="sm_100a", options=options)
    array = aligned((64, 4), dtype)
    for extra in ((), (CUstream(0),)):
        (launch,) = program.launches(array, 2.5, *extra)
        assert (launch.grid, launch.block, launch.smem) == ((2, 2, 1), (32, 1, 1), 128)
        where = entry(launch.module.ptx, launch.kernel).params
        assert struct.unpack_from("<f", launch.params, where[1].offset) == (2.5,)
    with pytest.raises(UsageError, match=r"x: shape\[0\] is 65, must be a multiple of 32"):
        program.launches(aligned((65, 4), dtype), 1.0)


def test_environment_stream_of_tvm_ffi():
    x = fake(cutlass.Float32, (64, 4))
    stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
    program = compile_program(kernels.scale, x, 1.0, stream, 7, arch="sm_90a", options="--enable-tvm-ffi")
    assert [launch.grid for launch in program.launches(aligned((64, 4), np.float32), 2.5)] == [(2, 2, 1)]


@pytest.mark.parametrize("options", FFI)
def test_several_launches_with_clusters_and_attributes(options):
    program = compile_program(kernels.many, fake(cutlass.Float32, (32, 4)), 2, 1, arch="sm_90a", options=options)
    launches = program.launches(aligned((32, 4), np.float32), 3)
    assert [launch.grid for launch in launches] == [(1, 1, 1)] * 2 + [(4, 1, 1), (4, 2, 1), (4, 3, 1)]
    last = launches[-1]
    assert (last.cluster, last.smem) == ((2, 1, 1), 60000)
    assert last.attributes == {"programmatic_stream_serialization": True}
    assert launches[0].cluster == (1, 1, 1) and launches[0].attributes == {}


def test_cooperative_attribute():
    program = compile_program(kernels.cooperative, fake(cutlass.Float32, (32, 4)), 1, arch="sm_90a")
    assert program.launches(aligned((32, 4), np.float32), 1)[0].attributes == {"cooperative": True}


def test_cooperative_launch_that_is_not_resident_at_once():
    program = compile_program(kernels.cooperative, fake(cutlass.Float32, (32, 4)), 1, arch="sm_90a")
    with pytest.raises(KernelError, match=r"cooperative launch of 100000 CTAs, and sm_90a holds \d+ at once"):
        program.launches(aligned((32, 4), np.float32), 100_000)


def test_callable_object_with_a_nested_argument():
    x = fake(cutlass.Float32, (32, 4))
    program = compile_program(kernels.Scale(3), (x, x), 1.0, arch="sm_90a")
    first, second = aligned((32, 4), np.float32), aligned((32, 4), np.float32)
    launches = program.launches((first, second), 2.0)
    addresses = [struct.unpack_from("<Q", launch.params)[0] for launch in launches]
    assert addresses == [first.ctypes.data, second.ctypes.data]
    with pytest.raises(UsageError, match=r"pair\[1\]: dtype float16"):
        program.launches((first, aligned((32, 4), np.float16)), 2.0)


def test_torch_and_dsl_tensors_with_marked_layouts():
    torch = pytest.importorskip("torch")
    from cutlass.cute.runtime import from_dlpack

    x = torch.zeros(64, 4, dtype=torch.bfloat16)
    marked = from_dlpack(x, assumed_align=16).mark_compact_shape_dynamic(mode=0, stride_order=(0, 1))
    program = compile_program(kernels.scale, marked, 1.0, CUstream(0), 2, arch="sm_90a")
    for given in (x, marked, torch.zeros(96, 4, dtype=torch.bfloat16)):
        (launch,) = program.launches(given, 1.0)
        assert launch.grid[0] == given.shape[0] // 32
    with pytest.raises(UsageError, match=r"x: shape\[1\] is 8, compiled for 4"):
        program.launches(torch.zeros(64, 8, dtype=torch.bfloat16), 1.0)


@pytest.mark.parametrize(
    "build, words",
    [
        (lambda: compile_program(kernels.wrong, np.zeros(8, np.float32), arch="sm_90a"), "wrong does not compile for"),
        (lambda: compile_program(kernels.add, np.zeros(8, np.float32), arch="sm_90a"), "add does not compile for"),
        (lambda: compile_program(kernels.add, 1, 2, 3, arch="sm_90a"), "argument #1"),
        (lambda: compile_program(kernels.no_kernel, np.zeros(8, np.float32), arch="sm_90a"), "launches no kernel"),
        (lambda: compile_program(kernels.add, arch="sm_33"), "no such architecture: 'sm_33'"),
        (lambda: compile_program(kernels.add, *[np.zeros(8, np.float32)] * 3, arch="sm_90a", options="--nope"), "nope"),
        (lambda: compile_program(kernels.add, arch="sm_90a", options="--gpu-arch sm_80"), "set by the front end"),
    ],
)
def test_compile_errors_are_one_line(build, words, capfd):
    with pytest.raises(UsageError, match=words) as caught:
        build()
    assert "\n" not in str(caught.value) and "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 400
