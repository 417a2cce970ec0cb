"""What the hazard checker leaves for review, and what it takes for right, since published kernels do it."""

from __future__ import annotations

import pytest

pytest.importorskip("llvmlite")

from tests.vgpu.test_check import (
    COPIED,
    COPY,
    FENCE,
    FILL,
    INIT,
    MINE,
    OTHERS,
    OUT,
    READ,
    STORE,
    SYNC,
    check,
    errors,
    init,
    wait,
)
from tests.vgpu.test_check_order import IN_SHARED, PUBLISH, check_map

ONE = "and.b32 %r6, %r0, 31; setp.eq.u32 %p0, %r6, 0;"  # %p0: a lane of each warp
#: a lane of each warp stores the buffer to out, from a source and to a place of its own or not
TWICE = (
    MINE + FENCE + SYNC + "and.b32 %r6, %r0, 32; cvt.u64.u32 %rd5, %r6; mul.lo.u64 %rd5, %rd5, {apart}; {again}" + ONE
    + """add.u64 %rd2, %rd0, 1024; add.u64 %rd2, %rd2, %rd5; mul.lo.u32 %r7, %r6, {source}; shr.u32 %r8, %r0, 5;
    mul.lo.u32 %r8, %r8, {source}; add.u32 %r7, %r2, %r8; @%p0 cp.async.bulk.global.shared::cta.bulk_group [%rd2],
    [%r7], 128; @%p0 cp.async.bulk.commit_group;""" + READ
)  # fmt: skip
#: the same instruction again, after the buffer has been written anew
LOOP = (
    MINE + FENCE + SYNC + "mov.u32 %r9, 0; add.u64 %rd2, %rd0, 1024; AGAIN: shr.u32 %r8, %r0, 5; setp.eq.u32 %p3, %r8, "
    "%r9;" + ONE + """and.pred %p0, %p0, %p3; @%p0 cp.async.bulk.global.shared::cta.bulk_group [%rd2], [%r2], 256;
    @%p0 cp.async.bulk.commit_group;""" + READ + SYNC + MINE + FENCE + SYNC
    + "add.u32 %r9, %r9, 1; setp.lt.u32 %p4, %r9, 2; @%p4 bra AGAIN;"
)  # fmt: skip


def test_the_exit_while_a_store_reads_is_for_review() -> None:
    """The ISA does not say how long shared memory lasts; CUTLASS's fmha and the tutorials of TMA end so."""
    for policy in ("eager", "lazy", "random:5"):
        report = check(MINE + FENCE + SYNC + STORE, policy=policy)
        assert [f.kind for f in report.findings] == ["missing-wait"] and not errors(report), policy
    assert "does not say" in report.findings[0].message


def test_what_cp_async_wrote_with_no_proxy_fence_is_for_review() -> None:
    """As CUTLASS's WGMMA kernels of cp.async have it; what threads wrote stays an error."""
    for policy in ("eager", "lazy"):
        report = check(COPY + COPIED + SYNC + STORE + READ, policy=policy)
        assert [f.kind for f in report.findings] == ["missing-proxy-fence"] and not errors(report), policy
    assert errors(check(COPY + COPIED + MINE + SYNC + STORE + READ)) == {"missing-proxy-fence"}
    assert not check(COPY + COPIED + FENCE + SYNC + STORE + READ).findings


def test_the_same_store_by_two_warps_is_for_review() -> None:
    """As plain stores of one value: the same instruction, shared bytes and destination."""
    body = TWICE.format(apart=0, source=0, again="")
    for policy in ("eager", "lazy", "random:5"):
        report = check(body, policy=policy)
        assert [f.kind for f in report.findings] == ["slot-reuse"] and not errors(report), policy
    assert report.findings[0].message.endswith("both write the same value")
    assert not check(TWICE.format(apart=4, source=128, again="")).findings
    assert errors(check(TWICE.format(apart=0, source=128, again=""))) == {"slot-reuse"}  # other bytes to the same place
    assert errors(check(LOOP)) == {"slot-reuse"}  # wait_group.read leaves the writes in flight


def test_an_mbarrier_of_the_own_cta_wants_no_fence_for_asynchronous_operations() -> None:
    """They access it through the generic proxy (PTX ISA 9.3): a barrier of the CTA is enough. Not for a peer's."""
    assert not check(init(1) + FILL + wait(0) + OTHERS + OUT).findings
    peer = INIT.format(count=1) + """{fence} barrier.cluster.arrive; barrier.cluster.wait;
        mov.u32 %r6, %cluster_ctarank; xor.b32 %r6, %r6, 1; mapa.shared::cluster.u32 %r7, %r10, %r6;
        mapa.shared::cluster.u32 %r8, %r2, %r6;
        add.u32 %r9, %r2, 1024; add.u32 %r11, %r3, %r1; setp.gt.u32 %p2, %r0, 31; @%p2 bra FILL; bra FULL;
        FILL: st.shared.v2.u32 [%r11+768], {{%r0, %r0}};""" + FENCE + "FULL:" + SYNC + """
        @%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r10], 256;
        @%p0 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r8], [%r9], 256, [%r7];
        """ + wait(0) + "barrier.cluster.arrive; barrier.cluster.wait;"
    report = check(peer.format(fence=""), grid=2, cluster=2)
    assert [f.kind for f in report.findings] == ["barrier-init"] and not errors(report)
    fence = "fence.mbarrier_init.release.cluster;"
    assert not check(peer.format(fence=fence), grid=2, cluster=2).findings


@pytest.mark.parametrize(("first", "last", "found"), [(16, 20, set()), (20, 24, {"uninitialised"})])
def test_what_the_hardware_ignores_of_a_tensor_map_may_be_left_out(first, last, found) -> None:
    """CuTe DSL's encoder in device code leaves out bytes 64 to 79."""
    leave_out = f"setp.ge.u32 %p5, %r0, {first}; setp.lt.u32 %p6, %r0, {last}; and.pred %p5, %p5, %p6; @!%p5 st.shared"
    edit = IN_SHARED.format(publish=PUBLISH).replace("st.shared", leave_out)
    report = check_map(edit, "fence.proxy.tensormap::generic.acquire.gpu [%rd8], 128;")
    assert {f.kind for f in report.findings} == found
