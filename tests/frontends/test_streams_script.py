"""Scripts that use several streams, under the checker: what their events and waits order, and what they do not."""

from __future__ import annotations

import textwrap

import pytest

pytest.importorskip("llvmlite")

from tensorladder.measure.scripts import run_script
from tensorladder.vgpu.check import Checker

PTX = r'''.version 8.0
.target sm_90
.address_size 64
.visible .entry scale(.param .u64 to, .param .u64 from, .param .u32 factor) {
  .reg .b32 %r<4>;
  .reg .b64 %d<6>;
  ld.param.u64 %d0, [to];
  ld.param.u64 %d1, [from];
  ld.param.u32 %r2, [factor];
  mov.u32 %r0, %tid.x;
  mul.wide.u32 %d2, %r0, 4;
  add.s64 %d3, %d1, %d2;
  add.s64 %d4, %d0, %d2;
  ld.global.u32 %r1, [%d3];
  mul.lo.u32 %r1, %r1, %r2;
  st.global.u32 [%d4], %r1;
  ret;
}
'''
BINDINGS = f"""
import ctypes
import numpy as np
from cuda.bindings import driver, runtime

def ok(result):
    assert int(result[0]) == 0, result[0]
    return result[1] if len(result) == 2 else result[1:]

PTX = {PTX!r}
""" + """
scale = ok(driver.cuModuleGetFunction(ok(driver.cuModuleLoadData(PTX.encode())), b"scale"))
host = np.arange(64, dtype=np.uint32)
a, b, c = (ok(driver.cuMemAlloc(host.nbytes)) for _ in range(3))
ok(driver.cuMemcpyHtoD(a, host, host.nbytes))
one, two = ok(driver.cuStreamCreate(1)), ok(driver.cuStreamCreate(1))  # CU_STREAM_NON_BLOCKING
event = ok(driver.cuEventCreate(0))

def launch(stream, to, source, factor=2):
    arguments = (to, source, factor), (None, None, ctypes.c_uint32)
    ok(driver.cuLaunchKernel(scale, 1, 1, 1, 64, 1, 1, 0, stream, arguments, 0))

def wait(later, earlier):
    ok(driver.cuEventRecord(event, earlier))
    ok(driver.cuStreamWaitEvent(later, event, 0))

def read(stream=None):
    out = np.zeros_like(host)
    if stream is None:
        ok(driver.cuMemcpyDtoH(out, c, out.nbytes))
    else:
        ok(driver.cuMemcpyDtoHAsync(out, c, out.nbytes, stream))
    return out
"""
TORCH = """
import torch
x = torch.arange(64, device="cuda", dtype=torch.float32)
y = torch.zeros(64, device="cuda")
side = torch.cuda.Stream()
main = torch.cuda.current_stream()
"""
PINNED = TORCH + """
torch.cuda.synchronize()
h = torch.zeros(64, pin_memory=True)
assert h.is_pinned() and x.to("cpu", non_blocking=True).is_pinned()
"""
GRAPH = TORCH + """
torch.cuda.synchronize()
g = torch.cuda.CUDAGraph()
with torch.cuda.graph(g):
    here = torch.cuda.current_stream()
    x.mul_(2)
    side.wait_stream(here)
    with torch.cuda.stream(side):
        y.copy_(x)
    {}
g.replay()
torch.cuda.synchronize()
assert y.tolist() == [2.0 * k for k in range(64)]
"""
SOURCE = "extern \"C\" __global__ void twice(float *x) { x[threadIdx.x] *= 2; }"
CUPY = f"""
import cupy
twice = cupy.RawKernel({SOURCE!r}, "twice")
x = cupy.arange(64, dtype=cupy.float32)
cupy.cuda.Device().synchronize()
one, two = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
"""
CORE = f"""
import numpy as np
from cuda.core import Device, LaunchConfig, Program, launch
gpu = Device()
gpu.set_current()
twice = Program({SOURCE!r}, "c++").compile("cubin").get_kernel("twice")
one, two = gpu.create_stream(), gpu.create_stream()
x = gpu.allocate(256, stream=one)
x.fill(0, stream=one)
run = lambda stream: launch(stream, LaunchConfig(grid=1, block=64), twice, x)
"""
CORE_GRAPH = CORE + """
one.sync()
builder = one.create_graph_builder().begin_building()
run(builder)
left, right = builder.split(2)
y = gpu.allocate(256)
y.copy_from(x, stream=right)
BRANCH
builder.join(left, right)
run(builder)
graph = builder.end_building().complete()
graph.launch(one)
one.sync()
"""
CUTE = """
import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.runtime import from_dlpack

@cute.kernel
def twice_kernel(x: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    x[thread] = 2 * x[thread]

@cute.jit
def twice(x: cute.Tensor, stream: cuda.CUstream):
    twice_kernel(x).launch(grid=[1, 1, 1], block=[64, 1, 1], stream=stream)

x, side = torch.ones(64, device="cuda"), torch.cuda.Stream()
torch.cuda.synchronize()
handle, default = cuda.CUstream(side.cuda_stream), cuda.CUstream(0)
"""
FFI = CUTE + """
fake = cute.runtime.make_fake_compact_tensor(cutlass.Float32, (64,), assumed_align=16)
stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
compiled = cute.compile(twice, fake, stream, options="--enable-tvm-ffi")
with torch.cuda.stream(side): compiled(x)
"""
#: head, what a script does, a word of each finding
SCRIPTS = {
    "bindings: no order": (BINDINGS, "launch(one, b, a); launch(two, c, b)", ["kernel scale on stream 2"]),
    "bindings: event": (BINDINGS, "launch(one, b, a); wait(two, one); launch(two, c, b); read(two)", []),
    "bindings: event of before": (BINDINGS, "wait(two, one); launch(one, b, a); launch(two, c, b)", ["stream 1"]),
    "bindings: host": (BINDINGS, "launch(one, b, a); ok(driver.cuStreamSynchronize(one)); launch(two, c, b)", []),
    "bindings: query": (BINDINGS, "launch(one, b, a); ok(driver.cuStreamQuery(one)); launch(two, c, b)", []),
    "bindings: other stream synchronised": (
        BINDINGS, "launch(one, b, a); ok(driver.cuStreamSynchronize(two)); launch(two, c, b)", ["stream 1"],
    ),
    "bindings: copy back on the default stream": (BINDINGS, "launch(one, c, a); read()", ["cuMemcpyDtoH"]),
    "bindings: copy back on its stream": (BINDINGS, "launch(one, c, a); assert (read(one) == 2 * host).all()", []),
    "bindings: memset": (BINDINGS, "launch(one, b, a); ok(driver.cuMemsetD32Async(b, 7, 64, two))", ["cuMemsetD32"]),
    "bindings: blocking streams": (
        BINDINGS, """
            one, two = ok(driver.cuStreamCreate(0)), ok(driver.cuStreamCreate(0))
            launch(one, b, a); launch(0, c, b); launch(two, b, c)
        """, [],
    ),
    "bindings: one blocking stream, one not": (
        BINDINGS, "one = ok(driver.cuStreamCreate(0)); launch(one, b, a); launch(two, c, b)", ["stream 3"],
    ),
    "bindings: per-thread and legacy handles": (BINDINGS, "launch(2, b, a); launch(1, c, b)", []),
    "bindings: freed memory": (
        BINDINGS, """
            launch(one, b, a); ok(driver.cuMemFree(b))
            again = [ok(driver.cuMemAlloc(host.nbytes)) for _ in range(8)]
            for memory in again:
                launch(two, memory, a)
        """, [],
    ),
    "bindings: runtime": (
        BINDINGS, """
            s = ok(runtime.cudaStreamCreateWithFlags(runtime.cudaStreamNonBlocking))
            ok(runtime.cudaMemsetAsync(int(b), 1, 64, s)); ok(runtime.cudaDeviceSynchronize()); launch(two, c, b)
            ok(runtime.cudaMemcpyAsync(int(a), int(c), 16, runtime.cudaMemcpyKind.cudaMemcpyDeviceToDevice, s))
        """, ["cudaMemcpyAsync on stream 3"],
    ),
    "bindings: graph": (
        BINDINGS, """
            ok(driver.cuStreamBeginCapture(one, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
            launch(one, b, a); wait(two, one); launch(two, c, b); wait(one, two)
            graph = ok(driver.cuStreamEndCapture(one))
            assert ok(driver.cuGraphGetNodes(graph))[1] == 2  # events are none
            graph = ok(driver.cuGraphInstantiate(graph, 0))
            for _ in range(2):
                ok(driver.cuGraphLaunch(graph, one))
            assert (read(one) == 4 * host).all()
            launch(two, b, b)
        """, [],
    ),
    "bindings: graph and a stream beside it": (
        BINDINGS, """
            ok(driver.cuStreamBeginCapture(one, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
            launch(one, b, a)
            graph = ok(driver.cuGraphInstantiate(ok(driver.cuStreamEndCapture(one)), 0))
            ok(driver.cuGraphLaunch(graph, two)); launch(one, b, b)
        """, ["stream 2"],
    ),
    "torch: no order": (TORCH, "with torch.cuda.stream(side): x.add_(1)", ["aten.add_ on stream 1"]),
    "torch: wait_stream": (
        TORCH, """
            side.wait_stream(main)
            with torch.cuda.stream(side): x.add_(1)
            main.wait_stream(side)
            assert x.sum().item() == 2080
        """, [],
    ),
    "torch: event": (
        TORCH, """
            ready, done = torch.cuda.Event(), torch.cuda.Event()
            ready.record()
            with side:
                ready.wait()
                x.add_(1)
                done.record()
            main.wait_event(done)
            x.mul_(2)
            side.wait_event(main.record_event())
            with side: y.copy_(x)
        """, [],
    ),
    "torch: read back too early": (
        TORCH, "torch.cuda.synchronize()\nwith side: y.copy_(x)\ny.cpu()", ["aten.clone on the default stream"],
    ),
    "torch: a stream that the host has waited for": (
        TORCH, "torch.cuda.synchronize()\nwith side: y.copy_(x)\nside.synchronize()\nassert y.tolist()[1] == 1", [],
    ),
    "torch: a view is no access, other elements are no conflict": (
        TORCH, """
            torch.cuda.synchronize()
            with side: x[:32].add_(1)
            z = x.view(8, 8); z.t(), z[0], z.shape
            x[32:].add_(1)
            grid = torch.zeros(8, 8, device="cuda"); torch.cuda.synchronize()
            with side: grid[:, :3].fill_(1)
            grid[:, 3:].fill_(2)
        """, [],
    ),
    "torch: values of the host": (
        TORCH, """
            z = torch.tensor([1.0, 2.0], device="cuda")
            w = torch.ones(3).cuda()
            with side: z.add_(w[:2])
        """, [],
    ),
    "torch: a copy that nobody waits for": (
        TORCH, "w = torch.ones(3).cuda(non_blocking=True)\nwith side: w.add_(1)", ["aten.add_"],
    ),
    "torch: backward and memory that is used again": (
        TORCH, """
            w = torch.ones(64, device="cuda", requires_grad=True)
            side.wait_stream(main)
            with side:
                loss = (w * x).sum()
            loss.backward()
            with side: w.grad.zero_()
            torch.cuda.synchronize()
            for _ in range(20):
                with side: z = torch.ones(64, device="cuda")
                del z
                z = torch.ones(64, device="cuda")
        """, [],
    ),
    "cupy: no order": (CUPY, "with one: twice((1,), (64,), (x,))\nwith two: twice((1,), (64,), (x,))", ["twice"]),
    "cupy: event": (
        CUPY, """
            twice((1,), (64,), (x,), stream=one)
            two.wait_event(one.record())
            with two: y = x + 1
            assert y.get(stream=two)[3] == 7 and x.get(stream=two)[3] == 6
            with one: y[2:4]
        """, [],
    ),
    "cupy: read back too early": (CUPY, "with one: x.fill(1)\nx.get()", ["get on the default stream"]),
    "cupy: an event of the wrong stream": (
        CUPY, "with one: x += 1\nevent = two.record()\nevent.synchronize()\nwith two: x[1:3] = 0", ["setitem on"],
    ),
    "cuda.core: no order": (CORE, "run(one); run(two)", ["twice on stream 1"]),
    "cuda.core: waits": (CORE, "run(one); two.wait(one); run(two); one.wait(two.record()); run(one); one.sync()", []),
    "cuda.core: a graph with two branches": (CORE_GRAPH.replace("BRANCH", "y.fill(1, stream=right)"), "", []),
    "cuda.core: branches that collide": (CORE_GRAPH.replace("BRANCH", "run(left)"), "", ["kernel twice on stream 1"]),
    "cutlass: no order": (CUTE, "X = from_dlpack(x); twice(X, handle); twice(X, default)", ["twice"]),
    "cutlass: the current stream": (FFI, "compiled(x)", ["twice"]),
    "cutlass: waits for the current stream": (FFI, "torch.cuda.current_stream().wait_stream(side); compiled(x)", []),
    "torch: what is still on its way to the host": (
        TORCH, "h = x.to('cpu', non_blocking=True)\nassert h.sum() == 2016", ["aten.sum by the host reads 256 bytes"],
    ),
    "torch: what has come to the host": (
        TORCH, """
            h = x.to("cpu", non_blocking=True)
            h.cuda(non_blocking=True).add_(1)  # read by a copy that follows on the stream
            torch.cuda.current_stream().synchronize()
            assert h.numpy()[3] == 3 and h.tolist()[2] == 2
            for _ in range(5):
                h = x.to("cpu", non_blocking=True)
                del h
                h = torch.ones(64)
                h.sum()
        """, [],
    ),
    "torch: copies of what comes to the host, on its stream": (
        TORCH, """
            h = x.to("cpu", non_blocking=True)
            y.copy_(h, non_blocking=True)
            h.copy_(y, non_blocking=True)
        """, [],
    ),
    "torch: a copy of what comes to the host, on another stream": (
        TORCH, """
            y = torch.empty(64, device="cuda")
            torch.cuda.synchronize()
            h = x.to("cpu", non_blocking=True)
            with side: y.copy_(h, non_blocking=True)
        """, ["aten.copy_ on stream 1 reads 256 bytes"],
    ),
    "torch: an array too early": (
        TORCH, "h = x.to('cpu', non_blocking=True)\nh.numpy()", ["numpy by the host reads 256 bytes"],
    ),
    "torch: pinned memory that a copy still writes": (
        PINNED, "h.copy_(x, non_blocking=True)\nassert h[3] == 3", ["reads 4 bytes of pinned float32 tensor[3]"],
    ),
    "torch: pinned memory that a copy still writes, printed": (
        PINNED, "h[8:16].copy_(x[8:16], True)\nside.synchronize()\nprint(h)", ["32 bytes of pinned float32 tensor+32"],
    ),
    "torch: pinned memory that a copy still reads": (
        PINNED, "x.copy_(h, non_blocking=True)\nh[:2] = 5", ["by the host writes 8 bytes of pinned float32 tensor[0]"],
    ),
    "torch: pinned memory that a copy still reads, which made a tensor": (
        PINNED, "z = h.to('cuda', non_blocking=True)\nh.copy_(torch.ones(64))", ["a copy to the device on the default"],
    ),
    "torch: pinned memory after all": (
        PINNED, """
            for _ in range(2):
                h.copy_(x, non_blocking=True)
                main.synchronize()
                h += 1
                x.copy_(h, non_blocking=True)
                assert h[0] >= 1  # both read
                main.record_event().synchronize()
                h.fill_(2)
            h[:32].cuda(non_blocking=True)
            h[32:] = 1
            for _ in range(5):
                k = h.clone().pin_memory()
                k.cuda(non_blocking=True)
                del k
                k = torch.ones(64)
                k.fill_(3)
        """, [],
    ),
    "torch: copies that are over when they return": (
        PINNED, """
            pageable = torch.zeros(64)
            pageable.copy_(x, non_blocking=True)
            assert pageable[3] == 3
            x.copy_(pageable, non_blocking=True)
            pageable.fill_(1)
            h.copy_(x)
            x[:8] = h[8:16]
            h.fill_(4)
            h.view(8, 8)[:, :3].copy_(x.view(8, 8)[:, :3], non_blocking=True)  # by a buffer
            h.sum()
            z = h.to("cuda", torch.float16, non_blocking=True)  # the same
            h.fill_(5)
        """, [],
    ),
    "torch: freed while a stream uses it": (
        TORCH, """
            torch.cuda.synchronize()
            z = torch.ones(64, device="cuda")
            side.wait_stream(main)
            with side: y.add_(z)
            del z
            w = torch.ones(64, device="cuda")
        """, ["a float32 tensor of 256 bytes is freed, which aten.add_ on stream 1 reads: the default stream"],
    ),
    "torch: freed when all is done with it": (
        TORCH, """
            torch.cuda.synchronize()
            for way in range(4):
                z = torch.ones(64, device="cuda")
                side.wait_stream(main)
                with side: y.add_(z)
                if way == 0: z.record_stream(side)
                if way == 1: main.wait_stream(side)
                if way == 2: torch.cuda.synchronize()
                if way == 3: kept = z
                del z
                w = torch.ones(64, device="cuda")
        """, [],
    ),
    "cutlass: an event that a launch records": (
        CUTE, """
            @cute.jit
            def marked(x: cute.Tensor, stream: cuda.CUstream, event: cuda.CUevent):
                twice_kernel(x).launch(grid=[1, 1, 1], block=[64, 1, 1], stream=stream, launch_completion_event=event)

            done = torch.cuda.Event()
            done.record()
            X = from_dlpack(x)
            marked(X, handle, cuda.CUevent(done.cuda_event))
            torch.cuda.current_stream().wait_event(done)
            twice(X, default)
        """, [],
    ),
    "torch's events by their handles": (
        BINDINGS, """
            import torch
            done = torch.cuda.Event()
            launch(one, b, a)
            done.record(torch.cuda.ExternalStream(int(one)))
            ok(driver.cuStreamWaitEvent(two, driver.CUevent(done.cuda_event), 0))
            launch(two, c, b)
            assert int(driver.cuEventElapsedTime(event, event)[0]) == 400  # never recorded
        """, [],
    ),
    "graph: joined": (GRAPH.format("here.wait_stream(side)"), "y.add_(1)", []),
    "graph: what it makes and drops": (
        GRAPH.format("here.wait_stream(side); z = x.mul(2) + 1"), "x.add_(1); g.replay(); del z; w = x.mul(2) + 1", [],
    ),
    "graph: a branch writes what the other one reads": (
        GRAPH.format("x.add_(0); here.wait_stream(side)"), "", ["a branch of a graph on the default stream"],
    ),
    "graph: replays follow each other": (
        GRAPH.format("here.wait_stream(side)"), "x.zero_()\nfor _ in range(3): g.replay()", [],
    ),
    "graph: a stream beside the replay": (
        GRAPH.format("here.wait_stream(side)"), "g.replay()\nwith side: x.add_(1)", ["aten.add_ on stream 1"],
    ),
}  # fmt: skip


