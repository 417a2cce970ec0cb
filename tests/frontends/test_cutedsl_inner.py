"""The inner parts of CuTe DSL that the front end leans on: each test names what moved when it fails."""

import ctypes
import os

import numpy as np
import pytest

pytest.importorskip("cutlass")

import cutedsl_kernels as kernels
import cutlass
import cutlass.cute as cute
from cutlass.cute.runtime import from_dlpack, make_fake_stream, make_fake_tensor

from tensorladder.core import dlpack, elf
from tensorladder.core.errors import TensorladderError
from tensorladder.frontends import cutedsl_inner as inner
from tensorladder.frontends import hostcode


@pytest.fixture(scope="module")
def compiled():
    x = np.zeros((32, 4), np.float32)
    return {
        option: inner.compile_function(kernels.cooperative, (from_dlpack(x), 1), {}, "sm_90a", option, False)
        for option in ("", "--enable-tvm-ffi")
    }


def test_host_objects_ask_only_for_what_is_given(compiled):
    for one in compiled.values():
        asked = {s for s in elf.undefined_symbols(one.image) if s.startswith(("_cu", "cuda_", "CuteDSLRT"))}
        assert asked and asked <= set(hostcode.CUDA), "the DSL's host code calls further CUDA entry points"


def test_packed_entry_points_exist(compiled):
    module = hostcode.Module(compiled[""].ptx, "sm_90a", compiled[""].cubin)
    code = hostcode.HostCode(compiled[""].image, module, compiled[""].name)
    for symbol in ("_mlir_cuda_init", "_mlir_cuda_load_to_device", f"_mlir__mlir_ciface_{compiled[''].name}"):
        assert code.address(symbol), f"the MLIR execution engine no longer writes {symbol}"
    ffi = compiled["--enable-tvm-ffi"]
    assert hostcode.HostCode(ffi.image, module, ffi.name, (ctypes.CDLL(None),)).address(f"__tvm_ffi_{ffi.name}")


def test_environment_record_can_be_set():
    record = cutlass.cutlass_dsl.CuTeDSL._get_dsl().envar
    assert hasattr(record, "keep_ir") and hasattr(record, "dump_dir"), "the DSL's environment record moved"
    with inner.environment(cutlass, {"keep_ir": True, "dump_dir": os.curdir}):
        assert record.keep_ir is True and record.dump_dir == os.curdir
    assert record.keep_ir is False


@pytest.mark.parametrize(
    "mark",
    [
        lambda t: t.mark_layout_dynamic(),
        lambda t: t.mark_compact_shape_dynamic(mode=0),
        lambda t: t.mark_compact_shape_dynamic(mode=2, divisibility=4).mark_compact_shape_dynamic(mode=0),
        lambda t: t,
    ],
)
def test_tensor_arguments_have_the_layout_of_the_dsl(mark):
    tensor = mark(from_dlpack(np.zeros((4, 6, 8), np.float32), assumed_align=8))
    spec = inner.tensor_spec(tensor)
    ours = inner.TensorArgument(inner.view(tensor), spec)
    size = len(ours._buffer) - 8
    theirs = ctypes.string_at(tensor.__c_pointers__()[0], size)
    assert ours._buffer.raw[:size] == theirs, "the DSL lays out tensor arguments otherwise"
    assert spec.dtype == "float32" and spec.align == 8


def test_specs_read_from_dsl_tensors():
    tensor = from_dlpack(np.zeros((4, 6, 8), np.float32)).mark_compact_shape_dynamic(mode=2, divisibility=4)
    spec = inner.tensor_spec(tensor)
    assert spec.shape == (4, 6, inner.Extent(32, 4)) and spec.align == 4
    assert spec.strides == (inner.Extent(64, 24), inner.Extent(64, 4), 1)
    one = inner.tensor_spec(from_dlpack(np.zeros(5, np.float16)))
    assert (one.shape, one.strides, one.dtype) == ((5,), (1,), "float16")


def test_specs_read_from_fake_tensors():
    n = cute.sym_int(divisibility=16)
    fake = make_fake_tensor(cutlass.Float8E4M3FN, (n, 64), stride=(cute.sym_int64(divisibility=8), 1), assumed_align=32)
    spec = inner.tensor_spec(fake)
    assert spec.dtype == "float8_e4m3fn" and spec.align == 32
    assert spec.shape[0] == inner.Extent(32, 16, id(n)) and spec.shape[1] == 64
    assert (spec.strides[0].bits, spec.strides[0].divisor, spec.strides[1]) == (64, 8, 1)


def test_dtype_names_are_known_to_dlpack():
    names = ["Float16", "BFloat16", "Float32", "Float64", "Float8E4M3FN", "Float8E5M2", "Float8E8M0FNU"]
    for name in [*names, "Int8", "Uint8", "Int32", "Int64", "Uint32", "Boolean"]:
        assert inner._numpy_name(getattr(cutlass, name)) in dlpack.DTYPES, name


def test_stream_arguments_are_recognised():
    assert inner._spec(make_fake_stream()) == "stream"
    assert inner._spec(make_fake_stream(use_tvm_ffi_env_stream=True)) == "env"


def test_names_in_messages(compiled):
    assert {one.label for one in compiled.values()} == {"cooperative"}
    assert (
        inner.short_name("cutlass___call_____main__Gemm_object_at__Tensorgmemo1281") == "call_____main__Gemm_object_at"
    )
    assert inner.short_name("cutlass_f_3_15") == "f_3_15"


def test_errors_of_the_dsl_name_their_cause():
    with pytest.raises(TensorladderError, match=r"no_such_method.*|has no attribute") as caught:
        inner.compile_function(kernels.wrong, (from_dlpack(np.zeros(8, np.float32)),), {}, "sm_90a", "", False)
    assert "cutedsl_kernels.py" in str(caught.value), "the DSL's errors no longer say where"


def test_the_points_where_scripts_meet_a_gpu_exist():
    for key, (owner, name) in inner.exec_points().items():
        assert name in vars(owner), f"exec's {key}: {owner} no longer has {name}"
    assert "create_ffi" in inner.exec_points()
    record = cutlass.cutlass_dsl.CuTeDSL._get_dsl().envar
    for setting in ("arch", "keep_ptx", "keep_cubin", "lineinfo"):
        assert hasattr(record, setting), f"the DSL's environment record no longer has {setting}"
