"""Launches of several streams under the checker: what events, waits and the host order, and what nothing does."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

pytest.importorskip("llvmlite")

from tensorladder.core.errors import KernelError
from tensorladder.core.findings import Verdict
from tensorladder.core.program import Launch, Module
from tensorladder.vgpu import Device
from tensorladder.vgpu.check import Checker
from tensorladder.vgpu.check.footprints import KINDS, READ, STRONG_WRITE, WRITE, Accessed, laid_over, runs_of, without
from tensorladder.vgpu.check.streams import HOST, LEGACY, Freed, Order

N = 256
PTX = """.version 8.0
.target sm_90a
.address_size 64
.visible .entry add_one(.param .u64 to, .param .u64 from) {
  .reg .b32 %r<4>;
  .reg .b64 %d<6>;
  ld.param.u64 %d0, [to];
  ld.param.u64 %d1, [from];
  mov.u32 %r0, %tid.x;
  mul.wide.u32 %d2, %r0, 4;
  add.s64 %d3, %d1, %d2;
  add.s64 %d4, %d0, %d2;
  ld.global.u32 %r1, [%d3];
  add.u32 %r1, %r1, 1;
  st.global.u32 [%d4], %r1;
  ret;
}
.visible .entry count(.param .u64 to, .param .u64 from) {
  .reg .b64 %d<2>;
  ld.param.u64 %d0, [to];
  red.relaxed.gpu.global.add.u32 [%d0], 1;
  ret;
}
"""
MODULE = Module(PTX, "sm_90a")


def launch(to, source, kernel: str = "add_one", threads: int = N) -> Launch:
    params = np.array([to.ctypes.data, source.ctypes.data], np.uint64).tobytes()
    return Launch(MODULE, kernel, (1, 1, 1), (threads, 1, 1), params)


class Machine:
    """A device with a checker, two arrays and launches from one to another."""

    def __init__(self) -> None:
        self.checker = Checker()
        self.device = Device("sm_90a", checker=self.checker, workers=2)
        memory = self.device.memory
        self.a, self.b, self.c = (memory.empty(name, N, np.uint32) for name in ("a", "b", "c"))
        for array in (self.a, self.b, self.c):
            array[:] = 0

    launch = staticmethod(launch)

    def findings(self):
        return self.checker.report("streams").findings


@pytest.mark.parametrize("order", ["none", "event", "synchronize", "one stream", "event too early"])
def test_a_stream_that_reads_what_another_one_writes(order) -> None:
    machine = Machine()
    one, two = machine.device.stream(), machine.device.stream()
    if order == "one stream":
        two = one
    early = one.record()
    one.enqueue(machine.launch(machine.b, machine.a))
    if order == "event":
        two.wait(one.record())
    elif order == "event too early":
        two.wait(early)
    elif order == "synchronize":
        one.synchronize()
    two.enqueue(machine.launch(machine.c, machine.b))
    for stream in (one, two) if order != "none" else (two, one):  # whichever runs first
        stream.synchronize()
    found = machine.findings()
    if order in ("none", "event too early"):
        (finding,) = found
        assert finding.kind == "race" and finding.severity is Verdict.ERROR
        assert "kernel add_one on stream 1" in finding.message and "kernel add_one on stream 2" in finding.message
        assert "1024 bytes of b[0]" in finding.message and "test_streams.py" in finding.message
        assert {finding.where.what, finding.other.what} == {"st.global.u32", "ld.global.u32"}
        assert "wait_stream" in finding.fix
    else:
        assert found == ()
        assert machine.c[0] == 2


@pytest.mark.parametrize("kernels, racy", [(("count", "count"), False), (("count", "add_one"), True)])
def test_atomics_of_two_streams_do_not_collide_with_each_other(kernels, racy) -> None:
    machine = Machine()
    streams = [machine.device.stream() for _ in kernels]
    for stream, kernel in zip(streams, kernels, strict=True):
        stream.enqueue(machine.launch(machine.b, machine.a, kernel))
    for stream in streams:
        stream.synchronize()
    assert bool(machine.findings()) is racy


def test_reading_the_same_and_writing_neighbouring_bytes_is_no_race() -> None:
    machine = Machine()
    one, two = machine.device.stream(), machine.device.stream()
    one.enqueue(machine.launch(machine.b[:13], machine.a, threads=13))  # a 16-byte piece in common
    two.enqueue(machine.launch(machine.b[13:], machine.a, threads=13))
    one.synchronize()
    two.synchronize()
    assert machine.findings() == ()
    one.enqueue(machine.launch(machine.b[:14], machine.a, threads=14))
    two.enqueue(machine.launch(machine.b[13:], machine.a, threads=13))
    two.synchronize()
    one.synchronize()
    (finding,) = machine.findings()
    assert "writes 4 bytes of b[13] that" in finding.message


def test_a_wait_for_one_of_two_streams_orders_that_one_alone() -> None:
    machine = Machine()
    one, two, three = (machine.device.stream() for _ in range(3))
    one.enqueue(machine.launch(machine.a, machine.c))
    two.enqueue(machine.launch(machine.b, machine.c))
    three.wait(one.record())
    three.enqueue(machine.launch(machine.c, machine.a))
    for stream in (three, two, one):
        stream.synchronize()
    (finding,) = machine.findings()  # c, which two still reads
    assert "stream 3" in finding.message and "writes 1024 bytes of c[0]" in finding.message
    assert "stream 2" in finding.message and "let stream 3 wait" in finding.fix  # though stream 3's ran first


def test_a_launch_that_fails_is_over() -> None:
    machine = Machine()
    stream = machine.device.stream()
    stream.enqueue(machine.launch(machine.b, machine.a, threads=N + 1))
    with pytest.raises(KernelError):
        stream.synchronize()
    other = machine.device.stream()
    other.enqueue(machine.launch(machine.b, machine.a))
    other.synchronize()
    assert machine.findings() == () and not machine.device.order._later


def test_accesses_that_everything_comes_after_are_not_kept() -> None:
    machine = Machine()
    one, two = machine.device.stream(), machine.device.stream()
    for _ in range(3):
        one.enqueue(machine.launch(machine.b, machine.a))
        two.enqueue(machine.launch(machine.c, machine.a))
        one.synchronize()
        two.synchronize()
    order = machine.device.order
    assert not order._kept and not order._later and not order._running


def test_without_a_checker_streams_run_in_order() -> None:
    device = Device("sm_90a")
    stream = device.stream()
    event = stream.record()
    other = device.stream()
    other.wait(event)
    event.synchronize()
    assert device.order is None


# ---------------------------------------------------------------- the order alone
def accesses(start: int, end: int, kind=WRITE):
    return {kind: runs_of(np.array([start]), np.array([end]))}


def ordered(*steps) -> bool:
    """Whether the last of some accesses of the same bytes comes after all others. Steps: a stream that writes, or a
    function of the order."""
    found: list = []
    order = Order(found.append)
    for handle, blocking in ((3, True), (4, True), (5, False)):
        order.create(handle, blocking)
    for step in steps:
        if isinstance(step, int):
            order.accessed(order.begin(step, "a copy"), accesses(0, 4))
        else:
            step(order)
    return not found


def test_the_legacy_default_stream_waits_for_blocking_streams_and_they_for_it() -> None:
    assert ordered(3, LEGACY) and ordered(LEGACY, 3) and ordered(3, LEGACY, 4)
    assert not ordered(3, 4)
    assert not ordered(5, LEGACY) and not ordered(LEGACY, 5)
    assert ordered(2, LEGACY)  # the per-thread default stream is a blocking one
    assert not ordered(3, 2)


def test_the_host_waits_for_what_it_synchronises_with() -> None:
    assert ordered(3, lambda o: o.synchronize(), HOST)
    assert ordered(3, lambda o: o.synchronize(o.record(3)), 5)
    assert not ordered(3, HOST)
    assert not ordered(3, 5, lambda o: o.synchronize(o.record(4)))
    assert ordered(HOST, 5)
    assert not ordered(5, lambda o: o.synchronize(o.record(3)), HOST)


def test_memory_that_was_freed_is_forgotten() -> None:
    assert ordered(3, lambda o: o.forget(Freed(0, 8)), 5)
    assert not ordered(3, lambda o: o.forget(Freed(4, 8)), 5)
    assert ordered(3, lambda o: (o.forget(Freed(16, 32)), o.forget(Freed(0, 2)), o.forget(Freed(2, 4))), 5)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_found_is_what_no_path_of_edges_orders(seed) -> None:
    """Random programs of four streams: pairs that collide, against a search through the graph of operations."""
    rng = random.Random(seed)
    found: list = []
    order = Order(found.append)
    streams = [3, 4, 5, LEGACY]
    for handle in (3, 4, 5):
        order.create(handle, blocking=handle == 3)
    edges: dict[int, set[int]] = {}  # operation -> those that come right before it
    latest: dict[int, set[int]] = {handle: set() for handle in streams}
    host: set[int] = set()
    events = []
    touched: list[tuple[int, range, bool]] = []
    racy = set()

    def before(node: int) -> set[int]:
        seen, todo = set(), [node]
        while todo:
            for one in edges[todo.pop()]:
                if one not in seen:
                    seen.add(one)
                    todo.append(one)
        return seen

    def waits(stream: int) -> set[int]:
        joined = latest[stream] | host
        if stream == LEGACY:
            joined |= latest[3]
        return joined | (latest[LEGACY] if stream == 3 else set())

    for node in itertools.count():
        if node == 60:
            break
        stream, what = rng.choice(streams), rng.random()
        if what < 0.55:
            start = rng.randrange(40)
            span, writes = range(start, start + rng.randrange(1, 12)), rng.random() < 0.5
            edges[node] = waits(stream)
            latest[stream] = {node}
            was = len(found)
            order.accessed(order.begin(stream, f"{node}"), accesses(span.start, span.stop, WRITE if writes else READ))
            past = before(node)
            racy = [
                other for other, theirs, wrote in touched
                if other not in past and (writes or wrote) and set(span) & set(theirs)
            ]  # fmt: skip
            assert (len(found) > was) == bool(racy)
            touched.append((node, span, writes))
        elif what < 0.7:
            latest[stream] = waits(stream)
            events.append((order.record(stream), set(latest[stream])))
        elif what < 0.85 and events:
            clock, nodes = rng.choice(events)
            latest[stream] = waits(stream) | nodes
            order.wait(stream, clock)
        elif what < 0.9 and events:
            clock, nodes = rng.choice(events)
            host |= nodes
            order.synchronize(clock)


# ---------------------------------------------------------------- runs of bytes
@pytest.mark.parametrize("seed", range(20))
def test_runs_are_sets_of_bytes(seed) -> None:
    rng = np.random.default_rng(seed)

    def random_runs():
        places = np.unique(rng.integers(0, 60, 2 * rng.integers(1, 8)))
        places = places[: len(places) // 2 * 2].reshape(-1, 2)
        return runs_of(places[:, 0], places[:, 1])

    def as_set(runs):
        return {int(b) for start, end in runs[:, :2] for b in range(start, end)}

    a, b = random_runs(), random_runs()
    assert as_set(without(a, b)) == as_set(a) - as_set(b)
    both = laid_over(a, b)
    assert as_set(both) == as_set(a) | as_set(b)
    assert (both[1:, 0] >= both[:-1, 1]).all()


def test_a_strong_write_does_not_stand_for_a_weak_one() -> None:
    kept = Accessed()
    kept.add(accesses(0, 16, WRITE))
    kept.add(accesses(0, 16, STRONG_WRITE))
    assert [len(kept.runs[kind]) for kind in KINDS] == [1, 1, 0, 0]
    kept.add(accesses(4, 8, WRITE))
    assert kept.runs[STRONG_WRITE][:, :2].tolist() == [[0, 4], [8, 16]]
