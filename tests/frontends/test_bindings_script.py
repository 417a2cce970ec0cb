"""Scripts that compile CUDA C++ with NVRTC and launch through `cuda.bindings`, on the virtual GPU."""

import textwrap

import pytest

pytest.importorskip("cuda.bindings")
pytest.importorskip("llvmlite")

from tensorladder.core.errors import KernelError, Unsupported, UsageError
from tensorladder.vgpu.driver import run_script

HEAD = """
import ctypes
import numpy as np
from cuda.bindings import driver, nvrtc, runtime

def ok(result):
    assert int(result[0]) == 0, result[0]
    return result[1] if len(result) == 2 else result[1:]

SOURCE = b'''
extern "C" __global__ void axpy(float a, const float *x, float *y, int n) {
    extern __shared__ float tile[];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    tile[threadIdx.x] = i < n ? x[i] : 0;
    __syncthreads();
    if (i < n) y[i] += a * tile[threadIdx.x];
}
extern "C" __global__ __cluster_dims__(2, 1, 1) void ranks(unsigned *out) {
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    out[blockIdx.x] = 10 * rank + gridDim.x;
}
'''
program = ok(nvrtc.nvrtcCreateProgram(SOURCE, b"kernels.cu", 0, [], []))
major = ok(driver.cuDeviceGetAttribute(driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0))
options = [f"--gpu-architecture=sm_{major}0".encode()]
ok(nvrtc.nvrtcCompileProgram(program, len(options), options))
ptx = b" " * ok(nvrtc.nvrtcGetPTXSize(program))
ok(nvrtc.nvrtcGetPTX(program, ptx))
cubin = b" " * ok(nvrtc.nvrtcGetCUBINSize(program))
ok(nvrtc.nvrtcGetCUBIN(program, cubin))
n = 1000
x, y = np.arange(n, dtype=np.float32), np.ones(n, np.float32)
dx, dy = ok(driver.cuMemAlloc(x.nbytes)), ok(driver.cuMemAlloc(y.nbytes))
ok(driver.cuMemcpyHtoD(dx, x, x.nbytes))
ok(driver.cuMemcpyHtoD(dy, y, y.nbytes))
stream = ok(driver.cuStreamCreate(0))
values = (2.0, dx, dy, n), (ctypes.c_float, None, None, ctypes.c_int)

def result():
    ok(driver.cuMemcpyDtoH(y, dy, y.nbytes))
    return y
"""


@pytest.fixture
def run(tmp_path):
    def call(body, arch="sm_90a"):
        script = tmp_path / "script.py"
        script.write_text(HEAD + textwrap.dedent(body))
        return run_script(script, arch=arch)

    return call


@pytest.mark.parametrize("image", ["ptx", "cubin", "np.char.array(cubin)", "np.frombuffer(ptx, np.uint8).ctypes.data"])
def test_a_module_from_nvrtc(run, image):
    body = f"""
        module = ok(driver.cuModuleLoadData({image}))
        axpy = ok(driver.cuModuleGetFunction(module, b"axpy"))
        ok(driver.cuLaunchKernel(axpy, 4, 1, 1, 256, 1, 1, 1024, stream, values, 0))
        assert (result() == 1 + 2 * x).all()
        assert int(driver.cuModuleGetFunction(module, b"absent")[0]) == 500
        # the other form: an array of pointers to the arguments
        held = [np.float32(1), np.uint64(int(dx)), np.uint64(int(dy)), np.int32(n)]
        held = [np.array(value) for value in held]
        pointers = np.array([h.ctypes.data for h in held], np.uint64)
        ok(driver.cuLaunchKernel(axpy, 4, 1, 1, 256, 1, 1, 1024, stream, pointers.ctypes.data, 0))
        assert (result() == 1 + 3 * x).all()
        ok(driver.cuModuleUnload(module))
        assert int(driver.cuModuleGetFunction(module, b"axpy")[0]) == 400
        """
    assert run(body) == 0


def test_libraries_clusters_attributes_and_occupancy(run):
    body = """
        library = ok(driver.cuLibraryLoadData(cubin, [], [], 0, [], [], 0))
        axpy = ok(driver.cuKernelGetFunction(ok(driver.cuLibraryGetKernel(library, b"axpy"))))
        kind = driver.CUfunction_attribute
        assert 1 <= ok(driver.cuFuncGetAttribute(kind.CU_FUNC_ATTRIBUTE_NUM_REGS, axpy)) <= 255
        assert ok(driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(axpy, 256, 1024)) == 8
        dynamic = kind.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        assert int(driver.cuLaunchKernel(axpy, 4, 1, 1, 256, 1, 1, 100_000, stream, values, 0)[0]) == 1
        ok(driver.cuFuncSetAttribute(axpy, dynamic, 100_000))
        ok(driver.cuLaunchKernel(axpy, 4, 1, 1, 256, 1, 1, 100_000, stream, values, 0))
        assert (result() == 1 + 2 * x).all()

        ranks = ok(driver.cuModuleGetFunction(ok(driver.cuLibraryGetModule(library)), b"ranks"))
        out = ok(runtime.cudaMalloc(16))
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = 4, 1, 1
        config.blockDimX = config.blockDimY = config.blockDimZ = 1
        attribute = driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        attribute.value.clusterDim.x, attribute.value.clusterDim.y, attribute.value.clusterDim.z = 2, 1, 1
        config.attrs, config.numAttrs, config.hStream = [attribute], 1, stream
        ok(driver.cuLaunchKernelEx(config, ranks, ((out,), (ctypes.c_void_p,)), 0))
        got = np.zeros(4, np.uint32)
        kind = runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost
        ok(runtime.cudaMemcpy(got.ctypes.data, out, 16, kind))
        assert got.tolist() == [4, 14, 4, 14]
        """
    assert run(body) == 0


