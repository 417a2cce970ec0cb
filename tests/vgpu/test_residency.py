"""Which CTAs are resident together: on how many SMs, sharing what."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from tensorladder.core.errors import KernelError, UsageError
from tensorladder.core.program import Launch, Module
from tensorladder.vgpu import Device, launch
from tests.vgpu.test_tmem import alloc, dealloc, kernel

POLICIES = ["eager", "lazy", "timed", *(f"random:{seed}" for seed in range(8))]
U32 = np.uint32

#: counts in at the counter and waits for `all` others: a barrier of the grid; %smid of each CTA
_MEET = """.version 8.0
.target sm_90a
.address_size 64
.visible .entry kernel(.param .u64 counter, .param .u64 sm, .param .u32 all)
{
  .reg .b32 %x, %n, %v, %w; .reg .b64 %counter, %sm, %o; .reg .pred %p;
  ld.param.u64 %counter, [counter]; ld.param.u64 %sm, [sm]; ld.param.u32 %n, [all]; mov.u32 %x, %ctaid.x;
  mov.u32 %w, %smid; mul.wide.u32 %o, %x, 4; add.u64 %o, %sm, %o; st.global.u32 [%o], %w;
  atom.global.add.u32 %v, [%counter], 1;
WAIT:
  ld.acquire.gpu.global.u32 %v, [%counter]; setp.lt.u32 %p, %v, %n; @%p bra WAIT;
  ret;
}
"""


def meet(ctas: int, want: int, policy: str = "eager", smem: int = 0, cluster: int = 1, **options) -> np.ndarray:
    """%smid of each CTA; the grid waits until `want` of its CTAs are there."""
    counter, sm = np.zeros(1, U32), np.zeros(ctas, U32)
    device = Device("sm_90a", policy, timeout=20, **options)
    launch(_MEET, "kernel", ctas, 1, [counter, sm, want], smem=smem, cluster=cluster, device=device)
    return sm


@pytest.mark.parametrize("policy", POLICIES)
def test_as_many_ctas_are_resident_as_fit(policy: str) -> None:
    """An SM holds 32 small CTAs, or two of 100 KB; those that fit meet, and one more never comes."""
    assert (np.bincount(meet(64, 64, policy, sm_count=2)) == 32).all()
    assert (np.bincount(meet(6, 6, policy, 100 << 10, sm_count=3)) == 2).all()
    with pytest.raises(KernelError, match=r"hangs.*nothing changes"):
        meet(7, 7, policy, 100 << 10, sm_count=3)


def test_the_first_ctas_are_spread_over_the_sms() -> None:
    assert np.array_equal(meet(6, 6, sm_count=3), [0, 1, 2, 0, 1, 2])
    assert np.array_equal(meet(8, 8, sm_count=5, cluster=2), [0, 1, 2, 3, 0, 1, 2, 3])
    assert len(set(meet(132, 132))) == 132


def test_clusters_take_an_sm_a_cta() -> None:
    meet(8, 8, smem=200 << 10, sm_count=9, cluster=4)
    with pytest.raises(KernelError, match="hangs"):
        meet(12, 12, smem=200 << 10, sm_count=9, cluster=4)  # a ninth SM holds no part of a third cluster
    with pytest.raises(UsageError, match="a cluster of 4 CTAs does not fit on 3 SMs"):
        meet(4, 4, sm_count=3, cluster=4)


def test_a_sixteen_cta_cluster_is_resident_as_a_whole() -> None:
    assert len(set(meet(16, 16, "random:3", cluster=16))) == 16


def cooperative(ctas: int, **options) -> None:
    counter, sm = np.zeros(1, U32), np.zeros(ctas, U32)
    device = Device("sm_90a", timeout=20, **options)
    device.memory.attach("counter", counter)
    device.memory.attach("sm", sm)
    params = struct.pack("<QQI", counter.ctypes.data, sm.ctypes.data, ctas)
    stream = device.stream()
    module = Module(_MEET, "sm_90a")
    attributes = {"cooperative": True}
    stream.enqueue(Launch(module, "kernel", (ctas, 1, 1), (1, 1, 1), params, 100 << 10, attributes=attributes))
    stream.synchronize()


def test_a_cooperative_launch_fits_or_is_refused() -> None:
    cooperative(8, sm_count=4)
    with pytest.raises(KernelError, match=r"cooperative launch of 9 CTAs, and sm_90a holds 8 at once \(2 per SM"):
        cooperative(9, sm_count=4)


@pytest.mark.parametrize("count", [0, -1, 1.5, "4"])
def test_a_senseless_number_of_sms(count: object) -> None:
    with pytest.raises(UsageError, match="sm_count="):
        Device(sm_count=count)  # type: ignore[arg-type]


# ---------------------------------------------------------------- tensor memory
_NAP = "\n  nanosleep.u32 20000;"
_GIVE = "\n  @!%q0 tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;"
_DONE = "\n  mov.u32 %t3, %ctaid.x; mul.wide.u32 %a0, %t3, 4; add.u64 %a0, %p0, %a0; st.global.u32 [%a0], 1;"


def tensor(body: str, ctas: int, policy: str, **options) -> np.ndarray:
    done = np.zeros(ctas, U32)
    device = Device("sm_100a", policy, timeout=20, **options)
    launch(kernel(body, params=1), "kernel", ctas, 128, [done], device=device)
    return done


@pytest.mark.parametrize("policy", POLICIES)
def test_ctas_of_an_sm_wait_for_each_others_columns(policy: str) -> None:
    """Each CTA takes all columns for a while: the others of its SM wait, however many there are."""
    body = alloc(512) + _GIVE + _NAP + _DONE + dealloc(512)
    for ctas, sms in ((5, 1), (9, 2), (3, 4)):
        assert (tensor(body, ctas, policy, sm_count=sms) == 1).all()


def test_two_steps_of_allocation_can_hang_where_ctas_share_an_sm() -> None:
    """Each CTA holds half and asks for the other half: it works alone on its SM, and hangs in company."""
    body = alloc(256) + _NAP + alloc(256, at=4, into="%t1") + _DONE
    body += dealloc(256) + dealloc(256, name="%t1", label="B")
    for policy in POLICIES:
        assert (tensor(body, 2, policy, sm_count=2) == 1).all()
        assert (tensor(body, 2, policy, sm_count=1) == 1).all()  # the permit to allocate stays with the first CTA
    between = alloc(256) + _GIVE + _NAP + _DONE + dealloc(256)
    assert (tensor(between, 4, "eager", sm_count=1) == 1).all()


@pytest.mark.parametrize("policy", ["eager", "lazy", "random:1"])
def test_columns_that_are_not_given_back_keep_the_next_cta_waiting(policy: str) -> None:
    """Whichever CTA holds all columns waits for the other, which waits for columns."""
    flag = _DONE + """
  mov.u32 %t3, %ctaid.x; xor.b32 %t3, %t3, 1; mul.wide.u32 %a0, %t3, 4; add.u64 %a0, %p0, %a0;
WAIT:
  ld.acquire.gpu.global.u32 %t4, [%a0]; setp.eq.u32 %q1, %t4, 0; @%q1 bra WAIT;"""
    body = alloc(512) + _GIVE + flag + dealloc(512)
    assert (tensor(body, 2, policy, sm_count=2) == 1).all()
    with pytest.raises(KernelError, match=r"hangs.*wait for 512 columns of tensor memory"):
        tensor(body, 2, policy, sm_count=1)
