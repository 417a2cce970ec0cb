"""Several host threads on one device: launches, copies, events and allocations at a time, under the checker."""

from __future__ import annotations

import sys
import textwrap
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

pytest.importorskip("llvmlite")

from tensorladder.core.errors import KernelError
from tensorladder.measure.scripts import run_script
from tensorladder.vgpu import Device
from tensorladder.vgpu.check import Checker
from tests.frontends.test_streams_script import BINDINGS
from tests.vgpu.test_streams import PTX, N, launch

THREADS, ROUNDS = 4, 6


@pytest.fixture
def restless() -> Iterator[None]:
    """Python goes from thread to thread as often as it can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def in_threads(work: Callable[[int], None]) -> list[BaseException]:
    """Do it in several threads at a time; what they raised."""
    raised: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as failure:
            raised.append(failure)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


def test_threads_with_streams_of_their_own(restless: None) -> None:
    checker = Checker()
    device = Device("sm_90a", checker=checker, workers=1)

    def work(number: int) -> None:
        for _ in range(ROUNDS):
            a, b = (device.memory.empty(f"{number}", N, np.uint32) for _ in range(2))
            a[:] = number
            one, two = device.stream(), device.stream()
            one.enqueue(launch(b, a))
            two.wait(one.record())
            two.enqueue(launch(b, b))
            two.synchronize()
            assert (b == number + 2).all()

    assert in_threads(work) == []
    assert checker.report("threads").findings == ()
    assert not device.order._later


def test_threads_that_share_streams(restless: None) -> None:
    """Launches of a stream come one after the other, whoever enqueued them; two streams race as in one thread."""
    checker = Checker()
    device = Device("sm_90a", checker=checker, workers=1)
    a, b, c = (device.memory.empty(name, N, np.uint32) for name in "abc")
    for array in (a, b, c):
        array[:] = 0
    shared, other = device.stream(), device.stream()

    def work(number: int) -> None:
        for _ in range(ROUNDS):
            shared.enqueue(launch(a, a))
            if number % 2:
                shared.synchronize()

    assert in_threads(work) == []
    shared.synchronize()
    assert (a == THREADS * ROUNDS).all()
    assert checker.report("threads").findings == ()
    shared.enqueue(launch(b, a))
    assert in_threads(lambda number: (other if number else shared).enqueue(launch(c, b))) == []
    in_threads(lambda number: (other if number else shared).synchronize())
    assert {f.kind for f in checker.report("threads").findings} == {"race"}


SCRIPT = BINDINGS + f"""
import threading

def work(number):
    mine, event = ok(driver.cuStreamCreate(1)), ok(driver.cuEventCreate(0))
    expected = np.arange(64, dtype=np.uint32) * 2
    for turn in range({ROUNDS}):
        x, y = (ok(driver.cuMemAlloc(host.nbytes)) for _ in range(2))
        ok(driver.cuMemcpyHtoD(x, host, host.nbytes))
        if turn % 2:  # the default stream, which all threads share
            launch(0, y, x)
            ok(driver.cuEventRecord(event, 0))
            ok(driver.cuStreamWaitEvent(mine, event, 0))
        else:
            launch(mine, y, x)
        out = np.zeros_like(host)
        ok(driver.cuMemcpyDtoHAsync(out, y, out.nbytes, mine))
        assert (out == expected).all(), out
        ok(driver.cuMemFree(x)), ok(driver.cuMemFree(y))
    done.append(number)

done = []
threads = [threading.Thread(target=work, args=(number,)) for number in range({THREADS})]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert len(done) == {THREADS}
"""


def run(tmp_path, text: str, checker: Checker | None = None) -> int:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(text))
    return run_script(script, checker=checker)


def test_a_script_with_threads(tmp_path, restless: None) -> None:
    pytest.importorskip("cuda.bindings")
    checker = Checker()
    assert run(tmp_path, SCRIPT, checker) == 0
    assert checker.report("script").findings == ()


def test_torch_in_threads(tmp_path) -> None:
    """Torch's modes are a thread's own, and so is its current stream."""
    pytest.importorskip("torch")
    checker = Checker()
    text = """
        import time, torch
        from concurrent.futures import ThreadPoolExecutor

        shared = torch.cuda.Stream()

        def work(number):
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                x = torch.full((64,), float(number), device="cuda") * 2
            assert torch.cuda.current_stream().cuda_stream == 0
            with stream, shared:  # entered by several at a time
                time.sleep(0.001 * number)
            assert torch.cuda.current_stream().cuda_stream == 0
            if number == RACY:
                x.add_(1)
            stream.synchronize()
            return x.sum().item()

        with ThreadPoolExecutor(3) as pool:
            assert list(pool.map(work, range(5))) == [128.0 * n + 64 * (n == RACY) for n in range(5)]
    """
    assert run(tmp_path, text.replace("RACY", "-1"), checker) == 0
    assert checker.report("script").findings == ()
    assert run(tmp_path, text.replace("RACY", "3"), checker) == 0
    (finding,) = checker.report("script").findings
    assert finding.kind == "race" and "aten.add_ on the default stream" in finding.message


def test_a_thread_that_ends_after_the_script_and_fails(tmp_path) -> None:
    pytest.importorskip("cuda.bindings")
    text = BINDINGS + f"""
import threading, time
add = ok(driver.cuModuleGetFunction(ok(driver.cuModuleLoadData({PTX!r}.encode())), b"add_one"))
def work():
    time.sleep(0.05)
    driver.cuLaunchKernel(add, 1, 1, 1, 256, 1, 1, 0, 0, ((a, a), (None, None)), 0)  # a has 64 words
threading.Thread(target=work).start()
"""
    with pytest.raises(KernelError, match="out of bounds"):
        run(tmp_path, text)
