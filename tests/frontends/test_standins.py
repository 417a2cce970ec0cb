"""CuPy and cuda.core in unmodified scripts: raw kernels through NVRTC and from PTX, refusals by name."""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("llvmlite")

from tensorladder.core.errors import KernelError, Unsupported
from tensorladder.frontends.cudacore_script import cudacore_hook
from tensorladder.frontends.cupy_script import cupy_hook
from tensorladder.frontends.nvrtc import _library
from tensorladder.vgpu.driver import run_script


@pytest.fixture(autouse=True)
def nvrtc():
    try:
        _library()
    except Exception as missing:
        pytest.skip(str(missing))


@pytest.fixture
def run(tmp_path):
    def call(text: str, **options) -> int:
        path = tmp_path / "script.py"
        path.write_text(text)
        return run_script(path, hooks=[cudacore_hook, cupy_hook], **options)

    return call


PTX = """.version 8.0
.target sm_80
.address_size 64
.visible .entry twice(.param .u64 x, .param .u32 n)
{
  .reg .b32 %r<4>; .reg .b64 %d<4>; .reg .pred %p<2>;
  mov.u32 %r1, %tid.x; ld.param.u32 %r2, [n]; setp.ge.u32 %p1, %r1, %r2;
  @%p1 ret;
  ld.param.u64 %d1, [x]; mul.wide.u32 %d2, %r1, 4; add.u64 %d3, %d1, %d2;
  ld.global.u32 %r3, [%d3]; shl.b32 %r3, %r3, 1; st.global.u32 [%d3], %r3;
  ret;
}
"""
CUPY = '''
import cupy
import cupy as cp
import numpy as np
from cupy.cuda import runtime

code = r"""
template <typename T> __global__ void scale(const T *x, T *y, T by, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = by * x[i];
}
extern "C" __global__ void total(const double *x, double *sum) {
    extern __shared__ double tile[];
    tile[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0) {
        double s = 0;
        for (int i = 0; i < blockDim.x; ++i) s += tile[i];
        *sum = s;
    }
}
"""
module = cp.RawModule(code=code, options=("-std=c++17",), name_expressions=["scale<float>", "scale<double>"])
host = np.random.default_rng(1).standard_normal(70).astype(np.float32)
x = cp.asarray(host)
y = cp.empty_like(x)
module.get_function("scale<float>")((3,), (32,), (x, y, cp.float32(3), 70))
np.testing.assert_array_equal(y.get(), 3 * host)
part = x[10:20]  # a view is the same memory
module.get_function("scale<float>")((1,), (32,), (part, part, np.float32(0), np.int32(10)))
assert not x[10:20].any() and x.get()[20:].tolist() == host[20:].tolist() and part.data.ptr == x.data.ptr + 40

d, s = cp.random.rand(32), cp.zeros(())
with cp.cuda.Stream(non_blocking=True) as stream:
    module.get_function("total")((1,), (32,), (d, s), shared_mem=256)
stream.synchronize()
cp.testing.assert_allclose(s, d.sum())

add = cp.RawKernel('extern "C" __global__ void inc(int *p) { atomicAdd(p + threadIdx.x % 4, 1); }', "inc")
pair = np.zeros(1, np.dtype([("a", np.int32), ("b", np.float64)], align=True))
pair["b"] = 2.5
by_value = cp.RawKernel("""struct Pair { int a; double b; };
extern "C" __global__ void take(Pair p, double *out) { *out = p.a + p.b; }""", "take")
by_value((1,), (1,), (pair, s))
assert float(s) == 2.5 and float(cp.linalg.norm(cp.array([3.0, 4.0]))) == 5
counts = cp.zeros(4, cp.int32)
add((2,), (32,), (counts,))
assert (counts == 16).all() and add.num_regs > 0 and add.attributes["max_threads_per_block"] == 1024

raw = cp.RawModule(path=PTX_FILE).get_function("twice")
loaded = cp.cuda.function.Module()
loaded.load(open(PTX_FILE, "rb").read())
numbers = cp.arange(40, dtype=cp.uint32)
raw((1,), (64,), (numbers, np.uint32(40)))
loaded.get_function("twice")((1,), (64,), (numbers.data, np.uint32(20)))
assert numbers.get().tolist() == [4 * n if n < 20 else 2 * n for n in range(40)]

# arrays
a = cp.arange(12.0).reshape(3, 4)
assert isinstance(a @ a.T, cp.ndarray) and (a @ a.T).shape == (3, 3) and float(cp.max(a)) == 11
assert isinstance(np.sqrt(a), cp.ndarray) and cp.get_array_module(a) is cp and cp.get_array_module(host) is np
a[1] = 7
a += 1
assert a[1].tolist() == [8] * 4 and a.sum().shape == () and len(a) == 3 and [row.shape for row in a] == [(4,)] * 3
for forbidden in (lambda: np.asarray(a), lambda: a + np.ones(4)):
    try:
        forbidden()
    except TypeError:
        pass
    else:
        raise AssertionError("CuPy refuses this")
start, end = cp.cuda.Event(), cp.cuda.Event()
start.record()
end.record()
assert cp.cuda.get_elapsed_time(start, end) > 0
device = cp.cuda.Device()
assert device.compute_capability == "90" and device.attributes["MultiProcessorCount"] == 132 == (
    runtime.getDeviceProperties(0)["multiProcessorCount"])
cp.get_default_memory_pool().free_all_blocks()
cp.get_default_memory_pool().free_all_blocks(stream=cp.cuda.Stream.null)
cp.cuda.set_pinned_memory_allocator(cp.cuda.PinnedMemoryPool().malloc)
drawn = cp.random.RandomState(3).normal(size=(4, 3)).astype(cp.float32)
drawn.sort()
pinned = np.frombuffer(cp.cuda.alloc_pinned_memory(48), np.float32, 12).reshape(4, 3)
drawn.get(out=pinned)
assert (np.diff(pinned, axis=1) >= 0).all()
'''
CORE = '''
import numpy as np
from cuda.core import Device, LaunchConfig, LegacyPinnedMemoryResource, ObjectCode, Program, ProgramOptions, launch

code = """
template <typename T> __global__ void saxpy(T a, const T *x, const T *y, T *out, size_t n) {
    for (size_t i = threadIdx.x + blockIdx.x * blockDim.x; i < n; i += gridDim.x * blockDim.x) out[i] = a * x[i] + y[i];
}
extern "C" __global__ void rank(int *out) {
    unsigned r; asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    if (threadIdx.x == 0) out[blockIdx.x] = r + OFFSET;
}
"""
device = Device()
device.set_current()
stream = device.create_stream()
arch = "sm_" + "".join(map(str, device.compute_capability))
program = Program(code, code_type="c++", options=ProgramOptions(std="c++17", arch=arch, define_macro=("OFFSET", 5)))
for target in ("ptx", "cubin"):
    made = program.compile(target, name_expressions=("saxpy<float>",))
    kernel = made.get_kernel("saxpy<float>")
    pinned = LegacyPinnedMemoryResource()
    n = 777
    x, y, back = (pinned.allocate(4 * n) for _ in range(3))
    hosts = [np.from_dlpack(buffer).view(np.float32) for buffer in (x, y, back)]
    hosts[0][:], hosts[1][:] = np.arange(n), 0.5
    on_device, out = (device.allocate(4 * n, stream=stream) for _ in range(2))
    x.copy_to(on_device, stream=stream)
    launch(stream, LaunchConfig(grid=4, block=64), kernel, np.float32(2), on_device, y, out, np.uint64(n))
    stream.sync()
    out.copy_to(back, stream=stream)
    assert (hosts[2] == 2 * hosts[0] + 0.5).all()
    ranks = pinned.allocate(16)
    config = LaunchConfig(grid=(2, 1, 1), block=(32,), cluster=2, shmem_size=0)  # two clusters
    launch(stream, config, made.get_kernel("rank"), ranks.handle)
    assert np.from_dlpack(ranks).view(np.int32).tolist() == [5, 6, 5, 6]
    out.close(stream)
assert kernel.attributes.num_regs() > 0 and device.properties.multiprocessor_count == 132 and device.arch == "90"
twice = ObjectCode.from_ptx(open(PTX_FILE, "rb").read()).get_kernel("twice")
numbers = pinned.allocate(8)
numbers.fill(1)
launch(device.default_stream, LaunchConfig(grid=1, block=32), twice, numbers, 2)
assert np.from_dlpack(numbers).view(np.uint32).tolist() == [0x02020202] * 2
events = [stream.record() for _ in range(2)]
assert events[1] - events[0] > 0

from cuda.core.experimental import Device as Before
assert Before is Device

import cupy as cp  # both packages on one another's memory
floats = device.allocate(16, stream=stream)
seen = cp.from_dlpack(floats).view(dtype=cp.float32)
seen[:] = cp.random.default_rng(3).random(4, dtype=cp.float32)
owned = cp.ndarray(4, cp.float32, cp.cuda.MemoryPointer(cp.cuda.UnownedMemory(int(floats.handle), 16, floats), 0))
owned += 1
assert (seen >= 1).all() and cp.allclose(seen, owned) and cp.allclose(seen.get(), owned)
config = LaunchConfig(grid=1, block=32)
launch(stream, config, kernel, np.float32(2), seen.data.ptr, owned.data.ptr, floats, np.uint64(4))
assert (seen >= 3).all()
'''


