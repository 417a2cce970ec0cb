"""Cluster launch control: CTAs that take the work of clusters that have not started (clusterlaunchcontrol)."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorladder.core.errors import KernelError
from tensorladder.core.program import Launch, Module
from tensorladder.vgpu import Device

POLICIES = ["eager", "lazy", "timed", *(f"random:{seed}" for seed in range(12))]
_TX = "mbarrier::complete_tx::bytes"

#: done[tile] += 1, owner[tile] = number of the CTA that began, for its own tile and for those it takes
KERNEL = """.version 8.7
.target sm_100a
.address_size 64
.visible .entry kernel(.param .u64 done, .param .u64 owner, .param .u64 extra)
{{
  .shared .align 16 .b8 response[32]; .shared .align 8 .b64 bar;
  .reg .b32 %x, %y, %z, %gx, %gy, %t, %rank, %me, %tile, %phase, %r, %b, %f<4>, %one, %old, %cx, %cy, %cz, %u<4>;
  .reg .b64 %done, %owner, %extra, %o, %a, %lo, %hi; .reg .b128 %resp; .reg .pred %p, %ok, %first, %ask;
  ld.param.u64 %done, [done]; ld.param.u64 %owner, [owner]; ld.param.u64 %extra, [extra];
  mov.u32 %x, %ctaid.x; mov.u32 %y, %ctaid.y; mov.u32 %z, %ctaid.z; mov.u32 %t, %tid.x; mov.u32 %rank, %cluster_ctarank;
  mov.u32 %gx, %nctaid.x; mov.u32 %gy, %nctaid.y; mov.u32 %cx, %cluster_ctaid.x; mov.u32 %cy, %cluster_ctaid.y;
  mov.u32 %cz, %cluster_ctaid.z;
  mad.lo.u32 %me, %z, %gy, %y; mad.lo.u32 %me, %me, %gx, %x; mov.u32 %one, 1; mov.u32 %phase, 0;
  mov.u32 %r, response; mov.u32 %b, bar; setp.eq.u32 %first, %t, 0;
  setp.eq.and.u32 %ask, %rank, 0, %first;
  @%first mbarrier.init.shared.b64 [%b], 1; @%first fence.mbarrier_init.release.cluster;
  barrier.cluster.arrive; barrier.cluster.wait;
NEXT:
  @%first mbarrier.arrive.expect_tx.shared.b64 _, [%b], 16;
  barrier.cluster.arrive; barrier.cluster.wait;
  @%ask clusterlaunchcontrol.try_cancel.async.shared::cta.{tx}{multicast}.b128 [%r], [%b];
  mad.lo.u32 %tile, %z, %gy, %y; mad.lo.u32 %tile, %tile, %gx, %x;
  mul.wide.u32 %o, %tile, 4; add.u64 %a, %done, %o; add.u64 %o, %owner, %o;
  @%first atom.global.add.u32 %old, [%a], %one; @%first st.global.u32 [%o], %me;
  {wait}
  ld.shared.v2.b64 {{%lo, %hi}}, [%r]; mov.b128 %resp, {{%lo, %hi}};
  clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %ok, %resp;
  clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {{%f0, %f1, %f2, _}}, %resp;
  clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %x, %resp;
  clusterlaunchcontrol.query_cancel.get_first_ctaid::y.b32.b128 %y, %resp;
  clusterlaunchcontrol.query_cancel.get_first_ctaid::z.b32.b128 %z, %resp;
  xor.b32 %u0, %x, %f0; xor.b32 %u1, %y, %f1; xor.b32 %u2, %z, %f2; or.b32 %u0, %u0, %u1; or.b32 %u0, %u0, %u2;
  setp.ne.u32 %p, %u0, 0; @%p trap;
  add.u32 %x, %x, %cx; add.u32 %y, %y, %cy; add.u32 %z, %z, %cz; xor.b32 %phase, %phase, 1;
  fence.proxy.async.shared::cta; bar.sync 0;
  @%ok bra NEXT;
  {after}
  barrier.cluster.arrive; barrier.cluster.wait;
  ret;
}}
"""
_WAIT = "WAIT: mbarrier.try_wait.parity.shared.b64 %p, [%b], %phase; @!%p bra WAIT;"


def text(cluster: int = 1, wait: str = _WAIT, after: str = "") -> str:
    multicast = ".multicast::cluster::all" if cluster > 1 else ""
    return KERNEL.format(tx=_TX, multicast=multicast, wait=wait, after=after)


def run(ptx, grid, cluster=(1, 1, 1), policy="eager", sm_count=2, smem=120 << 10, block=64):
    """(times each tile was done, number of the CTA that did it); the dynamic shared memory lets one CTA on an SM."""
    tiles = int(np.prod(grid))
    done, owner, extra = (np.full(tiles, fill, np.uint32) for fill in (0, 0xFFFFFFFF, 0))
    device = Device("sm_100a", policy, timeout=20, sm_count=sm_count)
    for name, array in (("done", done), ("owner", owner), ("extra", extra)):
        device.memory.attach(name, array)
    stream = device.stream()
    params = struct.pack("<QQQ", *(a.ctypes.data for a in (done, owner, extra)))
    stream.enqueue(Launch(Module(ptx, "sm_100a"), "kernel", grid, (block, 1, 1), params, smem, cluster))
    stream.synchronize()
    return done, owner


@pytest.mark.parametrize("policy", POLICIES)
def test_every_tile_is_done_once(policy: str) -> None:
    for grid, cluster, sms in (
        ((11, 1, 1), (1, 1, 1), 3),
        ((4, 3, 2), (1, 1, 1), 1),
        ((8, 2, 1), (2, 1, 1), 4),
        ((4, 4, 2), (2, 2, 1), 5),
        ((3, 1, 1), (1, 1, 1), 8),
    ):
        done, owner = run(text(int(np.prod(cluster))), grid, cluster, policy, sms)
        assert (done == 1).all(), (grid, cluster, done)
        assert (owner < len(done)).all()


@settings(max_examples=12)
@given(
    st.tuples(*(st.integers(1, 3) for _ in range(3))),
    st.sampled_from([(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2), (4, 1, 1)]),
    st.integers(4, 9),
    st.sampled_from(POLICIES),
)
def test_any_grid(clusters: tuple, cluster: tuple, sms: int, policy: str) -> None:
    grid = tuple(n * c for n, c in zip(clusters, cluster, strict=True))
    done, _ = run(text(int(np.prod(cluster))), grid, cluster, policy, sms)
    assert (done == 1).all()


def test_only_clusters_without_a_place_are_taken() -> None:
    _, owner = run(text(), (20, 1, 1), sm_count=3)
    assert set(owner) == {0, 1, 2}
    _, owner = run(text(2), (20, 1, 1), (2, 1, 1), sm_count=5)  # the fifth SM holds no pair
    assert set(owner) == {0, 1, 2, 3}
    assert (owner % 2 == np.arange(20) % 2).all()  # a CTA does the tile of its own rank
    _, owner = run(text(), (20, 1, 1), sm_count=20)
    assert (owner == np.arange(20)).all()  # nothing is left to take


def test_taking_competes_with_starting() -> None:
    """With room for all, some policy still starts a cluster later than another one asks for it."""
    owners = [run(text(), (12, 1, 1), sm_count=12, policy=f"random:{seed}")[1] for seed in range(12)]
    assert any((owner != np.arange(12)).any() for owner in owners)


def test_a_seed_decides_who_takes_what() -> None:
    for policy in POLICIES:
        first, again = (run(text(), (15, 1, 1), policy=policy, sm_count=4)[1] for _ in range(2))
        assert (first == again).all()


def test_reading_the_response_without_waiting_shows() -> None:
    hasty = text(wait="")
    wrong = []
    for policy in ("eager", "lazy", "timed", "random:1"):
        try:
            if not (run(hasty, (9, 1, 1), policy=policy)[0] == 1).all():
                wrong.append(policy)
        except KernelError:
            wrong.append(policy)
    assert "lazy" in wrong and "eager" not in wrong


def fails(ptx: str, words: str, grid=(4, 1, 1), cluster=(1, 1, 1)) -> None:
    with pytest.raises(KernelError, match=words):
        run(ptx, grid, cluster)


def test_errors() -> None:
    again = f"@%ask clusterlaunchcontrol.try_cancel.async.shared::cta.{_TX}.b128 [%r], [%b];"
    fails(text(after=again), "try_cancel after this CTA has seen one that failed; clusterlaunchcontrol")
    fails(text().replace(".b128 [%r], [%b]", ".b128 [%r+8], [%b]"), "misaligned: 16 bytes at shared address")
    fails(text().replace(".b128 [%r], [%b]", ".b128 [%r], [%b+8]"), r"before mbarrier\.init")
    fails(text().replace(".b128 [%r], [%b]", ".b128 [%r+0x800000], [%b]"), "out of bounds")
    away = "mapa.shared::cluster.u32 %r, %r, 1; "
    fails(
        text(2).replace("@%ask cluster", away + "@%ask cluster"),
        r"not in the shared memory of the CTA that asks",
        cluster=(2, 1, 1),
    )
    generic = text().replace("async.shared::cta", "async").replace("[%r], [%b]", "[%done], [%owner]")
    fails(generic, r"not in the shared memory of the CTA that asks")


def test_a_response_that_nobody_waits_for_hangs_with_what_is_owed() -> None:
    fails(text().replace("expect_tx.shared.b64 _, [%b], 16", "expect_tx.shared.b64 _, [%b], 32"), "hangs.* 16 bytes")


def test_generic_addresses() -> None:
    """Without a state space, both addresses are generic."""
    ptx = text().replace("async.shared::cta", "async").replace("[%r], [%b];\n  mad", "[%hi], [%lo];\n  mad")
    ptx = ptx.replace("@%ask cluster", "cvt.u64.u32 %lo, %b; cvta.shared.u64 %lo, %lo; cvt.u64.u32 %hi, %r; "
                      "cvta.shared.u64 %hi, %hi;\n  @%ask cluster")  # fmt: skip
    assert "[%hi], [%lo];" in ptx
    for policy in ("eager", "lazy", "random:4"):
        assert (run(ptx, (9, 1, 1), policy=policy)[0] == 1).all()