#: what scripts import, and what that needs
NEEDED = {"torch": "torch", "cutlass": "cutlass", "cupy": "cuda.bindings", "cuda": "cuda.bindings"}


def findings(tmp_path, head, body):
    script = tmp_path / "script.py"
    script.write_text(head + textwrap.dedent(body))
    checker = Checker()
    assert run_script(script, checker=checker) == 0
    return checker.report("script").findings


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_orders_the_work_of_streams(tmp_path, name) -> None:
    head, body, words = SCRIPTS[name]
    for word, needed in NEEDED.items():
        if f"import {word}" in head + body or f"from {word}" in head + body:
            pytest.importorskip(needed)
    found = findings(tmp_path, head, body)
    assert [f.kind for f in found] == ["race"] * len(words), "\n".join(map(str, found))
    for finding, word in zip(found, words, strict=True):
        assert word in finding.message and (finding.where.file or finding.where.ptx_line)
        freed = "is freed" in word
        assert str(finding.severity) == ("review" if freed else "error")
        fix = "record_stream" if freed else "synchronize" if "by the host" in finding.message else "wait for it before"
        assert fix in finding.fix


def test_torch_accesses_are_told_without_its_compiler() -> None:
    """Torch wraps such a class so that its first operation imports torch._dynamo, seconds that no script needs."""
    pytest.importorskip("torch")
    from tensorladder.vgpu.driver.torch_accesses import Accesses

    assert not hasattr(Accesses.__torch_dispatch__, "__wrapped__")