def test_a_captured_graph(run):
    body = """
        axpy = ok(driver.cuModuleGetFunction(ok(driver.cuModuleLoadData(ptx)), b"axpy"))
        ok(driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
        ok(driver.cuMemsetD32Async(dy, 0, n, stream))
        for _ in range(2):
            ok(driver.cuLaunchKernel(axpy, 4, 1, 1, 256, 1, 1, 1024, stream, values, 0))
        graph = ok(driver.cuStreamEndCapture(stream))
        assert (result() == 1).all(), "nothing ran"
        nodes, count = ok(driver.cuGraphGetNodes(graph, 2))
        assert len(nodes) == 2 and count == 3 == ok(runtime.cudaGraphGetNodes(int(graph)))[1]
        ready = ok(driver.cuGraphInstantiate(graph, 0))
        for _ in range(3):
            ok(driver.cuGraphLaunch(ready, stream))
            assert (result() == 4 * x).all()
        """
    assert run(body) == 0


@pytest.mark.parametrize(
    ("body", "error", "said"),
    [
        ("driver.cuTexObjectCreate(1, 2, 3)", Unsupported, "cuTexObjectCreate is not modelled"),
        ("driver.cuModuleLoadData(b'\\x7fELF' + bytes(200))", Unsupported, "a cubin that did not come from NVRTC"),
        ("try: runtime.cudaGraphAddMemsetNode(1, 2, 3, 4)\nexcept Exception: pass", Unsupported, "cudaGraphAddMemset"),
        ("driver.cuLaunchKernel(f, 4, 1, 1, 256, 1, 1, 1024, 0, ((1.0,), (None,)), 0)", UsageError, "takes 4 arg"),
        ("driver.cuLaunchKernel(f, 8, 1, 1, 256, 1, 1, 1024, 0, ((2.0, dx, dy, 2000), values[1]), 0)", KernelError,
         r"past the end of driver memory.*kernels\.cu:\d"),
    ],
    ids=["unknown call", "cubin", "caught", "arguments", "out of bounds"],
)  # fmt: skip
def test_what_is_refused(run, body, error, said):
    load = "f = ok(driver.cuModuleGetFunction(ok(driver.cuModuleLoadData(ptx)), b'axpy'))\n"
    with pytest.raises(error, match=said):
        run(load + body)


def test_memory_of_the_host_that_the_device_sees_and_pools(run):
    body = """
        prop = ok(runtime.cudaGetDeviceProperties(0))
        assert prop.canMapHostMemory and prop.managedMemory and b"virtual GPU" in bytes(prop.name)
        host = (ctypes.c_float * n).from_address(ok(runtime.cudaHostAlloc(4 * n, runtime.cudaHostAllocMapped)))
        host[:] = list(range(n))
        mine = np.ones(n, np.float32)
        ok(runtime.cudaHostRegister(mine, mine.nbytes, runtime.cudaHostRegisterMapped))
        pointers = [ok(runtime.cudaHostGetDevicePointer(memory, 0)) for memory in (host, mine)]
        module = ok(driver.cuModuleLoadData(ptx))
        axpy = ok(driver.cuModuleGetFunction(module, b"axpy"))
        arguments = (2.0, *pointers, n), (ctypes.c_float, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
        ok(driver.cuLaunchKernel(axpy, 4, 1, 1, 256, 1, 1, 1024, driver.CU_STREAM_LEGACY, arguments, 0))
        assert (mine == 1 + 2 * x).all()
        ok(runtime.cudaFreeHost(host)), ok(runtime.cudaHostUnregister(mine))
        assert int(runtime.cudaHostUnregister(mine)[0]) == 713  # not registered
        pool = ok(runtime.cudaDeviceGetDefaultMemPool(0))
        threshold = runtime.cudaMemPoolAttr.cudaMemPoolAttrReleaseThreshold
        ok(runtime.cudaMemPoolSetAttribute(pool, threshold, driver.cuuint64_t(1 << 20)))
        block = ok(runtime.cudaMallocFromPoolAsync(64, pool, stream))
        ok(runtime.cudaMemsetAsync(block, 1, 64, stream)), ok(runtime.cudaFreeAsync(block, stream))
        block = ok(driver.cuMemAllocFromPoolAsync(64, ok(driver.cuDeviceGetDefaultMemPool(0)), stream))
        ok(driver.cuMemFreeAsync(block, stream))
    """
    assert run(body) == 0
