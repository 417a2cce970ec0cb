"""What only a GPU shows of the op's launches: streams, threads, graphs, gradients. Run by test_gpu.py, or alone, where
there is no pytest: `python -m tests.ops.on_gpu`, with TENSORLADDER_PACK where there is no DSL.

The forms that are called: bf16 with b of either major, bias and gelu, a residual, and what gradients take.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback

import tensorladder

SLEEP_CYCLES = 400_000_000  # some 200 ms


def normal(*shape):
    import torch

    return torch.randn(shape, device="cuda").bfloat16()


def close(got, exact, limit=2.0**-7):
    return bool(((got.double() - exact).abs() <= limit * (1 + exact.abs())).all())


def cold_and_warm_calls():
    """Right both times, at several extents, into memory that held NaN."""
    import torch

    for m, n, k in ((1, 256, 128), (128, 256, 128), (333, 520, 264), (4096, 1024, 512)):
        b, w, bias = normal(k, n) / k**0.5, normal(n, k) / k**0.5, normal(n)
        for _ in range(3):
            a, r = normal(m, k), normal(m, n)
            torch.full((m, n), float("nan"), device="cuda").bfloat16()  # what an empty result is likely to get
            assert close(tensorladder.matmul(a, b), a.double() @ b.double())
            exact = a.double() @ w.double().t()
            assert close(tensorladder.matmul(a, w.t()), exact)
            gelu = torch.nn.functional.gelu(exact + bias.double())
            assert close(tensorladder.matmul(a, w.t(), bias=bias, activation="gelu"), gelu)
            assert close(tensorladder.matmul(a, w.t(), residual=r, alpha=0.5, beta=-2.0), 0.5 * exact - 2 * r.double())


def other_streams():
    """A call is in the order of the stream that is current: it sees what was queued there before."""
    import torch

    w = normal(256, 128) / 11
    tensorladder.matmul(normal(128, 128), w.t())
    for stream in (torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.default_stream()):
        with torch.cuda.stream(stream):
            a = torch.zeros(128, 128, device="cuda").bfloat16()
            torch.cuda._sleep(SLEEP_CYCLES // 10)
            a.normal_()
            got = tensorladder.matmul(a, w.t())
            twice = got + got
        stream.synchronize()
        assert close(twice, 2 * (a.double() @ w.double().t()))


def no_call_waits():
    """Cold ones neither: new extents, and new factors, return while the GPU still sleeps."""
    import torch

    w = normal(256, 128)
    tensorladder.matmul(normal(8, 128), w.t())
    a = normal(100, 128)
    torch.cuda.synchronize()
    torch.cuda._sleep(SLEEP_CYCLES)
    start = time.perf_counter()
    got = tensorladder.matmul(a, w.t(), alpha=0.123)
    seconds = time.perf_counter() - start
    assert not torch.cuda.current_stream().query(), "the GPU was done before: nothing was shown"
    torch.cuda.synchronize()
    assert time.perf_counter() - start > 3 * seconds, f"the call took {seconds} s"
    assert close(got, 0.123 * a.double() @ w.double().t())


def graphs():
    """Warm and cold calls are captured, on any stream, and replays take what lies in their operands then."""
    import torch

    w, bias = normal(256, 128) / 11, normal(256)
    for m, alpha, more in ((128, 1.0, {}), (57, 0.77, {}), (58, 0.78, {"bias": bias, "activation": "gelu"})):
        a = normal(m, 128)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            got = tensorladder.matmul(a, w.t(), alpha=alpha, **more)
        for _ in range(2):
            a.normal_()
            graph.replay()
            torch.cuda.synchronize()
            exact = alpha * a.double() @ w.double().t()
            if more:
                exact = torch.nn.functional.gelu(exact + bias.double())
            assert close(got, exact), (m, alpha)
        assert close(tensorladder.matmul(a, w.t(), alpha=alpha, **more), exact)  # outside of it, too


def factors_that_are_not_kept():
    """More pairs than are kept, in a graph as well."""
    import torch

    from tensorladder.ops import factors

    w, a = normal(256, 128) / 11, normal(128, 128)
    exact, most = a.double() @ w.double().t(), factors.MOST
    factors.MOST = len(factors.of(torch.cuda.current_device()).known)
    try:
        for alpha in (0.3, 0.4, 0.3):
            assert close(tensorladder.matmul(a, w.t(), alpha=alpha), alpha * exact)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            got = tensorladder.matmul(a, w.t(), alpha=0.6)
        graph.replay()
        torch.cuda.synchronize()
        assert close(got, 0.6 * exact)
    finally:
        factors.MOST = most


def threads():
    """Threads that never called CUDA, on streams of their own, all with one template."""
    import torch

    w = normal(256, 128) / 11
    tensorladder.matmul(normal(128, 128), w.t())
    torch.cuda.synchronize()
    given = [[normal(128, 128) for _ in range(20)] for _ in range(4)]
    streams, wrong = [torch.cuda.Stream() for _ in given], []
    torch.cuda.synchronize()

    def work(number):
        try:
            if number:
                with torch.cuda.stream(streams[number]):
                    made = [tensorladder.matmul(a, w.t()) for a in given[number]]
                streams[number].synchronize()
            else:  # its first call of CUDA is a launch on the default stream
                made = [tensorladder.matmul(a, w.t()) for a in given[number]]
                torch.cuda.synchronize()
            wrong.extend(
                (number, i) for i, (a, got) in enumerate(zip(given[number], made))
                if not close(got, a.double() @ w.double().t())
            )  # fmt: skip
        except BaseException as error:
            wrong.append(error)

    started = [threading.Thread(target=work, args=(number,)) for number in range(len(given))]
    for one in started:
        one.start()
    for one in started:
        one.join()
    assert not wrong, wrong


def gradients():
    """Of a layer, against float64's by norm."""
    import torch

    made = [normal(128, 128), normal(256, 128) / 11, normal(256)]
    ours = [x.clone().requires_grad_() for x in made]
    exact = [x.double().requires_grad_() for x in made]
    for _ in range(2):
        for x in (*ours, *exact):
            x.grad = None
        a, w, bias = ours
        weight = torch.randn(128, 256, device="cuda")
        (tensorladder.matmul(a, w.t(), bias=bias).float() * weight).sum().backward()
        a, w, bias = exact
        ((a @ w.t() + bias) * weight.double()).sum().backward()
        for mine, right in zip(ours, exact):
            assert (mine.grad.double() - right.grad).norm() <= 0.01 * right.grad.norm()


