"""Unmodified scripts with torch on device="cuda": facade and CuTe DSL launches, on a machine made for the test."""

import ctypes
import os
import struct
import textwrap
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cutlass")
pytest.importorskip("torch")

from tensorladder.core.errors import KernelError, Unsupported, UsageError
from tensorladder.frontends.cutedsl_script import cutedsl_hook
from tensorladder.frontends.ptxparams import entry
from tensorladder.vgpu.driver import run_script

KERNELS = Path(__file__).parent


class Adder:
    """A machine that knows one kernel: c = a + b over float32, with extents from the parameter block."""

    def __init__(self, ranges):
        self.ranges = ranges
        self.waiting = []

    def enqueue(self, launch):
        self.waiting.append(launch)

    def synchronize(self):
        for launch in self.waiting:
            params = entry(launch.module.ptx, launch.kernel).params
            at = [struct.unpack_from("<Q", launch.params, p.offset)[0] for p in params[:3]]
            (n,) = struct.unpack_from("<i", launch.params, params[3].offset)
            assert launch.grid == ((n + 255) // 256, 1, 1)
            for address in at:
                if not any(r.address <= address and address + 4 * n <= r.address + r.size for r in self.ranges):
                    raise KernelError(f"{address:#x} is no device memory")
            a, b, c = (np.frombuffer((ctypes.c_float * n).from_address(x), np.float32) for x in at)
            c[:] = a + b


def run(tmp_path, body, arch="sm_90a", argv=(), machine=Adder):
    script = tmp_path / "script.py"
    script.write_text(f"import sys\nsys.path.insert(0, {str(KERNELS)!r})\n" + textwrap.dedent(body))
    return run_script(script, argv, arch=arch, hooks=(cutedsl_hook,), stream_factory=machine)


HEAD = """
import torch
import cutlass
import cutlass.cute as cute
from cutlass.cute.runtime import from_dlpack
from cutlass.cute.testing import benchmark, JitArguments
import cutedsl_kernels as kernels
a = torch.randn(1000, device="cuda")
b = torch.ones(1000, device="cuda", dtype=torch.float32)
c = torch.empty_like(a)
"""
BODIES = {
    "compiled": """
        A, B, C = [from_dlpack(t, assumed_align=16).mark_layout_dynamic() for t in (a, b, c)]
        compiled = cute.compile(kernels.add, A, B, C)
        compiled(A, B, C)
        """,
    "jit called directly": "kernels.add(*[from_dlpack(t).mark_layout_dynamic() for t in (a, b, c)])",
    "tensors without from_dlpack": "kernels.add_plain(a, b, c)",
    "tvm ffi": """
        n = cute.sym_int()
        fakes = [cute.runtime.make_fake_compact_tensor(cutlass.Float32, (n,), assumed_align=16) for _ in range(3)]
        cute.compile(kernels.add, *fakes, options="--enable-tvm-ffi")(a, b, c)
        """,
    "benchmark": """
        A, B, C = [from_dlpack(t, assumed_align=16).mark_layout_dynamic() for t in (a, b, c)]
        assert benchmark(cute.compile(kernels.add, A, B, C), kernel_arguments=JitArguments(A, B, C)) > 0
        """,
}


@pytest.mark.parametrize("way", BODIES)
def test_a_script_computes(tmp_path, way):
    body = HEAD + textwrap.dedent(BODIES[way]) + "\nassert torch.equal(c, a + b), (c, a + b)\n"
    assert run(tmp_path, body) == 0


def test_what_a_script_asks_of_torch(tmp_path):
    body = """
        import torch
        assert torch.cuda.is_available() and torch.cuda.device_count() == 1
        assert torch.cuda.get_device_capability() == (10, 0)
        assert torch.cuda.get_device_properties(0).multi_processor_count == 148
        torch.cuda.manual_seed(1); torch.manual_seed(0)
        x = torch.zeros(4, 4, device="cuda:0", dtype=torch.float16)
        assert x.is_cuda and x.device.type == "cuda" and (x + 1).is_cuda and x.T.device == torch.device("cuda", 0)
        y = x.cpu(); x += 1
        assert not y.is_cuda and y.sum() == 0 and type(y) is torch.Tensor
        assert y.cuda().is_cuda and y.to("cuda").is_cuda and y.to(x.device, torch.float32).dtype == torch.float32
        assert not x.to("cpu").is_cuda and x.to(torch.float32).is_cuda and x.float().is_cuda
        assert torch.tensor([1, 2], device="cuda").tolist() == [1, 2]
        assert "device='cuda:0'" in repr(x)
        s, e = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        s.record(); e.record(); torch.cuda.synchronize()
        assert s.elapsed_time(e) > 0
        side, first = torch.cuda.Stream(), torch.cuda.current_stream()
        with torch.cuda.stream(side):
            assert torch.cuda.current_stream() == side != first and side.__cuda_stream__() == (0, side.cuda_stream)
        with side, torch.cuda.stream(None), torch.cuda.stream(torch.cuda.ExternalStream(side.cuda_stream)):
            assert torch.cuda.current_stream().cuda_stream == side.cuda_stream
        assert torch.cuda.current_stream() == torch.cuda.default_stream() == first and first.cuda_stream == 0
        torch.cuda.set_stream(side); assert torch.cuda.current_stream() == side; torch.cuda.set_stream(first)
        x.record_stream(side)
        module = torch.nn.Linear(4, 4).to("cuda")
        assert module.weight.is_cuda and not module.to("cpu").weight.is_cuda and module.to(x).weight.dtype == x.dtype
        assert x.to("cuda", None, False) is x and x.to("cpu", torch.float64, False, True).dtype == torch.float64
        from torch.utils.checkpoint import checkpoint
        leaf = torch.ones(3, device="cuda", requires_grad=True)
        checkpoint(lambda t: torch.relu(t * t), leaf, use_reentrant=False).sum().backward()
        assert leaf.grad.tolist() == [2, 2, 2]
        import io
        file = io.BytesIO(); torch.save({"w": leaf.detach(), "n": 3}, file)
        for place in ("cuda", "cpu"):
            file.seek(0)
            found = torch.load(file, map_location=place)
            assert found["w"].is_cuda == (place == "cuda") and found["w"].tolist() == [1, 1, 1] and found["n"] == 3
        try:
            x.numpy()
        except TypeError:
            pass
        else:
            raise SystemExit("numpy() of a CUDA tensor must fail")
        for t in (torch.randn(7, device="cuda"), torch.randn(7, device="cuda") * 2, torch.ones(3).cuda()):
            assert t.data_ptr() % 256 == 0
        for t in (torch.empty(9, device="cuda"), torch.empty_like(x), x.new_empty(3)):
            assert t.isnan().all(), "nobody wrote it"
        leaf = torch.randn(3, device="cuda", requires_grad=True); (leaf * leaf).sum().backward()
        assert torch.allclose(leaf.grad, 2 * leaf)
        top = torch.randn(9, device="cuda").topk(3)
        assert top.values.is_cuda
        g = torch.Generator(device="cuda"); g.manual_seed(3)
        assert torch.randn(3, device="cuda", generator=g).is_cuda and isinstance(g, torch.Generator)
        torch.Generator | None, torch.cuda.CUDAGraph | None, torch.cuda.Stream | None, torch.cuda.device | None
        torch.testing.assert_close(x, x.clone())
        with torch.cuda.device(0):
            pass
        import copy
        assert copy.deepcopy(x).is_cuda and torch.empty(4, pin_memory=True).is_cuda is False
        assert torch.empty(4, pin_memory=True)[1:].is_pinned() and not torch.empty(4).is_pinned()
        rows = torch.empty(2, 4)
        for row in rows:
            assert row.copy_(x.flatten()[:1].expand(4)) is row and not row.is_cuda
        pageable = torch.ones(4)
        pinned = pageable.pin_memory()
        assert pinned.is_pinned() and not pageable.is_pinned() and pinned.pin_memory() is pinned
        pinned.zero_()
        assert pageable.sum() == 4 and not x.is_pinned()
        try:
            x.pin_memory()
        except RuntimeError as error:
            assert "cannot pin" in str(error)
        else:
            raise AssertionError("a tensor of the device was pinned")
        layer = torch.nn.Linear(4, 2).cuda()
        layer(torch.ones(3, 4, device="cuda")).sum().backward()
        assert layer.weight.is_cuda and layer.weight.grad.is_cuda
        with torch.device("cuda"):
            assert torch.zeros(3).is_cuda
        torch.set_default_device("cuda"); assert torch.zeros(3).is_cuda
        torch.set_default_device("cpu"); assert not torch.zeros(3).is_cuda
        from cutlass.utils import HardwareInfo
        for fit in (HardwareInfo().get_max_active_clusters(2), HardwareInfo(0).get_max_active_clusters(cluster_size=2)):
            assert fit == 74
        """
    assert run(tmp_path, body, arch="sm_100a") == 0


def test_half_products_accumulate_in_float32(tmp_path):
    body = """
        import torch
        a = torch.full((8, 4096), 1.0, device="cuda", dtype=torch.bfloat16)
        b = torch.full((4096, 8), 1.0 / 256, device="cuda", dtype=torch.bfloat16)
        for c in (a @ b, torch.matmul(a, b), torch.einsum("mk,kn->mn", a, b)):
            assert c.dtype == torch.bfloat16 and c.is_cuda and (c == 16).all()
        out = torch.empty(8, 8, device="cuda", dtype=torch.bfloat16)
        assert torch.mm(a, b, out=out) is out and (out == 16).all()
        wide = torch.bmm(a[None], b[None], out_dtype=torch.float32)
        assert wide.dtype == torch.float32 and (wide == 16).all()
        assert torch.mm(a.float(), b.float(), out_dtype=torch.float32).dtype == torch.float32
        """
    assert run(tmp_path, body) == 0


def test_arguments_folder_and_exit_codes(tmp_path):
    (tmp_path / "beside.py").write_text("value = 3\n")
    body = """
        import beside
        assert sys.argv[1:] == ["--size", "7"] and __name__ == "__main__"
        sys.exit(beside.value)
        """
    assert run(tmp_path, body, argv=("--size", "7")) == 3
    with pytest.raises(ZeroDivisionError):
        run(tmp_path, "1 / 0")
    with pytest.raises(UsageError, match="no such script"):
        run_script(tmp_path / "absent.py", stream_factory=Adder)
    with pytest.raises(UsageError, match="no such architecture"):
        run_script(tmp_path / "script.py", arch="sm_33", stream_factory=Adder)


@pytest.mark.parametrize("way", ["compiled", "tvm ffi", "jit called directly"])
def test_errors_of_a_launch_come_out_as_they_are(tmp_path, way):
    class Broken(Adder):
        def synchronize(self):
            raise KernelError("out of bounds in a[3]")

    with pytest.raises(KernelError, match=r"^out of bounds in a\[3\]$"):
        run(tmp_path, HEAD + textwrap.dedent(BODIES[way]), machine=Broken)


def test_freed_and_host_memory_is_not_the_devices(tmp_path):
    with pytest.raises(KernelError, match="no device memory"):
        run(tmp_path, HEAD + "\nkernels.add_plain(a, b, torch.empty(1000))\n")


def test_a_captured_graph_runs_at_each_replay(tmp_path):
    body = """
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
            assert torch.cuda.is_current_stream_capturing()
            kernels.add_plain(a, b, c)
            kernels.add_plain(c, b, d := torch.empty_like(a))
        assert c.isnan().all(), "nothing runs while it is captured"
        graph.replay()
        assert torch.equal(c, a + b) and torch.equal(d, c + b)
        a.zero_()
        graph.replay()
        assert torch.equal(c, b)
        """
    assert run(tmp_path, HEAD + textwrap.dedent(body)) == 0


def test_torch_operations_in_a_captured_graph(tmp_path):
    body = """
        x, y, total = torch.ones(4, device="cuda"), torch.zeros(4, device="cuda"), torch.zeros(4, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y.copy_(x)
            z = (y * 2).view(2, 2)
            total += y
            kernels.add_plain(a, b, c)
            d = torch.cat([c[:2], z[0]])
            try:
                bool(x[0])
            except RuntimeError as error:
                assert "capturing" in str(error)
            else:
                raise SystemExit("the host cannot wait")
        assert not y.any() and not total.any(), "nothing runs while it is captured"
        for n in (1, 2):
            x.fill_(n)
            graph.replay()
            assert (y == n).all() and (z == 2 * n).all()
            assert torch.equal(d, torch.cat([(a + b)[:2], z[0]]))
        assert (total == 3).all()
        """
    assert run(tmp_path, HEAD + textwrap.dedent(body)) == 0


def test_a_benchmark_keeps_what_its_workspace_points_to(tmp_path):
    seen = []

    class Looking(Adder):
        def __init__(self, ranges):
            seen.append(sorted(r.size for r in ranges))
            super().__init__(ranges)

    body = """
        from cutlass import testing

        def workspace():
            torch.zeros(77, device="cuda")  # only its address would be handed on
            return testing.JitArguments(a, b, c)

        testing.benchmark(kernels.add_plain, workspace_generator=workspace, warmup_iterations=0, iterations=1)
        kernels.add_plain(a, b, c)
        """
    run(tmp_path, HEAD + textwrap.dedent(body), machine=Looking)
    assert 77 * 4 in seen[0] and 77 * 4 not in seen[1]


def test_everything_is_put_back(tmp_path):
    import torch
    from cutlass.cutlass_dsl.cuda_jit_executor import CudaDialectJitCompiledFunction

    before = torch.cuda.is_available, torch.Generator, CudaDialectJitCompiledFunction.to, os.getcwd()
    run(tmp_path, "import torch\n")
    assert before == (torch.cuda.is_available, torch.Generator, CudaDialectJitCompiledFunction.to, os.getcwd())
    assert not torch.zeros(2).is_cuda


def test_driver_and_runtime_calls(tmp_path):
    body = """
        import ctypes, numpy as np
        from cuda.bindings import driver, runtime
        assert driver.cuInit(0) == (driver.CUresult.CUDA_SUCCESS,)
        assert driver.cuDeviceGetCount()[1] == 1 and int(driver.cuDeviceGet(0)[1]) == 0
        sms = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
        assert driver.cuDeviceGetAttribute(sms, 0)[1] == 132
        error, p = driver.cuMemAlloc(64)
        host = np.arange(16, dtype=np.int32)
        driver.cuMemcpyHtoD(p, host.ctypes.data, 64)
        back = np.zeros(16, np.int32)
        driver.cuMemcpyDtoH(back, p, 64)
        assert (back == host).all() and int(p) % 256 == 0
        driver.cuMemsetD32(p, 7, 4)
        driver.cuMemcpyDtoH(back, p, 64)
        assert back[:5].tolist() == [7, 7, 7, 7, 4]
        assert driver.cuMemFree(p)[0] == 0
        error, start = runtime.cudaEventCreate(); error, end = runtime.cudaEventCreate()
        runtime.cudaEventRecord(start, 0); runtime.cudaEventRecord(end, 0)
        error, ms = runtime.cudaEventElapsedTime(start, end)
        assert error == runtime.cudaError_t.cudaSuccess and ms > 0
        """
    assert run(tmp_path, body) == 0
    with pytest.raises(UsageError, match="was not allocated"):
        run(tmp_path, "from cuda.bindings import driver\ndriver.cuMemFree(driver.CUdeviceptr(64))\n")


def test_memory_of_the_driver_is_the_devices_until_it_is_freed(tmp_path):
    seen = []

    class Looking(Adder):
        def __init__(self, ranges):
            seen.append([(r.name, r.size) for r in ranges])
            super().__init__(ranges)

    body = """
        from cuda.bindings import driver
        p = driver.cuMemAlloc(12345)[1]
        kernels.add_plain(a, b, c)
        driver.cuMemFree(p)
        view = a[3:]
        del a
        kernels.add_plain(b, b, c)
        """
    run(tmp_path, HEAD + textwrap.dedent(body), machine=Looking)
    assert ("driver memory", 12345) in seen[0] and ("driver memory", 12345) not in seen[1]
    assert seen[1].count(("float32 tensor", 4000)) == 3, "a view keeps the memory of a"


def test_code_that_torch_calls_back_into_sees_the_device(tmp_path, capsys):
    body = """
        import torch

        class Twice(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                y = 2 * x
                ctx.save_for_backward(y)
                return y

            @staticmethod
            def backward(ctx, gradient):
                (y,) = ctx.saved_tensors
                assert y.is_cuda and gradient.is_cuda and y.device == gradient.device
                assert torch.zeros(3, device=gradient.device).is_cuda and torch.empty_like(y).isnan().all()
                return 2 * gradient

        x = torch.randn(4, device="cuda", requires_grad=True)
        Twice.apply(x).sum().backward()
        assert x.grad.is_cuda and (x.grad == 2).all()
        (gradient,) = torch.autograd.grad(Twice.apply(x).sum(), x)
        assert gradient.is_cuda and (gradient == 2).all()

        @torch.library.custom_op("tensorladder_test::thrice", mutates_args=(), device_types="cuda")
        def thrice(x: torch.Tensor) -> torch.Tensor:
            assert x.is_cuda and torch.empty(3, device=x.device).is_cuda
            return 3 * x

        @thrice.register_kernel("cpu")
        def _(x: torch.Tensor) -> torch.Tensor:
            assert not x.is_cuda
            return x + 100

        assert torch.equal(thrice(x), 3 * x) and thrice(x).is_cuda
        assert torch.equal(thrice(torch.zeros(2)), torch.full((2,), 100.0))

        @torch.library.custom_op("tensorladder_test::fill", mutates_args={"out"}, device_types="cuda")
        def fill(x: torch.Tensor, out: torch.Tensor) -> None:
            out.copy_(x)

        out = torch.empty_like(x)
        fill(x.detach(), out)
        assert torch.equal(out, x)
        try:
            fill(torch.zeros(2), torch.zeros(2))
        except NotImplementedError:
            pass
        else:
            raise SystemExit("there is no kernel for the CPU")
        assert torch.compile(lambda x: x + 1, fullgraph=True)(x).is_cuda
        """
    assert run(tmp_path, body) == 0
    assert "torch.compile is left out" in capsys.readouterr().err


def test_tensors_of_shapes_alone_may_claim_the_device(tmp_path):
    body = """
        import torch
        from torch._subclasses.fake_tensor import FakeTensorMode
        with FakeTensorMode():
            x = torch.empty(4, 3, device="cuda")
            y = x @ torch.empty(3, 2, device="cuda")
            assert y.shape == (4, 2) and y.device.type == "cuda" and y.sum().shape == ()
        assert torch.ones(3, device="cuda").sum() == 3
        """
    assert run(tmp_path, body) == 0


def test_what_is_refused_counts_also_where_the_script_goes_on(tmp_path):
    body = """
        import torch
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
            torch.ones(3) + 1
        try:
            torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
        except Exception:
            print("went on")
        """
    with pytest.raises(Unsupported, match=r"CUDA activity of torch\.profiler is not modelled"):
        run(tmp_path, body)


def test_where_the_stand_in_ends_is_incomplete(tmp_path):
    body = """
        def reference():
            raise RuntimeError("\\"addmm\\" not implemented for 'Half'")

        reference()
        """
    with pytest.raises(Unsupported, match=r"script\.py:5: an operator torch lacks on the CPU: \"addmm\""):
        run(tmp_path, body)


def test_16_bit_normalisations_run_in_float32(tmp_path):
    body = """
        import torch
        torch.manual_seed(0)
        x = torch.randn(2048, 64, device="cuda", dtype=torch.float16)
        weight, bias = (torch.randn(64, device="cuda", dtype=torch.float16, requires_grad=True) for _ in range(2))
        dy = torch.randn_like(x)
        torch.nn.functional.layer_norm(x, (64,), weight, bias).backward(dy)
        want = dy.cpu().double().sum(0)
        assert (bias.grad.cpu().double() - want).norm() < 4e-4 * want.norm()
        """
    assert run(tmp_path, body) == 0


def test_memory_that_a_launch_touched_can_be_freed():
    import weakref

    from tensorladder.vgpu.driver.script import _device_streams
    from tensorladder.vgpu.driver.session import HostRange

    class Block:
        array = np.zeros(64, np.uint8)

    new_stream = _device_streams("sm_90a", "eager", 0)
    block = Block()
    freed = weakref.ref(block)
    stream = new_stream([HostRange("block", block.array.ctypes.data, 64, owner=block)])
    stream.synchronize()
    del block
    assert freed() is None


def test_a_cooperative_launch_that_is_too_large_is_the_runtimes_error(tmp_path):
    body = """
        from cutlass.cutlass_dsl import DSLCudaRuntimeError
        from cuda.bindings.runtime import cudaError_t
        x = from_dlpack(torch.ones(32, 1, device="cuda"))
        try:
            kernels.cooperative(x, 100_000)
        except DSLCudaRuntimeError as error:
            assert error.error_code == cudaError_t.cudaErrorCooperativeLaunchTooLarge
            sys.exit(0)
        """
    assert run(tmp_path, HEAD + textwrap.dedent(body) + "\nsys.exit(1)\n") == 0
    with pytest.raises(KernelError, match="cooperative launch of 100000 CTAs"):
        run(tmp_path, HEAD + '\nkernels.cooperative(from_dlpack(torch.ones(32, 1, device="cuda")), 100_000)\n')
