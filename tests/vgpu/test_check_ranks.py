"""What the hazard checker leaves for review, and what it takes for right, since published kernels do it."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("llvmlite")

from tensorladder.core.findings import Verdict
from tests.vgpu.test_check import (
    COPIED,
    COPY,
    FENCE,
    FILL,
    HEAD,
    INIT,
    MINE,
    OTHERS,
    OUT,
    READ,
    STORE,
    SYNC,
    check,
    edited,
    errors,
    init,
    wait,
)
from tests.vgpu.test_check_order import IN_SHARED, PUBLISH, check_map

RELEASE = "fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster;"
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
#: each CTA of a pair copies 256 bytes from its shared memory to the other one's
PEER = INIT.format(count=1) + """{fence} barrier.cluster.arrive; barrier.cluster.wait;
    mov.u32 %r6, %cluster_ctarank; xor.b32 %r6, %r6, 1; mapa.shared::cluster.u32 %r7, %r10, %r6;
    mapa.shared::cluster.u32 %r8, %r2, %r6; add.u32 %r9, %r2, 1024; add.u32 %r11, %r3, %r1;
    setp.gt.u32 %p2, %r0, 31; @%p2 bra FILL; bra FULL; FILL: st.shared.v2.u32 [%r11+768], {{%r0, %r0}};
    """ + FENCE + "FULL:" + SYNC + """@%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r10], 256;
    @%p0 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r8], [%r9], 256, [%r7]; {end}"""
INIT_FENCE = "fence.mbarrier_init.release.cluster;"
MEET = wait(0) + "barrier.cluster.arrive; barrier.cluster.wait;"
#: warp 1 waits for phases of bar, and tells warp 0 by bar + 8, who arrives for the next phase
RELAXED = (
    INIT.format(count=32) + "@%p0 mbarrier.init.shared.b64 [%r10+8], 32;" + SYNC
    + """mov.u32 %r6, 0; setp.gt.u32 %p2, %r0, 31; @%p2 bra SECOND;
    FIRST: mbarrier.arrive.relaxed.cta.shared.b64 _, [%r10];
    W1: mbarrier.try_wait.parity.relaxed.cta.shared.b64 %p1, [%r10+8], %r6; @!%p1 bra W1;
    xor.b32 %r6, %r6, 1; setp.eq.u32 %p3, %r6, 1; @%p3 bra FIRST; bra END;
    SECOND: {late}
    W2: mbarrier.try_wait.parity.relaxed.cta.shared.b64 %p1, [%r10], %r6; @!%p1 bra W2; {soon}
    xor.b32 %r6, %r6, 1; setp.eq.u32 %p3, %r6, 1; @%p3 bra SECOND; END:"""
)  # fmt: skip
TELL = "mbarrier.arrive.relaxed.cta.shared.b64 _, [%r10+8];"
#: a warp a CTA; lanes 0 and 1 of one instruction arrive at both CTAs' mbarriers, CTA 0 waits and lets both go on
MULTICAST = """@%p0 mbarrier.init.shared.b64 [%r10], {count}; @%p0 mbarrier.init.shared.b64 [%r10+8], 1;
    @%p0 fence.mbarrier_init.release.cluster; barrier.cluster.arrive; barrier.cluster.wait;
    mov.u32 %r6, %cluster_ctarank; setp.eq.u32 %p2, %r6, 0; setp.lt.u32 %p3, %r0, 2;
    mapa.shared::cluster.u32 %r7, %r10, %r0; mov.u32 %r8, 0;
    mov.u32 %r9, 0; AGAIN: @%p3 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r7]; @!%p2 bra FULL;
    W1: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p1, [%r10], %r8; @!%p1 bra W1;
    @%p3 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r7+8]; FULL:
    W2: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p1, [%r10+8], %r8; @!%p1 bra W2;
    xor.b32 %r8, %r8, 1; add.u32 %r9, %r9, 1; setp.lt.u32 %p4, %r9, 4; @%p4 bra AGAIN;
    barrier.cluster.arrive; barrier.cluster.wait;"""


@pytest.mark.parametrize(("value", "alike"), [("%r6", True), ("%r0", False)])
@pytest.mark.parametrize("form", ["m8n8.x1.shared.b16 [%r7]", "m8n8.x1.trans.shared.b16 [%r7]"])
def test_two_warps_that_store_the_same_matrix_are_for_review(value, alike, form) -> None:
    """Triton does, where a layout has a value twice."""
    body = "and.b32 %r6, %r0, 31; and.b32 %r7, %r0, 7; shl.b32 %r7, %r7, 4; add.u32 %r7, %r7, %r2;"
    (found,) = check(body + f"stmatrix.sync.aligned.{form}, {{{value}}};").findings
    assert found.kind == "race" and (found.severity is Verdict.ERROR) is not alike


#: values of each CTA's threads, whether those of two CTAs are the same
VALUES = [("7", True), ("%r0", True), ("%r6", False)]


@pytest.mark.parametrize(("value", "alike"), VALUES)
@pytest.mark.parametrize("store", ["st.global.u32 [%rd1], {};", "cvt.u16.u32 %rs, {}; st.global.u8 [%rd4], %rs;"])
@pytest.mark.parametrize("grid", [2, 5])  # with a worker for each CTA, and with several for one
def test_two_ctas_that_store_the_same_value_are_for_review(value, alike, store, grid) -> None:
    """As FlashAttention-4's backward: rows past a tile get what the next tile's CTA stores there."""
    body = "mov.u32 %r6, %ctaid.x; .reg .b16 %rs; cvt.u64.u32 %rd4, %r0; add.u64 %rd4, %rd4, %rd0;" + store
    report = check(body.format(value), grid=grid)
    assert {f.kind for f in report.findings} == {"race"}
    assert errors(report) == (set() if alike else {"race"})


#: by CTA 0 and by CTA 1; %p4: thread 0. Lanes of one address are one store, and equal bytes equal by any width
TWO_STORES = [
    ("@%p4 st.global.v4.u32 [%rd0], {10, 1, 0, 0};", "@%p4 st.global.v4.u32 [%rd0], {10, 1, 0, 0};", True),
    ("@%p4 st.global.v4.u32 [%rd0], {10, 1, 0, 0};", "@%p4 st.global.v4.u32 [%rd0], {1, 2, 0, 0};", False),
    ("st.global.u32 [%rd0], 7;", "@%p4 st.global.u32 [%rd0], 7;", True),
    ("@%p4 st.global.u32 [%rd0], 0x07070707;", "@%p4 st.global.v4.u8 [%rd0], {%rs, %rs, %rs, %rs};", True),
]


@pytest.mark.parametrize(("first", "second", "alike"), TWO_STORES)
def test_what_two_workers_store_is_told_apart_by_its_bytes(first, second, alike) -> None:
    """CTAs that take long enough for each to be a worker's; multiples of the words alone would have the same sum."""
    body = f"""mov.u32 %r6, %ctaid.x; mov.u32 %r7, 0; .reg .b16 %rs; mov.b16 %rs, 7; setp.eq.u32 %p4, %r0, 0;
    SPIN: add.u32 %r7, %r7, 1; setp.lt.u32 %p2, %r7, 2000000; @%p2 bra SPIN;
    setp.eq.u32 %p3, %r6, 0; @!%p3 bra SECOND; {first} bra END; SECOND: {second} END:"""
    report = check(body, block=32, grid=2)
    assert errors(report) == (set() if alike else {"race"}) and report.findings