@pytest.mark.parametrize("text", [CUPY, CORE], ids=["cupy", "cuda.core"])
def test_a_script_with_kernels_of_its_own(run, tmp_path, text):
    before = {name: module for name, module in sys.modules.items() if name.startswith(("cupy", "cuda.core"))}
    (tmp_path / "twice.ptx").write_text(PTX)
    assert run(text.replace("PTX_FILE", repr(str(tmp_path / "twice.ptx")))) == 0
    assert {name: m for name, m in sys.modules.items() if name.startswith(("cupy", "cuda.core"))} == before
    assert not hasattr(sys.modules.get("cuda"), "core") or "cuda.core" in before


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("import cupy; cupy.ElementwiseKernel('T x', 'T y', 'y = x', 'f')", "cupy.ElementwiseKernel"),
        ("import cupy as cp; cp.zeros(3).scatter_add(0, 1)", "cupy.ndarray.scatter_add"),
        ("import cupy.sparse", "module cupy.sparse"),
        ("from cupyx import jit", "cupyx.jit"),
        ("import cupy as cp; cp.RawModule(code='', backend='nvcc')", "cupy.RawModule(backend='nvcc')"),
        ("import cupy as cp; cp.cuda.Stream().begin_capture()", "cupy.cuda.Stream.begin_capture"),
        ("from cuda.core import Linker", "cuda.core.Linker"),
        ("from cuda.core import Device; Device().create_graph_builder().if_then(0)", "cuda.core.GraphBuilder.if_then"),
        ("from cuda.core import Program, ProgramOptions; Program('', 'c++', ProgramOptions(time=True))", "time=..."),
        ("from cuda.core import Program; Program('', 'nvvm')", "cuda.core.Program of nvvm"),
    ],
)
def test_what_is_not_there_is_refused_by_name(run, text, name):
    for script in (text, f"try:\n    {text}\nexcept Exception:\n    pass"):  # also where the script goes on
        with pytest.raises(Unsupported, match="is not modelled") as refused:
            run(script)
        assert name in str(refused.value)