def compiled():
    """One graph, by inductor; then in a CUDA graph as well."""
    import torch

    a, w, bias = normal(128, 128), normal(256, 128) / 11, normal(256)

    def layer(a, w, bias):
        return tensorladder.matmul(a, w.t(), bias=bias, activation="gelu") * 2

    exact = 2 * torch.nn.functional.gelu(a.double() @ w.double().t() + bias.double())
    for mode in ("default", "reduce-overhead"):
        made = torch.compile(layer, fullgraph=True, mode=mode)
        for _ in range(3):
            with torch.no_grad():
                assert close(made(a, w, bias).clone(), exact, 2.0**-6), mode


CHECKS = (
    cold_and_warm_calls, other_streams, no_call_waits, graphs, factors_that_are_not_kept, threads, gradients, compiled,
)  # fmt: skip


def main(checks=CHECKS) -> int:
    """Run all; a line each."""
    import torch

    failed = 0
    for check in checks:
        torch.manual_seed(0)
        start = time.perf_counter()
        try:
            check()
            print(f"ok    {check.__name__} ({time.perf_counter() - start:.1f} s)", flush=True)
        except Exception:
            failed += 1
            print(f"WRONG {check.__name__}", flush=True)
            traceback.print_exc()
    print(f"{failed} of {len(checks)} wrong")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