@pytest.mark.parametrize(("who", "count", "graver"), [(32, "1", False), (33, "1", True), (32, "%r6", True)])
def test_lanes_of_one_instruction_that_initialise_a_barrier_alike_are_for_review(who, count, graver) -> None:
    """FlashAttention-4's backward leaves out the election."""
    init = f"setp.lt.u32 %p2, %r0, {who}; shr.u32 %r6, %r0, 3; add.u32 %r6, %r6, 1; @%p2 mbarrier.init.shared.b64 "
    report = check(init + f"[%r10], {count};" + SYNC + "@%p0 mbarrier.arrive.shared.b64 _, [%r10];")
    assert "barrier-init" in {f.kind for f in report.findings}
    assert ("barrier-init" in errors(report)) is graver


def test_lanes_of_one_instruction_arrive_together() -> None:
    """Who knows of one lane's arrival comes after those of the others (DeepGEMM's multicast leans on that)."""
    for policy in ("eager", "lazy", "random:3"):
        assert not check(MULTICAST.format(count=2), block=32, grid=2, cluster=2, policy=policy).findings, policy
    assert "barrier-count" in errors(check(MULTICAST.format(count=1), block=32, grid=2, cluster=2))


@pytest.mark.parametrize(("fence", "found"), [("", ["missing-proxy-fence"]), (RELEASE, [])])
def test_readers_of_a_launch_control_answer_fence_before_the_next(fence, found) -> None:
    def change(ptx: str) -> str:
        return re.sub(r"fence\.proxy\.async[\w.:]*;", fence, ptx)

    report = edited("a1-cluster-launch-control", change, sm_count=1)
    assert [f.kind for f in report.findings] == found and not errors(report)


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
    report = check(PEER.format(fence="", end=MEET), grid=2, cluster=2)
    assert [f.kind for f in report.findings] == ["barrier-init"] and not errors(report)
    assert not check(PEER.format(fence=INIT_FENCE, end=MEET), grid=2, cluster=2).findings


