"""Programmatic dependent launch: launches of one stream that overlap, and those that must not (griddepcontrol)."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from tensorladder.core.errors import KernelError
from tensorladder.core.program import Launch, Module
from tensorladder.vgpu import Device

BLOCK, CTAS = 32, 6
N = BLOCK * CTAS
POLICIES = ["eager", "lazy", "timed", *(f"random:{seed}" for seed in range(12))]
TRIGGER, WAIT = "griddepcontrol.launch_dependents;", "griddepcontrol.wait;"
DEPENDENT = {"programmatic_stream_serialization": True}

#: each thread reads an element of a neighbouring CTA of the launch before, takes its time, and writes its own
STAGE = """.visible .entry {name}(.param .u64 src, .param .u64 dst)
{{
  .reg .b32 %i, %j, %n, %t, %x, %k; .reg .b64 %src, %dst, %o; .reg .pred %p, %last;
  mov.u32 %i, %ctaid.x; mov.u32 %n, %ntid.x; mov.u32 %t, %tid.x; setp.eq.u32 %last, %i, 5; mad.lo.u32 %i, %i, %n, %t;
  ld.param.u64 %src, [src]; ld.param.u64 %dst, [dst];
  {first}
  add.u32 %j, %i, 37; rem.u32 %j, %j, 192;
  mul.wide.u32 %o, %j, 4; add.u64 %o, %src, %o; ld.global.u32 %x, [%o];
  mov.u32 %k, 0;
DELAY:
  add.u32 %k, %k, 1; setp.lt.u32 %p, %k, {delay}; @%p bra DELAY;
  mad.lo.u32 %x, %x, 3, 1;
  mul.wide.u32 %o, %i, 4; add.u64 %o, %dst, %o; st.global.u32 [%o], %x;
  {then}
  ret;
}}
"""
HEAD = ".version 8.3\n.target sm_90a\n.address_size 64\n"


def stage(name: str, first: str = TRIGGER + WAIT, then: str = "", delay: int = 200) -> str:
    return STAGE.format(name=name, first=first, then=then, delay=delay)


def step(x: np.ndarray) -> np.ndarray:
    return np.roll(x, -37) * np.uint32(3) + np.uint32(1)


def source() -> np.ndarray:
    return np.random.default_rng(3).integers(0, 1 << 32, N, np.uint32)


class Chain:
    """Kernels that run one after the other on buffers 0, 1, ...: kernel k reads `reads[k]` and writes buffer k + 1."""

    def __init__(self, texts: Sequence[str], reads: Sequence[int] = (), plain: Sequence[int] = ()):
        self.module = Module(HEAD + "".join(texts), "sm_90a")
        self.names = [t.split("entry ")[1].split("(")[0] for t in texts]
        self.reads = list(reads) or list(range(len(texts)))
        self.plain = {0, *plain}  # launches without the attribute

    def launches(self, addresses: Sequence[int]) -> list[Launch]:
        return [
            Launch(
                self.module,
                name,
                (CTAS, 1, 1),
                (BLOCK, 1, 1),
                struct.pack("<QQ", addresses[self.reads[k]], addresses[k + 1]),
                attributes={} if k in self.plain else DEPENDENT,
            )
            for k, name in enumerate(self.names)
        ]

    def run(self, policy: str = "eager", on: str = "vgpu", **options: object) -> list[np.ndarray]:
        """The buffers afterwards."""
        buffers = [source(), *(np.zeros(N, np.uint32) for _ in self.names)]
        if on == "gpu":
            self._silicon(buffers)
            return buffers
        device = Device("sm_90a", policy, timeout=20, **options)  # type: ignore[arg-type]
        for k, array in enumerate(buffers):
            device.memory.attach(f"buffer {k}", array)
        stream = device.stream()
        for launch in self.launches([a.ctypes.data for a in buffers]):
            stream.enqueue(launch)
        stream.synchronize()
        return buffers

    def _silicon(self, buffers: list[np.ndarray]) -> None:
        from tensorladder.silicon import driver
        from tests.vgpu import ptx_kernels

        ptx_kernels._context(driver)
        addresses = [ctypes.c_uint64() for _ in buffers]
        for address, array in zip(addresses, buffers, strict=True):
            size = ctypes.c_size_t(array.nbytes)
            driver.call("cuMemAlloc_v2", ctypes.byref(address), size)
            driver.call("cuMemcpyHtoD_v2", address, ctypes.c_void_p(array.ctypes.data), size)
        handle = ctypes.c_void_p()
        driver.call("cuStreamCreate", ctypes.byref(handle), 1)  # launches on the default stream would not overlap
        stream = driver.Stream(handle.value)
        for launch in self.launches([a.value for a in addresses]):
            stream.enqueue(launch)
        stream.prepare()
        stream.synchronize()
        driver.call("cuStreamDestroy_v2", handle)
        for address, array in zip(addresses, buffers, strict=True):
            driver.call("cuMemcpyDtoH_v2", ctypes.c_void_p(array.ctypes.data), address, ctypes.c_size_t(array.nbytes))
            driver.call("cuMemFree_v2", address)

    def is_right(self, buffers: list[np.ndarray]) -> bool:
        return all(np.array_equal(buffers[k + 1], step(buffers[r])) for k, r in enumerate(self.reads))

    def wrong_under(self, policies: Sequence[str] = POLICIES) -> list[str]:
        return [p for p in policies if not self.is_right(self.run(p))]


RIGHT = {
    "two": Chain([stage("a"), stage("b")]),
    "five": Chain([stage(f"k{n}", delay=50 + 300 * (n % 2)) for n in range(5)]),
    "wait before the trigger": Chain([stage(f"k{n}", first=WAIT + TRIGGER) for n in range(3)]),
    "trigger after the store": Chain([stage("a", first=WAIT, then=TRIGGER), stage("b", first=WAIT, then=TRIGGER)]),
    "no trigger, no wait": Chain([stage("a", first=""), stage("b", first="")]),
    "no attribute, no wait": Chain([stage("a"), stage("b", first=TRIGGER), stage("c", first="")], plain=(1, 2)),
    "a plain launch between": Chain([stage("a"), stage("b"), stage("c", first=TRIGGER), stage("d")], plain=(2,)),
    "one thread triggers": Chain([stage("a", first="setp.eq.u32 %p, %t, 7; @%p " + TRIGGER), stage("b")]),
    "a CTA never triggers": Chain([stage("a", first="@!%last " + TRIGGER), stage("b")]),
    "triggers twice": Chain([stage("a", first=2 * TRIGGER), stage("b", first=2 * WAIT)]),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_chains_have_the_same_bits_under_every_policy(name: str, on: str) -> None:
    chain = RIGHT[name]
    for policy in POLICIES if on == "vgpu" else ["eager"] * 20:
        assert chain.is_right(chain.run(policy, on)), policy


def test_a_missing_wait_shows() -> None:
    wrong = Chain([stage("a"), stage("b", first="")]).wrong_under()
    assert "lazy" in wrong and "eager" not in wrong and any(p.startswith("random") for p in wrong)


def test_waiting_after_the_read_shows() -> None:
    assert "lazy" in Chain([stage("a"), stage("b", first="", then=WAIT)]).wrong_under()


def test_what_a_launch_does_after_its_trigger_is_not_seen_without_a_wait() -> None:
    """All CTAs must have triggered or exited: the one that triggers late has stored by then, the others have not."""
    text = stage("a", first="@!%last " + TRIGGER, then="@%last " + TRIGGER)
    buffers = Chain([text, stage("b", first="")]).run("lazy")
    late = np.arange(N) // BLOCK == CTAS - 1
    seen = buffers[2] == step(buffers[1])
    assert seen[np.roll(late, -37)].all()


def test_a_wait_is_for_all_launches_before() -> None:
    """The third launch reads what the first wrote; the second one has not waited for the first."""
    slow = stage("a", delay=5000)
    assert not Chain([slow, stage("b", first=TRIGGER, delay=1), stage("c")], reads=(0, 0, 1)).wrong_under()
    wrong = Chain([slow, stage("b", first=TRIGGER, delay=1), stage("c", first="")], reads=(0, 0, 1)).wrong_under()
    assert wrong and "eager" not in wrong


def test_a_seed_decides_everything() -> None:
    racy = Chain([stage("a"), stage("b", first=""), stage("c", first="")])
    for policy in ("lazy", "timed", "random:1", "random:5"):
        first = racy.run(policy)
        for _ in range(2):
            assert all(np.array_equal(x, y) for x, y in zip(first, racy.run(policy, workers=3), strict=True)), policy


def test_a_long_stream_needs_the_memory_of_few_launches() -> None:
    chain = Chain([stage(f"k{n}", delay=3) for n in range(40)])
    assert not chain.wrong_under(["lazy", "random:3"])


def test_a_wait_in_a_launch_by_itself_returns_at_once() -> None:
    chain = Chain([stage("a")])
    assert not chain.wrong_under()


def test_a_dependent_finds_no_room_where_the_launch_before_fills_the_chip() -> None:
    """Six CTAs take the whole of one SM: the dependent launch starts where some of them have ended."""
    racy = Chain([stage("a"), stage("b", first="")])
    assert racy.wrong_under(["lazy"])
    buffers = [source(), *(np.zeros(N, np.uint32) for _ in range(2))]
    device = Device("sm_90a", "lazy", sm_count=1)
    for k, array in enumerate(buffers):
        device.memory.attach(f"buffer {k}", array)
    stream = device.stream()
    for launch in racy.launches([a.ctypes.data for a in buffers]):
        stream.enqueue(replace(launch, smem=36 << 10))  # 6 CTAs take the whole SM
    stream.synchronize()
    assert racy.is_right(buffers)


@pytest.mark.parametrize("policy", ["lazy", "timed", "random:2"])
def test_a_hang_says_who_waits_for_whom(policy: str) -> None:
    stuck = stage("a", then="SPIN: ld.volatile.global.u32 %k, [%src]; setp.eq.u32 %p, %k, %x; @!%p bra SPIN;", delay=1)
    with pytest.raises(KernelError) as caught:
        Chain([stuck, stage("b")]).run(policy)
    text = str(caught.value)
    assert "kernel a hangs" in text and "spin" in text, text
    assert "kernel b: " in text and "wait for the launches before to end, griddepcontrol.wait" in text, text


@pytest.mark.parametrize("policy", ["eager", "lazy", "random:1"])
def test_an_error_names_the_launch_it_is_in(policy: str) -> None:
    beyond = stage("b", then="st.global.u32 [%o+4096], %x;")
    with pytest.raises(KernelError, match=r"out of bounds.*kernel b, CTA"):
        Chain([stage("a"), beyond, stage("c")]).run(policy)


def test_a_timeout_stops_all_of_them() -> None:
    clocked = stage("a", then="SPIN: mov.u32 %k, %clock; setp.eq.u32 %p, %k, 1; @!%p bra SPIN;")
    chain = Chain([clocked, stage("b")])
    buffers = [source(), *(np.zeros(N, np.uint32) for _ in range(2))]
    device = Device("sm_90a", "lazy", timeout=0.3)
    for k, array in enumerate(buffers):
        device.memory.attach(f"buffer {k}", array)
    stream = device.stream()
    for launch in chain.launches([a.ctypes.data for a in buffers]):
        stream.enqueue(launch)
    with pytest.raises(KernelError, match=r"kernel a (stopped after the time-out|hangs)"):
        stream.synchronize()
