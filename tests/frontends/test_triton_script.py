"""Triton scripts, compiled by Triton itself and launched on the virtual GPU. Needs triton (`pip install triton`)."""

import textwrap

import pytest

pytest.importorskip("triton")
pytest.importorskip("torch")

from tensorladder.core.errors import KernelError
from tensorladder.measure.scripts import run_script

HEAD = """
import torch
import triton
import triton.language as tl
device = triton.runtime.driver.active.get_active_torch_device()
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))

    def call(body, arch="sm_90a"):
        script = tmp_path / "script.py"
        script.write_text(HEAD + textwrap.dedent(body))
        return run_script(script, arch=arch)

    return call


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
def test_a_product_with_the_architectures_tensor_core(run, arch):
    """mma.sync, wgmma or tcgen05.mma: which one is in the PTX that ran."""
    body = """
        @triton.jit
        def product(a, b, c, K, scale, SIZE: tl.constexpr, STEP: tl.constexpr):
            m = tl.arange(0, SIZE)
            k = tl.arange(0, STEP)
            total = tl.zeros((SIZE, SIZE), tl.float32)
            for at in range(0, K, STEP):
                x = tl.load(a + m[:, None] * K + at + k[None, :], mask=at + k[None, :] < K, other=0.0)
                y = tl.load(b + (at + k[:, None]) * SIZE + m[None, :], mask=at + k[:, None] < K, other=0.0)
                total = tl.dot(x, y, total)
            tl.store(c + m[:, None] * SIZE + m[None, :], total * scale)

        torch.manual_seed(0)
        K = 200
        a = torch.randn(128, K, device=device, dtype=torch.bfloat16)
        b = torch.randn(K, 128, device=device, dtype=torch.bfloat16)
        c = torch.empty(128, 128, device=device)
        kernel = product[(1,)](a, b, c, K, 0.5, SIZE=128, STEP=32)
        torch.testing.assert_close(c.cpu().double(), a.cpu().double() @ b.cpu().double() / 2, rtol=1e-5, atol=1e-4)
        wanted = {8: "mma.sync", 9: "wgmma.mma_async", 10: "tcgen05.mma"}[torch.cuda.get_device_capability()[0]]
        assert wanted in kernel.asm["ptx"] and 0 < kernel.n_regs <= 255
        """
    assert run(body, arch) == 0


def test_arguments_of_every_kind(run):
    body = """
        @triton.jit
        def store(out, whole, small, half, flag, pair, absent, N: tl.constexpr):
            i = tl.arange(0, N)
            value = i + whole + small + half.to(tl.float64) + pair[0] * pair[1]
            if absent is None:
                value += flag.to(tl.float64)
            tl.store(out + i, value)

        out = torch.empty(32, dtype=torch.float64, device=device)
        store[(1,)](out, 1 << 40, -7, 0.125, True, (3, 5), None, N=32)
        assert out.cpu().tolist() == [i + (1 << 40) - 7 + 0.125 + 15 + 1 for i in range(32)]
        try:
            store[(1,)](torch.empty(32, dtype=torch.float64), 1 << 40, -7, 0.125, True, (3, 5), None, N=32)
        except ValueError as error:
            assert "cannot be accessed from Triton" in str(error)
        else:
            raise SystemExit("a host tensor must be refused")
        """
    assert run(body) == 0


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_tensor_descriptors_made_on_the_host(run, arch):
    """A tensor map from sm_90 on, before that its parts."""
    body = """
        from triton.tools.tensor_descriptor import TensorDescriptor

        @triton.jit
        def move(source, target, M: tl.constexpr, N: tl.constexpr):
            at = tl.program_id(0) * M
            target.store([at, 0], source.load([at, 0]) + 1)

        x = torch.randn(40, 64, device=device, dtype=torch.float16)
        y = torch.zeros_like(x)
        source, target = (TensorDescriptor.from_tensor(t, [16, 64]) for t in (x, y))
        move[(3,)](source, target, M=16, N=64)
        assert torch.equal(y, x + 1)
        """
    assert run(body, arch) == 0


def test_tuning_graphs_and_scratch_memory(run, capfd):
    body = """
        @triton.autotune(configs=[triton.Config({"B": n}) for n in (64, 128)], key=["n"])
        @triton.jit
        def twice(x, y, n, B: tl.constexpr):
            i = tl.program_id(0) * B + tl.arange(0, B)
            tl.store(y + i, 2 * tl.load(x + i, mask=i < n), mask=i < n)

        x = torch.randn(300, device=device)
        y = torch.empty_like(x)
        launch = lambda: twice[lambda meta: (triton.cdiv(300, meta["B"]),)](x, y, 300)
        launch()
        assert torch.equal(y, 2 * x) and twice.best_config.kwargs["B"] in (64, 128)
        assert triton.testing.do_bench(launch, quantiles=[0.5, 0.2, 0.8])[0] > 0
        graph = torch.cuda.CUDAGraph()
        y.zero_()
        with torch.cuda.graph(graph):
            launch()
        assert not y.any()
        graph.replay()
        assert torch.equal(y, 2 * x)

        @triton.jit
        def copy(x, y, N: tl.constexpr):
            source = tl.make_tensor_descriptor(x, [N, N], [N, 1], [N, N])
            target = tl.make_tensor_descriptor(y, [N, N], [N, 1], [N, N])
            target.store([0, 0], source.load([0, 0]))

        a = torch.randn(32, 32, device=device)
        b = torch.empty_like(a)
        triton.set_allocator(lambda size, align, stream: torch.empty(size, dtype=torch.int8, device=device))
        copy[(1,)](a, b, N=32)
        assert torch.equal(a, b)
        """
    assert run(body) == 0
    assert "emulation's wall time" in capfd.readouterr().err


def test_an_access_past_the_end_is_the_kernels_error(run):
    body = """
        @triton.jit
        def past(x, N: tl.constexpr):
            tl.store(x + tl.arange(0, N), 0.0)

        past[(1,)](torch.empty(100, device=device), N=128)
        """
    with pytest.raises(KernelError, match="float32 tensor of shape"):
        run(body)


def test_tritons_own_cublas_by_torch(run):
    """Triton's tutorials compare with it: plain, and with block scales of ones and twos."""
    body = """
        from triton._C.libtriton import nvidia
        cublas = nvidia.cublas.CublasLt(torch.empty(64, device="cuda", dtype=torch.uint8))
        a, b = (torch.randn(rows, 64, device="cuda").to(torch.float8_e4m3fn) for rows in (128, 96))
        c, d = (torch.empty(128, 96, device="cuda", dtype=torch.float16) for _ in range(2))
        exact = a.double() @ b.double().t()
        cublas.matmul(a, b, c)
        torch.testing.assert_close(c.double(), exact, atol=1e-2, rtol=1e-3)
        cublas.gemm(a, b, c, d, 2.0, 1.0)
        torch.testing.assert_close(d.double(), 2 * exact + c.double(), atol=3e-2, rtol=1e-3)
        ones, twos = (torch.full((512,), 127 + k, dtype=torch.uint8, device="cuda") for k in range(2))
        cublas.block_scaled_matmul_mxfp8(a, b, c, ones, twos)
        torch.testing.assert_close(c.double(), 2 * exact, atol=2e-2, rtol=1e-3)
    """
    assert run(body) == 0