@pytest.mark.parametrize(
    ("end", "codes"),
    [
        (MEET, 0),
        (MEET.replace("arrive;", "arrive.relaxed;"), 0),
        (wait(0), 1),
        ("barrier.cluster.arrive; barrier.cluster.wait;" + wait(0), 1),
        ("barrier.cluster.arrive.relaxed;" + wait(0) + "barrier.cluster.wait;", 1),
    ],
)
def test_the_exit_while_a_copy_to_a_peer_reads_is_for_review(end, codes) -> None:
    """That the receiver has waited is enough, whatever tells the sender: the order of execution counts."""
    for policy in ("eager", "lazy"):
        report = check(PEER.format(fence=INIT_FENCE, end=end), grid=2, cluster=2, policy=policy)
        assert [f.kind for f in report.findings] == ["missing-wait"] * codes and not errors(report), policy


def test_relaxed_arrivals_and_waits_keep_a_phase_from_being_missed() -> None:
    assert not check(RELAXED.format(late="", soon=TELL)).findings
    report = check(RELAXED.format(late=TELL, soon=""))  # before it has looked
    assert {f.kind for f in report.findings} == {"barrier-phase"} and not errors(report)
    lines = {(HEAD + RELAXED).split(label)[0].count("\n") + 1 for label in ("W1:", "W2:")}
    assert {f.where.ptx_line for f in report.findings} == lines  # of the very waits


def test_relaxed_barriers_of_a_cluster_order_tensor_memory() -> None:
    """With the tcgen05 fences around them, and before dealloc without (DeepGEMM's products of pairs end so)."""
    sync = "barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned;"

    def relaxed(ptx: str) -> str:
        first, *rest = re.split(r"bar\.sync\s+0;", ptx)
        assert len(rest) == 3  # the address, what was stored, what was loaded
        return first + "bar.sync 0;" + rest[0] + sync + rest[1] + sync + rest[2]

    assert not edited("z2", relaxed).findings
    fence = "tcgen05.fence::after_thread_sync"
    assert errors(edited("z2", lambda ptx: relaxed(ptx).replace(fence, "bar.warp.sync -1"))) == {"missing-wait"}


@pytest.mark.parametrize(("first", "last", "found"), [(16, 20, set()), (20, 24, {"uninitialised"})])
def test_what_the_hardware_ignores_of_a_tensor_map_may_be_left_out(first, last, found) -> None:
    """CuTe DSL's encoder in device code leaves out bytes 64 to 79."""
    leave_out = f"setp.ge.u32 %p5, %r0, {first}; setp.lt.u32 %p6, %r0, {last}; and.pred %p5, %p5, %p6; @!%p5 st.shared"
    edit = IN_SHARED.format(publish=PUBLISH).replace("st.shared", leave_out)
    report = check_map(edit, "fence.proxy.tensormap::generic.acquire.gpu [%rd8], 128;")
    assert {f.kind for f in report.findings} == found