def test_a_kernel_that_leaves_its_array(run):
    body = 'extern "C" __global__ void f(float *p) { p[threadIdx.x] = 1; }'
    with pytest.raises(KernelError, match=r"out of bounds: 4 bytes at .*float32 array of 8"):
        run(f"import cupy as cp\ncp.RawKernel('{body}', 'f')((1,), (9,), (cp.empty(8, cp.float32),))")
    with pytest.raises(KernelError, match="out of bounds"):
        run(
            "from cuda.core import *\nfrom cuda.core import Device, Program, launch, LaunchConfig\n"
            f"k = Program('{body}', 'c++').compile('ptx').get_kernel('f')\n"
            "launch(Device().default_stream, LaunchConfig(1, 9), k, Device().allocate(32))"
        )


def test_errors_that_the_packages_raise(run):
    assert run("""
import cupy as cp
from cuda.core import Program
for call in (lambda: cp.RawModule(code='extern "C" __global__ void f() {}').get_function("g"),
             lambda: Program('extern "C" __global__ void f() {}', "c++").compile("ptx").get_kernel("g")):
    try:
        call()
    except Exception as error:
        assert "CUDA_ERROR_NOT_FOUND" in str(error), error
    else:
        raise AssertionError
try:
    cp.RawKernel('extern "C" __global__ void f(int a) {}', "f")((1,), (1,), ("text",))
except TypeError as error:
    assert "str" in str(error)
else:
    raise AssertionError
""") == 0
